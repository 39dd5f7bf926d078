"""GuC firmware: never more than a warning, and never silent where nothing was read."""

from __future__ import annotations

from typing import Any

import pytest

from hostcheck.checks.firmware import version
from hostcheck.findings import Finding, Status
from tests import replay

ONE, TWO = "0000:03:00.0", "0000:e3:00.0"
LOADED = "[ 25.0] xe {}: [drm] Tile0: GT0: Using GuC firmware from xe/bmg_guc_70.bin version {}\n"


def findings(text: str = "", expect: dict[str, Any] | None = None, **change: Any) -> dict[str, Finding]:
    recording = replay.changed(replay.host("two-card-gen5"), {**({"log": text} if text else {}), **change})
    return {one.subject.name: one for one in replay.report(recording, expect).findings if one.id == "fw.guc"}


def statuses(text: str = "", expect: dict[str, Any] | None = None) -> dict[str, Status]:
    return {name: one.status for name, one in findings(text, expect).items()}


def test_a_loaded_firmware_is_ok() -> None:
    found = findings()
    assert {name: one.status for name, one in found.items()} == {ONE: Status.ok, TWO: Status.ok}
    assert found[ONE].seen == "running 70.54.0"


@pytest.mark.parametrize("wrap", [" ", "\n            "])
def test_a_better_firmware_that_was_not_found_is_a_warning(wrap: str) -> None:
    line = f"GuC firmware (70.54.0) is recommended,{wrap}but only (70.44.1) was found in xe/bmg_guc_70.bin"
    text = f"[ 25.0] xe {ONE}: [drm] {line}"
    found = findings(text)
    assert (found[ONE].status, "70.44.1 found" in found[ONE].seen, found[TWO].status) == (Status.warn, True, Status.ok)


@pytest.mark.parametrize(
    ("running", "wanted", "status"),
    [("70.72.1", "70.54.0", Status.info), ("70.9.1", "70.54.0", Status.warn), ("70.54.0", "70.54.0", Status.ok)],
)
@pytest.mark.parametrize("form", ["GuC version: {} (wanted {})", "GuC version {}, wanted {}"])
def test_running_against_wanted(form: str, running: str, wanted: str, status: Status) -> None:
    text = f"[ 25.0] xe {ONE}: [drm] {form.format(running, wanted)}"
    assert statuses(text)[ONE] is status


def test_the_wish_of_the_inventory_counts_as_well() -> None:
    assert statuses(expect={"guc": {"wanted": "70.54.0"}}) == {ONE: Status.ok, TWO: Status.ok}
    assert statuses(expect={"guc": {"wanted": "70.60.0"}}) == {ONE: Status.warn, TWO: Status.warn}
    assert statuses(expect={"guc": {"wanted": "70.44.1"}}) == {ONE: Status.info, TWO: Status.info}


@pytest.mark.parametrize(
    ("pattern", "status"), [("7.0.0-*", Status.warn), ("6.17*", Status.ok), ("7.0.0-2", Status.ok)]
)
def test_a_pair_that_the_inventory_lists_as_bad(pattern: str, status: Status) -> None:
    expect = {"guc": {"known_bad": [[pattern, "70.54.0"]]}}
    assert set(statuses(expect=expect).values()) == {status}


def test_cards_of_one_model_with_two_versions_are_a_warning_of_the_host() -> None:
    text = LOADED.format(TWO, "70.72.1")
    found = findings(text)
    assert (found["host"].status, "70.54.0 and 70.72.1" in found["host"].seen) == (Status.warn, True)
    assert found[TWO].status is Status.ok
    both = "".join(LOADED.format(card, "70.72.1") for card in (ONE, TWO))
    assert "host" not in statuses(both)


def test_a_wanted_version_without_an_address_is_told_of_the_host() -> None:
    assert statuses("[ 25.0] GuC version: 70.72.1 (wanted 70.54.0)")["host"] is Status.info


def test_no_line_is_no_firmware_that_is_ok() -> None:
    lines = replay.host("two-card-gen5")["commands"][replay.JOURNAL]["stdout"].splitlines()
    kept = "".join(f"{line}\n" for line in lines if "GuC" not in line)
    found = findings(commands={replay.JOURNAL: {"rc": 0, "stdout": kept, "stderr": ""}})
    assert {one.status for one in found.values()} == {Status.unknown}


def test_versions_are_compared_as_numbers() -> None:
    assert version("70.9.1") < version("70.54.0") < version("70.54.10")
