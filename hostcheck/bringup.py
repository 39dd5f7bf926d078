"""How far a bring-up has come: one file on the controller, ``reports/<UTC>/state.json`` (``hostcheck/bringup/1``).

A batch may begin only when every host of all batches before it has *passed*, by this file: ``serial`` alone goes on
after a host that cannot be reached (ansible-core, tried). Whoever writes holds a lock and replaces the file whole, so a
run that is killed leaves the last true word: a host at ``running`` and no ``ended_at``.
"""

from __future__ import annotations

import fcntl
import json
import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from .onhost.gather import Facts
from .onhost.reader import Reading
from .onhost.recording import utc
from .report import store

FILE = "state.json"
# In the order of the run; the ready mark needs all of those before it.
STEPS = (
    "record",
    "unmark",
    "wait",
    "audit",
    "apply",
    "read_back",
    "smoke",
    "collective",
    "probe",
    "compare",
    "gate",
)

Result = Literal["passed", "not_needed", "failed"]
Word = Literal["waiting", "running", "passed", "nothing_to_do", "reboot_required", "failed", "unreachable"]
DONE = ("passed", "nothing_to_do")


class NotYet(Exception):
    """What was asked must not happen now; the text says which host or step stands against it."""


class Strict(BaseModel):
    model_config = ConfigDict(extra="forbid")


class Step(Strict):
    """One step of one host. boot_id: of the boot on which it was made, "" where that was not read."""

    step: str
    result: Result
    said: str = ""
    at: str
    boot_id: str = ""


class Host(Strict):
    """One host of a run. batch: counted from 1, 0 before its turn. boots: what was recorded of each boot, in order.

    result: ``nothing_to_do`` has neither a card nor a wish for one; ``reboot_required`` must not be rebooted here.
    """

    batch: int = 0
    result: Word = "waiting"
    said: str = ""
    boots: list[dict[str, Any]] = Field(default_factory=list)
    steps: list[Step] = Field(default_factory=list)

    @property
    def boot_id(self) -> str:
        return str(self.boots[-1].get("boot_id", "")) if self.boots else ""

    @property
    def at(self) -> str:
        """The last step that was made, "" before the first."""
        return self.steps[-1].step if self.steps else ""


class Run(Strict):
    """A whole run. ended_at: "" while it goes on, and for ever where it was killed."""

    schema_: Literal["hostcheck/bringup/1"] = Field(default="hostcheck/bringup/1", alias="schema")
    begun_at: str
    ended_at: str = ""
    batches: list[list[str]] = Field(default_factory=list)
    hosts: dict[str, Host]

    @property
    def passed(self) -> bool:
        return all(host.result in DONE for host in self.hosts.values())


def load(folder: Path) -> Run | None:
    """The run of a folder, or None where there is none. Raises ValueError that names the file."""
    path = folder / FILE
    try:
        return Run.model_validate_json(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    except (UnicodeDecodeError, ValidationError) as error:
        raise ValueError(f"{path}: is no state of a bring-up: {error}") from error


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """Ansible makes a process for every host and task; they write one after the other."""
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)


def _change(folder: Path, change: Callable[[Run], None], fresh: Run | None = None) -> Run:
    with _locked(folder):
        run = load(folder) or fresh
        if run is None:
            raise NotYet(f"{folder / FILE}: no such run; a bring-up begins with the step begin")
        change(run)
        store.write(folder / FILE, json.dumps(run.model_dump(by_alias=True), indent=1) + "\n")
    return run


def begin(folder: Path, everybody: Sequence[str], batch: Sequence[str], host: str) -> Run:
    """Let a host begin. Raises NotYet while a host of an earlier batch has not passed; the host is then left alone.

    everybody: all hosts of the play. batch: those that begin together (ansible leaves out who has failed meanwhile).
    """
    now = utc(time.time())

    def change(run: Run) -> None:
        if not run.batches or not set(batch) <= set(run.batches[-1]):
            run.batches.append(list(batch))
        if run.hosts[host].result == "waiting":
            run.hosts[host].batch = len(run.batches)
        not_passed = [
            f"{name} ({run.hosts[name].result}{f' at {at}' if (at := run.hosts[name].at) else ''})"
            for names in run.batches[:-1]
            for name in names
            if run.hosts[name].result not in DONE
        ]
        if not_passed:
            run.hosts[host].said = f"not begun: {', '.join(not_passed)}"
        else:
            run.hosts[host].result = "running"

    fresh = Run(begun_at=now, hosts={name: Host() for name in everybody})
    run = _change(folder, change, fresh)
    if run.hosts[host].result != "running":
        raise NotYet(f"{host} is {run.hosts[host].said}; every host of an earlier batch has to pass first")
    return run


