"""What the facts of a host say around a measurement: which cards must not be opened, and what was not checked."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hostcheck.onhost.gather import Facts, Options, gather
from hostcheck.onhost.probe import guards, receipt, verdict
from hostcheck.onhost.reader import Reading
from hostcheck.onhost.readings.kernel_log import Event
from hostcheck.onhost.readings.pcie import Gpu
from hostcheck.onhost.recording import RecordedReader
from tests import replay

CARD = "0000:43:00.0"
WAY = "/sys/devices/pci0000:40/0000:40:01.1/0000:41:00.0/0000:42:01.0/0000:43:00.0"
XE = f"[ 900.100000] xe {CARD}: [drm] "
REFUSED = {"rc": 1, "stdout": "", "stderr": "Operation not permitted"}
LOAD = Reading("0.52 0.58 0.59 1/467 12345\n", "/proc/loadavg")


def facts(change: dict[str, Any] | None = None, host: str = "four-card-gen4") -> Facts:
    reader = RecordedReader(replay.changed(replay.host(host), change or {}))
    return gather(reader, Options(xpu_smi="never"), guards.BEFORE)


def gpu(of: Facts, bdf: str = CARD) -> Gpu:
    return next(one for one in of.pcie.gpus.value or () if one.bdf == bdf)


def around(of: Facts, after: bool = False, bdf: str = CARD) -> dict[str, Any]:
    return guards.around(of, [gpu(of, bdf)], LOAD, after)


def unchecked(seen: dict[str, Any]) -> list[str]:
    made = {"before": seen, "after": seen, "workers": [{"identity": {"device": "xpu"}}]}
    return verdict.unchecked(receipt.guards_of(made))


def test_a_healthy_card_may_be_opened_and_everything_was_looked_at() -> None:
    seen = around(facts())
    assert (seen["card"], seen["alarms"], seen["holders"], seen["coredumps"]) == ("", [], [], [])
    assert seen["log"] == {"read": True, "fault_lines": []}
    assert unchecked(seen) == []
    json.dumps(seen, allow_nan=False)


def test_what_a_figure_depends_on_is_kept() -> None:
    host = around(facts())["host"]
    assert host["load"] == "0.52 0.58 0.59"
    assert (host["governor"], host["cpufreq_driver"], host["aspm_policy"]) == (
        "powersave",
        "amd-pstate-epp",
        "default",
    )
    card = host["cards"][CARD]
    assert (card["driver"], card["guc"], card["runtime_status"]) == ("xe", "70.54.0", "active")
    assert card["links"]["0000:41:00.0"].startswith("16 GT/s x16, ASPM ")
    assert host["throttle"] == {f"{CARD} tile0/gt0": "0", f"{CARD} tile0/gt1": "0"}
    assert set(host["unread"]) <= {"boost", "product", "bios", "os", "epp"}


HELD = {
    "links": {"/proc/4242/fd/7": "/dev/dri/renderD128", "/proc/4242/fd/0": "/dev/null"},
    "files": {"/proc/4242/comm": "VLLM::EngineCor\n", "/proc/4242/cgroup": "0::/\n", "/proc/4242/cmdline": "SECRET\0"},
}
DUMPED = {"links": {"/sys/class/devcoredump/devcd1/failing_device": WAY.replace("/sys/", "../../../", 1)}}
SICK: dict[str, tuple[dict[str, Any], str]] = {
    "suspended": ({"files": {f"{WAY}/power/runtime_status": "suspended\n"}}, "is suspended"),
    "power state refused": ({"files": {f"{WAY}/power/runtime_status": {"error": "EACCES"}}}, "may be asleep"),
    "power state error": ({"files": {f"{WAY}/power/runtime_status": "error\n"}}, "has the power state error"),
    "wedged": ({"log": f"{XE}*ERROR* CRITICAL: Xe has declared device {CARD} as wedged."}, "is wedged"),
    "reset": (
        {"log": f"{XE}Tile0: GT0: Engine reset: engine_class=ccs, logical_mask: 0x1, guc_id=24"},
        "faulted on this boot (xe.engine_reset)",
    ),
    "coredump": (DUMPED, "has a devcoredump"),
    "in use": (HELD, "is in use"),
    "no driver": ({"links": {f"{WAY}/driver": None}}, "has no driver"),
    "survivability": ({"files": {f"{WAY}/survivability_mode": "Boot Type: 1\n"}}, "is in survivability mode"),
}


@pytest.mark.parametrize(("change", "said"), SICK.values(), ids=SICK)
def test_such_a_card_must_not_be_opened(change: dict[str, Any], said: str) -> None:
    found = facts(change)
    assert guards.problem(found, gpu(found)).startswith(said)
    assert around(found)["card"].startswith(f"{CARD} {said}")
    assert guards.problem(found, gpu(found, "0000:47:00.0")) == ""  # the others are not blamed


def test_a_card_may_fall_asleep_after_it_was_measured_but_not_fault() -> None:
    assert around(facts(SICK["suspended"][0]), after=True)["card"] == ""
    assert "wedged" in around(facts(SICK["wedged"][0]), after=True)["card"]


def test_a_card_that_is_only_listed_may_be_in_use() -> None:
    found = facts(HELD)
    assert guards.problem(found, gpu(found), measured=False) == ""
    found = facts(SICK["suspended"][0])
    assert guards.problem(found, gpu(found), measured=False) == "is suspended"


def test_holders_are_named_without_their_arguments() -> None:
    seen = around(facts(HELD))
    assert seen["holders"] == [f"4242 (VLLM::EngineCor) holds renderD128 of {CARD}"]
    assert "SECRET" not in json.dumps(seen)


def test_faults_that_name_no_card_count_for_every_card_of_their_driver() -> None:
    healthy = facts()
    events = healthy.kernel_log.events.then(lambda all_of: (*all_of, Event("guc.load_failed"), Event("nvrm.xid")))
    found = replace(healthy, kernel_log=replace(healthy.kernel_log, events=events))
    assert guards.problem(found, gpu(found)) == "faulted on this boot (guc.load_failed)"


def test_faults_on_the_way_count() -> None:
    root = "0000:40:01.1"
    down = facts({"log": f"[ 900.1] pcieport {root}: pciehp: Slot(3): Link Down"})
    assert guards.problem(down, gpu(down)) == "faulted on this boot (slot.link_down)"
    assert guards.problem(down, gpu(down, "0000:23:00.0")) == ""


def test_a_hard_lockup_counts_for_every_card() -> None:
    found = facts({"log": "[ 900.100000] watchdog: Watchdog detected hard LOCKUP on cpu 3"})
    assert [event.kind for event in guards.fault_events(found, [gpu(found)])] == ["lockup.hard"]
    assert [event.kind for event in guards.fault_events(found, [])] == ["lockup.hard"]


def test_a_fault_that_comes_again_is_a_new_line() -> None:
    line = f"{XE}Tile0: GT0: Engine reset: engine_class=ccs, logical_mask: 0x1, guc_id=24"
    once, twice = facts({"log": line}), facts({"log": f"{line}\n{line.replace('900.1', '950.1')}"})
    made = {"before": around(once), "after": around(twice)}
    assert len(receipt.guards_of(made).fault_lines_new) == 1
    assert receipt.guards_of({"before": around(once), "after": around(once)}).fault_lines_new == []


@pytest.mark.parametrize(
    ("change", "missing"),
    [
        ({"commands": {replay.JOURNAL: REFUSED, "dmesg": REFUSED}}, "kernel log: not readable"),
        ({"commands": {replay.JOURNAL: None, "dmesg": None}}, "kernel log: not readable"),
        ({"commands": {replay.JOURNAL: {"rc": 0, "stdout": "%%\n", "stderr": ""}, "dmesg": REFUSED}}, "kernel log"),
        ({"files": {"/proc/4242/fd": {"error": "EACCES"}, "/proc/4242/stat": "4242 (x) S 1 1 1 0 -1 64 0\n"}}, "other"),
    ],
)
def test_what_was_not_read_is_said(change: dict[str, Any], missing: str) -> None:
    seen = around(facts(change))
    assert any(text.startswith(missing) for text in unchecked(seen)), unchecked(seen)


def test_a_log_without_its_beginning_does_not_tell_about_this_boot() -> None:
    whole = facts()
    cut = replace(whole, kernel_log=replace(whole.kernel_log, complete=Reading(False, "dmesg")))
    assert around(cut)["log"]["read"] is False
    assert around(cut)["host"]["log"] == "journal, early lines are lost"


def test_programs_of_nvidia_hold_other_nodes() -> None:
    found = facts(host="nvidia-host")
    assert "holders" not in around(found, bdf="0000:05:00.0")


def test_clocks_that_are_held_down_are_alarms() -> None:
    folder = f"{WAY}/tile0/gt0/freq0/throttle"
    seen = around(facts({"files": {f"{folder}/status": "1\n", f"{folder}/reason_thermal": "1\n"}}))
    assert seen["alarms"] == [f"{CARD} tile0/gt0 clock held down: thermal"]
    assert seen["host"]["throttle"][f"{CARD} tile0/gt0"] == "1 thermal"


@pytest.mark.parametrize("content", [{"error": "EACCES"}, "maybe\n", None])
def test_throttling_that_cannot_be_read_is_not_checked(content: Any) -> None:
    change: dict[str, Any] = {"files": {}}
    for gt in ("gt0", "gt1"):
        if content is None:
            change.setdefault("remove", []).append(f"{WAY}/tile0/{gt}/freq0/throttle")
        else:
            change["files"][f"{WAY}/tile0/{gt}/freq0/throttle/status"] = content
    seen = around(facts(change))
    assert "throttle" not in seen
    assert "throttle counters: not checked" in unchecked(seen)
    assert not any(text == "0" for text in seen["host"]["throttle"].values())


def test_counters_of_the_processor_are_counters() -> None:
    path = "/sys/devices/system/cpu/cpu0/thermal_throttle"
    seen = around(facts({"files": {f"{path}/core_throttle_count": "3\n", f"{path}/package_throttle_count": "5\n"}}))
    assert seen["throttle"] == {"cpu core": 3, "cpu package": 5}


def test_a_host_of_which_nothing_can_be_read_still_gives_a_receipt() -> None:
    nothing = gather(RecordedReader({"schema": "hostcheck/recording/1", "taken_at": "2026-01-01T00:00:00Z"}))
    seen = guards.around(nothing, [], Reading.no("absent", "no file", "/proc/loadavg"))
    assert seen["log"]["read"] is False
    assert "kernel" in seen["host"]["unread"]
    assert "load" in seen["host"]["unread"]


@given(st.text())
def test_load_is_three_numbers_or_nothing(text: str) -> None:
    reading = Reading(text, "/proc/loadavg").then(guards.parse_load)
    if reading.value is None:
        assert reading.unread == "not_understood"
    else:
        assert len([float(one) for one in reading.value.split()]) == 3


def test_which_gpus_a_listing_opens() -> None:
    found = facts()
    assert len(guards.in_reach(found, "xpu")) == 4
    assert guards.in_reach(found, "cuda") == guards.in_reach(found, "cpu") == ()
    assert [one.bdf for one in guards.in_reach(found, "auto", {CARD})] == [CARD]
    passed = facts({"links": {f"{WAY}/driver": "../../../../../../bus/pci/drivers/vfio-pci"}})
    assert CARD not in [one.bdf for one in guards.in_reach(passed, "xpu")]


def test_the_processor_to_run_on() -> None:
    found = facts(host="two-card-gen5")
    card = gpu(found, "0000:03:00.0")
    assert guards.core_for(found, card, range(64)) == (1,)  # on its node, and not the first
    assert guards.core_for(found, card, {0, 40}) == (0,)
    assert guards.core_for(found, card, {40, 41}) == (40,)  # none of its node: any
    assert guards.core_for(found, None, {7}) is None  # no choice
    hybrid = facts(host="intel-hybrid")
    core = guards.core_for(hybrid, None, range(256))
    assert core is not None
    assert core[0] in (hybrid.lscpu.performance_cores.value or core)
