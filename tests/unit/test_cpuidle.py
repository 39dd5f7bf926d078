"""Idle states of the processors, and when a deep one is an alarm."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hostcheck.checks import cpu_limits
from hostcheck.checks import cpuidle as checks
from hostcheck.expectations import expectation
from hostcheck.findings import Finding, Status, fold, run
from hostcheck.onhost.gather import gather
from hostcheck.onhost.readings import cpuidle
from hostcheck.onhost.recording import RecordedReader
from tests import replay

CPU = "/sys/devices/system/cpu"
PARSERS = (cpuidle.parse_name, cpuidle.parse_microseconds, cpuidle.parse_disable)
LOCKUP = (
    "[ 4711.000000] watchdog: BUG: soft lockup - CPU#9 stuck for 157s! [kworker/9:0:74]\n"
    "[ 4711.000010] RIP: 0010:smp_call_function_many_cond+0x13a/0x510\n"
)


def read(change: dict[str, Any] | None = None, host: str = "four-card-gen4") -> cpuidle.Cpuidle:
    return gather(RecordedReader(replay.changed(replay.host(host), change or {})), subset=("cpuidle",)).cpuidle


def judge(
    check: Any, change: dict[str, Any], expect: dict[str, Any] | None = None, host: str = "four-card-gen4"
) -> list[Finding]:
    facts = gather(RecordedReader(replay.changed(replay.host(host), change)))
    return run((check.declaration,), facts, expectation(expect or {}))


def off(cpus: range, state: int = 2) -> dict[str, Any]:
    return {"files": {f"{CPU}/cpu{cpu}/cpuidle/state{state}/disable": "1\n" for cpu in cpus}}


def test_states_of_all_processors() -> None:
    idle = read()
    assert (idle.driver.value, idle.governor.value, idle.deepest.value) == ("acpi_idle", "menu", "0-31")
    assert [
        (one.number, one.name, one.latency_us.value, one.cpus, one.enabled.value) for one in idle.states.value or ()
    ] == [
        (0, "POLL", 0, "0-31", "0-31"),
        (1, "C1", 1, "0-31", "0-31"),
        (2, "C2", 18, "0-31", "0-31"),
    ]


def test_p_and_e_cores_have_states_of_their_own() -> None:
    change = {"files": {f"{CPU}/cpu12/cpuidle/state2/name": "C6S\n"}}
    states = read(change, "intel-hybrid").states.value or ()
    assert {(one.name, one.cpus) for one in states if one.number == 2} == {("C2_ACPI", "0-11"), ("C6S", "12-21")}


def test_a_state_may_be_off_on_some_processors() -> None:
    idle = read(off(range(4)))
    assert idle.deepest.value == "4-31"
    assert {one.enabled.value for one in idle.states.value or () if one.number == 2} == {"4-31"}
    assert {one.enabled.value for one in idle.states.value or () if one.number == 1} == {"0-31"}


def test_none_at_all_differs_from_not_read() -> None:
    assert (read(host="arm-server").states.value, read(host="arm-server").deepest.value) == ((), "")
    assert read({"remove": [CPU]}).states.unread == "absent"


@pytest.mark.parametrize(
    ("path", "content", "reason"),
    [
        (f"{CPU}/cpu3/cpuidle", {"error": "EACCES"}, "permission"),
        (f"{CPU}/cpu0/cpuidle/state1/name", {"error": "EIO"}, "io"),
        (f"{CPU}/cpu0/cpuidle/state1/name", "C 1 \x1b\n", "not_understood"),
    ],
)
def test_a_state_that_cannot_be_read_is_no_empty_list(path: str, content: Any, reason: str) -> None:
    idle = read({"files": {path: content}})
    assert (idle.states.unread, idle.deepest.unread) == (reason, reason)


@pytest.mark.parametrize(("content", "reason"), [({"error": "EACCES"}, "permission"), ("maybe\n", "not_understood")])
def test_a_switch_that_cannot_be_read_is_not_taken_for_on(content: Any, reason: str) -> None:
    idle = read({"files": {f"{CPU}/cpu7/cpuidle/state2/disable": content}})
    assert idle.deepest.unread == reason
    assert [one.enabled.unread for one in idle.states.value or ()] == [None, None, reason]


@pytest.mark.parametrize("parse", PARSERS)
@given(text=st.text(max_size=40))
def test_random_text_is_a_value_or_a_value_error(parse: Any, text: str) -> None:
    try:
        parse(text)
    except ValueError:
        return
    assert text.strip()


# -- check ---------------------------------------------------------------------------------------------------------


def test_deep_idle_is_right_where_nothing_locked_up() -> None:
    (found,) = judge(checks.deep_idle, {})
    assert found.status is Status.ok
    assert "no lockup" in found.seen


def test_the_signature_makes_it_a_warning_and_switching_it_off_ends_that() -> None:
    (found,) = judge(checks.deep_idle, {"log": LOCKUP})
    assert (found.status, found.subject.name) == (Status.warn, "all")
    (found,) = judge(checks.deep_idle, {"log": LOCKUP, **off(range(32))})
    assert (found.status, found.seen) == (Status.ok, "C2 (18 us) is off")


def test_another_lockup_is_no_reason() -> None:
    other = LOCKUP.replace("smp_call_function_many_cond", "xe_guc_irq_handler")
    assert judge(checks.deep_idle, {"log": other})[0].status is Status.ok


def test_a_declared_state_fails_on_the_processors_that_have_it_on() -> None:
    wish = {"settings": {"cpu_governor": {"disable_deepest_idle": True}}}
    (found,) = judge(checks.deep_idle, off(range(30)), wish)
    assert (found.status, found.subject.name) == (Status.fail, "30-31")
    assert judge(checks.deep_idle, off(range(32)), wish)[0].status is Status.ok


def test_without_the_log_nothing_is_claimed() -> None:
    (found,) = judge(checks.deep_idle, {"commands": {replay.JOURNAL: None, "dmesg": None}})
    assert found.status is Status.unknown
    assert found.cause is not None
    assert found.cause.id == "log.access"


def test_where_there_are_no_states_it_does_not_apply() -> None:
    assert judge(checks.deep_idle, {}, host="gpu-vm")[0].status is Status.not_applicable
    (found,) = judge(checks.deep_idle, {"files": {f"{CPU}/cpu0/cpuidle": {"error": "EACCES"}}})
    assert found.status is Status.unknown


# -- the highest clock -------------------------------------------------------------------------------------------------


def limit(*cpus: int, khz: str = "2000000\n") -> dict[str, Any]:
    return {"files": {f"{CPU}/cpufreq/policy{cpu}/scaling_max_freq": khz for cpu in cpus}}


def test_a_limit_below_the_hardware_is_a_warning_with_a_command() -> None:
    (found,) = judge(cpu_limits.max_clock, limit(3))
    assert (found.status, found.subject.name, found.seen) == (Status.warn, "3", "limited to 2000 MHz")
    assert found.next_step == "echo 4575000 | sudo tee /sys/devices/system/cpu/cpufreq/policy3/scaling_max_freq"
    (found,) = judge(cpu_limits.max_clock, limit(*range(32)))
    assert found.subject.name == "all"
    assert "policy*" in found.next_step


@pytest.mark.parametrize(
    ("khz", "status"), [("4575000\n", Status.ok), ("4574000\n", Status.ok), ("4500000\n", Status.warn)]
)
def test_rounding_is_no_limit(khz: str, status: Status) -> None:
    assert judge(cpu_limits.max_clock, limit(0, khz=khz))[0].status is status


def test_a_percentage_is_a_limit_too() -> None:
    change = {"files": {f"{CPU}/intel_pstate/max_perf_pct": "60\n"}}
    (found,) = judge(cpu_limits.max_clock, change, host="two-cards-behind-plx")
    assert (found.status, found.seen) == (Status.warn, "limited to 60 % of the maximum performance")


def test_without_boost_the_limit_is_its_consequence() -> None:
    change = {"files": {**limit(0)["files"], f"{CPU}/cpufreq/boost": "0\n"}}
    (found,) = judge(cpu_limits.max_clock, change)
    assert found.cause is not None
    assert found.cause.id == "cpu.boost"
    report = replay.report(replay.changed(replay.host("four-card-gen4"), change))
    assert not [one for one in report.findings if one.id == "cpu.max_clock"]
    assert fold([found]) == [found]


@pytest.mark.parametrize(("content", "words"), [({"error": "EACCES"}, "permission"), ("<unknown>\n", "not_understood")])
def test_a_limit_that_cannot_be_read_is_not_ok(content: Any, words: str) -> None:
    (found,) = judge(cpu_limits.max_clock, {"files": {f"{CPU}/cpufreq/policy5/scaling_max_freq": content}})
    assert (found.status, found.subject.name) == (Status.unknown, "5")
    assert words in found.seen


def test_no_cpufreq_and_no_limits() -> None:
    assert judge(cpu_limits.max_clock, {}, host="vm-without-cpufreq")[0].status is Status.not_applicable
    gone = {f"{CPU}/cpufreq/policy{cpu}/cpuinfo_max_freq": None for cpu in range(32)}
    assert judge(cpu_limits.max_clock, {"files": gone})[0].status is Status.not_applicable
