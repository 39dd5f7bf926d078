"""Hosts that differ in their processors, rebuilt from published reports: run ``python -m tests.hosts.build_cpu``.

What a report states is taken from it (its name is in the recording's ``origin``); the rest is filled in as such a
machine has it. None has a GPU; each has a disk, a network card and the log of a healthy boot, so that every check can
be made.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from hostcheck.onhost.recording import dump

from .build_host import (
    UBUNTU_2404,
    UBUNTU_2604,
    Host,
    boot_lines,
    host_bridge,
    late_lines,
    nvme,
    pci_lines,
    root_port,
    windows,
)
from .build_pci import ENDPOINT, Function, Link

FOLDER = Path(__file__).parent
CPU = "/sys/devices/system/cpu"
GENERIC = "conservative ondemand userspace powersave performance schedutil"
X86_FLAGS = (
    "fpu vme de pse tsc msr pae mce cx8 apic sep mtrr pge mca cmov pat pse36 clflush mmx fxsr sse sse2 ht syscall nx lm"
)

DEBIAN_12 = {"PRETTY_NAME": "Debian GNU/Linux 12 (bookworm)", "ID": "debian", "VERSION_ID": "12"}


def identity(host: Host, architecture: str, cpuinfo: str, active: tuple[str, ...] = ()) -> None:
    """What `Host.system` does not write: architecture, processor flags, who reads, and the units at work."""
    host.file("/proc/sys/kernel/arch", f"{architecture}\n")
    host.file("/proc/cpuinfo", cpuinfo)
    host.file("/proc/self/status", "Name:\tpython3\nUid:\t0\t0\t0\t0\nGid:\t0\t0\t0\t0\n")
    for unit in ("dbus.service", "ssh.service", "systemd-journald.service", *active):
        host.link(f"/run/systemd/units/invocation:{unit}", "0" * 31 + "1")
    host.link("/etc/systemd/system/multi-user.target.wants/ssh.service", "/usr/lib/systemd/system/ssh.service")
    host.file("/usr/lib/systemd/system/ssh.service", "[Service]\nExecStart=/usr/sbin/sshd -D\n")


def x86_cpuinfo(vendor: str, model: str, more: str = "") -> str:
    return (
        f"processor\t: 0\nvendor_id\t: {vendor}\ncpu family\t: 6\nmodel name\t: {model}\n"
        f"flags\t\t: {X86_FLAGS}{more}\nbogomips\t: 5990.40\n\n"
    )


def policy(host: Host, cpu: int, **values: Any) -> None:
    """Files of one policy, over those that `Host.processors` wrote."""
    host.files(f"{CPU}/cpufreq/policy{cpu}", {name: f"{value}\n" for name, value in values.items()})


def each_cpu(host: Host, cpus: int, **values: str) -> None:
    for cpu in range(cpus):
        host.files(f"{CPU}/cpu{cpu}", {name.replace("__", "/"): f"{value}\n" for name, value in values.items()})


def board(vendor: str, product: str, name: str, version: str, date: str) -> dict[str, str]:
    return {
        "sys_vendor": vendor,
        "product_name": product,
        "board_vendor": vendor,
        "board_name": name,
        "bios_vendor": vendor,
        "bios_version": version,
        "bios_date": date,
        "chassis_type": "23",
    }


def disk_and_network(
    host: Host,
    bridge: tuple[str, str],
    port: tuple[str, str],
    address: str,
    roots: tuple[str, str] = ("0000:00", "0000:00"),
    buses: tuple[int, int] = (0x01, 0x02),
) -> None:
    """A host bridge, a disk and a network card, each behind a root port. roots: domain and bus of the two ports."""
    for root in dict.fromkeys(roots):
        host.add(host_bridge(f"{root}:00.0", bridge, "Host bridge"))
    ports = [
        root_port(
            f"{root}:{number + 1:02x}.0",
            (bus, bus),
            port,
            Link(8, 4, 8, 4, port=number),
            30 + number,
            windows(0xA0000000 + number * 0x2000000, 0x38000000000 + number * 0x1000000000, 1 << 20)[:1],
            iommu_group=10 + number,
            name="PCIe Root Port",
        )
        for number, (root, bus) in enumerate(zip(roots, buses, strict=True))
    ]
    disk = nvme(ports[0], Link(16, 4, 8, 4), ("144d", "a80a"), 45, "NVMe SSD Controller PM9A1", iommu_group=20)
    card = Function(
        f"{ports[1].domain}:{buses[1]:02x}:00.0",
        "8086",
        "1563",
        "020000",
        ENDPOINT,
        parent=ports[1].bdf,
        subsystem="8086:0001",
        link=Link(8, 4, 8, 4),
        aer=True,
        irq=48,
        driver="ixgbe",
        module="ixgbe",
        name="Ethernet Controller X550",
        iommu_group=21,
    )
    host.add(*ports, disk, card)
    host.network("eno1", card.bdf, address, f"02:00:00:00:01:{int(address.rpartition('.')[2]):02x}")
    pci_lines(host)
    late_lines(host, "eno1", card.bdf, disk.bdf)


def intel_hybrid() -> Host:
    """util-linux#4595: 22 processors, of which six P cores have two threads; 2 x 16 is not 22."""
    cmdline = "BOOT_IMAGE=/vmlinuz-7.0.0-38-generic root=/dev/nvme0n1p2 ro"
    host = Host(
        "intel-hybrid",
        "util-linux/util-linux#4595 (processor counts); clocks as such a processor has them",
        "2026-10-06T09:00:00Z",
        "7a1c3a52-90c1-4f2e-9a55-0d3c4f6b7a01",
        7_254.91,
        "7.0.0-38-generic",
    )
    host.system(
        board("Example Systems", "Small Form Factor", "SFF-1", "1.14", "04/02/2026"),
        UBUNTU_2604,
        cmdline,
        65_600_000,
        62_100_000,
        hostname="hybrid",
    )
    model = "Intel(R) Core(TM) Ultra 7 155H"
    host.processors(
        [
            ("Architecture", "x86_64"),
            ("CPU op-mode(s)", "32-bit, 64-bit"),
            ("Address sizes", "46 bits physical, 48 bits virtual"),
            ("Byte Order", "Little Endian"),
            ("CPU(s)", "22"),
            ("On-line CPU(s) list", "0-21"),
            ("Vendor ID", "GenuineIntel"),
            ("Model name", model),
            ("CPU family", "6"),
            ("Model", "170"),
            ("Thread(s) per core", "2"),
            ("Core(s) per socket", "16"),
            ("Socket(s)", "1"),
            ("Stepping", "4"),
            ("CPU(s) scaling MHz", "31%"),
            ("CPU max MHz", "4800.0000"),
            ("CPU min MHz", "400.0000"),
            ("BogoMIPS", "5990.40"),
            ("Flags", X86_FLAGS),
            ("Virtualization", "VT-x"),
            ("L1d cache", "544 KiB (14 instances)"),
            ("L1i cache", "896 KiB (14 instances)"),
            ("L2 cache", "18 MiB (9 instances)"),
            ("L3 cache", "24 MiB (1 instance)"),
            ("NUMA node(s)", "1"),
            ("NUMA node0 CPU(s)", "0-21"),
            ("Vulnerability Spectre v2", "Mitigation; Enhanced / Automatic IBRS"),
        ],
        22,
        "intel_pstate",
        "performance",
        "performance powersave",
        (400_000, 4_500_000),
        epp="performance",
        boost=None,
        current=1_400_000,
        extra={
            "intel_pstate/status": "active\n",
            "intel_pstate/no_turbo": "0\n",
            "intel_pstate/min_perf_pct": "8\n",
            "intel_pstate/max_perf_pct": "100\n",
            "smt/control": "on\n",
        },
    )
    words = "default performance balance_performance balance_power power"
    for cpu in range(22):
        top = 4_800_000 if cpu < 4 else 4_500_000 if cpu < 12 else 3_800_000 if cpu < 20 else 2_500_000
        policy(
            host,
            cpu,
            cpuinfo_max_freq=top,
            scaling_max_freq=top,
            scaling_cur_freq=400_000 + 31_000 * cpu,
            energy_performance_available_preferences=words,
            base_frequency=1_400_000 if cpu < 12 else 900_000 if cpu < 20 else 700_000,
        )
    each_cpu(
        host,
        22,
        power__energy_perf_bias="0",
        thermal_throttle__core_throttle_count="0",
        thermal_throttle__package_throttle_count="0",
    )
    host.file("/sys/devices/cpu_core/cpus", "0-11\n")
    host.file("/sys/devices/cpu_atom/cpus", "12-21\n")
    identity(host, "x86_64", x86_cpuinfo("GenuineIntel", model), ("thermald.service",))
    host.kernel_boots(
        boot_lines(
            host.kernel,
            cmdline,
            "Example Systems Small Form Factor/SFF-1, BIOS 1.14 04/02/2026",
            "65,600,000K/66,800,000K available",
            f"{model} (family: 0x6, model: 0xaa, stepping: 0x4)",
            [("PC00", "00")],
        )
    )
    host.say(2.0, "intel_pstate: HWP enabled")
    disk_and_network(host, ("8086", "7d01"), ("8086", "7ecb"), "10.0.1.11")
    return host


