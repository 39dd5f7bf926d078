"""Kernel log of this boot: who may read it, whether it is whole, and what it says, folded per device."""

from __future__ import annotations

from dataclasses import dataclass, field

from ..reader import Reader, Reading


@dataclass(frozen=True)
class Event:
    """Log lines of one kind about one device, folded.

    kind: dotted, e.g. ``aer.corrected``, ``xe.engine_reset``. bdf: with domain, lower case; "" when no device is named.
    severity: what the line itself says, e.g. ``Correctable``; "" when it says none.
    count: how often, as a lower bound; suppressed: further ones that the kernel's rate limit dropped.
    first, last: seconds since boot; -1.0 where the lines carry no time. wall_first, wall_last: the same in UTC, or "".
    samples: at most three whole messages, the first ones. details: what was taken out of the lines.
    previous_boot: a record that the firmware kept from the boot before.
    peak_1s, peak_60s, peak_1h: the most within any such span.
    root_port: the port that reported, "" when none did. recovered: last word: "", "recovered" or "failed".
    order_first, order_last: line numbers, for the order of events whose lines carry no time.
    """

    kind: str
    bdf: str = ""
    severity: str = ""
    count: int = 1
    suppressed: int = 0
    first: float = -1.0
    last: float = -1.0
    wall_first: str = ""
    wall_last: str = ""
    samples: tuple[str, ...] = ()
    details: dict[str, str] = field(default_factory=dict)
    previous_boot: bool = False
    peak_1s: int = 0
    peak_60s: int = 0
    peak_1h: int = 0
    root_port: str = ""
    recovered: str = ""
    order_first: int = 0
    order_last: int = 0


@dataclass(frozen=True)
class KernelLog:
    """The kernel log of this boot.

    access: ``journal`` or ``dmesg``. first, last: seconds since boot of its first and last line.
    boot_id: of this boot, without dashes. complete: False when early lines are lost. missed: messages that the journal
    says it lost. lines: how many. events: see `Event`. faulted: addresses with a GPU fault line on this boot.
    """

    access: Reading[str]
    first: Reading[float]
    last: Reading[float]
    boot_id: Reading[str]
    complete: Reading[bool]
    missed: Reading[int]
    lines: Reading[int]
    events: Reading[tuple[Event, ...]]
    faulted: Reading[tuple[str, ...]]


def read(reader: Reader) -> KernelLog:
    no: Reading[str] = Reading.no("not_asked", "not read yet")
    return KernelLog(
        access=no,
        first=no.then(float),
        last=no.then(float),
        boot_id=no,
        complete=no.then(bool),
        missed=no.then(int),
        lines=no.then(int),
        events=no.then(lambda _: ()),
        faulted=no.then(lambda _: ()),
    )
