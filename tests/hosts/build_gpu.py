"""Hosts with GPUs, rebuilt from published reports: run ``python -m tests.hosts.build_gpu``.

What a report states is taken from it (its name is in the recording's ``origin``). What it does not state, such as the
addresses of a network card, is filled in as such a host has it; nothing here was read from a real machine.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from hostcheck.onhost.recording import dump

from . import build_memory
from .build_host import (
    GIB,
    UBUNTU_2404,
    UBUNTU_2604,
    Host,
    boot_lines,
    card,
    display_bmc,
    host_bridge,
    late_lines,
    lscpu_amd,
    nvme,
    pci_lines,
    root_port,
    smi_json,
    smi_table,
    smi_version,
    windows,
    xe_lines,
)
from .build_memory import MULTI_BIT, NONE
from .build_pci import DOWNSTREAM, ENDPOINT, L0S, L1, LEGACY, ROOT_PORT, UPSTREAM, Bar, Function, Link

FOLDER = Path(__file__).parent


def four_card_gen4() -> Host:
    """The lab's replay host: Threadripper PRO 5955WX, four B70 at Gen4 x16 (lab-host-facts 1.1, 6)."""
    host = Host(
        "four-card-gen4",
        "the public B70 optimization lab's four-card replay host (host tables, link audits), healthy state",
        "2026-10-05T09:00:00Z",
        "5b0f8d8e-2f6a-4c0b-9d0e-6a1f1c2b3d45",
        86_412.37,
        "7.0.0-38-generic",
    )
    cmdline = (
        "BOOT_IMAGE=/vmlinuz-7.0.0-38-generic root=UUID=0a1b2c3d-0000-4000-8000-000000000001 ro xe.disable_display=1"
    )
    host.system(
        {
            "board_vendor": "Supermicro",
            "board_name": "M12SWA-TF",
            "sys_vendor": "Supermicro",
            "product_name": "Super Server",
            "bios_vendor": "American Megatrends International, LLC.",
            "bios_version": "2.4a",
            "bios_date": "07/17/2025",
            "chassis_type": "3",
        },
        UBUNTU_2604,
        cmdline,
        131_706_880,
        126_123_904,
        hostname="replay",
    )
    host.processors(
        lscpu_amd(
            "AMD Ryzen Threadripper PRO 5955WX 16-Cores", 32, 16, "25", "7031.2500", "1800.0000", "64 MiB (2 instances)"
        ),
        32,
        "amd-pstate-epp",
        "powersave",
        "performance powersave",
        (400_000, 4_575_000),
        epp="balance_performance",
        current=2_400_000,
        extra={"amd_pstate/status": "active\n"},
    )
    gen4, port = ("1022", "1483"), Link(16, 16, 16, 16, aspm=L0S | L1)
    slot = Link(32, 16, 16, 16, aspm=L0S | L1)
    placed = (("20:01.1", 0x21, "3"), ("20:03.1", 0x25, "5"), ("40:01.1", 0x41, "1"), ("40:03.1", 0x45, "7"))
    gpus = []
    for number, (bdf, bus, name) in enumerate(placed):
        base = 0x38000000000 + number * 0x1000000000
        root = root_port(
            f"0000:{bdf}",
            (bus, bus + 3),
            gen4,
            replace(port, port=number),
            30 + number,
            windows(0xE0000000 + number * 0x2000000, base, 32 * GIB),
            iommu_group=20 + 4 * number,
            name="Starship/Matisse GPP Bridge",
            slot=name,
        )
        # card numbers follow the order of the probe, not the bus: 23:00.0 was card3 (lab-host-facts 6)
        drm = ((3, 130), (4, 131), (1, 128), (2, 129))[number]
        gpus.append(card(host, root, slot, "e223", "8086:1701", number, drm=drm, iommu_group=21 + 4 * number))
        host.slots[name] = f"0000:{bus:02x}:00"
    for segment in ("00", "20", "40", "60"):
        host.add(host_bridge(f"0000:{segment}:00.0", ("1022", "1480"), "Starship/Matisse Root Complex"))
    disk_port = root_port(
        "0000:00:01.1",
        (0x01, 0x01),
        gen4,
        Link(16, 4, 16, 4),
        28,
        windows(0xFC000000, 0x37000000000, 1 << 20)[:1],
        iommu_group=4,
    )
    disk = nvme(
        disk_port, Link(16, 4, 16, 4), ("144d", "a80a"), 45, "NVMe SSD Controller PM9A1/PM9A3/980PRO", iommu_group=5
    )
    nic_port = root_port(
        "0000:60:01.1",
        (0x61, 0x61),
        gen4,
        Link(16, 8, 8, 4),
        29,
        windows(0xFA000000, 0x36000000000, 64 << 20)[:1],
        iommu_group=6,
    )
    nic = Function(
        "0000:61:00.0",
        "8086",
        "1563",
        "020000",
        ENDPOINT,
        parent=nic_port.bdf,
        subsystem="15d9:1563",
        link=Link(8, 4, 8, 4, aspm=L0S | L1),
        bars=(Bar(0, 0xFA000000, 4 << 20, "pref64"),),
        aer=True,
        irq=48,
        driver="ixgbe",
        module="ixgbe",
        name="Ethernet Controller X550",
        iommu_group=7,
    )
    bmc_port = root_port(
        "0000:60:03.1",
        (0x62, 0x63),
        gen4,
        Link(16, 1, 5, 1),
        27,
        windows(0xF8000000, 0, 0)[:1],
        aer=False,
        iommu_group=8,
    )
    host.add(disk_port, disk, nic_port, nic, bmc_port, *display_bmc(bmc_port, 0, iommu_group=8))
    slots = [f"DIMM{channel}1" for channel in "ABCD"]
    host.memory_modules(build_memory.equal(slots, "Micron", "36ASF4G72PZ-3G2R1", 32 << 10), NONE)
    host.network("eno1", nic.bdf, "10.0.0.14", "02:00:00:00:00:14")
    host.kernel_boots(
        boot_lines(
            host.kernel,
            cmdline,
            "Supermicro Super Server/M12SWA-TF, BIOS 2.4a 07/17/2025",
            "131,706,880K/134,148,096K available",
            "AMD Ryzen Threadripper PRO 5955WX 16-Cores (family: 0x19, model: 0x8, stepping: 0x2)",
            [("S0D0", "00"), ("S0D1", "20"), ("S0D2", "40"), ("S0D3", "60")],
        )
    )
    host.say(0.95, "iommu: Default domain type: Translated")
    host.say(1.31, "ast 0000:63:00.0: [drm] Using analog VGA")
    host.say(2.0, "amd_pstate: active mode EPP driver initialized")
    pci_lines(host)
    # the cards are probed in the order of their minors
    xe_lines(host, [gpus[2], gpus[3], gpus[0], gpus[1]], "70.54.0")
    late_lines(host, "eno1", nic.bdf, disk.bdf)
    host.command("xpu-smi -v", smi_version("1.3.6.20260105", "c2d1a5a0", "1.28.6"))
    host.command("xpu-smi discovery -j", smi_json(host, gpus, "Intel(R) Arc(TM) Pro B70 Graphics", state=None))
    host.command("xpu-smi discovery", smi_table(host, gpus, "Intel(R) Arc(TM) Pro B70 Graphics", state=None))
    return host


