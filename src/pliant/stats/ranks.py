"""Ranks over data sets: Friedman's test, and the data of the critical-difference diagram (Demšar, JMLR 2006)."""

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import pandas as pd
from jaxtyping import Float
from scipy import stats

from pliant.errors import ConfigError
from pliant.stats.paired import pairwise
from pliant.stats.tables import check_scores, merge_rows, varied


@dataclass(frozen=True)
class FriedmanTest:
    """Whether component sets differ in rank over data sets.

    Attributes:
        n: data sets (or families), k: component sets.
        varied: what the n rows are.
        statistic: Friedman's chi-squared, corrected for ties.
        p: from the chi-squared distribution with k - 1 degrees of freedom; rough below about 10 rows.
        p_permutation: from permuting each row's ranks, which is sound for few rows.
        exact: p_permutation went through every permutation, not a sample of them.
        concordance: Kendall's W = statistic / (n (k - 1)), 0 no agreement between rows, 1 full.
        mean_ranks: (component, mean rank), best first; rank 1 is the highest score.
    """

    n: int
    k: int
    varied: str
    statistic: float
    p: float
    p_permutation: float
    exact: bool
    concordance: float
    mean_ranks: tuple[tuple[str, float], ...]


def friedman(table: pd.DataFrame, *, resamples: int = 9999, seed: int = 0) -> FriedmanTest:
    """Test whether the components' ranks differ over the rows of `table` (Friedman, 1937).

    If every component ties in every row, the statistic is 0 and p is 1.

    Args:
        table: data sets x components, higher is better, no gaps.
        resamples: permutations for `p_permutation`; all of them if there are no more than that.
        seed: of the permutations.

    Raises:
        ConfigError: fewer than 2 data sets, fewer than 3 components, a missing score.
    """
    scores = check_scores(table, purpose="the Friedman test", components=3)
    n, k = scores.shape
    ranks = rank_rows(scores)
    everything_ties = bool((ranks == ranks[:, :1]).all())
    test = None if everything_ties else stats.friedmanchisquare(*ranks.T)
    statistic, p = (0.0, 1.0) if test is None else (float(test.statistic), float(test.pvalue))
    mean_ranks = sorted(zip(scores.columns, ranks.mean(axis=0).tolist(), strict=True), key=lambda pair: pair[1])
    return FriedmanTest(
        n=n,
        k=k,
        varied=varied(table),
        statistic=statistic,
        p=p,
        p_permutation=1.0 if everything_ties else _friedman_permutation(ranks, resamples, seed),
        exact=math.factorial(k) ** n <= resamples,
        concordance=statistic / (n * (k - 1)),
        mean_ranks=tuple(mean_ranks),
    )


def rank_rows(scores: pd.DataFrame) -> Float[np.ndarray, "data components"]:
    """Rank each row's scores, 1 for the highest; ties share their mean rank."""
    return np.asarray(stats.rankdata(-merge_rows(scores.to_numpy()), axis=1), dtype=np.float64)


@dataclass(frozen=True)
class CriticalDifference:
    """Mean ranks of component sets and which of them the data do not tell apart.

    Attributes:
        n: data sets (or families), k: component sets.
        varied: what the n rows are.
        alpha: level of both post-hoc tests.
        friedman: the test over all components; the groups mean little where it does not reject.
        mean_ranks: (component, mean rank), best first; rank 1 is the highest score.
        difference: Nemenyi's critical difference of mean ranks.
        nemenyi_groups: longest runs in rank order whose ends are closer than `difference`.
        holm_groups: longest runs in rank order in which no pair differs by Wilcoxon with Holm's correction.
    """

    n: int
    k: int
    varied: str
    alpha: float
    friedman: FriedmanTest
    mean_ranks: tuple[tuple[str, float], ...]
    difference: float
    nemenyi_groups: tuple[tuple[str, ...], ...]
    holm_groups: tuple[tuple[str, ...], ...]

    @property
    def frame(self) -> pd.DataFrame:
        """One row for each component: mean rank, best first."""
        return pd.DataFrame(self.mean_ranks, columns=["component", "mean_rank"])


def critical_difference(table: pd.DataFrame, *, alpha: float = 0.05) -> CriticalDifference:
    """Rank components over data sets and group those that neither post-hoc test tells apart.

    A Wilcoxon–Holm group never joins a pair that differs. A pair that no group joins may still not differ, if a
    component ranked between the two differs from one of them: the table of pairs decides.

    Args:
        table: data sets x components, higher is better, no gaps.
        alpha: level.

    Raises:
        ConfigError: fewer than 2 data sets, fewer than 3 components, a missing score, alpha outside (0, 1).
    """
    test = friedman(table)
    distance = nemenyi_difference(test.k, test.n, alpha=alpha)
    pairs = pairwise(table)
    ranks = dict(test.mean_ranks)
    names = [name for name, _ in test.mean_ranks]
    differing = {
        frozenset((pair.a, pair.b)) for pair, p in zip(pairs.tests, pairs.wilcoxon_holm, strict=True) if p < alpha
    }
    return CriticalDifference(
        n=test.n,
        k=test.k,
        varied=test.varied,
        alpha=alpha,
        friedman=test,
        mean_ranks=test.mean_ranks,
        difference=distance,
        nemenyi_groups=_runs(names, lambda a, b: abs(ranks[a] - ranks[b]) < distance),
        holm_groups=_runs(names, lambda a, b: frozenset((a, b)) not in differing),
    )


def nemenyi_difference(components: int, data_sets: int, *, alpha: float = 0.05) -> float:
    """Return Nemenyi's critical difference q sqrt(k (k + 1) / (6 n)), q from the studentized range over sqrt(2).

    >>> round(nemenyi_difference(4, 14), 2)  # Demšar's example: q = 2.569
    1.25

    Raises:
        ConfigError: fewer than 2 components, no data set, alpha outside (0, 1).
    """
    if components < 2 or data_sets < 1:
        raise ConfigError(f"a critical difference needs 2 components and a data set, got {components}, {data_sets}.")
    if not 0 < alpha < 1:
        raise ConfigError(f"alpha lies between 0 and 1, got {alpha}.")
    quantile = float(stats.studentized_range.ppf(1 - alpha, components, np.inf)) / math.sqrt(2)
    return quantile * math.sqrt(components * (components + 1) / (6 * data_sets))


def _runs(names: list[str], together: Callable[[str, str], bool]) -> tuple[tuple[str, ...], ...]:
    """Longest runs of at least two neighbours in which every pair is `together`; no run within another."""
    found: list[tuple[str, ...]] = []
    end_of_last = 0
    for start in range(len(names)):
        end = start + 1
        while end < len(names) and all(together(name, names[end]) for name in names[start:end]):
            end += 1
        if end - start > 1 and end > end_of_last:
            found.append(tuple(names[start:end]))
            end_of_last = end
    return tuple(found)


def _friedman_permutation(ranks: Float[np.ndarray, "data components"], resamples: int, seed: int) -> float:
    """P of as large a spread of rank sums when each row's ranks are dealt out at random."""

    def spread(*rows: np.ndarray, axis: int) -> np.ndarray:
        sums = np.sum(np.stack(np.broadcast_arrays(*rows)), axis=0)
        return np.asarray(np.sum(sums**2, axis=axis))

    test = stats.permutation_test(
        tuple(ranks),
        spread,
        permutation_type="pairings",
        vectorized=True,
        n_resamples=resamples,
        alternative="greater",
        rng=np.random.default_rng(seed),
    )
    return float(test.pvalue)
