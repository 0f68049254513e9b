"""A claim: the right of one process to run one cell, and the only way to write its result."""

import json
import shutil
import traceback
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Self

from pydantic import JsonValue

from pliant.errors import StoreError
from pliant.runs.atomic import storing, sync_folder, write_atomically
from pliant.runs.config import CellConfig
from pliant.runs.lock import Lock
from pliant.runs.record import Record


class Claim:
    """A cell that this process runs. Made by `Store.claim`; use it as a context, which releases it at the end.

    A claim that is released without `finish` or `fail` (interrupt, kill, full disk) leaves the cell missing, and its
    checkpoint where it is: the next claim goes on from there.

    Attributes:
        cell: the configuration to run.
        folder: the cell's folder, to write metrics and model into.
    """

    def __init__(self, cell: CellConfig, folder: Path, *, lock: Lock) -> None:
        """Take over the lock."""
        self.cell = cell
        self.folder = folder
        self._lock: Lock | None = lock

    def prepare(self) -> None:
        """Write the configuration if it is not there, and clear away what a dead writer left half-written.

        Raises:
            StoreError: the folder cannot be written.
        """
        with storing("clean up", self.folder):
            for left in self.folder.glob(".*.tmp"):
                left.unlink(missing_ok=True)
        if not (self.folder / "config.json").exists():
            write_atomically(self.folder / "config.json", self.cell.to_json(), durable=False)

    @property
    def checkpoint(self) -> Path:
        """The folder that training keeps its resumable state in. It need not be there."""
        return self.folder / "checkpoint"

    @property
    def metrics(self) -> Path:
        """The file of metrics by step; write it through `MetricLog`."""
        return self.folder / "metrics.jsonl"

    def describe(self, environment: Mapping[str, JsonValue]) -> None:
        """Write what the run depends on beside its configuration, before it starts: a failed cell has it, too.

        Raises:
            StoreError: it cannot be written.
        """
        write_atomically(
            self.folder / "environment.json", json.dumps(dict(environment), indent=1, sort_keys=True) + "\n"
        )

    def finish(self, record: Record) -> None:
        """Store the record, then give the cell back. Once this returns, the result outlives anything but the disk.

        Raises:
            StoreError: the record is another cell's, the claim was released, or it cannot be written (then the cell
                is still claimed, and the record can be tried again).
        """
        self._check(record)
        if record.status == "failed":
            return self.fail(record.error or "no reason given")
        if record.environment:
            self.describe(record.environment)
        write_atomically(self.folder / "result.json", record.to_json())
        with storing("write", self.folder):
            sync_folder(self.folder.parent)
        self.drop_checkpoint()
        self.release()
        return None

    def fail(self, error: BaseException | str) -> None:
        """Store why the cell failed, with the traceback, then give it back: it is not run again before `retry`.

        Raises:
            StoreError: the claim was released, or it cannot be written.
        """
        self._check(None)
        text = error if isinstance(error, str) else "".join(traceback.format_exception(error))
        write_atomically(self.folder / "error.txt", text if text.endswith("\n") else text + "\n")
        self.release()

    def drop_checkpoint(self) -> None:
        """Remove the checkpoint. What cannot be removed is left: it is never read once there is a result."""
        shutil.rmtree(self.checkpoint, ignore_errors=True)

    def release(self) -> None:
        """Give the cell back, in whatever state its files say; a second time does nothing."""
        if self._lock is not None:
            self._lock.release()
            self._lock = None

    def __enter__(self) -> Self:
        """Use the claim as a context: released at the end."""
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        """Release the claim; an exception is passed on, and is the caller's to store with `fail`."""
        self.release()

    def _check(self, record: Record | None) -> None:
        if self._lock is None:
            raise StoreError(f"the claim on {self.cell.name} was given back: its result cannot be written any more")
        if record is not None and record.cell != self.cell:
            raise StoreError(f"a record of {record.cell.name} was given for the cell {self.cell.name}")
