"""Where systemd finds the files of a unit."""

from __future__ import annotations

import re

from .engine import Host

FOLDERS = (
    "/etc/systemd/system",
    "/run/systemd/system",
    "/usr/local/lib/systemd/system",
    "/usr/lib/systemd/system",
    "/lib/systemd/system",
    "/run/systemd/generator",
)
# What systemctl set-property writes, which ranks above /etc (systemd.unit(5)).
CONTROL_FOLDERS = ("/etc/systemd/system.control", "/run/systemd/system.control")


def _names(unit: str) -> tuple[str, ...]:
    """The unit, and the template that an instance comes from."""
    return tuple(dict.fromkeys((unit, re.sub(r"@[^.]*\.", "@.", unit))))


def fragment(host: Host, unit: str) -> str:
    """Path of the file of a unit, "" when there is none."""
    paths = (f"{folder}/{name}" for name in _names(unit) for folder in FOLDERS)
    return next((path for path in paths if host.reader.stat(path).value is not None), "")


def drop_ins(host: Host, unit: str) -> tuple[str, ...]:
    """Paths of all drop-ins of a unit, in no certain order."""
    return tuple(
        path
        for folder in (*CONTROL_FOLDERS, *FOLDERS)
        for name in _names(unit)
        for path in host.reader.children(f"{folder}/{name}.d", r".*\.conf")
    )
