"""How the boot before this one ended: what the firmware says about the reset, and what a dying kernel left behind.

No command is needed. A journal that was not closed is renamed when the next boot opens it, and the new name holds the
time (systemd, journal_file_dispose: ``system@TIME-RANDOM.journal~``); the kernel prints the reset reason of AMD boards,
and the firmware's record of a fatal error comes as BERT lines. All of these are evidence of a bad end; without them a
boot may still have ended badly: journald marks its file as closed after every sync, so a freeze in a quiet time leaves
it so.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ..reader import Reader, Reading

if TYPE_CHECKING:
    from .identity import Identity
    from .kernel_log import KernelLog

JOURNAL = "/var/log/journal"
PSTORE = ("/sys/fs/pstore", "/var/lib/systemd/pstore")
OPENED = 600.0  # seconds; a boot has opened its journal on disk by then
EARLY = 120.0  # seconds; the clock may still be corrected after the kernel has counted them


@dataclass(frozen=True)
class LastBoot:
    """How the previous boot ended.

    reset_code, reset_reason: what the kernel printed at this boot, e.g. ``0x00800800`` and the words after it; absent
    where it printed none (only AMD boards, kernel 6.16 and later).
    left_open: did this boot find the journal on disk open? False proves nothing; absent where there is none from before
        this boot.
    pstore: names of crash records, in the kernel's store or where systemd-pstore keeps them.
    firmware_records: number of errors of the previous boot that the firmware kept (BERT).
    """

    reset_code: Reading[str]
    reset_reason: Reading[str]
    left_open: Reading[bool]
    pstore: Reading[tuple[str, ...]]
    firmware_records: Reading[int]


def parse_disposed(name: str) -> float:
    """Return the time, in seconds since the epoch, at which a journal that had not been closed was put aside.

    >>> parse_disposed("system@0006413497bb4000-8f1d2c3b4a596877.journal~")
    1760544000.0

    Raises ValueError for another name.
    """
    match = re.fullmatch(r"system@([0-9a-f]{16})-[0-9a-f]{16}\.journal~", name)
    if not match:
        raise ValueError(f"expected system@TIME-RANDOM.journal~, got {name!r}")
    return int(match.group(1), 16) / 1e6


def was_left_open(names: tuple[str, ...], booted: float) -> bool:
    """Did this boot find the system journal open?

    names: of a machine's folder. booted: time of this boot. Raises ValueError where no journal is from before it.
    """
    disposed = [parse_disposed(name) for name in names if re.fullmatch(r"system@[0-9a-f-]{33}\.journal~", name)]
    if any(booted - EARLY <= when <= booted + OPENED for when in disposed):
        return True
    archived = [name for name in names if re.fullmatch(r"system@[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{16}\.journal", name)]
    first = [int(name.rpartition("-")[2].partition(".")[0], 16) / 1e6 for name in archived]
    if not any(when < booted - EARLY for when in (*first, *disposed)):
        raise ValueError("no journal on disk is from before this boot")
    return False


def read_left_open(reader: Reader, uptime: Reading[float]) -> Reading[bool]:
    listed = reader.names(JOURNAL)
    if listed.value is None:
        return listed.then(bool)
    if uptime.value is None:
        return uptime.then(bool)
    booted = reader.taken_at() - uptime.value
    for name in listed.value:
        if not re.fullmatch(r"[0-9a-f]{32}", name):
            continue
        folder = f"{JOURNAL}/{name}"
        names = reader.names(folder)
        if names.value is not None and "system.journal" not in names.value:
            continue  # another machine's, as in an image that was copied
        found = names.then(lambda inside: was_left_open(inside, booted))
        if found.unread == "not_understood":
            return Reading.no("absent", found.detail, folder)
        return found
    return Reading.no("absent", "no journal is kept on disk", JOURNAL)


def read_pstore(reader: Reader) -> Reading[tuple[str, ...]]:
    found: list[str] = []
    answered: list[Reading[tuple[str, ...]]] = []
    for folder in PSTORE:
        names = reader.names(folder)
        answered.append(names)
        found += [f"{folder}/{name}" for name in names.value or ()]
    refused = next((one for one in answered if one.unread not in (None, "absent")), None)
    if found:
        return Reading(tuple(found), " ".join(PSTORE))
    if refused is not None:
        return refused
    return answered[0] if all(one.value is None for one in answered) else Reading((), " ".join(PSTORE))


def read(reader: Reader, identity: Identity, kernel_log: KernelLog) -> LastBoot:
    events = kernel_log.events
    reasons = [event for event in events.value or () if event.kind == "reset_reason"]
    no: Reading[str] = (
        events.then(str)
        if events.value is None
        else Reading.no("absent", "the kernel printed no reset reason", events.source)
    )
    last = reasons[-1] if reasons else None
    return LastBoot(
        reset_code=Reading(last.details.get("code", ""), events.source) if last is not None else no,
        reset_reason=Reading(last.details.get("reason", "").strip(), events.source) if last is not None else no,
        left_open=read_left_open(reader, identity.uptime),
        pstore=read_pstore(reader),
        firmware_records=events.then(lambda found: sum(event.count for event in found if event.previous_boot)),
    )
