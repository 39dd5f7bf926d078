"""Kernel log of this boot: who may read it, whether it is whole, and what it says, folded per device.

The journal is asked first, since it also keeps what the kernel's own buffer has lost; then ``dmesg``. A refusal, an
empty answer or text that is no log is never "nothing happened": without lines there is no reading.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from itertools import chain
from typing import Any

from ..reader import Lines, Reader, Reading, shorten
from ..recording import utc
from .log_events import GPU_DRIVERS, NEAR_SECONDS, Event, Events, WallText, driver_of, is_bad, is_fault
from .log_lines import (
    BDF,
    NO_TIME,
    SECONDS,
    Boots,
    Clock,
    Message,
    Tidy,
    batches,
    begins,
    continues,
    is_first,
)

__all__ = ["Event", "KernelLog", "is_fault", "parse_cpu_list", "parse_journal", "parse_text", "read", "since"]

JOURNAL = (
    ("journalctl", "-k", "-b", "0", "-o", "json", "--all", "--output-fields=MESSAGE,PRIORITY", "--no-pager"),
    ("journalctl", "-k", "-b", "0", "-o", "json", "--no-pager"),
)
DMESG = ("dmesg",)
BOOT_ID = "/proc/sys/kernel/random/boot_id"
STARTED = 10.0  # seconds; a log whose first line is later than this has lost its beginning

# One of these (lower case) is in every line that `log_events` knows and that names no PCI device. Long words are found
# faster than short ones.
_WORDS = (
    "hardware error]", "nvrm: ", "lockup", "clocksource: ", " unstable", "out of memory", "blocked for more than",
    " stall on cpu", " stalls on cpu",
    "pcie aspm", "aspm is unsupported", "_osc", "callbacks suppressed", "messages", "faulted address",
    "engine", "guc version", "reset reason", "gpu hang: ecode", "] *error* ", "_inv_timeout", "out-of-bounds in ",
    "invalidation time-out", "fence expiration", "fault response", "fault, response", "timedout job: ",
)  # fmt: skip
_DEVICE = re.compile(r":[0-9a-fA-F]{2}:[0-9a-fA-F]{2}(?:\.[0-7]|\))")
# The same for lines that name one, in what follows the name. Words one by one are found faster than by one pattern.
_DEVICE_WORDS = (
    "aer", "erro", "time", "reset", "fault", "failed", "firmware", "job", "coredump", "wedged", "wanted", "hang",
    "hung", "graphics", "survivab", "pcode", "heartbeat", "vm worker", "bus", "accessible", "visible", "small bar",
    "resize", "reduced bar", "local memory", "probe blocked",
    "power state", "at resume", "slot(", "retrain", "bandwidth", "dpc", "edr", "aspm", "lost", "no reply",
    "underflow", "peer-to-peer",
)  # fmt: skip
# A tag that ends the line, a status bit such as ``[12] Timeout``, the end that a pager leaves.
_DEVICE_FORMS = re.compile(r"gt\d: *(?:$|\\n|\")|\[[ \d]\d\] |>\s*(?:$|\")")
_BYTES = re.compile(r"^[\s:]*\[", re.M)
_BOOT_ID = re.compile(r'"_BOOT_ID"\s*:\s*"([0-9a-fA-F-]+)"')
_TIMES = ("_SOURCE_MONOTONIC_TIMESTAMP", "__MONOTONIC_TIMESTAMP", "__REALTIME_TIMESTAMP")
_REFUSED = re.compile(r"not permitted|permission denied|insufficient permissions|not seeing messages", re.I)
_TOOL_SAYS = re.compile(r"(?:dmesg|journalctl|sudo|klogctl): ")  # words of its own among what it was to give
# Of journald, and of a serial console that was too slow (kernel/printk/printk.c).
_MISSED = re.compile(r"missed (\d+) kernel messages|\*\* (\d+) printk messages dropped")
_DELTA = re.compile(r"^(?:<\d+>)?\[ *<? *\+", re.M)


def _is_hit(low: str, words: tuple[str, ...]) -> bool:
    """May this line (lower case) matter? words: those of `_WORDS` that its batch has."""
    for word in words:
        if word in low:
            return True
    device = _DEVICE.search(low)
    return device is not None and _may_matter(low[device.end() :])


def _may_matter(low: str) -> bool:
    """May a line that names a device matter, by its words after the name (in lower case)?"""
    for word in _DEVICE_WORDS:
        if word in low:
            return True
    return _DEVICE_FORMS.search(low) is not None


@dataclass(frozen=True)
class KernelLog:
    """The kernel log of this boot.

    access: ``journal`` or ``dmesg``. first, last: seconds since boot of its first and last line.
    boot_id: of this boot, without dashes. complete: False when early lines are lost. missed: messages that the journal
    says it lost. lines: how many. events: see `Event`. faulted: addresses with a GPU fault line on this boot.
    """

    access: Reading[str]
    first: Reading[float]
    last: Reading[float]
    boot_id: Reading[str]
    complete: Reading[bool]
    missed: Reading[int]
    lines: Reading[int]
    events: Reading[tuple[Event, ...]]
    faulted: Reading[tuple[str, ...]]


@dataclass(frozen=True)
class Log:
    """What one source gave. first, last: `NO_TIME` when its lines carry no time; whole: does it reach back to the boot?

    anchored: are its times seconds since boot, and not only seconds since its first line?
    """

    lines: int
    first: float
    last: float
    boot_id: str
    missed: int
    whole: bool
    anchored: bool
    events: tuple[Event, ...]


class _Assembler:
    """Puts lines together to messages and hands those to `Events`."""

    def __init__(self, clock: Clock) -> None:
        self.clock = clock
        self.events = Events()
        self.seconds = NO_TIME
        self.prefixed = False
        self._pending: list[str] = []
        self._at: tuple[float, int] = (NO_TIME, 0)

    @property
    def waits(self) -> bool:
        """Is the newest message one that may go on in the next line?"""
        return bool(self._pending)

    def line(self, line: str, order: int, is_hit: bool) -> None:
        stamp, text = self.clock.split(line)
        if stamp is None:
            is_own = begins(text) or not (self.prefixed or continues(text))
        else:
            self.prefixed = True
            self.seconds = stamp
            is_own = not continues(text)
            if self._pending and stamp - self._at[0] > NEAR_SECONDS:
                self.flush()  # what comes so late continues nothing
        if is_own:
            self.flush()
            if is_hit:
                self._pending = [text]
                self._at = (self.seconds, order)
        elif self._pending and not self._is_strayed(text):
            self._pending.append(text)
        else:
            self.events.amend(text, Message(self.seconds, None, text, order))

    def _is_strayed(self, text: str) -> bool:
        """A line of a fault report below the line of something else belongs to the card that began the report."""
        head = self._pending[0]
        is_fault_line = text.lstrip().startswith(("ASID", "Fault", "AccessType", "EngineClass", "EngineInstance"))
        return is_fault_line and not re.search(r"GT\d+: *$|ASID|Fault|page fault", head)

    def batch(self, lines: list[str], low: str, order: int, words: tuple[str, ...], counts_up: bool) -> None:
        """Take lines of which some may matter.

        low: the lines in lower case. order: number of the first. words: those of `_WORDS` that are in them.
        counts_up: their times are differences, so every line moves the clock.
        """
        if words or counts_up or self.events.lockup is not None:
            self._every(lines, low, order, words, counts_up)
            return
        done = 0
        for index, start in _named_lines(low):
            while self._pending and done < index:
                self.line(lines[done], order + done, False)
                done += 1
            is_hit = self._of_a_device(lines[index], order + index, low, start)
            if is_hit or (is_hit is False and self._pending):
                self.line(lines[index], order + index, is_hit)
            done = index + 1
        while self._pending and done < len(lines):
            self.line(lines[done], order + done, False)
            done += 1

    def _every(self, lines: list[str], low: str, order: int, words: tuple[str, ...], counts_up: bool) -> None:
        """The same, one line after the other: any may matter."""
        for number, (line, low_line) in enumerate(zip(lines, low.split("\n")), order):
            is_hit = False
            device = _DEVICE.search(low_line)
            if device is not None:
                said = self._of_a_device(line, number, low_line, device.end())
                if said is None:
                    continue
                is_hit = said
            is_hit = is_hit or any(word in low_line for word in words)
            if is_hit or self._pending or (self.events.lockup is not None and _is_frame(line)):
                self.line(line, number, is_hit)
            elif counts_up:
                self.clock.tick(line)

    def _of_a_device(self, line: str, number: int, low: str, start: int) -> bool | None:
        """May this line, which names a device, matter? None: it was taken, as one of an error report that was seen
        before in the same words.

        low, start: where in a text in lower case its words after the name begin.
        """
        clock = self.clock
        found = SECONDS.match(line)
        if found is not None:
            text = line[found.end() :]
            seconds = clock.running = float(found.group(1))
        elif clock.prefix and line.startswith(clock.prefix):
            text, seconds = line[len(clock.prefix) :], clock.running
        else:
            text, seconds = line, self.seconds
        said = self.events.known(text)
        if said is None:
            end = low.find("\n", start)
            return _may_matter(low[start : end if end >= 0 else len(low)])
        if self._pending:
            self.flush()
        self.seconds = seconds
        self.events.step(said, Message(seconds, None, text, number))
        return None

    def flush(self) -> None:
        if self._pending:
            seconds, order = self._at
            self.events.add(Message(seconds, None, "\n".join(self._pending), order))
            self._pending = []


def _named_lines(low: str) -> Iterator[tuple[int, int]]:
    """Numbers of the lines that name a device, and where the name ends. low: the lines, joined, in lower case."""
    number = at = 0
    last = -1
    for found in _DEVICE.finditer(low):
        end = found.end()
        number += low.count("\n", at, end)
        at = end
        if number != last:
            yield number, end
        last = number


def _is_frame(line: str) -> bool:
    """May this be a line of a call trace that tells who hangs?"""
    return "+0x" in line or "Workqueue: " in line


def _hits(blob: str) -> tuple[str, ...]:
    """The words of a batch that may matter."""
    return tuple(word for word in _WORDS if word in blob)


class _Text:
    """A log that is text, of one boot."""

    def __init__(self, now: float, booted: float | None) -> None:
        self.clock = Clock(booted, now)
        self.assembler = _Assembler(self.clock)
        self.now, self.booted = now, booted
        self.count = self.missed = 0
        self.first = NO_TIME
        self.is_whole = self.is_log = self.counts_up = False
        self.newest = ""

    def take(self, batch: list[str], blob: str, low: str) -> None:
        """Take some lines. blob, low: the same, joined, and that in lower case."""
        assembler = self.assembler
        if not self.count:
            clock = Clock(self.booted, self.now)
            self.first, self.is_whole = _beginning(batch, clock)
            self.clock.begin_as(clock)
            self.counts_up = _DELTA.search(blob) is not None
        if not self.is_log:
            self.is_log = any(_is_of_a_log(line) for line in batch)
        words = _hits(low)
        if self.counts_up or assembler.waits or words or _DEVICE.search(low) or assembler.events.lockup is not None:
            assembler.batch(batch, low, self.count, words, self.counts_up)
        self.count += len(batch)
        self.newest = batch[-1]
        if "messages" in words:
            self.missed += sum(int(one or other) for one, other in _MISSED.findall(low))

    def log(self) -> Log:
        assembler = self.assembler
        assembler.flush()
        last, _ = self.clock.split(self.newest)
        last = assembler.seconds if last is None or last == NO_TIME else last
        anchored = self.clock.anchored
        whole = self.is_whole or (anchored and 0 <= self.first <= STARTED)
        return _log(
            assembler.events, self.count, self.first, last, "", self.missed, whole, anchored, anchored, self.booted
        )


def _is_of_a_log(line: str) -> bool:
    """Does a line look like one of a kernel log, and not like what a tool says about why it gives none?"""
    stamp, text = Clock(None, 0.0).split(line)
    if stamp is not None or _DEVICE.search(line) is not None or is_first(text):
        return True
    return begins(text) or continues(text.strip()) or (_is_hit(text.lower(), _WORDS) and not _TOOL_SAYS.match(text))


def parse_text(lines: Iterable[str], now: float, booted: float | None) -> Log:
    """Read a log that is text, in any form. Of several boots the newest counts.

    now: when it was read; booted: time of boot, or None; both in seconds since the epoch.
    Raises ValueError when there are no lines, or none that looks like one of a kernel log.
    """
    text = _Text(now, booted)
    tidy, boots = Tidy(), Boots()
    shown = ""
    for given in batches(lines):
        blob = "\n".join(given)
        batch = tidy(given, blob)
        if batch is not given:
            blob = "\n".join(batch)
        low = blob.lower()
        shown = shown or next((line.strip() for line in batch if line.strip()), "")
        for is_new, piece in boots(batch, low):
            if is_new and text.count:
                text = _Text(now, booted)
            if piece is batch:
                text.take(piece, blob, low)
            else:
                part = "\n".join(piece)
                text.take(piece, part, part.lower())
    if not text.count:
        raise ValueError("no lines")
    if not shown:
        raise ValueError("only blank lines")
    if not text.is_log:
        raise ValueError(f"no line of a kernel log, but {shorten(shown, 120)!r}")
    return text.log()


def _beginning(batch: list[str], clock: Clock) -> tuple[float, bool]:
    """Time of the first line that has one, and whether the kernel's own first message is there."""
    first = NO_TIME
    for line in batch:
        stamp, text = clock.split(line)
        if first == NO_TIME and stamp is not None:
            first = stamp
        if is_first(text):
            return first, True
    return first, False


