"""Which GuC firmware runs on each card, is it the one that the driver or the inventory wants, and whose file is it?"""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Iterator
from dataclasses import replace

from ..expectations import Expectation
from ..findings import HOST, Cause, Finding, Status, Subject, check, need, unknown
from ..onhost.gather import Facts
from ..onhost.readings import gpu_ids
from ..onhost.readings.firmware_files import LOCAL, Owner
from ..onhost.readings.kernel_log import Event
from . import log
from .gpu import cards
from .presence import not_applicable, not_listed

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


def _declared(one: Owner, overrides: tuple[str, ...]) -> str:
    """How a file is declared to be another one than a package's, "" where it is not."""
    if one.path in overrides:
        return "declared by its path"
    if one.digest.value in overrides:
        return "declared by its digest"
    return "diverted by a person (dpkg-divert)" if one.diverted == LOCAL else ""


def _whose(one: Owner, overrides: tuple[str, ...], hiding: tuple[str, ...], is_rpm: bool) -> Finding:
    """The finding of one file. One that hides that of a package is a consequence of `boot.firmware`."""
    subject = Subject("file", one.path)
    cause = Cause("boot.firmware", HOST) if one.path in hiding else None
    verify, search, again = (
        ("rpm -V", "rpm -qf", "dnf reinstall")
        if is_rpm
        else ("dpkg --verify", "dpkg -S", "apt-get install --reinstall")
    )
    if one.digest.value is None:
        step = f"{verify} {one.package}" if one.package else f"{search} {one.path}"
        return replace(unknown("fw.guc_ownership", one.digest, subject, step), cause=cause)
    source = one.digest.source
    if one.package and one.digest.value == one.installed:
        return Finding("fw.guc_ownership", subject, Status.ok, f"as {one.package} installed it", source=source)
    is_other = f"is not what {one.package} installed" if one.package else "belongs to no package of firmware"
    seen = f"{is_other} ({one.digest.value})"
    declared = _declared(one, overrides)
    if declared:
        return Finding("fw.guc_ownership", subject, Status.info, f"{seen}; {declared}", source=source)
    step = f"{search} {one.path}  # nobody's: take it away and make the initrd anew, or declare guc.overrides"
    if one.package:
        step = f"sudo {again} {one.package}  # or declare it: guc.overrides"
    wanted = "the file of a package, or one that is declared"
    return Finding("fw.guc_ownership", subject, Status.warn, seen, wanted, source, step, cause=cause)


@check("fw.guc_ownership", title="GuC files on disk are those of a package, or declared")
def ownership(facts: Facts, expectation: Expectation, previous: Facts | None = None) -> Iterator[Finding]:
    """`fw.guc_ownership`

    Why: a file that was copied over that of a package is taken at the next load, comes and goes with upgrades that
    nobody connects with it, and its version need not be readable: blobs from 70.65 on carry none, so only a digest
    tells them apart (lab-host-facts 2.3; arc-host-facts A.1). dpkg and rpm keep what they installed; `guc.overrides`
    declares a file by its path or its digest.
    """
    id, source = "fw.guc_ownership", facts.next_boot.guc_files.source
    intel = [gpu for gpu in (cards(facts) if facts.pcie.gpus.value else ()) if gpu.vendor == gpu_ids.INTEL]
    if not expectation.gpus.expected and all(gpu.driver.value == "i915" for gpu in intel):
        yield not_listed(id, facts) or not_applicable(id, "no card that xe may drive", source)
        return
    if facts.next_boot.guc_files.unread == "absent" or facts.next_boot.guc_files.value == ():
        yield not_applicable(id, "no GuC firmware for xe on disk", source)
        return
    is_rpm = facts.packages.manager.value == "rpm"
    for one in need(facts.firmware_files.guc):
        yield _whose(one, expectation.guc.overrides, facts.next_boot.shadowing.value or (), is_rpm)
