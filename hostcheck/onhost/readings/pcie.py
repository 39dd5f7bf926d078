"""PCI functions, the way from every GPU to its root port, and the link of each hop."""

from __future__ import annotations

from dataclasses import dataclass

from ..reader import Reading


@dataclass(frozen=True)
class Function:
    """One PCI function.

    bdf: address with its domain, lower case. vendor, device, class_code: hexadecimal without 0x, e.g. ``8086``,
    ``e223``, ``030000``. driver: ``""`` when none is bound. parent: BDF of the bridge above, ``""`` at a root port.
    root_port: the first of its ancestors, ``""`` when it has none.
    """

    bdf: str
    vendor: str
    device: str
    class_code: str
    driver: str
    parent: str
    root_port: str


@dataclass(frozen=True)
class Aer:
    """Counters of the kernel since boot (absent where the function has no AER capability).

    correctable, nonfatal, fatal: name of the bit -> count, ``TOTAL_ERR_*`` included. rootport_*: what a root port has received.
    """

    correctable: Reading[dict[str, int]]
    nonfatal: Reading[dict[str, int]]
    fatal: Reading[dict[str, int]]
    rootport_correctable: Reading[int]
    rootport_nonfatal: Reading[int]
    rootport_fatal: Reading[int]


@dataclass(frozen=True)
class AerRegisters:
    """Bits that are set in the AER capability, by the kernel's short names (DLP, CmpltTO, RxErr …)."""

    uncorrectable_status: tuple[str, ...]
    uncorrectable_mask: tuple[str, ...]
    uncorrectable_severity: tuple[str, ...]
    correctable_status: tuple[str, ...]
    correctable_mask: tuple[str, ...]


@dataclass(frozen=True)
class Hop:
    """One function on the way from a root port to a GPU.

    role: root_port, switch_upstream, switch_downstream, bridge, card_upstream, card_downstream or gpu.
    crosses_slot: the link above this function is the one between the host and the card.
    inner: the link above this function lies inside the card and says nothing about the slot.
    speed, max_speed: GT/s; width, max_width: lanes; max_* are this end's own capability.
    link_source: config, sysfs, lspci or "" (nothing was read).
    aspm: what LnkCtl enables: disabled, l0s, l1 or "l0s l1". aspm_files: link/* of sysfs, name -> 0 or 1.
    aer_capable: has it the AER capability? acs: bits that are set in ACSCtl.
    slot: name of the physical slot, ``""`` when the firmware names none.
    """

    bdf: str
    vendor: str
    device: str
    class_code: str
    role: str
    crosses_slot: bool
    inner: bool
    driver: str
    speed: Reading[float]
    max_speed: Reading[float]
    width: Reading[int]
    max_width: Reading[int]
    link_source: str
    aspm: Reading[str]
    aspm_files: Reading[dict[str, int]]
    power_control: Reading[str]
    runtime_status: Reading[str]
    aer: Aer
    aer_capable: Reading[bool]
    aer_registers: Reading[AerRegisters]
    acs: Reading[tuple[str, ...]]
    slot: Reading[str]


@dataclass(frozen=True)
class DrmNode:
    """A device node of a GPU. name: card0, renderD128. mode: permission bits of /dev/dri/NAME; uid, gid: its owner."""

    name: str
    mode: Reading[int]
    uid: Reading[int]
    gid: Reading[int]


@dataclass(frozen=True)
class Gpu:
    """One GPU function.

    integrated: part of the processor. vf: a virtual function. driver: ``""`` when none is bound.
    bars: bytes of BAR 0 to 5. bar_sizes: sizes that BAR 2 offers (resizable BAR capability), ascending.
    survivability: the xe driver runs it in survivability mode. coredump: a devcoredump node exists for it.
    uplink: BDF of the card-side port whose upper link crosses the slot; ``""`` when it cannot be seen.
    path: root port first, the GPU last. siblings: other functions of the same card.
    """

    bdf: str
    vendor: str
    device: str
    subsystem: str
    class_code: str
    integrated: bool
    vf: bool
    driver: Reading[str]
    runtime_status: Reading[str]
    power_control: Reading[str]
    numa_node: Reading[int]
    bars: Reading[tuple[int, ...]]
    bar_sizes: Reading[tuple[int, ...]]
    drm: Reading[tuple[DrmNode, ...]]
    survivability: Reading[bool]
    coredump: Reading[bool]
    auto_link_downgrade_capable: Reading[int]
    auto_link_downgrade_status: Reading[int]
    uplink: str
    path: tuple[Hop, ...]
    siblings: tuple[str, ...]


@dataclass(frozen=True)
class Pcie:
    """PCI Express of a host.

    functions: every PCI function. gpus: every GPU function, by BDF. drivers: PCI drivers that are registered.
    force_probe: words of the kernel command line that set force_probe of a driver, e.g. ``xe.force_probe=e223``.
    background: correctable error counters of functions that lie on no path to a GPU and have counted any.
    """

    functions: Reading[tuple[Function, ...]]
    gpus: Reading[tuple[Gpu, ...]]
    drivers: Reading[tuple[str, ...]]
    force_probe: Reading[tuple[str, ...]]
    background: Reading[dict[str, dict[str, int]]]


def path_bdfs(gpu: Gpu) -> set[str]:
    """BDFs of every function on the way to a GPU, itself included."""
    return {hop.bdf for hop in gpu.path} | {gpu.bdf}


def hop(pcie: Pcie, bdf: str) -> Hop | None:
    """The hop with that address on the path of any GPU."""
    return next((item for gpu in pcie.gpus.value or () for item in gpu.path if item.bdf == bdf), None)
