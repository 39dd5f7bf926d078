"""PCIe active-state power management: what is requested, and whether the kernel may change it."""

from __future__ import annotations

import re
from dataclasses import dataclass

from ..reader import Reader, Reading

POLICY = "/sys/module/pcie_aspm/parameters/policy"


@dataclass(frozen=True)
class Aspm:
    """ASPM of a host.

    policy: word in brackets in the policy file, e.g. ``default``.
    offered: every word of that file, in its order.
    command_line: value of ``pcie_aspm=`` on the kernel command line, or ``""``.
    """

    policy: Reading[str]
    offered: Reading[tuple[str, ...]]
    command_line: Reading[str]


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


def parse_command_line(text: str) -> str:
    """Return the last ``pcie_aspm=`` value (the kernel lets the last one win), or ``""``."""
    return next((word[10:] for word in reversed(text.split()) if word.startswith("pcie_aspm=")), "")


def read(reader: Reader) -> Aspm:
    policy = reader.text(POLICY).then(parse_policy)
    return Aspm(
        policy=policy.then(lambda both: both[0]),
        offered=policy.then(lambda both: both[1]),
        command_line=reader.text("/proc/cmdline").then(parse_command_line),
    )
