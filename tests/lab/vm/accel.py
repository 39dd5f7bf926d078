"""Which accelerator the test host runs under: KVM where it was seen to be quick, else TCG.

That ``/dev/kvm`` opens says little. A virtual machine may offer one that has to emulate a kernel which does not know
of it instruction by instruction (kvm_pvm does): a boot that TCG ends in seconds then takes minutes. So the image's own
kernel is booted under both, up to the point where it wants a root file system, and KVM has to win by far.
"""

from __future__ import annotations

import os
import platform
import re
import subprocess
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from . import qemu
from .qemu import Guarded

KVM = Path("/dev/kvm")
#: KVM has to be so many times as quick as TCG: for less it is not worth to leave what is tested most.
WORTH = 2.0
#: Seconds after which a boot counts as one that does not end, under each. TCG takes about 4 on an idle machine.
LIMITS = {"tcg": 60.0, "kvm": 5.0}
#: A kernel without a root file system says this and, with ``panic=-1``, reboots; ``-no-reboot`` makes that QEMU's end.
END = "Unable to mount root fs"


@dataclass(frozen=True)
class Choice:
    """An accelerator and why it was chosen.

    name: ``tcg`` or ``kvm``, one of `qemu.ACCELERATORS`.
    why: the reason in words, with the figures where there are some.
    measured_on: the machine that this holds for, as `here` describes it.
    seconds: what a boot took under each; None where it did not end in time or not as it should.
    """

    name: str
    why: str
    measured_on: dict[str, str]
    seconds: dict[str, float | None]

    def __str__(self) -> str:
        machine = f"{self.measured_on['cpu']}, kernel {self.measured_on['kernel']}"
        return f"accelerator {self.name}: {self.why} (measured on {machine})"


def here() -> dict[str, str]:
    """Describe this machine as far as an accelerator's speed, and what its saved state holds, depend on it."""
    models = re.findall(r"^model name\s*:\s*(.*)$", Path("/proc/cpuinfo").read_text(), re.MULTILINE)
    return {"cpu": models[0] if models else platform.machine(), "kernel": platform.release(), "qemu": qemu.version()}


def refused(device: Path = KVM) -> str:
    """Return why KVM cannot even be tried, or an empty text."""
    try:
        os.close(os.open(device, os.O_RDWR | os.O_CLOEXEC))
    except FileNotFoundError:
        return f"there is no {device}"
    except OSError as error:
        return f"{device} does not open: {error.strerror}"
    return ""


def decide(refusal: str, tcg: float | None, kvm: float | None, limit: float = LIMITS["kvm"]) -> tuple[str, str]:
    """Return the accelerator and why.

    refusal: why KVM was not tried, or an empty text.
    tcg, kvm: seconds that a boot took under each, None where it did not end within its limit or not as it should.
    limit: seconds that KVM had.

    >>> decide("", 4.0, 0.5)
    ('kvm', 'a boot takes 0.5 s under KVM and 4.0 s under TCG')
    """
    if refusal:
        return "tcg", refusal
    if kvm is None:
        other = "" if tcg is None else f", and in {tcg:.1f} s under TCG"
        return "tcg", f"under KVM a boot did not end within {limit:g} s or not as it should{other}"
    if tcg is None:
        return "tcg", f"a boot takes {kvm:.1f} s under KVM, and under TCG there is no figure to compare it with"
    figures = f"a boot takes {kvm:.1f} s under KVM and {tcg:.1f} s under TCG"
    if kvm * WORTH <= tcg:
        return "kvm", figures
    return "tcg", f"{figures}: less than {WORTH:g} times as quick"


def boot_seconds(vmlinux: Path, name: str) -> float | None:
    """Boot a kernel to its end without a root file system and return the seconds that it took.

    None: it did not end within its limit, or it ended without a word of the kernel.
    """
    with tempfile.TemporaryDirectory(prefix=f"{qemu.PREFIX}{os.getpid()}-") as folder:
        work = Path(folder)
        disk = work / "disk"
        with disk.open("wb") as file:
            file.truncate(1 << 20)
        argv = qemu.arguments(work, disk, "raw", qemu.free_port(), name)
        argv += ["-no-reboot", "-kernel", str(vmlinux), "-append", f"{qemu.COMMAND_LINE} panic=-1"]
        begun = time.monotonic()
        machine = Guarded(work, argv, work / "qemu.log")
        try:
            machine.wait(LIMITS[name])
        except subprocess.TimeoutExpired:
            return None
        finally:
            machine.kill()
        took = time.monotonic() - begun
        console = work / "console"
        return took if console.exists() and END in console.read_text(errors="replace") else None


def choose(
    vmlinux: Path,
    *,
    refusal: Callable[[], str] = refused,
    measure: Callable[[Path, str], float | None] = boot_seconds,
) -> Choice:
    """Find out which accelerator this machine should use for a kernel; nothing is booted where KVM cannot be tried."""
    no = refusal()
    seconds: dict[str, float | None] = {} if no else {name: measure(vmlinux, name) for name in ("tcg", "kvm")}
    name, why = decide(no, seconds.get("tcg"), seconds.get("kvm"))
    return Choice(name, why, here(), seconds)
