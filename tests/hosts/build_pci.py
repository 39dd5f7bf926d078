"""PCI functions for rebuilt hosts: configuration space, the sysfs files of one function, and what lspci prints.

One `Function` says what a device is; `config` gives its configuration space, `sysfs` its files and links and `lspci`
its text in the form of pciutils 3.9 (``lspci -D -nn -vv`` as root), with which it was compared through ``lspci -F``.
All three come from the same values, so they agree. Layouts are those of the PCI Express Base Specification: express
capability 7.5.3, AER 7.8.4, ACS 7.7.11, L1 PM substates 7.8.3, SR-IOV 9.3.3, resizable BAR 7.8.6.
"""

from __future__ import annotations

import base64
import struct
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

ENDPOINT, LEGACY, ROOT_PORT, UPSTREAM, DOWNSTREAM, INTEGRATED = 0, 1, 4, 5, 6, 9
SPEEDS = {2.5: 1, 5.0: 2, 8.0: 3, 16.0: 4, 32.0: 5}
L0S, L1 = 1, 2

CLASSES = {
    "0104": "RAID bus controller",
    "0106": "SATA controller",
    "0108": "Non-Volatile memory controller",
    "0200": "Ethernet controller",
    "0300": "VGA compatible controller",
    "0302": "3D controller",
    "0380": "Display controller",
    "0403": "Audio device",
    "0600": "Host bridge",
    "0601": "ISA bridge",
    "0604": "PCI bridge",
    "0c03": "USB controller",
    "0c05": "SMBus",
}
VENDORS = {
    "8086": "Intel Corporation",
    "1022": "Advanced Micro Devices, Inc. [AMD]",
    "1002": "Advanced Micro Devices, Inc. [AMD/ATI]",
    "10de": "NVIDIA Corporation",
    "144d": "Samsung Electronics Co Ltd",
    "1a03": "ASPEED Technology, Inc.",
    "10b5": "PLX Technology, Inc.",
    "1af4": "Red Hat, Inc.",
    "1b36": "Red Hat, Inc.",
    "14e4": "Broadcom Inc. and subsidiaries",
    "15b7": "Sandisk Corp",
    "10ec": "Realtek Semiconductor Co., Ltd.",
    "1849": "ASRock Incorporation",
    "15d9": "Super Micro Computer Inc",
    "1043": "ASUSTeK Computer Inc.",
    "1458": "Gigabyte Technology Co., Ltd",
    "1462": "Micro-Star International Co., Ltd. [MSI]",
    "14c3": "MEDIATEK Corp.",
    "12d1": "Huawei Technologies Co., Ltd.",
    "1eb6": "Radxa Computer Co., Ltd",
    "1da2": "Sapphire Technology Limited",
    "1eae": "XFX Limited",
    "19da": "ZOTAC International (MCO) Ltd.",
    "3842": "eVga.com. Corp.",
}
TYPE_WORDS = {
    ENDPOINT: "Endpoint",
    LEGACY: "Legacy Endpoint",
    ROOT_PORT: "Root Port (Slot-)",
    UPSTREAM: "Upstream Port",
    DOWNSTREAM: "Downstream Port (Slot-)",
    INTEGRATED: "Root Complex Integrated Endpoint",
}
AER_COR = ("RxErr", "BadTLP", "BadDLLP", "Rollover", "Timeout", "NonFatalErr", "CorrIntErr", "HeaderOF")
AER_UNC = (
    *("Undefined", "DLP", "SDES", "TLP", "FCP", "CmpltTO", "CmpltAbrt", "UnxCmplt", "RxOF", "MalfTLP", "ECRC"),
    *("UnsupReq", "ACSViol", "UncorrIntErr", "BlockedTLP", "AtomicOpBlocked", "TLPBlockedErr", "PoisonTLPBlocked"),
)


@dataclass(frozen=True)
class Link:
    """One end of a link. speed in GT/s, width in lanes; aspm: what LnkCap offers; enabled: what LnkCtl holds."""

    max_speed: float
    max_width: int
    speed: float
    width: int
    aspm: int = L1
    enabled: int = 0
    port: int = 0


@dataclass(frozen=True)
class Bar:
    """A base address register. size in bytes; kind: ``mem32``, ``mem64``, ``pref64`` or ``io``."""

    index: int
    base: int
    size: int
    kind: str = "mem64"


