"""Clocks, power cap, temperatures and fans of the cards that xe or i915 drives.

All of these attributes call into the driver, and some ask the card's firmware: a card that sleeps or has faulted on
this boot is left alone, as `throttle` does it.

Layouts: Documentation/ABI/testing/sysfs-driver-intel-xe-hwmon and -i915-hwmon, xe's ``tileN/gtN/freq0``, i915's
``drm/cardN/gt/gtN/rps_*``; units as in Documentation/hwmon/sysfs-interface.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ..reader import Reader, Reading
from .kernel_log import KernelLog
from .pcie import DEVICES, Gpu, Pcie
from .throttle import refusal

if TYPE_CHECKING:
    from ..gather import Options

DRIVERS = ("xe", "i915")
DEBUG = "/sys/kernel/debug/dri"
ENGINE_FILES = ("job_timeout_ms", "preempt_timeout_us", "timeslice_duration_us")
# field of `Clock` -> name of the file in xe's freq0 and, for i915, in gtN
CLOCK_FILES = (
    ("actual", "act_freq", "rps_act_freq_mhz"),
    ("minimum", "min_freq", "rps_min_freq_mhz"),
    ("maximum", "max_freq", "rps_max_freq_mhz"),
    ("lowest", "rpn_freq", "rps_RPn_freq_mhz"),
    ("highest", "rp0_freq", "rps_RP0_freq_mhz"),
)


@dataclass(frozen=True)
class Clock:
    """One clock domain in MHz. domain: e.g. ``tile0/gt0``.

    actual: 0 while it idles. minimum, maximum: limits that were set. lowest, highest: what the hardware can (RPn, RP0).
    """

    domain: str
    actual: Reading[int]
    minimum: Reading[int]
    maximum: Reading[int]
    lowest: Reading[int]
    highest: Reading[int]


@dataclass(frozen=True)
class Power:
    """One power channel in watts. channel: e.g. ``power1``; label: e.g. ``card``, ``""`` when it has none.

    cap: the sustained limit (PL1) that is set. rated, largest: what the card is made for, and the most that may be set;
    absent where the driver does not tell.
    """

    channel: str
    label: str
    cap: Reading[float]
    rated: Reading[float]
    largest: Reading[float]


@dataclass(frozen=True)
class Temperature:
    """One sensor in degrees Celsius. label: e.g. ``pkg``, ``vram``; its channel when it has none.

    limit: the lowest of the limits that the driver gives (max, crit, emergency); absent where it gives none.
    """

    label: str
    celsius: Reading[float]
    limit: Reading[float]


@dataclass(frozen=True)
class Engine:
    """Limits of one class of engines. name: e.g. ``gt0/ccs``. values: file -> number, e.g. ``job_timeout_ms``: 5000.

    defaults: what the driver set, in the same form; absent where it keeps none.
    """

    name: str
    values: Reading[dict[str, int]]
    defaults: Reading[dict[str, int]]


@dataclass(frozen=True)
class GpuState:
    """Operating state of one card. fans: revolutions per minute, by channel; {} when it tells of none.

    vram_used: bytes of the card's memory that are in use, as the driver keeps book of it; xe tells it to root alone.
    engines: classes of engines with their time limits; xe alone has them below the device.
    """

    bdf: str
    clocks: Reading[tuple[Clock, ...]]
    power: Reading[tuple[Power, ...]]
    temperatures: Reading[tuple[Temperature, ...]]
    fans: Reading[dict[str, int]]
    vram_used: Reading[int]
    engines: Reading[tuple[Engine, ...]] = Reading.no("not_asked", "not read by this version")


@dataclass(frozen=True)
class GpuStates:
    """Operating state of every card that xe or i915 drives."""

    gpus: Reading[tuple[GpuState, ...]]


def parse_mhz(text: str) -> int:
    """Return a clock in MHz. Raises ValueError.

    >>> parse_mhz("2800\\n")
    2800
    """
    if not re.fullmatch(r"[0-9]{1,6}", text.strip(), re.ASCII):
        raise ValueError(f"expected a clock in MHz, got {text!r}")
    return int(text)


def parse_limit(text: str) -> int:
    """Return a time limit of an engine, in the unit of its file. Raises ValueError.

    >>> parse_limit("640000\\n")
    640000
    """
    if not re.fullmatch(r"[0-9]{1,12}", text.strip(), re.ASCII):
        raise ValueError(f"expected a time limit, got {text!r}")
    return int(text)


def parse_watts(text: str) -> float:
    """Return the watts of a value in microwatts. Raises ValueError.

    >>> parse_watts("230000000\\n")
    230.0
    """
    if not re.fullmatch(r"[0-9]{1,12}", text.strip(), re.ASCII):
        raise ValueError(f"expected microwatts, got {text!r}")
    return int(text) / 1e6


def parse_celsius(text: str) -> float:
    """Return the degrees of a value in thousandths of one. Raises ValueError.

    >>> parse_celsius("41500\\n"), parse_celsius("-3000\\n")
    (41.5, -3.0)
    """
    if not re.fullmatch(r"-?[0-9]{1,7}", text.strip(), re.ASCII):
        raise ValueError(f"expected thousandths of a degree, got {text!r}")
    return int(text) / 1e3


def parse_rpm(text: str) -> int:
    """Return revolutions per minute. Raises ValueError."""
    if not re.fullmatch(r"[0-9]{1,6}", text.strip(), re.ASCII):
        raise ValueError(f"expected revolutions per minute, got {text!r}")
    return int(text)


def parse_label(text: str) -> str:
    """Return the label of a channel. Raises ValueError for an empty or strange one."""
    word = " ".join(text.split())
    if not re.fullmatch(r"[\w .:/+-]{1,40}", word, re.ASCII):
        raise ValueError(f"expected a label, got {text!r}")
    return word


def parse_usage(text: str) -> int:
    """Return the bytes in use by the text of a memory manager (drivers/gpu/drm/ttm/ttm_resource.c).

    >>> parse_usage("  use_type: 1\\n  use_tt: 0\\n  size: 34242297856\\n  usage: 27746304\\nvisible avail: 32MiB\\n")
    27746304

    Raises ValueError where it does not say it.
    """
    found = re.findall(r"^ *usage: ([0-9]{1,18})$", text, re.MULTILINE)
    if len(found) != 1:
        raise ValueError(f"expected one line with the usage, got {text[:80]!r}")
    return int(found[0])


def read_vram_used(reader: Reader, gpu: Gpu) -> Reading[int]:
    """Memory in use, by the driver's own book: reading it asks neither the card nor its firmware.

    The folder is named after the card's address, before 6.13 after its minor number; the file is ``vram0_mm``, in newer
    kernels ``tile0/vram_mm``. No other file there is opened: some of them reset or evict (lab-host-facts 2.6).
    """
    if gpu.driver.value != "xe":
        return Reading.no("absent", f"{gpu.driver.value} does not tell it", DEBUG)
    listed = reader.names(DEBUG)
    if listed.value is None:
        return listed.then(lambda _: 0)
    minors = [node.name.removeprefix("card") for node in gpu.drm.value or () if node.name.startswith("card")]
    folder = next((name for name in (gpu.bdf, *minors) if name in listed.value), None)
    if folder is None:
        return Reading.no("absent", "no folder of this card", DEBUG)
    here = f"{DEBUG}/{folder}"
    places = (here, *reader.children(here, r"tile\d+"))
    paths = [path for place in places for path in reader.children(place, r"vram\d*_mm")]
    used = [reader.text(path, 1 << 20).then(parse_usage) for path in paths]
    if not used:
        return Reading.no("absent", "the driver gives no book of its memory", here)
    unread = next((one for one in used if one.value is None), None)
    return unread if unread is not None else Reading(sum(one.value or 0 for one in used), paths[0])


def read_clock(reader: Reader, domain: str, folder: str, is_xe: bool) -> Clock:
    values = {field: reader.line(f"{folder}/{xe if is_xe else old}").then(parse_mhz) for field, xe, old in CLOCK_FILES}
    return Clock(domain, **values)


def read_clocks(reader: Reader, here: str) -> Reading[tuple[Clock, ...]]:
    """Clock domains as xe lays them out (a folder per GT), or as i915 does (files of each GT)."""
    found = [
        read_clock(reader, f"{tile.rpartition('/')[2]}/{gt.rpartition('/')[2]}", f"{gt}/freq0", is_xe=True)
        for tile in reader.children(here, r"tile\d+")
        for gt in reader.children(tile, r"gt\d+")
        if reader.names(f"{gt}/freq0").unread != "absent"
    ]
    for card in reader.children(f"{here}/drm", r"card\d+"):
        for gt in reader.children(f"{card}/gt", r"gt\d+"):
            found.append(read_clock(reader, gt.rpartition("/")[2], gt, is_xe=False))
    if not found:
        return Reading.no("absent", "the driver gives no clock domain", here)
    return Reading(tuple(found), here)


def read_limits(reader: Reader, folder: str) -> Reading[dict[str, int]]:
    """The time limits of one folder; a kernel has those that it knows."""
    read = {name: reader.line(f"{folder}/{name}").then(parse_limit) for name in ENGINE_FILES}
    problem = next((one for one in read.values() if one.unread not in (None, "absent")), None)
    if problem is not None:
        return problem.then(lambda _: {})
    found = {name: one.value for name, one in read.items() if one.value is not None}
    return Reading(found, folder) if found else Reading.no("absent", "no time limit of the engine there", folder)


def read_engines(reader: Reader, gpu: Gpu, here: str) -> Reading[tuple[Engine, ...]]:
    """Classes of engines with their limits, which the driver keeps itself (drivers/gpu/drm/xe/xe_hw_engine*)."""
    if gpu.driver.value != "xe":
        return Reading.no("absent", f"{gpu.driver.value} has no engines there", here)
    found = []
    for tile in reader.children(here, r"tile\d+"):
        for gt in reader.children(tile, r"gt\d+"):
            for folder in reader.children(f"{gt}/engines", r"[a-z]{2,8}"):
                name = f"{gt.rpartition('/')[2]}/{folder.rpartition('/')[2]}"
                found.append(Engine(name, read_limits(reader, folder), read_limits(reader, f"{folder}/.defaults")))
    return Reading(tuple(found), here) if found else Reading.no("absent", "the driver gives no engines", here)


def _channels(names: tuple[str, ...], pattern: str) -> list[str]:
    """Channels that have a file of such a name, in the order of their numbers."""
    found = {match.group(1) for name in names if (match := re.fullmatch(pattern, name))}
    return sorted(found, key=lambda channel: (channel.rstrip("0123456789"), int(re.sub(r"\D", "", channel))))


def _label(reader: Reader, folder: str, channel: str) -> str:
    return reader.line(f"{folder}/{channel}_label").then(parse_label).value or ""


def read_power(reader: Reader, folder: str, names: tuple[str, ...]) -> tuple[Power, ...]:
    found = []
    for channel in _channels(names, r"(power\d+)_(?:cap|max|rated_max)"):
        # PL1 is power1_cap on Battlemage, power1_max on the cards before it (sysfs-driver-intel-xe-hwmon).
        has_cap = f"{channel}_cap" in names
        cap = reader.line(f"{folder}/{channel}_{'cap' if has_cap else 'max'}").then(parse_watts)
        largest = f"{channel}_cap_max" if f"{channel}_cap_max" in names or not has_cap else f"{channel}_max"
        found.append(
            Power(
                channel,
                _label(reader, folder, channel),
                cap,
                reader.line(f"{folder}/{channel}_rated_max").then(parse_watts),
                reader.line(f"{folder}/{largest}").then(parse_watts),
            )
        )
    return tuple(found)


def read_temperatures(reader: Reader, folder: str, names: tuple[str, ...]) -> tuple[Temperature, ...]:
    found = []
    for channel in _channels(names, r"(temp\d+)_input"):
        limits = [
            reader.line(f"{folder}/{channel}_{word}").then(parse_celsius)
            for word in ("max", "crit", "emergency")
            if f"{channel}_{word}" in names
        ]
        unread = limits[0] if limits and limits[0].value is None else None  # the lowest one: max <= crit <= emergency
        known = [limit for limit in limits if limit.value is not None and limit.value > 0]  # 0: not given by the card
        if unread is not None:
            limit = unread
        elif known:
            limit = min(known, key=lambda one: one.value or 0.0)
        else:
            limit = Reading.no("absent", "the driver gives no limit for this sensor", f"{folder}/{channel}_*")
        celsius = reader.line(f"{folder}/{channel}_input").then(parse_celsius)
        found.append(Temperature(_label(reader, folder, channel) or channel, celsius, limit))
    return tuple(found)


def read_fans(reader: Reader, folder: str, names: tuple[str, ...]) -> Reading[dict[str, int]]:
    found: dict[str, int] = {}
    for channel in _channels(names, r"(fan\d+)_input"):
        rpm = reader.line(f"{folder}/{channel}_input").then(parse_rpm)
        if rpm.value is None:
            return rpm.then(lambda _: {})
        found[channel] = rpm.value
    return Reading(found, folder)


def hwmon(reader: Reader, here: str) -> Reading[str]:
    """The card's own hwmon folder; its number changes from boot to boot, so it is found below the device, by name."""
    listed = reader.names(f"{here}/hwmon")
    if listed.value is None:
        return listed.then(str)
    for path in (f"{here}/hwmon/{name}" for name in listed.value):
        name = reader.line(f"{path}/name")
        if name.value in DRIVERS:
            return Reading(path, path)
        if name.unread not in (None, "absent"):
            return name
    return Reading.no("absent", "no hwmon of the driver", f"{here}/hwmon")


