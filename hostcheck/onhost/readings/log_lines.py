"""Lines of a kernel log, in every form in which tools print them: time and message apart, messages put together.

Forms before the message: ``[   12.345678]``, with a caller id ``[   12.345678][  T511]``, with a level ``<4>`` or
``kern  :warn  :``, ``dmesg -T`` dates, ISO dates, syslog with a host name, ``dmesg -H`` deltas
``[  +0.000844]``, or none.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from datetime import datetime, timedelta, timezone
from typing import NamedTuple

NO_TIME = -1.0
DAY = 86400.0

BDF = r"[0-9a-fA-F]{4,8}:[0-9a-fA-F]{2}:[0-9a-fA-F]{2}\.[0-7]"

SECONDS = re.compile(r"(?:<\d{1,3}>|[a-z0-9]+ *: *[a-z]+ *: *)?\[ *(\d+\.\d+)(?: *<[ \d.]*>)?\](?:\[ *[TC]\d+\])? ?")
_LEVEL = re.compile(r"<\d{1,3}>|[a-z0-9]+ *: *(?:emerg|alert|crit|err|warn|notice|info|debug) *: ?")
_DELTA = re.compile(r"\[ *<? *\+? *(\d+\.\d+)>? *\] ?")
# Days and months are in the words of the reader's language: ``[Ter Set 19 06:01:41 2017]`` (bpm-gw#73).
_DATE = re.compile(r"\[(\w{1,5}\.? \w{2,6}\.? +\d{1,2} \d\d:\d\d:\d\d \d{4})\] ?")
_MINUTE = re.compile(r"\[([A-Z][a-z]{2} *\d{1,2} \d\d:\d\d)\] ?")
_ISO = re.compile(r"\[?(\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d(?:[.,]\d+)?(?:Z|[+-]\d\d:?\d\d)?)(?:\]:?)? ")
# The name of the host is often taken out before a log is shown: ``22:39:31 kernel: …`` (clearlinux#2907).
_HOST = re.compile(r"(?P<stamp>.{0,40}?)(?:^|(?<= ))(?:(?P<host>[^\s:\[\]]+) )??kernel(?:\[\d+\])?: ?")
_TIME = re.compile(r"(\d\d):(\d\d):(\d\d(?:[.,]\d+)?)$")
_SYSLOG = re.compile(r"([A-Z][a-z]{2}) +(\d{1,2}) (\d\d):(\d\d):(\d\d)(\.\d+)?$")
_FULL = re.compile(r"[A-Z][a-z]{2} (\d{4}-\d\d-\d\d \d\d:\d\d:\d\d(?:\.\d+)?) (\S+)$")
_UNIX = re.compile(r"(\d{9,11}\.\d+)$")
_MONTHS = ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec")

# A line that begins a message though nothing stands before it: it names a device or a part of the kernel.
_BEGINS = re.compile(
    rf"(?:[^\s:]+:?(?: \S+)? {BDF}: |\S+: probe of {BDF} |(?:\{{\d+\}})?\[Hardware Error\]|NVRM: "
    r"|ACPI |acpi |BERT: |GHES: |watchdog: |clocksource: |INFO: |Out of memory|oom-kill|PCIe |AMD-Vi: |aer_\w+: |\[drm)"
)
# Text that only ever continues the message of an earlier line (kernel drivers/gpu/drm/xe and i915).
_CONTINUES = re.compile(
    r"\s|(?:ASID|Faulted Address|FaultType|AccessType|FaultLevel|EngineClass|EngineInstance): "
    r"|IOCTLs and executions|Please file a|by (?:xe|i915) driver|use (?:xe|i915)\.force_probe|Workqueue: |RIP: "
)
# What a terminal, a chat or a mail puts around lines: colours (as such, as ``less`` and rsyslog write them, or as tags,
# t2linux kernel#53), quotes.
_COLOUR = re.compile(r"(?:\x1b|\^\[|#033)\[[0-9;]*[mK]|</?(?:font|b|span|code|pre)\b[^<>\n]*>")
_QUOTE = re.compile(r"(?:[ \t]*>)+[ \t]?")
_QUOTED = frozenset(" \t>")  # with which a quoted line begins
_INDENT = re.compile(
    r"[ \t]+(?=(?:<\d{1,3}>)?\[ *<? *\+?\d+\.\d{3}|\[[A-Z][a-z]{2} |\d{4}-\d\d-\d\d[T ]\d\d:"
    r"|[A-Z][a-z]{2} [ \d]\d \d\d:\d\d:\d\d )"
)
# What stands before a message in forms that are not known (``grep -n``, ``talosctl dmesg``, a list): all up to the
# kernel's own time, or up to the driver and the device.
_ANY = re.compile(
    r"[^\n]{0,60}?(?:(?<=[\s:|>])|^)(?=\[(?: *\d+\.\d{6}\]|\d{4}-\d\d-\d\dT))"
    rf"|[^\n]{{1,60}}?[:\]|>-] *(?=\S+ {BDF}: )"
)
_KERNEL_TIME = re.compile(r"\[ *(\d+\.\d{6})\]")
_MARK = re.compile(r"-- (?:Boot \w+|Reboot) --")
_FIRST = ("Linux version ", "Booting Linux on ")
_AT_BOOT = "    0.000000]"
_SETTLED = 10.0  # seconds since boot after which no line of time 0 comes any more


def parse_iso(text: str) -> tuple[float, bool]:
    """Seconds since the epoch, and whether the text names its zone. Raises ValueError.

    >>> parse_iso("2026-03-01T00:00:01,500000+00:00")
    (1772323201.5, True)
    """
    text = re.sub(r"[.,](\d{1,6})\d*", lambda m: "." + m.group(1).ljust(6, "0"), text.replace("Z", "+00:00"))
    text = re.sub(r"([+-]\d\d)(\d\d)$", r"\1:\2", text)
    moment = datetime.fromisoformat(text)
    return moment.replace(tzinfo=moment.tzinfo or timezone.utc).timestamp(), moment.tzinfo is not None


def _day(month: str, day: str, hour: str, minute: str, second: str, now: float) -> float | None:
    """A date without a year is the last such date before `now`."""
    if month not in _MONTHS:
        return None
    today = datetime.fromtimestamp(now, timezone.utc)
    for year in (today.year, today.year - 1):
        try:
            moment = datetime(
                year, _MONTHS.index(month) + 1, int(day), int(hour), int(minute), int(second), 0, timezone.utc
            )
        except ValueError:
            continue
        if moment <= today + timedelta(days=1):
            return moment.timestamp()
    return None


def _date(words: list[str]) -> datetime | None:
    """``Tue Mar  3 12:34:56 2026``, as words; None where the month is named in another language. Raises ValueError."""
    if words[1] not in _MONTHS:
        return None
    hour, minute, second = (int(part) for part in words[3].split(":"))
    month = _MONTHS.index(words[1]) + 1
    return datetime(int(words[4]), month, int(words[2]), hour, minute, min(second, 59), 0, timezone.utc)


class Clock:
    """Turns what stands before a message into seconds since boot.

    booted: seconds since the epoch at boot, or None when unknown. now: when the log was read.
    A date without its zone is taken as UTC, unless the log shows its first line at boot. A log that only has dates
    of an unknown boot counts from its first line; `anchored` tells whether the seconds really are since boot.
    """

    def __init__(self, booted: float | None, now: float) -> None:
        self.booted = booted
        self.now = now
        self.anchored = False
        self.running = 0.0
        self.prefix = ""  # of the newest line, where it is the same for all lines of one second
        self._base: float | None = None
        self._midnight: float | None = None  # the first time of day, in seconds, in a log without days

    def begin_as(self, other: Clock) -> None:
        """Count dates from where another clock does, which has read the first lines of the same log."""
        self._base, self._midnight = other._base, other._midnight
        self.anchored = self.anchored or (other._base is not None and other.anchored)

    def tick(self, line: str) -> None:
        """Move on by a line whose message does not matter, in a log whose times are differences."""
        found = _DELTA.match(line)
        if found is not None:
            self.running += float(found.group(1))
        else:
            self.split(line)

    def split(self, line: str) -> tuple[float | None, str]:
        """Seconds since boot (`NO_TIME` when the form has no time) and the message; None: nothing stands before it.

        >>> Clock(None, 0.0).split("[   24.220626][  T511] pcieport 0000:00:00.0: AER: x")
        (24.220626, 'pcieport 0000:00:00.0: AER: x')
        >>> Clock(None, 0.0).split("<4>[   24.5] x")
        (24.5, 'x')
        >>> Clock(None, 0.0).split("no form")
        (None, 'no form')
        """
        fast = SECONDS.match(line)
        if fast is not None and " kernel: " not in line[fast.end() : fast.end() + 80]:
            self.anchored = True
            self.running = float(fast.group(1))
            return self.running, line[fast.end() :]
        if self.prefix and line.startswith(self.prefix):
            return self.running, line[len(self.prefix) :]
        stamp, message = self._slow(line)
        is_dated = stamp is not None and stamp == self.running and not (fast or _DELTA.match(line))
        self.prefix = line[: len(line) - len(message)] if is_dated and not message.startswith("[") else ""
        return stamp, message

    def _slow(self, line: str) -> tuple[float | None, str]:
        stamp: float | None = None
        for _ in range(4):
            found = _LEVEL.match(line)
            if found:
                line = line[found.end() :]
                stamp = NO_TIME if stamp is None else stamp
                continue
            found = SECONDS.match(line)
            if found:
                self.anchored = True
                stamp = self.running = float(found.group(1))
                line = line[found.end() :]
                continue
            found = _DELTA.match(line)
            if found:
                self.running += float(found.group(1))
                stamp, line = self.running, line[found.end() :]
                continue
            found = _DATE.match(line)
            if found:
                moment = _date(found.group(1).split())
                line = line[found.end() :]
                stamp = NO_TIME if moment is None else self._wall(moment.timestamp(), False, line)
                continue
            found = _MINUTE.match(line)
            if found:
                month, day, clock = found.group(1)[:3], found.group(1)[3:].split()[0], found.group(1).split()[-1]
                wall = _day(month, day, clock[:2], clock[3:], "0", self.now)
                stamp = NO_TIME if wall is None else self._wall(wall, False, line[found.end() :])
                line = line[found.end() :]
                continue
            found = _HOST.match(line)
            if found and not re.search(BDF, found.group(0)):
                line = line[found.end() :]
                stamp = self._stamp(found.group("stamp").strip(), line, stamp)
                continue
            found = _ISO.match(line)
            if found and stamp in (None, NO_TIME):
                wall, zoned = parse_iso(found.group(1))
                line = line[found.end() :]
                stamp = self._wall(wall, zoned, line)
                continue
            found = _ANY.match(line) if stamp is None and not begins(line) else None
            if found and found.end():
                stamp, line = NO_TIME, line[found.end() :]
                continue
            break
        return stamp, line

    def _stamp(self, text: str, message: str, before: float | None) -> float:
        """Seconds for what stands before ``HOST kernel:``."""
        if before is not None and before != NO_TIME:
            return before
        if re.match(r"\d{4}-\d\d-\d\d[T ]\d", text):
            wall, zoned = parse_iso(text)
            return self._wall(wall, zoned, message)
        found = _SYSLOG.match(text)
        if found:
            month, day_of, hour, minute, second, _ = found.groups()
            day = _day(month, day_of, hour, minute, second, self.now)
            return NO_TIME if day is None else self._wall(day + float(found.group(6) or 0), False, message)
        found = _FULL.match(text)
        if found:
            wall, _ = parse_iso(found.group(1))
            return self._wall(wall, found.group(2) == "UTC", message)
        found = _UNIX.match(text)
        if found:
            return self._wall(float(found.group(1)), True, message)
        found = _TIME.match(text)
        return self._of_day(found) if found else NO_TIME

    def _of_day(self, found: re.Match[str]) -> float:
        """Seconds since the first line for a time without its day; one that goes back is of the next day."""
        hour, minute, second = found.groups()
        now = int(hour) * 3600 + int(minute) * 60 + float(second.replace(",", "."))
        self._midnight = now if self._midnight is None else self._midnight
        while now - self._midnight < self.running - DAY / 2:
            now += DAY
        self.running = max(0.0, round(now - self._midnight, 6))
        return self.running

    def _wall(self, wall: float, zoned: bool, message: str) -> float:
        if self._base is None:
            if message.startswith(("Linux version", "Booting Linux")):
                self._base, self.anchored = wall, True
            elif self.booted is not None:
                self._base, self.anchored = self.booted, zoned
            else:
                self._base = wall
        self.running = max(0.0, round(wall - self._base, 6))
        return self.running


def begins(text: str) -> bool:
    """Does this text begin a message of its own, though nothing stands before it?"""
    return _BEGINS.match(text) is not None


def continues(text: str) -> bool:
    """Is this text of a kind that only ever continues an earlier line?

    >>> continues("    FaultType: 0"), continues("xe 0000:03:00.0: [drm] GT0: Engine reset")
    (True, False)
    """
    return _CONTINUES.match(text) is not None


def is_cut(text: str) -> bool:
    """Did a pager cut this line off? It then ends in ``>``."""
    text = text.rstrip()
    return text.endswith(">") and not text.endswith((" <>", " ->"))


def is_first(text: str) -> bool:
    """Is this the message with which a kernel begins its log?

    >>> is_first("Linux version 7.0.0-27-generic (gcc)"), is_first("Linux agpgart interface v0.103")
    (True, False)
    """
    return text.startswith(_FIRST)


class Tidy:
    """Takes off what is not of the log: colours, quotes, blanks before the whole text or before a time.

    >>> Tidy()(["> [    1.0] a", ">     ASID: 9", "> [    2.0] b"])
    ['[    1.0] a', '    ASID: 9', '[    2.0] b']
    >>> Tidy()(["    xe 0000:03:00.0: a", "        ASID: 9"])
    ['xe 0000:03:00.0: a', '    ASID: 9']
    """

    def __init__(self) -> None:
        self._margin: str | None = None

    def __call__(self, batch: list[str], blob: str | None = None) -> list[str]:
        """The same number of lines; the same list when nothing had to be taken off. blob: the lines, joined."""
        blob = "\n".join(batch) if blob is None else blob
        found = batch
        if self._margin is None:
            blob = blob.lstrip("\ufeff")
            found = [batch[0].lstrip("\ufeff"), *batch[1:]] if batch[0].startswith("\ufeff") else batch
        # One rare character is found ten times faster than a short word; most batches have none of these.
        if (
            "\x1b" in blob
            or ("^" in blob and "^[[" in blob)
            or ("#" in blob and "#033[" in blob)
            or ("<" in blob and "</" in blob)
        ):
            found = [_COLOUR.sub("", line) for line in found]
            blob = "\n".join(found)
        if ">" in blob:
            found = [_unquoted(line) if line[:1] in _QUOTED else line for line in found]
            blob = "\n".join(found)
        if self._margin is None:
            self._margin = _margin(found)
        if self._margin:
            found = [line[len(self._margin) :] if line.startswith(self._margin) else line for line in found]
        if min(found) < "!":  # a blank comes before all else with which a line begins
            found = [_unindented(line) for line in found]
        return found


def _unquoted(line: str) -> str:
    quote = _QUOTE.match(line)
    return line[quote.end() :] if quote else line


def _unindented(line: str) -> str:
    blanks = _INDENT.match(line) if line[:1] in (" ", "\t") else None
    return line[blanks.end() :] if blanks else line


def _margin(lines: list[str]) -> str:
    """Blanks with which every line begins."""
    told = [line for line in lines if line.strip()]
    if not told:
        return ""
    low, high = min(told), max(told)
    length = next((at for at, (a, b) in enumerate(zip(low, high)) if a != b), min(len(low), len(high)))
    return low[: length - len(low[:length].lstrip(" \t"))]


class Boots:
    """Finds where another boot begins in a log that holds several.

    A boot begins with ``Linux version`` (after ``Booting Linux on`` on Arm), at a mark (``-- Boot ID --``,
    older: ``-- Reboot --``) or where the kernel's own time starts again at 0.
    """

    def __init__(self) -> None:
        self._was_first = False
        self._seconds = NO_TIME

    def __call__(self, batch: list[str], low: str) -> list[tuple[bool, list[str]]]:
        """The batch in pieces, each with whether it begins a boot. low: the lines, joined, in lower case."""
        marked = "linux version " in low or (min(batch) < "-." and ("-- boot " in low or "-- reboot " in low))
        if not marked and _AT_BOOT not in low:
            self._was_first = "Booting Linux on " in batch[-1]
            self._seconds = _seconds(batch[-1])
            return [(False, batch)]
        pieces: list[tuple[bool, list[str]]] = [(False, [])]
        was_zero = False
        for number, line in enumerate(batch):
            is_begin = "Linux " in line and _begins_boot(line)
            is_zero = _AT_BOOT in line and _seconds(line) == 0.0
            is_again = is_zero and not was_zero and self._before(batch, number) > _SETTLED
            if (is_begin and not self._was_first) or is_again or (line.startswith("-- ") and _MARK.match(line)):
                pieces.append((True, []))
            pieces[-1][1].append(line)
            self._was_first, was_zero = is_begin, is_zero
        self._seconds = self._before(batch, len(batch))
        return [piece for piece in pieces if piece[1]]

    def _before(self, batch: list[str], number: int) -> float:
        """The time of the newest line before this one that has something before its message."""
        for index in range(number - 1, -1, -1):
            if Clock(None, 0.0).split(batch[index])[0] is not None:
                return _seconds(batch[index])
        return self._seconds


def _begins_boot(line: str) -> bool:
    return is_first(Clock(None, 0.0).split(line)[1])


def _seconds(line: str) -> float:
    """The kernel's own time in a line, wherever it stands before the message."""
    found = _KERNEL_TIME.search(line, 0, 120)
    return float(found.group(1)) if found else NO_TIME


class Message(NamedTuple):
    """One message: seconds since boot (or `NO_TIME`), seconds since the epoch (or None), its lines, its line number."""

    seconds: float
    wall: float | None
    text: str
    order: int


def batches(lines: Iterable[str], size: int = 256) -> Iterator[list[str]]:
    """Lines in lists of at most `size`."""
    batch: list[str] = []
    for line in lines:
        batch.append(line)
        if len(batch) == size:
            yield batch
            batch = []
    if batch:
        yield batch
