"""Rates of change of a component over pairs of inputs, and their statistics (docs/plasticity.md).

    r_f(x, y) = ‖f(x) − f(y)‖_F / ‖x − y‖_F        P(f) = E over distinct pairs (x, y) of r_f(x, y)

Distances come first (`distances_matched`, `distances_all`, `distances_within`); `rates_of_change` divides them;
`estimate.RateStatistics` accumulates them pass by pass and gives the plasticity P with its standard error.
Axes: `n` and `m` count items, `pairs` counts pairs; an item may have any shape, usually (tokens, dim).
Everything is returned in float64. Values between 1e-150 and 1e150 in magnitude are safe from under- and overflow.
"""

import math

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from pliant.errors import DataError, MeasurementError

CLOSE = 1e-4
"""Share of the norms involved below which a squared distance from a Gram matrix is recomputed by subtraction."""

_CHUNK = 1 << 16
"""Elements that are widened to float64 at a time (512 KiB): what is worked on stays in a core's cache."""

_SAFE = (1e-12, 1e18)
"""Norms between these are right when squared in float32; others are computed again in float64."""


def float64(x: Tensor) -> Tensor:
    """Return `x` in float64, on the CPU where the tensor's own device has no float64 (Apple's GPUs)."""
    return x.to("cpu", torch.float64) if x.device.type == "mps" else x.to(torch.float64)


def norms(x: Float[Tensor, "n ..."]) -> Float[Tensor, " n"]:
    """Return each item's Frobenius norm.

    >>> norms(torch.tensor([[3.0, 4.0], [0.0, 2.0]])).tolist()
    [5.0, 2.0]
    """
    return torch.cat([_frobenius(part) for part in _parts(x)])


def distances_matched(x: Float[Tensor, "pairs ..."], y: Float[Tensor, "pairs_y ..."]) -> Float[Tensor, " pairs"]:
    """Return ‖x_i − y_i‖_F: first subtracted, then squared, in float32 or better.

    >>> distances_matched(torch.tensor([[1.0, 2.0], [5.0, 5.0]]), torch.tensor([[4.0, 6.0], [5.0, 5.0]])).tolist()
    [5.0, 0.0]

    Raises:
        DataError: the two sets differ in the shape of an item or in their number.
    """
    _same_items(x, y)
    if len(x) != len(y):
        raise DataError(f"matched pairs need as many items on both sides, got {len(x)} and {len(y)}")
    return torch.cat([_frobenius(_wide(a) - _wide(b)) for a, b in zip(_parts(x), _parts(y), strict=True)])


def distances_all(x: Float[Tensor, "n ..."], y: Float[Tensor, "m ..."]) -> Float[Tensor, "n m"]:
    """Return ‖x_i − y_j‖_F for every i and j.

    The squared distances are ‖x_i‖² + ‖y_j‖² − 2⟨x_i, y_j⟩ in float64, after both sets are centred on their pooled
    mean (which changes no distance, and removes the common part that would cancel). Where the result is below `CLOSE`
    of the norms involved, the pair is subtracted directly; so equal items are at distance exactly 0.

    >>> distances_all(torch.tensor([[0.0], [1.0]]), torch.tensor([[1.0], [4.0], [-1.0]])).tolist()
    [[1.0, 4.0, 1.0], [0.0, 3.0, 2.0]]

    Raises:
        DataError: items of the two sets differ in shape.
    """
    _same_items(x, y)
    left, right = _as_rows(x), _as_rows(y)
    square_x, square_y, inner = _gram(left, right)
    squared, close = squared_distances(square_x, square_y, inner)
    i, j = close.nonzero(as_tuple=True)
    squared[i, j] = _subtract(left, right, i, j)
    return squared.sqrt_()


def distances_within(x: Float[Tensor, "n ..."]) -> Float[Tensor, "n n"]:
    """Return ‖x_i − x_j‖_F for every i and j of one set: symmetric, zeros on the diagonal.

    >>> distances_within(torch.tensor([[0.0], [3.0], [3.0]])).tolist()
    [[0.0, 3.0, 3.0], [3.0, 0.0, 0.0], [3.0, 0.0, 0.0]]
    """
    items = _as_rows(x)
    square, _, inner = _gram(items)
    squared, close = squared_distances(square, square, inner)
    i, j = close.triu(1).nonzero(as_tuple=True)
    squared[i, j] = _subtract(items, items, i, j)
    upper = squared.triu(1).sqrt_()
    return upper + upper.T


