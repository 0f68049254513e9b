"""Trains cells one after another; model and data are kept for the next cell."""

import contextlib
import os
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pliant.errors import ConfigError, StoreError
from pliant.runs import CellConfig, Record
from pliant.runs.probes import ProbeKey, ProbeLine
from pliant.sweeping.saving import Pretrained, Save

if TYPE_CHECKING:  # a worker limits its threads before torch is imported for the first time
    from pliant.components import Anatomy
    from pliant.data import ImageData
    from pliant.models import Loaded

CHECKPOINT_SECONDS = 30.0
"""What a cell that dies loses, beside the way to its next evaluation."""

DYNAMICS_ROWS = 100
"""Most rows of gradient norms, update sizes and loss that the metrics of a cell have."""

THREAD_VARIABLES = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")


class Worker:
    """Turns cells into records.

    A cell's record is the same whatever was trained before it: training gives the model back its pretrained weights,
    and after an exception the model is loaded anew.

    Args:
        device: `auto`, `cpu`, `cuda` or `mps`.
        checkpoint_seconds: time between two checkpoints of a cell.
    """

    def __init__(self, *, device: str = "auto", checkpoint_seconds: float = CHECKPOINT_SECONDS) -> None:
        """Start with nothing loaded."""
        self.device = device
        self.checkpoint_seconds = checkpoint_seconds
        self._data: tuple[object, ImageData] | None = None
        self._model: tuple[object, Loaded, Anatomy] | None = None

    def train(
        self,
        cell: CellConfig,
        *,
        checkpoint: Path | None = None,
        metrics: Path | None = None,
        progress: Callable[[int], None] | None = None,
        save: Save | None = None,
        folder: Path | None = None,
    ) -> Record:
        """Train a cell.

        Args:
            cell: what to train.
            checkpoint: folder of the checkpoint that it resumes from, and that is written while it goes on. One that
                cannot be read is removed, which costs no more than the time it would have saved.
            metrics: file of metrics by step.
            progress: called with the number of steps done.
            save: what to save of a model that was trained to its end, into `folder`.
            folder: of the cell.

        Raises:
            PliantError: see `pliant.tuning.train`, `pliant.data.load`, `pliant.models.load`.
        """
        run = partial(self._train, cell, checkpoint=checkpoint, metrics=metrics, progress=progress)
        if save is not None and folder is not None:
            run = partial(self._train_and_save, run, cell, save, folder)
        try:
            return run()
        except StoreError as error:
            if error.errno or checkpoint is None or not checkpoint.exists():
                raise
        shutil.rmtree(checkpoint, ignore_errors=True)
        return run()

    def _train(
        self,
        cell: CellConfig,
        *,
        checkpoint: Path | None,
        metrics: Path | None,
        progress: Callable[[int], None] | None,
        keep: bool = False,
    ) -> Record:
        from pliant.tuning import train

        data = self.data(cell)
        loaded, anatomy = self.model(cell, data)
        with self._model_is_lost_by_an_exception():
            record = train(
                cell,
                loaded,
                data,
                anatomy=anatomy,
                out=checkpoint,
                metrics=metrics,
                progress=None if progress is None else lambda step, steps, point: progress(step),
                device=self.device,
                keep=keep,
                checkpoint_seconds=self.checkpoint_seconds,
                dynamics=0 if metrics is None else -(-cell.steps // DYNAMICS_ROWS),
            )
        _free_gpu()
        return record

    def _train_and_save(self, run: Callable[..., Record], cell: CellConfig, save: Save, folder: Path) -> Record:
        """Train, save, and let go of the model, which is not the pretrained one any more."""
        loaded, _ = self.model(cell, self.data(cell))
        before = Pretrained(loaded)
        try:
            record = run(keep=True)
            if record.status == "done":
                before.save(save, cell, folder)
            return record
        finally:
            self._model = None

    def probe(self, cell: CellConfig) -> ProbeLine:
        """Compute the linear probe that a cell is compared with: its model, its data, its preprocessing.

        Raises:
            PliantError: see `pliant.tuning.probe`, `pliant.data.load`, `pliant.models.load`.
        """
        import torch

        from pliant.data import cache_folder
        from pliant.measuring.subject import pick_device
        from pliant.tuning import probe
        from pliant.tuning.environment import environment

        data = self.data(cell)
        loaded, anatomy = self.model(cell, data)
        device = pick_device(self.device)
        with self._model_is_lost_by_an_exception():
            found = probe(
                loaded,
                data,
                normalization=cell.normalization,
                anatomy=anatomy,
                device=device,
                cache=cache_folder() / "features",
            )
        _free_gpu()
        return ProbeLine(
            key=ProbeKey.of(cell),
            pooling=found.pooling,
            layer=found.last.layer,
            strength=found.last.strength,
            n_train=found.n_train,
            validation=found.validation,
            test=found.test,
            seconds=found.seconds,
            notes=(*data.notes, *loaded.notes, *found.notes),
            environment={**environment(torch.device(device)), "fingerprint": loaded.fingerprint},
        )

    def data(self, cell: CellConfig) -> "ImageData":
        """Return the cell's images; those of the last cell if they are the same."""
        from pliant.data import load

        wanted = (cell.data, cell.train, cell.validation, cell.test, cell.data_seed, cell.skip_unreadable)
        if self._data is None or self._data[0] != wanted:
            self._data = None  # so that there are never two in memory
            data = load(
                cell.data,
                train=cell.train,
                validation=cell.validation,
                test=cell.test,
                seed=cell.data_seed,
                skip_unreadable=cell.skip_unreadable,
            )
            self._data = (wanted, data)
        return self._data[1]

    def model(self, cell: CellConfig, data: "ImageData") -> "tuple[Loaded, Anatomy]":
        """Return the cell's model with a classifier for the data; that of the last cell if it is the same."""
        from pliant.components import find_components
        from pliant.models import load

        wanted = (cell.model, data.classes, cell.image_size)
        if self._model is None or self._model[0] != wanted:
            self._model = None
            loaded = load(cell.model, classes=data.classes, image_size=cell.image_size)
            self._model = (wanted, loaded, find_components(loaded.model))
        return self._model[1:]

    def forget(self) -> None:
        """Let go of model and data."""
        self._data = self._model = None

    @contextlib.contextmanager
    def _model_is_lost_by_an_exception(self) -> Iterator[None]:
        try:
            yield
        except BaseException:
            self._model = None
            raise


def train_away(worker: Worker, cell: CellConfig, *, scratch: Path | None) -> dict[str, Any]:
    """Train a cell where the store is not at hand; return record and metrics as plain values.

    Args:
        worker: trains.
        cell: what to train.
        scratch: folder that keeps checkpoints of cells by name, for whoever goes on with one; None keeps none.
    """
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary) if scratch is None else scratch / cell.name
        folder.mkdir(parents=True, exist_ok=True)
        checkpoint, metrics = None if scratch is None else folder / "checkpoint", folder / "metrics.jsonl"
        record = worker.train(cell, checkpoint=checkpoint, metrics=metrics)
        text = metrics.read_text(encoding="utf-8") if metrics.exists() else ""
        shutil.rmtree(folder, ignore_errors=True)
        return {"record": record.model_dump(mode="json"), "metrics": text}


