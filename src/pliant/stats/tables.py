"""Tables of scores, data sets x components: checks before a test, complete rows, family means, float ties.

A score table is a pandas frame with one row for each data set and one column for each component set. Every test in
this package takes such a table without gaps; what cannot be tested is refused with the reason, never answered by nan.
"""

from collections.abc import Hashable, Iterable, Mapping
from dataclasses import dataclass

import numpy as np
import pandas as pd
from jaxtyping import Float

from pliant.errors import ConfigError

TIE_TOLERANCE = 1e-12
"""Scores that differ by less than this share of the largest are equal: rounding, not a difference in images."""


@dataclass(frozen=True)
class Unavailable:
    """Stands where a result cannot be given; `reason` is a sentence to print in its place."""

    reason: str


@dataclass(frozen=True)
class Complete:
    """A score table without gaps, and what was left out to get there.

    Attributes:
        table: data sets x components, every cell finite.
        dropped_components: columns without any score.
        dropped_data: data sets in which one of the other components has no score.
    """

    table: pd.DataFrame
    dropped_components: tuple[str, ...]
    dropped_data: tuple[str, ...]


def complete_table(table: pd.DataFrame) -> Complete:
    """Leave out components without any score, then data sets in which a score is missing.

    >>> gaps = pd.DataFrame({"mha": [0.9, 0.8], "fc1": [0.8, None], "emb": [None, None]}, index=["pet", "snow"])
    >>> complete_table(gaps.astype(float)).dropped_components, complete_table(gaps.astype(float)).dropped_data
    (('emb',), ('snow',))
    """
    finite = _finite(table)
    columns = finite.any(axis=0)
    rows = finite.loc[:, columns].all(axis=1) if columns.any() else pd.Series(False, index=table.index)
    return Complete(
        table=table.loc[rows, columns],
        dropped_components=_names(table.columns[~columns]),
        dropped_data=_names(table.index[~rows]),
    )


def check_scores(table: pd.DataFrame, *, purpose: str, data_sets: int = 2, components: int = 2) -> pd.DataFrame:
    """Return `table` as float64 with text labels, or say what keeps it from being tested.

    Args:
        table: data sets x components.
        purpose: what needs the table, as the message's subject ("the Friedman test").
        data_sets: fewest rows that make sense.
        components: fewest columns that make sense.

    Raises:
        ConfigError: too few rows or columns, a label that occurs twice, or a missing score.
    """
    for axis, labels in (("data set", table.index), ("component", table.columns)):
        if labels.has_duplicates:
            twice = ", ".join(sorted(set(_names(labels[labels.duplicated()]))))
            raise ConfigError(f"{purpose} needs one row or column for each {axis}; given more than once: {twice}.")
    if table.shape[0] < data_sets:
        rows = {"family": "families"}.get(varied(table), "data sets")
        raise ConfigError(
            f"{purpose} needs at least {data_sets} {rows}, got {table.shape[0]}"
            f" ({', '.join(_names(table.index)) or 'none'}). Run the same cells on more data sets."
        )
    if table.shape[1] < components:
        raise ConfigError(
            f"{purpose} needs at least {components} components, got {table.shape[1]}"
            f" ({', '.join(_names(table.columns)) or 'none'})."
        )
    finite = _finite(table)
    if not finite.all(axis=None):
        holes = np.argwhere(~finite.to_numpy())
        gaps = [f"{table.index[row]}/{table.columns[column]}" for row, column in holes]
        shown = ", ".join(gaps[:6]) + (f" and {len(gaps) - 6} more" if len(gaps) > 6 else "")
        raise ConfigError(
            f"{purpose} needs every score; missing (data set/component): {shown}."
            " Finish these cells, or take complete_table(...) to leave their data sets out."
        )
    checked = table.astype("float64")
    return checked.set_axis(list(_names(table.index)), axis=0).set_axis(list(_names(table.columns)), axis=1)


def varied(table: pd.DataFrame) -> str:
    """Name what the rows of a score table are, for results to say what varied: "data set" or "family"."""
    return "family" if table.index.name == "family" else "data set"


def family_means(table: pd.DataFrame, families: Mapping[str, str]) -> pd.DataFrame:
    """Average the rows of data sets that share images, so that tests count independent rows only.

    A data set that `families` does not name is a family of its own. Families keep the order of their first data set.

    >>> scores = pd.DataFrame({"mha": [0.9, 0.7, 0.8]}, index=["cifar10", "cifar10-c-snow", "pet"])
    >>> family_means(scores, {"cifar10-c-snow": "cifar10"})["mha"].to_dict()
    {'cifar10': 0.8, 'pet': 0.8}
    """
    checked = check_scores(table, purpose="a mean over families", data_sets=1, components=1)
    names = pd.Index([families.get(str(data), str(data)) for data in checked.index], name="family")
    return checked.groupby(names, sort=False).mean()


def merge_close(values: Float[np.ndarray, " n"], *, scale: float) -> Float[np.ndarray, " n"]:
    """Give values that differ by rounding alone one common value, so that ranks see the tie.

    >>> merge_close(np.array([0.3, 0.1 + 0.2, 0.4]), scale=1.0).tolist()
    [0.3, 0.3, 0.4]
    """
    order = np.argsort(values)
    starts = np.concatenate(([True], np.diff(values[order]) > TIE_TOLERANCE * scale))[: values.size]
    merged = np.empty_like(values)
    merged[order] = values[order][starts][np.cumsum(starts) - 1]
    return merged


def merge_rows(scores: Float[np.ndarray, "data components"]) -> Float[np.ndarray, "data components"]:
    """Apply `merge_close` to each row, at the scale of the row's largest score."""
    return np.stack([merge_close(row, scale=float(np.abs(row).max(initial=0.0))) for row in scores])


def _finite(table: pd.DataFrame) -> pd.DataFrame:
    """Mark the cells that hold a finite number; infinities are no scores."""
    try:
        numbers = table.astype("float64")
    except (TypeError, ValueError) as error:
        raise ConfigError(f"a score table holds numbers only, got something else: {error}.") from error
    return pd.DataFrame(np.isfinite(numbers.to_numpy()), index=table.index, columns=table.columns)


def _names(labels: Iterable[Hashable]) -> tuple[str, ...]:
    return tuple(str(label) for label in labels)
