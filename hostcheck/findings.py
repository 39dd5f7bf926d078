"""Findings: the result of one check on one subject, and what follows from all of them together."""

from __future__ import annotations

import enum
import fnmatch
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from .onhost.reader import Reading

if TYPE_CHECKING:
    from .expectations import Expectation
    from .onhost.gather import Facts


class Status(str, enum.Enum):
    """Status of a finding.

    ok: as it should be. info: by design, or limited by the host. unknown: could not be read, so nothing is
    claimed; it is never ok and never hides a fail. not_applicable: this host cannot have it.
    """

    ok = "ok"
    info = "info"
    warn = "warn"
    fail = "fail"
    unknown = "unknown"
    not_applicable = "not_applicable"

    def __str__(self) -> str:
        return self.value


class Subject(NamedTuple):
    """What a finding is about. kind: host, gpu, link, port, cpu, interface, tool, log, unit …; name: e.g. a BDF."""

    kind: str
    name: str

    def __str__(self) -> str:
        return self.name


HOST = Subject("host", "host")


class Cause(NamedTuple):
    """The finding that explains another one."""

    id: str
    subject: Subject


@dataclass(frozen=True)
class Finding:
    """The result of one check on one subject.

    seen, wanted: what was read and what should be there, for a person.
    source: where it was read.
    next_step: one copyable command or one BIOS item; "" when there is nothing to do.
    explains: findings that are consequences of this one and are not listed on their own.
    waived: the waiver's justification and end, or None. A waived finding keeps its status.
    cause: set by a check on a consequence; see `fold`. Not part of the report.
    """

    id: str
    subject: Subject
    status: Status
    seen: str = ""
    wanted: str = ""
    source: str = ""
    next_step: str = ""
    explains: tuple[Finding, ...] = ()
    waived: dict[str, str] | None = None
    cause: Cause | None = field(default=None, compare=False)
    marks: tuple[str, ...] = field(default=(), compare=False)
    """Identities of the events behind a log finding (boot, kind, time), for waivers; not part of the report."""

    def to_plain(self) -> dict[str, Any]:
        """The finding as it stands in every report."""
        return {
            "id": self.id,
            "subject": {"kind": self.subject.kind, "name": self.subject.name},
            "status": self.status.value,
            "seen": self.seen,
            "wanted": self.wanted,
            "source": self.source,
            "next_step": self.next_step,
            "explains": [
                {
                    "id": item.id,
                    "subject": {"kind": item.subject.kind, "name": item.subject.name},
                    "status": item.status.value,
                    "seen": item.seen,
                }
                for item in self.explains
            ],
            "waived": self.waived,
        }


Judge = Callable[["Facts", "Expectation", "Facts | None"], Iterator[Finding]]
J = TypeVar("J", bound=Judge)


class Unread(Exception):
    """Raised by `need` for a reading without a value; the runner turns it into an `unknown` finding."""

    def __init__(self, reading: Reading[Any]) -> None:
        super().__init__(reading.detail)
        self.reading = reading


T = TypeVar("T")


def need(reading: Reading[T]) -> T:
    """The value of a reading that a check cannot do without."""
    if reading.value is None:
        raise Unread(reading)
    return reading.value


@dataclass(frozen=True)
class Declaration:
    """What a check says of itself.

    ids: the finding ids it may give. title: one line. subject: used when the check as a whole is unknown.
    """

    ids: tuple[str, ...]
    title: str
    subject: Subject
    run: Judge


def check(*ids: str, title: str, subject: Subject = HOST) -> Callable[[J], J]:
    """Declare a check; `hostcheck.checks` collects what is declared. The docstring of the function says why."""

    def declare(function: J) -> J:
        function.declaration = Declaration(ids, title, subject, function)  # type: ignore[attr-defined]
        return function

    return declare


def unknown(id: str, reading: Reading[Any], subject: Subject = HOST, next_step: str = "") -> Finding:
    """The finding for a reading that could not be taken: says why, claims nothing."""
    seen = f"{reading.unread}: {reading.detail}" if reading.detail else str(reading.unread)
    return Finding(id, subject, Status.unknown, seen=seen, source=reading.source, next_step=next_step)


def run(
    declarations: Iterable[Declaration], facts: Facts, expectation: Expectation, previous: Facts | None = None
) -> list[Finding]:
    """All findings of one host, consequences folded into their causes, sorted by id and subject."""
    findings: list[Finding] = []
    for declaration in declarations:
        given: list[Finding] = []
        try:
            for finding in declaration.run(facts, expectation, previous):
                given.append(finding)
        except Unread as error:
            judged = {finding.id for finding in given}
            given += [unknown(id, error.reading, declaration.subject) for id in declaration.ids if id not in judged]
        findings += given
    return sorted(fold(findings), key=lambda finding: (finding.id, finding.subject))


def _root(item: Finding, by_key: dict[tuple[str, Subject], Finding]) -> Finding | None:
    """The first cause of a finding, or None where it stands alone (no cause that is not ok, or a circle)."""
    root: Finding | None = None
    passed = {(item.id, item.subject)}
    cause = item.cause
    while cause is not None and (found := by_key.get((cause.id, cause.subject))) is not None:
        if found is item:
            return None
        if found.status in (Status.ok, Status.not_applicable) or (found.id, found.subject) in passed:
            break
        passed.add((found.id, found.subject))
        root, cause = found, found.cause
    return root


def fold(findings: Sequence[Finding]) -> list[Finding]:
    """Move every finding whose cause is among the findings into that cause's `explains`.

    A chain ends at its first cause. A cause that is itself ok explains nothing: its consequences stand alone.
    """
    by_key = {(item.id, item.subject): item for item in findings}
    consequences: dict[tuple[str, Subject], list[Finding]] = {}
    kept: list[Finding] = []
    for item in findings:
        root = _root(item, by_key)
        if root is None:
            kept.append(item)
        else:
            consequences.setdefault((root.id, root.subject), []).append(item)
    return [
        replace(
            item,
            explains=(
                *item.explains,
                *sorted(consequences[(item.id, item.subject)], key=lambda one: (one.id, one.subject)),
            ),
        )
        if (item.id, item.subject) in consequences
        else item
        for item in kept
    ]


def all_unknown(findings: Iterable[Finding]) -> Iterator[Finding]:
    """Every unknown finding, those folded into a cause included."""
    for finding in findings:
        if finding.status is Status.unknown:
            yield finding
        yield from all_unknown(finding.explains)


def exit_code(findings: Sequence[Finding], required: Iterable[str], fail_on: Status = Status.fail) -> int:
    """0 nothing failing, 1 an unwaived fail (or warn with ``fail_on=warn``), 3 a required check is unknown.

    required: check ids, ``*`` allowed.
    """
    failing = {Status.fail} | ({Status.warn} if fail_on is Status.warn else set())
    if any(finding.status in failing and finding.waived is None for finding in findings):
        return 1
    patterns = tuple(required)
    if any(fnmatch.fnmatchcase(item.id, pattern) for item in all_unknown(findings) for pattern in patterns):
        return 3
    return 0
