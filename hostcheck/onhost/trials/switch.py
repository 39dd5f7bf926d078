"""What a toggle is, and how one or two of them are switched in a trial.

A toggle is declared once, in a file of its own here: how an arm becomes values of things, what the trial is judged on,
what shows that it acted, and what stands against it (`Refused`, before anything is touched).
"""

from __future__ import annotations

import re
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Callable, Union

from ..probe.schedule import ARMS_OF_TWO_SWITCHES
from ..probe.session import Toggle, ToggleFailed
from ..reader import Reader
from ..settings.engine import Goal, Host, Refused, Thing
from ..settings.files import Failed
from .deadman import Deadman

Scalar = Union[str, int, float, None]
SETTLE_S = 0.5  # a governor needs that long to follow (probe notes, 7)
BY_BOOTS = "try it over boots: playbooks/trial_boots.yml"


class NeedsBoot(Refused):
    """It can be tried, but not while the host runs."""


@dataclass(frozen=True)
class Scope:
    """Where the measurement runs. cpus: the worker's processors, () for any. card: address of the card, "" for none."""

    cpus: tuple[int, ...] = ()
    card: str = ""


@dataclass(frozen=True)
class Evidence:
    """What must differ between the arms when the setting acts.

    read: half-way through a block. counter: it only grows, and its rate per second since the block began counts.
    """

    name: str
    read: Callable[[Reader, Scope], Scalar]
    counter: bool = False


@dataclass(frozen=True)
class Switch:
    """One toggle on one host, ready to be switched.

    things: in the order in which they are written. values: of each thing, by arm A and B; None: not written in it.
    steps: how the found values come back, see `restorer`. words: the arms for a person.
    """

    name: str
    things: tuple[Thing, ...]
    values: Mapping[str, tuple[Any, ...]]
    steps: tuple[dict[str, Any], ...]
    words: Mapping[str, str]
    metric: str
    statistic: str = "median"
    evidence: tuple[Evidence, ...] = ()
    settle_s: float = SETTLE_S

    def read(self, host: Host) -> str | None:
        """All values as one text, each thing's distinct values once; None when one of them cannot be read."""
        seen: dict[str, list[str]] = {}
        for thing in self.things:
            try:
                value = thing.read(host)
            except Failed:
                return None
            if value is None:
                return None
            seen.setdefault(_label(thing.key), []).append(str(value))
        return "; ".join(f"{name} {', '.join(dict.fromkeys(values))}" for name, values in seen.items())


@dataclass(frozen=True)
class Declaration:
    """A toggle: its name, and a function from what the arms should be to a `Switch`. Raises Refused."""

    name: str
    switch: Callable[[Host, Mapping[str, Any], Mapping[str, Any], Scope], Switch]


def _label(key: str) -> str:
    """The name of a value without what tells apart the processors or devices that have it.

    >>> _label("/sys/devices/system/cpu/cpufreq/policy3/scaling_governor"), _label("tool state")
    ('scaling_governor', 'tool state')
    """
    if not key.startswith("/"):
        return key
    found = re.search(r"/(cpuidle/state[0-9]+|power)/(\w+)$", key)
    return f"{found[1].rpartition('/')[2]}/{found[2]}" if found else key.rpartition("/")[2]


def plain_values(
    host: Host, a: Sequence[Goal], b: Sequence[Goal]
) -> tuple[tuple[Thing, ...], dict[str, tuple[Any, ...]], tuple[dict[str, Any], ...]]:
    """Things, values by arm and the way back, for one-value files; what an arm does not name stays as it was found.

    Raises Refused for a file that is not there, cannot be written, or for arms that are equal.
    """
    things: dict[str, Thing] = {}
    wanted: dict[str, dict[str, Any]] = {"A": {}, "B": {}}
    for arm, goals in (("A", a), ("B", b)):
        for goal in goals:
            things.setdefault(goal.thing.key, goal.thing)
            wanted[arm][goal.thing.key] = goal.value
    found: dict[str, Any] = {}
    for key, thing in things.items():
        found[key] = thing.read(host)
        if found[key] is None:
            raise Refused(f"{key}: is not there, so it cannot be switched")
        if not host.writer.may_write(key):
            raise Refused(
                f"{key}: cannot be written: run as root (ansible-playbook -b), on the host and not in a container"
            )
    values = {arm: tuple(given.get(key, found[key]) for key in things) for arm, given in wanted.items()}
    if values["A"] == values["B"]:
        raise Refused(
            "both arms have the same values "
            f"({'; '.join(f'{_label(key)} {value}' for key, value in dict(zip(things, values['B'])).items())}): "
            "name what should be compared with what is there"
        )
    steps = tuple({"path": host.writer.inside(key), "value": str(found[key])} for key in things)
    return tuple(things.values()), values, steps


