"""Action plugin receipt_compare: new receipts against the last good ones (manual: library/receipt_compare.py)."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from ansible.errors import AnsibleActionFail, AnsibleError
from ansible.plugins.action import ActionBase

sys.path.insert(0, str(Path(__file__).resolve().parents[3]))  # ansible-playbook does not put the project on the path

from hostcheck import last_good, receipts

ARGUMENTS = {
    "files": {"type": "list", "elements": "path", "default": []},
    "receipts": {"type": "path", "default": "reports/receipts"},
}


class ActionModule(ActionBase):  # type: ignore[misc]
    """Reads files of the controller only."""

    _supports_check_mode = True
    _requires_connection = False

    def run(self, tmp: str | None = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        """Give lines and digests; fail where a card is gone or clearly slower than it was."""
        result: dict[str, Any] = super().run(tmp, task_vars)
        task_vars = task_vars or {}
        host = str(task_vars["inventory_hostname"])
        try:
            _, given = self.validate_argument_spec(argument_spec=ARGUMENTS)
            new = [receipts.load(Path(file)) for file in given["files"]]
        except (AnsibleError, OSError, receipts.NotAReceipt) as error:
            raise AnsibleActionFail(f"{host}: {error}") from None
        hosts = sorted(task_vars.get("groups", {}).get("all", []))
        found = last_good.compare(Path(given["receipts"]), host, new, hosts)
        result.update(changed=False, lines=list(found.lines), worse=list(found.worse))
        result["digests"] = [one["sha256"] for one in new]
        if found.worse:
            result.update(failed=True, msg="; ".join(found.worse))
        return result
