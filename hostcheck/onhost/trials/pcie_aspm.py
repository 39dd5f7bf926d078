"""ASPM policy, written while the host runs: only where the host allows it, as such writes wedged cards (see settings).

The cards must be awake, well and unused when the trial starts; the worker then uses them. Judged on a launch after a
sleep, since a tight loop keeps the link awake (probe notes, 4.5).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..gather import Options
from ..reader import Reader
from ..readings import aspm, kernel_log, pcie
from ..settings import pcie_aspm as setting
from ..settings.engine import Goal, Host, Refused
from .switch import BY_BOOTS, Declaration, Evidence, NeedsBoot, Scalar, Scope, Switch, plain_values, words

NAME = setting.NAME


def link_states(reader: Reader, scope: Scope) -> Scalar:
    """What LnkCtl of every hop to the card enables; inner ports of a card say nothing and are left out."""
    cards = pcie.read(reader, kernel_log.read(reader), Options()).gpus.value or ()
    hops = [hop for card in cards if card.bdf == scope.card for hop in card.path if not hop.inner]
    if not hops or any(hop.aspm.value is None for hop in hops):
        return None
    return ", ".join(f"{hop.bdf} {hop.aspm.value}" for hop in hops)


def switch(host: Host, a: Mapping[str, Any], b: Mapping[str, Any], scope: Scope) -> Switch:
    """The policy file. Raises NeedsBoot without ``runtime_write``, and Refused for what else stands against it."""
    wanted = setting.parse(dict(b))
    if not wanted.runtime_write:
        raise NeedsBoot(
            f"{NAME}: not written while the host runs, which wedged cards and panicked a host (the lab's notes); "
            f"a host that may try it says runtime_write: true, else {BY_BOOTS}"
        )
    log = kernel_log.read(host.reader)
    why = setting.obstacle_of(host, aspm.read(host.reader), log, wanted)
    if why:
        raise Refused(f"{NAME}: {why}")
    setting.guard(host, log)
    arms = (setting.parse(dict(a)), wanted)
    goals = [[Goal(setting.Policy(aspm.POLICY), one.policy)] if one.policy else [] for one in arms]
    things, values, steps = plain_values(host, *goals)
    return Switch(
        NAME,
        things,
        values,
        steps,
        {arm: words(things, values[arm]) for arm in ("A", "B")},
        metric="gap_sync_3ms_us",
        evidence=(Evidence("link_states", link_states),),
    )


TOGGLE = Declaration(NAME, switch)
