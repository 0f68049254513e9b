"""The table of runs, one row for each cell: what it must hold, its groups, and laying groups out as a score table.

Columns, as in the frame of a store of runs: `data`, `variant` (what was trained), `learning_rate`, `seed`,
`validation_accuracy`, `test_accuracy`, and where there is one `status` ("done", "diverged", "failed"; anything else is
not finished). Further columns define groups where they vary ("model", "optimizer").
"""

import math
from collections.abc import Iterator, Sequence

import numpy as np
import pandas as pd

from pliant.errors import ConfigError

RUN_COLUMNS = ("learning_rate", "seed", "validation_accuracy")

Key = tuple[str, ...]


def check_runs(runs: pd.DataFrame, by: Sequence[str], *, extra: Sequence[str] = ()) -> pd.DataFrame:
    """Return the runs with `finished` (whether a cell's accuracies count) and `diverged` added.

    Raises:
        ConfigError: a missing column, no rows, two cells of one group with the same learning rate and seed.
    """
    missing = [column for column in (*by, *RUN_COLUMNS, *extra) if column not in runs.columns]
    if missing:
        raise ConfigError(f"a table of runs lacks {', '.join(missing)}; it has {', '.join(map(str, runs.columns))}.")
    if runs.empty:
        raise ConfigError("the table of runs is empty; nothing has been run yet.")
    cell = [*by, "learning_rate", "seed"]
    repeated = runs[runs.duplicated(cell)]
    if not repeated.empty:
        example = ", ".join(f"{column}={repeated.iloc[0][column]}" for column in cell)
        raise ConfigError(f"two cells share {example}; name in `by` what else differs between them.")
    status = runs["status"] if "status" in runs.columns else pd.Series("done", index=runs.index)
    checked = runs.assign(finished=status.eq("done"), diverged=status.eq("diverged"))
    for column in ("learning_rate", "validation_accuracy", "test_accuracy"):
        if column in checked.columns:
            checked[column] = checked[column].astype("float64")
    for column in ("validation_accuracy", *extra):
        checked["finished"] &= np.isfinite(checked[column])
    return checked


def groups(runs: pd.DataFrame, by: Sequence[str]) -> Iterator[tuple[Key, pd.DataFrame]]:
    """Give each group's key as text, and its cells, in the order of first cells."""
    for key, cells in runs.groupby(list(by), sort=False, dropna=False):
        yield tuple(str(part) for part in key), cells


def lay_out(entries: Sequence[tuple[tuple[str, ...], Key, float | None]], *, rows: str, columns: str) -> pd.DataFrame:
    """Put each group's value (`by`, key, value) into a table; what no group fills is nan.

    Raises:
        ConfigError: no group, a column that groups are not made by, two groups for one place.
    """
    if not entries:
        raise ConfigError("nothing to lay out: no group of cells has a result.")
    by = entries[0][0]
    unknown = [name for name in (rows, columns) if name not in by]
    if unknown:
        raise ConfigError(f"the groups do not name {', '.join(unknown)}; they are made by {', '.join(by)}.")
    places: dict[tuple[str, str], float] = {}
    for _, key, value in entries:
        place = (key[by.index(rows)], key[by.index(columns)])
        if place in places:
            raise ConfigError(f"two groups share {'/'.join(place)}; lay out one model and one optimiser at a time.")
        places[place] = math.nan if value is None else value
    across, down = (list(dict.fromkeys(place[i] for place in places)) for i in (1, 0))
    filled = [[places.get((row, column), math.nan) for column in across] for row in down]
    return pd.DataFrame(filled, index=pd.Index(down, name=rows), columns=across, dtype="float64")
