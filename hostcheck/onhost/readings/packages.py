"""Versions of the packages that decide how a card works, and which of them are held back.

One command: ``dpkg-query``, or ``rpm`` where dpkg knows no package. Where neither can be run but dpkg's own list is
there, as in an image that is looked at from outside, the list is read. What dnf holds stands in files: of its plugin
versionlock (dnf 4), or its own (dnf 5, dnf5-versionlock(8)).
"""

from __future__ import annotations

import fnmatch
import re
from dataclasses import dataclass, replace

from ..reader import Output, Reader, Reading, shorten

# A "v" before the version keeps one such as 1.2.3.4 from being taken for an address when a recording is redacted.
DPKG = (
    "dpkg-query",
    "-W",
    "-f",
    "${Package}\\tv${Version}\\t${Status}\\n",
    "dpkg",
    "linux-image-[0-9]*",
    "linux-firmware",
    "firmware-intel-graphics",
    "firmware-misc-nonfree",
    "libze-intel-gpu1",
    "intel-level-zero-gpu",
    "intel-opencl-icd",
    "libze1",
    "level-zero",
    "libigc2",
    "xpu-smi",
    "xpumanager",
    "mesa-vulkan-drivers",
    "intel-media-va-driver",
    "intel-media-va-driver-non-free",
    "tuned",
    "unattended-upgrades",
)
RPM = (
    "rpm",
    "-q",
    "--qf",
    "%{NAME}\\tv%{VERSION}-%{RELEASE}\\n",
    "rpm",
    "kernel",
    "kernel-core",
    "kernel-default",
    "linux-firmware",
    "intel-gpu-firmware",
    "kernel-firmware-i915",
    "intel-compute-runtime",
    "intel-level-zero",
    "intel-level-zero-gpu",
    "intel-opencl",
    "oneapi-level-zero",
    "level-zero",
    "xpu-smi",
    "mesa-vulkan-drivers",
    "intel-media-driver",
    "tuned",
    "dnf-automatic",
)
STATUS_FILE = "/var/lib/dpkg/status"
STATUS_LIMIT = 32 << 20  # bytes; a desktop's list is some 3 MB
DNF = "/etc/dnf"
DNF4_PLUGIN = "/etc/dnf/plugins/versionlock.conf"  # comes with the plugin; without it the list does nothing
DNF4_LOCKS = "/etc/dnf/plugins/versionlock.list"
DNF5_LOCKS = "/etc/dnf/versionlock.toml"
LOCKS_LIMIT = 1 << 20
WANTED = frozenset(DPKG[4:])


@dataclass(frozen=True)
class Package:
    """An installed package. held: it is kept from being upgraded; False where the manager does not tell."""

    name: str
    version: str
    held: bool


@dataclass(frozen=True)
class Packages:
    """Packages of a host.

    manager: ``dpkg`` or ``rpm``. installed: those of `DPKG` or `RPM` that are there, by name.
    locks: names that dnf holds, as they are written (``*`` stands for anything); absent where dpkg holds packages.
    """

    manager: Reading[str]
    installed: Reading[tuple[Package, ...]]
    locks: Reading[tuple[str, ...]] = Reading.no("not_asked", "not read by this version")


def version_of(packages: Packages, *names: str) -> Package | None:
    """The first of these packages that is installed."""
    by_name = {package.name: package for package in packages.installed.value or ()}
    return next((by_name[name] for name in names if name in by_name), None)


def parse_dpkg(text: str) -> tuple[Package, ...]:
    """Return the installed packages of ``dpkg-query``; lines of packages that are not installed are passed over.

    >>> parse_dpkg("xpu-smi\\tv1.3.6\\thold ok installed\\ntuned\\tv\\tdeinstall ok config-files\\n")
    (Package(name='xpu-smi', version='1.3.6', held=True),)

    Raises ValueError for a line of another form, and where no package is listed.
    """
    found: dict[str, Package] = {}
    lines = text.splitlines()
    for line in lines:
        parts = line.split("\t")
        if len(parts) != 3 or not parts[1].startswith("v") or len(parts[2].split()) != 3:
            raise ValueError(f"expected package, version and status, got {shorten(line, 80)!r}")
        want, _, state = parts[2].split()
        if state == "installed" and _is_version(parts[1][1:]):
            found.setdefault(parts[0], Package(parts[0], parts[1][1:], want == "hold"))
    if not lines:
        raise ValueError("no package is listed")
    return tuple(found[name] for name in sorted(found))