def read_gpu(reader: Reader, gpu: Gpu) -> GpuState:
    bdf, here = gpu.bdf, f"{DEVICES}/{gpu.bdf}"
    folder = hwmon(reader, here)
    names = reader.names(folder.value) if folder.value is not None else folder.then(lambda _: ("",))
    if folder.value is None or names.value is None:
        return GpuState(
            bdf,
            read_clocks(reader, here),
            names.then(lambda _: ()),
            names.then(lambda _: ()),
            names.then(lambda _: {}),
            read_vram_used(reader, gpu),
            read_engines(reader, gpu, here),
        )
    return GpuState(
        bdf,
        read_clocks(reader, here),
        Reading(read_power(reader, folder.value, names.value), folder.value),
        Reading(read_temperatures(reader, folder.value, names.value), folder.value),
        read_fans(reader, folder.value, names.value),
        read_vram_used(reader, gpu),
        read_engines(reader, gpu, here),
    )


def read(reader: Reader, pcie: Pcie, kernel_log: KernelLog, options: Options) -> GpuStates:
    if pcie.gpus.value is None:
        return GpuStates(pcie.gpus.then(lambda _: ()))
    found = []
    for gpu in pcie.gpus.value:
        if gpu.driver.value not in DRIVERS:
            continue
        no = refusal(gpu, kernel_log, options.wake)
        if no is not None:
            found.append(
                GpuState(
                    gpu.bdf,
                    no.then(lambda _: ()),
                    no.then(lambda _: ()),
                    no.then(lambda _: ()),
                    no.then(lambda _: {}),
                    no,
                    no.then(lambda _: ()),
                )
            )
        else:
            found.append(read_gpu(reader, gpu))
    return GpuStates(Reading(tuple(found), pcie.gpus.source))
