"""Counters read a second time, so that a rate does not have to be the mean since the boot.

Only where it is asked for (``sample_seconds``) or where a recording has a second read. The first read is that of `pcie`
and `throttle`; only counters that could be read there are read again, so a sleeping card is left alone.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Callable

from ..reader import Reader, Reading
from .pcie import Aer, Pcie, parse_counters, path_bdfs
from .throttle import Throttle, read_processors

if TYPE_CHECKING:
    from ..gather import Options

DEVICES = "/sys/bus/pci/devices"
Counters = dict[str, dict[str, int]]


@dataclass(frozen=True)
class Rates:
    """The second read; not_asked where there was none.

    seconds: time between both. correctable, nonfatal, fatal: BDF -> counters of aer_dev_* at the second read; of
    functions on no way to a GPU only correctable. core, package: counts of `Throttle` at the second read.
    """

    seconds: Reading[float]
    correctable: Reading[Counters]
    nonfatal: Reading[Counters]
    fatal: Reading[Counters]
    core: Reading[int]
    package: Reading[int]


def again(reader: Reader, name: str, bdfs: list[str]) -> Reading[Counters]:
    """One kind of counters of every function; unread where one of them could not be read."""
    found: Counters = {}
    for bdf in bdfs:
        counts = reader.text(f"{DEVICES}/{bdf}/aer_dev_{name}").then(parse_counters)
        if counts.value is None:
            return counts.then(lambda _: {})
        found[bdf] = counts.value
    return Reading(found, f"{DEVICES}/*/aer_dev_{name}")


def counted(pcie: Pcie, of: Callable[[Aer], Reading[dict[str, int]]]) -> list[str]:
    """Functions on the way to a GPU whose counters were read the first time."""
    hops = {hop.bdf: hop for gpu in pcie.gpus.value or () for hop in gpu.path}
    return sorted(bdf for bdf, hop in hops.items() if of(hop.aer).value is not None)


def elsewhere(reader: Reader, pcie: Pcie) -> list[str]:
    """Functions on no way to a GPU that count corrected errors."""
    near = {bdf for gpu in pcie.gpus.value or () for bdf in (*path_bdfs(gpu), *gpu.siblings)}
    bdfs = sorted(one.bdf for one in pcie.functions.value or () if one.bdf not in near)
    return [bdf for bdf in bdfs if reader.text(f"{DEVICES}/{bdf}/aer_dev_correctable").then(parse_counters).value]


def read(reader: Reader, pcie: Pcie, throttle: Throttle, options: Options) -> Rates:
    second = reader.later(options.sample_seconds)
    if second is None:
        no: Reading[Any] = Reading.no("not_asked", "counters were read once")
        return Rates(no, no, no, no, no, no)
    seconds, later = second
    return Rates(
        seconds=Reading(seconds, "two reads"),
        correctable=again(
            later,
            "correctable",
            [*counted(pcie, lambda aer: aer.correctable), *elsewhere(later, pcie)],
        ),
        nonfatal=again(later, "nonfatal", counted(pcie, lambda aer: aer.nonfatal)),
        fatal=again(later, "fatal", counted(pcie, lambda aer: aer.fatal)),
        core=read_processors(later, "core_throttle_count") if throttle.core.value is not None else throttle.core,
        package=read_processors(later, "package_throttle_count")
        if throttle.package.value is not None
        else throttle.package,
    )
