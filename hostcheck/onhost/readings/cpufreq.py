"""CPU frequency: driver, governor and limits of every policy."""

from __future__ import annotations

from dataclasses import dataclass

from ..reader import Reader, Reading


@dataclass(frozen=True)
class Cpufreq:
    """CPU frequency settings of a host."""

    drivers: Reading[tuple[str, ...]]


def read(reader: Reader) -> Cpufreq:
    return Cpufreq(drivers=Reading.no("not_asked", "not read yet", "/sys/devices/system/cpu/cpufreq"))
