"""The kernel log from one place on: what spoke against a card since then, and the lines that name a device.

The journal gives its entries from a cursor on, so that a check before every start need not read a boot of megabytes.
That the entry at the cursor comes first proves that the journal could be read and still reaches back so far: an empty
answer is never "nothing happened".
"""

from __future__ import annotations

import json
import re
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from itertools import chain
from typing import Any

from ..reader import Lines, Reader, Reading, shorten
from ..readings import gpu_ids, kernel_log, pcie
from ..readings.identity import parse_boot_id
from ..readings.kernel_log import DMESG, JOURNAL, Event, parse_journal
from ..readings.log_events import GPU_DRIVERS, driver_of, is_bad
from ..readings.log_lines import BDF, NO_TIME, Clock
from ..readings.lspci import Device

NEWEST = ("journalctl", "-k", "-b", "0", "-o", "json", "-n", "1", "--no-pager")
ON_A_WAY = ("aer.nonfatal", "aer.fatal", "slot.link_down", "iommu.timeout", "d3_failed")


@dataclass(frozen=True)
class Position:
    """A place in the kernel log of a boot.

    boot_id: as in /proc/sys/kernel/random/boot_id. seconds: since boot, of the newest line. cursor: of the journal's
    newest entry; "" where there is no journal.
    """

    boot_id: str
    seconds: float
    cursor: str = ""


@dataclass(frozen=True)
class Since:
    """What the log says from a place on. missed: messages that were lost on the way."""

    events: tuple[Event, ...] = ()
    missed: int = 0


def boot_id(reader: Reader) -> Reading[str]:
    """Identity of this boot."""
    return reader.line(kernel_log.BOOT_ID).then(parse_boot_id)


def _entry(line: str) -> dict[str, Any]:
    """An entry of the journal; {} for anything else."""
    try:
        entry = json.loads(line)
    except ValueError:
        return {}
    return entry if isinstance(entry, dict) else {}


def _seconds(entry: dict[str, Any]) -> float:
    """Seconds since boot at which the journal took an entry. Raises ValueError when it has none.

    That time, a little later than the kernel's own, is what `kernel_log` gets too (the fields that it asks for): a
    place in the log must not lie before the line that it was taken from.
    """
    text = str(entry.get("__MONOTONIC_TIMESTAMP") or entry.get("_SOURCE_MONOTONIC_TIMESTAMP") or "")
    if not text.isdigit():
        raise ValueError("the newest entry of the journal carries no time since boot")
    return int(text) / 1e6


def newest(reader: Reader) -> Reading[Position]:
    """The place of the newest line of this boot's log."""
    booted = boot_id(reader)
    if booted.value is None:
        return booted.then(lambda text: Position(text, 0.0))
    identity = booted.value

    def parse(text: str) -> Position:
        entry = _entry((text.splitlines() or [""])[-1])
        if not entry.get("__CURSOR"):
            raise ValueError(f"expected an entry of the journal, got {shorten(text, 80)!r}")
        return Position(identity, _seconds(entry), str(entry["__CURSOR"]))

    found = reader.output(NEWEST).then(parse)
    if found.value is not None:
        return found
    return kernel_log.read(reader).last.then(lambda seconds: Position(identity, seconds))


def since(reader: Reader, position: Position) -> Reading[Since]:
    """What the log says after a place of this boot; unread when the log cannot be read or does not reach back to it."""
    if position.cursor:
        found = _after_cursor(reader, position.cursor)
        if found.value is not None:
            return found
    log = kernel_log.read(reader)
    if log.events.value is None:
        return log.events.then(lambda _: Since())
    if log.complete.value is not True and not (log.first.value is not None and log.first.value <= position.seconds):
        return Reading.no("absent", "the log does not reach back to the mark any more", log.events.source)
    events = tuple(one for one in log.events.value if one.last == NO_TIME or one.last > position.seconds)
    return Reading(Since(events, log.missed.value or 0), log.events.source)


def _after_cursor(reader: Reader, cursor: str) -> Reading[Since]:
    given = reader.lines((*JOURNAL[0], f"--cursor={cursor}"))
    rest = iter(given)
    is_there = _entry(next(rest, "")).get("__CURSOR") == cursor
    second = next(rest, None)
    found, problem = Since(), "" if is_there else "the journal has no entry at the mark's cursor any more"
    if second is not None and is_there:
        try:
            log = parse_journal(chain((second,), rest))
            found = Since(log.events, log.missed)
        except ValueError as error:
            problem = str(error)
    end = given.end
    if end.value is None:
        return end.then(lambda _: found)
    if end.value.rc != 0 or problem:
        said = problem or shorten(end.value.stderr)
        return Reading.no("exit" if end.value.rc else "absent", said, given.source)
    return Reading(found, given.source)


DUMPS = "/sys/class/devcoredump"


def dumps(reader: Reader) -> Reading[dict[str, str]]:
    """Every device coredump: name of its node -> address of the device, "" when it is not on PCI. None is opened."""
    names = reader.names(DUMPS)
    if names.unread == "absent":
        return Reading({}, DUMPS)

    def of(name: str) -> str:
        target = reader.link(f"{DUMPS}/{name}/failing_device").value or ""
        return str((re.findall(BDF, target.lower()) or [""])[-1])

    return names.then(lambda found: {name: of(name) for name in found if re.fullmatch(r"devcd\d+", name)})


