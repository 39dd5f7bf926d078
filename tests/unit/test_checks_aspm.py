"""ASPM: requested, controllable and effective are three things; and who sees PCIe errors."""

from __future__ import annotations

import base64
from dataclasses import replace
from typing import Any

import pytest

from hostcheck.checks import aspm
from hostcheck.findings import HOST, Finding, Subject
from hostcheck.onhost.reader import Reading
from hostcheck.onhost.readings import aspm as reading
from tests.hosts.build_pci import L1SS, ROOT_PORT, Function, Link
from tests.pci_host import event, facts, intel, judge, not_root, nvidia, put, real, recording, said

GPU, UP, ROOT = "0000:23:00.0", "0000:21:00.0", "0000:20:01.1"
POLICY = "/sys/module/pcie_aspm/parameters/policy"
FADT = event("aspm.off_firmware", samples=("ACPI FADT declares the system doesn't support PCIe ASPM, so disable it",))


def judged(made: dict[str, Any], check: Any, expect: dict[str, Any] | None = None, **log: Any) -> list[Finding]:
    return judge((check,), facts(made, **log), expect)


def one(made: dict[str, Any], check: Any = aspm.policy, expect: dict[str, Any] | None = None, **log: Any) -> Finding:
    (found,) = judged(made, check, expect, **log)
    return found


def wish(**values: str) -> dict[str, Any]:
    return {"settings": {"pcie_aspm": values}}


def l1(*where: str) -> list[Function]:
    """A card with L1 enabled at both ends of the links with these roles."""
    return [
        replace(part, link=replace(part.link, aspm=2, enabled=2))
        if part.link is not None and part.bdf in where
        else part
        for part in intel()
    ]


ALL = (ROOT, UP, "0000:22:01.0", GPU)


# -- parsing ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("ro quiet", ""),
        ("pcie_aspm=off", "off"),
        ("pcie_aspm=force pcie_aspm=off", "off"),
        ("pcie-aspm=off", "off"),
        ('pcie_aspm="off"', "off"),
        ("ro -- pcie_aspm=off", ""),
        ("my.pcie_aspm=off pcie_aspm.policy=performance", ""),
    ],
)
def test_command_line(text: str, value: str) -> None:
    assert reading.parse_command_line(text) == value


def test_words_of_pci_add_up_and_the_last_port_mode_wins() -> None:
    assert reading.parse_pci("pci=noaer,realloc=on pci=nocrs mypci=x") == ("noaer", "realloc=on", "nocrs")
    assert reading.parse_pcie_ports("pcie_ports=native pcie_ports=compat") == "compat"


@pytest.mark.parametrize("text", ["default performance", "", "[a] [b]"])
def test_a_policy_file_without_one_current_word_is_not_understood(text: str) -> None:
    with pytest.raises(ValueError, match="one policy in brackets"):
        reading.parse_policy(text)


@pytest.mark.parametrize(
    "text", ["[default] performance powersave", "default performance [powersave] powersupersave \n"]
)
def test_policy_files_of_old_and_new_kernels(text: str) -> None:
    assert reading.parse_policy(text)[0] in text


# -- aspm.policy ------------------------------------------------------------------------------------------------------


def test_policy_without_and_with_a_wish() -> None:
    made = recording(intel())
    assert one(made).status.value == "ok"
    assert one(made, expect=wish(policy="default")).status.value == "ok"
    found = one(made, expect=wish(policy="performance"))
    assert (found.status.value, found.seen, found.wanted) == ("fail", "default", "performance")


def test_off_on_the_command_line_is_not_controllable_though_the_file_reads_default() -> None:
    found = one(recording(l1(*ALL), cmdline="ro pcie_aspm=off"), expect=wish(policy="performance"))
    assert (found.status.value, found.seen) == (
        "info", "not controllable: disabled on the command line; effective (LnkCtl): L1 on every hop",
    )  # fmt: skip


@pytest.mark.parametrize(
    "refusal",
    [
        FADT,
        event("aspm.no_control", samples=("can't disable ASPM; OS doesn't have ASPM control",)),
        event("osc.refused", details={"features": "PCIeHotplug PME AER PCIeCapability"}),
        event("osc.refused", details={"features": "AE_NOT_FOUND"}),
        event("osc.refused", samples=("acpi PNP0A08:00: _OSC failed (AE_ERROR); disabling ASPM",)),
    ],
)
def test_a_firmware_that_refuses_makes_the_wish_not_applicable(refusal: Any) -> None:
    found = one(recording(intel()), expect=wish(policy="performance"), events=(refusal,))
    assert found.status.value == "not_applicable"
    assert "effective (LnkCtl): disabled on every hop" in found.seen
    assert one(recording(intel()), events=(replace(refusal, previous_boot=True),)).status.value == "ok"


