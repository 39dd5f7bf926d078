"""A probe of a host in a few lines: one card after the other, then what differs between them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from .. import advice
from ..onhost.probe import receipt as raw
from ..onhost.probe.host import address
from . import store


def subject(receipt: Mapping[str, Any]) -> str:
    """What a receipt is about: a card's address, or the type of device."""
    return address(receipt) or advice.device_of(receipt) or "this host"


def file_name(host: str, receipt: Mapping[str, Any]) -> str:
    """Name of a receipt's file, without what a path may not have.

    >>> receipt = {"before": {"host": {"card": "0000:23:00.0"}}, "workers": [], "taken_at": "2026-01-02T03:04:05Z"}
    >>> file_name("gpu/1", receipt)
    'gpu%2f1-0000-23-00.0-20260102T030405Z.json'
    """
    stamp = receipt["taken_at"].replace("-", "").replace(":", "")
    return f"{store.file_name(host)}-{subject(receipt).replace(':', '-').replace(' ', '-')}-{stamp}.json"


def brief(receipt: Mapping[str, Any]) -> list[str]:
    """Return what there is to say about one receipt: no figure at all when it is invalid."""
    who, validity = subject(receipt), receipt["validity"]
    if not validity["valid"]:
        return [f"{who}: invalid: {reason}" for reason in validity["reasons"]]
    figures = receipt["figures"]
    shown = [f"{key} {value:.2f} us" for key in raw.LAB_KEYS if isinstance(value := figures["lab"].get(key), float)]
    lines = [f"{who}: {', '.join(shown) or 'no figure taken the way of the lab'}"]
    if advice.device_of(receipt) == "cpu":
        lines.append(f"{who}: CPU figures: they say nothing about an accelerator")
    else:
        lines += [f"{who}: {one.topic}: {one.text}" for one in advice.advise(receipt)[:1]]
    for one in receipt["collectives"]:
        if one["failure"]:
            kind = "CONFIG_ERROR" if one["failure"]["kind"] == "config_error" else one["failure"]["kind"]
            lines.append(f"{who}: all-reduce not covered: {kind}: {one['failure']['text']}")
    for name, figure in figures["collectives"].items():
        lines.append(f"{who}: {name}: median {figure['median']:.4g}, p99 {figure['p99']:.4g} us")
    return [*lines, *(f"{who}: not checked: {text}" for text in validity["unchecked"])]


def between(receipts: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return what differs between the cards of one host: a reason to look, at most a warning."""
    return [f"unequal cards: {one.text}; next: {one.next_step}" for one in advice.unequal_cards(receipts)]
