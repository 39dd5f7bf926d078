"""Graphics functions that the toolkit knows by their PCI ids: one table of data.

Sources: the Intel id lists of the Linux kernel (include/drm/intel/pciids.h) for ids and families; Intel's product pages
for names and memory. An id that is not here is still a GPU when its class and vendor say so; it just has no
known amount of memory.
"""

from __future__ import annotations

from dataclasses import dataclass

GIB = 1 << 30

INTEL, AMD, NVIDIA = "8086", "1002", "10de"
VENDORS = {INTEL: "Intel", AMD: "AMD", NVIDIA: "NVIDIA"}

# Drivers that make a card usable, by vendor. A card bound to anything else is not in use on this host.
DRIVERS = {INTEL: ("xe", "i915"), AMD: ("amdgpu", "radeon"), NVIDIA: ("nvidia", "nouveau")}

# Drivers that hold a function for somebody else (a virtual machine, a program in user space).
PASS_THROUGH = ("pci-stub", "pciback", "xen-pciback", "uio_pci_generic", "igb_uio")


@dataclass(frozen=True)
class Product:
    """What a device id stands for.

    vram: bytes of memory on the card that one function has, or None where products with this id differ.
    family: architecture in the kernel's own short form: dg1, dg2, ats-m, pvc, bmg.
    """

    name: str
    vram: int | None
    family: str


INTEL_CARDS: dict[str, Product] = {
    "4905": Product("Iris Xe MAX", 4 * GIB, "dg1"),
    "4906": Product("Iris Xe Pod", None, "dg1"),
    "4907": Product("Server GPU SG-18M", None, "dg1"),
    "4908": Product("Iris Xe Graphics", None, "dg1"),
    "4909": Product("Iris Xe MAX 100", None, "dg1"),
    "5690": Product("Arc A770M", 16 * GIB, "dg2"),
    "5691": Product("Arc A730M", 12 * GIB, "dg2"),
    "5692": Product("Arc A550M", 8 * GIB, "dg2"),
    "5693": Product("Arc A370M", 4 * GIB, "dg2"),
    "5694": Product("Arc A350M", 4 * GIB, "dg2"),
    "5695": Product("Arc dg2 (5695)", None, "dg2"),
    "5696": Product("Arc A570M", 8 * GIB, "dg2"),
    "5697": Product("Arc A530M", None, "dg2"),
    "56a0": Product("Arc A770", None, "dg2"),  # sold with 8 and with 16 GB
    "56a1": Product("Arc A750", 8 * GIB, "dg2"),
    "56a2": Product("Arc A580", 8 * GIB, "dg2"),
    "56a3": Product("Arc dg2 (56a3)", None, "dg2"),
    "56a4": Product("Arc dg2 (56a4)", None, "dg2"),
    "56a5": Product("Arc A380", 6 * GIB, "dg2"),
    "56a6": Product("Arc A310", 4 * GIB, "dg2"),
    "56af": Product("Arc A760A", None, "dg2"),
    "56b0": Product("Arc Pro A30M", 4 * GIB, "dg2"),
    "56b1": Product("Arc Pro A40/A50", 6 * GIB, "dg2"),
    "56b2": Product("Arc Pro A60M", None, "dg2"),
    "56b3": Product("Arc Pro A60", 12 * GIB, "dg2"),
    "56ba": Product("Arc A380E", 6 * GIB, "dg2"),
    "56bb": Product("Arc A310E", 4 * GIB, "dg2"),
    "56bc": Product("Arc A370E", 4 * GIB, "dg2"),
    "56bd": Product("Arc A350E", 4 * GIB, "dg2"),
    "56be": Product("Arc A750E", None, "dg2"),
    "56bf": Product("Arc A580E", None, "dg2"),
    "56c0": Product("Data Center GPU Flex 170", 16 * GIB, "ats-m"),
    "56c1": Product("Data Center GPU Flex 140", 6 * GIB, "ats-m"),  # two functions with 6 GB each
    "56c2": Product("Data Center GPU Flex 170V", None, "ats-m"),
    "0b69": Product("Data Center GPU Max", None, "pvc"),
    "0b6e": Product("Data Center GPU Max 1100C", None, "pvc"),
    "0bd4": Product("Data Center GPU Max 1550VG", None, "pvc"),
    "0bd5": Product("Data Center GPU Max 1550", 128 * GIB, "pvc"),
    "0bd6": Product("Data Center GPU Max 1550", 128 * GIB, "pvc"),
    "0bd7": Product("Data Center GPU Max 1350", 96 * GIB, "pvc"),
    "0bd8": Product("Data Center GPU Max 1350", 96 * GIB, "pvc"),
    "0bd9": Product("Data Center GPU Max 1100", 48 * GIB, "pvc"),
    "0bda": Product("Data Center GPU Max 1100", 48 * GIB, "pvc"),
    "0bdb": Product("Data Center GPU Max 1100", 48 * GIB, "pvc"),
    "e202": Product("Arc bmg (e202)", None, "bmg"),
    "e209": Product("Arc bmg (e209)", None, "bmg"),
    "e20b": Product("Arc B580", 12 * GIB, "bmg"),
    "e20c": Product("Arc B570", 10 * GIB, "bmg"),
    "e20d": Product("Arc bmg (e20d)", None, "bmg"),
    "e210": Product("Arc bmg (e210)", None, "bmg"),
    "e211": Product("Arc Pro B60", 24 * GIB, "bmg"),
    "e212": Product("Arc Pro B50", 16 * GIB, "bmg"),
    "e215": Product("Arc bmg (e215)", None, "bmg"),
    "e216": Product("Arc bmg (e216)", None, "bmg"),
    "e220": Product("Arc bmg (e220)", None, "bmg"),
    "e221": Product("Arc bmg (e221)", None, "bmg"),
    "e222": Product("Arc bmg (e222)", None, "bmg"),
    "e223": Product("Arc Pro B70", 32 * GIB, "bmg"),
}

