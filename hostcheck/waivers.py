"""Waivers: exceptions with a reason and an end. A waived finding still runs, keeps its status and is shown.

On findings of the kernel log a waiver excuses events, not a card: a newer event, or one of another boot, is a new
fault. One whose check is ``fleet.…`` is about differences between the hosts of a run, and is told of once for all of
them.
"""

from __future__ import annotations

import fnmatch
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime

from .expectations import Waiver
from .findings import Finding, Status, Subject
from .onhost.gather import Facts
from .onhost.recording import seconds

LOG_CHECKS = ("gpu.fault", "gpu.wedged", "gpu.lost", "aer.")
QUIET = (Status.ok, Status.not_applicable)


def covers_events(waiver: Waiver, finding: Finding, boot: str) -> bool:
    """Does a waiver excuse every event behind a finding?

    The marks of a finding are ``BOOT KIND BDF SECONDS WALL`` each, WALL in UTC or ``-`` when the line gave no time.
    With ``boot_id`` all must be of that boot; with ``until_event`` none may be later, and one without a time is never
    known to be early enough. boot: of these facts, for a finding that rests on no line, such as a counter since the
    boot.
    """
    if waiver.boot_id is not None:
        wanted = waiver.boot_id.replace("-", "").lower()
        if any(of_boot != wanted for of_boot in {mark.split(" ")[0] for mark in finding.marks} or {boot}):
            return False
    if waiver.until_event is None:
        return True
    if not finding.marks:
        return waiver.boot_id is not None or not finding.id.startswith(LOG_CHECKS)
    walls = [mark.split(" ")[4] for mark in finding.marks]
    return all(wall != "-" and seconds(wall) <= _seconds(waiver.until_event) for wall in walls)


def _seconds(moment: datetime) -> float:
    return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()


def matches(waiver: Waiver, finding: Finding, host: str) -> bool:
    """Is a waiver about this finding, apart from its end and from the events behind it?

    Addresses are written in either case: tools and logs print ``0000:E3:00.0``.
    """
    return (
        fnmatch.fnmatchcase(finding.id, waiver.check)
        and fnmatch.fnmatchcase(finding.subject.name.lower(), waiver.subject.lower())
        and any(fnmatch.fnmatchcase(host, pattern) for pattern in waiver.hosts)
    )


def is_of_fleet(waiver: Waiver) -> bool:
    """Is a waiver about differences between hosts, and about nothing of one host alone?"""
    return waiver.check.startswith("fleet")


def _expired(waiver: Waiver) -> Finding:
    return Finding(
        "waiver.expired",
        _subject(waiver),
        Status.fail,
        seen=f"ended {waiver.until.isoformat()}: {waiver.justification}",
        wanted="a waiver that still holds, or none",
        source="hostcheck_waivers",
        next_step="remove this waiver from hostcheck_waivers, or give it a new end and reason",
    )


def _unused(waiver: Waiver) -> Finding:
    return Finding(
        "waiver.unused",
        _subject(waiver),
        Status.warn,
        seen=f"matches no finding: {waiver.justification}",
        wanted="only waivers that are needed",
        source="hostcheck_waivers",
        next_step="remove this waiver from hostcheck_waivers",
    )


def _subject(waiver: Waiver) -> Subject:
    return Subject("waiver", f"{waiver.check} {waiver.subject}")


def _waived(waiver: Waiver, finding: Finding, boot: str) -> Finding:
    """The finding, marked where the waiver excuses all of it and no other one does already."""
    if finding.waived is not None or not covers_events(waiver, finding, boot):
        return finding
    return replace(finding, waived={"justification": waiver.justification, "until": waiver.until.isoformat()})


def _now(facts: Facts) -> datetime:
    return datetime.fromtimestamp(seconds(facts.taken_at), UTC)


def _boot(facts: Facts) -> str:
    return facts.kernel_log.boot_id.value or "-"


def apply_waivers(findings: Sequence[Finding], waivers: Sequence[Waiver], facts: Facts, host: str) -> list[Finding]:
    """Mark the findings of one host that are waived, and say which waivers have ended or match nothing.

    A waiver that has ended waives nothing and gives `waiver.expired` (fail); one for this host that matches no finding
    that needs it gives `waiver.unused` (warn). Those of the fleet are left to `apply_to_fleet`. The result is sorted as
    before.
    """
    result = list(findings)
    told: list[Finding] = []
    for waiver in waivers:
        if is_of_fleet(waiver) or not any(fnmatch.fnmatchcase(host, pattern) for pattern in waiver.hosts):
            continue
        if not waiver.holds(_now(facts)):
            told.append(_expired(waiver))
            continue
        about = [
            index
            for index, finding in enumerate(result)
            if finding.status not in QUIET and matches(waiver, finding, host)
        ]
        if not about:
            told.append(_unused(waiver))
        for index in about:
            result[index] = _waived(waiver, result[index], _boot(facts))
    return sorted([*result, *_distinct(told)], key=lambda finding: (finding.id, finding.subject))


def apply_to_fleet(
    findings: Sequence[Finding],
    given: Mapping[str, Sequence[Waiver]],
    facts: Mapping[str, Facts],
    compared: Collection[str],
) -> list[Finding]:
    """The same for findings between hosts, whose subject is the host that differs.

    given: by host, the waivers that its inventory has; each holds for that host alone. Those of the fleet are told of
    once, however many hosts have them; of the others each host tells. compared: hosts that were compared with another
    one; a waiver for none of them is not called unused, since nothing was looked for.
    """
    result = list(findings)
    told: list[Finding] = []
    owners: list[tuple[Waiver, list[str]]] = []
    for host in sorted(given):
        for waiver in given[host]:
            if not any(fnmatch.fnmatchcase(host, pattern) for pattern in waiver.hosts):
                continue
            hosts = next((hosts for known, hosts in owners if known == waiver), None)
            if hosts is None:
                owners.append((waiver, [host]))
            else:
                hosts.append(host)
    for waiver, hosts in owners:
        if not waiver.holds(max(_now(facts[host]) for host in hosts)):
            told += [_expired(waiver)] if is_of_fleet(waiver) else []
            continue
        about = [
            index
            for index, finding in enumerate(result)
            if finding.subject.name in hosts and matches(waiver, finding, finding.subject.name)
        ]
        if not about and is_of_fleet(waiver) and any(host in compared for host in hosts):
            told.append(_unused(waiver))
        for index in about:
            result[index] = _waived(waiver, result[index], _boot(facts[result[index].subject.name]))
    return sorted([*result, *_distinct(told)], key=lambda finding: (finding.id, finding.subject, finding.seen))


def _distinct(told: list[Finding]) -> list[Finding]:
    """One finding per (id, subject): the first."""
    return list({(finding.id, finding.subject): finding for finding in reversed(told)}.values())
