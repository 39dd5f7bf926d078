"""Build the image of the test host: ``python -m tests.lab.vm.build``.

A Debian root from the distribution's packages, the project's own kernel modules built in it, a disk
with GRUB, and for each kernel the saved state of a booted machine. The image lies in
``$HOSTCHECK_LAB_CACHE`` (``~/.cache/hostcheck/lab``) under a key over its inputs and is built only
when that is missing. With ``--packages`` it prints the packages that this machine needs for that.
"""

from __future__ import annotations

import fcntl
import json
import lzma
import shutil
import stat
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from . import accel, cards, qemu
from .host import Vm
from .image import HERE, KERNELS, Image, cache, digest, find
from .qemu import Guarded, LabError

#: Command that is needed on this machine -> Debian package that has it.
NEEDED = {
    qemu.BINARY: "qemu-system-x86",
    "qemu-img": "qemu-utils",
    "mmdebstrap": "mmdebstrap",
    "mke2fs": "e2fsprogs",
    "sfdisk": "fdisk",
    "ssh": "openssh-client",
    "ssh-keygen": "openssh-client",
    "scp": "openssh-client",
}
APT_PACKAGES = sorted(set(NEEDED.values()))

SUITE = "bookworm"
GUEST_PACKAGES = [
    *("systemd-sysv", "udev", "dbus", "openssh-server", "sudo", "less", "procps", "kmod"),
    *("python3", "python3-apt", "python3-psutil", "python3-pyudev"),
    *("pciutils", "iproute2", "ethtool", "numactl", "util-linux", "linux-cpupower"),
    *("tuned", "power-profiles-daemon", "grub-pc", "initramfs-tools", "linux-image-amd64"),
    # For the build of the kernel modules and the initramfs.
    *("linux-headers-amd64", "gcc", "make", "busybox-static", "xz-utils", "zstd"),
]
#: What Debian starts and a test host has no use for: under emulation each costs boot time.
MASKED = [
    *("systemd-timesyncd.service", "apt-daily.timer", "apt-daily-upgrade.timer", "dpkg-db-backup.timer"),
    *("e2scrub_all.timer", "e2scrub_reap.service", "fstrim.timer", "man-db.timer", "logrotate.timer"),
    *("systemd-networkd-wait-online.service", "networking.service", "getty@.service", "getty-static.service"),
    *("serial-getty@.service", "loadcpufreq.service", "cpufrequtils.service", "systemd-pstore.service"),
    *("systemd-update-utmp.service", "systemd-update-utmp-runlevel.service", "systemd-random-seed.service"),
    *("systemd-binfmt.service", "ldconfig.service", "grub-common.service", "grub-initrd-fallback.service"),
    *("dev-hugepages.mount", "dev-mqueue.mount", "sys-kernel-tracing.mount", "sys-fs-fuse-connections.mount"),
    *("modprobe@drm.service", "modprobe@fuse.service", "modprobe@loop.service", "modprobe@dm_mod.service"),
    "modprobe@efi_pstore.service",
]
#: Owners of settings that some tests want to find there, but at rest unless they start them.
DISABLED = ("tuned.service", "power-profiles-daemon.service")
PARTITION_START = 1 << 20
DISK_MIB = 4096
INITRAMFS_MODULES = ("virtio_pci", "virtio_blk", "crc32c_generic", "ext4")
INIT = """\
#!/bin/busybox sh
/bin/busybox mount -t devtmpfs dev /dev
for module in /modules/*; do /bin/busybox insmod $module; done
/bin/busybox mount -t ext4 -o noatime /dev/vda1 /root || exec /bin/busybox sh
/bin/busybox mount --move /dev /root/dev
exec /bin/busybox switch_root /root /sbin/init
"""
KERNEL_FORMATS = {  # first bytes of the compressed kernel -> command that unpacks it
    b"\xfd7zXZ\x00": ("xz", "-dc"),
    b"\x28\xb5\x2f\xfd": ("zstd", "-dc"),
}

started = time.monotonic()


def say(text: str) -> None:
    print(f"[{time.monotonic() - started:4.0f} s] {text}", flush=True)


