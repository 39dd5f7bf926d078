"""Real file systems: where they are mounted, the space that is left, the disk below them and what ext4 counted.

Only the list of mounts decides what is real: a folder that should have been a mount is part of the root file system.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from ..reader import Reader, Reading
from .environment import part

MOUNTS = "/proc/self/mountinfo"
BLOCK = "/sys/class/block"
EXT4 = "/sys/fs/ext4"
NVME = "/sys/class/nvme"
BDF = re.compile(r"[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]")
# A server that does not answer holds everybody who asks for space, so these are not asked.
REMOTE = re.compile(r"nfs\d?|cifs|smb3?|smbfs|ceph|glusterfs|lustre|gpfs|beegfs|afs|9p|fuse(?:\..+|blk)?")
LOCAL = frozenset({"zfs", "bcachefs", "btrfs", "virtiofs", "tmpfs"})  # their source may be no device
PSEUDO = frozenset({"squashfs", "iso9660", "devtmpfs", "erofs"})
DEPTH = 6  # device mapper and RAID devices above each other


@dataclass(frozen=True)
class Mount:
    """One real file system.

    point: where. source: device or server. kind: e.g. ``ext4``. remote: over a network or in user space.
    read_only: mounted so. devices: disks below it, e.g. ``nvme0n1``. controllers: their PCI addresses.
    size, free: bytes (free for everybody). errors: what ext4 has counted since it was last checked.
    """

    point: str
    source: str
    kind: str
    remote: bool
    read_only: bool
    devices: tuple[str, ...]
    controllers: tuple[str, ...]
    size: Reading[int]
    free: Reading[int]
    errors: Reading[int]


@dataclass(frozen=True)
class Storage:
    """Storage of a host. mounts: by mount point; of several on one point the last, which is the one in sight."""

    mounts: Reading[tuple[Mount, ...]]


@dataclass(frozen=True)
class Line:
    """One line of mountinfo."""

    number: str
    point: str
    read_only: bool
    kind: str
    source: str


def unescaped(text: str) -> str:
    """A field of mountinfo, where blanks and backslashes are octal.

    >>> unescaped("/srv/my\\\\040models")
    '/srv/my models'
    """
    return re.sub(r"\\([0-7]{3})", lambda match: chr(int(match.group(1), 8) & 0xFF), text)


def parse_mounts(text: str) -> tuple[Line, ...]:
    """Return the mounts of /proc/PID/mountinfo (proc(5)), in its order.

    >>> parse_mounts("27 1 259:2 / / rw,relatime shared:1 - ext4 /dev/nvme0n1p2 rw\\n")[0].source
    '/dev/nvme0n1p2'

    Raises ValueError for a line of another form, and where there is none.
    """
    found = []
    for line in filter(None, text.split("\n")):  # not splitlines: a name may hold what that takes for a line end
        fields, dash, rest = line.partition(" - ")
        head, tail = fields.split(" "), rest.split(" ")
        if not dash or len(head) < 6 or len(tail) < 3 or not re.fullmatch(r"\d+:\d+", head[2]):
            raise ValueError(f"expected a line of mountinfo, got {line[:120]!r}")
        read_only = "ro" in head[5].split(",") or "ro" in tail[2].split(",")
        found.append(Line(head[2], unescaped(head[4]), read_only, tail[0], unescaped(tail[1])))
    if not found:
        raise ValueError("no mounts")
    return tuple(found)


def is_real(line: Line) -> bool:
    """Does this mount stand for a disk or a server?

    >>> [is_real(Line("0:5", "/", False, kind, source)) for kind, source in (("ext4", "/dev/sda1"), ("proc", "proc"))]
    [True, False]
    """
    if line.kind in PSEUDO or line.source.startswith("/dev/loop"):
        return False
    if line.kind == "fuse" or line.kind.startswith("fuse."):
        # portals and lxcfs are no place for models; sshfs, rclone, mergerfs and the like are
        return not re.search(r"portal|lxcfs|gvfs|snapfuse|fuse-overlayfs", f"{line.kind} {line.source}")
    if line.kind == "tmpfs":
        return not re.match(r"/(?:dev|run|sys|proc|tmp|var/lib/(?:docker|kubelet|containers))(?:/|$)", line.point)
    if line.kind == "overlay":
        return line.point == "/"
    return line.source.startswith("/dev/") or line.kind in LOCAL or bool(REMOTE.fullmatch(line.kind))


def reduce_mounts(text: str) -> str:
    """Mountinfo with the real mounts only, without the folders of containers and without options of servers."""
    head = "".join(
        f"0 0 {line.number} / {_escaped(line.point)} {'ro' if line.read_only else 'rw'} - {line.kind} "
        f"{_escaped(line.source)} {'ro' if line.read_only else 'rw'}\n"
        for line in parse_mounts(text)
        if is_real(line) or line.kind == "pstore"
    )
    return head or "0 0 0:0 / / rw - rootfs none rw\n"


def _escaped(text: str) -> str:
    return re.sub(r"[ \t\n\\#]", lambda match: f"\\{ord(match.group()):03o}", text)


def parse_count(text: str) -> int:
    """Return a number that is not negative. Raises ValueError."""
    if not re.fullmatch(r"[0-9]{1,18}", text.strip()):
        raise ValueError(f"expected a number, got {text!r}")
    return int(text)


def read_lines(reader: Reader) -> Reading[tuple[Line, ...]]:
    """The mounts that are real, and those of pstore."""
    return part(reader, MOUNTS, reduce_mounts).then(parse_mounts)


def disks(reader: Reader, name: str, depth: int = 0) -> dict[str, str]:
    """Disks below a block device -> PCI address of their controller, ``""`` unknown."""
    below = reader.names(f"{BLOCK}/{name}/slaves").value or ()
    if below and depth < DEPTH:
        return {disk: bdf for one in below for disk, bdf in disks(reader, one, depth + 1).items()}
    place = reader.resolve(f"{BLOCK}/{name}").value
    if place is None:
        return {}
    parts = place.split("/")
    disk = parts[-2] if len(parts) > 2 and parts[-2] != "block" and name.startswith(parts[-2]) else name
    found = BDF.findall(place.lower())
    nvme = re.match(r"(nvme\d+)n\d+", disk)
    if not found and nvme:  # with multipath the disk hangs below a subsystem, beside its controllers
        found = BDF.findall((reader.resolve(f"{NVME}/{nvme.group(1)}").value or "").lower())
    return {disk: found[-1] if found else ""}


def device_name(reader: Reader, source: str) -> str:
    """Name of a block device below /sys/class/block, by the source of a mount; ``""`` for no device."""
    if not source.startswith("/dev/"):
        return ""
    name = source.removeprefix("/dev/")
    if "/" in name:  # /dev/mapper/vg-root, /dev/vg/root, /dev/disk/by-uuid/…
        target = (reader.link(source).value or "").rpartition("/")[2]
        name = target or name.replace("/", "!")
    return name


def read_mount(reader: Reader, line: Line, spaces: dict[str, Reading[tuple[int, int]]]) -> Mount:
    remote = bool(REMOTE.fullmatch(line.kind))
    if line.number not in spaces:
        spaces[line.number] = (
            Reading.no("not_asked", f"{line.kind} may wait for a server", line.point)
            if remote
            else reader.space(line.point)
        )
    space = spaces[line.number]
    device = device_name(reader, line.source)
    below = disks(reader, device) if device else {}
    if line.kind == "ext4":
        errors = reader.line(f"{EXT4}/{device}/errors_count").then(parse_count)
    else:
        errors = Reading.no("absent", f"{line.kind} does not count them", line.point)
    return Mount(
        point=line.point,
        source=line.source,
        kind=line.kind,
        remote=remote,
        read_only=line.read_only,
        devices=tuple(sorted(below)),
        controllers=tuple(sorted({bdf for bdf in below.values() if bdf})),
        size=space.then(lambda both: both[0]),
        free=space.then(lambda both: both[1]),
        errors=errors,
    )


def read(reader: Reader) -> Storage:
    lines = read_lines(reader)
    spaces: dict[str, Reading[tuple[int, int]]] = {}
    seen = {line.point: line for line in lines.value or () if is_real(line)}
    mounts = tuple(read_mount(reader, seen[point], spaces) for point in sorted(seen))
    return Storage(mounts=lines.then(lambda _: mounts))
