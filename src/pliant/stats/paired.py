"""Tests of two component sets over data sets: paired Wilcoxon and t, all pairs with Holm's correction.

Every test is two-sided. Wilcoxon's rules: differences of exactly zero are left out (and counted), equal differences
share their mean rank. The p value is exact wherever it can be: from the signed-rank distribution without ties (up to 50
differences), over all 2^n signs with ties (up to 13), and only beyond that from the normal approximation.
"""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import pandas as pd
from jaxtyping import Float
from scipy import stats

from pliant.errors import ConfigError
from pliant.stats.effects import Estimate, cohen_dz, hodges_lehmann, mean_difference, rank_biserial, signed_differences
from pliant.stats.tables import check_scores, varied

WilcoxonMethod = Literal["exact", "all signs", "normal"]

EXACT_WITHOUT_TIES = 50
EXACT_WITH_TIES = 13


@dataclass(frozen=True)
class PairedTest:
    """Component set `a` against `b` over the same data sets; differences are a - b.

    Attributes:
        n: data sets (or families).
        varied: what the n differences come from.
        zeros: differences of zero, which the Wilcoxon test leaves out.
        wilcoxon_statistic: the smaller of the two rank sums.
        wilcoxon_p: two-sided.
        wilcoxon_method: "exact" (no ties), "all signs" (ties, all 2^n signs), "normal" (approximation).
        wilcoxon_smallest_p: what the test could give at best with so many differences.
        t_p: two-sided paired t test; None where all differences are equal, and it is undefined.
        mean: mean difference with Student's interval.
        hodges_lehmann: median of the pairwise means of differences, with the interval of the signed-rank test.
        cohen_dz: mean over standard deviation of the differences, with the noncentral-t interval.
        rank_biserial: (rank sum of a's wins - of b's wins) / sum of ranks, in [-1, 1].
    """

    a: str
    b: str
    n: int
    varied: str
    zeros: int
    wilcoxon_statistic: float
    wilcoxon_p: float
    wilcoxon_method: WilcoxonMethod
    wilcoxon_smallest_p: float
    t_p: float | None
    mean: Estimate
    hodges_lehmann: Estimate
    cohen_dz: Estimate
    rank_biserial: float


def paired(table: pd.DataFrame, a: str, b: str, *, level: float = 0.95) -> PairedTest:
    """Compare two columns of `table` over its rows.

    Raises:
        ConfigError: fewer than 2 data sets, an unknown column, a missing score, a level outside (0, 1).
    """
    if not 0 < level < 1:
        raise ConfigError(f"a confidence level lies between 0 and 1, got {level}.")
    missing = [name for name in (a, b) if name not in table.columns]
    if missing or a == b:
        known = ", ".join(map(str, table.columns))
        raise ConfigError(f"a paired test needs two different components of the table ({known}), got {a!r}, {b!r}.")
    scores = check_scores(table[[a, b]], purpose=f"the paired test of {a} and {b}")
    difference = signed_differences(scores[a].to_numpy(), scores[b].to_numpy())
    statistic, p, method = wilcoxon(difference)
    nonzero = int(np.count_nonzero(difference))
    varies = bool((difference != difference[0]).any())
    return PairedTest(
        a=a,
        b=b,
        n=difference.size,
        varied=varied(table),
        zeros=difference.size - nonzero,
        wilcoxon_statistic=statistic,
        wilcoxon_p=p,
        wilcoxon_method=method,
        wilcoxon_smallest_p=min(1.0, 2.0 ** (1 - nonzero)),
        t_p=float(stats.ttest_1samp(difference, 0.0).pvalue) if varies else None,
        mean=mean_difference(difference, level=level),
        hodges_lehmann=hodges_lehmann(difference, level=level),
        cohen_dz=cohen_dz(difference, level=level),
        rank_biserial=rank_biserial(difference),
    )


