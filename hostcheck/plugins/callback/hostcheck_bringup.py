"""Callback hostcheck_bringup: writes down who could not be reached and that the run is over, and prints how it went."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from ansible.plugins.callback import CallbackBase

sys.path.insert(0, str(Path(__file__).resolve().parents[3]))  # ansible-playbook does not put the project on the path

from hostcheck import bringup

DOCUMENTATION = r"""
name: hostcheck_bringup
type: aggregate
short_description: Prints how a bring-up went and ends its state
description:
  - Writes into C(state.json) of a bring-up which hosts could not be reached, and that the run is over.
  - Prints one line for each host. Does nothing in other playbooks and in check mode.
requirements:
  - C(callbacks_enabled = hostcheck_report, hostcheck_bringup) in ansible.cfg
"""


class CallbackModule(CallbackBase):  # type: ignore[misc]
    """Follows bringup_state to the folder of the run."""

    CALLBACK_VERSION = 2.0
    CALLBACK_TYPE = "aggregate"
    CALLBACK_NAME = "hostcheck_bringup"
    CALLBACK_NEEDS_ENABLED = True

    def __init__(self) -> None:
        super().__init__()
        self._unreachable: dict[str, str] = {}
        self._folder: Path | None = None

    def v2_runner_on_ok(self, result: Any) -> None:
        self._follow(result)

    def v2_runner_on_failed(self, result: Any, ignore_errors: bool = False) -> None:
        self._follow(result)

    def _follow(self, result: Any) -> None:
        if result.task.action == "bringup_state" and result.result.get("state"):
            self._folder = Path(result.result["state"]).parent

    def v2_runner_on_unreachable(self, result: Any) -> None:
        said = str(result.result.get("msg", "no connection")).strip().replace("\n", " ")
        self._unreachable[result.host.get_name()] = f"{result.task.get_name()}: {said}"
        if self._folder is not None:  # at once: the next batch asks for it, and this run may be killed
            bringup.end(self._folder, result.host.get_name(), "unreachable", self._unreachable[result.host.get_name()])

    def v2_playbook_on_stats(self, stats: Any) -> None:
        if self._folder is None:
            return
        run = bringup.close(self._folder, self._unreachable)
        self._display.display("\n" + "\n".join(bringup.lines(run, self._folder)))
