"""Clocks, power, temperatures and fans of cards: what is read, what is left alone, and what is judged."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hostcheck.checks import engines, gpu_limits
from hostcheck.expectations import expectation
from hostcheck.findings import Finding, Status, run
from hostcheck.onhost.gather import Options, gather
from hostcheck.onhost.readings import gpu_state
from hostcheck.onhost.recording import RecordedReader
from tests import replay

GPU = "0000:43:00.0"
WAY = "/sys/devices/pci0000:40/0000:40:01.1/0000:41:00.0/0000:42:01.0/0000:43:00.0"
FREQ, HWMON = f"{WAY}/tile0/gt0/freq0", f"{WAY}/hwmon/hwmon2"
PARSERS = (
    gpu_state.parse_mhz,
    gpu_state.parse_limit,
    gpu_state.parse_watts,
    gpu_state.parse_celsius,
    gpu_state.parse_rpm,
    gpu_state.parse_label,
)
IDS = ("gpu.clock_limit", "gpu.power_cap", "gpu.temperature")


def facts(change: dict[str, Any] | None = None, host: str = "four-card-gen4", **options: Any) -> Any:
    return gather(RecordedReader(replay.changed(replay.host(host), change or {})), Options(**options))


def state(change: dict[str, Any] | None = None, host: str = "four-card-gen4", bdf: str = GPU, **more: Any) -> Any:
    return next(one for one in facts(change, host, **more).gpu_state.gpus.value if one.bdf == bdf)


def judge(change: dict[str, Any], expect: dict[str, Any] | None = None, **more: Any) -> dict[str, Finding]:
    checks = (gpu_limits.clock_limit, gpu_limits.power_cap, gpu_limits.temperature)
    declarations = [check.declaration for check in checks]  # type: ignore[attr-defined]
    found = run(declarations, facts(change, **more), expectation(expect or {}))
    return {one.id: one for one in found if one.subject.name in (GPU, "host")}


def test_a_healthy_card() -> None:
    found = state()
    main, media = found.clocks.value
    assert (main.domain, main.actual.value, main.minimum.value, main.maximum.value) == ("tile0/gt0", 0, 400, 2800)
    assert (main.lowest.value, main.highest.value, media.highest.value) == (400, 2800, 1500)
    (power,) = found.power.value
    assert (power.channel, power.label, power.cap.value, power.rated.unread) == ("power1", "card", 230.0, "absent")
    assert [(one.label, one.celsius.value, one.limit.value) for one in found.temperatures.value] == [
        ("pkg", 41.0, 100.0),
        ("vram", 44.0, 110.0),
    ]
    assert found.fans.value == {"fan1": 1180}


def test_older_kernels_give_no_limits_and_no_fan() -> None:
    found = state(host="gpu-vm", bdf="0000:01:00.0")
    assert {one.limit.unread for one in found.temperatures.value} == {"absent"}
    assert found.fans.value == {}


def test_the_cap_of_older_cards_has_another_name() -> None:
    files = {f"{HWMON}/power1_cap": None, f"{HWMON}/power1_max": "190000000\n", f"{HWMON}/power1_rated_max": "0\n"}
    (power,) = state({"files": files}).power.value
    assert (power.cap.value, power.rated.value, power.largest.unread) == (190.0, 0.0, "absent")


def test_i915_has_its_clocks_beside_the_node() -> None:
    folder = f"{WAY}/drm/card1/gt/gt0"
    change: dict[str, Any] = {
        "remove": [f"{WAY}/tile0"],
        "files": {f"{folder}/{old}": "2050\n" for _, _, old in gpu_state.CLOCK_FILES},
        "links": {f"{WAY}/driver": "../../../../../../bus/pci/drivers/i915"},
    }
    (clock,) = state(change).clocks.value
    assert (clock.domain, clock.maximum.value, clock.highest.value) == ("gt0", 2050, 2050)


def test_the_folder_of_hwmon_is_found_by_its_name() -> None:
    files = {f"{WAY}/hwmon/hwmon0/name": "other\n", f"{WAY}/hwmon/hwmon0/power1_cap": "1000000\n"}
    assert state({"files": files}).power.value[0].cap.value == 230.0
    assert state({"files": {f"{HWMON}/name": "other\n"}}).power.unread == "absent"
    assert state({"files": {f"{HWMON}/name": {"error": "EACCES"}}}).temperatures.unread == "permission"


@pytest.mark.parametrize(
    ("content", "reason"), [({"error": "EACCES"}, "permission"), ({"error": "EIO"}, "io"), ("many\n", "not_understood")]
)
def test_a_value_that_cannot_be_read(content: Any, reason: str) -> None:
    names = (f"{FREQ}/max_freq", f"{HWMON}/power1_cap", f"{HWMON}/temp2_input", f"{HWMON}/fan1_input")
    found = state({"files": dict.fromkeys(names, content)})
    assert found.clocks.value[0].maximum.unread == reason
    assert found.power.value[0].cap.unread == reason
    assert found.temperatures.value[0].celsius.unread == reason
    assert found.fans.unread == reason


def test_what_is_missing_is_absent() -> None:
    found = state({"remove": [f"{WAY}/tile0", f"{WAY}/hwmon"]})
    assert (found.clocks.unread, found.power.unread, found.fans.unread) == ("absent", "absent", "absent")


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"files": {f"{WAY}/power/runtime_status": "suspended\n"}}, "suspended"),
        ({"files": {f"{WAY}/power/runtime_status": "error\n"}}, "faulted"),
        ({"log": f"[ 900.1] xe {GPU}: [drm] Xe device coredump has been created"}, "faulted"),
        ({"commands": {replay.JOURNAL: None, "dmesg": None}}, "tool_missing"),
    ],
)
def test_the_driver_of_such_a_card_is_left_alone(change: dict[str, Any], reason: str) -> None:
    found = state(change)
    assert {found.clocks.unread, found.power.unread, found.temperatures.unread, found.fans.unread} == {reason}


def test_other_cards_are_read_and_asking_wakes() -> None:
    change = {"files": {f"{WAY}/power/runtime_status": "suspended\n"}}
    assert state(change, bdf="0000:23:00.0").clocks.value
    assert state(change, wake=True).clocks.value


@pytest.mark.parametrize("parse", PARSERS)
@given(text=st.text(max_size=30))
def test_random_text_is_a_value_or_a_value_error(parse: Any, text: str) -> None:
    try:
        parse(text)
    except ValueError:
        return
    assert text.strip()


# -- checks ------------------------------------------------------------------------------------------------------------


def test_a_healthy_card_is_ok() -> None:
    found = judge({})
    assert {found[id].status for id in IDS} == {Status.ok}
    assert found["gpu.clock_limit"].seen == "gt0 400 to 2800 MHz, tile0/gt1 400 to 1500 MHz".replace("tile0/", "")


def test_a_raised_minimum_is_no_fault_and_a_lowered_maximum_is() -> None:
    assert judge({"files": {f"{FREQ}/min_freq": "1200\n"}})["gpu.clock_limit"].status is Status.ok
    found = judge({"files": {f"{FREQ}/max_freq": "2400\n"}})["gpu.clock_limit"]
    assert (found.status, found.wanted) == (Status.warn, "2800 MHz")
    assert found.next_step == f"echo 2800 | sudo tee /sys/bus/pci/devices/{GPU}/tile0/gt0/freq0/max_freq"


@pytest.mark.parametrize(
    ("wish", "maximum", "minimum", "status"),
    [
        ({"max_clock": 2400}, 2400, 400, Status.ok),
        ({"max_clock": 2400}, 2800, 400, Status.fail),
        ({"max_clock": 2400}, 2000, 400, Status.fail),
        ({"min_clock": 1200}, 2800, 1200, Status.ok),
        ({"min_clock": 1200}, 2800, 400, Status.fail),
        ({"max_clock": 2400, "min_clock": 2400}, 2400, 2400, Status.ok),
        ({"max_clock": 2400, "min_clock": 2400}, 2400, 400, Status.fail),
    ],
)
def test_declared_clocks(wish: dict[str, int], maximum: int, minimum: int, status: Status) -> None:
    change = {"files": {f"{FREQ}/max_freq": f"{maximum}\n", f"{FREQ}/min_freq": f"{minimum}\n"}}
    assert judge(change, {"gpu_limits": wish})["gpu.clock_limit"].status is status


def test_the_cap_is_judged_only_when_declared() -> None:
    change = {"files": {f"{HWMON}/power1_cap": "160000000\n"}}
    assert judge(change)["gpu.power_cap"].status is Status.ok
    found = judge(change, {"gpu_limits": {"power_cap": 230}})["gpu.power_cap"]
    assert (found.status, found.seen, found.wanted) == (Status.fail, "160 W", "230 W")
    assert judge({}, {"gpu_limits": {"power_cap": 230}})["gpu.power_cap"].status is Status.ok


def test_temperatures_at_their_limit() -> None:
    found = judge({"files": {f"{HWMON}/temp2_input": "100000\n"}})["gpu.temperature"]
    assert (found.status, found.seen) == (Status.warn, "pkg 100 of 100 C")
    near = {"files": {f"{HWMON}/temp2_input": "96000\n"}}
    assert judge(near)["gpu.temperature"].status is Status.ok
    assert judge(near, {"gpu_limits": {"temperature_margin": 5}})["gpu.temperature"].status is Status.warn


def test_without_limits_no_temperature_is_judged() -> None:
    gone = {f"{HWMON}/{name}": None for name in ("temp2_max", "temp2_crit", "temp3_crit")}
    found = judge({"files": gone})["gpu.temperature"]
    assert found.status is Status.not_applicable
    assert "pkg 41 C" in found.seen


@pytest.mark.parametrize(
    ("path", "id"),
    [
        (f"{FREQ}/max_freq", "gpu.clock_limit"),
        (f"{FREQ}/rp0_freq", "gpu.clock_limit"),
        (f"{HWMON}/power1_cap", "gpu.power_cap"),
        (f"{HWMON}/temp2_input", "gpu.temperature"),
        (f"{HWMON}/temp2_crit", "gpu.temperature"),
    ],
)
@pytest.mark.parametrize("content", [{"error": "EACCES"}, "many\n"])
def test_a_value_that_was_not_read_is_not_ok(path: str, id: str, content: Any) -> None:
    if path.endswith("temp2_crit"):  # the lower limit is still known
        assert judge({"files": {path: content}})[id].status is Status.ok
        gone = {f"{HWMON}/temp2_max": None, path: content}
        assert judge({"files": gone})[id].status is Status.unknown
    else:
        assert judge({"files": {path: content}})[id].status is Status.unknown


def test_a_sleeping_card_is_told_once() -> None:
    found = judge({"files": {f"{WAY}/power/runtime_status": "suspended\n"}})
    assert set(found) == {"gpu.clock_limit"}
    assert found["gpu.clock_limit"].status is Status.unknown
    assert {one.id for one in found["gpu.clock_limit"].explains} == {"gpu.power_cap", "gpu.temperature"}


@pytest.mark.parametrize(
    ("log", "id"),
    [
        (f"xe {GPU}: [drm] Xe device coredump has been created", "gpu.fault"),
        (f"xe {GPU}: [drm] *ERROR* CRITICAL: Xe has declared device {GPU} as wedged.", "gpu.wedged"),
    ],
)
def test_a_faulted_card_is_explained_by_its_fault(log: str, id: str) -> None:
    report = replay.report(replay.changed(replay.host("four-card-gen4"), {"log": f"[ 900.1] {log}"}))
    cause = next(one for one in report.findings if one.id == id and one.subject.name == GPU)
    assert set(IDS) <= {one.id for one in cause.explains}
    assert not [one for one in report.findings if one.id in IDS and one.subject.name == GPU]


def test_hosts_without_such_a_card() -> None:
    for host in ("nvidia-host", "arm-server"):
        found = judge({}, host=host)
        assert {found[id].status for id in IDS} == {Status.not_applicable}


# -- engines -----------------------------------------------------------------------------------------------------------

CCS = f"{WAY}/tile0/gt0/engines/ccs"
DEFAULTS = {
    f"{CCS}/.defaults/{name}": value
    for name, value in (("job_timeout_ms", "5000\n"), ("timeslice_duration_us", "1000\n"))
}


def timeouts(files: dict[str, Any], bdf: str = GPU, host: str = "four-card-gen4", **change: Any) -> Finding:
    found = run([engines.timeouts.declaration], facts({"files": files, **change}, host), expectation({}))  # type: ignore[attr-defined]
    (one,) = [item for item in found if item.subject.name == bdf]
    return one


def test_equal_limits_of_engines_are_ok() -> None:
    assert [one.name for one in state().engines.value] == ["gt0/bcs", "gt0/ccs", "gt0/rcs"]
    assert state().engines.value[1].values.value == {"job_timeout_ms": 5000, "preempt_timeout_us": 640000}
    assert timeouts({}).status is Status.ok
    assert timeouts(DEFAULTS).status is Status.ok


def test_a_limit_that_is_not_the_default_is_told() -> None:
    found = timeouts({**DEFAULTS, f"{CCS}/job_timeout_ms": "10000\n"})
    assert (found.status, found.seen) == (Status.info, "gt0/ccs job_timeout_ms 10000, default 5000")


def test_without_defaults_the_card_that_differs_is_told() -> None:
    change = {f"{CCS}/job_timeout_ms": "10000\n"}
    found = timeouts(change)
    assert (found.status, found.seen) == (Status.info, "gt0/ccs job_timeout_ms 10000, others 5000")
    assert timeouts(change, bdf="0000:23:00.0").status is Status.ok


def test_of_two_cards_that_differ_neither_is_the_odd_one() -> None:
    paths = [path for path in replay.host("two-card-gen5")["files"] if path.endswith("engines/ccs/job_timeout_ms")]
    bdfs = [path.split("/")[-6] for path in paths]
    seen = {timeouts({paths[0]: "9000\n"}, bdf, "two-card-gen5").seen for bdf in bdfs}
    assert seen == {f"gt0/ccs job_timeout_ms {value}, cards differ" for value in (9000, 5000)}


@pytest.mark.parametrize("content", [{"error": "EACCES"}, "long\n"])
def test_a_limit_that_was_not_read_is_unknown(content: Any) -> None:
    assert timeouts({f"{CCS}/job_timeout_ms": content}).status is Status.unknown
    assert timeouts({f"{CCS}/.defaults/job_timeout_ms": content}).status is Status.unknown
    assert timeouts({}, remove=[f"{WAY}/tile0/gt0/engines"]).status is Status.not_applicable
    asleep = timeouts({f"{WAY}/power/runtime_status": "suspended\n"}, bdf="0000:23:00.0")
    assert asleep.status is Status.ok