class _Journal:
    """Entries of a journal, of one boot. booted: time of boot in seconds since the epoch, or None."""

    def __init__(self, booted: float | None) -> None:
        self.assembler = _Assembler(Clock(None, 0.0))
        self.base = booted
        self.is_anchored = booted is not None
        self.is_timed = False
        self.count = self.missed = self.broken = self.entries = 0
        self.first = NO_TIME
        self.boot_id = self.newest = ""
        self.is_whole = False

    def take(self, batch: list[str], shorts: list[str], low: str) -> None:
        """Take some lines. shorts: the same from the message on; low: those, joined, in lower case."""
        assembler, events = self.assembler, self.assembler.events
        is_first_batch = not self.count
        words = _hits(low)
        has_bytes = _BYTES.search(low) is not None
        if is_first_batch or words or has_bytes or _DEVICE.search(low) or events.lockup is not None:
            for index, short in enumerate(shorts):
                is_hit = _is_hit(short.lower(), words) or (has_bytes and _BYTES.match(short) is not None)
                is_hit = is_hit or (events.lockup is not None and _is_frame(short))
                if not is_hit and not (is_first_batch and index < 64):
                    continue
                entry = _decoded(batch[index])
                if entry is None:
                    self.broken += 1
                    continue
                self.entries += 1
                text = _message(entry.get("MESSAGE"))
                seconds, wall = self._times(entry, text)
                if self.first == NO_TIME:
                    self.first = seconds
                self.boot_id = self.boot_id or str(entry.get("_BOOT_ID", ""))
                self.is_whole = self.is_whole or (is_first_batch and is_first(text))
                found = re.match(r"Missed (\d+) kernel messages", text)
                if found:
                    self.missed += int(found.group(1))
                elif "/dev/kmsg buffer overrun" in text:  # journald could not read as fast as the kernel wrote
                    self.missed += 1
                if is_hit:
                    said = events.known(text)
                    if said is not None:
                        events.step(said, Message(seconds, wall, text, self.count + index))
                    else:
                        _entry(assembler, text, seconds, wall, self.count + index)
        self.count += len(batch)
        self.newest = batch[-1]

    def _times(self, entry: dict[str, Any], text: str = "") -> tuple[float, float | None]:
        """Seconds since boot and wall time; where an entry has only the wall time, counted from the boot or from the
        first entry."""
        seconds, wall = _times(entry)
        if seconds != NO_TIME:
            self.is_timed = True
        elif wall is not None:
            if self.base is None or (is_first(text) and not self.is_anchored):
                self.base, self.is_anchored = wall, is_first(text)
            seconds = max(0.0, round(wall - self.base, 6))
        return seconds, wall

    def log(self) -> Log:
        newest = _decoded(self.newest) if self.newest else None
        last = NO_TIME if newest is None else self._times(newest)[0]
        if newest is None and not self.entries:
            raise ValueError(
                "no entries" if not self.count else f"no journal entries, but {shorten(self.newest, 80)!r}"
            )
        self.assembler.flush()
        anchored = self.is_timed or self.is_anchored
        whole = self.is_whole or (anchored and 0 <= self.first <= STARTED)
        lost = self.missed + self.broken
        return _log(
            self.assembler.events, self.count, self.first, last, self.boot_id, lost, whole, anchored, False, None
        )

    def parts(self, batch: list[str], low: str) -> list[list[str]]:
        """The batch, cut where another boot begins: another ``_BOOT_ID``, or without any, a first message."""
        current = self.boot_id
        if current and current in batch[-1]:
            return [batch]
        if not current and (self.entries or not _BOOT_ID.search(batch[0])) and "linux version " not in low:
            return [batch]
        parts: list[list[str]] = [[]]
        for line in batch:
            found = _BOOT_ID.search(line)
            if found is not None:
                is_new = bool(current) and found.group(1) != current
                current = found.group(1)
            else:
                is_new = not current and '"Linux version ' in line and (bool(parts[-1]) or self.count > 0)
            if is_new:
                parts.append([])
            parts[-1].append(line)
        return parts


