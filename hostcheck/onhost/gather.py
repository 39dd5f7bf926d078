"""Facts of one host: every reading, at one moment.

Adding a source is one file in `readings` (dataclass, parsers, ``read``) and one line in `Facts`. Every
field of such a dataclass is a `Reading`, so that a group that raised, hung or was not asked for is still whole: all of
its readings say why.
"""

from __future__ import annotations

import dataclasses
import functools
import gc
import os
import pickle
import selectors
import signal
import sys
import time
import typing
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, Callable, Union

from .reader import Reader, Reading, ended
from .readings.aspm import Aspm
from .readings.aspm import read as read_aspm
from .readings.clocksource import Clocksource
from .readings.clocksource import read as read_clocksource
from .readings.containers import Containers
from .readings.containers import read as read_containers
from .readings.cpufreq import Cpufreq
from .readings.cpufreq import read as read_cpufreq
from .readings.cpuidle import Cpuidle
from .readings.cpuidle import read as read_cpuidle
from .readings.crash import Crash
from .readings.crash import read as read_crash
from .readings.dimms import Dimms
from .readings.dimms import read as read_dimms
from .readings.firmware_files import FirmwareFiles
from .readings.firmware_files import read as read_firmware_files
from .readings.gpu_state import GpuStates
from .readings.gpu_state import read as read_gpu_state
from .readings.holders import Holders
from .readings.holders import read as read_holders
from .readings.identity import Identity
from .readings.identity import read as read_identity
from .readings.initrd import Initrd
from .readings.initrd import read as read_initrd
from .readings.iommu import Iommu
from .readings.iommu import read as read_iommu
from .readings.journald import Journald
from .readings.journald import read as read_journald
from .readings.kernel_log import KernelLog
from .readings.kernel_log import read as read_kernel_log
from .readings.last_boot import LastBoot
from .readings.last_boot import read as read_last_boot
from .readings.lscpu import Lscpu
from .readings.lscpu import read as read_lscpu
from .readings.memory import Memory
from .readings.memory import read as read_memory
from .readings.modules import Modules
from .readings.modules import read as read_modules
from .readings.network import Network
from .readings.network import read as read_network
from .readings.next_boot import NextBoot
from .readings.next_boot import read as read_next_boot
from .readings.nvme import Nvme, has_drive
from .readings.nvme import read as read_nvme
from .readings.packages import Packages
from .readings.packages import read as read_packages
from .readings.pcie import Pcie
from .readings.pcie import read as read_pcie
from .readings.pythons import Pythons
from .readings.pythons import read as read_pythons
from .readings.rates import Rates
from .readings.rates import read as read_rates
from .readings.storage import Storage
from .readings.storage import read as read_storage
from .readings.sysctls import Sysctls
from .readings.sysctls import read as read_sysctls
from .readings.throttle import Throttle
from .readings.throttle import read as read_throttle
from .readings.xpu_smi import XpuSmi, held_back
from .readings.xpu_smi import read as read_xpu_smi
from .recording import Recorder, utc

SCHEMA = "hostcheck/facts/1"
DEADLINE = 120.0  # seconds for a whole gather
SAMPLE_LIMIT = 60.0  # seconds between two reads of counters


@dataclass(frozen=True)
class Options:
    """What the caller says about this read.

    under_load: the cards were busy while they were read, so that a low link speed is conclusive.
    wake: sleeping cards may be read, which wakes them.
    xpu_smi: ``auto`` (only when no card is suspended, faulted or held), ``always`` or ``never``.
    pythons: interpreters, environments or folders of packages whose torch is looked up besides the usual places.
    sample_seconds: read error and throttle counters again after so long, for rates; 0: once.
    initrd: read what the initrd of the default entry holds, which may take seconds.
    """

    under_load: bool = False
    wake: bool = False
    xpu_smi: str = "auto"
    pythons: tuple[str, ...] = ()
    sample_seconds: float = 0.0
    initrd: bool = False

    def __post_init__(self) -> None:
        if self.xpu_smi not in ("auto", "always", "never"):
            raise ValueError(f"xpu_smi is {self.xpu_smi!r}, wanted auto, always or never")
        if not 0 <= self.sample_seconds <= SAMPLE_LIMIT:
            raise ValueError(f"sample_seconds is {self.sample_seconds!r}, wanted 0 to {SAMPLE_LIMIT:g}")


Device = Union[bool, Callable[..., bool]]


@dataclass(frozen=True)
class Group:
    """How a field of `Facts` is read.

    needs: names of earlier fields (or ``options``) that `read` gets as keyword arguments.
    device: does it touch devices? Then it runs in a child that is killed (or abandoned, where it hangs in the kernel)
        at the deadline. A function tells by what the group needs, without reading anything.
    deadline: seconds.
    """

    read: Callable[..., Any]
    needs: tuple[str, ...] = ()
    device: Device = False
    deadline: float = 20.0


