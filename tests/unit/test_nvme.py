"""What the drive of the root file system says of itself, and what stays unknown where it was not asked."""

from __future__ import annotations

import json
from typing import Any

import pytest

from hostcheck.findings import Finding
from hostcheck.onhost.gather import GROUPS, gather
from hostcheck.onhost.recording import RecordedReader
from tests import replay

HOST = "four-card-gen4"
COMMAND = "nvme smart-log /dev/nvme0 -o json"
FINE = {
    "critical_warning": 0,
    "media_errors": 0,
    "num_err_log_entries": 0,
    "unsafe_shutdowns": 2,
    "power_cycles": 76,
    "percent_used": 3,
}


def ran(stdout: str, rc: int = 0, stderr: str = "") -> dict[str, Any]:
    return {"rc": rc, "stdout": stdout, "stderr": stderr}


def judged(output: Any, **change: Any) -> Finding:
    report = replay.report(replay.changed(replay.host(HOST), {"commands": {COMMAND: output}, **change}))
    (found,) = [one for one in report.findings if one.id == "storage.smart"]
    return found


@pytest.mark.parametrize(
    ("more", "status", "seen"),
    [
        ({}, "ok", "2 of 76 shutdowns without notice"),
        ({"unsafe_shutdowns": "38", "power_cycles": "76"}, "ok", "38 of 76 shutdowns without notice"),
        ({"unsafe_shutdowns": "1,038"}, "ok", "1038 of 76 shutdowns without notice"),
        ({"num_err_log_entries": 12}, "info", "12 entries in its error log, 2 of 76"),
        ({"media_errors": 1}, "warn", "1 errors of its media, 2 of 76"),
        ({"critical_warning": 9}, "warn", "spare capacity below its threshold, read-only, 2 of 76"),
        ({"critical_warning": {"value": 2, "available_spare": 0}}, "warn", "temperature beyond a threshold, 2 of 76"),
        ({"critical_warning": 128}, "warn", "warning 0x80, 2 of 76"),
    ],
)
def test_the_words_of_a_drive(more: dict[str, Any], status: str, seen: str) -> None:
    found = judged(ran(json.dumps({**FINE, **more})))
    assert (found.subject.name, found.status.value) == ("nvme0", status)
    assert found.seen.startswith(seen)
    assert bool(found.next_step) == (status == "warn")


def test_the_other_name_of_a_count_and_the_model() -> None:
    output = {name: value for name, value in FINE.items() if name != "percent_used"}
    folder = "/sys/class/nvme/nvme0"
    files = {f"{folder}/model": "Samsung SSD 980 PRO 2TB   \n", f"{folder}/firmware_rev": "5B2QGXA7\n"}
    found = judged(ran(json.dumps({**output, "percentage_used": 3})), files=files)
    assert found.seen == "2 of 76 shutdowns without notice (Samsung SSD 980 PRO 2TB 5B2QGXA7)"


@pytest.mark.parametrize(
    ("output", "seen", "step"),
    [
        (None, "tool_missing: ", "install the package nvme-cli"),
        (ran("", 1, "/dev/nvme0: Permission denied"), "exit: exit 1: /dev/nvme0", "sudo nvme smart-log /dev/nvme0"),
        (ran(""), "not_understood: ", "sudo nvme"),
        (ran("[]"), "not_understood: expected an object", "sudo nvme"),
        (ran("Smart Log for NVME device:nvme0"), "not_understood: ", "sudo nvme"),
        (ran(json.dumps({**FINE, "media_errors": "many"})), "not_understood: expected a number", "sudo nvme"),
        (ran(json.dumps({**FINE, "media_errors": True})), "not_understood: expected a number", "sudo nvme"),
        (ran(json.dumps({**FINE, "media_errors": -1})), "not_understood: expected a number", "sudo nvme"),
        ({"error": "timeout"}, "timeout: ", "sudo nvme"),
    ],
)
def test_a_drive_that_was_not_asked_is_unknown(output: Any, seen: str, step: str) -> None:
    found = judged(output)
    assert found.status.value == "unknown"
    assert found.seen.startswith(seen)
    assert found.next_step.startswith(step)


def test_only_root_asks_and_only_where_there_is_a_drive() -> None:
    facts = gather(RecordedReader(replay.host(HOST)))
    assert callable(GROUPS["nvme"].device)
    assert GROUPS["nvme"].device(storage=facts.storage, identity=facts.identity) is True
    status = replay.host(HOST)["files"]["/proc/self/status"].replace("Uid:\t0\t0\t0\t0", "Uid:\t1000\t1000\t1000\t1000")
    found = judged(ran(json.dumps(FINE)), files={"/proc/self/status": status})
    assert (found.status.value, found.seen) == ("unknown", "permission: a drive is asked as root alone")
    mounts = {"/proc/self/mountinfo": "27 1 8:2 / / rw,relatime shared:1 - ext4 /dev/sda2 rw\n"}
    assert judged(ran(json.dumps(FINE)), files=mounts).status.value == "not_applicable"
    assert judged(None, files={"/proc/self/mountinfo": {"error": "EACCES"}}).status.value == "unknown"
