"""Distances of pairs, norms of items and scale of tokens, taken from one tensor of activations in a few sweeps.

All pairs come from inner products in the activations' own precision, where that keeps the digits: both sets are centred
on their pooled mean, products are summed chunk by chunk in float64, and each pair whose squared distance is small
beside the norms involved is subtracted directly. Where float32 cannot square the values, everything is done in float64
(`rates.distances_all`).
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int64
from torch import Tensor
from torch.nn.functional import pad

from pliant.errors import DataError
from pliant.numerics.estimate import Design
from pliant.numerics.rates import distances_all, distances_matched, distances_within, float64, norms

CLOSE_FLOAT32 = 0.05
"""As `rates.CLOSE`, for inner products in float32: 1/0.05 times their rounding error is below 1e-5."""

_SAFE_SQUARES = (1e-30, 1e36)
"""Squared norms between these are right in float32."""

_CHUNK = {"cpu": 1 << 18, "cuda": 1 << 25}
"""Elements that are centred and multiplied at a time: what is worked on stays in a CPU's cache."""


@dataclass(frozen=True)
class Pairing:
    """Which of the items of a pass form pairs; source items come first.

    Attributes:
        design: every source with every target item, item by item, or every two items of one set.
        source: number of source items; of all items for one sample.
    """

    design: Design
    source: int

    def count(self, items: int) -> int:
        """Return the number of pairs among so many items."""
        if self.design == "one-sample":
            return items * (items - 1) // 2
        return self.source if self.design == "matched" else self.source * (items - self.source)

    def indices(self, items: int) -> tuple[Int64[Tensor, " pairs"], Int64[Tensor, " pairs"]]:
        """Return the positions of the two items of each pair.

        >>> [t.tolist() for t in Pairing("two-sample", 1).indices(3)]
        [[0, 0], [1, 2]]
        >>> [t.tolist() for t in Pairing("one-sample", 3).indices(3)]
        [[0, 0, 1], [1, 2, 2]]

        Raises:
            DataError: matched pairs of sets of different size.
        """
        n, m = self.source, items - self.source
        if self.design == "one-sample":
            i, j = torch.triu_indices(items, items, 1)
            return i, j
        if self.design == "matched":
            if n != m:
                raise DataError(f"matched pairs need as many items on both sides, got {n} and {m}")
            return torch.arange(n), torch.arange(n, items)
        pairs = torch.cartesian_prod(torch.arange(n), torch.arange(n, items)).reshape(-1, 2)
        return pairs[:, 0], pairs[:, 1]

    def arranged(self, values: Float[Tensor, " pairs"], items: int) -> Float[Tensor, "*pairs"]:
        """Arrange values of pairs, in the order of `indices`, as `estimate.RateStatistics` takes them.

        >>> Pairing("one-sample", 2).arranged(torch.tensor([3.0]), 2).tolist()
        [[0.0, 3.0], [3.0, 0.0]]
        """
        if self.design == "matched":
            return values
        if self.design == "two-sample":
            return values.reshape(self.source, items - self.source)
        square = values.new_zeros(items, items)
        i, j = (k.to(values.device) for k in self.indices(items))
        square[i, j] = square[j, i] = values
        return square


@dataclass(frozen=True)
class TokenScale:
    """Scale of tokens: sum of their norms, their number, the smallest standard deviation over a token's features."""

    total: float
    count: int
    std_min: float


@dataclass(frozen=True)
class Geometry:
    """What a rate needs of the inputs, or of the outputs, of one component in one pass.

    Attributes:
        distances: Frobenius distance of each pair, float64, shaped as the design says.
        norms: Frobenius norm of each item, float64.
        scale: of the tokens, where it was asked for.
    """

    distances: Float[Tensor, "*pairs"]
    norms: Float[Tensor, " items"]
    scale: TokenScale | None = None


def geometry(z: Float[Tensor, "items *shape"], pairing: Pairing, *, scale: bool = False) -> Geometry:
    """Measure the activations of one pass.

    >>> found = geometry(torch.tensor([[[3.0, 4.0]], [[0.0, 0.0]]]), Pairing("matched", 1), scale=True)
    >>> found.distances.tolist(), found.norms.tolist(), found.scale
    ([5.0], [5.0, 0.0], TokenScale(total=5.0, count=2, std_min=0.0))

    Raises:
        DataError: matched pairs of sets of different size.
    """
    return Geometry(distances(z, pairing), norms(z), token_scale(z) if scale else None)


