"""Distances of pairs, norms of items and scale of tokens, taken from one tensor of activations in a few sweeps.

All pairs come from inner products in the activations' own precision, where that keeps the digits: both sets are centred
on their pooled mean, products are summed chunk by chunk in float64, and each pair whose squared distance is small
beside the norms involved is subtracted directly. Where float32 cannot square the values, everything is done in float64
(`rates.distances_all`).
"""

import math
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

_SAFE_NORMS = (1e-12, 1e18)
"""Norms between these are right when squared in float32; others are computed again in float64."""

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
    if pairing.design == "matched" and 2 * pairing.source != len(z):
        raise DataError(
            f"matched pairs need as many items on both sides, got {pairing.source} and {len(z) - pairing.source}"
        )
    if z.dtype == torch.float64 or z.device.type == "mps" or z[:1].numel() == 0:
        return Geometry(_careful_distances(z, pairing), norms(z), token_scale(z) if scale else None)
    tokens = z.reshape(len(z), -1, z.shape[-1])
    found = _swept(tokens, pairing, sums=scale)
    return Geometry(
        _matched(tokens, found, pairing) if pairing.design == "matched" else _all(tokens, found, pairing),
        _norms(z, found.lengths),
        _token_scale(tokens, found.lengths, found.sums, tokens.shape[-1]) if found.sums is not None else None,
    )


def distances(z: Float[Tensor, "items *shape"], pairing: Pairing) -> Float[Tensor, "*pairs"]:
    """Return the Frobenius distance of each pair, in float64, right to 1e-5 relative or better."""
    return geometry(z, pairing).distances


def token_scale(z: Float[Tensor, "items *tokens dim"], *, width: int | None = None) -> TokenScale:
    """Return the scale of all tokens, padded with zeros to `width` features if that is given.

    >>> token_scale(torch.tensor([[[1.0, -1.0], [1e4 + 3, 1e4 - 3]]])).std_min
    1.0
    >>> round(token_scale(torch.tensor([[[2.0, 2.0]]]), width=4).std_min, 6)
    1.0
    """
    tokens = z.reshape(1, -1, z.shape[-1])
    tokens = tokens if tokens.dtype in (torch.float32, torch.float64) else tokens.to(torch.float32)
    lengths = torch.linalg.vector_norm(tokens, dim=-1)
    return _token_scale(tokens, lengths, tokens.sum(-1), tokens.shape[-1] if width is None else width)


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


@dataclass(frozen=True)
class _Sweep:
    """What one sweep over the activations leaves: of every token, its norm and sum; of pairs, what the design needs.

    For matched pairs `products` holds the norm of each token's difference; else `squares` and `products` are squared
    norms of the items and their inner products (source with target, or all with all), both centred.
    """

    lengths: Float[Tensor, "items tokens"]
    sums: Float[Tensor, "items tokens"] | None
    squares: Float[Tensor, " items"]
    products: Float[Tensor, "left right"]


