"""Every toggle by its name. Adding a toggle is one file and one line here."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..settings import kernel_arguments
from ..settings.catalogue import SETTINGS
from ..settings.engine import Host, Refused
from . import command, cpu_governor, gpu_runtime_pm, pcie_aspm, value
from .switch import BY_BOOTS, Declaration, NeedsBoot, Scope, Switch

TOGGLES: dict[str, Declaration] = {
    one.name: one
    for one in (cpu_governor.TOGGLE, pcie_aspm.TOGGLE, gpu_runtime_pm.TOGGLE, value.TOGGLE, command.TOGGLE)
}


def switch(host: Host, name: str, a: Mapping[str, Any], b: Mapping[str, Any], scope: Scope) -> Switch:
    """Prepare one toggle on a host. Raises NeedsBoot for a setting that only a boot changes, and Refused."""
    if name in TOGGLES:
        return TOGGLES[name].switch(host, a, b, scope)
    if name == kernel_arguments.SETTING.name:
        raise NeedsBoot(f"{name}: cannot be switched while the host runs; {BY_BOOTS}")
    if name in SETTINGS:
        raise Refused(f"{name}: nothing of it can be switched under a worker that runs")
    raise Refused(f"there is no toggle {name!r}; there are {', '.join(sorted(TOGGLES))}")
