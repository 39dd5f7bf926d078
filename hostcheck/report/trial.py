"""A trial in a terminal: one sentence, every pair with its ratio on a ruler, why, and how a fleet did. 80 columns do.

On every ruler a ratio of 1 is ``|``, the noise floor around it is dotted, a pair is ``o``, and the interval of the
result stands in brackets below them. Latency ratios: left of 1 arm B is faster.
"""

from __future__ import annotations

import io
import math
import textwrap
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from ..onhost.probe import receipt as raw
from ..onhost.probe.schedule import ARMS_OF_TWO_SWITCHES, PAIRS
from .probe import subject
from .terminal import visible

WORD_STYLE = {
    "improved": "bold green",
    "regressed": "bold red",
    "no_change": "cyan",
    "inconclusive": "yellow",
    "vacuous": "magenta",
    "invalid": "bold red",
}
WIDEST = 100
MOST_RULER = 46


def width_of(out: Console) -> int:
    return max(60, min(out.width, WIDEST))


def say(out: Console, text: str, style: str = "", indent: str = "  ") -> None:
    """Print text of any length in lines of the screen's width; a word that is longer stays whole."""
    lines = textwrap.wrap(
        visible(text), width_of(out), subsequent_indent=indent, break_long_words=False, break_on_hyphens=False
    )
    for line in lines or [""]:
        out.print(Text(line, style=style))


def verdict(receipt: Mapping[str, Any], out: Console) -> None:
    """Print what a trial has shown: the sentence, the pairs (or quads) with their ruler, the reasons and the notes."""
    said = receipt["verdict"]
    say(out, said["sentence"], WORD_STYLE[said["word"]])
    if said["figures"].get("ratios"):
        out.print(pair_table(receipt, width_of(out)))
    elif said["figures"].get("effects"):
        out.print(quad_table(receipt))
        out.print(effect_table(said["figures"], width_of(out)))
    _because(said, out, receipt["validity"]["unchecked"])


def _because(said: Mapping[str, Any], out: Console, told: Sequence[str] = ()) -> None:
    """Print reasons and notes that were not told yet."""
    for reason in said["reasons"]:
        if reason not in said["sentence"]:
            say(out, f"because: {reason}")
    for note in said["notes"]:
        if note not in told:
            say(out, f"note: {note}", "dim")


def lines(receipt: Mapping[str, Any], columns: int = 80) -> list[str]:
    """Return what `verdict` prints as plain lines, with what was tried before them."""
    arms = ", ".join(f"{arm} is {text}" for arm, text in receipt["claim"]["arms"].items())
    return [visible(f"{subject(receipt)}: {arms}"), *plain(lambda out: verdict(receipt, out), columns)]


def plain(show: Callable[[Console], None], columns: int = 80) -> list[str]:
    """Return what is printed on a console as lines without colours."""
    text = io.StringIO()
    show(Console(file=text, width=columns, markup=False, highlight=False, emoji=False, no_color=True))
    return [line.rstrip() for line in text.getvalue().splitlines()]


# -- rulers -------------------------------------------------------------------------------------------------------


def ruler(
    reach: float,
    width: int,
    floor: float = 0.0,
    point: float | None = None,
    interval: tuple[float | None, float | None] | None = None,
) -> str:
    """Return one line for log ratios between ``-reach`` and ``reach``.

    floor: as a log ratio, dotted on both sides of 1. point: ``o``. interval: ``[---]``, ``<`` or ``>`` where it has no
    end or the end lies outside.

    >>> ruler(0.2, 21, 0.04, point=-0.1)
    '     o  ..|..        '
    >>> ruler(0.2, 21, interval=(-0.1, None), point=-0.04)
    '     [--o-|--------->'
    """

    def place(log_ratio: float) -> int:
        return min(width - 1, max(0, round((log_ratio / reach + 1.0) / 2.0 * (width - 1))))

    line = [" "] * width
    if floor > 0.0:
        line[place(-floor) : place(floor) + 1] = "." * (place(floor) - place(-floor) + 1)
    if interval is not None:
        low, high = (
            (-math.inf if interval[0] is None else interval[0]),
            (math.inf if interval[1] is None else interval[1]),
        )
        line[place(max(low, -reach)) : place(min(high, reach)) + 1] = "-" * (
            place(min(high, reach)) - place(max(low, -reach)) + 1
        )
        line[place(max(low, -reach))] = "[" if low >= -reach else "<"
        line[place(min(high, reach))] = "]" if high <= reach else ">"
    line[place(0.0)] = "|"
    if point is not None:
        line[place(point)] = "o"
    return "".join(line)


def scale(reach: float, width: int) -> str:
    """Return the heading of a column of rulers: the ratios at its ends and 1 in the middle.

    >>> scale(0.2, 21)
    '0.82      1      1.22'
    """
    low, high = f"{math.exp(-reach):.2f}", f"{math.exp(reach):.2f}"
    middle = (width - 1) // 2
    return f"{low}{'1':>{middle - len(low) + 1}}{high:>{width - middle - 1}}"


