"""Jobs: what there is to do for a store, each with its own way to be taken, worked on and stored."""

import traceback
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, Protocol, Self

from pliant.errors import StoreError
from pliant.runs import CellConfig, Claim, Record, Store, write_atomically
from pliant.runs.atomic import storing
from pliant.runs.lock import Lock, acquire
from pliant.runs.probes import ProbeKey, ProbeLine, probe_path, read_probe
from pliant.sweeping.events import Event
from pliant.sweeping.saving import Save
from pliant.sweeping.worker import Worker, train_away

Kind = Literal["cell", "probe"]


class Held(Protocol):
    """The right to do a job, until it is released or this process dies."""

    def release(self) -> None:
        """Give the job back; a second time does nothing."""


@dataclass(frozen=True)
class Answer:
    """What work on a job led to: a result, or an error's traceback, or trouble with the disk.

    Attributes:
        result: a `Record` or `ProbeLine`.
        metrics: content of the file of metrics, where it was not written in place.
        error: traceback of what the work failed with.
        trouble: the store could not be written while it went on.
    """

    result: Record | ProbeLine | None = None
    metrics: str | None = None
    error: str | None = None
    trouble: StoreError | None = None


class Job(Protocol):
    """Something to do, once, whoever gets to it first. Two are equal if they are the same thing to do."""

    @property
    def kind(self) -> Kind:
        """What is to be done."""

    @property
    def cell(self) -> CellConfig:
        """The cell, or one that the probe is the reference of."""

    @property
    def folder(self) -> Path:
        """The folder of the store."""

    @property
    def save(self) -> Save | None:
        """What is kept beside the result."""

    def take(self) -> Held | Event:
        """Claim it; an event says why that cannot be.

        Raises:
            StoreError: its files cannot be used.
        """

    def work(self, worker: Worker, held: Any, progress: Callable[[int], None] | None) -> Answer:
        """Do it in this process, which has the store at hand."""

    def work_away(self, worker: Worker, *, scratch: Path | None) -> dict[str, Any]:
        """Do it where the store is not at hand; what is returned is for `read`.

        Raises:
            Exception: whatever the work fails with.
        """

    def read(self, values: dict[str, Any]) -> Answer:
        """Read what `work_away` returned."""

    def settle(self, held: Any, answer: Answer) -> Event:
        """Store what it led to, then release it.

        Raises:
            StoreError: it cannot be written; the job is still held.
        """


@dataclass(frozen=True)
class CellJob:
    """Train a cell; `save` says what of the trained model is kept."""

    cell: CellConfig
    folder: Path
    save: Save | None = None
    kind: Kind = "cell"

    def take(self) -> Claim | Event:
        """Claim the cell."""
        store = Store(self.folder)
        claim = store.claim(self.cell)
        if claim is not None:
            return claim
        entry = store.entry(self.cell)
        if entry.state in ("done", "failed"):
            return Event("skipped", self.kind, self.cell, text=f"it is {entry.state} already", record=entry.record)
        return Event("elsewhere", self.kind, self.cell, text=entry.owner or "another process has it")

    def work(self, worker: Worker, held: Claim, progress: Callable[[int], None] | None) -> Answer:
        """Train, from the checkpoint if there is one."""
        places = {"checkpoint": held.checkpoint, "metrics": held.metrics, "folder": held.folder}
        return _answered(partial(worker.train, self.cell, progress=progress, save=self.save, **places))

    def work_away(self, worker: Worker, *, scratch: Path | None) -> dict[str, Any]:
        """Train; return record and metrics."""
        return train_away(worker, self.cell, scratch=scratch)

    def read(self, values: dict[str, Any]) -> Answer:
        """Read record and metrics."""
        return Answer(result=Record(**values["record"]), metrics=values["metrics"])

    def settle(self, held: Claim, answer: Answer) -> Event:
        """Store metrics, then the record; or the error."""
        if isinstance(answer.result, Record):
            if answer.metrics is not None:
                write_atomically(held.metrics, answer.metrics)
            held.finish(answer.result)
            return Event(
                "diverged" if answer.result.status == "diverged" else "done", self.kind, self.cell, record=answer.result
            )
        error = answer.error or "no reason given"
        held.fail(error)
        record = Record(cell=self.cell, status="failed", error=error)
        return Event("failed", self.kind, self.cell, text=last_line(error), record=record)


