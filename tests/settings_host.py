"""Directories that stand for a host to be changed: files, sysfs values, and small programs in place of boot tools.

The programs do what the real ones do with the files that matter here: update-grub sources /etc/default/grub and its
drop-ins by /bin/sh and runs the script of grub.d, grubby edits entry files. They are not the real tools.
"""

from __future__ import annotations

import os
import stat
import sys
from pathlib import Path
from typing import Any

from hostcheck.onhost.settings.boot import ONE_SHOT_VARIABLE
from hostcheck.onhost.settings.catalogue import SETTINGS
from hostcheck.onhost.settings.engine import Host, Result, apply, undo

KERNELS = ("6.12.0-2-amd64", "6.1.0-18-amd64")
MACHINE = "0123456789abcdef0123456789abcdef"

UPDATE_GRUB = """\
#!/bin/sh
set -e
root=$HOSTCHECK_ROOT
echo "$*" >> "$root/calls"
[ -e "$root/grub-is-broken" ] && { echo "cannot find a device" >&2; exit 1; }
GRUB_CMDLINE_LINUX=
GRUB_CMDLINE_LINUX_DEFAULT=
. "$root/etc/default/grub"
for file in "$root"/etc/default/grub.d/*.cfg; do [ -e "$file" ] && . "$file"; done
new=$root/boot/grub/grub.cfg.new
entry() {
  printf "%smenuentry '%s' --class debian \\$menuentry_id_option '%s' {\\n" "$1" "$2" "$3"
  printf "%s\\tload_video\\n%s\\tlinux\\t/boot/vmlinuz-%s root=UUID=11-22 ro %s\\n" "$1" "$1" "$4" "$5"
  printf "%s\\tinitrd\\t/boot/initrd.img-%s\\n%s}\\n" "$1" "$4" "$1"
}
{
  echo "set default=0"
  echo "### BEGIN /etc/grub.d/10_linux ###"
  both="$GRUB_CMDLINE_LINUX $GRUB_CMDLINE_LINUX_DEFAULT"
  entry "" "Debian GNU/Linux" "gnulinux-simple-11" 6.12.0-2-amd64 "$both"
  echo "submenu 'Advanced options' \\$menuentry_id_option 'gnulinux-advanced-11' {"
  for version in 6.12.0-2-amd64 6.1.0-18-amd64; do
    entry "	" "Debian, with Linux $version" "gnulinux-$version-advanced-11" $version "$both"
    entry "	" "Debian, with Linux $version (recovery mode)" "gnulinux-$version-recovery-11" $version \\
      "single $GRUB_CMDLINE_LINUX"
  done
  echo "}"
  echo "### END /etc/grub.d/10_linux ###"
  echo "### BEGIN /etc/grub.d/40_custom ###"
  entry "" "Mine" "mine" 6.1.0-18-amd64 "debug"
  echo "### END /etc/grub.d/40_custom ###"
  if [ -x "$root/etc/grub.d/42_hostcheck" ]; then
    echo "### BEGIN /etc/grub.d/42_hostcheck ###"
    "$root/etc/grub.d/42_hostcheck"
    echo "### END /etc/grub.d/42_hostcheck ###"
  fi
} > "$new"
mv "$new" "$root/boot/grub/grub.cfg"
"""
GRUB_REBOOT = '#!/bin/sh\necho "next_entry=$1" > "$HOSTCHECK_ROOT/boot/grub/grubenv"\n'
GRUB_EDITENV = """\
#!/bin/sh
file=$HOSTCHECK_ROOT/boot/grub/grubenv
case "$*" in
  list) cat "$file" ;;
  "- unset next_entry") : > "$file" ;;
  *) exit 2 ;;
esac
"""
GRUBBY = f"""\
#!{sys.executable}
import os, re, shlex, sys
folder = os.environ["HOSTCHECK_ROOT"] + "/boot/loader/entries"
names = sorted((name for name in os.listdir(folder) if name.endswith(".conf")), reverse=True)
def fields(name):
    return dict(line.split(None, 1) for line in open(folder + "/" + name).read().splitlines() if " " in line)
options = dict(word[2:].split("=", 1) for word in sys.argv[1:])
if options.get("info") == "ALL":
    for index, name in enumerate(names):
        entry = fields(name)
        words = entry["options"].split()
        root = [word for word in words if word.startswith("root=")]
        print(f'index={{index}}')
        print(f'kernel="/boot{{entry["linux"]}}"')
        print('args="%s"' % " ".join(word for word in words if word not in root))
        print(f'root="{{root[0][5:]}}"')
        print(f'title="{{entry["title"]}}"')
        print(f'id="{{name[:-5]}}"')
    sys.exit()
name = names[int(options["update-kernel"])]
text = open(folder + "/" + name).read()
words = fields(name)["options"].split()
for word in options.get("remove-args", "").split():
    words = [one for one in words if one != word]
for word in options.get("args", "").split():
    words = [one for one in words if word.startswith("console=") or one.split("=")[0] != word.split("=")[0]] + [word]
open(folder + "/" + name, "w").write(re.sub("(?m)^options .*$", "options " + " ".join(words), text))
"""
BOOTCTL = f"""\
#!{sys.executable}
import os, sys
path = os.environ["HOSTCHECK_ROOT"] + "{ONE_SHOT_VARIABLE}"
assert sys.argv[1] == "set-oneshot"
if sys.argv[2]:
    open(path, "wb").write(bytes(4) + sys.argv[2].encode("utf-16-le") + bytes(2))
else:
    os.unlink(path)
"""
TUNED_ADM = """\
#!/bin/sh
etc=$HOSTCHECK_ROOT/etc/tuned
cpu=$HOSTCHECK_ROOT/sys/devices/system/cpu/cpufreq
case "$1" in
  profile) shift; echo "$*" > "$etc/active_profile"; echo manual > "$etc/profile_mode" ;;
  auto_profile) echo balanced > "$etc/active_profile"; echo auto > "$etc/profile_mode" ;;
  off) : > "$etc/active_profile" ;;
  *) exit 1 ;;
esac
governor=powersave
[ -e "$etc/hostcheck/tuned.conf" ] && [ "$(cat "$etc/active_profile")" = hostcheck ] &&
  governor=$(sed -n 's/^governor=//p' "$etc/hostcheck/tuned.conf")
for policy in "$cpu"/policy*; do echo "$governor" > "$policy/scaling_governor"; done
"""


