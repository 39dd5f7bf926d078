"""Every case of tests/cases: a recorded host, a change to it, and all that the change makes the checks say.

The expectation lists every finding other than ok and not_applicable that the unchanged host does not give: one too many
fails as one too few does.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from hostcheck.findings import Finding, Status
from tests import replay

CASES = sorted((Path(__file__).parents[1] / "cases").glob("*.yml"))
KEYS = {"case", "kind", "source", "host", "options", "expectation", "change", "expect"}
EXPECT_KEYS = {"id", "status", "subject", "seen_contains", "next_step_contains", "wanted_contains", "explains"}
QUIET = (Status.ok, Status.not_applicable)


def said(finding: Finding) -> tuple[str, str, str]:
    return finding.id, finding.status.value, finding.subject.name


def matches(finding: Finding, wanted: dict[str, Any]) -> bool:
    texts = {"seen": finding.seen, "next_step": finding.next_step, "wanted": finding.wanted}
    return (
        finding.id == wanted["id"]
        and finding.status.value == wanted["status"]
        and wanted.get("subject", finding.subject.name) == finding.subject.name
        and all(wanted.get(f"{name}_contains", "").lower() in text.lower() for name, text in texts.items())
        and set(wanted.get("explains", ())) <= {item.id for item in finding.explains}
    )


@pytest.mark.parametrize("path", CASES, ids=lambda path: path.stem)
def test_case(path: Path) -> None:
    case = yaml.safe_load(path.read_text(encoding="utf-8"))
    assert set(case) <= KEYS, f"unknown keys {set(case) - KEYS}"
    assert {"case", "kind", "source", "host", "expect"} <= set(case)
    options, expect = case.get("options") or {}, case.get("expectation") or {}
    before = replay.host(case["host"])
    after = replay.changed(before, case.get("change") or {})
    usual = {said(one) for one in replay.report(before, expect, {}).findings}
    new = [
        one
        for one in replay.report(after, expect, options).findings
        if one.status not in QUIET and said(one) not in usual
    ]
    missing = []
    for wanted in case["expect"] or ():
        assert set(wanted) <= EXPECT_KEYS, f"unknown keys {set(wanted) - EXPECT_KEYS}"
        found = next((one for one in new if matches(one, wanted)), None)
        if found is None:
            missing.append(wanted)
        else:
            new.remove(found)
    told = "\n".join(f"  {one.id} {one.status} {one.subject}: {one.seen}" for one in new)
    assert not missing, f"not given: {missing}\ngiven besides:\n{told}"
    assert not new, f"given, but not in the case:\n{told}"
