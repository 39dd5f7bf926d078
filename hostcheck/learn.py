"""An expectation file from a good host, or from the common part of several, with where each value was read.

What a check calls warn or fail, what the host itself limits, what differs between the hosts and what could not be read
is written commented out with the reason: a learned file must not make a fault the wanted state.
"""

from __future__ import annotations

import fnmatch
import json
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from . import __version__
from .assess import Report, assess
from .checks.aspm import link_state
from .checks.gpu import cards
from .expectations import Expectation, Refused, expectation
from .findings import Finding, Status
from .onhost.gather import Facts
from .onhost.reader import Reading
from .onhost.readings.cpufreq import Policy
from .onhost.readings.environment import PINS
from .onhost.readings.pcie import Gpu

SCHEMA = "hostcheck/expectation/1"
LIMITED = "at the host's maximum"  # words of `checks.links` for a link that the host limits
BAD = (Status.warn, Status.fail)
PLAIN = re.compile(r"[A-Za-z_/][\w./+-]*")
# Words that YAML 1.1 takes for something else.
WORDS = frozenset(["on", "off", "yes", "no", "true", "false", "null", "y", "n"])

Path = tuple[str, ...]


@dataclass(frozen=True)
class Entry:
    """One key of an expectation file.

    path: its keys. value: None where there is none to write. where: (host, place) of every read.
    checks: ids (``*`` allowed) that judge it; subjects: on which, () for any. reason: why it is not wanted, "" when it
    is.
    """

    path: Path
    value: Any
    where: tuple[tuple[str, str], ...]
    checks: tuple[str, ...] = ()
    subjects: tuple[str, ...] = ()
    reason: str = ""


@dataclass(frozen=True)
class Rule:
    """How one key is learned.

    read: its value; absent where this host has none. reason: why it is never wanted of itself.
    """

    path: Path
    read: Callable[[Facts], Reading[Any]]
    checks: tuple[str, ...]
    reason: str = ""


def same(readings: Iterable[Reading[Any]], what: str) -> Reading[Any]:
    """The value that all have. Absent where there is none; not understood where they differ.

    >>> same([Reading(1, "/a"), Reading(1, "/b")], "cards").value
    1
    """
    found = [reading for reading in readings if reading.unread != "absent"]
    if not found:
        return Reading.no("absent", f"no {what} has it")
    for reading in found:
        if reading.value is None:
            return reading
    values = list(dict.fromkeys(str(reading.value) for reading in found))
    if len(values) > 1:
        return Reading.no("not_understood", f"differs between {what}: {', '.join(values)}", found[0].source)
    return found[0]


# -- one function per key -------------------------------------------------------------------------------


def _cards(facts: Facts) -> tuple[Gpu, ...]:
    return cards(facts) if facts.pcie.gpus.value is not None else ()


def _of_cards(facts: Facts, value: Callable[[tuple[Gpu, ...]], Any]) -> Reading[Any]:
    found = _cards(facts)
    if facts.pcie.gpus.value is not None and not found:
        return Reading.no("absent", "no card in use", facts.pcie.gpus.source)
    return facts.pcie.gpus.then(lambda _: value(found))


def _count(facts: Facts) -> Reading[int]:
    return _of_cards(facts, len)


def _ids(facts: Facts) -> Reading[tuple[str, ...]]:
    return _of_cards(facts, lambda found: tuple(sorted({gpu.device for gpu in found})))


def _bdfs(facts: Facts) -> Reading[tuple[str, ...]]:
    return _of_cards(facts, lambda found: tuple(sorted(gpu.bdf for gpu in found)))


def _guc(facts: Facts) -> Reading[str]:
    from .diff import NONE, guc

    versions = guc(facts).then(lambda found: found[""])
    if versions.value == NONE:
        return Reading.no("absent", "no card with a GuC", versions.source)
    if versions.value is not None and ", " in versions.value:
        return Reading.no("not_understood", f"differs between cards: {versions.value}", versions.source)
    return versions


