"""What holds clocks down: the reasons that the GPU's driver gives, and how often the processor throttled itself."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ..reader import Reader, Reading
from .kernel_log import KernelLog
from .pcie import ASLEEP, DEVICES, Gpu, Pcie

if TYPE_CHECKING:
    from ..gather import Options

CPUS = "/sys/devices/system/cpu"


@dataclass(frozen=True)
class GpuThrottle:
    """One clock domain of one GPU. domain: e.g. ``tile0/gt0``; ``""`` when the card was left alone.

    status: 1 while the clock is held down. reasons: names that the driver gives, e.g. ``pl1``, ``thermal``.
    """

    bdf: str
    domain: str
    status: Reading[int]
    reasons: Reading[tuple[str, ...]]


@dataclass(frozen=True)
class Throttle:
    """What holds clocks down.

    gpus: every clock domain of every GPU that xe or i915 drives. core, package: the largest count of throttle events
    of any processor since boot (Intel only: absent elsewhere).
    """

    gpus: Reading[tuple[GpuThrottle, ...]]
    core: Reading[int]
    package: Reading[int]


def parse_flag(text: str) -> int:
    """Return 0 or 1. Raises ValueError.

    >>> parse_flag("1\\n")
    1
    """
    if text.strip() not in ("0", "1"):
        raise ValueError(f"expected 0 or 1, got {text!r}")
    return int(text)


def parse_count(text: str) -> int:
    """Return a count. Raises ValueError.

    >>> parse_count("17\\n")
    17
    """
    if not re.fullmatch(r"[0-9]{1,18}", text.strip()):
        raise ValueError(f"expected a count, got {text!r}")
    return int(text)


def read_domain(reader: Reader, bdf: str, domain: str, folder: str, prefix: str) -> GpuThrottle:
    """One folder of flags: PREFIXstatus, and PREFIXreason_NAME or, in i915, PREFIXNAME."""
    status = reader.line(f"{folder}/{prefix}status").then(parse_flag)
    names = reader.names(folder)
    if names.value is None:
        return GpuThrottle(bdf, domain, status, names.then(lambda _: ()))
    start = prefix or "reason_"
    found: list[str] = []
    for name in names.value:
        if not name.startswith(start) or name == f"{prefix}status":
            continue
        flag = reader.line(f"{folder}/{name}").then(parse_flag)
        if flag.value is None:  # one reason that cannot be read leaves the list of reasons open
            return GpuThrottle(bdf, domain, status, flag.then(lambda _: ()))
        if flag.value:
            found.append(name[len(start) :])
    return GpuThrottle(bdf, domain, status, Reading(tuple(found), folder))


def refusal(gpu: Gpu, kernel_log: KernelLog, wake: bool) -> Reading[int] | None:
    """Why the driver of a card may not be called, or None: these attributes wake a card and ask its firmware."""
    here = f"{DEVICES}/{gpu.bdf}"
    status = gpu.runtime_status
    if not wake and (status.value in ASLEEP or status.unread not in (None, "absent")):
        return Reading.no("suspended", f"runtime_status {status.value or status.unread}", here)
    if kernel_log.faulted.value is None:
        detail = f"whether it faulted on this boot is not known: {kernel_log.faulted.detail}"
        return Reading.no(kernel_log.faulted.unread or "not_asked", detail, kernel_log.faulted.source)
    if gpu.bdf in kernel_log.faulted.value or gpu.coredump.value or status.value == "error":
        return Reading.no("faulted", "faulted on this boot: its driver is left alone", here)
    return None


def read_gpu(reader: Reader, gpu: Gpu) -> list[GpuThrottle]:
    """Clock domains of a card, as xe lays them out (one folder per GT) or as i915 does (files of each GT)."""
    here = f"{DEVICES}/{gpu.bdf}"
    found = [
        read_domain(reader, gpu.bdf, f"{tile.rpartition('/')[2]}/{gt.rpartition('/')[2]}", f"{gt}/freq0/throttle", "")
        for tile in reader.children(here, r"tile\d+")
        for gt in reader.children(tile, r"gt\d+")
        if reader.names(f"{gt}/freq0/throttle").unread != "absent"
    ]
    for card in reader.children(f"{here}/drm", r"card\d+"):
        for gt in reader.children(f"{card}/gt", r"gt\d+"):
            if reader.line(f"{gt}/throttle_reason_status").unread != "absent":
                found.append(read_domain(reader, gpu.bdf, gt.rpartition("/")[2], gt, "throttle_reason_"))
    return found


def read_processors(reader: Reader, name: str) -> Reading[int]:
    """The largest count of a kind over all processors."""
    counts: list[int] = []
    for cpu in reader.children(CPUS, r"cpu\d+"):
        reading = reader.line(f"{cpu}/thermal_throttle/{name}").then(parse_count)
        if reading.value is None:
            if reading.unread == "absent":
                continue
            return reading
        counts.append(reading.value)
    if not counts:
        return Reading.no("absent", "no processor counts its throttling", f"{CPUS}/cpu*/thermal_throttle/{name}")
    return Reading(max(counts), f"{CPUS}/cpu*/thermal_throttle/{name}")


def read_gpus(reader: Reader, pcie: Pcie, kernel_log: KernelLog, wake: bool) -> Reading[tuple[GpuThrottle, ...]]:
    if pcie.gpus.value is None:
        return pcie.gpus.then(lambda _: ())
    found: list[GpuThrottle] = []
    for gpu in pcie.gpus.value:
        if gpu.driver.value not in ("xe", "i915"):
            continue
        no = refusal(gpu, kernel_log, wake)
        found += [GpuThrottle(gpu.bdf, "", no, no.then(lambda _: ()))] if no is not None else read_gpu(reader, gpu)
    return Reading(tuple(found), pcie.gpus.source)


def read(reader: Reader, pcie: Pcie, kernel_log: KernelLog, options: Options) -> Throttle:
    return Throttle(
        gpus=read_gpus(reader, pcie, kernel_log, options.wake),
        core=read_processors(reader, "core_throttle_count"),
        package=read_processors(reader, "package_throttle_count"),
    )