def two_card_gen5() -> Host:
    """The lab's publishing host: EPYC 9015, two B70 at Gen5 x16 (lab-host-facts 1.1, 6)."""
    host = Host(
        "two-card-gen5",
        "the public B70 optimization lab's two-card publishing host (host tables), healthy state",
        "2026-10-05T08:00:00Z",
        "1c9a7f30-4a5d-4f0e-8a53-9b2d6e7f8091",
        43_210.11,
        "7.0.0-38-generic",
    )
    cmdline = "BOOT_IMAGE=/vmlinuz-7.0.0-38-generic root=UUID=0a1b2c3d-0000-4000-8000-000000000002 ro"
    host.system(
        {
            "board_vendor": "ASRockRack",
            "board_name": "TURIND8-2L2T",
            "sys_vendor": "ASRockRack",
            "product_name": "TURIND8-2L2T",
            "bios_vendor": "American Megatrends International, LLC.",
            "bios_version": "10.06",
            "bios_date": "03/11/2025",
            "chassis_type": "3",
        },
        UBUNTU_2604,
        cmdline,
        15_943_924,
        14_204_112,
        swap_kib=37_748_732,
        hostname="publisher",
    )
    host.processors(
        lscpu_amd("AMD EPYC 9015 8-Core Processor", 16, 8, "26", "4114.0000", "1500.0000", "64 MiB (2 instances)"),
        16,
        "amd-pstate-epp",
        "performance",
        "performance powersave",
        (1_500_000, 4_114_000),
        epp="performance",
        current=4_100_000,
        extra={"amd_pstate/status": "active\n"},
    )
    turin, port = ("1022", "153a"), Link(32, 16, 32, 16, aspm=L1)
    slot = Link(32, 16, 32, 16, aspm=L0S | L1)
    gpus = []
    for number, (bdf, bus, name) in enumerate((("00:01.1", 0x01, "7"), ("e0:01.1", 0xE1, "1"))):
        base = 0x18000000000 + number * 0x1000000000
        root = root_port(
            f"0000:{bdf}",
            (bus, bus + 3),
            turin,
            replace(port, port=number),
            40 + number,
            windows(0xD0000000 + number * 0x2000000, base, 32 * GIB),
            numa=0,
            cpus="0-15",
            iommu_group=10 + 4 * number,
            slot=name,
        )
        gpus.append(card(host, root, slot, "e223", "1849:6025", number, iommu_group=11 + 4 * number))
        host.slots[name] = f"0000:{bus:02x}:00"
    zone: dict[str, Any] = {"numa": 0, "cpus": "0-15"}
    for segment in ("00", "40", "80", "e0"):
        host.add(host_bridge(f"0000:{segment}:00.0", ("1022", "153a"), "Turin Root Complex", **zone))
    disk_port = root_port(
        "0000:40:01.1",
        (0x41, 0x41),
        turin,
        Link(32, 4, 16, 4),
        28,
        windows(0xFC000000, 0, 0)[:1],
        iommu_group=4,
        **zone,
    )
    disk = nvme(
        disk_port,
        Link(16, 4, 16, 4),
        ("144d", "a80a"),
        45,
        "NVMe SSD Controller PM9A1/PM9A3/980PRO",
        iommu_group=5,
        **zone,
    )
    nic_port = root_port(
        "0000:80:01.1", (0x81, 0x81), turin, Link(32, 4, 8, 4), 29, windows(0xFA000000, 0, 0)[:1], iommu_group=6, **zone
    )
    nic = Function(
        "0000:81:00.0",
        "8086",
        "1563",
        "020000",
        ENDPOINT,
        parent=nic_port.bdf,
        subsystem="1849:1563",
        link=Link(8, 4, 8, 4, aspm=L0S | L1),
        bars=(Bar(0, 0xFA000000, 4 << 20, "pref64"),),
        aer=True,
        irq=48,
        driver="ixgbe",
        module="ixgbe",
        name="Ethernet Controller X550",
        iommu_group=7,
        **zone,
    )
    bmc_port = root_port(
        "0000:80:03.1",
        (0x82, 0x83),
        turin,
        Link(32, 1, 5, 1),
        27,
        windows(0xF8000000, 0, 0)[:1],
        aer=False,
        iommu_group=8,
        **zone,
    )
    host.add(disk_port, disk, nic_port, nic, bmc_port, *display_bmc(bmc_port, 0, iommu_group=8, **zone))
    host.files(
        "/sys/devices/system/edac/mc/mc0",
        {"mc_name": "F1Ah\n", "ce_count": "0\n", "ue_count": "0\n"},
    )
    host.memory_modules(build_memory.equal(["A1"], "Micron Technology", "MTC10F1084S1RC48BA1", 16 << 10), MULTI_BIT)
    host.network("eno1", nic.bdf, "10.0.0.15", "02:00:00:00:00:15")
    host.kernel_boots(
        boot_lines(
            host.kernel,
            cmdline,
            "ASRockRack TURIND8-2L2T/TURIND8-2L2T, BIOS 10.06 03/11/2025",
            "15,943,924K/16,613,376K available",
            "AMD EPYC 9015 8-Core Processor (family: 0x1a, model: 0x2, stepping: 0x1)",
            [("PC00", "00"), ("PC02", "40"), ("PC04", "80"), ("PC07", "e0")],
        )
    )
    host.say(0.95, "iommu: Default domain type: Translated")
    host.say(2.0, "amd_pstate: active mode EPP driver initialized")
    pci_lines(host)
    xe_lines(host, gpus, "70.54.0")
    late_lines(host, "eno1", nic.bdf, disk.bdf)
    host.command("xpu-smi -v", smi_version("2.0.0.20250225", "8389eee7", "1.28.6"))
    host.command("xpu-smi discovery -j", smi_json(host, gpus, "Intel(R) Arc(TM) Pro B70 Graphics"))
    host.command("xpu-smi discovery", smi_table(host, gpus, "Intel(R) Arc(TM) Pro B70 Graphics"))
    return host


