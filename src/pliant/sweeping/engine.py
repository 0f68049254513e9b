"""The contract of engines: jobs in, events out. Where and how jobs are run is an engine's own affair."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Protocol, Self

from pliant.sweeping.events import Listen
from pliant.sweeping.jobs import Job
from pliant.sweeping.worker import CHECKPOINT_SECONDS


@dataclass(frozen=True)
class Settings:
    """How an engine runs; nothing here changes what a cell is.

    Attributes:
        workers: jobs at a time. None: one at a time on this machine; on a cluster, as many as it has room for.
        threads: of each worker. None: this machine's cores, divided among the workers; on a cluster, one.
        device: `auto`, `cpu`, `cuda` or `mps`.
        address: of a Ray cluster; None starts one on this machine.
        gpus_per_cell: GPUs that Ray reserves for each worker, possibly a part of one; None: one if there are any.
        scratch: folder on the cluster's machines where cells keep their checkpoints; a cell whose machine was lost goes
            on from there if the others see it too. None: a temporary folder, and lost cells start anew.
        retries: how often a job is tried again whose worker died.
        checkpoint_seconds: time between two checkpoints of a cell: what a cell that dies loses.
    """

    workers: int | None = None
    threads: int | None = None
    device: str = "auto"
    address: str | None = None
    gpus_per_cell: float | None = None
    scratch: Path | None = None
    retries: int = 2
    checkpoint_seconds: float = CHECKPOINT_SECONDS


class Engine(Protocol):
    """Runs jobs. Use it as a context: what it started is gone at the end, also after an exception.

    What every engine keeps to (one test class checks it for all of them):

    - each job given to `run` ends in exactly one of `ENDS`, and its result is in the store when that event is heard;
    - a job's result does not depend on the engine, nor on the jobs run before it by the same worker;
    - a job that fails, is refused, or is run by another process, keeps no other job from running;
    - only the process that holds a cell's lock writes its result;
    - an exception in `run` (`KeyboardInterrupt`, too) leaves no job claimed once the engine is closed.
    """

    @property
    def slots(self) -> int:
        """Number of jobs that are run at a time."""

    def run(self, jobs: Sequence[Job], *, listen: Listen) -> None:
        """Run jobs, in this order as far as there are several workers.

        Raises:
            StoreError: results cannot be written any more (a full disk); what was finished before is kept.
            TrainingError: no worker can be started.
        """

    def close(self) -> None:
        """Stop workers, whatever they do; a second time does nothing."""

    def __enter__(self) -> Self:
        """Use the engine as a context."""

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        """Close it."""


class Closing:
    """The context that every engine is: closed at the end."""

    def close(self) -> None:
        """Stop what was started."""

    def __enter__(self) -> Self:
        """Return the engine."""
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        """Close it."""
        self.close()
