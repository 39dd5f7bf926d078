"""Could the kernel log be read, and does it reach back to the boot?"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from ..expectations import Expectation
from ..findings import HOST, Cause, Finding, Status, Subject, check, need, unknown
from ..onhost.gather import Facts
from ..onhost.reader import Reading
from ..onhost.readings.kernel_log import Event, since
from ..onhost.readings.log_events import GPU_DRIVERS, driver_of

BECOME = "ansible-playbook playbooks/audit.yml --become  # or: usermod -aG systemd-journal USER"
IN_CONTAINER = "start the container with --cap-add SYSLOG, or audit the host itself"
ACCESS = Cause("log.access", HOST)


@check("log.access", title="The kernel log can be read")
def access(facts: Facts, expectation: Expectation, previous: Facts | None = None) -> Iterator[Finding]:
    """`log.access`

    Why: a refused or empty log, counted by a pipeline that hides the error, gives zero faults (nebius-solutions-library
    PR#1114; NemoClaw#3700). Without the log no check that rests on it may be ok.
    """
    log = facts.kernel_log
    if log.access.value is None:
        yield unknown("log.access", log.access, next_step=_step(facts, log.access))
        return
    gap = window_gap(facts)
    seen = f"{log.access.value}, {log.lines.value} lines" + (f", {gap}" if gap else " since the boot")
    step = "journalctl --list-boots --no-pager  # is the journal kept across its size limit?" if gap else ""
    yield Finding(
        "log.access", HOST, Status.info if gap else Status.ok, seen, "since the boot", log.access.source, step
    )


def _step(facts: Facts, reading: Reading[str]) -> str:
    if reading.unread == "tool_missing":
        return "apt-get install util-linux systemd  # for dmesg and journalctl"
    if (facts.identity.container.value or "none") != "none":
        return IN_CONTAINER
    return BECOME


def window_gap(facts: Facts) -> str:
    """Why silence of the log proves nothing, or "" when it reaches back to the boot and has no hole."""
    log = facts.kernel_log
    if log.complete.value:
        return ""
    if log.missed.value:
        return f"{log.missed.value} messages of the kernel were missed"
    if log.first.value is None:
        return "its lines carry no time, so whether it reaches back to the boot is not known"
    return f"early lines are lost: it begins {log.first.value:.0f} s after the boot"


def silence(facts: Facts, id: str, seen: str, subject: Subject = HOST) -> Finding:
    """The finding for a kind of line that the log does not hold: ok only where it reaches back to the boot.

    What a log that was refused or begins late does not hold is a consequence of that one finding.
    """
    readable = facts.kernel_log.events
    if readable.value is None:
        return replace(unknown(id, readable, subject), cause=ACCESS)
    gap = window_gap(facts)
    if gap:
        text = f"window incomplete: {gap}"
        return Finding(id, subject, Status.unknown, text, source=readable.source, cause=ACCESS)
    return Finding(id, subject, Status.ok, seen, source=readable.source)


def events(facts: Facts) -> tuple[Event, ...]:
    """All events of the log. One that names no card is given the only card of its driver, when there is just one."""
    return tuple(_named(facts, event) for event in need(facts.kernel_log.events))


def _named(facts: Facts, event: Event) -> Event:
    cards = [] if event.bdf else of_driver(facts, driver_of(event))
    return replace(event, bdf=cards[0]) if len(cards) == 1 else event


def of_driver(facts: Facts, driver: str) -> list[str]:
    """Cards that a driver has."""
    found = facts.pcie.gpus.value or ()
    return [gpu.bdf for gpu in found if driver and gpu.driver.value == driver and not gpu.vf]


def told_gpus(facts: Facts) -> frozenset[str]:
    """Addresses of GPUs as far as they are known: those that were read, and those that the log names with a GPU driver.

    A log alone tells which device is a GPU: only a GPU's driver prints its own name before the address.
    """
    found = {gpu.bdf for gpu in facts.pcie.gpus.value or ()}
    for event in events(facts) if facts.kernel_log.events.value is not None else ():
        names = event.details.get("driver", "").split(", ")
        if event.bdf and (event.kind.startswith("nvrm.") or any(name in GPU_DRIVERS for name in names)):
            found.add(event.bdf)
        found.update(bdf for bdf in event.details.get("gpus", "").split(", ") if bdf)
    return frozenset(found)


def bounded(facts: Facts, seconds: float) -> Facts:
    """The facts with only those events of the log whose last line is not before this time (seconds since boot).

    A log that begins later than that is whole for this question when it is whole from there on.
    """
    log = facts.kernel_log
    kept = log.events.then(lambda found: since(found, seconds))
    complete = log.complete
    if complete.value is False and not log.missed.value and log.first.value is not None and log.first.value <= seconds:
        complete = Reading(True, complete.source)
    faulted = log.faulted
    return replace(facts, kernel_log=replace(log, events=kept, complete=complete, faulted=faulted))


def moment(seconds: float, wall: str) -> str:
    """A time for a person.

    >>> moment(4011.25, "2026-10-05T09:01:02Z")
    '4011.2 s (2026-10-05T09:01:02Z)'
    """
    if seconds < 0:
        return wall or "an unknown time"
    return f"{seconds:.1f} s ({wall})" if wall else f"{seconds:.1f} s"


def span(found: list[Event]) -> str:
    """Count, first and last time of some events, for a person."""
    count = sum(event.count for event in found)
    suppressed = sum(event.suppressed for event in found)
    timed = [event for event in found if event.first >= 0 or event.wall_first]
    text = f"{count} time{'s' if count != 1 else ''}"
    if suppressed:
        text = f"{text} and at least {suppressed} suppressed" if count else f"at least {suppressed} suppressed"
    if not timed:
        return f"{text}, the lines carry no time"
    first = min(timed, key=lambda event: event.first)
    last = max(timed, key=lambda event: event.last)
    if first.first == last.last and count <= 1:
        return f"{text}, at {moment(first.first, first.wall_first)} after the boot"
    begin, end = moment(first.first, first.wall_first), moment(last.last, last.wall_last)
    return f"{text}, first {begin}, last {end} after the boot"


def marks(facts: Facts, found: list[Event]) -> tuple[str, ...]:
    """Identities of events for waivers: boot, kind, device, last time, wall time of the last line."""
    boot = facts.kernel_log.boot_id.value or "-"
    return tuple(f"{boot} {event.kind} {event.bdf or '-'} {event.last:.6f} {event.wall_last or '-'}" for event in found)


def gpu(bdf: str) -> Subject:
    return Subject("gpu", bdf)
