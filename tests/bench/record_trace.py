"""Record how launch_us wanders on this machine when nothing is changed: consecutive blocks, as a trial would
measure them.

    python -m tests.bench.record_trace --device cuda --name h200 [--blocks 240] [--command python3]

Writes ``tests/unit/traces/NAME.json`` with (median, p10) of every block in ns: input of the simulation.
"""

from __future__ import annotations

import argparse
import json
import sys
import time

from hostcheck.onhost.probe import session
from hostcheck.onhost.probe import statistics as figures
from hostcheck.onhost.probe.schedule import FULL
from tests.simulation import TRACES


def main() -> int:
    parser = argparse.ArgumentParser(description="Record consecutive blocks of launch_us.")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--name", required=True)
    parser.add_argument("--blocks", type=int, default=240)
    parser.add_argument("--note", default="", help="what else the machine was doing")
    parser.add_argument("--command", nargs="+", default=["python3"])
    options = parser.parse_args()
    blocks = []
    with session.ended_by_signals(), session.Worker(options.command) as worker:
        started = worker.ask("start", 120.0, device=options.device, life_s=3600.0, metrics=["launch_us"])
        for number in range(options.blocks):
            time.sleep(FULL.settle_s)
            reply = worker.ask("block", 1.0, seconds=FULL.block_s, warm_s=FULL.warm_s, metrics=["launch_us"])
            samples = [x / 400 for x in reply["metrics"]["launch_us"]["samples"]]
            blocks.append([round(figures.median(samples), 3), round(figures.quantile(samples, 0.1), 3)])
            if number % 20 == 0:
                print(f"block {number + 1} of {options.blocks}: {blocks[-1][0]:.0f} ns", file=sys.stderr, flush=True)
    identity = started["identity"]
    TRACES.mkdir(parents=True, exist_ok=True)
    found = {
        "device": identity["device"],
        "torch": identity["torch"],
        "judged": True,
        "note": options.note,
        "blocks": blocks,
    }
    (TRACES / f"{options.name}.json").write_text(json.dumps(found) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