def _logs(figures: Mapping[str, Any]) -> tuple[float | None, float | None]:
    """Return the interval of a result as log ratios; an end that is not there is open."""
    low, high = figures["ratio_low"], figures["ratio_high"]
    return (math.log(low) if low else None), (math.log(high) if high else None)


def _reach(logs: Sequence[float], floor: float) -> float:
    return max([abs(one) for one in logs] + [2.0 * floor, 0.02]) * 1.05


def _room(width: int, taken: int) -> int:
    """Return the width of a ruler: odd, so that 1 is in the middle."""
    room = min(MOST_RULER, width - taken)
    return room if room % 2 else room - 1


def pair_table(receipt: Mapping[str, Any], width: int) -> Table:
    """Return the table of all pairs of a trial with their ratio B / A, and the result below them."""
    claim, figures = receipt["claim"], receipt["verdict"]["figures"]
    pairs = raw.block_pairs(receipt, PAIRS, claim["metric"], figures["statistic"])
    ratios = figures["ratios"]
    floor, span = math.log1p(figures["floor"]), _logs(figures)
    reach = _reach([*map(math.log, ratios), *(end for end in span if end is not None)], floor)
    size = _room(width, 36)
    table = Table(box=None, pad_edge=False, header_style="bold")
    unit = raw.unit(claim["metric"])
    for name in ("pair", "first", f"A {unit}", f"B {unit}", "B / A"):
        table.add_column(name, justify="left" if name == "first" else "right", no_wrap=True)
    table.add_column(scale(reach, size), no_wrap=True)
    for number, ((a, b), ratio, first) in enumerate(zip(pairs, ratios, _first_arms(receipt), strict=False), start=1):
        line = ruler(reach, size, floor, math.log(ratio))
        table.add_row(str(number), first, f"{a:.4g}", f"{b:.4g}", f"{ratio:.3f}", line)
    result = ruler(reach, size, floor, math.log(figures["ratio"]), span)
    table.add_row("all", "", "", "", f"{figures['ratio']:.3f}", Text(result, style="bold"))
    return table


def _first_arms(receipt: Mapping[str, Any]) -> list[str]:
    """Return which arm came first in each complete pair: a coin decided."""
    firsts: dict[int, str] = {}
    for block in receipt["blocks"]:
        if block["phase"] == PAIRS:
            firsts.setdefault(block["pair"], block["arm"])
    counts = [block["pair"] for block in receipt["blocks"] if block["phase"] == PAIRS]
    return [arm for pair, arm in sorted(firsts.items()) if counts.count(pair) == 2]


def quad_table(receipt: Mapping[str, Any]) -> Table:
    """Return the table of all quads of a trial of two switches, with each arm's ratio to the base of its quad."""
    claim, figures = receipt["claim"], receipt["verdict"]["figures"]
    table = Table(box=None, pad_edge=False, header_style="bold")
    unit = raw.unit(claim["metric"])
    switched = ARMS_OF_TWO_SWITCHES[1:]
    for name in ("quad", *(f"{arm} {unit}" for arm in ARMS_OF_TWO_SWITCHES), *(f"{arm} / base" for arm in switched)):
        table.add_column(name, justify="right", no_wrap=True)
    for number, quad in enumerate(raw.block_quads(receipt, claim["metric"], figures["statistic"]), start=1):
        table.add_row(
            str(number),
            *(f"{quad[arm]:.4g}" for arm in ARMS_OF_TWO_SWITCHES),
            *(f"{quad[arm] / quad['base']:.3f}" for arm in switched),
        )
    return table


def effect_table(figures: Mapping[str, Any], width: int) -> Table:
    """Return the effects of two switches and their interaction, each with its interval on a ruler."""
    floor = math.log1p(figures["floor"])
    effects = figures["effects"]
    ends = [end for one in effects.values() for end in _logs(one) if end is not None]
    reach = _reach([*ends, *(math.log(one["ratio"]) for one in effects.values())], floor)
    size = _room(width, 42)
    table = Table(box=None, pad_edge=False, header_style="bold")
    for name in ("effect", "ratio", "p", "word"):
        table.add_column(name, justify="right" if name in ("ratio", "p") else "left", no_wrap=True)
    table.add_column(scale(reach, size), no_wrap=True)
    for name, one in effects.items():
        line = ruler(reach, size, floor, math.log(one["ratio"]), _logs(one))
        style = WORD_STYLE[one["word"]]
        table.add_row(name, f"{one['ratio']:.3f}", f"{one['p']:.2g}", Text(one["word"], style=style), line)
    return table


# -- boots --------------------------------------------------------------------------------------------------------