@dataclass
class Function:
    """One PCI function of a host.

    class_code: six hex digits. subsystem: ``vvvv:dddd`` or "". parent: BDF of the bridge above, "" below a host bridge.
    buses: (secondary, subordinate) of a bridge. drm: (card number or None, render node number or None).
    extra: further files of its directory, by name. link_files: names below ``link/`` or None without that directory.
    """

    bdf: str
    vendor: str
    device: str
    class_code: str
    port_type: int | None = None
    parent: str = ""
    subsystem: str = ""
    revision: int = 0
    driver: str = ""
    link: Link | None = None
    buses: tuple[int, int] | None = None
    bars: tuple[Bar, ...] = ()
    windows: tuple[Bar, ...] = ()
    aer: bool = False
    acs: tuple[int, int] | None = None
    l1ss: bool = False
    rebar: bool = False
    rebar_max: int = 0
    vfs: int = 0
    numa: int = -1
    cpus: str = ""
    irq: int = 0
    power_control: str = "on"
    runtime_status: str = "active"
    runtime_enabled: str = "forbidden"
    boot_vga: str = ""
    slot: str = ""
    drm: tuple[int | None, int | None] | None = None
    name: str = ""
    iommu_group: int | None = None
    link_files: dict[str, int] | None = None
    module: str = ""
    extra: dict[str, Any] = field(default_factory=dict)

    @property
    def bus(self) -> int:
        return int(self.bdf.split(":")[1], 16)

    @property
    def bridge(self) -> bool:
        return self.buses is not None

    @property
    def domain(self) -> str:
        return self.bdf.split(":")[0]


def _put(space: bytearray, offset: int, form: str, *values: int) -> None:
    struct.pack_into("<" + form, space, offset, *values)


def command(function: Function) -> int:
    """The command register: I/O, memory, bus master as a bound device has them, INTx off."""
    if function.class_code.startswith("0600") or function.port_type is None:
        return 0x0000
    bound = bool(function.driver) or function.bridge
    return (0x0407 if function.bridge else 0x0406) if bound else 0x0000


PM, EXPRESS, MSI, SSVID = 0x40, 0x50, 0xA0, 0xC0
AER, ACS, L1SS, REBAR, SRIOV, LAST = 0x150, 0x2A0, 0x370, 0x380, 0x4A0, 0x4E0