def missing_packages() -> list[str]:
    """Return the packages that this machine lacks for a build."""
    return sorted({package for command, package in NEEDED.items() if not shutil.which(command)})


def apt_sources() -> list[str]:
    """Return source lines for the guest, from the mirrors that this machine's apt uses itself."""
    command = ["apt-get", "indextargets", "--format", "$(CODENAME) $(REPO_URI)", "Created-By: Packages"]
    mirrors: dict[str, str] = {}
    for line in subprocess.run(command, check=True, capture_output=True, text=True).stdout.splitlines():
        suite, _, uri = line.partition(" ")
        mirrors.setdefault(suite, uri)
    if SUITE not in mirrors:
        raise LabError(f"this machine's apt has no source for Debian {SUITE}, or `apt-get update` has not been run")
    security = mirrors.get(f"{SUITE}-security")
    return [
        f"deb {mirrors[SUITE]} {SUITE} main",
        *([f"deb {security} {SUITE}-security main"] if security else []),
        f"deb {mirrors[SUITE]} {SUITE}-backports main",
    ]


def make_root(work: Path) -> Path:
    """Install Debian with both kernels into a folder and lay the project's own files over it."""
    root = work / "root"
    # The small initramfs of this file takes the place of the distribution's, which takes a minute to make.
    divert = 'chroot "$1" dpkg-divert --quiet --local --rename --add /usr/sbin/update-initramfs'
    second_kernel = f"apt-get install -qy -t {SUITE}-backports linux-image-amd64 linux-headers-amd64"
    command = [
        *("mmdebstrap", "--mode=root", "--variant=minbase", f"--include={','.join(GUEST_PACKAGES)}"),
        "--aptopt=Acquire::Languages none",
        "--dpkgopt=force-unsafe-io",
        *(f"--dpkgopt=path-exclude=/usr/share/{name}/*" for name in ("man", "doc", "locale", "info")),
        *(f"--dpkgopt=path-exclude=/lib/modules/*/kernel/{name}/*" for name in ("sound", "drivers/media")),
        f"--essential-hook={divert}",
        '--essential-hook=ln -s /bin/true "$1/usr/sbin/update-initramfs"',
        f'--customize-hook=chroot "$1" {second_kernel}',
        *(SUITE, str(root), *apt_sources()),
    ]
    run_long(work, command)
    shutil.copytree(HERE / "guest", root, dirs_exist_ok=True)
    (root / "etc/lab-cards").write_text("".join(f"{command}\n" for command in cards.commands()))
    units = root / "etc/systemd/system"
    for unit in MASKED:
        (units / unit).unlink(missing_ok=True)
        (units / unit).symlink_to("/dev/null")
    in_root = ["chroot", str(root)]
    subprocess.run([*in_root, "systemctl", "--quiet", "disable", *DISABLED], check=True)
    enabled = ("lab-cards.service", "systemd-networkd.service")
    subprocess.run([*in_root, "systemctl", "--quiet", "enable", *enabled], check=True)
    subprocess.run([*in_root, "useradd", "--create-home", "--shell=/bin/bash", "--password=*", "reader"], check=True)
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", "lab", "-f", str(work / "key")], check=True)
    for home in ("root", "home/reader"):
        keys = root / home / ".ssh/authorized_keys"
        keys.parent.mkdir(mode=0o700, exist_ok=True)
        shutil.copy(work / "key.pub", keys)
    subprocess.run([*in_root, "chown", "-R", "reader:", "/home/reader/.ssh"], check=True)
    return root


def run_long(work: Path, command: Sequence[str]) -> None:
    """Run a command that takes a while; it does not outlive this process, and its output goes to a log."""
    log = work / "log"
    process = Guarded(work, command, log)
    process.wait(900)
    if process.returncode:
        raise LabError(f"{command[0]} failed:\n{log.read_text(errors='replace')[-3000:]}")