class Tree:
    """A directory that stands for a host."""

    def __init__(self, root: Path) -> None:
        self.root = root
        for folder in ("etc", "proc/sys/kernel/random", "sys", "run", "usr/sbin", "usr/bin", "var/lib"):
            (root / folder).mkdir(parents=True, exist_ok=True)
        self.put("/proc/cmdline", "BOOT_IMAGE=/vmlinuz ro quiet\n")
        self.put("/proc/sys/kernel/random/boot_id", "11111111-1111-1111-1111-111111111111\n")

    def path(self, path: str) -> Path:
        return self.root / path.lstrip("/")

    def put(self, path: str, text: str, mode: int = 0o644) -> None:
        self.path(path).parent.mkdir(parents=True, exist_ok=True)
        self.path(path).write_text(text)
        self.path(path).chmod(mode)

    def link(self, path: str, target: str) -> None:
        self.path(path).parent.mkdir(parents=True, exist_ok=True)
        self.path(path).symlink_to(target)

    def program(self, name: str, text: str) -> None:
        self.put(f"/usr/sbin/{name}", text, 0o755)

    def text(self, path: str) -> str:
        return self.path(path).read_text()

    def snapshot(self) -> dict[str, tuple[Any, ...]]:
        """Everything below the root: kind and mode, owner, and content or target."""
        found: dict[str, tuple[Any, ...]] = {}
        for folder, folders, files in os.walk(self.root):
            for name in (*folders, *files):
                path = Path(folder, name)
                status = path.lstat()
                content: Any = None
                if path.is_symlink():
                    content = os.readlink(path)
                elif stat.S_ISREG(status.st_mode):
                    content = path.read_bytes()
                where = "/" + str(path.relative_to(self.root))
                if where != "/calls":
                    found[where] = (status.st_mode, status.st_uid, status.st_gid, content)
        return found

    def apply(self, name: str, wanted: dict[str, Any], check: bool = False) -> Result:
        return apply(SETTINGS[name], wanted, Host(str(self.root)), check)

    def undo(self, name: str, wanted: dict[str, Any] | None = None, check: bool = False) -> Result:
        return undo(SETTINGS[name], wanted or {}, Host(str(self.root)), check)


