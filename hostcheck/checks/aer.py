"""PCIe errors by severity and rate, per link: counters and rates first, the log second.

A link has two ends and either may report, so findings name the link by its card-side port and both ends in `seen`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from ..expectations import Expectation
from ..findings import HOST, Cause, Finding, Status, Subject, check, unknown
from ..onhost.gather import Facts
from ..onhost.readings import gpu_ids
from ..onhost.readings.kernel_log import Event
from ..onhost.readings.log_events import FATAL_BY_DEFAULT, SIGNAL
from ..onhost.readings.pcie import Aer, Function, Gpu, is_bridge, path_bdfs
from ..onhost.recording import seconds
from ..rates import two_reads
from . import log
from .aspm import aer_blind
from .faults import lost
from .gpu import cards
from .presence import not_listed

LEFTOVERS = frozenset(
    {"UnsupReq", "NonFatalErr"}
)  # set by enumeration on healthy hosts (the public B70 optimization lab)
EVENTS = {"correctable": ("aer.corrected",), "nonfatal": ("aer.nonfatal",), "fatal": ("aer.fatal", "dpc")}
HOUR = 3600.0
SHORTEST = 10.0  # seconds; a rate over less would be made by a single error (own)
# Fatal and not masked, both by default (PCIe base specification, 7.8.4.3 and 7.8.4.4). SDES is masked on slots
# that take hot-plug, UncorrIntErr everywhere.
REPORTED = ("DLP", "FCP", "RxOF", "MalfTLP")


@dataclass
class Link:
    """One link and what speaks of it.

    bdf: its card-side port; upper: the port above, "" when not known. gpus: cards behind it. counters: name -> count
    since boot, of both ends, for one severity; before: the same of an earlier read on this boot, or None.
    unread: why there is no counter; half: why the one of an end is missing that may have one.
    placed: is it in the topology that was read? unplaced: why it is not known what is behind it, or "". told: GPUs
    behind it as far as the log tells, where the topology does not.
    """

    bdf: str
    upper: str
    gpus: tuple[Gpu, ...]
    events: list[Event] = field(default_factory=list)
    counters: dict[str, int] = field(default_factory=dict)
    unread: str = ""
    half: str = ""
    source: str = ""
    placed: bool = True
    unplaced: str = ""
    told: tuple[str, ...] = ()

    @property
    def cards(self) -> tuple[str, ...]:
        """Addresses of the GPUs behind it."""
        return tuple(gpu.bdf for gpu in self.gpus) or self.told

    @property
    def where(self) -> str:
        """What a reader must know about what is behind it."""
        if self.gpus:
            return ""
        if self.told:
            return f"part of a GPU or on the way to one by the log: {', '.join(self.told)}"
        return self.unplaced or "not a GPU path"

    @property
    def subject(self) -> Subject:
        return Subject("link", self.bdf) if self.bdf else HOST

    @property
    def name(self) -> str:
        return f"{self.upper} - {self.bdf}" if self.upper else self.bdf or "no device named"


class Map:
    """Which link a function speaks of."""

    def __init__(self, facts: Facts) -> None:
        self.functions: dict[str, Function] = {one.bdf: one for one in facts.pcie.functions.value or ()}
        self.gpus = cards(facts) if facts.pcie.gpus.value else ()
        self.children: dict[str, list[str]] = {}
        self.told = log.told_gpus(facts)
        self.reported: dict[str, set[str]] = {}
        for event in log.events(facts) if facts.kernel_log.events.value is not None else ():
            port = event.root_port or event.details.get("at", "")
            if port and event.bdf in self.told:
                self.reported.setdefault(port, set()).add(event.bdf)
        for bdf, one in sorted(self.functions.items()):
            self.children.setdefault(one.parent, []).append(bdf)

    def depth(self, bdf: str) -> int:
        steps = 0
        while (one := self.functions.get(bdf)) is not None and one.parent in self.functions and steps < 32:
            bdf, steps = one.parent, steps + 1
        return steps

    def link(self, bdf: str) -> Link:
        """The link that an error of this function is about: below a root or downstream port, else above the function.

        Below a root port comes an upstream port, below that a downstream port, and so on.
        """
        one = self.functions.get(bdf)
        if one is None:
            unread = "" if self.functions else "what is behind it was not read"
            return Link(bdf, "", (), placed=False, unplaced=unread if bdf else "the device was not named")
        below = self.children.get(bdf, [])
        if is_bridge(one) and self.depth(bdf) % 2 == 0:
            device, upper = (below[0], bdf) if below else (bdf, "")
        else:
            first = f"{bdf.rpartition('.')[0]}.0"
            device, upper = (first if first in self.functions else bdf), one.parent
        behind = tuple(gpu for gpu in self.gpus if device in path_bdfs(gpu) or device in gpu.siblings)
        return Link(device, upper, behind)

    def gpus_by_log(self, link: Link) -> tuple[str, ...]:
        """GPUs that the log itself puts on a link that the topology does not have."""
        found = set(self.reported.get(link.bdf, ()))
        for event in link.events:
            named = {event.bdf, link.bdf, *event.details.get("devices", "").split(", ")}
            is_function = bool(link.bdf and link.unplaced)
            found |= {gpu for gpu in self.told if gpu in named or (is_function and gpu[:-2] == link.bdf[:-2])}
            found |= {gpu for gpu in event.details.get("gpus", "").split(", ") if gpu}
            pairs = (tuple(one.split(":")) for one in event.details.get("ids", "").split(", ") if one)
            if any(pair in gpu_ids.CARD_PORTS or gpu_ids.product(*pair) is not None for pair in pairs):
                found.add(event.bdf)  # a part of a card, whatever is behind it
        return tuple(sorted(found))


def _counters(aer: Aer, name: str) -> tuple[dict[str, int] | None, int, str]:
    reading = getattr(aer, name)
    total = getattr(aer, f"rootport_{name}")
    return reading.value, total.value or 0, f"{reading.unread}: {reading.detail}" if reading.value is None else ""


def total(counters: dict[str, int]) -> int:
    """The count of all errors: the kernel's own total, or the sum where it is larger.

    >>> total({"RxErr": 2, "TOTAL_ERR_COR": 3})
    3
    """
    own = sum(count for name, count in counters.items() if not name.startswith("TOTAL_"))
    return max([own, *(count for name, count in counters.items() if name.startswith("TOTAL_"))])


def collect(facts: Facts, name: str) -> dict[str, Link]:
    """Links on the way to a card, and every other one with errors of this severity, by card-side port."""
    here = Map(facts)
    found: dict[str, Link] = {}

    def at(bdf: str) -> Link:
        link = here.link(bdf)
        return found.setdefault(link.bdf, link)

    done: set[str] = set()  # cards behind one switch share hops
    for gpu in here.gpus:
        for hop in gpu.path:
            link = at(hop.bdf)
            counters, _, why = _counters(hop.aer, name)
            link.source = getattr(hop.aer, name).source or link.source
            if counters is None:
                # Either end counts what it receives; an end without the capability leaves the other one.
                link.unread = link.unread or (why if not link.counters else "")
                link.half = link.half or (why if not why.startswith("absent") else "")
            else:
                link.unread = ""
                if hop.bdf not in done:
                    _add(link.counters, counters)
            done.add(hop.bdf)
        root = gpu.path[0]
        _, messages, _ = _counters(root.aer, name)
        slot = at(root.bdf)
        below = {one for one in here.functions if here.functions[one].root_port == root.bdf}
        if (
            messages
            and below <= path_bdfs(gpu) | set(gpu.siblings)
            and not any(total(link.counters) for link in found.values() if gpu in link.gpus)
        ):
            _add(slot.counters, {"received by the root port": messages})
    if name == "correctable":
        for bdf, counts in (facts.pcie.background.value or {}).items():
            link = at(bdf)
            _add(link.counters, counts)
            link.source = link.source or facts.pcie.background.source
    if facts.kernel_log.events.value is not None:
        for event in log.events(facts):
            if event.kind in EVENTS[name]:
                at(event.bdf).events.append(event)
    for link in found.values():
        if not link.placed:
            link.told = here.gpus_by_log(link)
    return found


def _add(to: dict[str, int], counts: dict[str, int]) -> None:
    for name, count in counts.items():
        to[name] = to.get(name, 0) + count


def _uplinks(facts: Facts) -> set[str]:
    """Card-side ports of the links that cross a slot: the ones that are told to be ok."""
    return {gpu.uplink or gpu.bdf for gpu in (cards(facts) if facts.pcie.gpus.value else ())}


def _silent(facts: Facts, id: str, link: Link, blind: dict[str, tuple[Subject, str]]) -> Finding:
    """The finding for a link of a card without any error."""
    roots = [gpu.path[0].bdf for gpu in link.gpus]
    hidden = blind.get("*") or next((blind[root] for root in roots if root in blind), None)
    source = link.source or facts.kernel_log.events.source
    if _unclear(facts, link):
        seen = "a line about it is cut off in the capture before its severity"
        cause = Cause("aer.nonfatal", link.subject)
        return Finding(id, link.subject, Status.unknown, seen, source=facts.kernel_log.events.source, cause=cause)
    if hidden is not None:
        seen = f"not visible: {hidden[1]}"
        return Finding(id, link.subject, Status.unknown, seen, cause=Cause("aer.visibility", hidden[0]), source=source)
    if facts.aspm.command_line.value is None:
        seen = f"whether errors are reported is not known: {facts.aspm.command_line.source} was not read"
        return Finding(id, link.subject, Status.unknown, seen, source=source, cause=Cause("aer.visibility", HOST))
    if link.counters and link.half:
        return Finding(id, link.subject, Status.unknown, f"one end counted none, the other: {link.half}", source=source)
    if link.counters:
        return Finding(id, link.subject, Status.ok, f"none counted since the boot on {link.name}", source=source)
    if facts.kernel_log.events.value is None:
        return Finding(id, link.subject, Status.unknown, f"{link.unread}; no log", source=source, cause=log.ACCESS)
    unsure = next((gpu.path[0].bdf for gpu in link.gpus if gpu.path[0].aer_capable.value is None), "")
    if unsure:
        cause = Cause("aer.visibility", Subject("port", unsure))
        return Finding(
            id, link.subject, Status.unknown, "whether errors are reported is not read", "", source, cause=cause
        )
    gap = log.window_gap(facts)
    if gap or not link.unread.startswith("absent"):
        return Finding(id, link.subject, Status.unknown, "; ".join(filter(None, (link.unread, gap))), source=source)
    return Finding(id, link.subject, Status.ok, f"no line since the boot about {link.name}", source=source)


def _not_told(id: str, facts: Facts, name: str) -> Iterator[Finding]:
    """What no link can be named for: cards that could not be listed, and a second read that was asked for in vain."""
    without = not_listed(id, facts)
    if without is not None:
        yield without
    second = getattr(facts.rates, name)
    second = facts.rates.seconds if facts.rates.seconds.value is None else second
    if second.unread not in (None, "not_asked") and without is None:
        yield unknown(id, second)


def _unclear(facts: Facts, link: Link) -> bool:
    """Is there a line about this link whose severity cannot be told?"""
    if facts.kernel_log.events.value is None:
        return False
    unclear = [event for event in log.events(facts) if event.kind == "aer.unclear"]
    return any(Map(facts).link(event.bdf).subject == link.subject for event in unclear)


def _consequence(facts: Facts, link: Link, found: list[Event]) -> tuple[Cause | None, bool]:
    """The lost card whose loss explains these errors, and whether they came before a loss."""
    gone = lost(facts) if facts.kernel_log.events.value is not None else {}
    for bdf in link.cards:
        said = [event for event in gone.get(bdf, ()) if event.bdf == bdf or event.kind == "slot.link_down"]
        if not said:
            continue
        start = min(event.order_first for event in said)
        if found and min(event.order_first for event in found) < start:
            return None, True
        return Cause("gpu.lost", log.gpu(bdf)), False
    return None, False


def _bits(link: Link, found: list[Event]) -> str:
    names = [name for event in found for name in event.details.get("bits", "").split(", ") if name]
    names += [name for name, count in link.counters.items() if count and not name.startswith("TOTAL_") and not found]
    layers = [name for event in found for name in event.details.get("layers", "").split(", ") if name]
    text = ", ".join(dict.fromkeys(names))
    return text + (f" ({', '.join(dict.fromkeys(layers))})" if layers and text else "")


def _earlier(facts: Facts, previous: Facts | None, link: Link, name: str) -> float | None:
    """Errors per second since an earlier read on the same boot; None without one."""
    boot = facts.identity.boot_id.value
    if previous is None or boot is None or previous.identity.boot_id.value != boot:
        return None
    passed = seconds(facts.taken_at) - seconds(previous.taken_at)
    before = collect(previous, name).get(link.bdf)
    if passed <= 0 or before is None:
        return None
    return max(0, total(link.counters) - total(before.counters)) / max(passed, SHORTEST)


def _note(found: list[Event]) -> str:
    """What a reader must know about how the lines were understood."""
    notes = []
    if any(event.details.get("severity_from") for event in found):
        notes.append("severity cut off in the capture, taken from the bit")
    if any(event.details.get("sender") for event in found):
        notes.append("the port did not learn the sender")
    if any(event.details.get("by") == "firmware" for event in found):
        notes.append("reported by the firmware")
    return "; ".join(notes)


@check("aer.rate", title="No corrected errors on the way to a card, few elsewhere")
def rate(facts: Facts, expectation: Expectation, previous: Facts | None = None) -> Iterator[Finding]:
    """`aer.rate`

    Why: replay timeouts on a card's link cost latency while everything "works" (ReBarUEFI#11), and a single corrected
    error of an NVMe drive means nothing (the lab's background was 0.15 to 5.2 per hour), so limits are rates. Counts of
    lines are a lower bound: from 6.16 on the kernel's rate limit drops the rest and only says how many (qualcomm
    kernel#323).
    """
    facts, previous = two_reads(facts, previous)
    limits, blind, told = expectation.aer, aer_blind(facts), _uplinks(facts)
    yield from _not_told("aer.rate", facts, "correctable")
    uptime = facts.identity.uptime.value
    for bdf, link in sorted(collect(facts, "correctable").items()):
        found = [event for event in link.events if not event.previous_boot]
        counted = total(link.counters)
        if not found and not counted:
            if bdf in told:
                yield _silent(facts, "aer.rate", link, blind)
            continue
        second, minute = (max((getattr(event, key) for event in found), default=0) for key in ("peak_1s", "peak_60s"))
        lines = sum(event.count for event in found)
        per_hour = float(max([event.peak_1h or event.count for event in found], default=0))
        suppressed = sum(event.suppressed for event in found)
        per_second = _earlier(facts, previous, link, "correctable")
        if per_second is None and uptime:
            per_second = counted / max(uptime, 60.0)
        if uptime and not found:
            per_hour = round(counted / max(uptime / HOUR, 1.0), 1)
        cause, came_before = _consequence(facts, link, found)
        source = facts.kernel_log.events.source if found else link.source
        wanted = "0"
        if link.cards:
            limit = limits.gpu_fail_per_s
            storm = minute >= 60 * limit or second >= limits.gpu_burst or (per_second or 0) >= limit
            only_leftovers = not found and {name for name, n in link.counters.items() if n} <= {*LEFTOVERS, *TOTALS}
            status = Status.fail if storm or suppressed or came_before else Status.warn
            status = Status.info if only_leftovers else status
        else:
            limit = limits.storm_per_s
            storm = minute >= 60 * limit or (per_second or 0) >= limit
            stored = {link.bdf, link.upper, *(event.bdf for event in found)} & set(expectation.model_storage)
            wanted = f"at most {limits.background_per_h:g} per hour"
            status = Status.warn if per_hour > limits.background_per_h else Status.info
            status = Status.fail if suppressed or (storm and stored) else status
        if cause is not None:
            status = Status.info
        parts = [f"{link.name}: {_bits(link, found) or 'corrected errors'}"]
        parts.append(log.span(found) if found else f"{counted} counted since the boot")
        if second > 1:
            parts.append(f"up to {second} in 1 s")
        if per_second and facts.rates.seconds.value is not None:
            parts.append(f"{per_second:.2g} per s between two reads")
        if found and counted > lines:
            parts.append(f"{counted} counted")
        parts += [text for text in (_note(found), "followed by the loss of the card" if came_before else "") if text]
        parts += [link.where] if link.where else []
        yield Finding(
            "aer.rate",
            link.subject,
            status,
            seen="; ".join(parts),
            wanted=wanted,
            source=source,
            next_step=_step(link) if status in (Status.warn, Status.fail) else "",
            cause=cause,
            marks=log.marks(facts, found),
        )


TOTALS = ("TOTAL_ERR_COR", "TOTAL_ERR_NONFATAL", "TOTAL_ERR_FATAL", "received by the root port")


def _step(link: Link) -> str:
    path = f"/sys/bus/pci/devices/{link.bdf or '*'}/aer_dev_correctable"
    return f"grep . {path}  # twice; if it grows: reseat, riser, slot, power"


@check("aer.nonfatal", title="No non-fatal errors on the way to a card")
def nonfatal(facts: Facts, expectation: Expectation, previous: Facts | None = None) -> Iterator[Finding]:
    """`aer.nonfatal`

    Why: an uncorrected error is a lost transaction. With a failed recovery the device is unusable, wherever it is;
    UnsupReq alone is a leftover of enumeration on healthy hosts (the public B70 optimization lab).
    """
    yield from _uncorrected(facts, "nonfatal")
    if facts.kernel_log.events.value is None:
        return
    for event in log.events(facts):
        if event.kind == "aer.unclear":
            seen = f"severity cut off in the capture; {log.span([event])}"
            source = facts.kernel_log.events.source
            yield Finding("aer.nonfatal", Map(facts).link(event.bdf).subject, Status.unknown, seen, source=source)


@check("aer.fatal", title="No fatal errors")
def fatal(facts: Facts, expectation: Expectation, previous: Facts | None = None) -> Iterator[Finding]:
    """`aer.fatal`

    Why: a fatal error means that the link is not reliable. After a crash the only record may be what the firmware
    kept and the kernel prints on the next boot (BERT), which is dated to the boot before (nixos_config#1820). "link has
    been reset" is success of one step: the last word on recovery decides (returnn#1500).
    """
    yield from _uncorrected(facts, "fatal")


def _sticky(link: Link) -> tuple[str, ...]:
    """Fatal bits that are still set in the registers of either end (open-gpu-kernel-modules#937)."""
    found: list[str] = []
    for gpu in link.gpus:
        for hop in gpu.path:
            registers = hop.aer_registers.value
            if hop.bdf in (link.bdf, link.upper) and registers is not None:
                found += [
                    name for name in registers.uncorrectable_status if name in FATAL_BY_DEFAULT and name != "SDES"
                ]
    return tuple(dict.fromkeys(found))


def _uncorrected(facts: Facts, name: str) -> Iterator[Finding]:
    id = f"aer.{name}"
    facts, _ = two_reads(facts, None)
    blind, told = aer_blind(facts), _uplinks(facts)
    yield from _not_told(id, facts, name)
    for bdf, link in sorted(collect(facts, name).items()):
        found, counted = link.events, total(link.counters)
        sticky = _sticky(link) if name == "fatal" and not found else ()
        if not found and not counted and not sticky:
            if bdf in told and not (name == "nonfatal" and _unclear(facts, link)):  # `nonfatal` tells of that line
                yield _silent(facts, id, link, blind)
            continue
        failed = any(event.recovered == "failed" or event.details.get("failed_recovery") for event in found)
        cause, _ = _consequence(facts, link, [event for event in found if not event.previous_boot])
        bits = {bit for event in found for bit in event.details.get("bits", "").split(", ") if bit}
        if not found:
            bits = {bit for bit, count in link.counters.items() if count} - set(TOTALS)
        contained = {event.kind for event in found} == {"dpc"} and all(
            event.recovered == "recovered" for event in found
        )
        if failed or (name == "fatal" and not contained):
            status = Status.fail
        elif not failed and bits and bits <= LEFTOVERS and name == "nonfatal" and not (found and link.cards):
            status = Status.info
        else:
            status = Status.fail if link.cards else Status.warn
        before = [event for event in found if event.previous_boot]
        now = [event for event in found if not event.previous_boot]
        reports = [event for event in now if event.kind != "dpc"]
        contained_count = sum(event.count for event in now if event.kind == "dpc")
        # The port that was contained reports the same error as well.
        shown = reports if sum(event.count for event in reports) >= contained_count else now
        parts = [f"{link.name}: {_bits(link, found) or ', '.join(sticky) or _kinds(found)}"]
        if now:
            parts.append(log.span(shown))
        elif counted:
            parts.append(f"{counted} counted since the boot")
        elif sticky:
            parts.append("still set in the status register, time unknown")
        if before:
            parts.append(f"{sum(event.count for event in before)} on the previous boot, kept by the firmware")
        if now and any(event.recovered for event in now):
            parts.append("recovery failed" if failed else "recovered")
        parts += [text for text in (_note(now), link.where) if text]
        of_device = f" -s {bdf}" if bdf else ""
        step = "systemctl reboot" if failed else f"lspci -vv{of_device} | grep -E 'UESta|CESta|LnkSta:'"
        yield Finding(
            id,
            link.subject,
            status,
            seen="; ".join(parts),
            wanted="0",
            source=facts.kernel_log.events.source if found else link.source,
            next_step=f"{step}  # then reseat the card, check riser, slot and power" if link.cards else step,
            cause=cause,
            marks=log.marks(facts, found),
        )


def _kinds(found: list[Event]) -> str:
    return "port contained (DPC)" if any(event.kind == "dpc" for event in found) else "errors"


@check("aer.masked", title="No class of PCIe errors is masked on the way to a card")
def masked(facts: Facts, expectation: Expectation, previous: Facts | None = None) -> Iterator[Finding]:
    """`aer.masked`

    Why: a masked class of errors, or a fatal one that was made non-fatal, turns the evidence off, which some do as a
    workaround (open-gpu-kernel-modules#937). It is told, not judged.
    """
    seen_ports: set[str] = set()
    for gpu in cards(facts) if facts.pcie.gpus.value else ():
        for hop in gpu.path:
            registers = hop.aer_registers.value
            if registers is None or hop.bdf in seen_ports:
                continue
            seen_ports.add(hop.bdf)
            classes = [name for name in REPORTED if name in registers.uncorrectable_mask]
            classes += [name for name in SIGNAL if name in registers.correctable_mask]
            lowered = [
                name
                for name in REPORTED
                if registers.uncorrectable_severity and name not in registers.uncorrectable_severity
            ]
            parts = [f"masked: {', '.join(classes)}"] if classes else []
            parts += [f"made non-fatal: {', '.join(lowered)}"] if lowered else []
            if parts:
                yield Finding(
                    "aer.masked",
                    Subject("port", hop.bdf),
                    Status.info,
                    seen=f"{'; '.join(parts)} (by the administrator or the firmware)",
                    wanted="reported",
                    source=hop.aer_registers.source,
                    next_step=f"lspci -vv -s {hop.bdf} | grep -E 'UEMsk|UESvrt|CEMsk'",
                )
