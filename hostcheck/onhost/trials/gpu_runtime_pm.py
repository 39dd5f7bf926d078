"""``power/control`` of the card and of every bridge above it: only where the host allows ``auto`` (see settings).

A card that sleeps between two launches shows in a launch after a long gap, and in its time suspended.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..reader import Reader
from ..readings import pcie
from ..settings import gpu_runtime_pm as setting
from ..settings.engine import Goal, Host, Refused, Value
from .switch import BY_BOOTS, Declaration, Evidence, NeedsBoot, Scalar, Scope, Switch, plain_values, words

NAME = setting.NAME


def suspended_ms(reader: Reader, scope: Scope) -> Scalar:
    """Milliseconds that the card has spent suspended."""
    return reader.line(f"{pcie.DEVICES}/{scope.card}/power/runtime_suspended_time").then(int).value


def switch(host: Host, a: Mapping[str, Any], b: Mapping[str, Any], scope: Scope) -> Switch:
    """The card that is measured and the bridges above it. Raises NeedsBoot without ``runtime_auto``, or Refused."""
    if not setting.parse(dict(b)).runtime_auto:
        raise NeedsBoot(
            f"{NAME}: one arm is auto, which lost cards that could not wake up; a host that may try it says "
            f"runtime_auto: true, else {BY_BOOTS}"
        )
    found, functions = setting.cards(host)
    if scope.card not in [one.bdf for one in found]:
        raise Refused(f"{NAME}: there is no card to be measured that this setting is about ({scope.card or 'none'})")
    # The root port first: a bridge must not fall asleep between the write to it and to what is below.
    paths = [f"{pcie.DEVICES}/{one.bdf}/power/control" for one in pcie.chain(functions, scope.card)]
    given = [setting.parse({"runtime_auto": True, **one}).control for one in (a, b)]
    goals = [[Goal(Value(path), control) for path in paths] if control else [] for control in given]
    things, values, steps = plain_values(host, *goals)
    return Switch(
        NAME,
        things,
        values,
        steps,
        {arm: words(things, values[arm]) for arm in ("A", "B")},
        metric="gap_sync_3ms_us",
        evidence=(Evidence("suspended_ms_per_s", suspended_ms, counter=True),),
    )


TOGGLE = Declaration(NAME, switch)
