"""How did the boot before this one end?"""

from __future__ import annotations

import re
from collections.abc import Iterator

from ..expectations import Expectation
from ..findings import HOST, Cause, Finding, Status, check, unknown
from ..onhost.gather import Facts
from . import log
from .aer import Map

# Words of the reset reason (arch/x86/kernel/cpu/amd.c) that mean more than a reset by a person or a program.
BROKEN = re.compile(
    r"shutdown event|internal CPU|sync ?flood|thermal|parity|uncorrect|machine check|hang|watchdog", re.I
)
BY_HAND = re.compile(r"reset pin|BP_SYS_RST|power button|user", re.I)


def _firmware_cause(facts: Facts) -> Cause | None:
    """The finding that already tells what the firmware kept of the previous boot."""
    if facts.pcie.functions.value is None:
        return None
    for kind, id in (("aer.fatal", "aer.fatal"), ("aer.nonfatal", "aer.nonfatal"), ("aer.corrected", "aer.rate")):
        for event in log.events(facts):
            if event.kind == kind and event.previous_boot and event.bdf:
                return Cause(id, Map(facts).link(event.bdf).subject)
    return None


@check("boot.last", title="The previous boot did not end badly, as far as anything tells")
def last_boot(facts: Facts, expectation: Expectation, previous: Facts | None = None) -> Iterator[Finding]:
    """`boot.last`

    Why: a host that freezes leaves nothing in its own log; what the next boot finds is all there is: the processor's
    reset reason, crash records, a journal that was left open, the firmware's records. In 38 boots of a public lab's
    host a tripped reset pin meant that a person reset a frozen machine, an internal CPU shutdown that memory was bad
    (lab-host-facts 2.5). Without any sign nothing is claimed about how it ended.
    """
    boot = facts.last_boot
    signs: list[str] = []
    status, source, step = Status.info, "", ""
    reason, code = boot.reset_reason.value, boot.reset_code.value
    if reason and (BROKEN.search(reason) or BY_HAND.search(reason)):
        signs.append(f"reset reason {code}: {reason}")
        source = boot.reset_reason.source
        if BROKEN.search(reason):
            status, step = Status.warn, "test the memory with the GPUs idle, check power and cooling"
    if boot.pstore.value:
        signs.append(f"{len(boot.pstore.value)} crash records in {boot.pstore.value[0].rpartition('/')[0]}")
        source = source or boot.pstore.source
        status = Status.warn
        step = step or f"cat {boot.pstore.value[0]}  # copy it before it is removed"
    if boot.left_open.value:
        signs.append("the journal was left open: no clean shutdown")
        source = source or boot.left_open.source
        step = step or "journalctl -b -1 -e --no-pager"
    if signs and status is Status.info and reason is None and boot.reset_reason.unread not in ("absent", "not_asked"):
        told = unknown("boot.last", boot.reset_reason)
        seen = f"{'; '.join(signs)}; the reset reason was not read: {told.seen}"
        yield Finding("boot.last", HOST, Status.unknown, seen, source=told.source, cause=log.ACCESS)
        return
    if signs:
        yield Finding("boot.last", HOST, status, "; ".join(signs), "a clean end", source, step)
        return
    if boot.firmware_records.value:
        seen = f"the firmware kept {boot.firmware_records.value} errors of the previous boot"
        cause = _firmware_cause(facts)
        yield Finding("boot.last", HOST, Status.info, seen, source=boot.firmware_records.source, cause=cause)
        return
    for reading in (boot.reset_reason, boot.left_open, boot.pstore):
        if reading.value is None and reading.unread not in ("absent", "not_asked"):
            cause = log.ACCESS if reading is boot.reset_reason else None
            told = unknown("boot.last", reading)
            yield Finding(told.id, HOST, told.status, told.seen, source=told.source, cause=cause)
            return
    if boot.left_open.value is None and not reason:
        seen = "nothing on this host tells how it ended"
        yield Finding("boot.last", HOST, Status.not_applicable, seen, source=boot.left_open.source)
        return
    told_reason = f"; reset reason {code}: {reason}" if reason else ""
    yield Finding("boot.last", HOST, Status.ok, f"no sign of a bad end{told_reason}", source=boot.left_open.source)