def epyc_two_socket() -> Host:
    """Two EPYC 7451, four memory nodes each (arc-host-facts C.4); lscpu of util-linux 2.34: flat, with ``CPU MHz``."""
    cmdline = "BOOT_IMAGE=/vmlinuz-6.8.0-79-generic root=/dev/nvme0n1p2 ro"
    host = Host(
        "epyc-two-socket",
        "the form of util-linux 2.34 on two EPYC 7451 (8 memory nodes); the rest filled in",
        "2026-10-06T10:00:00Z",
        "7a1c3a52-90c1-4f2e-9a55-0d3c4f6b7a02",
        912_100.08,
        "6.8.0-79-generic",
    )
    host.system(
        board("Supermicro", "AS-1123US-TR4", "H11DSU-iN", "2.5", "06/01/2023"),
        UBUNTU_2404,
        cmdline,
        528_200_000,
        512_900_000,
        hostname="epyc",
    )
    model = "AMD EPYC 7451 24-Core Processor"
    nodes = {node: f"{6 * node}-{6 * node + 5},{48 + 6 * node}-{48 + 6 * node + 5}" for node in range(8)}
    host.processors(
        [
            ("Architecture", "x86_64"),
            ("CPU op-mode(s)", "32-bit, 64-bit"),
            ("Byte Order", "Little Endian"),
            ("Address sizes", "48 bits physical, 48 bits virtual"),
            ("CPU(s)", "96"),
            ("On-line CPU(s) list", "0-95"),
            ("Thread(s) per core", "2"),
            ("Core(s) per socket", "24"),
            ("Socket(s)", "2"),
            ("NUMA node(s)", "8"),
            ("Vendor ID", "AuthenticAMD"),
            ("CPU family", "23"),
            ("Model", "1"),
            ("Model name", model),
            ("Stepping", "2"),
            ("Frequency boost", "enabled"),
            ("CPU MHz", "1197.862"),
            ("CPU max MHz", "2300.0000"),
            ("CPU min MHz", "1200.0000"),
            ("BogoMIPS", "4590.83"),
            ("Virtualization", "AMD-V"),
            ("L1d cache", "1.5 MiB"),
            ("L1i cache", "3 MiB"),
            ("L2 cache", "24 MiB"),
            ("L3 cache", "128 MiB"),
            *((f"NUMA node{node} CPU(s)", cpus) for node, cpus in nodes.items()),
            ("Vulnerability Spectre v2", "Mitigation; Retpolines"),
            ("Flags", X86_FLAGS),
        ],
        96,
        "acpi-cpufreq",
        "schedutil",
        GENERIC,
        (1_200_000, 2_300_000),
        boost="1",
        current=1_200_000,
        nodes=nodes,
        extra={"smt/control": "on\n"},
    )
    identity(host, "x86_64", x86_cpuinfo("AuthenticAMD", model))
    host.kernel_boots(
        boot_lines(
            host.kernel,
            cmdline,
            "Supermicro AS-1123US-TR4/H11DSU-iN, BIOS 2.5 06/01/2023",
            "528,200,000K/536,800,000K available",
            f"{model} (family: 0x17, model: 0x1, stepping: 0x2)",
            [("S0D0", "00"), ("S0D1", "20"), ("S1D0", "80")],
        )
    )
    disk_and_network(host, ("1022", "1450"), ("1022", "1453"), "10.0.1.12", ("0000:20", "0000:80"), buses=(0x21, 0x81))
    return host


