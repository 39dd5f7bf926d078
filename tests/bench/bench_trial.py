"""Three real trials whose outcome is known, on whatever device is here; exits 1 when a verdict is another one.

    python -m tests.bench.bench_trial [--device cuda] [--command python3] [--full] [-o FOLDER]

neighbour   a busy process on the worker's own core in arm B: ``regressed`` (launch_us by the mean of a block: a
            median does not see time slices)
same        the same command on both sides: never ``improved`` or ``regressed``
unreadable  a write that is accepted and changes nothing that can be read back: ``vacuous``

Receipts go into FOLDER as ``trial-DEVICE-NAME.json``. Needs the standard library here and torch in the command's
Python. About 40 s each. On a machine with other jobs the first one ends as ``inconclusive: host too noisy``.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from hostcheck.onhost.probe import session
from hostcheck.onhost.probe.schedule import FULL, QUICK
from hostcheck.onhost.probe.session import Claim, Job, Toggle

BUSY = "while True: pass"


class Neighbour(Toggle):
    """A busy process on one core: none in arm A, one in arm B. Reads back how many run there."""

    toggles = True

    def __init__(self, cpu: int) -> None:
        self.cpu = cpu
        self.process: subprocess.Popen[bytes] | None = None

    def set(self, arm: str) -> None:
        if arm == "B" and self.process is None:
            self.process = subprocess.Popen([sys.executable, "-S", "-c", BUSY])
            os.sched_setaffinity(self.process.pid, {self.cpu})
        elif arm == "A" and self.process is not None:
            self.process.kill()
            self.process.wait()
            self.process = None

    def read(self) -> int:
        if self.process is None or self.process.poll() is not None:
            return 0
        return int(os.sched_getaffinity(self.process.pid) == {self.cpu})

    def restore(self) -> str:
        self.set("A")
        return ""


class Same(Toggle):
    """Runs the same command for both arms."""

    def set(self, arm: str) -> None:
        subprocess.run(["true"], check=True)


class Unreadable(Toggle):
    """Accepts the write and has nothing to read back."""

    toggles = True

    def set(self, arm: str) -> None:
        Path(os.devnull).write_text(arm)


def around() -> dict[str, Any]:
    """Return what can be said about this machine without the toolkit's facts: kernel log, devcoredump nodes."""
    log = subprocess.run(["dmesg"], capture_output=True, text=True, errors="replace", check=False)
    words = ("xid", "engine reset", "gpu hang", "wedged", "devcoredump")
    lines = [line for line in log.stdout.splitlines() if any(word in line.lower() for word in words)]
    nodes = sorted(str(path) for path in Path("/sys/class/devcoredump").glob("devcd*"))
    return {"log": {"read": log.returncode == 0 and bool(log.stdout), "fault_lines": lines}, "coredumps": nodes}


def main() -> int:
    parser = argparse.ArgumentParser(description="Three real trials whose outcome is known.")
    parser.add_argument("--device", default="auto", choices=("auto", "xpu", "cuda", "cpu"))
    parser.add_argument("--command", nargs="+", default=["python3"])
    parser.add_argument("--full", action="store_true", help="16 to 40 pairs in place of 8")
    parser.add_argument("--only", choices=("neighbour", "same", "unreadable"), default=None)
    parser.add_argument("--seed", type=int, default=8)
    parser.add_argument("-o", dest="folder", type=Path, default=None)
    options = parser.parse_args()
    cpu = max(os.sched_getaffinity(0))
    trials: dict[str, tuple[Toggle, dict[str, str], str, tuple[str, ...]]] = {
        "neighbour": (
            Neighbour(cpu),
            {"A": "core to itself", "B": "busy neighbour on the core"},
            "mean",
            ("regressed",),
        ),
        "same": (Same(), {"A": "true", "B": "true"}, "median", ("no_change", "inconclusive")),
        "unreadable": (Unreadable(), {"A": "A written", "B": "B written"}, "median", ("vacuous",)),
    }
    missed = []
    for name, (toggle, arms, statistic, wanted) in trials.items():
        if options.only not in (None, name):
            continue
        job = Job(
            command=options.command,
            device=options.device,
            plan=FULL if options.full else QUICK,
            seed=options.seed,
            metrics=("launch_us", "launch_sync_us"),
            pin=[cpu],
        )
        claim = Claim("launch_us", arms, statistic=statistic, device=options.device)
        with session.ended_by_signals():
            receipt = session.trial(job, claim, toggle, around)
        verdict = receipt["verdict"]
        print(f"{name}: {verdict['sentence']}")
        for reason in verdict["reasons"]:
            print(f"  {reason}", flush=True)
        if verdict["word"] not in wanted:
            missed.append(f"{name}: {verdict['word']}, wanted {' or '.join(wanted)}")
        if options.folder is not None:
            options.folder.mkdir(parents=True, exist_ok=True)
            device = receipt["workers"][0]["identity"]["device"] if receipt["workers"] else options.device
            path = options.folder / f"trial-{device}-{name}.json"
            path.write_text(json.dumps(receipt, separators=(",", ":")) + "\n", encoding="utf-8")
    for line in missed:
        print(f"missed: {line}")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
