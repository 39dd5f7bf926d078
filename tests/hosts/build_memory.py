"""The firmware's table of memory (SMBIOS, DSP0134 7.17 and 7.18), as a board writes it."""

from __future__ import annotations

from collections.abc import Iterable

NONE, MULTI_BIT = 3, 6  # error correction of an array
DDR4 = 0x1A


def structure(kind: int, handle: int, data: bytes, strings: Iterable[str] = ()) -> bytes:
    """One structure: head, formatted part, strings, two zeros."""
    texts = b"\0".join(text.encode() for text in strings)
    return bytes((kind, 4 + len(data))) + handle.to_bytes(2, "little") + data + texts + b"\0\0"


def array(correction: int, slots: int) -> bytes:
    """The array of the system's memory."""
    data = bytes((3, 3, correction)) + (0x80000000).to_bytes(4, "little") + b"\xfe\xff" + slots.to_bytes(2, "little")
    return structure(16, 0x1000, data + bytes(8))


def module(number: int, locator: str, maker: str, part: str, mib: int, serial: str, asset: str = "9876") -> bytes:
    """A module of memory, or an empty slot with 0 MiB. A text that is empty has no string."""
    texts = (locator, f"BANK {number}", maker, serial, asset, part)
    filled = [text for text in texts if text]
    at = [filled.index(text) + 1 if text else 0 for text in texts]
    size = 0x7FFF if mib >= 0x7FFF else mib
    data = b"\x00\x10\xfe\xff\x48\x00\x40\x00" + size.to_bytes(2, "little")
    data += bytes((9, 0, at[0], at[1], DDR4, 0x80, 0x20)) + (3200).to_bytes(2, "little") + bytes((*at[2:], 2))
    data += (mib if size == 0x7FFF else 0).to_bytes(4, "little") + (3200).to_bytes(2, "little") + bytes(6)
    return structure(17, 0x1100 + number, data, filled)


def table(modules: Iterable[bytes], correction: int = MULTI_BIT) -> bytes:
    """A whole table, with structures of other kinds around those of memory."""
    slots = list(modules)
    bios = structure(0, 1, bytes((1, 2, 0, 0xF0, 3)) + bytes(14), ("Vendor", "1.0", "01/01/2024"))
    system = structure(
        1, 2, bytes((1, 2, 0, 3)) + bytes(range(16)) + bytes((6, 0, 0)), ("Maker", "Board", "SYS-SERIAL")
    )
    return bios + system + array(correction, len(slots)) + b"".join(slots) + structure(127, 0xFEFF, b"")


def equal(slots: Iterable[str], maker: str, part: str, mib: int) -> list[bytes]:
    """Modules of one kind."""
    return [module(number, slot, maker, part, mib, f"SN{number:06}") for number, slot in enumerate(slots)]
