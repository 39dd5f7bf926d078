"""The ready mark ``/run/hostcheck/ready.json``: there only while the host has passed on this boot.

It is written last and removed first, whole or not at all, so that a run that is killed anywhere leaves no mark on a
host that has not passed. It holds for one boot, for the cards that it names, and while the kernel log says nothing
against a card: whoever is about to start a job asks `check`.
"""

from __future__ import annotations

import json
import math
import re
import stat as stat_module
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from ..reader import LiveReader, Reader, Reading, shorten
from ..readings import kernel_log, pcie
from ..readings.kernel_log import Event
from ..readings.log_lines import NO_TIME
from ..recording import utc
from ..settings.files import Failed, File, Writer
from .cards import look
from .log import Position, against, boot_id, dumps, line_of, newest, since, ways

MARK = "/run/hostcheck/ready.json"
EVIDENCE = "/var/lib/hostcheck/evidence"
SCHEMA = "hostcheck/ready/1"
READY, NOT_READY, WRONG_USE, NOT_TOLD = 0, 1, 2, 3


class NotPassed(Exception):
    """The mark must not be written; its text says why."""


@dataclass(frozen=True)
class Mark:
    """What a mark says.

    boot_id: the boot that it holds for. passed_at: UTC. findings: status -> ids of the findings of the audit that
    passed, other than ok. receipts: digests of the probe's receipts. cards: address -> driver. log: place in the
    kernel log up to which it was looked at. dumps: names of coredumps that were there then, and had been looked at.
    """

    boot_id: str
    passed_at: str
    log: Position
    findings: dict[str, list[str]] = field(default_factory=dict)
    receipts: tuple[str, ...] = ()
    cards: dict[str, str] = field(default_factory=dict)
    dumps: tuple[str, ...] = ()

    def text(self) -> str:
        """The mark as it stands in the file."""
        return json.dumps({"schema": SCHEMA, **asdict(self)}, indent=1, sort_keys=True) + "\n"


@dataclass(frozen=True)
class Verdict:
    """May a job start? code: 0 yes, 1 no, 3 could not tell. reason: one line."""

    code: int
    reason: str


def parse(text: str) -> Mark:
    """The mark that a file holds. Raises ValueError for anything else."""
    plain = json.loads(text)
    if not isinstance(plain, dict) or plain.get("schema") != SCHEMA:
        raise ValueError(f"expected a mark of schema {SCHEMA}, got {shorten(text, 80)!r}")
    log = plain.get("log")
    if not isinstance(log, dict) or not isinstance(plain.get("cards"), dict):
        raise ValueError("log or cards is missing")
    seconds = log.get("seconds")
    if isinstance(seconds, bool) or not isinstance(seconds, (int, float)) or not 0 <= seconds < math.inf:
        raise ValueError(f"log.seconds: expected seconds since boot, got {seconds!r}")
    return Mark(
        boot_id=str(plain.get("boot_id", "")),
        passed_at=str(plain.get("passed_at", "")),
        log=Position(str(log.get("boot_id", "")), float(seconds), str(log.get("cursor", ""))),
        findings=_findings(plain.get("findings") or {}),
        receipts=tuple(str(one) for one in plain.get("receipts") or ()),
        cards={str(bdf): str(driver) for bdf, driver in plain["cards"].items()},
        dumps=tuple(str(one) for one in plain.get("dumps") or ()),
    )


def _findings(given: Any) -> dict[str, list[str]]:
    if not isinstance(given, Mapping) or not all(isinstance(ids, (list, tuple)) for ids in given.values()):
        raise ValueError(f"findings: expected lists of ids by status, got {shorten(repr(given), 80)}")
    return {str(status): sorted(str(one) for one in ids) for status, ids in given.items()}


def load(reader: Reader) -> Reading[Mark]:
    """The mark of this host; of a file that is not root's alone nothing is believed."""
    if isinstance(reader, LiveReader) and reader.is_root:
        owned = reader.stat(MARK)
        if owned.value is not None and (owned.value.uid != 0 or stat_module.S_IMODE(owned.value.mode) & 0o022):
            return Reading.no("not_understood", "is not root's, or others may write it", MARK)
    return reader.text(MARK).then(parse)


def remove(writer: Writer) -> bool:
    """Take the mark away, and what a killed run left of one. Was there one?"""
    there = writer.file(MARK) is not None
    writer.remove(MARK)
    writer.tidy(MARK)
    return there


# -- may a job start? ---------------------------------------------------------------------------------------------


def check(reader: Reader) -> Verdict:
    """May a job start on this host now? Opens no card, and changes nothing."""
    mark = load(reader)
    if mark.value is None:
        if mark.unread == "absent":
            return Verdict(NOT_READY, "not ready: no mark: this host has not passed on this boot, or has failed since")
        if mark.unread == "not_understood":
            return Verdict(NOT_READY, f"not ready: {MARK}: {mark.detail}")
        return Verdict(NOT_TOLD, f"cannot tell: {MARK}: {mark.unread}: {mark.detail}")
    booted = boot_id(reader)
    if booted.value is None:
        return Verdict(NOT_TOLD, f"cannot tell: {booted.source}: {booted.unread}: {booted.detail}")
    if booted.value != mark.value.boot_id:
        return Verdict(NOT_READY, "not ready: the mark is of another boot; this one has not passed yet")
    told = [_cards(reader, mark.value), _dumps(reader, mark.value), _log(reader, mark.value)]
    worst = next((one for code in (NOT_READY, NOT_TOLD) for one in told if one is not None and one.code == code), None)
    return worst or Verdict(READY, f"ready: passed at {mark.value.passed_at}, and nothing happened since")