class ProbeClaim:
    """The right to compute a probe."""

    def __init__(self, lock: Lock) -> None:
        """Take over the lock."""
        self._lock: Lock | None = lock

    def release(self) -> None:
        """Give it back."""
        if self._lock is not None:
            self._lock.release()
            self._lock = None

    def __enter__(self) -> Self:
        """Use it as a context: released at the end."""
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        """Release it."""
        self.release()


@dataclass(frozen=True)
class ProbeJob:
    """Compute the linear probe that a cell is compared with. One that fails leaves nothing: it is tried next time."""

    cell: CellConfig
    folder: Path
    save: Save | None = None
    kind: Kind = "probe"

    def take(self) -> ProbeClaim | Event:
        """Claim the probe."""
        path = probe_path(self.folder, ProbeKey.of(self.cell))
        with storing("make the folder", path.parent):
            path.parent.mkdir(parents=True, exist_ok=True)
        lock = acquire(path.with_suffix(".lock"))
        if lock is None:
            return Event("elsewhere", self.kind, self.cell, text="another process has it")
        if read_probe(self.folder, ProbeKey.of(self.cell)) is None:
            return ProbeClaim(lock)
        lock.release()
        return Event("skipped", self.kind, self.cell)

    def work(self, worker: Worker, held: ProbeClaim, progress: Callable[[int], None] | None) -> Answer:
        """Compute it."""
        return _answered(lambda: worker.probe(self.cell))

    def work_away(self, worker: Worker, *, scratch: Path | None) -> dict[str, Any]:
        """Compute it; return it as plain values."""
        return {"probe": worker.probe(self.cell).model_dump(mode="json")}

    def read(self, values: dict[str, Any]) -> Answer:
        """Read it."""
        return Answer(result=ProbeLine(**values["probe"]))

    def settle(self, held: ProbeClaim, answer: Answer) -> Event:
        """Store it."""
        if isinstance(answer.result, ProbeLine):
            answer.result.store(self.folder)
            held.release()
            return Event("done", self.kind, self.cell, text=f"{answer.result.test.accuracy:.1%} of the test images")
        held.release()
        return Event("failed", self.kind, self.cell, text=last_line(answer.error or ""))


JOBS: dict[str, type[CellJob] | type[ProbeJob]] = {"cell": CellJob, "probe": ProbeJob}


def job_to_json(job: Job) -> dict[str, Any]:
    """Return a job as plain values: all that a worker gets."""
    cell = job.cell.model_dump(mode="json")
    return {"job": job.kind, "cell": cell, "folder": str(job.folder), "save": job.save}


def job_from_json(values: dict[str, Any]) -> Job:
    """Read what `job_to_json` made."""
    return JOBS[values["job"]](CellConfig(**values["cell"]), Path(values["folder"]), values["save"])


def last_line(error: str) -> str:
    r"""Return what a traceback ends with: the error itself.

    >>> last_line("Traceback ...\n  File ...\nValueError: no\n  more\n")
    'ValueError: no more'
    """
    lines = error.strip().splitlines()
    starts = [i for i, line in enumerate(lines) if line and not line[0].isspace() and ":" in line]
    return " ".join(line.strip() for line in lines[starts[-1] if starts else -1 :])


def _answered(run: Callable[[], Record | ProbeLine]) -> Answer:
    try:
        return Answer(result=run())
    except StoreError as error:
        return Answer(trouble=error) if error.errno else Answer(error=traceback.format_exc())
    except Exception:
        return Answer(error=traceback.format_exc())
