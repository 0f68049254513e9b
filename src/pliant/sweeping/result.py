"""What a sweep led to."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pandas as pd

from pliant.runs import CellConfig, Record, record_table
from pliant.runs.probes import ProbeKey, ProbeLine
from pliant.runs.pruning import Verdict, given_up
from pliant.stats import choose_learning_rates, robustness

GROUP = ("model", "data", "method", "variant", "optimizer")


@dataclass(frozen=True)
class SweepResult:
    """What a sweep led to, as its store says at its end.

    Attributes:
        recipe: its name.
        folder: of the store.
        cells: of the sweep; with pruning those that were left at the end.
        records: of those that are done, diverged or failed.
        problems: what keeps the others from having a record, a sentence each.
        probes: reference lines, one for each model and data set.
        pruned: how contestants came through the rungs; empty without pruning.
        share: of the sweep's steps that were planned; 1 without pruning.
        seconds: this call took.
    """

    recipe: str
    folder: Path
    cells: tuple[CellConfig, ...]
    records: tuple[Record, ...] = field(repr=False)
    problems: tuple[str, ...]
    probes: tuple[ProbeLine, ...] = field(repr=False)
    pruned: tuple[Verdict, ...] = field(repr=False)
    share: float
    seconds: float

    @property
    def failed(self) -> tuple[Record, ...]:
        """Records of cells that failed."""
        return tuple(record for record in self.records if record.status == "failed")

    @property
    def complete(self) -> bool:
        """Whether every cell has a result; one that diverged is a result."""
        return len(self.records) == len(self.cells) and not self.failed

    @property
    def counts(self) -> dict[str, int]:
        """Number of cells by status; `missing` are those without a record."""
        counts = dict.fromkeys(("done", "diverged", "failed"), 0)
        for record in self.records:
            counts[record.status] += 1
        return {**counts, "missing": len(self.cells) - len(self.records)}

    @property
    def frame(self) -> pd.DataFrame:
        """All records, one row each (see `pliant.runs.record_table`)."""
        return record_table(self.records)

    @property
    def table(self) -> pd.DataFrame:
        """One row for each thing that was trained: the learning rate that validation chose, accuracies over seeds.

        Columns: model, data, train, optimizer, parameters, learning rate, edge (of its grid), seeds, validation, test
        accuracy and its std over seeds, std over rates and over seeds of all cells, diverged; the linear probe has a
        row of its own. Columns with one value throughout are left out.
        """
        rows = [*self._rows(), *map(_probe_row, self.probes)]
        if not rows:
            return pd.DataFrame()
        table = pd.DataFrame(rows).astype({"parameters": "Int64", "seeds": "Int64", "diverged": "Int64"})
        same = [name for name in ("model", "data", "optimizer") if table[name].replace("", None).dropna().nunique() < 2]
        return table.drop(columns=same).reset_index(drop=True)

    def to_json(self) -> dict[str, Any]:
        """Return it as plain values."""
        return {
            "recipe": self.recipe,
            "folder": str(self.folder),
            "counts": self.counts,
            "problems": list(self.problems),
            "records": [record.model_dump(mode="json") for record in self.records],
            "probes": [line.model_dump(mode="json") for line in self.probes],
            "pruned": [vars(verdict) for verdict in self.pruned],
            "share_of_steps": self.share,
            "seconds": self.seconds,
        }

    def _rows(self) -> list[dict[str, object]]:
        runs = self.frame
        runs = runs[runs["status"] != "failed"]
        if runs.empty:
            return []
        varying = [name for name in _SETTINGS if runs[name].nunique(dropna=False) > 1]
        by = [*GROUP, *varying]
        spread = {s.key: s for s in robustness(runs, by=by).spreads}
        rows = []
        for choice in choose_learning_rates(runs, by=by, given_up=given_up(self.pruned)).choices:
            key = dict(zip(choice.by, choice.key, strict=True))
            own = runs[(runs[list(by)].astype(str) == pd.Series(key)).all(axis=1)]
            wide = spread.get(choice.key)
            rows.append(
                {
                    "model": key["model"],
                    "data": key["data"],
                    "train": " ".join([key["variant"], *(f"{name}={key[name]}" for name in varying)]),
                    "optimizer": key["optimizer"],
                    "parameters": int(own["trained_parameters"].max()),
                    "learning rate": choice.learning_rates[0],
                    "edge": choice.edge or "",
                    "seeds": choice.validation.n,
                    "validation": choice.validation.mean,
                    "test accuracy": None if choice.test is None else choice.test.mean,
                    "std": None if choice.test is None else choice.test.std,
                    "std over rates": None if wide is None else wide.over_rates,
                    "std over seeds": None if wide is None else wide.over_seeds,
                    "diverged": choice.diverged,
                }
            )
        return rows


_SETTINGS = (
    "train_limit", "validation_limit", "test_limit", "data_seed", "image_size", "lora_rank", "momentum", "weight_decay",
    "warmup_steps", "clip_norm", "steps", "batch_size", "accumulation", "eval_every", "precision", "augmentation",
    "crop_scale_min", "normalization",
)  # fmt: skip
"""What may vary in a recipe beside model, data, what is trained, optimizer, learning rate and seed."""


def _probe_row(line: ProbeLine) -> dict[str, object]:
    return {
        "model": line.key.model,
        "data": line.key.data,
        "train": "linear-probe",
        "optimizer": "",
        "parameters": None,
        "edge": "",
        "seeds": None,
        "diverged": None,
        "validation": line.validation.accuracy,
        "test accuracy": line.test.accuracy,
    }


def reference_cells(cells: tuple[CellConfig, ...]) -> tuple[CellConfig, ...]:
    """Return one cell for each probe that the cells are compared with; cells that spare the test images have none."""
    return tuple({ProbeKey.of(cell): cell for cell in reversed(cells) if cell.read_test}.values())[::-1]
