"""Governor, EPP, lowest clock, or the deepest idle state of the processors, switched on every policy or processor.

One of them at a time: what was tried together cannot be told apart (two toggles show that, and their interaction).
The idle states of deep sleep cost only who has slept, so they are judged on a launch after a sleep (probe notes, 4.5).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..reader import Reader
from ..readings import cpufreq
from ..settings import cpu_governor as setting
from ..settings.engine import Goal, Host, Refused, Value
from .switch import Declaration, Evidence, Scalar, Scope, Switch, plain_values, words

NAME = setting.NAME
CPUS = "/sys/devices/system/cpu"
KEYS = ("governor", "epp", "scaling_min_freq", "disable_deepest_idle")


def clock_khz(reader: Reader, scope: Scope) -> Scalar:
    """Mean clock of the worker's processors (of all where it may use any), None where a policy does not tell."""
    policies = cpufreq.read_policies(reader).value or ()
    near = [one for one in policies if not scope.cpus or set(one.cpus) & set(scope.cpus)]
    clocks = [one.current_khz.value for one in near]
    known = [clock for clock in clocks if clock is not None]
    return sum(known) / len(known) if known and len(known) == len(clocks) else None


def idle_time(paths: tuple[str, ...]) -> Evidence:
    """Time that processors spent in the states whose ``disable`` files these are: microseconds of each second."""

    def read(reader: Reader, scope: Scope) -> Scalar:
        total = 0
        for path in paths:
            if scope.cpus and int(path.split("/")[5][3:]) not in scope.cpus:
                continue
            time = reader.line(path.rpartition("/")[0] + "/time").then(int)
            if time.value is None:
                return None
            total += time.value
        return total

    return Evidence("deepest_idle_us_per_s", read, counter=True)


def _goals(host: Host, data: Mapping[str, Any], policies: tuple[cpufreq.Policy, ...]) -> list[Goal]:
    wanted = setting.parse(dict(data))
    setting.check(wanted, policies, host)
    values = (
        ("scaling_governor", wanted.governor),
        ("energy_performance_preference", wanted.epp),
        ("scaling_min_freq", str(wanted.scaling_min_freq) if wanted.scaling_min_freq else None),
    )
    goals = [
        Goal(Value(f"{setting.folder(policy)}/{name}"), value)
        for name, value in values
        if value is not None
        for policy in policies
    ]
    if "disable_deepest_idle" in data:
        goals += [Goal(Value(path), "1" if wanted.disable_deepest_idle else "0") for path in setting.deepest_idle(host)]
    return goals


def _follow(host: Host, policies: tuple[cpufreq.Policy, ...]) -> dict[str, str]:
    """What drivers change along with a governor, as found: the preference, and intel_pstate's turbo switch.

    intel_pstate and amd-pstate set the preference performance with the governor performance (arc-host facts); that a
    governor resets no_turbo is pyperf's experience.
    """
    paths = [f"{setting.folder(policy)}/energy_performance_preference" for policy in policies]
    paths.append(f"{CPUS}/intel_pstate/no_turbo")
    found = {path: host.reader.line(path).value for path in paths}
    return {path: value for path, value in found.items() if value is not None}


def switch(host: Host, a: Mapping[str, Any], b: Mapping[str, Any], scope: Scope) -> Switch:
    """Values of all policies or processors. Raises Refused."""
    asked = [key for key in KEYS if a.get(key) is not None or b.get(key) is not None]
    policies = host.must(cpufreq.read_policies(host.reader))
    if len(asked) > 1:
        raise Refused(f"{NAME}: {' and '.join(asked)} in one toggle: try one, or each as a toggle of its own")
    idle = asked == ["disable_deepest_idle"]
    if not policies and not idle:
        raise Refused(f"{NAME}: no cpufreq driver: a virtual machine, or the firmware keeps the clock to itself")
    if idle and not setting.deepest_idle(host):
        raise Refused(f"{NAME}.disable_deepest_idle: no processor has two idle states (no cpuidle driver)")
    others = list(setting.rivals(host, setting.parse(dict(b))))
    state = setting.tuned_state(host)
    if state != "inactive":
        others.append(f"{setting.TUNED_UNIT} is {state}")
    if others:
        raise Refused(
            f"{NAME}: another owner could change it back during the trial: {'; '.join(others)}. Stop it for the trial"
        )
    goals_a, goals_b = _goals(host, a, policies), _goals(host, b, policies)
    things, values, steps = plain_values(host, goals_a, goals_b)
    if asked == ["governor"]:
        follow = _follow(host, policies)
        steps += tuple({"path": host.writer.inside(path), "value": value} for path, value in follow.items())
        if not a:  # as found, also where the driver does not give the preference back by itself
            things += tuple(Value(path) for path in follow)
            values = {"A": (*values["A"], *follow.values()), "B": (*values["B"], *(None for _ in follow))}
    return Switch(
        NAME,
        things,
        values,
        steps,
        {arm: words(things, values[arm]) for arm in ("A", "B")},
        metric="gap_sync_3ms_us" if idle else "launch_us",
        evidence=(idle_time(tuple(thing.key for thing in things)),) if idle else (Evidence("clock_khz", clock_khz),),
    )


TOGGLE = Declaration(NAME, switch)
