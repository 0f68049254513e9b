"""Where jobs are taken and what they led to is stored, by the one process that holds their locks."""

import time
from collections.abc import Callable
from types import TracebackType
from typing import Self

from pliant.errors import StoreError
from pliant.runs import Record
from pliant.sweeping.events import Event, Kind, Listen
from pliant.sweeping.jobs import Answer, Held, Job
from pliant.sweeping.worker import Worker

TROUBLES = 3
"""So many jobs in a row that nothing could be stored of, and the sweep stops: what it computes would be lost."""

STEP_SECONDS = 0.5
"""Time between two reports of how far a job has come."""


class Desk:
    """Takes jobs and stores what they led to.

    A result that cannot be written (a full disk) is held back, with its claim, and tried again after each later job and
    at the end. Use it as a context: at the end nothing is held any more.
    """

    def __init__(self, listen: Listen) -> None:
        """Report to `listen`."""
        self._listen = listen
        self._kept: list[tuple[Job, Held, Answer]] = []
        self._troubles = 0

    def take(self, job: Job) -> Held | None:
        """Claim a job; None, after an event that says why, if that cannot be."""
        try:
            held = job.take()
        except StoreError as error:
            self._tell("refused", job, str(error))
            return None
        if isinstance(held, Event):
            self._listen(held)
            return None
        return held

    def settle(self, job: Job, held: Held, answer: Answer) -> None:
        """Store what a job led to, and what was held back before.

        Raises:
            StoreError: this is one of several jobs in a row for which that cannot be done.
        """
        error = answer.trouble
        if error is not None:  # its checkpoint is where it was
            held.release()
            self._tell("unstored", job, str(error))
        else:
            error = self._store(job, held, answer)
        if error is None:
            self._troubles = 0
            self._try_kept()
            return
        self._troubles += 1
        if self._troubles >= TROUBLES:
            failure = StoreError(f"nothing of the last {self._troubles} jobs could be stored: {error}")
            failure.errno = error.errno
            raise failure

    def finish(self) -> None:
        """Try once more what was held back; what still cannot be written is given up, and its job counts as not run."""
        self._try_kept()
        while self._kept:
            job, held, _ = self._kept.pop()
            held.release()
            self._tell("unstored", job, "its result could not be written")

    def __enter__(self) -> Self:
        """Use the desk as a context."""
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        """Give up what is held back, after one more try."""
        self.finish()

    def _store(self, job: Job, held: Held, answer: Answer) -> StoreError | None:
        try:
            self._listen(job.settle(held, answer))
        except StoreError as error:
            if isinstance(answer.result, Record):
                self._kept.append((job, held, answer))
                self._tell("kept", job, str(error))
            else:
                held.release()
                self._tell("unstored", job, str(error))
            return error
        return None

    def _try_kept(self) -> None:
        kept, self._kept = self._kept, []
        for job, held, answer in kept:
            try:
                self._listen(job.settle(held, answer))
            except StoreError:
                self._kept.append((job, held, answer))

    def _tell(self, kind: Kind, job: Job, text: str) -> None:
        self._listen(Event(kind, job.kind, job.cell, text=text))


def attend(job: Job, worker: Worker, *, desk: Desk, listen: Listen) -> None:
    """Take a job, do it and store what it led to, all in this process.

    Raises:
        StoreError: see `Desk.settle`.
    """
    held = desk.take(job)
    if held is None:
        return
    listen(Event("started", job.kind, job.cell))
    try:
        answer = job.work(worker, held, _reporter(job, listen))
    except BaseException:
        held.release()
        raise
    desk.settle(job, held, answer)


def give_up(job: Job, reason: str, *, desk: Desk) -> None:
    """Store that a job failed whose workers died.

    Raises:
        StoreError: see `Desk.settle`.
    """
    held = desk.take(job)
    if held is not None:
        desk.settle(job, held, Answer(error=reason))


def _reporter(job: Job, listen: Listen) -> Callable[[int], None]:
    told = time.monotonic()

    def report(step: int) -> None:
        nonlocal told
        if time.monotonic() - told >= STEP_SECONDS:
            told = time.monotonic()
            listen(Event("step", job.kind, job.cell, step=step))

    return report