def parse_rpm(text: str) -> tuple[Package, ...]:
    """Return the packages of ``rpm -q``. Of several with one name, such as kernels, the last listed counts.

    >>> parse_rpm("rpm\\tv4.19.1-10.el10\\npackage xpu-smi is not installed\\n")
    (Package(name='rpm', version='4.19.1-10.el10', held=False),)

    Raises ValueError for a line of another form, and where no package is listed.
    """
    found: dict[str, Package] = {}
    for line in text.splitlines():
        if re.fullmatch(r"package \S+ is not installed", line):
            continue
        name, tab, version = line.partition("\t")
        if not tab or not version.startswith("v") or not _is_version(version[1:]):
            raise ValueError(f"expected a package and its version, got {shorten(line, 80)!r}")
        found[name] = Package(name, version[1:], False)
    if not found:
        raise ValueError("no package is listed")
    return tuple(found[name] for name in sorted(found))


def parse_status(text: str) -> tuple[Package, ...]:
    """Return the packages of dpkg's own list (deb-control(5), dpkg(1)) that `DPKG` asks for.

    Raises ValueError where there is no paragraph of a package.
    """
    found: dict[str, Package] = {}
    seen = False
    for paragraph in re.split(r"\n[ \t]*\n", text):
        fields = dict(re.findall(r"^(Package|Version|Status):[ \t]*(.*?)[ \t]*$", paragraph, re.MULTILINE))
        if set(fields) < {"Package", "Status"}:
            continue
        seen = True
        name, version, status = fields["Package"], fields.get("Version", ""), fields["Status"].split()
        is_asked = name in WANTED or re.match(r"linux-image-[0-9]", name)
        if is_asked and len(status) == 3 and status[2] == "installed" and _is_version(version):
            found.setdefault(name, Package(name, version, status[0] == "hold"))
    if not seen:
        raise ValueError(f"no package in {shorten(text, 80)!r}")
    return tuple(found[name] for name in sorted(found))


def is_locked(name: str, locks: tuple[str, ...]) -> bool:
    """Is a package one of those that are held?"""
    return any(fnmatch.fnmatchcase(name, lock) for lock in locks)


def parse_dnf4_plugin(text: str) -> str:
    """Return the file of the locks that the plugin's settings name, ``""`` where it is switched off.

    >>> parse_dnf4_plugin("[main]\\nenabled = 1\\nlocklist = /etc/locks\\n"), parse_dnf4_plugin("[main]\\nenabled=0\\n")
    ('/etc/locks', '')

    Raises ValueError for text that is no such settings.
    """
    if "[main]" not in text:
        raise ValueError(f"expected a section [main], got {shorten(text, 80)!r}")
    values = dict(re.findall(r"(?m)^[ \t]*(enabled|locklist)[ \t]*=[ \t]*(\S*)[ \t]*$", text))
    if values.get("enabled", "1").lower() not in ("1", "yes", "true", "on"):
        return ""
    return values.get("locklist") or DNF4_LOCKS


def parse_dnf4_locks(text: str) -> tuple[str, ...]:
    """Return the names of a list of dnf 4's plugin; lines that exclude a version (``!``) hold none.

    >>> parse_dnf4_locks("# Added lock\\nlinux-firmware-0:20250812-14.el9.*\\n!xe-0:1-1.*\\nkernel-core*\\n")
    ('linux-firmware', 'kernel-core*')

    Raises ValueError for a line that cannot be the name of a package.
    """
    found = []
    for line in filter(None, (line.strip() for line in text.splitlines())):
        if line.startswith(("#", "!")):
            continue
        if not re.fullmatch(r"[\w.+*?\[\]:~^-]+", line, re.ASCII):
            raise ValueError(f"expected a package and its version, got {shorten(line, 80)!r}")
        match = re.fullmatch(r"(.+)-(?:\d+:)?[^:-]+-[^:-]+", line)
        found.append(match.group(1) if match else line)
    return tuple(dict.fromkeys(found))


def parse_dnf5_locks(text: str) -> tuple[str, ...]:
    """Return the names of ``versionlock.toml`` that a version, or the highest one, is set for.

    >>> parse_dnf5_locks('[[packages]]\\nname = "xe"\\n[[packages.conditions]]\\nkey = "evr"\\ncomparator = "="\\n')
    ('xe',)

    Raises ValueError for text of another form.
    """
    if not re.search(r"(?m)^\s*version\s*=|^\s*\[\[packages\]\]", text):
        raise ValueError(f"expected a version and packages, got {shorten(text, 80)!r}")
    found = []
    for part in re.split(r"(?m)^\s*\[\[packages\]\]\s*$", text)[1:]:
        name = re.search(r"""(?m)^\s*name\s*=\s*["']([^"']+)["']""", part)
        if name is None:
            raise ValueError(f"a package without a name: {shorten(part, 80)!r}")
        if re.search(r"""(?m)^\s*comparator\s*=\s*["'](?:=|==|<|<=)["']""", part):
            found.append(name.group(1))
    return tuple(dict.fromkeys(found))


