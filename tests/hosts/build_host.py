"""What rebuilt hosts are put together from: the machine around its PCI functions, a card, the kernel's boot lines."""

from __future__ import annotations

import base64
import json
from typing import Any

from hostcheck.onhost.readings import dimms
from hostcheck.onhost.recording import dump, empty, load, seconds

from . import build_memory
from . import build_pci as pci
from .build_boot import extend
from .build_pci import DOWNSTREAM, ENDPOINT, L1, LEGACY, ROOT_PORT, UPSTREAM, Bar, Function, Link

GIB = 1 << 30
NODE = {"error": "ENODATA"}  # a device node: there, but nothing reads its content
RENDER_GID, VIDEO_GID = 992, 44
JOURNAL = "journalctl -k -b 0 -o json --all --output-fields=MESSAGE,PRIORITY --no-pager"
JOURNAL_STARTS = 2.4  # seconds: what the kernel said before is stamped when journald picks it up
THROTTLE = ("status", "reason_pl1", "reason_pl2", "reason_pl4", "reason_prochot", "reason_ratl", "reason_thermal")
THROTTLE_ALL = (*THROTTLE, "reason_vr_tdc", "reason_vr_thermalert")

Line = tuple[float, int, str]


class Host:
    """A recording that is being put together."""

    def __init__(self, name: str, origin: str, taken_at: str, boot_id: str, uptime: float, kernel: str) -> None:
        self.name = name
        self.recording = empty(seconds(taken_at), f"rebuilt: {origin}")
        self.boot_id = boot_id
        self.uptime = uptime
        self.kernel = kernel
        self.functions: dict[str, Function] = {}
        self.log: list[Line] = []
        self.slots: dict[str, str] = {}
        self._hwmon = 0

    def file(self, path: str, content: Any) -> None:
        self.recording["files"][path] = content

    def files(self, folder: str, contents: dict[str, Any]) -> None:
        for name, content in contents.items():
            self.file(f"{folder}/{name}", content)

    def link(self, path: str, target: str) -> None:
        self.recording["links"][path] = target

    def command(self, argv: str, stdout: str, rc: int = 0, stderr: str = "") -> None:
        self.recording["commands"][argv] = {"rc": rc, "stdout": stdout, "stderr": stderr}

    def stat(self, path: str, mode: int, gid: int = 0, rdev: tuple[int, int] = (0, 0)) -> None:
        self.recording["stats"][path] = {"mode": f"{mode:o}", "uid": 0, "gid": gid, "rdev": list(rdev)}

    def memory_modules(self, modules: list[bytes], correction: int) -> None:
        """The firmware's table of memory, as a recording keeps it."""
        kept = dimms.reduced(build_memory.table(modules, correction))
        self.file(dimms.TABLE, {"base64": base64.b64encode(kept).decode("ascii")})

    def call(self, name: str, value: Any) -> None:
        self.recording["calls"][name] = value

    def say(self, at: float, text: str, priority: int = 6) -> None:
        """One kernel message, ``at`` seconds after the start of the boot."""
        self.log.append((at, priority, text))

    def add(self, *functions: Function) -> None:
        for function in functions:
            self.functions[function.bdf] = function

    def path(self, bdf: str) -> str:
        return pci.device_path(self.functions[bdf], self.functions)

    # -- the machine -----------------------------------------------------------------------------------------------

    def system(
        self,
        board: dict[str, str],
        os_release: dict[str, str],
        cmdline: str,
        memory_kib: int,
        available_kib: int,
        swap_kib: int = 0,
        hostname: str = "gpu-host",
        tainted: int = 0,
    ) -> None:
        self.file("/etc/hostname", f"{hostname}\n")
        self.file("/etc/os-release", "".join(f'{key}="{value}"\n' for key, value in os_release.items()))
        self.file("/etc/group", f"root:x:0:\nadm:x:4:\nvideo:x:{VIDEO_GID}:\nrender:x:{RENDER_GID}:\n")
        self.file("/etc/passwd", "root:x:0:0:root:/root:/bin/bash\n")
        kernel = "/proc/sys/kernel"
        self.files(
            kernel,
            {
                "hostname": f"{hostname}\n",
                "osrelease": f"{self.kernel}\n",
                "ostype": "Linux\n",
                "version": "#38-Ubuntu SMP PREEMPT_DYNAMIC\n",
                "tainted": f"{tainted}\n",
                "random/boot_id": f"{self.boot_id}\n",
                "dmesg_restrict": "1\n",
                "hardlockup_panic": "0\n",
                "softlockup_panic": "0\n",
                "hung_task_panic": "0\n",
                "hung_task_timeout_secs": "120\n",
                "panic_on_oops": "0\n",
                "nmi_watchdog": "1\n",
                "watchdog_thresh": "10\n",
                "sysrq": "176\n",
                "panic": "0\n",
                "numa_balancing": "0\n",
            },
        )
        self.files(
            "/proc/sys/vm",
            {
                "swappiness": "60\n",
                "overcommit_memory": "0\n",
                "panic_on_oom": "0\n",
                "min_free_kbytes": "67584\n",
            },
        )
        self.file("/sys/fs/pstore/", "")
        self.file("/sys/module/pstore/parameters/backend", "efi_pstore\n")
        self.file("/sys/kernel/kexec_crash_loaded", "0\n")
        self.file("/proc/cmdline", f"{cmdline}\n")
        self.file("/proc/uptime", f"{self.uptime:.2f} {self.uptime * 15:.2f}\n")
        self.file("/proc/loadavg", "0.02 0.03 0.00 1/512 4242\n")
        self.file("/proc/version", f"Linux version {self.kernel} (buildd@build) (gcc 15.2.0) #38-Ubuntu SMP\n")
        self.file(
            "/proc/meminfo",
            f"MemTotal:       {memory_kib:>9} kB\nMemFree:        {available_kib - 200000:>9} kB\n"
            f"MemAvailable:   {available_kib:>9} kB\nBuffers:           65536 kB\nCached:           900000 kB\n"
            "AnonPages:        310000 kB\nShmem:              9216 kB\n"
            f"SwapTotal:      {swap_kib:>9} kB\nSwapFree:       {swap_kib:>9} kB\n"
            "HugePages_Total:       0\nHugepagesize:       2048 kB\nHugetlb:               0 kB\n"
            "GPUActive:             0 kB\n",
        )
        blocks = "/sys/devices/system/memory"
        self.file(f"{blocks}/block_size_bytes", "80000000\n")
        for number in range(min(4, max(1, memory_kib >> 21))):
            self.file(f"{blocks}/memory{number}/state", "online\n")
        swap = f"/swap.img file {swap_kib} 0 -2\n" if swap_kib else ""
        self.file("/proc/swaps", f"Filename Type Size Used Priority\n{swap}")
        self.disk("sda", 2)
        for name in ("memory", "io"):
            self.file(
                f"/proc/pressure/{name}",
                "some avg10=0.00 avg60=0.00 avg300=0.00 total=0\nfull avg10=0.00 avg60=0.00 avg300=0.00 total=0\n",
            )
        self.link("/sys/class/dmi/id", "../../devices/virtual/dmi/id")
        self.files("/sys/devices/virtual/dmi/id", {key: f"{value}\n" for key, value in board.items()})
        self.recording["statvfs"]["/"] = {"size": 983 * GIB, "free": 512 * GIB}
        self.file("/sys/module/pcie_aspm/parameters/policy", "[default] performance powersave powersupersave \n")
        self.file("/sys/class/devcoredump/disabled", "0\n")
        self.file("/proc/self/status", "Name:\tpython3\nUid:\t0\t0\t0\t0\nGid:\t0\t0\t0\t0\n")
        self.link("/proc/self/ns/net", "net:[4026531840]")
        self.process(1, "systemd", "0::/init.scope")
        self.link("/proc/1/ns/net", "net:[4026531840]")
        self.process(612, "systemd-journal", "0::/system.slice/systemd-journald.service")
        self.process(1180, "sshd", "0::/system.slice/ssh.service")
        self.process(2, "kthreadd", "0::/", fds=None)

    def process(self, pid: int, comm: str, cgroup: str, fds: dict[int, str] | None = None, link: bool = True) -> None:
        """A process; ``fds=None`` with pid 2 is a kernel thread, whose fd folder is empty."""
        self.file(f"/proc/{pid}/comm", f"{comm}\n")
        self.file(f"/proc/{pid}/cgroup", f"{cgroup}\n")
        if pid == 2:
            self.file(f"/proc/{pid}/fd/", "")
            return
        for number, target in ({0: "/dev/null", 1: "socket:[1234]"} | (fds or {})).items():
            self.link(f"/proc/{pid}/fd/{number}", target)

    def disk(self, name: str, part: int, bdf: str = "") -> None:
        """The disk of the root file system. bdf: of its controller; without one it hangs on no PCI function."""
        partition = f"{name}p{part}" if name.startswith("nvme") else f"{name}{part}"
        files = self.recording["files"]
        for path in [path for path in files if path.startswith(("/sys/devices/virtual/block/", "/sys/fs/ext4/"))]:
            del files[path]
        for path in [path for path in self.recording["links"] if path.startswith("/sys/class/block/")]:
            del self.recording["links"][path]
        folder = f"{self.path(bdf)}/nvme/nvme0/{name}" if bdf else f"/sys/devices/virtual/block/{name}"
        self.file(f"{folder}/{partition}/partition", f"{part}\n")
        for device, place in ((name, folder), (partition, f"{folder}/{partition}")):
            self.link(f"/sys/class/block/{device}", "../../" + place.removeprefix("/sys/"))
        self.file(f"/sys/fs/ext4/{partition}/errors_count", "0\n")
        self.file(
            "/proc/self/mountinfo",
            "22 27 0:21 / /proc rw,nosuid,nodev,noexec,relatime shared:12 - proc proc rw\n"
            "23 27 0:22 / /sys rw,nosuid,nodev,noexec,relatime shared:2 - sysfs sysfs rw\n"
            f"27 1 259:{part} / / rw,relatime shared:1 - ext4 /dev/{partition} rw,errors=remount-ro\n"
            "31 23 0:27 / /sys/fs/pstore rw,nosuid,nodev,noexec,relatime shared:9 - pstore pstore rw\n",
        )

    def kernel_boots(self, lines: list[Line]) -> None:
        self.log = [*lines, *self.log]

    # -- processors ------------------------------------------------------------------------------------------------

    def processors(
        self,
        fields: list[tuple[str, str]],
        cpus: int,
        driver: str,
        governor: str,
        governors: str,
        limits: tuple[int, int],
        epp: str = "",
        boost: str | None = "1",
        current: int | None = None,
        nodes: dict[int, str] | None = None,
        extra: dict[str, str] | None = None,
    ) -> None:
        """lscpu and cpufreq. limits: hardware minimum and maximum in kHz; driver "" means no cpufreq at all."""
        width = max(len(name) for name, _ in fields) + 1
        self.command("lscpu", "".join(f"{name + ':':<{width}} {value}\n" for name, value in fields))
        document = {"lscpu": [{"field": f"{name}:", "data": value} for name, value in fields]}
        self.command("lscpu -J", json.dumps(document, indent=3) + "\n")
        root = "/sys/devices/system/cpu"
        everything = f"0-{cpus - 1}" if cpus > 1 else "0"
        self.files(root, {"online": f"{everything}\n", "possible": f"{everything}\n", "present": f"{everything}\n"})
        self.file(f"{root}/offline", "\n")
        for node, listed in (nodes or {0: everything}).items():
            self.file(f"/sys/devices/system/node/node{node}/cpulist", f"{listed}\n")
        self.file("/sys/devices/system/node/online", "0\n" if not nodes else f"0-{max(nodes)}\n")
        for cpu in range(cpus):
            self.file(f"{root}/cpu{cpu}/topology/physical_package_id", "0\n")
            if driver:
                self.link(f"{root}/cpu{cpu}/cpufreq", f"../cpufreq/policy{cpu}")
        if not driver:
            return
        for cpu in range(cpus):
            values = {
                "affected_cpus": str(cpu),
                "related_cpus": str(cpu),
                "scaling_driver": driver,
                "scaling_governor": governor,
                "scaling_available_governors": governors,
                "cpuinfo_min_freq": str(limits[0]),
                "cpuinfo_max_freq": str(limits[1]),
                "scaling_min_freq": str(limits[0]),
                "scaling_max_freq": str(limits[1]),
                "scaling_cur_freq": str(current or limits[0] + 37 * cpu),
            }
            if epp:
                values["energy_performance_preference"] = epp
            self.files(f"{root}/cpufreq/policy{cpu}", {name: f"{value}\n" for name, value in values.items()})
        if boost is not None:
            self.file(f"{root}/cpufreq/boost", f"{boost}\n")
        for name, value in (extra or {}).items():
            self.file(f"{root}/{name}", value)

    # -- network ---------------------------------------------------------------------------------------------------

    def network(self, name: str, bdf: str, address: str, mac: str) -> None:
        self.call(
            "psutil.net_if_addrs",
            {
                "lo": [[2, "127.0.0.1", "255.0.0.0", None, None]],
                name: [[2, address, "255.255.255.0", None, None], [17, mac, None, "ff:ff:ff:ff:ff:ff", None]],
            },
        )
        self.call(
            "psutil.net_if_stats",
            {"lo": [True, 0, 0, 65536, "up,loopback,running"], name: [True, 2, 10000, 1500, "up,broadcast,running"]},
        )
        for interface, state in (("lo", "unknown"), (name, "up")):
            folder = f"/sys/devices/virtual/net/{interface}" if interface == "lo" else f"{self.path(bdf)}/net/{name}"
            index = "1\n" if interface == "lo" else "2\n"
            self.files(folder, {"operstate": f"{state}\n", "carrier": "1\n", "mtu": "1500\n", "type": "1\n"})
            self.file(f"{folder}/ifindex", index)
            self.link(f"/sys/class/net/{interface}", "../../" + folder.removeprefix("/sys/"))
        self.link(f"{self.path(bdf)}/net/{name}/device", f"../../../{bdf}")
        self.file("/proc/net/route", f"Iface\tDestination\tGateway\n{name}\t00000000\t0100000A\n")

    # -- GPUs ------------------------------------------------------------------------------------------------------

    def xe(self, bdf: str, clocks: tuple[int, int] = (400, 2800), cap_uw: int = 230_000_000, auto: str = "1") -> None:
        """Driver attributes of a card that xe holds: clocks, throttle reasons, hwmon, engines, interrupts."""
        folder = self.path(bdf)
        low, high = clocks
        for gt, top in ((0, high), (1, 1500)):
            freq = f"{folder}/tile0/gt{gt}/freq0"
            values = {
                "act_freq": 0,
                "cur_freq": low,
                "min_freq": low,
                "max_freq": top,
                "rp0_freq": top,
                "rpn_freq": low,
            }
            self.files(freq, {name: f"{value}\n" for name, value in {**values, "rpe_freq": low}.items()})
            self.files(f"{freq}/throttle", dict.fromkeys(THROTTLE_ALL, "0\n"))
            self.files(
                f"{folder}/tile0/gt{gt}/gtidle",
                {
                    "name": f"gt{gt}-{'rc' if gt == 0 else 'mc'}\n",
                    "idle_status": "gt-c6\n",
                    "idle_residency_ms": "1234567\n",
                },
            )
        for engine in ("bcs", "ccs", "rcs"):
            self.files(
                f"{folder}/tile0/gt0/engines/{engine}",
                {"job_timeout_ms": "5000\n", "job_timeout_max": "10000\n", "preempt_timeout_us": "640000\n"},
            )
        self.file(f"{folder}/auto_link_downgrade_capable", f"{auto}\n")
        self.file(f"{folder}/auto_link_downgrade_status", "0\n")
        self.file(
            f"/sys/kernel/debug/dri/{bdf}/vram0_mm",
            "  use_type: 1\n  use_tt: 0\n  size: 34225520640\n  usage: 27746304\ndefault_page_size: 4KiB\n",
        )
        number = self._hwmon
        self._hwmon += 1
        hwmon = f"{folder}/hwmon/hwmon{number}"
        self.files(
            hwmon,
            {
                "name": "xe\n",
                "energy1_input": "482113445\n",
                "energy1_label": "card\n",
                "energy2_input": "201334118\n",
                "energy2_label": "pkg\n",
                "power1_cap": f"{cap_uw}\n",
                "power1_label": "card\n",
                "temp2_input": "41000\n",
                "temp2_label": "pkg\n",
                "temp3_input": "44000\n",
                "temp3_label": "vram\n",
            },
        )
        self.link(f"{hwmon}/device", f"../../../{bdf}")
        self.link(f"/sys/class/hwmon/hwmon{number}", "../../" + hwmon.removeprefix("/sys/"))

    def interrupt(self, bdf: str, irq: int, cpu: int) -> None:
        self.file(f"{self.path(bdf)}/msi_irqs/{irq}", "msix\n")
        self.files(f"/proc/irq/{irq}", {"effective_affinity_list": f"{cpu}\n", "smp_affinity_list": f"{cpu}\n"})

    def nodes(self) -> None:
        """Device nodes of all functions that have drm minors."""
        for function in self.functions.values():
            if function.drm is None:
                continue
            for prefix, minor, group, word in (
                ("card", function.drm[0], VIDEO_GID, "card"),
                ("renderD", function.drm[1], RENDER_GID, "render"),
            ):
                if minor is None:
                    continue
                path = f"/dev/dri/{prefix}{minor}"
                self.file(path, NODE)
                self.stat(path, 0o020660, group, (226, minor))
                self.link(f"/dev/dri/by-path/pci-{function.bdf}-{word}", f"../{prefix}{minor}")

    # -- the end ---------------------------------------------------------------------------------------------------

    def finish(self, lspci: bool = True, journal: bool = True) -> dict[str, Any]:
        extend(self)
        for function in self.functions.values():
            files, links = pci.sysfs(function, self.functions)
            self.recording["files"].update(files)
            self.recording["links"].update(links)
        for slot, address in self.slots.items():
            self.file(f"/sys/bus/pci/slots/{slot}/address", f"{address}\n")
        self.nodes()
        if any(function.driver == "xe" for function in self.functions.values()):
            self.files(
                "/sys/module/xe",
                {
                    "refcnt": "0\n",
                    "holders/": "",
                    "parameters/probe_display": "Y\n",
                    "parameters/vram_bar_size": "0\n",
                    "parameters/wedged_mode": "1\n",
                },
            )
            self.link("/sys/bus/pci/drivers/xe/module", "../../../../module/xe")
        if lspci:
            self.command("lspci -D -nn -vv", pci.lspci(list(self.functions.values())))
        self.log.sort(key=lambda line: line[0])
        if journal:
            self.command(JOURNAL, self._journal())
        self.command("dmesg", "".join(f"[{at:12.6f}] {text}\n" for at, _, text in self.log))
        return load(dump(self.recording))

    def _journal(self) -> str:
        booted = seconds(self.recording["taken_at"]) - self.uptime
        boot = self.boot_id.replace("-", "")
        lines = []
        for number, (at, priority, text) in enumerate(self.log):
            heard = max(at, JOURNAL_STARTS + number * 1e-5)
            entry = {
                "__CURSOR": f"s=0f;i={number + 1:x}",
                "__REALTIME_TIMESTAMP": str(int((booted + heard) * 1e6)),
                "__MONOTONIC_TIMESTAMP": str(int(heard * 1e6)),
                "_BOOT_ID": boot,
                "PRIORITY": str(priority),
                "MESSAGE": text,
            }
            lines.append(json.dumps(entry, ensure_ascii=False))
        return "".join(f"{line}\n" for line in lines)


