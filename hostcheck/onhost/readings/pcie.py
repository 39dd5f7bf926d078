"""PCI functions, the way from every GPU to its root port, and the link of each hop.

Reading must do no harm. What a sleeping card would be woken by, and what would call into the driver of a card that
faulted, is not read at all; `Touch` decides it from the power state and the kernel log before anything else is read.

Link values come from configuration space, else from sysfs, else from the text of lspci.

A recording may be a part of a host: a listing of lspci, a few files, a log. What such a part does not hold is unread;
it is absent only where the directory that would hold it was read as well (`is_listed`).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Callable, TypeVar

from ..reader import Reader, Reading
from . import config_space, gpu_ids, lspci
from .config_space import AerRegisters as AerRegisters
from .config_space import ConfigSpace
from .kernel_log import Event, KernelLog

if TYPE_CHECKING:
    from ..gather import Options

T = TypeVar("T")
N = TypeVar("N", int, float)

DEVICES = "/sys/bus/pci/devices"
SLOTS = "/sys/bus/pci/slots"
MODULES = "/proc/modules"
BDF = r"[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]"
LINK_FILES = ("clkpm", "l0s_aspm", "l1_aspm", "l1_1_aspm", "l1_2_aspm", "l1_1_pcipm", "l1_2_pcipm")
DRM, DRM_NODE = "/sys/class/drm", r"(card|renderD)\d+"
GRAPHICS = "/sys/class/graphics"
ASLEEP = ("suspended", "suspending", "resuming")
# Files that every function has in sysfs; as many of them as this, and its directory is taken for whole.
EVERYWHERE = ("power/control", "power/runtime_status", "subsystem_vendor", "subsystem_device")
# What a driver says of a GPU that it does not take.
REFUSALS = ("probe_failed", "probe_blocked", "not_supported_by_driver")
MORE = ("resource", "numa_node", "config")


@dataclass(frozen=True)
class Function:
    """One PCI function.

    bdf: address with its domain, lower case. vendor, device, class_code: hexadecimal without 0x, e.g. ``8086``,
    ``e223``, ``030000``. driver: ``""`` when none is bound. parent: BDF of the bridge above, ``""`` at a root port.
    root_port: the first of its ancestors, ``""`` when it has none. port_type: of its express capability, where a
    listing told it.
    """

    bdf: str
    vendor: str
    device: str
    class_code: str
    driver: str
    parent: str
    root_port: str
    port_type: int | None = None


@dataclass(frozen=True)
class Aer:
    """Counters of the kernel since boot (absent where the function has no AER capability).

    correctable, nonfatal, fatal: name of the bit -> count, ``TOTAL_ERR_*`` included.
    rootport_*: messages that a root port has received.
    """

    correctable: Reading[dict[str, int]]
    nonfatal: Reading[dict[str, int]]
    fatal: Reading[dict[str, int]]
    rootport_correctable: Reading[int]
    rootport_nonfatal: Reading[int]
    rootport_fatal: Reading[int]


@dataclass(frozen=True)
class Hop:
    """One function on the way from a root port to a GPU.

    role: root_port, switch_upstream, switch_downstream, bridge, card_upstream, card_downstream or gpu.
    crosses_slot: the link above this function is the one between the host and the card.
    inner: the link above this function lies inside the card and says nothing about the slot.
    speed, max_speed: GT/s; width, max_width: lanes; max_* are this end's own capability.
    link_source: config, sysfs, lspci or "" (nothing was read).
    aspm: what LnkCtl enables: disabled, l0s, l1 or "l0s l1". aspm_files: link/* of sysfs, name -> 0 or 1.
    aer_capable: has it the AER capability? acs: bits that are set in ACSCtl. troubles: ``training``, ``inactive``, as
    LnkSta says of the link below a port. l1_substates: enabled ones, by lspci's names.
    slot: name of the physical slot, ``""`` when the firmware names none.
    """

    bdf: str
    vendor: str
    device: str
    class_code: str
    role: str
    crosses_slot: bool
    inner: bool
    driver: str
    speed: Reading[float]
    max_speed: Reading[float]
    width: Reading[int]
    max_width: Reading[int]
    link_source: str
    aspm: Reading[str]
    aspm_files: Reading[dict[str, int]]
    power_control: Reading[str]
    runtime_status: Reading[str]
    aer: Aer
    aer_capable: Reading[bool]
    aer_registers: Reading[AerRegisters]
    acs: Reading[tuple[str, ...]]
    slot: Reading[str]
    troubles: Reading[tuple[str, ...]] = Reading.no("not_asked", "not read by this version")
    l1_substates: Reading[tuple[str, ...]] = Reading.no("not_asked", "not read by this version")


@dataclass(frozen=True)
class DrmNode:
    """A device node of a GPU. name: card0, renderD128. mode: permission bits of /dev/dri/NAME; uid, gid: its owner."""

    name: str
    mode: Reading[int]
    uid: Reading[int]
    gid: Reading[int]


@dataclass(frozen=True)
class Gpu:
    """One GPU function.

    integrated: part of the processor. vf: a virtual function. driver: ``""`` when none is bound.
    bars: bytes of BAR 0 to 5. bar_sizes: sizes that BAR 2 offers (resizable BAR capability), ascending.
    survivability: the xe driver runs it in survivability mode. coredump: a devcoredump node exists for it.
    uplink: BDF of the card-side port whose upper link crosses the slot; ``""`` when it cannot be seen.
    path: root port first, the GPU last. siblings: other functions of the same card.
    listed: its directory in sysfs was read, so that a file which is absent there does not exist.
    answers: False when it gives all ones, as a card does that left the bus.
    boot_vga: did the firmware show its own screens on it? framebuffers: consoles of the kernel that it carries: fb0.
    """

    bdf: str
    vendor: str
    device: str
    subsystem: str
    class_code: str
    integrated: bool
    vf: bool
    driver: Reading[str]
    runtime_status: Reading[str]
    power_control: Reading[str]
    numa_node: Reading[int]
    bars: Reading[tuple[int, ...]]
    bar_sizes: Reading[tuple[int, ...]]
    drm: Reading[tuple[DrmNode, ...]]
    survivability: Reading[bool]
    coredump: Reading[bool]
    auto_link_downgrade_capable: Reading[int]
    auto_link_downgrade_status: Reading[int]
    uplink: str
    path: tuple[Hop, ...]
    siblings: tuple[str, ...]
    listed: bool = True
    answers: Reading[bool] = Reading.no("not_asked", "not read by this version")
    boot_vga: Reading[bool] = Reading.no("not_asked", "not read by this version")
    framebuffers: Reading[tuple[str, ...]] = Reading.no("not_asked", "not read by this version")


@dataclass(frozen=True)
class Pcie:
    """PCI Express of a host.

    functions: every PCI function. gpus: every GPU function, by BDF; unread where a function may be one and no other is.
    drivers: PCI drivers that are registered. modules: loaded modules, where the drivers could not be listed.
    force_probe: words of the kernel command line that set force_probe of a driver, e.g. ``xe.force_probe=e223``.
    background: correctable error counters of functions that lie on no path to a GPU and have counted any.
    """

    functions: Reading[tuple[Function, ...]]
    gpus: Reading[tuple[Gpu, ...]]
    drivers: Reading[tuple[str, ...]]
    force_probe: Reading[tuple[str, ...]]
    background: Reading[dict[str, dict[str, int]]]
    modules: Reading[tuple[str, ...]] = Reading.no("not_asked", "the registered drivers tell")


def path_bdfs(gpu: Gpu) -> set[str]:
    """BDFs of every function on the way to a GPU, itself included."""
    return {hop.bdf for hop in gpu.path} | {gpu.bdf}


def hop(pcie: Pcie, bdf: str) -> Hop | None:
    """The hop with that address on the path of any GPU."""
    return next((item for gpu in pcie.gpus.value or () for item in gpu.path if item.bdf == bdf), None)


# -- parsers ----------------------------------------------------------------------------------------------------------


def parse_id(text: str) -> str:
    """Return a hexadecimal id without 0x, lower case.

    >>> parse_id("0xE223\\n")
    'e223'

    Raises ValueError for anything else.
    """
    match = re.fullmatch(r"(?:0x)?([0-9a-f]{1,6})", text.strip().lower())
    if not match:
        raise ValueError(f"expected a hexadecimal id, got {text!r}")
    return match.group(1).zfill(4)


def parse_class(text: str) -> str:
    """Return the six digits of a class code. Raises ValueError."""
    return parse_id(text).zfill(6)


def parse_speed(text: str) -> float:
    """Return GT/s of a sysfs link attribute, as kernels of all ages write it.

    >>> parse_speed("16.0 GT/s PCIe\\n"), parse_speed("8 GT/s"), parse_speed("2.5GT/s")
    (16.0, 8.0, 2.5)

    Raises ValueError for ``Unknown``, ``Unknown speed`` and anything else.
    """
    match = re.fullmatch(r"(\d+(?:\.\d+)?) ?GT/s(?: PCIe)?", text.strip())
    if not match:
        raise ValueError(f"the kernel says {text.strip()!r}")
    return float(match.group(1))


def parse_width(text: str) -> int:
    """Return the lanes of a sysfs link attribute; 0 is a link that is down, 255 the kernel's word for unknown.

    >>> parse_width("16\\n"), parse_width("x8")
    (16, 8)
    """
    match = re.fullmatch(r"x?(\d{1,3})", text.strip())
    if not match or int(match.group(1)) not in (0, *config_space.WIDTHS):
        raise ValueError(f"the kernel says width {text.strip()!r}")
    return int(match.group(1))


def parse_power_word(text: str) -> str:
    """Return a word of power/control or power/runtime_status. Raises ValueError.

    >>> parse_power_word("suspended\\n")
    'suspended'
    """
    if not re.fullmatch(r"[a-z]{1,20}", text.strip(), re.ASCII):
        raise ValueError(f"expected a word, got {text!r}")
    return text.strip()


def parse_slot_address(text: str) -> str:
    """Return domain, bus and device of a slot; the kernel leaves the device out where it is not fixed.

    >>> parse_slot_address("0000:C1:00\\n"), parse_slot_address("0000:c1")
    ('0000:c1:00', '0000:c1')

    Raises ValueError for anything else.
    """
    if not re.fullmatch(r"[0-9a-f]{4,8}:[0-9a-f]{2}(?::[0-9a-f]{2})?", text.strip().lower(), re.ASCII):
        raise ValueError(f"expected the address of a slot, got {text!r}")
    return text.strip().lower()


def parse_max_width(text: str) -> int:
    """As `parse_width`, where 0 is no answer."""
    lanes = parse_width(text)
    if lanes == 0:
        raise ValueError("the kernel says width '0'")
    return lanes


def parse_number(text: str) -> int:
    """Return a decimal number. Raises ValueError."""
    if not re.fullmatch(r"-?[0-9]{1,18}", text.strip()):
        raise ValueError(f"expected a number, got {text!r}")
    return int(text)


def parse_flag(text: str) -> bool:
    """Return whether a flag is set. Raises ValueError for anything but 0 and 1."""
    if text.strip() not in ("0", "1"):
        raise ValueError(f"expected 0 or 1, got {text!r}")
    return text.strip() == "1"


def parse_counters(text: str) -> dict[str, int]:
    """Return the counts of aer_dev_*, by name. Raises ValueError for a line that is not a name and a number.

    >>> parse_counters("RxErr 0\\nBadTLP 3\\nTOTAL_ERR_COR 3\\n")
    {'RxErr': 0, 'BadTLP': 3, 'TOTAL_ERR_COR': 3}
    """
    found: dict[str, int] = {}
    for line in text.splitlines():
        name, _, number = line.strip().rpartition(" ")
        if not name or not re.fullmatch(r"[0-9]{1,18}", number):
            raise ValueError(f"expected a name and a number, got {line!r}")
        found[name.strip()] = int(number)
    if not found:
        raise ValueError("no counters")
    return found


def parse_resource(text: str) -> tuple[int, ...]:
    """Return the bytes of BAR 0 to 5: the first six lines of ``resource``. A BAR that has no address has 0 bytes.

    >>> parse_resource("0x00000000fc000000 0x00000000fcffffff 0x0000000000140204\\n" + 5 * "0x0 0x0 0x0\\n")
    (16777216, 0, 0, 0, 0, 0)
    """
    sizes = []
    for line in text.splitlines()[:6]:
        words = line.split()
        if len(words) != 3 or not all(re.fullmatch(r"0x[0-9a-f]{1,16}", word) for word in words):
            raise ValueError(f"expected start, end and flags, got {line!r}")
        start, end = int(words[0], 16), int(words[1], 16)
        sizes.append(end - start + 1 if end > start else 0)
    if len(sizes) != 6:
        raise ValueError(f"expected six lines, got {len(sizes)}")
    return tuple(sizes)


def parse_ancestry(target: str) -> tuple[str, ...]:
    """Return the BDFs on the way to a device, the device last, from where its link in /sys/bus/pci/devices leads.

    >>> parse_ancestry("../../../devices/pci0000:20/0000:20:01.0/0000:21:00.0")
    ('0000:20:01.0', '0000:21:00.0')

    Raises ValueError when it leads through no PCI device.
    """
    found = tuple(re.findall(rf"(?<=/)({BDF})(?=/|$)", target.lower()))
    if not found:
        raise ValueError(f"no PCI address in {target!r}")
    return found


def parse_force_probe(command_line: str) -> tuple[str, ...]:
    """Return the words of a kernel command line that set force_probe, as they stand there.

    >>> parse_force_probe("ro quiet xe.force_probe='56a1' i915.force_probe=!56a1")
    ("xe.force_probe='56a1'", 'i915.force_probe=!56a1')
    """
    words = re.findall(r'(?:[^\s"]|"[^"]*")+', command_line)
    return tuple(word for word in words if re.match(r'"?\w+\.force_probe=', word))


def parse_modules(text: str) -> tuple[str, ...]:
    """Return the names of the loaded modules, as ``/proc/modules`` or lsmod writes them.

    >>> parse_modules("xe 3031040 0 - Live 0x0000000000000000\\ndrm_buddy 24576 1 xe, Live 0x0\\n")
    ('xe', 'drm_buddy')

    Raises ValueError for a line that is not a name and a size.
    """
    found = []
    for line in text.splitlines():
        words = line.split()
        if words and not (len(words) > 1 and re.fullmatch(r"\w+", words[0]) and words[1].isdigit()):
            raise ValueError(f"expected a module and its size, got {line!r}")
        found += words[:1]
    return tuple(found)


# -- structure --------------------------------------------------------------------------------------------------------


def is_bridge(function: Function) -> bool:
    """Is it a PCI bridge, which every port is?"""
    return function.class_code.startswith("0604")


def chain(functions: dict[str, Function], bdf: str) -> list[Function]:
    """The way to a function: root port first, the function last."""
    way = [functions[bdf]]
    while way[0].parent in functions and functions[way[0].parent] not in way:
        way.insert(0, functions[way[0].parent])
    return way


def is_cut(way: Sequence[Function], port_type: int | None = None) -> bool:
    """Does the way begin below a port that was not read? Then its first port is none of the host's.

    port_type: of that first port, where its configuration space was read.
    """
    top = way[0]
    if len(way) == 1:
        return False
    kind = top.port_type if port_type is None else port_type
    if top.parent or kind is not None:
        return bool(top.parent) or kind in (config_space.UPSTREAM, config_space.DOWNSTREAM)
    return (top.vendor, top.device) in gpu_ids.CARD_PORTS


def leads_down(port: Function, port_type: int | None = None) -> bool:
    """Is it the downstream port of a switch, so that the link above it is none?"""
    kind = port.port_type if port_type is None else port_type
    return kind == config_space.DOWNSTREAM if kind is not None else (port.vendor, port.device) in gpu_ids.INNER_PORTS


def card_start(way: Sequence[Function], port_type: int | None = None) -> int:
    """Index, on the way to a GPU, of the function whose upper link crosses the slot.

    A card's own switch is of the GPU's vendor: all ports of that vendor directly above the GPU are the card, down
    from the topmost known card port where there is one. The port at index 0 belongs to the host, unless the way is cut
    (`is_cut`). A card without a switch of its own crosses the slot with the GPU function.
    """
    gpu = way[-1]
    first = len(way) - 1
    least = 0 if is_cut(way, port_type) else 1
    while first > least and is_bridge(way[first - 1]) and way[first - 1].vendor == gpu.vendor:
        first -= 1
    known = [at for at in range(first, len(way) - 1) if (way[at].vendor, way[at].device) in gpu_ids.CARD_PORTS]
    # A switch is an upstream port and a downstream port, so ports come in pairs: an odd one at the top belongs to
    # something else, and above a known downstream port is its upstream port.
    if known:
        return known[0] - ((len(way) - 1 - known[0]) % 2 if known[0] > first else 0)
    return first + (len(way) - 1 - first) % 2


def roles(way: Sequence[Function], port_types: Sequence[int | None]) -> list[str]:
    """Role of every function on the way. port_types: of the express capability, None where it was not read.

    Below a root port or a downstream port comes an upstream port, below an upstream port a downstream port.
    """
    start = card_start(way, port_types[0])
    kinds = {
        config_space.ROOT_PORT: "root_port",
        config_space.UPSTREAM: "switch_upstream",
        config_space.DOWNSTREAM: "switch_downstream",
        config_space.PCIE_TO_PCI: "bridge",
        config_space.PCI_TO_PCIE: "bridge",
    }
    found: list[str] = []
    for at, function in enumerate(way):
        port_type = port_types[at]
        above = found[-1] if found else ""
        if at == len(way) - 1:
            role = "gpu"
        elif at == 0 and not is_cut(way, port_type):
            role = "root_port"
        elif at == 0:
            role = "switch_downstream" if leads_down(function, port_type) else "switch_upstream"
        elif port_type in kinds and port_type != config_space.ROOT_PORT:
            role = kinds[port_type]
        elif not is_bridge(function) or above == "bridge":
            role = "bridge"
        else:
            role = "switch_downstream" if above.endswith("_upstream") else "switch_upstream"
        if start <= at < len(way) - 1:
            role = role.replace("switch_", "card_")
        found.append(role)
    return found


def slot_of(way: Sequence[Function], start: int, port_type: int | None = None) -> tuple[int | None, bool]:
    """Index of the function at the slot, None where it cannot be seen, and whether `start` itself lies inside the card.

    start: of `card_start`. port_type: of the first function of the way, where its configuration space was read.
    """
    gpu, last = way[-1], len(way) - 1
    known = gpu_ids.product(gpu.vendor, gpu.device)
    if start == last and known is not None and known.family in gpu_ids.INNER_SWITCH:
        return None, True  # the GPU function of such a card is never at the slot
    if is_cut(way, port_type):
        own = start == last and way[-2].vendor == gpu.vendor
        is_inside = own or (start == 0 and leads_down(way[0], port_type))
        return (None, True) if is_inside else (start, False)
    if start > 0:
        return start, False
    at_slot = gpu.vendor in gpu_ids.WITHOUT_SWITCH and gpu.bdf.split(":")[-2] != "00"
    return (0, False) if at_slot else (None, False)


def is_integrated(gpu: Function, way: Sequence[Function], functions: Iterable[Function]) -> bool:
    """Is the GPU part of the processor?

    Intel's sits at device 2 of bus 0; AMD's shares its device number with other functions of AMD's processor
    division (vendor 1022), such as the security processor.
    """
    if gpu.vendor == gpu_ids.INTEL:
        known = gpu_ids.product(gpu.vendor, gpu.device)
        return known is None and len(way) == 1 and re.search(r"^0+:00:02\.\d$", gpu.bdf) is not None
    return gpu.vendor == gpu_ids.AMD and any(
        other.vendor == "1022" and other.bdf[:-1] == gpu.bdf[:-1] for other in functions
    )


def siblings(gpu: Function, way: Sequence[Function], functions: Iterable[Function]) -> tuple[str, ...]:
    """Other functions of the same card: those below its upstream port, and those with its own device number."""
    start = card_start(way)
    port = way[start].bdf if start < len(way) - 1 else ""
    own = {function.bdf for function in way}
    below = {port}
    found = []
    for function in sorted(functions, key=lambda one: one.bdf):  # a port has a lower bus number than what is below it
        if port and function.parent in below:
            below.add(function.bdf)
            if function.bdf not in own:
                found.append(function.bdf)
        elif function.bdf not in own and function.bdf[:-1] == gpu.bdf[:-1]:
            found.append(function.bdf)
    return tuple(found)


# -- what may be read -------------------------------------------------------------------------------------------------


@dataclass
class Touch:
    """What may be read of which function.

    asleep: BDF -> why nothing but ids, driver and power/* may be read. faulted: GPUs whose driver may not be called.
    """

    asleep: dict[str, str] = field(default_factory=dict)
    faulted: set[str] = field(default_factory=set)

    def refusal(self, bdf: str, source: str = "", driver: bool = False) -> Reading[Any] | None:
        """The reading that stands for what may not be read, or None when it may. driver: it would call the driver."""
        if bdf in self.asleep:
            return Reading.no("suspended", self.asleep[bdf], source)
        if driver and bdf in self.faulted:
            return Reading.no("faulted", "faulted on this boot: its driver is left alone", source)
        return None


def asleep(status: Reading[str]) -> str:
    """Why a function may not be touched, by its runtime_status; "" when it may.

    A kernel without runtime power management has no such file and puts nothing to sleep. Where the file could not be
    read for another reason the function may be asleep.
    """
    if status.value is None:
        return "" if status.unread == "absent" else f"runtime_status {status.unread}, so it may be asleep"
    return f"runtime_status {status.value}" if status.value in ASLEEP else ""


def sleepers(
    gpus: Iterable[str], functions: dict[str, Function], status: Callable[[str], Reading[str]]
) -> dict[str, str]:
    """BDF -> why, for the GPUs and bridges of which only ids, driver and power/* may be read.

    A bridge is left alone when it sleeps itself, when it is part of a card that sleeps, and when it leads to nothing
    but cards that sleep.
    """
    found: dict[str, str] = {}
    ways = {bdf: chain(functions, bdf) for bdf in gpus}
    for bdf in ways:
        if why := asleep(status(bdf)):
            found[bdf] = why
    own = {bdf: {bdf, *siblings(way[-1], way, functions.values())} for bdf, way in ways.items()}
    for bdf, way in ways.items():
        for at, port in enumerate(way[:-1]):
            if port.bdf in found:
                continue
            if why := asleep(status(port.bdf)):
                found[port.bdf] = why
            elif bdf in found:
                below = [
                    one.bdf
                    for one in functions.values()
                    if not is_bridge(one) and port.bdf in (up.bdf for up in chain(functions, one.bdf)[:-1])
                ]
                sleeping = {name for gpu, names in own.items() if gpu in found for name in names}
                if at >= card_start(way) or all(name in sleeping for name in below):
                    found[port.bdf] = f"leads to {bdf}: {found[bdf]}"
    return found


# -- readers ----------------------------------------------------------------------------------------------------------


def is_listed(reader: Reader, bdf: str) -> bool:
    """Was the directory of this function read, and not only a few of its files copied by a person?

    Every function has the files of `EVERYWHERE` (two of them without runtime power management) and of `MORE`. Those are
    read only where nothing can be asleep.
    """
    here = f"{DEVICES}/{bdf}"

    def there(names: Iterable[str]) -> list[str]:
        return [name for name in names if reader.data(f"{here}/{name}").unread != "absent"]

    found = there(EVERYWHERE)
    if len(found) < len(EVERYWHERE) and "power/runtime_status" not in found:
        found += there(MORE)
    return len(found) >= len(EVERYWHERE)


def read_functions(
    reader: Reader, listing: Callable[[], Reading[dict[str, lspci.Device]]]
) -> Reading[dict[str, Function]]:
    """Every PCI function of the host: cheap, the kernel has all of it cached.

    A recording without this directory may hold a listing of lspci instead.
    """
    names = reader.names(DEVICES)
    if names.value is None:
        if names.unread != "absent":
            return names.then(lambda _: {})
        buses = reader.names("/sys/bus")
        if "platform" in (buses.value or ()) and "pci" not in (buses.value or ()):
            return Reading({}, DEVICES)  # a machine without a PCI bus; every Linux has the other one
        return listing().then(from_listing)
    found: dict[str, Function] = {}
    for name in names.value:
        bdf = name.lower()
        if not re.fullmatch(BDF, bdf):
            continue
        here = f"{DEVICES}/{name}"
        way = reader.link(here).then(parse_ancestry).value or reader.resolve(here).then(parse_ancestry).value or (bdf,)
        driver = reader.link(f"{here}/driver")
        found[bdf] = Function(
            bdf,
            reader.line(f"{here}/vendor").then(parse_id).value or "",
            reader.line(f"{here}/device").then(parse_id).value or "",
            reader.line(f"{here}/class").then(parse_class).value or "",
            (driver.value or "").rpartition("/")[2],
            way[-2] if len(way) > 1 else "",
            way[0] if len(way) > 1 else "",
        )
    return Reading(found, DEVICES)


def from_listing(devices: dict[str, lspci.Device]) -> dict[str, Function]:
    """Functions of a listing of lspci; who is below whom follows from the bus numbers of the bridges."""
    above = {
        (device.bdf.rpartition(":")[0].rpartition(":")[0], device.buses[1]): device.bdf
        for device in devices.values()
        if device.buses is not None
    }
    parents: dict[str, str] = {}
    for bdf, device in devices.items():
        domain, bus, _ = bdf.rsplit(":", 2)
        parents[bdf] = above.get((domain, bus), "") or own_port(device, devices.values())
    found: dict[str, Function] = {}
    for bdf, device in devices.items():
        root, seen = bdf, {bdf}
        while parents[root] and parents[root] not in seen:
            root = parents[root]
            seen.add(root)
        found[bdf] = Function(
            bdf,
            device.vendor,
            device.device,
            device.class_code,
            device.driver,
            parents[bdf] if parents[bdf] != bdf else "",
            root if root != bdf else "",
            device.port_type,
        )
    return found


def own_port(gpu: lspci.Device, devices: Iterable[lspci.Device]) -> str:
    """The upstream port of a card in a listing without the downstream port between it and the GPU, or ``""``."""
    if not gpu_ids.is_gpu(gpu.vendor, gpu.class_code):
        return ""
    domain, bus, _ = gpu.bdf.rsplit(":", 2)
    around = [
        (device.buses[1], device)
        for device in devices
        if device.buses is not None
        and device.bdf.rsplit(":", 2)[0] == domain
        and device.buses[1] < bus <= device.buses[2]
    ]
    if not around:
        return ""
    lowest_port = max(around, key=lambda one: one[0])[1]
    ids = (lowest_port.vendor, lowest_port.device)
    known = ids in gpu_ids.CARD_PORTS - gpu_ids.INNER_PORTS
    is_upstream = lowest_port.port_type == config_space.UPSTREAM or (lowest_port.port_type is None and known)
    return lowest_port.bdf if is_upstream and lowest_port.vendor == gpu.vendor else ""


def together(found: dict[str, Function], listed: dict[str, Function]) -> dict[str, Function]:
    """Functions of sysfs, and of a listing what sysfs does not have of them."""
    result = dict(found)
    for bdf, other in listed.items():
        one = found.get(bdf)
        if one is None:
            result[bdf] = other
        else:
            result[bdf] = Function(
                bdf,
                one.vendor or other.vendor,
                one.device or other.device,
                one.class_code or other.class_code,
                one.driver or other.driver,
                one.parent or other.parent,
                one.root_port or other.root_port,
                other.port_type,
            )
    return result


def last_driver(events: Iterable[Event], bdf: str) -> str:
    """The driver that had this GPU on this boot by the log, and whose probe has not failed since; else ``""``."""
    own = [event for event in events if event.bdf == bdf and not event.previous_boot]
    said: dict[str, int] = {}
    for event in own:
        driver = gpu_ids.speaker(event.kind, event.details)
        if driver and event.kind not in REFUSALS:
            said[driver] = max(said.get(driver, event.order_last), event.order_last)
    for event in own:
        driver = gpu_ids.speaker(event.kind, event.details)
        if event.kind in REFUSALS and driver in said and event.order_last >= said[driver]:
            del said[driver]
    return max(said, key=lambda driver: said[driver], default="")


class Listing:
    """lspci, asked as little as possible: one function at a time, the whole only where there is no lspci to ask.

    A whole listing is accepted from a recording; on a live host with lspci the first question is answered, so the
    whole is never printed there.
    """

    def __init__(self, reader: Reader) -> None:
        self.reader = reader
        self.useless = ""  # why another question would not be answered either
        self._whole: Reading[dict[str, lspci.Device]] | None = None

    @property
    def is_whole(self) -> bool:
        """Was the whole printed, so that asking about one more function costs nothing?"""
        return self._whole is not None and self._whole.value is not None

    def whole(self) -> Reading[dict[str, lspci.Device]]:
        if self._whole is None:
            self._whole = self.reader.output(lspci.WHOLE).then(lspci.parse)
        return self._whole

    def of(self, bdf: str) -> Reading[lspci.Device]:
        """What lspci says of one function."""
        argv = (*lspci.WHOLE, "-s", bdf)
        source = " ".join(argv)
        if self._whole is None and not self.useless:
            answer = self.reader.output(argv).then(lspci.parse)
            if answer.unread != "tool_missing":
                found = self._one(answer, bdf)
                if found.value is None or found.value.denied:
                    self.useless = found.detail or "capabilities: access denied"
                return found
        if self.useless:
            return Reading.no("permission" if "denied" in self.useless else "exit", self.useless, source)
        return self._one(self.whole(), bdf)

    @staticmethod
    def _one(answer: Reading[dict[str, lspci.Device]], bdf: str) -> Reading[lspci.Device]:
        if answer.value is not None and bdf not in answer.value:
            return Reading.no("absent", f"lspci does not list {bdf}", answer.source)
        return answer.then(lambda found: found[bdf])


@dataclass
class Link:
    """Link values of one function from one source."""

    speed: Reading[float]
    max_speed: Reading[float]
    width: Reading[int]
    max_width: Reading[int]


def from_config(config: Reading[ConfigSpace]) -> Link:
    def part(name: str, parse: Callable[[int], T]) -> Reading[T]:
        if config.value is not None and getattr(config.value, name) is None:
            return Reading.no("absent", "no link in its express capability", config.source)
        return config.then(lambda space: parse(getattr(space, name)))

    return Link(
        part("link_sta", config_space.speed),
        part("link_cap", config_space.speed),
        part("link_sta", config_space.width),
        part("link_cap", config_space.max_width),
    )


def from_sysfs(reader: Reader, here: str) -> Link:
    return Link(
        reader.line(f"{here}/current_link_speed").then(parse_speed),
        reader.line(f"{here}/max_link_speed").then(parse_speed),
        reader.line(f"{here}/current_link_width").then(parse_width),
        reader.line(f"{here}/max_link_width").then(parse_max_width),
    )


def from_text(device: Reading[lspci.Device]) -> Link:
    def part(name: str, parse: Callable[[T], T]) -> Reading[T]:
        found = device.value
        if found is None:
            return device.then(lambda one: getattr(one, name))
        if found.dead:
            return Reading.no("io", "lspci: the device does not answer", device.source)
        if found.denied and not found.link:
            return Reading.no("permission", "lspci: capabilities: access denied", device.source)
        if not found.link:
            return Reading.no("absent", "lspci prints no link", device.source)
        value = getattr(found, name)
        if value is None:
            return Reading.no("not_understood", f"lspci: {name.replace('_', ' ')} unknown", device.source)
        return device.then(lambda _: parse(value))

    return Link(
        part("speed", float),
        part("max_speed", float),
        part("width", lambda lanes: parse_width(str(lanes))),
        part("max_width", lambda lanes: parse_max_width(str(lanes))),
    )


def best(*readings: Reading[T]) -> Reading[T]:
    """The first with a value; else the first whose reason is not that there is no such file; else the first."""
    for reading in readings:
        if reading.value is not None:
            return reading
    return next((reading for reading in readings if reading.unread != "absent"), readings[0])


def lowest(*readings: Reading[N]) -> Reading[N]:
    """The lowest value, the first of equal ones; `best` where there is none.

    The sources show the same registers, read one after the other: where they differ the link changed in between.
    """
    values = [reading for reading in readings if reading.value is not None]
    return min(values, key=lambda reading: float(reading.value or 0)) if values else best(*readings)


def read_config(reader: Reader, bdf: str) -> Reading[ConfigSpace]:
    data = reader.data(f"{DEVICES}/{bdf}/config", 1 << 16)
    if data.value is not None and len(data.value) == 64:
        return Reading.no("permission", "only root may read more than 64 bytes of it", data.source)
    return data.then(config_space.parse)


def from_space(config: Reading[ConfigSpace], name: str, extended: bool = False) -> Reading[Any]:
    """A value of the configuration space; absent when the function has no such capability."""
    space = config.value
    if space is None:
        return config.then(lambda one: getattr(one, name))
    if extended and not space.extended:
        return Reading.no("too_large", "only 256 bytes of configuration space are given", config.source)
    value = getattr(space, name)
    if value is None:
        return Reading.no("absent", "it has no such capability", config.source)
    return config.then(lambda _: value)


def read_aer(reader: Reader, here: str, root_port: bool) -> Aer:
    def counters(name: str) -> Reading[dict[str, int]]:
        return reader.text(f"{here}/{name}").then(parse_counters)

    def total(name: str) -> Reading[int]:
        path = f"{here}/aer_rootport_total_err_{name}"
        return reader.line(path).then(parse_number) if root_port else Reading.no("absent", "not a root port", path)

    return Aer(
        counters("aer_dev_correctable"),
        counters("aer_dev_nonfatal"),
        counters("aer_dev_fatal"),
        total("cor"),
        total("nonfatal"),
        total("fatal"),
    )


def untouched(no: Reading[Any]) -> Aer:
    return Aer(no, no, no, no, no, no)


class Tree:
    """Reads the hops and GPUs of one host; every hop is read once, however many GPUs are below it."""

    def __init__(
        self,
        reader: Reader,
        functions: dict[str, Function],
        touch: Touch,
        listing: Listing,
        slots: Reading[dict[str, str]],
    ) -> None:
        self.reader = reader
        self.functions = functions
        self.touch = touch
        self.listing = listing
        self.slots = slots
        self.nodes: dict[str, list[str]] = {}
        self.coredumps: Reading[tuple[str, ...]] = Reading((), "")
        self.kernel_log: KernelLog | None = None
        self.unlisted: frozenset[str] = frozenset()  # GPUs of which a recording holds only parts
        self.nodes_listed = False
        self.framebuffers: Reading[dict[str, str]] = Reading({}, "")
        self._configs: dict[str, Reading[ConfigSpace]] = {}
        self._hops: dict[str, Hop] = {}

    def config(self, bdf: str) -> Reading[ConfigSpace]:
        if bdf not in self._configs:
            refused = self.touch.refusal(bdf, f"{DEVICES}/{bdf}/config")
            self._configs[bdf] = refused if refused is not None else read_config(self.reader, bdf)
        return self._configs[bdf]

    def port_type(self, bdf: str) -> int | None:
        space = self.config(bdf).value
        return space.port_type if space is not None else self.functions[bdf].port_type

    def power(self, bdf: str, name: str) -> Reading[str]:
        return self.reader.line(f"{DEVICES}/{bdf}/power/{name}").then(parse_power_word)

    def driver(self, bdf: str) -> Reading[str]:
        """The driver of a GPU; ``""`` only where its directory, or a whole block of lspci, shows that there is none."""
        link = self.reader.link(f"{DEVICES}/{bdf}/driver")
        if link.unread != "absent":
            return link.then(lambda target: target.rpartition("/")[2])
        if bdf not in self.unlisted:
            return Reading("", link.source)
        if self.functions[bdf].driver:
            return Reading(self.functions[bdf].driver, " ".join(lspci.WHOLE))
        block = self.listing.of(bdf) if self.listing.is_whole else None
        if block is not None and block.value is not None and block.value.told:
            return Reading("", block.source)
        events = self.kernel_log.events if self.kernel_log is not None else None
        if events is not None and events.value is not None and (driver := last_driver(events.value, bdf)):
            return Reading(driver, events.source)
        return Reading.no("absent", "nothing that was recorded says whether a driver is bound", link.source)

    def survivability(self, bdf: str, file: Reading[bool]) -> Reading[bool]:
        """Survivability mode. Without its file there is none where the directory was read.

        A whole log tells as well, where it has lines of the driver about this card.
        """
        if file.unread != "absent":
            return file
        if bdf not in self.unlisted:
            return Reading(False, file.source)
        log = self.kernel_log
        said = log.events.value if log is not None else None
        if log is not None and said is not None and log.complete.value and last_driver(said, bdf):
            return Reading(any(one.kind == "survivability" and one.bdf in ("", bdf) for one in said), log.events.source)
        return Reading.no("absent", "neither the file of the driver nor a whole log was recorded", file.source)

    def answers(self, bdf: str) -> Reading[bool]:
        """Does a GPU answer at all? One that left the bus, or that is in D3cold, reads all ones."""
        config = self.config(bdf)
        if config.value is not None or config.unread == "suspended":
            return config.then(lambda _: True)
        block = self.listing.of(bdf) if self.listing.is_whole else None
        by_registers = "does not answer" in config.detail
        if not by_registers and (block is None or block.value is None or not block.value.dead):
            return block.then(lambda _: True) if block is not None and block.value is not None else config.then(bool)
        state = self.reader.line(f"{DEVICES}/{bdf}/power_state").value or ""
        if state.startswith("D3"):
            return Reading.no("suspended", f"power_state {state}", f"{DEVICES}/{bdf}/power_state")
        return Reading(False, config.source if by_registers or block is None else block.source)

    def hop(self, function: Function, role: str, crosses: bool, inner: bool) -> Hop:
        bdf = function.bdf
        if bdf in self._hops:
            return self._hops[bdf]
        here = f"{DEVICES}/{bdf}"
        same: dict[str, Any] = {
            "bdf": bdf,
            "vendor": function.vendor,
            "device": function.device,
            "class_code": function.class_code,
            "role": role,
            "crosses_slot": crosses,
            "inner": inner,
            "driver": function.driver,
            "power_control": self.power(bdf, "control"),
            "runtime_status": self.power(bdf, "runtime_status"),
            "slot": self.slots.then(lambda found: found.get(bdf.rpartition(".")[0], "")),
        }
        no = self.touch.refusal(bdf, here)
        if no is not None:
            link, source, aspm, files, aer = Link(no, no, no, no), "", no, no, untouched(no)
            capable, registers, acs, troubles, substates = no, no, no, no, no
        else:
            config = self.config(bdf)
            link, source, text = self._link(bdf, here, config, inner)
            files = self._aspm_files(here)
            aspm = from_space(config, "link_ctl").then(config_space.aspm)
            aer = read_aer(self.reader, here, role == "root_port")
            registers = from_space(config, "aer", extended=True)
            acs = from_space(config, "acs", extended=True)
            troubles = from_space(config, "troubles")
            substates = from_space(config, "l1_substates", extended=True)
            asked = not inner and aspm.unread not in (None, "absent") and files.value is None
            if text is None and config.value is None and (asked or self.listing.is_whole):
                text = self.listing.of(bdf)
            if text is not None:
                device = text
                aspm = best(aspm, self._printed(device, "aspm"))
                registers = best(registers, self._printed(device, "aer"))
                acs = best(acs, self._printed(device, "acs"))
                troubles = best(troubles, self._printed(device, "troubles"))
                substates = best(substates, self._printed(device, "l1_substates"))
            if registers.unread == "absent" and config.value is not None:
                capable = Reading(False, config.source)
            elif registers.value is not None or aer.correctable.unread != "absent":
                capable = Reading(True, registers.source if registers.value is not None else aer.correctable.source)
            else:
                capable = Reading.no("absent", "neither its capability nor its counters can be read", here)
        hop = Hop(
            **same,
            speed=link.speed,
            max_speed=link.max_speed,
            width=link.width,
            max_width=link.max_width,
            link_source=source,
            aspm=aspm,
            aspm_files=files,
            aer=aer,
            aer_capable=capable,
            aer_registers=registers,
            acs=acs,
            troubles=troubles,
            l1_substates=substates,
        )
        self._hops[bdf] = hop
        return hop

    @staticmethod
    def _printed(device: Reading[lspci.Device], name: str) -> Reading[Any]:
        """A value of the text of lspci that may be missing from it."""
        if device.value is not None and getattr(device.value, name) is None:
            return Reading.no("absent", f"lspci prints no {name.upper()} of it", device.source)
        return device.then(lambda one: getattr(one, name))

    def _link(
        self, bdf: str, here: str, config: Reading[ConfigSpace], inner: bool
    ) -> tuple[Link, str, Reading[lspci.Device] | None]:
        """The link values, the first source that gave any, and the text of lspci where it had to be asked."""
        sources: list[tuple[str, Link]] = [("config", from_config(config)), ("sysfs", from_sysfs(self.reader, here))]
        text = None
        # A function whose configuration space was read and has no link has none in lspci either.
        if config.value is None and not inner and all(one.width.value is None for _, one in sources):
            text = self.listing.of(bdf)
            sources.append(("lspci", from_text(text)))
        together = Link(
            lowest(*(one.speed for _, one in sources)),
            lowest(*(one.max_speed for _, one in sources)),
            lowest(*(one.width for _, one in sources)),
            lowest(*(one.max_width for _, one in sources)),
        )
        given = next((name for name, one in sources if one.width.value is not None), "")
        return together, given, text

    def _aspm_files(self, here: str) -> Reading[dict[str, int]]:
        found: dict[str, int] = {}
        first: Reading[int] | None = None
        for name in LINK_FILES:
            reading = self.reader.line(f"{here}/link/{name}").then(parse_number)
            first = first or reading
            if reading.value is not None:
                found[name] = reading.value
        if found or first is None:
            return Reading(found, f"{here}/link")
        return Reading.no(first.unread or "absent", first.detail, f"{here}/link")

    def gpu(self, function: Function) -> Gpu:
        bdf = function.bdf
        here = f"{DEVICES}/{bdf}"
        way = chain(self.functions, bdf)
        types = [self.port_type(one.bdf) for one in way]
        start = card_start(way, types[0])
        named = roles(way, types)
        slot, hidden = slot_of(way, start, types[0])
        path = tuple(
            self.hop(one, named[at], at == slot, at > start or (hidden and at == start)) for at, one in enumerate(way)
        )

        def quiet(name: str, parse: Callable[[str], T]) -> Reading[T]:
            """A value that the kernel has cached."""
            refused = self.touch.refusal(bdf, f"{here}/{name}")
            return refused if refused is not None else self.reader.text(f"{here}/{name}").then(parse)

        def of_driver(name: str, parse: Callable[[str], T]) -> Reading[T]:
            """A value for which the driver is called."""
            refused = self.touch.refusal(bdf, f"{here}/{name}", driver=True)
            return refused if refused is not None else self.reader.line(f"{here}/{name}").then(parse)

        subsystem = [
            self.reader.line(f"{here}/subsystem_{name}").then(parse_id).value or "" for name in ("vendor", "device")
        ]
        no = self.touch.refusal(bdf, f"{here}/physfn")
        space = self.config(bdf)
        sizes: Reading[tuple[int, ...]] = space.then(lambda one: one.bar_sizes.get(2, ()))
        if sizes.value == ():
            sizes = Reading.no(
                "absent", "BAR 2 has one size only, or the extended capabilities are not given", space.source
            )
        return Gpu(
            bdf=bdf,
            vendor=function.vendor,
            device=function.device,
            subsystem=":".join(subsystem) if all(subsystem) else "",
            class_code=function.class_code,
            integrated=is_integrated(function, way, self.functions.values())
            or self.port_type(bdf) == config_space.INTEGRATED,
            vf=no is None and self.reader.link(f"{here}/physfn").value is not None,
            driver=self.driver(bdf),
            runtime_status=self.power(bdf, "runtime_status"),
            power_control=self.power(bdf, "control"),
            numa_node=quiet("numa_node", parse_number),
            bars=self._bars(bdf, quiet("resource", parse_resource)),
            bar_sizes=sizes,
            drm=self._drm(bdf, here),
            survivability=self.survivability(bdf, of_driver("survivability_mode", lambda _: True)),
            coredump=self.coredumps.then(lambda found: bdf in found),
            auto_link_downgrade_capable=of_driver("auto_link_downgrade_capable", parse_number),
            auto_link_downgrade_status=of_driver("auto_link_downgrade_status", parse_number),
            uplink=path[slot].bdf if slot is not None else "",
            path=path,
            siblings=siblings(function, way, self.functions.values()),
            listed=bdf not in self.unlisted,
            answers=self.answers(bdf),
            boot_vga=self._boot_vga(function, quiet("boot_vga", parse_flag)),
            framebuffers=self.framebuffers.then(
                lambda found: tuple(name for name, owner in found.items() if owner == bdf)
            ),
        )

    def _boot_vga(self, function: Function, file: Reading[bool]) -> Reading[bool]:
        """Only functions of the VGA class have the file (drivers/pci/pci-sysfs.c), and the firmware uses no other."""
        if file.unread != "absent" or function.class_code.startswith("0300") or function.bdf in self.unlisted:
            return file
        return Reading(False, file.source)

    def _bars(self, bdf: str, resource: Reading[tuple[int, ...]]) -> Reading[tuple[int, ...]]:
        if resource.unread in (None, "suspended"):
            return resource
        # Where there is no sysfs, a listing has the sizes.
        device = self.listing.of(bdf)
        if device.value is None or not device.value.regions:
            return resource
        if 2 not in device.value.regions:
            return Reading.no("absent", "lspci prints no size of BAR 2", device.source)
        return device.then(lambda one: tuple(one.regions.get(number, 0) for number in range(6)))

    def _drm(self, bdf: str, here: str) -> Reading[tuple[DrmNode, ...]]:
        names = set(self.nodes.get(bdf, ()))
        refused = self.touch.refusal(bdf, f"{here}/drm")
        source = DRM
        if not names:
            if refused is not None:
                return refused
            listed = self.reader.names(f"{here}/drm")
            if listed.unread not in (None, "absent"):
                return listed.then(lambda _: ())
            if listed.unread == "absent" and bdf in self.unlisted and not self.nodes_listed:
                return Reading.no("absent", "device nodes are not part of this recording", source)
            source = f"{here}/drm"
            names = {name for name in listed.value or () if re.fullmatch(DRM_NODE, name)}
        nodes = []
        for name in sorted(names):
            stat = self.reader.stat(f"/dev/dri/{name}")
            nodes.append(
                DrmNode(
                    name,
                    stat.then(lambda one: one.mode & 0o7777),
                    stat.then(lambda one: one.uid),
                    stat.then(lambda one: one.gid),
                )
            )
        return Reading(tuple(nodes), source)


def read_nodes(reader: Reader) -> dict[str, list[str]]:
    """BDF -> names of its device nodes, from the links in /sys/class/drm, which lead past the device."""
    found: dict[str, list[str]] = {}
    for path in reader.children(DRM, DRM_NODE):
        match = re.search(rf"({BDF})/drm/[^/]+$", (reader.link(path).value or "").lower())
        if match:
            found.setdefault(match.group(1), []).append(path.rpartition("/")[2])
    return found


def are_nodes_listed(reader: Reader, nodes: dict[str, list[str]]) -> bool:
    """Was the directory of all device nodes read, each of them with the device that it belongs to?"""
    names = reader.names(DRM).value
    all_nodes = [name for name in names or () if re.fullmatch(DRM_NODE, name)]
    return names is not None and len(all_nodes) == sum(map(len, nodes.values()))


def gpus_of(functions: dict[str, Function], source: str, is_part: bool) -> Reading[tuple[str, ...]]:
    """Addresses of all GPUs. Where there is none, but a function may be one, whether there is a GPU is not known.

    is_part: not every function of the host was recorded, so that the GPU of a card's port may be among the others.
    """
    gpus = tuple(sorted(bdf for bdf, one in functions.items() if gpu_ids.is_gpu(one.vendor, one.class_code)))
    maybe = [bdf for bdf, one in functions.items() if gpu_ids.may_be_gpu(one.vendor, one.class_code)]
    ports = [bdf for bdf, one in functions.items() if (one.vendor, one.device) in gpu_ids.CARD_PORTS]
    if not gpus and maybe:
        return Reading.no("absent", f"the ids of {', '.join(maybe[:3])} were not read, so it may be a GPU", source)
    if not gpus and ports and is_part:
        return Reading.no("absent", f"{ports[0]} is a port of a card whose GPU is not listed", source)
    return Reading(gpus, source)


def refused_ids(reader: Reader, functions: dict[str, Function]) -> Reading[tuple[str, ...]] | None:
    """Why the ids of a function that may be a GPU were not read; None where they are just not there."""
    for bdf, one in sorted(functions.items()):
        if gpu_ids.may_be_gpu(one.vendor, one.class_code):
            for name in ("vendor", "class"):
                reading = reader.line(f"{DEVICES}/{bdf}/{name}")
                if reading.unread not in (None, "absent"):
                    said = f"the {name} of {bdf} was not read, so it may be a GPU: {reading.detail}"
                    return Reading.no(str(reading.unread), said, reading.source)
    return None


def read_framebuffers(reader: Reader) -> Reading[dict[str, str]]:
    """Framebuffer -> BDF of the function that it is on, ``""`` for one of no PCI function; {} where there is none."""
    names = reader.names(GRAPHICS)
    if names.unread == "absent":
        return Reading({}, GRAPHICS)
    found: dict[str, str] = {}
    for name in names.value or ():
        if re.fullmatch(r"fb\d+", name):
            target = reader.link(f"{GRAPHICS}/{name}")
            if target.value is None:
                return target.then(lambda _: {})
            found[name] = (re.findall(BDF, target.value.lower()) or [""])[-1]
    return names.then(lambda _: found)


def read_coredumps(reader: Reader) -> Reading[tuple[str, ...]]:
    """BDFs that have a devcoredump node. Its data is never opened: a write to it deletes it."""
    names = reader.names("/sys/class/devcoredump")
    if names.unread == "absent":
        return Reading((), names.source)
    found = []
    for name in names.value or ():
        target = reader.link(f"/sys/class/devcoredump/{name}/failing_device").value or ""
        found += re.findall(BDF, target.lower())[-1:]
    return names.then(lambda _: tuple(found))


def read_slots(reader: Reader) -> Reading[dict[str, str]]:
    """Domain, bus and device -> name of the physical slot; {} where the firmware names none."""
    names = reader.names(SLOTS)
    if names.value is None:
        return Reading({}, SLOTS) if names.unread == "absent" else names.then(lambda _: {})
    found: dict[str, str] = {}
    for name in names.value:
        address = reader.line(f"{SLOTS}/{name}/address").then(parse_slot_address)
        if address.value is not None:
            found.setdefault(address.value, name)
        elif address.unread != "absent":
            return address.then(lambda _: {})
    return Reading(found, SLOTS)


def read_background(
    reader: Reader, functions: dict[str, Function], gpus: Sequence[Gpu], asleep: Iterable[str]
) -> Reading[dict[str, dict[str, int]]]:
    """Correctable error counters of all functions that are on no path to a GPU, where there are any counts.

    The kernel keeps these counters itself; reading one touches no device.
    """
    near = {bdf for gpu in gpus for bdf in (*path_bdfs(gpu), *gpu.siblings)} | set(asleep)
    found: dict[str, dict[str, int]] = {}
    for bdf in functions:
        if bdf in near:
            continue
        counts = reader.text(f"{DEVICES}/{bdf}/aer_dev_correctable").then(parse_counters).value or {}
        if any(counts.values()):
            found[bdf] = counts
    return Reading(found, f"{DEVICES}/*/aer_dev_correctable")


