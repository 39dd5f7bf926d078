"""Waivers: exceptions with a reason and an end. A waived finding still runs, keeps its status and is shown.

On findings of the kernel log a waiver excuses events, not a card: a newer event, or one of another boot, is a new fault.
"""

from __future__ import annotations

import fnmatch
from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime, timezone

from .expectations import Waiver
from .findings import Finding, Status, Subject
from .onhost.gather import Facts
from .onhost.recording import seconds

QUIET = (Status.ok, Status.not_applicable)


def covers_events(waiver: Waiver, marks: Sequence[str]) -> bool:
    """Does a waiver excuse every event behind a finding?

    marks: ``BOOT KIND BDF SECONDS WALL`` each (`Finding.marks`), WALL in UTC or ``-`` when the line gave no time. With
    ``boot_id`` all must be of that boot; with ``until_event`` none may be later; an event without a time is never
    known to be early enough.
    """
    boot = (waiver.boot_id or "").replace("-", "").lower()
    for mark in marks:
        of_boot, _, _, _, wall = mark.split(" ")
        if waiver.boot_id is not None and of_boot != boot:
            return False
        if waiver.until_event is not None and (wall == "-" or seconds(wall) > _seconds(waiver.until_event)):
            return False
    return True


def _seconds(moment: datetime) -> float:
    return (moment if moment.tzinfo else moment.replace(tzinfo=timezone.utc)).timestamp()


def matches(waiver: Waiver, finding: Finding, host: str) -> bool:
    """Is a waiver about this finding, apart from its end and from the events behind it?"""
    return (
        fnmatch.fnmatchcase(finding.id, waiver.check)
        and fnmatch.fnmatchcase(finding.subject.name, waiver.subject)
        and any(fnmatch.fnmatchcase(host, pattern) for pattern in waiver.hosts)
    )


def apply_waivers(findings: Sequence[Finding], waivers: Sequence[Waiver], facts: Facts, host: str) -> list[Finding]:
    """Mark the findings that are waived, and say which waivers have ended or match nothing.

    A waiver that has ended waives nothing and gives `waiver.expired` (fail); one for this host that matches no finding
    that needs it gives `waiver.unused` (warn). The result is sorted as before.
    """
    now = datetime.fromtimestamp(seconds(facts.taken_at), timezone.utc)
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
            if result[index].waived is None and covers_events(waiver, result[index].marks):
                text = {"justification": waiver.justification, "until": waiver.until.isoformat()}
                result[index] = replace(result[index], waived=text)
    return sorted([*result, *_distinct(told)], key=lambda finding: (finding.id, finding.subject))


def _distinct(told: list[Finding]) -> list[Finding]:
    """One finding per (id, subject): the first."""
    return list({(finding.id, finding.subject): finding for finding in reversed(told)}.values())