def arm_server() -> Host:
    """An Ampere Altra: cppc_cpufreq with the generic governors, several PCI domains, no flag that tells a guest."""
    cmdline = "BOOT_IMAGE=/vmlinuz-6.8.0-79-generic root=/dev/nvme0n1p2 ro"
    host = Host(
        "arm-server",
        "the forms of util-linux and cppc_cpufreq on an Ampere Altra server; the rest filled in",
        "2026-10-06T11:00:00Z",
        "7a1c3a52-90c1-4f2e-9a55-0d3c4f6b7a03",
        431_020.55,
        "6.8.0-79-generic",
    )
    host.system(
        board("GIGABYTE", "R272-P30-JG", "MP32-AR0-00", "F31", "09/15/2024"),
        UBUNTU_2404,
        cmdline,
        131_500_000,
        127_000_000,
        hostname="altra",
    )
    host.processors(
        [
            ("Architecture", "aarch64"),
            ("CPU op-mode(s)", "32-bit, 64-bit"),
            ("Byte Order", "Little Endian"),
            ("CPU(s)", "64"),
            ("On-line CPU(s) list", "0-63"),
            ("Vendor ID", "ARM"),
            ("BIOS Vendor ID", "Ampere(R)"),
            ("Model name", "Neoverse-N1"),
            ("BIOS Model name", "Ampere(R) Altra(R) Processor Q64-22 CPU @ 2.2GHz"),
            ("BIOS CPU family", "257"),
            ("Model", "1"),
            ("Thread(s) per core", "1"),
            ("Core(s) per socket", "64"),
            ("Socket(s)", "1"),
            ("Stepping", "r3p1"),
            ("CPU(s) scaling MHz", "45%"),
            ("CPU max MHz", "2200.0000"),
            ("CPU min MHz", "1000.0000"),
            ("BogoMIPS", "50.00"),
            (
                "Flags",
                "fp asimd evtstrm aes pmull sha1 sha2 crc32 atomics fphp asimdhp cpuid asimdrdm lrcpc dcpop asimddp",
            ),
            ("L1d cache", "4 MiB (64 instances)"),
            ("L1i cache", "4 MiB (64 instances)"),
            ("L2 cache", "64 MiB (64 instances)"),
            ("NUMA node(s)", "1"),
            ("NUMA node0 CPU(s)", "0-63"),
            ("Vulnerability Spectre v2", "Mitigation; CSV2, BHB"),
        ],
        64,
        "cppc_cpufreq",
        "schedutil",
        GENERIC,
        (1_000_000, 2_200_000),
        boost=None,
        current=1_000_000,
        extra={"smt/control": "notsupported\n"},
    )
    arm = "processor\t: 0\nFeatures\t: fp asimd evtstrm\nCPU implementer\t: 0x41\nCPU architecture: 8\n\n"
    identity(host, "aarch64", arm)
    host.kernel_boots(
        boot_lines(
            host.kernel,
            cmdline,
            "GIGABYTE R272-P30-JG/MP32-AR0-00, BIOS F31 09/15/2024",
            "131,500,000K/134,000,000K available",
            "Booting Linux on physical CPU 0x0000120000 [0x413fd0c1]",
            [("PCI0", "00"), ("PCI3", "00")],
        )
    )
    disk_and_network(host, ("1def", "e100"), ("1def", "e101"), "10.0.1.13", ("0003:00", "000c:00"))
    return host


