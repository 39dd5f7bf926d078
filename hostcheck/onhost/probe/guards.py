"""What the facts of a host say about a measurement on it: which cards must not be opened, and what a receipt keeps of
the time before and after (`around`; the form is that of `receipt.guards_of`). Pure.

What could not be read has no key: the receipt then says that it was not checked.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any

from ..gather import Facts
from ..reader import Reading, shorten
from ..readings import gpu_ids, next_boot
from ..readings.kernel_log import Event, is_fault
from ..readings.pcie import ASLEEP, Gpu, Hop, path_bdfs
from ..ready.ladder import is_load_time_fault
from ..redact import REMOVED, SECRET, USERINFO

# What is read before a measurement, and around it; xpu-smi would itself open the cards.
BEFORE = ("identity", "lscpu", "cpufreq", "kernel_log", "pcie", "aspm", "holders", "throttle")
AROUND = ("identity", "cpufreq", "kernel_log", "pcie", "aspm", "holders", "throttle")
# Vendors whose cards torch may open, by device type.
VENDORS: Mapping[str, tuple[str, ...]] = {
    "xpu": (gpu_ids.INTEL,),
    "cuda": (gpu_ids.NVIDIA, gpu_ids.AMD),
    "auto": (gpu_ids.INTEL, gpu_ids.NVIDIA, gpu_ids.AMD),
    "cpu": (),
}
# Kinds of events -> driver, for lines that name no card.
FAMILIES = {"xe": "xe", "guc": "xe", "pcode": "xe", "i915": "i915", "amdgpu": "amdgpu", "nvrm": "nvidia"}


def in_reach(facts: Facts, device: str, only: Collection[str] = ()) -> tuple[Gpu, ...]:
    """Return every GPU that a worker opens when it lists the devices of a type, integrated ones and functions included.

    only: addresses of the cards whose nodes the command has; empty: all. A GPU that is held for a virtual machine is in
    nobody's reach.
    """
    return tuple(
        gpu
        for gpu in facts.pcie.gpus.value or ()
        if gpu.vendor in VENDORS[device]
        and not gpu_ids.holds_for_another(gpu.driver.value or "")
        and (not only or gpu.bdf in only)
    )


def is_card(gpu: Gpu) -> bool:
    """Is it a card of its own, and not part of the processor or a virtual function?"""
    return not (gpu.integrated or gpu.vf)


def fault_events(facts: Facts, gpus: Sequence[Gpu]) -> list[Event]:
    """Return the events of this boot that say that one of these cards, or the way to it, failed.

    A line that names no card counts for every card of its driver; a hard lockup takes the interrupts of all.
    """
    own, drivers = {gpu.bdf for gpu in gpus}, {gpu.driver.value for gpu in gpus}
    ways = {bdf for gpu in gpus for bdf in path_bdfs(gpu)}

    def counts(event: Event) -> bool:
        if event.previous_boot:
            return False
        if is_fault(event.kind):
            family = event.kind.partition(".")[0]
            return event.bdf in own or (not event.bdf and (family == "lockup" or FAMILIES.get(family) in drivers))
        failed = event.kind in ("aer.fatal", "slot.link_down") or event.recovered == "failed"
        return failed and event.bdf in ways

    return [event for event in facts.kernel_log.events.value or () if counts(event)]


def excused(facts: Facts, until: float) -> Facts:
    """Return the facts as if the one known fault of a load had not been, where it is all that happened on this boot.

    For the one retry after it, never for a figure. until: seconds since boot up to which it is excused; a newer fault,
    or one of another kind, leaves everything as it is.
    """
    log, pcie = facts.kernel_log, facts.pcie
    faults = [event for event in log.events.value or () if is_fault(event.kind) and not event.previous_boot]
    if not is_load_time_fault(faults) or not all(0.0 <= event.last <= until for event in faults):
        return facts
    card = faults[0].bdf

    def without(gpus: tuple[Gpu, ...]) -> tuple[Gpu, ...]:
        return tuple(
            replace(gpu, coredump=gpu.coredump.then(lambda _: False)) if gpu.bdf == card else gpu for gpu in gpus
        )

    return replace(
        facts,
        kernel_log=replace(
            log,
            events=log.events.then(lambda all_of: tuple(event for event in all_of if event not in faults)),
            faulted=log.faulted.then(lambda all_of: tuple(one for one in all_of if one != card)),
        ),
        pcie=replace(pcie, gpus=pcie.gpus.then(without)),
    )


def fault_line(event: Event) -> str:
    """Return an event as one line that changes when it happens again."""
    when = f", last at {event.last:.6f} s" if event.last >= 0 else ""
    said = shorten(event.samples[0], 160) if event.samples else ""
    return f"{event.kind} {event.bdf or 'no device named'} x{event.count + event.suppressed}{when}: {said}"


def problem(facts: Facts, gpu: Gpu, after: bool = False, measured: bool = True) -> str:
    """Return why a GPU must not be opened (before), or why nothing of it may be quoted (after); "" when it may.

    Of an integrated GPU neither sleep nor use counts: it is opened when devices are listed, and never measured. A card
    may fall asleep once it was measured. measured: will the card be measured, or only opened by a listing?
    """
    found = [event.kind for event in fault_events(facts, [gpu])]
    status = gpu.runtime_status
    if gpu.driver.value is None:
        return f"its driver is not known ({gpu.driver.unread}: {gpu.driver.detail})"
    if not gpu.driver.value:
        return "has no driver"
    if any(kind.endswith(".wedged") for kind in found):
        return "is wedged"
    if any(kind.endswith(".lost") for kind in found):
        return "left the bus on this boot"
    if found or gpu.bdf in (facts.kernel_log.faulted.value or ()):
        kinds = ", ".join(dict.fromkeys(found))
        return f"faulted on this boot ({kinds})" if kinds else "faulted on this boot"
    if gpu.coredump.value:
        return "has a devcoredump"
    if gpu.survivability.value:
        return "is in survivability mode"
    if status.value == "error":
        return "has the power state error"
    if after or not is_card(gpu):
        return ""
    if status.value in ASLEEP:
        return f"is {status.value}"
    if status.unread not in (None, "absent"):
        return f"may be asleep (runtime_status {status.unread}: {status.detail})"
    return "is in use" if measured and holders(facts, [gpu]) else ""


def holders(facts: Facts, gpus: Sequence[Gpu]) -> list[str]:
    """Return who holds nodes of these cards, or nodes of which the card is not known."""
    own = {gpu.bdf for gpu in gpus}
    return [
        f"{one.pid} ({one.comm or '?'}) holds {one.node} of {one.bdf or 'an unknown card'}"
        for one in facts.holders.render.value or ()
        if one.bdf in own or not one.bdf
    ]


def around(facts: Facts, gpus: Sequence[Gpu], load: Reading[str], after: bool = False) -> dict[str, Any]:
    """Return what a receipt keeps of one moment.

    gpus: the cards that are measured, () for the CPU. load: /proc/loadavg. Keys: see `receipt.guards_of`; those of
    ``host`` are free.
    """
    log = facts.kernel_log
    seen: dict[str, Any] = {
        # Without its beginning a log does not tell whether a card faulted on this boot.
        "log": {
            "read": log.events.value is not None and log.complete.value is True,
            "fault_lines": [fault_line(event) for event in fault_events(facts, gpus)],
        },
        "alarms": alarms(facts, gpus),
        "card": "; ".join(f"{gpu.bdf} {why}" for gpu in gpus if (why := problem(facts, gpu, after))),
        "host": host(facts, gpus, load),
    }
    dumps = [gpu.coredump.value for gpu in gpus]
    if None not in dumps:
        seen["coredumps"] = [f"devcoredump of {gpu.bdf}" for gpu in gpus if gpu.coredump.value]
    held = holders(facts, gpus)
    # NVIDIA's programs hold nodes of their own, which are not looked at; a list with gaps proves nothing either.
    looked = facts.holders.refused.value == 0 and all(gpu.vendor != gpu_ids.NVIDIA for gpu in gpus)
    if held or (looked and facts.holders.render.value is not None):
        seen["holders"] = held
    counters = {
        name: reading.value
        for name, reading in (("cpu core", facts.throttle.core), ("cpu package", facts.throttle.package))
        if reading.value is not None
    }
    if counters or any(flag.status.value is not None for flag in flags(facts, gpus)):
        seen["throttle"] = counters
    return seen


def flags(facts: Facts, gpus: Sequence[Gpu]) -> list[Any]:
    """Return the clock domains of these cards."""
    own = {gpu.bdf for gpu in gpus}
    return [flag for flag in facts.throttle.gpus.value or () if flag.bdf in own]


def alarms(facts: Facts, gpus: Sequence[Gpu]) -> list[str]:
    """Return the clock domains of these cards that are held down now, with the reasons."""
    return [
        f"{flag.bdf} {flag.domain} clock held down: {', '.join(flag.reasons.value or ()) or 'no reason given'}"
        for flag in flags(facts, gpus)
        if flag.status.value == 1
    ]


def host(facts: Facts, gpus: Sequence[Gpu], load: Reading[str]) -> dict[str, Any]:
    """Return the state that a figure depends on, as text; under ``unread`` what could not be read and why."""
    found: dict[str, Any] = {}
    unread: dict[str, str] = {}

    def keep(name: str, reading: Reading[Any]) -> None:
        if reading.value is not None:
            found[name] = reading.value
        else:
            unread[name] = f"{reading.unread}: {reading.detail}"

    policies = facts.cpufreq.policies
    keep("boot_id", facts.identity.boot_id)
    keep("kernel", facts.identity.kernel)
    keep("os", facts.identity.os_name)
    keep("product", facts.identity.product)
    keep("bios", facts.identity.bios_version)
    keep("virtualization", facts.identity.virtualization)
    keep("governor", policies.then(lambda all_of: words([policy.governor for policy in all_of])))
    keep("epp", policies.then(lambda all_of: words([policy.epp for policy in all_of])))
    keep("cpufreq_driver", facts.cpufreq.drivers.then(", ".join))
    keep("boost", facts.cpufreq.boost.or_(facts.cpufreq.no_turbo.then(lambda off: not off)))
    keep("aspm_policy", facts.aspm.policy)
    keep("load", load.then(parse_load))
    log = facts.kernel_log
    keep("log", log.access.then(lambda access: access if log.complete.value else f"{access}, early lines are lost"))
    found["cards"] = {gpu.bdf: card(facts, gpu) for gpu in gpus}
    found["throttle"] = {
        f"{flag.bdf} {flag.domain}".strip(): f"unread: {flag.status.unread}"
        if flag.status.value is None
        else " ".join([str(flag.status.value), *(flag.reasons.value or ())])
        for flag in flags(facts, gpus)
    }
    return {**found, "unread": unread}


def words(readings: Sequence[Reading[str]]) -> str:
    """Return the distinct values; ``unread`` where there was none, ``none`` where nothing has the attribute.

    >>> words([Reading("performance"), Reading("performance"), Reading("powersave")])
    'performance, powersave'
    """
    said = {reading.value if reading.value is not None else str(reading.unread) for reading in readings}
    return ", ".join(sorted(said)) or "none"


def parse_load(text: str) -> str:
    """Return the three averages of /proc/loadavg.

    >>> parse_load("0.52 0.58 0.59 1/467 12345\\n")
    '0.52 0.58 0.59'
    """
    averages = text.split()[:3]
    if len(averages) != 3 or not all(one.replace(".", "", 1).isdigit() for one in averages):
        raise ValueError(f"expected three averages, got {text!r}")
    return " ".join(averages)


def command_line(text: str) -> str:
    """Return the words of a kernel command line up to ``--``, without passwords and the like.

    >>> command_line("ro iommu=pt rd.password=x -- y\\n")
    'ro iommu=pt rd.password=[removed]'
    """
    line = " ".join(next_boot.parse_running(text))
    return USERINFO.sub(rf"\1{REMOVED}@", SECRET.sub(rf"\1{REMOVED}", line))


def card(facts: Facts, gpu: Gpu) -> dict[str, Any]:
    """Return what of one card may change a figure: driver, firmware, BAR 2, power, and every hop's link and ASPM."""
    return {
        "device": f"{gpu.vendor}:{gpu.device}",
        "driver": gpu.driver.value,
        "guc": guc(facts, gpu.bdf),
        "bar2_mib": gpu.bars.value[2] >> 20 if gpu.bars.value is not None else None,
        "runtime_status": gpu.runtime_status.value,
        "power_control": gpu.power_control.value,
        "numa_node": gpu.numa_node.value,
        "links": {hop.bdf: link(hop) for hop in gpu.path},
    }