def wilcoxon(difference: Float[np.ndarray, " n"]) -> tuple[float, float, WilcoxonMethod]:
    """Return statistic, two-sided p and method of the signed-rank test, by the rules of this module.

    Without any difference from zero the statistic is 0 and p is 1.

    >>> wilcoxon(np.array([1.0, 2.0, 3.0, 4.0, 5.0]))
    (0.0, 0.0625, 'exact')
    """
    used = difference[difference != 0.0]
    if used.size == 0:
        return 0.0, 1.0, "exact"
    ranks = np.sign(used) * stats.rankdata(np.abs(used))
    statistic = float(min(ranks[ranks > 0].sum(), abs(ranks[ranks < 0].sum())))
    ties = np.unique(np.abs(used)).size < used.size
    if not ties and used.size <= EXACT_WITHOUT_TIES:
        return statistic, float(stats.wilcoxon(used, method="exact").pvalue), "exact"
    if used.size <= EXACT_WITH_TIES:
        signs = stats.permutation_test((ranks,), np.sum, permutation_type="samples", n_resamples=2**used.size)
        return statistic, float(signs.pvalue), "all signs"
    return statistic, float(stats.wilcoxon(used, method="approx").pvalue), "normal"


@dataclass(frozen=True)
class PairwiseTests:
    """Every pair of components, with p values corrected by Holm over all pairs.

    Attributes:
        tests: one for each pair, in the order of the table's columns.
        wilcoxon_holm: Holm's p for each test.
        t_holm: the same for the t tests that are defined; None for the others.
    """

    tests: tuple[PairedTest, ...]
    wilcoxon_holm: tuple[float, ...]
    t_holm: tuple[float | None, ...]

    def of(self, a: str, b: str) -> tuple[PairedTest, float]:
        """Return the test of `a` and `b` (in the table's order) and its Wilcoxon p by Holm.

        Raises:
            ConfigError: no such pair.
        """
        for test, p in zip(self.tests, self.wilcoxon_holm, strict=True):
            if {test.a, test.b} == {a, b} and a != b:
                return test, p
        raise ConfigError(f"no test of {a!r} against {b!r}; tested: {', '.join(f'{t.a}-{t.b}' for t in self.tests)}.")

    @property
    def frame(self) -> pd.DataFrame:
        """One row for each pair: sizes with intervals, raw and corrected p values."""
        rows: list[dict[str, Any]] = []
        for test, wilcoxon_holm, t_holm in zip(self.tests, self.wilcoxon_holm, self.t_holm, strict=True):
            row: dict[str, Any] = {"a": test.a, "b": test.b, "n": test.n, "varied": test.varied, "zeros": test.zeros}
            for name in ("mean", "hodges_lehmann", "cohen_dz"):
                estimate: Estimate = getattr(test, name)
                row |= {name: estimate.value, f"{name}_low": estimate.low, f"{name}_high": estimate.high}
            row |= {"rank_biserial": test.rank_biserial, "wilcoxon_p": test.wilcoxon_p, "wilcoxon_holm": wilcoxon_holm}
            row |= {"wilcoxon_method": test.wilcoxon_method, "wilcoxon_smallest_p": test.wilcoxon_smallest_p}
            rows.append(row | {"t_p": test.t_p, "t_holm": t_holm})
        return pd.DataFrame(rows)


def pairwise(table: pd.DataFrame, *, level: float = 0.95) -> PairwiseTests:
    """Test every pair of columns of `table`; Holm's correction runs over all pairs.

    Raises:
        ConfigError: fewer than 2 data sets or components, a missing score.
    """
    scores = check_scores(table, purpose="paired tests")
    scores.index.name = table.index.name
    tests = [paired(scores, a, b, level=level) for a, b in itertools.combinations(scores.columns, 2)]
    defined = iter(holm([test.t_p for test in tests if test.t_p is not None]))
    return PairwiseTests(
        tests=tuple(tests),
        wilcoxon_holm=holm([test.wilcoxon_p for test in tests]),
        t_holm=tuple(None if test.t_p is None else next(defined) for test in tests),
    )


def holm(p: Sequence[float]) -> tuple[float, ...]:
    """Correct p values for being several (Holm, 1979); in the order given.

    The i-th smallest of m is multiplied by m - i + 1; a larger p never becomes smaller than one below it.

    >>> [round(q, 3) for q in holm([0.04, 0.01, 0.03])]
    [0.06, 0.03, 0.06]

    Raises:
        ConfigError: a value that is no probability.
    """
    values = np.asarray(p, dtype=np.float64)
    if not ((values >= 0) & (values <= 1)).all():
        raise ConfigError(f"Holm's correction takes probabilities from 0 to 1, got {list(p)}.")
    order = np.argsort(values, kind="stable")
    stepped = np.maximum.accumulate(np.arange(values.size, 0, -1) * values[order])
    corrected = np.empty_like(values)
    corrected[order] = np.minimum(stepped, 1.0)
    return tuple(corrected.tolist())
