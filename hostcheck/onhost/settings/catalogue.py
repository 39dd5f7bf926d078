"""Every setting by its name. Adding a setting is one file and one line here."""

from __future__ import annotations

from . import (
    collective_env,
    container_memory,
    cpu_governor,
    crash_policy,
    gpu_runtime_pm,
    kernel_arguments,
    memory_fence,
    package_pins,
    pcie_aspm,
)
from .engine import Setting

# In the order in which they are applied: kernel_arguments may take away what pcie_aspm refuses to stand beside.
SETTINGS: dict[str, Setting] = {
    one.name: one
    for one in (
        cpu_governor.SETTING,
        kernel_arguments.SETTING,
        pcie_aspm.SETTING,
        gpu_runtime_pm.SETTING,
        collective_env.SETTING,
        crash_policy.SETTING,
        memory_fence.SETTING,
        container_memory.SETTING,
        package_pins.SETTING,
    )
}