def group(
    read: Callable[..., Any],
    needs: tuple[str, ...] = (),
    device: Device = False,
    deadline: float = 20.0,
    later: type[Any] | None = None,
) -> Any:
    """Declare a field of `Facts`; see `Group`.

    later: class of a group that facts of an older version do not have; there it was not asked for.
    """
    metadata = {"group": Group(read, needs, device, deadline)}
    if later is None:
        return field(metadata=metadata)
    return field(metadata=metadata, default_factory=lambda: unread(later, "not_asked", "not read by this version"))


def has_cards(pcie: Pcie, **_: Any) -> bool:
    """Is there a card to be read? Without one only counters of processors are, which the kernel keeps in memory."""
    return bool(pcie.gpus.value)


def has_holders(holders: Holders) -> bool:
    """Is there a process whose surroundings are read?"""
    return bool(holders.render.value)


def reads_twice(options: Options, **_: Any) -> bool:
    """Are counters read a second time?"""
    return options.sample_seconds > 0


def asks_initrd(options: Options, **_: Any) -> bool:
    """Is what the initrd holds read? It may take seconds, and has a deadline of its own."""
    return options.initrd


def asks_xpu_smi(pcie: Pcie, kernel_log: KernelLog, holders: Holders, options: Options) -> bool:
    """May the tool be run?"""
    return held_back(pcie.gpus, kernel_log, holders, options) is None


@dataclass(frozen=True)
class Facts:
    """All readings of one host. `taken_at` is UTC and is what the checks call "now"."""

    __pydantic_config__ = {"extra": "forbid"}  # noqa: RUF012

    schema: str
    taken_at: str
    options: Options
    identity: Identity = group(read_identity)
    lscpu: Lscpu = group(read_lscpu)
    cpufreq: Cpufreq = group(read_cpufreq)
    cpuidle: Cpuidle = group(read_cpuidle, needs=("lscpu",))
    clocksource: Clocksource = group(read_clocksource)
    kernel_log: KernelLog = group(read_kernel_log, deadline=75.0)
    pcie: Pcie = group(read_pcie, needs=("kernel_log", "options"), device=True, deadline=30.0)
    aspm: Aspm = group(read_aspm)
    holders: Holders = group(read_holders)
    network: Network = group(read_network)
    containers: Containers = group(read_containers, needs=("holders",), device=has_holders)
    memory: Memory = group(read_memory)
    sysctls: Sysctls = group(read_sysctls)
    crash: Crash = group(read_crash)
    storage: Storage = group(read_storage, device=True)
    throttle: Throttle = group(read_throttle, needs=("pcie", "kernel_log", "options"), device=has_cards)
    gpu_state: GpuStates = group(read_gpu_state, needs=("pcie", "kernel_log", "options"), device=has_cards)
    iommu: Iommu = group(read_iommu, needs=("pcie",))
    modules: Modules = group(read_modules, needs=("identity",))
    packages: Packages = group(read_packages)
    pythons: Pythons = group(read_pythons, needs=("options",))
    last_boot: LastBoot = group(read_last_boot, needs=("identity", "kernel_log"))
    next_boot: NextBoot = group(read_next_boot)
    xpu_smi: XpuSmi = group(
        read_xpu_smi, needs=("pcie", "kernel_log", "holders", "options"), device=asks_xpu_smi, deadline=40.0
    )
    rates: Rates = group(read_rates, needs=("pcie", "throttle", "options"), device=reads_twice, deadline=75.0)
    firmware_files: FirmwareFiles = group(read_firmware_files, needs=("next_boot", "packages"), later=FirmwareFiles)
    dimms: Dimms = group(read_dimms, later=Dimms)
    journald: Journald = group(read_journald, later=Journald)
    nvme: Nvme = group(read_nvme, needs=("storage", "identity"), device=has_drive, deadline=10.0, later=Nvme)
    initrd: Initrd = group(
        read_initrd, needs=("pcie", "next_boot", "options"), device=asks_initrd, deadline=75.0, later=Initrd
    )


GROUPS: dict[str, Group] = {
    item.name: item.metadata["group"] for item in dataclasses.fields(Facts) if "group" in item.metadata
}


