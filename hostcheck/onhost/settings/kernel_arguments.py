"""Kernel arguments of the next boot, merged and removed one by one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from . import boot
from .boot_entries import holds, key
from .engine import Host, Plan, Record, Refused, Setting, View, keys_of

NAME = "kernel_arguments"
OWNED_ELSEWHERE = {"pcie_aspm.policy": "pcie_aspm"}
# Both are security settings, and were neutral for decode in the lab's replay of its collective.
NEVER = ("iommu=off", "intel_iommu=off", "amd_iommu=off", "iommu=no")
NEVER_KEYS = ("pcie_acs_override", "disable_acs_redir")
DOUBTFUL = {
    "pcie_aspm=off": "leaves the firmware's ASPM as it is, and the kernel then takes no AER either (kernel-parameters)",
    "pci=noaer": "hides every PCIe error of this host",
    "pcie_ports=compat": "hides every PCIe error of this host",
    "pcie_aspm=force": "turns ASPM on where the firmware says that it does not work",
}


@dataclass(frozen=True)
class Wanted:
    """present, absent: words. try_once: let one boot try them before they are made permanent."""

    present: tuple[str, ...] = ()
    absent: tuple[str, ...] = ()
    try_once: bool = False


def parse(data: dict[str, Any]) -> Wanted:
    """What is wanted. Raises Refused.

    >>> parse({"present": ["iommu=pt"]}).present
    ('iommu=pt',)
    """
    found = keys_of(data, NAME, {"present": list, "absent": list, "try_once": bool})
    lists: dict[str, tuple[str, ...]] = {}
    for name in ("present", "absent"):
        for word in found.get(name, []):
            if not isinstance(word, str):
                raise Refused(f"{NAME}.{name}: wanted texts, found {word!r:.60}")
            boot.check_word(word, f"{NAME}.{name}")
            if key(word) in OWNED_ELSEWHERE:
                raise Refused(
                    f"{NAME}.{name}: {word} belongs to the role {OWNED_ELSEWHERE[key(word)]}: declare it there"
                )
        lists[name] = tuple(dict.fromkeys(found.get(name, [])))
    for word in lists["present"]:
        if word in NEVER or key(word) in NEVER_KEYS or "noacs" in word:
            raise Refused(f"{NAME}.present: {word} turns ACS or the IOMMU off, which this toolkit never does")
        if holds(lists["absent"], word):
            raise Refused(f"{NAME}: {word} is both present and absent")
    return Wanted(lists["present"], lists["absent"], found.get("try_once", False))


def plan(host: Host, wanted: Wanted, record: Record) -> Plan:
    """Every normal entry with the words, the fallback without them."""
    found = boot.plan(host, NAME, record, wanted.present, wanted.absent, wanted.try_once)
    doubts = tuple(f"{word}: {DOUBTFUL[word]}" for word in wanted.present if word in DOUBTFUL)
    return Plan(found.goals, found.reboot, "", (*found.warnings, *doubts), found.notes, found.trial, found.extra)


def _state(args: Sequence[str], names: Sequence[str]) -> str:
    return " ".join(one for one in args if key(one) in {key(name) for name in names}) or "none of them"


def view(host: Host, wanted: Wanted | None) -> View:
    """The wanted words on the running command line and on the entries of the next boot."""
    names = (*wanted.present, *wanted.absent) if wanted else ()
    live = boot.running(host)
    lines = [entry.args for entry in boot.loader_of(host).normal(host)]
    if not names:
        return View(" ".join(live), " ".join(lines[0]))
    persistent = " | ".join(dict.fromkeys(_state(line, names) for line in lines))
    owners = dict.fromkeys(boot.where(host, word) for line in lines for word in line if holds(names, word))
    return View(_state(live, names), persistent, _state(live, names), ", ".join(owners))


SETTING = Setting(NAME, parse, plan, view, boot.KINDS, boot.sweep(NAME))
