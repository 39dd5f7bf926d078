"""One file per family of checks: pure functions of (facts, expectation, previous facts) that give findings.

Adding a family is one file and one line in `FAMILIES`.
"""

from __future__ import annotations

from ..findings import Declaration
from . import (
    access,
    aer,
    aspm,
    container,
    cpu,
    cpu_limits,
    cpuidle,
    crash,
    display,
    engines,
    faults,
    firmware,
    fw_runtime,
    gpu,
    gpu_limits,
    jobs,
    kernel,
    last_boot,
    links,
    log,
    memory,
    modules,
    network,
    next_boot,
    numa,
    p2p,
    package,
    power,
    stalls,
    storage,
    taint,
    throttle,
    tools,
)

FAMILIES = (
    cpu,
    cpu_limits,
    cpuidle,
    gpu,
    access,
    gpu_limits,
    engines,
    throttle,
    modules,
    links,
    p2p,
    numa,
    aspm,
    power,
    display,
    tools,
    log,
    faults,
    aer,
    firmware,
    fw_runtime,
    taint,
    kernel,
    stalls,
    last_boot,
    next_boot,
    network,
    container,
    jobs,
    memory,
    crash,
    storage,
    package,
)

ALL: tuple[Declaration, ...] = tuple(
    value.declaration for family in FAMILIES for value in vars(family).values() if hasattr(value, "declaration")
)
