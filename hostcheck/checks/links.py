"""Does every link between a card and its root port run as fast and as wide as both of its ends can?"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from ..expectations import Expectation
from ..findings import HOST, Cause, Finding, Status, Subject, check
from ..onhost.gather import Facts
from ..onhost.reader import Reading
from ..onhost.readings import gpu_ids
from ..onhost.readings.pcie import Gpu, Hop
from .gpu import cards, gone, is_virtual

GENERATIONS = {2.5: "Gen1", 5.0: "Gen2", 8.0: "Gen3", 16.0: "Gen4", 32.0: "Gen5", 64.0: "Gen6", 128.0: "Gen7"}
WIDTH, SPEED, UNEQUAL = "pcie.link.width", "pcie.link.speed", "pcie.link.asymmetry"


@dataclass(frozen=True)
class Link:
    """One link that is judged: its upper and lower end, and the cards below it.

    upper: None where the port above was not recorded, so that only the lower end's own capability is known.
    speed, width: what it should have (see `wanted`), None where that is not known. declared: by ``slot_link``.
    """

    lower: Hop
    upper: Hop | None
    gpus: tuple[Gpu, ...]
    declared: bool
    wanted_speed: float | None
    wanted_width: int | None

    @property
    def subject(self) -> Subject:
        return Subject("link", self.lower.bdf)

    @property
    def speed(self) -> Reading[float]:
        return self.lower.speed.or_(self.upper.speed) if self.upper is not None else self.lower.speed

    @property
    def width(self) -> Reading[int]:
        return self.lower.width.or_(self.upper.width) if self.upper is not None else self.lower.width


def generation(speed: float) -> str:
    """The generation of a speed in GT/s, for a person.

    >>> generation(16.0), generation(3.0)
    ('Gen4', '3 GT/s')
    """
    return GENERATIONS.get(speed, f"{speed:g} GT/s")


def wanted(lower: float | None, upper: float | None, declared: float | None) -> float | None:
    """What a link should have: the smaller capability of both ends; a declared one, as far as the card can; or None.

    >>> wanted(32, 16, None), wanted(32, 16, 8), wanted(16, 8, 32), wanted(32, None, None)
    (16, 8, 16, None)
    """
    if declared is not None:
        return declared if lower is None else min(declared, lower)
    return None if lower is None or upper is None else min(lower, upper)


def has_own_switch(gpu: Gpu) -> bool:
    """Can the upstream port of the card's own switch be seen?"""
    return any(hop.role == "card_upstream" for hop in gpu.path)


def port_is_virtual(facts: Facts, gpu: Gpu) -> bool:
    """Is the port above a card an invention of a hypervisor?

    A function that is passed through comes without the ports above it. A card whose own switch is in sight has real
    ports, in a virtual machine or not.
    """
    above = gpu.path[0]
    return not has_own_switch(gpu) and (is_virtual(facts) or above.vendor in gpu_ids.VIRTUAL_VENDORS)


def links(facts: Facts, expectation: Expectation) -> list[Link]:
    """Every link on the way to a card that says something: the one that crosses the slot, and those above it.

    Inside a switch there is no link, and the links inside a card say nothing (Intel KB 000094587). Where a way begins
    with the lower end of a link, that link is one too, although its upper end is not there.
    """
    below: dict[str, list[Gpu]] = {}
    ends: dict[str, tuple[Hop, Hop | None]] = {}
    for gpu in cards(facts):
        if port_is_virtual(facts, gpu):
            continue
        top = gpu.path[0]
        if top.crosses_slot or (top.role.endswith("_upstream") and not top.inner):
            ends[top.bdf] = (top, None)
            below.setdefault(top.bdf, []).append(gpu)
        for port, lower in zip(gpu.path, gpu.path[1:], strict=False):
            if lower.inner or port.role not in ("root_port", "switch_downstream") or lower.role == "bridge":
                continue
            ends[lower.bdf] = (lower, port)
            below.setdefault(lower.bdf, []).append(gpu)
    found = []
    for bdf, (lower, upper) in sorted(ends.items()):
        slot = expectation.slot_link.get(bdf) or (expectation.slot_link.get(upper.bdf) if upper is not None else None)
        most = (upper.max_speed.value, upper.max_width.value) if upper is not None else (None, None)
        speed = wanted(lower.max_speed.value, most[0], slot.speed if slot else None)
        width = wanted(lower.max_width.value, most[1], slot.width if slot else None)
        found.append(
            Link(lower, upper, tuple(below[bdf]), slot is not None, speed, int(width) if width is not None else None)
        )
    return found


