"""The command line. One function per verb; each returns the exit code.

Exit codes: 0 nothing failing, or yes; 1 an unwaived fail, or no; 2 wrong use or bad input; 3 could not tell.
"""

from __future__ import annotations

import argparse
import inspect
import json
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NoReturn

from . import __version__
from .onhost.gather import Facts, Options, gather
from .onhost.reader import Reader
from .onhost.recording import RecordedReader, below, dump, load

Parser = argparse.ArgumentParser


class BadInput(Exception):
    """Wrong use or bad input: the message says what was wanted, what was found and what to do."""


def source_options(parser: Parser) -> None:
    """Options of every verb that reads a host."""
    where = parser.add_mutually_exclusive_group()
    where.add_argument("--root", metavar="DIR", default="/", help="read this directory instead of this machine's /")
    where.add_argument("--recording", metavar="FILE", help="replay a recording (hostcheck record) instead of reading")
    parser.add_argument("--under-load", action="store_true", help="the cards are busy now: a low link speed counts")
    parser.add_argument("--wake", action="store_true", help="read sleeping cards too, which wakes them")
    parser.add_argument(
        "--xpu-smi",
        choices=("auto", "always", "never"),
        default="auto",
        help="run xpu-smi: auto (default) only when no card sleeps, faulted on this boot or is in use",
    )
    parser.add_argument(
        "--sample-seconds",
        metavar="N",
        type=float,
        default=0.0,
        help="read error counters again after N seconds (60 at most), for rates; default: once",
    )
    parser.add_argument(
        "--initrd",
        action="store_true",
        help="look into the initrd of the next boot too, which may take seconds (next-boot and record always do)",
    )


def judge_options(parser: Parser) -> None:
    """Options of every verb that judges a host."""
    parser.add_argument("--expect", metavar="FILE", help="what this host should be (YAML, hostcheck/expectation/1)")
    parser.add_argument("--waivers", metavar="FILE", help="exceptions with a reason and an end (YAML)")
    parser.add_argument(
        "--since", metavar="WHEN", default="boot", help="bound faults: boot (default), last-run or a UTC time"
    )
    parser.add_argument("--name", metavar="HOST", help="the host's name in the report and for waivers")


def reader_of(given: argparse.Namespace) -> Reader:
    """The reader that the options ask for."""
    try:
        if given.recording:
            return RecordedReader(load(Path(given.recording).read_text(encoding="utf-8")))
        return below(given.root)
    except (OSError, ValueError) as error:
        raise BadInput(f"cannot read {given.recording or given.root}: {error}") from error


def options_of(given: argparse.Namespace) -> Options:
    """What the options say about this read."""
    try:
        return Options(
            under_load=given.under_load,
            wake=given.wake,
            xpu_smi=given.xpu_smi,
            sample_seconds=given.sample_seconds,
            initrd=given.initrd,
        )
    except ValueError as error:
        raise BadInput(str(error)) from error


def name_of(given: argparse.Namespace) -> str:
    """The host's name in the report."""
    if given.name:
        return str(given.name)
    return Path(given.recording).stem if given.recording else "localhost"


