"""ASPM policy by kernel argument, so that it is in force before any card is used.

A write at runtime wedged three cards of one lab host and both of another, which then panicked (the lab's notes of
July and August): it is made only with ``runtime_write`` for that host, and then never while a card sleeps, has
faulted or is held.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

from ..gather import Options
from ..readings import aspm, kernel_log, pcie
from ..readings.kernel_log import KernelLog
from . import boot
from .boot_entries import holds
from .engine import Goal, Host, Plan, Record, Refused, Setting, Value, View, keys_of
from .jobs import holders

NAME = "pcie_aspm"
ARGUMENT = "pcie_aspm.policy"
OFF = "pcie_aspm=off"
POLICIES = ("default", "performance", "powersave", "powersupersave")
COST = "cost: without L1 on their links four idle cards drew 179 to 185 W instead of 25 to 27 W (a community report)"
RISK = "risk: L1 substates lost a card until the next boot on an AMD host (a public report)"


@dataclass(frozen=True)
class Wanted:
    """policy: a word of `POLICIES`, or None. runtime_write: this host may be written to while it runs."""

    policy: str | None = None
    runtime_write: bool = False


@dataclass(frozen=True)
class Policy(Value):
    """The policy file of the kernel: every word it offers, the current one in brackets."""

    kind = "aspm_policy"

    def read(self, host: Host) -> Any:
        return host.must(host.reader.text(self.key).then(aspm.parse_policy))[0]


def parse(data: dict[str, Any]) -> Wanted:
    """What is wanted; ``effective`` is for the audit alone. Raises Refused.

    >>> parse({"policy": "performance"}).policy
    'performance'
    """
    found = keys_of(data, NAME, {"policy": str, "effective": str, "runtime_write": bool})
    policy = found.get("policy")
    if policy is not None and policy not in POLICIES:
        raise Refused(f"{NAME}.policy: {policy!r} is unknown; the kernel has {', '.join(POLICIES)}")
    if found.get("effective") not in (None, "disabled", "l1"):
        raise Refused(f"{NAME}.effective: {found['effective']!r} is unknown; wanted disabled or l1")
    return Wanted(policy, found.get("runtime_write", False))


def _argument(wanted: Wanted | None) -> tuple[str, ...]:
    return (f"{ARGUMENT}={wanted.policy}",) if wanted is not None and wanted.policy is not None else ()


def obstacle_of(host: Host, found: aspm.Aspm, log: KernelLog, wanted: Wanted) -> str:
    """Why the policy cannot be set here, with the evidence; "" when nothing is known to forbid it."""
    offered = found.offered.value
    if offered is not None and wanted.policy not in offered:
        raise Refused(f"{NAME}.policy: {wanted.policy!r} is not offered by this kernel; it offers {', '.join(offered)}")
    if found.command_line.value == "off":
        return ""  # the entries of the next boot do not have it any more, and this boot can say nothing of them
    why, source = aspm.obstacle(found, log.events.value or ())
    return f"cannot be controlled: {why} ({source}); LnkCtl says {_effective(host, log)}" if why else ""


def guard(host: Host, log: KernelLog) -> None:
    """Raises Refused unless every card is awake, well and unused."""
    why = []
    if log.faulted.value is None:
        why.append(f"the kernel log cannot be read ({log.faulted.unread}), so no fault can be ruled out")
    cards = host.must(pcie.read(host.reader, log, Options()).gpus)
    for card in cards:
        status = card.runtime_status.value
        if status not in ("active", "unsupported"):
            why.append(f"{card.bdf} is {status or card.runtime_status.unread}")
        if card.bdf in (log.faulted.value or ()) or card.coredump.value or card.survivability.value:
            why.append(f"{card.bdf} faulted on this boot")
    held = holders(host)
    if held:
        why.append(f"cards are held by {', '.join(held)}")
    if why:
        raise Refused(f"{NAME}.runtime_write: not written: {'; '.join(why)}. The next boot sets it without a risk")


def plan(host: Host, wanted: Wanted, record: Record) -> Plan:
    """The argument on every normal entry and, only where it is allowed, the policy at once."""
    add = _argument(wanted)
    if not add:
        return boot.plan(host, NAME, record, (), ()) if record.items else Plan()
    for entry in boot.loader_of(host).normal(host):
        if holds(entry.args, OFF):
            raise Refused(
                f"{NAME}: {OFF} ({boot.where(host, OFF)}) has the kernel leave ASPM alone, so a policy does nothing. "
                f"Take it away first: kernel_arguments: {{absent: [{OFF}]}}"
            )
    found, log = aspm.read(host.reader), kernel_log.read(host.reader)
    obstacle = obstacle_of(host, found, log, wanted)
    if obstacle:
        return Plan(not_applicable=obstacle)
    base = boot.plan(host, NAME, record, add, ())
    warnings = list(base.warnings)
    if log.access.value is None:
        warnings.append(f"{NAME}: kernel log unread ({log.access.unread}): whether the firmware allows it is unknown")
    goals, reboot = base.goals, base.reboot
    if wanted.runtime_write and found.command_line.value != "off":
        if found.policy.value != wanted.policy:
            guard(host, log)
        goals = (*goals, Goal(Policy(aspm.POLICY), wanted.policy))
        reboot = False
    elif found.policy.value == wanted.policy:
        reboot = False
    notes = {"performance": (COST,), "powersupersave": (RISK,)}.get(wanted.policy or "", ())
    return Plan(goals, reboot, "", tuple(warnings), notes)


def _effective(host: Host, log: KernelLog) -> str:
    """What LnkCtl of the ports on the way to every card enables; inner ports of a card say nothing and are left out."""
    cards = pcie.read(host.reader, log, Options()).gpus
    states: dict[str, list[str]] = {}
    for card in cards.value or ():
        for hop in card.path:
            if not hop.inner:
                state = hop.aspm.value or f"unread ({hop.aspm.unread})"
                if hop.bdf not in states.setdefault(state, []):
                    states[state].append(hop.bdf)
    if cards.value is None:
        return f"unread ({cards.unread})"
    return "; ".join(f"{state}: {', '.join(bdfs)}" for state, bdfs in states.items()) or "no card"


def view(host: Host, wanted: Wanted | None) -> View:
    """Policy now, argument of the next boot, LnkCtl of the links, and the file that has the argument."""
    policy = host.reader.text(aspm.POLICY).then(aspm.parse_policy)
    live = policy.value[0] if policy.value is not None else f"unread ({policy.unread})"
    lines = [entry.args for entry in boot.loader_of(host).normal(host)]
    words = [" ".join(word for word in line if re.match(r"pcie_aspm[.=]", word)) or "default" for line in lines]
    owner = boot.where(host, _argument(wanted)[0]) if _argument(wanted) else ""
    effective = _effective(host, kernel_log.read(host.reader))
    named = owner if any(holds(line, word) for line in lines for word in _argument(wanted)) else ""
    return View(live, " | ".join(dict.fromkeys(words)), effective, named)


def _keep(wanted: Wanted | None, thing: Any, found: Any) -> str:
    if isinstance(thing, Policy) and not (wanted is not None and wanted.runtime_write):
        return "not written back while the host runs (it wedged cards); the next boot sets it"
    return ""


SETTING = Setting(NAME, parse, plan, view, (*boot.KINDS, Policy), boot.sweep(NAME), _keep)
