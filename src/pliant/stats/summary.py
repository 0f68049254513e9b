"""Mean and spread of repeated values, and the gain over linear probing."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd
from scipy import stats

from pliant.errors import ConfigError
from pliant.stats.tables import check_scores


@dataclass(frozen=True)
class Summary:
    """Mean and spread of repeated values.

    Attributes:
        n: values; varied: what differed between them ("seed").
        mean: their mean; std: sample standard deviation (n - 1), None for one value.
        low, high: Student's interval of the mean at `level`; None for one value.
    """

    n: int
    varied: str
    mean: float
    std: float | None
    low: float | None
    high: float | None
    level: float

    def __str__(self) -> str:
        """Write it with everything a reader needs to judge it."""
        spread = "" if self.std is None else f" ± {self.std:.4f} std"
        return f"{self.mean:.4f}{spread} (n = {self.n}, {self.varied})"


def summarize(values: Sequence[float], *, varied: str = "seed", level: float = 0.95) -> Summary:
    """Summarise repeated values of one quantity.

    >>> str(summarize([0.90, 0.92, 0.94]))
    '0.9200 ± 0.0200 std (n = 3, seed)'

    Raises:
        ConfigError: no value, or one that is not finite.
    """
    array = np.asarray(values, dtype=np.float64)
    if array.size == 0 or not np.isfinite(array).all():
        raise ConfigError(f"a summary over {varied}s needs finite values, got {list(values)}.")
    mean = float(array.mean())
    if array.size == 1:
        return Summary(1, varied, mean, None, None, None, level)
    std = float(array.std(ddof=1))
    reach = float(stats.t.ppf((1 + level) / 2, array.size - 1)) * std / math.sqrt(array.size)
    return Summary(array.size, varied, mean, std, mean - reach, mean + reach, level)


def relative_gain(accuracy: float, probe: float) -> float:
    """Return (accuracy - probe) / probe, the gain over linear probing; both in the same unit.

    >>> relative_gain(0.75, 0.5)
    0.5

    Raises:
        ConfigError: a probe accuracy that is not positive and finite.
    """
    if not (math.isfinite(probe) and probe > 0):
        raise ConfigError(f"the gain over linear probing needs a positive probe accuracy, got {probe}.")
    return (accuracy - probe) / probe


def relative_gains(table: pd.DataFrame, probe: Mapping[str, float]) -> pd.DataFrame:
    """Apply `relative_gain` to a score table; `probe` maps each data set to the probe's accuracy.

    Raises:
        ConfigError: a data set without a probe, fractions mixed with percentages, a missing score.
    """
    scores = check_scores(table, purpose="the gain over linear probing", data_sets=1, components=1)
    missing = [data for data in scores.index if data not in probe]
    if missing:
        raise ConfigError(f"no linear probe for {', '.join(missing)}; run it there (pliant probe), or leave them out.")
    line = pd.Series({data: float(probe[data]) for data in scores.index}, dtype="float64")
    if (scores.to_numpy().max() > 1) != (line.to_numpy().max() > 1):
        raise ConfigError("accuracies and probe differ in unit: one is in percent, the other a fraction of 1.")
    if not bool((line > 0).all()):
        raise ConfigError(f"the gain over linear probing needs positive probe accuracies, got {line.to_dict()}.")
    return scores.sub(line, axis=0).div(line, axis=0)