def config(function: Function) -> bytes:
    """Configuration space, up to its last capability: what follows is zero and is left out to keep recordings small."""
    express = function.port_type is not None
    space = bytearray(256 if not express else LAST if function.rebar or function.vfs else REBAR)
    number = int(function.class_code, 16)
    _put(
        space, 0, "HHHH", int(function.vendor, 16), int(function.device, 16), command(function), 0x10 if express else 0
    )
    _put(space, 8, "I", function.revision | number << 8)
    space[0x0C] = 16 if express else 0
    space[0x0E] = (1 if function.bridge else 0) | (0x80 if multi(function) else 0)
    if function.bridge:
        assert function.buses is not None
        _put(space, 0x18, "BBB", function.bus, *function.buses)
        _put(space, 0x1C, "BB", 0xF1, 0x01)
        _put(space, 0x20, "HHHH", 0xFFF0, 0x0000, 0xFFF1, 0x0001)
        for window in function.windows:
            last = window.base + window.size - 1
            if window.kind == "pref64":
                _put(
                    space,
                    0x24,
                    "HHII",
                    (window.base >> 16 & 0xFFF0) | 1,
                    (last >> 16 & 0xFFF0) | 1,
                    window.base >> 32,
                    last >> 32,
                )
            else:
                _put(space, 0x20, "HH", window.base >> 16 & 0xFFF0, last >> 16 & 0xFFF0)
        _put(space, 0x3E, "H", 0x0002)
    else:
        for bar in function.bars:
            flags = {"mem32": 0, "mem64": 4, "pref64": 12, "io": 1}[bar.kind]
            if bar.kind.endswith("64"):
                _put(space, 0x10 + 4 * bar.index, "Q", bar.base | flags)
            else:
                _put(space, 0x10 + 4 * bar.index, "I", bar.base | flags)
        if function.subsystem:
            _put(space, 0x2C, "HH", *(int(part, 16) for part in function.subsystem.split(":")))
    _put(space, 0x3C, "BB", function.irq & 0xFF, 1 if function.irq else 0)
    if not express:
        return bytes(space)
    space[0x34] = PM
    _put(space, PM, "BBHH", 0x01, EXPRESS, 0x4003 if not function.bridge else 0xC803, 0x0008)
    bridge_ids = function.bridge and bool(function.subsystem)
    assert function.port_type is not None
    _put(space, EXPRESS, "BBH", 0x10, SSVID if bridge_ids else 0, 2 | function.port_type << 4)
    end = function.port_type in (ENDPOINT, LEGACY)
    # 512 bytes of payload offered, 256 set; read requests of 512
    _put(space, EXPRESS + 4, "I", 0x00008002 if not end else 0x10008FC2)
    _put(space, EXPRESS + 8, "HH", 0x2930 if end else 0x2830, 0)
    if function.aer:
        _put(space, EXPRESS + 8, "H", (0x2930 if end else 0x2830) | 0x0F)
    if function.link is not None:
        link = function.link
        speed = SPEEDS[link.max_speed]
        capability = speed | link.max_width << 4 | link.aspm << 10 | 1 << 22 | link.port << 24
        capability |= (3 << 12 if link.aspm & L0S else 7 << 12) | (5 << 15 if link.aspm & L1 else 7 << 15)
        _put(space, EXPRESS + 0x0C, "I", capability)
        up = link.width > 0
        active = function.port_type in (ROOT_PORT, DOWNSTREAM)
        if active:
            _put(space, EXPRESS + 0x0C, "I", capability | 1 << 20 | 1 << 21)
        _put(space, EXPRESS + 0x10, "H", link.enabled | 0x40)
        _put(
            space, EXPRESS + 0x12, "H", SPEEDS[link.speed] | link.width << 4 | 0x1000 | (0x2000 if active and up else 0)
        )
        _put(space, EXPRESS + 0x2C, "I", (1 << speed + 1) - 2)
        _put(space, EXPRESS + 0x30, "H", speed)
    if function.port_type == ROOT_PORT:
        _put(space, EXPRESS + 0x1C, "HH", 0x0018, 0x0001)
    if bridge_ids:
        _put(space, SSVID, "BBHHH", 0x0D, 0, 0, *(int(part, 16) for part in function.subsystem.split(":")))
    offsets = _extended(function)
    for here, following in zip(offsets, [*offsets, 0][1:], strict=True):
        identity, version = {AER: (1, 2), ACS: (13, 1), L1SS: (0x1E, 1), REBAR: (0x15, 1), SRIOV: (0x10, 1)}[here]
        _put(space, here, "I", identity | version << 16 | following << 20)
    # The list starts at 0x100: where AER is elsewhere, a vendor-specific capability is there, as on real devices.
    _put(space, 0x100, "II", 0x0B | 1 << 16 | (offsets[0] if offsets else 0) << 20, 0x00010001 | 0x010 << 20)
    if function.aer:
        root = function.port_type == ROOT_PORT
        _put(space, AER + 4, "IIIIII", 0, 0 if end else 0x04400000, 0x00462030, 0, 0x00006000, 0x000000A0)
        if root:
            _put(space, AER + 0x2C, "I", 7)
    if function.acs is not None:
        _put(space, ACS + 4, "HH", *function.acs)
    if function.l1ss:
        _put(space, L1SS + 4, "III", 0x0028281F, 0, 0x28)
    if function.rebar:
        size = next(bar.size for bar in function.bars if bar.index == 2)
        bits, most = size.bit_length() - 21, max(size, function.rebar_max).bit_length() - 21
        _put(space, REBAR + 4, "II", ((1 << most + 1) - (1 << 8)) << 4 & 0xFFFFFFFF, 2 | 1 << 5 | bits << 8)
    if function.vfs:
        _put(space, SRIOV + 4, "IHH", 0, 0, 0)
        _put(space, SRIOV + 0x0C, "HHHH", function.vfs, function.vfs, 0, 0)
        _put(space, SRIOV + 0x14, "HHHH", 1, 1, 0, int(function.device, 16))
        _put(space, SRIOV + 0x1C, "II", 0x553, 1)
    return bytes(space)


def multi(function: Function) -> bool:
    """Is this one of several functions of its device? Known from the number of the function only."""
    return function.bdf[-1] != "0" or bool(function.extra.get("_multi"))


