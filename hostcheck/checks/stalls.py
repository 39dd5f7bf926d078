"""Did the host as a whole stall on this boot: blocked tasks, lockups, a clock that the kernel gave up?

What happened inside a GPU's driver, or to the processor that takes a card's interrupts, is `gpu.fault`.
"""

from __future__ import annotations

from collections.abc import Iterator

from ..expectations import Expectation
from ..findings import HOST, Cause, Finding, Status, check
from ..onhost.gather import Facts
from ..onhost.readings.kernel_log import Event
from ..onhost.readings.log_events import is_bad
from . import cpuidle, log
from .gpu import is_virtual
from .presence import not_applicable

LOCKUPS = {"lockup.soft": "soft lockup", "lockup.hard": "hard lockup", "lockup.rcu": "RCU stall"}
SLOW = ("hpet", "acpi_pm", "jiffies", "refined-jiffies", "pit")  # clocks that x86 falls back to without its own
SHOW = "journalctl -k -b 0 --no-pager | grep -iE {}"


def of_host(facts: Facts, *kinds: str) -> list[Event]:
    """Events of this boot of these kinds, without those that `gpu.fault` tells of."""
    return [
        event
        for event in facts.kernel_log.events.value or ()
        if event.kind in kinds and not event.previous_boot and not is_bad(event)
    ]


def _where(found: list[Event]) -> str:
    """Processors, times and functions of some lockups, for a person."""
    cpus = sorted({cpu for event in found for cpu in event.details.get("cpu", "").split(", ") if cpu}, key=int)
    longest = max(
        (int(word) for event in found for word in event.details.get("seconds", "").split(", ") if word), default=0
    )
    frames = next((event.details["frames"] for event in found if event.details.get("frames")), "")
    return "".join(
        (
            f" on CPU {', '.join(cpus)}" if cpus else "",
            f" for up to {longest} s" if longest else "",
            f" in {frames.split(', ')[0]}" if frames else "",
        )
    )


@check("kernel.lockup", title="No processor was stuck")
def lockup(facts: Facts, expectation: Expectation, previous: Facts | None = None) -> Iterator[Finding]:
    """`kernel.lockup`

    Why: a processor that is stuck stalls whatever waits for it, so what was measured meanwhile says nothing
    (lab-host-facts 4.3). A soft lockup in smp_call_function_many_cond belongs to an idle state (`cpu.deep_idle`), one
    inside a GPU's driver to its card (`gpu.fault`); a virtual machine also locks up when its host takes the processor
    away.
    """
    found = of_host(facts, *LOCKUPS)
    if not found:
        yield log.silence(facts, "kernel.lockup", "no lockup or RCU stall on this boot")
        return
    asleep = cpuidle.lockups(facts)
    kinds = [
        f"{LOCKUPS[kind]}{_where(said)}" for kind in LOCKUPS if (said := [one for one in found if one.kind == kind])
    ]
    yield Finding(
        "kernel.lockup",
        HOST,
        Status.warn,
        seen=f"{', '.join(kinds)}; {log.span(found)}",
        wanted="none on this boot",
        source=facts.kernel_log.events.source,
        next_step=SHOW.format("-A20 'lockup|detected.*stall'"),
        cause=Cause("cpu.deep_idle", cpuidle.subject(facts)) if all(one in asleep for one in found) else None,
        marks=log.marks(facts, found),
    )


@check("kernel.hung_task", title="No task was blocked for minutes")
def hung_task(facts: Facts, expectation: Expectation, previous: Facts | None = None) -> Iterator[Finding]:
    """`kernel.hung_task`

    Why: a task that waits in the kernel for minutes waits for a disk, a network file system or a lock that nobody
    gives back; what needs the same then hangs as well, and only a reboot ends it (lab-host-facts 2.5). The kernel
    reports the first ten alone. Inside a GPU's driver it is `gpu.fault`.
    """
    found = of_host(facts, "hung_task")
    limit = facts.sysctls.kernel__hung_task_timeout_secs
    if found:
        names = list(dict.fromkeys(event.details.get("process", "a task") for event in found))
        more = f" and {len(names) - 4} more" if len(names) > 4 else ""
        longest = max(int(word) for event in found for word in event.details.get("seconds", "0").split(", "))
        yield Finding(
            "kernel.hung_task",
            HOST,
            Status.warn,
            seen=f"{', '.join(names[:4])}{more} blocked for up to {longest} s; {log.span(found)}",
            wanted="none on this boot",
            source=facts.kernel_log.events.source,
            next_step=SHOW.format("-A20 'blocked for more than'"),
            marks=log.marks(facts, found),
        )
    elif limit.value == 0:
        seen = "the detector is off: hung_task_timeout_secs=0"
        yield Finding("kernel.hung_task", HOST, Status.info, seen, source=limit.source)
    elif limit.unread == "absent" and facts.sysctls.kernel__panic.value is not None:
        yield not_applicable("kernel.hung_task", "this kernel does not look for blocked tasks", limit.source)
    else:
        yield log.silence(facts, "kernel.hung_task", "no blocked task on this boot")


@check("kernel.clocksource", title="The kernel trusts its clock")
def clocksource(facts: Facts, expectation: Expectation, previous: Facts | None = None) -> Iterator[Finding]:
    """`kernel.clocksource`

    Why: a clock that drifted from its watchdog is given up until the next boot, and every time stamp is then read from
    a device instead of the processor. A long readout interval says only that the host stood still for that time: in
    the lab 4 to 72 seconds, beside a lockup (lab-host-facts 2.5); it is told, not judged. The clock in use is read
    without the log.
    """
    clock = facts.clocksource
    given_up = of_host(facts, "clocksource.unstable")
    stalls = of_host(facts, "clocksource.stall")
    current = clock.current.value
    slow = current in SLOW and not is_virtual(facts)
    if given_up or slow:
        names = ", ".join(dict.fromkeys(event.details["clock"].split(", ")[0] for event in given_up))
        parts = [f"{names} was marked unstable; {log.span(given_up)}"] if given_up else []
        parts += [f"the clock in use is {current}"] if current else []
        yield Finding(
            "kernel.clocksource",
            HOST,
            Status.warn,
            seen="; ".join(parts),
            wanted="the clock of the processor",
            source=facts.kernel_log.events.source if given_up else clock.current.source,
            next_step="update the BIOS, then reboot; grep . /sys/devices/system/clocksource/clocksource0/*_clocksource",
            marks=log.marks(facts, given_up),
        )
    elif stalls:
        longest = max(int(word) for event in stalls for word in event.details["ns"].split(", ")) / 1e9
        seen = f"the host stood still for up to {longest:.0f} s; {log.span(stalls)}"
        cause = Cause("kernel.lockup", HOST)
        yield Finding("kernel.clocksource", HOST, Status.info, seen, source=facts.kernel_log.events.source, cause=cause)
    elif current:
        yield Finding("kernel.clocksource", HOST, Status.ok, seen=current, source=clock.current.source)
    else:
        yield log.silence(facts, "kernel.clocksource", "no clock was marked unstable on this boot")
