"""Is there memory for a start, and does what the host says of its memory hold no fault?"""

from __future__ import annotations

from collections.abc import Iterator

from ..expectations import Expectation
from ..findings import HOST, Finding, Status, Subject, check, need, unknown
from ..onhost.gather import Facts
from ..onhost.reader import Reading
from ..onhost.readings.kernel_log import Event
from ..onhost.readings.memory import LARGE_KIB, Pressure, enough_kib
from . import log
from .gpu import is_virtual
from .presence import holding, no_card, not_applicable, not_before_start

FENCE = "ansible-playbook playbooks/apply.yml --tags memory_fence"
USERS = "ps -eo pid,comm,rss --sort=-rss | head"


def gib(kib: int) -> str:
    """KiB for a person.

    >>> gib(15943924)
    '15.2 GiB'
    """
    return f"{kib / (1 << 20):.1f} GiB"


def wanted_available(expectation: Expectation, total_kib: int) -> int:
    """KiB that should be available before a start."""
    declared = expectation.memory.available_mib
    return declared << 10 if declared is not None else enough_kib(total_kib)


@check("mem.available", title="Enough memory is available for a start")
def available(facts: Facts, expectation: Expectation, previous: Facts | None = None) -> Iterator[Finding]:
    """`mem.available`

    Why: a start takes most of the memory of a small host for a while. The lab starts nothing with less than 9,216 MiB
    on 15 GiB, or 12,000,000 KiB on 128 GB (lab-host-facts 4.2); judged only while nobody holds a card.
    """
    other = not_before_start("mem.available", facts, expectation)
    if other is not None:
        yield other
        return
    memory = facts.memory
    total, found = need(memory.total), need(memory.available)
    wanted = wanted_available(expectation, total)
    low = found < wanted
    yield Finding(
        "mem.available",
        HOST,
        Status.warn if low else Status.ok,
        seen=f"{gib(found)} of {gib(total)} available",
        wanted=f"at least {wanted >> 10} MiB before a start",
        source=memory.available.source,
        next_step=USERS if low else "",
    )


@check("mem.swap_total", title="A large host has no swap before a start")
def swap(facts: Facts, expectation: Expectation, previous: Facts | None = None) -> Iterator[Finding]:
    """`mem.swap_total`

    Why: copies to a card failed while pages of the same process were swapped; the lab runs its large host without swap
    and its small one with it (lab-host-facts 1.3, 4.2). What a container may swap is `container.swap`.
    """
    other = not_before_start("mem.swap_total", facts, expectation)
    if other is not None:
        yield other
        return
    memory = facts.memory
    total, found = need(memory.total), need(memory.swap_total)
    allowed = expectation.memory.swap if expectation.memory.swap is not None else total < LARGE_KIB
    names = [area.name for area in memory.swaps.value or ()]
    seen = f"{gib(found)} swap" + (f": {', '.join(names)}" if names else "") if found else "no swap"
    if found and not allowed:
        yield Finding(
            "mem.swap_total",
            HOST,
            Status.warn,
            seen=seen,
            wanted="none on a host of this size",
            source=memory.swap_total.source,
            next_step="sudo swapoff -a  # and take it out of /etc/fstab, or declare memory.swap: true",
        )
    else:
        yield Finding("mem.swap_total", HOST, Status.ok, seen=seen, source=memory.swap_total.source)


