"""Is there a card, should there be one, and does anybody hold it? What several families of checks ask first."""

from __future__ import annotations

from dataclasses import replace

from ..expectations import Expectation
from ..findings import HOST, Cause, Finding, Status, Subject, need, unknown
from ..onhost.gather import Facts
from ..onhost.reader import Reading

NO_LIST = ("absent", "tool_missing", "not_asked")
"""Reasons that stand for a part of a host, which has no list of cards at all: it is judged by what it has."""


def not_listed(id: str, facts: Facts) -> Finding | None:
    """The finding where the list of cards was refused, hung or made no sense, so that none of them is judged."""
    gpus = facts.pcie.gpus
    if gpus.unread in (None, *NO_LIST):
        return None
    return replace(unknown(id, gpus), cause=Cause("gpu.enumeration", HOST))


def gpu_here(facts: Facts, expectation: Expectation) -> bool:
    """Is a card present or expected? One that is part of the processor is none, one given by a hypervisor is."""
    return expectation.gpus.expected or any(not gpu.integrated for gpu in need(facts.pcie.gpus))


def holding(facts: Facts) -> Reading[tuple[str, ...]]:
    """Processes that hold a card, for a person; a display server on the board's own adapter is none of them."""
    render, refused = facts.holders.render, facts.holders.refused
    cards = {gpu.bdf for gpu in facts.pcie.gpus.value or () if not gpu.integrated}
    found = render.then(lambda all_of: tuple(one for one in all_of if not one.bdf or one.bdf in cards or not cards))
    if found.value == () and refused.value:
        return Reading.no("permission", f"open files of {refused.value} processes may not be listed", refused.source)
    return found.then(lambda some: tuple(dict.fromkeys(f"{one.comm or 'a process'}[{one.pid}]" for one in some)))


def not_applicable(id: str, seen: str, source: str, subject: Subject = HOST) -> Finding:
    return Finding(id, subject, Status.not_applicable, seen=seen, source=source)


def no_card(id: str, facts: Facts, expectation: Expectation) -> Finding | None:
    """The finding for a host that has no card and should have none; None where a check goes on."""
    if gpu_here(facts, expectation):
        return None
    return not_applicable(id, "no GPU is here or expected", facts.pcie.gpus.source)


def not_before_start(id: str, facts: Facts, expectation: Expectation) -> Finding | None:
    """The finding where limits "before a start" do not hold: no card, or it is in use. None where a check goes on."""
    without = no_card(id, facts, expectation)
    if without is not None:
        return without
    held = holding(facts)
    if held.value is None:
        return unknown(id, held)
    if held.value:
        more = f" and {len(held.value) - 3} more" if len(held.value) > 3 else ""
        return not_applicable(id, f"cards are in use by {', '.join(held.value[:3])}{more}", held.source)
    return None
