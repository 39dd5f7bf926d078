"""A running test host: what a test can do to it, and what it can do inside."""

from __future__ import annotations

import contextlib
import os
import shlex
import shutil
import socket
import struct
import subprocess
import tempfile
import time
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from . import cards, qemu
from .image import Image
from .qemu import Guarded, LabError, Qmp

__all__ = ["LabError", "Vm"]

# Names of the status bits as the kernel shortens them (drivers/pci/pcie/aer.c), by severity.
CORRECTABLE = {"RxErr": 0, "BadTLP": 6, "BadDLLP": 7, "Rollover": 8, "Timeout": 12, "NonFatalErr": 13}
UNCORRECTABLE = {
    "DLP": 4, "SDES": 5, "TLP": 12, "FCP": 13, "CmpltTO": 14, "CmpltAbrt": 15, "UnxCmplt": 16,
    "RxOF": 17, "MalfTLP": 18, "ECRC": 19, "UnsupReq": 20, "ACSViol": 21,
}  # fmt: skip
SEVERITIES = ("correctable", "nonfatal", "fatal")

# Writes error records one at a time: records that come faster than the kernel reads them are merged.
INJECT = """
import sys, time
root_port, record, count, interval = sys.argv[1], bytes.fromhex(sys.argv[2]), int(sys.argv[3]), float(sys.argv[4])
def total():
    names = ("cor", "nonfatal", "fatal")
    return sum(int(open(f"/sys/bus/pci/devices/{root_port}/aer_rootport_total_err_{name}").read()) for name in names)
begun = time.monotonic()
for number in range(count):
    time.sleep(max(0.0, begun + number * interval - time.monotonic()))
    before, deadline = total(), time.monotonic() + 20
    with open("/dev/aer_inject", "wb", buffering=0) as file:
        file.write(record)
    while total() == before:
        if time.monotonic() > deadline:
            sys.exit("the root port did not report the error")
        time.sleep(0.005)
"""


def sweep() -> None:
    """Remove the folders of machines whose test run and guard were both killed."""
    for folder in Path(tempfile.gettempdir()).glob(f"{qemu.PREFIX}*"):
        owner = folder.name.removeprefix(qemu.PREFIX).partition("-")[0]
        if not Path("/proc", owner).exists():
            shutil.rmtree(folder, ignore_errors=True)