def test_features_that_do_not_matter_are_no_refusal() -> None:
    harmless = event("osc.refused", details={"features": "SHPCHotplug LTR DPC"}, samples=("_OSC: platform does not …",))
    found = one(recording(intel()), expect=wish(policy="performance"), events=(harmless,))
    assert found.status.value == "fail"
    assert one(recording(intel()), aspm.visibility, events=(harmless,)).status.value == "ok"


@pytest.mark.parametrize(
    "features",
    [
        "PCIeHotplug SHPCHotplug PME AER PCIeCapability LTR",
        "PCIeHotplug PME PCIeCapability, PCIeHotplug PME AER PCIeCapability",  # which bridge is which is not told
        "CXLMemErrorReporting",  # a list of its own (drivers/acpi/pci_root.c)
        "",
    ],
)
def test_what_the_firmware_gave_is_no_refusal(features: str) -> None:
    granted = event("osc.granted", details={"features": features})
    assert one(recording(intel()), aspm.visibility, events=(granted,)).status.value == "ok"


def test_forced_on_is_a_warning_and_a_kernel_without_aspm_is_not_applicable() -> None:
    assert one(recording(intel(), cmdline="pcie_aspm=force")).status.value == "warn"
    made = recording(intel())
    del made["files"][POLICY]
    assert one(made).status.value == "unknown"
    made["files"]["/sys/module/pcie_aspm/"] = ""
    assert one(made).status.value == "not_applicable"
    made["files"][POLICY] = {"error": "EACCES"}
    assert one(made).status.value == "unknown"


# -- aspm.effective ---------------------------------------------------------------------------------------------------


def test_disabled_everywhere_is_ok_and_l1_is_info() -> None:
    assert one(recording(intel()), aspm.effective).status.value == "ok"
    found = one(recording(l1(ROOT, UP)), aspm.effective)
    assert (found.status.value, found.seen) == ("info", "L1 at 0000:21:00.0; disabled at 0000:23:00.0")


def test_substates_of_l1_are_told_where_both_ends_have_them_on() -> None:
    made = recording(replace(function, l1ss=function.bdf in (ROOT, UP)) for function in l1(ROOT, UP))
    assert "substates" not in one(made, aspm.effective).seen
    for bdf in (ROOT, UP):
        space = bytearray(base64.b64decode(made["files"][f"{real(made, bdf)}/config"]["base64"]))
        space[L1SS + 8] = 0x8
        put(made, bdf, "config", {"base64": base64.b64encode(bytes(space)).decode()})
    told = one(made, aspm.effective).seen
    assert told == "L1 at 0000:21:00.0; disabled at 0000:23:00.0; substates: ASPM_L1.1 at 0000:21:00.0"


def test_l1_needs_both_ends() -> None:
    found = one(recording(l1(UP)), aspm.effective)
    assert (found.status.value, found.seen) == ("ok", "disabled on every hop")


@pytest.mark.parametrize(
    "fault",
    [
        event("aer.fatal", ROOT, previous_boot=True, details={"errors": "CmpltTO"}),
        event("aer.nonfatal", UP, root_port=ROOT),
        event("gpu.lost", GPU),
        event("dpc", ROOT),
        event("d3_failed", GPU),
    ],
)
def test_l1_on_a_path_with_a_link_fault_is_a_warning(fault: Any) -> None:
    found = one(recording(l1(*ALL)), aspm.effective, events=(fault,))
    assert (found.status.value, found.subject.name) == ("warn", GPU)
    assert ("previous boot" in found.seen) == fault.previous_boot
    assert one(recording(intel()), aspm.effective, events=(fault,)).status.value == "ok"
    other = replace(fault, bdf="0000:99:00.0", root_port="0000:98:00.0")
    assert one(recording(l1(*ALL)), aspm.effective, events=(other,)).status.value == "info"


def test_a_gpu_that_hung_says_nothing_about_its_link() -> None:
    reset = event("xe.engine_reset", GPU)
    assert one(recording(l1(*ALL)), aspm.effective, events=(reset,)).status.value == "info"


def test_a_declared_effective_state_is_judged() -> None:
    assert one(recording(l1(ROOT, UP)), aspm.effective, wish(effective="disabled")).status.value == "fail"
    assert one(recording(intel()), aspm.effective, wish(effective="disabled")).status.value == "ok"
    assert one(recording(intel()), aspm.effective, wish(effective="l1")).status.value == "fail"
    assert one(recording(l1(ROOT, UP)), aspm.effective, wish(effective="l1")).status.value == "ok"


