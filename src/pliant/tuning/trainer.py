"""The one training loop: transformers' Trainer, quiet, with the guards and the choice of checkpoint hung into it."""

import contextlib
import gc
import math
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional
from transformers import PrinterCallback, Trainer, TrainerCallback, TrainerControl, TrainerState, TrainingArguments
from transformers.utils import logging as transformers_logging

from pliant.errors import ConfigError
from pliant.runs import CellConfig, CurvePoint
from pliant.tuning.batches import TrainingBatches
from pliant.tuning.checkpoint import Best, Progression
from pliant.tuning.evaluate import Evaluation, autocast, logits_of
from pliant.tuning.guards import copies
from pliant.tuning.recipe import check_precision, describe, make_optimizer
from pliant.tuning.select import Selection

Progress = Callable[[int, int, CurvePoint | None], None]
"""Called with steps done, steps in all, and after an evaluation with what it found."""

LOSSES_KEPT = 50
"""Steps after which losses on an accelerator are looked at; looking each step would make it wait for the host."""

SCALER_STEPS = 20
"""Steps that float16's loss scale is given to come down to where gradients are finite."""


class CellTrainer(Trainer):  # type: ignore[misc]  # transformers is untyped here
    """Trainer for one cell: pliant's batches, loss, optimizer and evaluation in transformers' loop."""

    loss_is_scaled_for_ga = False  # the loss of each forward pass is its own mean

    def __init__(
        self, cell: CellConfig, selection: Selection, batches: TrainingBatches, *, arguments: TrainingArguments
    ) -> None:
        """Set up; `evaluation` and `watch` are to be set before `train`."""
        super().__init__(model=selection.model, args=arguments, train_dataset=batches.dataset)
        self.remove_callback(PrinterCallback)  # Trainer adds it wherever there is no progress bar
        self.model_accepts_loss_kwargs = False
        # It holds nothing yet, and collecting garbage, which this does, takes longer than a short run.
        self.accelerator.free_memory = lambda *objects: list(objects)
        self.cell = cell
        self.selection = selection
        self.batches = batches
        self.dtype = check_precision(cell, self.args.device)
        self.losses: list[Tensor] = []
        self.gradient_norm: Tensor | None = None
        self.groups: list[dict[str, Any]] = []

    def close(self) -> None:
        """Let go of gradients' moments and the like: trainer and callbacks refer to each other, and live on a while."""
        if self.optimizer is not None:
            self.optimizer.state.clear()
            self.optimizer.param_groups.clear()
        self.callback_handler.callbacks.clear()
        if self.args.world_size > 1:
            # The wrapper must be gone before the model is chosen from again.
            self.model_wrapped = self.callback_handler.model = None
            self.accelerator._models.clear()
            gc.collect()

    def get_train_dataloader(self) -> Any:
        """Return the batches as they are: no worker processes, no sampler."""
        return self.batches

    def create_optimizer(self, model: nn.Module | None = None) -> torch.optim.Optimizer:
        """Make the cell's optimizer."""
        if self.optimizer is None:
            made = make_optimizer(self.cell, self.selection)
            self.groups = describe(made, self.selection)
            self.optimizer: Any = made
        return self.optimizer

    def create_scheduler(self, num_training_steps: int, optimizer: Any = None) -> Any:
        """Make the schedule, on the plain optimizer where accelerate's wrapper is not needed."""
        if self.accelerator.scaler is None and not self.is_deepspeed_enabled:
            # The wrapper is for loss scales; it also looks through the installed packages at every step.
            self.optimizer = getattr(self.optimizer, "optimizer", self.optimizer)
        return super().create_scheduler(num_training_steps, optimizer)

    def compute_loss(self, model: nn.Module, inputs: Any, return_outputs: bool = False, **_: Any) -> Any:
        """Return the mean cross-entropy of one forward pass."""
        values = self.batches.values(inputs, self.args.device)
        with autocast(self.dtype, self.args.device):
            outputs = model(values)
        loss = functional.cross_entropy(logits_of(outputs), inputs["labels"])
        return (loss, outputs) if return_outputs else loss

    def training_step(self, *arguments: Any, **named: Any) -> Tensor:
        """Run one forward and backward pass and remember its loss."""
        loss: Tensor = super().training_step(*arguments, **named)
        self.losses.append(loss)
        return loss

    def _clip_grad_norm(self, model: nn.Module) -> Tensor:
        self.gradient_norm = self.accelerator.clip_grad_norm_(self.selection.parameters.values(), self.cell.clip_norm)
        return self.gradient_norm

    def _get_grad_norm(self, model: nn.Module, grad_norm: Tensor | None = None) -> Tensor | None:
        if grad_norm is None:  # not clipped: Trainer would compute the norm for its log alone
            self.accelerator.unscale_gradients()
        return grad_norm

    def evaluate(self, *_: Any, **__: Any) -> dict[str, float]:
        """Do nothing: `Watch` evaluates, and Trainer's own average weighs the last batch wrongly."""
        return {}

    def log(self, *_: Any, **__: Any) -> None:
        """Log nothing: what is to be known stands in the record and in the metrics."""

    def floating_point_ops(self, inputs: Any) -> int:
        """Return 0: counting walks over all parameters in every step."""
        return 0