def faulted(facts: Facts, link: Link) -> str:
    """BDF of a card below that had a fault on this boot, or ``""``."""
    logged = facts.kernel_log.faulted.value or ()
    return next(
        (
            gpu.bdf
            for gpu in link.gpus
            if gpu.bdf in logged or gpu.coredump.value or gpu.runtime_status.value == "error"
        ),
        "",
    )


def _unread(facts: Facts, id: str, link: Link, current: Reading[float] | Reading[int], what: str) -> Finding:
    """The finding for a link of which too little could be read."""
    name = f"max_{what}"
    ends = [(current, link.lower.bdf), (getattr(link.lower, name), link.lower.bdf)]
    if link.upper is not None:
        ends.append((getattr(link.upper, name), link.upper.bdf))
    cause = next((cause for gpu in link.gpus if (cause := gone(facts, gpu)) is not None), None)
    for reading, where in ends:
        if reading.value is None:
            reason = f"{reading.unread}: {reading.detail}" if reading.detail else str(reading.unread)
            seen = f"{what} of {where} not read: {reason}"
            return Finding(id, link.subject, Status.unknown, seen=seen, source=reading.source, cause=cause)
    now, own = (f"x{one.value}" if what == "width" else f"{one.value:g} GT/s" for one, _ in ends[:2])
    seen = f"{now} of {own}; the port above {link.lower.bdf} was not recorded, so what the slot gives is not known"
    return Finding(id, link.subject, Status.unknown, seen=seen, source=current.source)


def _low(facts: Facts, link: Link, id: str, seen: str, wanted: str, source: str) -> Finding:
    """The finding for a link that is below what both ends can."""
    bdf = link.lower.bdf
    reseat = f"reseat the card and its riser at {bdf}, check the slot's link setting in the BIOS, cold boot"
    fault = faulted(facts, link)
    downgraded = [gpu for gpu in link.gpus if gpu.auto_link_downgrade_status.value == 1]
    if fault:
        # After copy-engine faults readouts fell to Gen1 x1 while nothing else had changed (arc-host-facts A.1).
        seen += f", read after a fault of {fault} on this boot: no evidence about the slot"
        return Finding(
            id, link.subject, Status.unknown, seen, wanted, source, "reboot, then read again before any GPU work"
        )
    if id == SPEED and downgraded:
        seen += ", lowered by the card itself (auto_link_downgrade_status 1): Gen5 was unstable"
        return Finding(
            id, link.subject, Status.warn, seen, wanted, downgraded[0].auto_link_downgrade_status.source, reseat
        )
    intel = any(gpu.vendor == gpu_ids.INTEL for gpu in link.gpus)
    if id == SPEED and not intel and not facts.options.under_load:
        # Other vendors' cards lower the speed to save power; only a loaded reading decides (jan#183, nvidia#1010).
        step = "hostcheck audit --under-load  # while a job keeps the card busy"
        return Finding(
            id, link.subject, Status.unknown, f"{seen}: idle reading, repeat under load", wanted, source, step
        )
    if id == SPEED and facts.options.under_load:
        seen += " under load"
    return Finding(id, link.subject, Status.fail, seen, wanted, source, reseat)


def is_hopeless(speed: float, own: float) -> bool:
    """Is a speed under load too low for any slot that this card is put in?

    Own: the first two generations, and two below what the card can (system76-power#393: 16 GT/s fell to 2.5 in use).

    >>> is_hopeless(2.5, 16.0), is_hopeless(8.0, 16.0), is_hopeless(8.0, 32.0)
    (True, False, False)
    """
    steps = sorted(GENERATIONS)
    return speed <= 5.0 and speed in steps and own in steps and steps.index(own) - steps.index(speed) >= 2