def cores() -> int:
    """Number of cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def share_of_cores(workers: int, threads: int | None) -> int:
    """Return the threads of each of several workers, so that all of them together have no more than there are cores.

    Two processes of two threads each on two cores take many times as long as one: threads of one wait for threads that
    the other has pushed aside.

    Raises:
        ConfigError: that many workers, or workers of that many threads, do not fit.
    """
    have = cores()
    if workers > have:
        raise ConfigError(f"got {workers} workers; expected at most {have}, the number of cores")
    if threads is not None and workers * threads > have:
        raise ConfigError(
            f"{workers} workers of {threads} threads need {workers * threads} cores, and there are {have}; "
            f"give each at most {have // workers}"
        )
    limit = os.environ.get("OMP_NUM_THREADS", "")
    most = int(limit) if limit.isdigit() and int(limit) else have
    return threads or max(1, min(have // workers, most))


def limit_threads(threads: int) -> None:
    """Give this process so many threads for numerical work."""
    for name in THREAD_VARIABLES:
        os.environ[name] = str(threads)  # read when the libraries are imported
    import torch

    torch.set_num_threads(threads)  # for torch imported before, as by a server that forks


@contextlib.contextmanager
def limited_threads(threads: int | None) -> Iterator[None]:
    """Give torch in this process so many threads, for a while; None leaves it alone."""
    if threads is None:
        yield
        return
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _free_gpu() -> None:
    """Give memory that torch keeps for later back to the GPU, which others may share."""
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_initialized():
        torch.cuda.empty_cache()
