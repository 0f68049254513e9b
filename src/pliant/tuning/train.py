"""From a cell to its record: the one way in which anything is trained."""

import contextlib
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from pliant.components import Anatomy, find_components
from pliant.data import ImageData, ImageSet
from pliant.errors import ConfigError, ModelError
from pliant.models import Loaded
from pliant.runs import CellConfig, CurvePoint, MetricLog, Record
from pliant.runs.metrics import Metric
from pliant.terms import Preprocessing
from pliant.tuning.baselines import METHODS
from pliant.tuning.batches import TrainingBatches, evaluation_batches, preprocessing_of
from pliant.tuning.checkpoint import Progression, read_checkpoint, write_checkpoint
from pliant.tuning.classifier import renew_classifier
from pliant.tuning.delta import delta_bytes
from pliant.tuning.dynamics import Dynamics
from pliant.tuning.environment import environment, forget_peak_memory, peak_memory
from pliant.tuning.evaluate import Evaluation, evaluate, logits_of
from pliant.tuning.guards import copies, write_back
from pliant.tuning.select import EndCheck, Selection
from pliant.tuning.trainer import CellTrainer, Progress, Watch, arguments_for, denormals_are_zero, undisturbed

CHECKPOINT_SECONDS = 30.0
"""Time between two checkpoints: what a run that dies loses, beside the way to the next evaluation."""


def train(
    cell: CellConfig,
    loaded: Loaded,
    data: ImageData,
    *,
    anatomy: Anatomy | None = None,
    out: Path | None = None,
    metrics: Path | None = None,
    progress: Progress | None = None,
    device: str = "auto",
    keep: bool = True,
    checkpoint_seconds: float = CHECKPOINT_SECONDS,
    dynamics: int = 0,
) -> Record:
    """Train one cell from the model's weights and a new classifier; what is not chosen is frozen, and that is proved.

    The checkpoint is chosen by validation accuracy (the earlier of equals); the test set is read once, after that. A
    loss that is not finite ends the run with a record of status `diverged`, not with an exception. The model comes
    back in the mode, on the device and with the `requires_grad` that it was found with, also after an exception.

    Args:
        cell: what to train, and how. Its data fields are not read: `data` are the data.
        loaded: the model; its classifier gets fresh weights that follow from the cell's seed.
        data: with three splits.
        anatomy: of the model, where its family is not in the table.
        out: folder of the checkpoint that the run resumes from, if one is there; made when the first is written.
        metrics: file for one row of metrics per evaluation (JSON lines), and those of `dynamics`.
        progress: called after each step, see `Progress`.
        device: `auto`, `cpu`, `cuda` or `mps`.
        keep: whether the model keeps the chosen checkpoint's weights; without, it gets back those it came with
            (a race, the cells of a sweep). After an exception it always does.
        checkpoint_seconds: time between two checkpoints; 0 for one at each evaluation.
        dynamics: steps from one row of gradient norms, update sizes and loss to the next (see `Dynamics`); 0 for none.

    Raises:
        TrainingError: a chosen tensor gets no gradient or did not move, a frozen one moved, the checkpoint in `out` is
            another cell's.
        ModelError: the model has no classifier for these classes, no preprocessing, or weights not in float32.
        ConfigError: the cell and the model, device or number of processes do not fit together.
        DataError: a split is empty.
    """
    data.require_splits()
    if dynamics < 0 or (dynamics and metrics is None):
        raise ConfigError(
            f"got dynamics={dynamics}, metrics={metrics}; dynamics counts steps and is written to metrics"
        )
    preprocessing = preprocessing_of(cell, loaded)
    _check_model(cell, loaded)
    found = anatomy or find_components(loaded.model)
    with undisturbed(loaded.model), denormals_are_zero(), torch.enable_grad(), contextlib.ExitStack() as stack:
        forget_peak_memory()
        total = sum(p.numel() for p in loaded.model.parameters())
        chosen = stack.enter_context(_choice(cell, found, classes=len(data.classes)))
        scratch = stack.enter_context(tempfile.TemporaryDirectory())
        run = _Run(
            cell, loaded, data, preprocessing, chosen.selection, total=total, device=device, scratch=Path(scratch)
        )
        stack.callback(run.close)
        run.go(out=out, metrics=metrics, progress=progress, checkpoint_seconds=checkpoint_seconds, dynamics=dynamics)
        record = run.record()
        chosen.keep = keep
        return record