def closure(subset: Iterable[str]) -> tuple[str, ...]:
    """The named groups and all that they need, in the order in which they are read; () means all.

    Raises ValueError for a name that is no group.
    """
    names = set(subset)
    unknown = sorted(names - set(GROUPS))
    if unknown:
        raise ValueError(f"no such subset: {', '.join(unknown)}; there are {', '.join(GROUPS)}")
    if not names:
        return tuple(GROUPS)
    for name in reversed(list(GROUPS)):
        if name in names:
            names.update(need for need in GROUPS[name].needs if need in GROUPS)
    return tuple(name for name in GROUPS if name in names)


def unread(cls: type[Any], reason: str, detail: str) -> Any:
    """An instance of a group whose every reading says why there is none."""
    no: Reading[Any] = Reading.no(reason, detail)
    return cls(**{item.name: no for item in dataclasses.fields(cls)})


@functools.lru_cache(maxsize=None)
def classes() -> dict[str, type[Any]]:
    """The class of every group."""
    hints = typing.get_type_hints(Facts)
    return {name: hints[name] for name in GROUPS}


@functools.lru_cache(maxsize=None)
def not_asked(name: str) -> Any:
    """A group that was not asked for; readings do not change, so that one serves every read."""
    return unread(classes()[name], "not_asked", "this subset was not asked for")


def gather(
    reader: Reader, options: Options | None = None, subset: Iterable[str] = (), deadline: float = DEADLINE
) -> Facts:
    """Read a host. Never raises for what the host does; raises ValueError for an unknown subset."""
    wanted = closure(subset)
    ends = time.monotonic() + deadline
    found: dict[str, Any] = {"options": options or Options()}
    taken_at = utc(reader.taken_at())
    for name, spec in GROUPS.items():
        if name not in wanted:
            found[name] = not_asked(name)
            continue
        given = {need: found[need] for need in spec.needs}
        left = min(spec.deadline, ends - time.monotonic())
        if left <= 0:
            found[name] = unread(classes()[name], "timeout", f"the whole read took more than {deadline:g} s")
        elif reader.live and (spec.device(**given) if callable(spec.device) else spec.device):
            found[name] = _in_child(spec.read, reader, given, classes()[name], left)
        else:
            found[name] = _guarded(spec.read, reader, given, classes()[name])
    return Facts(schema=SCHEMA, taken_at=taken_at, **found)


def _guarded(read: Callable[..., Any], reader: Reader, given: dict[str, Any], cls: type[Any]) -> Any:
    try:
        return read(reader, **given)
    except Exception as error:  # one group with a defect costs only itself (design, rule 11)
        return unread(cls, "not_understood", f"{read.__module__}: {type(error).__name__}: {error}")


def _in_child(read: Callable[..., Any], reader: Reader, given: dict[str, Any], cls: type[Any], seconds: float) -> Any:
    """Run a group in a forked child, which is killed, or abandoned when it hangs in the kernel, after `seconds`."""
    ours, theirs = os.pipe()
    sys.stdout.flush()
    sys.stderr.flush()
    pid = os.fork()
    if pid == 0:
        os.close(ours)
        gc.disable()  # it would touch, and so copy, all that is shared with the parent
        try:
            signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # so that its commands are killed with it
            answer = _guarded(read, reader, given, cls)
            taken = reader.take() if isinstance(reader, Recorder) else None
            with os.fdopen(theirs, "wb") as pipe:
                pickle.dump((answer, taken), pipe)
        finally:
            os._exit(0)
    os.close(theirs)
    data = _until(ours, time.monotonic() + seconds)
    if data is None:
        _end(pid)
        return unread(cls, "timeout", f"did not end within {seconds:.0f} s and was killed")
    _end(pid)
    try:
        answer, taken = pickle.loads(data)  # noqa: S301
    except (pickle.UnpicklingError, EOFError):
        return unread(cls, "io", "the child that read this group died")
    if taken is not None and isinstance(reader, Recorder):
        reader.merge(taken)
    return answer


def _until(descriptor: int, ends: float) -> bytes | None:
    """All that comes through a pipe, or None when it is still open at the time `ends`."""
    pieces: list[bytes] = []
    with os.fdopen(descriptor, "rb", buffering=0) as pipe, selectors.DefaultSelector() as selector:
        selector.register(pipe, selectors.EVENT_READ)
        while True:
            left = ends - time.monotonic()
            if left <= 0 or not selector.select(left):
                return None
            piece = pipe.read(1 << 20)
            if not piece:
                return b"".join(pieces)
            pieces.append(piece)


def _end(pid: int) -> None:
    """See a child to its end: wait a moment, ask, then kill; one in D state is left to the kernel."""
    for number, patience in ((0, 1.0), (signal.SIGTERM, 3.0), (signal.SIGKILL, 2.0)):
        if number:
            os.kill(pid, number)
        if ended(pid, patience):
            os.waitpid(pid, 0)
            return