def small(
    host: Host,
    *,
    interface: str = "enp4s0",
    address: str = "10.0.0.20",
    bus: int = 4,
    root: str = "00:01.2",
    ids: tuple[str, str] = ("1022", "1483"),
    limit: float = 16,
) -> tuple[str, str]:
    """The rest of a desktop board: a network card and a disk on root ports of their own; their addresses come back."""
    first = int(root[:2], 16)
    network_port = root_port(
        f"0000:{root}", (bus, bus), ids, Link(limit, 1, 2.5, 1), 31, windows(0xFA000000, 0, 0)[:1], name="GPP Bridge"
    )
    network = Function(
        f"0000:{bus:02x}:00.0",
        "10ec",
        "8125",
        "020000",
        ENDPOINT,
        parent=network_port.bdf,
        subsystem="10ec:0123",
        link=Link(5, 1, 2.5, 1),
        bars=(Bar(2, 0xFA000000, 64 << 10),),
        aer=True,
        irq=46,
        driver="r8169",
        module="r8169",
        name="RTL8125 2.5GbE Controller",
    )
    disk_port = root_port(
        f"0000:{root[:6]}4",
        (bus + 1, bus + 1),
        ids,
        Link(limit, 4, min(limit, 16), 4),
        32,
        windows(0xFC000000, 0, 0)[:1],
    )
    link = Link(16, 4, min(limit, 16), 4)
    disk = nvme(disk_port, link, ("144d", "a80a"), 45, "NVMe SSD Controller PM9A1/PM9A3/980PRO")
    host.add(network_port, network, disk_port, disk)
    host.network(interface, network.bdf, address, "02:00:00:00:00:" + address.rpartition(".")[2])
    assert network.bus > first
    return network.bdf, disk.bdf


def desktop(vendor: str, board: str, bios: str, date: str) -> dict[str, str]:
    return {
        "board_vendor": vendor,
        "board_name": board,
        "sys_vendor": vendor,
        "product_name": board,
        "bios_vendor": "American Megatrends International, LLC.",
        "bios_version": bios,
        "bios_date": date,
        "chassis_type": "3",
    }


def one_card_b450_x8() -> Host:
    """One B70 on a B450 board whose slot gives Gen4 x8, which is normal there (lab-host-facts 2.1, 6; case 21)."""
    host = Host(
        "one-card-b450-x8",
        "a one-card B450 host (community link note of the B70 lab; snailium/llama.cpp-sycl-intel-b70), healthy state",
        "2026-09-20T10:00:00Z",
        "2d1e4f60-7788-4a9b-8c0d-1e2f3a4b5c6d",
        7_211.5,
        "7.0.0-27-generic",
    )
    cmdline = "BOOT_IMAGE=/vmlinuz-7.0.0-27-generic root=UUID=0a1b2c3d-0000-4000-8000-000000000003 ro quiet"
    host.system(
        desktop("ASUSTeK COMPUTER INC.", "ROG STRIX B450-F GAMING", "5901", "02/20/2025"),
        UBUNTU_2604,
        cmdline,
        65_700_000,
        62_100_000,
        swap_kib=8_388_604,
        hostname="b450",
    )
    host.processors(
        lscpu_amd("AMD Ryzen 7 5800X 8-Core Processor", 16, 8, "25", "4850.1951", "2200.0000", "32 MiB (1 instance)"),
        16,
        "amd-pstate-epp",
        "powersave",
        "performance powersave",
        (550_000, 4_850_000),
        epp="balance_performance",
        extra={"amd_pstate/status": "active\n"},
    )
    root = root_port(
        "0000:00:03.1",
        (0x0A, 0x0D),
        ("1022", "1483"),
        Link(16, 8, 16, 8, aspm=L0S | L1),
        33,
        windows(0xE0000000, 0x7000000000, 32 * GIB),
        name="Starship/Matisse GPP Bridge",
    )
    gpu = card(host, root, Link(32, 16, 16, 8, aspm=L0S | L1), "e223", "8086:1701", 0, drm=(0, 128))
    host.add(host_bridge("0000:00:00.0", ("1022", "1480"), "Starship/Matisse Root Complex"))
    network, disk = small(host)
    host.kernel_boots(
        boot_lines(
            host.kernel,
            cmdline,
            "ASUS ROG STRIX B450-F GAMING, BIOS 5901 02/20/2025",
            "65,700,000K/67,043,228K available",
            "AMD Ryzen 7 5800X 8-Core Processor",
            [("PCI0", "00")],
        )
    )
    pci_lines(host)
    xe_lines(host, [gpu], "70.54.0")
    late_lines(host, "enp4s0", network, disk)
    host.command("xpu-smi -v", smi_version("2.0.0.20250225", "8389eee7", "1.28.6"))
    host.command("xpu-smi discovery -j", smi_json(host, [gpu], "Intel(R) Arc(TM) Pro B70 Graphics"))
    host.command("xpu-smi discovery", smi_table(host, [gpu], "Intel(R) Arc(TM) Pro B70 Graphics"))
    return host


