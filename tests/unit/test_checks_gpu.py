"""Enumeration, command line, resizable BAR and runtime power management of cards."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from hostcheck.checks import display, gpu, power
from hostcheck.findings import Finding
from hostcheck.onhost.reader import Reading
from tests.hosts.build_pci import INTEGRATED, Function, Link
from tests.pci_host import SMALL, event, facts, intel, judge, listed_only, nvidia, put, real, recording, said

GPU = "0000:23:00.0"
TWO = [*intel(), *intel(bus=0x40, node=2)]


def judged(
    made: dict[str, Any], expect: dict[str, Any] | None = None, check: Any = gpu.enumeration, **log: Any
) -> list[Finding]:
    return judge((check,), facts(made, **log), expect)


def only(findings: list[Finding], name: str = GPU) -> Finding:
    (found,) = [one for one in findings if one.subject.name == name]
    return found


# -- enumeration ------------------------------------------------------------------------------------------------------


def test_bound_with_device_nodes_is_ok() -> None:
    found = only(judged(recording(intel())))
    assert (found.status.value, found.seen) == ("ok", "Arc Pro B70 [8086:e223]: xe, card1 renderD128")


def unbound(
    cmdline: str = "ro quiet", loaded: bool = True, device: str = "e223", others: bool = False
) -> dict[str, Any]:
    made = recording([*intel(driver="", device=device), *(intel(bus=0x40) if others else ())], cmdline=cmdline)
    if loaded:
        made["files"]["/sys/bus/pci/drivers/xe/"] = ""
    made["files"]["/sys/bus/pci/drivers/pcieport/"] = ""
    return made


def test_a_loaded_driver_that_does_not_know_the_id_is_too_old() -> None:
    found = only(judged(unbound("ro xe.force_probe=e223")))
    assert found.status.value == "fail"
    assert "unbound" in found.seen
    assert "6.17.0-23-generic is too old" in found.seen
    assert "force_probe cannot help" in found.seen
    assert found.next_step.startswith("install a newer kernel")
    assert only(judged(unbound(others=True))).next_step.startswith("install a newer kernel")


def test_a_driver_that_is_not_loaded_is_not_an_old_kernel() -> None:
    found = only(judged(unbound(loaded=False)))
    assert (found.status.value, found.next_step) == ("fail", "modprobe xe")


@pytest.mark.parametrize("log", [{"complete": False}, {"events": Reading.no("permission", "refused")}])
def test_without_the_log_the_reason_stays_open(log: dict[str, Any]) -> None:
    found = only(judged(unbound(), **log))
    assert found.status.value == "fail"
    assert "too old" not in found.seen
    assert GPU in found.next_step


@pytest.mark.parametrize(("error", "name"), [("-105", "ENOBUFS"), ("-22", "EINVAL"), ("-5", "EIO")])
def test_a_failed_probe_says_its_error_and_points_at_the_entry_before(error: str, name: str) -> None:
    failed = event("probe_failed", GPU, details={"driver": "xe", "error": error})
    found = only(judged(unbound(), events=(failed,)))
    assert (found.status.value, found.next_step) == ("fail", "boot the previous kernel entry")
    assert f"{error} ({name})" in found.seen
    before = facts(recording(intel()))
    before = replace(before, identity=replace(before.identity, kernel=Reading("6.16.7", "/proc")))
    (again,) = [
        one
        for one in judge((gpu.enumeration,), facts(unbound(), events=(failed,)), None, before)
        if one.subject.name == GPU
    ]
    assert again.next_step == "boot the previous kernel entry (6.16.7)"


def test_a_probe_failure_of_another_card_or_another_boot_is_not_this_cards() -> None:
    other = event("probe_failed", "0000:99:00.0", details={"driver": "xe", "error": "-5"})
    old = event("probe_failed", GPU, details={"driver": "xe", "error": "-5"}, previous_boot=True)
    assert "too old" in only(judged(unbound(), events=(other, old))).seen


def test_a_driver_that_declines_and_quotes_that_hide_the_id() -> None:
    declined = event("not_supported_by_driver", GPU, details={"device": "56a1"})
    quoted = unbound("ro xe.force_probe='56a1' i915.force_probe='!56a1'", device="56a1")
    found = only(judged(quoted, events=(declined,)))
    assert (found.status.value, found.next_step) == (
        "fail", "kernel command line: xe.force_probe=56a1 i915.force_probe=!56a1",
    )  # fmt: skip
    plain = only(judged(unbound(device="56a1"), events=(declined,)))
    assert "xe.force_probe=56a1" in plain.next_step


def test_a_card_kept_away_by_the_command_line() -> None:
    found = only(judged(unbound("ro xe.force_probe=!e223")))
    assert (found.status.value, found.next_step) == (
        "fail", "remove xe.force_probe=!e223 from the kernel command line",
    )  # fmt: skip


@pytest.mark.parametrize("driver", ["vfio-pci", "xe-vfio-pci", "xe_vfio_pci", "pci-stub"])
def test_a_card_held_for_a_virtual_machine_is_not_in_use(driver: str) -> None:
    made = recording([*intel(driver=driver), *intel(bus=0x40, node=2)])
    assert only(judged(made)).status.value == "info"
    short = judged(made, {"gpus": {"count": 2, "bdfs": [GPU]}})
    assert {(one.subject.name, one.status.value) for one in short} >= {(GPU, "fail")}


def test_a_virtual_function_is_not_in_use() -> None:
    made = recording(intel())
    made["links"][f"{real(made, GPU)}/physfn"] = "../0000:22:00.0"
    assert only(judged(made)).status.value == "info"


def test_a_driver_that_cannot_use_the_card() -> None:
    assert only(judged(recording(intel(driver="nvme")))).status.value == "fail"


def test_bound_without_render_node_fails_and_unread_nodes_are_unknown() -> None:
    bare = [replace(one, drm=None) if one.bdf == GPU else one for one in intel()]
    assert only(judged(recording(bare))).status.value == "fail"
    made = recording(bare)
    put(made, GPU, "power/runtime_status", "suspended\n")
    assert only(judged(made)).status.value == "unknown"


def test_a_missing_device_file_is_told_from_a_recording_without_any() -> None:
    stats = {"/dev/dri/card1": {"mode": "20660", "uid": 0, "gid": 44, "rdev": [226, 1]}}
    found = only(judged(recording(intel(), stats=stats)))
    assert (found.status.value, found.seen.endswith("no /dev/dri/renderD128")) == ("fail", True)
    assert only(judged(recording(intel()))).status.value == "ok"


def test_survivability_mode_is_no_card_in_use() -> None:
    made = recording(intel())
    put(made, GPU, "survivability_mode", "Boot\n")
    found = only(judged(made))
    assert (found.status.value, "survivability" in found.seen) == ("fail", True)


def test_nvidia_needs_no_render_node() -> None:
    made = recording(nvidia(Link(16, 16, 16, 16)))
    assert only(judged(made), "0000:05:00.0").status.value == "ok"


def test_integrated_graphics_are_no_card() -> None:
    made = recording([Function("0000:00:02.0", "8086", "a780", "030000", port_type=INTEGRATED)])
    assert said(judged(made)) == {("gpu.enumeration", "0000:00:02.0"): "info"}
    short = said(judged(made, {"gpus": {"count": 1}}))
    assert short["gpu.enumeration", "host"] == "fail"


def test_no_gpu_is_not_applicable_unless_one_is_expected() -> None:
    assert said(judged(recording([]))) == {("gpu.enumeration", "host"): "not_applicable"}
    found = judged(recording([]), {"gpus": {"count": 4}})
    assert [(one.status.value, one.seen) for one in found] == [("fail", "0 of 4 cards")]


def test_a_missing_card_is_named() -> None:
    found = judged(recording(TWO), {"gpus": {"count": 3, "bdfs": [GPU, "0000:43:00.0", "0000:63:00.0"]}})
    assert {(one.subject.name, one.status.value) for one in found if one.status.value != "ok"} == {
        ("0000:63:00.0", "fail")
    }
    two = facts(recording(TWO))
    (short,) = [
        one
        for one in judge((gpu.enumeration,), facts(recording(intel())), {"gpus": {"count": 2}}, two)
        if one.subject.name == "host"
    ]
    assert short.seen == "1 of 2 cards (0000:23:00.0); gone since the previous read: 0000:43:00.0"


def test_ids_that_are_expected() -> None:
    assert "fail" not in said(judged(recording(TWO), {"gpus": {"count": 2, "ids": ["e223"]}})).values()
    found = judged(recording(TWO), {"gpus": {"ids": ["e211"]}})
    assert [one.seen for one in found if one.status.value == "fail"] == ["no card with id e211"]


def test_an_unread_bus_or_unread_ids_are_unknown() -> None:
    made = recording([])
    made["files"]["/sys/bus/pci/devices"] = {"error": "EACCES"}
    assert said(judged(made)) == {("gpu.enumeration", "host"): "unknown"}
    made = recording(intel())
    put(made, GPU, "class", {"error": "EIO"})
    assert said(judged(made))["gpu.enumeration", GPU] == "unknown"


# -- gpu.cmdline ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("word", "wanted"),
    [
        ("xe.force_probe='e223'", "xe.force_probe=e223"),
        ("i915.force_probe='!56a1'", "i915.force_probe=!56a1"),
        ("xe.force_probe=`56a1`", "xe.force_probe=56a1"),
        ("xe.force_probe=\u2018e223\u2019", "xe.force_probe=e223"),  # typographic quotes
    ],
)
def test_quotes_are_part_of_the_value(word: str, wanted: str) -> None:
    (found,) = judged(recording(intel(), cmdline=f"ro {word} quiet"), check=gpu.cmdline)
    assert (found.status.value, found.wanted) == ("warn", wanted)
    assert "quotes are part of the value" in found.seen


@pytest.mark.parametrize(
    "word", ["xe.force_probe=e223", 'xe.force_probe="e223"', "i915.force_probe=!56a1,4905", "xe.force_probe=*"]
)
def test_values_that_the_driver_understands(word: str) -> None:
    (found,) = judged(recording(intel(), cmdline=word), check=gpu.cmdline)
    assert found.status.value == "ok"


# -- rebar ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("device", "bar", "status"),
    [
        ("e223", 32 << 30, "ok"),
        ("e223", 16 << 30, "fail"),
        ("e223", SMALL, "fail"),
        ("e223", 0, "fail"),
        ("e20b", 16 << 30, "ok"),  # 12 GB
        ("e20b", 8 << 30, "fail"),
        ("e211", 32 << 30, "ok"),  # 24 GB
        ("56a5", 8 << 30, "ok"),  # 6 GB
        ("56a0", 16 << 30, "ok"),  # sold with 8 and with 16 GB: the sizes that the card offers decide
        ("fffe", SMALL, "fail"),
        ("fffe", 8 << 30, "ok"),
    ],
)
def test_bar_against_memory(device: str, bar: int, status: str) -> None:
    # the builder lets a card offer sizes up to the one that it has; a small one offers all of them
    functions = [
        replace(one, rebar=False) if one.bdf == GPU and status == "fail" else one
        for one in intel(device=device, bar=bar)
    ]
    made = recording(functions)
    if not bar:
        put(made, GPU, "resource", "0x0000000000000000 0x0000000000000000 0x0000000000000000\n" * 13)
    (found,) = judged(made, check=gpu.rebar)
    assert found.status.value == status
    assert bool(found.next_step) == (status == "fail")


@pytest.mark.parametrize(
    "small",
    [
        event("bar.small", GPU, samples=("xe 0000:23:00.0: [drm] Small BAR device",)),
        event("bar.small", GPU, details={"size": "0x800000000", "visible": "0x10000000"}),
    ],
)
def test_any_one_witness_is_enough(small: Any) -> None:
    (found,) = judged(recording(intel()), check=gpu.rebar, events=(small,))
    assert (found.status.value, "small BAR" in found.seen) == ("fail", True)
    (other,) = judged(recording(intel()), check=gpu.rebar, events=(replace(small, bdf="0000:99:00.0"),))
    assert other.status.value == "ok"
    (listed,) = judged(listed_only(intel(bar=SMALL)), check=gpu.rebar)
    assert (listed.status.value, listed.seen) == ("fail", "BAR 2 is 256 MiB")


def test_memory_that_the_driver_tells_counts_for_an_unknown_id() -> None:
    vram = event("bar.vram", GPU, details={"size": "0x300000000", "visible": "0x200000000"})
    functions = [replace(one, rebar=False) if one.bdf == GPU else one for one in intel(device="fffe", bar=8 << 30)]
    (found,) = judged(recording(functions), check=gpu.rebar, events=(vram,))
    assert (found.status.value, found.wanted) == ("fail", "16 GiB or more")


def test_a_card_that_offers_more_than_its_memory_needs_no_more_than_that() -> None:
    (found,) = judged(recording(intel(device="e20b", bar=32 << 30)), check=gpu.rebar)
    assert (found.status.value, found.wanted) == ("ok", "16 GiB or more")


def test_in_a_virtual_machine_the_next_step_is_at_the_hypervisor() -> None:
    made = recording(intel(bar=SMALL))
    assert "BIOS" in judged(made, check=gpu.rebar)[0].next_step
    made["files"]["/proc/cpuinfo"] = "flags\t\t: fpu hypervisor\n"
    (found,) = judged(made, check=gpu.rebar)
    assert ("hypervisor" in found.next_step, "BIOS" in found.next_step) == (True, False)


def test_rebar_of_a_sleeping_card_is_unknown_and_of_other_vendors_not_judged() -> None:
    made = recording(intel())
    put(made, GPU, "power/runtime_status", "suspended\n")
    assert said(judged(made, check=gpu.rebar)) == {("rebar", GPU): "unknown"}
    other = recording(nvidia(Link(16, 16, 16, 16)))
    assert said(judged(other, check=gpu.rebar)) == {("rebar", "host"): "not_applicable"}


# -- power ------------------------------------------------------------------------------------------------------------


def test_auto_is_one_warning_per_host() -> None:
    made = recording(TWO)
    assert said(judged(made, check=power.power_control)) == {("gpu.power_control", "host"): "ok"}
    for bdf in (GPU, "0000:43:00.0"):
        put(made, bdf, "power/control", "auto\n")
    put(made, GPU, "power/runtime_status", "suspended\n")
    (found,) = judged(made, check=power.power_control)
    assert (found.status.value, found.subject.name) == ("warn", "host")
    assert found.seen == "auto on 0000:23:00.0, 0000:43:00.0; suspended now: 0000:23:00.0"


def test_the_bridges_above_are_told_and_not_judged() -> None:
    made = recording(intel())
    put(made, "0000:20:01.1", "power/control", "auto\n")
    put(made, "0000:21:00.0", "power/control", {"error": "EACCES"})
    (found,) = judged(made, check=power.power_control)
    bridges = "auto on the bridges above: 0000:20:01.1; not read of the bridges above: 0000:21:00.0"
    assert (found.status.value, found.seen) == ("ok", f"on; {bridges}")
    put(made, GPU, "power/control", "auto\n")
    (found,) = judged(made, check=power.power_control)
    assert (found.status.value, found.seen) == ("warn", f"auto on {GPU}; {bridges}")


def test_unread_power_control_is_unknown_and_other_vendors_are_not_judged() -> None:
    made = recording(intel())
    put(made, GPU, "power/control", {"error": "EIO"})
    assert said(judged(made, check=power.power_control)) == {("gpu.power_control", GPU): "unknown"}
    for check in (power.power_control, power.runtime_status):
        assert set(said(judged(recording(nvidia(Link(16, 16, 16, 16))), check=check)).values()) == {"not_applicable"}
        assert set(said(judged(recording(intel(driver="")), check=check)).values()) == {"not_applicable"}


@pytest.mark.parametrize(
    ("word", "status"), [("active", "ok"), ("suspended", "ok"), ("error", "fail"), ("unsupported", "ok")]
)
def test_a_card_that_did_not_change_its_power_state_fails(word: str, status: str) -> None:
    made = recording(TWO)
    put(made, GPU, "power/runtime_status", f"{word}\n")
    assert said(judged(made, check=power.runtime_status)) == {
        ("gpu.runtime_status", GPU): status,
        ("gpu.runtime_status", "0000:43:00.0"): "ok",
    }


# -- display ----------------------------------------------------------------------------------------------------------

BMC = Function("0000:03:00.0", "1a03", "2000", "030000", boot_vga="1")


def screen(bmc: bool, boot_vga: Any = "0\n", console: str = "") -> list[Finding]:
    """Findings about a card, with the board's own graphics or without, and a framebuffer on the card or elsewhere."""
    made = recording([*intel(), *((BMC,) if bmc else ())])
    put(made, GPU, "boot_vga", boot_vga)
    if console:
        made["links"]["/sys/class/graphics/fb0"] = f"../../devices/pci0000:20/{console}/graphics/fb0"
    return judged(made, check=display.display)