def _cards(reader: Reader, mark: Mark) -> Verdict | None:
    for bdf, driver in sorted(mark.cards.items()):
        link = reader.link(f"{pcie.DEVICES}/{bdf}/driver")
        if link.unread not in (None, "absent"):
            return Verdict(NOT_TOLD, f"cannot tell: {link.source}: {link.unread}: {link.detail}")
        now = (link.value or "").rpartition("/")[2]
        if now != driver:
            return Verdict(NOT_READY, f"not ready: {bdf} was bound to {driver}, now to {now or 'nothing'}")
    return None


def _dumps(reader: Reader, mark: Mark) -> Verdict | None:
    there = dumps(reader)
    if there.value is None:
        return Verdict(NOT_TOLD, f"cannot tell: {there.source}: {there.unread}: {there.detail}")
    own = [(name, bdf) for name, bdf in there.value.items() if bdf in mark.cards and name not in mark.dumps]
    return Verdict(NOT_READY, f"not ready: {own[0][1]} has a device coredump ({own[0][0]})") if own else None


def _log(reader: Reader, mark: Mark) -> Verdict | None:
    said = faults(reader, mark.log)
    if said.value is None:
        return Verdict(NOT_TOLD, f"cannot tell: the kernel log: {said.unread}: {said.detail}")
    return Verdict(NOT_READY, f"not ready: {line_of(said.value[0])}") if said.value else None


def faults(reader: Reader, position: Position) -> Reading[tuple[Event, ...]]:
    """What speaks against a card since a place in the log; unread when messages were lost on the way."""
    said = since(reader, position)
    if said.value is None:
        return said.then(lambda one: one.events)
    near = ways(reader)
    if near.value is None:
        return near.then(lambda _: ())
    found = against(said.value.events, near.value)
    if said.value.missed and not found:
        return Reading.no("io", f"{said.value.missed} kernel messages were lost since then", said.source)
    return Reading(found, said.source)


def kept(reader: Reader, boot: str) -> tuple[str, ...]:
    """Names of the coredumps of a boot that are kept as evidence."""
    names = reader.names(f"{EVIDENCE}/{boot}").value or ()
    return tuple(name.partition("-")[0] for name in names if name.startswith("devcd"))


# -- the gate -----------------------------------------------------------------------------------------------------


def boot_faults(reader: Reader, after: float | None = None) -> Reading[tuple[Event, ...]]:
    """What speaks against a card on this boot, or after so many seconds of it.

    Unread where the log does not reach back so far: what it has lost may have been a fault.
    """
    log = kernel_log.read(reader)
    near = ways(reader)
    if log.events.value is None or near.value is None:
        return (log.events if log.events.value is None else near).then(lambda _: ())
    first = log.first.value
    reaches_back = log.complete.value is True or (after is not None and first is not None and first <= after)
    if not reaches_back:
        what = f"{log.missed.value} messages were lost" if log.missed.value else "its beginning is lost"
        return Reading.no("absent", f"the log of this boot is not whole: {what}", log.events.source)
    events = [one for one in log.events.value if after is None or one.last == NO_TIME or one.last > after]
    return Reading(against(events, near.value), log.events.source)


def grant(
    writer: Writer,
    reader: Reader,
    passed_on: str,
    findings: Mapping[str, Any],
    receipts: tuple[str, ...] = (),
    log_after: float | None = None,
) -> Mark:
    """Mark the host ready: it has passed on the boot `passed_on`.

    An older mark goes first. log_after: place in the kernel log (seconds since boot) up to which somebody has looked;
    without it the whole boot must be without a fault. A coredump stands against it, unless somebody has looked and it
    is kept as evidence: its node stays for up to an hour. Raises NotPassed when something speaks against it, Failed for
    what the host refuses, ValueError for findings in another form.
    """
    told = _findings(findings)
    remove(writer)
    booted = boot_id(reader)
    if booted.value is None:
        raise NotPassed(f"{booted.source}: {booted.unread}: {booted.detail}")
    if booted.value != passed_on.strip().lower():
        raise NotPassed(f"it passed on boot {passed_on}, but this is boot {booted.value}: bring it up again")
    # The place first: what is logged while the rest is read comes after it, and is found by the next check.
    place = newest(reader)
    if place.value is None:
        raise NotPassed(f"the kernel log cannot be read: {place.unread}: {place.detail}")
    said = boot_faults(reader, log_after)
    if said.value is None:
        raise NotPassed(f"the kernel log cannot be read: {said.unread}: {said.detail}")
    if said.value:
        raise NotPassed(line_of(said.value[-1]))
    cards = look(reader)
    if cards.value is None:
        raise NotPassed(f"{cards.source}: {cards.unread}: {cards.detail}")
    seen = tuple(name for name in kept(reader, booted.value) if log_after is not None)
    mark = Mark(
        boot_id=booted.value,
        passed_at=utc(reader.taken_at()),
        log=place.value,
        findings=told,
        receipts=receipts,
        cards={card.bdf: card.driver for card in cards.value if card.driver},
        dumps=seen,
    )
    dumped = _dumps(reader, mark)
    if dumped is not None:
        raise NotPassed(dumped.reason)
    writer.make_folders(MARK)
    writer.put(MARK, File(text=mark.text(), mode=0o644, owner=(0, 0)))
    back = reader.text(MARK).then(parse)
    if back.value != mark:
        remove(writer)
        raise Failed(f"{MARK}: not kept: reads back {back.detail or 'another mark'}")
    return mark


def is_boot_id(text: str) -> bool:
    """Has a text the form of a boot id?"""
    return re.fullmatch(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", text.strip().lower()) is not None
