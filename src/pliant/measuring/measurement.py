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
        provenance: model, fingerprint of its weights, family, data, convention, pairs, items, seed, versions.
    """

    frame: pd.DataFrame = field(repr=False)
    by_role: pd.DataFrame
    provenance: Mapping[str, Any] = field(repr=False)
    heads: pd.DataFrame | None = field(default=None, repr=False)

    def save(self, path: str | Path) -> Path:
        """Write the table with its provenance as Parquet (`.parquet`), CSV (`.csv`) or JSON (`.json`).

        Parquet and JSON carry the provenance inside; beside a CSV it goes to `<name>.provenance.json`.
        """
        from pliant.measuring.files import write_measurement

        return write_measurement(self, Path(path))

    def to_json(self) -> str:
        """Return the whole measurement as JSON: provenance, by_role, components."""
        values = {
            "provenance": dict(self.provenance),
            "by_role": json.loads(self.by_role.to_json(orient="records", double_precision=15)),
            "components": json.loads(self.frame.to_json(orient="records", double_precision=15)),
        }
        return json.dumps(values, indent=1)


def threads() -> int:
    """Return the number of threads that tensor operations use here."""
    import torch

    return torch.get_num_threads() or (os.cpu_count() or 1)