def read_locks(reader: Reader) -> Reading[tuple[str, ...]]:
    """What dnf holds; () where there is neither the plugin of dnf 4 nor a file of dnf 5.

    Absent on a host without dnf: another manager of packages (zypper, rpm-ostree) keeps its locks elsewhere.
    """
    there = reader.names(DNF)
    if there.unread == "absent":
        return Reading.no("absent", "no dnf here; what another manager of packages holds is not read", DNF)
    if there.value is None:
        return there.then(lambda _: ())
    found: list[str] = []
    source = DNF5_LOCKS
    locks = reader.text(DNF5_LOCKS, LOCKS_LIMIT)
    if locks.unread != "absent":
        names = locks.then(parse_dnf5_locks)
        if names.value is None:
            return names
        found += names.value
    plugin = reader.text(DNF4_PLUGIN, LOCKS_LIMIT)
    if plugin.unread != "absent":
        path = plugin.then(parse_dnf4_plugin)
        if path.value is None:
            return path.then(lambda _: ())
        source = path.value or DNF4_PLUGIN
        locks = reader.text(path.value, LOCKS_LIMIT) if path.value else Reading("", DNF4_PLUGIN)
        if locks.unread != "absent":
            names = locks.then(parse_dnf4_locks)
            if names.value is None:
                return names
            found += names.value
    return Reading(tuple(dict.fromkeys(found)), source)


def _is_version(text: str) -> bool:
    """Is it the version of a package (deb-version(7); RPM's are a subset)?"""
    return re.fullmatch(r"[0-9A-Za-z][0-9A-Za-z.+~:^_-]*", text) is not None


def _from_dpkg(output: Output) -> tuple[Package, ...]:
    # 1: some of the names are not known, which is normal here; 2: the list itself could not be read
    if output.rc not in (0, 1):
        raise ValueError(f"exit {output.rc}: {shorten(output.stderr)}")
    return parse_dpkg(output.stdout)


def _from_rpm(output: Output) -> tuple[Package, ...]:
    return parse_rpm(output.stdout)  # its exit status is the number of names that are not known


def _named(ran: Reading[Output], name: str) -> Reading[Output]:
    """The same with a short source: the whole command line is longer than all that it gives."""
    return Reading(ran.value, name, ran.unread, ran.detail)


def _unread(name: str, installed: Reading[tuple[Package, ...]]) -> Packages:
    """Packages whose manager answered, and not with a list."""
    return Packages(installed.then(lambda _: name), installed, installed.then(lambda _: ()))


def _of_rpm(manager: Reading[str], installed: Reading[tuple[Package, ...]], reader: Reader) -> Packages:
    """Packages of rpm, with what dnf holds."""
    locks = read_locks(reader)
    if locks.value:
        held = locks.value
        installed = installed.then(
            lambda found: tuple(replace(package, held=is_locked(package.name, held)) for package in found)
        )
    return Packages(manager, installed, locks)


def read(reader: Reader) -> Packages:
    no_locks: Reading[tuple[str, ...]] = Reading.no("absent", "dpkg holds packages itself", DNF5_LOCKS)
    dpkg = _named(reader.run(DPKG), "dpkg-query -W")
    if dpkg.value is not None and dpkg.value.stdout.strip():
        return Packages(Reading("dpkg", dpkg.source), dpkg.then(_from_dpkg), no_locks)
    rpm = _named(reader.run(RPM), "rpm -q")
    if rpm.value is not None and re.search(r"^rpm\t", rpm.value.stdout, re.MULTILINE):
        return _of_rpm(Reading("rpm", rpm.source), rpm.then(_from_rpm), reader)
    listed = reader.text(STATUS_FILE, STATUS_LIMIT)
    if listed.unread != "absent":
        return Packages(Reading("dpkg", STATUS_FILE), listed.then(parse_status), no_locks)
    for name, ran, function in (("dpkg", dpkg, _from_dpkg), ("rpm", rpm, _from_rpm)):
        if ran.unread != "tool_missing":
            return _unread(name, ran.then(function))
    no: Reading[str] = Reading.no("tool_missing", "neither dpkg nor rpm", dpkg.source)
    return Packages(no, no.then(lambda _: ()), no.then(lambda _: ()))