def one_card_x399_gen3() -> Host:
    """One B70 on a Gen3 x16 slot of an X399 board, with the bus numbers of the report (case 38; IOMMU off)."""
    host = Host(
        "one-card-x399-gen3",
        "hotschmoe/b70_ai_things (X399, Gen3 x16, IOMMU off in the BIOS), healthy state, one of its cards",
        "2026-08-02T10:00:00Z",
        "3e2f5061-8899-4bac-9d1e-2f3a4b5c6d7e",
        9_800.25,
        "7.1.0-7-generic",
    )
    cmdline = "BOOT_IMAGE=/vmlinuz-7.1.0-7-generic root=UUID=0a1b2c3d-0000-4000-8000-000000000004 ro"
    host.system(
        desktop("ASRock", "X399 Taichi", "P3.90", "12/04/2019"),
        UBUNTU_2604,
        cmdline,
        65_800_000,
        63_000_000,
        hostname="x399",
    )
    host.processors(
        lscpu_amd(
            "AMD Ryzen Threadripper 1950X 16-Core Processor",
            32,
            16,
            "23",
            "3400.0000",
            "2200.0000",
            "32 MiB (4 instances)",
        ),
        32,
        "acpi-cpufreq",
        "schedutil",
        "conservative ondemand userspace powersave performance schedutil",
        (2_200_000, 3_400_000),
    )
    root = root_port(
        "0000:00:03.1",
        (0x08, 0x0B),
        ("1022", "1453"),
        Link(8, 16, 8, 16, aspm=L0S | L1),
        33,
        windows(0xE0000000, 0x9000000000, 32 * GIB),
        acs=None,
        name="Family 17h (Models 00h-0fh) PCIe GPP Bridge",
    )
    gpu = card(host, root, Link(32, 16, 8, 16, aspm=L0S | L1), "e223", "8086:1701", 0, drm=(0, 128))
    host.add(host_bridge("0000:00:00.0", ("1022", "1450"), "Family 17h (Models 00h-0fh) Root Complex"))
    network, disk = small(host, ids=("1022", "1453"), limit=8)
    host.kernel_boots(
        boot_lines(
            host.kernel,
            cmdline,
            "ASRock X399 Taichi, BIOS P3.90 12/04/2019",
            "65,800,000K/67,043,228K available",
            "AMD Ryzen Threadripper 1950X",
            [("S0D0", "00")],
        )
    )
    pci_lines(host)
    xe_lines(host, [gpu], "70.54.0")
    late_lines(host, "enp4s0", network, disk)
    host.command("xpu-smi -v", smi_version("2.0.0.20250225", "8389eee7", "1.28.6"))
    host.command("xpu-smi discovery -j", smi_json(host, [gpu], "Intel(R) Arc(TM) Pro B70 Graphics"))
    host.command("xpu-smi discovery", smi_table(host, [gpu], "Intel(R) Arc(TM) Pro B70 Graphics"))
    return host


def small_bar() -> Host:
    """A B580 whose resizable BAR is off in the BIOS (case 13)."""
    host = Host(
        "small-bar",
        "intel/compute-runtime#872 (B580, kernel 6.14.0-35, resizable BAR off)",
        "2025-11-10T10:00:00Z",
        "4f306172-99aa-4cbd-8e2f-3a4b5c6d7e8f",
        1_830.75,
        "6.14.0-35-generic",
    )
    cmdline = "BOOT_IMAGE=/vmlinuz-6.14.0-35-generic root=UUID=0a1b2c3d-0000-4000-8000-000000000005 ro quiet splash"
    host.system(
        desktop("Micro-Star International Co., Ltd.", "MAG X570 TOMAHAWK WIFI", "1.D0", "07/28/2023"),
        UBUNTU_2404,
        cmdline,
        32_800_000,
        30_000_000,
        swap_kib=2_097_148,
        hostname="smallbar",
    )
    host.processors(
        lscpu_amd(
            "AMD Ryzen 9 5900X 12-Core Processor", 24, 12, "25", "4950.1948", "2200.0000", "64 MiB (2 instances)"
        ),
        24,
        "amd-pstate-epp",
        "powersave",
        "performance powersave",
        (550_000, 4_950_000),
        epp="balance_performance",
        extra={"amd_pstate/status": "active\n"},
    )
    root = root_port(
        "0000:00:03.1",
        (0x19, 0x1C),
        ("1022", "1483"),
        Link(16, 16, 16, 8, aspm=L0S | L1),
        33,
        windows(0xE0000000, 0xD0000000 - (256 << 20), 256 << 20),
        name="Starship/Matisse GPP Bridge",
    )
    gpu = card(
        host,
        root,
        Link(16, 8, 16, 8, aspm=L0S | L1),
        "e20b",
        "1849:6020",
        0,
        drm=(0, 128),
        bar=256 << 20,
        bar_max=16 * GIB,
    )
    host.add(host_bridge("0000:00:00.0", ("1022", "1480"), "Starship/Matisse Root Complex"))
    network, disk = small(host)
    host.kernel_boots(
        boot_lines(
            host.kernel,
            cmdline,
            "Micro-Star International Co., Ltd. MS-7C84, BIOS 1.D0 07/28/2023",
            "32,800,000K/33,488,800K available",
            "AMD Ryzen 9 5900X 12-Core Processor",
            [("PCI0", "00")],
        )
    )
    pci_lines(host)
    xe_lines(host, [gpu], "70.44.1", tile="", vram=12 * GIB)
    host.say(3.605, f"xe {gpu}: [drm] Attempting to resize bar from 256MiB -> 16384MiB")
    host.say(
        3.606,
        f"xe {gpu}: [drm] Failed to resize BAR2 to 16384M (-ENOSPC). Consider enabling 'Resizable BAR' support "
        "in your BIOS",
    )
    late_lines(host, "enp4s0", network, disk)
    # Level Zero refuses a small BAR, so the tool sees no device (arc-host-facts A.1, B.2)
    host.command("xpu-smi -v", smi_version("1.3.1.20250724", "1a2b3c4d", "1.24.1"))
    host.command("xpu-smi discovery -j", '{\n    "device_list": null\n}\n')
    host.command("xpu-smi discovery", "No device discovered\n")
    return host


