"""Two reads of counters as two facts, so that checks treat them like this run and the one before."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from .onhost.gather import Facts
from .onhost.reader import Reading
from .onhost.readings.pcie import Aer, Gpu
from .onhost.recording import seconds, utc


def two_reads(facts: Facts, previous: Facts | None) -> tuple[Facts, Facts | None]:
    """(facts with the counters of the second read, facts of the first); unchanged where there was one read only.

    What the second read could not read keeps its first value, so that nothing seems to have grown.
    """
    passed = facts.rates.seconds.value
    if passed is None or facts.pcie.gpus.value is None:
        return facts, previous
    found = {name: getattr(facts.rates, name).value or {} for name in ("correctable", "nonfatal", "fatal")}
    near = {hop.bdf for gpu in facts.pcie.gpus.value for hop in gpu.path}
    gpus = tuple(_gpu(gpu, found) for gpu in facts.pcie.gpus.value)
    background = dict(facts.pcie.background.value or {})
    background.update(
        {bdf: counts for bdf, counts in found["correctable"].items() if bdf not in near and any(counts.values())}
    )
    pcie = replace(
        facts.pcie,
        gpus=Reading(gpus, facts.pcie.gpus.source),
        background=facts.pcie.background.then(lambda _: background),
    )
    # Times of facts have whole seconds.
    later = utc(seconds(facts.taken_at) + max(1, round(passed)))
    return replace(facts, pcie=pcie, taken_at=later), facts


def _gpu(gpu: Gpu, found: dict[str, dict[str, dict[str, int]]]) -> Gpu:
    return replace(gpu, path=tuple(replace(hop, aer=_aer(hop.aer, hop.bdf, found)) for hop in gpu.path))


def _aer(aer: Aer, bdf: str, found: dict[str, dict[str, dict[str, int]]]) -> Aer:
    newer: dict[str, Any] = {
        name: getattr(aer, name).then(lambda _, counts=counts: counts[bdf])
        for name, counts in found.items()
        if bdf in counts
    }
    return replace(aer, **newer)
