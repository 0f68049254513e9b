"""Scoring a model on a whole set: correct / total, never a mean of batch means."""

import contextlib
import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float, Int64
from torch import Tensor, nn
from torch.nn import functional

from pliant.errors import ModelError
from pliant.runs import Score


@dataclass(frozen=True)
class Evaluation:
    """What a model does on a whole set.

    Attributes:
        loss: mean cross-entropy over all images.
        per_class: images and correct ones of each class.
    """

    loss: float
    per_class: tuple[tuple[int, int], ...]

    @property
    def n(self) -> int:
        """Number of images."""
        return sum(n for n, _ in self.per_class)

    @property
    def correct(self) -> int:
        """Number of images classified correctly."""
        return sum(correct for _, correct in self.per_class)

    @property
    def accuracy(self) -> float:
        """Share of the images that are classified correctly."""
        return self.correct / self.n

    @property
    def finite(self) -> bool:
        """Whether the loss is a number."""
        return math.isfinite(self.loss)

    @property
    def score(self) -> Score:
        """Accuracy with its uncertainty."""
        return Score.from_counts(self.n, self.correct, per_class=self.per_class)


def logits_of(output: Any) -> Float[Tensor, "batch classes"]:
    """Take the logits out of what a classification model returns, in float32.

    Raises:
        ModelError: it returns something else.
    """
    logits = output if isinstance(output, Tensor) else getattr(output, "logits", None)
    if not isinstance(logits, Tensor) or logits.ndim != 2:
        got = type(output).__name__ if logits is None else f"{type(logits).__name__} of shape {tuple(logits.shape)}"
        raise ModelError(f"expected logits (batch, classes) from the model, got {got}: it has no classifier")
    return logits.float()


def autocast(dtype: torch.dtype | None, device: torch.device) -> contextlib.AbstractContextManager[object]:
    """Return a context that computes in `dtype`; None changes nothing."""
    return contextlib.nullcontext() if dtype is None else torch.autocast(device.type, dtype)


@torch.no_grad()
def evaluate(
    model: nn.Module,
    batches: Iterable[tuple[Float[Tensor, "batch 3 height width"], Int64[Tensor, " batch"]]],
    *,
    classes: int,
    device: torch.device,
    dtype: torch.dtype | None = None,
) -> Evaluation:
    """Run a model in evaluation mode over all batches and count; with several processes, over all of theirs.

    The model is left in the mode that it was found in.
    """
    was_training = model.training
    model.eval()
    try:
        counts = torch.zeros(2, classes, dtype=torch.int64, device=device)
        loss = torch.zeros((), dtype=torch.float64, device=device)
        for values, labels in batches:
            target = labels.to(device)
            with autocast(dtype, device):
                logits = logits_of(model(values.to(device)))
            loss += functional.cross_entropy(logits, target, reduction="none").double().sum()
            right = logits.argmax(dim=1) == target
            counts[0] += torch.bincount(target, minlength=classes)
            counts[1] += torch.bincount(target[right], minlength=classes)
    finally:
        model.train(was_training)
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        torch.distributed.all_reduce(counts)
        torch.distributed.all_reduce(loss)
    per_class = tuple(zip(*counts.tolist(), strict=True))
    return Evaluation(loss.item() / max(1, sum(n for n, _ in per_class)), per_class)
