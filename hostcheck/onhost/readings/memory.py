"""Memory of the host: what is left, what drivers hold, pressure, corrected errors, blocks that are off-line."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Callable

from ..reader import Reader, Reading

MEMINFO = "/proc/meminfo"
VMSTAT = "/proc/vmstat"
PRESSURE = "/proc/pressure"
EDAC = "/sys/devices/system/edac/mc"
BLOCKS = "/sys/devices/system/memory"
SLICES = ("/sys/fs/cgroup/system.slice", "/sys/fs/cgroup/systemd/system.slice")  # cgroups of version 2 and 1
GUARDS = ("systemd-oomd", "earlyoom", "nohang", "nohang-desktop", "oomd")  # services that kill before the kernel does
BLOCK_LIMIT = 4096  # blocks whose state is read; large hosts have blocks of 2 GiB
STATES = ("online", "offline", "going-offline")
LARGE_KIB = 64 << 20  # own: between the lab's hosts with 15 GiB and with 128 GB
SMALL_AVAILABLE_KIB = 9_216 << 10
LARGE_AVAILABLE_KIB = 12_000_000
AT_MOST = 0.6  # of the memory; 9,216 MiB are 59 % of the lab's small host


@dataclass(frozen=True)
class Pressure:
    """Stall information of one resource (kernel docs, accounting/psi): per cent of the time, over 10 and 60 seconds.

    full: nobody could run; some: somebody could not.
    """

    some_avg10: float
    some_avg60: float
    full_avg10: float
    full_avg60: float


@dataclass(frozen=True)
class Controller:
    """One memory controller that reports errors. name: e.g. ``mc0``. corrected, uncorrected: counts since boot."""

    name: str
    kind: str
    corrected: Reading[int]
    uncorrected: Reading[int]


@dataclass(frozen=True)
class SwapArea:
    """One swap area. kind: partition or file; a name ``/dev/zram0`` is memory itself."""

    name: str
    kind: str
    size_kib: int
    used_kib: int


@dataclass(frozen=True)
class Memory:
    """Memory of a host, in KiB.

    gpu_active: what the kernel counts as held for GPUs (newer kernels). driver_held: total - available - anonymous, so
    what no process owns; shared memory and huge pages are part of it, and stand beside it.
    memory_pressure, io_pressure: absent where the kernel keeps none. controllers: () where none reports errors.
    oom_kills: processes that the kernel killed for memory since the boot, inside of containers too (from 4.13 on).
    block_bytes: size of a block of memory. offline: numbers of the blocks that are off-line.
    guards: services that run and kill processes or cgroups when memory gets short, e.g. ``systemd-oomd``; absent where
    no services of systemd are seen.
    """

    total: Reading[int]
    available: Reading[int]
    anonymous: Reading[int]
    shared: Reading[int]
    huge: Reading[int]
    gpu_active: Reading[int]
    driver_held: Reading[int]
    swap_total: Reading[int]
    swap_free: Reading[int]
    swaps: Reading[tuple[SwapArea, ...]]
    memory_pressure: Reading[Pressure]
    io_pressure: Reading[Pressure]
    oom_kills: Reading[int]
    controllers: Reading[tuple[Controller, ...]]
    block_bytes: Reading[int]
    offline: Reading[tuple[int, ...]]
    guards: Reading[tuple[str, ...]] = Reading.no("not_asked", "not read by this version")


def enough_kib(total_kib: int) -> int:
    """KiB that should be available before a start on a host with so much memory (lab-host-facts 4.2).

    >>> enough_kib(15943924) >> 10
    9216
    """
    figure = LARGE_AVAILABLE_KIB if total_kib >= LARGE_KIB else SMALL_AVAILABLE_KIB
    return min(figure, int(total_kib * AT_MOST))


def parse_meminfo(text: str) -> dict[str, int]:
    """Return the numbers of /proc/meminfo, KiB where it says kB; other lines are passed over.

    >>> parse_meminfo("MemTotal:       15943924 kB\\nHugePages_Total:       0\\n")
    {'MemTotal': 15943924, 'HugePages_Total': 0}

    Raises ValueError when there is none.
    """
    found = {
        match.group(1): int(match.group(2))
        for line in text.splitlines()
        if (match := re.fullmatch(r"([A-Za-z][\w()]*):\s+([0-9]{1,18})(?: kB)?\s*", line))
    }
    if not found:
        raise ValueError(f"no line with a name and a number in {text[:80]!r}")
    return found


def parse_pressure(text: str) -> Pressure:
    """Return the averages of a file of /proc/pressure.

    >>> line = "avg10=11.41 avg60=5.00 avg300=1.00 total=9\\n"
    >>> parse_pressure("some " + line + "full " + line).full_avg10
    11.41

    Raises ValueError where ``some`` or ``full`` is missing.
    """
    found: dict[str, tuple[float, float]] = {}
    for line in text.splitlines():
        match = re.match(r"(some|full) avg10=([0-9]+\.[0-9]+) avg60=([0-9]+\.[0-9]+) ", line)
        if match:
            found[match.group(1)] = (float(match.group(2)), float(match.group(3)))
    if len(found) != 2:
        raise ValueError(f"expected lines some and full with their averages, got {text[:120]!r}")
    return Pressure(*found["some"], *found["full"])


def parse_oom_kills(text: str) -> int:
    """Return ``oom_kill`` of /proc/vmstat, -1 where this kernel does not count them.

    >>> parse_oom_kills("nr_free_pages 77\\noom_kill 2\\n"), parse_oom_kills("nr_free_pages 77\\n")
    (2, -1)

    Raises ValueError for text that is not a table of counts.
    """
    rows = [re.fullmatch(r"(\w+) (-?[0-9]{1,20})", line) for line in text.splitlines()]
    if not rows or not all(rows):
        raise ValueError(f"expected names and counts, got {text[:80]!r}")
    return next((int(row.group(2)) for row in rows if row is not None and row.group(1) == "oom_kill"), -1)


def parse_swaps(text: str) -> tuple[SwapArea, ...]:
    """Return the areas of /proc/swaps, () when there is none.

    >>> parse_swaps("Filename\\tType\\tSize\\tUsed\\tPriority\\n/swap.img file 8388604 0 -2\\n")
    (SwapArea(name='/swap.img', kind='file', size_kib=8388604, used_kib=0),)

    Raises ValueError for text of another form. Blanks in a name are written as ``\\\\040``.
    """
    lines = text.splitlines()
    if not lines or not lines[0].startswith("Filename"):
        raise ValueError(f"expected the head of the table of swap areas, got {text[:80]!r}")
    found = []
    for line in lines[1:]:
        fields = line.split()
        if len(fields) != 5 or not re.fullmatch(r"[0-9]{1,18} [0-9]{1,18}", " ".join(fields[2:4])):
            raise ValueError(f"expected name, type, size, used and priority, got {line!r}")
        found.append(SwapArea(fields[0], fields[1], int(fields[2]), int(fields[3])))
    return tuple(found)


def parse_count(text: str) -> int:
    """Return a number that is not negative. Raises ValueError."""
    if not re.fullmatch(r"[0-9]{1,18}", text.strip()):
        raise ValueError(f"expected a number, got {text!r}")
    return int(text)


def parse_block_size(text: str) -> int:
    """Return bytes of block_size_bytes, which is hexadecimal without 0x.

    >>> parse_block_size("80000000\\n") >> 20
    2048

    Raises ValueError for anything else.
    """
    if not re.fullmatch(r"[0-9a-fA-F]{1,16}", text.strip()):
        raise ValueError(f"expected a hexadecimal number, got {text!r}")
    return int(text, 16)


def parse_block_state(text: str) -> str:
    """Return the state of a block. Raises ValueError for a word that is none."""
    word = text.strip()
    if word not in STATES:
        raise ValueError(f"expected one of {', '.join(STATES)}, got {word!r}")
    return word


def parse_processes(text: str) -> tuple[int, ...]:
    """Return the processes of a cgroup.procs, () for a cgroup without any. Raises ValueError.

    >>> parse_processes("812\\n813\\n"), parse_processes("")
    ((812, 813), ())
    """
    words = text.split()
    if not all(re.fullmatch(r"[0-9]{1,10}", word, re.ASCII) for word in words):
        raise ValueError(f"expected numbers of processes, got {text[:80]!r}")
    return tuple(int(word) for word in words)


def read_guards(reader: Reader) -> Reading[tuple[str, ...]]:
    """The services of `GUARDS` that have a process; which others there are is not asked."""
    for slice_ in SLICES:
        seen = reader.text(f"{slice_}/cgroup.procs").then(parse_processes)
        if seen.unread == "absent":
            continue
        if seen.value is None:
            return seen.then(lambda _: ())
        found = []
        for name in GUARDS:
            processes = reader.text(f"{slice_}/{name}.service/cgroup.procs").then(parse_processes)
            if processes.unread not in (None, "absent"):
                return processes.then(lambda _: ())
            if processes.value:
                found.append(name)
        return Reading(tuple(found), slice_)
    return Reading.no("absent", "no services of systemd are seen here", SLICES[0])


def read_controllers(reader: Reader) -> Reading[tuple[Controller, ...]]:
    names = reader.names(EDAC)
    if names.unread == "absent":
        return Reading((), EDAC)
    found = []
    for name in names.value or ():
        if re.fullmatch(r"mc\d+", name):
            path = f"{EDAC}/{name}"
            found.append(
                Controller(
                    name,
                    reader.line(f"{path}/mc_name").value or "",
                    reader.line(f"{path}/ce_count").then(parse_count),
                    reader.line(f"{path}/ue_count").then(parse_count),
                )
            )
    return names.then(lambda _: tuple(found))


def read_offline(reader: Reader) -> Reading[tuple[int, ...]]:
    names = reader.names(BLOCKS)
    numbers = sorted(int(name[6:]) for name in names.value or () if re.fullmatch(r"memory\d{1,9}", name))
    if len(numbers) > BLOCK_LIMIT:
        return Reading.no("too_large", f"{len(numbers)} blocks, of which none was read", BLOCKS)
    found = []
    for number in numbers:
        state = reader.line(f"{BLOCKS}/memory{number}/state").then(parse_block_state)
        if state.value is None:
            return state.then(lambda _: ())
        if state.value == "offline":  # one that is "going-offline" still holds pages
            found.append(number)
    return names.then(lambda _: tuple(found))


def read_oom_kills(reader: Reader) -> Reading[int]:
    found = reader.text(VMSTAT).then(parse_oom_kills)
    return Reading.no("absent", "this kernel does not count them", VMSTAT) if found.value == -1 else found


def read(reader: Reader) -> Memory:
    whole = reader.text(MEMINFO).then(parse_meminfo)

    def value(count: Callable[[dict[str, int]], int], *names: str) -> Reading[int]:
        missing = [name for name in names if name not in (whole.value or names)]
        if missing:
            return Reading.no("absent", f"no {', '.join(missing)} there", whole.source)
        return whole.then(count)

    def field(name: str) -> Reading[int]:
        return value(lambda found: found[name], name)

    return Memory(
        total=field("MemTotal"),
        available=field("MemAvailable"),
        anonymous=field("AnonPages"),
        shared=field("Shmem"),
        huge=field("Hugetlb"),
        gpu_active=field("GPUActive"),
        driver_held=value(
            lambda found: max(0, found["MemTotal"] - found["MemAvailable"] - found["AnonPages"]),
            "MemTotal",
            "MemAvailable",
            "AnonPages",
        ),
        swap_total=field("SwapTotal"),
        swap_free=field("SwapFree"),
        swaps=reader.text("/proc/swaps").then(parse_swaps),
        memory_pressure=reader.text(f"{PRESSURE}/memory").then(parse_pressure),
        io_pressure=reader.text(f"{PRESSURE}/io").then(parse_pressure),
        oom_kills=read_oom_kills(reader),
        controllers=read_controllers(reader),
        block_bytes=reader.line(f"{BLOCKS}/block_size_bytes").then(parse_block_size),
        offline=read_offline(reader),
        guards=read_guards(reader),
    )
