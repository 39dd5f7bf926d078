"""PCI configuration space: the express capability, AER, ACS and the sizes of resizable BARs.

Layouts: PCI Express Base Specification 6.0, 7.5.3 (express capability), 7.8.4 (AER), 7.7.11 (ACS), 7.8.6
(resizable BAR), 7.8.3 (L1 PM substates). Little-endian. A user who is not root gets only the first 64 bytes from
sysfs, with no capability.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass

SPEEDS = {1: 2.5, 2: 5.0, 3: 8.0, 4: 16.0, 5: 32.0, 6: 64.0, 7: 128.0}  # GT/s by the code in LnkCap and LnkSta
WIDTHS = (1, 2, 4, 8, 12, 16, 32)

ROOT_PORT, UPSTREAM, DOWNSTREAM, PCIE_TO_PCI, PCI_TO_PCIE, INTEGRATED = 4, 5, 6, 7, 8, 9

# Short names as the kernel writes them in aer_dev_* and in its log (drivers/pci/pcie/aer.c).
UNCORRECTABLE = {
    4: "DLP",
    5: "SDES",
    12: "TLP",
    13: "FCP",
    14: "CmpltTO",
    15: "CmpltAbrt",
    16: "UnxCmplt",
    17: "RxOF",
    18: "MalfTLP",
    19: "ECRC",
    20: "UnsupReq",
    21: "ACSViol",
    22: "UncorrIntErr",
    23: "BlockedTLP",
    24: "AtomicOpBlocked",
    25: "TLPBlockedErr",
    26: "PoisonTLPBlocked",
}
CORRECTABLE = {
    0: "RxErr",
    6: "BadTLP",
    7: "BadDLLP",
    8: "Rollover",
    12: "Timeout",
    13: "NonFatalErr",
    14: "CorrIntErr",
    15: "HeaderOF",
}
# Enables of L1SubCtl1, named as lspci names them.
L1_SUBSTATES = ("PCI-PM_L1.2", "PCI-PM_L1.1", "ASPM_L1.2", "ASPM_L1.1")
ACS = ("SrcValid", "TransBlk", "ReqRedir", "CmpltRedir", "UpstreamFwd", "EgressCtrl", "DirectTrans")


@dataclass(frozen=True)
class AerRegisters:
    """Bits that are set in the AER capability, by the kernel's short names (DLP, CmpltTO, RxErr …)."""

    uncorrectable_status: tuple[str, ...]
    uncorrectable_mask: tuple[str, ...]
    uncorrectable_severity: tuple[str, ...]
    correctable_status: tuple[str, ...]
    correctable_mask: tuple[str, ...]


@dataclass(frozen=True)
class ConfigSpace:
    """What the toolkit takes from a configuration space.

    port_type: of the express capability, None without one. link_cap, link_ctl, link_sta: raw registers, None for a
    function without a link. extended: were the bytes above 256 given? aer, acs: None without that capability.
    troubles: see `troubles`, None without a link. l1_substates: what is enabled, None without that capability.
    bar_sizes: BAR number -> sizes in bytes that it can take, ascending.
    """

    port_type: int | None
    link_cap: int | None
    link_ctl: int | None
    link_sta: int | None
    extended: bool
    aer: AerRegisters | None
    acs: tuple[str, ...] | None
    bar_sizes: dict[int, tuple[int, ...]]
    troubles: tuple[str, ...] | None
    l1_substates: tuple[str, ...] | None


def troubles(link_cap: int, link_sta: int) -> tuple[str, ...]:
    """Return what LnkSta says against a link: ``training``, and ``inactive`` where the port can tell (LnkCap bit 20).

    >>> troubles(0x100000, 0x2103), troubles(0x100000, 0x0903), troubles(0, 0x0103)
    ((), ('training', 'inactive'), ())
    """
    told = {"training": link_sta >> 11 & 1, "inactive": link_cap >> 20 & 1 and not link_sta >> 13 & 1}
    return tuple(name for name, is_so in told.items() if is_so)


def speed(register: int) -> float:
    """Return the speed in GT/s of LnkCap or LnkSta. Raises ValueError for a code that the specification does not have.

    >>> speed(0x7045)
    32.0
    """
    code = register & 0xF
    if code not in SPEEDS:
        raise ValueError(f"link speed code {code}")
    return SPEEDS[code]


def width(register: int) -> int:
    """Return the lanes of LnkCap or LnkSta; 0 in LnkSta is a link that is down. Raises ValueError for other numbers.

    >>> width(0x7105)
    16
    """
    lanes = register >> 4 & 0x3F
    if lanes not in (0, *WIDTHS):
        raise ValueError(f"link width {lanes}")
    return lanes


