"""Whose the GuC files on disk are: the package that lists them, what it installed, and what is there now.

dpkg keeps the digests of all that a package installed in one file per package; rpm tells them to one command that asks
for packages by name. Of these lists a recording keeps the lines of the files asked for, and of a file its digest.

Sources: dpkg(1), dpkg-divert(1), deb-md5sums(5), rpm-queryformat(7).
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from ..reader import DIGESTS, Reader, Reading
from .environment import part
from .next_boot import NextBoot
from .packages import Packages

DPKG_INFO = "/var/lib/dpkg/info"
DIVERSIONS = "/var/lib/dpkg/diversions"
# Packages that may hold firmware of a GPU, by their names: linux-firmware, firmware-intel-graphics, intel-fw-gpu …; and
# dpkg's own, so that there is one wherever dpkg is.
LISTS = re.compile(r"(?:.*(?:firmware|gpu|intel|\bxe\b|\bfw\b).*|dpkg(?::\w+)?)\.md5sums")
LIST_LIMIT = 8 << 20  # bytes; linux-firmware lists some 3,500 files
FOLDER = re.compile(r"^(?:usr/)?lib/firmware/(?:updates/)?(?:xe|i915)/")  # names of xe may be links to files of i915
# Packages of Fedora, RHEL and SUSE that hold firmware of Intel's GPUs; those that are not installed are said to be so.
RPM = (
    "rpm",
    "-q",
    "--qf",
    "[%{=NAME}\\t%{FILENAMES}\\t%{FILEDIGESTS}\\n]",
    "linux-firmware",
    "intel-gpu-firmware",
    "kernel-firmware",
    "kernel-firmware-i915",
    "kernel-firmware-intel",
)
LINES = re.compile(rf"(?m)^\S+ [ *]{FOLDER.pattern.lstrip('^')}.*$")
LOCAL = ":"  # dpkg's word for a diversion that a person made


@dataclass(frozen=True)
class Owner:
    """One file and whose it is.

    package: that lists it, ``""`` for none. installed: its digest when it was installed, ``""`` where no package has
    it. diverted: by whom its name was diverted (dpkg-divert), ``:`` by a person, ``""`` by nobody.
    digest: of the file now, e.g. ``md5-0123…``, in rpm's case ``sha256-0123…``.
    """

    path: str
    package: str
    installed: str
    diverted: str
    digest: Reading[str]


@dataclass(frozen=True)
class FirmwareFiles:
    """GuC files that the driver would take at the next load, and whose they are."""

    guc: Reading[tuple[Owner, ...]]


def plain(path: str) -> str:
    """A path as it is compared: without its first slash, and without ``usr/``, since /lib may be a link to it.

    >>> plain("/usr/lib/firmware/xe/a.bin"), plain("lib/firmware/xe/a.bin")
    ('lib/firmware/xe/a.bin', 'lib/firmware/xe/a.bin')
    """
    return re.sub(r"^usr/(?=lib/)", "", path.lstrip("/"))


def parse_digests(text: str) -> dict[str, str]:
    """Return path -> digest of a list of dpkg, as it is or as `reduce_digests` leaves it.

    >>> parse_digests("0123456789abcdef0123456789abcdef  usr/lib/firmware/xe/bmg_guc_70.bin\\n")
    {'lib/firmware/xe/bmg_guc_70.bin': 'md5-0123456789abcdef0123456789abcdef'}

    Raises ValueError for a line of another form, and where there is none.
    """
    found = {}
    for line in text.splitlines():
        match = re.fullmatch(r"(?:md5-)?([0-9a-f]{32}) [ *](\S.*)", line)
        if not match:
            raise ValueError(f"expected a digest and a path, got {line[:80]!r}")
        found[plain(match.group(2))] = f"md5-{match.group(1)}"
    if not found:
        raise ValueError("lists no file")
    return found


def reduce_digests(text: str) -> str:
    """A list with the firmware of xe alone, and its first line, so that it is never empty.

    >>> reduce_digests("0" * 32 + "  usr/share/doc/a\\n" + "1" * 32 + "  usr/share/doc/b\\n")
    'md5-00000000000000000000000000000000  usr/share/doc/a\\n'

    Raises ValueError where one of these is of another form.
    """
    first, _, rest = text.partition("\n")
    kept = [first, *LINES.findall(rest)]  # some thousand others are passed over unseen
    parse_digests("\n".join(kept))
    return "".join(f"md5-{line.removeprefix('md5-')}\n" for line in kept)  # bare, they would be taken for machine ids


def parse_diversions(text: str) -> dict[str, str]:
    """Return path -> who diverted it, a package or ``:`` for a person (lines by three: from, to, who).

    >>> parse_diversions("/lib/firmware/xe/a.bin\\n/lib/firmware/xe/a.bin.distrib\\n:\\n")
    {'lib/firmware/xe/a.bin': ':'}

    Raises ValueError where the lines do not go by three.
    """
    lines = text.splitlines()
    if len(lines) % 3 or not all(line.startswith("/") for line in lines[::3]):
        raise ValueError(f"expected lines by three, got {len(lines)} that begin {text[:60]!r}")
    return {plain(path): who for path, who in zip(lines[::3], lines[2::3])}


def reduce_diversions(text: str) -> str:
    """The diversions of firmware of xe alone."""
    parse_diversions(text)
    lines = text.splitlines()
    kept = [lines[at : at + 3] for at in range(0, len(lines), 3) if FOLDER.match(lines[at].lstrip("/"))]
    return "".join(f"{line}\n" for three in kept for line in three)


def parse_rpm(text: str) -> dict[str, dict[str, str]]:
    """Return path -> digest by package of what rpm prints; () of packages that are not installed.

    >>> line = "linux-firmware\\t/usr/lib/firmware/xe/bmg_guc_70.bin.xz\\t" + "0" * 64
    >>> list(parse_rpm(f"{line}\\npackage kernel-firmware is not installed\\n"))
    ['linux-firmware']

    Raises ValueError for a line of another form, and where no package is listed.
    """
    found: dict[str, dict[str, str]] = {}
    for line in text.splitlines():
        if re.fullmatch(r"package \S+ is not installed", line):
            continue
        parts = line.split("\t")
        if len(parts) != 3 or not parts[1].startswith("/") or not re.fullmatch(r"[0-9a-f]*", parts[2], re.ASCII):
            raise ValueError(f"expected package, path and digest, got {line[:80]!r}")
        kind = next((kind for kind, digits in DIGESTS.items() if digits == len(parts[2])), None)
        files = found.setdefault(parts[0], {})
        if kind is not None:  # a folder or a link has none
            files[plain(parts[1])] = f"{kind}-{parts[2]}"
    if not found:
        raise ValueError("no package is listed")
    return found


def reduce_rpm(text: str) -> str:
    """What rpm prints, with the firmware of xe alone and the first line of every package."""
    seen: set[str] = set()
    kept = []
    for line in text.splitlines():
        package, _, rest = line.partition("\t")
        if not rest or package not in seen or FOLDER.match(rest.lstrip("/")):
            kept.append(line)
        seen.add(package)
    return "".join(f"{line}\n" for line in kept)


def owner(path: str, lists: dict[str, dict[str, str]], diversions: dict[str, str]) -> tuple[str, str, str]:
    """(package, digest that it installed, who diverted the name) of a path.

    lists: digests by package. Of a diverted name only the file of the one who diverted it has that name.
    """
    name = plain(path)
    diverted = diversions.get(name, "")
    for package, digests in sorted(lists.items()):
        if name in digests and diverted in ("", package):
            return package, digests[name], diverted
    return "", "", diverted


def read_lists(reader: Reader) -> Reading[dict[str, dict[str, str]]]:
    """Digests of the packages that may hold firmware, by package; one that is not understood makes all so."""
    names = reader.unrecorded.names(DPKG_INFO)  # which others are installed is not kept
    if names.value is None:
        return reader.names(DPKG_INFO).then(lambda _: {})
    found: dict[str, dict[str, str]] = {}
    for name in names.value:
        if not LISTS.fullmatch(name):
            continue
        path = f"{DPKG_INFO}/{name}"
        digests = part(reader, path, reduce_digests, LIST_LIMIT).then(parse_digests)
        if digests.value is None and digests.unread != "absent":
            return digests.then(lambda _: {})
        found[name.removesuffix(".md5sums").partition(":")[0]] = digests.value or {}
    return names.then(lambda _: found)


def read_rpm(reader: Reader) -> Reading[dict[str, dict[str, str]]]:
    """Digests by package of rpm; of some thousand files a recording keeps those of xe."""
    ran = reader.unrecorded.run(RPM)
    reader.keep_command(ran, reduce_rpm)
    # its exit status is the number of packages that are not installed
    return Reading(ran.value, "rpm -q", ran.unread, ran.detail).then(lambda output: parse_rpm(output.stdout))


def read_guc(reader: Reader, paths: Reading[tuple[str, ...]], manager: Reading[str]) -> Reading[tuple[Owner, ...]]:
    if not paths.value:
        return paths.then(lambda _: ())
    is_rpm = manager.value == "rpm"
    lists = read_rpm(reader) if is_rpm else read_lists(reader)
    diverted = part(reader, DIVERSIONS, reduce_diversions).then(parse_diversions)
    if diverted.unread == "absent":
        diverted = Reading({}, DIVERSIONS)
    if lists.value is None or diverted.value is None:
        return (lists if lists.value is None else diverted).then(lambda _: ())
    found = []
    for path in paths.value:
        # of a link neither list has a digest: whose the file is that it leads to
        package, installed, who = owner(reader.resolve(path).value or path, lists.value, diverted.value)
        kind = installed.partition("-")[0] or ("sha256" if is_rpm else "md5")
        found.append(Owner(path, package, installed, who, reader.digest(path, kind)))
    return Reading(tuple(found), lists.source)


def read(reader: Reader, next_boot: NextBoot, packages: Packages) -> FirmwareFiles:
    paths = next_boot.guc_versions.then(lambda files: tuple(one.path for one in files))
    return FirmwareFiles(read_guc(reader, paths, packages.manager))
