"""The learning rate of each group of cells, by validation accuracy; and the smallest of candidates that tie.

Test accuracy is carried along and summarised; no choice in this file reads it.
"""

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import pandas as pd
from jaxtyping import Float

from pliant.errors import ConfigError
from pliant.stats.cells import Key, check_runs, groups, lay_out
from pliant.stats.summary import Summary, summarize
from pliant.stats.tables import Unavailable, merge_close

Edge = Literal["low", "high", "only"]
Per = Literal["mean", "seed"]


@dataclass(frozen=True)
class Choice:
    """The learning rate that validation accuracy chooses for one group of cells, and the test accuracy it leads to.

    Attributes:
        by: columns that define the group.
        key: the group's values in them.
        per: "mean": one rate, by mean validation accuracy over seeds; "seed": a rate for each seed.
        learning_rates: the chosen rate; one for each seed, in the seeds' order, under per="seed".
        grid: every rate tried, unfinished cells and what pruning gave up included, ascending.
        seeds: those of the chosen cells, ascending.
        validation: accuracy of the chosen cells, over seeds.
        test: the same on the test set; None if one of the chosen cells has no test accuracy.
        edge: where a chosen rate lies at the end of the grid; "only" if the grid has a single rate.
        tied: other rates with the same validation accuracy (the smallest rate is taken).
        diverged: cells of the group that diverged.
        unfinished: cells of the group that have no validation accuracy for another reason.
    """

    by: tuple[str, ...]
    key: Key
    per: Per
    learning_rates: tuple[float, ...]
    grid: tuple[float, ...]
    seeds: tuple[int, ...]
    validation: Summary
    test: Summary | None
    edge: Edge | None
    tied: tuple[float, ...]
    diverged: int
    unfinished: int

    @property
    def name(self) -> str:
        """The group, for messages: "pet/mha"."""
        return "/".join(self.key)

    @property
    def warnings(self) -> tuple[str, ...]:
        """What a reader of this choice should know, a sentence each."""
        rates = " and ".join(f"{rate:g}" for rate in sorted(set(self.learning_rates)))
        tied = ", ".join(f"{rate:g}" for rate in self.tied)
        known = (
            (self.edge == "only", f"only one learning rate was tried ({rates})"),
            (self.edge in ("low", "high"), f"learning rate {rates} is at the {self.edge} end of its grid; widen it"),
            (len(self.seeds) == 1, "one seed; how much seeds matter is unknown"),
            (bool(self.tied), f"learning rates {tied} validate as well; the smallest is taken"),
            (self.diverged > 0, f"cells that diverged: {self.diverged}"),
            (self.unfinished > 0, f"cells without a result: {self.unfinished}"),
            (self.test is None, "a chosen cell has no test accuracy"),
        )
        return tuple(f"{self.name}: {text}." for applies, text in known if applies)


@dataclass(frozen=True)
class Choices:
    """A choice for each group of cells that has a finished one; the other groups stand in `unavailable`."""

    choices: tuple[Choice, ...]
    unavailable: tuple[Unavailable, ...]

    @property
    def warnings(self) -> tuple[str, ...]:
        """Those of all choices, and the groups without one."""
        return (*(text for choice in self.choices for text in choice.warnings), *(u.reason for u in self.unavailable))

    @property
    def frame(self) -> pd.DataFrame:
        """One row for each choice: group, rate (None if seeds chose different ones), mean ± std, edge, counts."""
        rows: list[dict[str, Any]] = []
        for choice in self.choices:
            row: dict[str, Any] = dict(zip(choice.by, choice.key, strict=True))
            row["learning_rate"] = choice.learning_rates[0] if len(set(choice.learning_rates)) == 1 else None
            row |= {"edge": choice.edge, "n": choice.validation.n, "varied": choice.validation.varied}
            for name, summary in (("validation", choice.validation), ("test", choice.test)):
                row[f"{name}_mean"] = None if summary is None else summary.mean
                row[f"{name}_std"] = None if summary is None else summary.std
            rows.append(row | {"diverged": choice.diverged, "unfinished": choice.unfinished})
        return pd.DataFrame(rows)

    def scores(self, *, rows: str = "data", columns: str = "variant") -> pd.DataFrame:
        """Lay out mean test accuracies as data sets x components, for the tests; gaps are nan.

        Raises:
            ConfigError: no choice, or two for one place of the table.
        """
        entries = [(c.by, c.key, None if c.test is None else c.test.mean) for c in self.choices]
        return lay_out(entries, rows=rows, columns=columns)


def choose_learning_rates(
    runs: pd.DataFrame,
    *,
    by: Sequence[str] = ("data", "variant"),
    per: Per = "mean",
    given_up: pd.DataFrame | None = None,
) -> Choices:
    """Choose a learning rate for each group of cells by validation accuracy.

    Under per="mean" a rate competes only if it has finished cells for as many seeds as any rate of its group: one
    that diverged for a seed must not win by the mean of the others. Ties go to the smallest rate.

    Args:
        runs: one row for each cell, with `by`, `learning_rate`, `seed`, `validation_accuracy`, and where there are
            such columns `test_accuracy`, and `status` ("done" counts, "diverged" is counted apart).
        by: columns that define a group; add "model" or "optimizer" where they vary.
        per: one rate for all seeds of a group, or one for each.
        given_up: `learning_rate` that pruning tried in short runs and left, with columns that say of which group: it
            cannot be chosen, but the grid does not end before it.

    Raises:
        ConfigError: a missing column, no rows, two cells of a group with the same rate and seed.
    """
    choices: list[Choice] = []
    unavailable: list[Unavailable] = []
    for key, cells in groups(check_runs(runs, by), by):
        if cells["finished"].any():
            left = _of_group(given_up, by, key)
            choices.append(_choose(cells, by=tuple(by), key=key, per=per, given_up=left))
        else:
            diverged = int(cells["diverged"].sum())
            reason = f"{'/'.join(key)}: none of its {len(cells)} cells has a validation accuracy ({diverged} diverged)."
            unavailable.append(Unavailable(reason))
    return Choices(tuple(choices), tuple(unavailable))


