"""How training goes, step by step: gradient norm and size of the update of each component, and the loss.

Each row costs about four passes over the trained weights, and for the length of one step a copy of them in main memory.
"""

import math
from collections import defaultdict
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor
from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from pliant.runs.metrics import Metric
from pliant.terms import ALWAYS_TRAINED
from pliant.tuning.select import Selection
from pliant.tuning.trainer import LOSSES_KEPT, CellTrainer

QUANTITIES = ("gradient_norm", "update_norm")

DIGITS = 7
"""Significant digits that are written: those of a sum of squares in float32."""


class Dynamics(TrainerCallback):  # type: ignore[misc]  # transformers is untyped here
    """Writes a row of metrics every so many steps.

    Each row holds `step`, `loss` (of the step's own images), and of `gradient_norm` (before clipping) and `update_norm`
    (‖w_after − w_before‖): plain, the norm over what was chosen, without the classifier and the final norm that every
    set trains beside it (over these, where nothing else is trained); `<quantity>.total` over all trained weights;
    `<quantity>.mha` over a role; `<quantity>.block03.mha` over a component.
    """

    def __init__(self, trainer: CellTrainer, write: Callable[..., None], *, every: int = 1) -> None:
        """Follow a trainer.

        Args:
            trainer: the one that this is added to, before `Watch`.
            write: takes a step and the row's values by name.
            every: steps from one row to the next.
        """
        self.trainer = trainer
        self._write = write
        self._every = every
        self._groups = _groups(trainer.selection)
        self._before: list[Tensor] = []
        self._gradients: Tensor | None = None
        self._rows: list[tuple[int, Tensor]] = []

    def on_pre_optimizer_step(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any
    ) -> None:
        """Take the norms of the gradients, and remember the weights."""
        if (state.global_step + 1) % self._every:
            return
        gradients = [torch.zeros_like(p) if p.grad is None else p.grad for p in self._parameters()]
        self._gradients = _norms(gradients) / self._clipped()
        self._before = [p.detach().to("cpu", copy=True) for p in self._parameters()]

    def on_step_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        """Take the size of the update; write rows now and then, and always before a checkpoint."""
        cell, step = self.trainer.cell, state.global_step
        if step % self._every == 0 and self._gradients is not None:
            torch._foreach_sub_(self._before, [p.detach().cpu() for p in self._parameters()])
            loss = torch.stack(self.trainer.losses[-cell.accumulation :]).sum()
            updates = _norms(self._before).to(self._gradients.device)
            self._rows.append((step, torch.cat([loss.view(1), self._gradients, updates])))
            self._before = []
        if len(self._rows) >= LOSSES_KEPT or step % cell.eval_every == 0 or step == cell.steps:
            self._flush()

    def on_train_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        """Write what is left of a run that ended early."""
        self._flush()

    def _parameters(self) -> list[torch.nn.Parameter]:
        return list(self.trainer.selection.parameters.values())

    def _clipped(self) -> Tensor | float:
        """Factor that clipping has multiplied the gradients by."""
        bound, norm = self.trainer.cell.clip_norm, self.trainer.gradient_norm
        return 1.0 if bound is None or norm is None else torch.clamp(bound / (norm + 1e-6), max=1.0)

    def _flush(self) -> None:
        """Bring the rows to the host in one transfer, and write them."""
        if not self._rows:
            return
        values = torch.stack([row for _, row in self._rows]).double().cpu().tolist()
        for (step, _), (loss, *norms) in zip(self._rows, values, strict=True):
            count = len(norms) // len(QUANTITIES)
            row: dict[str, Metric] = {"loss": loss}
            for i, quantity in enumerate(QUANTITIES):
                row |= _joined(quantity, norms[i * count : (i + 1) * count], self._groups)
            self._write(step, **row)
        self._rows.clear()


def _norms(tensors: Iterable[Tensor]) -> Tensor:
    return torch.stack([n.float() for n in torch._foreach_norm(list(tensors))])


def _groups(selection: Selection) -> dict[str, list[int]]:
    """Positions of the trained tensors that each figure is over, by the end of its name."""
    groups: defaultdict[str, list[int]] = defaultdict(list)
    apart = []
    for position, name in enumerate(selection.parameters):
        component = selection.owner(name)
        role = component.rpartition(".")[2]
        for key in dict.fromkeys((".total", f".{role}", f".{component}")):
            groups[key].append(position)
        if role not in ALWAYS_TRAINED:
            apart.append(position)
    return {"": apart or groups[".total"], **groups}


def _joined(quantity: str, norms: list[float], groups: dict[str, list[int]]) -> dict[str, float]:
    joined = {key: math.sqrt(sum(norms[i] ** 2 for i in members)) for key, members in groups.items()}
    return {f"{quantity}{key}": float(f"{norm:.{DIGITS}g}") for key, norm in joined.items()}