def _extended(function: Function) -> list[int]:
    pairs = ((AER, function.aer), (ACS, function.acs is not None), (L1SS, function.l1ss), (REBAR, function.rebar))
    return [offset for offset, there in (*pairs, (SRIOV, bool(function.vfs))) if there]


# -- lspci ----------------------------------------------------------------------------------------------------------


def _flags(value: int, names: str) -> str:
    """Names separated by blanks, each with + or -, bit 0 first.

    >>> _flags(2, "A B")
    'A- B+'
    """
    return " ".join(f"{name}{'+' if value >> bit & 1 else '-'}" for bit, name in enumerate(names.split()))


def size_word(size: int) -> str:
    """A size as lspci writes it.

    >>> size_word(32 << 30), size_word(256 << 20)
    ('32G', '256M')
    """
    for unit in ("", "K", "M", "G"):
        if size < 1024:
            return f"{size}{unit}"
        size >>= 10
    return f"{size}T"


def speed_word(speed: float) -> str:
    return f"{speed:g}GT/s"


def _worse(now: float, best: float) -> str:
    return " (downgraded)" if now < best else " (overdriven)" if now > best else ""


def title(function: Function) -> str:
    """The first line of a function.

    >>> title(Function("0000:22:01.0", "8086", "e2f0", "060400"))
    '0000:22:01.0 PCI bridge [0604]: Intel Corporation Device [8086:e2f0] (prog-if 00 [Normal decode])'
    """
    kind = function.class_code[:4]
    word = {
        "030000": " [VGA controller]",
        "060400": " [Normal decode]",
        "010802": " [NVM Express]",
        "0c0330": " [XHCI]",
        "010601": " [AHCI 1.0]",
    }.get(function.class_code, "")
    interface = f" (prog-if {function.class_code[4:]}{word})" if word else ""
    revision = f" (rev {function.revision:02x})" if function.revision else ""
    vendor = VENDORS.get(function.vendor, "Vendor")
    return (
        f"{function.bdf} {CLASSES[kind]} [{kind}]: {vendor} {function.name or 'Device'} "
        f"[{function.vendor}:{function.device}]{revision}{interface}"
    )


def _head(function: Function) -> Iterator[str]:
    subsystem = function.subsystem
    if subsystem:
        yield f"Subsystem: {VENDORS.get(subsystem[:4], 'Vendor')} Device [{subsystem}]"
    if function.slot:
        yield f"Physical Slot: {function.slot}"
    # bits of the command register that lspci prints, in its order
    register = command(function)
    names = (
        "I/O",
        "Mem",
        "BusMaster",
        "SpecCycle",
        "MemWINV",
        "VGASnoop",
        "ParErr",
        "Stepping",
        "SERR",
        "FastB2B",
        "DisINTx",
    )
    yield "Control: " + " ".join(f"{name}{'+' if register >> bit & 1 else '-'}" for bit, name in enumerate(names))
    capable = "+" if function.port_type is not None else "-"
    yield (
        f"Status: Cap{capable} 66MHz- UDF- FastB2B- ParErr- DEVSEL=fast >TAbort- <TAbort- <MAbort- >SERR- <PERR- INTx-"
    )
    if register & 4:
        yield "Latency: 0, Cache Line Size: 64 bytes"
    if function.irq:
        yield f"Interrupt: pin A routed to IRQ {function.irq}"
    if function.numa >= 0:
        yield f"NUMA node: {function.numa}"
    if function.iommu_group is not None:
        yield f"IOMMU group: {function.iommu_group}"


def _window(function: Function, kind: str, word: str, bits: str) -> str:
    for window in function.windows:
        if window.kind == kind:
            last = window.base + window.size - 1
            digits = 16 if kind == "pref64" else 8
            span = f"{window.base:0{digits}x}-{last:0{digits}x}"
            return f"{word} behind bridge: {span} [size={size_word(window.size)}] [{bits}]"
    return f"{word} behind bridge: [disabled] [{bits}]"


def _bridge(function: Function) -> Iterator[str]:
    assert function.buses is not None
    secondary, subordinate = function.buses
    yield f"Bus: primary={function.bus:02x}, secondary={secondary:02x}, subordinate={subordinate:02x}, sec-latency=0"
    yield "I/O behind bridge: [disabled] [32-bit]"
    yield _window(function, "mem32", "Memory", "32-bit")
    yield _window(function, "pref64", "Prefetchable memory", "64-bit")
    yield "Secondary status: 66MHz- FastB2B- ParErr- DEVSEL=fast >TAbort- <TAbort- <MAbort- <SERR- <PERR-"
    yield "BridgeCtl: Parity- SERR+ NoISA- VGA- VGA16- MAbort- >Reset- FastB2B-"
    yield "\tPriDiscTmr- SecDiscTmr- DiscTmrStat- DiscTmrSERREn-"


