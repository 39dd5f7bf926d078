"""Do the interfaces exist that collective libraries are told to take, or would take by themselves?"""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

from ..expectations import CollectiveEnv, Expectation
from ..findings import HOST, Finding, Status, Subject, check, unknown
from ..onhost.gather import Facts
from ..onhost.reader import Reading
from ..onhost.readings.containers import Process
from ..onhost.readings.environment import PINS
from ..onhost.readings.network import BINDS, COLLECTIVE, NET, Interface, meant
from ..onhost.redact import is_stand_in
from ..onhost.settings.collective_env import BOTH, checked
from .container import label
from .presence import gpu_here, holding, not_applicable

APPLY = "ansible-playbook playbooks/apply.yml --tags collective_env"
DECLARED = "declared in settings.collective_env"
KVS = "CCL_KVS_IFACE"
SHOWN = 8  # interfaces named in a text


class Named(NamedTuple):
    """A variable that names an interface, and the place that sets it."""

    variable: str
    value: str
    where: str

    def __str__(self) -> str:
        return f"{self.variable}={self.value} ({self.where})"


@dataclass
class Place:
    """One network: of the host, or of a container. carriers: by name; empty where only names are known.

    hidden: the variables of a process in it that could not be read, or None. declared: name of the declared interface,
    now and from the next boot on; None where none is declared or found.
    """

    label: str
    names: tuple[str, ...]
    carriers: dict[str, Reading[bool]] = field(default_factory=dict)
    pins: list[Named] = field(default_factory=list)
    source: str = ""
    hidden: Reading[dict[str, str]] | None = None
    declared: tuple[str, str] | None = None


def taken(variable: str, value: str, names: Iterable[str]) -> tuple[list[str], list[str]]:
    """The interfaces that a value stands for by the rule of its variable, and the parts that stand for none.

    >>> taken("CCL_KVS_IFACE", "enp5s0", ["enp5s0f0", "lo"]), taken("FI_TCP_IFACE", "enp5s0", ["enp5s0f0", "lo"])
    ((['enp5s0f0'], []), ([], ['enp5s0']))
    """
    rule = PINS.get(variable, "exact")
    there = list(names)
    if rule == "part":
        found = [value] if value in there else [name for name in there if value in name]
        return found, [] if found else [value]
    if rule == "prefix":
        found = [name for name in there if name.startswith(value)]
        return found, [] if found else [value]
    if rule == "nccl":
        if value.startswith("^"):
            return [], []  # interfaces that are not to be taken
        exact, words = value.startswith("="), [word for word in value.lstrip("=").split(",") if word]
        found = [name for name in there if any(name == one if exact else name.startswith(one) for one in words)]
        return found, [] if found else words
    words = [word for word in value.split(",") if word] if rule == "each" else [value]
    return [word for word in words if word in there], [word for word in words if word not in there]


def listed(names: Iterable[str]) -> str:
    all_of = list(names)
    more = f" and {len(all_of) - SHOWN} more" if len(all_of) > SHOWN else ""
    return f"{', '.join(all_of[:SHOWN])}{more}" if all_of else "none"


def _open(value: str) -> bool:
    """Is the value filled in only when the job starts, as ``${IFACE}`` or ``%i``?"""
    return "$" in value or "%" in value


def _process(process: Process) -> str:
    return f"{process.comm or 'process'}[{process.pid}]"


