"""Bounding faults by a time, and waivers that excuse events: what a report says of an old fault."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from hostcheck.assess import assess
from hostcheck.expectations import REQUIRED_WITH_GPU, expectation, waivers
from hostcheck.findings import Status, all_unknown
from hostcheck.onhost.gather import gather, unread
from hostcheck.onhost.reader import REASONS
from hostcheck.onhost.readings.pcie import Pcie
from hostcheck.onhost.recording import RecordedReader, utc
from tests import replay

CARD = "0000:47:00.0"
FAULT = f"""\
[ 4000.000000] xe {CARD}: [drm] Tile0: GT0: Fault response: Unsuccessful -ENOENT
[ 4001.000000] xe {CARD}: [drm] Tile0: GT0: Engine reset: engine_class=bcs, logical_mask: 0x1, guc_id=6, state=0x289
"""


def faulty(log: str = FAULT) -> dict[str, Any]:
    return replay.changed(replay.host("four-card-gen4"), {"log": log})


def wall(recording: dict[str, Any], since_boot: float) -> str:
    uptime = float(recording["files"]["/proc/uptime"].split()[0])
    return utc(replay.now(recording) - uptime + since_boot)


def failing(recording: dict[str, Any], **more: Any) -> set[str]:
    report = replay.report(recording, **more)
    return {one.id for one in report.findings if one.status is Status.fail and one.waived is None}


def test_a_fault_counts_from_boot_unless_bounded() -> None:
    recording = faulty()
    assert failing(recording) == {"gpu.fault"}
    assert failing(recording, since=wall(recording, 3000)) == {"gpu.fault"}
    assert failing(recording, since=wall(recording, 5000)) == set()


def test_since_the_last_run() -> None:
    recording = faulty()
    before = gather(RecordedReader({**recording, "taken_at": wall(recording, 3000)}))
    after = gather(RecordedReader({**recording, "taken_at": wall(recording, 5000)}))
    assert failing(recording, since="last-run", previous=before) == {"gpu.fault"}
    assert failing(recording, since="last-run", previous=after) == set()
    assert failing(recording, since="last-run", previous=None) == {"gpu.fault"}


def test_a_time_that_is_not_one_is_refused() -> None:
    with pytest.raises(ValueError, match="last-run or a UTC time"):
        replay.report(faulty(), since="yesterday")


def test_the_report_keeps_what_was_bounded_away() -> None:
    recording = faulty()
    report = replay.report(recording, since=wall(recording, 5000))
    assert CARD in (report.facts.kernel_log.faulted.value or ())


def waiver(recording: dict[str, Any], until: float) -> Any:
    return waivers(
        [
            {
                "check": "gpu.fault",
                "subject": CARD,
                "justification": "known upload race",
                "until": "2099-01-01",
                "until_event": wall(recording, until),
            }
        ]
    )


def test_a_waiver_up_to_a_time_gives_0_and_one_newer_event_1_again() -> None:
    recording = faulty()
    assert replay.report(recording, waivers=waiver(recording, 4002)).exit == 0
    newer = faulty(FAULT + FAULT.replace("[ 4000", "[ 6000").replace("[ 4001", "[ 6001"))
    assert replay.report(newer, waivers=waiver(recording, 4002)).exit == 1


def without_beginning(recording: dict[str, Any], first: float) -> dict[str, Any]:
    """The host with a log that wrapped: nothing before `first` is left."""
    import json

    journal = recording["commands"][replay.JOURNAL]
    kept = [
        line for line in journal["stdout"].splitlines() if int(json.loads(line)["__MONOTONIC_TIMESTAMP"]) >= first * 1e6
    ]
    journal["stdout"] = "".join(f"{line}\n" for line in kept)
    return recording


def test_a_fault_in_a_log_without_its_beginning() -> None:
    """The fault fails on its card with address and times; of the other cards nothing is claimed."""
    block = f"""\
[ 4100.000000] xe {CARD}: [drm] Tile0: GT0:\x20
    ASID: 9
    Faulted Address: 0x0000800400200000
    FaultType: 0
    AccessType: 0
    FaultLevel: 1
    EngineClass: 3 bcs
    EngineInstance: 0
