"""How a sweep stands: counts, time left, the best so far. Drawing it is for others."""

import time
from collections.abc import Iterable
from dataclasses import dataclass, field

from pliant.runs import CellConfig, Record
from pliant.sweeping.events import ENDS, Event

LEAST_SHARE = 0.02
"""Share of the work that must be done before the time left is worth telling."""


def work_of(cell: CellConfig) -> int:
    """Return a measure of how long a cell takes, in images: it is proportional within one model."""
    return cell.steps * cell.images_per_step


@dataclass
class Standing:
    """Where a sweep stands. It changes by `take`, which is given every event.

    Attributes:
        cells: all cells of the sweep, or of a part of it.
        title: what it is.
        counts: cells by the kind of event that ended them; those that were done before it began are among them.
        running: cells being trained, with the steps that are known to be done.
        best: of each data set and variant, the finished record with the highest validation accuracy.
    """

    cells: tuple[CellConfig, ...]
    title: str = ""
    counts: dict[str, int] = field(default_factory=dict)
    running: dict[CellConfig, int] = field(default_factory=dict)
    best: dict[tuple[str, str], Record] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Start the clock."""
        self._began = time.monotonic()
        self._work = 0.0
        self._left = {cell: work_of(cell) for cell in self.cells}

    def known(self, records: Iterable[Record]) -> None:
        """Take over what the store had when the sweep began."""
        for record in records:
            self._end(record.cell, record.status)
            self._compare(record)

    def take(self, event: Event) -> None:
        """Take note of an event."""
        cell = event.cell
        if event.job != "cell" or cell is None:
            return
        if event.kind in ("started", "step"):
            self.running[cell] = event.step
            return
        self.running.pop(cell, None)
        if event.kind in ENDS:
            if event.kind in ("done", "diverged"):
                self._work += self._left.get(cell, 0)
            known = event.record if event.kind == "skipped" else None  # another process has done it meanwhile
            self._end(cell, event.kind if known is None else known.status)
        if event.record is not None:
            self._compare(event.record)

    @property
    def left(self) -> int:
        """Cells that have not ended."""
        return len(self._left)

    @property
    def done(self) -> int:
        """Cells with a result: those that diverged have one, too."""
        return self.counts.get("done", 0) + self.counts.get("diverged", 0)

    @property
    def seconds(self) -> float:
        """Time since the sweep began."""
        return time.monotonic() - self._began

    @property
    def seconds_left(self) -> float | None:
        """Time that is left at the pace so far; None while too little is done to tell."""
        part = sum(work_of(cell) * step / cell.steps for cell, step in self.running.items())
        done, left = self._work + part, sum(self._left.values()) - part
        return None if done < LEAST_SHARE * (done + left) or done == 0 else self.seconds * left / done

    def _end(self, cell: CellConfig, kind: str) -> None:
        self._left.pop(cell, None)
        self.counts[kind] = self.counts.get(kind, 0) + 1

    def _compare(self, record: Record) -> None:
        key = (record.cell.data, record.cell.variant)
        if record.status != "done" or record.validation_accuracy is None:
            return
        if key not in self.best or record.validation_accuracy > (self.best[key].validation_accuracy or 0.0):
            self.best[key] = record


def label(cell: CellConfig, among: Iterable[CellConfig] = ()) -> str:
    """Name a cell in a line: data (and model, where several vary), variant, learning rate, seed."""
    others = tuple(among)
    parts = [cell.model] if len({other.model for other in others}) > 1 else []
    parts += [cell.data, cell.variant, f"lr {cell.learning_rate:g}", f"seed {cell.seed}"]
    return " ".join(parts)


def duration(seconds: float) -> str:
    """Write a time for people.

    >>> duration(42), duration(600), duration(9000), duration(400_000)
    ('42 s', '10 min', '2.5 h', '4.6 days')
    """
    if seconds < 90:
        return f"{seconds:.0f} s"
    if seconds < 5400:
        return f"{seconds / 60:.0f} min"
    return f"{seconds / 3600:.1f} h" if seconds < 172_800 else f"{seconds / 86_400:.1f} days"


def line(event: Event, standing: Standing) -> str | None:
    """Write an event as a line for a log; None for those that are worth none."""
    if event.kind in ("started", "step", "skipped"):
        return None
    if event.cell is None:
        return event.text
    if event.job == "probe":
        said = event.text if event.kind == "done" else f"{event.kind}: {event.text}"
        return f"linear probe of {event.cell.model} on {event.cell.data}: {said}"
    total = len(standing.cells)
    parts = [f"[{total - standing.left}/{total}] {label(event.cell, standing.cells)}: {_outcome(event)}"]
    if standing.left and standing.seconds_left is not None:
        parts.append(f"about {duration(standing.seconds_left)} left")
    return "; ".join(parts)


def _outcome(event: Event) -> str:
    record = event.record
    if record is not None and record.status == "done":
        return f"validation {record.validation_accuracy or 0.0:.1%} in {duration(record.seconds or 0.0)}"
    if record is not None and record.status == "diverged":
        return f"diverged at step {record.diverged_at}"
    words = {"elsewhere": "left to", "kept": "done, but not stored yet", "unstored": "not stored", "lost": "again"}
    return f"{words.get(event.kind, event.kind)}: {event.text}" if event.text else event.kind
