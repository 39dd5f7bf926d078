"""What the PCIe tree of the test host looks like, and the commands that make it look so.

    node 0   0000:20:01.0  root port, 16 GT/s x8
             └ 0000:21:00.0  8086:e2ff  one card with two GPUs
               ├ 0000:22:01.0  8086:e2f0 ─ 0000:23:00.0  8086:e223
               └ 0000:22:02.0  8086:e2f0 ─ 0000:24:00.0  8086:e223
    node 1   0000:80:01.0  root port, 16 GT/s x8
             └ 0000:81:00.0  104c:8232  the host's own switch
               ├ 0000:82:01.0  104c:8233 ─ 0000:83:00.0  8086:e2ff ─ 0000:84:01.0  8086:e2f0 ─ 0000:85:00.0  8086:e223
               └ 0000:82:02.0  104c:8233 ─ 0000:86:00.0  8086:e2ff ─ 0000:87:01.0  8086:e2f0 ─ 0000:88:00.0  8086:e223

QEMU emulates the ports and a device where each GPU is; the guest module ``fakepci`` lays ids, links
and BARs over them. As on real cards the ports inside a card and the GPU itself say 2.5 GT/s x1.
"""

from __future__ import annotations

from collections.abc import Iterator

#: Each port or device below a root port -> the port above it.
PARENT = {
    "0000:21:00.0": "0000:20:01.0",
    "0000:22:01.0": "0000:21:00.0",
    "0000:22:02.0": "0000:21:00.0",
    "0000:23:00.0": "0000:22:01.0",
    "0000:24:00.0": "0000:22:02.0",
    "0000:81:00.0": "0000:80:01.0",
    "0000:82:01.0": "0000:81:00.0",
    "0000:82:02.0": "0000:81:00.0",
    "0000:83:00.0": "0000:82:01.0",
    "0000:84:01.0": "0000:83:00.0",
    "0000:85:00.0": "0000:84:01.0",
    "0000:86:00.0": "0000:82:02.0",
    "0000:87:01.0": "0000:86:00.0",
    "0000:88:00.0": "0000:87:01.0",
}
ROOT_PORTS = ("0000:20:01.0", "0000:80:01.0")
SWITCH = ("0000:81:00.0", "0000:82:01.0", "0000:82:02.0")
UPLINKS = ("0000:21:00.0", "0000:83:00.0", "0000:86:00.0")
INNER_PORTS = ("0000:22:01.0", "0000:22:02.0", "0000:84:01.0", "0000:87:01.0")
GPUS = ("0000:23:00.0", "0000:24:00.0", "0000:85:00.0", "0000:88:00.0")

VRAM_GIB = 32

# Link speed in GT/s -> its number in the link registers (PCI Express Base Specification, 7.5.3).
SPEEDS = {2.5: 1, 5.0: 2, 8.0: 3, 16.0: 4, 32.0: 5, 64.0: 6}
ASPM = {"": 0, "L0s": 1, "L1": 2, "L0s L1": 3}


def overlay(bdf: str, offset: str, size: int, mask: int, value: int, keep: int = 0) -> str:
    """Return the ``fakepci`` command that makes bits of config space read as ``value``.

    offset: hexadecimal; with a leading ``@`` it counts from the PCI Express capability.
    keep: bits of the mask that take what is written to them, as the hardware's would.
    """
    return f"config {bdf} {offset} {size:x} {mask:x} {value:x} {keep:x}"


def link_status(bdf: str, speed: float, width: int) -> Iterator[str]:
    """Yield the commands that make one end of a link say that it runs at ``speed`` GT/s, ``width`` lanes."""
    yield overlay(bdf, "@12", 2, 0x3FF, SPEEDS[speed] | width << 4)


def link_capability(bdf: str, speed: float, width: int, aspm: str = "") -> Iterator[str]:
    """Yield the commands that make one end of a link capable of ``speed`` GT/s, ``width`` lanes.

    aspm: the power states that the link can be put into: ``""``, ``"L0s"``, ``"L1"`` or ``"L0s L1"``.
    """
    number = SPEEDS[speed]
    yield overlay(bdf, "@c", 4, 0xFFF, number | width << 4 | ASPM[aspm] << 10)
    yield overlay(bdf, "@2c", 4, 0xFE, ((1 << number) - 1) << 1)
    yield overlay(bdf, "@30", 2, 0xF, number)


def link_aspm(bdf: str, aspm: str) -> Iterator[str]:
    """Yield the commands that put one end of a link into these power states, as firmware would.

    The kernel may change them afterwards.
    """
    yield overlay(bdf, "@10", 2, 3, ASPM[aspm], keep=3)


def bar(bdf: str, gib: float) -> str:
    """Return the command that gives a GPU a BAR 2 of this size from its next enumeration on."""
    address = 0x3800_0000_0000 + (GPUS.index(bdf) << 40)
    return f"bar {bdf} 2 {address:x} {int(gib * 2**30):x}"


def commands() -> Iterator[str]:
    """Yield every command that turns the emulated tree into the one above, with sound links."""
    for bdf in (*ROOT_PORTS, *SWITCH, *UPLINKS):
        yield from link_capability(bdf, 16.0, 8, "L1")
        yield from link_status(bdf, 16.0, 8)
        yield from link_aspm(bdf, "")
    for bdf in (*INNER_PORTS, *GPUS):
        yield from link_capability(bdf, 2.5, 1)
        yield from link_status(bdf, 2.5, 1)
    for bdf in UPLINKS:
        yield overlay(bdf, "0", 4, 0xFFFFFFFF, 0xE2FF8086)
    for bdf in INNER_PORTS:
        yield overlay(bdf, "0", 4, 0xFFFFFFFF, 0xE2F08086)
    for bdf in GPUS:
        yield overlay(bdf, "0", 4, 0xFFFFFFFF, 0xE2238086)
        yield overlay(bdf, "8", 4, 0xFFFFFF00, 0x03000000)
        yield overlay(bdf, "2c", 4, 0xFFFFFFFF, 0x17018086)
        # Endpoint L0s and L1 acceptable latency: no limit, else the kernel keeps ASPM off above it.
        yield overlay(bdf, "@4", 2, 0xFC0, 0xFC0)
        yield bar(bdf, VRAM_GIB)