def _check_model(cell: CellConfig, loaded: Loaded) -> None:
    if cell.model_fingerprint not in (None, loaded.fingerprint):
        raise ConfigError(
            f"the cell is about weights with fingerprint {cell.model_fingerprint}, but {loaded.name} "
            f"({loaded.source}) has {loaded.fingerprint}: the weights under that name have changed"
        )
    wrong = [n for n, p in loaded.model.named_parameters() if p.is_floating_point() and p.dtype != torch.float32]
    if wrong:
        raise ModelError(
            f"{loaded.name} has {len(wrong)} tensors that are not float32, such as {wrong[0]}; what is trained must be "
            "(lower precision belongs into precision=, which computes in it): call model.float() first"
        )


@dataclass
class _Choice:
    """What is trained, and whether the model keeps what comes out of it."""

    selection: Selection
    keep: bool = False


@contextlib.contextmanager
def _choice(cell: CellConfig, anatomy: Anatomy, *, classes: int) -> Iterator[_Choice]:
    """Renew the classifier and select; at the end release, and keep or put back the weights."""
    heads = anatomy.parameters(("head",))
    before = copies(heads)
    renew_classifier(anatomy, classes=classes, seed=cell.seed)
    kept = False
    try:
        prepared = METHODS[cell.method](anatomy, cell)
        selection = prepared.selection
        buffers = copies(selection.buffers)
        choice = _Choice(selection)
        try:
            yield choice
            kept = choice.keep
        finally:
            if not kept:
                write_back(selection.initial, selection.parameters)
                write_back(buffers, selection.buffers)
            selection.restore()
            prepared.finish(kept)
    finally:
        if not kept:
            write_back(before, heads)


