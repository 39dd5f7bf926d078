"""Action plugin setting_trial: runs the module on the host, verifies and keeps its receipts, and removes them there."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from ansible.errors import AnsibleActionFail
from ansible.plugins.action import ActionBase

sys.path.insert(0, str(Path(__file__).resolve().parents[3]))  # ansible-playbook does not put the project on the path

from hostcheck import receipts
from hostcheck.noise import last
from hostcheck.report import kept


class ActionModule(ActionBase):  # type: ignore[misc]
    """Calls the module of the same name (manual: library/setting_trial.py) and takes the receipts out of its answer."""

    _supports_check_mode = True

    def run(self, tmp: str | None = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        """Give the verdict and the files; fail where it is invalid or a value is not back."""
        result: dict[str, Any] = super().run(tmp, task_vars)
        task_vars = task_vars or {}
        host = str(task_vars.get("inventory_hostname", "localhost"))
        answer = self._execute_module(module_name="setting_trial", task_vars=task_vars)
        trials = answer.pop("trials", [])
        result.update(answer)
        folder = self._task.args.get("receipts")
        if "plan" in answer:
            answer["plan"].update(sight(folder, host, answer["plan"]))
        if not trials:
            return result
        try:
            found, files, wrong = kept.save(host, [one["receipt"] for one in trials], folder)
        except receipts.NotAReceipt as error:
            raise AnsibleActionFail(f"{host}: what came back is no receipt: {error}") from None
        own = 1 if "word" in answer else 0
        collected = files[: len(files) - own]
        lines = [line for one in found[len(found) - own :] for line in kept.trial_lines(one)]
        lines += [f"left by an earlier run: {path}" for path in collected]
        result.update(files=files, collected=collected, lines=lines)
        gone = self._execute_module(
            module_name="setting_trial",
            module_args={
                "state": "collect",
                "saved": [one["id"] for one in trials],
                "root": self._task.args.get("root", "/"),
            },
            task_vars=task_vars,
        )
        if gone.get("failed") or gone.get("unreachable"):
            wrong.append(f"the receipts are saved here, and could not be removed from the host: {gone.get('msg')}")
        if answer["restored"]:
            wrong.append(f"restore failed: {answer['restored']}")
        wrong += kept.failures(found[len(found) - own :])
        if wrong:
            result.update(failed=True, msg="; ".join(wrong))
        return result


def sight(folder: str | None, host: str, plan: dict[str, Any]) -> dict[str, Any]:
    """What the first planned look could see at the host's last noise; nothing where no receipt tells it."""
    noise = last(Path(folder or kept.FOLDER), host, plan["card"] or "cpu", plan["metric"])
    if noise is None:
        return {}
    return {"detectable": noise.detectable(plan["pairs"][0], plan["alpha"]), "detectable_from": noise.file}