def boots(document: Mapping[str, Any], out: Console) -> None:
    """Print what a trial over boots has shown (`hostcheck.boots`)."""
    claim, said = document["claim"], document["verdict"]
    where = claim["card"] or "the CPU"
    out.print(Text(visible(f"boots of {document['host']}, {where}, as of {document['made_at']}"), style="bold"))
    if not claim["card"]:
        out.print(Text("CPU figures: they say nothing about an accelerator", style="yellow"))
    for arm, text in sorted(claim["arms"].items()):
        say(out, f"arm {arm}: {text}")
    say(out, said["sentence"], WORD_STYLE[said["word"]])
    if said["word"] != "invalid" and any(row["figure"] for row in document["boots"]):
        out.print(boot_table(document, width_of(out)))
    for name, texts in document["told_by"].items():
        say(out, f"the arms differ in {name}: A {texts['A'] or 'without it'}; B {texts['B'] or 'without it'}")
    for name, texts in document["also"].items():
        say(out, f"the arms also differ in {name}: A {texts['A'] or '-'}; B {texts['B'] or '-'}", "yellow")
    _because(said, out)


def boot_table(document: Mapping[str, Any], width: int) -> Table:
    """Return the table of all boots, each figure on a ruler of its own arm's letter, in order of time."""
    figures = [row["figure"] for row in document["boots"] if row["figure"]]
    low, high = min(figures), max(figures)
    size = _room(width, 48)
    unit = raw.unit(document["claim"]["metric"])
    table = Table(box=None, pad_edge=False, header_style="bold")
    for name in ("boot", "at (UTC)", "id", "arm", unit):
        table.add_column(name, justify="right" if name in ("boot", unit) else "left", no_wrap=True)
    table.add_column(f"{low:<{size // 2}.4g}{high:>{size - size // 2}.4g}", no_wrap=True)
    for number, row in enumerate(document["boots"], start=1):
        value = row["figure"]
        shown = f"{value:.4g}" if value else "-"
        line = position(value, low, high, size, row["arm"]) if value else "left out"
        table.add_row(str(number), row["taken_at"][:16].replace("T", " "), row["boot_id"][:8], row["arm"], shown, line)
    return table


def position(value: float, low: float, high: float, width: int, mark: str) -> str:
    """Return a line with ``mark`` where a value lies between two others.

    >>> position(3.0, 2.0, 4.0, 9, "B")
    '    B    '
    """
    place = round((value - low) / (high - low) * (width - 1)) if high > low else (width - 1) // 2
    return " " * place + mark + " " * (width - 1 - place)


# -- before and after, descriptive only -----------------------------------------------------------------------------


def before_after(before: Mapping[str, Any], after: Mapping[str, Any], who: str) -> list[str]:
    """Return what one receipt before and one after a change say: ranges and ratios, and that they decide nothing."""
    for when, receipt in (("before", before), ("after", after)):
        if not receipt["validity"]["valid"]:
            return [f"{who}: {when} it the measurement is invalid: {receipt['validity']['reasons'][0]}"]
    lines = []
    then, now = before["figures"]["metrics"], after["figures"]["metrics"]
    for name in ("launch_us", "launch_sync_us", "gap_sync_3ms_us"):
        if name in then and name in now:
            a, b = then[name], now[name]
            spans = [f"{one['median']:.4g} ({one['p10']:.4g} to {one['p99']:.4g})" for one in (a, b)]
            ratio = f"after / before = {b['median'] / a['median']:.3f}"
            lines.append(f"{who}: {name}: before {spans[0]}, after {spans[1]} {a['unit']}, {ratio}")
    if not lines:
        return [f"{who}: nothing was measured both before and after it"]
    lines.append(
        f"{who}: descriptive only: one measurement before and one after cannot tell the change from the noise between "
        "two moments (spans are p10 to p99)"
    )
    return lines


# -- a fleet ----------------------------------------------------------------------------------------------------------

# Word of a verdict, or what became of a host without one -> how the last line calls it; with * it names the hosts.
CALLED = {
    "improved": "helped on",
    "regressed": "made worse on*",
    "no_change": "no change on",
    "inconclusive": "not shown on",
    "vacuous": "not shown on",
    "invalid": "invalid on*",
    "descriptive": "descriptive only on",
    "planned": "planned on",
    "refused": "cannot be tried on*",
    "skipped": "nothing to try on",
    "failed": "failed on*",
    "restore failed": "NOT RESTORED on*",
    "unreachable": "unreachable*",
    "not tried": "not tried*",
}


def tally(words: Mapping[str, str]) -> str:
    """Return the last line of a run over hosts, from the word of each.

    >>> tally({"a": "improved", "b": "vacuous", "c": "no_change", "d": "inconclusive", "e": "invalid"})
    'helped on 1, no change on 1, not shown on 2, invalid on 1 (e)'
    """
    groups: dict[str, list[str]] = {}
    for called in CALLED.values():
        hosts = sorted(host for host, word in words.items() if CALLED[word] == called)
        if hosts:
            groups[called] = hosts
    parts = []
    for called, hosts in groups.items():
        names = f" ({', '.join(visible(host) for host in hosts)})" if called.endswith("*") else ""
        parts.append(f"{called.rstrip('*')} {len(hosts)}{names}")
    return ", ".join(parts) or "no host was tried"