def debian(root: Path, line: str = "quiet", always: str = "", menu: bool = True) -> Tree:
    """A Debian host with GRUB, two kernels with recovery entries and an entry of its administrator."""
    tree = Tree(root)
    tree.put(
        "/etc/default/grub",
        f'GRUB_DEFAULT=0\nGRUB_CMDLINE_LINUX_DEFAULT="{line}"\nGRUB_CMDLINE_LINUX="{always}"\n',
    )
    tree.put("/etc/default/grub.d/50-cloudimg-settings.cfg", 'GRUB_CMDLINE_LINUX="console=ttyS0 $GRUB_CMDLINE_LINUX"\n')
    tree.put("/etc/grub.d/10_linux", "#!/bin/sh\n", 0o755)
    tree.put("/boot/grub/grubenv", "")
    for name, text in (("update-grub", UPDATE_GRUB), ("grub-reboot", GRUB_REBOOT), ("grub-editenv", GRUB_EDITENV)):
        tree.program(name, text)
    if menu:
        Host(str(root)).writer.run(("update-grub",))
    return tree


def _entries(tree: Tree, folder: str, line: str, rescue: bool) -> None:
    for version in KERNELS:
        tree.put(
            f"{folder}/{MACHINE}-{version}.conf",
            f"title Linux {version}\nversion {version}\nlinux /vmlinuz-{version}\n"
            f"initrd /initramfs-{version}.img\noptions root=UUID=11-22 {line}\n",
            0o600,
        )
    if rescue:
        tree.put(
            f"{folder}/{MACHINE}-0-rescue.conf",
            f"title Linux (0-rescue-{MACHINE})\nversion 0-rescue\nlinux /vmlinuz-0-rescue-{MACHINE}\n"
            f"options root=UUID=11-22 {line}\n",
        )


def rhel(root: Path, line: str = "ro crashkernel=1G rhgb quiet") -> Tree:
    """A host of the RHEL family: grubby over entry files, and a rescue entry."""
    tree = Tree(root)
    _entries(tree, "/boot/loader/entries", line, rescue=True)
    tree.put("/etc/default/grub", f'GRUB_TIMEOUT=5\nGRUB_CMDLINE_LINUX="{line}"\n')
    tree.put("/etc/kernel/cmdline", f"root=UUID=11-22 {line}\n")
    tree.program("grubby", GRUBBY)
    tree.put("/boot/grub/grubenv", "")
    tree.program("grub2-reboot", GRUB_REBOOT)
    tree.program("grub2-editenv", GRUB_EDITENV)
    return tree


def kernel_install(root: Path, line: str = "ro quiet") -> Tree:
    """A host with systemd-boot, whose new kernels take /proc/cmdline because it has no /etc/kernel/cmdline."""
    tree = Tree(root)
    _entries(tree, "/boot/efi/loader/entries", line, rescue=False)
    tree.path(ONE_SHOT_VARIABLE).parent.mkdir(parents=True)
    tree.program("bootctl", BOOTCTL)
    return tree


def one_shot(tree: Tree) -> str:
    """The entry that only the next boot takes, "" for none."""
    variable, environment = tree.path(ONE_SHOT_VARIABLE), tree.path("/boot/grub/grubenv")
    if variable.exists():
        return variable.read_bytes()[4:].decode("utf-16-le").rstrip("\0")
    return environment.read_text().strip().removeprefix("next_entry=") if environment.exists() else ""


def take_one_shot(tree: Tree, line: str) -> None:
    """What a boot does: the loader clears its one-shot entry, and a kernel runs with this command line."""
    tree.path(ONE_SHOT_VARIABLE).unlink(missing_ok=True)
    if tree.path("/boot/grub/grubenv").exists():
        tree.put("/boot/grub/grubenv", "")
    tree.put("/proc/cmdline", f"BOOT_IMAGE=/vmlinuz {line}\n")
    tree.put("/proc/sys/kernel/random/boot_id", "22222222-2222-2222-2222-222222222222\n")


def cpus(
    tree: Tree,
    count: int = 4,
    governor: str = "schedutil",
    governors: str = "performance schedutil",
    driver: str = "acpi-cpufreq",
    epp: str = "",
) -> Tree:
    """Give the host cpufreq policies."""
    base = "/sys/devices/system/cpu"
    tree.put(f"{base}/present", f"0-{count - 1}\n")
    for number in range(count):
        policy = f"{base}/cpufreq/policy{number}"
        values = {
            "scaling_driver": driver,
            "scaling_governor": governor,
            "scaling_available_governors": governors,
            "affected_cpus": str(number),
            "cpuinfo_min_freq": "800000",
            "cpuinfo_max_freq": "3800000",
            "scaling_min_freq": "800000",
            "scaling_max_freq": "3800000",
            "scaling_cur_freq": "2100000",
        }
        if epp:
            values["energy_performance_preference"] = epp
            values["energy_performance_available_preferences"] = (
                "default performance balance_performance balance_power power"
            )
        for name, value in values.items():
            tree.put(f"{policy}/{name}", f"{value}\n")
        tree.link(f"{base}/cpu{number}/cpufreq", f"../cpufreq/policy{number}")
        for state in range(3):
            tree.put(f"{base}/cpu{number}/cpuidle/state{state}/disable", "0\n")
    return tree