def parse_journal(lines: Iterable[str], booted: float | None = None) -> Log:
    """Read ``journalctl -o json``, one entry a line, or as one array. Of several boots the newest counts.

    A message that is not text comes as a list of bytes, one that is too long or empty as null (systemd, JSON format).
    booted: time of boot in seconds since the epoch, or None; used where entries have only their wall time.
    Raises ValueError when no line is an entry.
    """
    journal = _Journal(booted)
    for batch in batches(_one_a_line(lines)):
        shorts = [line[line.find('"MESSAGE"') + 9 :] for line in batch]
        low = "\n".join(shorts).lower()
        parts = journal.parts(batch, low)
        if len(parts) == 1:
            journal.take(batch, shorts, low)
            continue
        at = 0
        for number, part in enumerate(parts):
            if number and (journal.count or part):
                journal = _Journal(booted)
            if part:
                some = shorts[at : at + len(part)]
                journal.take(part, some, "\n".join(some).lower())
                at += len(part)
    return journal.log()


def _one_a_line(lines: Iterable[str]) -> Iterable[str]:
    """Entries one a line, also where they stand in one array or are spread over lines (``jq``, ``-o json-pretty``)."""
    rest = iter(lines)
    first = next(rest, None)
    if first is None:
        return ()
    head = first.lstrip("\ufeff \t").rstrip()
    if not (head == "{" or head.startswith("[")):
        return chain((first,), rest)
    whole = [first, *rest]
    found = list(_objects("\n".join(whole).lstrip("\ufeff")))
    return found or whole


