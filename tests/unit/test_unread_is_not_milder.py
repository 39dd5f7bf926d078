"""What could not be read never makes a verdict milder: in every case, each reading that is refused in turn.

A finding that fails or warns may become unknown, or stay; it may not become ok or go away.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from hostcheck import checks
from hostcheck.expectations import expectation
from hostcheck.findings import Finding, Status, exit_code, run
from hostcheck.onhost.gather import GROUPS, Facts, Options, gather
from hostcheck.onhost.reader import Reading
from hostcheck.onhost.recording import RecordedReader
from tests import replay

CASES = sorted((Path(__file__).parents[1] / "cases").glob("*.yml"))
BAD = (Status.fail, Status.warn)
# Two witnesses of the same thing, each enough: the log beside the kernel's counters, and beside the size of the BAR.
OTHER_WITNESS = {
    ("kernel_log.events", "aer.fatal"),
    ("kernel_log.events", "aer.rate"),
    ("kernel_log.events", "rebar"),
}
Way = tuple[str | int, ...]
GROUP = len(("pcie", "gpus"))


def readings(value: Any, way: Way) -> Iterator[Way]:
    """The way to every reading with a value, those inside of others included."""
    if isinstance(value, Reading):
        if value.value is not None:
            yield way
            yield from readings(value.value, (*way, "value"))
    elif dataclasses.is_dataclass(value):
        for field in dataclasses.fields(value):
            yield from readings(getattr(value, field.name), (*way, field.name))
    elif isinstance(value, tuple):
        for number, item in enumerate(value):
            yield from readings(item, (*way, number))


def with_(value: Any, way: Way, new: Any) -> Any:
    """The value with another one at the end of the way."""
    if not way:
        return new
    first = way[0]
    if isinstance(first, int):
        return (*value[:first], with_(value[first], way[1:], new), *value[first + 1 :])
    return dataclasses.replace(value, **{first: with_(getattr(value, first), way[1:], new)})


def all_of(findings: Any) -> Iterator[Finding]:
    for finding in findings:
        yield finding
        yield from all_of(finding.explains)


def told(facts: Facts, expect: dict[str, Any], ids: set[str]) -> list[Finding]:
    """What the checks with these ids say."""
    return run([one for one in checks.ALL if ids & set(one.ids)], facts, expectation(expect))


def is_far(facts: Facts, way: Way, names: set[str]) -> bool:
    """Is this a reading of a card that is not the first one and that nothing was said of?"""
    if way[:3] != ("pcie", "gpus", "value") or len(way) < 4 or way[3] == 0:
        return False
    gpu = (facts.pcie.gpus.value or ())[int(way[3])]
    return not names & {gpu.bdf, *(hop.bdf for hop in gpu.path)}


@pytest.mark.parametrize("depth", [GROUP, pytest.param(99, marks=pytest.mark.long)])
@pytest.mark.parametrize("path", CASES, ids=lambda path: path.stem)
def test_a_reading_that_is_refused(path: Path, depth: int) -> None:
    """depth: steps to the readings that are refused; those of a card or a processor are many."""
    case = yaml.safe_load(path.read_text(encoding="utf-8"))
    recording = replay.changed(replay.host(case["host"]), case.get("change") or {})
    facts = gather(RecordedReader(recording), Options(**(case.get("options") or {})))
    expect = case.get("expectation") or {}
    bad = [one for one in run(checks.ALL, facts, expectation(expect)) if one.status in BAD]
    ids, names = {one.id for one in bad}, {one.subject.name for one in bad}
    milder = set()
    for group in GROUPS:
        for way in readings(getattr(facts, group), (group,)):
            if not bad or len(way) > depth or is_far(facts, way, names):
                continue
            refused: Reading[Any] = Reading.no("permission", "refused", "/refused")
            after = list(all_of(told(with_(facts, way, refused), expect, ids)))
            kept = {one.id for one in after if one.status in (*BAD, Status.unknown)}
            where = ".".join("*" if isinstance(step, int) else step for step in way)
            milder |= {(where, id) for id in ids - kept} - OTHER_WITNESS
    assert milder == set()


@pytest.mark.parametrize("name", ["four-card-gen4", "gpu-vm", "nvidia-host", "virtual-machine"])
def test_a_group_that_hung(name: str) -> None:
    """Every check still says something, and the exit code is none that is milder."""
    facts = gather(RecordedReader(replay.host(name)))
    usual = run(checks.ALL, facts, expectation({}))
    required = tuple({one.id for one in usual})
    for group in GROUPS:
        value = getattr(facts, group)
        hung = {field.name: Reading.no("timeout", "did not end within 20 s") for field in dataclasses.fields(value)}
        found = run(checks.ALL, dataclasses.replace(facts, **{group: type(value)(**hung)}), expectation({}))
        assert {one.id for one in usual} <= {one.id for one in all_of(found)}, group
        assert exit_code(found, required) >= exit_code(usual, required), group
