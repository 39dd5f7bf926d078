"""Callback hostcheck_report: the report at the end of a play, from all that host_audit said."""

from __future__ import annotations

import io
import sys
from pathlib import Path
from typing import Any

from ansible.plugins.callback import CallbackBase

sys.path.insert(0, str(Path(__file__).resolve().parents[3]))  # ansible-playbook does not put the project on the path

from hostcheck.report import store, terminal

DOCUMENTATION = r"""
name: hostcheck_report
type: aggregate
short_description: Prints the audit's report and writes its summary
description:
  - Prints one report for all hosts that ran host_audit, worst first, and writes C(summary.json) beside their reports.
  - Right with C(--limit), in check mode, and with hosts that failed or could not be reached.
requirements:
  - C(callbacks_enabled = hostcheck_report) in ansible.cfg
"""


class CallbackModule(CallbackBase):  # type: ignore[misc]
    """Collects the result of host_audit on every host."""

    CALLBACK_VERSION = 2.0
    CALLBACK_TYPE = "aggregate"
    CALLBACK_NAME = "hostcheck_report"
    CALLBACK_NEEDS_ENABLED = True

    def __init__(self) -> None:
        super().__init__()
        self._outcomes: dict[str, store.Outcome] = {}
        self._unreachable: dict[str, str] = {}
        self._folder: Path | None = None
        self._audited = False

    def v2_playbook_on_start(self, playbook: Any) -> None:
        store.run_name = store.stamp()
        number = 2
        while (Path(store.FOLDER) / store.run_name).exists():
            store.run_name = f"{store.stamp()}-{number}"
            number += 1

    def v2_playbook_on_task_start(self, task: Any, is_conditional: bool) -> None:
        self._audited = self._audited or task.action == "host_audit"

    def v2_runner_on_ok(self, result: Any) -> None:
        self._keep(result)

    def v2_runner_on_failed(self, result: Any, ignore_errors: bool = False) -> None:
        self._keep(result)

    def v2_runner_on_unreachable(self, result: Any) -> None:
        self._unreachable[result.host.get_name()] = str(result.result.get("msg", "no connection"))

    def _keep(self, result: Any) -> None:
        if result.task.action != "host_audit":
            return
        host, answer = result.host.get_name(), result.result
        if "report" in answer:
            path = Path(answer["report"])
            self._folder = path.parents[1]
            self._outcomes[host] = store.Outcome(host, "judged", answer["exit"], report=store.load_host(path))
        else:
            code = answer.get("exit", 3)
            self._outcomes[host] = store.Outcome(host, "failed", code, str(answer.get("msg", "no message")))

    def v2_playbook_on_stats(self, stats: Any) -> None:
        if not self._audited:
            return
        for host, message in self._unreachable.items():
            self._outcomes.setdefault(host, store.Outcome(host, "unreachable", 3, message))
        if not self._outcomes:
            return
        folder = self._folder or store.run_folder(Path(store.FOLDER))
        outcomes = tuple(self._outcomes.values())
        store.save(folder, outcomes)
        text = io.StringIO()
        out = terminal.console(text, like=sys.stdout)
        terminal.show_run(outcomes, out, min(self._display.verbosity, 2), str(folder))
        self._display.display("\n" + text.getvalue().rstrip("\n"))
