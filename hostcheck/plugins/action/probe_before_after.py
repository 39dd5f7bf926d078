"""Action plugin probe_before_after: puts the receipts before and after a change side by side (manual: library/)."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from ansible.errors import AnsibleActionFail, AnsibleError
from ansible.plugins.action import ActionBase

sys.path.insert(0, str(Path(__file__).resolve().parents[3]))  # ansible-playbook does not put the project on the path

from hostcheck import receipts
from hostcheck.report import trial
from hostcheck.report.probe import subject

ARGUMENTS = {
    "before": {"type": "list", "elements": "path", "required": True},
    "after": {"type": "list", "elements": "path", "required": True},
}


class ActionModule(ActionBase):  # type: ignore[misc]
    """Works on the controller alone."""

    _supports_check_mode = True

    def run(self, tmp: str | None = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        """Give the lines; the word is always ``descriptive``."""
        result: dict[str, Any] = super().run(tmp, task_vars)
        try:
            _, given = self.validate_argument_spec(argument_spec=ARGUMENTS)
            found = {
                when: {subject(one): one for one in map(receipts.load, map(Path, given[when]))}
                for when in ("before", "after")
            }
        except (AnsibleError, receipts.NotAReceipt, OSError) as error:
            raise AnsibleActionFail(str(error)) from None
        lines = [
            line
            for who, before in found["before"].items()
            for line in (
                trial.before_after(before, found["after"][who], who)
                if who in found["after"]
                else [f"{who}: was not measured after it"]
            )
        ]
        sentence = lines[0] if len(lines) == 1 else f"{lines[0]} (descriptive only)"
        return {**result, "changed": False, "word": "descriptive", "sentence": sentence, "lines": lines}
