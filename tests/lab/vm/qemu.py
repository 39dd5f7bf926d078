"""How the machine is put together, how QEMU is asked for things, and how a program is kept from outliving its run."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from . import guard

BINARY = "qemu-system-x86_64"
GUARD = Path(guard.__file__)

#: What every kernel command line says; the image's GRUB says the same (guest/etc/default/grub.d/10-lab.cfg).
#: On a busy machine the emulated clocks drift apart, and the kernel would give up its TSC as on broken hardware.
COMMAND_LINE = "root=/dev/vda1 ro console=ttyS0 mitigations=off tsc=nowatchdog quiet"

#: Folders of machines in the temporary directory begin so, with the process that made them.
PREFIX = "hostcheck-lab-"

MEMORY_MIB = 1024

ACCELERATORS = {
    # One thread for both processors: with one each, QEMU 8.1 and later die now and then of a stale memory map
    # while firmware or kernel move BARs (assertion in iotlb_to_section, qemu-project/qemu issue 1921), and on a
    # busy machine with two cores two threads are hardly faster.
    "tcg": "tcg,thread=single,tb-size=512",
    "kvm": "kvm",
}

#: Interfaces beside the management one: QEMU's id -> (device, its bus, MAC address).
NICS = {
    "lan0": ("e1000e", "rpn0", "52:54:00:00:01:00"),
    "lan1": ("virtio-net-pci", "rpn1", "52:54:00:00:01:01"),
}


class LabError(Exception):
    """The virtual machine did not do what it was asked to do."""


def nic(name: str) -> dict[str, str]:
    """Return the device properties of a NIC, as for QMP's ``device_add``."""
    driver, bus, mac = NICS[name]
    return {"driver": driver, "id": name, "bus": bus, "mac": mac, "netdev": f"{name}-net", "romfile": ""}


def topology() -> Iterator[str]:
    """Yield the arguments for memory nodes, root ports, switches, cards and NICs.

    `cards` shows the tree that they give.
    """
    for node, (bus, slot) in enumerate(((0x20, 8), (0x80, 9))):
        yield from ("-object", f"memory-backend-ram,id=m{node},size={MEMORY_MIB // 2}M")
        yield from ("-numa", f"node,nodeid={node},memdev=m{node},cpus={node}")
        yield from ("-device", f"pxb-pcie,id=pxb{node},bus=pcie.0,addr={slot},bus_nr={bus},numa_node={node}")

    chassis = iter(range(1, 100))

    def port(kind: str, name: str, bus: str, address: str) -> tuple[str, str]:
        number = next(chassis)
        return "-device", f"{kind},id={name},bus={bus},addr={address},chassis={number},slot={number}"

    def gpu(name: str, bus: str) -> tuple[str, str]:
        # Any PCI Express device with AER will do: its id is laid over before a driver is wanted.
        return "-device", f"virtio-rng-pci,id={name},bus={bus},aer=on"

    yield from port("pcie-root-port", "rp0", "pxb0", "1")
    yield from ("-device", "x3130-upstream,id=up0,bus=rp0")
    for index in (0, 1):
        yield from port("xio3130-downstream", f"inner{index}", "up0", str(index + 1))
        yield from gpu(f"gpu{index}", f"inner{index}")

    yield from port("pcie-root-port", "rp1", "pxb1", "1")
    yield from ("-device", "x3130-upstream,id=switch,bus=rp1")
    for index in (2, 3):
        yield from port("xio3130-downstream", f"slot{index}", "switch", str(index - 1))
        yield from ("-device", f"x3130-upstream,id=up{index},bus=slot{index}")
        yield from port("xio3130-downstream", f"inner{index}", f"up{index}", "1")
        yield from gpu(f"gpu{index}", f"inner{index}")

    for index, name in enumerate(NICS):
        yield from port("pcie-root-port", NICS[name][1], "pcie.0", f"{10 + index:x}")
        # Both are on one network of their own, so that they have a carrier and reach nothing else.
        yield from ("-netdev", f"hubport,id={name}-net,hubid=1")
        yield from ("-device", ",".join(f"{key}={value}" for key, value in nic(name).items()).replace("driver=", "", 1))


def arguments(folder: Path, disk: Path, disk_format: str, ssh_port: int, accelerator: str) -> list[str]:
    """Return the whole command line without the kernel. Saved state needs the very same one to be taken up again."""
    return [
        BINARY,
        *("-accel", ACCELERATORS[accelerator]),
        # Without system management mode, since GRUB hangs there when there is no VGA BIOS.
        *("-machine", "q35,hpet=off,smm=off,sata=off,smbus=off"),
        # Nehalem: enough for Debian, and no newer feature that costs time to emulate.
        *("-cpu", "Nehalem-v1", "-smp", "2,sockets=2", "-m", f"{MEMORY_MIB}M"),
        *("-nodefaults", "-no-user-config", "-display", "none"),
        *("-serial", f"file:{folder / 'console'}"),
        *("-qmp", f"unix:{folder / 'qmp'},server=on,wait=off"),
        *("-drive", f"if=none,id=disk,file={disk},format={disk_format},cache=unsafe"),
        *("-device", "virtio-blk-pci,drive=disk,bus=pcie.0,addr=3"),
        *("-netdev", f"user,id=mgmt-net,restrict=on,hostfwd=tcp:127.0.0.1:{ssh_port}-:22"),
        *("-device", "virtio-net-pci,id=mgmt,netdev=mgmt-net,mac=52:54:00:00:00:01,bus=pcie.0,addr=4,romfile="),
        *("-device", "virtio-rng-pci,bus=pcie.0,addr=5"),
        *topology(),
    ]


