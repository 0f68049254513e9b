"""The comparison of component sets as one value: every test, or in its place why it cannot be made."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TypeVar

import pandas as pd

from pliant.errors import ConfigError
from pliant.stats.association import Association, Correlation, Criterion, associations
from pliant.stats.paired import PairwiseTests, pairwise
from pliant.stats.ranks import CriticalDifference, FriedmanTest, critical_difference, friedman
from pliant.stats.tables import Unavailable, complete_table, family_means, varied

Result = TypeVar("Result")


@dataclass(frozen=True)
class Comparison:
    """Tests of one score table; a part that the table is too small for is `Unavailable` with its reason.

    Attributes:
        n: rows compared; varied: what they are; components: columns compared.
        means: (component, mean score over the rows).
        dropped_data, dropped_components: left out because a score is missing, or all are.
        families: the same on family means, if families were given and merge any rows.
    """

    n: int
    varied: str
    components: tuple[str, ...]
    means: tuple[tuple[str, float], ...]
    dropped_data: tuple[str, ...]
    dropped_components: tuple[str, ...]
    friedman: FriedmanTest | Unavailable
    pairwise: PairwiseTests | Unavailable
    critical_difference: CriticalDifference | Unavailable
    spearman: tuple[Association, ...] | Unavailable
    kendall: tuple[Association, ...] | Unavailable
    families: "Comparison | None"

    @property
    def unavailable(self) -> tuple[str, ...]:
        """Why parts are missing, each reason once."""
        parts = (self.friedman, self.pairwise, self.critical_difference, self.spearman, self.kendall)
        return tuple(dict.fromkeys(part.reason for part in parts if isinstance(part, Unavailable)))


def compare(
    table: pd.DataFrame,
    *,
    families: Mapping[str, str] | None = None,
    criteria: Mapping[str, Criterion] | None = None,
    parameters: Mapping[str, int] | None = None,
    alpha: float = 0.05,
    seed: int = 0,
) -> Comparison:
    """Make every test that `table` allows, and on family means too.

    Args:
        table: data sets x components, higher is better; gaps leave their data set out (and are listed).
        families: data set to family, for those that share images.
        criteria: name to criterion, to correlate with the scores (see `associate`); only components that every
            criterion and `parameters` know take part, since full fine-tuning or a baseline has no plasticity.
        parameters: trained parameters of each component, as a control beside them.
        alpha: level of the groups in the critical-difference data; intervals have level 1 - alpha.
        seed: of sampled permutations.

    Raises:
        ConfigError: alpha outside (0, 1), a cell that is no number; never for too little data.
    """
    if not 0 < alpha < 1:
        raise ConfigError(f"alpha lies between 0 and 1, got {alpha}.")
    complete = complete_table(table)
    scores = complete.table
    per_family = None
    if families is not None and len({families.get(str(data), str(data)) for data in scores.index}) < len(scores):
        usable = {n: c for n, c in (criteria or {}).items() if not isinstance(c, pd.DataFrame)}
        averaged = family_means(scores, families)
        per_family = compare(averaged, criteria=usable, parameters=parameters, alpha=alpha, seed=seed)
    return Comparison(
        n=len(scores),
        varied=varied(table),
        components=tuple(str(component) for component in scores.columns),
        means=tuple((str(component), float(mean)) for component, mean in scores.mean().items()),
        dropped_data=complete.dropped_data,
        dropped_components=complete.dropped_components,
        friedman=_attempt(lambda: friedman(scores, seed=seed)),
        pairwise=_attempt(lambda: pairwise(scores, level=1 - alpha)),
        critical_difference=_attempt(lambda: critical_difference(scores, alpha=alpha)),
        spearman=_attempt(lambda: _associations(scores, criteria or {}, parameters, method="spearman", seed=seed)),
        kendall=_attempt(lambda: _associations(scores, criteria or {}, parameters, method="kendall", seed=seed)),
        families=per_family,
    )


def _associations(
    scores: pd.DataFrame,
    criteria: Mapping[str, Criterion],
    parameters: Mapping[str, int] | None,
    *,
    method: Correlation,
    seed: int,
) -> tuple[Association, ...]:
    """Correlate over the components that every criterion knows."""
    if not criteria and parameters is None:
        raise ConfigError("no criterion was given to correlate with the scores.")
    known = [set(map(str, criterion)) for criterion in criteria.values()]
    known += [] if parameters is None else [set(parameters)]
    shared = [column for column in scores.columns if all(str(column) in names for names in known)]
    return associations(scores[shared], criteria, parameters=parameters, method=method, seed=seed)


def _attempt(test: Callable[[], Result]) -> Result | Unavailable:
    try:
        return test()
    except ConfigError as error:
        return Unavailable(str(error))