def judge_width(facts: Facts, link: Link) -> Finding:
    """Width of one link. It does not drop while a card is idle, so every reading counts (club-3090#585)."""
    width, best, own = link.width, link.wanted_width, link.lower.max_width.value
    if width.value == 0 and (best or own):
        return _low(facts, link, WIDTH, "the link is down (x0)", f"x{best or own}", width.source)
    if width.value is None or (best is None and width.value != own):
        return _unread(facts, WIDTH, link, width, "width")
    best = best if best is not None else width.value
    if width.value < best:
        return _low(facts, link, WIDTH, f"x{width.value}", f"x{best}", width.source)
    if not link.declared and own is not None and best < own and link.upper is not None:
        # Named with its generation only where the speed is the best one too.
        best_speed = link.wanted_speed if link.wanted_speed == link.speed.value else None
        seen = f"{f'{generation(best_speed)} ' if best_speed else ''}x{width.value}"
        seen = f"at the host's maximum ({seen} by bifurcation or slot wiring)"
        return Finding(WIDTH, link.subject, Status.info, seen=seen, source=link.upper.max_width.source)
    return Finding(WIDTH, link.subject, Status.ok, seen=f"x{width.value}", wanted=f"x{best}", source=width.source)


def judge_speed(facts: Facts, link: Link) -> Finding:
    """Speed of one link."""
    speed, best, own = link.speed, link.wanted_speed, link.lower.max_speed.value
    if link.width.value == 0:
        down = Cause(WIDTH, link.subject)
        return Finding(
            SPEED, link.subject, Status.unknown, seen="the link is down", source=link.width.source, cause=down
        )
    seen = f"{speed.value:g} GT/s ({generation(speed.value)})" if speed.value is not None else ""
    if speed.value is None or own is None or (best is None and speed.value > own):
        if speed.value is None or best is None:
            return _unread(facts, SPEED, link, speed, "speed")
    elif best is None and speed.value < own:
        # Without the port above only a reading that no slot explains decides, and an idle one says nothing.
        idles = not facts.options.under_load and not any(gpu.vendor == gpu_ids.INTEL for gpu in link.gpus)
        if idles or (facts.options.under_load and is_hopeless(speed.value, own)):
            return _low(facts, link, SPEED, seen, f"up to {own:g} GT/s ({generation(own)})", speed.source)
        return _unread(facts, SPEED, link, speed, "speed")
    best = best if best is not None else speed.value
    if speed.value < best:
        return _low(facts, link, SPEED, seen, f"{best:g} GT/s ({generation(best)})", speed.source)
    if not link.declared and own is not None and best < own and link.upper is not None:
        lanes = f" x{link.wanted_width}" if link.wanted_width == link.width.value else ""
        seen = f"at the host's maximum ({generation(speed.value)}{lanes})"
        return Finding(SPEED, link.subject, Status.info, seen=seen, source=link.upper.max_speed.source)
    return Finding(SPEED, link.subject, Status.ok, seen=seen, wanted=f"{best:g} GT/s", source=speed.source)


def troubled(link: Link, finding: Finding) -> Finding:
    """The same finding, or a warning where a link that has its speed and width trains anew or carries no data.

    LnkSta of the upper end tells (catalogue of the lab, pcie.link_train_flags); a link that is low has its own finding.
    """
    said = link.upper.troubles.value if link.upper is not None else None
    if not said or link.upper is None or finding.status not in (Status.ok, Status.info):
        return finding
    words = {"training": "is training (Train+)", "inactive": "is not active (DLActive-)"}
    return replace(
        finding,
        status=Status.warn,
        seen=f"{finding.seen}, but the link {' and '.join(words[one] for one in said)}",
        wanted="a link that is trained and active",
        source=link.upper.troubles.source,
        next_step=f"reseat the card and its riser at {link.lower.bdf}, cold boot",
    )


