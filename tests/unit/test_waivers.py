"""Waivers excuse events, not cards; they end, and they must be needed."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hostcheck.assess import Report, assess
from hostcheck.expectations import expectation, waivers
from hostcheck.findings import Finding, Status
from hostcheck.onhost.gather import Options, gather
from hostcheck.onhost.recording import RecordedReader, seconds, utc
from tests import replay

HOST, CARD = "four-card-gen4", "0000:23:00.0"
BOOT = "5b0f8d8e-2f6a-4c0b-9d0e-6a1f1c2b3d45"
DUMP = "[ {}.0] xe {}: [drm] Xe device coredump has been created\n"
UNTIL = "2027-01-01"


def report(text: str, *given: dict[str, Any], name: str = "host-a", host: str = HOST) -> Report:
    recording = replay.changed(replay.host(host), {"log": text} if text else {})
    facts = gather(RecordedReader(recording), Options())
    rules = [{"justification": "known", "until": UNTIL, **one} for one in given]
    return assess(facts, expectation({}), waivers(rules), name)


def fault(found: Report, card: str = CARD) -> Finding:
    return next(one for one in found.findings if (one.id, one.subject.name) == ("gpu.fault", card))


def ids(found: Report) -> list[str]:
    return [one.id for one in found.findings if one.id.startswith("waiver.")]


def wall(at: float) -> str:
    """UTC of a time after the boot of the recorded host, as the report shows it."""
    one = fault(report(DUMP.format(int(at), CARD)))
    return one.marks[0].split(" ")[4]


def test_a_waived_finding_keeps_its_status_and_does_not_fail() -> None:
    found = report(DUMP.format(5000, CARD), {"check": "gpu.fault", "subject": CARD, "boot_id": BOOT})
    one = fault(found)
    assert (one.status, found.exit) == (Status.fail, 0)
    assert one.waived == {"justification": "known", "until": "2027-01-01T23:59:59+00:00"}
    assert ids(found) == []


@given(st.integers(-3600, 3600))
def test_a_newer_event_is_a_new_fault(offset: int) -> None:
    until = utc(seconds(wall(9000)) + offset)
    found = report(DUMP.format(9000, CARD), {"check": "gpu.fault", "until_event": until})
    assert (fault(found).waived is not None) == (offset >= 0)
    assert found.exit == (0 if offset >= 0 else 1)


def test_one_newer_event_of_another_kind_fails_again() -> None:
    rule = {"check": "gpu.fault", "subject": CARD, "until_event": wall(5000)}
    assert report(DUMP.format(5000, CARD), rule).exit == 0
    newer = f"[ 5002.0] xe {CARD}: [drm] GT0: Fault response: Unsuccessful -ENOENT\n"
    assert report(DUMP.format(5000, CARD) + newer, rule).exit == 1


@pytest.mark.parametrize(
    ("rule", "is_waived"),
    [
        ({"check": "gpu.*", "boot_id": BOOT}, True),
        ({"check": "gpu.fault", "boot_id": BOOT.replace("-", "")}, True),
        ({"check": "gpu.fault", "boot_id": "00000000-0000-0000-0000-000000000001"}, False),
        ({"check": "gpu.fault", "boot_id": BOOT, "hosts": ["host-b"]}, False),
        ({"check": "gpu.fault", "boot_id": BOOT, "hosts": ["host-?"]}, True),
        ({"check": "gpu.fault", "boot_id": BOOT, "subject": "0000:27:00.0"}, False),
        ({"check": "gpu.lost", "boot_id": BOOT}, False),
    ],
)
def test_what_a_waiver_matches(rule: dict[str, Any], is_waived: bool) -> None:
    assert (fault(report(DUMP.format(5000, CARD), rule)).waived is not None) == is_waived


def test_a_waiver_that_has_ended_waives_nothing_and_fails() -> None:
    found = report(DUMP.format(5000, CARD), {"check": "gpu.fault", "boot_id": BOOT, "until": "2020-01-01"})
    assert fault(found).waived is None
    assert ids(found) == ["waiver.expired"]
    assert report("", {"check": "gpu.fault", "boot_id": BOOT, "until": "2020-01-01"}).exit == 1


def test_a_waiver_that_matches_nothing_is_told() -> None:
    found = report("", {"check": "rebar"})
    assert ids(found) == ["waiver.unused"]
    assert found.exit == 0
    assert ids(report("", {"check": "rebar", "hosts": ["host-b"]})) == []


def test_an_event_without_a_time_is_never_early_enough() -> None:
    recording = replay.host(HOST)
    text = f"xe {CARD}: [drm] Xe device coredump has been created\n"
    recording["commands"] = {**recording["commands"], "dmesg": {"rc": 0, "stdout": text, "stderr": ""}}
    del recording["commands"][replay.JOURNAL]
    facts = gather(RecordedReader(recording), Options())
    rule = [{"check": "gpu.fault", "justification": "known", "until": UNTIL, "until_event": "2026-12-31T00:00:00Z"}]
    found = assess(facts, expectation({}), waivers(rule), "host-a")
    assert (fault(found).status, fault(found).waived) == (Status.fail, None)


def test_a_counter_since_the_boot_is_covered_by_the_boot_only() -> None:
    place = replay.host(HOST)["links"]["/sys/bus/pci/devices/0000:21:00.0"].replace("../../../", "/sys/")
    files = {f"{place}/aer_dev_fatal": "DLP 1\nTOTAL_ERR_FATAL 1\n"}
    facts = gather(RecordedReader(replay.changed(replay.host(HOST), {"files": files})), Options())
    for rule, code in (({"boot_id": BOOT}, 0), ({"until_event": "2026-12-31T00:00:00Z"}, 1)):
        rules = waivers([{"check": "aer.fatal", "justification": "known", "until": UNTIL, **rule}])
        assert assess(facts, expectation({}), rules, "host-a").exit == code