def _policies(facts: Facts, value: Callable[[Policy], Reading[Any]]) -> Reading[Any]:
    policies = facts.cpufreq.policies
    return policies if policies.value is None else same((value(policy) for policy in policies.value), "policies")


def _governor(facts: Facts) -> Reading[str]:
    return _policies(facts, lambda policy: policy.governor)


def _epp(facts: Facts) -> Reading[str]:
    return _policies(facts, lambda policy: policy.epp)


def _arguments(facts: Facts) -> Reading[tuple[str, ...]]:
    """Words of the kernel command line that the toolkit knows to matter for cards."""
    iommu, force = facts.iommu.arguments, facts.pcie.force_probe
    for reading in (iommu, force):
        if reading.value is None:
            return reading
    words = tuple(dict.fromkeys((*(iommu.value or ()), *(force.value or ()))))
    return Reading(words, "/proc/cmdline") if words else Reading.no("absent", "no such word", "/proc/cmdline")


def _effective(facts: Facts) -> Reading[str]:
    """``disabled`` or ``l1``, where the links of all cards agree."""

    def states() -> Iterator[Reading[str]]:
        for gpu in _cards(facts):
            for upper, lower in zip(gpu.path, gpu.path[1:], strict=False):
                if (upper.role == "root_port" or upper.role.endswith("_downstream")) and not lower.inner:
                    state = link_state(upper, lower)
                    yield Reading(state, lower.aspm.source) if state else lower.aspm

    if facts.pcie.gpus.value is None:
        return facts.pcie.gpus.then(lambda _: "")
    found = same(states(), "links")
    if found.value is not None and found.value not in ("disabled", "l1"):
        return Reading.no("not_understood", f"LnkCtl enables {found.value}", found.source)
    return found


def _power_control(facts: Facts) -> Reading[str]:
    if facts.pcie.gpus.value is None:
        return facts.pcie.gpus.then(lambda _: "")
    return same((gpu.power_control for gpu in _cards(facts)), "cards")


def _boost_off(facts: Facts) -> Reading[str]:
    off = (facts.cpufreq.no_turbo.then(lambda off: off), facts.cpufreq.boost.then(lambda on: not on))
    found = next((switch for switch in off if switch.value), None)
    if found is None:
        return Reading.no("absent", "boost is on, or there is no switch")
    return found.then(lambda _: "why this host runs without boost")


def _interface(facts: Facts) -> Reading[str]:
    """The interface that the places of the host name, where they name one."""
    pins = facts.network.pins
    if pins.value is None:
        return pins.then(lambda _: "")
    known = [pin.value for pin in pins.value if pin.acts == "host" and pin.variable in PINS]
    return same((Reading(value, pins.source) for value in known), "pins")


def _clock(facts: Facts) -> Reading[int]:
    """The highest clock that the main domain of every card may have."""

    def limits() -> Iterator[Reading[int]]:
        for state in facts.gpu_state.gpus.value or ():
            if state.clocks.value is None:
                yield state.clocks.then(lambda _: 0)
            yield from (clock.maximum for clock in state.clocks.value or () if clock.domain.endswith("gt0"))

    return facts.gpu_state.gpus.then(lambda _: 0) if facts.gpu_state.gpus.value is None else same(limits(), "cards")


def _cap(facts: Facts) -> Reading[float]:
    """The power cap of the whole card."""

    def caps() -> Iterator[Reading[float]]:
        for state in facts.gpu_state.gpus.value or ():
            if state.power.value is None:
                yield state.power.then(lambda _: 0.0)
            yield from (power.cap for power in state.power.value or () if power.label in ("card", ""))

    return facts.gpu_state.gpus.then(lambda _: 0.0) if facts.gpu_state.gpus.value is None else same(caps(), "cards")


def _offline(facts: Facts) -> Reading[tuple[int, ...]]:
    found = facts.memory.offline
    return found if found.value != () else Reading.no("absent", "no block of memory is off-line", found.source)