def radeon(
    root: Function,
    slot_link: Link,
    device: str,
    subsystem: str,
    irq: int,
    drm: tuple[int, int],
    inner: Link,
    bar: int,
    **more: Any,
) -> list[Function]:
    """A Radeon below a root port: its two bridges 1478 and 1479, GPU and audio; the inner link flatters (case 32)."""
    assert root.buses is not None
    first, low, base = root.buses[0], root.windows[0].base, root.windows[1].base
    common: dict[str, Any] = {"numa": root.numa, **more}
    spans = (Bar(0, low, 16 << 20, "mem32"), Bar(0, base, bar + (2 << 20), "pref64"))

    def at(bus: int, rest: str = "00.0") -> str:
        return f"{root.domain}:{first + bus:02x}:{rest}"

    upstream = Function(
        at(0),
        "1002",
        "1478",
        "060400",
        UPSTREAM,
        parent=root.bdf,
        revision=0x24,
        link=slot_link,
        irq=irq,
        aer=root.aer,
        buses=(first + 1, first + 2),
        driver="pcieport",
        windows=spans,
        subsystem="1002:1478",
        l1ss=True,
        name="Navi 10 XL Upstream Port of PCI Express Switch",
        **common,
    )
    downstream = Function(
        at(1),
        "1002",
        "1479",
        "060400",
        DOWNSTREAM,
        parent=upstream.bdf,
        revision=0x24,
        link=inner,
        irq=irq + 1,
        aer=root.aer,
        acs=(0x2F, 0x0D) if root.acs else None,
        buses=(first + 2, first + 2),
        driver="pcieport",
        windows=spans,
        subsystem="1002:1479",
        name="Navi 10 XL Downstream Port of PCI Express Switch",
        **common,
    )
    gpu = Function(
        at(2),
        "1002",
        device,
        "030000",
        LEGACY,
        parent=downstream.bdf,
        revision=0xC0,
        subsystem=subsystem,
        link=inner,
        bars=(Bar(0, base, bar, "pref64"), Bar(2, base + bar, 2 << 20, "pref64"), Bar(5, low, 512 << 10, "mem32")),
        aer=root.aer,
        irq=irq + 2,
        driver="amdgpu",
        module="amdgpu",
        boot_vga="1",
        drm=drm,
        extra={"_multi": True},
        **common,
    )
    audio = Function(
        at(2, "00.1"),
        "1002",
        "ab40",
        "040300",
        LEGACY,
        parent=downstream.bdf,
        subsystem="1002:ab40",
        link=inner,
        bars=(Bar(0, low + (1 << 20), 16 << 10, "mem32"),),
        irq=irq + 3,
        driver="snd_hda_intel",
        module="snd_hda_intel",
        aer=root.aer,
        name="Navi 48 HDMI/DP Audio Controller",
        **common,
    )
    return [upstream, downstream, gpu, audio]


def amdgpu_lines(host: Host, gpu: str, minor: int, vram: str) -> None:
    for at, text in (
        (3.2, "[drm] amdgpu kernel modesetting enabled."),
        (3.3, f"amdgpu {gpu}: enabling device (0006 -> 0007)"),
        (3.4, f"amdgpu {gpu}: VRAM: {vram} used"),
        (3.5, f"amdgpu {gpu}: SMU is initialized successfully!"),
        (3.9, f"amdgpu {gpu}: [drm] Initialized amdgpu 3.64.0 for {gpu} on minor {minor}"),
    ):
        host.say(at, text)


def amd_card() -> Host:
    """A Radeon RX 9070 XT at Gen4 x16: the GPU's own link reads 32 GT/s x16 whatever the slot gives (case 32)."""
    host = Host(
        "amd-card",
        "ilya-zlobintsev/LACT#593 (RX 9070 XT), with the link at the slot as it should be",
        "2025-06-12T10:00:00Z",
        "50417283-aabb-4dce-9f30-4b5c6d7e8f90",
        5_400.5,
        "6.14.0-29-generic",
    )
    cmdline = "BOOT_IMAGE=/vmlinuz-6.14.0-29-generic root=UUID=0a1b2c3d-0000-4000-8000-000000000006 ro quiet"
    host.system(
        desktop("Gigabyte Technology Co., Ltd.", "X570 AORUS ELITE", "F39", "03/22/2024"),
        UBUNTU_2404,
        cmdline,
        32_800_000,
        30_000_000,
        hostname="radeon",
    )
    host.processors(
        lscpu_amd("AMD Ryzen 7 5800X3D 8-Core Processor", 16, 8, "25", "4548.0000", "2200.0000", "96 MiB (1 instance)"),
        16,
        "amd-pstate-epp",
        "powersave",
        "performance powersave",
        (550_000, 4_548_000),
        epp="balance_performance",
        extra={"amd_pstate/status": "active\n"},
    )
    root = root_port(
        "0000:00:03.1",
        (0x2D, 0x2F),
        ("1022", "1483"),
        Link(16, 16, 16, 16),
        33,
        windows(0xE0000000, 0x7000000000, 16 * GIB),
        name="Starship/Matisse GPP Bridge",
    )
    parts = radeon(root, Link(32, 16, 16, 16), "7550", "1da2:e490", 60, (1, 128), Link(32, 16, 32, 16), 16 * GIB)
    host.add(root, *parts, host_bridge("0000:00:00.0", ("1022", "1480"), "Starship/Matisse Root Complex"))
    network, disk = small(host)
    host.kernel_boots(
        boot_lines(
            host.kernel,
            cmdline,
            "Gigabyte X570 AORUS ELITE, BIOS F39 03/22/2024",
            "32,800,000K/33,488,800K available",
            "AMD Ryzen 7 5800X3D 8-Core Processor",
            [("PCI0", "00")],
        )
    )
    pci_lines(host)
    amdgpu_lines(host, parts[2].bdf, 1, "16304M 0x0000008000000000 - 0x00000083FAFFFFFF (16304M")
    late_lines(host, "enp4s0", network, disk)
    return host


LSCPU_ARM = [
    ("Architecture", "aarch64"),
    ("CPU op-mode(s)", "32-bit, 64-bit"),
    ("Byte Order", "Little Endian"),
    ("CPU(s)", "4"),
    ("On-line CPU(s) list", "0-3"),
    ("Vendor ID", "ARM"),
    ("Model name", "Cortex-A76"),
    ("Model", "1"),
    ("Thread(s) per core", "1"),
    ("Core(s) per cluster", "4"),
    ("Socket(s)", "-"),
    ("Cluster(s)", "1"),
    ("Stepping", "r4p1"),
    ("CPU(s) scaling MHz", "100%"),
    ("CPU max MHz", "2400.0000"),
    ("CPU min MHz", "1500.0000"),
    ("BogoMIPS", "108.00"),
    ("L3 cache", "2 MiB (1 instance)"),
    ("NUMA node(s)", "1"),
    ("NUMA node0 CPU(s)", "0-3"),
]


