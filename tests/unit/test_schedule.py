"""Which arm is measured when."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hostcheck.onhost.probe import schedule
from hostcheck.onhost.probe.schedule import FULL, PAIRS, QUICK, SHAM

SEEDS = st.integers(0, 2**31 - 1)


def test_coins_of_a_seed_never_change() -> None:
    """A receipt is verified years later by another Python: these are the coins of seed 6 for good."""
    assert schedule.orders(6, PAIRS, 12) == ["BA", "AB", "BA", "BA", "AB", "BA", "AB", "AB", "BA", "AB", "BA", "BA"]
    assert schedule.orders(6, SHAM, 6) == ["AB", "AB", "BA", "BA", "BA", "AB"]


@given(SEEDS, st.integers(0, 60), st.integers(0, 60))
def test_a_longer_list_begins_with_the_shorter_one(seed: int, n: int, more: int) -> None:
    assert schedule.orders(seed, PAIRS, n + more)[:n] == schedule.orders(seed, PAIRS, n)


def test_coins_are_fair_and_phases_have_their_own() -> None:
    tosses = Counter(order for seed in range(400) for order in schedule.orders(seed, PAIRS, 40))
    assert abs(tosses["AB"] - 8000) < 300  # 4.7 standard deviations
    assert schedule.orders(1, PAIRS, 40) != schedule.orders(1, SHAM, 40)


@given(SEEDS, st.sampled_from([FULL, QUICK]), st.sampled_from([SHAM, PAIRS]), st.integers(0, 20), st.integers(0, 20))
def test_every_pair_has_both_arms_side_by_side(
    seed: int, plan: schedule.Plan, phase: str, first: int, more: int
) -> None:
    found = list(schedule.steps(plan, seed, phase, first, first + more))
    assert [step.pair for step in found] == [pair for pair in range(first, first + more) for _ in "AB"]
    assert [step.position for step in found] == [0, 1] * more
    for a, b in zip(found[::2], found[1::2], strict=True):
        assert {a.arm, b.arm} == {"A", "B"}
        assert a.worker == b.worker  # a pair is never split over processes


def test_no_worker_measures_all_pairs_of_a_look() -> None:
    workers = [schedule.worker_of(FULL, PAIRS, pair) for pair in range(40)]
    assert workers == sorted(workers)  # one after the other, never two on one card
    assert Counter(workers[:16]) == {0: 8, 1: 8}
    assert len(set(workers[16:])) == 2
    assert {schedule.worker_of(QUICK, PAIRS, pair) for pair in range(8)} == {0}


@given(SEEDS, st.integers(0, 30))
def test_quads_hold_each_arm_once(seed: int, n: int) -> None:
    assert all(sorted(quad) == sorted(schedule.ARMS_OF_TWO_SWITCHES) for quad in schedule.quads(seed, n))
    assert schedule.quads(seed, n) == schedule.quads(seed, n)


def test_boots_alternate_in_pairs() -> None:
    arms = schedule.boots(3, 4)
    assert Counter(arms) == {"A": 4, "B": 4}
    assert all({arms[i], arms[i + 1]} == {"A", "B"} for i in range(0, 8, 2))


def test_expected_time_is_named_before_it_starts() -> None:
    assert schedule.expected_seconds(FULL) == pytest.approx(100, rel=0.1)  # "about 1.7 min"
    assert schedule.expected_seconds(FULL, looks=2) == pytest.approx(170, rel=0.15)  # "2.5 min extended"
    assert schedule.expected_seconds(QUICK, start_s=5) < 60
    assert schedule.expected_seconds(QUICK, start_s=5, looks=0) < schedule.expected_seconds(QUICK, start_s=5)
