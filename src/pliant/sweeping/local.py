"""Engines for one machine: in this process, or in several that each have their share of the cores."""

import contextlib
import itertools
import json
import os
import queue
import subprocess
import sys
import tempfile
import threading
from collections import Counter, deque
from collections.abc import Sequence
from typing import IO, Any

from pliant.errors import StoreError, TrainingError
from pliant.sweeping.desk import Desk, attend, give_up
from pliant.sweeping.engine import Closing, Engine, Settings
from pliant.sweeping.events import ENDS, Event, Listen
from pliant.sweeping.jobs import Job, job_to_json
from pliant.sweeping.worker import CHECKPOINT_SECONDS, THREAD_VARIABLES, Worker, limited_threads, share_of_cores


def local_engine(settings: Settings) -> Engine:
    """Make the engine for this machine: `InProcess` for one worker, `Processes` for several.

    Raises:
        ConfigError: workers and threads are more than there are cores.
    """
    workers = settings.workers or 1
    if workers == 1:
        threads = None if settings.threads is None else share_of_cores(1, settings.threads)
        return InProcess(device=settings.device, threads=threads, checkpoint_seconds=settings.checkpoint_seconds)
    return Processes(
        workers,
        threads=share_of_cores(workers, settings.threads),
        device=settings.device,
        retries=settings.retries,
        checkpoint_seconds=settings.checkpoint_seconds,
    )


class InProcess(Closing):
    """Runs jobs one after another, here.

    Args:
        device: `auto`, `cpu`, `cuda` or `mps`.
        threads: for torch; None leaves its number as it is.
        checkpoint_seconds: time between two checkpoints of a cell.
    """

    slots = 1

    def __init__(
        self,
        *,
        device: str = "auto",
        threads: int | None = None,
        checkpoint_seconds: float = CHECKPOINT_SECONDS,
    ) -> None:
        """Start with nothing loaded."""
        self._worker = Worker(device=device, checkpoint_seconds=checkpoint_seconds)
        self._threads = threads

    def run(self, jobs: Sequence[Job], *, listen: Listen) -> None:
        """Run the jobs, see `Engine`."""
        with limited_threads(self._threads), Desk(listen) as desk:
            for job in jobs:
                attend(job, self._worker, desk=desk, listen=listen)

    def close(self) -> None:
        """Let go of model and data."""
        self._worker.forget()


class Processes(Closing):
    """Runs jobs in several processes of this machine.

    Each is a Python of its own, started anew, that gets jobs as lines of JSON; it claims them, and stores what they led
    to. It ends when this process does, however this one dies: a worker whose input ends exits at once.

    Args:
        workers: number of processes.
        threads: of each.
        device: `auto`, `cpu`, `cuda` or `mps`. With several GPUs, workers take them in turn.
        retries: how often a job is tried again whose worker died.
        checkpoint_seconds: time between two checkpoints of a cell.
    """

    def __init__(
        self,
        workers: int,
        *,
        threads: int,
        device: str = "auto",
        retries: int = 2,
        checkpoint_seconds: float = CHECKPOINT_SECONDS,
    ) -> None:
        """Start nothing yet."""
        self.slots = workers
        self._threads = threads
        self._arguments = (str(threads), device, str(checkpoint_seconds))
        self._retries = retries
        self._gpus = _visible_gpus(device)
        self._inbox: queue.SimpleQueue[tuple[_Process, dict[str, Any] | None]] = queue.SimpleQueue()
        self._processes: list[_Process] = []
        self._numbers = itertools.count()

    def run(self, jobs: Sequence[Job], *, listen: Listen) -> None:
        """Run the jobs, see `Engine`."""
        left, lost = deque(jobs), Counter[Job]()
        while len(self._processes) < min(self.slots, len(left)):
            self._start()
        at_work = {process for process in self._processes if process.give(left)}
        while at_work:
            process, message = self._receive()
            if message is None:
                at_work.discard(process)
                if process in self._processes:
                    self._bury(process, left, lost, listen)
                    at_work |= {self._start()} if left else set()
                    at_work = {process for process in at_work if process.at_work or process.give(left)}
            elif "event" in message:
                event = Event.from_json(message["event"])
                process.hear(event)
                listen(event)
            elif "trouble" in message:
                raise _trouble(message)
            elif "free" in message and not process.give(left):
                at_work.discard(process)

    def close(self) -> None:
        """End the processes, whatever they do: what they have claimed is free as soon as they are gone."""
        for process in self._processes:
            process.kill()
        self._processes.clear()

    def _start(self) -> "_Process":
        number = next(self._numbers)
        gpu = self._gpus[number % len(self._gpus)] if self._gpus else None
        process = _Process(self._inbox, self._arguments, threads=self._threads, gpu=gpu)
        self._processes.append(process)
        return process

    def _receive(self) -> tuple["_Process", dict[str, Any] | None]:
        while True:
            try:  # on some systems a wait without end is not interrupted by Ctrl-C
                return self._inbox.get(timeout=0.5)
            except queue.Empty:
                continue

    def _bury(self, process: "_Process", left: deque[Job], lost: Counter[Job], listen: Listen) -> None:
        """See to what a dead process was doing: it is tried again, but not for ever."""
        self._processes.remove(process)
        cause = process.cause_of_death()
        if not process.started:
            raise TrainingError(f"a worker process could not be started: it {cause}")
        for job in process.open.values():
            lost[job] += 1
            if lost[job] > self._retries:
                with Desk(listen) as desk:
                    give_up(job, f"its worker process died {lost[job]} times; the last one {cause}", desk=desk)
            else:
                listen(Event("lost", job.kind, job.cell, text=f"its worker process {cause}"))
                left.appendleft(job)


