"""Two directions to look along: principal ones of a path of weights, random ones of the filters' size, sensitive ones.

Weights and directions are dictionaries of tensors by parameter name; as vectors they are laid end to end.
"""

from collections.abc import Callable, Mapping

import torch
from jaxtyping import Float
from torch import Tensor

from pliant.errors import MeasurementError

Weights = dict[str, Tensor]


def flat(weights: Mapping[str, Tensor]) -> Float[Tensor, " dim"]:
    """Lay all tensors end to end."""
    return torch.cat([w.flatten() for w in weights.values()])


def unflat(vector: Float[Tensor, " dim"], like: Mapping[str, Tensor]) -> Weights:
    """Undo `flat`."""
    parts = torch.split(vector, [w.numel() for w in like.values()])
    return {name: part.reshape(w.shape) for (name, w), part in zip(like.items(), parts, strict=True)}


def principal(path: Float[Tensor, "steps dim"], *, seed: int = 0) -> tuple[Float[Tensor, "2 dim"], tuple[float, float]]:
    """Return the two orthonormal directions that hold most of a path that starts at zero, and the share each holds.

    The share is of the summed squared distance from the start (the plane contains the start, so the path is not
    centred). A path within one line gets a seeded random second direction, at right angles, with share 0.

    >>> plane, shares = principal(torch.tensor([[3.0, 0.0, 0.0], [3.0, 4.0, 0.0]]))
    >>> round(sum(shares), 6), plane.shape
    (1.0, torch.Size([2, 3]))

    Raises:
        MeasurementError: the path never leaves its start.
    """
    _, sizes, rows = torch.linalg.svd(path.double(), full_matrices=False)
    total = float(sizes.square().sum())
    if not total > 0:
        raise MeasurementError(
            "gradient descent did not move the weights: their gradient is zero, or the loss was not finite after the "
            "first step. Choose a smaller learning rate, or look at random directions."
        )
    shares = (sizes.square() / total).tolist()
    first = rows[0] if float(rows[0] @ path[-1].double()) >= 0 else -rows[0]  # the path goes to the right
    if len(shares) < 2 or shares[1] < 1e-12:
        generator = torch.Generator().manual_seed(seed)
        second = orthogonal(torch.randn(path.shape[1], generator=generator, dtype=torch.float64).to(first), first)
        return torch.stack([first, second]).to(path), (shares[0], 0.0)
    return torch.stack([first, rows[1]]).to(path), (shares[0], shares[1])


def orthogonal(vector: Float[Tensor, " dim"], unit: Float[Tensor, " dim"]) -> Float[Tensor, " dim"]:
    """Return the part of a vector at right angles to a unit vector, at length 1."""
    for _ in range(2):  # once loses orthogonality to rounding
        vector = vector - (vector @ unit) * unit
    unit_vector: Tensor = vector / torch.linalg.vector_norm(vector)
    return unit_vector


def filter_normalised(weights: Mapping[str, Tensor], *, seed: int) -> Float[Tensor, "2 dim"]:
    """Return two random directions in which each filter is as long as the weights' own (Li et al., NeurIPS 2018).

    A filter is a row of a matrix; vectors (biases, norms' scales) count as one filter each. Filters of zeros stay where
    they are: a step along the direction is relative to what is there.
    """
    generator = torch.Generator().manual_seed(seed)
    return torch.stack([flat({n: _like(w, generator) for n, w in weights.items()}) for _ in range(2)])


def _like(weight: Tensor, generator: torch.Generator) -> Tensor:
    drawn = torch.randn(weight.shape, generator=generator).to(weight)
    rows, wanted = (t.reshape(len(t), -1) if t.ndim > 1 else t.reshape(1, -1) for t in (drawn, weight))
    sizes = [torch.linalg.vector_norm(t, dim=1, keepdim=True) for t in (rows, wanted)]
    scaled: Tensor = rows * sizes[1] / sizes[0].clamp(min=1e-30)
    return scaled.reshape(weight.shape)


def coordinates(path: Float[Tensor, "steps dim"], plane: Float[Tensor, "2 dim"]) -> Float[Tensor, "steps 2"]:
    """Return where points lie in the plane of two directions: the nearest point, by least squares.

    >>> coordinates(torch.tensor([[1.0, 2.0, 5.0]]), torch.tensor([[1.0, 0.0, 0.0], [0.0, 2.0, 0.0]])).tolist()
    [[1.0, 1.0]]
    """
    gram = (plane @ plane.T).double()
    found: Tensor = torch.linalg.solve(gram, (plane @ path.T).double())
    return found.T.to(path)


def most_sensitive(
    f: Callable[[Tensor], Tensor], x: Float[Tensor, "..."], *, iterations: int = 30, seed: int = 0
) -> tuple[Float[Tensor, "..."], float]:
    """Return the unit direction in which f changes fastest at x, and that rate ‖J v‖: power iteration on JᵀJ.

    f must be twice differentiable; its operations are run under torch.func.

    >>> v, rate = most_sensitive(lambda x: x * torch.tensor([1.0, 3.0]), torch.zeros(2))
    >>> v.abs().round(decimals=3).tolist(), round(rate, 3)
    ([0.0, 1.0], 3.0)

    Raises:
        MeasurementError: a derivative that is not finite, or zero.
    """
    out, pull = torch.func.vjp(f, x)[:2]
    push = torch.func.vjp(lambda u: torch.func.vjp(f, x)[1](u)[0], torch.zeros_like(out))[1]
    v = torch.randn(x.shape, generator=torch.Generator().manual_seed(seed)).to(x)
    rate = 0.0
    for _ in range(iterations):
        v = v / torch.linalg.vector_norm(v)
        image = push(v)[0].detach()
        rate = float(torch.linalg.vector_norm(image))
        if not 0 < rate < float("inf"):
            raise MeasurementError(
                f"the derivative is {rate} along a random direction; no direction is most sensitive."
            )
        v = pull(image)[0].detach()
    return v / torch.linalg.vector_norm(v), rate
