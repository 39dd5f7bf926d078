"""Idle states of the processors: which there are, how deep they go, and on which processors each is switched off.

Only the switch is read on every processor. Processors of one kind have the same states, so name and cost of a state are
read once for each kind.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from ..reader import Reader, Reading
from .lscpu import CPU_FOLDER, Lscpu, cpu_list

STATE = r"state[0-9]{1,2}"


@dataclass(frozen=True)
class IdleState:
    """One idle state of the processors that have it under this name and number.

    number: of its folder; the deepest state has the highest. name: e.g. ``C2``. latency_us: time to wake up.
    cpus: processors that have it, as a list such as ``0-31``. enabled: those on which it may be used.
    """

    number: int
    name: str
    latency_us: Reading[int]
    cpus: str
    enabled: Reading[str]


@dataclass(frozen=True)
class Cpuidle:
    """cpuidle of a host.

    driver: e.g. ``acpi_idle``; ``none`` without one. governor: e.g. ``menu``.
    states: by number and name; () where no processor has any, as in most virtual machines.
    deepest: the processors on which the deepest state of that processor may be used, as a list; ``""`` for none.
    """

    driver: Reading[str]
    governor: Reading[str]
    states: Reading[tuple[IdleState, ...]]
    deepest: Reading[str]


def parse_name(text: str) -> str:
    """Return the name of a state, driver or governor. Raises ValueError for what is no such name.

    >>> parse_name("C1_ACPI\\n"), parse_name("POLL\\n")
    ('C1_ACPI', 'POLL')
    """
    if not re.fullmatch(r"[A-Za-z0-9][\w.+-]{0,31}", text.strip(), re.ASCII):
        raise ValueError(f"expected a name, got {text!r}")
    return text.strip()


def parse_microseconds(text: str) -> int:
    """Return a time in microseconds. Raises ValueError."""
    if not re.fullmatch(r"[0-9]{1,10}", text.strip(), re.ASCII):
        raise ValueError(f"expected microseconds, got {text!r}")
    return int(text)


def parse_disable(text: str) -> bool:
    """Return whether a state is switched off: 0 on; 1 off by the user, 2 by the driver, 3 by both.

    Source: kernel docs, admin-guide/pm/cpuidle, and CPUIDLE_STATE_DISABLED_BY_* of linux/cpuidle.h.

    >>> parse_disable("0\\n"), parse_disable("1\\n")
    (False, True)
    """
    if not re.fullmatch(r"[0-9]", text.strip(), re.ASCII):
        raise ValueError(f"expected 0 or 1, got {text!r}")
    return int(text) != 0


class _Folded:
    """States of the same number and name, put together over the processors."""

    def __init__(self, latency: Reading[int], source: str) -> None:
        self.latency = latency
        self.source = source
        self.cpus: list[int] = []
        self.enabled: list[int] = []
        self.problem: Reading[bool] | None = None

    def add(self, cpu: int, disabled: Reading[bool]) -> None:
        self.cpus.append(cpu)
        if disabled.value is None:
            self.problem = self.problem or disabled
        elif not disabled.value:
            self.enabled.append(cpu)

    def state(self, number: int, name: str) -> IdleState:
        enabled = (
            self.problem.then(lambda _: "")
            if self.problem is not None
            else Reading(cpu_list(tuple(self.enabled)), self.source)
        )
        return IdleState(number, name, self.latency, cpu_list(tuple(self.cpus)), enabled)


def _processors(reader: Reader) -> Reading[tuple[int, ...]]:
    return reader.names(CPU_FOLDER).then(
        lambda names: tuple(sorted(int(name[3:]) for name in names if re.fullmatch(r"cpu[0-9]+", name)))
    )


def read_states(reader: Reader, small: tuple[int, ...]) -> tuple[Reading[tuple[IdleState, ...]], Reading[str]]:
    """All states of all processors, and where the deepest one of each may be used. small: the E cores of a hybrid."""
    cpus = _processors(reader)
    if cpus.value is None:
        return cpus.then(lambda _: ()), cpus.then(lambda _: "")
    found: dict[tuple[int, str], _Folded] = {}
    known: dict[tuple[bool, int], str] = {}
    deepest: list[int] = []
    problem: Reading[bool] | None = None
    for cpu in cpus.value:
        folder = f"{CPU_FOLDER}/cpu{cpu}/cpuidle"
        names = reader.names(folder)
        if names.value is None:
            if names.unread != "absent":  # a refusal is not "has no idle states"
                return names.then(lambda _: ()), names.then(lambda _: "")
            continue
        numbers = sorted(int(name[5:]) for name in names.value if re.fullmatch(STATE, name))
        for number in numbers:
            here = f"{folder}/state{number}"
            kind = (cpu in small, number)
            if kind not in known:
                name = reader.line(f"{here}/name").then(parse_name)
                if name.value is None:
                    return name.then(lambda _: ()), name.then(lambda _: "")
                known[kind] = name.value
            key = (number, known[kind])
            if key not in found:
                latency = reader.line(f"{here}/latency").then(parse_microseconds)
                source = f"{CPU_FOLDER}/cpu*/cpuidle/state{number}/disable"
                found[key] = _Folded(latency, source)
            disabled = reader.line(f"{here}/disable").then(parse_disable)
            found[key].add(cpu, disabled)
            # With one state alone, the polling one, there is nothing deep that could be switched off.
            if number == numbers[-1] and len(numbers) > 1:
                if disabled.value is None:
                    problem = problem or disabled
                elif not disabled.value:
                    deepest.append(cpu)
    states = tuple(found[key].state(*key) for key in sorted(found))
    source = f"{CPU_FOLDER}/cpu*/cpuidle"
    deep = problem.then(lambda _: "") if problem is not None else Reading(cpu_list(tuple(deepest)), source)
    return Reading(states, source), deep


def read(reader: Reader, lscpu: Lscpu) -> Cpuidle:
    folder = f"{CPU_FOLDER}/cpuidle"
    governor = reader.line(f"{folder}/current_governor").then(parse_name)
    states, deepest = read_states(reader, lscpu.efficiency_cores.value or ())
    return Cpuidle(
        driver=reader.line(f"{folder}/current_driver").then(parse_name),
        governor=governor.or_(reader.line(f"{folder}/current_governor_ro").then(parse_name)),
        states=states,
        deepest=deepest,
    )