def arm_one_lane() -> Host:
    """A Radeon RX 9060 XT on an Arm board whose root port has one lane (case 34)."""
    host = Host(
        "arm-one-lane",
        "geerlingguy/raspberry-pi-pcie-devices#741 (RX 9060 XT on an Arm host with one lane)",
        "2025-08-04T10:00:00Z",
        "61528394-bbcc-4edf-8041-5c6d7e8f90a1",
        2_400.5,
        "6.12.41-v8-16k+",
    )
    cmdline = "console=tty1 root=PARTUUID=0a1b2c3d-02 rootfstype=ext4 fsck.repair=yes rootwait"
    debian = {
        "PRETTY_NAME": "Debian GNU/Linux 12 (bookworm)",
        "NAME": "Debian GNU/Linux",
        "VERSION_ID": "12",
        "ID": "debian",
    }
    host.system({}, debian, cmdline, 16_460_000, 15_200_000, hostname="armboard")
    for path in [path for path in host.recording["links"] if "/dmi/" in path]:
        del host.recording["links"][path]  # no DMI on a board that boots with a device tree
    host.file("/proc/device-tree/model", "Single-lane Arm board\0")
    host.processors(
        LSCPU_ARM,
        4,
        "cpufreq-dt",
        "ondemand",
        "conservative ondemand userspace powersave performance schedutil",
        (1_500_000, 2_400_000),
        boost=None,
        current=2_400_000,
    )
    root = Function(
        "0000:00:00.0",
        "14e4",
        "2712",
        "060400",
        ROOT_PORT,
        revision=0x21,
        link=Link(5, 1, 2.5, 1, enabled=L1),
        irq=38,
        buses=(0x01, 0x03),
        driver="pcieport",
        aer=True,
        name="BCM2712 PCIe Bridge",
        subsystem="14e4:2712",
        windows=windows(0x80000000, 0x1800000000, 256 << 20),
    )
    parts = radeon(
        root, Link(32, 16, 2.5, 1, enabled=L1), "7590", "1eae:8720", 60, (1, 128), Link(32, 16, 32, 16), 256 << 20
    )
    host.add(root, *parts)
    network = Function(
        "0001:01:00.0",
        "1de4",
        "0001",
        "020000",
        ENDPOINT,
        parent="0001:00:00.0",
        link=Link(5, 4, 5, 4),
        driver="rp1",
        irq=47,
    )
    south = replace(root, bdf="0001:00:00.0", link=Link(5, 4, 5, 4), buses=(1, 1), irq=39, windows=())
    host.add(south, network)
    host.network("eth0", network.bdf, "10.0.0.34", "02:00:00:00:00:34")
    host.kernel_boots(
        [
            (0.0, 6, "Booting Linux on physical CPU 0x0000000000 [0x414fd0b1]"),
            (0.0, 5, f"Linux version {host.kernel} (serge@build) (gcc 12.2.0) #1 SMP PREEMPT Debian"),
            (0.0, 6, "Machine model: Single-lane Arm board"),
            (0.0, 5, f"Kernel command line: {cmdline}"),
            (0.9, 6, "brcm-pcie 1000110000.pcie: host bridge /axi/pcie@1000110000 ranges:"),
            (1.0, 6, "brcm-pcie 1000110000.pcie: PCI host bridge to bus 0000:00"),
            (1.1, 6, "brcm-pcie 1000110000.pcie: link up, 2.5 GT/s PCIe x1 (SSC)"),
        ]
    )
    pci_lines(host)
    amdgpu_lines(host, parts[2].bdf, 1, "16304M 0x0000008000000000 - 0x00000083FAFFFFFF (16304M")
    return host


LSCPU_ROCKET_LAKE = [
    ("Architecture", "x86_64"),
    ("CPU op-mode(s)", "32-bit, 64-bit"),
    ("Address sizes", "39 bits physical, 48 bits virtual"),
    ("Byte Order", "Little Endian"),
    ("CPU(s)", "16"),
    ("On-line CPU(s) list", "0-15"),
    ("Vendor ID", "GenuineIntel"),
    ("Model name", "11th Gen Intel(R) Core(TM) i7-11700K @ 3.60GHz"),
    ("CPU family", "6"),
    ("Model", "167"),
    ("Thread(s) per core", "2"),
    ("Core(s) per socket", "8"),
    ("Socket(s)", "1"),
    ("Stepping", "1"),
    ("CPU(s) scaling MHz", "24%"),
    ("CPU max MHz", "5000.0000"),
    ("CPU min MHz", "800.0000"),
    ("Virtualization", "VT-x"),
    ("L3 cache", "16 MiB (1 instance)"),
    ("NUMA node(s)", "1"),
    ("NUMA node0 CPU(s)", "0-15"),
]


