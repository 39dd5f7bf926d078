"""What stalled the host as a whole: out of memory, blocked tasks, lockups, a clock that the kernel gave up."""

from __future__ import annotations

from typing import Any

import pytest

from hostcheck.findings import Finding, all_unknown
from hostcheck.onhost.readings import clocksource
from tests import replay

HOST, VM = "four-card-gen4", "gpu-vm"
REFUSED = {"error": "EACCES"}
NO_LOG = {
    replay.JOURNAL: {"rc": 0, "stdout": "", "stderr": ""},
    "dmesg": {"rc": 1, "stdout": "", "stderr": "not permitted"},
}
CLOCK = "/sys/devices/system/clocksource/clocksource0"
IDS = ("mem.oom", "kernel.lockup", "kernel.hung_task", "kernel.clocksource")

OOM = "[ 900.0] Out of memory: Killed process 4242 (python3) total-vm:99kB, anon-rss:9kB, UID:0"
CGROUP = "[ 901.0] Memory cgroup out of memory: Killed process 4243 (vllm) total-vm:99kB"
BLOCKED = "[ 902.0] INFO: task jbd2/sda2-8:412 blocked for more than 245 seconds."
SOFT = (
    "[ 903.0] watchdog: BUG: soft lockup - CPU#9 stuck for 26s! [kworker/9:0:74]\n"
    "[ 903.1] RIP: 0010:native_queued_spin_lock_slowpath+0x1/0x2"
)
HARD = "[ 904.0] watchdog: CPU3: Watchdog detected hard LOCKUP on cpu 3"
RCU = "[ 905.0] rcu: INFO: rcu_preempt self-detected stall on CPU"
SKEW = (
    "[ 906.0] clocksource: timekeeping watchdog on CPU3: Marking clocksource 'tsc' as unstable because the skew is too "
    "large:"
)
PAUSE = "[ 907.0] clocksource: Long readout interval, skipping watchdog check: cs_nsec: 6035009078 wd_nsec: 6035005845"


def judged(id: str, change: dict[str, Any], host: str = HOST) -> list[Finding]:
    return [one for one in replay.report(replay.changed(replay.host(host), change)).findings if one.id == id]


def one(id: str, change: dict[str, Any], host: str = HOST) -> tuple[str, str]:
    (found,) = judged(id, change, host)
    return found.status.value, found.seen


@pytest.mark.parametrize("id", IDS)
@pytest.mark.parametrize("host", [HOST, VM, "arm-server", "intel-hybrid"])
def test_a_host_that_did_not_stall(id: str, host: str) -> None:
    assert one(id, {}, host)[0] == "ok"


@pytest.mark.parametrize(
    ("id", "lines", "status", "seen"),
    [
        ("mem.oom", OOM, "warn", "the host ran out of memory and killed python3; 1 time"),
        ("mem.oom", CGROUP, "info", "vllm killed at the limit of a container"),
        ("mem.oom", f"{OOM}\n{CGROUP}", "warn", "killed python3, vllm"),
        ("kernel.hung_task", BLOCKED, "warn", "jbd2/sda2-8 blocked for up to 245 s"),
        ("kernel.lockup", SOFT, "warn", "soft lockup on CPU 9 for up to 26 s in native_queued_spin_lock_slowpath"),
        ("kernel.lockup", HARD, "warn", "hard lockup on CPU 3; 1 time"),
        ("kernel.lockup", RCU, "warn", "RCU stall; 1 time"),
        ("kernel.lockup", f"{SOFT}\n{RCU}", "warn", "RCU stall"),
        ("kernel.clocksource", SKEW, "warn", "tsc was marked unstable"),
        ("kernel.clocksource", PAUSE, "info", "stood still for up to 6 s"),
        ("kernel.clocksource", f"{PAUSE}\n{SKEW}", "warn", "tsc was marked unstable"),
    ],
)
def test_what_the_log_says(id: str, lines: str, status: str, seen: str) -> None:
    found = one(id, {"log": lines})
    assert found[0] == status
    assert seen in found[1]


@pytest.mark.parametrize("id", IDS)
def test_a_refused_log_is_no_silence(id: str) -> None:
    report = replay.report(replay.changed(replay.host(HOST), {"commands": NO_LOG}))
    assert id not in {finding.id for finding in report.findings}
    assert id in {finding.id for finding in all_unknown(report.findings)}


