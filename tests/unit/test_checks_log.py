"""Access to the kernel log, its window, and what `--since` leaves."""

from __future__ import annotations

from typing import Any

import pytest

from hostcheck.checks import log
from hostcheck.findings import Finding, Status
from hostcheck.onhost.gather import Facts, Options, gather
from hostcheck.onhost.readings.kernel_log import Event
from hostcheck.onhost.recording import RecordedReader
from tests import replay

HOST = "four-card-gen4"
HINT = "Hint: You are currently not seeing messages from other users and the system.\n"
REFUSED = {"rc": 1, "stdout": "", "stderr": "dmesg: read kernel buffer failed: Operation not permitted\n"}


def findings(change: dict[str, Any], ids: str = "log.", host: str = HOST) -> list[Finding]:
    return [one for one in replay.report(replay.changed(replay.host(host), change)).findings if one.id.startswith(ids)]


def facts(text: str = "", host: str = HOST) -> Facts:
    recording = replay.changed(replay.host(host), {"log": text} if text else {})
    return gather(RecordedReader(recording), Options())


def late(start: float, text: str) -> dict[str, Any]:
    """A change that leaves the log with only these lines, from `start` on."""
    journal = replay.host(HOST)["commands"][replay.JOURNAL]["stdout"].splitlines()
    recording = {"commands": {replay.JOURNAL: {"rc": 0, "stdout": journal[-1] + "\n", "stderr": ""}}}
    replay.add_log(recording, f"[{start:.6f}] usb 1-1: new device\n{text}")
    lines = recording["commands"][replay.JOURNAL]["stdout"].splitlines()[1:]
    kept = {"rc": 0, "stdout": "".join(f"{line}\n" for line in lines), "stderr": ""}
    return {"commands": {replay.JOURNAL: kept, "dmesg": REFUSED}}


def test_a_whole_log_is_ok() -> None:
    (one,) = findings({})
    assert (one.status, one.seen) == (Status.ok, "journal, 142 lines since the boot")


@pytest.mark.parametrize(
    "journal",
    [
        {"rc": 0, "stdout": "", "stderr": ""},
        {"rc": 0, "stdout": "", "stderr": HINT},
        {"rc": 1, "stdout": "", "stderr": HINT},
        None,
        {"error": "timeout"},
    ],
)
def test_without_a_log_nothing_that_rests_on_it_is_ok(journal: dict[str, Any] | None) -> None:
    report = replay.report(replay.changed(replay.host(HOST), {"commands": {replay.JOURNAL: journal, "dmesg": REFUSED}}))
    access = next(one for one in report.findings if one.id == "log.access")
    assert access.status is Status.unknown
    assert "not permitted" in access.seen
    assert "systemd-journal" in access.next_step
    hidden = {(one.id, one.status) for one in access.explains}
    assert {(id, Status.unknown) for id in ("gpu.fault", "gpu.wedged", "gpu.lost", "fw.guc")} <= hidden
    assert not any(one.id in ("gpu.fault", "fw.guc") for one in report.findings)
    assert report.exit == 3


def test_a_container_is_told_its_own_way() -> None:
    change = {"commands": {replay.JOURNAL: None, "dmesg": REFUSED}, "files": {"/.dockerenv": ""}}
    (one,) = findings(change)
    assert "SYSLOG" in one.next_step


def test_a_log_that_begins_late_is_readable_but_proves_no_silence() -> None:
    change = late(4000.0, "[ 4100.0] usb 1-2: new device")
    (access,) = findings(change)
    assert (access.status, "4000 s" in access.seen) == (Status.info, True)
    faults = findings(change, "gpu.fault")
    assert [one.status for one in faults] == [Status.unknown] * 4
    assert all("window incomplete" in one.seen for one in faults)


def test_since_the_beginning_of_the_window_it_is_whole() -> None:
    recording = replay.changed(replay.host(HOST), late(4000.0, "[ 4100.0] usb 1-2: new device"))
    found = gather(RecordedReader(recording), Options())
    assert log.window_gap(found)
    assert log.window_gap(log.bounded(found, 3900.0))
    assert not log.window_gap(log.bounded(found, 4050.0))


def test_bounded_leaves_older_events_out() -> None:
    found = facts("[ 5000.0] xe 0000:23:00.0: [drm] GT0: Engine reset: engine_class=ccs, logical_mask: 0x1, guc_id=2")
    kinds = {event.kind for event in log.events(log.bounded(found, 5000.5))}
    assert "xe.engine_reset" not in kinds
    assert "xe.engine_reset" in {event.kind for event in log.events(log.bounded(found, 5000.0))}


def test_times_are_told_with_first_last_and_count() -> None:
    one = Event("a", count=2, first=10.0, last=99.0, wall_first="2026-03-01T00:00:10Z", suppressed=7)
    other = Event("b", count=1, first=5.0, last=5.0)
    text = log.span([one, other])
    assert text == "3 times and at least 7 suppressed, first 5.0 s, last 99.0 s after the boot"
    assert log.span([other]) == "1 time, at 5.0 s after the boot"
    assert log.span([Event("c")]) == "1 time, the lines carry no time"


def test_marks_name_boot_kind_device_and_time() -> None:
    found = facts("[ 5000.0] xe 0000:23:00.0: [drm] GT0: Engine reset: engine_class=ccs, logical_mask: 0x1, guc_id=2")
    event = next(event for event in log.events(found) if event.kind == "xe.engine_reset")
    (mark,) = log.marks(found, [event])
    boot, kind, bdf, last, wall = mark.split(" ")
    assert (boot, kind, bdf, last) == (found.kernel_log.boot_id.value, "xe.engine_reset", "0000:23:00.0", "5000.000000")
    assert wall == event.wall_last