def _regions(function: Function) -> Iterator[str]:
    for bar in function.bars:
        if bar.kind == "io":
            yield f"Region {bar.index}: I/O ports at {bar.base:04x} [size={size_word(bar.size)}]"
            continue
        width = "64-bit" if bar.kind.endswith("64") else "32-bit"
        kind = "prefetchable" if bar.kind == "pref64" else "non-prefetchable"
        disabled = "" if command(function) & 2 else " [disabled]"
        yield f"Region {bar.index}: Memory at {bar.base:08x} ({width}, {kind}){disabled} [size={size_word(bar.size)}]"


def _express(function: Function) -> Iterator[str]:
    assert function.port_type is not None
    port_type = function.port_type
    end = port_type in (ENDPOINT, LEGACY)
    yield f"Capabilities: [50] Express (v2) {TYPE_WORDS[port_type]}, MSI 00"
    if end:
        yield "\tDevCap:\tMaxPayload 512 bytes, PhantFunc 0, Latency L0s unlimited, L1 unlimited"
        yield "\t\tExtTag- AttnBtn- AttnInd- PwrInd- RBE+ FLReset+ SlotPowerLimit 0W"
    elif port_type == UPSTREAM:
        yield "\tDevCap:\tMaxPayload 512 bytes, PhantFunc 0"
        yield "\t\tExtTag- AttnBtn- AttnInd- PwrInd- RBE+ SlotPowerLimit 0W"
    else:
        yield "\tDevCap:\tMaxPayload 512 bytes, PhantFunc 0"
        yield "\t\tExtTag- RBE+"
    yield f"\tDevCtl:\t{_flags(0xF if function.aer else 0, 'CorrErr NonFatalErr FatalErr UnsupReq')}"
    last = "FLReset-" if end else ""
    yield f"\t\tRlxdOrd+ ExtTag{'+' if end else '-'} PhantFunc- AuxPwr- NoSnoop+{' ' + last if last else ''}"
    yield "\t\tMaxPayload 256 bytes, MaxReadReq 512 bytes"
    yield "\tDevSta:\tCorrErr- NonFatalErr- FatalErr- UnsupReq- AuxPwr- TransPend-"
    if function.link is not None:
        yield from _link(function, function.link, port_type)
    if port_type == ROOT_PORT:
        yield "\tRootCap: CRSVisible+"
        yield "\tRootCtl: ErrCorrectable- ErrNon-Fatal- ErrFatal- PMEIntEna+ CRSVisible+"
        yield "\tRootSta: PME ReqID 0000, PMEStatus- PMEPending-"
    if function.link is not None:
        top = function.link.max_speed
        speeds = "2.5" if top == 2.5 else f"2.5-{top:g}"
        yield f"\tLnkCap2: Supported Link Speeds: {speeds}GT/s, Crosslink- Retimer- 2Retimers- DRS-"
        down = port_type in (ROOT_PORT, DOWNSTREAM)
        emphasis = ", Selectable De-emphasis: -6dB" if top == 2.5 and down else ""
        yield f"\tLnkCtl2: Target Link Speed: {speed_word(top)}, EnterCompliance- SpeedDis-{emphasis}"
        yield "\tLnkSta2: Current De-emphasis Level: -6dB, EqualizationComplete- EqualizationPhase1-"


