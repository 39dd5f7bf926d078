"""The kernel's clock: which one it uses, and what it could use instead."""

from __future__ import annotations

import re
from dataclasses import dataclass

from ..reader import Reader, Reading

FOLDER = "/sys/devices/system/clocksource/clocksource0"


@dataclass(frozen=True)
class Clocksource:
    """Clock of a host. current: e.g. ``tsc``. available: every one that may be chosen; ``tsc`` is missing once the
    kernel has given it up.
    """

    current: Reading[str]
    available: Reading[tuple[str, ...]]


def parse_names(text: str) -> tuple[str, ...]:
    """Return the names of clocks.

    >>> parse_names("tsc hpet acpi_pm \\n")
    ('tsc', 'hpet', 'acpi_pm')

    Raises ValueError for text that is no list of names.
    """
    found = tuple(text.split())
    if not found or not all(re.fullmatch(r"[\w-]{1,32}", name, re.ASCII) for name in found):
        raise ValueError(f"expected names of clocks, got {text[:80]!r}")
    return found


def parse_name(text: str) -> str:
    """Return the name of one clock. Raises ValueError for none or several."""
    found = parse_names(text)
    if len(found) != 1:
        raise ValueError(f"expected one clock, got {text[:80]!r}")
    return found[0]


def read(reader: Reader) -> Clocksource:
    return Clocksource(
        current=reader.line(f"{FOLDER}/current_clocksource").then(parse_name),
        available=reader.line(f"{FOLDER}/available_clocksource").then(parse_names),
    )
