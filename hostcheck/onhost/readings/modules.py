"""Parameters and users of the GPU drivers' modules, and which modules tainted the kernel."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ..reader import Reader, Reading

if TYPE_CHECKING:
    from .identity import Identity

FOLDER = "/sys/module"
GRAPHICS = "/sys/class/graphics"
NAMES = ("xe", "i915")
FRAMEBUFFERS = {"xe": ("xedrmfb",), "i915": ("i915drmfb", "inteldrmfb")}  # driver's name + drmfb (drm_fb_helper.c)

# Bit of /proc/sys/kernel/tainted -> its letter and what it means (kernel docs, admin-guide/tainted-kernels).
TAINTS = {
    0: ("P", "proprietary module"),
    1: ("F", "module loaded by force"),
    2: ("S", "processor out of specification"),
    3: ("R", "module unloaded by force"),
    4: ("M", "machine check"),
    5: ("B", "bad page"),
    6: ("U", "set by a user"),
    7: ("D", "kernel oops"),
    8: ("A", "ACPI table overridden"),
    9: ("W", "kernel warning"),
    10: ("C", "staging driver"),
    11: ("I", "firmware bug worked around"),
    12: ("O", "module from outside the kernel tree"),
    13: ("E", "unsigned module"),
    14: ("L", "soft lockup"),
    15: ("K", "live patch"),
    16: ("X", "distribution's own flag"),
    17: ("T", "structure layout randomised"),
    18: ("N", "test of the kernel was run"),
    19: ("J", "firmware call by user space"),
}
BY_MODULES = (
    1 << 0 | 1 << 1 | 1 << 10 | 1 << 12 | 1 << 13 | 1 << 15 | 1 << 18
)  # bits that a module sets, which names it


@dataclass(frozen=True)
class Module:
    """A driver module. refcnt: its users; absent for a driver that is part of the kernel.

    parameters: name -> value as the kernel shows it; those that only root may read are left out for others.
    dependents: modules that use it. framebuffers: consoles that may; each of both counts as a user.
    """

    name: str
    refcnt: Reading[int]
    parameters: Reading[dict[str, str]]
    dependents: Reading[tuple[str, ...]]
    framebuffers: Reading[int]


@dataclass(frozen=True)
class Modules:
    """Modules of a host.

    drivers: xe and i915, where the kernel has them. taint_letters: letters of the taint bits, e.g. ``("W", "O")``.
    tainting: module -> its letters, e.g. ``{"zfs": "OE"}``, of the modules that set one of these bits.
    """

    drivers: Reading[tuple[Module, ...]]
    taint_letters: Reading[tuple[str, ...]]
    tainting: Reading[dict[str, str]]


def parse_refcnt(text: str) -> int:
    """Return a number of users. Raises ValueError, also for -1, which a module on its way out has."""
    if not re.fullmatch(r"[0-9]{1,9}", text.strip(), re.ASCII):
        raise ValueError(f"expected a number of users, got {text!r}")
    return int(text)


def parse_parameter(text: str) -> str:
    """Return the value of a parameter on one line, at most 200 characters. Raises ValueError for control characters."""
    value = text.strip()
    if len(value) > 200 or not all(char.isprintable() for char in value):
        raise ValueError(f"expected the value of a parameter, got {value[:40]!r}")
    return value


def parse_taint(text: str) -> str:
    """Return the letters of a module's ``taint`` file, ``""`` for a module that taints nothing.

    >>> parse_taint("OE\\n"), parse_taint("\\n")
    ('OE', '')
    """
    if not re.fullmatch(r"[A-Z]{0,20}", text.strip()):
        raise ValueError(f"expected letters, got {text!r}")
    return text.strip()


def letters(taint: int) -> tuple[str, ...]:
    """The letters of taint bits, in the order of the bits; a bit without a letter as its number.

    >>> letters(512), letters(4097), letters(1 << 30)
    (('W',), ('P', 'O'), ('bit 30',))
    """
    return tuple(
        TAINTS[bit][0] if bit in TAINTS else f"bit {bit}" for bit in range(taint.bit_length()) if taint >> bit & 1
    )


def read_driver(reader: Reader, name: str) -> Module | None:
    here = f"{FOLDER}/{name}"
    if reader.names(here).unread == "absent":
        return None
    listed = reader.names(f"{here}/parameters")
    if listed.value is None:
        parameters = listed.then(lambda _: {"": ""})
    else:
        values = {one: reader.text(f"{here}/parameters/{one}", 4 << 10).then(parse_parameter) for one in listed.value}
        problem = next((one for one in values.values() if one.unread not in (None, "permission", "absent")), None)
        parameters = (
            problem.then(lambda _: {"": ""})
            if problem is not None
            else Reading({one: value.value for one, value in values.items() if value.value is not None}, listed.source)
        )
    return Module(
        name,
        reader.line(f"{here}/refcnt").then(parse_refcnt),
        parameters,
        reader.names(f"{here}/holders"),
        read_framebuffers(reader, FRAMEBUFFERS[name]),
    )


def read_framebuffers(reader: Reader, words: tuple[str, ...]) -> Reading[int]:
    listed = reader.names(GRAPHICS)
    if listed.unread == "absent":  # a kernel without framebuffers
        return Reading(0, GRAPHICS)
    found = 0
    for name in listed.value or ():
        if not re.fullmatch(r"fb\d+", name):
            continue
        driver = reader.line(f"{GRAPHICS}/{name}/name").then(parse_parameter)
        if driver.value is None:
            return driver.then(lambda _: 0)
        found += driver.value in words
    return listed.then(lambda _: found)


def read_tainting(reader: Reader, taint: Reading[int]) -> Reading[dict[str, str]]:
    """Modules with taint letters; their files are looked at only where a bit is set that a module sets."""
    if taint.value is None:
        return taint.then(lambda _: {"": ""})
    if not taint.value & BY_MODULES:
        return Reading({}, taint.source)
    listed = reader.names(FOLDER)
    if listed.value is None:
        return listed.then(lambda _: {"": ""})
    found: dict[str, str] = {}
    for name in listed.value:
        own = reader.line(f"{FOLDER}/{name}/taint").then(parse_taint)
        if own.value:
            found[name] = own.value
        elif own.unread not in (None, "absent"):
            return own.then(lambda _: {"": ""})
    return Reading(found, f"{FOLDER}/*/taint")


def read(reader: Reader, identity: Identity) -> Modules:
    listed = reader.names(FOLDER)
    drivers = tuple(found for name in NAMES if (found := read_driver(reader, name)) is not None)
    return Modules(
        drivers=listed.then(lambda _: drivers),
        taint_letters=identity.taint.then(letters),
        tainting=read_tainting(reader, identity.taint),
    )
