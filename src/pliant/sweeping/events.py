"""What engines tell while they run."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, Self

from pliant.runs import CellConfig, Record

Kind = Literal[
    "started",  # a worker has it
    "step",  # it has come so far
    "kept",  # there is a result, which cannot be written now; it is tried again
    "lost",  # the worker or its machine died; it is tried again
    "waiting",  # for a worker; the text says why
    "done",  # its result is stored
    "diverged",  # so is this
    "failed",  # its error is stored
    "skipped",  # there was a result already
    "elsewhere",  # another process has it
    "refused",  # its folder cannot be used
    "unstored",  # what it led to could not be written: it counts as not run
]

ENDS: frozenset[Kind] = frozenset({"done", "diverged", "failed", "skipped", "elsewhere", "refused", "unstored"})
"""Each job that is given to an engine ends in exactly one of these."""


@dataclass(frozen=True)
class Event:
    """What happened to a job.

    Attributes:
        kind: see `Kind`.
        job: "cell" or "probe"; "" if it is about none.
        cell: the cell, or one that the probe is the reference of.
        text: of an error, or what a reader should be told.
        record: of a cell that is done, diverged or failed.
        step: steps done so far, of `cell.steps`.
    """

    kind: Kind
    job: str = ""
    cell: CellConfig | None = None
    text: str = ""
    record: Record | None = None
    step: int = 0

    def to_json(self) -> dict[str, Any]:
        """Return it as plain values."""
        return {
            "kind": self.kind,
            "job": self.job,
            "cell": None if self.cell is None else self.cell.model_dump(mode="json"),
            "text": self.text,
            "record": None if self.record is None else self.record.model_dump(mode="json"),
            "step": self.step,
        }

    @classmethod
    def from_json(cls, fields: dict[str, Any]) -> Self:
        """Read what `to_json` made."""
        cell, record = fields["cell"], fields["record"]
        return cls(
            kind=fields["kind"],
            job=fields["job"],
            cell=None if cell is None else CellConfig(**cell),
            text=fields["text"],
            record=None if record is None else Record(**record),
            step=fields["step"],
        )


Listen = Callable[[Event], None]