class Watch(TrainerCallback):  # type: ignore[misc]
    """Guards, evaluation, choice of the checkpoint, divergence: what happens around the steps of a run."""

    def __init__(
        self,
        trainer: CellTrainer,
        *,
        evaluate: Callable[[], Evaluation],
        run: Progression,
        keep: Callable[[CurvePoint], None] = lambda point: None,
        progress: Progress | None = None,
    ) -> None:
        """Watch over a trainer.

        Args:
            trainer: the one that this is added to.
            evaluate: scores the model on the validation images.
            run: where the run stands; it goes on from there.
            keep: called after each evaluation, to store it and a checkpoint.
            progress: see `Progress`.
        """
        self.trainer = trainer
        self.cell = trainer.cell
        self.run = run
        self._evaluate = evaluate
        self._keep = keep
        self._progress = progress
        self._looked = run.step
        self._window: list[float] = []

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any
    ) -> TrainerControl:
        """Take up optimizer and schedule where the checkpoint left them."""
        state.global_step = self.run.step
        # Trainer calls it at every step, and looking through all modules takes as long as a small block.
        self.trainer.model.zero_grad = self.trainer.selection.drop_gradients
        if (left := self.run.resumed) is not None:
            self.trainer.optimizer.load_state_dict(left["optimizer"])
            self.trainer.lr_scheduler.load_state_dict(left["schedule"])
            if left["scaler"] is not None and self.trainer.accelerator.scaler is not None:
                self.trainer.accelerator.scaler.load_state_dict(left["scaler"])
            self.run.resumed = None
        return control

    def on_step_begin(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        """Give dropout a seed that follows from the cell's and the step, so that a resumed run draws the same."""
        seed = step_seed(self.cell.seed, state.global_step)
        # Not torch.manual_seed: without a GPU it keeps a call stack for later at every call.
        torch.default_generator.manual_seed(seed)
        if args.device.type == "cuda":
            torch.cuda.manual_seed(seed)

    def on_pre_optimizer_step(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any
    ) -> None:
        """Prove, before the first weight moves, that every chosen tensor gets a gradient."""
        selection = self.trainer.selection
        if selection.verified or not self._last_loss_is_finite():
            return
        step = state.global_step
        if self.trainer.accelerator.scaler is not None and step < SCALER_STEPS and not self._gradients_are_finite():
            return
        # The first step of a warm-up has rate zero; what waits for another tensor to move gets its gradient after it.
        selection.verify_gradients(final=step > (1 if self.cell.warmup_steps else 0))

    def on_step_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any
    ) -> TrainerControl:
        """Look for divergence, evaluate when it is time, report progress."""
        self.run.step = state.global_step
        due = self.run.step % self.cell.eval_every == 0 or self.run.step == self.cell.steps
        waiting = len(self.trainer.losses) // self.cell.accumulation
        if due or waiting >= LOSSES_KEPT or self.trainer.args.device.type == "cpu":
            self._look_at_losses()
        point = None
        if due and self.run.diverged_at is None:
            point = self._evaluate_now()
        if self.run.diverged_at is not None:
            control.should_training_stop = True
        if self._progress is not None:
            self._progress(self.run.step, self.cell.steps, point)
        return control

    def _look_at_losses(self) -> None:
        """Take over the losses since the last look; the first step with one that is not finite is where it diverged."""
        losses = torch.stack(self.trainer.losses).view(-1, self.cell.accumulation).sum(dim=1)  # parts of a mean
        self.trainer.losses.clear()
        if self.trainer.args.world_size > 1:
            losses = self.trainer.accelerator.reduce(losses, "mean")
        waiting = losses.double().tolist()
        for loss in waiting:
            self._looked += 1
            if not math.isfinite(loss) and self.run.diverged_at is None:
                self.run.diverged_at = self._looked
        self._window += waiting

    def _evaluate_now(self) -> CurvePoint:
        found = self._evaluate()
        point = CurvePoint(
            step=self.run.step,
            train_loss=float(np.mean(self._window)),
            validation_loss=found.loss,
            validation_accuracy=found.accuracy,
        )
        self._window = []
        self.run.curve.append(point)
        if not found.finite:
            self.run.diverged_at = self.run.step
        elif self.run.best is None or found.accuracy > self.run.best.accuracy:
            selection = self.trainer.selection
            self.run.best = Best(self.run.step, found.accuracy, copies(selection.parameters), copies(selection.buffers))
        self._keep(point)
        return point

    def _last_loss_is_finite(self) -> bool:
        return math.isfinite(torch.stack(self.trainer.losses[-self.cell.accumulation :]).sum().item())

    def _gradients_are_finite(self) -> bool:
        gradients = [g for p in self.trainer.selection.parameters.values() if (g := p.grad) is not None]
        return all(bool(torch.isfinite(g).all()) for g in gradients)


