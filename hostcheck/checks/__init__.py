"""One file per family of checks: pure functions of (facts, expectation, previous facts) that give findings.

Adding a family is one file and one line in `FAMILIES`.
"""

from __future__ import annotations

from ..findings import Declaration
from . import (
    aer,
    aspm,
    container,
    cpu,
    crash,
    faults,
    firmware,
    gpu,
    links,
    log,
    memory,
    network,
    power,
    storage,
    tools,
)

FAMILIES = (
    cpu,
    gpu,
    links,
    aspm,
    power,
    tools,
    log,
    faults,
    aer,
    firmware,
    network,
    container,
    memory,
    crash,
    storage,
)

ALL: tuple[Declaration, ...] = tuple(
    value.declaration for family in FAMILIES for value in vars(family).values() if hasattr(value, "declaration")
)
