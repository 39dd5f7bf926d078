"""Do the jobs on the cards name their devices in one way, and does nothing that disturbs them run beside them?"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace

from ..expectations import Expectation
from ..findings import HOST, Cause, Finding, Status, Subject, check, need, unknown
from ..onhost.gather import Facts
from ..onhost.readings.containers import Process
from .presence import holding, not_applicable

SELECTOR, MASK = "ONEAPI_DEVICE_SELECTOR", "ZE_AFFINITY_MASK"
THRESHOLD = re.compile(r"CCL_SYCL_\w+_THRESHOLD")
POLLERS = ("xpu-smi", "xpumd", "xpumcli", "intel_gpu_top", "nvtop", "gputop")


def subject(process: Process) -> Subject:
    return Subject("process", f"{process.comm or 'process'}[{process.pid}]")


def _processes(facts: Facts, id: str) -> Iterator[Process | Finding]:
    """Processes that hold a card and are jobs; one finding where there is none or where that could not be read."""
    held = holding(facts)
    if held.value is None:
        yield unknown(id, held)
    elif not held.value:
        yield not_applicable(id, "nobody holds a card", held.source)
    else:
        yield from (one for one in need(facts.containers.processes) if one.comm not in POLLERS)


@check("env.selectors", title="A job names its devices in one way")
def selectors(facts: Facts, expectation: Expectation, previous: Facts | None = None) -> Iterator[Finding]:
    """`env.selectors`

    Why: ZE_AFFINITY_MASK takes devices away and numbers the rest anew, and ONEAPI_DEVICE_SELECTOR then counts among
    those: with both set a job runs on another card than the one that either of them names, or on none
    (lab-host-facts 0.12, 2.6: one of the two, never both). Own: a warning.
    """
    for process in _processes(facts, "env.selectors"):
        if isinstance(process, Finding):
            yield process
            continue
        variables = process.variables
        if variables.value is None:
            yield unknown("env.selectors", variables, subject(process))
            continue
        told = {name: variables.value[name] for name in (SELECTOR, MASK) if variables.value.get(name)}
        seen = ", ".join(f"{name}={value}" for name, value in told.items()) or "neither a mask nor a selector"
        both = len(told) == 2
        yield Finding(
            "env.selectors",
            subject(process),
            Status.warn if both else Status.ok,
            seen,
            f"{MASK} or {SELECTOR}, not both" if both else "",
            variables.source,
            f"start the job without {SELECTOR}" if both else "",
        )


@check("env.collective", title="A job uses no collective that is known to be slow or to fault")
def collective(facts: Facts, expectation: Expectation, previous: Facts | None = None) -> Iterator[Finding]:
    """`env.collective`

    Why: CCL_ALLREDUCE=direct copies through the host (the lab: 1.04 against 27.88 GB/s at 256 MiB on its hosts), and a
    SYCL threshold of 0 selects kernels that faulted both of its cards (lab-host-facts 2.6). Both are left over from
    tests in scripts that start a job.
    """
    for process in _processes(facts, "env.collective"):
        if isinstance(process, Finding):
            yield process
            continue
        variables = process.variables
        if variables.value is None:
            cause = Cause("env.selectors", subject(process))
            yield replace(unknown("env.collective", variables, subject(process)), cause=cause)
            continue
        found = variables.value
        bad = ["CCL_ALLREDUCE"] if found.get("CCL_ALLREDUCE", "").strip().lower() == "direct" else []
        bad += sorted(name for name, value in found.items() if THRESHOLD.fullmatch(name) and value.strip() == "0")
        yield Finding(
            "env.collective",
            subject(process),
            Status.warn if bad else Status.ok,
            ", ".join(f"{name}={found[name]}" for name in bad) or "none of these variables",
            "not set" if bad else "",
            variables.source,
            f"start the job without {', '.join(bad)}" if bad else "",
        )


@check("tool.polling", title="No monitoring tool polls the cards of a job")
def polling(facts: Facts, expectation: Expectation, previous: Facts | None = None) -> Iterator[Finding]:
    """`tool.polling`

    Why: a tool that asks every card every second disturbs jobs over several cards and wakes idle ones; what is
    measured beside it is no measurement (lab-host-facts 2.6, 4.3). It may be wanted, so it is told, not judged.
    """
    held = holding(facts)
    if held.value is None:
        yield unknown("tool.polling", held)
        return
    found = sorted({f"{one.comm}[{one.pid}]" for one in need(facts.holders.render) if one.comm in POLLERS})
    if found:
        seen = f"{', '.join(found)} holds a card"
        yield Finding("tool.polling", HOST, Status.info, seen, source=facts.holders.render.source)
    else:
        yield Finding("tool.polling", HOST, Status.ok, "none holds a card", source=facts.holders.render.source)
