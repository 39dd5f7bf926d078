"""PCI Express: the way to every card, the link of every hop, and what must not be read."""

from __future__ import annotations

import base64
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import TypeAdapter

from hostcheck.onhost.gather import Facts, Options
from hostcheck.onhost.plain import to_plain
from hostcheck.onhost.reader import Reading
from hostcheck.onhost.readings import pcie
from hostcheck.onhost.readings.kernel_log import KernelLog
from hostcheck.onhost.readings.pcie import Gpu, Hop, Pcie
from hostcheck.onhost.recording import RecordedReader
from tests.hosts.build_pci import DOWNSTREAM, ENDPOINT, INTEGRATED, ROOT_PORT, UPSTREAM, Function, Link, lspci
from tests.pci_host import (
    LINK_FILES,
    WHOLE,
    Watching,
    amd,
    facts,
    intel,
    listed_only,
    not_root,
    nvidia,
    put,
    real,
    recording,
)

LOG = KernelLog(*[Reading.no("not_asked", "")] * 9)
PORT: dict[str, Any] = {"class_code": "060400", "driver": "pcieport"}
GEN5 = Link(32, 16, 32, 16)


def read(made: dict[str, Any], faulted: tuple[str, ...] = (), **options: Any) -> tuple[Pcie, Watching]:
    reader = Watching(RecordedReader(made))
    return pcie.read(reader, replace(LOG, faulted=Reading(faulted, "journalctl")), Options(**options)), reader


def gpu(made: dict[str, Any], at: int = 0, faulted: tuple[str, ...] = (), **options: Any) -> Gpu:
    found = read(made, faulted, **options)[0].gpus.value
    assert found is not None
    return found[at]


def shape(card: Gpu) -> list[tuple[str, str, bool, bool]]:
    return [(hop.bdf[5:], hop.role, hop.crosses_slot, hop.inner) for hop in card.path]


def hop(card: Gpu, role: str) -> Hop:
    return next(one for one in card.path if one.role == role)


# -- the way to a card ------------------------------------------------------------------------------------------------


def test_battlemage_crosses_the_slot_at_its_upstream_port() -> None:
    card = gpu(recording(intel()))
    assert shape(card) == [
        ("20:01.1", "root_port", False, False),
        ("21:00.0", "card_upstream", True, False),
        ("22:01.0", "card_downstream", False, True),
        ("23:00.0", "gpu", False, True),
    ]
    assert card.uplink == "0000:21:00.0"
    assert card.siblings == ("0000:22:02.0", "0000:24:00.0")


@pytest.mark.parametrize(
    "ports", [("e2ff", "e2f0"), ("4fa0", "4fa4"), ("4fa1", "4fa4"), ("abcd", "abce"), ("abcd", "e2f0")]
)
@pytest.mark.parametrize("device", ["e223", "56a1", "fffe"])
def test_the_cards_own_switch_is_found_by_ancestry(ports: tuple[str, str], device: str) -> None:
    card = gpu(recording(intel(ports=ports, device=device)))
    assert card.uplink == "0000:21:00.0"
    assert [one.inner for one in card.path] == [False, False, True, True]


@pytest.mark.parametrize("domain", ["0000", "0001", "000c", "10000"])
def test_the_domain_is_part_of_every_address(domain: str) -> None:
    made = recording([*intel(domain=domain), *nvidia(GEN5)])
    card = next(one for one in read(made)[0].gpus.value or () if one.vendor == "8086")
    assert card.bdf == f"{domain}:23:00.0"
    assert {one.bdf.split(":")[0] for one in card.path} == {domain}


