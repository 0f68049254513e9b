"""Largest singular values: exact ones of matrices, and a lower estimate of a function's local constant.

What a certified bound is made of may never be rounded below the truth. The matrix functions here work in float64 and
add the most that rounding can have taken away, so `spectral_norm` and `product_norms` return upper bounds that exceed
the true value by less than 1e-8 of it (relative to ‖a‖_F ‖b‖_F for a product).
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from pliant.errors import MeasurementError, ModelError
from pliant.numerics.rates import float64

_EPS = torch.finfo(torch.float64).eps


def require_finite(name: str, tensor: Tensor) -> None:
    """Refuse a tensor with NaN or infinite values; the message calls it `name`.

    Raises:
        ModelError: how many values are not finite.
    """
    if (bad := int((~tensor.isfinite()).sum())) > 0:
        raise ModelError(
            f"{name} holds {bad} values of {tensor.numel()} that are not finite (NaN or infinite), so no norm of it "
            "exists. Load the checkpoint again, or find the training step that broke it."
        )


def spectral_norm(weight: Float[Tensor, "rows cols"]) -> float:
    """Return the largest singular value ‖W‖₂ of a matrix, rounded up (see `spectral_norms`).

    >>> round(spectral_norm(torch.tensor([[3.0, 0.0], [4.0, 0.0], [0.0, 2.0]])), 12)
    5.0

    Raises:
        ModelError: a value is not finite.
    """
    return float(spectral_norms(weight))


def spectral_norms(weights: Float[Tensor, "*batch rows cols"]) -> Float[Tensor, "*batch"]:
    """Return the largest singular value of each matrix, rounded up.

    It is the root of the largest eigenvalue of the smaller Gram matrix G, which a symmetric eigensolver finds as
    accurately as an SVD would (only small singular values suffer from squaring) in half the time. Rounding: forming
    G from inner products of length l loses at most l·eps·‖W‖_F² ≤ l·r·eps·‖W‖₂² for r rows, the solver less than
    10·r·eps·‖W‖₂²; that much is added.

    >>> spectral_norms(torch.stack([torch.eye(2), torch.zeros(2, 2)])).round(decimals=12).tolist()
    [1.0, 0.0]

    Raises:
        ModelError: a value is not finite.
    """
    require_finite("weight", weights)
    w = float64(weights)
    if 0 in w.shape[-2:]:
        return w.new_zeros(w.shape[:-2])
    scale = w.abs().amax((-2, -1), keepdim=True)
    w = w / torch.where(scale > 0, scale, 1.0)  # squares neither overflow nor vanish
    if w.shape[-2] > w.shape[-1]:
        w = w.mT
    largest: Tensor = torch.linalg.eigvalsh(w @ w.mT)[..., -1].clamp(min=0)
    margin = 1 + (w.shape[-1] + 10) * w.shape[-2] * _EPS
    return scale[..., 0, 0] * (largest * margin).sqrt()


def product_norms(
    a: Float[Tensor, "*batch rows inner"], b: Float[Tensor, "*batch inner cols"]
) -> Float[Tensor, " *batch"]:
    """Return ‖a b‖₂ of each pair of matrices, rounded up, at the cost of the inner dimension.

    With QR factors a = Q₁R₁ and bᵀ = Q₂R₂ the product is Q₁(R₁R₂ᵀ)Q₂ᵀ, whose singular values are those of the small
    matrix R₁R₂ᵀ. Householder QR, the small product and its SVD are backward stable: together they change the result
    by at most (rows + cols + 10·inner)·inner·eps·‖a‖_F‖b‖_F, which is added.

    >>> a, b = torch.tensor([[1.0], [2.0], [2.0]]), torch.tensor([[3.0, 4.0]])
    >>> round(product_norms(a, b).item(), 9)
    15.0
    """
    left, right = (_reduced(x) for x in (float64(a), float64(b).mT))
    largest: Tensor = torch.linalg.svdvals(left @ right.mT)[..., 0]
    slack = (a.shape[-2] + b.shape[-1] + 10 * a.shape[-1]) * a.shape[-1] * _EPS
    sizes: Tensor = torch.linalg.matrix_norm(left) * torch.linalg.matrix_norm(right)
    return largest + slack * sizes


def _reduced(x: Float[Tensor, "*batch rows inner"]) -> Tensor:
    """A matrix of at most `inner` rows with the same Gram matrix xᵀx."""
    return torch.linalg.qr(x, mode="r").R if x.shape[-2] > x.shape[-1] else x


@dataclass(frozen=True)
class LocalNorm:
    """A lower estimate of a local Lipschitz constant ‖J(x)‖₂.

    Attributes:
        value: ‖J v‖ for the best unit direction v found; never above ‖J(x)‖₂ (but for rounding).
        iterations: products with JᵀJ that were taken.
        converged: whether the last one changed the value by less than the tolerance.
    """

    value: float
    iterations: int
    converged: bool


def jacobian_norm(
    f: Callable[[Tensor], Tensor],
    x: Float[Tensor, "..."],
    *,
    iterations: int = 50,
    tolerance: float = 1e-5,
    seed: int = 0,
) -> LocalNorm:
    """Estimate ‖J(x)‖₂ of f at x from below by power iteration on JᵀJ.

    This is a diagnostic: the constant at one point, found iteratively. It bounds no finite difference, and may not be
    reported as a bound. All of x is one variable; give one item at a time.

    The directions of the power iteration are kept and orthogonalised (Lanczos), and the value is the largest singular
    value of J on their span: the same products, far fewer of them. J v is the pull-back of u ↦ Jᵀu, which is linear
    in u, so f itself is run only twice. Its operations must be twice differentiable; attention needs its eager path.

    >>> round(jacobian_norm(lambda x: x @ torch.diag(torch.tensor([1.0, 5.0])), torch.zeros(3, 2)).value, 4)
    5.0

    Args:
        f: the function; called under torch.func.
        x: the point.
        iterations: the most products with JᵀJ to take, and directions to keep.
        tolerance: relative change of the value below which the iteration stops.
        seed: of the first direction; the global random state is not touched.

    Raises:
        MeasurementError: a derivative is not finite.
    """
    push, pull = _products(f, x)
    v = torch.randn(x.numel(), generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    basis = images = x.new_zeros((0, 0))
    value = 0.0
    for iteration in range(1, iterations + 1):
        v = (v / torch.linalg.vector_norm(v)).to(x)
        image = push(v)
        basis, images = (
            torch.cat([kept.reshape(-1, new.numel()), new[None]]) for kept, new in ((basis, v), (images, image))
        )
        found = _largest(images)
        if not found < math.inf:
            raise MeasurementError(f"the derivative is not finite after {iteration - 1} power iterations")
        change, value = found - value, max(found, value)
        v = pull(image)
        size = float(torch.linalg.vector_norm(v))
        for _ in range(2):  # once loses orthogonality to rounding
            v = v - basis.T @ (basis @ v)
        if change <= tolerance * value or float(torch.linalg.vector_norm(v)) <= 1e-6 * size:
            return LocalNorm(value, iteration, converged=True)
    return LocalNorm(value, iterations, converged=False)


def _products(
    f: Callable[[Tensor], Tensor], x: Tensor
) -> tuple[Callable[[Tensor], Tensor], Callable[[Tensor], Tensor]]:
    """Return v ↦ J v and u ↦ Jᵀu on flat vectors, without a graph to anything that f uses."""
    out, pull = torch.func.vjp(f, x)[:2]
    push = torch.func.vjp(lambda u: torch.func.vjp(f, x)[1](u)[0], torch.zeros_like(out))[1]
    return (
        lambda v: push(v.reshape(x.shape))[0].detach().flatten(),
        lambda u: pull(u.reshape(out.shape))[0].detach().flatten(),
    )


def _largest(rows: Float[Tensor, "k features"]) -> float:
    """Largest singular value of a few long rows; NaN and infinity come through."""
    gram = float64(rows @ rows.T)
    return math.sqrt(float(torch.linalg.eigvalsh(gram)[-1])) if bool(gram.isfinite().all()) else math.inf