# -- parts of hosts ----------------------------------------------------------------------------------------------------


def root_port(
    bdf: str,
    buses: tuple[int, int],
    device: tuple[str, str],
    link: Link,
    irq: int,
    windows: tuple[Bar, ...],
    **more: Any,
) -> Function:
    """A root port that has AER and ACS, with ACS in the state that the kernel sets when an IOMMU is on."""
    given: dict[str, Any] = {"aer": True, "acs": (0x5F, 0x1D), "driver": "pcieport", "subsystem": f"{device[0]}:1453"}
    return Function(
        bdf,
        *device,
        class_code="060400",
        port_type=ROOT_PORT,
        link=link,
        buses=buses,
        irq=irq,
        windows=windows,
        **(given | more),
    )


def battlemage(
    root: Function,
    slot_link: Link,
    device: str,
    subsystem: str,
    irq: int,
    base: int,
    low: int,
    bar: int,
    drm: tuple[int | None, int | None] | None,
    driver: str = "xe",
    bar_max: int = 0,
    **more: Any,
) -> list[Function]:
    """A Battlemage card below a root port: upstream port e2ff, two inner ports, GPU and audio.

    The inner ports and the GPU say 2.5 GT/s x1 on every host (arc-host-facts A.1, lab-host-facts 6).
    """
    assert root.buses is not None
    domain, first = root.domain, root.buses[0]
    inert = Link(2.5, 1, 2.5, 1, aspm=L1)
    common: dict[str, Any] = {"numa": root.numa, "cpus": root.cpus, **more}

    def at(bus: int, rest: str = "00.0") -> str:
        return f"{domain}:{first + bus:02x}:{rest}"

    pref = Bar(0, base, bar, "pref64")
    bridge: dict[str, Any] = {
        "class_code": "060400",
        "driver": "pcieport",
        "aer": True,
        "subsystem": "8086:0000",
        **common,
    }
    upstream = Function(
        at(0),
        "8086",
        "e2ff",
        port_type=UPSTREAM,
        parent=root.bdf,
        revision=1,
        link=slot_link,
        buses=(first + 1, first + 3),
        irq=irq,
        l1ss=True,
        windows=(Bar(0, low, 32 << 20, "mem32"), pref),
        link_files={"clkpm": 0, "l0s_aspm": 0, "l1_aspm": 0, "l1_1_aspm": 0, "l1_1_pcipm": 0},
        **bridge,
    )
    gpu_port = Function(
        at(1, "01.0"),
        "8086",
        "e2f0",
        port_type=DOWNSTREAM,
        parent=upstream.bdf,
        link=inert,
        buses=(first + 2, first + 2),
        irq=irq + 1,
        acs=(0x5F, 0x1D),
        windows=(Bar(0, low, 16 << 20, "mem32"), pref),
        **bridge,
    )
    audio_port = Function(
        at(1, "02.0"),
        "8086",
        "e2f1",
        port_type=DOWNSTREAM,
        parent=upstream.bdf,
        link=inert,
        buses=(first + 3, first + 3),
        irq=irq + 2,
        acs=(0x5F, 0x1D),
        windows=(Bar(0, low + (16 << 20), 1 << 20, "mem32"),),
        **bridge,
    )
    gpu = Function(
        at(2),
        "8086",
        device,
        "030000",
        ENDPOINT,
        parent=gpu_port.bdf,
        subsystem=subsystem,
        link=inert,
        bars=(Bar(0, low, 16 << 20), Bar(2, base, bar, "pref64")),
        aer=True,
        rebar=True,
        rebar_max=bar_max,
        vfs=24 if bar > 256 << 20 else 0,
        irq=irq + 3,
        boot_vga="0",
        drm=drm,
        driver=driver,
        module="xe",
        link_files={"l1_aspm": 0},
        **common,
    )
    audio = Function(
        at(3),
        "8086",
        "e2f7",
        "040300",
        ENDPOINT,
        parent=audio_port.bdf,
        subsystem=subsystem,
        link=inert,
        bars=(Bar(0, low + (16 << 20), 16 << 10),),
        irq=irq + 4,
        driver="snd_hda_intel",
        module="snd_hda_intel",
        link_files={"l1_aspm": 0},
        **common,
    )
    return [upstream, gpu_port, audio_port, gpu, audio]