class Vm:
    """One machine on a disk of its own that begins as the image's.

    >>> with Vm(image) as vm:                                   # doctest: +SKIP
    ...     vm.resume()
    ...     vm.run(["uname", "-r"]).stdout
    '6.1.0-57-amd64\\n'

    Everything that waits raises `LabError` when its time is over, with the end of the console.
    """

    def __init__(self, image: Image, kernel: str = "stable", *, disk: Path | None = None) -> None:
        """Prepare a machine that is not running yet.

        kernel: one of `image.KERNELS`.
        disk: write to this disk instead of to one that is thrown away.
        """
        sweep()
        self.image = image
        self.kernel = kernel
        self.folder = Path(tempfile.mkdtemp(prefix=f"{qemu.PREFIX}{os.getpid()}-"))
        self.port = 0
        self._machine: Guarded | None = None
        self._qmp: Qmp | None = None
        self._login: Guarded | None = None
        self._disk = disk or self.folder / "disk.qcow2"
        if not disk:
            qemu.overlay_disk(self._disk, image.disk(kernel), "qcow2")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    # Power

    def resume(self, *, reboot_through: str = "direct") -> None:
        """Start from the saved state: booted, cards there, nobody logged in. A few seconds.

        reboot_through: ``grub`` to have later reboots start what GRUB on the disk is configured to start.
        """
        state = shlex.quote(str(self.image.state(self.kernel)))
        self._start([*self._kernel_arguments(reboot_through), "-incoming", f"exec:cat {state}"])
        deadline = time.monotonic() + 60
        while self.qmp("query-status")["status"] == "inmigrate":
            if time.monotonic() > deadline:
                raise self._error("the saved state was not taken up")
            time.sleep(0.02)
        self._wait_for_login(240, listening=True)
        self.run(["date", "--set", f"@{time.time():.3f}"])  # the clock stood still since the state was saved

    def boot(self, extra: str = "", *, through: str = "direct") -> None:
        """Start cold, as when the power comes back.

        extra: words for the kernel command line; with ``lab.cards_after=N`` the cards appear N seconds late.
        through: ``direct``, or ``grub`` to start what GRUB on the disk is configured to start.
        """
        self.kill()
        self._start(self._kernel_arguments(through, extra))
        self._wait_for_login(480)

    def reboot(self) -> None:
        """Reboot from inside and wait until the next boot answers."""
        before = self.boot_id()
        self.run(["systemctl", "reboot"], check=False)
        self.wait_for_reboot(before)

    def wait_for_reboot(self, before: str) -> None:
        """Wait until a machine that had the boot id ``before`` answers with another one."""
        deadline = time.monotonic() + 480
        while True:
            self.log_out()
            self._wait_for_login(deadline - time.monotonic())
            with contextlib.suppress(LabError, subprocess.SubprocessError):
                if self.boot_id() != before:
                    return
            if time.monotonic() > deadline:
                raise self._error("the machine did not reboot")
            time.sleep(0.5)

    def boot_id(self) -> str:
        return self.read("/proc/sys/kernel/random/boot_id").strip()

    def kill(self) -> None:
        """Stop the machine dead. `boot` starts it again with what had reached the disk."""
        self.log_out()
        if self._qmp:
            self._qmp.close()
            self._qmp = None
        if self._machine:
            self._machine.kill()
            self._machine = None

    def save(self, path: Path) -> None:
        """Save the state of the machine, which stands still afterwards."""
        self.log_out()
        time.sleep(2)  # the session has to end inside too
        self.qmp.save(path, timeout=120)

    def close(self) -> None:
        """Stop the machine and leave nothing of it."""
        self.kill()
        shutil.rmtree(self.folder, ignore_errors=True)

    # Inside

    def run(
        self, argv: Sequence[str], *, input: str | bytes | None = None, check: bool = True, timeout: float = 120
    ) -> subprocess.CompletedProcess[str]:
        """Run a command as root and return its exit status and its output as text.

        Raises LabError when it fails and ``check`` is set. Its ``returncode`` is 255 when the way in broke.
        """
        if not (self._login and self._login.running):
            self._wait_for_login(60)
        if isinstance(input, str):
            input = input.encode()
        command = ["ssh", *self._ssh_options(), "-S", str(self._control), "root@127.0.0.1", shlex.join(argv)]
        stdin: dict[str, Any] = {"stdin": subprocess.DEVNULL} if input is None else {"input": input}
        try:
            done = subprocess.run(command, capture_output=True, timeout=timeout, **stdin)
        except subprocess.TimeoutExpired:
            raise self._error(f"no end within {timeout:g} s: {shlex.join(argv)}") from None
        output, errors = (text.decode(errors="replace") for text in (done.stdout, done.stderr))
        if check and done.returncode:
            raise LabError(f"exit status {done.returncode}: {shlex.join(argv)}\n{errors}{output}")
        return subprocess.CompletedProcess(list(argv), done.returncode, output, errors)

    def sh(self, script: str, *, check: bool = True, timeout: float = 120) -> subprocess.CompletedProcess[str]:
        """Run a shell script as root."""
        return self.run(["sh", "-euc", script], check=check, timeout=timeout)

    def read(self, path: str) -> str:
        """Return the text of a file."""
        return self.run(["cat", path]).stdout

    def write(self, path: str, text: str) -> None:
        """Write a file; sysfs files get the text in one write, and LabError says what the kernel answered."""
        self.run(["dd", "status=none", f"of={path}", "bs=1M"], input=text)

    def copy_to(self, source: Path, target: str) -> None:
        """Copy a file or folder into the machine."""
        self._copy(str(source), f"root@127.0.0.1:{target}")

    def copy_from(self, source: str, target: Path) -> None:
        """Copy a file or folder out of the machine."""
        self._copy(f"root@127.0.0.1:{source}", str(target))

    def _copy(self, source: str, target: str) -> None:
        options = [*self._ssh_options("-P"), "-o", f"ControlPath={self._control}"]
        done = subprocess.run(["scp", "-rpq", *options, source, target], capture_output=True, text=True, timeout=300)
        if done.returncode:
            raise LabError(f"copying {source} to {target}: {done.stderr}")

    def inventory(self, name: str = "lab", user: str = "root") -> dict[str, Any]:
        """Return an Ansible inventory with this machine; as JSON it is a valid inventory file.

        user: ``root``, or ``reader`` who may not do anything special.
        """
        host = {
            "ansible_host": "127.0.0.1",
            "ansible_port": self.port,
            "ansible_user": user,
            "ansible_ssh_private_key_file": str(self.image.key),
            "ansible_ssh_common_args": shlex.join(self._host_key_options()),
            "ansible_control_path_dir": str(self.folder / "cp"),  # so that Ansible's connections end with the machine
            "ansible_python_interpreter": "/usr/bin/python3",
        }
        return {"all": {"hosts": {name: host}}}

    # PCIe

    def set_link(
        self,
        bdf: str,
        *,
        speed: float | None = None,
        width: int | None = None,
        max_speed: float | None = None,
        max_width: int | None = None,
        aspm: str | None = None,
    ) -> None:
        """Change the link above a port or device, at once.

        bdf: the lower end of the link, one of `cards.PARENT`; a root port may be named for its capability.
        speed, width: what the link runs at (GT/s, lanes), at both of its ends as on hardware.
        max_speed, max_width: what this end is capable of.
        aspm: power states that both ends are set to (LnkCtl): ``""``, ``"L0s"``, ``"L1"``, ``"L0s L1"``.
        """
        ends = [bdf, cards.PARENT[bdf]] if bdf in cards.PARENT else [bdf]
        now = self.link(bdf)
        commands: list[str] = []
        if speed is not None or width is not None:
            for end in ends:
                commands += cards.link_status(end, speed or now[0], width or now[1])
        if max_speed is not None or max_width is not None:
            states = "" if bdf in cards.INNER_PORTS + cards.GPUS else "L1"
            commands += cards.link_capability(bdf, max_speed or now[2], max_width or now[3], states)
        if aspm is not None:
            for end in ends:
                commands += cards.link_aspm(end, aspm)
        self._fakepci(commands)

    def link(self, bdf: str) -> tuple[float, int, float, int]:
        """Return (speed, width, greatest speed, greatest width) of a port or device as sysfs has them."""
        names = ("current_link_speed", "current_link_width", "max_link_speed", "max_link_width")
        values = [text.split()[0] for text in self.sysfs(bdf, *names)]
        return float(values[0]), int(values[1]), float(values[2]), int(values[3])

    def sysfs(self, bdf: str, *names: str) -> list[str]:
        """Return sysfs attributes of a PCI device, stripped."""
        output = self.run(["grep", "-h", "", *(f"/sys/bus/pci/devices/{bdf}/{name}" for name in names)]).stdout
        return output.splitlines()

    def set_bar(self, bdf: str, gib: float) -> None:
        """Give a GPU a BAR 2 of this size; 0.25 is what it has where resizable BAR is off. It is enumerated anew."""
        self._fakepci([cards.bar(bdf, gib)])
        device = f"/sys/bus/pci/devices/{bdf}"
        self.sh(f"echo 1 > {device}/remove; echo 1 > /sys/bus/pci/rescan; udevadm settle; test -e {device}/driver")

    def _fakepci(self, commands: Iterable[str]) -> None:
        lines = "".join(f"{command}\n" for command in commands)
        script = 'while read -r command; do echo "$command" > /sys/module/fakepci/parameters/set; done'
        self.run(["sh", "-euc", script], input=lines)

    def inject_aer(
        self, bdf: str, severity: str, *names: str, count: int = 1, interval: float = 0, header: Sequence[int] = ()
    ) -> None:
        """Have a device report errors and wait until its root port has told of all.

        severity: ``correctable``, ``nonfatal`` or ``fatal``.
        names: status bits that are set together, for example ``BadTLP``; see CORRECTABLE and UNCORRECTABLE.
        count, interval: so many errors, one each so many seconds as far as the machine keeps up.
        header: up to four words of the offending packet (uncorrectable errors).

        The kernel's aer_inject does it, and its own line in the log says so too. Once a bus had an error no device
        below it can be enumerated anew.
        """
        if severity not in SEVERITIES:
            raise ValueError(f"severity {severity!r} is none of {SEVERITIES}")
        bits = sum(1 << (CORRECTABLE if severity == "correctable" else UNCORRECTABLE)[name] for name in names)
        correctable, uncorrectable = (bits, 0) if severity == "correctable" else (0, bits)
        domain, bus, device, function = (int(part, 16) for part in bdf.replace(".", ":").split(":"))
        words = [*header, 0, 0, 0, 0][:4]
        # struct aer_error_inj, drivers/pci/pcie/aer_inject.c
        record = struct.pack("=BBBxIIIIIII", bus, device, function, uncorrectable, correctable, *words, domain)
        if uncorrectable:
            # Which uncorrectable errors are fatal is a register of the device, not a property of the error.
            self._set_severity(bdf, bits, fatal=severity == "fatal")
        root_port = bdf
        while root_port in cards.PARENT:
            root_port = cards.PARENT[root_port]
        arguments = [root_port, record.hex(), str(count), str(interval)]
        self.run(["modprobe", "aer_inject"])
        self.run(["python3", "-c", INJECT, *arguments], timeout=60 + count * (interval + 1))

    def _set_severity(self, bdf: str, bits: int, *, fatal: bool) -> None:
        register = "ECAP_AER+0c.l"
        now = int(self.run(["setpci", "-s", bdf, register]).stdout, 16)
        wanted = now | bits if fatal else now & ~bits
        if wanted != now:
            self.run(["setpci", "-s", bdf, f"{register}={wanted:08x}"])

    # GPUs

    def kernel_log(self, bdf: str, text: str) -> None:
        """Have the stand-in driver write an error line about a GPU, after its usual ``xe BDF: [drm] ``."""
        self.write("/sys/module/xe/parameters/log", f"{bdf} {text}")

    def coredump(self, bdf: str) -> str:
        """Have the driver report a hang with a core dump and return the dump's folder below /sys/class/devcoredump."""
        self.write("/sys/module/xe/parameters/coredump", bdf)
        link = self.run(["readlink", "-f", f"/sys/bus/pci/devices/{bdf}/devcoredump"]).stdout.strip()
        return f"/sys/class/devcoredump/{Path(link).name}"

    def suspend(self, bdf: str) -> None:
        """Allow a GPU to sleep and wait until it does."""
        self.write(f"/sys/bus/pci/devices/{bdf}/power/control", "auto")
        self._wait_until(f"grep -q suspended /sys/bus/pci/devices/{bdf}/power/runtime_status", 30)

    def touched(self) -> int:
        """Return how often the GPU driver was called into: nodes opened and driver attributes read."""
        return int(self.read("/sys/module/xe/parameters/touched"))

    def render_node(self, bdf: str) -> str:
        """Return the path of a GPU's render node."""
        return "/dev/dri/" + self.sh(f"cd /sys/bus/pci/devices/{bdf}/drm; echo renderD*").stdout.strip()

    @contextlib.contextmanager
    def hold_render_node(self, bdf: str) -> Iterator[int]:
        """Have a process keep a GPU open, and give its pid."""
        unit = f"lab-holder-{bdf.replace(':', '-')}.service"
        script = f"exec sleep infinity 3<>{self.render_node(bdf)}"
        self.run(["systemd-run", "--quiet", f"--unit={unit}", "sh", "-c", script])
        pid = self.run(["systemctl", "show", "--property=MainPID", "--value", unit]).stdout.strip()
        self._wait_until(f"test -e /proc/{pid}/fd/3", 10)
        try:
            yield int(pid)
        finally:
            self.run(["systemctl", "stop", unit], check=False)

    # Network

    def nic_name(self, nic: str) -> str:
        """Return the name that a NIC (one of `qemu.NICS`) has in the machine now."""
        mac = qemu.NICS[nic][2]
        return self.sh(f"grep -l {mac} /sys/class/net/*/address").stdout.split("/")[4]

    def lose_nic(self, nic: str) -> None:
        """Unplug a NIC."""
        mac = qemu.NICS[nic][2]
        self.qmp("device_del", id=nic)
        self.qmp.wait_for("DEVICE_DELETED", 60, device=nic)
        self._wait_until(f"! grep -q {mac} /sys/class/net/*/address", 30)

    def add_nic(self, nic: str) -> str:
        """Plug a lost NIC in again and return the name that it gets."""
        self.qmp("device_add", **qemu.nic(nic))
        self._wait_until(f"grep -q {qemu.NICS[nic][2]} /sys/class/net/*/address", 60)
        self.run(["udevadm", "settle"])
        return self.nic_name(nic)

    def rename_nic(self, nic: str, name: str) -> None:
        """Give a NIC another name, as the next boot might."""
        old = self.nic_name(nic)
        self.sh(f"ip link set {old} down; ip link set {old} name {name}; ip link set {name} up")

    def set_carrier(self, nic: str, *, up: bool) -> None:
        """Plug the cable of a NIC in or out."""
        self.qmp("set_link", name=nic, up=up)

    def cut_network(self) -> None:
        """Cut the way in: connections hang and new ones get no answer, until `mend_network`."""
        self.qmp("set_link", name="mgmt-net", up=False)

    def mend_network(self) -> None:
        self.qmp("set_link", name="mgmt-net", up=True)
        self.log_out()
        self._wait_for_login(60)

    # Below

    @property
    def qmp(self) -> Qmp:
        """QEMU's control socket."""
        if not self._qmp:
            raise LabError("the machine is not running")
        return self._qmp

    @property
    def _control(self) -> Path:
        return self.folder / "ssh"

    def _kernel_arguments(self, through: str, extra: str = "") -> list[str]:
        if through == "grub":
            if extra:
                raise ValueError("GRUB takes the command line from its own configuration")
            return []
        files = ("-kernel", str(self.image.vmlinux(self.kernel)), "-initrd", str(self.image.initrd(self.kernel)))
        return [*files, "-append", f"{qemu.COMMAND_LINE} {extra}".strip()]

    def _start(self, more: Sequence[str]) -> None:
        (self.folder / "qmp").unlink(missing_ok=True)
        self.port = qemu.free_port()
        accelerator = self.image.accelerator.name
        argv = [*qemu.arguments(self.folder, self._disk, "qcow2", self.port, accelerator), *more]
        self._machine = Guarded(self.folder, argv, self.folder / "qemu.log")
        self._qmp = Qmp(self.folder / "qmp", self._machine)

    def _host_key_options(self) -> list[str]:
        words = ("StrictHostKeyChecking=no", "UserKnownHostsFile=/dev/null", "LogLevel=ERROR", "IdentitiesOnly=yes")
        return [part for word in words for part in ("-o", word)]

    def _ssh_options(self, port: str = "-p") -> list[str]:
        return ["-F", "none", *self._host_key_options(), "-i", str(self.image.key), port, str(self.port)]

    def _wait_for_login(self, timeout: float, *, listening: bool = False) -> None:
        """Log in: one connection stays open, and every command goes through it.

        listening: the SSH server is known to be there, so no connection is spent on asking.
        """
        deadline = time.monotonic() + timeout
        while time.monotonic() < deadline:
            if self._machine is None or not self._machine.running:
                raise self._error("the machine is not running")
            if (listening or self._answers()) and self._log_in(deadline):
                return
            time.sleep(0.1)
        raise self._error(f"no login within {timeout:g} s")

    def _answers(self) -> bool:
        """Does an SSH server speak? QEMU itself accepts connections long before one listens inside."""
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", self.port), timeout=5) as probe:
            return probe.recv(4) == b"SSH-"
        return False

    def _log_in(self, deadline: float) -> bool:
        self.log_out()
        argv = ["ssh", *self._ssh_options(), "-M", "-N", "-S", str(self._control), "root@127.0.0.1"]
        self._login = Guarded(self.folder, argv, self.folder / "ssh.log")
        while self._login.running and time.monotonic() < deadline:
            if self._control.exists():
                return True
            time.sleep(0.02)
        return False

    def log_out(self) -> None:
        """Close the connection that commands go through; the next command opens another."""
        if self._login:
            self._login.kill()
            self._login = None
        self._control.unlink(missing_ok=True)

    def _wait_until(self, condition: str, timeout: float) -> None:
        """Wait until a shell command succeeds in the machine."""
        script = f"for i in $(seq {int(timeout * 10)}); do if {condition}; then exit; fi; sleep 0.1; done; exit 1"
        if self.run(["sh", "-c", script], check=False, timeout=timeout + 60).returncode:
            raise self._error(f"not so within {timeout:g} s: {condition}")

    def _error(self, text: str) -> LabError:
        tails = []
        for name in ("qemu.log", "ssh.log", "console"):
            with contextlib.suppress(OSError):
                tails.append(f"--- {name}\n{(self.folder / name).read_text(errors='replace')[-1500:]}")
        return LabError("\n".join([text, *tails]))