def behind_a_switch(vendor: str) -> list[Function]:
    """Two cards below one switch of another maker."""
    top = [
        Function("0000:00:01.0", "8086", "4c01", port_type=ROOT_PORT, link=Link(8, 16, 8, 16), buses=(1, 0x40), **PORT),
        Function("0000:01:00.0", vendor, "8747", port_type=UPSTREAM, parent="0000:00:01.0", link=Link(8, 16, 8, 16),
                 buses=(2, 0x40), **PORT),
    ]  # fmt: skip
    for number, bus in ((8, 0x20), (16, 0x30)):
        down = f"0000:02:{number:02x}.0"
        top.append(
            Function(down, vendor, "8747", port_type=DOWNSTREAM, parent="0000:01:00.0", link=Link(8, 16, 8, 16),
                     buses=(bus + 1, bus + 4), **PORT)
        )  # fmt: skip
        card = intel(bus=bus, node=bus >> 4)[1:]
        top += [replace(one, parent=down) if one.device == "e2ff" else one for one in card]
    return top


@pytest.mark.parametrize("vendor", ["10b5", "1b21", "1000", "1022"])
def test_a_foreign_switch_is_a_hop_like_any_other(vendor: str) -> None:
    card = gpu(recording(behind_a_switch(vendor)))
    assert [one.role for one in card.path] == [
        "root_port", "switch_upstream", "switch_downstream", "card_upstream", "card_downstream", "gpu",
    ]  # fmt: skip
    assert card.uplink == "0000:21:00.0"


def test_a_port_of_the_gpus_vendor_that_is_the_hosts_is_not_the_card() -> None:
    # an Intel root port above an Intel card, and an Intel switch (a dock) between them
    dock = [
        Function("0000:00:07.0", "8086", "7ec4", port_type=ROOT_PORT, link=Link(16, 4, 16, 4), buses=(1, 0x40), **PORT),
        Function("0000:01:00.0", "8086", "5786", port_type=UPSTREAM, parent="0000:00:07.0", link=Link(16, 4, 16, 4),
                 buses=(2, 0x40), **PORT),
        Function("0000:02:00.0", "8086", "5786", port_type=DOWNSTREAM, parent="0000:01:00.0", link=Link(16, 4, 16, 4),
                 buses=(0x21, 0x24), **PORT),
    ]  # fmt: skip
    card = [replace(one, parent="0000:02:00.0") if one.device == "e2ff" else one for one in intel()[1:]]
    assert gpu(recording([*dock, *card])).uplink == "0000:21:00.0"


def test_cards_without_a_switch_cross_the_slot_with_the_gpu() -> None:
    card = gpu(recording(nvidia(Link(16, 16, 16, 16))))
    assert shape(card) == [("00:05.0", "root_port", False, False), ("05:00.0", "gpu", True, False)]
    assert (card.uplink, card.siblings) == ("0000:05:00.0", ("0000:05:00.1",))


def test_amd_crosses_the_slot_at_its_own_upstream_port() -> None:
    card = gpu(recording(amd(Link(16, 16, 16, 2), Link(16, 16, 16, 2))))
    assert [(one.role, one.inner, one.width.value) for one in card.path] == [
        ("root_port", False, 2), ("card_upstream", False, 2), ("card_downstream", True, 16), ("gpu", True, 16),
    ]  # fmt: skip


def test_a_battlemage_function_without_its_switch_is_not_at_the_slot() -> None:
    root = Function(
        "0000:00:02.0", "1b36", "000c", port_type=ROOT_PORT, link=Link(16, 32, 16, 32), buses=(1, 1), **PORT
    )
    card = replace(intel()[4], bdf="0000:01:00.0", parent="0000:00:02.0")
    found = gpu(recording([root, card]))
    assert (found.uplink, [one.crosses_slot for one in found.path]) == ("", [False, False])
    alone = gpu(recording([replace(card, parent="", bdf="0000:00:05.0")]))
    assert (alone.uplink, alone.integrated, len(alone.path)) == ("", False, 1)


