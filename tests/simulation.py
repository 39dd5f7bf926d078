"""Simulated trials with fixed seeds: what the verdict rules say about noise whose truth is known.

Noise models (block 0.7 s of 20 batches, in log time): *quiet* (batch 1 %, block 0.7 %, slow drift 1 %, 2 %
Pareto spikes), *desk* (3 %, 2 %, drift 2 % and a linear +-6 %, 5 % spikes), *step* (quiet with one +10 %
shift), *per* (quiet with a sine of 5 % and a period of four blocks, in phase with the schedule), *vm* (two
speeds x1.8 apart, dwelling 8 s and 4 s, 10 % spikes). *per_any* has the sine at a random phase: the worst
case there hides a 10 % effect behind pair noise of 7 %, so it is reported and not part of the reach. A
*trace* is a list of (median, p10) of consecutive real blocks in ns; each run starts at a random place of it.
"""

from __future__ import annotations

import json
import math
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from hostcheck.onhost.probe import schedule, verdict
from hostcheck.onhost.probe.schedule import FULL, PAIRS, SHAM

MODELS = ("quiet", "desk", "step", "per", "vm")
TRACES = Path(__file__).parent / "unit" / "traces"
EFFECTS = (0.0, -0.10, -0.30)
BATCHES = 20
BATCH_NOISE = {"quiet": 0.01, "step": 0.01, "per": 0.01, "per_any": 0.01, "desk": 0.03, "vm": 0.02}
SPIKES = {"quiet": 0.02, "step": 0.02, "per": 0.02, "per_any": 0.02, "desk": 0.05, "vm": 0.10}
BLOCKS = 2 * (2 * FULL.sham + FULL.looks[-1])
BLOCK_S = 1.06
CLEAN = verdict.Guards(
    log_read=True, coredumps_before=(), coredumps_after=(), holders=(), throttle_before={}, throttle_after={}
)

Random = np.random.Generator
Levels = Any  # float array, one per block


def levels(random: Random, model: str, n: int) -> Levels:
    """Return the log level of each of ``n`` consecutive blocks, shape [n]."""
    blocks = np.arange(n)
    if model == "desk":
        ends = random.choice([-1, 1]) * 0.06
        return _drift(random, n, 0.02) + random.normal(0, 0.02, n) + ends * (2 * blocks / n - 1)
    if model == "vm":
        state: list[bool] = []
        slow = bool(random.random() < 1 / 3)
        while len(state) < n:
            dwell = random.exponential(4.0 if slow else 8.0) / BLOCK_S
            state += [slow] * max(1, round(dwell))
            slow = not slow
        return np.array(state[:n]) * math.log(1.8) + random.normal(0, 0.01, n)
    calm = _drift(random, n, 0.01) + random.normal(0, 0.007, n)
    if model == "step":
        return calm + (blocks >= random.integers(0, n)) * math.log(1.1)
    if model in ("per", "per_any"):
        phase = random.random() if model == "per_any" else 0.0
        return calm + np.log1p(0.05 * np.sin(2 * np.pi * (blocks / 4 + phase)))
    return calm


def _drift(random: Random, n: int, sd: float, rho: float = 0.9) -> Levels:
    drift = np.empty(n)
    drift[0] = random.normal(0, sd)
    for i in range(1, n):
        drift[i] = rho * drift[i - 1] + random.normal(0, sd * math.sqrt(1 - rho**2))
    return drift


def block_figures(random: Random, model: str, n: int) -> Levels:
    """Return median and p10 of the batches of ``n`` blocks, shape [n, 2]."""
    batches = levels(random, model, n)[:, None] + random.normal(0, BATCH_NOISE[model], (n, BATCHES))
    spikes = (random.random(batches.shape) < SPIKES[model]) * random.pareto(1.5, batches.shape) * 0.5
    times = np.exp(batches) * (1 + spikes)
    return np.stack([np.median(times, axis=1), np.quantile(times, 0.10, axis=1)], axis=1)


def trace(name: str) -> Levels:
    """Return a recorded trace, shape [blocks, 2] in ns (median and p10 of launch_us)."""
    return np.array(json.loads((TRACES / f"{name}.json").read_text())["blocks"], dtype=float)