def guc(facts: Facts, bdf: str) -> str | None:
    """Return the version of the firmware that the driver said it had loaded last, or None where it did not."""
    said = [
        event.details["version"].rpartition(", ")[2]
        for event in facts.kernel_log.events.value or ()
        if event.bdf == bdf and event.kind in ("guc.version", "guc.loaded") and event.details.get("version")
    ]
    return said[-1] if said else None


def link(hop: Hop) -> str:
    """Return the link above a hop and what LnkCtl enables on it."""
    speed, width = hop.speed.value, hop.width.value
    lanes = f"{speed:g} GT/s x{width}" if speed is not None and width is not None else f"link {hop.speed.unread}"
    return f"{lanes}, ASPM {hop.aspm.value or hop.aspm.unread}"


def core_for(facts: Facts, gpu: Gpu | None, allowed: Collection[int]) -> tuple[int, ...] | None:
    """Return one processor to keep the worker on, or None where there is no choice.

    Of those that this process may use: on the card's memory node, of the highest clock (a hybrid processor's others are
    slower), and not the first, which takes most interrupts.
    """
    nodes = {node.node: set(node.cpus) for node in facts.lscpu.numa_nodes.value or ()}
    near = nodes.get(gpu.numa_node.value, set()) if gpu is not None and gpu.numa_node.value is not None else set()
    choice = sorted(near & set(allowed)) or sorted(allowed)
    if len(set(allowed)) < 2:
        return None
    top = {cpu: policy.hw_max_khz.value or 0 for policy in facts.cpufreq.policies.value or () for cpu in policy.cpus}
    best = max(top.get(cpu, 0) for cpu in choice)
    fastest = [cpu for cpu in choice if top.get(cpu, 0) == best]
    return (next((cpu for cpu in fastest if cpu != 0), fastest[0]),)


def refused(facts: Facts, gpus: Sequence[Gpu], load: Reading[str], why: str) -> dict[str, Any]:
    """Return `around` for cards that are not opened, for a reason that is not (only) their own."""
    seen = around(facts, gpus, load)
    return {**seen, "card": "; ".join(filter(None, (seen["card"], why)))}
