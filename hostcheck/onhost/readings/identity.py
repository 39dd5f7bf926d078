"""Which host this is: kernel, operating system, board, and whether it is a virtual machine.

Serial numbers and UUIDs of the board are never read.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from ..reader import Reader, Reading

DMI = "/sys/class/dmi/id"
OS_RELEASE = ("/etc/os-release", "/usr/lib/os-release")  # os-release(5): the second where the first is missing
NOT_FILLED_IN = re.compile(
    r"(?i)^(to be filled.*|default string|not specified|system (manufacturer|product name)|o\.?e\.?m\.?|)$"
)

# What the firmware of virtual machines writes into DMI; on a machine without a CPU flag for it (Arm) this decides.
VIRTUAL_BOARDS = (
    (r"^(?!.*\.metal).*\bAmazon EC2\b", "amazon"),
    (r"Google Compute Engine", "google"),
    (r"Microsoft Corporation.*Virtual Machine", "microsoft"),
    (r"VMware", "vmware"),
    (r"innotek GmbH|VirtualBox", "oracle"),
    (r"Parallels", "parallels"),
    (r"\bXen\b|HVM domU", "xen"),
    (r"BHYVE", "bhyve"),
    (r"Apple Virtualization", "apple"),
    (r"\bQEMU\b|\bKVM\b|Bochs|OpenStack|oVirt|RHEV|SeaBIOS|Virtual Machine|vServer|Droplet", "kvm"),
)

CONTAINER_FILES = (("/run/.containerenv", "podman"), ("/.dockerenv", "docker"))
CONTAINER_CGROUPS = (
    (r"/docker[-/]", "docker"),
    (r"/kubepods|/cri-containerd", "kubernetes"),
    (r"/libpod", "podman"),
    (r"/lxc", "lxc"),
    (r"/machine\.slice/machine-|/containers?/", "container"),
)


@dataclass(frozen=True)
class Identity:
    """Identity of a host.

    architecture: the kernel's machine name, e.g. ``x86_64``.
    uptime: seconds since boot. taint: the kernel's taint bits, 0 when clean.
    os_id, os_version, os_name: ID, VERSION_ID and PRETTY_NAME of os-release.
    vendor, product, board, bios_version, bios_date: of DMI.
    virtualization: ``none`` on bare metal, ``xen-dom0`` where Linux is Xen's first domain, else the hypervisor in the
        words of systemd-detect-virt, e.g. ``kvm``.
    container: ``none``, or what holds the reader, e.g. ``docker``.
    privileged: was the host read as root? As root there is more to read.
    """

    hostname: Reading[str]
    kernel: Reading[str]
    architecture: Reading[str]
    boot_id: Reading[str]
    uptime: Reading[float]
    taint: Reading[int]
    os_id: Reading[str]
    os_version: Reading[str]
    os_name: Reading[str]
    vendor: Reading[str]
    product: Reading[str]
    board: Reading[str]
    bios_version: Reading[str]
    bios_date: Reading[str]
    virtualization: Reading[str]
    container: Reading[str]
    privileged: Reading[bool]


def parse_word(text: str) -> str:
    """Return a value of one line without white space in it. Raises ValueError for anything else.

    >>> parse_word("6.8.0-45-generic\\n")
    '6.8.0-45-generic'
    """
    words = text.split()
    if len(words) != 1:
        raise ValueError(f"expected one word, got {text!r}")
    return words[0]


def parse_boot_id(text: str) -> str:
    """Return the boot id in lower case. Raises ValueError when it is not a UUID."""
    word = text.strip().lower()
    if not re.fullmatch(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", word):
        raise ValueError(f"expected a boot id, got {text!r}")
    return word


def parse_uptime(text: str) -> float:
    """Return the seconds since boot, the first number of /proc/uptime.

    >>> parse_uptime("1108.99 1924.57\\n")
    1108.99
    """
    match = re.match(r"(\d+\.\d+)\s+\d+\.\d+\s*$", text)
    if not match:
        raise ValueError(f"expected two numbers, got {text!r}")
    return float(match.group(1))


def parse_number(text: str) -> int:
    """Return a decimal number that is not negative. Raises ValueError for anything else."""
    if not re.fullmatch(r"[0-9]{1,20}", text.strip()):
        raise ValueError(f"expected a number, got {text!r}")
    return int(text)


def parse_os_release(text: str) -> dict[str, str]:
    """Return the variables of os-release, quotes removed; other lines are passed over.

    >>> parse_os_release('ID=debian\\nVERSION_ID="13"\\n')
    {'ID': 'debian', 'VERSION_ID': '13'}

    Raises ValueError when there is none.
    """
    found: dict[str, str] = {}
    for line in text.splitlines():
        match = re.match(r"""\s*([A-Z][A-Z0-9_]*)=(?:"((?:[^"\\]|\\.)*)"|'([^']*)'|([^\s"']*))\s*$""", line)
        if match:
            value = next(group for group in match.groups()[1:] if group is not None)
            found[match.group(1)] = re.sub(r"\\(.)", r"\1", value)
    if not found:
        raise ValueError(f"no variable of os-release in {text[:80]!r}")
    return found


def parse_dmi(text: str) -> str:
    """Return a DMI text. Raises ValueError for one that nobody filled in."""
    line = " ".join(text.split())
    if NOT_FILLED_IN.match(line):
        raise ValueError(f"the firmware says {line!r}")
    return line


