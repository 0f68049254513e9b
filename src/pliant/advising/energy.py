"""Gradient energy: how much of the loss's slope lies in each component, at the pretrained weights.

    G(f) = Σ over the component's weights w of (∂L/∂w)²

L is the mean cross-entropy over the training images, with the classifier fitted on frozen features (the probed head).
A step of gradient descent along one component alone lowers the loss by η·G to first order, so where the race is short
the order of G is a first guess at its outcome. It depends on the parametrisation, but so does the optimiser.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pandas as pd
import torch
from jaxtyping import Float
from torch import Tensor, nn

from pliant.components import Anatomy
from pliant.data import ImageSet, pixel_values
from pliant.errors import MeasurementError
from pliant.measuring.capture import observing
from pliant.terms import Preprocessing
from pliant.tuning.classifier import classifiers, fitted_classifier
from pliant.tuning.evaluate import logits_of

Progress = Callable[[int, int], None]


def gradient_energy(
    anatomy: Anatomy,
    images: ImageSet,
    preprocessing: Preprocessing,
    *,
    batch_size: int = 64,
    device: str | torch.device = "cpu",
    progress: Progress | None = None,
) -> pd.DataFrame:
    """Return G of every component: columns component, role, block, energy. The model is given back as it was.

    Two passes over the images: one for the features that the classifier is fitted on, one backward pass for the
    gradient, both in evaluation mode.

    Raises:
        ModelError: the model has no linear classifier over these classes.
        MeasurementError: a gradient that is not finite.
    """
    model = anatomy.model
    heads = list(classifiers(anatomy, len(images.classes)).values())
    was = next(model.parameters()).device
    total = 2 * len(images)
    done = 0

    def batches() -> Iterator[tuple[Tensor, Tensor]]:
        nonlocal done
        for start in range(0, len(images), batch_size):
            rows = range(start, min(start + batch_size, len(images)))
            values = pixel_values([images[i] for i in rows], preprocessing)
            yield values.to(device), torch.as_tensor(images.labels[list(rows)]).to(device)
            done += len(rows)
            if progress is not None:
                progress(done, total)

    try:
        model.to(device)
        with observing(model), _restored(anatomy, heads):
            features = _features(model, heads, (values for values, _ in batches()))
            for head, found in zip(heads, features, strict=True):
                weight, bias = fitted_classifier(found, images.labels, classes=len(images.classes))
                head.weight.copy_(torch.as_tensor(weight))
                if head.bias is not None:
                    head.bias.copy_(torch.as_tensor(bias))
            with torch.enable_grad():
                for values, labels in batches():
                    loss = nn.functional.cross_entropy(logits_of(model(values)), labels, reduction="sum")
                    torch.autograd.backward(loss / len(images))
            return _table(anatomy)
    finally:
        model.to(was)


def energy_by_role(energy: pd.DataFrame) -> dict[str, float]:
    """Sum the energy over the blocks of each role."""
    return {str(role): float(total) for role, total in energy.groupby("role")["energy"].sum().items()}


@contextmanager
def _restored(anatomy: Anatomy, heads: list[nn.Linear]) -> Iterator[None]:
    """Let gradients flow to every parameter; put heads, gradients and `requires_grad` back at the end."""
    parameters = list(anatomy.model.parameters())
    before = [(p.requires_grad, p.grad) for p in parameters]
    weights = [(p, p.detach().clone()) for head in heads for p in head.parameters()]
    try:
        for p in parameters:
            p.requires_grad_(True)
            p.grad = None
        yield
    finally:
        with torch.no_grad():
            for p, value in weights:
                p.copy_(value)
        for p, (required, gradient) in zip(parameters, before, strict=True):
            p.requires_grad_(required)
            p.grad = gradient


def _features(
    model: nn.Module, heads: list[nn.Linear], batches: Iterator[Tensor]
) -> list[Float[np.ndarray, "images features"]]:
    """Return what each classifier gets, for all images."""
    seen: list[list[Tensor]] = [[] for _ in heads]

    def keep(i: int) -> Any:
        return lambda module, args: seen[i].append(args[0].detach().float().cpu())

    handles = [head.register_forward_pre_hook(keep(i)) for i, head in enumerate(heads)]
    try:
        for values in batches:
            model(values)
    finally:
        for handle in handles:
            handle.remove()
    features = [torch.cat(parts).numpy() for parts in seen]
    if not all(np.isfinite(found).all() for found in features):
        raise MeasurementError(
            "the features that the classifier gets are not finite. Check weights and images for NaN."
        )
    return features


def _table(anatomy: Anatomy) -> pd.DataFrame:
    parameters = dict(anatomy.model.named_parameters())
    rows = []
    for c in anatomy.components:
        gradients = [g for name in c.parameters if (g := parameters[name].grad) is not None]
        energy = float(sum(g.double().square().sum() for g in gradients))
        if not np.isfinite(energy):
            raise MeasurementError(f"{c.id}: the gradient of the loss is not finite. Check weights and images for NaN.")
        if c.parameters:
            rows.append({"component": c.id, "role": c.role, "block": c.block, "energy": energy})
    return pd.DataFrame(rows).astype({"block": "Int64"})