def test_graphics_of_the_processor_and_management_controllers_are_told_apart() -> None:
    made = recording(
        [
            Function("0000:00:02.0", "8086", "a780", "030000", port_type=INTEGRATED, driver="i915"),
            Function("0000:08:00.0", "1a03", "2000", "030000", driver="ast"),
            *intel(),
        ]
    )
    found = read(made)[0].gpus.value or ()
    assert [(one.bdf, one.integrated) for one in found] == [("0000:00:02.0", True), ("0000:23:00.0", False)]


def test_amd_processor_graphics_share_their_device_with_the_processor() -> None:
    root = Function(
        "0000:00:08.1", "1022", "14dd", port_type=ROOT_PORT, link=Link(16, 16, 16, 16), buses=(3, 3), **PORT
    )
    made = recording(
        [
            root,
            Function("0000:03:00.0", "1002", "164e", "030000", port_type=1, parent=root.bdf, link=Link(16, 16, 16, 16)),
            Function("0000:03:00.2", "1022", "1649", "108000", port_type=ENDPOINT, parent=root.bdf),
        ]
    )
    assert gpu(made).integrated


# -- where the link comes from ----------------------------------------------------------------------------------------


def links(card: Gpu) -> list[tuple[Any, ...]]:
    return [(one.speed.value, one.max_speed.value, one.width.value, one.max_width.value) for one in card.path]


SLOW = (Link(16, 16, 8, 8), Link(32, 16, 8, 8))


def test_all_three_sources_give_the_same_link() -> None:
    functions = intel(*SLOW)
    as_root, as_user = gpu(recording(functions)), gpu(not_root(recording(functions)))
    listed = gpu(listed_only(functions))
    assert links(as_root) == links(as_user) == links(listed)[:2] + links(as_root)[2:]
    assert [one.path[1].link_source for one in (as_root, as_user, listed)] == ["config", "sysfs", "lspci"]
    assert [one.path[1].aspm.value for one in (as_root, as_user, listed)] == ["disabled", None, "disabled"]
    assert as_user.path[1].aspm.unread == "permission"


def test_a_recording_of_lspci_alone_gives_way_ids_driver_and_bar() -> None:
    card = gpu(listed_only(intel()))
    assert [one.role for one in card.path] == ["root_port", "card_upstream", "card_downstream", "gpu"]
    assert (card.device, card.driver.value, card.bars.value) == ("e223", "xe", (16 << 20, 0, 32 << 30, 0, 0, 0))


def test_a_listing_without_domains_belongs_to_domain_0() -> None:
    text = lspci(intel()).replace("\n0000:", "\n")[5:]
    assert not text.startswith("0000:")
    assert gpu(listed_only([], text)).uplink == "0000:21:00.0"


def test_a_host_without_pci_has_no_functions_and_asks_no_tool() -> None:
    made = recording([])
    found, reader = read(made)
    assert (found.functions.value, found.gpus.value, reader.ran) == ((), (), [])


def test_lspci_is_asked_for_hops_at_the_slot_only_and_only_without_other_sources() -> None:
    made = not_root(recording(intel(*SLOW)))
    for bdf in ("0000:20:01.1", "0000:21:00.0", "0000:22:01.0", "0000:23:00.0"):
        for name in LINK_FILES:
            put(made, bdf, name, None)
    functions = intel(*SLOW)
    for one in functions[:2]:
        made["commands"][f"{WHOLE} -s {one.bdf}"] = {"rc": 0, "stdout": lspci([one]), "stderr": ""}
    card, reader = read(made)
    assert reader.ran == [f"{WHOLE} -s 0000:20:01.1", f"{WHOLE} -s 0000:21:00.0"]
    assert links((card.gpus.value or ())[0])[:2] == [(8.0, 16.0, 8, 16), (8.0, 32.0, 8, 16)]