def _objects(text: str) -> Iterator[str]:
    """Every object of a text of JSON, as one line each; what comes after a defect is given as it is."""
    decoder = json.JSONDecoder()
    at = count = 0
    while True:
        found = re.compile(r"[\s,\[\]]*").match(text, at)
        at = found.end() if found else at
        if at >= len(text):
            return
        try:
            value, at = decoder.raw_decode(text, at)
        except ValueError:
            if count:
                yield shorten(text[at:], 200)
            return
        if isinstance(value, dict):
            count += 1
            yield json.dumps(value)


def _decoded(line: str) -> dict[str, Any] | None:
    """An entry, or None when a line is not JSON, or is JSON but no entry."""
    try:
        entry = json.loads(line)
    except ValueError:
        return None
    if not isinstance(entry, dict) or not ("MESSAGE" in entry or any(key in entry for key in _TIMES)):
        return None
    return entry


def _entry(assembler: _Assembler, text: str, seconds: float, wall: float | None, order: int) -> None:
    """One journal entry: whole messages, except that older journals split the lines of one message.

    What a syslog daemon put back into the kernel's log still has its own prefix.
    """
    if " kernel: " in text[:80]:
        _, text = Clock(None, 0.0).split(text)
    head = text.split("\n", 1)[0]
    if continues(head) and not begins(head):
        for line in text.split("\n"):
            assembler.events.amend(line, Message(seconds, wall, line, order))
    else:
        assembler.events.add(Message(seconds, wall, text, order))


