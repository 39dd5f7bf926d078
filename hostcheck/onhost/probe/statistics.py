"""Statistics of paired block figures, standard library only.

Everything works on natural logarithms of latency ratios: ``d = ln(B / A)`` per pair, so that -d is the same
effect seen from the other side.

scipy gives the same numbers (``wilcoxon(method="exact")``, ``permutation_test``); it costs 200 MB on the
measured host, so it is the oracle of the tests and nothing here needs it.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import NormalDist

# Asymptotic efficiency of the signed-rank test against the t test under normal noise: 3 / pi (Hodges &
# Lehmann 1956).
SIGNED_RANK_EFFICIENCY = 3.0 / math.pi
# Turns a median absolute deviation into a standard deviation under normal noise: 1 / Phi^-1(3/4).
MAD_TO_SD = 1.4826022185056018


@dataclass(frozen=True)
class SignedRank:
    """Exact two-sided Wilcoxon signed-rank test.

    n: pairs that are not exactly zero. w_plus: sum of the ranks of the positive ones (midranks). p:
    two-sided.
    """

    n: int
    w_plus: float
    p: float


@dataclass(frozen=True)
class Interval:
    """An estimate with its confidence interval; ``confidence`` is the coverage that the ranks really give."""

    low: float
    estimate: float
    high: float
    confidence: float


def quantile(values: Sequence[float], q: float) -> float:
    """Return the ``q`` quantile (0..1), linear between order statistics (type 7, numpy's default).

    >>> quantile([1, 2, 3, 4], 0.5)
    2.5

    Raises ValueError for no values or a ``q`` outside 0..1.
    """
    if not values:
        raise ValueError("quantile of no values")
    if not 0.0 <= q <= 1.0:
        raise ValueError(f"expected 0 <= q <= 1, got {q!r}")
    ordered = sorted(values)
    place = q * (len(ordered) - 1)
    below = math.floor(place)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (ordered[above] - ordered[below]) * (place - below)


def median(values: Sequence[float]) -> float:
    """Return the median; ValueError for no values."""
    return quantile(values, 0.5)


def mean(values: Sequence[float]) -> float:
    """Return the arithmetic mean, exactly summed; ValueError for no values."""
    if not values:
        raise ValueError("mean of no values")
    return math.fsum(values) / len(values)


STATISTICS = ("median", "p10", "mean", "p99", "min", "max")


def statistic(values: Sequence[float], name: str) -> float:
    """Return one of `STATISTICS` of ``values``.

    >>> statistic([3, 1, 2], "min")
    1

    Raises ValueError for another name or for no values.
    """
    if name == "median":
        return median(values)
    if name == "p10":
        return quantile(values, 0.10)
    if name == "p99":
        return quantile(values, 0.99)
    if name == "mean":
        return mean(values)
    if name in ("min", "max") and values:
        return min(values) if name == "min" else max(values)
    raise ValueError(f"expected one of {', '.join(STATISTICS)} of at least one value, got {name!r} of {len(values)}")


def log_ratios(pairs: Sequence[tuple[float, float]]) -> list[float]:
    """Return ``ln(B / A)`` of every pair ``(A, B)``; ValueError when a figure is not positive and finite."""
    for a, b in pairs:
        if not (0.0 < a < math.inf and 0.0 < b < math.inf):
            raise ValueError(f"expected two positive latencies, got {a!r} and {b!r}")
    return [math.log(b / a) for a, b in pairs]


def midranks(values: Sequence[float]) -> list[float]:
    """Return the rank of each value, 1 the smallest; equal values share the mean of their ranks.

    >>> midranks([10.0, 20.0, 10.0])
    [1.5, 3.0, 1.5]
    """
    order = sorted(range(len(values)), key=values.__getitem__)
    ranks = [0.0] * len(values)
    first = 0
    while first < len(order):
        last = first
        while last + 1 < len(order) and values[order[last + 1]] == values[order[first]]:
            last += 1
        for place in range(first, last + 1):
            ranks[order[place]] = (first + last) / 2.0 + 1.0
        first = last + 1
    return ranks


@functools.lru_cache(maxsize=64)
def subset_counts(weights: tuple[int, ...]) -> list[int]:
    """Return, for every total 0..sum(weights), how many subsets of ``weights`` have that total.

    This is the null distribution of a signed-rank sum: each sign is a fair coin.

    >>> subset_counts((1, 2))
    [1, 1, 1, 1]
    """
    counts = [1]
    for weight in weights:
        grown = counts + [0] * weight
        for total, count in enumerate(counts):
            grown[total + weight] += count
        counts = grown
    return counts


def signed_rank(d: Sequence[float]) -> SignedRank:
    """Return the exact two-sided signed-rank test that ``d`` is symmetric about zero.

    Exact for ties too (the distribution is that of the midranks at hand). Exact zeros carry no sign and are
    left out; when nothing is left p is 1. With coin-flipped order inside the pairs this is a randomisation
    test.

    >>> signed_rank([1.0, 2.0, 3.0, 4.0, 5.0, 6.0]).p
    0.03125
    """
    moved = [x for x in d if x != 0.0]
    if not moved:
        return SignedRank(n=0, w_plus=0.0, p=1.0)
    ranks = midranks([abs(x) for x in moved])
    doubled = sorted(round(2 * rank) for rank in ranks)  # midranks are halves
    counts = subset_counts(tuple(doubled))
    w_plus = sum(round(2 * rank) for rank, x in zip(ranks, moved) if x > 0)
    tail = min(w_plus, sum(doubled) - w_plus)
    p = min(1.0, 2 * sum(counts[: tail + 1]) / 2 ** len(moved))
    return SignedRank(n=len(moved), w_plus=w_plus / 2.0, p=p)


def walsh_averages(d: Sequence[float]) -> list[float]:
    """Return all ``(d_i + d_j) / 2`` with i <= j, sorted; n (n + 1) / 2 values."""
    return sorted((d[i] + d[j]) / 2.0 for i in range(len(d)) for j in range(i, len(d)))


def hodges_lehmann(d: Sequence[float], alpha: float) -> Interval:
    """Return the Hodges-Lehmann estimate of the centre of ``d`` with its exact order-statistic interval.

    The interval is the set of shifts that the two-sided signed-rank test at ``alpha`` does not reject. When n
    is too small for that level it is unbounded (``-inf``, ``inf``, confidence 1). scipy has no such interval
    for paired data.

    Raises ValueError for no values or an ``alpha`` outside 0..1.
    """
    if not 0.0 < alpha < 1.0:
        raise ValueError(f"expected 0 < alpha < 1, got {alpha!r}")
    averages = walsh_averages(d)
    estimate = median(averages)
    counts, everything = subset_counts(tuple(range(1, len(d) + 1))), 2 ** len(d)
    below, cut = 0, 0  # `below` signings have a sum < cut
    while 2 * (below + counts[cut]) <= alpha * everything:
        below += counts[cut]
        cut += 1
    if cut == 0:
        return Interval(low=-math.inf, estimate=estimate, high=math.inf, confidence=1.0)
    return Interval(averages[cut - 1], estimate, averages[-cut], confidence=1.0 - 2 * below / everything)


def noise_floor(sham: Sequence[float], n: int, level: float = 0.95) -> float:
    """Return how far the median of ``n`` sham pairs strays from zero: the ``level`` quantile of its absolute
    value.

    sham: log ratios of sham (A/A) pairs. Each of the ``n`` draws takes one of them and a random sign. The
    distribution of that
    median is computed, not drawn: it needs no seed, and whoever recomputes it gets the same figure.

    >>> round(noise_floor([0.01, -0.02, 0.03], 1), 6)
    0.03

    Raises ValueError for no sham pairs or ``n`` below 1.
    """
    if not sham or n < 1:
        raise ValueError(f"expected sham pairs and n >= 1, got {len(sham)} pairs and n = {n}")
    magnitudes: dict[float, float] = {}
    for middle, probability in _median_distribution([abs(x) for x in sham], n):
        magnitudes[abs(middle)] = magnitudes.get(abs(middle), 0.0) + probability
    reached = 0.0
    for magnitude in sorted(magnitudes):
        reached += magnitudes[magnitude]
        if reached >= level - 1e-12:
            return magnitude
    return max(magnitudes)


def _median_distribution(magnitudes: Sequence[float], n: int) -> list[tuple[float, float]]:
    """Return ``(median, probability)`` of ``n`` independent draws of a random magnitude with a random
    sign.
    """
    pool = sorted([*magnitudes, *(-x for x in magnitudes)])
    support = sorted(set(pool))
    at_most = [sum(1 for x in pool if x <= v) / len(pool) for v in support]
    at_least = [sum(1 for x in pool if x >= v) / len(pool) for v in support]
    low = (n + 1) // 2  # rank of the lower middle value
    cumulative = [_at_least_successes(n, low, probability) for probability in at_most]
    lower_middle = [cumulative[i] - (cumulative[i - 1] if i else 0.0) for i in range(len(support))]
    if n % 2:
        return list(zip(support, lower_middle))
    # Both middle values: `low` draws are <= v_i with their largest at v_i, the others >= v_j with their
    # smallest at v_j.
    half = n // 2
    ends = [at_most[i] ** half - (at_most[i - 1] ** half if i else 0.0) for i in range(len(support))]
    starts = [
        at_least[j] ** half - (at_least[j + 1] ** half if j + 1 < len(support) else 0.0) for j in range(len(support))
    ]
    ways = math.comb(n, half)
    result: list[tuple[float, float]] = []
    for i, left in enumerate(support):
        apart = 0.0
        for j in range(i + 1, len(support)):
            probability = ways * ends[i] * starts[j]
            apart += probability
            result.append(((left + support[j]) / 2.0, probability))
        result.append((left, max(0.0, lower_middle[i] - apart)))
    return result


def _at_least_successes(n: int, k: int, p: float) -> float:
    """Return the probability of at least ``k`` successes in ``n`` trials of probability ``p``."""
    return math.fsum(math.comb(n, i) * p**i * (1.0 - p) ** (n - i) for i in range(k, n + 1))


def spread(d: Sequence[float]) -> float:
    """Return a robust standard deviation of log ratios that are centred on zero by design (sham pairs)."""
    return MAD_TO_SD * median([abs(x) for x in d])


def detectable_effect(sham: Sequence[float], n: int, alpha: float, power: float = 0.8) -> float:
    """Return the log ratio that ``n`` pairs find with probability ``power``, from the spread of the sham pairs.

    A normal approximation for planning, with the usual correction for few pairs (Guenther 1981): an estimate.
    """
    critical = NormalDist().inv_cdf(1.0 - alpha / 2.0)
    reach = critical + NormalDist().inv_cdf(power)
    return reach * spread(sham) / math.sqrt(max(1.0, n - critical**2 / 2.0) * SIGNED_RANK_EFFICIENCY)


def pairs_needed(sham: Sequence[float], effect: float, alpha: float, power: float = 0.8) -> int:
    """Return how many pairs find a log ratio of ``effect`` with probability ``power``; inverts `detectable_effect`.

    Raises ValueError when ``effect`` is zero.
    """
    if effect == 0.0:
        raise ValueError("no number of pairs finds an effect of zero")
    critical = NormalDist().inv_cdf(1.0 - alpha / 2.0)
    one = detectable_effect(sham, 1, alpha, power)  # of a single degree of freedom
    return max(6, math.ceil((one / abs(effect)) ** 2 + critical**2 / 2.0 - 1e-9))


def rank_sum(a: Sequence[float], b: Sequence[float]) -> float:
    """Return the exact two-sided p of the Wilcoxon rank-sum test of two unpaired groups (one figure per
    boot).

    Midranks for ties, distribution exact for them. The smallest p is 2 / C(n + m, n): 0.1 for 3 against 3 and
    0.029 for 4 against 4, so three boots per arm can never decide.

    Raises ValueError when a group is empty.
    """
    if not a or not b:
        raise ValueError("rank sum of an empty group")
    doubled = [round(2 * rank) for rank in midranks([*a, *b])]
    # chosen[k][s]: ways to choose k of the ranks with sum s
    chosen: list[dict[int, int]] = [{0: 1}] + [{} for _ in a]
    for rank in doubled:
        for k in range(len(a), 0, -1):
            for total, ways in chosen[k - 1].items():
                chosen[k][total + rank] = chosen[k].get(total + rank, 0) + ways
    seen = sum(doubled[: len(a)])
    everything = math.comb(len(doubled), len(a))
    lower = sum(ways for total, ways in chosen[len(a)].items() if total <= seen)
    upper = sum(ways for total, ways in chosen[len(a)].items() if total >= seen)
    return min(1.0, 2 * min(lower, upper) / everything)


def shift(a: Sequence[float], b: Sequence[float], alpha: float) -> Interval:
    """Return the Hodges-Lehmann shift of ``b`` against ``a`` (unpaired) with its exact interval.

    Raises ValueError when a group is empty.
    """
    if not a or not b:
        raise ValueError("shift of an empty group")
    differences = sorted(y - x for x in a for y in b)
    sizes, everything = _mann_whitney_counts(len(a), len(b)), math.comb(len(a) + len(b), len(a))
    below, cut = 0, 0
    while 2 * (below + sizes[cut]) <= alpha * everything:
        below += sizes[cut]
        cut += 1
    estimate = median(differences)
    if cut == 0:
        return Interval(-math.inf, estimate, math.inf, confidence=1.0)
    return Interval(differences[cut - 1], estimate, differences[-cut], confidence=1.0 - 2 * below / everything)


def _mann_whitney_counts(n: int, m: int) -> list[int]:
    """Return for every U in 0..n*m the number of arrangements that give it (no ties)."""
    table: list[list[int]] = [[1] + [0] * (n * m)] + [[0] * (n * m + 1) for _ in range(n)]
    # Choose n of the ranks 1..n+m; U is their sum less n (n + 1) / 2. Counting item by item keeps it exact.
    for place in range(n + m):
        for k in range(min(n, place + 1), 0, -1):
            gain = place - (k - 1)  # items before this one that were not chosen
            for u in range(n * m, gain - 1, -1):
                table[k][u] += table[k - 1][u - gain]
    return table[n]


def holm(p_values: Sequence[float]) -> list[float]:
    """Return the Holm-adjusted p of each test, in the order given.

    >>> holm([0.01, 0.04, 0.03])
    [0.03, 0.06, 0.06]
    """
    order = sorted(range(len(p_values)), key=p_values.__getitem__)
    adjusted, running = [0.0] * len(p_values), 0.0
    for place, index in enumerate(order):
        running = max(running, min(1.0, (len(p_values) - place) * p_values[index]))
        adjusted[index] = running
    return adjusted
