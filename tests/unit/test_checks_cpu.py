"""Checks of the processor: the driver decides what a governor means, and nothing unread is ok."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hostcheck.checks import cpu
from hostcheck.expectations import expectation
from hostcheck.findings import Finding, Status, run
from hostcheck.onhost.gather import gather
from hostcheck.onhost.recording import RecordedReader
from tests import replay

CPU = "/sys/devices/system/cpu"
DECLARATIONS = tuple(
    value.declaration for value in (cpu.governor, cpu.clock, cpu.boost, cpu.topology) if hasattr(value, "declaration")
)
CPUS = {"intel-hybrid": 22, "epyc-two-socket": 96, "arm-server": 64}


def judge(name: str, change: dict[str, Any] | None = None, expect: dict[str, Any] | None = None) -> list[Finding]:
    facts = gather(
        RecordedReader(replay.changed(replay.host(name), change or {})), subset=("identity", "lscpu", "cpufreq")
    )
    return run(DECLARATIONS, facts, expectation(expect or {}))


def of(findings: list[Finding], id: str) -> list[Finding]:
    return [finding for finding in findings if finding.id == id]


def one(findings: list[Finding], id: str) -> Finding:
    (finding,) = of(findings, id)
    return finding


def policies(cpus: Any, **values: str | None) -> dict[str, Any]:
    return {
        f"{CPU}/cpufreq/policy{number}/{name}": None if value is None else f"{value}\n"
        for number in cpus
        for name, value in values.items()
    }


def governors(name: str, driver: str | None, governor: str, offered: str | None = None, **more: str) -> dict[str, Any]:
    given = {"scaling_driver": driver, "scaling_governor": governor, **more}
    if offered is not None:
        given["scaling_available_governors"] = offered
    return {"files": policies(range(CPUS[name]), **given)}


def declare(**wanted: str) -> dict[str, Any]:
    return {"settings": {"cpu_governor": wanted}}


# -- governor ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("driver", "offered", "status"),
    [
        ("intel_pstate", "performance powersave", Status.info),
        ("amd-pstate-epp", "performance powersave", Status.info),
        ("amd_pstate_epp", "performance powersave", Status.info),
        ("intel_cpufreq", None, Status.fail),
        ("acpi-cpufreq", None, Status.fail),
        ("amd-pstate", None, Status.fail),
        ("cppc_cpufreq", None, Status.fail),
        # a driver that nobody listed: what it offers tells what it is
        ("new-cpufreq", "powersave schedutil performance", Status.fail),
        ("new-cpufreq", "performance powersave", Status.unknown),
        (None, None, Status.unknown),
        ("<unknown>", None, Status.unknown),
    ],
)
def test_powersave_is_judged_with_its_driver(driver: str | None, offered: str | None, status: Status) -> None:
    finding = one(judge("arm-server", governors("arm-server", driver, "powersave", offered)), "cpu.governor")
    assert (finding.status, finding.subject.name) == (status, "all")
    assert "powersave" in finding.seen
    assert bool(finding.next_step) == (status is Status.fail)


@pytest.mark.parametrize("governor", ["performance", "schedutil", "ondemand", "conservative"])
@pytest.mark.parametrize("driver", ["acpi-cpufreq", "intel_pstate", None])
def test_other_governors_are_not_judged_without_a_declaration(governor: str, driver: str | None) -> None:
    finding = one(judge("epyc-two-socket", governors("epyc-two-socket", driver, governor)), "cpu.governor")
    assert finding.status is Status.ok


def test_a_refused_governor_is_unknown() -> None:
    files = {path: {"error": "EACCES"} for path in policies(range(22), scaling_governor="")}
    assert one(judge("intel-hybrid", {"files": files}), "cpu.governor").status is Status.unknown


def test_one_finding_per_kind_not_per_processor() -> None:
    change = {"files": {**policies(range(10), scaling_governor="powersave"), **policies([95], scaling_driver=None)}}
    found = of(judge("epyc-two-socket", change), "cpu.governor")
    assert {(finding.subject.name, finding.status) for finding in found} == {
        ("0-9", Status.fail),
        ("10-94", Status.ok),
        ("95", Status.ok),
    }


@pytest.mark.parametrize("name", ["intel-hybrid", "epyc-two-socket", "arm-server"])
def test_a_declared_governor_that_differs_fails_and_one_that_is_there_is_ok(name: str) -> None:
    usual = {"intel-hybrid": "performance", "epyc-two-socket": "schedutil", "arm-server": "schedutil"}[name]
    assert one(judge(name, expect=declare(governor=usual)), "cpu.governor").status is Status.ok
    finding = one(judge(name, expect=declare(governor="powersave")), "cpu.governor")
    assert (finding.status, finding.wanted, finding.next_step) == (Status.fail, "powersave", cpu.APPLY)
    assert "scaling_governor" in finding.source


def test_a_declared_governor_that_is_not_offered_says_what_is() -> None:
    finding = one(judge("intel-hybrid", expect=declare(governor="schedutil")), "cpu.governor")
    assert finding.status is Status.fail
    assert "not offered" in finding.seen
    assert finding.next_step.endswith("performance, powersave")


@pytest.mark.parametrize(
    ("epp", "wanted", "status"),
    [
        ("balance_performance", "performance", Status.fail),
        ("performance", "performance", Status.ok),
        ("0", "performance", Status.ok),
        ("128", "balance_performance", Status.ok),
        ("128", "power", Status.fail),
        ("17", "17", Status.ok),
    ],
)
def test_a_declared_preference_by_word_or_number(epp: str, wanted: str, status: Status) -> None:
    change = governors("intel-hybrid", "amd-pstate-epp", "powersave", energy_performance_preference=epp)
    finding = one(judge("intel-hybrid", change, declare(governor="powersave", epp=wanted)), "cpu.governor")
    assert finding.status is status


def test_a_declared_preference_where_the_driver_has_none_is_no_failure() -> None:
    finding = one(judge("arm-server", expect=declare(governor="schedutil", epp="performance")), "cpu.governor")
    assert (finding.status, "no EPP" in finding.seen) == (Status.info, True)


def test_a_declared_preference_that_cannot_be_read_is_unknown() -> None:
    files = {path: {"error": "EBUSY"} for path in policies(range(22), energy_performance_preference="")}
    finding = one(judge("intel-hybrid", {"files": files}, declare(epp="performance")), "cpu.governor")
    assert finding.status is Status.unknown


def test_the_owner_is_named_with_its_line_only_when_the_governor_differs() -> None:
    change = {
        "files": {
            "/etc/tuned/active_profile": "balanced\n",
            "/usr/lib/tuned/profiles/balanced/tuned.conf": "[cpu]\ngovernor=schedutil\n",
            "/etc/cron.d/old": "# nothing\n",
        },
        "links": {"/run/systemd/units/invocation:tuned.service": "0"},
    }
    finding = one(judge("arm-server", change, declare(governor="performance")), "cpu.governor")
    where = "/usr/lib/tuned/profiles/balanced/tuned.conf:2"
    assert f"set by tuned ({where}): schedutil" in finding.seen
    assert where in finding.source
    assert "tuned" not in one(judge("arm-server", change), "cpu.governor").seen


def test_an_owner_that_is_not_at_work_is_not_blamed() -> None:
    change = {"files": {"/etc/tlp.conf": "CPU_SCALING_GOVERNOR_ON_AC=schedutil\n"}}
    assert "TLP" not in one(judge("arm-server", change, declare(governor="performance")), "cpu.governor").seen


# -- no cpufreq ----------------------------------------------------------------------------------------

BARE = "flags\t\t: fpu lm\n"
GUEST = "flags\t\t: fpu hypervisor lm\n"


@pytest.mark.parametrize(
    ("change", "status"),
    [
        ({}, Status.warn),
        ({"files": {"/proc/cpuinfo": GUEST}}, Status.not_applicable),
        # lscpu alone says that it is a guest
        (
            {
                "commands": {
                    "lscpu -J": {
                        "rc": 0,
                        "stdout": '{"lscpu": [{"field": "CPU(s):", "data": "2"}, '
                        '{"field": "Hypervisor vendor:", "data": "KVM"}]}',
                    }
                }
            },
            Status.not_applicable,
        ),
        # the processor alone says that it is metal
        ({"commands": {"lscpu -J": None, "lscpu": None}}, Status.warn),
        # lscpu alone says that it is metal
        ({"files": {"/proc/cpuinfo": None}, "remove": ["/sys/devices/virtual/dmi/"]}, Status.warn),
        # nobody says anything
        (
            {
                "files": {"/proc/cpuinfo": None},
                "commands": {"lscpu -J": None, "lscpu": None},
                "remove": ["/sys/devices/virtual/dmi/"],
            },
            Status.unknown,
        ),
    ],
)
def test_without_cpufreq_it_matters_whether_the_host_is_virtual(change: dict[str, Any], status: Status) -> None:
    assert one(judge("metal-without-cpufreq", change), "cpu.governor").status is status


def test_a_declaration_makes_no_failure_of_a_virtual_machine() -> None:
    finding = one(judge("vm-without-cpufreq", expect=declare(governor="performance")), "cpu.governor")
    assert finding.status is Status.not_applicable


def test_on_metal_the_next_step_is_in_the_firmware_or_the_command_line() -> None:
    assert one(judge("metal-without-cpufreq"), "cpu.governor").next_step.startswith("BIOS:")
    change = {
        "files": {"/proc/cmdline": "ro cpufreq.off=1\n", "/etc/default/grub": 'GRUB_CMDLINE_LINUX="cpufreq.off=1"\n'}
    }
    finding = one(judge("metal-without-cpufreq", change), "cpu.governor")
    assert finding.next_step == "sudoedit /etc/default/grub  # remove cpufreq.off=1"
    assert "install" not in finding.next_step


def test_nothing_else_is_claimed_without_cpufreq() -> None:
    for name in ("metal-without-cpufreq", "vm-without-cpufreq"):
        found = judge(name)
        assert one(found, "cpu.clock").status is Status.not_applicable
        assert one(found, "cpu.boost").status is Status.not_applicable


def test_a_folder_that_could_not_be_listed_makes_all_unknown() -> None:
    found = judge("metal-without-cpufreq", {"files": {f"{CPU}/cpufreq/": None, f"{CPU}/cpufreq": {"error": "EACCES"}}})
    assert {item.id: item.status for item in found if item.id != "cpu.topology"} == dict.fromkeys(
        ("cpu.governor", "cpu.clock", "cpu.boost"), Status.unknown
    )


# -- clock ---------------------------------------------------------------------------------------------


@given(low=st.integers(1, 387_000), cpus=st.sets(st.integers(0, 21), min_size=1))
def test_a_clock_below_the_minimum_of_the_hardware_fails(low: int, cpus: set[int]) -> None:
    finding = one(judge("intel-hybrid", {"files": policies(cpus, scaling_cur_freq=str(low))}), "cpu.clock")
    assert finding.status is Status.fail
    assert "400 MHz" in finding.wanted
    assert f"{low / 1000:.0f} MHz" in finding.seen


@given(clock=st.integers(400_000, 4_800_000))
def test_a_clock_at_or_above_the_minimum_is_ok(clock: int) -> None:
    found = judge("intel-hybrid", {"files": policies(range(22), scaling_cur_freq=str(clock))})
    assert one(found, "cpu.clock").status is Status.ok


def test_a_clock_is_compared_with_the_minimum_of_its_own_policy() -> None:
    change = {"files": policies([21], cpuinfo_min_freq="800000", scaling_cur_freq="500000")}
    finding = one(judge("intel-hybrid", change), "cpu.clock")
    assert (finding.subject.name, finding.status) == ("21", Status.fail)


@pytest.mark.parametrize("text", ["<unknown>", ""])
def test_a_clock_that_was_not_read_is_unknown_and_hides_no_failure(text: str) -> None:
    change = {"files": {**policies([3], scaling_cur_freq=text), **policies([5], scaling_cur_freq="200000")}}
    found = of(judge("intel-hybrid", change), "cpu.clock")
    assert {(item.subject.name, item.status) for item in found} == {("3", Status.unknown), ("5", Status.fail)}


def test_throttling_is_told_with_the_low_clock() -> None:
    change = {
        "files": {
            **policies([0], scaling_cur_freq="200000"),
            f"{CPU}/cpu0/thermal_throttle/package_throttle_count": "4711\n",
        }
    }
    assert "4711" in one(judge("intel-hybrid", change), "cpu.clock").seen


# -- boost ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "files", "step"),
    [
        ("epyc-two-socket", {f"{CPU}/cpufreq/boost": "0\n"}, f"echo 1 | sudo tee {CPU}/cpufreq/boost"),
        ("intel-hybrid", {f"{CPU}/intel_pstate/no_turbo": "1\n"}, f"echo 0 | sudo tee {CPU}/intel_pstate/no_turbo"),
        ("arm-server", policies([7], boost="0"), f"echo 1 | sudo tee {CPU}/cpufreq/policy*/boost"),
    ],
)
def test_boost_off_warns_unless_a_reason_is_declared(name: str, files: dict[str, str], step: str) -> None:
    finding = one(judge(name, {"files": files}), "cpu.boost")
    assert finding.status is Status.warn
    assert finding.next_step.startswith(step)
    declared = one(judge(name, {"files": files}, {"boost_off_reason": "machine checks"}), "cpu.boost")
    assert (declared.status, declared.next_step) == (Status.info, "")
    assert "machine checks" in declared.wanted


def test_a_switch_that_is_on_for_all_and_off_for_each_is_no_answer() -> None:
    """As a 6.12 kernel says it (lab-vm-newer-kernel); off for one policy alone is off."""
    change = {"files": {f"{CPU}/cpufreq/boost": "1\n", **policies(range(96), boost="0")}}
    finding = one(judge("epyc-two-socket", change), "cpu.boost")
    assert (finding.status, "every policy off" in finding.seen) == (Status.unknown, True)
    assert (
        one(judge("epyc-two-socket", change, {"boost_off_reason": "machine checks"}), "cpu.boost").status is Status.info
    )
    unit = {"/etc/tmpfiles.d/boost.conf": f"w {CPU}/cpufreq/policy*/boost - - - - 0\n"}
    assert one(judge("epyc-two-socket", {"files": {**change["files"], **unit}}), "cpu.boost").status is Status.warn
    change["files"].update(policies([3], boost="1"))
    assert one(judge("epyc-two-socket", change), "cpu.boost").status is Status.warn


def test_who_switched_boost_off_is_named() -> None:
    unit = "/etc/systemd/system/noboost.service"
    change = {
        "files": {
            f"{CPU}/cpufreq/boost": "0\n",
            unit: f"[Service]\nType=oneshot\nExecStart=/bin/sh -c 'echo 0 > {CPU}/cpufreq/boost'\n",
        },
        "links": {"/run/systemd/units/invocation:noboost.service": "0"},
    }
    assert f"{unit}:3" in one(judge("epyc-two-socket", change), "cpu.boost").seen


@pytest.mark.parametrize("text", [{"error": "EACCES"}, "maybe\n", ""])
def test_boost_that_was_not_read_is_unknown(text: Any) -> None:
    finding = one(judge("epyc-two-socket", {"files": {f"{CPU}/cpufreq/boost": text}}), "cpu.boost")
    assert finding.status is Status.unknown


def test_a_driver_without_a_switch_is_not_judged() -> None:
    assert one(judge("arm-server"), "cpu.boost").status is Status.not_applicable


# -- topology ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["intel-hybrid", "epyc-two-socket", "arm-server", "vm-without-cpufreq"])
def test_all_processors_on_line(name: str) -> None:
    assert one(judge(name), "cpu.topology").status is Status.ok


@given(gone=st.sets(st.integers(1, 95), min_size=1, max_size=40))
def test_processors_off_line_are_told(gone: set[int]) -> None:
    left = ",".join(str(number) for number in range(96) if number not in gone)
    change = {
        "commands": {"lscpu -J": None, "lscpu": None},
        "files": {f"{CPU}/online": f"{left}\n", f"{CPU}/smt/control": "off\n"},
    }
    finding = one(judge("epyc-two-socket", change), "cpu.topology")
    assert finding.status is Status.info
    assert finding.seen.startswith(f"{len(gone)} of 96 ")
    assert finding.seen.endswith("SMT is off")


def test_without_any_count_topology_is_unknown() -> None:
    change = {"commands": {"lscpu -J": None, "lscpu": None}, "remove": [f"{CPU}/present", f"{CPU}/online"]}
    assert one(judge("epyc-two-socket", change), "cpu.topology").status is Status.unknown


@pytest.mark.parametrize("name", replay.host_names())
def test_no_recorded_host_has_an_unknown_processor(name: str) -> None:
    not_told = {"lab-vm-newer-kernel": ["cpu.boost"]}  # its kernel says on for all and off for each
    assert [item.id for item in judge(name) if item.status is Status.unknown] == not_told.get(name, [])