def metal_without_cpufreq() -> Host:
    """canonical/hotsos#458: bare metal whose BIOS keeps the control of power, so the kernel has no cpufreq driver."""
    cmdline = "BOOT_IMAGE=/vmlinuz-6.8.0-79-generic root=/dev/nvme0n1p2 ro"
    host = Host(
        "metal-without-cpufreq",
        "canonical/hotsos#458 (bare metal without cpufreq)",
        "2026-10-06T12:00:00Z",
        "7a1c3a52-90c1-4f2e-9a55-0d3c4f6b7a04",
        54_000.40,
        "6.8.0-79-generic",
    )
    host.system(
        board("Example Servers", "Rack 1U", "R1U", "2.19.1", "11/12/2024"),
        UBUNTU_2404,
        cmdline,
        196_000_000,
        190_000_000,
        hostname="metal",
    )
    model = "Intel(R) Xeon(R) Silver 4110 CPU @ 2.10GHz"
    host.processors(
        [
            ("Architecture", "x86_64"),
            ("CPU op-mode(s)", "32-bit, 64-bit"),
            ("Address sizes", "46 bits physical, 48 bits virtual"),
            ("Byte Order", "Little Endian"),
            ("CPU(s)", "16"),
            ("On-line CPU(s) list", "0-15"),
            ("Vendor ID", "GenuineIntel"),
            ("Model name", model),
            ("CPU family", "6"),
            ("Model", "85"),
            ("Thread(s) per core", "2"),
            ("Core(s) per socket", "8"),
            ("Socket(s)", "1"),
            ("Stepping", "4"),
            ("BogoMIPS", "4200.00"),
            ("Flags", X86_FLAGS),
            ("Virtualization", "VT-x"),
            ("L1d cache", "256 KiB (8 instances)"),
            ("L2 cache", "8 MiB (8 instances)"),
            ("L3 cache", "11 MiB (1 instance)"),
            ("NUMA node(s)", "1"),
            ("NUMA node0 CPU(s)", "0-15"),
            ("Vulnerability Spectre v2", "Mitigation; IBRS"),
        ],
        16,
        "",
        "",
        "",
        (0, 0),
    )
    host.file(f"{CPU}/smt/control", "on\n")
    host.file(f"{CPU}/cpufreq/", "")
    each_cpu(
        host,
        16,
        thermal_throttle__core_throttle_count="0",
        thermal_throttle__package_throttle_count="0",
    )
    identity(host, "x86_64", x86_cpuinfo("GenuineIntel", model))
    host.kernel_boots(
        boot_lines(
            host.kernel,
            cmdline,
            "Example Servers Rack 1U/R1U, BIOS 2.19.1 11/12/2024",
            "196,000,000K/201,000,000K available",
            f"{model} (family: 0x6, model: 0x55, stepping: 0x4)",
            [("PC00", "00"), ("PC01", "17")],
        )
    )
    disk_and_network(host, ("8086", "2020"), ("8086", "2030"), "10.0.1.14", ("0000:00", "0000:17"), buses=(0x01, 0x18))
    return host


