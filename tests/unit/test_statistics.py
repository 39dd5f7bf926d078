"""The statistics of the probe against scipy, numpy and brute force."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
import scipy.stats
from hypothesis import given
from hypothesis import strategies as st

from hostcheck.onhost.probe import statistics

# Differences that a pair of blocks can show; distinct magnitudes unless a test wants ties.
RATIOS = st.floats(-0.7, 0.7).filter(lambda x: abs(x) > 1e-6)
DISTINCT = st.lists(RATIOS, min_size=1, max_size=14, unique_by=lambda x: round(abs(x), 7))
TIED = st.lists(st.integers(-3, 3).map(float), min_size=1, max_size=11)


@given(st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=60), st.floats(0, 1))
def test_quantile_is_numpys(values: list[float], q: float) -> None:
    assert statistics.quantile(values, q) == pytest.approx(np.quantile(values, q), rel=1e-9, abs=1e-9)


@pytest.mark.parametrize("name", statistics.STATISTICS)
def test_statistics_by_name(name: str) -> None:
    values = [5.0, 1.0, 4.0, 4.0, 9.0]
    wanted = {
        "median": 4.0,
        "p10": np.quantile(values, 0.1),
        "p99": np.quantile(values, 0.99),
        "mean": 4.6,
        "min": 1,
        "max": 9,
    }
    assert statistics.statistic(values, name) == pytest.approx(wanted[name])


def test_wrong_use_says_what_it_got() -> None:
    with pytest.raises(ValueError, match="'mode' of 1"):
        statistics.statistic([1.0], "mode")
    with pytest.raises(ValueError, match="no values"):
        statistics.median([])
    with pytest.raises(ValueError, match="got 2"):
        statistics.quantile([1.0], 2)
    with pytest.raises(ValueError, match="positive latencies, got 0"):
        statistics.log_ratios([(0.0, 1.0)])
    with pytest.raises(ValueError, match="effect of zero"):
        statistics.pairs_needed([0.1], 0.0, 0.03)
    with pytest.raises(ValueError, match="alpha"):
        statistics.hodges_lehmann([0.1], 0.0)
    with pytest.raises(ValueError, match="sham pairs"):
        statistics.noise_floor([], 16)
    for call in (lambda: statistics.rank_sum([], [1.0]), lambda: statistics.shift([1.0], [], 0.03)):
        with pytest.raises(ValueError, match="empty group"):
            call()
    with pytest.raises(ValueError, match="mean of no"):
        statistics.mean([])


@given(DISTINCT)
def test_signed_rank_is_scipys_exact_test(d: list[float]) -> None:
    ours = statistics.signed_rank(d)
    theirs = scipy.stats.wilcoxon(d, method="exact")
    assert ours.p == pytest.approx(theirs.pvalue, rel=1e-12)
    assert min(ours.w_plus, len(d) * (len(d) + 1) / 2 - ours.w_plus) == theirs.statistic


@given(TIED)
def test_signed_rank_is_exact_for_ties_and_zeros(d: list[float]) -> None:
    moved = [x for x in d if x]
    if not moved:
        assert statistics.signed_rank(d).p == 1.0
        return
    ranks = scipy.stats.rankdata(np.abs(moved))
    seen = abs(float(np.sum(ranks * np.sign(moved))))
    sums = [abs(float(np.dot(ranks, signs))) for signs in itertools.product((-1, 1), repeat=len(moved))]
    assert statistics.signed_rank(d).p == pytest.approx(np.mean(np.array(sums) >= seen - 1e-9))


@given(DISTINCT)
def test_the_other_side_sees_the_same_test(d: list[float]) -> None:
    assert statistics.signed_rank([-x for x in d]).p == statistics.signed_rank(d).p


@pytest.mark.parametrize("n", [6, 8, 12, 16, 40])
def test_smallest_p(n: int) -> None:
    assert statistics.signed_rank([0.1 + i / 1000 for i in range(n)]).p == 2 / 2**n


@given(
    st.lists(RATIOS, min_size=6, max_size=16, unique_by=lambda x: round(abs(x), 7)), st.sampled_from([0.03, 0.05, 0.2])
)
def test_interval_holds_exactly_the_shifts_that_the_test_accepts(d: list[float], alpha: float) -> None:
    found = statistics.hodges_lehmann(d, alpha)
    averages = [(a + b) / 2 for i, a in enumerate(d) for b in d[i:]]
    assert found.estimate == pytest.approx(np.median(averages), abs=1e-12)
    assert found.confidence >= 1 - alpha
    if math.isinf(found.low):
        assert 2 / 2 ** len(d) > alpha
        return
    step = 1e-9
    for inside, outside in ((found.low + step, found.low - step), (found.high - step, found.high + step)):
        assert scipy.stats.wilcoxon([x - outside for x in d], method="exact").pvalue <= alpha
        if found.high - found.low > 4 * step:
            assert scipy.stats.wilcoxon([x - inside for x in d], method="exact").pvalue > alpha


def test_interval_covers_as_often_as_it_says() -> None:
    draws = np.random.default_rng(11).normal(0.05, 0.1, (2000, 12))
    inside = [(f := statistics.hodges_lehmann(list(d), 0.03)).low <= 0.05 <= f.high for d in draws]
    assert np.mean(inside) == pytest.approx(statistics.hodges_lehmann(list(draws[0]), 0.03).confidence, abs=0.012)


def test_interval_of_too_few_pairs_is_unbounded() -> None:
    found = statistics.hodges_lehmann([0.1, 0.2, 0.3, 0.4, 0.5], 0.03)
    assert (found.low, found.high, found.confidence) == (-math.inf, math.inf, 1.0)


@pytest.mark.parametrize("n", [1, 7, 8, 16, 40])
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_noise_floor_is_the_limit_of_many_draws(n: int, seed: int) -> None:
    random = np.random.default_rng(seed)
    sham = random.normal(0, 0.03, 12)
    draws = np.abs(np.median(random.choice(sham, (60_000, n)) * random.choice([-1, 1], (60_000, n)), axis=1))
    floor = statistics.noise_floor(list(sham), n)
    assert np.mean(draws <= floor + 1e-12) >= 0.947
    assert np.mean(draws < floor - 1e-12) <= 0.953


@given(st.lists(RATIOS, min_size=1, max_size=14), st.integers(1, 40))
def test_noise_floor_has_no_sign_and_no_unit(sham: list[float], n: int) -> None:
    floor = statistics.noise_floor(sham, n)
    assert 0 <= floor <= max(map(abs, sham))
    assert statistics.noise_floor([-x for x in sham], n) == floor
    assert statistics.noise_floor([2 * x for x in sham], n) == pytest.approx(2 * floor, rel=1e-9)


def test_noise_floor_of_identical_pairs() -> None:
    assert statistics.noise_floor([0.02] * 12, 16) == pytest.approx(0.02)
    assert statistics.noise_floor([0.0] * 12, 16) == 0.0


@given(st.lists(RATIOS, min_size=6, max_size=12), st.integers(6, 40))
def test_planning_figures_are_each_others_inverse(sham: list[float], n: int) -> None:
    effect = statistics.detectable_effect(sham, n, 0.03)
    assert statistics.pairs_needed(sham, effect, 0.03) == n
    assert statistics.detectable_effect(sham, 400 * n, 0.03) < effect / 18


def test_detectable_effect_is_found_about_as_often_as_it_says() -> None:
    random = np.random.default_rng(5)
    sham = list(random.normal(0, 0.03, 4000))
    effect = statistics.detectable_effect(sham, 16, 0.03)
    found = [statistics.signed_rank(list(random.normal(effect, 0.03, 16))).p <= 0.03 for _ in range(1000)]
    assert np.mean(found) == pytest.approx(0.8, abs=0.06)


@given(
    st.lists(st.floats(1, 9), min_size=2, max_size=6, unique=True),
    st.lists(st.floats(10, 19), min_size=2, max_size=6, unique=True),
    st.floats(-12, 2),
)
def test_rank_sum_is_scipys_exact_test(a: list[float], b: list[float], moved: float) -> None:
    b = [x + moved for x in b]
    if len({*a, *b}) < len(a) + len(b):
        return
    assert statistics.rank_sum(a, b) == pytest.approx(scipy.stats.mannwhitneyu(a, b, method="exact").pvalue, rel=1e-9)


@given(st.lists(st.integers(0, 3), min_size=1, max_size=5), st.lists(st.integers(0, 3), min_size=1, max_size=5))
def test_rank_sum_is_exact_for_ties(a: list[int], b: list[int]) -> None:
    ranks = scipy.stats.rankdata([*a, *b])
    sums = [sum(chosen) for chosen in itertools.combinations(ranks, len(a))]
    seen = sum(ranks[: len(a)])
    tails = np.mean([s <= seen + 1e-9 for s in sums]), np.mean([s >= seen - 1e-9 for s in sums])
    assert statistics.rank_sum([*map(float, a)], [*map(float, b)]) == pytest.approx(min(1.0, 2 * min(tails)))


def test_three_boots_against_three_can_never_decide() -> None:
    assert statistics.rank_sum([1, 2, 3], [10, 11, 12]) == pytest.approx(0.10)
    assert statistics.rank_sum([1, 2, 3, 4], [10, 11, 12, 13]) == pytest.approx(0.0286, abs=1e-4)
    assert statistics.rank_sum([1, 2, 3, 4, 5], [10, 11, 12, 13, 14]) == pytest.approx(0.0079, abs=1e-4)


@given(st.integers(3, 6), st.integers(3, 6), st.integers(0, 10_000))
def test_shift_holds_exactly_the_shifts_that_the_test_accepts(n: int, m: int, seed: int) -> None:
    random = np.random.default_rng(seed)
    a, b = list(random.normal(0, 1, n)), list(random.normal(1, 1, m))
    found = statistics.shift(a, b, 0.1)
    assert found.estimate == pytest.approx(np.median([y - x for x in a for y in b]))
    if math.isinf(found.low):
        assert 2 / math.comb(n + m, n) > 0.1
        return
    for end, outward in ((found.low, -1e-9), (found.high, 1e-9)):
        p_out = scipy.stats.mannwhitneyu(a, [y - end - outward for y in b], method="exact").pvalue
        p_in = scipy.stats.mannwhitneyu(a, [y - end + outward for y in b], method="exact").pvalue
        assert p_out <= 0.1 < p_in


@given(st.lists(st.floats(0, 1), min_size=1, max_size=8))
def test_holm_never_lowers_a_p_and_keeps_the_order(p: list[float]) -> None:
    adjusted = statistics.holm(p)
    assert all(a >= b and a <= 1 for a, b in zip(adjusted, p, strict=True))
    assert [adjusted[i] for i in sorted(range(len(p)), key=p.__getitem__)] == sorted(adjusted)
    assert min(adjusted) == pytest.approx(min(1.0, len(p) * min(p)))