def two_cards_behind_plx() -> Host:
    """Two B70 behind one PLX switch on a desktop board (case 56), after its reporter cleared ACS redirect."""
    host = Host(
        "two-cards-behind-plx",
        "intel/compute-runtime#935 (two B70 below one PLX switch, host bridge 8086:4c43), healthy, ACS redirect off",
        "2026-07-06T10:00:00Z",
        "72639405-ccdd-4fe0-9152-6d7e8f90a1b2",
        11_400.5,
        "7.0.0-22-generic",
    )
    cmdline = "BOOT_IMAGE=/vmlinuz-7.0.0-22-generic root=UUID=0a1b2c3d-0000-4000-8000-000000000007 ro intel_iommu=on"
    host.system(
        desktop("ASUSTeK COMPUTER INC.", "Pro WS W480-ACE", "2105", "07/25/2023"),
        UBUNTU_2604,
        cmdline,
        131_000_000,
        126_000_000,
        hostname="plx",
    )
    host.processors(
        LSCPU_ROCKET_LAKE,
        16,
        "intel_pstate",
        "powersave",
        "performance powersave",
        (800_000, 5_000_000),
        epp="balance_performance",
        boost=None,
        extra={"intel_pstate/status": "active\n", "intel_pstate/no_turbo": "0\n"},
    )
    for cpu in range(16):
        folder = f"/sys/devices/system/cpu/cpu{cpu}/thermal_throttle"
        host.files(folder, {f"{what}_throttle_count": "0\n" for what in ("core", "package")})
    base = 0x6000000000
    root = root_port(
        "0000:00:01.0",
        (0x0A, 0x13),
        ("8086", "4c01"),
        Link(16, 16, 8, 16, aspm=L0S | L1),
        120,
        (Bar(0, 0x80000000, 128 << 20, "mem32"), Bar(0, base, 64 * GIB, "pref64")),
        iommu_group=2,
        subsystem="8086:7270",
    )
    plx: dict[str, Any] = {
        "class_code": "060400",
        "driver": "pcieport",
        "aer": True,
        "revision": 0xCA,
        "subsystem": "10b5:8747",
        "name": "PEX 8747 48-Lane, 5-Port PCI Express Gen 3 (8.0 GT/s) Switch",
    }
    top = Function(
        "0000:0a:00.0",
        "10b5",
        "8747",
        port_type=UPSTREAM,
        parent=root.bdf,
        link=Link(8, 16, 8, 16, aspm=L0S | L1),
        buses=(0x0B, 0x13),
        irq=121,
        windows=root.windows,
        iommu_group=3,
        **plx,
    )
    host.add(root, top)
    gpus = []
    for number, (rest, first, low) in enumerate((("00.0", 0x0C, 0x80000000), ("10.0", 0x10, 0x84000000))):
        port = Function(
            f"0000:0b:{rest}",
            "10b5",
            "8747",
            port_type=DOWNSTREAM,
            parent=top.bdf,
            link=Link(8, 16, 8, 16, aspm=L0S | L1),
            buses=(first, first + 3),
            irq=122 + number,
            acs=(0x5F, 0),
            iommu_group=4 + number,
            windows=windows(low, base + number * 32 * GIB, 32 * GIB),
            **plx,
        )
        gpus.append(
            card(
                host,
                port,
                Link(32, 16, 8, 16, aspm=L0S | L1),
                "e223",
                "8086:1701",
                number,
                drm=(number, 128 + number),
                iommu_group=10 + number,
            )
        )
    for bdf in ("0000:0d:01.0", "0000:11:01.0"):
        host.functions[bdf] = replace(host.functions[bdf], acs=(0x5F, 0))
    host.add(host_bridge("0000:00:00.0", ("8086", "4c43"), "Rocket Lake Host Bridge"))
    network, disk = small(host, ids=("8086", "43b8"), bus=4, root="00:1c.0", limit=8)
    host.kernel_boots(
        boot_lines(
            host.kernel,
            cmdline,
            "ASUS Pro WS W480-ACE, BIOS 2105 07/25/2023",
            "131,000,000K/134,148,096K available",
            "11th Gen Intel(R) Core(TM) i7-11700K",
            [("PC00", "00")],
        )
    )
    host.say(0.95, "iommu: Default domain type: Translated")
    pci_lines(host)
    xe_lines(host, gpus, "70.54.0")
    late_lines(host, "enp4s0", network, disk)
    host.command("xpu-smi -v", smi_version("2.0.0.20250225", "8389eee7", "1.28.6"))
    host.command("xpu-smi discovery -j", smi_json(host, gpus, "Intel(R) Arc(TM) Pro B70 Graphics"))
    host.command("xpu-smi discovery", smi_table(host, gpus, "Intel(R) Arc(TM) Pro B70 Graphics"))
    return host


def nvidia_host() -> Host:
    """Two RTX 3090 in slots that both give Gen4 x16, read under load (the sound counterpart of case 35)."""
    host = Host(
        "nvidia-host",
        "noonghunna/club-3090#585 (two RTX 3090), both cards in x16 slots",
        "2026-03-03T10:00:00Z",
        "8374a516-ddee-4af1-a263-7e8f90a1b2c3",
        6_000.5,
        "6.8.0-90-generic",
    )
    cmdline = "BOOT_IMAGE=/vmlinuz-6.8.0-90-generic root=UUID=0a1b2c3d-0000-4000-8000-000000000008 ro quiet"
    host.system(
        desktop("Gigabyte Technology Co., Ltd.", "TRX40 AORUS MASTER", "F7", "08/19/2023"),
        UBUNTU_2404,
        cmdline,
        65_800_000,
        62_000_000,
        hostname="geforce",
    )
    host.processors(
        lscpu_amd(
            "AMD Ryzen Threadripper 3960X 24-Core Processor",
            48,
            24,
            "23",
            "4568.1641",
            "2200.0000",
            "128 MiB (8 instances)",
        ),
        48,
        "acpi-cpufreq",
        "schedutil",
        "conservative ondemand userspace powersave performance schedutil",
        (2_200_000, 3_800_000),
    )
    for number, (rest, bus) in enumerate((("01.1", 0x05), ("03.1", 0x0A))):
        root = root_port(
            f"0000:00:{rest}",
            (bus, bus),
            ("1022", "1483"),
            Link(16, 16, 16, 16),
            33 + number,
            windows(0xE0000000 + number * (32 << 20), 0x7000000000 + number * 64 * GIB, 32 * GIB),
            name="Starship/Matisse GPP Bridge",
        )
        low, base = root.windows[0].base, root.windows[1].base
        gpu = Function(
            f"0000:{bus:02x}:00.0",
            "10de",
            "2204",
            "030000",
            LEGACY,
            parent=root.bdf,
            revision=0xA1,
            subsystem="3842:3987",
            link=Link(16, 16, 16, 16),
            aer=True,
            irq=60 + number,
            driver="nvidia",
            module="nvidiafb, nouveau, nvidia_drm, nvidia",
            bars=(
                Bar(0, low, 16 << 20, "mem32"),
                Bar(1, base, 32 * GIB, "pref64"),
                Bar(3, base + 32 * GIB - (32 << 20), 32 << 20, "pref64"),
            ),
            boot_vga=str(1 - number),
            drm=(number, 128 + number),
            name="GA102 [GeForce RTX 3090]",
            extra={"_multi": True},
        )
        audio = Function(
            f"0000:{bus:02x}:00.1",
            "10de",
            "1aef",
            "040300",
            ENDPOINT,
            parent=root.bdf,
            revision=0xA1,
            subsystem="3842:3987",
            link=Link(16, 16, 16, 16),
            aer=True,
            irq=70 + number,
            driver="snd_hda_intel",
            module="snd_hda_intel",
            bars=(Bar(0, low + (16 << 20), 16 << 10, "mem32"),),
            name="GA102 High Definition Audio Controller",
        )
        host.add(root, gpu, audio)
        host.say(5.0 + number, f"[drm] Initialized nvidia-drm 0.0.0 20160202 for {gpu.bdf} on minor {number}")
    host.add(host_bridge("0000:00:00.0", ("1022", "1480"), "Starship/Matisse Root Complex"))
    network, disk = small(host, bus=0x30)
    host.kernel_boots(
        boot_lines(
            host.kernel,
            cmdline,
            "Gigabyte TRX40 AORUS MASTER, BIOS F7 08/19/2023",
            "65,800,000K/67,043,228K available",
            "AMD Ryzen Threadripper 3960X 24-Core Processor",
            [("S0D0", "00")],
        )
    )
    pci_lines(host)
    host.say(4.5, "nvidia: module license 'NVIDIA' taints kernel.", 4)
    host.say(4.7, "NVRM: loading NVIDIA UNIX x86_64 Kernel Module  580.95.05")
    late_lines(host, "enp4s0", network, disk)
    return host


