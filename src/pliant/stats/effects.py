"""Differences of pairs: their sizes, standardised or not, each with its interval."""

import math
from dataclasses import dataclass
from functools import reduce

import numpy as np
from jaxtyping import Float
from scipy import optimize, stats

from pliant.stats.tables import merge_close


@dataclass(frozen=True)
class Estimate:
    """A size with its interval; `low` and `high` are None where there is none, and `reason` says why."""

    value: float | None
    low: float | None
    high: float | None
    level: float
    reason: str | None = None


def signed_differences(a: Float[np.ndarray, " n"], b: Float[np.ndarray, " n"]) -> Float[np.ndarray, " n"]:
    """Return a - b, in which differences that are equal but for rounding are equal, and so with zero.

    >>> signed_differences(np.array([0.3, 0.5]), np.array([0.1 + 0.2, 0.4])).tolist()[0]
    0.0
    """
    difference = a - b
    scale = float(max(np.abs(a).max(initial=0.0), np.abs(b).max(initial=0.0)))
    sizes = merge_close(np.concatenate(([0.0], np.abs(difference))), scale=scale)[1:]
    return np.where(sizes == 0.0, 0.0, np.sign(difference) * sizes)


def mean_difference(difference: Float[np.ndarray, " n"], *, level: float) -> Estimate:
    """Mean with Student's interval."""
    mean = float(difference.mean())
    if (difference == difference[0]).all():
        return Estimate(mean, None, None, level, "all differences are equal, so there is no spread to judge by")
    interval = stats.ttest_1samp(difference, 0.0).confidence_interval(level)
    return Estimate(mean, float(interval.low), float(interval.high), level)


def hodges_lehmann(difference: Float[np.ndarray, " n"], *, level: float) -> Estimate:
    """Median of the means of all pairs (each with itself too), with the signed-rank test's interval.

    The interval holds the shifts that the exact test, zeros kept, does not reject; with too few differences even the
    widest interval misses the level, and there is none.

    >>> hodges_lehmann(np.array([1.0, 2.0, 3.0, 4.0, 5.0, 6.0]), level=0.95)
    Estimate(value=3.5, low=1.0, high=6.0, level=0.95, reason=None)
    """
    first, second = np.triu_indices(difference.size)
    walsh = np.sort((difference[first] + difference[second]) / 2)
    cumulative = np.cumsum(signed_rank_probabilities(difference.size))
    outside = int(np.searchsorted(cumulative, (1 - level) / 2 * (1 + 1e-9), side="right"))
    if outside == 0:
        reason = f"{difference.size} differences are too few for a {level:.0%} interval of the signed-rank test"
        return Estimate(float(np.median(walsh)), None, None, level, reason)
    return Estimate(float(np.median(walsh)), float(walsh[outside - 1]), float(walsh[-outside]), level)


def signed_rank_probabilities(n: int) -> Float[np.ndarray, " sums"]:
    """Return P(T = t), t = 0 ... n(n+1)/2, for the rank sum T of n untied differences symmetric about zero.

    Each rank i joins the sum or not with probability 1/2: the product of the polynomials (1 + x^i) / 2.

    >>> signed_rank_probabilities(2).tolist()
    [0.25, 0.25, 0.25, 0.25]
    """
    factors = [np.concatenate(([0.5], np.zeros(i - 1), [0.5])) for i in range(1, n + 1)]
    return np.asarray(reduce(np.convolve, factors, np.ones(1)), dtype=np.float64)


def cohen_dz(difference: Float[np.ndarray, " n"], *, level: float) -> Estimate:
    """Standardised mean difference of pairs, mean / standard deviation (n - 1).

    The interval inverts the noncentral t distribution of t = sqrt(n) d_z.
    """
    if (difference == difference[0]).all():
        return Estimate(None, None, None, level, "all differences are equal, so there is no spread to divide by")
    n = difference.size
    dz = float(difference.mean() / difference.std(ddof=1))
    size = abs(dz) * math.sqrt(n)  # solved on the positive side, so that swapping a and b mirrors the interval exactly
    near, far = (_noncentrality(size, n - 1, q) for q in ((1 + level) / 2, (1 - level) / 2))
    if near is None or far is None:
        return Estimate(dz, None, None, level, "the noncentral t distribution could not be inverted so far out")
    low, high = (near, far) if dz >= 0 else (-far, -near)
    return Estimate(dz, low / math.sqrt(n), high / math.sqrt(n), level)


def rank_biserial(difference: Float[np.ndarray, " n"]) -> float:
    """Matched-pairs rank-biserial correlation (Kerby, 2014): share of rank sum for a minus share for b; 0 if all tie.

    >>> rank_biserial(np.array([1.0, 2.0, -3.0]))
    0.0
    """
    used = difference[difference != 0.0]
    ranks = stats.rankdata(np.abs(used))
    return float(np.sum(np.sign(used) * ranks) / ranks.sum()) if used.size else 0.0


def _noncentrality(t: float, df: int, probability: float) -> float | None:
    """Return the noncentrality that puts a noncentral t variable below `t` with `probability`; None if not found."""

    def excess(noncentrality: float) -> float:
        return float(stats.nct.cdf(t, df, noncentrality)) - probability

    step = 1.0
    while step < 4.0 * (abs(t) + 10.0):  # the bracket grows from t, since far tails of the distribution lose accuracy
        if excess(t - step) > 0.0 > excess(t + step):
            try:
                return float(optimize.brentq(excess, t - step, t + step))
            except ValueError:  # scipy's distribution function is nan at isolated points, mostly for one degree
                return None
        step *= 1.5
    return None