def _swap(facts: Facts) -> Reading[bool]:
    return facts.memory.swap_total.then(bool)


LATER = "the kernel that runs is wanted anyway; declare it to hold one"
RULES: tuple[Rule, ...] = (
    Rule(("gpus", "count"), _count, ("gpu.enumeration", "gpu.lost")),
    Rule(("gpus", "ids"), _ids, ("gpu.enumeration", "gpu.lost")),
    Rule(("gpus", "bdfs"), _bdfs, ("gpu.enumeration", "gpu.lost")),
    Rule(("guc", "wanted"), _guc, ("fw.guc",)),
    Rule(("gpu_limits", "max_clock"), _clock, ("gpu.clock_limit",)),
    Rule(("gpu_limits", "power_cap"), _cap, ("gpu.power_cap",)),
    Rule(("boot", "kernel"), lambda facts: facts.identity.kernel, ("boot.kernel",), LATER),
    Rule(("memory", "swap"), _swap, ("mem.swap_total",)),
    Rule(("memory", "offline_blocks"), _offline, ("mem.blocks_offline",)),
    Rule(("settings", "cpu_governor", "governor"), _governor, ("cpu.governor", "cpu.clock")),
    Rule(("settings", "cpu_governor", "epp"), _epp, ("cpu.governor",)),
    Rule(("settings", "kernel_arguments", "present"), _arguments, ("gpu.cmdline", "aspm.policy", "aer.visibility")),
    Rule(("settings", "pcie_aspm", "policy"), lambda facts: facts.aspm.policy, ("aspm.policy",)),
    Rule(("settings", "pcie_aspm", "effective"), _effective, ("aspm.effective",)),
    Rule(("settings", "gpu_runtime_pm", "control"), _power_control, ("gpu.power_control", "gpu.runtime_status")),
    Rule(("settings", "collective_env", "interface", "name"), _interface, ("net.iface",)),
    Rule(("boost_off_reason",), _boost_off, ("cpu.boost",)),
)


def _slots(report: Report) -> Iterator[Entry]:
    """What every slot gives, by the card's port that crosses it."""
    for gpu in _cards(report.facts):
        hop = next((hop for hop in gpu.path if hop.crosses_slot), None)
        if hop is None:
            continue
        path, judged = ("slot_link", hop.bdf), ("pcie.link.*",)
        for reading in (hop.speed, hop.width):
            if reading.value is None:
                yield Entry(path, None, ((report.host, reading.source),), judged, (hop.bdf,), _unread(reading))
                break
        else:
            value = {"speed": hop.speed.value, "width": hop.width.value}
            yield Entry(path, value, ((report.host, hop.width.source),), judged, (hop.bdf,))


def _unread(reading: Reading[Any]) -> str:
    if reading.unread == "not_understood":
        return reading.detail
    return f"not read: {reading.unread}{f', {reading.detail}' if reading.detail else ''}"


def of_host(report: Report) -> list[Entry]:
    """Everything that one host teaches; what it cannot have is left out."""
    found: list[Entry] = []
    for rule in RULES:
        reading = rule.read(report.facts)
        where = ((report.host, reading.source),)
        if reading.value is not None:
            found.append(Entry(rule.path, reading.value, where, rule.checks, reason=rule.reason))
        elif reading.unread != "absent":
            found.append(Entry(rule.path, None, where, rule.checks, reason=_unread(reading)))
    found += _slots(report)
    return [entry if entry.reason else replace(entry, reason=objection(entry, report)) for entry in found]


def concerns(entry: Entry, finding: Finding) -> bool:
    """Is a finding about what this key says?"""
    return any(fnmatch.fnmatchcase(finding.id, pattern) for pattern in entry.checks) and (
        not entry.subjects or finding.subject.name in (*entry.subjects, "host")
    )


