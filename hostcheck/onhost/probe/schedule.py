"""When which arm is measured: pairs in coin-flip order, sham pairs first, everything from one recorded seed.

Why coin flips: noise that is periodic in the schedule gave 91-96 % false verdicts with fixed ABBA or ABAB
order and 4-5 % with random pairs; with coins the signed-rank test is a randomisation test and valid under any
drift. Why many short blocks: at equal time 0.5-1 s blocks found a 5 % effect in 85-90 % of the runs, 4 s
blocks in 62 %.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass

SHAM, PAIRS, QUADS = "sham", "pairs", "quads"
ARMS_OF_TWO_SWITCHES = ("base", "A", "B", "A+B")


@dataclass(frozen=True)
class Plan:
    """Sizes of a trial.

    sham: A/A pairs per round. looks: total A/B pairs at each planned look. alpha: level of the test at each
    look.
    block_s, settle_s, warm_s: seconds measured, waited after a toggle, and warmed up untimed, per block.
    workers: worker processes that share the pairs, one after the other (never two on one card).
    """

    sham: int = 12
    looks: tuple[int, ...] = (16, 40)
    alpha: float = 0.03
    block_s: float = 0.7
    settle_s: float = 0.3
    warm_s: float = 0.05
    workers: int = 2


FULL = Plan()
# Only effects of 10 % and more on a calm host.
QUICK = Plan(sham=8, looks=(8,), workers=1)


@dataclass(frozen=True)
class Step:
    """One block to measure: the ``position``-th (0 or 1) of pair ``pair`` in ``phase``, on arm ``arm`` (A or
    B). In the phase `QUADS` pair is a block of four with one of each of `ARMS_OF_TWO_SWITCHES`.

    In the sham phase both blocks run the toggle with the value of arm A; the arm names only label them.
    """

    phase: str
    pair: int
    position: int
    arm: str
    worker: int


def orders(seed: int, phase: str, n: int) -> list[str]:
    """Return the order of each of ``n`` pairs, ``"AB"`` or ``"BA"``, by fair coins from the seed.

    A longer list starts with the shorter one, so an extension continues the same coins.

    >>> orders(7, "pairs", 4) == orders(7, "pairs", 9)[:4]
    True
    """
    # Seeding with text is by SHA-512: the same coins on every Python 3.
    coins = random.Random(f"{seed}:{phase}")  # noqa: S311
    return ["BA" if coins.getrandbits(1) else "AB" for _ in range(n)]


def steps(plan: Plan, seed: int, phase: str, first: int, last: int) -> Iterator[Step]:
    """Yield the blocks of pairs ``first`` .. ``last`` - 1 of a phase, in the order in which they are
    measured.
    """
    for pair, order in list(enumerate(orders(seed, phase, last)))[first:]:
        for position, arm in enumerate(order):
            yield Step(phase, pair, position, arm, worker_of(plan, phase, pair))


def worker_of(plan: Plan, phase: str, pair: int) -> int:
    """Return which worker process measures a pair, so that one lucky process cannot decide.

    The sham pairs and the first part of the first look share worker 0; each further part of a look goes to
    the next worker, and a look begins with the worker that is already running.

    >>> [worker_of(FULL, PAIRS, pair) for pair in (0, 7, 8, 15, 16, 27, 28, 39)]
    [0, 0, 1, 1, 1, 1, 2, 2]
    """
    if phase != PAIRS:
        return 0
    begin, running = 0, 0
    for end in plan.looks:
        part = -(-(end - begin) // plan.workers)
        if pair < end:
            return running + (pair - begin) // part
        running += (end - begin - 1) // part
        begin = end
    return running


def quads(seed: int, n: int) -> list[tuple[str, ...]]:
    """Return ``n`` random orders of the four arms of two switches: base, A, B, A+B."""
    coins = random.Random(f"{seed}:quads")  # noqa: S311
    return [tuple(coins.sample(ARMS_OF_TWO_SWITCHES, 4)) for _ in range(n)]


def quad_steps(plan: Plan, seed: int, n: int) -> Iterator[Step]:
    """Yield the blocks of ``n`` quads in the order in which they are measured, shared between the workers as the pairs
    of the first look are.
    """
    part = -(-n // plan.workers)
    for number, order in enumerate(quads(seed, n)):
        for position, arm in enumerate(order):
            yield Step(QUADS, number, position, arm, number // part)


def quads_planned(plan: Plan) -> int:
    """Return how many quads a trial of two switches takes: as many as the first look has pairs, and enough that the
    smallest p after Holm over four tests can be below alpha.

    >>> quads_planned(FULL), quads_planned(QUICK)
    (16, 9)
    """
    n = plan.looks[0]
    while len(ARMS_OF_TWO_SWITCHES) * 2.0 / 2**n > plan.alpha:
        n += 1
    return n


def boots(seed: int, per_arm: int) -> list[str]:
    """Return the arm of each boot, alternating in coin-flipped pairs: for settings that need a reboot."""
    return [arm for order in orders(seed, "boots", per_arm) for arm in order]


def pair_seconds(plan: Plan, toggle_s: float = 0.01) -> float:
    """Return the expected seconds of one pair (two blocks with their toggles)."""
    return 2 * (toggle_s + plan.settle_s + plan.warm_s + plan.block_s)


def expected_seconds(plan: Plan, start_s: float = 20.0, toggle_s: float = 0.01, looks: int = 1) -> float:
    """Return the expected seconds of a trial decided at look ``looks`` (0: sham pairs only): named before it
    starts.
    """
    pairs = plan.sham + (plan.looks[looks - 1] if looks else 0)
    workers = 1 + (worker_of(plan, PAIRS, plan.looks[looks - 1] - 1) if looks else 0)
    return workers * start_s + pairs * pair_seconds(plan, toggle_s)


def expected_quad_seconds(plan: Plan, start_s: float = 20.0, toggle_s: float = 0.01) -> float:
    """Return the expected seconds of a trial of two switches."""
    pair = pair_seconds(plan, toggle_s)
    return plan.workers * start_s + plan.sham * pair + 2 * quads_planned(plan) * pair