def test_without_registers_the_files_of_the_link_tell_and_else_nothing_is_claimed() -> None:
    made = not_root(recording(l1(*ALL)))
    assert one(made, aspm.effective).status.value == "unknown"
    for bdf in (UP, GPU):
        put(made, bdf, "link/l1_aspm", "1\n" if bdf == UP else "0\n")
        put(made, bdf, "link/l0s_aspm", "0\n")
    found = one(made, aspm.effective)
    assert (found.status.value, found.seen) == ("info", "L1 at 0000:21:00.0; disabled at 0000:23:00.0")


# -- aer.visibility ---------------------------------------------------------------------------------------------------


def test_counters_and_capability_make_errors_visible() -> None:
    assert said(judged(recording(intel()), aspm.visibility)) == {("aer.visibility", "host"): "ok"}
    assert aspm.aer_blind(facts(recording(intel()))) == {}


@pytest.mark.parametrize("cmdline", ["pcie_aspm=off", "pci=realloc,noaer", "pcie_ports=compat"])
def test_command_lines_that_switch_aer_off(cmdline: str) -> None:
    made = recording(intel(), cmdline=f"ro {cmdline}")
    found = one(made, aspm.visibility)
    assert (found.status.value, found.subject) == ("warn", HOST)
    assert "from the kernel command line" in found.next_step
    assert set(aspm.aer_blind(facts(made))) == {"*"}


@pytest.mark.parametrize(
    "refusal",
    [
        event("osc.refused", details={"features": "SHPCHotplug AER"}),
        event("osc.refused", details={"features": "PCIeHotplug PME AER PCIeCapability LTR"}),
        event("osc.refused", samples=("acpi PNP0A08:00: _OSC: not requesting OS control; OS requires [ASPM]",)),
        event("osc.granted", details={"features": "PCIeHotplug PME PCIeCapability LTR DPC"}),
    ],
)
def test_firmware_first_is_a_warning_unless_the_ports_are_taken_by_force(refusal: Any) -> None:
    found = one(recording(intel()), aspm.visibility, events=(refusal,))
    assert (found.status.value, found.next_step.startswith("BIOS")) == ("warn", True)
    native = recording(intel(), cmdline="pcie_ports=native")
    assert one(native, aspm.visibility, events=(refusal,)).status.value == "ok"


def test_a_root_port_without_the_capability_is_named() -> None:
    made = recording([*[replace(part, aer=False) for part in intel()], *intel(bus=0x40, node=2)])
    assert said(judged(made, aspm.visibility)) == {("aer.visibility", ROOT): "warn"}
    assert aspm.aer_blind(facts(made)) == {ROOT: (Subject("port", ROOT), "the root port has no AER capability")}


def test_a_port_whose_counters_the_kernel_does_not_keep() -> None:
    made = recording(intel())
    put(made, ROOT, "aer_dev_correctable", None)
    assert said(judged(made, aspm.visibility)) == {("aer.visibility", ROOT): "warn"}


def test_what_could_not_be_read_is_unknown() -> None:
    made = recording(intel())
    refused = judged(made, aspm.visibility, events=Reading.no("permission", "Operation not permitted"))
    assert said(refused) == {("aer.visibility", "host"): "unknown"}
    assert said(judged(made, aspm.visibility, complete=False)) == {("aer.visibility", "host"): "unknown"}
    granted = event("osc.granted", details={"features": "PCIeHotplug AER"})
    assert said(judged(made, aspm.visibility, complete=False, events=(granted,))) == {("aer.visibility", "host"): "ok"}
    bare = not_root(recording([replace(part, aer=False) for part in intel()]))
    assert said(judged(bare, aspm.visibility))["aer.visibility", ROOT] == "unknown"


def test_in_a_virtual_machine_the_hypervisor_sees_the_errors() -> None:
    root = Function(
        "0000:00:02.0", "1b36", "000c", "060400", port_type=ROOT_PORT, link=Link(16, 32, 16, 32), buses=(1, 1)
    )
    made = recording([root, replace(intel()[4], bdf="0000:01:00.0", parent=root.bdf)])
    assert said(judged(made, aspm.visibility)) == {("aer.visibility", root.bdf): "info"}
    assert one(made, aspm.effective).status.value == "not_applicable"
    assert said(judged(recording([]), aspm.visibility)) == {("aer.visibility", "host"): "not_applicable"}


def test_other_vendors_paths_count_too() -> None:
    made = recording([replace(part, aer=False) for part in nvidia(Link(16, 16, 16, 16))])
    assert said(judged(made, aspm.visibility)) == {("aer.visibility", "0000:00:05.0"): "warn"}
