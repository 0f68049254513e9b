"""Metrics by step: one JSON object a line, appended while a cell trains, cut back when it resumes."""

import json
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import IO, Self

from pliant.errors import StoreError
from pliant.runs.atomic import storing, write_atomically
from pliant.runs.strict import NON_FINITE, plain

Metric = int | float | str | None


class MetricLog:
    """Appends to a cell's `metrics.jsonl`. Each row is in the hands of the system when `write` returns.

    Args:
        path: the file.
        resume_at: the step that training goes on from. Rows beyond it come from a start that died after its last
            checkpoint, and are removed, so that a resumed cell's file equals an undisturbed one's. 0 starts anew.

    Raises:
        StoreError: the file cannot be written.
    """

    def __init__(self, path: Path, *, resume_at: int = 0) -> None:
        """Open the file, with only the rows up to `resume_at` in it."""
        kept = _rows(path, strict=False) if resume_at else []
        text = "".join(_line(row) for row in kept if _step(row) <= resume_at)
        write_atomically(path, text)
        self._path = path
        with storing("open", path):
            self._file: IO[str] = path.open("a", encoding="utf-8", newline="\n")

    def write(self, step: int, /, **values: Metric) -> None:
        """Append one row. Values may be NaN or infinite.

        Raises:
            StoreError: the disk is full, or the like.
        """
        with storing("write", self._path):
            self._file.write(_line({"step": step, **values}))
            self._file.flush()

    def close(self) -> None:
        """Close the file."""
        with storing("write", self._path):
            self._file.close()

    def __enter__(self) -> Self:
        """Use the log as a context: closed at the end."""
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        """Close the file."""
        self.close()


def read_metrics(path: Path) -> list[dict[str, Metric]]:
    """Read the rows; none if there is no file. A last line that was cut off by the writer's death is left out.

    Raises:
        StoreError: the file cannot be read, or a line before the last one is no JSON object with a step.
    """
    return _rows(path, strict=True)


def _rows(path: Path, *, strict: bool) -> list[dict[str, Metric]]:
    """Read rows up to the first bad line; with `strict`, a bad line that is not the last is an error."""
    with storing("read", path):
        try:
            lines = path.read_bytes().split(b"\n")
        except FileNotFoundError:
            return []
    rows: list[dict[str, Metric]] = []
    for number, line in enumerate(lines[:-1], start=1):  # what follows the last line break was cut off, or is empty
        try:
            row = json.loads(line)
            _step(row)
        except (ValueError, TypeError, KeyError):
            if strict and number < len(lines) - 1:
                raise StoreError(
                    f"{path}, line {number}: expected a JSON object with a step, got {line[:60]!r}"
                ) from None
            break
        rows.append(
            {key: NON_FINITE.get(value, value) if isinstance(value, str) else value for key, value in row.items()}
        )
    return rows


def _step(row: Mapping[str, Metric]) -> int:
    step = row["step"]
    if not isinstance(step, int):
        raise TypeError(f"step {step!r} is no integer")
    return step


def _line(row: Mapping[str, Metric]) -> str:
    return json.dumps({key: plain(value) for key, value in row.items()}, allow_nan=False) + "\n"