@check("mem.psi", title="Nothing waits for memory or disks before a start")
def pressure(facts: Facts, expectation: Expectation, previous: Facts | None = None) -> Iterator[Finding]:
    """`mem.psi`

    Why: a worker that started under pressure (full avg10 of 5.97, then 11.41) was killed in the lab (lab-host-facts
    1.3); its gate is 10. Kernels can be built or booted without this information.
    """
    other = not_before_start("mem.psi", facts, expectation)
    if other is not None:
        yield other
        return
    limit = expectation.memory.pressure
    read = {"memory": facts.memory.memory_pressure, "disks": facts.memory.io_pressure}
    judged: dict[str, Pressure] = {}
    for what, reading in read.items():
        if reading.value is not None:
            judged[what] = reading.value
        elif not _without(reading):
            yield unknown("mem.psi", reading, Subject("pressure", what))
    high = {what: one for what, one in judged.items() if one.full_avg10 > limit}
    if high:
        said = [f"{what}: {one.full_avg10:g} % of 10 s, {one.full_avg60:g} % of 60 s" for what, one in high.items()]
        yield Finding(
            "mem.psi",
            HOST,
            Status.warn,
            seen=f"everybody waited for {'; '.join(said)}",
            wanted=f"at most {limit:g} % before a start",
            source=read[next(iter(high))].source,
            next_step="wait, then read again: cat /proc/pressure/memory /proc/pressure/io",
        )
    elif judged:
        said = [f"{what} {one.full_avg10:g} %" for what, one in judged.items()]
        yield Finding("mem.psi", HOST, Status.ok, seen=", ".join(said), source=read[next(iter(judged))].source)
    elif all(_without(reading) for reading in read.values()):
        yield not_applicable("mem.psi", "this kernel keeps no pressure information", read["memory"].source)


def _without(reading: Reading[Pressure]) -> bool:
    """Is there no such information? With ``psi=0`` the files are there and reading them gives EOPNOTSUPP.

    Python calls that number by its other name, ENOTSUP.
    """
    return reading.unread == "absent" or reading.detail.startswith(("EOPNOTSUPP", "ENOTSUP"))


@check("mem.oom", title="Nothing was killed because the host ran out of memory")
def oom(facts: Facts, expectation: Expectation, previous: Facts | None = None) -> Iterator[Finding]:
    """`mem.oom`

    Why: the kernel kills one process of a job and leaves the rest, which then looks like a card that hangs, and an
    out-of-memory guard does not see what drivers hold (lab-host-facts 2.4, `mem.driver_held`). Two witnesses: the log,
    and the kernel's own count, which no wrapped or refused log hides. A process that was killed at the limit of its
    container is told, not judged: `container.oom` does that for containers that hold cards.
    """
    counted, said = facts.memory.oom_kills, facts.kernel_log.events
    found = [event for event in said.value or () if event.kind in ("oom", "oom.cgroup") and not event.previous_boot]
    of_host = [event for event in found if event.kind == "oom"]
    names = ", ".join(dict.fromkeys(word for event in found for word in _killed(event)))
    logged = sum(event.count for event in found)
    more = (counted.value or 0) - logged
    step = "journalctl -k -b 0 --no-pager | grep -iE 'out of memory|oom-kill'"
    if of_host:
        text = f"the host ran out of memory and killed {names}; {log.span(of_host)}"
        yield Finding("mem.oom", HOST, Status.warn, text, "nothing killed", said.source, step)
    elif more > 0:
        known = f", of which the log names {logged} ({names})" if logged else ", which the log does not name"
        text = f"{counted.value} killed for memory since the boot{known}"
        yield Finding("mem.oom", HOST, Status.warn, text, "nothing killed", counted.source, step)
    elif found:
        text = f"{names} killed at the limit of a container; {log.span(found)}"
        yield Finding("mem.oom", HOST, Status.info, text, source=said.source)
    elif counted.value is not None:
        yield Finding("mem.oom", HOST, Status.ok, "nothing killed since the boot", source=counted.source)
    else:
        yield log.silence(facts, "mem.oom", "no such line on this boot")


def _killed(event: Event) -> list[str]:
    return [name for name in event.details.get("process", "").split(", ") if name] or ["a process"]