class _Run:
    """One cell on its way: trainer, batches, and where it stands."""

    def __init__(
        self,
        cell: CellConfig,
        loaded: Loaded,
        data: ImageData,
        preprocessing: Preprocessing,
        selection: Selection,
        *,
        total: int,
        device: str,
        scratch: Path,
    ) -> None:
        self.cell = cell
        self.loaded = loaded
        self.data = data
        self.preprocessing = preprocessing
        self.selection = selection
        self.started = time.perf_counter()
        self.total = total
        selection.exclude_unused(self._few_logits)
        arguments = arguments_for(cell, scratch, device=device)
        self.share = (arguments.process_index, arguments.world_size)
        self.batches = TrainingBatches(cell, data.train, preprocessing, share=self.share)
        self.trainer = CellTrainer(cell, selection, self.batches, arguments=arguments)
        self.device: torch.device = self.trainer.args.device
        self.progression = Progression()

    def go(
        self,
        *,
        out: Path | None,
        metrics: Path | None,
        progress: Progress | None,
        checkpoint_seconds: float,
        dynamics: int,
    ) -> None:
        """Train to the end, from the checkpoint in `out` if there is one."""
        if out is not None:
            self.progression = read_checkpoint(out, self.cell, self.selection)
        run = self.progression
        self.trainer.create_optimizer()
        self.batches.start = run.step
        if run.diverged_at is not None or run.step >= self.cell.steps:
            return
        first = self.share[0] == 0
        with contextlib.ExitStack() as stack:
            write: Callable[..., None] = _nothing
            if metrics is not None and first:
                write = stack.enter_context(MetricLog(metrics, resume_at=run.step)).write
            keep = self._keeper(out if first else None, write, checkpoint_seconds)
            if dynamics and metrics is not None and first:
                self.trainer.add_callback(Dynamics(self.trainer, write, every=dynamics))
            watch = Watch(self.trainer, evaluate=self.validate, run=run, keep=keep, progress=progress)
            self.trainer.add_callback(watch)
            self.trainer.train()

    def validate(self) -> Evaluation:
        """Score the model as it is on the validation images."""
        return self._evaluate(self.data.validation)

    def record(self) -> Record:
        """Check what was frozen and trained, go back to the chosen checkpoint, read the test set, and write it down."""
        run, selection = self.progression, self.selection
        end = selection.verify_end(moved=run.diverged_at is None)
        write_back(selection.initial if run.best is None else run.best.weights, selection.parameters)
        if run.best is not None:
            write_back(run.best.buffers, selection.buffers)
        test = self._evaluate(self.data.test).score if self.cell.read_test and run.best is not None else None
        return Record(
            cell=self.cell,
            status="done" if run.diverged_at is None else "diverged",
            best_step=None if run.best is None else run.best.step,
            validation_accuracy=None if run.best is None else run.best.accuracy,
            test=test,
            n_train=len(self.data.train),
            n_validation=len(self.data.validation),
            trained_parameters=selection.trained_parameters,
            total_parameters=self.total,
            trained_names=tuple(selection.parameters),
            frozen_tensors_unchanged=end.frozen_unchanged,
            trained_tensors_moved=end.trained_moved,
            dtype=_dtype(selection),
            seconds=self._seconds(),
            peak_memory_bytes=peak_memory(self.device),
            saved_bytes=delta_bytes(selection.parameters),
            curve=tuple(run.curve),
            diverged_at=run.diverged_at,
            notes=(*self.data.notes, *self.loaded.notes, *_remarks(selection, end)),
            environment=self._environment(),
        )

    def close(self) -> None:
        """Let go of what is large."""
        self.trainer.close()
        self.progression.best = None

    def _evaluate(self, images: ImageSet) -> Evaluation:
        batches = evaluation_batches(images, self.preprocessing, share=self.share)
        return evaluate(
            self.loaded.model,
            batches,
            classes=len(self.data.classes),
            device=self.device,
            dtype=self.trainer.dtype,
        )

    def _few_logits(self) -> Tensor:
        model = self.loaded.model.eval()
        values, _ = next(evaluation_batches(self.data.train.subset([0, len(self.data.train) - 1]), self.preprocessing))
        return logits_of(model(values.to(next(model.parameters()).device)))

    def _keeper(
        self, out: Path | None, write: Callable[..., None], checkpoint_seconds: float
    ) -> Callable[[CurvePoint], None]:
        """Return what is done after each evaluation: metrics are written, and now and then a checkpoint."""
        last = time.perf_counter()

        def keep(point: CurvePoint) -> None:
            nonlocal last
            row: dict[str, Metric] = point.model_dump()
            write(row.pop("step"), **row)
            if out is None or time.perf_counter() - last < checkpoint_seconds:
                return
            write_checkpoint(out, self.cell, self.selection, self.progression, self._states())
            last = time.perf_counter()

        return keep

    def _states(self) -> dict[str, Any]:
        scaler = self.trainer.accelerator.scaler
        return {
            "optimizer": self.trainer.optimizer.state_dict(),
            "schedule": self.trainer.lr_scheduler.state_dict(),
            "scaler": None if scaler is None else scaler.state_dict(),
            "seconds": self._seconds(),
        }

    def _seconds(self) -> float:
        return self.progression.seconds + time.perf_counter() - self.started

    def _environment(self) -> dict[str, Any]:
        return {
            **environment(self.device),
            "fingerprint": self.loaded.fingerprint,
            "source": self.loaded.source,
            "preprocessing": {k: list(v) if isinstance(v, tuple) else v for k, v in asdict(self.preprocessing).items()},
            "optimizer": self.trainer.groups,
        }


def _nothing(*_: Any, **__: Any) -> None:
    """Stand in for writing metrics where nobody asked for them."""


def _dtype(selection: Selection) -> str:
    kinds = {str(p.dtype).removeprefix("torch.") for p in selection.parameters.values()}
    return "+".join(sorted(kinds))


def _remarks(selection: Selection, end: EndCheck) -> list[str]:
    """Say what a reader of the counts must know."""
    notes = list(selection.notes)
    if selection.unused:
        notes.append(f"not trained, since the output does not depend on them: {', '.join(selection.unused)}")
    if selection.inert:
        still = len(selection.inert & set(end.still))
        did = f" ({still} did not move)" if still else ""
        notes.append(f"{len(selection.inert)} key biases have no effect in softmax attention{did}")
    if late := selection.late & set(end.still):
        notes.append(
            f"{len(late)} of LoRA's first matrices did not move: their gradients were too small for so few steps"
        )
    return notes
