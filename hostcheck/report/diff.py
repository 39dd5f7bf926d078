"""Two hosts side by side on one screen: what differs, in the order in which it matters."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rich.text import Text

from ..assess import Report
from ..diff import TOPICS, Difference
from .terminal import STYLE, headline, visible

SCREEN = 24  # lines of the smallest terminal that is usual
CELL = 34
LAB = "lab: figures of the public B70 optimization lab, not of these hosts"


def cut(text: str, width: int) -> str:
    """The text in at most `width` characters.

    >>> cut("abcdef", 4)
    'abc…'
    """
    line = visible(text)
    return line if len(line) <= width else line[: width - 1] + "…"


def shares(counts: Sequence[int], room: int) -> list[int]:
    """How many lines each topic gets: one at least, the rest in order of the topics.

    >>> shares([5, 3, 2], 6)
    [4, 1, 1]
    """
    given = [min(1, count) for count in counts]
    left = room - sum(given)
    for number, count in enumerate(counts):
        more = max(0, min(left, count - given[number]))
        given[number] += more
        left -= more
    return given


def lines(first: Report, second: Report, differences: Sequence[Difference], verbose: int = 0) -> list[Text]:
    """All lines of the screen; with `verbose` none is left out or cut."""
    out = [
        Text(cut(f"A  {headline(first)}", 1000 if verbose else 110), style="bold"),
        Text(cut(f"B  {headline(second)}", 1000 if verbose else 110), style="bold"),
    ]
    topics = [topic for topic in TOPICS if any(item.topic == topic.name for item in differences)]
    counts = [sum(item.topic == topic.name for item in differences) for topic in topics]
    room = SCREEN - len(out) - len(topics) - 3
    given = counts if verbose else shares(counts, room)
    wide = max((len(item.what) for item in differences), default=0) if verbose else 30
    for topic, count, shown in zip(topics, counts, given, strict=True):
        hidden = f"; {count - shown} more with -v" if count > shown else ""
        out.append(Text(f"{topic.name}  ({topic.note}{hidden})", style="bold"))
        for item in [item for item in differences if item.topic == topic.name][:shown]:
            style = STYLE[item.status] if item.status is not None else "magenta" if item.unread else ""
            cells = [visible(side) if verbose else cut(side, CELL) for side in (item.first, item.second)]
            out.append(
                Text(f"  {cut(item.what, wide):<{wide}}  A {cells[0]:<{0 if verbose else CELL}}  B {cells[1]}", style)
            )
    out.append(Text(verdict(differences), style="bold"))
    if any("lab:" in topic.note for topic in topics):
        out.append(Text(LAB, style="dim"))
    return out


def verdict(differences: Sequence[Difference]) -> str:
    """The last line: what this says about speed, and what to do."""
    told = [item for item in differences if not item.unread]
    strong = [item for item in told if not item.weak and item.topic != TOPICS[-1].name]
    unread = len(differences) - len(told)
    open_ones = f"; {unread} could be read on one side only" if unread else ""
    if not told:
        return f"no difference that could be read{open_ones}" if unread else "no difference"
    count = f"{len(told)} difference{'' if len(told) == 1 else 's'}"
    if not strong:
        return (
            f"{count}, none that explains a slower host{open_ones}: hostcheck probe on both, and compare the receipts"
        )
    return f"{count}, first to look at: {strong[0].topic}{open_ones}; hostcheck probe on both says whether it counts"


def to_plain(first: Report, second: Report, differences: Sequence[Difference]) -> dict[str, Any]:
    """The same for programs."""
    return {
        "first": {"host": first.host, "taken_at": first.facts.taken_at},
        "second": {"host": second.host, "taken_at": second.facts.taken_at},
        "differences": [
            {
                "topic": item.topic,
                "what": item.what,
                "first": item.first,
                "second": item.second,
                "status": item.status.value if item.status is not None else None,
                "unread": item.unread,
                "neutral": item.weak,
            }
            for item in differences
        ],
    }
