"""Which host of a class is the odd one out? Hosts with the same processor and cards should be the same in the rest.

A fleet check takes facts of several hosts and gives at most `warn`: that a host differs from the others is no fault.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from .assess import Report
from .diff import ABSENT, NONE, TRAITS, Trait
from .findings import Finding, Status, Subject
from .onhost.gather import Facts
from .onhost.readings import gpu_ids
from .waivers import apply_to_fleet

Hosts = Sequence[tuple[str, Facts]]


@dataclass(frozen=True)
class FleetCheck:
    """What a fleet check says of itself."""

    id: str
    title: str
    why: str


CHECKS: tuple[FleetCheck, ...] = (
    FleetCheck(
        "fleet.cards",
        "Hosts of a class have the same number of cards",
        "a card that is missing on one host is seen by no check of that host alone, unless a count is declared.",
    ),
    FleetCheck(
        "fleet.links",
        "Hosts of a class have the same links and the same BAR 2",
        "a link that is the best possible one on its host is no finding there; beside hosts of the same kind it shows"
        " a slot, a riser or a BIOS setting (arc-host-facts A.1).",
    ),
    FleetCheck(
        "fleet.kernel",
        "Hosts of a class run the same kernel",
        "a host that was not rebooted after an upgrade runs another kernel than the rest, and nothing on it says so.",
    ),
    FleetCheck(
        "fleet.firmware",
        "Hosts of a class have and run the same GuC firmware",
        "faults followed the pair of kernel and GuC in an A/B where all else was the same (vllm#55425). Files on disk"
        " are compared by their digests, since the next load takes them.",
    ),
    FleetCheck(
        "fleet.image",
        "Cards are used by the same image",
        "a tag that was pulled on different days is not the same image; the digest tells.",
    ),
    FleetCheck(
        "fleet.packages",
        "Hosts of a class have the same versions of the packages that count",
        "compute runtime, Level Zero and torch decide how a kernel is submitted.",
    ),
    FleetCheck(
        "fleet.settings",
        "Hosts of a class have the same settings",
        "a rebooted host comes back slightly different; the odd one out is the one to look at first.",
    ),
    FleetCheck(
        "fleet.bios",
        "Hosts of a class have the same board and BIOS",
        "a BIOS update ended a storm of corrected errors on a four-card host (the public B70 optimization lab).",
    ),
)
TITLES = {check.id: check.title for check in CHECKS}


def class_of(facts: Facts) -> str | None:
    """What a host is compared by: its processor and the kinds of its cards; None where they could not be read.

    The number of cards is not part of it: a host that lost a card is still one of its class.
    """
    gpus, models = facts.pcie.gpus.value, facts.lscpu.model_names.value
    if gpus is None or models is None:
        return None
    kinds = sorted({gpu_ids.name_of(gpu.vendor, gpu.device) for gpu in gpus if not (gpu.integrated or gpu.vf)})
    return f"{' / '.join(models)} with {', '.join(kinds) or 'no card'}"


def classes(hosts: Hosts) -> dict[str, list[tuple[str, Facts]]]:
    """Hosts by class; those whose class could not be told are left out."""
    found: dict[str, list[tuple[str, Facts]]] = {}
    for name, facts in sorted(hosts, key=lambda host: host[0]):
        kind = class_of(facts)
        if kind is not None:
            found.setdefault(kind, []).append((name, facts))
    return found


def judge(hosts: Hosts) -> list[Finding]:
    """All fleet findings, sorted by id and host; () for a single host.

    A host that differs from what more than half of its class has is the odd one out. Without such a majority (two
    hosts that differ, or a class in the middle of an upgrade) every host says what it has.
    """
    found: list[Finding] = []
    if len(hosts) > 1:
        for name, facts in hosts:
            if class_of(facts) is None:
                reading = facts.pcie.gpus if facts.pcie.gpus.value is None else facts.lscpu.model_names
                seen = f"{reading.unread}: its class is not known, so it is compared with no host"
                found.append(Finding("fleet.cards", Subject("host", name), Status.unknown, seen, source=reading.source))
        for members in classes(hosts).values():
            if len(members) > 1:
                for trait in TRAITS:
                    if trait.fleet:
                        found += _of_trait(trait, members)
    return sorted(found, key=lambda finding: (finding.id, finding.subject, finding.seen))


def _of_trait(trait: Trait, members: Hosts) -> Iterator[Finding]:
    readings = {name: trait.read(facts) for name, facts in members}
    there = {name: reading for name, reading in readings.items() if reading.value is not None}
    for name, reading in readings.items():
        if reading.value is None and reading.unread != "absent" and there:
            seen = f"{trait.name} not read: {reading.unread}"
            yield Finding(trait.fleet, Subject("host", name), Status.unknown, seen, source=reading.source)
    values = {name: reading.value or {} for name, reading in there.items()}
    for key in sorted({key for value in values.values() for key in value}):
        yield from _of_value(
            trait, trait.called(key), {name: value.get(key, ABSENT) for name, value in values.items()}, readings
        )


def _of_value(trait: Trait, what: str, values: dict[str, str], readings: dict[str, Any]) -> Iterator[Finding]:
    """Findings for one value that several hosts have."""
    if trait.running:  # a host on which nothing runs now is no odd one
        values = {name: value for name, value in values.items() if value not in (NONE, ABSENT)}
    if len(values) < 2 or len(set(values.values())) < 2:
        return
    most, number = Counter(values.values()).most_common(1)[0]
    has_majority = number * 2 > len(values)
    for name, value in values.items():
        if has_majority and value == most:
            continue
        others = sorted({other for other in values.values() if other != value})
        yield Finding(
            trait.fleet,
            Subject("host", name),
            Status.warn,
            seen=f"{what}: {value}",
            wanted=f"{most}, as {number} of {len(values)} hosts of its class"
            if has_majority
            else f"one value for the class; there are also {', '.join(others)}",
            source=readings[name].source,
            next_step=f"hostcheck diff {next(one for one in values if values[one] == most)} {name}"
            if has_majority
            else f"hostcheck diff {' '.join(sorted(values)[:2])}",
        )


def of_run(reports: Sequence[Report]) -> list[Finding]:
    """What a run says of its hosts together: how they differ, what of it is waived, and which waivers of it have ended.

    Every form of the report takes it from here.
    """
    hosts = [(report.host, report.facts) for report in reports]
    return apply_to_fleet(
        judge(hosts),
        {report.host: report.waivers for report in reports},
        dict(hosts),
        {name for members in classes(hosts).values() if len(members) > 1 for name, _ in members},
    )


def code(findings: Sequence[Finding]) -> int:
    """What these findings add to the code of a run: 1 for a waiver that has ended. A difference is never a failure."""
    return 1 if any(finding.status is Status.fail and finding.waived is None for finding in findings) else 0


def to_plain(reports: Sequence[Report], findings: Sequence[Finding]) -> dict[str, Any]:
    """The part ``fleet`` of a run's summary."""
    hosts = [(report.host, report.facts) for report in reports]
    return {
        "classes": {kind: [name for name, _ in members] for kind, members in classes(hosts).items()},
        "findings": [finding.to_plain() for finding in findings],
    }
