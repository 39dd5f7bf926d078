"""Callback hostcheck_trials: how each host of a trial did, and the whole run in the last line."""

from __future__ import annotations

import sys
import textwrap
from pathlib import Path
from typing import Any

from ansible.plugins.callback import CallbackBase

sys.path.insert(0, str(Path(__file__).resolve().parents[3]))  # ansible-playbook does not put the project on the path

from hostcheck.report import trial
from hostcheck.report.terminal import visible

DOCUMENTATION = r"""
name: hostcheck_trials
type: aggregate
short_description: Prints how a run of trials ended on every host
description:
  - Prints one sentence for each host that ran C(setting_trial), C(trial_boots) or C(probe_before_after), and a last
    line such as C(helped on 3, no change on 9, not shown on 2, invalid on 1 (gpu-7)).
  - Counts and names hosts that failed, could not be reached, or were not tried because the run ended before them.
  - Does nothing in other playbooks.
requirements:
  - C(callbacks_enabled = hostcheck_report, hostcheck_bringup, hostcheck_trials) in ansible.cfg
"""

PLAYBOOKS = ("trial.yml", "trial_boots.yml", "confirm.yml")  # a host may fail before its first trial
TOLD = ("invalid", "refused", "restore failed", "unreachable", "failed")  # words that say already that it went wrong
ACTIONS = ("setting_trial", "trial_boots", "probe_before_after")


class CallbackModule(CallbackBase):  # type: ignore[misc]
    """Collects the words of the trials."""

    CALLBACK_VERSION = 2.0
    CALLBACK_TYPE = "aggregate"
    CALLBACK_NAME = "hostcheck_trials"
    CALLBACK_NEEDS_ENABLED = True

    def __init__(self) -> None:
        super().__init__()
        self._hosts: list[str] = []
        self._words: dict[str, tuple[str, str]] = {}
        self._trials = False

    def v2_playbook_on_start(self, playbook: Any) -> None:
        self._trials = Path(str(playbook._file_name)).name in PLAYBOOKS

    def v2_playbook_on_play_start(self, play: Any) -> None:
        everybody = play.get_variable_manager().get_vars(play=play).get("ansible_play_hosts_all", ())
        self._hosts += [str(host) for host in everybody if str(host) not in self._hosts]

    def v2_playbook_on_task_start(self, task: Any, is_conditional: bool) -> None:
        self._trials = self._trials or task.action in ACTIONS

    def v2_runner_on_ok(self, result: Any) -> None:
        self._keep(result)

    def v2_runner_on_skipped(self, result: Any) -> None:
        self._words.setdefault(result.host.get_name(), ("skipped", ""))

    def v2_runner_on_failed(self, result: Any, ignore_errors: bool = False) -> None:
        self._keep(result)
        host = result.host.get_name()
        if not ignore_errors and self._words.get(host, ("", ""))[0] not in TOLD:  # a verdict before it is not the end
            self._words[host] = ("failed", _message(result))

    def v2_runner_on_unreachable(self, result: Any) -> None:
        self._words[result.host.get_name()] = ("unreachable", _message(result))

    def _keep(self, result: Any) -> None:
        host, answer = result.host.get_name(), result.result
        if result.task.action in ACTIONS and not answer.get("skipped"):
            found = outcome(answer)
            if self._words.get(host, ("", ""))[0] != "restore failed":
                self._words[host] = found
        else:
            self._words.setdefault(host, ("skipped", ""))

    def v2_playbook_on_stats(self, stats: Any) -> None:
        if not self._trials:
            return
        words = {host: self._words.get(host, ("not tried", "")) for host in self._hosts}
        lines = [""]
        for host, (word, said) in sorted(words.items()):
            text = visible(said if said.startswith(f"{host}: ") else f"{host}: {said or word}")
            lines += textwrap.wrap(text, 80, subsequent_indent="  ", break_long_words=False, break_on_hyphens=False)
        self._display.display("\n".join([*lines, trial.tally({host: word for host, (word, _) in words.items()})]))


def outcome(answer: dict[str, Any]) -> tuple[str, str]:
    """Return the word of one host and what to say of it, from what an action has returned."""
    message = str(answer.get("msg") or "")
    refused = answer.get("refused") or []
    if answer.get("restored"):
        return "restore failed", f"restore failed: {answer['restored']}"
    if "restore failed" in message:
        return "restore failed", message
    if "word" in answer:
        return str(answer["word"]), str(answer.get("sentence", ""))
    if refused:
        return "refused", "; ".join(map(str, refused))
    return ("failed", message) if message else ("planned", "")


def _message(result: Any) -> str:
    return str(result.result.get("msg") or f"{result.task.get_name()} failed").strip()
