"""Which GuC firmware runs on each card, and is it the one that the driver or the inventory wants?"""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Iterator

from ..expectations import Expectation
from ..findings import HOST, Finding, Status, Subject, check
from ..onhost.gather import Facts
from ..onhost.readings import gpu_ids
from ..onhost.readings.kernel_log import Event
from . import log
from .gpu import cards
from .presence import not_listed

RANK = (Status.ok, Status.info, Status.unknown, Status.warn)
UPDATE = "apt-get install --only-upgrade linux-firmware && update-initramfs -u  # then reboot"


def version(text: str) -> tuple[int, ...]:
    """A version for comparison.

    >>> version("70.9.1") < version("70.54.0")
    True
    """
    return tuple(int(part) for part in re.findall(r"\d+", text))


def _last(events: list[Event], kind: str, key: str) -> str:
    """The newest value of a detail; a detail keeps its values in the order in which they came."""
    found = [event for event in events if event.kind == kind and event.details.get(key)]
    return found[-1].details[key].rpartition(", ")[2] if found else ""


def _judge(facts: Facts, expectation: Expectation, bdf: str, said: list[Event]) -> Iterator[tuple[Status, str, str]]:
    """Every statement about one card: status, what was seen, what was wanted."""
    running = _last(said, "guc.version", "version") or _last(said, "guc.loaded", "version")
    running = running or _last(said, "guc.recommended", "found")
    recommended = _last(said, "guc.recommended", "recommended")
    if recommended:
        found = _last(said, "guc.recommended", "found")
        yield Status.warn, f"{found} found, the driver recommends {recommended}", recommended
    for wanted, whose in ((_last(said, "guc.version", "wanted"), "the driver"), (expectation.guc.wanted, "")):
        if not wanted or not running or version(running) == version(wanted) or recommended == wanted:
            continue
        newer = version(running) > version(wanted)
        text = f"running {running}, {whose or 'the inventory'} wants {wanted}"
        yield (Status.info, f"{text}: newer", wanted) if newer else (Status.warn, f"{text}: older", wanted)
    kernel = facts.identity.kernel.value
    for pattern, bad in expectation.guc.known_bad:
        if not running or version(bad) != version(running):
            continue
        if kernel is None:
            unsure = f"{running} is listed as known bad with kernel {pattern}, and which kernel runs was not read"
            yield Status.unknown, unsure, "another pair"
        elif _is_release(kernel, pattern):
            yield Status.warn, f"{running} with kernel {kernel} is listed as known bad", "another pair"
    if running:
        yield Status.ok, f"running {running}", expectation.guc.wanted or ""


def _is_release(kernel: str, pattern: str) -> bool:
    """Does a kernel release match? ``7.0.0-29`` also stands for ``7.0.0-29-generic``.

    >>> _is_release("7.0.0-29-generic", "7.0.0-29"), _is_release("7.0.0-290-generic", "7.0.0-29")
    (True, False)
    """
    return fnmatch.fnmatchcase(kernel, pattern) or kernel.startswith(f"{pattern}-")


@check("fw.guc", title="Every card runs the GuC firmware that its driver wants")
def guc(facts: Facts, expectation: Expectation, previous: Facts | None = None) -> Iterator[Finding]:
    """`fw.guc`

    Why: faults followed the pair of kernel and GuC in an A/B where all else was the same (vllm#55425), but no version
    cures everywhere (compute-runtime#948), and newer than wanted is common with distribution firmware. So it is a
    warning at most.
    """
    judged = [
        gpu
        for gpu in (cards(facts) if facts.pcie.gpus.value else ())
        if gpu.vendor == gpu_ids.INTEL and gpu.driver.value in ("xe", "i915")
    ]
    without = not_listed("fw.guc", facts)
    if without is not None:
        yield without
    readable = facts.kernel_log.events
    if readable.value is None:
        for gpu in judged:
            seen = f"{readable.unread}: {readable.detail}"
            subject = log.gpu(gpu.bdf)
            yield Finding("fw.guc", subject, Status.unknown, seen, source=readable.source, cause=log.ACCESS)
        return
    events = [event for event in log.events(facts) if event.kind.startswith("guc.") and not event.previous_boot]
    running: dict[str, str] = {}
    for bdf in sorted({*(gpu.bdf for gpu in judged), *(event.bdf for event in events if event.bdf)}):
        said = [event for event in events if event.bdf == bdf]
        yield _finding(facts, log.gpu(bdf), list(_judge(facts, expectation, bdf, said)))
        running[bdf] = _last(said, "guc.loaded", "version")
    nameless = [event for event in events if not event.bdf]
    told = [item for item in _judge(facts, expectation, "", nameless) if item[0] is not Status.ok]
    models: dict[str, set[str]] = {}
    for gpu in judged:
        if running.get(gpu.bdf):
            models.setdefault(gpu.device, set()).add(running[gpu.bdf])
    for found in models.values():
        if len(found) > 1:
            told.append(
                (Status.warn, f"cards of one model run {' and '.join(sorted(found, key=version))}", "one version")
            )
    if told:
        yield _finding(facts, HOST, told)


def _finding(facts: Facts, subject: Subject, told: list[tuple[Status, str, str]]) -> Finding:
    """The worst statement decides; the others are told beside it."""
    source = facts.kernel_log.events.source
    if not told:
        gap = log.window_gap(facts)
        seen = f"no line says which GuC was loaded{f' ({gap})' if gap else ''}"
        return Finding("fw.guc", subject, Status.unknown, seen, source=source)
    status = max((item[0] for item in told), key=RANK.index)
    shown = [item for item in told if item[0] is not Status.ok] or told
    wanted = next((item[2] for item in shown if item[0] is status), "")
    seen = "; ".join(item[1] for item in shown)
    step = UPDATE if status is Status.warn and "known bad" not in seen else ""
    if status is Status.warn and not step:
        step = "uname -r; journalctl -k -b 0 --no-pager | grep 'GuC firmware'  # then change one of the two, not both"
    return Finding("fw.guc", subject, status, seen, wanted, source, step)
