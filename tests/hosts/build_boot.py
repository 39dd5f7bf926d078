"""What a rebuilt host has around its boot: menu, firmware, packages, journal on disk, idle states, IOMMU groups.

All of it follows from what the host says elsewhere (its command line, its kernel, its processors); versions of packages
are filled in as such a host has them.
"""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING

from hostcheck.onhost.recording import seconds

if TYPE_CHECKING:
    from .build_host import Host

NODE = {"error": "ENODATA"}  # there, but nothing reads its content
DPKG = (
    "dpkg-query -W -f '${Package}\\tv${Version}\\t${Status}\\n' dpkg 'linux-image-[0-9]*' linux-firmware "
    "firmware-intel-graphics firmware-misc-nonfree libze-intel-gpu1 intel-level-zero-gpu intel-opencl-icd libze1 "
    "level-zero libigc2 xpu-smi xpumanager mesa-vulkan-drivers intel-media-va-driver intel-media-va-driver-non-free "
    "tuned unattended-upgrades"
)
MACHINE = "5d0b6c0e4a3f4b1c8a2e9f7d6c5b4a39"
SEQUENCE = "9a8b7c6d5e4f40312233445566778899"

MENU = """\
if [ -s $prefix/grubenv ]; then
  set have_grubenv=true
  load_env
fi
if [ "${{next_entry}}" ] ; then
   set default="${{next_entry}}"
   set next_entry=
   save_env next_entry
   set boot_once=true
else
   set default="0"
fi
function load_video {{
  insmod all_video
}}
### BEGIN /etc/grub.d/10_linux ###
menuentry '{name}' --class gnu-linux --class os $menuentry_id_option 'gnulinux-simple-1' {{
\tload_video
\tlinux\t{folder}/vmlinuz-{kernel} {arguments}
\tinitrd\t{folder}/initrd.img-{kernel}
}}
submenu 'Advanced options for {name}' $menuentry_id_option 'gnulinux-advanced-1' {{
\tmenuentry '{name}, with Linux {kernel}' --class os $menuentry_id_option 'gnulinux-{kernel}-advanced-1' {{
\t\tload_video
\t\tlinux\t{folder}/vmlinuz-{kernel} {arguments}
\t\tinitrd\t{folder}/initrd.img-{kernel}
\t}}
\tmenuentry '{name}, with Linux {kernel} (recovery mode)' --class os --id 'gnulinux-{kernel}-recovery-1' {{
\t\tlinux\t{folder}/vmlinuz-{kernel} {root} ro single
\t\tinitrd\t{folder}/initrd.img-{kernel}
\t}}
}}
### END /etc/grub.d/10_linux ###
### BEGIN /etc/grub.d/30_uefi-firmware ###
menuentry 'UEFI Firmware Settings' $menuentry_id_option 'uefi-firmware' {{
\tfwsetup
}}
### END /etc/grub.d/30_uefi-firmware ###
"""


def extend(host: Host) -> None:
    """Add everything of this file to a host that is otherwise complete."""
    menu(host)
    packages(host)
    owners(host)
    drive(host)
    journal(host)
    idle(host)
    groups(host)
    limits(host)


def menu(host: Host) -> None:
    """GRUB's menu with the entry that this boot was started from, its files, and the files that it is made from."""
    line = host.recording["files"].get("/proc/cmdline", "").strip()
    match = re.match(r"BOOT_IMAGE=(\S*)/vmlinuz-(\S+) (.*)$", line)
    if not match:
        return
    folder, kernel, arguments = match.groups()
    root = next((word for word in arguments.split() if word.startswith("root=")), "root=/dev/sda1")
    name = "Ubuntu" if "Ubuntu" in host.recording["files"].get("/etc/os-release", "") else "Debian GNU/Linux"
    text = MENU.format(name=name, folder=folder, kernel=kernel, arguments=arguments, root=root)
    host.files("/boot/grub", {"grub.cfg": text, "grubenv": "# GRUB Environment Block\n" + "#" * 999})
    own = " ".join(word for word in arguments.split() if word not in (root, "ro"))
    host.file("/etc/default/grub", f'GRUB_DEFAULT=0\nGRUB_TIMEOUT=0\nGRUB_CMDLINE_LINUX_DEFAULT="{own}"\n')
    for path in (f"/boot/vmlinuz-{kernel}", f"/boot/initrd.img-{kernel}", f"/lib/modules/{kernel}/modules.dep"):
        host.file(path, NODE)
    host.file("/lib/firmware/xe/bmg_guc_70.bin.zst", NODE)
    host.file(
        "/etc/apt/apt.conf.d/20auto-upgrades",
        'APT::Periodic::Update-Package-Lists "1";\nAPT::Periodic::Unattended-Upgrade "1";\n',
    )
    host.file("/etc/apt/apt.conf.d/50unattended-upgrades", "Unattended-Upgrade::Allowed-Origins {\n};\n")