def unequal(all_links: list[Link]) -> dict[str, tuple[str, str, str]]:
    """Links of cards that have less than an identical card of the same host: BDF -> (check id, its own, the best).

    A link that is as declared is wanted so, and is not compared.
    """
    groups: dict[tuple[str, str], list[Link]] = {}
    for link in all_links:
        if link.lower.crosses_slot:
            gpu = link.gpus[0]
            groups.setdefault((gpu.vendor, gpu.device), []).append(link)
    found: dict[str, tuple[str, str, str]] = {}
    for group in groups.values():
        widths = [link.width.value for link in group if link.width.value]
        speeds = [link.wanted_speed for link in group if link.wanted_speed]
        for link in group:
            if link.declared:
                continue
            width, speed = link.width.value, link.wanted_speed
            if width and width < max(widths):
                found[link.lower.bdf] = (WIDTH, f"x{width}", f"x{max(widths)}")
            elif speed and speed < max(speeds):
                found[link.lower.bdf] = (SPEED, generation(speed), generation(max(speeds)))
    return found


def _not_seen(facts: Facts, gpu: Gpu) -> Iterator[Finding]:
    """Findings for a card whose link with the slot cannot be seen at all."""
    link = Subject("link", gpu.uplink or gpu.bdf)
    if port_is_virtual(facts, gpu):
        status, seen = Status.not_applicable, "in a virtual machine the real port is not visible"
    elif any(hop.crosses_slot for hop in gpu.path):
        return
    else:
        status, seen = Status.unknown, "the card's port at the slot cannot be seen, and the GPU function says nothing"
    for id in (WIDTH, SPEED):
        yield Finding(id, link, status, seen=seen, source=facts.pcie.gpus.source)


@check(WIDTH, SPEED, UNEQUAL, title="Links between cards and root ports run as fast and as wide as both ends can")
def link(facts: Facts, expectation: Expectation, previous: Facts | None = None) -> Iterator[Finding]:
    """`pcie.link.width`, `pcie.link.speed`, `pcie.link.asymmetry`

    Why: the card's upstream port against the port above it is the only place that tells. The GPU function of a
    Battlemage card always reads 2.5 GT/s x1 (a report took it for a lane failure, another one for the riser), and that
    of an AMD card flatters (LACT#593: x16 there, x2 at the slot). Numbers are compared; the word "downgraded" is
    printed for healthy cards on older hosts and left out for root ports. The same link is a fault on an x16 host and
    the best possible one on a one-lane host, so both ends' capabilities count. Of cards that are meant to work
    together the slowest sets the pace, so a link that is narrower than that of an identical card is a warning.
    """
    every = cards(facts)
    if not every:
        for id in (WIDTH, SPEED, UNEQUAL):
            yield Finding(id, HOST, Status.not_applicable, seen="no card in use", source=facts.pcie.gpus.source)
        return
    for gpu in every:
        yield from _not_seen(facts, gpu)
    all_links = links(facts, expectation)
    less = unequal(all_links)
    for one in all_links:
        raised, own, best = less.get(one.lower.bdf, ("", "", ""))
        for finding in (judge_width(facts, one), troubled(one, judge_speed(facts, one))):
            open_ = finding.status is Status.unknown and one.upper is None and one.width.value is not None
            if finding.id == raised and (finding.status in (Status.ok, Status.info) or open_):
                yield replace(
                    finding,
                    status=Status.warn,
                    seen=f"{own}, {'the port above was not recorded' if open_ else 'all that this slot gives'}",
                    wanted=f"{best}, as the other card of the same kind",
                    next_step=f"move the card at {one.lower.bdf} to a slot with {best}, or declare slot_link for it",
                )
            else:
                yield finding
        if raised:
            yield Finding(
                UNEQUAL,
                one.subject,
                Status.warn,
                seen=f"{own}, while a card of the same kind has {best}",
                wanted="equal links for cards that work together",
                source=one.width.source,
                cause=Cause(raised, one.subject),
            )
    if not less:
        status, seen = (Status.ok, "equal") if len(all_links) > 1 else (Status.not_applicable, "one card")
        yield Finding(UNEQUAL, HOST, status, seen=seen, source=facts.pcie.gpus.source)