def _link(function: Function, link: Link, port_type: int) -> Iterator[str]:
    words = {0: "not supported", L0S: "L0s", L1: "L1", L0S | L1: "L0s L1"}
    exits = ["L0s <512ns"] if link.aspm & L0S else []
    exits += ["L1 <32us"] if link.aspm & L1 else []
    latency = f", Exit Latency {', '.join(exits)}" if exits else ""
    yield (
        f"\tLnkCap:\tPort #{link.port}, Speed {speed_word(link.max_speed)}, Width x{link.max_width}, "
        f"ASPM {words[link.aspm]}{latency}"
    )
    down = port_type in (ROOT_PORT, DOWNSTREAM)
    yield f"\t\tClockPM- Surprise- LLActRep{'+' if down else '-'} BwNot{'+' if down else '-'} ASPMOptComp+"
    enabled = {0: "Disabled", L0S: "L0s Enabled", L1: "L1 Enabled", L0S | L1: "L0s L1 Enabled"}[link.enabled]
    rcb = " RCB 64 bytes," if port_type in (ROOT_PORT, ENDPOINT, LEGACY) else ""
    yield f"\tLnkCtl:\tASPM {enabled};{rcb} Disabled- CommClk+"
    yield "\t\tExtSynch- ClockPM- AutWidDis- BWInt- AutBWInt-"
    # pciutils >= 3.8 judges upstream ports and endpoints only
    speed = "" if down else _worse(link.speed, link.max_speed)
    width = "" if down else _worse(link.width, link.max_width)
    yield f"\tLnkSta:\tSpeed {speed_word(link.speed)}{speed}, Width x{link.width}{width}"
    active = "+" if down and link.width else "-"
    yield f"\t\tTrErr- Train- SlotClk+ DLActive{active} BWMgmt- ABWMgmt-"


def _aer(function: Function) -> Iterator[str]:
    names = ("DLP", "SDES", "TLP", *AER_UNC[4:13])
    bits = (4, 5, 12, 13, 14, 15, 16, 17, 18, 19, 20, 21)

    def row(value: int) -> str:
        return " ".join(f"{name}{'+' if value >> bit & 1 else '-'}" for name, bit in zip(names, bits, strict=True))

    yield f"Capabilities: [{AER:x} v2] Advanced Error Reporting"
    yield f"\tUESta:\t{row(0)}"
    end = function.port_type in (ENDPOINT, LEGACY)
    yield f"\tUEMsk:\t{row(0 if end else 0x04400000)}"
    yield f"\tUESvrt:\t{row(0x00462030)}"
    yield "\tCESta:\tRxErr- BadTLP- BadDLLP- Rollover- Timeout- AdvNonFatalErr-"
    yield "\tCEMsk:\tRxErr- BadTLP- BadDLLP- Rollover- Timeout- AdvNonFatalErr+"
    yield "\tAERCap:\tFirst Error Pointer: 00, ECRCGenCap+ ECRCGenEn- ECRCChkCap+ ECRCChkEn-"
    yield "\t\tMultHdrRecCap- MultHdrRecEn- TLPPfxPres- HdrLogCap-"
    yield "\tHeaderLog: 00000000 00000000 00000000 00000000"
    if function.port_type == ROOT_PORT:
        yield "\tRootCmd: CERptEn+ NFERptEn+ FERptEn+"
        yield "\tRootSta: CERcvd- MultCERcvd- UERcvd- MultUERcvd-"
        yield "\t\t FirstFatal- NonFatalMsg- FatalMsg- IntMsg 0"
        yield "\tErrorSrc: ERR_COR: 0000 ERR_FATAL/NONFATAL: 0000"


