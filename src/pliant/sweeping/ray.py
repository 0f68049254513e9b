"""The engine for clusters: workers are Ray actors; claims and results stay with this process."""

import contextlib
import os
import socket
import time
import traceback
from collections import Counter, deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pliant.errors import ConfigError, MissingExtraError, TrainingError
from pliant.sweeping.desk import Desk, give_up
from pliant.sweeping.engine import Closing, Engine, Settings
from pliant.sweeping.events import Event, Listen
from pliant.sweeping.jobs import Answer, Held, Job, job_from_json, job_to_json
from pliant.sweeping.worker import Worker, limit_threads

LOOK_SECONDS = 1.0
"""Time between two looks at the cluster, when nothing ends in between."""

WAIT_SECONDS = 30.0
"""Time after which it is said that there is no room for a worker, and again and again."""

CONNECT_SECONDS = 10.0

FALSE_STARTS = 5
"""So many workers in a row that end before they have begun are no accident."""

PASSED_ON = ("HF_HUB_OFFLINE", "HF_DATASETS_OFFLINE", "TRANSFORMERS_OFFLINE")
"""Variables that workers get from this process, beside those that begin with PLIANT_."""


def ray_engine(settings: Settings) -> Engine:
    """Connect to a cluster, or start one on this machine.

    Raises:
        MissingExtraError: Ray is not installed.
        ConfigError: there is no cluster at the address, or it has no room for a single worker.
    """
    try:
        import ray
    except ImportError:
        raise MissingExtraError(
            'the engine ray needs Ray, which is not installed: pip install "pliant[ray]". For this machine alone, '
            "--engine local --workers N needs nothing more"
        ) from None
    return RayEngine(ray, settings)


class RayActor:
    """What runs on the cluster: a worker that never sees the store."""

    def __init__(
        self, settings: Settings, *, threads: int, device: str, folder: str, variables: dict[str, str]
    ) -> None:
        """Set up as in the process that asked for it: folder for relative names, threads, offline mode."""
        os.environ.update(variables)
        with contextlib.suppress(OSError):  # a machine that does not have it; absolute names work nevertheless
            os.chdir(folder)
        limit_threads(threads)
        self._scratch = settings.scratch
        self._worker = Worker(device=device, checkpoint_seconds=settings.checkpoint_seconds)

    def ready(self) -> None:
        """Return, which says that the worker is there."""

    def work(self, values: dict[str, Any]) -> dict[str, Any]:
        """Do a job; return what came of it, or the traceback."""
        try:
            return job_from_json(values).work_away(self._worker, scratch=self._scratch)
        except Exception:
            return {"error": traceback.format_exc()}


@dataclass
class _Place:
    """A worker on the cluster, and what it is doing."""

    actor: Any
    pending: Any
    job: Job | None = None
    held: Held | None = None