def parse_cpu_flag(text: str) -> str:
    """Return ``vm`` or ``none`` by the flag ``hypervisor`` of /proc/cpuinfo.

    Every hypervisor for x86 sets it. Raises ValueError where there is no line ``flags`` (Arm has none that tells).
    """
    flags = re.findall(r"^flags\s*:(.*)$", text, re.MULTILINE)
    if not flags:
        raise ValueError("no line 'flags', so the processor does not tell")
    return "vm" if any("hypervisor" in line.split() for line in flags) else "none"


def parse_architecture(text: str) -> str:
    """Return the machine name by /proc/cpuinfo, for kernels before 6.1, which have no ``kernel.arch``."""
    if re.search(r"^flags\s*:.*\blm\b", text, re.MULTILINE):
        return "x86_64"
    if re.search(r"^CPU architecture\s*: *8\b", text, re.MULTILINE):
        return "aarch64"
    raise ValueError("no line of /proc/cpuinfo that tells the architecture")


def parse_effective_uid(text: str) -> int:
    """Return the effective user id of /proc/self/status (real, effective, saved, file system)."""
    match = re.search(r"^Uid:\s+\d+\s+(\d+)\s+\d+\s+\d+\s*$", text, re.MULTILINE)
    if not match:
        raise ValueError("no line 'Uid:' with four numbers")
    return int(match.group(1))


def virtual_board(texts: tuple[str, ...]) -> str:
    """Return the hypervisor that DMI texts speak of, or ``none``.

    >>> virtual_board(("QEMU", "Standard PC (Q35 + ICH9, 2009)"))
    'kvm'
    >>> virtual_board(("Amazon EC2", "c7g.metal"))
    'none'
    """
    together = " ".join(texts)
    return next((word for pattern, word in VIRTUAL_BOARDS if re.search(pattern, together)), "none")


def container_of(text: str) -> str:
    """Return what /proc/1/cgroup says about a container, or ``none``."""
    return next((word for pattern, word in CONTAINER_CGROUPS if re.search(pattern, text)), "none")


def read_virtualization(reader: Reader, cpuinfo: Reading[str], board: tuple[Reading[str], ...]) -> Reading[str]:
    xen = reader.line("/proc/xen/capabilities")
    if xen.value is not None and "control_d" in xen.value:
        return Reading("xen-dom0", xen.source)
    kind = reader.line("/sys/hypervisor/type").then(parse_word)
    if kind.unread != "absent":
        return kind
    texts = tuple(reading.value for reading in board if reading.value is not None)
    flag = cpuinfo.then(parse_cpu_flag)
    if flag.value is not None:
        named = virtual_board(texts)
        return Reading(named if flag.value == "vm" and named != "none" else flag.value, flag.source)
    if texts and (virtual_board(texts) != "none" or cpuinfo.unread == "absent" or (cpuinfo.value or "").strip()):
        return Reading(virtual_board(texts), DMI)
    if texts:  # on x86 a guest whose board says nothing of it is known by its processor alone
        return flag
    # Machines without DMI describe themselves in a device tree; a guest's has a node for its hypervisor.
    guest = reader.data("/proc/device-tree/hypervisor/compatible")
    if guest.unread != "absent":
        return guest.then(lambda compatible: "xen" if b"xen" in compatible else "kvm" if b"kvm" in compatible else "vm")
    model = reader.data("/proc/device-tree/model")
    if model.unread != "absent":
        return model.then(lambda name: "vm" if b"virt" in name.lower() else "none")
    return flag


def read_container(reader: Reader) -> Reading[str]:
    for path, word in CONTAINER_FILES:
        # Both files may be empty; that they are there is what counts.
        if reader.data(path).unread != "absent":
            return Reading(word, path)
    return reader.text("/proc/1/cgroup").then(container_of)


def read(reader: Reader) -> Identity:
    cpuinfo = reader.text("/proc/cpuinfo")
    release = reader.text(OS_RELEASE[0])
    if release.unread is not None:
        release = release.or_(reader.text(OS_RELEASE[1]))
    system = release.then(parse_os_release)

    def variable(name: str) -> Reading[str]:
        if system.value is not None and name not in system.value:
            return Reading.no("absent", f"no {name} there", system.source)
        return system.then(lambda found: found[name])

    def dmi(name: str) -> Reading[str]:
        return reader.text(f"{DMI}/{name}").then(parse_dmi)

    vendor, product, bios = dmi("sys_vendor"), dmi("product_name"), dmi("bios_version")
    board = (dmi("board_vendor"), dmi("board_name"))
    named = tuple(reading.value for reading in board if reading.value is not None)
    half = next((reading for reading in board if reading.unread not in (None, "absent")), None)
    architecture = reader.text("/proc/sys/kernel/arch").then(parse_word)
    return Identity(
        hostname=reader.text("/proc/sys/kernel/hostname").then(parse_word),
        kernel=reader.text("/proc/sys/kernel/osrelease").then(parse_word),
        architecture=architecture.or_(cpuinfo.then(parse_architecture)),
        boot_id=reader.text("/proc/sys/kernel/random/boot_id").then(parse_boot_id),
        uptime=reader.text("/proc/uptime").then(parse_uptime),
        taint=reader.text("/proc/sys/kernel/tainted").then(parse_number),
        os_id=variable("ID"),
        os_version=variable("VERSION_ID"),
        os_name=variable("PRETTY_NAME"),
        vendor=vendor,
        product=product,
        board=half or (Reading(" ".join(named), board[1].source) if named else board[1]),
        bios_version=bios,
        bios_date=dmi("bios_date"),
        virtualization=read_virtualization(reader, cpuinfo, (vendor, product, bios, *board)),
        container=read_container(reader),
        privileged=reader.text("/proc/self/status").then(parse_effective_uid).then(lambda uid: uid == 0),
    )