def note(folder: Path, host: str, step: str, result: Result, said: str = "", boot: dict[str, Any] | None = None) -> Run:
    """Write down the result of a step; with `boot` what was recorded of this boot as well."""

    def change(run: Run) -> None:
        one = run.hosts[host]
        if boot is not None:
            one.boots.append(boot)
        one.steps.append(Step(step=step, result=result, said=said, at=utc(time.time()), boot_id=one.boot_id))

    return _change(folder, change)


def may_pass(folder: Path, host: str) -> None:
    """Raise NotYet unless every step before the gate was made on this boot and none failed.

    What counts of a step is its last result, so that a run with ``--tags gate`` alone marks nothing.
    """
    run = load(folder)
    if run is None or host not in run.hosts:
        raise NotYet(f"{folder / FILE}: {host} has not begun")
    one = run.hosts[host]
    last = {step.step: step for step in one.steps}
    missing = [step for step in STEPS[:-1] if step not in last]
    failed = [f"{step.step}: {step.said}" for step in last.values() if step.result == "failed"]
    old = [step.step for step in last.values() if step.boot_id != one.boot_id or not step.boot_id]
    if one.result != "running" or missing or failed or old:
        why = [
            f"it is {one.result}" if one.result != "running" else "",
            f"not made: {', '.join(missing)}" if missing else "",
            f"failed: {'; '.join(failed)}" if failed else "",
            f"made on another boot: {', '.join(old)}" if old else "",
        ]
        raise NotYet(f"{host} has not passed: {'; '.join(filter(None, why))}")


def end(folder: Path, host: str, result: Word, said: str = "") -> Run:
    """Write down how a host's part of the run ended."""

    def change(run: Run) -> None:
        run.hosts[host].result, run.hosts[host].said = result, said

    return _change(folder, change)


def close(folder: Path, unreachable: dict[str, str]) -> Run:
    """Write down that the run is over. A host that was still running has failed: its play ended without a word."""

    def change(run: Run) -> None:
        run.ended_at = utc(time.time())
        for name, why in unreachable.items():
            if name in run.hosts and run.hosts[name].result != "passed":
                run.hosts[name].result, run.hosts[name].said = "unreachable", why
        for one in run.hosts.values():
            if one.result == "running":
                one.result = "failed"
                one.said = one.said or (f"ended after {one.at}" if one.at else "refused before its first step")

    return _change(folder, change)


def boot_record(facts: Facts) -> dict[str, Any]:
    """What is kept of a boot: which it is, what runs on it, and how the one before it ended."""

    def word(reading: Reading[Any]) -> Any:
        return reading.value if reading.value is not None else f"unread: {reading.unread}"

    log = facts.kernel_log.events
    guc = {
        event.bdf: event.details["version"].rpartition(", ")[2]
        for event in log.value or ()
        if event.kind in ("guc.loaded", "guc.version") and event.bdf and event.details.get("version")
    }
    return {
        "boot_id": facts.identity.boot_id.value or "",
        "kernel": word(facts.identity.kernel),
        "command_line": word(facts.next_boot.running),
        "taint": word(facts.identity.taint),
        "bios": word(facts.identity.bios_version),
        "guc": guc if log.value is not None else f"unread: {log.unread}",
        "reset_code": word(facts.last_boot.reset_code),
        "reset_reason": word(facts.last_boot.reset_reason),
        "journal_left_open": word(facts.last_boot.left_open),
        "pstore": word(facts.last_boot.pstore),
        "firmware_records": word(facts.last_boot.firmware_records),
    }


def ended_how(boot: dict[str, Any]) -> str:
    """One line on how the boot before ended; silence is no evidence of a clean end.

    >>> ended_how({"reset_reason": "system reset pin BP_SYS_RST_L was tripped", "journal_left_open": True})
    'the boot before: system reset pin BP_SYS_RST_L was tripped; its journal was left open'
    """
    reason = str(boot.get("reset_reason") or "")
    signs = [] if not reason or reason.startswith("unread") else [reason]
    if boot.get("journal_left_open") is True:
        signs.append("its journal was left open")
    if isinstance(boot.get("pstore"), (list, tuple)) and boot["pstore"]:
        signs.append(f"{len(boot['pstore'])} crash records")
    if isinstance(boot.get("firmware_records"), int) and boot["firmware_records"]:
        signs.append(f"{boot['firmware_records']} errors kept by the firmware")
    return f"the boot before: {'; '.join(signs) or 'no sign of a bad end, which proves nothing'}"


def lines(run: Run, folder: Path) -> list[str]:
    """The run on a terminal: one line for each host, in the order of the batches."""
    width = max(len(name) for name in run.hosts)
    said = []
    for name, one in sorted(run.hosts.items(), key=lambda item: item[1].batch or len(run.hosts) + 1):
        at = f" after {one.at}" if one.at and one.result not in DONE else ""
        said.append(f"{name:<{width}}  {one.result.replace('_', ' ')}{at}{': ' if one.said else ''}{one.said}")
    return [*said, f"state: {folder / FILE}"]
