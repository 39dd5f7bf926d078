"""Findings: folding, unknowns, exit codes and their precedence."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hostcheck.findings import (
    HOST,
    Cause,
    Declaration,
    Finding,
    Status,
    Subject,
    exit_code,
    fold,
    need,
    run,
    unknown,
)
from hostcheck.onhost.reader import Reading

GPU = Subject("gpu", "0000:03:00.0")
PORT = Subject("port", "0000:00:01.0")


def finding(id: str, status: Status, subject: Subject = HOST, cause: Cause | None = None) -> Finding:
    return Finding(id, subject, status, cause=cause)


def test_a_consequence_stands_in_its_cause() -> None:
    lost = finding("gpu.lost", Status.fail, GPU)
    after = finding("aer.rate", Status.info, PORT, Cause("gpu.lost", GPU))
    (only,) = fold([after, lost])
    assert only.id == "gpu.lost"
    assert [item.id for item in only.explains] == ["aer.rate"]


def test_a_consequence_without_its_cause_stands_alone() -> None:
    alone = finding("aer.rate", Status.unknown, PORT, Cause("aer.visibility", PORT))
    assert fold([alone]) == [alone]
    healthy = finding("aer.visibility", Status.ok, PORT)
    assert {item.id for item in fold([alone, healthy])} == {"aer.rate", "aer.visibility"}


def test_a_chain_ends_at_its_first_cause() -> None:
    first = finding("a", Status.fail)
    second = finding("b", Status.warn, cause=Cause("a", HOST))
    third = finding("c", Status.unknown, cause=Cause("b", HOST))
    (only,) = fold([third, second, first])
    assert [item.id for item in only.explains] == ["b", "c"]


def test_causes_in_a_circle_lose_nothing() -> None:
    one = finding("a", Status.fail, cause=Cause("b", HOST))
    two = finding("b", Status.fail, cause=Cause("a", HOST))
    itself = finding("c", Status.fail, cause=Cause("c", HOST))
    kept = fold([one, two, itself])
    told = {item.id for item in kept} | {item.id for cause in kept for item in cause.explains}
    assert told == {"a", "b", "c"}


@given(
    st.lists(
        st.tuples(st.sampled_from("abcd"), st.sampled_from(list(Status)), st.sampled_from(["", "a", "b", "c", "d"])),
        max_size=8,
        unique_by=lambda item: item[0],
    )
)
def test_folding_never_loses_or_doubles_a_finding(items: list[tuple[str, Status, str]]) -> None:
    findings = [finding(id, status, cause=Cause(cause, HOST) if cause else None) for id, status, cause in items]
    kept = fold(findings)
    told = [item.id for item in kept] + [item.id for cause in kept for item in cause.explains]
    assert sorted(told) == sorted(item.id for item in findings)


@pytest.mark.parametrize(
    ("statuses", "required", "code"),
    [
        ([Status.ok, Status.info, Status.not_applicable, Status.warn], ("x",), 0),
        ([Status.fail, Status.unknown], ("x",), 1),
        ([Status.unknown], ("x",), 3),
        ([Status.unknown], ("y",), 0),
        ([Status.unknown], ("x*",), 3),
        ([], ("x",), 0),
    ],
)
def test_exit_code(statuses: list[Status], required: tuple[str, ...], code: int) -> None:
    assert exit_code([finding("x", status) for status in statuses], required) == code


def test_fail_on_warn_raises() -> None:
    assert exit_code([finding("x", Status.warn)], (), Status.warn) == 1


def test_a_waived_fail_counts_no_more_but_an_unknown_folded_into_it_does() -> None:
    waived = {"justification": "known", "until": "2030-01-01"}
    hidden = Finding("log.access", HOST, Status.unknown)
    item = Finding("gpu.fault", GPU, Status.fail, waived=waived, explains=(hidden,))
    assert exit_code([item], ()) == 0
    assert exit_code([item], ("log.access",)) == 3


def declared(*ids: str) -> Any:
    def wrap(function: Any) -> Declaration:
        return Declaration(ids, "title", HOST, function)

    return wrap


def test_a_reading_that_is_missing_makes_every_unjudged_id_unknown() -> None:
    @declared("x.one", "x.two")
    def judge(*_: Any) -> Iterator[Finding]:
        yield finding("x.one", Status.ok)
        need(Reading.no("permission", "EACCES", "/sys/x"))

    found = run([judge], None, None)  # type: ignore[arg-type]
    assert [(item.id, item.status) for item in found] == [("x.one", Status.ok), ("x.two", Status.unknown)]
    assert found[1].source == "/sys/x"
    assert "permission" in found[1].seen


def test_unknown_says_why() -> None:
    assert unknown("x", Reading.no("timeout", "took 10 s", "/sys/x")).seen == "timeout: took 10 s"
    assert unknown("x", Reading.no("not_asked")).seen == "not_asked"


def test_order_of_findings_does_not_depend_on_the_order_of_checks() -> None:
    @declared("b")
    def first(*_: Any) -> Iterator[Finding]:
        yield finding("b", Status.ok, PORT)
        yield finding("b", Status.ok, GPU)

    @declared("a")
    def second(*_: Any) -> Iterator[Finding]:
        yield finding("a", Status.ok)

    one = run([first, second], None, None)  # type: ignore[arg-type]
    other = run([second, first], None, None)  # type: ignore[arg-type]
    assert one == other == sorted(one, key=lambda item: (item.id, item.subject))