LSCPU_VM = [
    ("Architecture", "x86_64"),
    ("CPU op-mode(s)", "32-bit, 64-bit"),
    ("Address sizes", "46 bits physical, 57 bits virtual"),
    ("Byte Order", "Little Endian"),
    ("CPU(s)", "16"),
    ("On-line CPU(s) list", "0-15"),
    ("Vendor ID", "GenuineIntel"),
    ("Model name", "Intel(R) Xeon(R) w5-3435X"),
    ("CPU family", "6"),
    ("Model", "143"),
    ("Thread(s) per core", "1"),
    ("Core(s) per socket", "16"),
    ("Socket(s)", "1"),
    ("Stepping", "8"),
    ("BogoMIPS", "6192.00"),
    ("Virtualization", "VT-x"),
    ("Hypervisor vendor", "KVM"),
    ("Virtualization type", "full"),
    ("L3 cache", "16 MiB (1 instance)"),
    ("NUMA node(s)", "1"),
    ("NUMA node0 CPU(s)", "0-15"),
]


def gpu_vm() -> Host:
    """A B60 handed through to a KVM guest: the guest sees the GPU alone below a port of the hypervisor (case 57)."""
    host = Host(
        "gpu-vm",
        "intel/llm-scaler#216 (B60 in a KVM guest), one of its cards",
        "2026-04-14T10:00:00Z",
        "9485b627-eeff-4b02-b374-8f90a1b2c3d4",
        3_600.5,
        "6.17.0-14-generic",
    )
    cmdline = "BOOT_IMAGE=/vmlinuz-6.17.0-14-generic root=UUID=0a1b2c3d-0000-4000-8000-000000000009 ro console=ttyS0"
    host.system(
        {
            "board_vendor": "",
            "board_name": "",
            "sys_vendor": "QEMU",
            "product_name": "Standard PC (Q35 + ICH9, 2009)",
            "bios_vendor": "EFI Development Kit II / OVMF",
            "bios_version": "4.2025.02-4",
            "bios_date": "06/23/2025",
            "chassis_type": "1",
        },
        UBUNTU_2404,
        cmdline,
        65_700_000,
        63_000_000,
        hostname="guest",
    )
    host.processors(LSCPU_VM, 16, "", "", "", (0, 0))
    ports = []
    for number, (bus, low) in enumerate(((1, 0x80000000), (2, 0x82000000))):
        ports.append(
            Function(
                f"0000:00:02.{number}",
                "1b36",
                "000c",
                "060400",
                ROOT_PORT,
                link=Link(16, 32, 16, 16, aspm=L0S),
                irq=22,
                buses=(bus, bus),
                driver="pcieport",
                aer=True,
                acs=(0x5F, 0x1D),
                subsystem="1b36:0000",
                windows=windows(low, 0x380000000000 + number * 64 * GIB, 32 * GIB),
                name="QEMU PCIe Root port",
                extra={"_multi": True},
            )
        )
    gpu = Function(
        "0000:01:00.0",
        "8086",
        "e211",
        "030000",
        ENDPOINT,
        parent=ports[0].bdf,
        subsystem="8086:1114",
        link=Link(2.5, 1, 2.5, 1),
        bars=(Bar(0, 0x80000000, 16 << 20), Bar(2, 0x380000000000, 32 * GIB, "pref64")),
        aer=True,
        rebar=True,
        irq=60,
        boot_vga="1",
        drm=(0, 128),
        driver="xe",
        module="xe",
    )
    network = Function(
        "0000:02:00.0",
        "1af4",
        "1041",
        "020000",
        ENDPOINT,
        parent=ports[1].bdf,
        subsystem="1af4:1100",
        revision=1,
        link=Link(2.5, 1, 2.5, 1),
        bars=(Bar(4, 0x380000000000 + 64 * GIB, 16 << 10, "pref64"),),
        irq=61,
        driver="virtio-pci",
        name="Virtio 1.0 network device",
    )
    host.add(
        *ports, gpu, network, host_bridge("0000:00:00.0", ("8086", "29c0"), "82G33/G31/P35/P31 Express DRAM Controller")
    )
    host.xe(gpu.bdf, clocks=(400, 2400), cap_uw=200_000_000)
    host.interrupt(gpu.bdf, 60, 3)
    host.network("enp2s0", network.bdf, "10.0.0.57", "02:00:00:00:00:57")
    host.kernel_boots(
        boot_lines(
            host.kernel,
            cmdline,
            "QEMU Standard PC (Q35 + ICH9, 2009), BIOS 4.2025.02-4 06/23/2025",
            "65,700,000K/67,043,228K available",
            "Intel(R) Xeon(R) w5-3435X",
            [("PCI0", "00")],
        )
    )
    host.say(0.1, "Hypervisor detected: KVM")
    host.say(0.3, "Booting paravirtualized kernel on KVM")
    pci_lines(host)
    xe_lines(host, [gpu.bdf], "70.49.4", vram=24 * GIB)
    host.command("xpu-smi -v", smi_version("1.3.6.20260105", "c2d1a5a0", "1.24.1"))
    host.command("xpu-smi discovery -j", smi_json(host, [gpu.bdf], "Intel(R) Arc(TM) Pro B60 Graphics", state=None))
    host.command("xpu-smi discovery", smi_table(host, [gpu.bdf], "Intel(R) Arc(TM) Pro B60 Graphics", state=None))
    return host


HOSTS: tuple[Callable[[], Host], ...] = (
    four_card_gen4,
    two_card_gen5,
    one_card_b450_x8,
    one_card_x399_gen3,
    small_bar,
    amd_card,
    arm_one_lane,
    two_cards_behind_plx,
    nvidia_host,
    gpu_vm,
)


def main() -> int:
    for build in HOSTS:
        host = build()
        text = dump(host.finish())
        (FOLDER / f"{host.name}.json").write_text(text, encoding="utf-8")
        print(f"{host.name}: {len(text) >> 10} KiB")
    return 0


if __name__ == "__main__":
    sys.exit(main())