@check("mem.driver_held", title="Drivers do not hold most of the memory")
def driver_held(facts: Facts, expectation: Expectation, previous: Facts | None = None) -> Iterator[Finding]:
    """`mem.driver_held`

    Why: what a driver keeps for a card belongs to no process, so neither top nor an out-of-memory guard sees it: about
    4 GiB idle, 92 to 104 GiB before a host of 128 GB failed (lab-host-facts 2.4). Shared memory and huge pages, which
    are asked for by name, are not counted.
    """
    without = no_card("mem.driver_held", facts, expectation)
    if without is not None:
        yield without
        return
    memory = facts.memory
    total = need(memory.total)
    held = max(0, need(memory.driver_held) - (memory.shared.value or 0) - (memory.huge.value or 0))
    counted = f"; the kernel counts {gib(memory.gpu_active.value)} for GPUs" if memory.gpu_active.value else ""
    much = held > expectation.memory.driver_held * total
    yield Finding(
        "mem.driver_held",
        HOST,
        Status.warn if much else Status.ok,
        seen=f"{gib(held)} of {gib(total)} belong to no process{counted}",
        wanted=f"at most {gib(int(expectation.memory.driver_held * total))}",
        source=memory.driver_held.source,
        next_step="grep -E 'GPUActive|Slab|Unreclaim|Shmem|Huge' /proc/meminfo  # then stop the jobs on the cards"
        if much
        else "",
    )


@check("mem.oom_policy", title="Nothing kills jobs on the cards before the kernel has to")
def oom_policy(facts: Facts, expectation: Expectation, previous: Facts | None = None) -> Iterator[Finding]:
    """`mem.oom_policy`

    Why: systemd-oomd kills a whole cgroup by its pressure or use of swap, also the session that runs a job's units: in
    the lab a job of 27 GB under a limit of 4 GB brought down the desktop and the user's manager with it. Such a guard
    does not see what drivers hold, so it comes too late or for the wrong one (lab-host-facts 2.4). Told while cards are
    held; whether it watches a cgroup is up to its units.
    """
    held = holding(facts)
    if held.value is None:
        yield unknown("mem.oom_policy", held)
        return
    if not held.value:
        yield not_applicable("mem.oom_policy", "nobody holds a card", held.source)
        return
    guards = facts.memory.guards
    if guards.unread == "absent":
        yield not_applicable("mem.oom_policy", guards.detail, guards.source)
        return
    names = need(guards)
    if not names:
        yield Finding("mem.oom_policy", HOST, Status.ok, "no such service runs", source=guards.source)
        return
    sessions = [f"{one.comm}[{one.pid}]" for one in need(facts.holders.render) if "/user@" in one.cgroup]
    within = f"; below a user's manager, where it acts by default: {', '.join(dict.fromkeys(sessions))}"
    yield Finding(
        "mem.oom_policy",
        HOST,
        Status.info,
        seen=f"{' and '.join(names)} may kill what holds a card" + (within if sessions else ""),
        source=guards.source,
        next_step="oomctl  # which cgroups it watches" if "systemd-oomd" in names else f"systemctl cat {names[0]}",
    )


@check("mem.ecc", title="The memory reports no errors")
def ecc(facts: Facts, expectation: Expectation, previous: Facts | None = None) -> Iterator[Finding]:
    """`mem.ecc`

    Why: bad memory freezes hosts and changes results; a controller that reports nothing says nothing, so a host without
    one is never called good (lab-host-facts 1.4: one wrong byte, freezes while idle).
    """
    controllers = need(facts.memory.controllers)
    if not controllers:
        if is_virtual(facts):
            yield not_applicable(
                "mem.ecc", "a virtual machine sees no memory controller", facts.memory.controllers.source
            )
        else:
            word = facts.dimms.correction.value
            yield Finding(
                "mem.ecc",
                HOST,
                Status.info,
                seen="no memory controller reports errors: silence is no evidence"
                + (f"; the firmware says of error correction: {word}" if word else ""),
                source=facts.memory.controllers.source,
                next_step="" if word else "sudo dmidecode -t 16 | grep 'Error Correction'",
            )
        return
    for one in controllers:
        subject = Subject("memory", one.name)
        unread = next((reading for reading in (one.corrected, one.uncorrected) if reading.value is None), None)
        bad = bool(one.uncorrected.value)
        if unread is not None and not bad:
            yield unknown("mem.ecc", unread, subject)
        elif bad or one.corrected.value:
            count = "unread" if one.corrected.value is None else one.corrected.value
            yield Finding(
                "mem.ecc",
                subject,
                Status.fail if bad else Status.warn,
                seen=f"{one.uncorrected.value} uncorrected and {count} corrected errors since the boot",
                wanted="0",
                source=one.uncorrected.source if bad else one.corrected.source,
                next_step=f"grep . /sys/devices/system/edac/mc/{one.name}/*/dimm_label "
                f"/sys/devices/system/edac/mc/{one.name}/*/dimm_[cu]e_count  # which module",
            )
        else:
            yield Finding("mem.ecc", subject, Status.ok, seen="no errors since the boot", source=one.corrected.source)