def packages(host: Host) -> None:
    """What dpkg-query lists. Hosts with an Intel card have its runtime."""
    found = [
        ("dpkg", "1.23.7ubuntu1", "install"),
        (f"linux-image-{host.kernel}", f"{host.kernel.removesuffix('-generic')}.1", "install"),
        ("linux-firmware", "20260319.git217ca6e4-0ubuntu1", "install"),
        ("unattended-upgrades", "2.12ubuntu9", "install"),
    ]
    if any(function.driver in ("xe", "i915") for function in host.functions.values()):
        found += [
            ("libze-intel-gpu1", "26.22.38646.4-0", "install"),
            ("intel-opencl-icd", "26.22.38646.4-0", "install"),
            ("libze1", "1.28.6-1", "install"),
            ("libigc2", "2.34.4-1", "install"),
            ("mesa-vulkan-drivers", "26.0.3-1ubuntu1", "install"),
            ("xpu-smi", "1.3.6-1", "install"),
        ]
    text = "".join(f"{name}\tv{version}\t{want} ok installed\n" for name, version, want in sorted(found))
    host.command(DPKG, text, 1, "dpkg-query: no packages found matching level-zero\n")


def owners(host: Host) -> None:
    """GuC firmware as its package installed it; a recording keeps these lines of dpkg's list and a digest."""
    file, digest = "lib/firmware/xe/bmg_guc_70.bin.zst", "md5-6f3c1a0d92b8e4475d0c7be1f8a29c35"
    if f"/{file}" not in host.recording["files"]:
        return
    copyright = "md5-9b1d3f60c5e84a27b6d0f3a19e7c5284  usr/share/doc/linux-firmware/copyright\n"
    host.file("/var/lib/dpkg/info/linux-firmware.md5sums", f"{copyright}{digest}  {file}\n")
    host.file("/var/lib/dpkg/diversions", "")
    host.call(f"md5 /{file}", digest)


def drive(host: Host) -> None:
    """What the NVMe drive of the root file system says of itself, by nvme-cli; counts are filled in."""
    if " / / rw,relatime shared:1 - ext4 /dev/nvme0n1p2" not in host.recording["files"].get("/proc/self/mountinfo", ""):
        return
    counts = {"critical_warning": 0, "percent_used": 3, "power_cycles": 76, "unsafe_shutdowns": 2, "media_errors": 0}
    text = json.dumps({**counts, "num_err_log_entries": 0})
    host.command("nvme smart-log /dev/nvme0 -o json", f"{text}\n")


def journal(host: Host) -> None:
    """A journal that is kept on disk and was closed at the end of the previous boot; no crash record."""
    booted = int((seconds(host.recording["taken_at"]) - host.uptime) * 1e6)
    folder = f"/var/log/journal/{MACHINE}"
    host.file(f"{folder}/system.journal", NODE)
    host.file(f"{folder}/system@{SEQUENCE}-{1:016x}-{booted - 86_400_000_000:016x}.journal", NODE)
    host.file("/sys/fs/pstore/", "")


def idle(host: Host) -> None:
    """Idle states by the kind of processor; none in a virtual machine or on Arm boards that have no driver for it."""
    root = "/sys/devices/system/cpu"
    said = host.recording["commands"].get("lscpu -J", {}).get("stdout", '{"lscpu": []}')
    fields = {item["field"]: item["data"] for item in json.loads(said)["lscpu"]}
    states = {
        "AuthenticAMD": (("POLL", 0), ("C1", 1), ("C2", 18)),
        "GenuineIntel": (("POLL", 0), ("C1_ACPI", 1), ("C2_ACPI", 127)),
    }.get(fields.get("Vendor ID:", ""), ())
    if "Hypervisor vendor:" in fields or not states:
        host.files(f"{root}/cpuidle", {"current_driver": "none\n", "current_governor": "menu\n"})
        return
    driver = "acpi_idle" if fields["Vendor ID:"] == "AuthenticAMD" else "intel_idle"
    host.files(f"{root}/cpuidle", {"current_driver": f"{driver}\n", "current_governor": "menu\n"})
    small = host.recording["files"].get("/sys/devices/cpu_atom/cpus", "").partition("-")[0].strip()
    firsts = {0, int(small)} if small.isdigit() else {0}  # name and cost are read once for each kind of processor
    for cpu in range(int(fields["CPU(s):"])):
        for number, (name, latency) in enumerate(states):
            values = {"disable": "0\n"}
            if cpu in firsts:
                values |= {"name": f"{name}\n", "latency": f"{latency}\n"}
            host.files(f"{root}/cpu{cpu}/cpuidle/state{number}", values)


def groups(host: Host) -> None:
    """Types of the IOMMU groups that there are: translated, as the log of these hosts says."""
    for function in host.functions.values():
        if function.iommu_group is not None:
            host.file(f"/sys/kernel/iommu_groups/{function.iommu_group}/type", "DMA-FQ\n")


def limits(host: Host) -> None:
    """Limits of the sensors of a card and its fan, as xe of kernel 7.0 shows them."""
    if not host.kernel.startswith("7."):
        return
    for path in [path for path in host.recording["files"] if path.endswith("/power1_cap")]:
        folder = path.rpartition("/")[0]
        host.files(folder, {"temp2_max": "100000\n", "temp2_crit": "105000\n", "temp3_crit": "110000\n"})
        host.file(f"{folder}/fan1_input", "1180\n")