def read(reader: Reader, kernel_log: KernelLog, options: Options) -> Pcie:
    """Read PCI Express. What may be touched follows from the power state and from the kernel log."""
    listing = Listing(reader)
    functions = read_functions(reader, listing.whole)
    force_probe = reader.text("/proc/cmdline").then(parse_force_probe)
    drivers = reader.names("/sys/bus/pci/drivers")
    found = functions.value
    if found is None:
        no: Reading[Any] = functions.then(lambda _: ())
        return Pcie(no, no, drivers, force_probe, no)
    unlisted: frozenset[str] = frozenset()
    if functions.source != DEVICES:
        unlisted = frozenset(found)
    elif found:
        asked = [bdf for bdf, one in found.items() if gpu_ids.is_gpu(one.vendor, one.class_code)] or sorted(found)[:1]
        unlisted = frozenset(bdf for bdf in asked if not is_listed(reader, bdf))
    if unlisted and functions.source == DEVICES and (printed := listing.whole().then(from_listing).value) is not None:
        unlisted |= printed.keys() - found.keys()
        found = together(found, printed)
    listed = gpus_of(found, functions.source, bool(unlisted))
    if listed.value is None and functions.source == DEVICES:
        listed = refused_ids(reader, found) or listed
    gpus = listed.value or ()
    status: dict[str, Reading[str]] = {}

    def state(bdf: str) -> Reading[str]:
        if bdf not in status:
            status[bdf] = reader.line(f"{DEVICES}/{bdf}/power/runtime_status")
        return status[bdf]

    coredumps = read_coredumps(reader)
    touch = Touch(
        {} if options.wake else sleepers(gpus, found, state),
        {bdf.lower() for bdf in (*(kernel_log.faulted.value or ()), *(coredumps.value or ()))}
        | {bdf for bdf in gpus if state(bdf).value == "error"},
    )
    tree = Tree(reader, found, touch, listing, read_slots(reader) if gpus else Reading({}, SLOTS))
    tree.nodes = read_nodes(reader) if gpus else {}
    tree.nodes_listed = are_nodes_listed(reader, tree.nodes)
    tree.coredumps = coredumps
    tree.framebuffers = read_framebuffers(reader) if gpus else Reading({}, GRAPHICS)
    tree.kernel_log = kernel_log
    tree.unlisted = unlisted
    cards = tuple(tree.gpu(found[bdf]) for bdf in gpus)
    return Pcie(
        functions=Reading(tuple(found[bdf] for bdf in sorted(found)), functions.source),
        gpus=listed.then(lambda _: cards),
        drivers=drivers,
        force_probe=force_probe,
        background=read_background(reader, found, cards, touch.asleep),
        modules=reader.text(MODULES).then(parse_modules) if drivers.value is None else Pcie.modules,
    )