def test_a_refused_lspci_is_asked_once() -> None:
    made = not_root(recording(intel()))
    for bdf in ("0000:20:01.1", "0000:21:00.0"):
        for name in LINK_FILES:
            put(made, bdf, name, None)
        head = f"{bdf} PCI bridge [0604]: X [8086:e2ff]\n\tCapabilities: <access denied>\n"
        made["commands"][f"{WHOLE} -s {bdf}"] = {"rc": 0, "stdout": head, "stderr": ""}
    card, reader = read(made)
    assert len(reader.ran) == 1
    assert [one.width.unread for one in (card.gpus.value or ())[0].path[:2]] == ["permission", "permission"]


def test_a_change_between_two_reads_counts_as_the_lower_value() -> None:
    made = recording(intel())
    put(made, "0000:21:00.0", "current_link_width", "4\n")
    assert gpu(made).path[1].width.value == 4


@pytest.mark.parametrize(
    ("text", "value"),
    [("2.5 GT/s PCIe\n", 2.5), ("8 GT/s", 8.0), ("8.0 GT/s PCIe", 8.0), ("5GT/s\n", 5.0), ("64.0 GT/s PCIe\n", 64.0)],
)
def test_speeds_of_kernels_of_all_ages(text: str, value: float) -> None:
    assert pcie.parse_speed(text) == value


@pytest.mark.parametrize("text", ["Unknown\n", "Unknown speed", "", "GT/s", "16.0 GT/s PCIe_x16"])
def test_speeds_that_are_no_speed(text: str) -> None:
    with pytest.raises(ValueError, match="the kernel says"):
        pcie.parse_speed(text)


def test_widths_down_unknown_and_impossible() -> None:
    assert pcie.parse_width("0\n") == 0
    for text in ("255", "63", "", "x", "Unknown"):
        with pytest.raises(ValueError, match="width"):
            pcie.parse_width(text)
    with pytest.raises(ValueError, match="width '0'"):
        pcie.parse_max_width("0\n")


@given(st.text(max_size=40))
def test_parsers_raise_nothing_but_value_error(text: str) -> None:
    for parse in (
        pcie.parse_id, pcie.parse_class, pcie.parse_speed, pcie.parse_width, pcie.parse_max_width, pcie.parse_number,
        pcie.parse_counters, pcie.parse_resource, pcie.parse_ancestry, pcie.parse_force_probe,
    ):  # fmt: skip
        try:
            parse(text)
        except ValueError:
            pass


def test_a_device_that_does_not_answer_has_no_link() -> None:
    made = recording(intel())
    put(made, "0000:21:00.0", "config", {"base64": base64.b64encode(b"\xff" * 4096).decode()})
    for name in LINK_FILES:
        put(made, "0000:21:00.0", name, {"error": "EIO"} if "speed" in name else "255\n")
    up = gpu(made).path[1]
    assert (up.width.value, up.speed.value, up.aspm.value) == (None, None, None)
    assert "does not answer" in up.width.detail


def test_counters_of_hops_and_of_functions_elsewhere() -> None:
    made = recording(
        [*intel(), Function("0000:c1:00.0", "144d", "a80c", "010802", port_type=0, aer=True, driver="nvme")]
    )
    put(made, "0000:21:00.0", "aer_dev_correctable", "RxErr 3\nBadTLP 0\nTOTAL_ERR_COR 3\n")
    put(made, "0000:20:01.1", "aer_rootport_total_err_cor", "7\n")
    put(made, "0000:c1:00.0", "aer_dev_correctable", "RxErr 2\nTOTAL_ERR_COR 2\n")
    found, _ = read(made)
    root, up = (found.gpus.value or ())[0].path[:2]
    assert up.aer.correctable.value == {"RxErr": 3, "BadTLP": 0, "TOTAL_ERR_COR": 3}
    assert (root.aer.rootport_correctable.value, up.aer.rootport_correctable.unread) == (7, "absent")
    assert found.background.value == {"0000:c1:00.0": {"RxErr": 2, "TOTAL_ERR_COR": 2}}


