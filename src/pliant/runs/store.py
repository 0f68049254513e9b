"""The store: a folder that keeps cells and what they produced, and that any number of processes may work on.

    OUT/cells/<name>/config.json        the cell; its hash must be the folder's
                     metrics.jsonl      metrics by step
                     environment.json   versions, device, threads
                     result.json        the record, renamed into place last: it alone says "done"
                     error.txt          why the cell failed, with the traceback
                     errors/            earlier errors of a cell that was tried again
                     checkpoint/        where training resumes; removed when the cell is done
                     model/             what was trained, if it was asked for
                     lock               held by the process that trains the cell

Nothing else keeps state: what a cell's state is, files and locks say, now, to whoever looks.
"""

import json
import os
import shutil
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, get_args

import pandas as pd

from pliant.errors import PliantError, StoreError
from pliant.runs.atomic import storing, sync_folder
from pliant.runs.claim import Claim
from pliant.runs.config import CellConfig
from pliant.runs.lock import acquire, is_locked, owner_of
from pliant.runs.metrics import Metric, read_metrics
from pliant.runs.record import Record
from pliant.runs.table import record_table

State = Literal["done", "failed", "running", "missing"]
STATES: tuple[State, ...] = get_args(State)


@dataclass(frozen=True)
class Entry:
    """A cell of a store, as its files and its lock describe it at one moment.

    Attributes:
        cell: the configuration.
        folder: where its files are.
        state: `done` (a diverged run is done, too), `failed`, `running` (some process has it), `missing`.
        record: the result of a done cell; of a failed one a record of that status with the error; else None.
        owner: of a running cell, the process that has it ("process 4711 on host").
    """

    cell: CellConfig
    folder: Path
    state: State
    record: Record | None = None
    owner: str | None = None


class Store:
    """The cells of a sweep and their records, in a folder.

    Args:
        folder: the store's folder.
        create: make it if it is not there.

    Raises:
        StoreError: it cannot be made, is no folder, or (without `create`) is no store.
    """

    def __init__(self, folder: Path | str, *, create: bool = True) -> None:
        """Open the store; nothing is read yet."""
        self.folder = Path(folder)
        self._cells = self.folder / "cells"
        if not create and not os.path.isdir(self._cells):
            what = "has no folder 'cells'" if os.path.isdir(self.folder) else "is no folder"
            raise StoreError(
                f"{self.folder} is no store of runs: it {what}. Expected the folder of `pliant sweep` or `pliant tune`"
            )
        with storing("make the folder", self._cells):
            self._cells.mkdir(parents=True, exist_ok=True)

    def path(self, cell: CellConfig) -> Path:
        """Return the cell's folder, whether it is there or not."""
        return self._cells / cell.name

    def plan(self, cells: Iterable[CellConfig]) -> None:
        """Write the configurations of cells that are to be run, so that the store can say which are missing.

        Done cells whose writer died before it had removed their checkpoint lose it here.

        Raises:
            StoreError: the folder cannot be written, or holds another configuration than the cell's.
        """
        for cell in cells:
            folder = self._folder(cell)
            if (folder / "config.json").exists():
                if (folder / "checkpoint").exists():
                    _settled(folder, cell)
                continue
            lock = acquire(folder / "lock")
            if lock is not None:  # else whoever has it writes the configuration
                with Claim(cell, folder, lock=lock) as claim:
                    claim.prepare()

    def claim(self, cell: CellConfig) -> Claim | None:
        """Take a missing cell, to run it: no other process can, until the claim is released or this one dies.

        Returns:
            the claim, or None if the cell is done, has failed, or is being run elsewhere.

        Raises:
            StoreError: the cell's folder holds another configuration or one that cannot be read (the difference is
                named), or it cannot be written.
        """
        folder = self._folder(cell)
        if (folder / "config.json").exists() and _settled(folder, cell):
            return None
        lock = acquire(folder / "lock")
        if lock is None:
            return None
        claim = Claim(cell, folder, lock=lock)
        try:
            claim.prepare()
            if not _settled(folder, cell):  # it may have been finished between the first look and the lock
                return claim
        except BaseException:
            claim.release()
            raise
        claim.release()
        return None

    def entry(self, cell: CellConfig) -> Entry:
        """Look at one cell.

        Raises:
            StoreError: its folder holds another configuration, or one that cannot be read.
        """
        folder = self.path(cell)
        if (folder / "config.json").exists():
            _check_config(folder, cell)
        # The lock first: a cell that finishes between the two looks is then seen as done, never as missing.
        running = is_locked(folder / "lock")
        verdict = _verdict(folder, cell)
        if running and (verdict is None or verdict.status == "failed"):
            return Entry(cell, folder, "running", owner=owner_of(folder / "lock"))
        if verdict is None:
            return Entry(cell, folder, "missing")
        return Entry(cell, folder, "failed" if verdict.status == "failed" else "done", verdict)

    def entries(self) -> tuple[Entry, ...]:
        """Look at every cell of the store, in order of name. What is no cell is left out: see `problems`."""
        return tuple(found for found in self._scan() if isinstance(found, Entry))

    def problems(self) -> tuple[str, ...]:
        """Say what in the store is no cell, or is one that cannot be used: foreign files, changed configurations."""
        return tuple(found for found in self._scan() if isinstance(found, str))

    def records(self) -> tuple[Record, ...]:
        """Return what there is of results: records of done, diverged and failed cells."""
        return tuple(entry.record for entry in self.entries() if entry.record is not None)

    def record(self, cell: CellConfig) -> Record | None:
        """Return a cell's record; None while it has none."""
        return self.entry(cell).record

    def frame(self) -> pd.DataFrame:
        """Tabulate all records, one row each (see `record_table`)."""
        return record_table(self.records())

    def metrics(self, cell: CellConfig) -> list[dict[str, Metric]]:
        """Return a cell's metrics by step.

        Raises:
            StoreError: the file is damaged.
        """
        return read_metrics(self.path(cell) / "metrics.jsonl")

    def retry(self, cell: CellConfig, *, from_start: bool = False) -> bool:
        """Make a failed cell missing again. Its error (or damaged result) is kept in `errors/`.

        Args:
            cell: the cell.
            from_start: also drop its checkpoint, which it would go on from.

        Returns:
            whether it had failed, and nobody is running it.

        Raises:
            StoreError: its folder cannot be read or written.
        """
        folder = self.path(cell)
        lock = acquire(folder / "lock") if self.entry(cell).state == "failed" else None
        if lock is None:
            return False
        with Claim(cell, folder, lock=lock) as claim:
            verdict = _verdict(folder, cell)
            if verdict is None or verdict.status != "failed":  # another process was faster
                return False
            with storing("move the error aside in", folder):
                _set_aside(folder)
            if from_start:
                claim.drop_checkpoint()
        return True

    def retry_failed(self, *, from_start: bool = False) -> tuple[CellConfig, ...]:
        """Make every failed cell missing again; return them."""
        failed = [entry.cell for entry in self.entries() if entry.state == "failed"]
        return tuple(cell for cell in failed if self.retry(cell, from_start=from_start))

    def _folder(self, cell: CellConfig) -> Path:
        """Make the cell's folder."""
        folder = self.path(cell)
        with storing("make the folder", folder):
            folder.mkdir(exist_ok=True)
        return folder

    def _scan(self) -> Iterator[Entry | str]:
        """Look at everything under `cells/`: an entry for a cell, a sentence for anything else."""
        with storing("list", self._cells):
            paths = sorted(self._cells.iterdir())
        for path in paths:
            if not path.is_dir():
                yield f"{path}: a foreign file, left alone"
            elif (path / "config.json").exists():
                try:
                    yield self.entry(_folder_cell(path))
                except StoreError as error:
                    yield str(error)
            elif not all(child.name == "lock" or child.suffix == ".tmp" for child in path.iterdir()):
                yield f"{path}: a folder without config.json, left alone"


