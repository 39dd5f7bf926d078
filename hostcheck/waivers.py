"""Waivers: exceptions with a reason and an end. A waived finding still runs, keeps its status and is shown.

On findings of the kernel log a waiver excuses events, not a card: a newer event, or one of another boot, is a new
fault.
"""

from __future__ import annotations

import fnmatch
from collections.abc import Sequence
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


def apply_waivers(findings: Sequence[Finding], waivers: Sequence[Waiver], facts: Facts, host: str) -> list[Finding]:
    """Mark the findings that are waived, and say which waivers have ended or match nothing.

    A waiver that has ended waives nothing and gives `waiver.expired` (fail); one for this host that matches no finding
    that needs it gives `waiver.unused` (warn). The result is sorted as before.
    """
    now = datetime.fromtimestamp(seconds(facts.taken_at), UTC)
    boot = facts.kernel_log.boot_id.value or "-"
    result = list(findings)
    told: list[Finding] = []
    for waiver in waivers:
        if not any(fnmatch.fnmatchcase(host, pattern) for pattern in waiver.hosts):
            continue
        about = [
            index
            for index, finding in enumerate(result)
            if finding.status not in QUIET and matches(waiver, finding, host)
        ]
        name = Subject("waiver", f"{waiver.check} {waiver.subject}")
        if not waiver.holds(now):
            told.append(
                Finding(
                    "waiver.expired",
                    name,
                    Status.fail,
                    seen=f"ended {waiver.until.isoformat()}: {waiver.justification}",
                    wanted="a waiver that still holds, or none",
                    source="hostcheck_waivers",
                    next_step="remove this waiver from hostcheck_waivers, or give it a new end and reason",
                )
            )
            continue
        if not about:
            told.append(
                Finding(
                    "waiver.unused",
                    name,
                    Status.warn,
                    seen=f"matches no finding: {waiver.justification}",
                    wanted="only waivers that are needed",
                    source="hostcheck_waivers",
                    next_step="remove this waiver from hostcheck_waivers",
                )
            )
        for index in about:
            if result[index].waived is None and covers_events(waiver, result[index], boot):
                text = {"justification": waiver.justification, "until": waiver.until.isoformat()}
                result[index] = replace(result[index], waived=text)
    return sorted([*result, *_distinct(told)], key=lambda finding: (finding.id, finding.subject))


def _distinct(told: list[Finding]) -> list[Finding]:
    """One finding per (id, subject): the first."""
    return list({(finding.id, finding.subject): finding for finding in reversed(told)}.values())