def objection(entry: Entry, report: Report) -> str:
    """Why the value of a host is not to be wanted, "" when nothing speaks against it."""
    about = [finding for finding in _all(report.findings) if concerns(entry, finding)]
    for finding in about:
        if finding.status in BAD:
            name = "" if finding.subject.kind == "host" else f" {finding.subject}"
            return f"{finding.id} {finding.status}{name}: {finding.seen}"
    limited = next((finding for finding in about if finding.seen.startswith(LIMITED)), None)
    if limited is not None:
        return f"limited by the host, {limited.id} {limited.status}: {limited.seen}"
    if entry.path[-1] == "effective" and entry.value == "l1":
        return "L1 is allowed on these links and not needed"
    return ""


def _all(findings: Iterable[Finding]) -> Iterator[Finding]:
    for finding in findings:
        yield finding
        yield from _all(finding.explains)


# -- several hosts --------------------------------------------------------------------------------------


def merged(reports: Sequence[Report]) -> list[Entry]:
    """The common part: a key is wanted when every host has it with the same value and nothing speaks against it."""
    by_path: dict[Path, list[Entry]] = {}
    for report in reports:
        for entry in of_host(report):
            by_path.setdefault(entry.path, []).append(entry)
    return [_common(entries, reports) for entries in by_path.values()]


def _common(entries: list[Entry], reports: Sequence[Report]) -> Entry:
    where = tuple(place for entry in entries for place in entry.where)
    values = [entry.value for entry in entries]
    first = replace(entries[0], where=where)
    reasons = [(entry.where[0][0], entry.reason) for entry in entries if entry.reason]
    if reasons:
        host, reason = reasons[0]
        value = next((entry.value for entry in entries if entry.reason == reason), None)
        return replace(first, value=value, reason=reason if len(reports) == 1 else f"{host}: {reason}")
    if len(entries) < len(reports):
        have = {entry.where[0][0] for entry in entries}
        lacks = ", ".join(report.host for report in reports if report.host not in have)
        return replace(first, reason=f"not on {lacks}")
    if any(value != values[0] for value in values):
        said = ", ".join(f"{entry.where[0][0]} {dumped(entry.value)}" for entry in entries)
        return replace(first, reason=f"the hosts differ: {said}")
    return first


def document(entries: Iterable[Entry]) -> dict[str, Any]:
    """The expectation that the wanted entries make."""
    whole: dict[str, Any] = {"schema": SCHEMA}
    for entry in entries:
        if not entry.reason:
            level = whole
            for key in entry.path[:-1]:
                level = level.setdefault(key, {})
            level[entry.path[-1]] = list(entry.value) if isinstance(entry.value, tuple) else entry.value
    return whole


def _worse(before: Sequence[Finding], after: Sequence[Finding]) -> list[Finding]:
    """Findings that warn or fail and did not before."""
    known = {(finding.id, finding.subject, finding.status) for finding in _all(before)}
    return [
        finding
        for finding in _all(after)
        if finding.status in BAD and (finding.id, finding.subject, finding.status) not in known
    ]


def learn(reports: Sequence[Report]) -> list[Entry]:
    """What the hosts teach. Every host is judged against it, and what makes one of them worse is taken back.

    reports: as judged without any expectation. Raises ValueError for no host.
    """
    if not reports:
        raise ValueError("no host to learn from")
    entries = merged(reports)
    for _ in range(len(entries) + 1):
        try:
            wanted: Expectation = expectation(document(entries), "learned")
        except Refused as error:
            entries = [_refused(entry, str(error)) for entry in entries]
            continue
        bad = [
            (report.host, finding)
            for report in reports
            for finding in _worse(report.findings, assess(report.facts, wanted, host=report.host).findings)
        ]
        if not bad:
            break
        entries = _taken_back(entries, *bad[0])
    return entries