def card(host: Host, root: Function, slot_link: Link, device: str, subsystem: str, number: int, **more: Any) -> str:
    """Add a root port and its Battlemage card to a host; the address of the GPU comes back."""
    given: dict[str, Any] = {
        "irq": 60 + 8 * number,
        "base": root.windows[1].base,
        "low": root.windows[0].base,
        "bar": 32 * GIB,
        "drm": (1 + number, 128 + number),
    }
    functions = battlemage(root, slot_link, device, subsystem, **(given | more))
    host.add(root, *functions)
    gpu = functions[3]
    if gpu.driver == "xe":
        host.xe(gpu.bdf)
        host.interrupt(gpu.bdf, gpu.irq, 5 + 8 * number)
    return gpu.bdf


def windows(low: int, base: int, size: int) -> tuple[Bar, Bar]:
    return Bar(0, low, 32 << 20, "mem32"), Bar(0, base, size, "pref64")


def nvme(root: Function, link: Link, ids: tuple[str, str], irq: int, name: str, **more: Any) -> Function:
    assert root.buses is not None
    return Function(
        f"{root.domain}:{root.buses[0]:02x}:00.0",
        *ids,
        class_code="010802",
        port_type=ENDPOINT,
        parent=root.bdf,
        subsystem=f"{ids[0]}:a801",
        link=link,
        bars=(Bar(0, root.windows[0].base, 16 << 10),),
        aer=True,
        irq=irq,
        driver="nvme",
        module="nvme",
        name=name,
        **more,
    )


