"""Action plugin bringup_state: how far a bring-up has come, on the controller (manual: library/bringup_state.py)."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from ansible.errors import AnsibleActionFail, AnsibleError
from ansible.plugins.action import ActionBase

sys.path.insert(0, str(Path(__file__).resolve().parents[3]))  # ansible-playbook does not put the project on the path

from hostcheck import bringup
from hostcheck.assess import facts_from
from hostcheck.report import store

ARGUMENTS = {
    "step": {"type": "str", "required": True, "choices": ["begin", *bringup.STEPS, "may_pass", "end"]},
    "result": {
        "type": "str",
        "choices": ["passed", "not_needed", "failed", "nothing_to_do", "reboot_required"],
        "default": "passed",
    },
    "said": {"type": "str", "default": ""},
    "facts": {"type": "dict", "default": {}},
    "report_dir": {"type": "path", "default": "reports"},
}


class ActionModule(ActionBase):  # type: ignore[misc]
    """Never connects to the host; in check mode it writes nothing and stands in nobody's way."""

    _supports_check_mode = True
    _requires_connection = False

    def run(self, tmp: str | None = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        """Give the path of the state; fail where a batch may not begin, or a host may not pass."""
        result: dict[str, Any] = super().run(tmp, task_vars)
        task_vars = task_vars or {}
        host = str(task_vars["inventory_hostname"])
        try:
            _, given = self.validate_argument_spec(argument_spec=ARGUMENTS)
        except AnsibleError as error:
            raise AnsibleActionFail(str(error)) from None
        step, word = given["step"], given["result"]
        boot = None
        if step == "record":
            boot = bringup.boot_record(facts_from(given["facts"]))
            result["boot"] = boot
            given["said"] = given["said"] or bringup.ended_how(boot)
        result.update(changed=False, said=given["said"])
        if task_vars.get("ansible_check_mode"):
            result["state"] = ""
            return result
        folder = store.run_folder(Path(given["report_dir"]))
        result["state"] = str(folder / bringup.FILE)
        try:
            if step == "begin":
                bringup.begin(folder, task_vars["ansible_play_hosts_all"], task_vars["ansible_play_batch"], host)
            elif step == "may_pass":
                bringup.may_pass(folder, host)
            elif step == "end":
                bringup.end(folder, host, word, given["said"])
            else:
                bringup.note(folder, host, step, word, given["said"], boot)
        except (bringup.NotYet, ValueError) as error:
            raise AnsibleActionFail(str(error), result=result) from None
        return result