[ 4100.000100] xe {CARD}: [drm] Tile0: GT0: Fault response: Unsuccessful -EINVAL
[ 4100.000200] xe {CARD}: [drm] Tile0: GT0: Engine memory CAT error [18]: class=bcs, logical_mask: 0x1, guc_id=6
[ 4101.000000] xe {CARD}: [drm] Xe device coredump has been created
[ 7700.000000] xe {CARD}: [drm] Xe device coredump has been deleted.
"""
    recording = without_beginning(faulty(block), 4000.0)
    report = replay.report(recording)
    assert report.exit == 1
    faults = {one.subject.name: one for one in report.findings if one.id == "gpu.fault"}
    assert faults[CARD].status is Status.fail
    assert "0x0000800400200000" in faults[CARD].seen
    assert "first" in faults[CARD].seen
    assert "last" in faults[CARD].seen
    others = {name: one.status for name, one in faults.items() if name != CARD}
    assert set(others.values()) == {Status.unknown}
    assert len(others) == 3
    assert [one.id for one in report.findings if one.status is Status.fail] == ["gpu.fault"]
    assert replay.report(recording, waivers=waiver(recording, 8000)).exit == 3
    assert replay.report(recording, waivers=waiver(recording, 4050)).exit == 1


def test_without_root_the_unknowns_are_one_line_and_the_exit_is_3() -> None:
    recording = replay.host("four-card-gen4")
    for path in list(recording["files"]):
        if path.endswith("/config"):
            recording["files"][path] = {"error": "EACCES"}
    refused = "dmesg: read kernel buffer failed: Operation not permitted\n"
    recording["commands"]["dmesg"] = {"rc": 1, "stdout": "", "stderr": refused}
    hint = "Hint: You are currently not seeing messages from other users and the system.\n"
    recording["commands"][replay.JOURNAL] = {"rc": 1, "stdout": "", "stderr": hint + "No journal files were opened.\n"}
    report = replay.report(recording)
    assert report.exit == 3
    assert report.counts["fail"] == 0
    from hostcheck.report.terminal import unknown_lines

    lines = unknown_lines(report.findings)
    assert len(lines) == 1, lines
    assert "run as root" in lines[0]


def test_a_sleeping_card_stays_unread_below_its_power_state() -> None:
    recording = replay.host("four-card-gen4")
    device = next(path for path in recording["files"] if path.endswith(f"/{CARD}/power/runtime_status"))
    recording["files"][device] = "suspended\n"
    report = replay.report(recording)
    (card,) = [gpu for gpu in report.facts.pcie.gpus.value or () if gpu.bdf == CARD]
    own = [hop for hop in card.path if hop.role.startswith("card") or hop.role == "gpu"]
    assert {hop.speed.unread for hop in own} == {"suspended"}
    assert card.bars.unread == "suspended"
    links = {
        one.status for one in report.findings if one.id.startswith("pcie.link.") and one.subject.name == card.uplink
    }
    assert links == {Status.unknown}
    assert report.exit == 3


LIST = "/sys/bus/pci/devices"
NO_CARD = "virtual-machine"
UNREAD = sorted(set(REASONS) - {"absent", "not_asked", "tool_missing"})


@pytest.mark.parametrize("reason", UNREAD)
def test_a_list_of_cards_that_was_not_read_is_no_host_without_a_card(reason: str) -> None:
    report = replay.report(replay.changed(replay.host(NO_CARD), {"files": {LIST: {"error": reason}}}))
    assert report.facts.pcie.gpus.unread == reason
    assert report.required == REQUIRED_WITH_GPU
    assert report.exit == 3
    assert "gpu.enumeration" in {one.id for one in all_unknown(report.findings)}


@pytest.mark.parametrize(("name", "reason"), [("EACCES", "permission"), ("EIO", "io"), ("ETIMEDOUT", "io")])
def test_ids_that_were_refused_may_be_those_of_a_card(name: str, reason: str) -> None:
    recording = replay.host(NO_CARD)
    path = next(path for path in sorted(recording["files"]) if path.endswith("/vendor") and "/pci0000:00/" in path)
    refused = {path: {"error": name}, path.replace("/vendor", "/class"): {"error": name}}
    report = replay.report(replay.changed(recording, {"files": refused}))
    assert report.facts.pcie.gpus.unread == reason
    assert report.exit == 3


def test_a_host_without_a_card_requires_nothing() -> None:
    report = replay.report(replay.host(NO_CARD))
    assert report.facts.pcie.gpus.value == ()
    assert (report.required, report.exit) == ((), 0)


def test_a_group_that_hung_is_no_host_without_a_card() -> None:
    facts = gather(RecordedReader(replay.host(NO_CARD)))
    hung = replace(facts, pcie=unread(Pcie, "timeout", "did not end within 30 s and was killed"))
    assert assess(hung, expectation({})).exit == 3
    assert assess(hung, expectation({"required": []})).exit == 0
    not_asked = replace(facts, pcie=unread(Pcie, "not_asked", "this subset was not asked for"))
    assert assess(not_asked, expectation({})).required == ()


def test_a_recording_without_any_list_of_pci_tells_of_no_card() -> None:
    recording = replay.changed(replay.host(NO_CARD), {"remove": ["/sys/bus/pci", "/sys/devices/pci", "/sys/bus"]})
    report = replay.report(recording)
    assert report.facts.pcie.gpus.unread in ("absent", "tool_missing")
    assert (report.required, report.exit) == ((), 0)