def _times(entry: dict[str, Any]) -> tuple[float, float | None]:
    """Seconds since boot and wall time of an entry; the kernel's own time wins over the time of its reception."""
    monotonic = entry.get("_SOURCE_MONOTONIC_TIMESTAMP") or entry.get("__MONOTONIC_TIMESTAMP")
    wall = entry.get("__REALTIME_TIMESTAMP")
    seconds = int(monotonic) / 1e6 if isinstance(monotonic, (str, int)) and str(monotonic).isdigit() else NO_TIME
    return seconds, int(wall) / 1e6 if isinstance(wall, (str, int)) and str(wall).isdigit() else None


def _message(value: Any) -> str:
    """Text of a MESSAGE field.

    >>> _message([120, 101, 255]), _message(None), _message("x")
    ('xe�', '', 'x')
    """
    if isinstance(value, str):
        return value
    if isinstance(value, list) and value and isinstance(value[0], str):
        return "\n".join(str(item) for item in value)  # the field was given more than once
    if isinstance(value, list) and all(isinstance(item, int) and 0 <= item < 256 for item in value):
        return bytes(value).decode("utf-8", "replace")
    return ""


def _log(
    events: Events,
    lines: int,
    first: float,
    last: float,
    boot_id: str,
    missed: int,
    whole: bool,
    anchored: bool,
    is_dated: bool,
    booted: float | None,
) -> Log:
    wall = WallText(booted if is_dated else None, utc)
    found = tuple(event.event(wall) for event in events.finish())
    return Log(lines, first, max(first, last), boot_id, missed, whole, anchored, found)


