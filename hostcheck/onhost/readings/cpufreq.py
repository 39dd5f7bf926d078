"""CPU frequency: driver, governor, limits and clock of every policy, boost, and who else sets them.

Every policy counts: with only the first one read, a host whose other processors differ looks right (scylladb#9193).
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Callable, TypeVar

from ..reader import Reader, Reading
from . import owners
from .lscpu import CPU_FOLDER, parse_cpu_list
from .owners import Owner

T = TypeVar("T")

FOLDER = f"{CPU_FOLDER}/cpufreq"
OWNED = ("cpu_governor", "cpu_boost", "cpu_clock")


@dataclass(frozen=True)
class Policy:
    """Processors that share a clock. Clocks are in kHz; P and E cores have different ones.

    name: ``policy0``. cpus: its processors that are on-line.
    governor, governors: the one in force and those offered. epp, epps: energy performance preference, likewise.
    min_khz, max_khz: limits that were set. hw_min_khz, hw_max_khz: limits of the hardware. current_khz: as last seen.
    boost: the policy's own switch (kernel 6.11 and later).
    """

    name: str
    cpus: tuple[int, ...]
    driver: Reading[str]
    governor: Reading[str]
    governors: Reading[tuple[str, ...]]
    epp: Reading[str]
    epps: Reading[tuple[str, ...]]
    min_khz: Reading[int]
    max_khz: Reading[int]
    hw_min_khz: Reading[int]
    hw_max_khz: Reading[int]
    base_khz: Reading[int]
    bios_limit_khz: Reading[int]
    current_khz: Reading[int]
    boost: Reading[bool]


@dataclass(frozen=True)
class PerfBias:
    """Energy performance bias, 0 (performance) to 15 (power), and the processors that have it."""

    value: int
    cpus: tuple[int, ...]


@dataclass(frozen=True)
class Cpufreq:
    """CPU frequency of a host.

    policies: () when the kernel has no driver for it, as in most virtual machines.
    drivers: the distinct ones that could be read.
    intel_pstate, amd_pstate: mode of these drivers: ``active``, ``passive``, ``guided``, ``off``, ``disable``.
    boost: of cpufreq/boost. no_turbo: of intel_pstate; the opposite sense.
    core_throttles: number of thermal throttle events of every processor that had some, by its number.
    package_throttles: the largest count of any package.
    tuned_profile, tuned_mode: what tuned was told, whether it runs or not.
    owners, places_unread: see `owners.find`.
    """

    policies: Reading[tuple[Policy, ...]]
    drivers: Reading[tuple[str, ...]]
    intel_pstate: Reading[str]
    amd_pstate: Reading[str]
    no_turbo: Reading[bool]
    min_perf_pct: Reading[int]
    max_perf_pct: Reading[int]
    boost: Reading[bool]
    perf_bias: Reading[tuple[PerfBias, ...]]
    core_throttles: Reading[dict[str, int]]
    package_throttles: Reading[int]
    tuned_profile: Reading[str]
    tuned_mode: Reading[str]
    owners: Reading[tuple[Owner, ...]]
    places_unread: Reading[tuple[str, ...]]


def parse_word(text: str) -> str:
    """Return the name of a driver, governor, preference or mode.

    >>> parse_word("amd-pstate-epp\\n")
    'amd-pstate-epp'

    Raises ValueError for what is no such name, such as ``<unknown>``.
    """
    if not re.fullmatch(r"[A-Za-z0-9][\w.-]*", text.strip(), re.ASCII):
        raise ValueError(f"expected a name, got {text!r}")
    return text.strip()


def parse_words(text: str) -> tuple[str, ...]:
    """Return names separated by blanks."""
    return tuple(parse_word(word) for word in text.split())


def parse_khz(text: str) -> int:
    """Return a clock in kHz. Raises ValueError, also for ``<unknown>`` and for what no processor runs at."""
    if not re.fullmatch(r"[0-9]{1,9}", text.strip()):
        raise ValueError(f"expected a clock in kHz, got {text!r}")
    return int(text)


def parse_count(text: str) -> int:
    """Return a count or a percentage. Raises ValueError."""
    if not re.fullmatch(r"[0-9]{1,19}", text.strip()):
        raise ValueError(f"expected a number, got {text!r}")
    return int(text)


def parse_switch(text: str) -> bool:
    """Return a switch.

    >>> parse_switch("0\\n")
    False
    """
    if text.strip() not in ("0", "1"):
        raise ValueError(f"expected 0 or 1, got {text!r}")
    return text.strip() == "1"


def parse_affected(text: str) -> tuple[int, ...]:
    """Return the processors of affected_cpus, which are separated by blanks.

    >>> parse_affected("0 1 8\\n")
    (0, 1, 8)
    """
    return parse_cpu_list(",".join(text.split()))


def _policy(reader: Reader, path: str) -> Policy:
    def file(name: str, parse: Callable[[str], T]) -> Reading[T]:
        return reader.text(f"{path}/{name}").then(parse)

    name = path.rpartition("/")[2]
    own = int(re.sub(r"\D", "", path.replace("/cpufreq", "").rpartition("/")[2]) or 0)
    cpus = file("affected_cpus", parse_affected).or_(file("related_cpus", parse_affected)).value
    return Policy(
        name=name if name != "cpufreq" else f"cpu{own}",
        cpus=(own,) if cpus is None else cpus,
        driver=file("scaling_driver", parse_word),
        governor=file("scaling_governor", parse_word),
        governors=file("scaling_available_governors", parse_words),
        epp=file("energy_performance_preference", parse_word),
        epps=file("energy_performance_available_preferences", parse_words),
        min_khz=file("scaling_min_freq", parse_khz),
        max_khz=file("scaling_max_freq", parse_khz),
        hw_min_khz=file("cpuinfo_min_freq", parse_khz),
        hw_max_khz=file("cpuinfo_max_freq", parse_khz),
        base_khz=file("base_frequency", parse_khz),
        bios_limit_khz=file("bios_limit", parse_khz),
        current_khz=file("scaling_cur_freq", parse_khz),
        boost=file("boost", parse_switch),
    )


def _policies(reader: Reader, cpus: Reading[tuple[str, ...]]) -> Reading[tuple[Policy, ...]]:
    names = reader.names(FOLDER)
    if names.unread not in (None, "absent"):
        return names.then(lambda _: ())
    if cpus.value is None:
        return cpus.then(lambda _: ())
    paths = [f"{FOLDER}/{name}" for name in names.value or () if re.fullmatch(r"policy[0-9]+", name)]
    if not paths:
        # kernels before 4.2 have a folder per processor only
        folders = [f"{path}/cpufreq" for path in cpus.value]
        listed = [(path, reader.names(path)) for path in folders]
        refused = next((found for _, found in listed if found.unread not in (None, "absent")), None)
        if refused is not None:
            return refused.then(lambda _: ())
        paths = [path for path, found in listed if found.value]
    paths.sort(key=lambda path: int(re.sub(r"\D", "", path.replace("/cpufreq", "").rpartition("/")[2])))
    # A policy without a governor has all its processors off-line.
    policies = tuple(_policy(reader, path) for path in paths)
    return Reading(tuple(policy for policy in policies if policy.cpus), FOLDER)


def read_policies(reader: Reader) -> Reading[tuple[Policy, ...]]:
    """The policies alone, as in `Cpufreq`: quick enough to be read while something is measured."""
    return _policies(reader, _processors(reader))


def _processors(reader: Reader) -> Reading[tuple[str, ...]]:
    return reader.names(CPU_FOLDER).then(
        lambda found: tuple(
            f"{CPU_FOLDER}/{name}"
            for name in sorted((one for one in found if re.fullmatch(r"cpu[0-9]+", one)), key=lambda one: int(one[3:]))
        )
    )


def _all(reader: Reader, cpus: tuple[str, ...], name: str) -> tuple[dict[str, int], Reading[int] | None]:
    """Number in a file of every processor that has it, and the first refusal or text that is no number."""
    found: dict[str, int] = {}
    problem: Reading[int] | None = None
    for path in cpus:
        value = reader.text(f"{path}/{name}").then(parse_count)
        if value.value is not None:
            found[path.rpartition("/cpu")[2]] = value.value
        elif problem is None or (problem.unread == "absent" and value.unread != "absent"):
            problem = value
    return found, problem


def _each(reader: Reader, cpus: tuple[str, ...], name: str, fold: Callable[[dict[str, int]], T]) -> Reading[T]:
    found, problem = _all(reader, cpus, name)
    if problem is not None and (problem.unread != "absent" or not found):
        return problem.then(lambda _: fold({}))
    if not found:
        return Reading.no("absent", "no processor is listed", CPU_FOLDER)
    return Reading(fold(found), f"{CPU_FOLDER}/cpu*/{name}")


def _by_value(found: dict[str, int]) -> tuple[PerfBias, ...]:
    return tuple(
        PerfBias(value, tuple(sorted(int(cpu) for cpu, own in found.items() if own == value)))
        for value in sorted(set(found.values()))
    )


def read(reader: Reader) -> Cpufreq:
    cpus = _processors(reader)
    folders = cpus.value or ()
    policies = _policies(reader, cpus)
    owned, unread = owners.find(reader, OWNED)
    profile = reader.line("/etc/tuned/active_profile")

    def pstate(name: str, parse: Callable[[str], T]) -> Reading[T]:
        return reader.text(f"{CPU_FOLDER}/intel_pstate/{name}").then(parse)

    return Cpufreq(
        policies=policies,
        drivers=policies.then(
            lambda found: tuple(sorted({policy.driver.value for policy in found if policy.driver.value is not None}))
        ),
        intel_pstate=pstate("status", parse_word),
        amd_pstate=reader.text(f"{CPU_FOLDER}/amd_pstate/status").then(parse_word),
        no_turbo=pstate("no_turbo", parse_switch),
        min_perf_pct=pstate("min_perf_pct", parse_count),
        max_perf_pct=pstate("max_perf_pct", parse_count),
        boost=reader.text(f"{FOLDER}/boost").then(parse_switch),
        perf_bias=_each(reader, folders, "power/energy_perf_bias", _by_value),
        core_throttles=_each(
            reader,
            folders,
            "thermal_throttle/core_throttle_count",
            lambda found: {cpu: count for cpu, count in found.items() if count},
        ),
        package_throttles=_each(
            reader,
            folders,
            "thermal_throttle/package_throttle_count",
            lambda found: max(found.values(), default=0),
        ),
        tuned_profile=profile,
        tuned_mode=reader.line("/etc/tuned/profile_mode"),
        owners=owned,
        places_unread=unread,
    )