@dataclass(frozen=True)
class Pick:
    """The smallest of the candidates that tie with the best within one standard error.

    Attributes:
        chosen: the tied candidate with the fewest parameters.
        best: the candidate with the highest accuracy.
        tied: every candidate within one standard error of the best, itself included, best first.
        stderr: the best's standard error.
    """

    chosen: str
    best: str
    tied: tuple[str, ...]
    stderr: float


def fewest_within_error(
    accuracy: Mapping[str, float], stderr: Mapping[str, float], *, parameters: Mapping[str, int]
) -> Pick:
    """Take the fewest parameters whose validation accuracy is within one standard error of the best.

    The error is that of the best candidate. Equal sizes are decided by accuracy, then by the order given.

    >>> error = {"mha": 0.02, "ln1": 0.02}
    >>> fewest_within_error({"mha": 0.90, "ln1": 0.89}, error, parameters={"mha": 9216, "ln1": 192}).chosen
    'ln1'

    Raises:
        ConfigError: no candidate, one without error or parameter count, or a value that is not finite.
    """
    if not accuracy:
        raise ConfigError("no candidate to choose from: accuracy is empty.")
    lacking = [name for name in accuracy if name not in stderr or name not in parameters]
    if lacking:
        raise ConfigError(f"no standard error or parameter count for {', '.join(lacking)}.")
    bad = [name for name in accuracy if not (math.isfinite(accuracy[name]) and math.isfinite(stderr[name]))]
    if bad:
        raise ConfigError(f"accuracy and standard error must be finite numbers; not so for {', '.join(bad)}.")
    ranked = sorted(accuracy, key=lambda name: -accuracy[name])
    best = ranked[0]
    tied = [name for name in ranked if accuracy[best] - accuracy[name] <= stderr[best] * (1 + 1e-12)]
    return Pick(min(tied, key=lambda name: parameters[name]), best, tuple(tied), stderr[best])


def _of_group(given_up: pd.DataFrame | None, by: Sequence[str], key: Key) -> list[float]:
    """Return the learning rates of those rows that say of a group's columns what the group does."""
    if given_up is None:
        return []
    rows = given_up
    for name, value in zip(by, key, strict=True):
        if name in rows.columns:
            rows = rows[rows[name].astype(str) == value]
    return [float(rate) for rate in rows["learning_rate"]]


def _choose(
    cells: pd.DataFrame, *, by: tuple[str, ...], key: Key, per: Per, given_up: Collection[float] = ()
) -> Choice:
    finished = cells[cells["finished"]]
    parts = [finished] if per == "mean" else [of_seed for _, of_seed in finished.groupby("seed")]
    best = [_best_rate(part) for part in parts]
    chosen = pd.concat([winners for winners, _ in best]).sort_values("seed")
    rates = [float(rate) for rate in chosen["learning_rate"]]
    grid = np.union1d(cells["learning_rate"].to_numpy(dtype=np.float64), np.asarray(list(given_up), dtype=np.float64))
    test = [float(value) for value in chosen["test_accuracy"]] if "test_accuracy" in chosen.columns else [math.nan]
    diverged = int(cells["diverged"].sum())
    return Choice(
        by=by,
        key=key,
        per=per,
        learning_rates=tuple(rates) if per == "seed" else (rates[0],),
        grid=tuple(grid.tolist()),
        seeds=tuple(int(seed) for seed in chosen["seed"]),
        validation=summarize([float(value) for value in chosen["validation_accuracy"]]),
        test=summarize(test) if np.isfinite(test).all() else None,
        edge=_edge(rates, grid),
        tied=tuple(sorted({rate for _, ties in best for rate in ties})),
        diverged=diverged,
        unfinished=int((~cells["finished"] & ~cells["diverged"]).sum()),
    )


def _best_rate(finished: pd.DataFrame) -> tuple[pd.DataFrame, list[float]]:
    """Return the cells of the rate with the best mean validation accuracy, and the larger rates that tie with it."""
    accuracy = finished.groupby("learning_rate", sort=True)["validation_accuracy"]
    counts = accuracy.count()
    means = accuracy.mean()[counts == counts.max()]
    merged = merge_close(means.to_numpy(dtype=np.float64), scale=float(means.abs().max()))
    best = [float(rate) for rate in means.index[merged == merged.max()].to_numpy(dtype=np.float64)]
    return finished[finished["learning_rate"] == best[0]], best[1:]


def _edge(rates: Sequence[float], grid: Float[np.ndarray, " rates"]) -> Edge | None:
    if grid.size == 1:
        return "only"
    return "low" if grid[0] in rates else "high" if grid[-1] in rates else None