def words(things: Sequence[Thing], values: Sequence[Any]) -> str:
    """The values of an arm for a person.

    >>> words([Thing("/x/policy0/scaling_governor"), Thing("/x/policy1/scaling_governor")], ["a", "a"])
    'scaling_governor a'
    """
    seen: dict[str, list[str]] = {}
    for thing, value in zip(things, values):
        if value is None:
            continue
        seen.setdefault(_label(thing.key), []).append(str(value))
    return "; ".join(f"{name} {', '.join(dict.fromkeys(each))}" for name, each in seen.items())


class Switches(Toggle):
    """One switch, or two in all four combinations, as the session's toggle; restores through the dead man's switch."""

    toggles = True

    def __init__(self, host: Host, switches: Sequence[Switch], scope: Scope, deadman: Deadman) -> None:
        self.host, self.switches, self.scope, self.deadman = host, tuple(switches), scope, deadman
        self.sham = "A" if len(switches) == 1 else "base"
        self.problem = ""
        self._began: dict[str, tuple[float, Scalar]] = {}

    def set(self, arm: str) -> None:
        for switch, own in zip(self.switches, self._arms(arm)):
            for thing, value in zip(switch.things, switch.values[own]):
                try:
                    if value is not None:
                        thing.write(self.host, value)
                except Failed as error:
                    raise ToggleFailed(f"arm {arm}: {error}") from error

    def _arms(self, arm: str) -> tuple[str, ...]:
        """The arm of each switch.

        >>> Switches.arms_of_two("A+B"), Switches.arms_of_two("A")
        (('B', 'B'), ('B', 'A'))
        """
        return (arm,) if len(self.switches) == 1 else self.arms_of_two(arm)

    @staticmethod
    def arms_of_two(arm: str) -> tuple[str, str]:
        """Arm of the first and of the second switch in a combination of two."""
        number = ARMS_OF_TWO_SWITCHES.index(arm)
        return "AB"[number in (1, 3)], "AB"[number in (2, 3)]

    def read(self) -> str | None:
        """The values of all switches; the counters of the evidence begin here."""
        for name, one in self._evidence():
            if one.counter:
                self._began[name] = (time.monotonic(), one.read(self.host.reader, self.scope))
        found = [switch.read(self.host) for switch in self.switches]
        return None if None in found else " | ".join(map(str, found))

    def evidence(self) -> dict[str, Any]:
        seen: dict[str, Any] = {}
        for name, one in self._evidence():
            value = one.read(self.host.reader, self.scope)
            if one.counter:
                since, before = self._began[name]
                known = isinstance(value, (int, float)) and isinstance(before, (int, float))
                value = (value - before) / (time.monotonic() - since) if known else None  # type: ignore[operator]
            seen[name] = value
        if len(self.switches) == 2:
            seen.update({f"{letter}:readback": one.read(self.host) for letter, one in zip("AB", self.switches)})
        return seen

    def names(self) -> tuple[str, ...]:
        """Names of the evidence that the claim declares before the run."""
        found = [name for name, _ in self._evidence()]
        return (*found, "A:readback", "B:readback") if len(self.switches) == 2 else tuple(found)

    def _evidence(self) -> list[tuple[str, Evidence]]:
        if len(self.switches) == 1:
            return [(one.name, one) for one in self.switches[0].evidence]
        return [(f"{letter}:{one.name}", one) for letter, switch in zip("AB", self.switches) for one in switch.evidence]

    def restore(self) -> str:
        self.problem = self.deadman.restore()
        return self.problem


def arms(switches: Sequence[Switch]) -> dict[str, str]:
    """What each arm is, for the claim."""
    if len(switches) == 1:
        return dict(switches[0].words)
    return {
        arm: "; ".join(one.words[own] for one, own in zip(switches, Switches.arms_of_two(arm)))
        for arm in ARMS_OF_TWO_SWITCHES
    }
