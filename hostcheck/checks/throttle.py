"""Is a clock held down by heat or by a power limit, now or again and again?"""

from __future__ import annotations

from collections.abc import Iterator

from ..expectations import Expectation
from ..findings import Finding, Status, check, need, unknown
from ..onhost.gather import Facts
from ..onhost.reader import Reading
from ..onhost.readings.throttle import GpuThrottle
from ..onhost.recording import seconds
from .cpu import ALL
from .gpu import cards, subject
from .gpu_limits import not_read
from .presence import not_applicable

# What protects a card; the others are limits that a card under load reaches by design (sysfs of xe: freq0/throttle).
HEAT = ("thermal", "prochot", "ratl", "vr_thermalert", "soc_thermal", "mem_thermal", "memory_thermal")
HOUR = 3600.0


def _domain(one: GpuThrottle) -> str:
    return one.domain.replace("tile0/", "")


@check("gpu.throttle", title="No card's clock is held down by heat")
def gpu(facts: Facts, expectation: Expectation, previous: Facts | None = None) -> Iterator[Finding]:
    """`gpu.throttle`

    Why: the driver says why it holds a clock down at this moment. Heat and a hot voltage regulator are a fault of
    cooling; a power limit is what a card under load runs into by design, so it is told, not judged (own).
    """
    said = need(facts.throttle.gpus)
    judged = [one for one in cards(facts) if any(item.bdf == one.bdf for item in said)]
    if not judged:
        yield not_applicable("gpu.throttle", "no Intel card in use", facts.pcie.gpus.source)
    for card in judged:
        own = [item for item in said if item.bdf == card.bdf]
        held = [f"{_domain(item)} by {', '.join(item.reasons.value)}" for item in own if item.reasons.value]
        held += [_domain(item) for item in own if item.status.value and item.reasons.value == ()]
        reasons = {word for item in own for word in item.reasons.value or ()}
        missing = next((one for item in own for one in (item.status, item.reasons) if one.value is None), None)
        source = own[0].status.source
        if reasons & set(HEAT):
            step = "check fans, dust and airflow of the card; stop its work until it is cooler"
            seen = f"held down: {'; '.join(held)}"
            yield Finding("gpu.throttle", subject(card), Status.warn, seen, "not held down", source, step)
        elif missing is not None:
            yield not_read(facts, "gpu.throttle", card, missing)
        elif held:
            yield Finding("gpu.throttle", subject(card), Status.info, f"held down: {'; '.join(held)}", source=source)
        else:
            yield Finding("gpu.throttle", subject(card), Status.ok, "not held down", source=source)


@check("cpu.throttle", title="No processor throttles again and again")
def cpu(facts: Facts, expectation: Expectation, previous: Facts | None = None) -> Iterator[Finding]:
    """`cpu.throttle`

    Why: a processor that is too hot lowers its clock for moments that no single look at the clock shows; only its
    counters do (arc-host-facts C.5). A count since the boot says little, so what counts is its growth between two reads
    (`sample_seconds`); growth since the run before on the same boot is told.
    """
    now = {"core": facts.throttle.core, "package": facts.throttle.package}
    if all(reading.unread == "absent" for reading in now.values()):
        yield not_applicable("cpu.throttle", "this processor does not count it", facts.throttle.core.source, ALL)
        return
    known = {name: reading.value for name, reading in now.items() if reading.value is not None}
    missing = next((one for one in now.values() if one.value is None and one.unread != "absent"), None)
    passed = facts.rates.seconds.value
    again: dict[str, Reading[int]] = {"core": facts.rates.core, "package": facts.rates.package}
    if passed is not None:
        grown = {
            name: (again[name].value or 0) - count for name, count in known.items() if again[name].value is not None
        }
        missing = missing or next((again[name] for name in known if again[name].value is None), None)
    else:
        grown = {}
    source = facts.throttle.core.source
    told = ", ".join(f"{name} {count}" for name, count in known.items())
    more = ", ".join(f"{name} {count}" for name, count in grown.items() if count > 0)
    if more:
        step = "sensors; check the cooler, and power limits in the BIOS"
        seen = f"grew by {more} within {passed:.0f} s"
        yield Finding("cpu.throttle", ALL, Status.warn, seen, "no growth", source, step)
    elif missing is not None:
        yield unknown("cpu.throttle", missing, ALL)
    elif since := _since(facts, previous, known):
        yield Finding("cpu.throttle", ALL, Status.info, since, source=source)
    elif any(known.values()):
        rest = f", none within {passed:.0f} s" if passed is not None else "; sample_seconds tells whether it goes on"
        status = Status.ok if passed is not None else Status.info
        yield Finding("cpu.throttle", ALL, status, f"{told} since the boot{rest}", source=source)
    else:
        yield Finding("cpu.throttle", ALL, Status.ok, "never since the boot", source=source)


def _since(facts: Facts, previous: Facts | None, known: dict[str, int]) -> str:
    """Growth since an earlier run on the same boot, for a person, or ""."""
    boot = facts.identity.boot_id.value
    if previous is None or boot is None or previous.identity.boot_id.value != boot:
        return ""
    before = {"core": previous.throttle.core.value, "package": previous.throttle.package.value}
    hours = (seconds(facts.taken_at) - seconds(previous.taken_at)) / HOUR
    grown = {name: count - old for name, count in known.items() if (old := before[name]) is not None and count > old}
    if not grown or hours <= 0:
        return ""
    told = ", ".join(f"{name} {count}" for name, count in grown.items())
    return f"grew by {told} in the {hours:.1f} h since the last run"