def host_bridge(bdf: str, ids: tuple[str, str], name: str, **more: Any) -> Function:
    return Function(bdf, *ids, class_code="060000", name=name, **more)


def display_bmc(root: Function, card_number: int, **more: Any) -> list[Function]:
    """The board's management controller with its small display adapter (no render node)."""
    assert root.buses is not None
    first = root.buses[0]
    bridge = Function(
        f"{root.domain}:{first:02x}:00.0",
        "1a03",
        "1150",
        "060400",
        UPSTREAM,
        parent=root.bdf,
        revision=6,
        buses=(first + 1, first + 1),
        windows=(Bar(0, root.windows[0].base, 32 << 20, "mem32"),),
        name="AST1150 PCI-to-PCI Bridge",
        **more,
    )
    adapter = Function(
        f"{root.domain}:{first + 1:02x}:00.0",
        "1a03",
        "2000",
        "030000",
        parent=bridge.bdf,
        revision=0x52,
        subsystem="1a03:2000",
        bars=(Bar(0, root.windows[0].base, 16 << 20, "mem32"),),
        irq=40,
        driver="ast",
        module="ast",
        boot_vga="1",
        drm=(card_number, None),
        name="ASPEED Graphics Family",
        **more,
    )
    return [bridge, adapter]


def boot_lines(
    kernel: str, cmdline: str, board: str, memory: str, cpu: str, roots: list[tuple[str, str]]
) -> list[Line]:
    """What every boot says first. roots: host bridges as (name of the ACPI device, first bus)."""
    lines: list[Line] = [
        (
            0.0,
            5,
            f"Linux version {kernel} (buildd@lcy02-amd64-031) (gcc 15.2.0) #38-Ubuntu SMP PREEMPT_DYNAMIC",
        ),
        (0.0, 6, f"Command line: {cmdline}"),
        (0.0, 6, "KERNEL supported cpus:"),
        (0.0, 6, "BIOS-provided physical RAM map:"),
        (0.0, 6, "NX (Execute Disable) protection: active"),
        (0.0, 6, f"DMI: {board}"),
        (0.000012, 6, "tsc: Fast TSC calibration using PIT"),
        (0.012113, 6, "Using GB pages for direct mapping"),
        (0.013004, 6, "ACPI: Early table checksum verification disabled"),
        (0.118302, 5, f"Kernel command line: {cmdline}"),
        (0.214820, 6, f"Memory: {memory}"),
        (0.301220, 6, f"smpboot: CPU0: {cpu}"),
        (0.412201, 6, "devtmpfs: initialized"),
        (0.514810, 6, "ACPI: bus type PCI registered"),
        (0.612012, 6, "PCI: Using configuration type 1 for base access"),
    ]
    for number, (name, bus) in enumerate(roots):
        at = 0.801 + 0.02 * number
        acpi = f"acpi PNP0A08:{number:02x}"
        lines += [
            (at, 6, f"ACPI: PCI Root Bridge [{name}] (domain 0000 [bus {bus}-{int(bus, 16) + 31:02x}])"),
            (
                at + 0.001,
                6,
                f"{acpi}: _OSC: OS supports [ExtendedConfig ASPM ClockPM Segments MSI EDR HPX-Type3]",
            ),
            (
                at + 0.002,
                6,
                f"{acpi}: _OSC: OS now controls [PCIeHotplug SHPCHotplug PME AER PCIeCapability LTR DPC]",
            ),
            (at + 0.003, 6, f"PCI host bridge to bus 0000:{bus}"),
        ]
    return lines