def step_seed(seed: int, step: int) -> int:
    """Mix seed and step into one seed."""
    return int(np.random.SeedSequence([seed, step]).generate_state(1, np.uint64)[0] >> 1)


def arguments_for(cell: CellConfig, folder: Path, *, device: str) -> TrainingArguments:
    """Write a cell as Trainer's arguments, with all of Trainer's own reports, checkpoints and evaluations off.

    Raises:
        ConfigError: the device or precision is not to be had here.
    """
    if device not in ("auto", "cpu", "cuda", "mps"):
        raise ConfigError(f"got device={device!r}; expected auto, cpu, cuda or mps")
    if device == "cuda" and not torch.cuda.is_available():
        raise ConfigError("device cuda was asked for, but torch sees none; use auto or cpu")
    on_cuda = device != "cpu" and torch.cuda.is_available()
    if cell.precision == "float16" and not on_cuda:
        check_precision(cell, torch.device("cpu"))
    arguments = TrainingArguments(
        output_dir=str(folder),
        max_steps=cell.steps,
        per_device_train_batch_size=cell.batch_size,
        gradient_accumulation_steps=cell.accumulation,
        learning_rate=cell.learning_rate,
        lr_scheduler_type="cosine",
        warmup_steps=cell.warmup_steps,
        max_grad_norm=cell.clip_norm or 0.0,
        seed=cell.seed,
        fp16=cell.precision == "float16",
        use_cpu=device == "cpu",
        ddp_find_unused_parameters=False,
        remove_unused_columns=False,
        dataloader_num_workers=0,
        dataloader_pin_memory=False,
        logging_nan_inf_filter=False,
        logging_strategy="no",
        save_strategy="no",
        eval_strategy="no",
        report_to="none",
        disable_tqdm=True,
        log_level="error",
    )
    if arguments.n_gpu > 1:
        arguments._n_gpu = 1  # several GPUs are for several processes (torchrun), never for DataParallel
    return arguments


@contextlib.contextmanager
def denormals_are_zero() -> Iterator[None]:
    """Take numbers below 1.2e-38 for zero on the CPU, and put the setting back.

    Gradients of a model that fits its images perfectly are full of them, and a CPU takes many times as long for each.
    """
    before = float(torch.full((1,), 1e-39) * 0.5) == 0.0
    torch.set_flush_denormal(True)
    try:
        yield
    finally:
        torch.set_flush_denormal(before)


@contextlib.contextmanager
def undisturbed(model: nn.Module) -> Iterator[None]:
    """Put back what Trainer changes on its way: random states, verbosity, the model's configuration, forward, device.

    Weights stay as training left them.
    """
    states = random.getstate(), np.random.get_state(), torch.get_rng_state()
    cuda = torch.cuda.get_rng_state_all() if torch.cuda.is_available() else None
    verbosity = transformers_logging.get_verbosity()
    config = getattr(model, "config", None)
    had_cache = {"use_cache": config.use_cache} if config is not None and "use_cache" in vars(config) else {}
    attributes = {key: vars(model)[key] for key in _PATCHED if key in vars(model)}
    device = next(model.parameters()).device
    try:
        yield
    finally:
        random.setstate(states[0])
        np.random.set_state(states[1])
        torch.set_rng_state(states[2])
        if cuda is not None:
            torch.cuda.set_rng_state_all(cuda)
        transformers_logging.set_verbosity(verbosity)
        if config is not None:
            vars(config).pop("use_cache", None)
            vars(config).update(had_cache)
        for key in _PATCHED:
            vars(model).pop(key, None)
        vars(model).update(attributes)
        model.to(device)


_PATCHED = ("forward", "_original_forward", "_is_accelerate_prepared", "zero_grad")
"""What is set on a model on the way: by accelerate for mixed precision and distributed runs, and by `Watch`."""
