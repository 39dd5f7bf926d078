"""Action plugin host_audit: one round trip to the host, judged on the controller (manual: library/host_audit.py)."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from ansible.errors import AnsibleActionFail, AnsibleError
from ansible.plugins.action import ActionBase

sys.path.insert(0, str(Path(__file__).resolve().parents[3]))  # ansible-playbook does not put the project on the path

from hostcheck.assess import assess, facts_from
from hostcheck.expectations import Refused, expectation, waivers
from hostcheck.findings import Status
from hostcheck.onhost.gather import Facts
from hostcheck.report import store

READ = ("root", "under_load", "wake", "xpu_smi", "sample_seconds", "initrd")
ARGUMENTS = {
    "expect": {"type": "dict", "default": {}},
    "waivers": {"type": "list", "elements": "dict", "default": []},
    "root": {"type": "path", "default": "/"},
    "under_load": {"type": "bool", "default": False},
    "wake": {"type": "bool", "default": False},
    "xpu_smi": {"type": "str", "choices": ["auto", "always", "never"], "default": "auto"},
    "sample_seconds": {"type": "float", "default": 0.0},
    "initrd": {"type": "bool", "default": False},
    "fail_on": {"type": "str", "choices": ["fail", "warn"], "default": "fail"},
    "since": {"type": "str", "default": "boot"},
    "report_dir": {"type": "path", "default": "reports"},
}


def previous_of(base: Path, host: str) -> Facts | None:
    """Facts of the last run of this host, or None where there is none that can be read."""
    try:
        return store.load_host(base / "latest" / "hosts" / f"{store.file_name(host)}.json").facts
    except (OSError, ValueError):
        return None


class ActionModule(ActionBase):  # type: ignore[misc]
    """Calls host_facts, validates what came back, judges it and writes the host's report."""

    _supports_check_mode = True

    def run(self, tmp: str | None = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        """Give counts, exit, failing and the report's path; fail where a finding fails."""
        result: dict[str, Any] = super().run(tmp, task_vars)
        task_vars = task_vars or {}
        host = str(task_vars.get("inventory_hostname", "localhost"))
        try:
            _, given = self.validate_argument_spec(argument_spec=ARGUMENTS)
            expected = expectation(given["expect"])
            excused = waivers(given["waivers"])
        except (AnsibleError, Refused) as error:
            raise AnsibleActionFail(str(error), result={"exit": 2}) from None
        arguments = {**{name: given[name] for name in READ}, "pythons": list(expected.pythons)}
        answer = self._execute_module(module_name="host_facts", module_args=arguments, task_vars=task_vars)
        if answer.get("failed") or answer.get("unreachable"):
            return {**result, **answer}
        base = Path(given["report_dir"])
        try:
            facts = facts_from(answer["ansible_facts"]["hostcheck"])
        except (KeyError, ValueError) as error:
            raise AnsibleActionFail(f"{host}: what came back is not understood: {error}") from None
        report = assess(
            facts, expected, excused, host, previous_of(base, host), Status(given["fail_on"]), since=given["since"]
        )
        path = store.run_folder(base) / "hosts" / f"{store.file_name(host)}.json"
        store.write(path, report.to_json())
        failing = [f"{one.id} {one.subject}" for one in report.findings if one.status is Status.fail and not one.waived]
        ids = {
            status.value: sorted({one.id for one in report.findings if one.status is status})
            for status in (Status.fail, Status.warn, Status.unknown)
        }
        result.update(changed=False, counts=report.counts, exit=report.exit, failing=failing, report=str(path), ids=ids)
        if report.exit == 1:
            result.update(failed=True, msg=f"{len(failing)} failing: {', '.join(failing) or 'see the report'}")
        return result