SPEED_GBPS = {2.5: 2.0, 5: 4.0, 8: 7.876, 16: 15.753, 32: 31.507}  # per lane, as the kernel counts


def _ends(link: Link) -> tuple[tuple[float, int], tuple[float, int]]:
    return (link.speed, link.width), (link.max_speed, link.max_width)


def pci_lines(host: Host, start: float = 0.9, limited: bool = True) -> None:
    """The scan, the ports with AER, and the link that the kernel finds narrow (which is inside a Battlemage card)."""
    at = start
    for function in sorted(host.functions.values(), key=lambda one: one.bdf):
        at += 0.0007
        kinds = {ENDPOINT: "PCIe Endpoint", LEGACY: "PCIe Legacy Endpoint", ROOT_PORT: "PCIe Root Port"}
        kinds |= {UPSTREAM: "PCIe Switch Upstream Port", DOWNSTREAM: "PCIe Switch Downstream Port"}
        kind = kinds.get(function.port_type if function.port_type is not None else -1, "conventional PCI endpoint")
        layout = "type 01" if function.bridge else "type 00"
        host.say(
            round(at, 6),
            f"pci {function.bdf}: [{function.vendor}:{function.device}] {layout} class 0x{function.class_code} {kind}",
        )
        if limited and function.device == "e2ff" and function.link is not None:
            link = function.link
            available, capable = (width * SPEED_GBPS[speed] for speed, width in _ends(link))
            if available < capable:
                host.say(
                    round(at + 0.0003, 6),
                    f"pci {function.bdf}: {available:.3f} Gb/s available PCIe bandwidth, limited by {link.speed:.1f} "
                    f"GT/s PCIe x{link.width} link at {function.parent} (capable of {capable:.3f} Gb/s with "
                    f"{link.max_speed:.1f} GT/s PCIe x{link.max_width} link)",
                )
        if limited and function.parent and host.functions[function.parent].device == "e2f0":
            # the narrowest hop of a Battlemage card is always the one inside it (arc-host-facts C.1)
            host.say(
                round(at + 0.0003, 6),
                f"pci {function.bdf}: 2.000 Gb/s available PCIe bandwidth, limited by 2.5 GT/s PCIe x1 link at "
                f"{function.parent} (capable of 504.112 Gb/s with 32.0 GT/s PCIe x16 link)",
            )
    at = 1.45
    for function in sorted(host.functions.values(), key=lambda one: one.bdf):
        if function.driver != "pcieport" or not function.irq or function.port_type != ROOT_PORT:
            continue
        host.say(round(at, 6), f"pcieport {function.bdf}: PME: Signaling with IRQ {function.irq}")
        host.say(round(at + 0.0004, 6), f"pcieport {function.bdf}: AER: enabled with IRQ {function.irq}")
        at += 0.0011


