"""Does the kernel run the processor as it should: governor, clock, boost, processors on-line?"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from ..expectations import Expectation
from ..findings import HOST, Finding, Status, Subject, check, need, unknown
from ..onhost.gather import Facts
from ..onhost.reader import Reading
from ..onhost.readings.cpufreq import Policy
from ..onhost.readings.lscpu import cpu_list

ALL = Subject("cpu", "all")
APPLY = "ansible-playbook playbooks/apply.yml --tags cpu_governor"
FIRMWARE = "BIOS: set CPU power management to OS control, or to maximum performance"

# With these drivers `powersave` is the normal dynamic mode, steered by EPP (kernel docs, admin-guide/pm/intel_pstate
# and amd-pstate); with every other one it pins the clock to its minimum (gamemode#299).
DYNAMIC_DRIVERS = frozenset({"intel_pstate", "amd-pstate-epp", "amd_pstate_epp"})  # the last in kernel 6.3 only
PINNING_DRIVERS = frozenset(
    {"intel_cpufreq", "acpi-cpufreq", "amd-pstate", "cppc_cpufreq", "pcc-cpufreq", "powernow-k8", "cpufreq-dt", "scmi"}
)
# A driver that offers one of these leaves the choice of the clock to the governor, whatever its name.
GENERIC_GOVERNORS = frozenset({"ondemand", "conservative", "schedutil", "userspace"})
# EPP as a number and as a word (kernel docs, amd-pstate): both may be read after a write of the other.
EPP_NUMBERS = {"0": "performance", "128": "balance_performance", "255": "power"}
X86 = ("x86_64", "i686", "i586", "i386")
CLOCK_TOLERANCE = 0.03  # own: a measured clock may read a little below the nominal one


def _virtual(facts: Facts) -> Reading[bool]:
    """Is this a virtual machine, or a system under a hypervisor that keeps the clocks to itself?

    Either witness is enough for yes: the processor and the board (identity), and lscpu's `Hypervisor vendor`. On x86 an
    lscpu that got past the sockets and names none is on metal: every hypervisor for x86 tells the processor's users.
    """
    identity, lscpu = facts.identity.virtualization, facts.lscpu.hypervisor
    if lscpu.value:
        return lscpu.then(lambda _: True)
    if identity.value is not None:
        return identity.then(lambda word: word != "none")
    if lscpu.value is not None:
        return lscpu.then(lambda _: False)
    if facts.lscpu.architecture.value in X86 and facts.lscpu.sockets.value is not None:
        return Reading(False, facts.lscpu.sockets.source)
    return identity.then(lambda _: False)


def _without_cpufreq(facts: Facts) -> bool:
    return need(facts.cpufreq.policies) == ()


def _subject(facts: Facts, policies: list[Policy]) -> Subject:
    """``all``, or the list of the processors that these policies are for."""
    if len(policies) == len(need(facts.cpufreq.policies)):
        return ALL
    return Subject("cpu", cpu_list(tuple(cpu for policy in policies for cpu in policy.cpus)))


def _state(reading: Reading[str]) -> str:
    return reading.value if reading.value is not None else f"unread: {reading.unread}"


def _kind(policy: Policy) -> tuple[str, ...]:
    """What makes two policies the same for the governor."""
    return (_state(policy.driver), _state(policy.governor), _state(policy.epp))


def _owners(facts: Facts, setting: str) -> tuple[str, str]:
    """Who sets a setting, as ``; set by …``, and the source for it; twice "" when nobody is known to."""
    found = [
        owner
        for owner in facts.cpufreq.owners.value or ()
        if owner.setting == setting and owner.state in ("active", "enabled")
    ]
    if not found:
        return "", ""
    named = [f"{owner}{f': {owner.value}' if owner.value else ''}" for owner in found[:3]]
    more = f" and {len(found) - 3} more" if len(found) > 3 else ""
    return f"; set by {', '.join(named)}{more}", ", ".join(owner.where for owner in found[:3])


def _sources(*sources: str) -> str:
    return ", ".join(source for source in sources if source)


def _epp(word: str | None) -> str | None:
    return EPP_NUMBERS.get(word, word) if word is not None else None


@check("cpu.governor", title="The governor is the wanted one and does not pin the clock to its minimum")
def governor(facts: Facts, expectation: Expectation, previous: Facts | None = None) -> Iterator[Finding]:
    """`cpu.governor`

    Why: the same word means two things. `powersave` is the normal dynamic mode with intel_pstate and amd-pstate-epp,
    and the lowest clock with all other drivers (gamemode#299 measured the difference), so it is judged with its driver.
    No cpufreq at all is normal in a virtual machine; on metal the firmware has kept the control (hotsos#458).
    A governor that differs from a declared one fails; without a declaration none is wanted.
    """
    wanted = expectation.settings.cpu_governor
    declared = " ".join(
        [wanted.governor or "any governor", *([f"EPP {wanted.epp}"] if wanted.epp else [])]
        if wanted.governor or wanted.epp
        else []
    )
    if _without_cpufreq(facts):
        yield _no_cpufreq(facts, declared)
        return
    groups: dict[tuple[str, ...], list[Policy]] = {}
    for policy in need(facts.cpufreq.policies):
        groups.setdefault(_kind(policy), []).append(policy)
    for policies in groups.values():
        yield _governor_of(facts, policies, wanted.governor, wanted.epp, declared)


def _no_cpufreq(facts: Facts, declared: str) -> Finding:
    source = facts.cpufreq.policies.source
    virtual = _virtual(facts)
    if virtual.value is None:
        seen = f"no cpufreq driver; virtual machine or not: {virtual.unread}"
        return Finding("cpu.governor", ALL, Status.unknown, seen=seen, wanted=declared, source=virtual.source)
    if virtual.value:
        return Finding(
            "cpu.governor",
            ALL,
            Status.not_applicable,
            seen="no cpufreq: the hypervisor sets the clock",
            source=_sources(source, virtual.source),
        )
    off = next(
        (
            owner
            for owner in facts.cpufreq.owners.value or ()
            if owner.state == "active"
            and owner.value in ("cpufreq.off=1", "intel_pstate=disable", "amd_pstate=disable")
        ),
        None,
    )
    seen = "no cpufreq driver: firmware controls the clock" if off is None else f"no cpufreq driver: {off.value}"
    step = FIRMWARE
    if off is not None:
        path = off.where.rpartition(":")[0]
        step = f"sudoedit {'/etc/default/grub' if path == '/proc/cmdline' else path}  # remove {off.value}"
    return Finding(
        "cpu.governor",
        ALL,
        Status.warn,
        seen=seen,
        wanted=declared or "the kernel controls the clock",
        source=_sources(source, virtual.source),
        next_step=step,
    )


def _governor_of(
    facts: Facts, policies: list[Policy], wanted: str | None, wanted_epp: str | None, declared: str
) -> Finding:
    """The finding for policies of one kind."""
    policy, subject = policies[0], _subject(facts, policies)
    if policy.governor.value is None:
        return unknown("cpu.governor", policy.governor, subject)
    name, driver, epp = policy.governor.value, policy.driver.value, policy.epp.value
    with_epp = f", EPP {epp}" if epp is not None else ""
    seen = f"{name} ({driver or 'driver unread'}{with_epp})"
    owned, owner_source = _owners(facts, "cpu_governor")

    def found(status: Status, note: str = "", source: str = policy.governor.source, step: str = "") -> Finding:
        return Finding("cpu.governor", subject, status, seen + note, declared, source, step)

    both = _sources(policy.governor.source, owner_source)
    if wanted is not None and name != wanted:
        offered = policy.governors.value
        if offered is not None and wanted not in offered:
            step = f"{APPLY}  # after declaring one that is offered: {', '.join(offered)}"
            return found(Status.fail, f", {wanted} is not offered{owned}", both, step)
        return found(Status.fail, owned, both, APPLY)
    if wanted_epp is not None and policy.epp.unread != "absent":
        if epp is None:
            return unknown("cpu.governor", policy.epp, subject)
        if _epp(epp) != _epp(wanted_epp):
            return found(Status.fail, owned, _sources(policy.epp.source, owner_source), APPLY)
    if wanted_epp is not None and policy.epp.unread == "absent":
        return found(Status.info, ", this driver has no EPP", policy.epp.source)
    if name != "powersave":
        return found(Status.ok)
    if driver is None:
        reason = f"powersave, but the driver is {policy.driver.unread}: {policy.driver.detail}"
        return Finding("cpu.governor", subject, Status.unknown, reason, declared, policy.driver.source)
    if driver in DYNAMIC_DRIVERS:
        return found(Status.ok if wanted else Status.info, ": dynamic, not the minimum clock")
    if wanted is not None:
        return found(Status.info, ": pinned to the minimum clock, as declared")
    if driver in PINNING_DRIVERS or GENERIC_GOVERNORS & set(policy.governors.value or ()):
        step = f"{APPLY}  # after declaring settings.cpu_governor.governor"
        return found(Status.fail, f": pinned to the minimum clock{owned}", both, step)
    return found(Status.unknown, ": this driver is not known", policy.driver.source)


@check("cpu.clock", title="No clock is below the minimum of the hardware")
def clock(facts: Facts, expectation: Expectation, previous: Facts | None = None) -> Iterator[Finding]:
    """`cpu.clock`

    Why: a governor may be right and the clock wrong. A clock below cpuinfo_min_freq is not chosen by the kernel: the
    firmware throttles (PROCHOT, a power limit, a failed supply), which no governor cures (arc-host-facts A.1; default
    of design, section 7).
    """
    if _without_cpufreq(facts):
        yield Finding("cpu.clock", ALL, Status.not_applicable, seen="no cpufreq", source=facts.cpufreq.policies.source)
        return
    low: list[tuple[Policy, int, int]] = []
    unread: dict[tuple[Any, ...], list[tuple[Policy, Reading[int]]]] = {}
    for policy in need(facts.cpufreq.policies):
        current, least = policy.current_khz, policy.hw_min_khz
        if current.value is None or least.value is None:
            missing = current if current.value is None else least
            key = (missing.unread, missing.source.rpartition("/")[2])
            unread.setdefault(key, []).append((policy, missing))
        elif current.value < least.value * (1 - CLOCK_TOLERANCE):
            low.append((policy, current.value, least.value))
    if low:
        slowest = min(low, key=lambda one: one[1])
        times = facts.cpufreq.package_throttles.value
        heat = f"; thermal throttle events: {times}" if times else ""
        yield Finding(
            "cpu.clock",
            _subject(facts, [policy for policy, _, _ in low]),
            Status.fail,
            seen=f"{slowest[1] / 1000:.0f} MHz{heat}",
            wanted=f"at least {slowest[2] / 1000:.0f} MHz, the minimum of the hardware",
            source=slowest[0].current_khz.source,
            next_step="BIOS: check power limits and PROCHOT, then cooling and the power supply",
        )
    for missed in unread.values():
        yield unknown("cpu.clock", missed[0][1], _subject(facts, [policy for policy, _ in missed]))
    if not low and not unread:
        clocks = [policy.current_khz.value or 0 for policy in need(facts.cpufreq.policies)]
        seen = f"{min(clocks) / 1000:.0f} to {max(clocks) / 1000:.0f} MHz"
        yield Finding("cpu.clock", ALL, Status.ok, seen=seen, source=facts.cpufreq.policies.source)


@check("cpu.boost", title="Boost is on, or declared to be off")
def boost(facts: Facts, expectation: Expectation, previous: Facts | None = None) -> Iterator[Finding]:
    """`cpu.boost`

    Why: boost decides the clock of the one core that submits work. Some hosts are without it on purpose (a public unit
    writes 0 because of machine checks, arc-host-facts A.1), so it is never switched on, only shown, and
    `boost_off_reason` declares it. no_turbo has the opposite sense. Where the switch for all says on and that of every
    policy off, nobody knows: up to Linux 6.9 acpi-cpufreq never told its policies (fixed by "cpufreq: ACPI: Mark boost
    policy as enabled when setting boost"), and a handheld's processor boosted all the same (SimpleDeckyTDP#123).
    """
    cpufreq = facts.cpufreq
    if _without_cpufreq(facts):
        yield Finding("cpu.boost", ALL, Status.not_applicable, seen="no cpufreq", source=cpufreq.policies.source)
        return
    switches = [cpufreq.no_turbo.then(lambda off: not off), cpufreq.boost]
    present = [switch for switch in switches if switch.unread != "absent"]
    own = [policy for policy in need(cpufreq.policies) if policy.boost.unread != "absent"]
    unread = next((one for one in (*present, *(policy.boost for policy in own)) if one.value is None), None)
    off = [switch for switch in present if switch.value is False]
    off_own = [policy for policy in own if policy.boost.value is False]
    owned, owner_source = _owners(facts, "cpu_boost")
    is_meant = bool(owned or expectation.boost_off_reason)
    if own and off_own == own and not off and cpufreq.boost.value and not is_meant:
        yield Finding(
            "cpu.boost",
            ALL,
            Status.unknown,
            seen="the switch for all policies is on, and that of every policy off",
            source=_sources(cpufreq.boost.source, own[0].boost.source),
            next_step="grep MHz /proc/cpuinfo # while one core is busy: above the nominal clock, boost is on",
        )
    elif off or off_own:
        subject = ALL if off else _subject(facts, off_own)
        source = off[0].source if off else off_own[0].boost.source
        reason = expectation.boost_off_reason
        yield Finding(
            "cpu.boost",
            subject,
            Status.info if reason else Status.warn,
            seen=f"off{owned}",
            wanted=f"off: {reason}" if reason else "on",
            source=_sources(source, owner_source),
            next_step="" if reason else _boost_on(source),
        )
    elif unread is not None:
        yield unknown("cpu.boost", unread, ALL)
    elif not present and not own:
        yield Finding(
            "cpu.boost",
            ALL,
            Status.not_applicable,
            seen="this driver has no switch for boost",
            source=cpufreq.boost.source,
        )
    else:
        yield Finding("cpu.boost", ALL, Status.ok, seen="on", source=_sources(*(one.source for one in present)))


def _boost_on(source: str) -> str:
    """The command that switches boost on again until the next boot."""
    value = "0" if source.endswith("no_turbo") else "1"
    path = re.sub(r"/policy[0-9]+/", "/policy*/", source)
    return f"echo {value} | sudo tee {path}  # or declare boost_off_reason"


@check("cpu.topology", title="Every processor that is there is on-line")
def topology(facts: Facts, expectation: Expectation, previous: Facts | None = None) -> Iterator[Finding]:
    """`cpu.topology`

    Why: processors that are off-line are worth knowing. They are counted from the lists, never from threads x cores x
    sockets: on a hybrid processor only P cores have two threads (util-linux#4595: 22 CPUs, 2 x 16), and Arm says ``-``.
    """
    lscpu = facts.lscpu
    cpus, offline = need(lscpu.cpus), need(lscpu.offline)
    if offline:
        smt = ", SMT is off" if lscpu.smt.value in ("off", "forceoff") else ""
        yield Finding(
            "cpu.topology",
            HOST,
            Status.info,
            seen=f"{len(offline)} of {cpus} processors off-line: {cpu_list(offline)}{smt}",
            source=lscpu.offline.source,
        )
        return
    fast, small = lscpu.performance_cores.value, lscpu.efficiency_cores.value
    hybrid = f", {len(fast)} on P cores and {len(small)} on E cores" if fast and small else ""
    yield Finding("cpu.topology", HOST, Status.ok, seen=f"{cpus} processors on-line{hybrid}", source=lscpu.cpus.source)