class RayEngine(Closing):
    """Runs jobs on a Ray cluster, each worker holding its share of CPUs and GPUs.

    This process alone claims cells and writes the store. A job whose machine or worker is lost is tried elsewhere.
    """

    def __init__(self, ray: Any, settings: Settings) -> None:
        """Connect; workers are started by `run`."""
        self._ray = ray
        self._settings = settings
        self._mine = not ray.is_initialized()
        if self._mine:
            _connect(ray, settings)
        self._places: list[_Place] = []
        self._false_starts = 0
        try:
            self._gpus = self._gpus_per_cell()
            self._threads = settings.threads or 1
            if self.slots == 0:
                raise ConfigError(
                    f"the cluster has no machine with {self._needs()} for a worker; it has {self._has()}. Ask for "
                    "less (--threads, --gpus-per-cell), or say --workers N to wait until it has grown"
                )
        except BaseException:
            self.close()
            raise

    @property
    def slots(self) -> int:
        """Number of workers asked for, or that the cluster as it is now has room for."""
        if self._settings.workers is not None:
            return self._settings.workers
        nodes = [node["Resources"] for node in self._ray.nodes() if node["Alive"]]
        return sum(self._fit(node) for node in nodes)

    def run(self, jobs: Sequence[Job], *, listen: Listen) -> None:
        """Run the jobs, see `Engine`."""
        left, lost = deque(jobs), Counter[Job]()
        heard = time.monotonic()
        with Desk(listen) as desk:
            try:
                while left or any(place.job for place in self._places):
                    self._grow(len(left))
                    ended = self._wait()
                    for place in ended:
                        self._take_back(place, left, lost, desk, listen)
                    for place in self._places:
                        if place.pending is None:
                            self._give(place, left, desk, listen)
                    if ended or any(place.job for place in self._places):
                        heard = time.monotonic()
                    elif time.monotonic() - heard > WAIT_SECONDS:
                        heard = time.monotonic()
                        listen(Event("waiting", text=f"no room for a worker ({self._needs()}); there is {self._has()}"))
            finally:
                for place in self._places:
                    if place.held is not None:
                        place.held.release()

    def close(self) -> None:
        """Stop the workers, and the cluster if it was started here."""
        for place in self._places:
            self._ray.kill(place.actor)
        self._places.clear()
        if self._mine and self._ray.is_initialized():
            self._ray.shutdown()

    def _grow(self, jobs: int) -> None:
        """Ask for workers, as many as there is work and room for. Those that do not fit yet wait for room."""
        busy = sum(place.job is not None for place in self._places)
        while len(self._places) < min(busy + jobs, self.slots):
            variables = {name: os.environ[name] for name in PASSED_ON if name in os.environ}
            variables |= {name: value for name, value in os.environ.items() if name.startswith("PLIANT_")}
            make = self._ray.remote(num_cpus=self._threads, num_gpus=self._gpus, max_restarts=0)(RayActor)
            actor = make.remote(
                self._settings, threads=self._threads, device=self._device(), folder=os.getcwd(), variables=variables
            )
            self._places.append(_Place(actor, actor.ready.remote()))

    def _wait(self) -> list[_Place]:
        """Wait a moment for workers to get ready or to end a job."""
        places = {place.pending: place for place in self._places if place.pending is not None}
        ended, _ = self._ray.wait(list(places), timeout=LOOK_SECONDS) if places else ([], [])
        return [places[reference] for reference in ended]

    def _take_back(self, place: _Place, left: deque[Job], lost: Counter[Job], desk: Desk, listen: Listen) -> None:
        """Store what a job led to; a job whose worker is lost goes back to those that are left."""
        job, held, reference = place.job, place.held, place.pending
        try:
            values = self._ray.get(reference)
        except self._ray.exceptions.RayError as error:
            self._places.remove(place)
            with contextlib.suppress(Exception):
                self._ray.kill(place.actor)
            if job is not None and held is not None:
                held.release()
                self._lost(job, str(error).strip().splitlines()[0], left, lost, desk, listen)
            else:
                self._false_starts += 1
                if self._false_starts > FALSE_STARTS:
                    raise TrainingError(f"no worker can be started on the cluster: {error}") from error
            return
        self._false_starts = 0
        place.job = place.held = place.pending = None
        if job is not None and held is not None:
            answer = Answer(error=values["error"]) if "error" in values else job.read(values)
            desk.settle(job, held, answer)

    def _lost(self, job: Job, cause: str, left: deque[Job], lost: Counter[Job], desk: Desk, listen: Listen) -> None:
        lost[job] += 1
        if lost[job] > self._settings.retries:
            give_up(job, f"its worker was lost {lost[job]} times; the last time: {cause}", desk=desk)
        else:
            listen(Event("lost", job.kind, job.cell, text=f"its worker was lost: {cause}"))
            left.appendleft(job)

    def _give(self, place: _Place, left: deque[Job], desk: Desk, listen: Listen) -> None:
        while left:
            job = left.popleft()
            held = desk.take(job)
            if held is not None:
                place.job, place.held = job, held
                place.pending = place.actor.work.remote(job_to_json(job))
                listen(Event("started", job.kind, job.cell))
                return

    def _gpus_per_cell(self) -> float:
        """Return the GPUs of each worker: as asked for; else one, if there are any and the device may be one."""
        have = float(self._ray.cluster_resources().get("GPU", 0))
        asked, device = self._settings.gpus_per_cell, self._settings.device
        if device == "cuda" and (asked == 0 or (not have and self._settings.workers is None)):
            raise ConfigError(
                "the sweep asks for a GPU (device cuda), and "
                + (
                    "--gpus-per-cell 0 leaves it none"
                    if asked == 0
                    else "the cluster has none; --device cpu does without"
                )
            )
        if asked is not None:
            return asked
        return 1.0 if device == "cuda" or (device == "auto" and have) else 0.0

    def _device(self) -> str:
        return "cuda" if self._gpus else "cpu"

    def _fit(self, resources: dict[str, float]) -> int:
        """Count the workers that a machine has room for."""
        rooms = [resources.get("CPU", 0.0) / self._threads]
        if self._gpus:
            have = resources.get("GPU", 0.0)
            # A worker's part of a GPU is of one GPU: three workers of 0.4 need two.
            rooms.append(have // self._gpus if self._gpus >= 1 else int(have) * int(1 / self._gpus + 1e-9))
        return int(min(rooms))

    def _needs(self) -> str:
        return _shown({"CPU": self._threads, "GPU": self._gpus})

    def _has(self) -> str:
        return _shown(self._ray.cluster_resources())


def _connect(ray: Any, settings: Settings) -> None:
    """Connect to the cluster of the address, of RAY_ADDRESS, or to a new one on this machine."""
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # Ray reports its use to its makers unless told not to
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")  # workers are told their device; no warning needed
    address = settings.address or os.environ.get("RAY_ADDRESS") or "local"
    options: dict[str, Any] = {"include_dashboard": False} if address == "local" else {}
    try:
        _knock(address)
        ray.init(address=address, log_to_driver=False, configure_logging=False, **options)
    except (OSError, RuntimeError, ValueError) as error:  # ConnectionError and TimeoutError are OSErrors
        raise ConfigError(
            f"no Ray cluster at {address!r}: {str(error).strip().splitlines()[0]}. Start one with `ray start --head`, "
            "or leave out --address to start one on this machine"
        ) from error


def _knock(address: str) -> None:
    """See whether anything listens at HOST:PORT; Ray itself would try for many minutes.

    Raises:
        OSError: nothing does.
    """
    host, colon, port = address.removeprefix("ray://").rpartition(":")
    if colon and port.isdigit():
        socket.create_connection((host.strip("[]"), int(port)), timeout=CONNECT_SECONDS).close()


def _shown(resources: Mapping[str, float]) -> str:
    parts = [f"{name} {resources[name]:g}" for name in ("CPU", "GPU") if resources.get(name)]
    return ", ".join(parts) or "nothing"
