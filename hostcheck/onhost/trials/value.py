"""Any one-value file below /sys or /proc/sys: memory reclaim, huge pages, interrupt affinity … by its path.

Paths that other toggles or roles guard are not written here, and none that resets, removes or probes a device.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ..reader import Reader
from ..settings.engine import Goal, Host, Refused, Value, keys_of
from .switch import Declaration, Evidence, Scalar, Scope, Switch, plain_values, words

NAME = "value"
IRQ = re.compile(r"/proc/irq/([0-9]+)/smp_affinity(_list)?")
ALLOWED = re.compile(r"(/sys|/proc/sys)/[^\0]+|" + IRQ.pattern)
# Guarded by a toggle of its own, or never written (design rules: resets, unbinding, error counters, coredumps, IOMMU).
ELSEWHERE = {
    r"/sys/module/pcie_aspm/.*": "toggle pcie_aspm",
    r".*/power/(control|autosuspend\w*|d3cold_allowed|wakeup)": "toggle gpu_runtime_pm",
    r".*/cpufreq/.*|.*/cpuidle/.*": "toggle cpu_governor",
    r".*/link/(l[01]\w*|clkpm)(_aspm|_pcipm)?": "toggle pcie_aspm",
}
NEVER = (
    r".*/(reset|reset_method|remove|rescan|bind|unbind|new_id|driver_override|sriov_\w+|resource\d*\w*|config|rom)",
    r".*/(devcoredump|survivability_mode|aer_\w+)(/.*)?",
    r"/sys/kernel/(debug|iommu_groups)/.*",
    r"/sys/power/.*|/sys/firmware/.*|/proc/sys/kernel/(sysrq|panic\w*|modules_disabled|core_pattern)",
)


@dataclass(frozen=True)
class Bracketed(Value):
    """A file that lists all words, the one in force in brackets (transparent huge pages); plain ones read as they are.

    Read from "/x" with "always [madvise] never" it is "madvise".
    """

    kind = "bracketed"

    def read(self, host: Host) -> Any:
        found = super().read(host)
        word = re.findall(r"\[([^\[\]\s]+)\]", found or "")
        return word[0] if len(word) == 1 else found


def interrupts(number: str) -> Evidence:
    """Where an interrupt arrives: its counts weighted by processor, whose rate moves with it also at the same total."""

    def read(reader: Reader, scope: Scope) -> Scalar:
        lines = reader.text("/proc/interrupts").value or ""
        found = re.search(rf"(?m)^\s*{number}:((?:\s+[0-9]+)+)", lines)
        if found is None:
            return None
        return sum((cpu + 1) * int(count) for cpu, count in enumerate(found[1].split()))

    return Evidence(f"irq_{number}_weighted_per_s", read, counter=True)


def _goal(data: Mapping[str, Any], path: str) -> list[Goal]:
    value = data.get("value")
    return [Goal(Bracketed(path), str(value))] if value is not None else []


def switch(host: Host, a: Mapping[str, Any], b: Mapping[str, Any], scope: Scope) -> Switch:
    """One file. a: ``{value}``; b: ``{path, value}``. Raises Refused."""
    given = keys_of(dict(b), NAME, {"path": str, "value": (str, int)})
    other = keys_of(dict(a), NAME, {"value": (str, int)})
    path = given.get("path", "")
    if "value" not in given or not path:
        raise Refused(f"{NAME}: b names path and value, found {dict(b)!r:.80}")
    for one in (given, other):
        if not re.fullmatch(r"[^\0\n]{1,200}", str(one.get("value", "-"))):
            raise Refused(f"{NAME}: {one['value']!r:.40} is not one line of at most 200 characters")
    if ".." in path.split("/") or not ALLOWED.fullmatch(path):
        raise Refused(f"{NAME}: {path!r:.80} is not below /sys, /proc/sys or /proc/irq/N/smp_affinity")
    for here in dict.fromkeys((path, host.writer.inside(path))):  # links of /sys/bus and /sys/class lead to devices
        for pattern, where in ELSEWHERE.items():
            if re.fullmatch(pattern, here):
                raise Refused(f"{NAME}: {path} is the {where}'s, which knows what must hold before it is written")
        if any(re.fullmatch(pattern, here) for pattern in NEVER) or not ALLOWED.fullmatch(here):
            raise Refused(f"{NAME}: {path} is never written")
    things, values, steps = plain_values(host, _goal(other, path), _goal(given, path))
    irq = IRQ.fullmatch(path)
    return Switch(
        NAME,
        things,
        values,
        steps,
        {arm: words(things, values[arm]) for arm in ("A", "B")},
        metric="launch_us",
        evidence=(interrupts(irq[1]),) if irq else (),
    )


TOGGLE = Declaration(NAME, switch)
