"""The recovery ladder: after a device loss, the next rung, for a person. Nothing here acts.

Source: the public B70 optimization lab, docs/local-ops.md and learn/host-stability (stop launches and save evidence; a
minute of quiet; a graceful stop and one bounded probe; reload of the driver with nobody on the cards; the full check;
a reboot by a person's decision). Of four cards three recovered in quiet time, and probing wedged them again.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ..readings.kernel_log import Event
from ..readings.log_lines import NO_TIME

QUIET = 60.0  # seconds
NEVER = (
    "never: a function-level reset, unbind and bind, a write to an error counter or to a coredump node, "
    "polling the sick card, killing a busy job"
)
GONE = ("gpu.lost", "nvrm.lost", "d3_failed", "slot.link_down", "aer.fatal")
GIVEN_UP = (
    "xe.wedged", "gpu.wedged", "xe.kernel_job", "gpu.kernel_job", "guc.load_failed", "survivability", "lockup.hard",
)  # fmt: skip

# Where the temporary mapping of a large upload lies that faulted on both cards of a lab host, under two kernels, with
# and without swap (lab, notes of 2026-10-04): one fault in 59 starts, never in steady serving.
LOAD_ADDRESSES = range(0x800400200000, 0x800400228001)
LOAD_KINDS = frozenset(
    f"{family}.{word}"
    for family in ("xe", "gpu")
    for word in (
        "page_fault", "fault_response", "cat_error", "engine_reset", "timedout_job", "coredump_created", "recovered",
    )
)  # fmt: skip


@dataclass(frozen=True)
class Rung:
    """number: 1 (stop, keep evidence) to 6 (reboot). text: what a person should do next, one line."""

    number: int
    text: str


def is_load_time_fault(faults: Sequence[Event]) -> bool:
    """Is this the one fault after which a start may be tried once more: kind, engine, address and answer, on one card?

    >>> is_load_time_fault([Event("xe.page_fault", "0000:e3:00.0",
    ...     details={"engines": "bcs", "addresses": "0x0000800400200000", "codes": "-EINVAL"})])
    True
    >>> is_load_time_fault([Event("xe.page_fault", "0000:e3:00.0",
    ...     details={"engines": "bcs", "addresses": "0x0000800400200000", "codes": "-ENOENT"})])
    False
    """
    if not faults or not all(one.kind in LOAD_KINDS for one in faults) or len({one.bdf for one in faults}) != 1:
        return False
    said = [one.details for one in faults]
    engines = {word for one in said for word in one.get("engines", "").split(", ") if word}
    addresses = [int(word, 16) for one in said for word in one.get("addresses", "").split(", ") if word]
    codes = {word for one in said for word in one.get("codes", "").split(", ") if word}
    at_home = bool(addresses) and all(address in LOAD_ADDRESSES for address in addresses)
    return engines == {"bcs"} and codes == {"-EINVAL"} and at_home


def next_rung(
    faults: Sequence[Event], uptime: float | None, evidence: bool, holders: Sequence[str] = (), probed: bool = False
) -> Rung | None:
    """The next rung after these faults; None without one.

    uptime: seconds since boot now, None when not known. evidence: is it kept already? holders: who has a card open.
    probed: was the one bounded probe made since, and did it not help?
    """
    if not faults:
        return None
    cards = sorted({one.bdf for one in faults if one.bdf})
    which = ", ".join(cards) or "a card that the log does not name"
    last = max(one.last for one in faults)
    if not evidence:
        return Rung(1, "start nothing more here, and keep the evidence (host_ready, state: evidence): dumps expire")
    if any(one.kind in GONE for one in faults):
        return Rung(6, f"a card left the bus ({which}): stop its jobs and power-cycle the host; {NEVER}")
    if any(one.kind in GIVEN_UP for one in faults):
        return Rung(6, f"the driver gave {which} up: stop its jobs and reboot the host by your own decision; {NEVER}")
    if holders:
        who = ", ".join(holders[:3])
        return Rung(3, f"let {who} end, or stop it by its own means (no SIGKILL while it computes); {NEVER}")
    if last == NO_TIME or uptime is None or uptime - last < QUIET:
        return Rung(2, f"leave {which} alone for {QUIET:.0f} s, then try once; {NEVER}")
    if is_load_time_fault(faults) and not probed:
        return Rung(3, f"the known fault of a load: one health probe of {which}, and one more start if that passes")
    if not probed:
        return Rung(3, f"one bounded health probe of {which} (20 s), not two; then bring the host up anew; {NEVER}")
    if len(cards) == 1:
        return Rung(6, f"reboot the host by your own decision: {which} does not come back; {NEVER}")
    return Rung(
        4,
        f"{which} faulted: with nobody on any card, console and display on other graphics, unload and load the driver "
        f"once for all cards, else reboot; {NEVER}",
    )
