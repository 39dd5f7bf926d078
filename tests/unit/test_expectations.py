"""Bad wishes and waivers are refused before anything is touched, with the key that is wrong."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from hostcheck.expectations import REQUIRED_WITH_GPU, Refused, expectation, waivers

GOOD = {"check": "cpu.governor", "justification": "a trial runs", "until": "2030-01-31"}


def test_nothing_is_wanted_unless_declared() -> None:
    wanted = expectation({})
    assert wanted.settings.cpu_governor.governor is None
    assert wanted.settings.pcie_aspm.policy is None
    assert not wanted.gpus.expected
    assert wanted.required_ids(gpu_present=False) == ()
    assert wanted.required_ids(gpu_present=True) == REQUIRED_WITH_GPU


def test_cards_that_are_expected_make_their_checks_required() -> None:
    assert expectation({"gpus": {"count": 2}}).required_ids(gpu_present=False) == REQUIRED_WITH_GPU
    assert expectation({"gpus": {"count": 0}}).required_ids(gpu_present=False) == ()
    assert expectation({"required": []}).required_ids(gpu_present=True) == ()


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ({"gpu": {}}, "gpu: unknown key"),
        ({"settings": {"cpu_governor": {"gouvernor": "x"}}}, "settings.cpu_governor.gouvernor: unknown key"),
        ({"gpus": {"bdfs": ["03:00.0"]}}, "with its domain"),
        ({"gpus": {"count": -1}}, "gpus.count"),
        ({"schema": "hostcheck/expectation/9"}, "schema"),
        ([], "the whole"),
        ("text", "the whole"),
    ],
)
def test_mistakes_are_named(data: object, message: str) -> None:
    with pytest.raises(Refused, match=message):
        expectation(data)


def test_a_waiver_needs_a_reason_and_an_end() -> None:
    (waiver,) = waivers([GOOD])
    assert waiver.holds(datetime(2030, 1, 31, 23, 0, tzinfo=UTC))
    assert not waiver.holds(datetime(2030, 2, 1, 0, 0, 1, tzinfo=UTC))
    for key in ("justification", "until", "check"):
        with pytest.raises(Refused, match=f"{key}: is missing"):
            waivers([{name: value for name, value in GOOD.items() if name != key}])
    with pytest.raises(Refused, match="justification"):
        waivers([{**GOOD, "justification": ""}])


@pytest.mark.parametrize("check", ["gpu.fault", "gpu.wedged", "aer.rate", "aer.fatal"])
def test_a_waiver_of_a_log_finding_names_its_events(check: str) -> None:
    with pytest.raises(Refused, match="boot_id or until_event"):
        waivers([{**GOOD, "check": check}])
    assert waivers([{**GOOD, "check": check, "boot_id": "x"}])
    assert waivers([{**GOOD, "check": check, "until_event": "2026-01-01T00:00:00Z"}])


def test_the_document_form_of_waivers() -> None:
    assert waivers({"schema": "hostcheck/waivers/1", "waivers": [GOOD]})
    with pytest.raises(Refused, match="wanted a list"):
        waivers({"waivers": [GOOD]})
    with pytest.raises(Refused, match="wanted a list"):
        waivers("x")