def squared_distances(
    square_x: Float[Tensor, " n"], square_y: Float[Tensor, " m"], inner: Float[Tensor, "n m"]
) -> tuple[Float[Tensor, "n m"], Bool[Tensor, "n m"]]:
    """Return squared distances from squared norms and inner products, and which of them have lost digits.

    A pair marked True is closer than `CLOSE` of the norms involved: recompute it by direct subtraction.

    >>> squared_distances(torch.tensor([4.0]), torch.tensor([9.0, 4.0]), torch.tensor([[0.0, 4.0]]))
    (tensor([[13.,  0.]]), tensor([[False,  True]]))
    """
    sums = square_x[:, None] + square_y[None, :]
    squared = (sums - 2 * inner).clamp_(min=0)
    return squared, squared <= CLOSE * sums


def rates_of_change(inputs: Float[Tensor, "*pairs"], outputs: Float[Tensor, "*pairs"]) -> Float[Tensor, "*pairs"]:
    """Return output distance over input distance, NaN where the two inputs are equal: those pairs are dropped.

    >>> rates_of_change(torch.tensor([2.0, 0.0]), torch.tensor([3.0, 0.0])).tolist()
    [1.5, nan]

    Raises:
        MeasurementError: a distance is not finite; a NaN in the result would then be ambiguous.
    """
    for kind, values in (("input", inputs), ("output", outputs)):
        if (bad := int((~values.isfinite()).sum())) > 0:
            raise MeasurementError(f"{bad} of {values.numel()} {kind} distances are not finite (NaN or infinite)")
    x, y = float64(inputs), float64(outputs)
    return torch.where(x > 0, y / x, torch.nan)


def _wide(x: Tensor) -> Tensor:
    return x if x.dtype in (torch.float32, torch.float64) else x.to(torch.float32)


def _parts(x: Tensor, size: int | None = None) -> list[Tensor]:
    """Cut along the first axis; `size` is the number of elements that come with each entry, by default x's own."""
    step = max(1, _CHUNK // max(1, x[:1].numel() if size is None else size))
    return [x[start : start + step] for start in range(0, max(1, len(x)), step)]


def _frobenius(x: Float[Tensor, "n ..."]) -> Float[Tensor, " n"]:
    """Norm over the last axis in float32, over the others in float64: fast, and right to about 1e-7."""
    last = torch.linalg.vector_norm(_wide(x), dim=-1) if x.ndim > 1 else x.abs()
    found: Tensor = torch.linalg.vector_norm(float64(_as_rows(last)), dim=1)
    unsafe = ~((found >= _SAFE[0]) & (found <= _SAFE[1]))
    if x.dtype != torch.float64 and bool(unsafe.any()):
        again = float64(_as_rows(x[unsafe.to(x.device)]))
        found[unsafe] = torch.linalg.vector_norm(again, dim=1)
    return found


def _as_rows(x: Tensor) -> Float[Tensor, "n features"]:
    return x.reshape(x.shape[0], math.prod(x.shape[1:]))


def _same_items(x: Tensor, y: Tensor) -> None:
    if x.shape[1:] != y.shape[1:]:
        raise DataError(
            f"items of the two sets differ in shape, {tuple(x.shape[1:])} and {tuple(y.shape[1:])}: no distance "
            "between them is defined. Give both the same resolution or sequence length."
        )


def _gram(
    x: Float[Tensor, "n features"], y: Float[Tensor, "m features"] | None = None
) -> tuple[Float[Tensor, " n"], Float[Tensor, " m"], Float[Tensor, "n m"]]:
    """Squared norms and inner products, in float64, of two sets (or one) centred on their pooled mean.

    It goes over chunks of features, so the float64 copies stay small.
    """
    n, m = len(x), len(x if y is None else y)
    square_x, square_y, inner = (float64(x.new_zeros(shape)) for shape in ((n,), (m,), (n, m)))
    step = max(1, _CHUNK // max(1, n + m))
    for start in range(0, x.shape[1], step):
        left = float64(x[:, start : start + step])
        if y is None:
            right = left = left - left.mean(0)
        else:
            right = float64(y[:, start : start + step])
            mean = (left.sum(0) + right.sum(0)) / (n + m)
            left, right = left - mean, right - mean
            square_y += torch.linalg.vecdot(right, right)
        square_x += torch.linalg.vecdot(left, left)
        inner.addmm_(left, right.T)
    return square_x, square_x if y is None else square_y, inner


def _subtract(x: Tensor, y: Tensor, i: Tensor, j: Tensor) -> Float[Tensor, " pairs"]:
    """Squared distances of the pairs (x[i], y[j]) by direct subtraction in float64, a few pairs at a time."""
    parts = [
        (float64(x[a.to(x.device)]) - float64(y[b.to(y.device)])).square_().sum(1)
        for a, b in zip(_parts(i, x.shape[1]), _parts(j, x.shape[1]), strict=True)
    ]
    return torch.cat(parts)