class _Process:
    """A worker process, as its owner sees it.

    Attributes:
        started: whether it has said so.
        open: jobs that it was given and that have not ended, by kind and cell.
        at_work: whether it has something to do.
    """

    def __init__(
        self,
        inbox: "queue.SimpleQueue[tuple[_Process, Any]]",
        arguments: tuple[str, ...],
        *,
        threads: int,
        gpu: str | None,
    ) -> None:
        """Start it. What it says goes to `inbox`, with None when it is dead."""
        self.started = False
        self.open: dict[tuple[str, str], Job] = {}
        self.at_work = False
        self._errors = tempfile.TemporaryFile()
        environment = os.environ | dict.fromkeys(THREAD_VARIABLES, str(threads))
        if gpu is not None:
            environment["CUDA_VISIBLE_DEVICES"] = gpu
        # A group of its own: Ctrl-C is for the owner, which then ends its workers.
        apart: dict[str, Any] = {} if sys.platform == "win32" else {"process_group": 0}
        self._process = subprocess.Popen(
            [sys.executable, "-m", "pliant.sweeping.process", *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            env=environment,
            **apart,
        )
        threading.Thread(target=self._read, args=(self._process.stdout, inbox), daemon=True).start()

    def give(self, left: deque[Job]) -> bool:
        """Give it the next job; without one, have it store what it held back, if anything. Whether it is at work."""
        if left:
            job = left.popleft()
            self.open[job.kind, job.cell.id] = job
            self._send(job_to_json(job))
            self.at_work = True
        elif self.open:
            self._send({"finish": True})
            self.at_work = True
        else:
            self.at_work = False
        return self.at_work

    def hear(self, event: Event) -> None:
        """Take note of a job's end."""
        if event.kind in ENDS and event.cell is not None:
            self.open.pop((event.job, event.cell.id), None)

    def kill(self) -> None:
        """End it, now."""
        self._process.kill()
        self._process.wait()
        if self._process.stdin is not None:
            with contextlib.suppress(OSError):
                self._process.stdin.close()
        self._errors.close()

    def cause_of_death(self) -> str:
        """Say how it ended: signal or exit code, and the last of what it wrote."""
        code = self._process.wait()
        self._errors.seek(0)
        said = self._errors.read().decode(errors="replace").strip().splitlines()[-15:]
        self.kill()
        how = f"was ended by signal {-code}" if code < 0 else f"ended with exit code {code}"
        if code == -9:
            how += " (as the system does to a process when memory runs out)"
        return "\n  ".join([how, *said])

    def _send(self, values: dict[str, Any]) -> None:
        stdin = self._process.stdin
        with contextlib.suppress(OSError):  # it is dead, which its reader finds, too
            if stdin is not None:
                stdin.write(json.dumps(values).encode() + b"\n")
                stdin.flush()

    def _read(self, stdout: IO[bytes], inbox: "queue.SimpleQueue[tuple[_Process, Any]]") -> None:
        with stdout, contextlib.suppress(ValueError):  # a last line that was cut off by its death
            for line in stdout:
                message = json.loads(line)
                self.started = True
                inbox.put((self, message))
        inbox.put((self, None))


def _trouble(message: dict[str, Any]) -> StoreError:
    failure = StoreError(message["trouble"])
    failure.errno = message["errno"]
    return failure


def _visible_gpus(device: str) -> tuple[str, ...]:
    """Return what to give to CUDA_VISIBLE_DEVICES so that a worker sees one GPU; nothing where there is one or none."""
    if device not in ("auto", "cuda"):
        return ()
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is not None:
        names = [name.strip() for name in visible.split(",") if name.strip()]
    else:
        import torch

        names = [str(number) for number in range(torch.cuda.device_count())]
    return tuple(names) if len(names) > 1 else ()