def running(tree: Tree, *units: str) -> Tree:
    """Give the host a systemd that runs these units."""
    tree.path("/run/systemd/units").mkdir(parents=True, exist_ok=True)
    for unit in units:
        tree.link(f"/run/systemd/units/invocation:{unit}", "0123456789abcdef")
    return tree


def function(
    tree: Tree, way: tuple[str, ...], device: str, klass: str, control: str = "auto", status: str = "active"
) -> None:
    """Put a PCI function below the bridges of `way`, its own address last."""
    here = "/sys/devices/pci" + ":".join(way[0].split(":")[:2]) + "/" + "/".join(way)
    values = {"vendor": "0x8086", "device": f"0x{device}", "class": f"0x{klass}", "power/control": control}
    values["power/runtime_status"] = status
    for name, value in values.items():
        tree.put(f"{here}/{name}", f"{value}\n")
    if not os.path.lexists(tree.path(f"/sys/bus/pci/devices/{way[-1]}")):
        tree.link(f"/sys/bus/pci/devices/{way[-1]}", "../../../" + here[len("/sys/") :])


def card(
    tree: Tree,
    domain: str = "0000",
    bus: int = 0x20,
    device: str = "e223",
    status: str = "active",
    control: str = "auto",
) -> str:
    """Put a Battlemage card with its inner ports below a root port; the address of its GPU."""
    way = (f"{domain}:{bus:02x}:01.0", f"{domain}:{bus + 1:02x}:00.0", f"{domain}:{bus + 2:02x}:01.0")
    gpu = f"{domain}:{bus + 3:02x}:00.0"
    for length, port in ((1, "1483"), (2, "e2ff"), (3, "e2f0")):
        function(tree, way[:length], port, "060400", control)
    function(tree, (*way, gpu), device, "030000", control, status)
    tree.link(f"/sys/bus/pci/devices/{gpu}/driver", "../../../../../../bus/pci/drivers/xe")
    return gpu


def nic(tree: Tree, name: str, mac: str, carrier: str = "1", device: bool = True) -> None:
    """Give the host a network interface."""
    tree.put(f"/sys/class/net/{name}/address", f"{mac}\n")
    tree.put(f"/sys/class/net/{name}/carrier", f"{carrier}\n")
    if device:
        tree.path(f"/sys/class/net/{name}/device").mkdir()


SYSTEMCTL = """\
#!/bin/sh
# daemon-reload gives every unit that runs the limits of its drop-ins, as systemd does.
root=$HOSTCHECK_ROOT
cgroups=$root/sys/fs/cgroup/system.slice
for last; do :; done
case "$1" in
  show) [ -d "$cgroups/$last" ] && echo "/system.slice/$last" || echo ;;
  daemon-reload)
    for cgroup in "$cgroups"/*.service; do
      unit=${cgroup##*/} memory=max swap=max
      for file in "$root/etc/systemd/system/$unit.d"/*.conf; do
        [ -e "$file" ] || continue
        size=$(sed -n 's/^MemoryMax=\\([0-9]*\\)M$/\\1/p' "$file")
        [ -z "$size" ] || memory=$((size * 1048576))
        grep -q '^MemorySwapMax=0$' "$file" && swap=0
      done
      echo "$memory" > "$cgroup/memory.max"
      echo "$swap" > "$cgroup/memory.swap.max"
    done ;;
  *) exit 1 ;;
esac
"""
DOCKER = """\
#!/bin/sh
# One file per container: running, memory, swap, id. update gives its cgroup the limits, as docker does.
root=$HOSTCHECK_ROOT
for last; do :; done
file=$root/containers/$last
[ -e "$file" ] || { echo "Error: No such container: $last" >&2; exit 1; }
case "$1 $2" in
  "container inspect") cat "$file" ;;
  "update --memory")
    read -r running old both id < "$file"
    memory=${3%b} both=${5%b}
    echo "$running $memory $both $id" > "$file"
    cgroup=$root/sys/fs/cgroup/system.slice/docker-$id.scope
    echo "$memory" > "$cgroup/memory.max"
    if [ "$both" = -1 ]; then echo max; else echo $((both - memory)); fi > "$cgroup/memory.swap.max" ;;
  *) exit 2 ;;
esac
"""
DPKG_QUERY = """\
#!/bin/sh
# One file per package that holds what dpkg is to do with it.
for last; do :; done
file=$HOSTCHECK_ROOT/var/lib/dpkg/$last
[ -e "$file" ] || { echo "dpkg-query: no packages found matching $last" >&2; exit 1; }
echo "$(cat "$file") ok installed"
"""
APT_MARK = """\
#!/bin/sh
case "$1" in hold) word=hold ;; unhold) word=install ;; *) exit 2 ;; esac
echo "$word" > "$HOSTCHECK_ROOT/var/lib/dpkg/$2"
"""
CONTAINER_ID = "0123456789abcdef" * 4