def version() -> str:
    """Return QEMU's first version line."""
    return subprocess.run([BINARY, "--version"], check=True, capture_output=True, text=True).stdout.splitlines()[0]


class Guarded:
    """A program that ends with the run that started it, even if that run is killed."""

    def __init__(self, folder: Path, argv: Sequence[str], log: Path) -> None:
        """Start it. folder: removed when the run dies; log: where its output goes."""
        with log.open("ab") as output:
            self._guard = subprocess.Popen(
                [sys.executable, "-ISE", str(GUARD), str(folder), *argv],
                stdin=subprocess.PIPE,
                stdout=output,
                stderr=output,
                start_new_session=True,
            )
        self.log = log

    @property
    def running(self) -> bool:
        return self._guard.poll() is None

    @property
    def returncode(self) -> int | None:
        """Exit status of a program that has ended by itself, None while it runs."""
        return self._guard.poll()

    def kill(self) -> None:
        """End it at once and wait until it is gone."""
        assert self._guard.stdin
        try:
            self._guard.stdin.write(b"k")
            self._guard.stdin.close()
        except BrokenPipeError:  # it has ended by itself
            pass
        self._guard.wait()

    def wait(self, timeout: float) -> None:
        """Wait until it has ended by itself."""
        self._guard.wait(timeout)


class Qmp:
    """QEMU's machine protocol on a Unix socket."""

    def __init__(self, path: Path, process: Guarded) -> None:
        """Connect as soon as QEMU listens."""
        self._socket = socket.socket(socket.AF_UNIX)
        deadline = time.monotonic() + 30
        while True:
            try:
                self._socket.connect(str(path))
                break
            except (FileNotFoundError, ConnectionRefusedError):
                if not process.running or time.monotonic() > deadline:
                    raise LabError(f"QEMU did not start: {process.log.read_text(errors='replace')}") from None
                time.sleep(0.02)
        self._received = b""
        self._events: list[dict[str, Any]] = []
        self._next()
        self("qmp_capabilities")

    def _next(self) -> dict[str, Any]:
        while b"\n" not in self._received:
            some = self._socket.recv(65536)
            if not some:
                raise LabError("QEMU has closed its control socket")
            self._received += some
        line, _, self._received = self._received.partition(b"\n")
        message: dict[str, Any] = json.loads(line)
        return message

    def __call__(self, command: str, **arguments: Any) -> Any:
        """Execute a command and return its answer."""
        self._socket.settimeout(60)
        # Names in QMP have dashes where Python wants underscores; QMP's own commands have both.
        request = {"execute": command, "arguments": {key.replace("_", "-"): value for key, value in arguments.items()}}
        self._socket.sendall(json.dumps(request).encode() + b"\n")
        while True:
            message = self._next()
            if "error" in message:
                raise LabError(f"QEMU refused {command}: {message['error']['desc']}")
            if "return" in message:
                return message["return"]
            self._events.append(message)

    def wait_for(self, event: str, timeout: float, **data: Any) -> None:
        """Wait for an event that has at least these data."""
        deadline = time.monotonic() + timeout
        seen = 0
        while True:
            for message in self._events[seen:]:
                if message["event"] == event and data.items() <= message.get("data", {}).items():
                    self._events.clear()
                    return
            seen = len(self._events)
            self._socket.settimeout(max(deadline - time.monotonic(), 0.01))
            try:
                self._events.append(self._next())
            except TimeoutError:
                raise LabError(f"QEMU did not report {event} {data} within {timeout:g} s") from None

    def save(self, path: Path, timeout: float) -> None:
        """Write the state of the running machine to a file; it stands still afterwards."""
        self("migrate-set-parameters", max_bandwidth=2**40, downtime_limit=10_000)
        self("migrate", uri=f"exec:cat > {path}")
        deadline = time.monotonic() + timeout
        while True:
            status = self("query-migrate").get("status")
            if status == "completed":
                return
            if status in ("failed", "cancelled") or time.monotonic() > deadline:
                raise LabError(f"saving the state of the machine: {status}")
            time.sleep(0.1)

    def close(self) -> None:
        self._socket.close()


def free_port() -> int:
    """Return a TCP port of the loopback address that nobody has now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def overlay_disk(path: Path, base: Path, base_format: str) -> None:
    """Make a disk that begins as ``base`` and keeps its changes to itself."""
    backing = os.path.relpath(base, path.parent) if path.parent == base.parent else str(base)
    command = ["qemu-img", "create", "-q", "-f", "qcow2", "-b", backing, "-F", base_format, str(path)]
    subprocess.run(command, check=True)