def since(events: Iterable[Event], seconds: float) -> tuple[Event, ...]:
    """The events whose last line is not before this time (seconds since boot); those without a time stay in.

    >>> [event.kind for event in since([Event("a", last=5.0), Event("b", last=50.0), Event("c")], 10.0)]
    ['b', 'c']
    """
    return tuple(event for event in events if event.last == NO_TIME or event.last >= seconds)


def parse_cpu_list(text: str) -> tuple[int, ...]:
    """CPUs of a list such as ``0-2,5``. Raises ValueError.

    >>> parse_cpu_list("0-2,5\\n")
    (0, 1, 2, 5)
    """
    cpus: list[int] = []
    for part in text.strip().split(","):
        low, _, high = part.partition("-")
        cpus += range(int(low), int(high or low) + 1)
    return tuple(cpus)


def parse_boot_id(text: str) -> str:
    """Return a boot id as the journal writes it, without dashes. Raises ValueError when it is none."""
    word = text.strip().replace("-", "").lower()
    if not re.fullmatch(r"[0-9a-f]{32}", word, re.ASCII):
        raise ValueError(f"expected a boot id, got {text!r}")
    return word


def _card_irqs(reader: Reader) -> dict[int, set[str]]:
    """GPU functions by the CPU that takes their interrupts."""
    cards: dict[int, set[str]] = {}
    for path in reader.children("/sys/bus/pci/devices", BDF):
        if not (reader.line(f"{path}/class").value or "").startswith(("0x03", "0x12")):
            continue
        for number in reader.names(f"{path}/msi_irqs").value or ():
            cpus = reader.text(f"/proc/irq/{number}/effective_affinity_list").then(parse_cpu_list)
            for cpu in cpus.value or ():
                cards.setdefault(cpu, set()).add(path.rpartition("/")[2].lower())
    return cards


def with_cards(events: tuple[Event, ...], cards: dict[int, set[str]]) -> tuple[Event, ...]:
    """Give a lockup the card whose interrupts that CPU takes, when it is just one and the trace allows it.

    A hard lockup in the interrupt path of a GPU driver means that this card did not answer (b70-optimization-lab,
    learn/host-stability).
    """
    return tuple(_with_card(event, cards) if event.kind.startswith("lockup.") else event for event in events)


def _with_card(event: Event, cards: dict[int, set[str]]) -> Event:
    cpu = event.details.get("cpu", "")
    found = sorted(cards.get(int(cpu), ())) if cpu.isdigit() else []
    frames = event.details.get("frames", "")
    is_driver = driver_of(event) != ""
    if len(found) == 1 and (is_driver or (event.kind == "lockup.hard" and not frames)):
        return replace(event, bdf=found[0])
    return replace(event, details={**event.details, "cards": ", ".join(found)}) if found else event


def _booted(reader: Reader) -> float | None:
    uptime = reader.text("/proc/uptime").then(lambda text: float(text.split()[0]) if text.split() else float("")).value
    return None if uptime is None else reader.taken_at() - uptime


def _take(lines: Lines, parse: Any) -> Reading[Log]:
    """The log of a command, or why there is none: it must end with 0 and give lines."""
    source = lines.source
    try:
        log = parse(iter(lines))
        problem = ""
    except ValueError as error:
        log, problem = None, str(error)
    end = lines.end
    if end.value is None:
        return end.then(lambda _: log)
    said = shorten(end.value.stderr)
    refused = _REFUSED.search(end.value.stderr) or _REFUSED.search(problem)
    if end.value.rc != 0:
        return Reading.no("permission" if refused else "exit", f"exit {end.value.rc}: {said or problem}", source)
    if log is None:
        return Reading.no("permission" if refused else "not_understood", said or f"exit 0 but {problem}", source)
    return Reading(log, source)


