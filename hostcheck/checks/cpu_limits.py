"""May the processors reach the highest clock of the hardware?"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from ..expectations import Expectation
from ..findings import Cause, Finding, Status, check, need, unknown
from ..onhost.gather import Facts
from ..onhost.reader import Reading
from ..onhost.readings.cpufreq import Policy
from .cpu import ALL, _owners, _sources, _subject, _without_cpufreq

TOLERANCE = 0.01  # own: a driver may round the limit that was written


def _boost_is_off(facts: Facts) -> bool:
    """Is boost off as a whole? Then a limit below the maximum may be nothing else."""
    cpufreq = facts.cpufreq
    return cpufreq.no_turbo.value is True or cpufreq.boost.value is False


@check("cpu.max_clock", title="No limit is set below the highest clock of the hardware")
def max_clock(facts: Facts, expectation: Expectation, previous: Facts | None = None) -> Iterator[Finding]:
    """`cpu.max_clock`

    Why: a limit that a power tool left behind (scaling_max_freq, max_perf_pct) holds the one core that submits work
    below what it can, with the right governor (arc-host-facts A.1: governor correct but clock wrong is another fault).
    """
    cpufreq = facts.cpufreq
    if _without_cpufreq(facts):
        yield Finding("cpu.max_clock", ALL, Status.not_applicable, seen="no cpufreq", source=cpufreq.policies.source)
        return
    low: list[tuple[Policy, int, int]] = []
    unread: dict[tuple[Any, ...], list[tuple[Policy, Reading[int]]]] = {}
    judged = 0
    for policy in need(cpufreq.policies):
        limit, most = policy.max_khz, policy.hw_max_khz
        if "absent" in (limit.unread, most.unread):  # a driver without limits, such as that of some guests
            continue
        if limit.value is None or most.value is None:
            missing = limit if limit.value is None else most
            key = (missing.unread, missing.source.rpartition("/")[2])
            unread.setdefault(key, []).append((policy, missing))
            continue
        judged += 1
        if limit.value < most.value * (1 - TOLERANCE):
            low.append((policy, limit.value, most.value))
    owned, owner_source = _owners(facts, "cpu_clock")
    cause = Cause("cpu.boost", ALL) if _boost_is_off(facts) else None
    percent = cpufreq.max_perf_pct
    if low:
        policy, limit_khz, most_khz = min(low, key=lambda one: one[1])
        path = f"/sys/devices/system/cpu/cpufreq/{policy.name if len(low) == 1 else 'policy*'}/scaling_max_freq"
        yield Finding(
            "cpu.max_clock",
            _subject(facts, [one for one, _, _ in low]),
            Status.warn,
            seen=f"limited to {limit_khz / 1000:.0f} MHz{owned}",
            wanted=f"{most_khz / 1000:.0f} MHz, the maximum of the hardware",
            source=_sources(policy.max_khz.source, owner_source),
            next_step=f"echo {most_khz} | sudo tee {path}" if not owned else "",
            cause=cause,
        )
    elif percent.value is not None and percent.value < 100:
        yield Finding(
            "cpu.max_clock",
            ALL,
            Status.warn,
            seen=f"limited to {percent.value} % of the maximum performance{owned}",
            wanted="100 %",
            source=_sources(percent.source, owner_source),
            next_step=f"echo 100 | sudo tee {percent.source}" if not owned else "",
            cause=cause,
        )
    for missed in unread.values():
        yield unknown("cpu.max_clock", missed[0][1], _subject(facts, [policy for policy, _ in missed]))
    if low or unread or (percent.value is not None and percent.value < 100):
        return
    if judged:
        yield Finding(
            "cpu.max_clock", ALL, Status.ok, seen="the maximum of the hardware", source=cpufreq.policies.source
        )
    else:
        seen = "this driver has no limits"
        yield Finding("cpu.max_clock", ALL, Status.not_applicable, seen, source=cpufreq.policies.source)