def traces(judged: bool) -> list[str]:
    """Return the names of the recorded traces that are judged, or of those only reported (their note says why)."""
    return sorted(path.stem for path in TRACES.glob("*.json") if json.loads(path.read_text())["judged"] == judged)


@dataclass
class SimulatedHost:
    """Gives pairs in the order of the seed; arm B takes ``1 + effect`` of the time."""

    figures: Levels
    effect: float
    seed: int
    used: int = 0
    sham: list[list[tuple[float, float]]] = field(default_factory=list)
    sham_p10: list[list[tuple[float, float]]] = field(default_factory=list)
    pairs: list[tuple[float, float]] = field(default_factory=list)
    pairs_p10: list[tuple[float, float]] = field(default_factory=list)
    planned: int = 0

    def take(
        self, phase: str, first: int, last: int, effect: float
    ) -> tuple[list[tuple[float, float]], list[tuple[float, float]]]:
        found: tuple[list[tuple[float, float]], list[tuple[float, float]]] = ([], [])
        for order in schedule.orders(self.seed, phase, last)[first:]:
            two = self.figures[self.used : self.used + 2]
            self.used += 2
            a, b = (two[0], two[1]) if order == "AB" else (two[1], two[0])
            for kind in (0, 1):
                found[kind].append((float(a[kind]), float(b[kind] * (1 + effect))))
        return found

    def trial(self) -> verdict.Trial:
        return verdict.Trial(
            metric="launch_us",
            arms={},
            sham=self.sham,
            pairs=self.pairs,
            guards=CLEAN,
            exercise=verdict.Exercise(iterations=1),
            sham_p10=self.sham_p10,
            pairs_p10=self.pairs_p10,
            planned=self.planned,
        )

    def run(self) -> verdict.Verdict:
        while (step := verdict.next_step(self.trial())) != "stop":
            if step.startswith(SHAM):
                found = self.take(step, 0, FULL.sham, 0.0)
                self.sham.append(found[0])
                self.sham_p10.append(found[1])
            else:
                wanted = int(step.partition(":")[2])
                found = self.take(PAIRS, len(self.pairs), wanted, self.effect)
                self.pairs += found[0]
                self.pairs_p10 += found[1]
                self.planned = wanted
        return verdict.judge(self.trial())


def cell(model: str, effect: float, runs: int, seed: int = 1) -> Counter[str]:
    """Return how often each word comes out of ``runs`` trials in a noise model (or ``trace:NAME``) at a true
    effect.
    """
    random = np.random.default_rng([seed, *model.encode(), round(-1000 * effect)])
    words: Counter[str] = Counter()
    recorded = trace(model.removeprefix("trace:")) if model.startswith("trace:") else None
    for number in range(runs):
        if recorded is None:
            figures = block_figures(random, model, BLOCKS)
        else:
            figures = np.roll(recorded, -int(random.integers(len(recorded))), axis=0)
            figures = np.resize(figures, (BLOCKS, 2))
        words[SimulatedHost(figures, effect, number).run().word] += 1
    return words


def cells() -> list[str]:
    """Return the noise models and recorded traces that the reach covers."""
    return [*MODELS, *(f"trace:{name}" for name in traces(judged=True))]


def reported() -> list[str]:
    """Return the harder cells shown beside the reach: noise in step with the schedule, a host with two speeds."""
    return ["per_any", *(f"trace:{name}" for name in traces(judged=False))]


def wanted_rate(model: str, effect: float) -> float:
    """Return the share of right verdicts that the reach demands at 800 runs (for no effect: of verdicts that
    are not false).
    """
    if effect == 0.0:
        return 1.0 - 0.035
    if effect == -0.10:
        return 0.82 if model == "vm" else 0.95
    return 0.99


def right(words: Counter[str], effect: float) -> int:
    """Return how many verdicts were right: improved at an effect, anything but improved or regressed without
    one.
    """
    if effect == 0.0:
        return sum(words.values()) - words["improved"] - words["regressed"]
    return words["improved"]