def _from_journal(reader: Reader, booted: float | None) -> Reading[Log]:
    found = _take(reader.lines(JOURNAL[0]), lambda lines: parse_journal(lines, booted))
    if found.value is None and found.unread in ("tool_missing", "exit"):
        other = _take(reader.lines(JOURNAL[1]), lambda lines: parse_journal(lines, booted))
        return other if other.value is not None or found.unread == "tool_missing" else found
    return found


def read(reader: Reader) -> KernelLog:
    booted = _booted(reader)
    now = reader.taken_at()
    log = journal = _from_journal(reader, booted)
    access = "journal"
    if journal.value is None:
        log, access = _take(reader.lines(DMESG), lambda lines: parse_text(lines, now, booted)), "dmesg"
    if log.value is None:
        log = _neither(journal, log)
    boot_id = reader.line(BOOT_ID).then(parse_boot_id)
    if boot_id.value is None and log.value is not None and log.value.boot_id:
        boot_id = Reading(log.value.boot_id.replace("-", "").lower(), log.source)
    events = log.then(lambda one: one.events)
    if any(event.kind.startswith("lockup.") for event in events.value or ()):
        cards = _card_irqs(reader)
        events = events.then(lambda found: with_cards(found, cards))
    suspects: set[str] = set()
    if events.value is not None:
        named, suspects = _with_drivers(reader, events.value)
        events = Reading(named, events.source)
    return KernelLog(
        access=log.then(lambda _: access),
        first=log.then(lambda one: _known(one.first)),
        last=log.then(lambda one: _known(one.last)),
        boot_id=boot_id,
        complete=log.then(_complete),
        missed=log.then(lambda one: one.missed),
        lines=log.then(lambda one: one.lines),
        events=events,
        faulted=events.then(lambda _: tuple(sorted(suspects))),
    )


def _with_drivers(reader: Reader, events: tuple[Event, ...]) -> tuple[tuple[Event, ...], set[str]]:
    """The events, those without an address given the one card of their driver, and every card that may have faulted.

    A line that names no card of a driver with several is suspected of all of them: none of them is to be called into.
    """
    found: list[Event] = []
    suspects: set[str] = set()
    cards: dict[str, list[str]] = {}
    for event in events:
        driver = driver_of(event)
        if is_bad(event) and not event.previous_boot:
            if event.kind == "iommu.timeout" and event.bdf:
                kind = reader.line(f"/sys/bus/pci/devices/{event.bdf}/class").value or ""
                suspects |= {event.bdf} if kind.startswith(("0x03", "0x12")) else set()
            elif event.bdf:
                suspects.add(event.bdf)
            elif driver in GPU_DRIVERS:
                if driver not in cards:
                    bound = reader.names(f"/sys/bus/pci/drivers/{driver}").value or ()
                    cards[driver] = [name.lower() for name in bound if re.fullmatch(BDF, name)]
                suspects.update(cards[driver])
                event = replace(event, bdf=cards[driver][0]) if len(cards[driver]) == 1 else event
        found.append(event)
    return tuple(found), suspects


def _neither(journal: Reading[Log], ring: Reading[Log]) -> Reading[Log]:
    """Why neither source gave a log; a refusal says more than a missing tool."""
    if journal.unread == ring.unread == "tool_missing":
        return Reading.no("tool_missing", f"{journal.detail}; {ring.detail}", f"{journal.source}; {ring.source}")
    told = [reading for reading in (ring, journal) if reading.unread != "tool_missing"]
    worst = next((reading for reading in told if reading.unread == "permission"), told[0])
    detail = "; ".join(f"{reading.source.split()[0]}: {reading.detail}" for reading in told)
    return Reading.no(str(worst.unread), shorten(detail), worst.source)


def _known(seconds: float) -> float:
    if seconds == NO_TIME:
        raise ValueError("the lines of this log carry no time")
    return seconds


def _complete(log: Log) -> bool:
    if not log.whole and (not log.anchored or log.first == NO_TIME):
        raise ValueError("the lines of this log carry no time since boot")
    return log.whole and not log.missed
