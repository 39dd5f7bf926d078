"""One file per family of checks: pure functions of (facts, expectation, previous facts) that give findings.

Adding a family is one file and one line in `FAMILIES`.
"""

from __future__ import annotations

from ..findings import Declaration
from . import aer, aspm, cpu, faults, firmware, gpu, links, log, power, tools

FAMILIES = (cpu, gpu, links, aspm, power, tools, log, faults, aer, firmware)

ALL: tuple[Declaration, ...] = tuple(
    value.declaration for family in FAMILIES for value in vars(family).values() if hasattr(value, "declaration")
)
