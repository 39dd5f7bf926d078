"""Are the time limits of the cards' engines those of the driver?"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

from ..expectations import Expectation
from ..findings import Finding, Status, check
from ..onhost.gather import Facts
from ..onhost.reader import Reading
from ..onhost.readings.gpu_state import Engine
from ..onhost.readings.pcie import Gpu
from .gpu import subject
from .gpu_limits import judged, not_read


def _usual(engines: Sequence[Engine]) -> dict[tuple[str, str], int]:
    """(engine, file) -> the value that most cards have; none where no value is more frequent than the others."""
    seen: dict[tuple[str, str], Counter[int]] = {}
    for engine in engines:
        for name, value in (engine.values.value or {}).items():
            seen.setdefault((engine.name, name), Counter())[value] += 1
    usual = {}
    for key, counts in seen.items():
        first, *rest = counts.most_common(2)
        if not rest or first[1] > rest[0][1]:
            usual[key] = first[0]
    return usual


def _different(engine: Engine, values: dict[str, int], usual: dict[tuple[str, str], int]) -> list[str]:
    """What is not the driver's default or, where the driver keeps none, not what most cards have."""
    told = []
    for name, value in values.items():
        default = (engine.defaults.value or {}).get(name)
        if default is not None and value != default:
            told.append(f"{engine.name} {name} {value}, default {default}")
        elif default is None and value != usual.get((engine.name, name)):
            other = usual.get((engine.name, name))
            told.append(f"{engine.name} {name} {value}, " + ("cards differ" if other is None else f"others {other}"))
    return told


@check("gpu.engine_timeouts", title="Time limits of a card's engines are those of its driver")
def timeouts(facts: Facts, expectation: Expectation, previous: Facts | None = None) -> Iterator[Finding]:
    """`gpu.engine_timeouts`

    Why: the driver ends a job that runs longer than ``job_timeout_ms`` and resets the engine, which reads like a hang
    ("Timedout job", lab-host-facts 2.5); a limit that was changed on one card makes it fail, or hang longer, alone. The
    limits are an interface of xe (drivers/gpu/drm/xe/xe_hw_engine_class_sysfs.c, with ``.defaults`` beside them) and
    last until the driver is loaded anew. Told, since a longer limit may be wanted.
    """
    found: list[tuple[Gpu, tuple[Engine, ...], str]] = []
    for item in judged(facts, "gpu.engine_timeouts"):
        if isinstance(item, Finding):
            yield item
            continue
        gpu, state = item
        engines = state.engines
        unread: Reading[Any] | None = engines if engines.value is None else None
        for one in engines.value or ():
            parts = [reading for reading in (one.values, one.defaults) if reading.unread not in (None, "absent")]
            unread = unread or next(iter(parts), None)
        if unread is not None and unread.unread == "absent":
            seen = "the driver gives no limits of its engines"
            yield Finding("gpu.engine_timeouts", subject(gpu), Status.not_applicable, seen, source=unread.source)
        elif unread is not None:
            yield not_read(facts, "gpu.engine_timeouts", gpu, unread)
        else:
            found.append((gpu, engines.value or (), engines.source))
    usual = _usual([one for _, engines, _ in found for one in engines])
    for gpu, classes, source in found:
        told = [text for one in classes for text in _different(one, one.values.value or {}, usual)]
        yield Finding(
            "gpu.engine_timeouts",
            subject(gpu),
            Status.info if told else Status.ok,
            seen="; ".join(told) or f"{len(classes)} classes of engines as the driver sets them",
            source=f"{source}/tile*/gt*/engines",
        )