def places(facts: Facts, expectation: Expectation) -> tuple[Place, list[Place], list[Finding]]:
    """The network of the host, those of containers that hold cards, and findings for what could not be read of them."""
    interfaces = facts.network.interfaces
    host = Place(
        "host",
        tuple(one.name for one in sorted(interfaces.value or (), key=lambda one: (one.index, one.name))),
        {one.name: one.carrier for one in interfaces.value or ()},
        source=interfaces.source,
    )
    host.pins += [
        Named(pin.variable, pin.value, pin.where) for pin in facts.network.pins.value or () if pin.acts == "host"
    ]
    wanted = expectation.settings.collective_env
    host.pins += [Named(name, str(value), DECLARED) for name, value in wanted.variables.items() if name in PINS]
    others: dict[str, Place] = {}
    unread = list(declare(host, interfaces, wanted))
    for process in facts.containers.processes.value or ():
        own = process.own_network.value
        if own is None and process.interfaces.value is not None:
            own = set(process.interfaces.value) != set(host.names)
        if own and process.interfaces.value is None:
            unread.append(unknown("net.iface", process.interfaces, Subject("process", _process(process))))
            continue
        if process.variables.value is None and not own:
            unread.append(unknown("net.iface", process.variables, Subject("process", _process(process))))
        place = host
        if own:
            name = label(facts.containers, process.container) if process.container else _process(process)
            key = process.namespace.value or name
            place = others.setdefault(
                key, Place(name, process.interfaces.value or (), source=process.interfaces.source)
            )
        if process.variables.value is None:
            place.hidden = process.variables
        for variable, value in (process.variables.value or {}).items():
            if variable in PINS and value:
                place.pins.append(Named(variable, value, _process(process)))
    return host, list(others.values()), unread


def declare(host: Place, interfaces: Reading[tuple[Interface, ...]], wanted: CollectiveEnv) -> Iterator[Finding]:
    """Give the host the declared interface as a pin; a finding where it stands for none that could be used.

    It is looked for as the role collective_env does, so that the audit and the role cannot disagree.
    """
    if wanted.interface is None:
        return
    way, given = wanted.interface.named
    what = checked(way, given)
    subject = Subject("interface", what)
    if way == "name" or interfaces.value is None:
        host.pins.append(Named("interface" if way == "name" else f"interface by {way}", what, DECLARED))
    if interfaces.value is None:
        return
    said = meant(interfaces.value, way, what)
    if said.interface is not None:
        host.declared = (said.interface.name, wanted.link_name or said.interface.name)
        if way != "name":
            host.pins.append(Named(f"interface by {way} {what}", said.interface.name, DECLARED))
    elif way == "name":
        return  # judged as any other name
    elif said.unread is not None:
        yield unknown("net.iface", said.unread, subject)
    elif _taken_out(way, what, interfaces.value):
        hidden: Reading[object] = Reading.no("absent", f"every {way} was taken out of this recording", NET)
        yield unknown("net.iface", hidden, subject)
    else:
        yield Finding(
            "net.iface",
            subject,
            Status.fail,
            seen=f"{DECLARED}: {said.wrong}; there are {listed(host.names)}",
            wanted="one interface that has it and has a carrier",
            source=host.source,
            next_step="ip -br address; ip -br link  # then put right settings.collective_env.interface",
        )


def _taken_out(way: str, what: str, interfaces: Iterable[Interface]) -> bool:
    """Does this recording have stand-ins for all that a declaration could match (see `redact`)?"""
    if way == "mac":
        there = [one.mac.value for one in interfaces if one.mac.value and one.name != "lo"]
        return bool(there) and not is_stand_in(what) and all(is_stand_in(mac) for mac in there)
    there = [text for one in interfaces for text in one.addresses.value or () if one.name != "lo"]
    return bool(there) and not is_stand_in(what.partition("/")[0]) and all(is_stand_in(text) for text in there)


def drifted(place: Place, pin: Named) -> str:
    """What is wrong with a line of the role's own file beside the declared interface, "" when nothing is."""
    if place.declared is None or pin.variable not in BOTH or pin.where.rpartition(":")[0] != COLLECTIVE:
        return ""
    now, wanted = place.declared
    return "" if pin.value in (now, wanted) else f"the declared interface is {now}"


def problem(place: Place, pin: Named) -> tuple[str, Reading[bool] | None]:
    """What is wrong with a pin where it acts, "" when nothing is; or a carrier that could not be read."""
    found, missing = taken(pin.variable, pin.value, place.names)
    if missing:
        return f"there is no {', '.join(missing)}", None
    known = [place.carriers[name] for name in found if name in place.carriers]
    dead = [name for name in found if name in place.carriers and place.carriers[name].value is False]
    if dead and len(dead) == len(found):
        return f"{', '.join(dead)} has no carrier", None
    if away := drifted(place, pin):
        return away, None
    unread = [one for one in known if one.value is None]
    return "", unread[0] if unread and len(unread) == len(found) else None


