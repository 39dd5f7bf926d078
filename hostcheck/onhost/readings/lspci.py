"""The text of ``lspci -vv``, as pciutils has written it over the years.

What changed (history of pciutils): until 3.5 LnkSta is one line and knows no words; 3.6 and 3.7 write ``(ok)``,
``(downgraded)`` and ``(strange)``; from 3.8 on nothing is written where both are equal, and nothing at all for root
ports, downstream ports and bridges to PCI. So numbers are compared here and the words are never looked at.
A speed that a version does not know is ``unknown``. Without -D the domain is left out where there is one only.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from . import gpu_ids
from .config_space import AerRegisters

WHOLE = ("lspci", "-D", "-nn", "-vv")

HEAD = re.compile(r"^(?:([0-9a-f]{4,8}):)?([0-9a-f]{2}:[0-9a-f]{2}\.[0-7])\s+(\S.*)$", re.IGNORECASE)
NUMERIC = re.compile(r"^([0-9a-f]{4}): ([0-9a-f]{4}):([0-9a-f]{4})\b", re.IGNORECASE)
CLASS = re.compile(r"\[([0-9a-f]{4})\]:", re.IGNORECASE)
IDS = re.compile(r"\[([0-9a-f]{4}):([0-9a-f]{4})\]", re.IGNORECASE)
INTERFACE = re.compile(r"\(prog-if ([0-9a-f]{2})\b", re.IGNORECASE)
CAPABILITY = re.compile(r"^\s+Capabilities: (?:\[([0-9a-f]+)(?: v\d+)?\] )?(.*)$", re.IGNORECASE)
RATE = r"Speed (?:([\d.]+) ?GT/s|unknown)(?: \([^)]*\))?, Width x(\d+)"
LINK_CAP = re.compile(rf"^\s*LnkCap:\s+(?:Port #\d+, )?{RATE}")
LINK_STA = re.compile(rf"^\s*LnkSta:\s+{RATE}")
LINK_CTL = re.compile(r"^\s*LnkCtl:\s+ASPM (Disabled|L0s L1 Enabled|L0s Enabled|L1 Enabled)\b")
ACTIVE_TOLD = re.compile(r"\bLLActRep([+-])")
TRAINING = re.compile(r"\bTrain([+-])(?:.*\bDLActive([+-]))?")
REGION = re.compile(r"^\s+Region (\d): .*\[size=(\d+)([KMGT]?)\]")
NOWHERE = re.compile(r"^\s+Region (\d): (?:Memory|I/O ports) at <(?:unassigned|ignored|invalid[^>]*)>")
BUSES = re.compile(r"^\s+Bus: primary=([0-9a-f]{2}), secondary=([0-9a-f]{2}), subordinate=([0-9a-f]{2})", re.IGNORECASE)
DRIVER = re.compile(r"^\s+Kernel driver in use: (\S+)")
# A block with one of these was printed with -v or -k, so it names the driver where one is bound.
TOLD = re.compile(r"^\s+(?:Control|Status|Flags|Subsystem|DeviceName|Kernel modules|Interrupt):? ")
SUBSYSTEM = re.compile(r"^\s+Subsystem: .*\[([0-9a-f]{4}:[0-9a-f]{4})\]", re.IGNORECASE)
SLOT = re.compile(r"^\s+Physical Slot: (\S+)")
BAR_SIZES = re.compile(r"^\s+BAR (\d): current size: (\d+[KMGT]?B), supported: (.*)$")
FLAGS = re.compile(r"^\s+(UESta|UEMsk|UESvrt|CESta|CEMsk|ACSCtl|L1SubCtl1):\s+(.*)$")
PORT_TYPES = (
    ("Root Port", 4),
    ("Upstream Port", 5),
    ("Downstream Port", 6),
    ("PCI-Express to PCI", 7),
    ("PCI/PCI-X to PCI-Express", 8),
    ("Root Complex Integrated Endpoint", 9),
    ("Root Complex Event Collector", 10),
    ("Legacy Endpoint", 1),
    ("Endpoint", 0),
)
# Classes by the words that lspci writes without -nn (pci.ids), as far as they matter for telling what is no GPU.
CLASSES = {
    "VGA compatible controller": "0300",
    "XGA compatible controller": "0301",
    "3D controller": "0302",
    "Display controller": "0380",
    "Processing accelerators": "1200",
    "Co-processor": "0b40",
    "PCI bridge": "0604",
    "Host bridge": "0600",
    "ISA bridge": "0601",
    "RAM memory": "0500",
    "Audio device": "0403",
    "Multimedia audio controller": "0401",
    "USB controller": "0c03",
    "SMBus": "0c05",
    "Serial bus controller": "0c80",
    "Ethernet controller": "0200",
    "Network controller": "0280",
    "Non-Volatile memory controller": "0108",
    "SATA controller": "0106",
    "RAID bus controller": "0104",
    "Serial Attached SCSI controller": "0107",
    "IOMMU": "0806",
    "System peripheral": "0880",
    "Signal processing controller": "1180",
    "Communication controller": "0780",
    "Serial controller": "0700",
    "Encryption controller": "1080",
}
# Vendors by the words that lspci writes without -nn (pci.ids): those of GPUs, of their ports, and of other displays.
VENDORS = (
    ("Intel Corporation", "8086"),
    ("NVIDIA Corporation", "10de"),
    ("Advanced Micro Devices, Inc. [AMD/ATI]", "1002"),
    ("Advanced Micro Devices, Inc. [AMD]", "1022"),
    ("ASPEED Technology", "1a03"),
    ("Matrox", "102b"),
    ("Red Hat", "1af4"),
    ("VMware", "15ad"),
    ("Cirrus Logic", "1013"),
    ("Huawei Technologies", "19e5"),
)
UNNAMED = re.compile(r"Device ([0-9a-f]{4})\b")  # what pci.ids has no name for
SIZES = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}


@dataclass
class Device:
    """One function of the listing.

    vendor, device: "" where the listing has no numbers; class_code: then by its words, else "". dead: it does not
    answer (``rev ff``, header type 7f). denied: capabilities were refused. told: a driver would be named here if one
    was bound. speeds in GT/s, None where the text says unknown or nothing. active_told: can the port tell that its link
    is active? troubles: see `config_space.troubles`, None where the line is missing.
    buses: (primary, secondary, subordinate) of a bridge. regions, bar_sizes: BAR number -> bytes; a region that has no
    address has 0, one whose size is not printed is left out.
    """

    bdf: str
    vendor: str = ""
    device: str = ""
    class_code: str = ""
    subsystem: str = ""
    driver: str = ""
    slot: str = ""
    dead: bool = False
    denied: bool = False
    told: bool = False
    port_type: int | None = None
    max_speed: float | None = None
    max_width: int | None = None
    speed: float | None = None
    width: int | None = None
    link: bool = False
    aspm: str | None = None
    active_told: bool = False
    troubles: tuple[str, ...] | None = None
    buses: tuple[str, str, str] | None = None
    regions: dict[int, int] = field(default_factory=dict)
    bar_sizes: dict[int, tuple[int, ...]] = field(default_factory=dict)
    flags: dict[str, tuple[str, ...]] = field(default_factory=dict)

    @property
    def aer(self) -> AerRegisters | None:
        """The AER registers, where all five are printed."""
        try:
            return AerRegisters(*(self.flags[name] for name in ("UESta", "UEMsk", "UESvrt", "CESta", "CEMsk")))
        except KeyError:
            return None

    @property
    def acs(self) -> tuple[str, ...] | None:
        """The bits that are set in ACSCtl, where it is printed."""
        return self.flags.get("ACSCtl")

    @property
    def l1_substates(self) -> tuple[str, ...] | None:
        """The substates of L1 that are enabled, where L1SubCtl1 is printed."""
        return self.flags.get("L1SubCtl1")


def _ids_of(name: str) -> tuple[str, str]:
    """Vendor and device by the words of a listing without numbers; ``""`` for what they do not tell.

    >>> _ids_of("Intel Corporation Device e2ff (rev 01)"), _ids_of("Intel Corporation Battlemage G21 [Arc B580]")
    (('8086', 'e2ff'), ('8086', 'e20b'))
    """
    vendor, rest = next(((id, name[len(word) :]) for word, id in VENDORS if name.startswith(word)), ("", ""))
    if unnamed := UNNAMED.match(rest.strip()):
        return vendor, unnamed.group(1)
    if vendor == gpu_ids.INTEL:
        found = [device for device, one in gpu_ids.INTEL_CARDS.items() if f"[{one.name}]" in rest]
        return vendor, found[0] if found else ""
    return vendor, ""


def _head(match: re.Match[str]) -> Device:
    domain, rest, title = match.groups()
    device = Device(f"{domain or '0000'}:{rest}".lower())
    numeric, kind, ids = NUMERIC.match(title), CLASS.search(title), IDS.findall(title)
    if numeric:
        device.class_code, device.vendor, device.device = (part.lower() for part in numeric.groups())
    else:
        device.class_code = kind.group(1).lower() if kind else CLASSES.get(title.partition(":")[0], "")
        device.vendor, device.device = (part.lower() for part in ids[-1]) if ids else _ids_of(title.partition(": ")[2])
    interface = INTERFACE.search(title)
    if device.class_code:
        device.class_code += interface.group(1).lower() if interface else "00"
    device.dead = "(rev ff)" in title
    return device


def _size(text: str) -> int:
    match = re.fullmatch(r"(\d+)([KMGT]?)B", text)
    if not match:
        raise ValueError(f"not a size: {text!r}")
    return int(match.group(1)) * SIZES[match.group(2)]


def _names(text: str) -> tuple[str, ...]:
    """Names with a plus, as the kernel calls them.

    >>> _names("RxErr- BadTLP+ AdvNonFatalErr+")
    ('BadTLP', 'NonFatalErr')
    """
    found = [word[:-1] for word in text.split() if word.endswith("+")]
    return tuple("NonFatalErr" if name == "AdvNonFatalErr" else name for name in found)


def _take(device: Device, line: str, capability: str | None, express: int) -> None:
    """Put one line of a function where it belongs. capability: the title it stands under, None before the first."""
    if "!!! Unknown header type 7f" in line:
        device.dead = True
    device.told = device.told or TOLD.match(line) is not None
    # Some devices print several link blocks; the link is the one of their first express capability.
    if capability is None or (capability.startswith("Express") and express == 1):
        if match := LINK_CAP.match(line):
            device.link = True
            device.max_speed = float(match.group(1)) if match.group(1) else None
            device.max_width = int(match.group(2))
        elif match := LINK_STA.match(line):
            device.link = True
            device.speed = float(match.group(1)) if match.group(1) else None
            device.width = int(match.group(2))
        elif match := LINK_CTL.match(line):
            device.aspm = match.group(1).replace(" Enabled", "").lower()
        elif match := ACTIVE_TOLD.search(line):
            device.active_told = match.group(1) == "+"
        # Until pciutils 3.5 these stand on the line of LnkSta itself.
        if device.link and (match := TRAINING.search(line)):
            told = {"training": match.group(1) == "+", "inactive": device.active_told and match.group(2) == "-"}
            device.troubles = tuple(name for name, is_so in told.items() if is_so)
    if match := REGION.match(line):
        device.regions.setdefault(int(match.group(1)), int(match.group(2)) * SIZES[match.group(3)])
    elif match := NOWHERE.match(line):
        device.regions.setdefault(int(match.group(1)), 0)
    elif match := BUSES.match(line):
        device.buses = (match.group(1).lower(), match.group(2).lower(), match.group(3).lower())
    elif match := DRIVER.match(line):
        device.driver = match.group(1)
    elif match := SUBSYSTEM.match(line):
        device.subsystem = match.group(1).lower()
    elif match := SLOT.match(line):
        device.slot = match.group(1)
    elif match := BAR_SIZES.match(line):
        sizes = [word for word in match.group(3).split() if re.fullmatch(r"\d+[KMGT]?B", word)]
        device.bar_sizes[int(match.group(1))] = tuple(_size(word) for word in sizes)
        if (capability or "").startswith("Physical Resizable BAR"):
            device.regions.setdefault(int(match.group(1)), _size(match.group(2)))
    elif match := FLAGS.match(line):
        device.flags.setdefault(match.group(1), _names(match.group(2)))


def parse(text: str) -> dict[str, Device]:
    """Return the functions of a listing by BDF with domain.

    Raises ValueError for text that lists none.

    >>> found = parse("01:00.0 PCI bridge [0604]: Device [8086:e2ff]\\n\\tLnkSta: Speed 8GT/s, Width x16\\n")
    >>> found["0000:01:00.0"].speed, found["0000:01:00.0"].width
    (8.0, 16)
    """
    found: dict[str, Device] = {}
    device: Device | None = None
    capability: str | None = None
    express = 0
    for line in text.splitlines():
        if match := HEAD.match(line):
            device, capability, express = _head(match), None, 0
            found[device.bdf] = device
        elif device is not None and (match := CAPABILITY.match(line)):
            capability = match.group(2)
            if capability.startswith("<access denied>"):
                device.denied = True
            elif capability.startswith("Express"):
                express += 1
                if express == 1:
                    device.port_type = next((kind for word, kind in PORT_TYPES if word in capability), None)
        elif device is not None and line[:1].isspace():
            _take(device, line, capability, express)
    if not found:
        raise ValueError(f"no PCI function in {text[:80]!r}")
    return found