def yaml_file(path: str) -> Any:
    """Content of a YAML or JSON file."""
    import yaml

    try:
        return yaml.safe_load(Path(path).read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise BadInput(f"cannot read {path}: {error}") from error


def judge(given: argparse.Namespace, fail_on: str = "fail") -> Any:
    """Read the host and judge it. Bad input is refused before anything is read."""
    from .assess import assess
    from .expectations import Refused, expectation, waivers
    from .findings import Status

    try:
        expected = expectation(yaml_file(given.expect) if given.expect else {}, given.expect or "")
        excused = waivers(yaml_file(given.waivers) if given.waivers else [], given.waivers or "")
    except Refused as error:
        raise BadInput(str(error)) from error
    reader = reader_of(given)
    previous = last_run(name_of(given)) if given.since == "last-run" or not given.recording else None
    facts = gather(reader, replace(options_of(given), pythons=expected.pythons))
    try:
        return assess(facts, expected, excused, name_of(given), previous, Status(fail_on), since=given.since)
    except ValueError as error:
        raise BadInput(str(error)) from error


def last_run(host: str) -> Facts | None:
    """Facts of this host in ``reports/latest``, or None where there are none."""
    from .report import store

    try:
        return store.load_host(Path(store.FOLDER) / "latest" / "hosts" / f"{store.file_name(host)}.json").facts
    except (OSError, ValueError):
        return None


def write_out(path: str, text: str) -> None:
    """Write a result file: whole or not at all, the user's own."""
    from .report.store import write

    try:
        write(Path(path), text)
    except OSError as error:
        raise BadInput(f"cannot write {path}: {error}") from error


def audit_options(parser: Parser) -> None:
    source_options(parser)
    judge_options(parser)
    parser.add_argument("--format", choices=("terminal", "json"), default="terminal", help="default: terminal")
    parser.add_argument("-o", metavar="FILE", dest="output", help="write the JSON report to this file as well")
    parser.add_argument("-v", action="count", default=0, dest="verbose", help="-v: info, unknown and sources; -vv: all")
    parser.add_argument("--fail-on", choices=("fail", "warn"), default="fail", help="weakest status that gives exit 1")


def audit(given: argparse.Namespace) -> int:
    """Read one host and judge it: this machine, a directory (--root) or a recording."""
    from .report import terminal

    report = judge(given, given.fail_on)
    if given.output:
        write_out(given.output, report.to_json())
    if given.format == "json":
        sys.stdout.write(report.to_json())
    else:
        terminal.show(report, terminal.console(), given.verbose)
    return int(report.exit)


def record_options(parser: Parser) -> None:
    source_options(parser)
    parser.set_defaults(initrd=True)
    parser.add_argument("-o", metavar="FILE", dest="output", required=True, help="file to write")
    parser.add_argument("--no-redact", action="store_true", help="keep names, addresses and serial numbers as they are")


def record(given: argparse.Namespace) -> int:
    """Keep what an audit reads as one file that replays anywhere; private data is replaced first."""
    from .onhost.record import record as make

    _, recording = make(reader_of(given), options_of(given), not given.no_redact)
    write_out(given.output, dump(recording))
    size = Path(given.output).stat().st_size
    sys.stdout.write(
        f"{given.output}: {len(recording['files'])} files, {len(recording['commands'])} commands, {size} bytes"
        f"{', NOT redacted' if given.no_redact else ', redacted: look through it before you send it'}\n"
        f"replay it with: hostcheck audit --recording {given.output}\n"
    )
    return 0


def report_options(parser: Parser) -> None:
    parser.add_argument("folder", nargs="?", default="reports/latest", help="folder of a run (default: reports/latest)")
    parser.add_argument("--format", choices=("terminal", "json"), default="terminal")
    parser.add_argument("-v", action="count", default=0, dest="verbose")
    parser.add_argument("--code", action="store_true", help="print only `audit: N`")


def report(given: argparse.Namespace) -> int:
    """Show the report of an earlier run, and exit with its code."""
    from .report import store, terminal

    folder = Path(given.folder)
    try:
        code, outcomes = store.load(folder)
    except (ValueError, KeyError, OSError) as error:
        raise BadInput(str(error)) from error
    if given.code:
        sys.stdout.write(f"audit: {code}\n")
    elif given.format == "json":
        sys.stdout.write((folder / "summary.json").read_text(encoding="utf-8"))
    else:
        terminal.show_run(outcomes, terminal.console(), given.verbose, str(folder))
    return code


def topology_options(parser: Parser) -> None:
    source_options(parser)
    judge_options(parser)


def topology(given: argparse.Namespace) -> int:
    """Draw the way from root port to every card, with what is wrong on the hop where it is."""
    from .report import terminal
    from .report.topology import render

    report = judge(given)
    out = terminal.console()
    out.print(render(report.facts, report.findings))
    return 0 if report.facts.pcie.gpus.value is not None else 3


def next_boot_options(parser: Parser) -> None:
    source_options(parser)
    judge_options(parser)
    parser.set_defaults(initrd=True)


def next_boot(given: argparse.Namespace) -> int:
    """Say on one screen what will differ after a reboot: exit 0 nothing, 1 something, 3 could not tell."""
    from .report import terminal
    from .report.next_boot import code, render

    report = judge(given)
    terminal.console().print(render(report.facts, report.host))
    return code(report.facts)


def explain_options(parser: Parser) -> None:
    source_options(parser)
    judge_options(parser)
    what = parser.add_mutually_exclusive_group()
    what.add_argument("check", nargs="?", help="id of a check, e.g. cpu.governor; without one: list all")
    what.add_argument(
        "--symptom", metavar="TEXT", help="what you see, in your own words: which checks tell, and say here"
    )


def explain(given: argparse.Namespace) -> int:
    """Say what a check looks at and why, and what it finds on this host."""
    from . import checks
    from .report import terminal

    if given.symptom is not None:
        return explain_symptom(given)
    out = terminal.console()
    if not given.check:
        for declaration in sorted(checks.ALL, key=lambda one: one.ids):
            out.print(f"{', '.join(declaration.ids)}: {declaration.title}")
        return 0
    chosen = [declaration for declaration in checks.ALL if given.check in declaration.ids]
    if not chosen:
        known = sorted(id for declaration in checks.ALL for id in declaration.ids)
        raise BadInput(f"there is no check {given.check!r}; there are {', '.join(known)}")
    for declaration in chosen:
        out.print(f"{', '.join(declaration.ids)}: {declaration.title}", style="bold")
        out.print(inspect.getdoc(declaration.run) or "")
    report = judge(given)
    found = [one for one in report.findings if one.id == given.check]
    folded = [(cause, one) for cause in report.findings for one in cause.explains if one.id == given.check]
    out.print()
    for finding in found:
        terminal.show_finding(finding, out)
    for cause, finding in folded:
        out.print(f"explained by {cause.id} {cause.subject}:")
        terminal.show_finding(finding, out)
    if not found and not folded:
        out.print(f"{report.host}: no finding; there is nothing here for it to judge")
    return 0


def probe_options(parser: Parser) -> None:
    from .onhost.probe.host import DEVICES

    parser.add_argument("--device", choices=DEVICES, default="auto", help="auto: the cards, or the CPU without any")
    parser.add_argument("--card", metavar="BDF", action="append", default=[], help="a card whose nodes the command has")
    parser.add_argument("--quick", action="store_true", help="8 pairs of blocks in place of 12")
    parser.add_argument("--ranks", type=int, help="ranks of the all-reduce, 0: none (default: one for each card)")
    parser.add_argument("--no-pin", action="store_true", help="do not keep the worker on one processor")
    parser.add_argument("--seed", type=int, help="of the order of the blocks (default: drawn, and recorded)")
    parser.add_argument("--image", default="", help="name of the image in the command, to record its digest")
    parser.add_argument("--timeout", type=float, help="seconds for everything (default: four times the expected time)")
    parser.add_argument("--root", metavar="DIR", default="/", help="read the host's state here instead of /")
    parser.add_argument("-o", metavar="FILE", dest="output", help="receipt to write (default: below reports/receipts)")
    parser.add_argument("--show", metavar="FILE", nargs="+", help="show receipts with histograms; measures nothing")
    parser.add_argument("--draft-tokens", type=int, default=1, help="per decode step, for the advice (default: 1)")
    parser.add_argument(
        "--command",
        nargs=argparse.REMAINDER,
        help="comes last: the way to a Python with torch, e.g. podman run -i ... IMAGE (default: this Python)",
    )


def probe(given: argparse.Namespace) -> int:
    """Measure how long it takes to submit work to every card, and write a receipt for each; or show receipts.

    Exit code 3 when a measurement is invalid: there is then no figure to quote.
    """
    from .onhost.probe.host import Request, survey
    from .onhost.probe.host import probe as measure
    from .report import probe as words

    if given.show:
        return show_receipts(given.show, given.draft_tokens)
    try:
        reader = below(given.root)
        request = Request(
            command=given.command or torch_python(),
            device=given.device,
            quick=given.quick,
            cards=given.card,
            ranks=given.ranks,
            pin=not given.no_pin,
            seed=given.seed,
            image=given.image,
            timeout=given.timeout,
        )
        found = survey(reader, request)
    except ValueError as error:
        raise BadInput(str(error)) from error
    what = ", ".join(card.bdf for card in found.cards) or "the CPU"
    sys.stderr.write(f"{what}: about {found.expected_s:.0f} s\n")
    taken = measure(reader, request, found, progress)
    if sys.stderr.isatty():
        sys.stderr.write("\r\x1b[K")
    for receipt in taken:
        path = receipt_path(given.output, receipt, len(taken) > 1)
        write_out(str(path), json.dumps(receipt, separators=(",", ":")) + "\n")
        sys.stdout.write("".join(f"{line}\n" for line in (*words.brief(receipt), f"receipt: {path}")))
    sys.stdout.write("".join(f"{line}\n" for line in words.between(taken)))
    return 0 if all(receipt["validity"]["valid"] for receipt in taken) else 3


def torch_python() -> list[str]:
    """This Python, when it has torch."""
    import importlib.util

    if importlib.util.find_spec("torch") is None:
        raise BadInput("this Python has no torch: name one that has with --command, or install hostcheck[probe]")
    return [sys.executable]


def progress(line: str) -> None:
    """Show progress: one line that is written over on a terminal, else every line but those of single blocks."""
    import re

    if sys.stderr.isatty():
        sys.stderr.write(f"\r\x1b[K{line}")
    elif not re.search(r" pair \d+ (A|B|base|A\+B)$", line):
        sys.stderr.write(f"{line}\n")
    sys.stderr.flush()


def receipt_path(output: str | None, receipt: dict[str, Any], several: bool) -> Path:
    """Where a receipt goes; with several cards the address stands before the suffix."""
    from .report import probe as words
    from .report.store import FOLDER

    if output is None:
        folder = Path(FOLDER) / "receipts"
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        return folder / words.file_name("localhost", receipt)
    path = Path(output)
    return path.with_name(f"{path.stem}-{words.subject(receipt).replace(':', '-')}{path.suffix}") if several else path


def read_receipt(path: str) -> dict[str, Any]:
    """A receipt, or a result over boots, from a file. Raises BadInput that names the file and what is wrong with it."""
    from .boots import load as load_receipt
    from .receipts import NotAReceipt

    try:
        return load_receipt(Path(path))
    except (NotAReceipt, OSError, UnicodeDecodeError) as error:
        raise BadInput(f"{path} is no receipt: {error}") from error


def show_receipts(paths: Sequence[str], draft_tokens: int) -> int:
    """Print receipts, and what differs between their cards; 3 when one is invalid."""
    from .boots import is_boots
    from .report import probe as words
    from .report import terminal, trial
    from .report.receipt import render

    if draft_tokens < 0:
        raise BadInput(f"--draft-tokens is {draft_tokens}, wanted 0 or more")
    out = terminal.console()
    files = [read_receipt(path) for path in paths]
    for document in filter(is_boots, files):
        trial.boots(document, out)
    shown = [receipt for receipt in files if not is_boots(receipt)]
    for receipt in shown:
        render(receipt, out, draft_tokens)
    for line in words.between(shown):
        out.print(line, markup=False)
    invalid = any(document["verdict"]["word"] == "invalid" for document in files if is_boots(document))
    return 3 if invalid or not all(receipt["validity"]["valid"] for receipt in shown) else 0


def trial_options(parser: Parser) -> None:
    from .onhost.probe.host import DEVICES
    from .onhost.trials.run import KEEP, METRICS

    parser.add_argument(
        "--toggle",
        metavar=("NAME", "B"),
        nargs="+",
        action="append",
        default=[],
        help="what is switched, and its arm B as YAML, then arm A where that is not what is there now; twice: both",
    )
    parser.add_argument("--plan", action="store_true", help="say what would be done and what stands against it, only")
    parser.add_argument("--keep", choices=KEEP, default="never", help="improved: then B stays until the next boot")
    parser.add_argument("--metric", choices=("", *METRICS), default="", help="default: as declared with the toggle")
    parser.add_argument("--statistic", default="", help="of a block (default: as declared with the toggle)")
    parser.add_argument("--device", choices=DEVICES, default="auto", help="auto: the cards, or the CPU without any")
    parser.add_argument("--card", metavar="BDF", default="", help="the card to be measured (default: the first)")
    parser.add_argument("--cards", metavar="BDF", nargs="*", default=[], help="cards whose nodes the command has")
    parser.add_argument("--quick", action="store_true", help="8 pairs in place of 16 to 40: large effects only")
    parser.add_argument("--no-pin", action="store_true", help="do not keep the worker on one processor")
    parser.add_argument("--seed", type=int, help="of the order of the blocks (default: drawn, and recorded)")
    parser.add_argument("--image", default="", help="name of the image in the command, to record its digest")
    parser.add_argument("--timeout", type=float, help="seconds for everything (default: three times the expected)")
    parser.add_argument("--root", metavar="DIR", default="/", help="read and write here instead of /")
    parser.add_argument("--receipts", metavar="DIR", help="folder of receipts (default: reports/receipts)")
    parser.add_argument("--command", nargs=argparse.REMAINDER, help="comes last: the way to a Python with torch")


def trial(given: argparse.Namespace) -> int:
    """Find out whether a setting changes this host, by switching it to and fro; the values found come back.

    For example: hostcheck trial --toggle cpu_governor '{governor: performance}' --plan
    Exit code 0 shown or no change, 1 invalid or refused, 3 inconclusive or vacuous.
    """
    from .onhost.settings.engine import Host
    from .onhost.settings.engine import Refused as NotHere
    from .onhost.settings.files import Failed
    from .onhost.trials import run as trials
    from .report import kept, terminal
    from .report.receipt import render

    params = {**vars(given), "pin": not given.no_pin, "toggles": [toggle_of(words) for words in given.toggle]}
    params["command"] = given.command or (["python3"] if given.plan else torch_python())
    try:
        host = Host(given.root)
        prepared = trials.prepare(host, trials.request_of(params))
        if given.plan:
            sys.stdout.write("".join(f"{line}\n" for line in trial_plan(prepared, given.receipts)))
            return 1 if prepared.refused else 0
        outcome = trials.run(host, prepared, progress)
        handed = trials.hand_over(outcome)
        found, files, _ = kept.save("localhost", [one["receipt"] for one in handed], given.receipts)
        trials.tidy(host, [one["id"] for one in handed])
    except NotHere as error:
        sys.stderr.write(f"hostcheck: not tried: {error}\n")
        return 1
    except (Failed, ValueError) as error:
        raise BadInput(str(error)) from error
    if sys.stderr.isatty():
        sys.stderr.write("\r\x1b[K")
    render(found[-1], terminal.console())
    for path in files:
        sys.stdout.write(f"receipt: {path}{'' if path == files[-1] else ' (of an earlier run that was killed)'}\n")
    if outcome.kept:
        sys.stdout.write("arm B stays in force until the next boot; playbooks/apply.yml makes it last\n")
    for problem in outcome.unrestored:
        sys.stderr.write(f"hostcheck: RESTORE FAILED: {problem}\n")
    word = found[-1]["verdict"]["word"]
    return 1 if outcome.unrestored or word == "invalid" else 3 if word in ("inconclusive", "vacuous") else 0


def toggle_of(words: Sequence[str]) -> dict[str, Any]:
    """The toggle that the words after ``--toggle`` mean: name, arm B, arm A."""
    import yaml

    try:
        b, a = [yaml.safe_load(text) or {} for text in (*words[1:3], "", "")[:2]]
    except yaml.YAMLError as error:
        raise BadInput(f"--toggle {words[0]}: not YAML: {error}") from error
    if len(words) not in (2, 3) or not isinstance(a, dict) or not isinstance(b, dict):
        raise BadInput(f"--toggle {' '.join(words)}: wanted NAME B [A], each arm such as '{{governor: performance}}'")
    return {"name": words[0], "b": b, "a": a}


def trial_plan(prepared: Any, receipts: str | None) -> list[str]:
    """What a trial would do, for a person."""
    from .noise import last
    from .onhost.trials.run import view
    from .report.kept import FOLDER

    answer = view(prepared)
    plan = answer["plan"]
    lines = [f"measured: {plan['card'] or 'the CPU'}, {plan['metric']} by the {plan['statistic']} of a block"]
    for letter, toggle in zip("AB", plan["toggles"], strict=False):
        which = f" {letter}" if len(plan["toggles"]) == 2 else ""
        lines.append(f"toggle{which}: {toggle['name']}: A {toggle['a']}; B {toggle['b']}")
        lines += [f"  writes {thing}" for thing in toggle["things"]]
        if toggle["evidence"]:
            lines.append(f"  counts only when {', '.join(toggle['evidence'])} differs between the arms")
    more = f", up to {plan['longest_s']:.0f} s" if plan["longest_s"] > plan["expected_s"] else ""
    lines.append(f"time: about {plan['expected_s']:.0f} s{more}")
    noise = last(Path(receipts or FOLDER), "localhost", plan["card"] or "cpu", plan["metric"])
    if noise is None:
        lines.append("effect that it could see: not known, there is no receipt of this host with this metric")
    else:
        shown = ", ".join(f"{noise.detectable(n, plan['alpha']):.1%} with {n} pairs" for n in plan["pairs"])
        lines.append(f"effect that it could see, at the noise of {noise.file}: {shown}")
    lines += [f"stands against it: {why}" for why in (*answer["refused"], *filter(None, [plan["obstacle"]]))]
    return lines


def verify_options(parser: Parser) -> None:
    parser.add_argument(
        "receipts", metavar="FILE", nargs="+", help="receipt of a probe or a trial, or a result over boots"
    )


def verify(given: argparse.Namespace) -> int:
    """Make every figure of a receipt again from its raw samples: 0 all follow, 1 something does not, 2 no receipt."""
    from .boots import is_boots
    from .boots import problems as problems_of_boots
    from .receipts import verify as problems

    code = 0
    for path, receipt in [(path, read_receipt(path)) for path in given.receipts]:
        found = problems_of_boots(Path(path), receipt) if is_boots(receipt) else problems(receipt)
        code = 1 if found else code
        for problem in found:
            sys.stdout.write(f"{path}: {problem}\n")
        if not found and is_boots(receipt):
            sys.stdout.write(f"{path}: every figure follows from {len(receipt['boots'])} receipts\n")
        elif not found:
            valid = "" if receipt["validity"]["valid"] else "; the measurement is invalid, as it says"
            if receipt.get("interrupted"):
                valid = f"; it was interrupted and nothing of it may be quoted: {receipt['interrupted']}"
            sys.stdout.write(f"{path}: every figure follows from {len(receipt['blocks'])} blocks{valid}\n")
    return code


def ready_options(parser: Parser) -> None:
    parser.add_argument("--root", metavar="DIR", default="/", help="read this directory instead of this machine's /")


def ready(given: argparse.Namespace) -> int:
    """May a job start on this host now, by its ready mark and what happened since: 0 yes, 1 no, 3 could not tell."""
    from .onhost.ready.mark import check

    try:
        verdict = check(below(given.root))
    except ValueError as error:
        raise BadInput(str(error)) from error
    sys.stdout.write(f"{verdict.reason}\n")
    return verdict.code


def diff_options(parser: Parser) -> None:
    source_options(parser)
    judge_options(parser)
    parser.add_argument("first", metavar="A", help="a recording, a host's report, the folder of a run, or a host of it")
    parser.add_argument("second", metavar="B", nargs="?", help="the same; without it: this machine, or --recording")
    parser.add_argument("--format", choices=("terminal", "json"), default="terminal", help="default: terminal")
    parser.add_argument("-v", action="count", default=0, dest="verbose", help="every difference, nothing cut")


def diff(given: argparse.Namespace) -> int:
    """Why is host B slower than host A: what differs between two hosts or two runs, most telling first."""
    from .diff import code, compare, hosts
    from .expectations import Refused, expectation
    from .report import terminal
    from .report.diff import lines, to_plain

    try:
        expected = expectation(yaml_file(given.expect) if given.expect else {}, given.expect or "")
        first = hosts(given.first, expected)
        if given.second:
            second = hosts(given.second, expected)
        else:
            report = judge(given)
            second = {report.host: report}
    except (Refused, OSError, ValueError) as error:
        raise BadInput(str(error)) from error
    if len(first) == len(second) == 1:
        pairs = [(next(iter(first.values())), next(iter(second.values())))]
    else:
        pairs = [(first[name], second[name]) for name in first if name in second]
    if not pairs:
        raise BadInput(f"no host is in both: {', '.join(first) or 'none'} and {', '.join(second) or 'none'}")
    out, codes, plain = terminal.console(), set(), []
    for one, other in pairs:
        differences = compare(one, other)
        codes.add(code(differences, one, other))
        plain.append(to_plain(one, other, differences))
        for line in lines(one, other, differences, given.verbose) if given.format == "terminal" else ():
            out.print(line)
    if given.format == "json":
        sys.stdout.write(json.dumps(plain, indent=1, sort_keys=True, ensure_ascii=False) + "\n")
    return next(number for number in (1, 3, 0) if number in codes)


def learn_options(parser: Parser) -> None:
    source_options(parser)
    judge_options(parser)
    parser.add_argument(
        "hosts",
        metavar="HOST",
        nargs="*",
        help="recordings, facts, reports, the folder of a run, or hosts of the last run; default: this machine",
    )
    parser.add_argument("-o", metavar="FILE", dest="output", help="write the file here; default: standard output")
    parser.add_argument("--group-vars", action="store_true", help="as the variable hostcheck_expect of an inventory")


def learn(given: argparse.Namespace) -> int:
    """Write an expectation file from a good host, or from the common part of several; 3 when nothing was learned."""
    from . import learn as learned
    from .diff import hosts
    from .expectations import Refused, expectation

    try:
        expected = expectation(yaml_file(given.expect) if given.expect else {}, given.expect or "")
        found = {name: report for one in given.hosts for name, report in hosts(one, expected).items()}
    except (Refused, OSError, ValueError) as error:
        raise BadInput(str(error)) from error
    reports = list(found.values()) if given.hosts else [judge(given)]
    if not reports:
        raise BadInput(f"no host in {', '.join(given.hosts)}")
    entries = learned.learn(reports)
    text = learned.text(entries, reports, given.group_vars)
    if given.output:
        write_out(given.output, text)
    else:
        sys.stdout.write(text)
    wanted = sum(not entry.reason for entry in entries)
    sys.stderr.write(
        f"learned from {len(reports)} host{'' if len(reports) == 1 else 's'}: {wanted} wanted, "
        f"{len(entries) - wanted} commented out with the reason{f'; {given.output}' if given.output else ''}\n"
    )
    return 0 if wanted else 3


def explain_symptom(given: argparse.Namespace) -> int:
    """Find the symptoms that a person means, and what the checks that tell say of this host; 1 when none is known."""
    from .decisions import SYMPTOMS, matching
    from .findings import HOST
    from .report import terminal

    out = terminal.console()
    rows = matching(given.symptom)
    if not rows:
        out.print("no symptom has a word of that; known are:")
        for row in SYMPTOMS:
            out.print(f"  {row.seen}")
        return 1
    report = judge(given)
    told = [*report.findings, *(one for cause in report.findings for one in cause.explains)]
    for row in rows:
        out.print(row.seen, style="bold")
        out.print(f"  likely: {row.cause}")
        for id in row.checks:
            found = [one for one in told if one.id == id]
            for group in terminal.grouped(found):
                first = group[0]
                names = " ".join(one.subject.name for one in group if one.subject != HOST)
                line = f"  {first.status.value:<15}{id}{f'  {names}' if names else ''}  "
                out.print(line + terminal.visible(first.seen), style=terminal.STYLE[first.status])
            if not found:
                out.print(f"  {'-':<15}{id}  nothing here for it to judge")
        out.print(f"  then: {row.then}")
    return 0


Verb = tuple[Callable[[argparse.Namespace], int], Callable[[Parser], None]]
VERBS: dict[str, Verb] = {
    "audit": (audit, audit_options),
    "record": (record, record_options),
    "report": (report, report_options),
    "explain": (explain, explain_options),
    "topology": (topology, topology_options),
    "next-boot": (next_boot, next_boot_options),
    "diff": (diff, diff_options),
    "learn": (learn, learn_options),
    "probe": (probe, probe_options),
    "trial": (trial, trial_options),
    "verify": (verify, verify_options),
    "ready": (ready, ready_options),
}

EPILOG = """\
examples:
  hostcheck audit                                  this machine, read-only
  hostcheck audit --recording host.json            a recorded host, anywhere
  hostcheck audit --expect class.yml --format json what a program reads
  hostcheck record -o host.json                    a redacted recording of this machine
  hostcheck explain pcie.link.width                what a check looks at, and why
  hostcheck explain --symptom "two cards are slow" which checks tell, and what they say here
  hostcheck topology                               every hop from root port to card
  hostcheck diff fast.json slow.json               why is the second host slower
  hostcheck learn good.json -o class.yml           what a good host is, as an expectation
  hostcheck report reports/latest                  the last run of the playbook
  hostcheck probe --quick                          submission latency of every card
  hostcheck trial --plan --toggle cpu_governor '{governor: performance}'   what a trial here would do
  hostcheck verify receipt.json                    does every figure follow from its samples?
  hostcheck ready                                  may a job start here now?

exit codes: 0 nothing failing, 1 an unwaived fail, 2 wrong use or bad input,
            3 nothing failing but a required check could not be judged
"""


class _Parser(Parser):
    def error(self, message: str) -> NoReturn:
        raise BadInput(f"{message}\n{self.format_usage().strip()}\nmore: {self.prog} --help")


def parser() -> Parser:
    """The whole command line."""
    top = _Parser(
        prog="hostcheck",
        description="Audit, fix and prove the state of Linux hosts with Intel Arc GPUs.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    top.add_argument("--version", action="version", version=f"hostcheck {__version__}")
    verbs = top.add_subparsers(metavar="VERB", required=True, parser_class=_Parser)
    for name, (function, options) in VERBS.items():
        text = inspect.getdoc(function) or ""
        verb = verbs.add_parser(name, help=text.splitlines()[0], description=text)
        options(verb)
        verb.set_defaults(function=function)
    return top


def main(argv: Sequence[str] | None = None) -> int:
    """Entry point. Returns the exit code."""
    try:
        given = parser().parse_args(argv)
        return int(given.function(given))
    except BadInput as error:
        sys.stderr.write(f"hostcheck: {error}\n")
        return 2
    except BrokenPipeError:
        sys.stderr.close()
        return 2
    except KeyboardInterrupt:
        sys.stderr.write("hostcheck: interrupted\n")
        return 130


if __name__ == "__main__":
    sys.exit(main())