def _next(facts: Facts, place: Place, pins: list[Named]) -> str:
    routes = [name for name in facts.network.default_route.value or () if name in place.names]
    alive = [name for name, carrier in place.carriers.items() if carrier.value and name != "lo"]
    better = place.declared[0] if place.declared else next(iter((*routes, *alive)), "lo")
    pin = pins[0]
    file = pin.where.rpartition(":")[0]
    if file.startswith("/") and file != COLLECTIVE:
        return f"sudoedit {shlex.quote(file)}  # {'needs' if pin.variable == BINDS else f'{pin.variable}='}{better}"
    return (
        APPLY if place.declared else f"{APPLY}  # settings.collective_env.interface: name: {better}, or the mac of one"
    )


def _judged(facts: Facts, place: Place) -> Iterator[Finding]:
    """One finding for each name that is set on the host, with all the places that set it."""
    by_value: dict[str, list[Named]] = {}
    for pin in place.pins:
        by_value.setdefault(pin.value, []).append(pin)
    for value, pins in by_value.items():
        subject = Subject("interface", value)
        if _open(value):
            said = f"{pins[0]}: filled in when the job starts"
            yield Finding("net.iface", subject, Status.ok, seen=said, source=place.source)
            continue
        wrong = [(pin, said) for pin in pins if (said := problem(place, pin)[0])]
        unread = next((one for pin in pins if (one := problem(place, pin)[1]) is not None), None)
        if wrong:
            yield Finding(
                "net.iface",
                subject,
                Status.fail,
                seen=f"{', '.join(str(pin) for pin, _ in wrong)}: {wrong[0][1]}; there are {listed(place.names)}",
                wanted=f"{place.declared[1]}, as declared"
                if place.declared and drifted(place, wrong[0][0])
                else "an interface that exists and has a carrier",
                source=place.source,
                next_step=_next(facts, place, [pin for pin, _ in wrong]),
            )
        elif unread is not None:
            yield unknown("net.iface", unread, subject)
        else:
            yield Finding("net.iface", subject, Status.ok, seen=str(pins[0]), source=place.source)


def _inside(place: Place, many: int) -> Finding:
    """The one finding of a container's network."""
    subject = Subject("container", place.label)
    wrong = [(pin, said) for pin in place.pins if not _open(pin.value) and (said := problem(place, pin)[0])]
    usable = [name for name in place.names if "lo" not in name]
    if wrong:
        better = usable[0] if usable else "lo"
        variables = " ".join(dict.fromkeys(f"-e {pin.variable}={better}" for pin, _ in wrong))
        return Finding(
            "net.iface",
            subject,
            Status.fail,
            seen=f"inside, {', '.join(str(pin) for pin, _ in wrong)}: {wrong[0][1]}; there are {listed(place.names)}",
            wanted="an interface that exists where the job runs",
            source=place.source,
            next_step=f"start the container with {variables}",
        )
    if any(pin.variable == KVS for pin in place.pins):
        return Finding("net.iface", subject, Status.ok, seen=", ".join(map(str, place.pins)), source=place.source)
    if place.hidden is not None:
        return unknown("net.iface", place.hidden, subject)
    return automatic(place, subject, many, f"start the container with -e {KVS}=lo, or give it a network")


