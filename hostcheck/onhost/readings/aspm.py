"""PCIe active-state power management: what is requested, and whether the kernel may change it."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from ..reader import Reader, Reading
from .kernel_log import Event

POLICY = "/sys/module/pcie_aspm/parameters/policy"


@dataclass(frozen=True)
class Aspm:
    """ASPM of a host.

    policy: word in brackets in the policy file, e.g. ``default``.
    offered: every word of that file, in its order.
    command_line: value of ``pcie_aspm=`` on the kernel command line, or ``""``.
    modules: is the directory there in which the policy file would be? Asked only where that file is absent.
    pci: every word of ``pci=`` on it, e.g. ``noaer``. pcie_ports: value of ``pcie_ports=``, or ``""``.
    """

    policy: Reading[str]
    offered: Reading[tuple[str, ...]]
    command_line: Reading[str]
    pci: Reading[tuple[str, ...]]
    pcie_ports: Reading[str]
    modules: Reading[bool] = Reading.no("not_asked", "the policy file was there")


def parse_policy(text: str) -> tuple[str, tuple[str, ...]]:
    """Return the current policy and all policies offered.

    >>> parse_policy("[default] performance powersave powersupersave \\n")
    ('default', ('default', 'performance', 'powersave', 'powersupersave'))

    Raises ValueError when not exactly one word is in brackets.
    """
    current = re.findall(r"\[(\w+)\]", text)
    if len(current) != 1:
        raise ValueError(f"expected one policy in brackets, got {text!r}")
    return current[0], tuple(re.findall(r"\w+", text))


def arguments(text: str, name: str) -> tuple[str, ...]:
    """Return every value that a kernel command line gives to an argument, in order.

    The kernel takes ``-`` and ``_`` in names for the same and removes double quotes around a value; what follows
    ``--`` belongs to init.

    >>> arguments('ro pcie_aspm=off pci="noaer,realloc" -- pci=nomsi', "pci")
    ('noaer,realloc',)
    """
    words = re.findall(r'(?:[^\s"]|"[^"]*")+', text)
    if "--" in words:
        words = words[: words.index("--")]
    pairs = (word.replace('"', "").partition("=") for word in words)
    return tuple(value for key, equals, value in pairs if equals and key.replace("-", "_") == name)


def parse_command_line(text: str) -> str:
    """Return the last ``pcie_aspm=`` value (the kernel lets the last one win), or ``""``."""
    return ("", *arguments(text, "pcie_aspm"))[-1]


def parse_pci(text: str) -> tuple[str, ...]:
    """Return all words of ``pci=``, which add up.

    >>> parse_pci("pci=noaer,realloc=on ro pci=nocrs")
    ('noaer', 'realloc=on', 'nocrs')
    """
    return tuple(word for value in arguments(text, "pci") for word in value.split(",") if word)


def parse_pcie_ports(text: str) -> str:
    """Return the last ``pcie_ports=`` value, or ``""``."""
    return ("", *arguments(text, "pcie_ports"))[-1]


def refused(event: Event, feature: str) -> bool:
    """Does a line about _OSC say that the firmware keeps a feature (AER, PCIeCapability) for itself?

    A failed request refuses all of them. A list in brackets names what is not given; other features of it, such as
    SHPCHotplug, mean nothing here. So does a list of what is given that leaves the feature out, for every host bridge.
    """
    if event.kind == "osc.granted":
        lists = [one for one in event.details.get("features", "").split(", ") if "PCIe" in one or "PME" in one]
        return bool(lists) and not any(feature in one.split() for one in lists)
    if event.kind != "osc.refused":
        return False
    words = re.findall(r"\w+", event.details.get("features", ""))
    if feature in words or any(word.startswith("AE_") for word in words):
        return True
    # "not requesting OS control; OS requires […]": the kernel itself did not ask, for example with pcie_aspm=off
    return any(re.search(r"_OSC(?: request)? failed|not requesting", sample) for sample in event.samples)


def obstacle(aspm: Aspm, events: Sequence[Event]) -> tuple[str, str]:
    """Why the policy cannot be set on this host, and the source of that; twice "" when nothing is known to forbid it.

    Sources: kernel docs, admin-guide/kernel-parameters (pcie_aspm=off leaves the firmware's setting as it is, while
    the file goes on reading ``[default]``); drivers/pci/pcie/aspm.c (FADT, _OSC).
    """
    if aspm.command_line.value == "off":
        return "pcie_aspm=off on the kernel command line", aspm.command_line.source
    for event in events:
        if event.previous_boot:
            continue
        if event.kind == "aspm.off_firmware":
            return "the firmware says in its FADT that ASPM is not supported", "kernel log"
        if event.kind == "aspm.no_control" or refused(event, "PCIeCapability"):
            return "the firmware keeps control of PCIe (_OSC)", "kernel log"
        if event.kind == "aspm.disabled":
            return "the kernel has ASPM disabled", "kernel log"
    if aspm.policy.unread == "absent":
        return "this kernel has no PCIe ASPM (CONFIG_PCIEASPM)", aspm.policy.source
    return "", ""


def read(reader: Reader) -> Aspm:
    policy = reader.text(POLICY).then(parse_policy)
    command_line = reader.text("/proc/cmdline")
    return Aspm(
        policy=policy.then(lambda both: both[0]),
        offered=policy.then(lambda both: both[1]),
        command_line=command_line.then(parse_command_line),
        pci=command_line.then(parse_pci),
        pcie_ports=command_line.then(parse_pcie_ports),
        modules=reader.names("/sys/module").then(lambda _: True) if policy.unread == "absent" else Aspm.modules,
    )
