"""Three real trials whose outcome is known, on whatever device is here; exits 1 when a verdict is another one.

    python -m tests.bench.bench_trial [--device cuda] [--command python3] [--full] [-o FOLDER]

neighbour   a busy process on the worker's own core in arm B: ``regressed`` (launch_us by the mean of a block: a
            median does not see time slices)
same        a command that writes down its arm and does nothing else: never ``improved`` or ``regressed``
unreadable  a write that is accepted and changes nothing that can be read back: ``vacuous``

Each is switched by a pair of commands with a read-back, as a person would declare it, with the way back armed. Receipts
go into FOLDER as ``trial-DEVICE-NAME.json``. Needs the standard library here and torch in the command's Python. About
40 s each. Where sham pairs differ too much to tell, nothing was shown and nothing was missed: it is said, not counted.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from hostcheck.onhost.probe import session
from hostcheck.onhost.probe.schedule import FULL, QUICK
from hostcheck.onhost.probe.session import Claim, Job
from hostcheck.onhost.settings.engine import Host
from hostcheck.onhost.trials import catalogue
from hostcheck.onhost.trials.deadman import Deadman
from hostcheck.onhost.trials.journal import Journal
from hostcheck.onhost.trials.switch import Scope, Switches, arms

NEIGHBOUR = """\
#!{python}
import os, signal, subprocess, sys
file = os.environ["HOSTCHECK_ROOT"] + "/pid"
pid = int(open(file).read()) if os.path.exists(file) else 0
if sys.argv[1] == "read":
    print(f"{{int(bool(pid) and os.sched_getaffinity(pid) == {{{cpu}}})}} on core {cpu}")
elif sys.argv[1] == "on" and not pid:
    busy = subprocess.Popen(["{python}", "-S", "-c", "while True: pass"], stdin=subprocess.DEVNULL,
                            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True)
    os.sched_setaffinity(busy.pid, {{{cpu}}})
    print(busy.pid, file=open(file, "w"))
elif sys.argv[1] == "off" and pid:
    os.kill(pid, signal.SIGKILL)
    os.unlink(file)
"""
LABEL = '#!/bin/sh\nfile=$HOSTCHECK_ROOT/label\n[ "$1" = read ] && exec cat "$file"\necho "$1" > "$file"\n'
DEAF = '#!/bin/sh\n[ "$1" = read ] && echo unchanged\nexit 0\n'
VISIBLE = 0.10  # the sham gate's own limit, and far below what a neighbour costs
TRIALS = {
    "neighbour": ("off", "on", "mean", ("regressed",)),
    "same": ("first", "second", "median", ("no_change", "inconclusive")),
    "unreadable": ("first", "second", "median", ("vacuous",)),
}


def host_with(folder: Path, cpu: int) -> Host:
    """A directory that stands for a host, with one program for each trial."""
    programs = folder / "usr/bin"
    programs.mkdir(parents=True)
    (folder / "label").write_text("first\n")
    texts = {"neighbour": NEIGHBOUR.format(python=sys.executable, cpu=cpu), "same": LABEL, "unreadable": DEAF}
    for name, text in texts.items():
        (programs / name).write_text(text)
        (programs / name).chmod(0o755)
    return Host(str(folder))


def around() -> dict[str, Any]:
    """Return what can be said about this machine without the toolkit's facts: kernel log, devcoredump nodes."""
    log = subprocess.run(["dmesg"], capture_output=True, text=True, errors="replace", check=False)
    words = ("xid", "engine reset", "gpu hang", "wedged", "devcoredump")
    lines = [line for line in log.stdout.splitlines() if any(word in line.lower() for word in words)]
    nodes = sorted(str(path) for path in Path("/sys/class/devcoredump").glob("devcd*"))
    return {"log": {"read": log.returncode == 0 and bool(log.stdout), "fault_lines": lines}, "coredumps": nodes}


def run(name: str, host: Host, job: Job) -> dict[str, Any]:
    """One trial; its receipt."""
    a, b, statistic, _ = TRIALS[name]
    wish = {"a": [name, a], "b": [name, b], "read": [name, "read"]}
    switch = catalogue.switch(host, "command", {}, wish, Scope())
    book = Journal(host, name)
    deadman = Deadman(host, book.folder, switch.steps, 900.0)
    toggle = Switches(host, [switch], Scope(), deadman)
    claim = Claim("launch_us", arms([switch]), statistic=statistic, device=job.device)
    with session.ended_by_signals():
        deadman.arm()
        return session.trial(job, claim, toggle, around, kept=book.keep)


def main() -> int:
    parser = argparse.ArgumentParser(description="Three real trials whose outcome is known.")
    parser.add_argument("--device", default="auto", choices=("auto", "xpu", "cuda", "cpu"))
    parser.add_argument("--command", nargs="+", default=[sys.executable])
    parser.add_argument("--full", action="store_true", help="16 to 40 pairs in place of 8")
    parser.add_argument("--only", choices=tuple(TRIALS), default=None)
    parser.add_argument("--seed", type=int, default=8)
    parser.add_argument("-o", dest="folder", type=Path, default=None)
    options = parser.parse_args()
    cpu = max(os.sched_getaffinity(0))
    job = Job(
        command=options.command,
        device=options.device,
        plan=FULL if options.full else QUICK,
        seed=options.seed,
        metrics=("launch_us", "launch_sync_us"),
        pin=[cpu],
    )
    missed = []
    with tempfile.TemporaryDirectory() as folder:
        host = host_with(Path(folder), cpu)
        for name in [options.only] if options.only else TRIALS:
            receipt = run(name, host, job)
            verdict = receipt["verdict"]
            print(f"{name}: {verdict['sentence']}")
            for reason in verdict["reasons"]:
                print(f"  {reason}", flush=True)
            if too_noisy(verdict):
                print("  not shown: this machine is too busy to tell")
            elif verdict["word"] not in TRIALS[name][3]:
                missed.append(f"{name}: {verdict['word']}, wanted {' or '.join(TRIALS[name][3])}")
            if options.folder is not None:
                options.folder.mkdir(parents=True, exist_ok=True)
                device = receipt["workers"][0]["identity"]["device"] if receipt["workers"] else options.device
                path = options.folder / f"trial-{device}-{name}.json"
                path.write_text(json.dumps(receipt, separators=(",", ":")) + "\n", encoding="utf-8")
    for line in missed:
        print(f"missed: {line}")
    return 1 if missed else 0


def too_noisy(verdict: dict[str, Any]) -> bool:
    """Did the sham pairs end it, or could the pairs only have shown more than 10 %?"""
    figures = verdict["figures"]
    return verdict["word"] == "inconclusive" and figures.get("detectable", figures.get("floor", 1.0)) > VISIBLE


if __name__ == "__main__":
    sys.exit(main())
