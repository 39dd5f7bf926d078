"""Which host this is: its kernel, operating system, board and whether it is a virtual machine."""

from __future__ import annotations

from dataclasses import dataclass

from ..reader import Reader, Reading


@dataclass(frozen=True)
class Identity:
    """Identity of a host."""

    hostname: Reading[str]
    kernel: Reading[str]


def read(reader: Reader) -> Identity:
    return Identity(
        hostname=reader.line("/proc/sys/kernel/hostname"),
        kernel=reader.line("/proc/sys/kernel/osrelease"),
    )
