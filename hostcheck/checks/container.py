"""Do the containers that hold the cards have memory limits under which a start does not swap?"""

from __future__ import annotations

import shlex
from collections.abc import Iterator

from ..expectations import Expectation
from ..findings import Finding, Status, Subject, check, need, unknown
from ..onhost.gather import Facts
from ..onhost.readings.containers import UNLIMITED, Containers, Limits
from .presence import holding, not_applicable

MIB = 1 << 20
APPLY = "ansible-playbook playbooks/apply.yml --tags container_memory"


def label(containers: Containers, id: str) -> str:
    """Name of a container for a person, else the beginning of its id."""
    found = next((one for one in containers.containers.value or () if one.id == id), None)
    return (found.name.value if found is not None else None) or id[:12]


def subject(facts: Facts, limits: Limits) -> Subject:
    if limits.container:
        return Subject("container", label(facts.containers, limits.container))
    return Subject("cgroup", limits.cgroup or "unknown")


def declared(facts: Facts, expectation: Expectation, limits: Limits) -> int | None:
    """MiB that `settings.container_memory` wants for a container or the unit around it, None when it names neither."""
    wished = expectation.settings.container_memory
    if limits.container:
        return wished.containers.get(label(facts.containers, limits.container))
    return next((wished.units[name] for name in limits.cgroup.split("/") if name in wished.units), None)


def _amount(value: int) -> str:
    return "no limit" if value == UNLIMITED else f"{value / MIB:,.0f} MiB"


def _nobody(id: str, facts: Facts) -> Finding | None:
    """The finding where nobody holds a card, or where that could not be read."""
    held = holding(facts)
    if held.value is None:
        return unknown(id, held)
    return None if held.value else not_applicable(id, "nobody holds a card", held.source)


@check("container.swap", title="Containers that hold cards do not swap")
def swap(facts: Facts, expectation: Expectation, previous: Facts | None = None) -> Iterator[Finding]:
    """`container.swap`

    Why: copies to a card failed in the lab while the container swapped, whatever vm.swappiness said: its own limit
    decides. No swap is a mitigation, uploads in pieces are the cure (lab-host-facts 0.4, 0.10, 2.4). Where limits are
    declared (`settings.container_memory`) the container or unit has to have them.
    """
    nobody = _nobody("container.swap", facts)
    if nobody is not None:
        yield nobody
        return
    for one in need(facts.containers.limits):
        if not one.cgroup:
            yield unknown("container.swap", one.swap_max, subject(facts, one))
    inside = [
        one for one in need(facts.containers.limits) if one.container or declared(facts, expectation, one) is not None
    ]
    if not inside and all(one.cgroup for one in need(facts.containers.limits)):
        yield not_applicable("container.swap", "no container holds a card", facts.containers.limits.source)
    without = facts.memory.swap_total.value == 0
    for limits in inside:
        who = subject(facts, limits)
        most, peak = limits.swap_max, limits.swap_peak
        wished = declared(facts, expectation, limits)
        found = _as_declared(who, limits, wished) if wished is not None else None
        if found is not None and (found.status is not Status.ok or not peak.value):
            yield found
        elif peak.value:
            full = (limits.events.value or {}).get("max", 0)
            hits = f", its memory limit was reached {full} times" if full else ""
            yield Finding(
                "container.swap",
                who,
                Status.warn,
                seen=f"{_amount(peak.value)} were swapped out{hits}",
                wanted="0",
                source=peak.source,
                next_step=_no_swap(facts, limits),
            )
        elif most.value is None:
            yield unknown("container.swap", most, who)
        elif most.value == 0:
            yield Finding("container.swap", who, Status.ok, seen="may not swap", source=most.source)
        elif without:
            yield Finding(
                "container.swap",
                who,
                Status.info,
                seen=f"may swap ({_amount(most.value)}), and the host has no swap",
                wanted="memory.swap.max 0",
                source=most.source,
            )
        else:
            yield Finding(
                "container.swap",
                who,
                Status.warn,
                seen=f"may swap: {_amount(most.value)}",
                wanted="memory.swap.max 0",
                source=most.source,
                next_step=_no_swap(facts, limits),
            )


def _as_declared(who: Subject, limits: Limits, mib: int) -> Finding:
    """Has it the limits that are declared? mib: 0 says nothing of its memory."""
    memory, swap = limits.memory_max, limits.swap_max
    for reading in (swap, memory):
        if reading.value is None:
            return unknown("container.swap", reading, who)
    limit = _amount(memory.value or 0)
    same = swap.value == 0 and (mib == 0 or memory.value == mib * MIB)
    return Finding(
        "container.swap",
        who,
        Status.ok if same else Status.fail,
        seen=f"memory {limit}, swap {_amount(swap.value or 0)}",
        wanted=f"memory {_amount(mib * MIB) if mib else limit}, swap 0 MiB",
        source=swap.source,
        next_step="" if same else APPLY,
    )


def _no_swap(facts: Facts, limits: Limits) -> str:
    """How the next start of this container goes without swap."""
    found = next((one for one in facts.containers.containers.value or () if one.id == limits.container), None)
    if found is not None and found.engine in ("docker", "podman") and (limits.memory_max.value or 0) > 0:
        size = (limits.memory_max.value or 0) // MIB
        name = shlex.quote(found.name.value or found.id[:12])
        return (
            f"{found.engine} update --memory {size}m --memory-swap {size}m {name}  # and the same where it is started"
        )
    return "start the container with --memory and --memory-swap of the same size"


@check("container.oom", title="Nothing was killed for memory beside the jobs on the cards")
def oom(facts: Facts, expectation: Expectation, previous: Facts | None = None) -> Iterator[Finding]:
    """`container.oom`

    Why: the kernel kills one process of a container and leaves the rest, which then looks like a hung card; the counter
    of the cgroup stays (lab-host-facts 2.4: oom_kill 0 is healthy).
    """
    nobody = _nobody("container.oom", facts)
    if nobody is not None:
        yield nobody
        return
    for limits in need(facts.containers.limits):
        who = subject(facts, limits)
        events = limits.events
        if events.value is None:
            yield unknown("container.oom", events, who)
            continue
        kills = events.value.get("oom_kill", 0)
        yield Finding(
            "container.oom",
            who,
            Status.warn if kills else Status.ok,
            seen=f"{kills} killed, limit {_amount(limits.memory_max.value)}"
            if kills and limits.memory_max.value is not None
            else f"{kills} killed",
            wanted="0",
            source=events.source,
            next_step="journalctl -k -b 0 --no-pager | grep -i 'killed process'" if kills else "",
        )
