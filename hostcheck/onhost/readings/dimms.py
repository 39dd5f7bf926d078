"""Modules of memory and their error correction, as the firmware describes them (SMBIOS, DSP0134 7.17 and 7.18).

Only root may read the table. What names a single module or the board, serial numbers and asset tags, is blanked before
anything else is done with it, and of the rest of the table nothing is kept: neither facts nor a recording hold it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from ..reader import Reader, Reading

TABLE = "/sys/firmware/dmi/tables/DMI"
TABLE_LIMIT = 1 << 20  # bytes; a server with 32 modules has some 20 KB
ARRAY, MODULE, END = 16, 17, 127
MEMORY_USE, SYSTEM_MEMORY = 0x05, 0x03  # of an array: what it is used for
CORRECTION = 0x06
SIZE, LOCATOR, MAKER, SERIAL, ASSET, PART, SIZE_MIB = 0x0C, 0x10, 0x17, 0x18, 0x19, 0x1A, 0x1C
PRIVATE = (SERIAL, ASSET)
CORRECTIONS = {3: "none", 4: "parity", 5: "single-bit ECC", 6: "multi-bit ECC", 7: "CRC"}
NOT_FILLED_IN = ("", "unknown", "undefined", "not specified", "no dimm", "part number", "none", "n/a")


@dataclass(frozen=True)
class Dimm:
    """One module. locator: e.g. ``DIMM_A1``. maker, part: ``""`` where the firmware names none. size: MiB."""

    locator: str
    maker: str
    part: str
    size: int


@dataclass(frozen=True)
class Dimms:
    """Memory as the firmware describes it.

    modules: in its order, empty slots left out. correction: of the system's memory, e.g. ``multi-bit ECC`` or ``none``.
    """

    modules: Reading[tuple[Dimm, ...]]
    correction: Reading[str]


@dataclass(frozen=True)
class Structure:
    """One structure of the table. data: the formatted part. strings: counted from 1 in it. raw: both as they stand."""

    kind: int
    data: bytes
    strings: tuple[bytes, ...]
    raw: bytes

    def text(self, at: int) -> str:
        """The string that the byte at a place names, ``""`` for none."""
        number = self.data[at] if at < len(self.data) else 0
        if not 0 < number <= len(self.strings):
            return ""
        found = " ".join(self.strings[number - 1].decode("ascii", "replace").split())
        return "" if found.lower() in NOT_FILLED_IN else found

    def word(self, at: int, size: int) -> int:
        """A number of so many bytes, 0 where an older table does not have it."""
        return int.from_bytes(self.data[at : at + size], "little") if at + size <= len(self.data) else 0


def structures(table: bytes) -> Iterator[Structure]:
    """The structures of a table up to its end. Raises ValueError where it is cut off or is none (DSP0134 6.1)."""
    at = 0
    while at < len(table):
        length = table[at + 1] if at + 4 <= len(table) else 0
        ends = table.find(b"\0\0", at + length)
        if length < 4 or ends < 0:
            raise ValueError(f"expected a structure of the table at byte {at} of {len(table)}")
        texts = table[at + length : ends]
        raw = table[at : ends + 2]
        yield Structure(table[at], table[at : at + length], tuple(texts.split(b"\0")) if texts else (), raw)
        if table[at] == END:
            return
        at = ends + 2
    if not table:
        raise ValueError("an empty table")


def reduced(table: bytes) -> bytes:
    """A table with the arrays and modules of memory alone, serial numbers and asset tags blanked at their length.

    Raises ValueError for anything that is no table.
    """
    kept = b""
    for one in structures(table):
        if one.kind not in (ARRAY, MODULE):
            continue
        private = {one.data[at] for at in PRIVATE if at < len(one.data)} if one.kind == MODULE else set()
        texts = [b" " * len(text) if number in private else text for number, text in enumerate(one.strings, 1)]
        kept += one.data + b"\0".join(texts) + b"\0\0"
    return kept + bytes((END, 4, 0xFF, 0xFE, 0, 0))


def parse_modules(table: bytes) -> tuple[Dimm, ...]:
    """Return the modules of a table. Raises ValueError for anything that is no table, and where it has no slot."""
    slots = [one for one in structures(table) if one.kind == MODULE]
    if not slots:
        raise ValueError("describes no slot for memory")
    found = []
    for one in slots:
        size = one.word(SIZE, 2)
        if size == 0:  # an empty slot
            continue
        mib = one.word(SIZE_MIB, 4) if size == 0x7FFF else 0 if size == 0xFFFF else size & 0x7FFF
        mib = mib >> 10 if size & 0x8000 and size != 0xFFFF else mib  # the highest bit: in KiB
        found.append(Dimm(one.text(LOCATOR), one.text(MAKER), one.text(PART), mib))
    return tuple(found)


def parse_correction(table: bytes) -> str:
    """Return the error correction of the system's memory. Raises ValueError where the table does not say it."""
    words = [
        CORRECTIONS[one.word(CORRECTION, 1)]
        for one in structures(table)
        if one.kind == ARRAY and one.word(MEMORY_USE, 1) == SYSTEM_MEMORY and one.word(CORRECTION, 1) in CORRECTIONS
    ]
    if not words:
        raise ValueError("does not say how errors are corrected")
    return ", ".join(dict.fromkeys(words))


def read_table(reader: Reader) -> Reading[bytes]:
    """What is kept of the table; a recording keeps the same and no more."""
    kept = reader.unrecorded.data(TABLE, TABLE_LIMIT).then(reduced)
    reader.keep(TABLE, kept)
    return kept


def read(reader: Reader) -> Dimms:
    table = read_table(reader)
    return Dimms(modules=table.then(parse_modules), correction=table.then(parse_correction))