def crash_host(tree: Tree, kdump: bool = True, lockup: str = "0", panic: str = "0") -> Tree:
    """Give the host the switches of a panic, and a crash kernel or not."""
    tree.put("/proc/sys/kernel/hardlockup_panic", f"{lockup}\n")
    tree.put("/proc/sys/kernel/panic", f"{panic}\n")
    tree.put("/proc/sys/kernel/nmi_watchdog", "1\n")
    tree.put("/proc/mounts", "sysfs /sys sysfs rw 0 0\n")
    tree.put("/proc/self/mountinfo", "22 1 0:21 / /sys rw - sysfs sysfs rw\n")
    tree.put("/sys/kernel/kexec_crash_loaded", f"{int(kdump)}\n")
    return tree


def memory_blocks(tree: Tree, count: int = 8, size: int = 2 << 30, available: int = 12 << 20) -> Tree:
    """Give the host blocks of memory of `size` bytes, all on-line, and `available` KiB."""
    base = "/sys/devices/system/memory"
    tree.put(f"{base}/block_size_bytes", f"{size:x}\n")
    for number in range(count):
        tree.put(f"{base}/memory{number}/state", "online\n")
        tree.put(f"{base}/memory{number}/removable", "1\n")
        tree.put(f"{base}/memory{number}/valid_zones", "Normal\n")
    tree.put("/proc/meminfo", f"MemTotal: {count * size >> 10} kB\nMemAvailable: {available} kB\nAnonPages: 1000 kB\n")
    return tree


def cgroup(tree: Tree, name: str, current: int = 100, peak: int = 200, swapped: int = 0) -> str:
    """Give the host a cgroup below system.slice with its use in MiB; its folder."""
    folder = f"/sys/fs/cgroup/system.slice/{name}"
    tree.put("/sys/fs/cgroup/cgroup.controllers", "cpuset cpu io memory pids\n")
    for file, value in (("current", current), ("peak", peak), ("swap.current", swapped)):
        tree.put(f"{folder}/memory.{file}", f"{value << 20}\n")
    for file in ("max", "swap.max"):
        tree.put(f"{folder}/memory.{file}", "max\n")
    return folder


def unit(tree: Tree, name: str, start: str = "/usr/bin/true") -> None:
    """Give the host a unit, and a systemd that answers for it."""
    tree.put(f"/etc/systemd/system/{name}", f"[Service]\nExecStart={start}\n")
    tree.path("/run/systemd/system").mkdir(parents=True, exist_ok=True)
    tree.program("systemctl", SYSTEMCTL)


def container(tree: Tree, name: str, memory: int = 400 << 20, swap: int = 800 << 20, running: bool = True) -> str:
    """Give the host a docker with one container, limits in bytes; the folder of its cgroup."""
    tree.program("docker", DOCKER)
    tree.put(f"/containers/{name}", f"{str(running).lower()} {memory} {swap} {CONTAINER_ID}\n")
    folder = cgroup(tree, f"docker-{CONTAINER_ID}.scope")
    tree.put(f"{folder}/memory.max", f"{memory or 'max'}\n")
    tree.put(f"{folder}/memory.swap.max", f"{swap - memory}\n" if memory else "max\n")
    return folder


def apt(tree: Tree, **packages: str) -> Tree:
    """Give the host dpkg and packages, each with what dpkg is to do with it: install or hold."""
    tree.program("dpkg-query", DPKG_QUERY)
    tree.program("apt-mark", APT_MARK)
    for name, word in packages.items():
        tree.put(f"/var/lib/dpkg/{name.replace('_', '-')}", f"{word}\n")
    return tree