# -- what of it speaks against a card -----------------------------------------------------------------------------


def no_listing() -> Reading[dict[str, Device]]:
    """In place of a listing by lspci, which could wake a card."""
    return Reading.no("not_asked", "lspci is not asked, it could wake a card", "lspci")


def ways(reader: Reader) -> Reading[frozenset[str]]:
    """Addresses of every GPU and of every bridge above one. Asks the kernel only, so nothing wakes."""

    def of(functions: dict[str, pcie.Function]) -> frozenset[str]:
        gpus = [one.bdf for one in functions.values() if gpu_ids.is_gpu(one.vendor, one.class_code)]
        return frozenset(hop.bdf for gpu in gpus for hop in pcie.chain(functions, gpu))

    return pcie.read_functions(reader, no_listing).then(of)


def against(events: Iterable[Event], on_a_way: frozenset[str]) -> tuple[Event, ...]:
    """The events of this boot that speak against a card or the way to one.

    on_a_way: addresses of GPUs and of the bridges above them; errors that a device reports itself count only there.
    A line of a GPU driver that names no card counts for all.
    """

    def speaks(event: Event) -> bool:
        if event.previous_boot:
            return False
        if event.kind in ON_A_WAY or event.recovered == "failed":
            is_near = event.bdf in on_a_way or event.root_port in on_a_way
            return is_near or (event.kind == "d3_failed" and driver_of(event) != "")
        return is_bad(event) or (event.kind == "probe_failed" and driver_of(event) in GPU_DRIVERS)

    return tuple(event for event in events if speaks(event))


def line_of(event: Event) -> str:
    """An event as one line for a person.

    >>> line_of(Event("xe.engine_reset", "0000:03:00.0", last=61.25, samples=("xe 0000:03:00.0: Engine reset",)))
    'xe.engine_reset of 0000:03:00.0 at 61.25 s: xe 0000:03:00.0: Engine reset'
    """
    when = f" at {event.last:g} s" if event.last != NO_TIME else ""
    times = f" x{event.count}" if event.count > 1 else ""
    said = shorten(event.samples[0], 160) if event.samples else "no text"
    return f"{event.kind}{times} of {event.bdf or 'no device named'}{when}: {said}"


# -- its lines as they are ----------------------------------------------------------------------------------------


def messages(
    reader: Reader, wanted: Callable[[str], bool], most: int | None = None
) -> Reading[tuple[tuple[float, str], ...]]:
    """Messages of this boot whose raw line (lower case) is wanted: (seconds since boot, or -1.0; text).

    most: keep only so many, the newest. The journal is asked first, then dmesg, as `kernel_log` does. Unread when
    neither gave a line at all.
    """
    reasons = []
    for argv, parse in ((JOURNAL[0], _of_journal), (JOURNAL[1], _of_journal), (DMESG, _of_text)):
        given = reader.lines(argv)
        found, count = _kept(given, wanted, parse, most)
        end = given.end
        if end.value is not None and end.value.rc == 0 and count:
            return Reading(tuple(found), given.source)
        reasons.append(
            Reading[Any].no("exit", shorten(end.value.stderr) or "gave no line", given.source)
            if end.value is not None
            else end.then(lambda _: None)
        )
    worst = next((one for one in reasons if one.unread not in ("tool_missing", "exit")), reasons[-1])
    return worst.then(lambda _: ())


def _kept(
    given: Lines, wanted: Callable[[str], bool], parse: Callable[[str], tuple[float, str] | None], most: int | None
) -> tuple[deque[tuple[float, str]], int]:
    found: deque[tuple[float, str]] = deque(maxlen=most)
    count = 0
    for line in given:
        count += 1
        if wanted(line.lower()):
            message = parse(line)
            if message is not None:
                found.append(message)
    return found, count


def _of_journal(line: str) -> tuple[float, str] | None:
    entry = _entry(line)
    said = entry.get("MESSAGE")
    if isinstance(said, list) and all(isinstance(one, int) and 0 <= one < 256 for one in said):
        said = bytes(said).decode("utf-8", "replace")
    if not isinstance(said, str):
        return None
    try:
        return _seconds(entry), said
    except ValueError:
        return NO_TIME, said


def _of_text(line: str) -> tuple[float, str] | None:
    stamp, text = Clock(None, 0.0).split(line)
    return NO_TIME if stamp is None else stamp, text


def stamped(seconds: float, text: str) -> str:
    """One message as dmesg writes it, on one line.

    >>> stamped(1.5, "xe 0000:03:00.0: a\\n b"), stamped(-1.0, "c")
    ('[    1.500000] xe 0000:03:00.0: a b', 'c')
    """
    flat = " ".join(text.split())
    return flat if seconds == NO_TIME else f"[{seconds:12.6f}] {flat}"


def said_of(reader: Reader, bdfs: Iterable[str], limit: int = 6) -> Reading[dict[str, tuple[str, ...]]]:
    """The newest lines (at most `limit` each) that name these addresses; () for one of which nothing was said."""
    names = tuple(one.lower() for one in bdfs)
    if not names:
        return Reading({}, "")

    def by_name(found: tuple[tuple[float, str], ...]) -> dict[str, tuple[str, ...]]:
        return {name: tuple(stamped(*one) for one in found if name in one[1].lower())[-limit:] for name in names}

    return messages(reader, lambda line: any(name in line for name in names)).then(by_name)