def xe_lines(
    host: Host, gpus: list[str], guc: str, start: float = 3.6, tile: str = "Tile0: ", vram: int = 0, huc: str = "8.2.10"
) -> None:
    """A healthy probe of every card. vram: bytes on the card, where its BAR shows less or more."""
    for number, bdf in enumerate(gpus):
        function = host.functions[bdf]
        at = start + 0.9 * number
        visible = next(bar.size for bar in function.bars if bar.index == 2)
        size = vram or visible
        base = next(bar.base for bar in function.bars if bar.index == 2)
        assert function.drm is not None
        for offset, text in (
            (0.0, f"Found battlemage (device ID {function.device}) discrete display version 14.01 stepping B0"),
            (0.011, f"VISIBLE VRAM: 0x{base:016x}, 0x{visible:016x}"),
            *(((0.0115, "Small BAR device"),) if visible < size else ()),
            (
                0.012,
                f"VRAM[0, 0]: Actual physical size 0x{size:016x}, usable size exclude stolen "
                f"0x{size - (112 << 20):016x}, CPU accessible size 0x{min(visible, size):016x}",
            ),
            (0.013, f"Total VRAM: 0x{base:016x}, 0x{size:016x}"),
            (0.140, f"{tile}GT0: Using GuC firmware from xe/bmg_guc_70.bin version {guc}"),
            (0.210, f"{tile}GT1: Using GuC firmware from xe/bmg_guc_70.bin version {guc}"),
            (0.216, f"{tile}GT1: Using HuC firmware from xe/bmg_huc.bin version {huc}"),
            (0.231, f"{tile}GT0: ccs1 fused off"),
            (0.232, f"{tile}GT0: ccs2 fused off"),
            (0.233, f"{tile}GT0: ccs3 fused off"),
        ):
            host.say(round(at + offset, 6), f"xe {bdf}: [drm] {text}")
        host.say(round(at + 0.410, 6), f"[drm] Initialized xe 1.1.0 for {bdf} on minor {function.drm[0]}")