def _swept(z: Float[Tensor, "items tokens dim"], pairing: Pairing, *, sums: bool) -> _Sweep:
    items, tokens, dim = z.shape
    source = pairing.source
    matched, one = pairing.design == "matched", pairing.design == "one-sample"
    step = max(1, _CHUNK.get(z.device.type, _CHUNK["cpu"]) // (items * dim))
    buffer = z.new_empty(source if matched else items, min(step, tokens), dim, dtype=torch.float32)
    lengths, of_tokens = (z.new_empty(items, tokens, dtype=torch.float32) for _ in range(2))
    squares = z.new_zeros(items, dtype=torch.float64)
    right = tokens if matched else items if one else items - source
    products = z.new_zeros(source, right, dtype=torch.float32 if matched else torch.float64)
    for start in range(0, tokens, step):
        at = slice(start, min(start + step, tokens))
        part = z[:, at] if z.dtype == torch.float32 else z[:, at].to(torch.float32)
        lengths[:, at] = torch.linalg.vector_norm(part, dim=-1)
        if sums:
            of_tokens[:, at] = part.sum(-1)
        room = buffer[:, : part.shape[1]]
        if matched:
            products[:, at] = torch.linalg.vector_norm(torch.sub(part[:source], part[source:], out=room), dim=-1)
            continue
        centred = torch.sub(part, part.mean(0), out=room).reshape(items, -1)
        squares += torch.linalg.vector_norm(centred, dim=1).to(torch.float64).square()
        products += centred[:source] @ (centred if one else centred[source:]).T
    return _Sweep(lengths, of_tokens if sums else None, squares, products)


def _norms(z: Float[Tensor, "items *shape"], lengths: Float[Tensor, "items tokens"]) -> Float[Tensor, " items"]:
    found = lengths.to(torch.float64).square().sum(1).sqrt()
    unsafe = ~((found >= _SAFE_NORMS[0]) & (found <= _SAFE_NORMS[1]))
    if bool(unsafe.any()):
        found[unsafe] = norms(z[unsafe])
    return found


def _matched(z: Float[Tensor, "items tokens dim"], found: _Sweep, pairing: Pairing) -> Float[Tensor, " pairs"]:
    between = found.products.to(torch.float64).square().sum(1).sqrt()
    unsafe = ~((between >= _SAFE_NORMS[0]) & (between <= _SAFE_NORMS[1]))
    if bool(unsafe.any()):
        between[unsafe] = distances_matched(z[: pairing.source][unsafe], z[pairing.source :][unsafe])
    return between


def _all(z: Float[Tensor, "items tokens dim"], found: _Sweep, pairing: Pairing) -> Float[Tensor, "left right"]:
    squares, source, two = found.squares, pairing.source, pairing.design == "two-sample"
    if not bool(((squares >= _SAFE_NORMS[0] ** 2) & (squares <= _SAFE_NORMS[1] ** 2)).all()):
        return _careful_distances(z, pairing)
    left, right = (squares[:source], squares[source:]) if two else (squares, squares)
    sums = left[:, None] + right[None, :]
    squared = (sums - 2 * found.products).clamp_(min=0)
    close = squared <= CLOSE_FLOAT32 * sums
    i, j = (close if two else close.triu(1)).nonzero(as_tuple=True)
    squared[i, j] = _subtracted(z, i, j + source if two else j)
    if two:
        return squared.sqrt_()
    upper = squared.triu(1).sqrt_()
    return upper + upper.T


def _careful_distances(z: Float[Tensor, "items *shape"], pairing: Pairing) -> Float[Tensor, "*pairs"]:
    """In float64 throughout."""
    if pairing.design == "one-sample":
        return distances_within(z)
    measure = distances_matched if pairing.design == "matched" else distances_all
    return measure(z[: pairing.source], z[pairing.source :])


def _subtracted(z: Float[Tensor, "items tokens dim"], i: Tensor, j: Tensor) -> Float[Tensor, " pairs"]:
    """Squared distances of the pairs (i, j) by direct subtraction, a few pairs at a time."""
    if not len(i):
        return z.new_zeros(0, dtype=torch.float64)
    step = max(1, _CHUNK.get(z.device.type, _CHUNK["cpu"]) // z[0].numel())
    parts = zip(torch.split(i, step), torch.split(j, step), strict=True)
    return torch.cat([distances_matched(z[a], z[b]) for a, b in parts]).square()


def _token_scale(
    z: Float[Tensor, "items tokens dim"],
    lengths: Float[Tensor, "items tokens"],
    sums: Float[Tensor, "items tokens"],
    features: int,
) -> TokenScale:
    """Take the scale of tokens from their norms and sums.

    A token's variance is its mean square less its squared mean. Where that cancels, the tokens that may have the
    smallest one are computed again, from centred values in float64.
    """
    wide = float64(lengths).flatten()
    power = wide.square() / features
    variance = power - (float64(sums).flatten() / features).square()
    doubt = 1e-6 * power
    candidates = variance - doubt <= (variance + doubt).min()
    total, count = float(wide.sum()), wide.numel()
    if not bool((candidates & (variance < 0.1 * power)).any()) and bool(candidates.any()):
        return TokenScale(total, count, math.sqrt(float(variance.min().clamp(min=0))))
    smallest = math.nan
    for part in torch.split(candidates.nonzero()[:, 0].to(z.device), 1024) if bool(candidates.any()) else ():
        tokens = float64(z.reshape(-1, z.shape[-1])[part])
        smallest = min(float(pad(tokens, (0, features - z.shape[-1])).std(dim=-1, correction=0).min()), smallest)
    return TokenScale(total, count, smallest)
