"""The text of lspci in the forms of all its ages."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hostcheck.onhost.readings import lspci
from tests.hosts.build_pci import lspci as printed
from tests.pci_host import intel

HEAD = "0000:21:00.0 PCI bridge [0604]: Intel Corporation Device [8086:e2ff] (rev 01) (prog-if 00 [Normal decode])\n"
EXPRESS = "\tCapabilities: [70] Express (v2) Upstream Port, MSI 00\n"
CAP = "\t\tLnkCap:\tPort #0, Speed 32GT/s, Width x16, ASPM L0s L1, Exit Latency L0s <512ns, L1 <32us\n"


def one(text: str) -> lspci.Device:
    (device,) = lspci.parse(text).values()
    return device


@pytest.mark.parametrize(
    ("line", "speed", "width"),
    [
        # until 3.5: one line, flags on it, no word
        ("\t\tLnkSta:\tSpeed 8GT/s, Width x16, TrErr- Train- SlotClk+ DLActive- BWMgmt- ABWMgmt-", 8.0, 16),
        ("\t\tLnkSta:\tSpeed unknown, Width x16, TrErr- Train- SlotClk+ DLActive- BWMgmt- ABWMgmt-", None, 16),
        # 3.6 and 3.7: a word always
        ("\t\tLnkSta:\tSpeed 8GT/s (ok), Width x8 (downgraded)", 8.0, 8),
        ("\t\tLnkSta:\tSpeed unknown (strange), Width x16 (ok)", None, 16),
        ("\t\tLnkSta:\tSpeed 16GT/s (strange), Width x4 (strange)", 16.0, 4),
        # from 3.8 on: a word where it differs
        ("\t\tLnkSta:\tSpeed 2.5GT/s (downgraded), Width x1 (downgraded)", 2.5, 1),
        ("\t\tLnkSta:\tSpeed 64GT/s (overdriven), Width x16", 64.0, 16),
        ("\t\tLnkSta:\tSpeed 32GT/s, Width x16", 32.0, 16),
        ("\t\tLnkSta:\tSpeed 2.5GT/s, Width x0", 2.5, 0),
        # as people copy it: spaces instead of tabs
        ("    LnkSta: Speed 5GT/s, Width x2", 5.0, 2),
    ],
)
def test_link_status_of_every_age(line: str, speed: float | None, width: int) -> None:
    device = one(HEAD + EXPRESS + CAP + line + "\n")
    assert (device.speed, device.width) == (speed, width)
    assert (device.max_speed, device.max_width) == (32.0, 16)


@pytest.mark.parametrize(
    ("line", "aspm"),
    [
        ("\t\tLnkCtl:\tASPM Disabled; RCB 64 bytes Disabled- CommClk+", "disabled"),
        ("\t\tLnkCtl:\tASPM L1 Enabled; RCB 64 bytes, Disabled- CommClk+", "l1"),
        ("\t\tLnkCtl:\tASPM L1 Enabled; Disabled- CommClk+", "l1"),
        ("\t\tLnkCtl:\tASPM L0s Enabled; RCB 64 bytes, LnkDisable- CommClk+", "l0s"),
        ("\t\tLnkCtl:\tASPM L0s L1 Enabled; Disabled- CommClk-", "l0s l1"),
        ("\t\tLnkCtl2:\tTarget Link Speed: 16GT/s, EnterCompliance- SpeedDis-", None),
    ],
)
def test_link_control_of_every_age(line: str, aspm: str | None) -> None:
    assert one(HEAD + EXPRESS + line + "\n").aspm == aspm


def test_second_registers_are_not_taken_for_the_first() -> None:
    text = (
        HEAD + EXPRESS + CAP + "\t\tLnkSta:\tSpeed 16GT/s, Width x8\n"
        "\t\tLnkCap2: Supported Link Speeds: 2.5-64GT/s, Crosslink- Retimer+ 2Retimers+ DRS-\n"
        "\t\tLnkCtl2: Target Link Speed: 64GT/s, EnterCompliance- SpeedDis-\n"
        "\t\tLnkSta2: Current De-emphasis Level: -6dB, EqualizationComplete+\n"
    )
    device = one(text)
    assert (device.speed, device.width, device.max_speed) == (16.0, 8, 32.0)


def test_link_is_that_of_the_first_express_capability() -> None:
    other = "\tCapabilities: [80] Express (v2) Endpoint, MSI 00\n\t\tLnkSta:\tSpeed 2.5GT/s, Width x1\n"
    vendor = "\tCapabilities: [a0] Vendor Specific Information: Len=14 <?>\n\t\tLnkSta:\tSpeed 5GT/s, Width x4\n"
    text = HEAD + vendor + EXPRESS + CAP + "\t\tLnkSta:\tSpeed 16GT/s, Width x8\n" + vendor + other
    device = one(text)
    assert (device.port_type, device.speed, device.width) == (5, 16.0, 8)


@pytest.mark.parametrize(
    ("head", "bdf", "ids"),
    [
        ("01:00.0 PCI bridge [0604]: Intel Corporation Device [8086:e2ff]", "0000:01:00.0", ("060400", "8086", "e2ff")),
        ("0001:01:00.0 VGA compatible controller [0300]: NVIDIA AD102 [RTX 4090] [10de:2684] (rev a1)",
         "0001:01:00.0", ("030000", "10de", "2684")),
        ("10000:E1:00.0 Non-Volatile memory controller [0108]: Sandisk [15b7:5030] (prog-if 02 [NVM Express])",
         "10000:e1:00.0", ("010802", "15b7", "5030")),
        ("01:00.0 0604: 8086:e2ff (rev 01)", "0000:01:00.0", ("060400", "8086", "e2ff")),
        # without -nn, as most reports have it (raspberry-pi-pcie-devices#695, LACT#890, xpumanager#147)
        ("01:00.0 PCI bridge: Intel Corporation Device e2ff (rev 01)", "0000:01:00.0", ("060400", "8086", "e2ff")),
        (
            "29:00.0 VGA compatible controller: Intel Corporation Battlemage G21 [Arc B580] (prog-if 00)",
            "0000:29:00.0",
            ("030000", "8086", "e20b"),
        ),
        ("0d:00.0 3D controller: Intel Corporation Device e223", "0000:0d:00.0", ("030200", "8086", "e223")),
        ("0d:00.0 VGA compatible controller: Intel Corporation Something new", "0000:0d:00.0", ("030000", "8086", "")),
        (
            "01:00.0 PCI bridge: Advanced Micro Devices, Inc. [AMD/ATI] Navi 10 XL Upstream Port of PCI Express Switch",
            "0000:01:00.0",
            ("060400", "1002", ""),
        ),
        (
            "55:00.0 VGA compatible controller: ASPEED Technology, Inc. ASPEED Graphics Family (rev 52)",
            "0000:55:00.0",
            ("030000", "1a03", ""),
        ),
        ("01:00.0 VGA compatible controller: Vendor Device", "0000:01:00.0", ("030000", "", "")),
        ("01:00.0 Flux compensator: Intel Corporation Device e223", "0000:01:00.0", ("", "8086", "e223")),
    ],
)  # fmt: skip
def test_first_line_of_a_function(head: str, bdf: str, ids: tuple[str, str, str]) -> None:
    device = one(f"{head}\n\tLnkSta: Speed 8GT/s, Width x8\n")
    assert device.bdf == bdf
    assert (device.class_code, device.vendor, device.device) == ids
    assert device.speed == 8.0


def test_a_device_that_does_not_answer_is_dead() -> None:
    dead = "0000:03:00.0 VGA compatible controller [0300]: Intel Corporation Device [8086:e223] (rev ff) (prog-if ff)\n"
    assert one(dead).dead
    body = "\t!!! Unknown header type 7f\n\tRegion 2: Memory at 4000000000 (64-bit, prefetchable) [size=32G]\n"
    device = one(dead.replace("(rev ff) (prog-if ff)", "(rev 08)") + body)
    assert (device.dead, device.link, device.regions) == (True, False, {2: 32 << 30})


def test_refused_capabilities_are_not_a_missing_link() -> None:
    device = one(HEAD + "\tCapabilities: <access denied>\n\tKernel driver in use: pcieport\n")
    assert (device.denied, device.link, device.driver) == (True, False, "pcieport")


def test_listing_of_a_whole_host_agrees_with_its_registers() -> None:
    found = lspci.parse(printed(intel()))
    up, gpu = found["0000:21:00.0"], found["0000:23:00.0"]
    assert (up.port_type, up.buses, up.aer is not None) == (5, ("21", "22", "24"), True)
    assert (gpu.regions[2], gpu.bar_sizes[2][-1], gpu.driver, gpu.subsystem) == (32 << 30, 32 << 30, "xe", "1849:6025")
    assert found["0000:20:01.1"].buses == ("20", "21", "24")


@pytest.mark.parametrize("text", ["", "lspci: Cannot open /sys/bus/pci/devices\n", "\tLnkSta: Speed 8GT/s, Width x8\n"])
def test_text_without_a_function_is_no_listing(text: str) -> None:
    with pytest.raises(ValueError, match="no PCI function"):
        lspci.parse(text)


WHOLE = printed(intel())
FOREIGN = ["", "\tFoo: bar", "pcilib: sysfs_read_vpd: read failed: No such device", "\t\tLnkFoo:\tSpeed 2.5GT/s", "\t"]


@given(st.lists(st.tuples(st.integers(0, len(WHOLE.splitlines())), st.sampled_from(FOREIGN)), max_size=20))
def test_foreign_lines_change_no_value(added: list[tuple[int, str]]) -> None:
    lines = WHOLE.splitlines()
    for at, line in sorted(added, reverse=True):
        lines.insert(at, line)
    assert lspci.parse("\n".join(lines)) == lspci.parse(WHOLE)


@given(st.sets(st.integers(0, len(WHOLE.splitlines()) - 1), max_size=40))
def test_lines_that_are_missing_change_no_value_of_another_line(dropped: set[int]) -> None:
    kept = {
        at for at, line in enumerate(WHOLE.splitlines()) if not line.startswith("\t") or "Capabilities" in line
    }  # what says whose line it is
    text = "\n".join(line for at, line in enumerate(WHOLE.splitlines()) if at in kept or at not in dropped)
    whole = lspci.parse(WHOLE)
    for bdf, device in lspci.parse(text).items():
        for name in ("speed", "width", "max_speed", "max_width", "aspm", "driver", "buses", "subsystem"):
            assert getattr(device, name) in (getattr(whole[bdf], name), None, ""), (bdf, name)


@given(st.text(max_size=400))
def test_random_text_raises_nothing_but_value_error(text: str) -> None:
    try:
        lspci.parse(text)
    except ValueError:
        pass