def make_modules(root: Path, release: str) -> None:
    """Build the kernel modules for one kernel of the root, with the compiler in that root."""
    source = root / "usr/src/lab-modules"
    shutil.copytree(HERE / "modules", source, dirs_exist_ok=True)
    make = ["make", "-s", "-C", f"/lib/modules/{release}/build", "M=/usr/src/lab-modules"]
    subprocess.run(["chroot", str(root), *make, "modules"], check=True, stderr=subprocess.DEVNULL)
    updates = root / "lib/modules" / release / "updates"
    updates.mkdir(exist_ok=True)
    for module in source.glob("*.ko"):
        shutil.copy(module, updates)
    subprocess.run(["chroot", str(root), "depmod", release], check=True)
    shutil.rmtree(source)


def vmlinux(root: Path, bzimage: bytes) -> bytes:
    """Return the ELF kernel inside a bzImage.

    The compressed kernel lies somewhere behind the set-up code, as scripts/extract-vmlinux of the
    kernel source finds it too.
    """
    for magic, command in KERNEL_FORMATS.items():
        at = bzimage.find(magic)
        while at >= 0:
            unpacked = subprocess.run(["chroot", str(root), *command], input=bzimage[at:], capture_output=True).stdout
            if unpacked.startswith(b"\x7fELF"):
                return unpacked
            at = bzimage.find(magic, at + 1)
    raise LabError("no kernel found in the bzImage")


def initramfs(root: Path, release: str) -> bytes:
    """Return an initramfs that mounts the root and does nothing else: busybox and the modules that it takes."""
    paths: dict[str, None] = {}
    for module in INITRAMFS_MODULES:
        command = ["chroot", str(root), "modprobe", "-S", release, "--show-depends", module]
        for line in subprocess.run(command, capture_output=True, text=True).stdout.splitlines():
            if line.startswith("insmod "):
                paths.setdefault(line.split()[1])
    files: list[tuple[str, int, bytes]] = [
        (name, stat.S_IFDIR | 0o755, b"") for name in ("bin", "dev", "modules", "root")
    ]
    files.append(("bin/busybox", stat.S_IFREG | 0o755, (root / "bin/busybox").read_bytes()))
    files.append(("init", stat.S_IFREG | 0o755, INIT.encode()))
    for number, name in enumerate(paths):
        content = (root / name.lstrip("/")).read_bytes()
        if name.endswith(".xz"):
            content = lzma.decompress(content)
        files.append((f"modules/{number:02}.ko", stat.S_IFREG | 0o644, content))
    return cpio(files)


def cpio(files: Iterable[tuple[str, int, bytes]]) -> bytes:
    """Return a cpio archive of (name, mode, content) as the kernel reads it (early-userspace/buffer-format.rst)."""

    def parts() -> Iterator[bytes]:
        for inode, (name, mode, content) in enumerate([*files, ("TRAILER!!!", 0, b"")], 1):
            fields = (inode, mode, 0, 0, 1, 0, len(content), 0, 0, 0, 0, len(name) + 1, 0)
            header = b"070701" + b"".join(b"%08x" % field for field in fields) + name.encode() + b"\0"
            yield header + bytes(-len(header) % 4)
            yield content + bytes(-len(content) % 4)

    return b"".join(parts())


def make_disk(root: Path, disk: Path) -> None:
    """Make a partitioned disk image of the root; GRUB comes later, from inside."""
    with disk.open("wb") as file:
        file.truncate(DISK_MIB << 20)
    table = f"start={PARTITION_START // 512}, type=83, bootable\n"
    subprocess.run(["sfdisk", "-q", str(disk)], input=table, text=True, check=True)
    options = f"offset={PARTITION_START},lazy_itable_init=0,nodiscard"
    size = f"{DISK_MIB - (PARTITION_START >> 20)}M"
    subprocess.run(["mke2fs", "-q", "-t", "ext4", "-E", options, "-d", str(root), str(disk), size], check=True)


def save_state(image: Image, kernel: str) -> None:
    """Boot a kernel once on the image's own disk and save the machine as it stands then."""
    with Vm(image, kernel, disk=image.disk(kernel)) as vm:
        vm.boot()
        if kernel == "stable":
            vm.sh("grub-install /dev/vda && update-grub", timeout=180)
        vm.run(["systemctl", "is-system-running", "--wait"], check=False, timeout=180)
        failed = vm.run(["systemctl", "--failed", "--no-legend", "--plain"]).stdout
        if failed:
            raise LabError(f"units failed in the guest:\n{failed}")
        vm.run(["sync"])
        vm.save(image.state(kernel))