def _folder_cell(folder: Path) -> CellConfig:
    """Read the cell that a folder was made for."""
    cell = _read_config(folder)
    if cell.name != folder.name:
        raise StoreError(
            f"{folder / 'config.json'} does not belong to its folder: it describes {cell.name}. It was changed, or the "
            "folder was renamed. Undo that, or remove the folder"
        )
    return cell


def _read_config(folder: Path) -> CellConfig:
    path = folder / "config.json"
    with storing("read", path):
        text = path.read_bytes()
    try:
        return CellConfig.from_json(text)
    except PliantError as error:
        raise StoreError(f"{path} cannot be read as a cell: {error}. Restore it, or remove the folder") from None


def _check_config(folder: Path, cell: CellConfig) -> None:
    """Refuse a folder that holds another configuration than the one whose name it bears."""
    stored = _read_config(folder)
    if stored != cell:
        raise StoreError(
            f"{folder / 'config.json'} holds another cell than its folder's name says: "
            + "; ".join(stored.differences(cell))
            + ". It was changed by hand or by another version of pliant. Restore it, or remove the folder"
        )


def _settled(folder: Path, cell: CellConfig) -> bool:
    """Whether a cell has a result or an error, so that it is not to be run; refuses another cell's folder."""
    _check_config(folder, cell)
    verdict = _verdict(folder, cell)
    if verdict is not None and verdict.status != "failed" and (folder / "checkpoint").exists():
        # Its writer died between the two; with the result there, nobody needs the checkpoint, so no lock is needed.
        shutil.rmtree(folder / "checkpoint", ignore_errors=True)
    return verdict is not None


def _verdict(folder: Path, cell: CellConfig) -> Record | None:
    """Return what the files say of a cell: its record, a record of its failure, or None if there is neither."""
    path = folder / "result.json"
    try:
        return _own(Record.from_json(path.read_bytes()), cell)
    except FileNotFoundError:
        pass
    except (OSError, PliantError) as error:  # a StoreError is both
        return _failure(folder, cell, f"{path} is damaged ({error}). Retry the cell: the damaged file is kept aside")
    path = folder / "error.txt"
    try:
        return _failure(folder, cell, path.read_text(encoding="utf-8", errors="replace"))
    except FileNotFoundError:
        return None
    except OSError as error:
        return _failure(folder, cell, f"{path} cannot be read ({error})")


def _failure(folder: Path, cell: CellConfig, error: str) -> Record:
    """Describe a failed cell, with the environment that it failed in where that is known."""
    try:
        environment = json.loads((folder / "environment.json").read_bytes())
        return Record(cell=cell, status="failed", error=error, environment=environment)
    except (OSError, ValueError):
        return Record(cell=cell, status="failed", error=error)


def _own(record: Record, cell: CellConfig) -> Record:
    if record.cell != cell:
        raise StoreError(f"it is the result of another cell: {'; '.join(record.cell.differences(cell))}")
    if record.status == "failed":
        raise StoreError("a failed cell has no result")
    return record


def _set_aside(folder: Path) -> None:
    """Move error and damaged result to `errors/`, numbered in order."""
    history = folder / "errors"
    history.mkdir(exist_ok=True)
    number = 1 + max((int(old.name[:3]) for old in history.glob("[0-9][0-9][0-9]-*")), default=0)
    for name in ("result.json", "error.txt"):
        if (folder / name).exists():
            (folder / name).replace(history / f"{number:03d}-{name}")
    sync_folder(history)
    sync_folder(folder)