def automatic(place: Place, subject: Subject, many: int, next_step: str) -> Finding:
    """What oneCCL takes by itself: the first interface without ``lo`` in its name (``wlo1`` and ``enslo0`` have it)."""
    usable = [name for name in place.names if "lo" not in name]
    if not usable:
        passed = [name for name in place.names if name != "lo"]
        which = f"only lo, and {listed(passed)} has lo in its name" if passed else "only lo" if place.names else "none"
        return Finding(
            "net.iface",
            subject,
            Status.fail,
            seen=f"no usable interface for oneCCL: {which}; {KVS} is not set",
            wanted=f"{KVS}=lo on one host, or a network",
            source=place.source,
            next_step=next_step,
        )
    if len(usable) >= many:
        return Finding(
            "net.iface",
            subject,
            Status.warn,
            seen=f"{len(usable)} interfaces and {KVS} is not set: the automatic choice is ambiguous; name one",
            wanted=f"{KVS} set, to lo on one host",
            source=place.source,
            next_step=next_step,
        )
    if all(name in place.carriers and place.carriers[name].value is False for name in usable):
        return Finding(
            "net.iface",
            subject,
            Status.warn,
            seen=f"{KVS} is not set, and none of {listed(usable)} has a carrier",
            wanted=f"{KVS} set, to lo on one host",
            source=place.source,
            next_step=next_step,
        )
    seen = f"{KVS} is not set; to choose from: {listed(usable)}"
    return Finding("net.iface", subject, Status.ok, seen=seen, source=place.source)


@check("net.iface", title="Interfaces that collective libraries take exist where the jobs run")
def iface(facts: Facts, expectation: Expectation, previous: Facts | None = None) -> Iterator[Finding]:
    """`net.iface`

    Why: names of interfaces change with a new card (systemd#33347), and a pin to the old one ends every start. A pin is
    judged where it acts: a look at the host is green while the container has eth1. With nothing set oneCCL takes the
    first interface whose name has no ``lo`` in it; with none (oneCCL#157) it fails, with some twenty (oneCCL#209) it
    hung. CCL_KVS_IFACE is compared as a part of the name. A declared interface is looked for by its name, MAC, address
    or subnet as the role does; where the role's file names another one by now, jobs take another one or none.
    """
    network = facts.network
    host, others, unread = places(facts, expectation)
    yield from unread
    if network.interfaces.value is not None:
        yield from _judged(facts, host)
    if facts.containers.processes.value is None:
        yield unknown("net.iface", facts.containers.processes, Subject("process", "holders of cards"))
    for place in others:
        yield _inside(place, expectation.network.many_interfaces)
    inside = {(pin.variable, pin.value) for place in others for pin in place.pins}
    for pin in network.pins.value or ():
        if pin.acts == "container" and (pin.variable, pin.value) not in inside:
            seen = f"{pin.variable}={pin.value} ({pin.where}) acts in a container, judged while that holds a card"
            yield Finding("net.iface", Subject("unit", pin.unit), Status.info, seen=seen, source=pin.where)
    pinned = [pin for pin in host.pins if pin.where != DECLARED]
    if network.interfaces.value is None and host.pins:
        yield unknown("net.iface", network.interfaces)
        return
    if any(pin.variable == KVS for pin in pinned) or host.hidden is not None:
        return
    gpus, refused = facts.pcie.gpus, network.pins_unread
    if gpus.value is None and not expectation.gpus.expected:
        yield unknown("net.iface", gpus)
    elif not gpu_here(facts, expectation):
        seen = "no GPU is here or expected, and nothing names an interface"
        if not pinned:
            yield not_applicable("net.iface", seen, network.pins.source)
    elif network.interfaces.value is None:
        yield unknown("net.iface", network.interfaces)
    elif network.pins.value is None or refused.value is None:
        yield unknown("net.iface", refused if refused.value is None else network.pins)
    elif refused.value:
        hidden: Reading[object] = Reading.no(
            "permission", f"a pin may stand in {listed(refused.value)}", refused.value[0]
        )
        yield unknown("net.iface", hidden)
    elif (held := holding(facts)).value is None and not others:  # it may be a container that holds the cards
        yield unknown("net.iface", held)
    elif others and not any(pin.where.endswith("]") for pin in pinned):
        yield not_applicable("net.iface", "the cards are in use in networks of containers", host.source)
    else:
        lo = f"{APPLY}  # settings.collective_env.interface: name: lo"
        yield automatic(host, HOST, expectation.network.many_interfaces, lo)