def test_a_port_without_the_capability_is_told_from_one_that_could_not_be_read() -> None:
    functions = [replace(one, aer=False) for one in intel()]
    assert gpu(recording(functions)).path[0].aer_capable.value is False
    assert gpu(not_root(recording(functions))).path[0].aer_capable.unread == "absent"
    assert gpu(not_root(recording(intel()))).path[0].aer_capable.value is True


def test_device_nodes_with_owner_and_mode() -> None:
    stats = {
        f"/dev/dri/{name}": {"mode": "20660", "uid": 0, "gid": 44, "rdev": [226, 1]} for name in ("card1", "renderD128")
    }
    nodes = gpu(recording(intel(), stats=stats)).drm.value or ()
    assert [(one.name, one.mode.value, one.gid.value) for one in nodes] == [
        ("card1", 0o660, 44),
        ("renderD128", 0o660, 44),
    ]


def test_virtual_functions_and_functions_held_for_another() -> None:
    made = recording(intel())
    made["links"][f"{real(made, '0000:23:00.0')}/physfn"] = "../0000:22:00.0"
    assert gpu(made).vf
    assert gpu(recording(intel(driver="vfio-pci"))).driver.value == "vfio-pci"
    assert gpu(recording(intel(driver=""))).driver.value == ""


def test_a_function_whose_ids_cannot_be_read_is_kept() -> None:
    made = recording(intel())
    put(made, "0000:23:00.0", "class", {"error": "EIO"})
    found, _ = read(made)
    assert (found.gpus.unread, "0000:23:00.0" in found.gpus.detail) == ("io", True)
    assert [one.bdf for one in found.functions.value or () if not one.class_code] == ["0000:23:00.0"]


def test_a_refused_bus_is_not_a_host_without_gpus() -> None:
    made = recording([])
    made["files"]["/sys/bus/pci/devices"] = {"error": "EACCES"}
    found, _ = read(made)
    assert (found.gpus.unread, found.functions.unread) == ("permission", "permission")


def test_devcoredump_belongs_to_the_device_that_failed() -> None:
    made = recording([*intel(), *intel(bus=0x40, node=2)])
    made["links"]["/sys/class/devcoredump/devcd1"] = "../../devices/virtual/devcoredump/devcd1"
    made["links"]["/sys/devices/virtual/devcoredump/devcd1/failing_device"] = (
        "../../../.." + real(made, "0000:43:00.0")[4:]
    )
    found, reader = read(made)
    assert [one.coredump.value for one in found.gpus.value or ()] == [False, True]
    assert not [path for path in reader.read if path.endswith("/data")]


def test_facts_survive_the_way_to_the_controller() -> None:
    for made in (recording(intel()), not_root(recording(amd(GEN5, GEN5))), listed_only(nvidia(GEN5))):
        found = facts(made)
        assert TypeAdapter(Facts).validate_python(to_plain(found)) == found


# -- what must not be read --------------------------------------------------------------------------------------------

QUIET = {"vendor", "device", "class", "subsystem_vendor", "subsystem_device", "driver"}
CALLS_DRIVER = ("auto_link_downgrade", "survivability", "hwmon", "tile0", "mem_info", "gt/", "drm/card")


def touched(reader: Watching, bdf: str) -> set[str]:
    return {name for name in reader.of(bdf) if name not in QUIET and not name.startswith("power/")}


def with_status(status: Any, *bdfs: str, functions: list[Function] | None = None) -> dict[str, Any]:
    made = recording(functions or [*intel(), *intel(bus=0x40, node=2)])
    for bdf in bdfs:
        put(made, bdf, "power/runtime_status", status)
    return made


