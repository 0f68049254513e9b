"""The loss over a plane of a component's weights: same checkpoint, same probed head, same images at every point."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Int64
from torch import Tensor, nn
from torch.func import functional_call, vmap
from torch.nn.attention import SDPBackend, sdpa_kernel

from pliant.components import Anatomy
from pliant.errors import MeasurementError
from pliant.landscapes.directions import Weights, flat, unflat
from pliant.tuning.classifier import classifiers, fitted_classifier
from pliant.tuning.evaluate import logits_of

Pixels = Float[Tensor, "images 3 height width"]
Loss = Callable[[Mapping[str, Tensor]], Tensor]
"""From a component's weights to the loss."""


def probed_loss(anatomy: Anatomy, pixels: Pixels, labels: Int64[Tensor, " images"], *, classes: int) -> Loss:
    """Return the mean cross-entropy as a function of any of the model's weights, with the classifier fitted first.

    The classifier is the logistic regression of the labels on what it gets from the frozen model. The model itself is
    not changed: weights are handed to the call.
    """
    model = anatomy.model
    head = _fitted_heads(anatomy, pixels, labels, classes=classes)

    def loss(weights: Mapping[str, Tensor]) -> Tensor:
        logits = logits_of(functional_call(model, {**head, **weights}, (pixels,)))
        return nn.functional.cross_entropy(logits, labels)

    return loss


def _fitted_heads(anatomy: Anatomy, pixels: Pixels, labels: Tensor, *, classes: int) -> Weights:
    heads = classifiers(anatomy, classes)
    seen: dict[str, Tensor] = {}

    def keep(name: str) -> Any:
        return lambda module, args: seen.__setitem__(name, args[0].detach())

    handles = [head.register_forward_pre_hook(keep(name)) for name, head in heads.items()]
    try:
        with torch.no_grad():
            anatomy.model(pixels)
    finally:
        for handle in handles:
            handle.remove()
    fitted: Weights = {}
    for name, head in heads.items():
        weight, bias = fitted_classifier(seen[name].float().cpu().numpy(), labels.cpu().numpy(), classes=classes)
        fitted[f"{name}.weight"] = torch.as_tensor(weight).to(head.weight)
        if head.bias is not None:
            fitted[f"{name}.bias"] = torch.as_tensor(bias).to(head.bias)
    return fitted


def descent(
    loss: Loss, start: Mapping[str, Tensor], *, steps: int, learning_rate: float
) -> Iterator[tuple[Float[Tensor, " dim"], float]]:
    """Yield the weights' way from the start, laid end to end, and the loss there, after 0, 1, ... steps of descent.

    Plain gradient descent on all images. It ends early where the loss stops being finite.
    """
    origin = {name: w.detach() for name, w in start.items()}
    moved = {name: torch.zeros_like(w) for name, w in origin.items()}
    for step in range(steps + 1):
        with torch.enable_grad():
            here = {name: (w + moved[name]).requires_grad_() for name, w in origin.items()}
            value = loss(here)
            gradients = torch.autograd.grad(value, list(here.values()), allow_unused=True)
        if not torch.isfinite(value):
            return
        yield flat(moved), float(value.detach())
        if step < steps:
            for name, gradient in zip(moved, gradients, strict=True):
                if gradient is not None:
                    moved[name] = moved[name] - learning_rate * gradient


def common_descent(
    loss: Loss,
    starts: Mapping[str, Mapping[str, Tensor]],
    *,
    steps: int,
    learning_rate: float | None,
    advance: Callable[[int], None] = lambda steps: None,
) -> tuple[dict[str, list[tuple[Float[Tensor, " dim"], float]]], float]:
    """Return the path of gradient descent from every start, all at one rate, and that rate.

    Args:
        loss: of the weights.
        starts: weights by name of the component set.
        steps: of each path.
        learning_rate: the rate; None takes the largest of `RATES` at which no path ever rises above its start, so that
            lengths of paths compare.
        advance: called with 1 after each step of the paths that are returned.

    Raises:
        MeasurementError: no rate is small enough.
    """
    for rate in RATES if learning_rate is None else (learning_rate,):
        paths = {}
        for name, start in starts.items():
            paths[name] = list(descent(loss, start, steps=steps, learning_rate=rate))
            if learning_rate is None and not _descends([value for _, value in paths[name]], steps):
                break
        else:
            advance(sum(map(len, paths.values())))
            return paths, rate
    raise MeasurementError(
        f"the loss rises along its gradient even at a learning rate of {RATES[-1]:g}. Check weights and images."
    )


RATES = tuple(10.0 ** -(k / 2) for k in range(1, 17))
"""Learning rates to try, largest first: 0.32, 0.1, 0.032, ... 1e-8."""


def _descends(losses: list[float], steps: int) -> bool:
    return len(losses) == steps + 1 and max(losses) <= losses[0]


def over_grid(
    loss: Loss,
    start: Mapping[str, Tensor],
    plane: Float[Tensor, "2 dim"],
    *,
    x: tuple[float, ...],
    y: tuple[float, ...],
    together: bool,
    advance: Callable[[int], None] = lambda points: None,
) -> Float[np.ndarray, "rows columns"]:
    """Return the loss at start + x·plane[0] + y·plane[1] for every point of a grid; nan where it is not finite.

    Args:
        loss: of the weights.
        start: weights at (0, 0).
        plane: two directions.
        x: coordinates of the columns.
        y: coordinates of the rows.
        together: a row of the grid in one batched call (a GPU gains by it; on a CPU one point after another is faster:
            1.8 times on the bundled model, since its products are large enough alone).
        advance: called with the number of points after each.
    """
    origin = {name: w.detach() for name, w in start.items()}
    directions = [unflat(d, origin) for d in plane]

    def at(point: Tensor) -> Tensor:
        moved = {n: w + point[0] * directions[0][n] + point[1] * directions[1][n] for n, w in origin.items()}
        return loss(moved)

    rows = []
    with torch.no_grad(), _batchable() if together else nullcontext():
        for level in y:
            points = torch.tensor([[column, level] for column in x]).to(plane)
            row = vmap(at)(points) if together else torch.stack([_told(at(p), advance) for p in points])
            if together:
                advance(len(x))
            rows.append(row.double().cpu().numpy())
    values = np.stack(rows)
    return np.where(np.isfinite(values), values, np.nan)


def _told(value: Tensor, advance: Callable[[int], None]) -> Tensor:
    advance(1)
    return value


@contextmanager
def _batchable() -> Iterator[None]:
    """Let attention be computed in a way that vmap can batch."""
    with sdpa_kernel(SDPBackend.MATH):
        yield