def test_a_card_without_screen_or_console_is_ok() -> None:
    assert only(screen(bmc=True)).status.value == "ok"
    assert only(screen(bmc=True, console="0000:03:00.0")).status.value == "ok"


@pytest.mark.parametrize(
    ("boot_vga", "console", "seen"),
    [
        ("1\n", "", "the firmware's screen"),
        ("0\n", f"0000:20:01.1/{GPU}", "the console (fb0)"),
        ("1\n", f"0000:20:01.1/{GPU}", "the firmware's screen and the console (fb0)"),
    ],
)
def test_a_screen_on_a_card_is_told_and_a_step_given_where_there_is_another(
    boot_vga: str, console: str, seen: str
) -> None:
    found = only(screen(bmc=True, boot_vga=boot_vga, console=console))
    assert (found.status.value, found.seen) == ("info", f"it carries {seen}, while 0000:03:00.0 could")
    assert found.next_step.startswith("BIOS: primary display on 0000:03:00.0")
    alone = only(screen(bmc=False, boot_vga=boot_vga, console=console))
    assert (alone.status.value, alone.next_step) == ("info", "")
    assert alone.seen == f"it carries {seen}; the host has no other display"


@pytest.mark.parametrize("value", ["yes\n", {"error": "EACCES"}])
def test_a_display_that_was_not_read_is_unknown(value: Any) -> None:
    assert only(screen(bmc=True, boot_vga=value)).status.value == "unknown"
    made = recording(intel())
    assert only(judged(made, check=display.display)).status.value == "unknown"  # the kernel gives the file to every VGA
    put(made, GPU, "boot_vga", "0\n")
    made["files"]["/sys/class/graphics"] = {"error": "EACCES"}
    assert only(judged(made, check=display.display)).status.value == "unknown"


def test_a_card_that_is_no_vga_function_was_not_chosen_by_the_firmware() -> None:
    made = recording(intel())
    put(made, GPU, "class", "0x038000\n")
    assert only(judged(made, check=display.display)).status.value == "ok"
    assert said(judged(recording(nvidia(Link(16, 16, 16, 16))), check=display.display)) == {
        ("gpu.display", "host"): "not_applicable"
    }
