"""Wait until the cards of a host are there after a boot: bound, with their device nodes, and nothing moves any more.

Everything here comes from the kernel's own memory (sysfs links and cached ids, udev's database): no card is opened,
none is woken. Boots differ: the public B70 optimization lab lost policy units to the driver's probe, which ended
after them, and a card that failed its probe is on the bus without a node.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Callable

from ..reader import Reader, Reading
from ..readings import gpu_ids, pcie
from ..readings.log_lines import BDF
from .log import no_listing, said_of

SUBSYSTEMS = ("pci", "drm")
UDEV_CONTROL, UDEV_QUEUE, UDEV_DATA = "/run/udev/control", "/run/udev/queue", "/run/udev/data"
AGAIN = 10.0  # seconds; with events too it is looked again so often, since the kernel drops events that nobody fetched


@dataclass(frozen=True)
class Expected:
    """The cards that should come; all empty: every card that is on the bus.

    bdfs: addresses. count: number of cards (of `ids`, where there are any). ids: PCI device ids, each at least once.
    """

    bdfs: tuple[str, ...] = ()
    count: int = 0
    ids: tuple[str, ...] = ()


def expected(data: Mapping[str, Any]) -> Expected:
    """What ``hostcheck_expect.gpus`` asks for. Raises ValueError for what it does not know.

    >>> expected({"bdfs": ["23:00.0"], "ids": ["0xE223"]})
    Expected(bdfs=('0000:23:00.0',), count=0, ids=('e223',))
    """
    unknown = sorted(set(data) - {"bdfs", "count", "ids"})
    if unknown:
        raise ValueError(f"unknown key {', '.join(unknown)}; known keys are bdfs, count, ids")
    bdfs = []
    for given in data.get("bdfs") or ():
        bdf = str(given).lower()
        bdf = f"0000:{bdf}" if re.fullmatch(r"[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]", bdf) else bdf
        if not re.fullmatch(BDF, bdf):
            raise ValueError(f"bdfs: expected a PCI address such as 0000:23:00.0, got {given!r}")
        bdfs.append(bdf)
    count = data.get("count") or 0
    if isinstance(count, bool) or not isinstance(count, int) or count < 0:
        raise ValueError(f"count: expected a number of cards, got {count!r}")
    ids = []
    for given in data.get("ids") or ():
        one = str(given).lower()
        one = one[2:] if one.startswith("0x") else one
        if not re.fullmatch(r"[0-9a-f]{4}", one):
            raise ValueError(f"ids: expected a PCI device id such as e223, got {given!r}")
        ids.append(one)
    return Expected(tuple(bdfs), count, tuple(ids))


@dataclass(frozen=True)
class Card:
    """One GPU function as it is now.

    driver: "" when none is bound. nodes: names of its device nodes, e.g. ``card0``, ``renderD128``.
    lacks: what it still lacks, for a person; "" when it can be used.
    """

    bdf: str
    device: str
    driver: str
    nodes: tuple[str, ...]
    lacks: str


@dataclass(frozen=True)
class Waited:
    """How the wait ended.

    missing: subject (an address, or what was counted) -> what it lacks; {} when all are there.
    log: address -> what the kernel log says of it. by: what the waiting was done by. seconds: how long it took.
    """

    cards: tuple[Card, ...] = ()
    missing: dict[str, str] = field(default_factory=dict)
    log: dict[str, tuple[str, ...]] = field(default_factory=dict)
    by: str = ""
    seconds: float = 0.0


def look(reader: Reader) -> Reading[tuple[Card, ...]]:
    """Every card of the host now: no graphics of the processor, no virtual function, none held for another."""
    functions = pcie.read_functions(reader, no_listing)
    if functions.value is None:
        return functions.then(lambda _: ())
    all_of = functions.value
    nodes = pcie.read_nodes(reader)
    found = []
    for bdf, one in sorted(all_of.items()):
        if not gpu_ids.is_gpu(one.vendor, one.class_code) or gpu_ids.holds_for_another(one.driver):
            continue
        if pcie.is_integrated(one, pcie.chain(all_of, bdf), all_of.values()):
            continue
        if reader.link(f"{pcie.DEVICES}/{bdf}/physfn").value is not None:
            continue
        own = tuple(sorted(nodes.get(bdf, ())))
        found.append(Card(bdf, one.device, one.driver, own, _lacks(reader, one, own)))
    return Reading(tuple(found), functions.source)


def _lacks(reader: Reader, one: pcie.Function, nodes: tuple[str, ...]) -> str:
    drivers = gpu_ids.DRIVERS[one.vendor]
    if not one.driver:
        return f"on the bus, not bound to a driver (wanted {' or '.join(drivers)})"
    if one.driver not in drivers:
        return f"bound to {one.driver}, wanted {' or '.join(drivers)}"
    if one.vendor == gpu_ids.NVIDIA:
        return ""  # its driver makes nodes of its own when it is opened
    if not any(name.startswith("renderD") for name in nodes):
        return f"bound to {one.driver}, but it has no render node"
    for name in nodes:
        if reader.stat(f"/dev/dri/{name}").value is None:
            return f"/dev/dri/{name} is not there yet"
        if not _is_initialised(reader, name):
            return f"udev has not done its work on {name} yet"
    return ""


def _is_initialised(reader: Reader, name: str) -> bool:
    """Has udev done its work on a node? sd_device_get_is_initialized(3): its database then has an entry.

    Where udev does not run (a container, a directory) nothing has to be waited for.
    """
    if reader.stat(UDEV_CONTROL).value is None:
        return True
    number = reader.line(f"/sys/class/drm/{name}/dev")
    return number.value is None or reader.data(f"{UDEV_DATA}/c{number.value}").unread != "absent"


def missing(cards: Iterable[Card], wanted: Expected) -> dict[str, str]:
    """What is expected and not there, or there and not usable: subject -> what it lacks.

    >>> missing([Card("0000:23:00.0", "e223", "xe", ("renderD128",), "")], Expected(("0000:23:00.0",), 2))
    {'cards': '1 of 2 on the bus (0000:23:00.0)'}
    """
    there = {card.bdf: card for card in cards}
    found = {bdf: "not on the bus, or held for a virtual machine" for bdf in wanted.bdfs if bdf not in there}
    counted = [card for card in there.values() if not wanted.ids or card.device in wanted.ids]
    for one in wanted.ids:
        if not any(card.device == one for card in counted):
            found[f"id {one}"] = "no card with this id on the bus"
    if len(counted) + len(found) < wanted.count:
        names = f" ({', '.join(card.bdf for card in counted)})" if counted else ""
        found["cards"] = f"{len(counted)} of {wanted.count} on the bus{names}"
    # Where addresses are declared, what else is there is not waited for.
    for card in there.values() if not wanted.bdfs else (there[bdf] for bdf in wanted.bdfs if bdf in there):
        if card.lacks and (not wanted.ids or card.device in wanted.ids or card.bdf in wanted.bdfs):
            found[card.bdf] = card.lacks
    return found


def _is_quiet(reader: Reader) -> bool:
    """Has udev nothing to do? Its queue file is there as long as it has (udevadm settle waits for the same)."""
    return reader.stat(UDEV_QUEUE).value is None


def wait(
    reader: Reader,
    wanted: Expected,
    timeout: float,
    settle: float,
    interval: float = 1.0,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> Reading[Waited]:
    """Wait until nothing is missing, and nothing has changed for `settle` seconds; at most `timeout` seconds.

    interval: seconds between two looks where there are no events. Unread when the bus cannot be listed.
    """
    begun = clock()
    pause, by, again = _waiter(reader, interval, sleep)
    before: Any = None
    since = begun
    while True:
        now = look(reader)
        if now.value is None:
            return now.then(lambda _: Waited())
        lacking = missing(now.value, wanted)
        is_quiet = _is_quiet(reader)
        if now.value != before or lacking or not is_quiet:
            before, since = now.value, clock()
        passed, still = clock() - begun, clock() - since
        if not lacking and is_quiet and still >= settle:
            return Reading(Waited(now.value, {}, {}, by, passed), now.source)
        if passed >= timeout:
            if not lacking:
                lacking = {"udev": f"something still changed {still:.1f} s ago, wanted {settle:g} s of quiet"}
            return Reading(Waited(now.value, lacking, _log_of(reader, lacking), by, passed), now.source)
        left = timeout - passed
        pause(min(left, again, settle - still if not lacking and is_quiet else again))


def _waiter(
    reader: Reader, interval: float, sleep: Callable[[float], None]
) -> tuple[Callable[[float], object], str, float]:
    """A function that waits for a change or so many seconds, what it goes by, and how long at most."""
    if reader.stat(UDEV_CONTROL).value is None:
        return sleep, f"a listing of sysfs every {interval:g} s: udev does not run here", interval
    events = reader.watch(SUBSYSTEMS)
    if events.value is None:
        return sleep, f"a listing of sysfs every {interval:g} s: no events, {events.detail}", interval
    return events.value, f"device events (pyudev), and a listing every {AGAIN:g} s", AGAIN


def _log_of(reader: Reader, lacking: Iterable[str]) -> dict[str, tuple[str, ...]]:
    names = [name for name in lacking if re.fullmatch(BDF, name)]
    said = said_of(reader, names)
    if said.value is None:
        return dict.fromkeys(names, (f"the kernel log could not be read: {said.unread}: {said.detail}",))
    return {name: said.value[name] or ("the kernel log has no line of it on this boot",) for name in names}


def message(waited: Waited) -> str:
    """The failure for a person: each missing card, and what the kernel says of it."""
    lines = [f"not all cards are there after {waited.seconds:.0f} s ({waited.by}):"]
    for name, lacks in sorted(waited.missing.items()):
        lines.append(f"{name}: {lacks}")
        lines += [f"    {line}" for line in waited.log.get(name, ())]
    return "\n".join(lines)