def test_a_log_that_begins_late_is_no_silence() -> None:
    entries = replay.host(HOST)["commands"][replay.JOURNAL]["stdout"].splitlines()
    late = {replay.JOURNAL: {"rc": 0, "stdout": entries[-1] + "\n", "stderr": ""}, "dmesg": None}
    report = replay.report(replay.changed(replay.host(HOST), {"commands": late}))
    told = {finding.id: finding.seen for finding in all_unknown(report.findings) if finding.id in IDS}
    assert set(told) == set(IDS)
    assert all("window incomplete" in seen for seen in told.values())


@pytest.mark.parametrize(
    ("count", "lines", "status", "seen"),
    [
        ("oom_kill 0\n", "", "ok", "nothing killed since the boot"),
        ("oom_kill 3\n", "", "warn", "3 killed for memory since the boot, which the log does not name"),
        ("oom_kill 3\n", CGROUP, "warn", "of which the log names 1 (vllm)"),
        ("oom_kill 1\n", CGROUP, "info", "at the limit of a container"),
    ],
)
def test_the_kernels_own_count_of_kills(count: str, lines: str, status: str, seen: str) -> None:
    files = {"files": {"/proc/vmstat": f"nr_free_pages 77\n{count}"}}
    found = one("mem.oom", {**files, "log": lines})
    assert found[0] == status
    assert seen in found[1]


def test_the_count_of_kills_needs_no_log() -> None:
    change = {"commands": NO_LOG, "files": {"/proc/vmstat": "oom_kill 2\n"}}
    assert one("mem.oom", change)[0] == "warn"
    change["files"] = {"/proc/vmstat": "oom_kill 0\n"}
    assert one("mem.oom", change)[0] == "ok"


@pytest.mark.parametrize("content", [REFUSED, "garbage\n", "", "nr_free_pages 7\n"])
def test_without_the_count_the_log_tells(content: Any) -> None:
    files = {"files": {"/proc/vmstat": content}}
    assert one("mem.oom", files) == ("ok", "no such line on this boot")
    assert one("mem.oom", {**files, "log": OOM})[0] == "warn"


def test_what_belongs_to_a_card_is_told_there() -> None:
    blocked = f"{BLOCKED.replace('jbd2/sda2-8', 'kworker/u64:3')}\n[ 902.1] Workqueue: events_unbound xe_vm_bind [xe]"
    assert one("kernel.hung_task", {"log": blocked})[0] == "ok"
    assert any(finding.status.value == "fail" for finding in judged("gpu.fault", {"log": blocked}))
    inside = SOFT.replace("native_queued_spin_lock_slowpath+0x1/0x2", "g2h_read+0x42a/0x4b0 [xe]")
    assert one("kernel.lockup", {"log": inside})[0] == "ok"


def test_a_pause_beside_a_lockup_is_its_consequence() -> None:
    assert judged("kernel.clocksource", {"log": f"{SOFT}\n{PAUSE}"}) == []
    (found,) = judged("kernel.lockup", {"log": f"{SOFT}\n{PAUSE}"})
    assert [item.id for item in found.explains] == ["kernel.clocksource"]


@pytest.mark.parametrize(
    ("content", "wanted"),
    [("0\n", "info"), ("120\n", "ok"), (REFUSED, "ok"), (None, "not_applicable")],
)
def test_the_detector_of_blocked_tasks(content: Any, wanted: str) -> None:
    assert one("kernel.hung_task", {"files": {"/proc/sys/kernel/hung_task_timeout_secs": content}})[0] == wanted


@pytest.mark.parametrize(
    ("current", "host", "wanted"),
    [
        ("tsc\n", HOST, ("ok", "tsc")),
        ("hpet\n", HOST, ("warn", "the clock in use is hpet")),
        ("acpi_pm\n", VM, ("ok", "acpi_pm")),
        (REFUSED, HOST, ("ok", "no clock was marked unstable on this boot")),
        ("two names\n", HOST, ("ok", "no clock was marked unstable on this boot")),
    ],
)
def test_the_clock_in_use(current: Any, host: str, wanted: tuple[str, str]) -> None:
    assert one("kernel.clocksource", {"files": {f"{CLOCK}/current_clocksource": current}}, host) == wanted


def test_the_clock_in_use_needs_no_log() -> None:
    change = {"commands": NO_LOG, "files": {f"{CLOCK}/current_clocksource": "hpet\n"}}
    assert one("kernel.clocksource", change)[0] == "warn"


@pytest.mark.parametrize("text", ["", "tsc\x07 hpet", "a" * 99])
def test_names_of_clocks_that_are_none(text: str) -> None:
    with pytest.raises(ValueError, match="clocks"):
        clocksource.parse_names(text)
