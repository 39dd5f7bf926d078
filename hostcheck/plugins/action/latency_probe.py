"""Action plugin latency_probe: runs the module on the host, and verifies and keeps its receipts on the controller."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from ansible.errors import AnsibleActionFail
from ansible.plugins.action import ActionBase

sys.path.insert(0, str(Path(__file__).resolve().parents[3]))  # ansible-playbook does not put the project on the path

from hostcheck import receipts
from hostcheck.report import kept, probe


class ActionModule(ActionBase):  # type: ignore[misc]
    """Calls the module of the same name (manual: library/latency_probe.py) and takes the receipts out of its answer."""

    _supports_check_mode = True

    def run(self, tmp: str | None = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        """Give the files of the receipts and what they say; fail where one is invalid."""
        result: dict[str, Any] = super().run(tmp, task_vars)
        task_vars = task_vars or {}
        host = str(task_vars.get("inventory_hostname", "localhost"))
        answer = self._execute_module(module_name="latency_probe", task_vars=task_vars)
        found = answer.pop("receipts", None)
        result.update(answer)
        if found is None:
            return result
        try:
            checked, files, wrong = kept.save(host, found, self._task.args.get("receipts"))
        except receipts.NotAReceipt as error:
            raise AnsibleActionFail(f"{host}: what came back is no receipt: {error}") from None
        lines = [line for one in checked for line in probe.brief(one)]
        result.update(files=files, lines=[*lines, *probe.between(checked)])
        invalid = [line for line in lines if ": invalid: " in line]
        if wrong or invalid:
            result.update(failed=True, msg="; ".join([*wrong, *invalid]))
        return result