def late_lines(host: Host, interface: str, bdf: str, disk: str) -> None:
    """What a boot says after the drivers; the disk it names holds the root file system."""
    host.disk("nvme0n1", 2, disk)
    for at, text in (
        (1.9, f"nvme nvme0: pci function {disk}"),
        (1.95, "nvme nvme0: 16/0/0 default/read/poll queues"),
        (2.3, "EXT4-fs (nvme0n1p2): mounted filesystem with ordered data mode. Quota mode: none."),
        (2.5, "systemd[1]: Inserted module 'autofs4'"),
        (2.8, "systemd[1]: Starting systemd-journald.service - Journal Service..."),
        (9.2, f"ixgbe {bdf} {interface}: NIC Link is Up 10 Gbps, Flow Control: RX/TX"),
        (21.4, "audit: type=1400 apparmor STATUS operation=profile_load profile=unconfined"),
    ):
        host.say(at, text)


UBUNTU_2604 = {
    "PRETTY_NAME": "Ubuntu 26.04 LTS",
    "NAME": "Ubuntu",
    "VERSION_ID": "26.04",
    "VERSION_CODENAME": "resolute",
    "ID": "ubuntu",
    "ID_LIKE": "debian",
}
UBUNTU_2404 = {
    "PRETTY_NAME": "Ubuntu 24.04.3 LTS",
    "NAME": "Ubuntu",
    "VERSION_ID": "24.04",
    "VERSION_CODENAME": "noble",
    "ID": "ubuntu",
    "ID_LIKE": "debian",
}


