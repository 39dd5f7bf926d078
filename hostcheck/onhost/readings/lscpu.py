"""Processors as lscpu counts them; what lscpu does not say comes from sysfs.

The output differs with the version of util-linux (arc-host-facts C.4): flat or indented, labels repeated for every kind
of core on Arm, headings without a value, ``-`` for what a machine does not have.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Callable, TypeVar

from ..reader import Reader, Reading

T = TypeVar("T")
Fields = tuple[tuple[str, str], ...]

JSON_COMMAND = ("lscpu", "-J")
TEXT_COMMAND = ("lscpu",)
CPU_FOLDER = "/sys/devices/system/cpu"
NODE_FOLDER = "/sys/devices/system/node"
CPU_LIMIT = 1 << 16  # numbers above are no processors; the kernel's own limit is 8192

# Only these labels count, so that a foreign line in between (a warning, a banner) is no value of anything.
LABEL = re.compile(
    r"Architecture|CPU\(s\)|(?:On|Off)-line CPU\(s\) (?:list|mask)|Thread\(s\) per core|Core\(s\) per socket|"
    r"Core\(s\) per cluster|Socket\(s\)|CPU socket\(s\)|Cluster\(s\)|Vendor ID|Model name|CPU (?:max|min) MHz|"
    r"Hypervisor|Hypervisor vendor|Virtualization type|NUMA node\(s\)|NUMA node\d+ CPU\(s\)|"
    r"L\d[di]?(?: cache)?|Vulnerability .+"
)
CACHE = re.compile(r"(L\d[di]?)(?: cache)?")
CACHE_SIZE = re.compile(r"([\d.]+) ?([KMGT]?)(?:iB|B)?(?: \((\d+) instances?\))?")
UNIT = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}


@dataclass(frozen=True)
class NumaNode:
    """A memory node and its processors; () for a node that has memory only."""

    node: int
    cpus: tuple[int, ...]


@dataclass(frozen=True)
class CoreKind:
    """One block that starts with ``Model name``; Arm machines with different cores have several.

    cores: per socket, or per cluster where the machine has clusters. 0 and 0.0: not said.
    """

    model: str
    threads_per_core: int
    cores: int
    sockets: int
    clusters: int
    max_mhz: float
    min_mhz: float


@dataclass(frozen=True)
class Cache:
    """A level of cache. size: bytes, over all instances since util-linux 2.37. instances: 0 when not said."""

    name: str
    size: int
    instances: int


@dataclass(frozen=True)
class Lscpu:
    """Processors of a host.

    online, offline: processor numbers. offline: present, but switched off.
    threads_per_core: the largest of all cores: on a hybrid processor threads x cores is not `cpus` (util-linux#4595).
    cores_per_socket: with several kinds of core, of all kinds together.
    max_mhz, min_mhz: of the fastest and the slowest kind; virtual machines have none.
    hypervisor: as named by lscpu, ``""`` when it names none.
    performance_cores, efficiency_cores: processors of the P and E cores of an Intel hybrid.
    smt: word of smt/control, e.g. ``on``, ``off``, ``notsupported``.
    """

    architecture: Reading[str]
    cpus: Reading[int]
    online: Reading[tuple[int, ...]]
    offline: Reading[tuple[int, ...]]
    threads_per_core: Reading[int]
    cores_per_socket: Reading[int]
    sockets: Reading[int]
    vendor: Reading[str]
    model_names: Reading[tuple[str, ...]]
    kinds: Reading[tuple[CoreKind, ...]]
    max_mhz: Reading[float]
    min_mhz: Reading[float]
    hypervisor: Reading[str]
    numa_nodes: Reading[tuple[NumaNode, ...]]
    caches: Reading[tuple[Cache, ...]]
    performance_cores: Reading[tuple[int, ...]]
    efficiency_cores: Reading[tuple[int, ...]]
    smt: Reading[str]


def parse_cpu_list(text: str) -> tuple[int, ...]:
    """Return the processors of a list as the kernel and util-linux write it.

    >>> parse_cpu_list("0-2,8\\n")
    (0, 1, 2, 8)
    >>> parse_cpu_list("0-6:2")
    (0, 2, 4, 6)
    >>> parse_cpu_list("\\n")
    ()
    """
    cpus: set[int] = set()
    for part in text.strip().split(",") if text.strip() else ():
        match = re.fullmatch(r"\s*([0-9]{1,6})(?:-([0-9]{1,6})(?::([0-9]{1,6}))?)?\s*", part)
        first, last, step = (int(number) if number else 0 for number in match.groups()) if match else (0, -1, 0)
        last = first if match and match.group(2) is None else last
        if match is None or not first <= last < CPU_LIMIT or (match.group(3) is not None and step == 0):
            raise ValueError(f"expected a list of processors, got {text[:80]!r}")
        cpus.update(range(first, last + 1, step or 1))
    return tuple(sorted(cpus))


def parse_cpu_mask(text: str) -> tuple[int, ...]:
    """Return the processors of a hexadecimal mask (``lscpu -x``).

    >>> parse_cpu_mask("0x5")
    (0, 2)
    """
    digits = text.strip().replace(",", "")
    if not re.fullmatch(r"(?:0x)?[0-9a-fA-F]{1,16384}", digits):
        raise ValueError(f"expected a mask of processors, got {text[:80]!r}")
    mask = int(digits, 16)
    return tuple(number for number in range(mask.bit_length()) if mask >> number & 1)


def cpu_list(cpus: tuple[int, ...]) -> str:
    """The short form of a list of processors, as the kernel writes it.

    >>> cpu_list((0, 1, 2, 8))
    '0-2,8'
    """
    runs: list[list[int]] = []
    for cpu in sorted(cpus):
        if runs and runs[-1][1] == cpu - 1:
            runs[-1][1] = cpu
        else:
            runs.append([cpu, cpu])
    return ",".join(str(first) if first == last else f"{first}-{last}" for first, last in runs)


def parse_text(text: str) -> Fields:
    """Return (label, value) of every line that lscpu may print, in their order; other lines are passed over.

    Raises ValueError when there is no line ``CPU(s)``.
    """
    found = []
    for line in text.splitlines():
        label, colon, value = line.strip().partition(":")
        if colon and LABEL.fullmatch(label):
            found.append((label, value.strip()))
    return _checked(tuple(found), text)


def parse_json(text: str) -> Fields:
    """Return (label, value) of every entry of ``lscpu -J``, nested ones after their heading.

    Raises ValueError for what is not that document.
    """
    try:
        document = json.loads(text)
        entries = document["lscpu"] if isinstance(document, dict) else None
        if not isinstance(entries, list):
            raise ValueError(f"expected an object with a list 'lscpu', got {text[:80]!r}")
        found = tuple((label, value) for label, value in _entries(entries) if LABEL.fullmatch(label))
    except KeyError:
        raise ValueError(f"expected a key 'lscpu', got {text[:80]!r}") from None
    except RecursionError:
        raise ValueError("nested too deeply for lscpu") from None
    return _checked(found, text)


def _entries(entries: list[Any]) -> Iterator[tuple[str, str]]:
    for entry in entries:
        if not isinstance(entry, dict) or not isinstance(entry.get("field"), str):
            raise ValueError(f"expected an entry with a field, got {str(entry)[:80]!r}")
        data, children = entry.get("data"), entry.get("children", [])
        if not isinstance(children, list) or not isinstance(data, (str, int, float, type(None))):
            raise ValueError(f"expected text and a list of children, got {str(entry)[:80]!r}")
        # headings have null or "-" (arc-host-facts C.4)
        yield entry["field"].strip().rstrip(":"), "" if data is None else str(data).strip()
        yield from _entries(children)


def _checked(fields: Fields, text: str) -> Fields:
    if not any(label == "CPU(s)" for label, _ in fields):
        raise ValueError(f"no line 'CPU(s)' in {text[:80]!r}")
    return fields


def _number(value: str) -> int:
    if not re.fullmatch(r"[0-9]{1,6}", value):
        raise ValueError(f"expected a number, got {value[:80]!r}")
    return int(value)


def _mhz(value: str) -> float:
    # A translated decimal comma cannot occur (LC_ALL=C), but recordings from elsewhere may have it.
    if not re.fullmatch(r"[0-9]{1,6}([.,][0-9]+)?", value):
        raise ValueError(f"expected a clock in MHz, got {value[:80]!r}")
    return float(value.replace(",", "."))


def parse_kinds(fields: Fields) -> tuple[CoreKind, ...]:
    """Return one entry per block of ``Model name``; numbers that are missing or ``-`` are 0."""
    blocks: list[dict[str, str]] = []
    for label, value in fields:
        # up to 2.36 the counts stand above the model, later below it
        if (label in ("Model name", "Thread(s) per core") and not blocks) or (
            label == "Model name" and label in blocks[-1]
        ):
            blocks.append({})
        if blocks:
            blocks[-1].setdefault(label, value)

    def number(block: dict[str, str], *labels: str) -> int:
        value = next((block[label] for label in labels if block.get(label, "-") not in ("-", "")), "0")
        return _number(value)

    def mhz(block: dict[str, str], label: str) -> float:
        return _mhz(block[label]) if block.get(label, "-") not in ("-", "") else 0.0

    return tuple(
        CoreKind(
            model=block.get("Model name", ""),
            threads_per_core=number(block, "Thread(s) per core"),
            cores=number(block, "Core(s) per socket", "Core(s) per cluster"),
            sockets=number(block, "Socket(s)", "CPU socket(s)"),
            clusters=number(block, "Cluster(s)"),
            max_mhz=mhz(block, "CPU max MHz"),
            min_mhz=mhz(block, "CPU min MHz"),
        )
        for block in blocks
    )


def parse_smt(text: str) -> str:
    """Return the word of smt/control. Raises ValueError for anything else.

    >>> parse_smt("notsupported\\n")
    'notsupported'
    """
    if not re.fullmatch(r"[a-z]{1,20}|\d{1,2}", text.strip(), re.ASCII):  # a number of threads on some machines
        raise ValueError(f"expected a word such as on or off, got {text!r}")
    return text.strip()


def parse_numa(fields: Fields) -> tuple[NumaNode, ...]:
    """Return the memory nodes, sorted. Raises ValueError for a list that is none."""
    found: dict[int, tuple[int, ...]] = {}
    for label, value in fields:
        match = re.fullmatch(r"NUMA node(\d{1,5}) CPU\(s\)", label)
        if match:
            found.setdefault(int(match.group(1)), parse_cpu_list("" if value == "-" else value))
    return tuple(NumaNode(node, cpus) for node, cpus in sorted(found.items()))


def parse_caches(fields: Fields) -> tuple[Cache, ...]:
    """Return the caches.

    >>> parse_caches((("L2 cache", "4 MiB (2 instances)"), ("L1d cache", "32K")))
    (Cache(name='L2', size=4194304, instances=2), Cache(name='L1d', size=32768, instances=0))
    """
    found = []
    for label, value in fields:
        named = CACHE.fullmatch(label)
        if named and value not in ("", "-"):
            match = CACHE_SIZE.fullmatch(value)
            if not match or match.group(1).count(".") > 1 or not match.group(1).strip("."):
                raise ValueError(f"expected a size such as '4 MiB (2 instances)', got {value[:80]!r}")
            size = float(match.group(1)) * UNIT[match.group(2)]
            found.append(Cache(named.group(1), int(size), int(match.group(3) or 0)))
    return tuple(found)


def parse_hypervisor(fields: Fields, whole: bool) -> str:
    """Return the hypervisor that lscpu names, or ``""``.

    Raises ValueError when the output is not known to be whole and ends before the place where it would stand, so that a
    cut output does not claim bare metal.
    """
    values = dict(reversed(fields))
    named = values.get("Hypervisor vendor") or values.get("Hypervisor") or ""
    # On Xen's first domain lscpu names Xen with the type 'none': that is the machine itself.
    if named and values.get("Virtualization type") != "none":
        return named
    if not whole and not any(re.match(r"NUMA|L\d|Vulnerability", label) for label in values):
        raise ValueError("the output ends before the line 'Hypervisor vendor'")
    return ""


def read(reader: Reader) -> Lscpu:
    fields = reader.output(JSON_COMMAND).then(parse_json)
    whole = fields.value is not None  # JSON that is cut does not parse
    if not whole:
        fields = fields.or_(reader.output(TEXT_COMMAND).then(parse_text))

    def field(labels: tuple[str, ...], parse: Callable[[str], T]) -> Reading[T]:
        """The first line with one of the labels; absent when there is none or it says ``-``."""
        if fields.value is None:
            return fields.then(lambda _: parse(""))
        for label, value in fields.value:
            if label in labels:
                if value in ("-", ""):
                    return Reading.no("absent", f"lscpu says {value!r} for {label}", fields.source)
                return Reading(value, fields.source).then(parse)
        return Reading.no("absent", f"lscpu has no line {labels[0]!r}", fields.source)

    kinds = fields.then(parse_kinds)

    def of_kinds(name: str, fold: Callable[[list[Any]], Any]) -> Reading[Any]:
        values = [getattr(kind, name) for kind in kinds.value or () if getattr(kind, name)]
        if kinds.value is not None and not values:
            return Reading.no("absent", f"lscpu does not say {name.replace('_', ' ')}", kinds.source)
        return kinds.then(lambda _: fold(values))

    present = reader.text(f"{CPU_FOLDER}/present").then(parse_cpu_list)
    online = field(("On-line CPU(s) list",), parse_cpu_list).or_(field(("On-line CPU(s) mask",), parse_cpu_mask))
    if online.value is None:
        online = online.or_(reader.text(f"{CPU_FOLDER}/online").then(parse_cpu_list))
    cpus = field(("CPU(s)",), _number).or_(present.then(len))
    return Lscpu(
        architecture=field(("Architecture",), str),
        cpus=cpus,
        online=online,
        offline=_offline(field, cpus, online, present),
        threads_per_core=of_kinds("threads_per_core", max),
        cores_per_socket=of_kinds("cores", sum),
        sockets=of_kinds("sockets", max),
        vendor=field(("Vendor ID",), str),
        model_names=fields.then(lambda found: tuple(value for label, value in found if label == "Model name")),
        kinds=kinds,
        max_mhz=of_kinds("max_mhz", max),
        min_mhz=of_kinds("min_mhz", min),
        hypervisor=fields.then(lambda found: parse_hypervisor(found, whole)),
        numa_nodes=_numa(reader, fields.then(parse_numa)),
        caches=fields.then(parse_caches),
        performance_cores=reader.text("/sys/devices/cpu_core/cpus").then(parse_cpu_list),
        efficiency_cores=reader.text("/sys/devices/cpu_atom/cpus").then(parse_cpu_list),
        smt=reader.line(f"{CPU_FOLDER}/smt/control").then(parse_smt),
    )


def _offline(
    field: Callable[..., Reading[tuple[int, ...]]],
    cpus: Reading[int],
    online: Reading[tuple[int, ...]],
    present: Reading[tuple[int, ...]],
) -> Reading[tuple[int, ...]]:
    """Processors that are present but not on-line.

    Not /sys/devices/system/cpu/offline: in virtual machines it also counts places for processors that are not there.
    """
    listed = field(("Off-line CPU(s) list",), parse_cpu_list).or_(field(("Off-line CPU(s) mask",), parse_cpu_mask))
    if listed.value is not None or listed.unread == "not_understood":
        return listed
    if online.value is None:
        return online
    running = online.value
    if cpus.value == len(running):
        return Reading((), online.source)
    if present.value is not None:
        return present.then(lambda numbers: tuple(sorted(set(numbers) - set(running))))
    return Reading.no("not_understood", f"{cpus.value} processors, {len(running)} of them on-line", online.source)


def _numa(reader: Reader, listed: Reading[tuple[NumaNode, ...]]) -> Reading[tuple[NumaNode, ...]]:
    if listed.value:
        return listed
    nodes = []
    for path in reader.children(NODE_FOLDER, r"node\d+"):
        cpus = reader.text(f"{path}/cpulist").then(parse_cpu_list)
        if cpus.value is None:
            return cpus.then(lambda _: ())
        nodes.append(NumaNode(int(path.rpartition("node")[2]), cpus.value))
    # A kernel without NUMA has neither the lines nor the folder: no nodes.
    return Reading(tuple(sorted(nodes, key=lambda node: node.node)), NODE_FOLDER) if nodes else listed
