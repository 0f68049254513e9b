"""Does a criterion order components as their accuracies do? Rank correlation per data set, beside two controls.

The controls are the number of parameters, which needs no measurement, and a random order, which is 0 in expectation and
spreads as the interval beside each value says. With few components chance alone reaches high correlations, so every p
value comes from the permutations of the criterion over the components: all of them up to 8 components.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

import numpy as np
import pandas as pd
from jaxtyping import Float
from scipy import stats

from pliant.errors import ConfigError
from pliant.stats.tables import check_scores, merge_rows, varied

Correlation = Literal["spearman", "kendall"]
Criterion = Mapping[str, float] | pd.DataFrame

PARAMETERS = "number of parameters"
RANDOM = "random"
RESAMPLES = 50_000


@dataclass(frozen=True)
class DataAssociation:
    """One data set: correlation `value`, and two-sided permutation `p`; both None where all accuracies tie."""

    data: str
    value: float | None
    p: float | None


@dataclass(frozen=True)
class Association:
    """How a criterion's order of components agrees with that of their accuracies.

    Attributes:
        criterion: its name.
        method: "spearman" or "kendall" (tau-b).
        components: those correlated over; k: how many.
        n: data sets (or families) with a defined correlation.
        varied: what the n values come from.
        per_data: a value for each data set, undefined ones included.
        mean: over the n data sets.
        p: two-sided, of the mean: the criterion is permuted alike in every data set, so data sets that resemble each
            other do not count twice. None for the random control.
        exact: p went through every permutation.
        smallest_p: what p could be at best with so many components.
        random_low, random_high: central 95 % of the mean for a random order of the same criterion values.
    """

    criterion: str
    method: Correlation
    components: tuple[str, ...]
    k: int
    n: int
    varied: str
    per_data: tuple[DataAssociation, ...]
    mean: float
    p: float | None
    exact: bool
    smallest_p: float
    random_low: float
    random_high: float

    @property
    def undefined(self) -> tuple[str, ...]:
        """Data sets in which all components tie; they are not in the mean."""
        return tuple(entry.data for entry in self.per_data if entry.value is None)


def associate(
    table: pd.DataFrame,
    criterion: Criterion,
    *,
    name: str = "criterion",
    method: Correlation = "spearman",
    seed: int = 0,
) -> Association:
    """Correlate a criterion with accuracy over components, for each data set and on average.

    Args:
        table: data sets x components, higher is better, no gaps.
        criterion: a value for each component, higher meaning "train this"; or a table like `table`, where it was
            measured on each data set.
        name: of the criterion.
        method: rank correlation; ties count as such in both.
        seed: of the sampled permutations, needed above 8 components.

    Raises:
        ConfigError: fewer than 3 components, a component without criterion, a criterion that is the same for all,
            accuracies that all tie in every data set, a missing score.
    """
    scores = check_scores(table, purpose="a rank correlation over components", data_sets=1, components=3)
    accuracy = merge_rows(scores.to_numpy())
    values = merge_rows(_criterion_rows(scores, criterion, name))
    defined = (accuracy != accuracy[:, :1]).any(axis=1)
    if not defined.any():
        raise ConfigError("all components have the same accuracy in every data set; there is no order to correlate.")
    p, null = _permute(values[defined], accuracy[defined], method, seed)
    low, high = np.quantile(null, [0.025, 0.975]).tolist()
    per_data = [
        _one_data_set(data, values[row], accuracy[row], method=method, seed=seed)
        for row, data in enumerate(scores.index)
    ]
    return Association(
        criterion=name,
        method=method,
        components=tuple(scores.columns),
        k=scores.shape[1],
        n=int(defined.sum()),
        varied=varied(table),
        per_data=tuple(per_data),
        mean=float(np.mean([entry.value for entry in per_data if entry.value is not None])),
        p=p,
        exact=null.size < RESAMPLES,
        smallest_p=min(1.0, 2.0 / null.size),
        random_low=low,
        random_high=high,
    )


def associations(
    table: pd.DataFrame,
    criteria: Mapping[str, Criterion],
    *,
    parameters: Mapping[str, int] | None = None,
    method: Correlation = "spearman",
    seed: int = 0,
) -> tuple[Association, ...]:
    """Correlate several criteria with accuracy, and after them the controls.

    Args:
        table: data sets x components, higher is better, no gaps.
        criteria: name to criterion (see `associate`).
        parameters: trained parameters of each component, the first control; None leaves it out.
        method: rank correlation.
        seed: of the sampled permutations.

    Raises:
        ConfigError: as `associate`.
    """
    named: dict[str, Criterion] = dict(criteria)
    if parameters is not None:
        named[PARAMETERS] = {component: float(count) for component, count in parameters.items()}
    found = [associate(table, values, name=name, method=method, seed=seed) for name, values in named.items()]
    return (*found, random_order(table, method=method, seed=seed))


def random_order(table: pd.DataFrame, *, method: Correlation = "spearman", seed: int = 0) -> Association:
    """The control "random": what an order drawn by chance (without ties) gives, 0 in expectation, with its spread.

    Raises:
        ConfigError: as `associate`.
    """
    order = {str(component): float(place) for place, component in enumerate(table.columns)}
    drawn = associate(table, order, name=RANDOM, method=method, seed=seed)
    expected = tuple(DataAssociation(e.data, None if e.value is None else 0.0, None) for e in drawn.per_data)
    return Association(**(drawn.__dict__ | {"per_data": expected, "mean": 0.0, "p": None}))


def association_table(found: tuple[Association, ...]) -> pd.DataFrame:
    """One row for each criterion: mean, p (missing for the random control), and what chance gives."""
    columns = ("criterion", "method", "mean", "p", "smallest_p", "random_low", "random_high", "n", "varied", "k")
    return pd.DataFrame([{column: getattr(entry, column) for column in columns} for entry in found])


def _criterion_rows(scores: pd.DataFrame, criterion: Criterion, name: str) -> Float[np.ndarray, "data components"]:
    """Lay the criterion out like the scores, one row for each data set."""
    if isinstance(criterion, pd.DataFrame):
        given = criterion.set_axis([str(label) for label in criterion.index], axis=0)
        given = given.set_axis([str(label) for label in given.columns], axis=1)
        absent = [f"data set {label}" for label in scores.index if label not in given.index]
    else:
        given = pd.DataFrame([dict(criterion)] * len(scores), index=scores.index)
        absent = []
    absent += [f"component {label}" for label in scores.columns if label not in given.columns]
    if absent:
        raise ConfigError(f"the criterion {name!r} has no value for {', '.join(absent)}.")
    rows = check_scores(given.loc[scores.index, scores.columns], purpose=f"the criterion {name!r}", data_sets=1)
    values = rows.to_numpy()
    constant = [data for data, row in zip(rows.index, merge_rows(values), strict=True) if (row == row[0]).all()]
    if constant:
        raise ConfigError(
            f"the criterion {name!r} is the same for all components ({', '.join(constant)}): it orders nothing."
        )
    return values


def _one_data_set(
    data: str,
    criterion: Float[np.ndarray, " k"],
    accuracy: Float[np.ndarray, " k"],
    *,
    method: Correlation,
    seed: int,
) -> DataAssociation:
    if (accuracy == accuracy[0]).all():
        return DataAssociation(data, None, None)
    test = stats.spearmanr(criterion, accuracy) if method == "spearman" else stats.kendalltau(criterion, accuracy)
    p, _ = _permute(criterion[None], accuracy[None], method, seed)
    return DataAssociation(data, float(test.statistic), p)


def _permute(
    criterion: Float[np.ndarray, "data k"], accuracy: Float[np.ndarray, "data k"], method: Correlation, seed: int
) -> tuple[float, Float[np.ndarray, " permutations"]]:
    """P value and null distribution of the mean correlation; one permutation of components serves every data set."""
    target = _directions(accuracy, method)

    def mean_correlation(order: np.ndarray, axis: int) -> np.ndarray:
        moved = _directions(criterion[:, order.astype(np.int64)], method)
        return np.asarray((moved * target.reshape(len(target), *(1,) * (order.ndim - 1), -1)).sum(axis=-1).mean(axis=0))

    test = stats.permutation_test(
        (np.arange(criterion.shape[1], dtype=np.float64),),
        mean_correlation,
        permutation_type="pairings",
        vectorized=True,
        n_resamples=RESAMPLES,
        rng=np.random.default_rng(seed),
    )
    return float(test.pvalue), np.asarray(test.null_distribution, dtype=np.float64)


def _directions(values: Float[np.ndarray, "*batch k"], method: Correlation) -> Float[np.ndarray, "*batch m"]:
    """Unit vectors whose inner product is the rank correlation: centred ranks (Spearman), pair signs (Kendall)."""
    if method == "spearman":
        ranks = np.asarray(stats.rankdata(values, axis=-1))
        raw = ranks - ranks.mean(axis=-1, keepdims=True)
    else:
        first, second = np.triu_indices(values.shape[-1], k=1)
        raw = np.sign(values[..., first] - values[..., second])
    return np.asarray(raw / np.linalg.norm(raw, axis=-1, keepdims=True), dtype=np.float64)