def _capabilities(function: Function) -> Iterator[str]:
    if function.port_type is None:
        return
    yield "Capabilities: [40] Power Management version 3"
    d3 = "D0+,D1-,D2-,D3hot+,D3cold+" if function.bridge else "D0-,D1-,D2-,D3hot+,D3cold-"
    yield f"\tFlags: PMEClk- DSI- D1- D2- AuxCurrent=0mA PME({d3})"
    yield "\tStatus: D0 NoSoftRst+ PME-Enable- DSel=0 DScale=0 PME-"
    yield from _express(function)
    if function.bridge and function.subsystem:
        vendor = VENDORS.get(function.subsystem[:4], "Vendor")
        yield f"Capabilities: [c0] Subsystem: {vendor} Device [{function.subsystem}]"
    yield "Capabilities: [100 v1] Vendor Specific Information: ID=0001 Rev=1 Len=010 <?>"
    if function.aer:
        yield from _aer(function)
    if function.acs is not None:
        names = "SrcValid TransBlk ReqRedir CmpltRedir UpstreamFwd EgressCtrl DirectTrans"
        yield f"Capabilities: [{ACS:x} v1] Access Control Services"
        yield f"\tACSCap:\t{_flags(function.acs[0], names)}"
        yield f"\tACSCtl:\t{_flags(function.acs[1], names)}"
    if function.l1ss:
        yield f"Capabilities: [{L1SS:x} v1] L1 PM Substates"
        yield "\tL1SubCap: PCI-PM_L1.2+ PCI-PM_L1.1+ ASPM_L1.2+ ASPM_L1.1+ L1_PM_Substates+"
        yield "\t\t  PortCommonModeRestoreTime=40us PortTPowerOnTime=10us"
        yield "\tL1SubCtl1: PCI-PM_L1.2- PCI-PM_L1.1- ASPM_L1.2- ASPM_L1.1-"
        yield "\t\t   T_CommonMode=0us LTR1.2_Threshold=0ns"
        yield "\tL1SubCtl2: T_PwrOn=10us"
    if function.rebar:
        yield f"Capabilities: [{REBAR:x} v1] Physical Resizable BAR"
        size = next(bar.size for bar in function.bars if bar.index == 2)
        most = max(size, function.rebar_max)
        steps = [256 << 20 << step for step in range(64) if 256 << 20 << step <= most]
        supported = " ".join(f"{step >> 20}MB" if step < 1 << 30 else f"{step >> 30}GB" for step in steps)
        current = f"{size >> 20}MB" if size < 1 << 30 else f"{size >> 30}GB"
        yield f"\tBAR 2: current size: {current}, supported: {supported}"
    if function.vfs:
        yield f"Capabilities: [{SRIOV:x} v1] Single Root I/O Virtualization (SR-IOV)"
        yield "\tIOVCap:\tMigration- 10BitTagReq- Interrupt Message Number: 000"
        yield "\tIOVCtl:\tEnable- Migration- Interrupt- MSE- ARIHierarchy- 10BitTagReq-"
        yield "\tIOVSta:\tMigration-"
        yield (
            f"\tInitial VFs: {function.vfs}, Total VFs: {function.vfs}, Number of VFs: 0, Function Dependency Link: 00"
        )
        yield f"\tVF offset: 1, stride: 1, Device ID: {function.device}"
        yield "\tSupported Page Size: 00000553, System Page Size: 00000001"
        yield "\tVF Migration: offset: 00000000, BIR: 0"


def lspci(functions: list[Function]) -> str:
    """What ``lspci -D -nn -vv`` prints as root."""
    blocks = []
    for function in sorted(functions, key=lambda one: one.bdf):
        lines = [title(function)]
        body = [
            *_head(function),
            *(_bridge(function) if function.bridge else _regions(function)),
            *_capabilities(function),
        ]
        lines += [f"\t{line}" for line in body]
        if function.driver:
            lines.append(f"\tKernel driver in use: {function.driver}")
        if function.module:
            lines.append(f"\tKernel modules: {function.module}")
        blocks.append("\n".join(lines) + "\n")
    return "\n".join(blocks) + "\n"


def dump(functions: list[Function]) -> str:
    """The configuration spaces in the form that ``lspci -F`` reads, to compare `lspci` with the real tool."""
    lines = []
    for function in functions:
        lines.append(f"{function.bdf} device")
        space = config(function)
        for start in range(0, len(space), 16):
            row = space[start : start + 16]
            lines.append(f"{start:02x}: {row.hex(' ')}")
        lines.append("")
    return "\n".join(lines) + "\n"


# -- sysfs ----------------------------------------------------------------------------------------------------------


def device_path(function: Function, functions: dict[str, Function]) -> str:
    """The directory of a function, below the host bridge and all bridges above it."""
    names = [function.bdf]
    while function.parent:
        function = functions[function.parent]
        names.append(function.bdf)
    root = f"pci{function.domain}:{function.bus:02x}"
    return "/sys/devices/" + "/".join([root, *reversed(names)])


def _up(path: str) -> str:
    """The way from a directory below /sys back to /sys."""
    return "/".join([".."] * (path.count("/") - 1))


def resource_lines(function: Function) -> str:
    rows = [(0, 0, 0)] * 17
    flags = {"mem32": 0x40200, "mem64": 0x140204, "pref64": 0x14220C, "io": 0x40101}
    for bar in function.bars:
        rows[bar.index] = (bar.base, bar.base + bar.size - 1, flags[bar.kind])
    for window in function.windows:
        index = 14 if window.kind == "mem32" else 15
        rows[index] = (window.base, window.base + window.size - 1, 0x200 if index == 14 else 0x102201)
    if not function.bridge:
        rows = rows[:13]
    return "".join(f"0x{first:016x} 0x{last:016x} 0x{flag:016x}\n" for first, last, flag in rows)