def _refused(entry: Entry, message: str) -> Entry:
    """The entry, commented out where the expectation's own rules refuse it."""
    is_meant = ".".join(entry.path) in message or f"{entry.path[0]}." in message
    return replace(entry, reason=message.splitlines()[0]) if is_meant and not entry.reason else entry


def _taken_back(entries: list[Entry], host: str, finding: Finding) -> list[Entry]:
    """Without the entries that make a host worse; without all when it is not known which do."""
    reason = f"against it {host} gives {finding.id} {finding.status}: {finding.seen}"
    meant = [entry for entry in entries if not entry.reason and concerns(entry, finding)]
    return [
        replace(entry, reason=reason) if not entry.reason and (entry in meant or not meant) else entry
        for entry in entries
    ]


# -- writing --------------------------------------------------------------------------------------------


def dumped(value: Any) -> str:
    """A value on one line of YAML: as JSON, plain words without quotes.

    >>> dumped("performance"), dumped("on"), dumped("70.44.1"), dumped({"speed": 16.0})
    ('performance', '"on"', '"70.44.1"', '{"speed": 16.0}')
    """
    if isinstance(value, str) and PLAIN.fullmatch(value) and value.lower() not in WORDS:
        return value
    if isinstance(value, float):
        number = repr(value)
        return number if "." in number else number.replace("e", ".0e")  # YAML 1.1 takes 1e+16 for a word
    line = json.dumps(list(value) if isinstance(value, tuple) else value, ensure_ascii=False)
    return "".join(char if char.isprintable() else f"\\U{ord(char):08x}" for char in line)


def comment(text: str) -> str:
    """Text of a host as part of a comment: one line, nothing but what can be printed.

    >>> comment("a\\n b\\x1b")
    'a b\\\\x1b'
    """
    line = " ".join(text.split())
    return "".join(char if char.isprintable() else f"\\x{ord(char):02x}" for char in line)


def _origin(entry: Entry) -> str:
    """Where a value was read, hosts with the same place together."""
    places: dict[str, list[str]] = {}
    for host, place in entry.where:
        places.setdefault(place or "facts", []).append(host)
    return "; ".join(f"{place} on {', '.join(hosts)}" for place, hosts in places.items())


def _lines(entries: Sequence[Entry], depth: int, margin: str, off: bool) -> Iterator[str]:
    """Lines of entries below one key. off: an outer key is commented out already."""
    done: set[str] = set()
    for entry in entries:
        key = entry.path[depth]
        if key in done:
            continue
        done.add(key)
        inside = [one for one in entries if one.path[depth] == key]
        mute = off or all(one.reason for one in inside)
        begin = margin if off or not mute else f"{margin}# "
        if len(entry.path) == depth + 1:
            value = dumped(entry.value) if entry.value is not None else "?"
            told = f"{entry.reason}; read from {_origin(entry)}" if entry.reason else f"read from {_origin(entry)}"
            yield f"{begin}{dumped(key)}: {value}  # {comment(told)}"
        else:
            yield f"{begin}{dumped(key)}:"
            yield from _lines(inside, depth + 1, f"{begin}  ", mute)


def text(entries: Sequence[Entry], reports: Sequence[Report], group_vars: bool = False) -> str:
    """The expectation file; with `group_vars` as the variable ``hostcheck_expect`` of an inventory."""
    named = ", ".join(f"{report.host} ({report.facts.taken_at})" for report in reports)
    head = [
        f"# Learned by hostcheck {__version__} from {comment(named)}.",
        "# A line that is commented out was read and is not wanted, for the reason behind it.",
    ]
    for report in reports:
        for finding in report.findings:
            if finding.status is Status.fail:
                head.append(
                    f"# {comment(f'{report.host} is not well: {finding.id} {finding.subject}: {finding.seen}')}"
                )
    body = [f"schema: {SCHEMA}", *_lines(entries, 0, "", False)]
    if group_vars:
        body = ["hostcheck_expect:", *(f"  {line}" for line in body)]
    return "\n".join([*head, *body]) + "\n"