def distances(z: Float[Tensor, "items *shape"], pairing: Pairing) -> Float[Tensor, "*pairs"]:
    """Return the Frobenius distance of each pair, in float64, right to 1e-5 relative or better."""
    source = pairing.source
    if pairing.design == "matched":
        return distances_matched(z[:source], z[source:])
    two = pairing.design == "two-sample"
    if z.dtype == torch.float64 or z.device.type == "mps" or z[:1].numel() == 0:
        return distances_all(z[:source], z[source:]) if two else distances_within(z)
    rows = z.reshape(len(z), -1)
    squares, inner = _centred_products(rows, source if two else len(z))
    if not bool(((squares >= _SAFE_SQUARES[0]) & (squares <= _SAFE_SQUARES[1])).all()):
        return distances_all(z[:source], z[source:]) if two else distances_within(z)
    left, right = (squares[:source], squares[source:]) if two else (squares, squares)
    sums = left[:, None] + right[None, :]
    squared = (sums - 2 * inner).clamp_(min=0)
    close = squared <= CLOSE_FLOAT32 * sums
    if two:
        i, j = close.nonzero(as_tuple=True)
        squared[i, j] = _subtracted(rows, i, j + source)
        return squared.sqrt_()
    i, j = close.triu(1).nonzero(as_tuple=True)
    squared[i, j] = _subtracted(rows, i, j)
    upper = squared.triu(1).sqrt_()
    return upper + upper.T


def token_scale(z: Float[Tensor, "items *tokens dim"], *, width: int | None = None) -> TokenScale:
    """Return the scale of all tokens, padded with zeros to `width` features if that is given.

    A token's variance is its mean square less its squared mean, exact enough to find the tokens that may have the
    smallest one; theirs is computed again from centred values in float64.

    >>> token_scale(torch.tensor([[[1.0, -1.0], [1e4 + 3, 1e4 - 3]]])).std_min
    1.0
    >>> token_scale(torch.tensor([[[2.0, 2.0]]]), width=4)
    TokenScale(total=2.8284270763397217, count=1, std_min=1.0)
    """
    tokens = z.reshape(-1, z.shape[-1])
    tokens = tokens if tokens.dtype in (torch.float32, torch.float64) else tokens.to(torch.float32)
    features = tokens.shape[-1] if width is None else width
    lengths = float64(torch.linalg.vector_norm(tokens, dim=-1))
    means = float64(tokens @ tokens.new_full((tokens.shape[-1],), 1 / features))
    power = lengths.square() / features
    variance, doubt = power - means.square(), 1e-5 * power
    candidates = (variance - doubt <= (variance + doubt).min()).nonzero()[:, 0].to(tokens.device)
    smallest = math.nan
    for part in torch.split(candidates, 1024) if len(candidates) else ():
        padded = pad(float64(tokens[part]), (0, features - tokens.shape[-1]))
        smallest = min(float(padded.std(dim=-1, correction=0).min()), smallest)
    return TokenScale(float(lengths.sum()), len(tokens), smallest)


def combined(parts: list[Geometry]) -> Geometry:
    """Join what was measured of the two halves of one output: squares add up.

    >>> half = Geometry(torch.tensor([3.0]), torch.tensor([1.0, 0.0]))
    >>> combined([half, Geometry(torch.tensor([4.0]), torch.tensor([0.0, 2.0]))]).distances.tolist()
    [5.0]
    """
    if len(parts) == 1:
        return parts[0]
    return Geometry(
        torch.stack([p.distances for p in parts]).square().sum(0).sqrt(),
        torch.stack([p.norms for p in parts]).square().sum(0).sqrt(),
    )


def _centred_products(
    rows: Float[Tensor, "items features"], source: int
) -> tuple[Float[Tensor, " items"], Float[Tensor, "left right"]]:
    """Squared norms of all items, and inner products of source with target items (or of all with all), centred."""
    items = len(rows)
    one = source == items
    squares = torch.zeros(items, dtype=torch.float64, device=rows.device)
    inner = torch.zeros(source, items if one else items - source, dtype=torch.float64, device=rows.device)
    for part in _chunks(rows):
        wide = part if part.dtype == torch.float32 else part.to(torch.float32)
        centred = wide - wide.mean(0)
        squares += float64(torch.linalg.vector_norm(centred, dim=1)).square()
        right = centred if one else centred[source:]
        inner += float64(centred[:source] @ right.T)
    return squares, inner


def _chunks(rows: Float[Tensor, "items features"]) -> Iterator[Float[Tensor, "items chunk"]]:
    step = max(1, _CHUNK.get(rows.device.type, _CHUNK["cpu"]) // max(1, len(rows)))
    for start in range(0, rows.shape[1], step):
        yield rows[:, start : start + step]


def _subtracted(rows: Float[Tensor, "items features"], i: Tensor, j: Tensor) -> Float[Tensor, " pairs"]:
    """Squared distances of the pairs (i, j) by direct subtraction, a few pairs at a time."""
    if not len(i):
        return rows.new_zeros(0, dtype=torch.float64)
    step = max(1, _CHUNK.get(rows.device.type, _CHUNK["cpu"]) // rows.shape[1])
    found = [
        distances_matched(rows[i[start : start + step]], rows[j[start : start + step]])
        for start in range(0, len(i), step)
    ]
    return torch.cat(found).square()
