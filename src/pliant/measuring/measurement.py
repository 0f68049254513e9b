"""The result of measuring plasticity: a tidy table, and where it comes from."""

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pandas as pd

COLUMNS = (
    "component",
    "role",
    "block",
    "depth",
    "plasticity",
    "stderr",
    "ci_low",
    "ci_high",
    "q05",
    "q50",
    "q95",
    "max",
    "ratio_of_means",
    "relative",
    "input_rms",
    "output_rms",
    "token_norm",
    "token_std_min",
    "n_source",
    "n_target",
    "n_pairs",
    "n_dropped",
)
"""Columns of `Measurement.frame`.

plasticity P with its standard error and 95 % interval; quantiles and maximum of the rates; ratio of means (mean output
distance over mean input distance); relative P · ρ_in/ρ_out with ρ the root mean square Frobenius norm of inputs
(input_rms) and outputs (output_rms); scale of the input: mean token norm, smallest token standard deviation; items and
pairs counted, pairs dropped because their inputs were equal. `block` and `depth` count over all stages.
"""

HEAD_COLUMNS = (
    "component",
    "role",
    "block",
    "head",
    *COLUMNS[COLUMNS.index("plasticity") : COLUMNS.index("token_norm")],
)
HEAD_COLUMNS += COLUMNS[COLUMNS.index("n_source") :]
"""Columns of `Measurement.heads`: as `COLUMNS`, for the output of one attention head before the output projection."""


@dataclass(frozen=True)
class Measurement:
    """Plasticity of every component of a model.

    Attributes:
        frame: one row per component, columns as in `COLUMNS`.
        by_role: one row per role: the mean over its blocks, with a standard error that accounts for the blocks' sharing
            the same items, and `spread`, the standard deviation over blocks.
        provenance: model, fingerprint of its weights, family, data and number of items, convention, pairs, seed,
            precision, passes taken and why no more (`stopped`: "data used up", or "sure" under `until`), versions.
        heads: one row per attention head, columns as in `HEAD_COLUMNS`; None unless heads were asked for.
    """

    frame: pd.DataFrame = field(repr=False)
    by_role: pd.DataFrame
    provenance: Mapping[str, Any] = field(repr=False)
    heads: pd.DataFrame | None = field(default=None, repr=False)

    def save(self, path: str | Path) -> Path:
        """Write the table with its provenance as Parquet (`.parquet`), CSV (`.csv`) or JSON (`.json`).

        Parquet and JSON carry everything inside; beside a CSV the rest goes to `<name>.provenance.json`.
        """
        from pliant.measuring.files import write_measurement

        return write_measurement(self, Path(path))

    def about(self) -> dict[str, Any]:
        """Return everything but the table of components as plain values: provenance, by_role, heads."""
        return {
            "provenance": dict(self.provenance),
            "by_role": records(self.by_role),
            "heads": None if self.heads is None else records(self.heads),
        }

    def to_json(self) -> str:
        """Return the whole measurement as JSON: provenance, by_role, heads, components; numbers without loss."""
        return json.dumps({**self.about(), "components": records(self.frame)}, indent=1, allow_nan=False)


def records(frame: pd.DataFrame) -> list[dict[str, Any]]:
    """Return rows as plain values, with None for what is missing or not a number.

    >>> records(pd.DataFrame({"n": [1, 2], "x": [0.5, float("nan")]}))
    [{'n': 1, 'x': 0.5}, {'n': 2, 'x': None}]
    """
    rows = frame.astype(object).where(frame.notna(), None).to_dict(orient="records")
    return [{str(k): v.item() if hasattr(v, "item") else v for k, v in row.items()} for row in rows]


def threads() -> int:
    """Return the number of threads that tensor operations use here."""
    import torch

    return torch.get_num_threads() or (os.cpu_count() or 1)