def lscpu_amd(
    model: str, cpus: int, cores: int, family: str, maximum: str, minimum: str, l3: str
) -> list[tuple[str, str]]:
    return [
        ("Architecture", "x86_64"),
        ("CPU op-mode(s)", "32-bit, 64-bit"),
        ("Address sizes", "48 bits physical, 48 bits virtual"),
        ("Byte Order", "Little Endian"),
        ("CPU(s)", str(cpus)),
        ("On-line CPU(s) list", f"0-{cpus - 1}"),
        ("Vendor ID", "AuthenticAMD"),
        ("Model name", model),
        ("CPU family", family),
        ("Model", "8"),
        ("Thread(s) per core", str(cpus // cores)),
        ("Core(s) per socket", str(cores)),
        ("Socket(s)", "1"),
        ("Stepping", "2"),
        ("Frequency boost", "enabled"),
        ("CPU(s) scaling MHz", "61%"),
        ("CPU max MHz", maximum),
        ("CPU min MHz", minimum),
        ("BogoMIPS", "7985.00"),
        ("Virtualization", "AMD-V"),
        ("L1d cache", f"{cores * 32} KiB ({cores} instances)"),
        ("L3 cache", l3),
        ("NUMA node(s)", "1"),
        ("NUMA node0 CPU(s)", f"0-{cpus - 1}"),
        ("Vulnerability Spectre v2", "Mitigation; Enhanced / Automatic IBRS"),
    ]


def smi_uuid(bdf: str, device: str) -> str:
    """UUID as xpu-smi prints it: bus in the third group, device and vendor in the last one."""
    return f"00000000-0000-00{bdf.split(':')[1]}-0000-0000{device}8086"


def smi_version(version: str, build: str, loader: str) -> str:
    return (
        f"CLI:\n    Version: {version}\n    Build ID: {build}\n\n"
        f"Service:\n    Version: {version}\n    Build ID: {build}\n    Level Zero Version: {loader}\n"
    )


def smi_json(host: Host, gpus: list[str], name: str, state: str | None = "normal") -> str:
    devices = []
    for number, bdf in enumerate(gpus):
        function = host.functions[bdf]
        entry: dict[str, Any] = {
            "device_function_type": "physical",
            "device_id": number,
            "device_name": name,
            "device_type": "GPU",
            "drm_device": f"/dev/dri/card{function.drm[0]}" if function.drm else "",
            "pci_bdf_address": bdf,
            "pci_device_id": f"0x{function.device}",
            "uuid": smi_uuid(bdf, function.device),
            "vendor_name": "Intel(R) Corporation",
        }
        if state is not None:
            entry["device_state"] = state
        devices.append(dict(sorted(entry.items())))
    return json.dumps({"device_list": devices}, indent=4) + "\n"


def smi_table(host: Host, gpus: list[str], name: str, state: str | None = "normal") -> str:
    border = f"+{'-' * 11}+{'-' * 86}+\n"

    def row(first: str, text: str) -> str:
        return f"| {first:<9} | {text:<84} |\n"

    text = border + row("Device ID", "Device Information") + border
    for number, bdf in enumerate(gpus):
        function = host.functions[bdf]
        rows = [f"Device Name: {name}"]
        rows += [f"Device State: {state}"] if state is not None else []
        rows += [
            "Vendor Name: Intel(R) Corporation",
            f"SOC UUID: {smi_uuid(bdf, function.device)}",
            f"PCI BDF Address: {bdf}",
            f"DRM Device: /dev/dri/card{function.drm[0] if function.drm else ''}",
            "Function Type: physical",
        ]
        text += "".join(row(str(number) if index == 0 else "", line) for index, line in enumerate(rows)) + border
    return text
