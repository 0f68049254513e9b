"""Robustness: how much test accuracy varies over learning rates and seeds."""

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Literal

import numpy as np
import pandas as pd

from pliant.stats.cells import Key, check_runs, groups, lay_out
from pliant.stats.tables import Unavailable


@dataclass(frozen=True)
class Spread:
    """How much the test accuracy of one group of cells varies over learning rates and seeds.

    Attributes:
        by: columns that define the group.
        key: the group's values in them.
        n: finished cells, which alone are described.
        missing: cells that diverged, failed or are not finished.
        learning_rates: how many different ones the n cells cover.
        seeds: how many different ones the n cells cover.
        varied: "learning rate and seed".
        mean: over the cells.
        std: over the cells (n - 1); None for one cell.
        quantiles: 0, 25, 50, 75 and 100 %.
        over_rates: standard deviation of the rates' means; None for one rate.
        over_seeds: pooled standard deviation within a rate; None without a repeated rate.
    """

    by: tuple[str, ...]
    key: Key
    n: int
    missing: int
    learning_rates: int
    seeds: int
    varied: str
    mean: float
    std: float | None
    quantiles: tuple[float, float, float, float, float]
    over_rates: float | None
    over_seeds: float | None

    @property
    def range(self) -> float:
        """Highest minus lowest accuracy."""
        return self.quantiles[4] - self.quantiles[0]


@dataclass(frozen=True)
class Robustness:
    """The spread of each group of cells that has a finished one; the other groups stand in `unavailable`."""

    spreads: tuple[Spread, ...]
    unavailable: tuple[Unavailable, ...]

    @property
    def frame(self) -> pd.DataFrame:
        """One row for each group; quantiles as min, q25, median, q75, max."""
        rows = []
        for spread in self.spreads:
            row = asdict(spread)
            named = dict(zip(row.pop("by"), row.pop("key"), strict=True))
            rows.append(named | row | dict(zip(("min", "q25", "median", "q75", "max"), row["quantiles"], strict=True)))
        return pd.DataFrame(rows).drop(columns="quantiles", errors="ignore")

    def table(
        self, *, measure: Literal["std", "range"] = "std", rows: str = "data", columns: str = "variant"
    ) -> pd.DataFrame:
        """Lay out spreads as data sets x components; negate the table for tests in which higher is better.

        Raises:
            ConfigError: no spread, or two for one place of the table.
        """
        entries = [(s.by, s.key, s.std if measure == "std" else s.range) for s in self.spreads]
        return lay_out(entries, rows=rows, columns=columns)


def robustness(runs: pd.DataFrame, *, by: Sequence[str] = ("data", "variant")) -> Robustness:
    """Describe the spread of test accuracy over learning rates and seeds for each group of cells.

    Args:
        runs: one row for each cell, as for `choose_learning_rates`, with `test_accuracy`.
        by: columns that define a group.

    Raises:
        ConfigError: a missing column, no rows, two cells of a group with the same rate and seed.
    """
    spreads: list[Spread] = []
    unavailable: list[Unavailable] = []
    for key, cells in groups(check_runs(runs, by, extra=("test_accuracy",)), by):
        if cells["finished"].any():
            spreads.append(_spread(cells, by=tuple(by), key=key))
        else:
            unavailable.append(Unavailable(f"{'/'.join(key)}: none of its {len(cells)} cells has a test accuracy."))
    return Robustness(tuple(spreads), tuple(unavailable))


def _spread(cells: pd.DataFrame, *, by: tuple[str, ...], key: Key) -> Spread:
    finished = cells[cells["finished"]]
    values = finished["test_accuracy"].to_numpy(dtype=np.float64)
    by_rate = [of_rate["test_accuracy"].to_numpy(dtype=np.float64) for _, of_rate in finished.groupby("learning_rate")]
    repeats = values.size - len(by_rate)
    within = sum(float(np.sum((of_rate - of_rate.mean()) ** 2)) for of_rate in by_rate)
    low, q25, median, q75, high = np.quantile(values, [0.0, 0.25, 0.5, 0.75, 1.0]).tolist()
    return Spread(
        by=by,
        key=key,
        n=values.size,
        missing=len(cells) - values.size,
        learning_rates=len(by_rate),
        seeds=int(finished["seed"].nunique()),
        varied="learning rate and seed",
        mean=float(values.mean()),
        std=float(values.std(ddof=1)) if values.size > 1 else None,
        quantiles=(low, q25, median, q75, high),
        over_rates=float(np.std([of_rate.mean() for of_rate in by_rate], ddof=1)) if len(by_rate) > 1 else None,
        over_seeds=math.sqrt(within / repeats) if repeats else None,
    )