def vm_without_cpufreq() -> Host:
    """A guest of KVM: no cpufreq folder at all, no clock limits (fbelavenuto/arpl#645)."""
    cmdline = "BOOT_IMAGE=/boot/vmlinuz-6.1.0-40-amd64 root=/dev/sda1 ro console=ttyS0"
    host = Host(
        "vm-without-cpufreq",
        "fbelavenuto/arpl#645 (a guest without cpufreq); lscpu of util-linux 2.38 in a KVM guest",
        "2026-10-06T13:00:00Z",
        "7a1c3a52-90c1-4f2e-9a55-0d3c4f6b7a05",
        3_601.72,
        "6.1.0-40-amd64",
    )
    qemu = "QEMU"
    host.system(
        board(qemu, "Standard PC (Q35 + ICH9, 2009)", qemu, "1.16.2-debian-1.16.2-1", "04/01/2014"),
        DEBIAN_12,
        cmdline,
        16_300_000,
        15_800_000,
        hostname="guest",
    )
    model = "Intel(R) Xeon(R) Processor"
    host.processors(
        [
            ("Architecture", "x86_64"),
            ("CPU op-mode(s)", "32-bit, 64-bit"),
            ("Address sizes", "46 bits physical, 57 bits virtual"),
            ("Byte Order", "Little Endian"),
            ("CPU(s)", "8"),
            ("On-line CPU(s) list", "0-7"),
            ("Vendor ID", "GenuineIntel"),
            ("Model name", model),
            ("CPU family", "6"),
            ("Model", "143"),
            ("Thread(s) per core", "1"),
            ("Core(s) per socket", "8"),
            ("Socket(s)", "1"),
            ("Stepping", "8"),
            ("BogoMIPS", "4200.00"),
            ("Flags", f"{X86_FLAGS} hypervisor"),
            ("Hypervisor vendor", "KVM"),
            ("Virtualization type", "full"),
            ("L1d cache", "256 KiB (8 instances)"),
            ("L3 cache", "128 MiB (8 instances)"),
            ("NUMA node(s)", "1"),
            ("NUMA node0 CPU(s)", "0-7"),
            ("Vulnerability Spectre v2", "Mitigation; Enhanced / Automatic IBRS"),
        ],
        8,
        "",
        "",
        "",
        (0, 0),
    )
    host.file(f"{CPU}/smt/control", "notsupported\n")
    # places for processors that could be added count as off-line here; they are not there
    host.file(f"{CPU}/possible", "0-63\n")
    host.file(f"{CPU}/offline", "8-63\n")
    identity(host, "x86_64", x86_cpuinfo("GenuineIntel", model, " hypervisor"))
    host.kernel_boots(
        boot_lines(
            host.kernel,
            cmdline,
            "QEMU Standard PC (Q35 + ICH9, 2009), BIOS 1.16.2-debian-1.16.2-1 04/01/2014",
            "16,300,000K/16,776,000K available",
            f"{model} (family: 0x6, model: 0x8f, stepping: 0x8)",
            [("PCI0", "00")],
        )
    )
    host.say(0.0, "Hypervisor detected: KVM")
    host.add(host_bridge("0000:00:00.0", ("8086", "29c0"), "82G33/G31/P35/P31 Express DRAM Controller"))
    for slot, device, code, driver, name in (
        ("02", "1041", "020000", "virtio-pci", "Virtio 1.0 network device"),
        ("03", "2922", "010601", "ahci", "82801IR/IO/IH (ICH9R/DO/DH) 6 port SATA Controller [AHCI mode]"),
        ("1f", "2918", "060100", "lpc_ich", "82801IB (ICH9) LPC Interface Controller"),
    ):
        vendor = "8086" if device.startswith("29") else "1af4"
        host.add(Function(f"0000:00:{slot}.0", vendor, device, code, driver=driver, name=name))
    host.network("ens2", "0000:00:02.0", "10.0.1.15", "02:00:00:00:01:15")
    pci_lines(host)
    host.say(2.3, "EXT4-fs (sda1): mounted filesystem with ordered data mode. Quota mode: none.")
    host.say(2.8, "systemd[1]: Starting systemd-journald.service - Journal Service...")
    return host


HOSTS: tuple[Callable[[], Host], ...] = (
    intel_hybrid,
    epyc_two_socket,
    arm_server,
    metal_without_cpufreq,
    vm_without_cpufreq,
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