def counters(names: tuple[str, ...], total: str) -> str:
    return "".join(f"{name} 0\n" for name in names) + f"{total} 0\n"


def sysfs(function: Function, functions: dict[str, Function]) -> tuple[dict[str, Any], dict[str, str]]:
    """Files and links of one function: those that are read, as a recording has them."""
    path = device_path(function, functions)
    up = _up(path)
    files: dict[str, Any] = {}
    links: dict[str, str] = {f"/sys/bus/pci/devices/{function.bdf}": "../../../" + path.removeprefix("/sys/")}
    subsystem = function.subsystem or "0000:0000"
    values: dict[str, Any] = {
        "vendor": f"0x{function.vendor}\n",
        "device": f"0x{function.device}\n",
        "subsystem_vendor": f"0x{subsystem[:4]}\n",
        "subsystem_device": f"0x{subsystem[5:]}\n",
        "class": f"0x{function.class_code}\n",
        "numa_node": f"{function.numa}\n",
        "power_state": "D0\n" if function.runtime_status != "suspended" else "D3hot\n",
        "config": {"base64": base64.b64encode(config(function)).decode("ascii")},
        "power/control": f"{function.power_control}\n",
        "power/runtime_status": f"{function.runtime_status}\n",
    }
    if function.link is not None:
        link = function.link
        values["max_link_speed"] = f"{link.max_speed:.1f} GT/s PCIe\n"
        values["max_link_width"] = f"{link.max_width}\n"
        values["current_link_speed"] = f"{link.speed:.1f} GT/s PCIe\n"
        values["current_link_width"] = f"{link.width}\n"
    if function.cpus:
        values["local_cpulist"] = f"{function.cpus}\n"
    if function.bars or function.windows:
        values["resource"] = resource_lines(function)
    if function.aer:
        values["aer_dev_correctable"] = counters(AER_COR, "TOTAL_ERR_COR")
        values["aer_dev_nonfatal"] = counters(AER_UNC, "TOTAL_ERR_NONFATAL")
        values["aer_dev_fatal"] = counters(AER_UNC, "TOTAL_ERR_FATAL")
        if function.port_type == ROOT_PORT:
            for word in ("cor", "nonfatal", "fatal"):
                values[f"aer_rootport_total_err_{word}"] = "0\n"
    for name, value in (function.link_files or {}).items():
        values[f"link/{name}"] = f"{value}\n"
    if function.boot_vga:
        values["boot_vga"] = f"{function.boot_vga}\n"
    if function.vfs:
        values["sriov_totalvfs"] = f"{function.vfs}\n"
        values["sriov_numvfs"] = "0\n"
    values.update({name: value for name, value in function.extra.items() if not name.startswith("_")})
    files.update({f"{path}/{name}": value for name, value in values.items()})
    links[f"{path}/subsystem"] = f"{up}/bus/pci"
    if function.iommu_group is not None:
        links[f"{path}/iommu_group"] = f"{up}/kernel/iommu_groups/{function.iommu_group}"
        links[f"/sys/kernel/iommu_groups/{function.iommu_group}/devices/{function.bdf}"] = (
            "../../../../" + path.removeprefix("/sys/")
        )
    if function.driver:
        links[f"{path}/driver"] = f"{up}/bus/pci/drivers/{function.driver}"
        links[f"/sys/bus/pci/drivers/{function.driver}/{function.bdf}"] = "../../../../" + path.removeprefix("/sys/")
    if function.drm is not None:
        for prefix, number, minor in (
            ("card", function.drm[0], function.drm[0]),
            ("renderD", function.drm[1], function.drm[1]),
        ):
            if number is None or minor is None:
                continue
            node = f"{prefix}{number}"
            files[f"{path}/drm/{node}/dev"] = f"226:{minor}\n"
            files[f"{path}/drm/{node}/uevent"] = f"MAJOR=226\nMINOR={minor}\nDEVNAME=dri/{node}\nDEVTYPE=drm_minor\n"
            links[f"{path}/drm/{node}/device"] = f"../../../{function.bdf}"
            links[f"{path}/drm/{node}/subsystem"] = f"{_up(path)}/../../class/drm"
            links[f"/sys/class/drm/{node}"] = f"../../{path.removeprefix('/sys/')}/drm/{node}"
    return files, links
