"""A receipt in a terminal: what was measured, how it is spread, what it says, and what may not be said."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from .. import advice
from ..onhost.probe import receipt as raw
from . import trial
from .terminal import visible

BARS = " ▁▂▃▄▅▆▇█"
BINS = 30
OTHER_COLUMNS = 42  # characters that the figures beside a histogram take, at most
CONTROLS = ("cpu_add_us", "py_loop_ns", "launch_drain", "sleep_overshoot_0.3ms_us", "sleep_overshoot_3ms_us")


def render(receipt: Mapping[str, Any], out: Console, draft_tokens: int = 1) -> None:
    """Print a receipt: identity, validity, what a trial has shown, figures with histograms, all-reduce, the lab's
    figures, advice.

    Figures of an invalid receipt are not printed: there is no number to quote.
    """
    _head(receipt, out)
    if not _validity(receipt, out):
        return
    if receipt.get("verdict"):
        trial.verdict(receipt, out)
    _metrics(receipt, out)
    _collectives(receipt, out)
    _lab(receipt, out)
    if receipt["kind"] == "profile":
        for one in advice.advise(receipt, draft_tokens):
            mark = " (estimate)" if one.estimate else ""
            out.print(Text(f"{one.topic}{mark}: {visible(one.text)}", style="bold" if one.topic == "class" else ""))
            if one.next_step:
                out.print(Text(f"  next: {visible(one.next_step)}"))


def _head(receipt: Mapping[str, Any], out: Console) -> None:
    out.print(Text(f"{receipt['kind']} of {receipt['taken_at']}, seed {receipt['seed']}", style="bold"))
    for worker in receipt["workers"][:1]:
        who = worker["identity"]
        card = " ".join(str(who["card"][key]) for key in ("name", "driver_version") if key in who["card"])
        place = worker["address"] or "no PCI address"
        software = f"torch {who['torch']}, Python {who['python']}"
        out.print(Text(visible(f"{who['device']}:{who['index']} {card} ({place}), {software}")))
        for name, why in sorted(worker["unavailable"].items()):
            if why != "not asked":
                out.print(Text(visible(f"  {name} unavailable: {why}"), style="dim"))
    if receipt["workers"] and receipt["workers"][0]["identity"]["device"] == "cpu":
        out.print(Text("CPU figures: they say nothing about an accelerator", style="yellow"))
    done = len(receipt["blocks"])
    out.print(Text(f"{done} blocks of {receipt['plan']['block_s']:g} s, {len(receipt['workers'])} worker(s)"))


def _validity(receipt: Mapping[str, Any], out: Console) -> bool:
    validity = receipt["validity"]
    for reason in validity["reasons"]:
        out.print(Text(visible(f"invalid: {reason}"), style="bold red"))
    for text in validity["unchecked"]:
        out.print(Text(visible(f"not checked: {text}"), style="yellow"))
    return bool(validity["valid"])


def _metrics(receipt: Mapping[str, Any], out: Console) -> None:
    table = Table(box=None, pad_edge=False, header_style="bold")
    for name in ("metric", "median", "p10", "p99", "unit", "floor"):
        table.add_column(name, justify="left" if name in ("metric", "unit") else "right", no_wrap=True)
    figures = receipt["figures"]["metrics"]
    bins = max(10, min(BINS, out.width - max(map(len, figures), default=0) - OTHER_COLUMNS))
    middle = "samples, log scale" if bins >= BINS - 4 else "log"
    table.add_column(f"p1 {middle:^{bins - 7}} p99", no_wrap=True)
    for name in sorted(figures, key=lambda metric: (metric in CONTROLS, metric)):
        figure = figures[name]
        samples = [
            x
            for block in receipt["blocks"]
            if name in block["metrics"]
            for x in raw.per_operation(name, block["metrics"][name])
        ]
        floor = f"{figure['floor']:.1%}" if figure.get("floor") is not None else "-"
        table.add_row(
            Text(name),
            *(f"{figure[key]:.4g}" for key in ("median", "p10", "p99")),
            figure["unit"],
            floor,
            Text(histogram(samples, bins), style="cyan"),
        )
    out.print(table)
    if receipt["figures"]["graph_gain"]:
        out.print(Text(f"256 adds, eager / graph replay: {receipt['figures']['graph_gain']:.2f} (values checked)"))
    if receipt["figures"]["device_bound"]:
        out.print(Text("launch_us is bound by the device, not by the host", style="yellow"))
    counted = {
        name: "/".join(seen) for name, seen in receipt["figures"]["launches"].items() if seen and seen != ["None"]
    }
    if counted:
        out.print(Text("launches per call: " + ", ".join(f"{name} {seen}" for name, seen in counted.items())))


def histogram(values: Sequence[float], bins: int) -> str:
    """Return a one-line histogram between the 1st and the 99th percentile on a log scale; what lies outside
    is in the end bins.

    >>> histogram([1.0, 1.0, 10.0, 100.0], 3)
    '█▄▄'
    """
    positive = sorted(value for value in values if value > 0)
    if not positive:
        return " " * bins
    low, high = positive[len(positive) // 100], positive[-1 - len(positive) // 100]
    start, span = math.log(low), math.log(high) - math.log(low) or 1.0
    counts = [0] * bins
    for value in positive:
        place = int((math.log(value) - start) / span * bins)
        counts[min(bins - 1, max(0, place))] += 1
    top = max(counts)
    return "".join(BARS[-(-count * (len(BARS) - 1) // top)] for count in counts)


def _collectives(receipt: Mapping[str, Any], out: Console) -> None:
    for one in receipt["collectives"]:
        if one["failure"]:
            label = "CONFIG_ERROR" if one["failure"]["kind"] == "config_error" else one["failure"]["kind"]
            out.print(Text(visible(f"all-reduce not covered: {label}: {one['failure']['text']}"), style="yellow"))
    for name, figure in receipt["figures"]["collectives"].items():
        spread = f"median {figure['median']:.4g}, p99 {figure['p99']:.4g} us"
        out.print(Text(f"{name}: {spread} (maximum over ranks, n {figure['n']})"))


def _lab(receipt: Mapping[str, Any], out: Console) -> None:
    lab, shown = receipt["figures"]["lab"], not advice.comparable(receipt)
    if not lab:
        return
    table = Table(
        box=None,
        pad_edge=False,
        header_style="bold",
        title="the lab's own method (means)",
        title_justify="left",
    )
    for name in ("key", "here us", *(("lab fast", "lab slow") if shown else ())):
        table.add_column(name, justify="left" if name == "key" else "right")
    for key in raw.LAB_KEYS:
        if key in lab:
            value = lab[key] if isinstance(lab[key], str) else f"{lab[key]:.2f}"
            beside = (
                [f"{host[key]:.2f}" if key in host else "-" for host in (advice.FAST, advice.SLOW)] if shown else []
            )
            table.add_row(Text(key), Text(visible(value)), *beside)
    out.print(table)