@check("mem.dimm_mix", title="All modules of memory are of one kind")
def dimm_mix(facts: Facts, expectation: Expectation, previous: Facts | None = None) -> Iterator[Finding]:
    """`mem.dimm_mix`

    Why: on a lab's host whose memory changed results one module differed from the rest (lab-host-facts 2.4). That is a
    hint where to look first and no fault, so it is told, not judged. Read from the firmware's table, which is root's.
    """
    modules = facts.dimms.modules
    if is_virtual(facts):
        yield not_applicable("mem.dimm_mix", "modules of a virtual machine are made up", modules.source)
        return
    if modules.unread == "absent":
        yield not_applicable("mem.dimm_mix", "the firmware gives no table", modules.source)
        return
    found = need(modules)
    kinds: dict[str, list[str]] = {}
    for one in found:
        kind = " ".join(filter(None, (one.maker, one.part, f"{one.size >> 10} GiB" if one.size >> 10 else "")))
        kinds.setdefault(kind, []).append(one.locator)
    if len(found) < 2 or not all(one.part for one in found):
        seen = "the firmware does not name their kinds" if len(found) > 1 else f"{len(found)} module(s)"
        yield not_applicable("mem.dimm_mix", seen, modules.source)
        return
    told = [f"{len(where)} x {kind}" for kind, where in kinds.items()]
    if len(kinds) == 1:
        yield Finding("mem.dimm_mix", HOST, Status.ok, seen=told[0], source=modules.source)
        return
    rare = min(kinds, key=lambda kind: len(kinds[kind]))
    where = f" ({', '.join(filter(None, kinds[rare]))})" if len(kinds[rare]) < len(found) / 2 else ""
    told = [f"{text}{where}" if text.endswith(f" x {rare}") else text for text in told]
    yield Finding("mem.dimm_mix", HOST, Status.info, seen=" and ".join(told), source=modules.source)


@check("mem.blocks_offline", title="Memory that is to be off-line is, and no other")
def blocks(facts: Facts, expectation: Expectation, previous: Facts | None = None) -> Iterator[Finding]:
    """`mem.blocks_offline`

    Why: memory known to be bad is fenced off block by block, and every boot brings it back (lab-host-facts 2.4).
    """
    memory = facts.memory
    fenced = set(expectation.settings.memory_fence.blocks)
    declared = fenced | set(expectation.memory.offline_blocks)
    if memory.offline.unread == "absent" and not declared:
        yield not_applicable("mem.blocks_offline", "this kernel has no blocks of memory", memory.offline.source)
        return
    listed = need(memory.offline)
    offline = set(listed)
    size = memory.block_bytes.value
    back = sorted(declared - offline)
    more = sorted(offline - declared)
    if back:
        names = " ".join(f"memory{number}" for number in back)
        yield Finding(
            "mem.blocks_offline",
            HOST,
            Status.fail,
            seen=f"on-line: {names}",
            wanted="off-line, as declared",
            source=memory.offline.source,
            next_step=FENCE
            if fenced.issuperset(back)
            else f"for m in {names}; do echo offline | sudo tee /sys/devices/system/memory/$m/state; done",
        )
    elif more:
        amount = f", {gib(len(more) * size >> 10)}" if size else ""
        yield Finding(
            "mem.blocks_offline",
            HOST,
            Status.info,
            seen=f"off-line: {' '.join(f'memory{number}' for number in more)}{amount}, not declared",
            source=memory.offline.source,
        )
    else:
        seen = f"{len(offline)} off-line, as declared" if offline else "none off-line"
        yield Finding("mem.blocks_offline", HOST, Status.ok, seen=seen, source=memory.offline.source)
