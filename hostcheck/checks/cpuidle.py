"""May the processors sleep deeply, where that is declared or where the log shows that it hurts?"""

from __future__ import annotations

from collections.abc import Iterator

from ..expectations import Expectation
from ..findings import Finding, Status, Subject, check, need, unknown
from ..onhost.gather import Facts
from ..onhost.readings.cpuidle import IdleState
from ..onhost.readings.kernel_log import Event
from . import log
from .cpu import ALL, APPLY

# Function in which a processor waits for others that do not wake up (kernel, smp_call_function_many_cond).
SIGNATURE = "smp_call_function"


def lockups(facts: Facts) -> list[Event]:
    """Soft lockups of this boot in which a processor waited for one that slept."""
    return [
        event
        for event in facts.kernel_log.events.value or ()
        if event.kind == "lockup.soft" and SIGNATURE in event.details.get("frames", "") and not event.previous_boot
    ]


def subject(facts: Facts) -> Subject:
    """What `cpu.deep_idle` is about: every processor, or those of which the deepest state may be used."""
    deepest = facts.cpuidle.deepest.value
    some = deepest and any(state.cpus != deepest for state in facts.cpuidle.states.value or ())
    return Subject("cpu", deepest) if deepest and some else ALL


def _words(states: tuple[IdleState, ...]) -> str:
    """The deepest state by name, with its time to wake up."""
    deepest = max(states, key=lambda state: state.number)
    return f"{deepest.name}{f' ({deepest.latency_us.value} us)' if deepest.latency_us.value is not None else ''}"


@check(
    "cpu.deep_idle", title="The deepest idle state is off where it is declared to be, or where it locked a processor up"
)
def deep_idle(facts: Facts, expectation: Expectation, previous: Facts | None = None) -> Iterator[Finding]:
    """`cpu.deep_idle`

    Why: on a public lab's Zen 3 host an idle freeze with soft lockups in smp_call_function_many_cond ended when the
    deepest state was off (lab-host-facts 1.3, 2.2). Everywhere else deep idle is right and saves power, so without that
    signature, or a declaration, nothing is wanted.
    """
    idle = facts.cpuidle
    if idle.states.unread == "absent" or idle.states.value == ():
        yield Finding("cpu.deep_idle", ALL, Status.not_applicable, seen="no idle states", source=idle.states.source)
        return
    states, deepest = need(idle.states), need(idle.deepest)
    source = idle.deepest.source
    wish = expectation.settings.cpu_governor.disable_deepest_idle
    name = _words(states)
    if not deepest:
        yield Finding("cpu.deep_idle", ALL, Status.ok, seen=f"{name} is off", source=source)
        return
    found = lockups(facts)
    seen = f"{name} may be used"
    if found:
        seen += f"; soft lockup while waiting for a processor to wake up, {log.span(found)}"
    if wish or found:
        step = APPLY if wish else f"{APPLY}  # after declaring settings.cpu_governor.disable_deepest_idle: true"
        status = Status.fail if wish else Status.warn
        yield Finding("cpu.deep_idle", subject(facts), status, seen, "off on every processor", source, step)
    elif facts.kernel_log.events.value is None:
        finding = unknown("cpu.deep_idle", facts.kernel_log.events, ALL)
        yield Finding(finding.id, ALL, finding.status, finding.seen, source=finding.source, cause=log.ACCESS)
    else:
        gap = log.window_gap(facts)
        seen = f"{seen}; no lockup in the log{f', but {gap}' if gap else ''}"
        yield Finding("cpu.deep_idle", ALL, Status.ok, seen, source=source)
