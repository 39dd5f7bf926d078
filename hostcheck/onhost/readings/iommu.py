"""IOMMU: is it on, what is asked of it, and how the groups that hold GPUs are mapped.

The type of a group is what the kernel really uses for its devices; the line "Default domain type" of the kernel log
says the same for those that ask for nothing else. ACS is read per hop by `pcie`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from ..reader import Reader, Reading
from .pcie import DEVICES, Pcie

GROUPS = "/sys/kernel/iommu_groups"
KEYS = ("iommu", "intel_iommu", "amd_iommu", "iommu.passthrough", "iommu.strict", "iommu.forcedac")


@dataclass(frozen=True)
class Iommu:
    """IOMMU of a host.

    groups: how many there are; 0 where no IOMMU is on.
    arguments: words of the kernel command line that are about it, e.g. ``iommu=pt``.
    types: BDF of a GPU -> type of its group: ``DMA`` or ``DMA-FQ`` (translated), ``identity`` (passed through).
    """

    groups: Reading[int]
    arguments: Reading[tuple[str, ...]]
    types: Reading[dict[str, str]]


def parse_arguments(text: str) -> tuple[str, ...]:
    """Return the words of a kernel command line that are about the IOMMU.

    >>> parse_arguments("ro quiet iommu=pt intel-iommu=on -- iommu=off")
    ('iommu=pt', 'intel-iommu=on')
    """
    words = text.split()
    if "--" in words:  # what follows belongs to init
        words = words[: words.index("--")]
    return tuple(word for word in words if word.partition("=")[0].replace("-", "_") in KEYS)


def parse_type(text: str) -> str:
    """Return the type of a group. Raises ValueError for what the kernel does not write there.

    Source: Documentation/ABI/testing/sysfs-kernel-iommu_groups.

    >>> parse_type("DMA-FQ\\n")
    'DMA-FQ'
    """
    word = text.strip()
    if word not in ("DMA", "DMA-FQ", "identity", "auto", "blocked", "unmanaged", "unknown"):
        raise ValueError(f"expected the type of an IOMMU group, got {text!r}")
    return word


def parse_group(target: str) -> str:
    """Return the number of the group that a device's link leads to. Raises ValueError.

    >>> parse_group("../../../../kernel/iommu_groups/21")
    '21'
    """
    match = re.search(r"/iommu_groups/(\d+)$", target)
    if not match:
        raise ValueError(f"expected a link to an IOMMU group, got {target!r}")
    return match.group(1)


def read_types(reader: Reader, pcie: Pcie) -> Reading[dict[str, str]]:
    """Group types of the GPUs; a link of sysfs and the kernel's own file, so no device is touched."""
    if pcie.gpus.value is None:
        return pcie.gpus.then(lambda _: {})
    found: dict[str, str] = {}
    for gpu in pcie.gpus.value:
        group = reader.link(f"{DEVICES}/{gpu.bdf}/iommu_group").then(parse_group)
        if group.value is None:
            if group.unread == "absent":  # in no group: the IOMMU is off
                continue
            return group.then(lambda _: {})
        kind = reader.line(f"{GROUPS}/{group.value}/type").then(parse_type)
        if kind.value is not None:
            found[gpu.bdf] = kind.value
        elif kind.unread != "absent":  # kernels before 4.11 have no such file
            return kind.then(lambda _: {})
    return Reading(found, f"{GROUPS}/*/type")


def read(reader: Reader, pcie: Pcie) -> Iommu:
    groups = reader.names(GROUPS)
    count = groups.then(lambda names: sum(name.isdigit() for name in names))
    if groups.unread == "absent" and reader.names("/sys/kernel").value is not None:
        count = Reading(0, GROUPS)  # a kernel without IOMMU support
    return Iommu(
        groups=count,
        arguments=reader.text("/proc/cmdline").then(parse_arguments),
        types=read_types(reader, pcie),
    )