@pytest.mark.parametrize("status", ["suspended\n", "suspending\n", "resuming\n", {"error": "EACCES"}, {"error": "EIO"}])
def test_of_a_card_that_sleeps_only_ids_driver_and_power_are_read(status: Any) -> None:
    made = with_status(status, "0000:23:00.0")
    found, reader = read(made)
    for bdf in ("0000:20:01.1", "0000:21:00.0", "0000:22:01.0", "0000:23:00.0", "0000:22:02.0", "0000:24:00.0"):
        assert touched(reader, bdf) == set(), bdf
    assert reader.ran == []
    asleep, awake = found.gpus.value or ()
    assert {one.width.unread for one in asleep.path} == {"suspended"}
    assert {one.aspm.unread for one in asleep.path} == {"suspended"}
    assert {one.aer.correctable.unread for one in asleep.path} == {"suspended"}
    assert (asleep.bars.unread, asleep.numa_node.unread, asleep.survivability.unread) == ("suspended",) * 3
    assert (asleep.driver.value, asleep.device) == ("xe", "e223")
    assert [one.name for one in asleep.drm.value or ()] == ["card1", "renderD128"]  # from /sys/class/drm
    assert {one.width.unread for one in awake.path} == {None}


def test_a_sleeping_card_is_read_when_waking_was_asked_for() -> None:
    card = gpu(with_status("suspended\n", "0000:23:00.0"), wake=True)
    assert links(card)[1] == (32.0, 32.0, 16, 16)


def test_a_port_that_sleeps_itself_is_left_alone() -> None:
    made = with_status("suspended\n", "0000:21:00.0")
    found, reader = read(made)
    assert touched(reader, "0000:21:00.0") == set()
    assert (found.gpus.value or ())[0].path[1].width.unread == "suspended"
    assert (found.gpus.value or ())[0].path[0].width.value == 16


def test_a_switch_above_a_sleeping_and_a_waking_card_is_read() -> None:
    made = with_status("suspended\n", "0000:23:00.0", functions=behind_a_switch("10b5"))
    _, reader = read(made)
    assert (
        touched(reader, "0000:21:00.0") == touched(reader, "0000:22:01.0") == touched(reader, "0000:02:08.0") == set()
    )
    assert "config" in touched(reader, "0000:01:00.0")
    assert "config" in touched(reader, "0000:31:00.0")
    both = with_status("suspended\n", "0000:23:00.0", "0000:33:00.0", functions=behind_a_switch("10b5"))
    _, reader = read(both)
    assert touched(reader, "0000:01:00.0") == touched(reader, "0000:00:01.0") == set()


def test_a_kernel_without_runtime_power_management_puts_nothing_to_sleep() -> None:
    made = with_status(None, "0000:23:00.0", "0000:21:00.0")
    assert gpu(made).path[1].width.value == 16


@pytest.mark.parametrize("evidence", ["log", "coredump", "error"])
def test_of_a_card_that_faulted_bridges_and_registers_are_read_but_no_driver_is_called(evidence: str) -> None:
    made = recording([*intel(), *intel(bus=0x40, node=2)])
    faulted = ("0000:23:00.0",) if evidence == "log" else ()
    if evidence == "coredump":
        made["links"]["/sys/class/devcoredump/devcd1/failing_device"] = "../../.." + real(made, "0000:23:00.0")[4:]
    if evidence == "error":
        put(made, "0000:23:00.0", "power/runtime_status", "error\n")
    found, reader = read(made, faulted)
    assert not [name for name in touched(reader, "0000:23:00.0") if name.startswith(CALLS_DRIVER)]
    assert [name for name in touched(reader, "0000:43:00.0") if name.startswith(CALLS_DRIVER)]
    card = (found.gpus.value or ())[0]
    assert links(card)[1] == (32.0, 32.0, 16, 16)
    assert (card.auto_link_downgrade_status.unread, card.survivability.unread) == ("faulted", "faulted")
    assert card.bars.value is not None


def test_other_functions_of_a_card_are_only_listed() -> None:
    _, reader = read(recording(intel()))
    assert touched(reader, "0000:24:00.0") == touched(reader, "0000:22:02.0") == set()