def max_width(register: int) -> int:
    """Return the lanes of LnkCap, where 0 is no answer (QEMU's downstream ports have it)."""
    lanes = width(register)
    if lanes == 0:
        raise ValueError("LnkCap says width 0")
    return lanes


def aspm(register: int) -> str:
    """Return what LnkCtl enables.

    >>> [aspm(bits) for bits in (0, 1, 2, 3)]
    ['disabled', 'l0s', 'l1', 'l0s l1']
    """
    return ("disabled", "l0s", "l1", "l0s l1")[register & 3]


def names(register: int, table: dict[int, str]) -> tuple[str, ...]:
    """Return the names of the bits that are set; bits without a name are left out (reserved ones may be set)."""
    return tuple(name for bit, name in table.items() if register >> bit & 1)


def _read(data: bytes, form: str, offset: int) -> int:
    try:
        return int(struct.unpack_from("<" + form, data, offset)[0])
    except struct.error as error:
        raise ValueError(f"{len(data)} bytes end before the register at {offset:#x}") from error


def _capabilities(data: bytes) -> dict[int, int]:
    """Capability id -> offset of the first with that id."""
    found: dict[int, int] = {}
    if not _read(data, "H", 6) & 0x10:
        return found
    offset = data[0x34] & 0xFC
    seen: set[int] = set()
    while offset:
        if offset < 0x40 or offset in seen:
            raise ValueError(f"capability list leads to {offset:#x}")
        seen.add(offset)
        found.setdefault(_read(data, "B", offset), offset)
        offset = _read(data, "B", offset + 1) & 0xFC
    return found


def _extended(data: bytes) -> dict[int, int]:
    """Extended capability id -> offset of the first with that id."""
    found: dict[int, int] = {}
    offset = 0x100
    seen: set[int] = set()
    while offset:
        if offset < 0x100 or offset in seen:
            raise ValueError(f"extended capability list leads to {offset:#x}")
        seen.add(offset)
        header = _read(data, "I", offset)
        if header in (0, 0xFFFFFFFF):
            break
        found.setdefault(header & 0xFFFF, offset)
        offset = header >> 20 & 0xFFC
    return found


def _bar_sizes(data: bytes, offset: int) -> dict[int, tuple[int, ...]]:
    found: dict[int, tuple[int, ...]] = {}
    for entry in range(max(1, _read(data, "I", offset + 8) >> 5 & 7)):
        capability, control = (_read(data, "I", offset + 4 + 8 * entry + more) for more in (0, 4))
        bits = capability >> 4 | control >> 16 << 28  # 1 MiB is bit 0; the control register goes on from 256 TiB
        found[control & 7] = tuple(1 << 20 + bit for bit in range(44) if bits >> bit & 1)
    return found


def parse(data: bytes) -> ConfigSpace:
    """Parse 256 or 4096 bytes of configuration space.

    Raises ValueError for a device that does not answer (all ones), for the 64 bytes that a user gets who is not root,
    and for a broken list of capabilities.
    """
    if len(data) < 64:
        raise ValueError(f"{len(data)} bytes, wanted 256 or 4096")
    if data[:64] == b"\xff" * 64:
        raise ValueError("all ones: the device does not answer")
    if data[0x0E] & 0x7F == 0x7F:
        raise ValueError("header type 7f: the device does not answer")
    capabilities = _capabilities(data)
    express = capabilities.get(0x10)
    port_type = link_cap = link_ctl = link_sta = None
    if express is not None:
        port_type = _read(data, "H", express + 2) >> 4 & 0xF
        if port_type not in (INTEGRATED, 10):  # functions inside the root complex have no link
            link_cap = _read(data, "I", express + 0x0C)
            link_ctl = _read(data, "H", express + 0x10)
            link_sta = _read(data, "H", express + 0x12)
    extended = _extended(data) if len(data) > 256 else {}
    aer = acs = None
    if 1 in extended:
        status, mask, severity, corrected, corrected_mask = (
            _read(data, "I", extended[1] + more) for more in (4, 8, 0xC, 0x10, 0x14)
        )
        aer = AerRegisters(
            names(status, UNCORRECTABLE),
            names(mask, UNCORRECTABLE),
            names(severity, UNCORRECTABLE),
            names(corrected, CORRECTABLE),
            names(corrected_mask, CORRECTABLE),
        )
    if 0x0D in extended:
        acs = names(_read(data, "H", extended[0x0D] + 6), dict(enumerate(ACS)))
    return ConfigSpace(
        port_type,
        link_cap,
        link_ctl,
        link_sta,
        len(data) > 256,
        aer,
        acs,
        _bar_sizes(data, extended[0x15]) if 0x15 in extended else {},
        None if link_cap is None or link_sta is None else troubles(link_cap, link_sta),
        names(_read(data, "I", extended[0x1E] + 8), dict(enumerate(L1_SUBSTATES))) if 0x1E in extended else None,
    )
