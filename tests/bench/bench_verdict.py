"""False verdicts and power of the trial rules over simulated and recorded noise; exits 1 when the reach is
missed.

    python -m tests.bench.bench_verdict [RUNS]

800 runs per cell by default (about three minutes). Also times the verdict code on a full trial of 40 pairs.
"""

from __future__ import annotations

import statistics
import sys
import time

import numpy as np

from hostcheck.onhost.probe import verdict
from tests import simulation

VERDICT_MS = 150.0


def verdict_ms() -> float:
    """Return the median milliseconds of one verdict over a trial that went to its last look."""
    host = simulation.SimulatedHost(simulation.block_figures(np.random.default_rng(3), "vm", simulation.BLOCKS), 0.0, 3)
    for phase in ("sham", "sham_again"):
        found = host.take(phase, 0, 12, 0.0)
        host.sham.append(found[0])
        host.sham_p10.append(found[1])
    host.pairs, host.pairs_p10 = host.take("pairs", 0, 40, 0.0)
    host.planned = 40
    times = []
    for _ in range(11):
        start = time.perf_counter()
        verdict.judge(host.trial())
        times.append(1000 * (time.perf_counter() - start))
    return statistics.median(times)


def main() -> int:
    runs = int(sys.argv[1]) if len(sys.argv) > 1 else 800
    missed = []
    print(f"{'noise':<18}{'effect':>8}  improved regressed no_change inconclusive   right  wanted  ({runs} runs)")
    for model in [*simulation.cells(), *simulation.reported()]:
        for effect in (*simulation.EFFECTS[:1], -0.05, *simulation.EFFECTS[1:]):
            words = simulation.cell(model, effect, runs)
            right = simulation.right(words, effect) / runs
            judged = effect in simulation.EFFECTS and model not in simulation.reported()
            wanted = simulation.wanted_rate(model, effect) if judged else None
            shares = "".join(
                f"{words[word] / runs:>10.3f}" for word in ("improved", "regressed", "no_change", "inconclusive")
            )
            mark = "" if wanted is None or right >= wanted else "  MISSED"
            demand = f"{wanted:>8.3f}" if wanted is not None else f"{'-':>8}"
            print(f"{model:<18}{effect:>8.0%}{shares}{right:>11.3f}{demand}{mark}", flush=True)
            if mark:
                missed.append(f"{model} at {effect:.0%}: {right:.3f}, wanted {wanted:.3f}")
    took = verdict_ms()
    print(f"verdict of 40 pairs after two sham rounds: {took:.1f} ms, wanted under {VERDICT_MS:.0f}")
    if took >= VERDICT_MS:
        missed.append(f"verdict code took {took:.1f} ms")
    for line in missed:
        print(f"missed: {line}")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
