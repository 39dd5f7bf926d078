"""The report in a terminal: what is wrong first, one line per (check, status, seen, wanted) with all its subjects.

Text from hosts is data: it is printed without markup, and control characters are made visible.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Sequence
from typing import IO

from rich.console import Console
from rich.text import Text

from ..assess import Report
from ..findings import HOST, Finding, Status, all_unknown
from .store import Outcome, total

STYLE = {
    Status.fail: "bold red",
    Status.warn: "yellow",
    Status.unknown: "magenta",
    Status.info: "cyan",
    Status.ok: "green",
    Status.not_applicable: "dim",
}
ORDER = (Status.fail, Status.warn, Status.unknown, Status.info, Status.ok, Status.not_applicable)
INDENT = Text(" " * 9)
FLEET_LINES = 8
LEVELS = {
    0: (Status.fail, Status.warn),
    1: (Status.fail, Status.warn, Status.unknown, Status.info),
    2: ORDER,
}


def console(file: IO[str] | None = None, like: IO[str] | None = None) -> Console:
    """A console that is plain where the output is no terminal, and where NO_COLOR is set.

    like: the stream that the text will end in, where `file` only collects it.
    """
    target = file or sys.stdout
    terminal = (like or target).isatty()
    return Console(
        file=target,
        highlight=False,
        markup=False,
        emoji=False,
        force_terminal=terminal,
        no_color=not terminal or bool(os.environ.get("NO_COLOR")),
        soft_wrap=True,  # the terminal wraps: a command stays one line that can be copied
    )


def visible(text: str) -> str:
    """The text on one line, control characters as their codes.

    >>> visible("a\\x1b[2Jb\\nc")
    'a\\\\x1b[2Jb c'
    """
    line = " ".join(text.split())
    return "".join(char if char.isprintable() else f"\\x{ord(char):02x}" for char in line)


def grouped(findings: Iterable[Finding]) -> list[list[Finding]]:
    """Findings that say the same of several subjects, together."""
    groups: dict[tuple[str, ...], list[Finding]] = {}
    for finding in findings:
        waived = str(finding.waived) if finding.waived else ""
        key = (finding.id, finding.status.value, finding.seen, finding.wanted, finding.subject.kind, waived)
        groups.setdefault(key, []).append(finding)
    return list(groups.values())


def headline(report: Report) -> str:
    """One line that says which host this is and when it was read."""
    identity, lscpu, gpus = report.facts.identity, report.facts.lscpu, report.facts.pcie.gpus
    models = lscpu.model_names.value
    if gpus.value is None:
        cards = "GPUs not read"
    else:
        cards = f"{len(gpus.value)} GPU{'' if len(gpus.value) == 1 else 's'}" if gpus.value else "no GPU"
    kernel = identity.kernel.value or "kernel not read"
    parts = (report.host, report.facts.taken_at, kernel, " / ".join(models or ()), cards)
    return "  ".join(visible(part) for part in parts if part)


def _entry(findings: Sequence[Finding], out: Console, verbose: bool) -> None:
    first = findings[0]
    line = Text()
    line.append(f" {'n/a' if first.status is Status.not_applicable else first.status.value:<8}", STYLE[first.status])
    line.append(f"{first.id}", "bold")
    names = [finding.subject.name for finding in findings if finding.subject != HOST]
    if names:
        line.append("  " + visible(" ".join(names)))
    told = first.seen if not first.wanted else f"{first.seen}; wanted {first.wanted}" if first.seen else first.wanted
    if told:
        line.append("  " + visible(told))
    if first.waived:
        line.append(f"  waived until {visible(first.waived['until'])}: {visible(first.waived['justification'])}", "dim")
    out.print(line)
    if first.explains:
        said = sorted({f"{item.id} {item.status.value}" for item in first.explains})
        out.print(INDENT + Text(f"explains {len(first.explains)}: " + ", ".join(said)))
    steps = list(dict.fromkeys(finding.next_step for finding in findings if finding.next_step))
    if first.status in (Status.fail, Status.warn) or verbose:
        for step in steps[:3]:
            out.print(INDENT + Text("-> " + visible(step)))
    if verbose:
        sources = list(dict.fromkeys(finding.source for finding in findings if finding.source))
        for source in sources[:3]:
            out.print(INDENT + Text("read from " + visible(source), style="dim"))


def show_finding(finding: Finding, out: Console) -> None:
    """Print one finding with its source and next step."""
    _entry((finding,), out, verbose=True)


def unknown_lines(findings: Sequence[Finding]) -> list[str]:
    """Unknown findings folded by reason: how many checks were not judged, and what would let them be.

    Those folded into a cause are told there.
    """
    reasons: dict[tuple[str, str], list[Finding]] = {}
    for finding in findings:
        if finding.status is not Status.unknown:
            continue
        reason, _, _ = finding.seen.partition(":")
        if reason == "permission":
            key = ("run as root", "")
        else:
            key = (finding.next_step, "") if finding.next_step else ("", finding.seen)
        reasons.setdefault(key, []).append(finding)
    lines = []
    for (step, seen), group in sorted(reasons.items(), key=lambda item: (-len(item[1]), item[0])):
        checks = sorted({finding.id for finding in group})
        count = f"{len(group)} check{'' if len(group) == 1 else 's'} not judged"
        named = ", ".join(checks[:4]) + (f" and {len(checks) - 4} more" if len(checks) > 4 else "")
        lines.append(f"{count}: {step or seen or 'no reason given'} ({named})")
    return lines


def show(report: Report, out: Console, verbose: int = 0) -> None:
    """Print one host: the headline, fails, warnings, unknowns folded by reason, and counts of the rest."""
    out.print(Text(headline(report), style="bold"))
    shown = LEVELS[min(verbose, 2)]
    for status in ORDER:
        if status not in shown:
            continue
        for group in grouped(finding for finding in report.findings if finding.status is status):
            _entry(group, out, verbose > 0)
    if verbose == 0:
        for line in unknown_lines(report.findings):
            out.print(Text(f" {'unknown':<8}", STYLE[Status.unknown]) + Text(visible(line)))
    counts = report.counts
    rest = [f"{counts[status.value]} {status.value.replace('_', ' ')}" for status in ORDER if counts[status.value]]
    hidden = len(list(all_unknown(report.findings))) - counts["unknown"]
    note = f" (and {hidden} unknown, explained above)" if hidden else ""
    out.print(Text(f" {', '.join(rest) or 'nothing judged'}{note}{'' if verbose else '; -v shows all'}", "dim"))


def show_fleet(outcomes: Sequence[Outcome], out: Console, verbose: int = 0) -> int:
    """Print which hosts of a run differ from the others of their class; nothing where none does.

    Returns what this adds to the code of the run.
    """
    from .. import fleet  # it compares reports, so it stands above this module

    findings = fleet.of_run([outcome.report for outcome in outcomes if outcome.report is not None])
    if not findings:
        return 0
    out.print(Text("between hosts of one class", style="bold"))
    told = [finding for finding in findings if finding.status in (Status.fail, Status.warn)]
    groups = grouped(sorted(told, key=lambda one: (ORDER.index(one.status), one.waived is not None)))
    for group in groups if verbose else groups[:FLEET_LINES]:
        _entry(group, out, verbose > 0)
    if len(groups) > FLEET_LINES and not verbose:
        out.print(Text(f" and {len(groups) - FLEET_LINES} more differences; -v shows all", "dim"))
    for line in unknown_lines(findings):
        out.print(Text(f" {'unknown':<8}", STYLE[Status.unknown]) + Text(visible(line)))
    return fleet.code(findings)


def show_run(outcomes: Sequence[Outcome], out: Console, verbose: int = 0, folder: str = "") -> int:
    """Print a whole run, worst hosts first. Returns its code."""
    for outcome in sorted(outcomes, key=lambda one: ((2, 1, 3, 0).index(one.exit), one.host)):
        if outcome.report is not None:
            show(outcome.report, out, verbose)
        if outcome.state != "judged":
            out.print(Text(f"{visible(outcome.host)}  {outcome.state}: {visible(outcome.message)}", "bold red"))
    between = show_fleet(outcomes, out, verbose)
    code = total([*(outcome.exit for outcome in outcomes), between])
    if len(outcomes) > 1:
        tally = {
            "failing": sum(outcome.exit == 1 for outcome in outcomes),
            "not fully read": sum(outcome.exit == 3 and outcome.state == "judged" for outcome in outcomes),
            "unreachable": sum(outcome.state == "unreachable" for outcome in outcomes),
            "in error": sum(outcome.state == "failed" for outcome in outcomes),
            "without a fail": sum(outcome.exit == 0 for outcome in outcomes),
        }
        told = ", ".join(f"{count} {what}" for what, count in tally.items() if count)
        out.print(Text(f"{len(outcomes)} hosts: {told}", "bold"))
    if folder:
        out.print(Text(f"report: {folder}", "dim"))
    return code