# Families whose cards carry a switch of their own between the slot and the GPU function, so that the GPU
# function's link says nothing about the slot (Intel KB 000094587; the link is at the switch's upstream port).
INNER_SWITCH = ("dg2", "ats-m", "bmg")

# Ports of such switches: (vendor, device). Other ids of the same place are found by ancestry.
CARD_PORTS = frozenset(
    {(INTEL, device) for device in ("4fa0", "4fa1", "4fa2", "4fa3", "4fa4", "e2ff", "e2f0", "e2f1")}
    | {(AMD, device) for device in ("1470", "1471", "1478", "1479")}
)

# Those of them whose upper link lies inside the card.
INNER_PORTS = frozenset({(INTEL, "4fa4"), (INTEL, "e2f0"), (INTEL, "e2f1"), (AMD, "1471"), (AMD, "1479")})

# Vendors whose cards have no switch of their own: the link of the GPU function is the one that crosses the slot.
WITHOUT_SWITCH = (NVIDIA,)

# A display (03xx), or of AMD an accelerator as well (Instinct). Intel's accelerators (1200) and co-processors (0b40)
# are no GPUs: the NPU of a Core Ultra (unraid_kernel#47), QAT of a Xeon. Its Max GPUs are displays.
GPU_CLASSES = {INTEL: ("03",), AMD: ("03", "1200", "0b40"), NVIDIA: ("03",)}
ANY_CLASSES = ("03", "1200", "0b40")

# Which driver speaks in a line of the kernel log, by the family of its event.
SPEAKERS = {"xe": "xe", "i915": "i915", "amdgpu": "amdgpu", "nvrm": "nvidia"}

# Vendors of ports that exist only in a virtual machine: Red Hat (QEMU), VMware, Microsoft, Xen, virtio.
VIRTUAL_VENDORS = ("1b36", "15ad", "1414", "5853", "1af4")


def product(vendor: str, device: str) -> Product | None:
    """What the ids stand for; None for an id that is not in the table.

    >>> product("8086", "e223").name
    'Arc Pro B70'
    """
    return INTEL_CARDS.get(device) if vendor == INTEL else None


def name_of(vendor: str, device: str) -> str:
    """Name for a person, with the ids.

    >>> name_of("8086", "e223")
    'Arc Pro B70 [8086:e223]'
    >>> name_of("10de", "2684")
    'NVIDIA GPU [10de:2684]'
    """
    known = product(vendor, device)
    return f"{known.name if known else VENDORS.get(vendor, 'unknown') + ' GPU'} [{vendor}:{device}]"


def is_gpu(vendor: str, class_code: str) -> bool:
    """Is a PCI function a GPU: a display or accelerator of a GPU vendor?

    The display functions of management controllers and of virtual machines are not.

    >>> is_gpu("8086", "030000"), is_gpu("1a03", "030000"), is_gpu("8086", "120000"), is_gpu("1002", "120000")
    (True, False, False, True)
    """
    return vendor in VENDORS and class_code.startswith(GPU_CLASSES[vendor])


def may_be_gpu(vendor: str, class_code: str) -> bool:
    """May a function be a GPU, of which too little could be read to tell? An id that was not read is ``""``.

    >>> may_be_gpu("", ""), may_be_gpu("", "030000"), may_be_gpu("8086", ""), may_be_gpu("", "060400")
    (True, True, True, False)
    """
    if vendor and class_code:
        return False
    return (not vendor or vendor in VENDORS) and (not class_code or class_code.startswith(ANY_CLASSES))


def vendor_of(driver: str) -> str:
    """Vendor of the GPUs that a driver is for; ``""`` for any other driver.

    >>> vendor_of("i915"), vendor_of("nvme")
    ('8086', '')
    """
    return next((vendor for vendor, drivers in DRIVERS.items() if driver in drivers), "")


def speaker(kind: str, details: dict[str, str]) -> str:
    """The GPU driver that an event of the kernel log comes from, by its kind and details; ``""`` for all others.

    >>> speaker("guc.loaded", {"driver": "xe"}), speaker("nvrm.xid", {}), speaker("probe_failed", {"driver": "nvme"})
    ('xe', 'nvidia', '')
    """
    named = details.get("driver", "").rpartition(", ")[2] or SPEAKERS.get(kind.partition(".")[0], "")
    return named if vendor_of(named) else ""


def holds_for_another(driver: str) -> bool:
    """Does this driver only hold the function for a virtual machine or a program in user space?

    >>> holds_for_another("vfio-pci"), holds_for_another("xe-vfio-pci"), holds_for_another("xe")
    (True, True, False)
    """
    return driver in PASS_THROUGH or driver.replace("_", "-").endswith("vfio-pci")
