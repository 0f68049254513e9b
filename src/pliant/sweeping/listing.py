"""The cells of a store, as a table."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import pandas as pd

from pliant.errors import StoreError
from pliant.runs import CellConfig, Entry, Record, Store
from pliant.sweeping.jobs import last_line


@dataclass(frozen=True)
class Listing:
    """The cells of a store at one moment.

    Attributes:
        entries: the cells, in order of name.
        problems: what else is in the store, a sentence each.
    """

    entries: tuple[Entry, ...]
    problems: tuple[str, ...]

    @property
    def frame(self) -> pd.DataFrame:
        """One row for each cell: start of its id, state, what it is, its accuracies, why it failed, or who runs it."""
        return pd.DataFrame([_row(entry) for entry in self.entries])

    def to_json(self) -> dict[str, object]:
        """Return it as plain values, with whole records."""
        cells = [
            {
                "id": entry.cell.id,
                "state": entry.state,
                "owner": entry.owner,
                "folder": str(entry.folder),
                "cell": entry.cell.model_dump(mode="json"),
                "record": None if entry.record is None else entry.record.model_dump(mode="json"),
            }
            for entry in self.entries
        ]
        return {"cells": cells, "problems": list(self.problems)}


def list_store(folder: Path | str) -> Listing:
    """List a store.

    Raises:
        StoreError: there is none.
    """
    store = Store(folder, create=False)
    return Listing(store.entries(), store.problems())


def look(folder: Path, cells: Sequence[CellConfig]) -> dict[CellConfig, tuple[str, Record | None]]:
    """Return state and record of cells in a store, which need not be there; nothing is written.

    A cell whose folder cannot be used is `refused`.
    """
    if not (folder / "cells").is_dir():
        return dict.fromkeys(cells, ("missing", None))
    store = Store(folder, create=False)
    found: dict[CellConfig, tuple[str, Record | None]] = {}
    for cell in cells:
        try:
            entry = store.entry(cell)
            found[cell] = (entry.state, entry.record)
        except StoreError:
            found[cell] = ("refused", None)
    return found


def retry_store(folder: Path | str) -> tuple[CellConfig, ...]:
    """Make the failed cells of a store missing, and return them.

    Raises:
        StoreError: there is no store, or it cannot be written.
    """
    return Store(folder, create=False).retry_failed()


def _row(entry: Entry) -> dict[str, object]:
    cell, record = entry.cell, entry.record
    note = entry.owner or ""
    if record is not None and record.error is not None:
        note = last_line(record.error)
    elif record is not None and record.status == "diverged":
        note = f"diverged at step {record.diverged_at}"
    return {
        "id": cell.id[:8],
        "state": entry.state,
        "model": cell.model,
        "data": cell.data,
        "train": cell.variant,
        "optimizer": cell.optimizer,
        "rate": cell.learning_rate,
        "seed": cell.seed,
        "steps": cell.steps,
        "validation": "" if record is None else _percent(record.validation_accuracy),
        "test": "" if record is None or record.test is None else _percent(record.test.accuracy),
        "note": note if len(note) <= 120 else note[:117] + "...",
    }


def _percent(value: float | None) -> str:
    return "" if value is None else f"{value:.1%}"
