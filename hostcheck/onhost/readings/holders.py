"""Processes that hold a GPU's device nodes open: only number, command name and cgroup, never arguments.

Asked of /proc/PID/fd: a name is looked at, nothing is opened, so this wakes no card and disturbs nobody.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from ..reader import Reader, Reading

PROC, NODES, CLASS = "/proc", "/dev/dri", "/sys/class/drm"
BDF = re.compile(r"^[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]$")
KERNEL_THREAD = 0x00200000  # PF_KTHREAD of linux/sched.h


@dataclass(frozen=True)
class Holder:
    """One process that holds one node. node: e.g. ``renderD128``. bdf: the GPU's address, ``""`` unknown.

    comm, cgroup: ``""`` when they could not be read.
    """

    pid: int
    comm: str
    cgroup: str
    node: str
    bdf: str


@dataclass(frozen=True)
class Holders:
    """Who holds /dev/dri/renderD* and /dev/dri/card*.

    render: sorted by process and node. refused: processes (of other users) whose open files may not be listed; where
    there are any, an empty `render` does not mean that nobody holds a card.
    """

    render: Reading[tuple[Holder, ...]]
    refused: Reading[int]


def parse_target(target: str) -> str:
    """Return the node that an entry of /proc/PID/fd leads to, ``""`` for anything else.

    >>> parse_target("/dev/dri/renderD128"), parse_target("/dev/dri/card1 (deleted)"), parse_target("socket:[77]")
    ('renderD128', 'card1', '')
    """
    match = re.match(r"/dev/dri/((?:renderD|card)\d+)(?: \(deleted\))?$", target)
    return match.group(1) if match else ""


def parse_cgroup(text: str) -> str:
    """Return the cgroup of a process: that of its memory in version 1, of version 2, else systemd's, else the first.

    Where a version 1 hierarchy keeps the memory, its limits are there, and only its path may tell of a container.

    >>> parse_cgroup("0::/system.slice/docker-1f.scope\\n")
    '/system.slice/docker-1f.scope'
    >>> parse_cgroup("9:memory:/docker/1f\\n1:name=systemd:/docker/1f\\n0::/\\n")
    '/docker/1f'

    Raises ValueError when there is none (man 7 cgroups: ID:controllers:path).
    """
    found: dict[str, str] = {}
    for line in text.splitlines():
        number, _, rest = line.partition(":")
        controllers, colon, path = rest.partition(":")
        if number.isdigit() and colon:
            found.setdefault("memory" if "memory" in controllers.split(",") else controllers, path)
    for wanted in ("memory", "", "name=systemd", *found):
        if wanted in found:
            return found[wanted]
    raise ValueError(f"expected ID:controllers:path, got {text!r}")


def parse_kernel_thread(text: str) -> bool:
    """Return whether /proc/PID/stat is that of a kernel thread (man 5 proc: field 9 are the flags).

    >>> parse_kernel_thread("2 (kthreadd) S 0 0 0 0 -1 2129984 0 0 0 0")
    True

    Raises ValueError for anything else. A command name may hold blanks and brackets, so fields count from the last one.
    """
    fields = text.rpartition(")")[2].split()
    if len(fields) < 7 or not fields[6].isdigit():
        raise ValueError(f"expected the fields of a process, got {text!r}")
    return bool(int(fields[6]) & KERNEL_THREAD)


def address(reader: Reader, node: str) -> str:
    """BDF of the GPU that a node belongs to, ``""`` when it cannot be told."""
    name = (reader.resolve(f"{CLASS}/{node}/device").value or "").rpartition("/")[2].lower()
    if BDF.match(name):
        return name
    for path in reader.children(f"{NODES}/by-path", r"(?i)pci-[0-9a-f:.]+-(card|render)"):
        if (reader.link(path).value or "").rpartition("/")[2] == node:
            name = path.rpartition("/")[2].split("-")[1].lower()
            return name if BDF.match(name) else ""
    return ""


def held_nodes(reader: Reader, pid: str) -> Reading[set[str]]:
    """Nodes that a process holds; permission when its files may not be listed.

    What else a process has open is nobody's business: of a recording only the entries that lead to a node are part.
    """
    folder = f"{PROC}/{pid}/fd"
    looking = reader.unrecorded
    names = looking.names(folder)
    if names.value is None:
        return reader.names(folder).then(lambda _: set())
    held: set[str] = set()
    for name in names.value:
        node = parse_target(looking.link(f"{folder}/{name}").value or "")
        if node:
            held.add(parse_target(reader.link(f"{folder}/{name}").value or ""))
    return Reading(held - {""}, folder)


def read(reader: Reader) -> Holders:
    nodes = reader.names(NODES)
    if nodes.unread == "absent":
        return Holders(Reading((), NODES), Reading(0, NODES))  # no node, so nobody holds one
    listed = reader.names(PROC)
    if listed.value is None:
        return Holders(listed.then(lambda _: ()), listed.then(lambda _: 0))
    pids = sorted((name for name in listed.value if name.isdigit()), key=int)
    if "1" not in pids:
        # proc(5), hidepid=2: the processes of other users are not even listed; the first one always runs.
        no: Reading[int] = Reading.no("permission", "/proc does not list the processes of other users", PROC)
        return Holders(no.then(lambda _: ()), no)
    refused = 0
    holders: list[Holder] = []
    addresses: dict[str, str] = {}
    for pid in pids:
        held = held_nodes(reader, pid)
        if held.value is None and held.unread != "absent":  # absent: it ended in the meantime
            refused += not reader.line(f"{PROC}/{pid}/stat").then(parse_kernel_thread).value
        for node in sorted(held.value or ()):
            if node not in addresses:
                addresses[node] = address(reader, node)
            comm = reader.line(f"{PROC}/{pid}/comm").value or ""
            cgroup = reader.text(f"{PROC}/{pid}/cgroup").then(parse_cgroup).value or ""
            holders.append(Holder(int(pid), comm, cgroup, node, addresses[node]))
    return Holders(Reading(tuple(holders), f"{PROC}/*/fd"), Reading(refused, f"{PROC}/*/fd"))