def make_kernel(image: Image, root: Path, kernel: str, release: str) -> None:
    """Build all that belongs to one kernel: modules in the root, kernel and initramfs beside it."""
    say(f"modules, kernel and initramfs for {release}")
    make_modules(root, release)
    boot_file = root / "boot" / f"vmlinuz-{release}"
    image.vmlinux(kernel).write_bytes(vmlinux(root, boot_file.read_bytes()))
    image.initrd(kernel).write_bytes(initramfs(root, release))
    if kernel == "stable":
        shutil.copy(image.initrd(kernel), root / "boot" / f"initrd.img-{release}")
    else:  # GRUB would start the newest kernel that it finds
        boot_file.unlink()


def make(work: Path) -> None:
    """Make a whole image in a folder."""
    say(f"Debian {SUITE} with two kernels (about 90 s)")
    root = make_root(work)
    installed = sorted((path.name for path in (root / "lib/modules").iterdir()), key=version_key)
    releases = dict(zip(KERNELS, installed, strict=True))
    image = Image(work)
    (work / "kernels.json").write_text(json.dumps(releases))
    with ThreadPoolExecutor() as pool:
        make_kernel(image, root, "stable", releases["stable"])
        accelerator = pool.submit(accel.choose, image.vmlinux("stable"))  # some seconds, beside the rest
        make_kernel(image, root, "backports", releases["backports"])
        say("disk")
        shutil.rmtree(root / "usr/src")  # the headers: many files that are not needed any more
        make_disk(root, work / "disk.img")
        shutil.rmtree(root)
        for kernel in KERNELS:
            qemu.overlay_disk(image.disk(kernel), work / "disk.img", "raw")
        image.use(accelerator.result())
        say(str(image.accelerator))
        say("first boot of both kernels (about 60 s)")
        list(pool.map(lambda kernel: save_state(image, kernel), KERNELS))


def version_key(release: str) -> list[int]:
    """Return what to sort kernel releases by.

    >>> sorted(["6.12.95+deb12-amd64", "6.1.0-57-amd64"], key=version_key)
    ['6.1.0-57-amd64', '6.12.95+deb12-amd64']
    """
    return [int(number) for number in release.split("-")[0].split("+")[0].split(".")]


def build() -> Image:
    """Return the image of these sources, built if it is not there yet.

    Of two builds at once the second waits for the first.
    """
    cache().mkdir(parents=True, exist_ok=True)
    with (cache() / "lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            say("waiting for another build")
            fcntl.flock(lock, fcntl.LOCK_EX)
        image = find()
        if image:
            say(f"up to date: {image.folder}")
            say(str(image.accelerator))
            return image
        there = Image(cache() / digest())
        if there.folder.is_dir():
            say(f"built anew: {there.unusable()}")
            shutil.rmtree(there.folder)
        for left_over in cache().glob("building-*"):
            shutil.rmtree(left_over)
        work = Path(tempfile.mkdtemp(prefix="building-", dir=cache()))
        try:
            make(work)
            work.rename(cache() / digest())
        finally:
            shutil.rmtree(work, ignore_errors=True)
        say("done")
        drop_old_images()
        image = find()
        assert image
        return image


def drop_old_images() -> None:
    """Keep the two newest images: one of these sources and one of those that somebody may go back to."""
    images = sorted((p for p in cache().iterdir() if p.is_dir()), key=lambda path: path.stat().st_mtime)
    for folder in images[:-2]:
        shutil.rmtree(folder)


def main(arguments: Sequence[str]) -> int:
    if list(arguments) == ["--packages"]:
        print(*APT_PACKAGES)
        return 0
    if arguments:
        print(__doc__)
        return 2
    if packages := missing_packages():
        print(f"missing here: apt-get install -y --no-install-recommends {' '.join(packages)}", file=sys.stderr)
        return 1
    try:
        build()
    except LabError as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
