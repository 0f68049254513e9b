"""Exact shortcuts of the shared convention: the same distances from fewer operations (docs/plasticity.md).

All components get the same tokens x there, so what depends on the tokens alone is done once for all blocks.

linear map W    The bias cancels: ‖W(x − y)‖_F² = ⟨WᵀW, C⟩ with C = (x − y)ᵀ(x − y). C is formed once per pair and
                serves every map; WᵀW once per map serves every pair. Both are symmetric: only the blocks of rows and
                columns on and below the diagonal are formed. Where the inner product cancels, W(x − y) is computed.
                The outputs' mean square, needed over all items only, costs a matched pair one matrix more:
                ‖Wx‖² + ‖Wy‖² = ½(‖W(x − y)‖² + ‖W(x + y)‖²), and the sums of all pairs share one C.
norm            The normalised tokens x̂ before gain γ and bias β are the same for every norm with the same ε:
                ‖γ⊙(x̂ − ŷ)‖_F² = Σ_c γ_c² s_c with s_c = Σ_tokens (x̂ − ŷ)²_c.
attention       q, k, v and softmax are computed per block and item, a few items at a time; the output projection is a
                linear map of the heads side by side.

Norms of outputs enter a measurement through their root mean square only; linear maps and norms return that for each.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn.functional import layer_norm, linear, rms_norm, scaled_dot_product_attention

from pliant.numerics.geometry import Geometry, Pairing, geometry
from pliant.numerics.rates import float64, norms

BLOCKS = 8
"""Blocks of columns that a symmetric matrix is cut into: 36 of 64 products are formed."""

CANCELLING = 300.0
"""Size of the terms of a sum over the sum, above which digits are lost and the plain way is taken instead."""

_SAFE = (1e-25, 1e30)
"""Entries of WᵀW and C between these keep their digits in float32, and their inner product is finite."""

_ELEMENTS = {"cpu": 1 << 21, "cuda": 1 << 27}
"""Elements that are worked on at a time."""

_HALF = (BLOCKS + 1) / (2 * BLOCKS)
"""Share of a symmetric matrix that is formed."""


@dataclass(frozen=True)
class LinearMap:
    """A linear map as `nn.Linear` stores it; tokens narrower than its input are padded with zeros."""

    weight: Float[Tensor, "out dim_in"]
    bias: Float[Tensor, " out"] | None


@dataclass(frozen=True)
class Norm:
    """Gain and bias of a LayerNorm (`centred`) or RMSNorm."""

    gain: Float[Tensor, " dim"] | None
    bias: Float[Tensor, " dim"] | None
    eps: float
    centred: bool


@dataclass(frozen=True)
class SelfAttention:
    """Softmax attention over the tokens, nothing else; rows of w_q, w_k, w_v and columns of w_o belong to heads."""

    w_q: Float[Tensor, "q_features dim"]
    w_k: Float[Tensor, "kv_features dim"]
    w_v: Float[Tensor, "kv_features dim"]
    w_o: Float[Tensor, "dim q_features"]
    b_q: Float[Tensor, " q_features"] | None
    b_k: Float[Tensor, " kv_features"] | None
    b_v: Float[Tensor, " kv_features"] | None
    b_o: Float[Tensor, " dim"] | None
    heads: int
    kv_heads: int
    scale: float
    causal: bool


def linear_is_shorter(maps: Sequence[LinearMap], x: Float[Tensor, "items *tokens dim"], pairing: Pairing) -> bool:
    """Tell whether the shortcut takes fewer multiplications than computing every output."""
    items, dim = len(x), x.shape[-1]
    tokens, outs = x[0].numel() // dim, sum(m.weight.shape[0] for m in maps)
    groups = -(-len(maps) // _group_size(maps, x))
    pooled = items // 2 if pairing.design == "matched" else items
    shortcut = _HALF * dim**2 * (outs + tokens * (groups * pairing.count(items) + pooled))
    return shortcut < tokens * items * dim * outs


def linear_geometries(
    maps: Sequence[LinearMap], x: Float[Tensor, "items *tokens dim"], pairing: Pairing
) -> Iterator[Geometry]:
    """Yield the geometry of each map's outputs, in order.

    >>> double, x = LinearMap(2 * torch.eye(3), torch.ones(3)), torch.tensor([[[3.0, 4.0, 0.0]], [[0.0, 0.0, 0.0]]])
    >>> [found.distances.tolist() for found in linear_geometries([double], x, Pairing("matched", 1))]
    [[10.0]]
    """
    tokens, step = x.reshape(len(x), -1, x.shape[-1]), _group_size(maps, x)
    pooled = _pooled(tokens, pairing)
    power = x.new_empty(1, _packed_size(x.shape[-1]))
    _packed_square(pooled, out=power)
    for start in range(0, len(maps), step):
        yield from _linear_group(maps[start : start + step], tokens, pairing, pooled, power)


def _pooled(x: Float[Tensor, "items tokens dim"], pairing: Pairing) -> Float[Tensor, "1 rows dim"]:
    """Tokens of all items, or sums of the two items of matched pairs: what the outputs' mean square is taken from."""
    rows = x[: pairing.source] + x[pairing.source :] if pairing.design == "matched" else x
    return rows.reshape(1, -1, x.shape[-1])


def _group_size(maps: Sequence[LinearMap], x: Tensor) -> int:
    """Maps whose WᵀW are held at a time: together they take at most as much memory as the tokens."""
    return max(1, min(len(maps), int(x.numel() / (_HALF * x.shape[-1] ** 2))))


def _linear_group(
    maps: Sequence[LinearMap],
    x: Float[Tensor, "items tokens dim"],
    pairing: Pairing,
    pooled: Float[Tensor, "1 rows dim"],
    power: Float[Tensor, "1 packed"],
) -> Iterator[Geometry]:
    items, dim = len(x), x.shape[-1]
    weights = [m.weight[:, :dim] for m in maps]  # features beyond the tokens' own meet zeros
    squares = x.new_empty(len(maps), power.shape[1])
    for at, weight in enumerate(weights):
        _packed_square(weight[None], out=squares[at : at + 1], double=True)
    squared = float64(x.new_zeros(len(maps), pairing.count(items)))
    step = max(1, _ELEMENTS.get(x.device.type, _ELEMENTS["cpu"]) // dim**2)
    grams = x.new_empty(
        step, power.shape[1]
    )  # the same memory for all pairs: what is freed and taken again would fragment
    for at, difference in _differences(x, pairing, step):
        part = slice(at, at + len(difference))
        _packed_square(difference, out=grams[: len(difference)])
        squared[:, part] = _linear_part(weights, squares, difference, grams[: len(difference)])
    sums = _linear_part(weights, squares, pooled, power)[:, 0]
    if pairing.design == "matched":
        sums = (sums + squared.sum(1)) / 2
    total = float64(x.sum(1)).sum(0).to(x.dtype)
    for m, weight, between, sum_of_squares in zip(maps, weights, squared, sums, strict=True):
        yield _from_squares(between, _biased(sum_of_squares, m.bias, weight, x, total), pairing, items)


def _biased(
    sum_of_squares: Float[Tensor, ""],
    bias: Float[Tensor, " out"] | None,
    weight: Float[Tensor, "out dim"],
    x: Float[Tensor, "items tokens dim"],
    total: Float[Tensor, " dim"],
) -> Float[Tensor, ""]:
    """From the sum of squares of all W x to that of all W x + b; `total` is the sum of all tokens."""
    if bias is None:
        return sum_of_squares
    cross = 2 * float64(bias) @ float64(weight @ total)
    constant = len(x) * x.shape[1] * float64(bias).square().sum()
    found = sum_of_squares + cross + constant
    if bool(found * CANCELLING > sum_of_squares + cross.abs() + constant):
        return found
    wide, shift = float64(weight).T, float64(bias)
    return torch.stack([(float64(item) @ wide + shift).square().sum() for item in x]).sum()


def _differences(
    x: Float[Tensor, "items tokens dim"], pairing: Pairing, step: int
) -> Iterator[tuple[int, Float[Tensor, "batch tokens dim"]]]:
    """Yield x_i − x_j for `step` pairs at a time, with the position of the first; they overwrite each other."""
    i, j = (k.tolist() for k in pairing.indices(len(x)))
    buffer = x.new_empty(min(step, max(1, len(i))), *x.shape[1:])
    for start in range(0, len(i), step):
        stop = min(start + step, len(i))
        for at in range(start, stop):
            torch.sub(x[i[at]], x[j[at]], out=buffer[at - start])
        yield start, buffer[: stop - start]


def _linear_part(
    weights: Sequence[Tensor],
    squares: Float[Tensor, "maps packed"],
    a: Float[Tensor, "batch tokens dim"],
    gram: Float[Tensor, "batch packed"],
) -> Float[Tensor, "maps batch"]:
    """Squared Frobenius norms of W a for every map and every matrix a of the batch; `gram` holds aᵀa."""
    inner = _inner_products(squares, gram)
    of_maps, of_a = (float64(torch.linalg.vector_norm(z, dim=1)) for z in (squares, gram))
    exact = inner * CANCELLING > of_maps[:, None] * of_a
    for sizes in (of_maps[:, None], of_a):
        exact &= (sizes > _SAFE[0]) & (sizes < _SAFE[1])
    for at, item in (~exact).nonzero().tolist():
        inner[at, item] = norms((a[item] @ weights[at].T)[None])[0].square()
    return inner


def _packed_square(
    a: Float[Tensor, "batch rows dim"], *, out: Float[Tensor, "batch packed"], double: bool = False
) -> None:
    """Write the blocks on and below the diagonal of aᵀa, column block by column block, as one vector.

    With `double`, blocks below the diagonal count twice: the inner product of a doubled and a plain vector is that of
    the two symmetric matrices.
    """
    at, dim = 0, a.shape[-1]
    for low, high in _bounds(dim):
        height, width = dim - low, high - low
        block = out[:, at : at + height * width].view(-1, height, width)
        torch.bmm(a[..., low:].mT, a[..., low:high], out=block)
        if double:
            block[:, width:] *= 2
        at += height * width


def _packed_size(dim: int) -> int:
    return sum((high - low) * (dim - low) for low, high in _bounds(dim))


def _bounds(dim: int) -> list[tuple[int, int]]:
    return [(low, high) for low, high in pairwise(dim * k // BLOCKS for k in range(BLOCKS + 1)) if high > low]


def _inner_products(
    x: Float[Tensor, "n features"], y: Float[Tensor, "m features"], *, step: int = 1 << 14
) -> Float[Tensor, "n m"]:
    """Inner products of rows, summed in float64 over chunks of features."""
    found = float64(x.new_zeros(len(x), len(y)))
    for start in range(0, x.shape[1], step):
        found += float64(x[:, start : start + step] @ y[:, start : start + step].T)
    return found


def norm_geometries(modules: Sequence[Norm], x: Float[Tensor, "items *tokens dim"], pairing: Pairing) -> list[Geometry]:
    """Return the geometry of each norm's outputs, in order.

    >>> norm = Norm(torch.tensor([3.0, 3.0]), None, 0.0, True)
    >>> (found,) = norm_geometries([norm], torch.tensor([[[1.0, 2.0]], [[5.0, -5.0]]]), Pairing("matched", 1))
    >>> round(found.distances.item() ** 2, 9)  # normalised to (-1, 1) and (1, -1)
    72.0
    """
    tokens = x.reshape(len(x), -1, x.shape[-1])
    kinds = {(m.eps, m.centred): m for m in modules}
    sums = {kind: _normalised_sums(tokens, pairing, *kind) for kind in kinds}
    found = []
    for m in modules:
        squares, first, second = sums[m.eps, m.centred]
        gain = torch.ones_like(first) if m.gain is None else float64(m.gain)
        sum_of_squares = gain.square() @ second
        if m.bias is not None:
            bias = float64(m.bias)
            count = tokens.shape[0] * tokens.shape[1]
            sum_of_squares = sum_of_squares + 2 * (gain * bias) @ first + count * bias.square().sum()
        found.append(_from_squares(squares @ gain.square(), sum_of_squares, pairing, len(x)))
    return found


def _normalised_sums(
    x: Float[Tensor, "items tokens dim"], pairing: Pairing, eps: float, centred: bool
) -> tuple[Float[Tensor, "pairs dim"], Float[Tensor, " dim"], Float[Tensor, " dim"]]:
    """Per feature: sum over tokens of the squared difference of each pair; sum and sum of squares over all tokens."""
    items, tokens, dim = x.shape
    squares = float64(x.new_zeros(pairing.count(items), dim))
    first, second = (float64(x.new_zeros(dim)) for _ in range(2))
    step = max(1, _ELEMENTS.get(x.device.type, _ELEMENTS["cpu"]) // (4 * items * dim))
    for start in range(0, tokens, step):
        part = x[:, start : start + step]
        hat = layer_norm(part, (dim,), eps=eps) if centred else rms_norm(part, (dim,), eps=eps)
        first += float64(hat.sum((0, 1)))
        second += float64(hat.square().sum((0, 1)))
        pairs = max(1, _ELEMENTS.get(x.device.type, _ELEMENTS["cpu"]) // (4 * hat.shape[1] * dim))
        for at, difference in _differences(hat, pairing, pairs):
            squares[at : at + len(difference)] += float64(difference.square_().sum(1))
    return squares, first, second


def _from_squares(
    squared: Float[Tensor, " pairs"], sum_of_squares: Float[Tensor, ""], pairing: Pairing, items: int
) -> Geometry:
    root_mean_square = (sum_of_squares.clamp(min=0) / items).sqrt()
    return Geometry(pairing.arranged(squared.sqrt(), items), root_mean_square.expand(items))


def attention_heads(
    attention: SelfAttention, x: Float[Tensor, "items tokens dim"]
) -> Float[Tensor, "items tokens q_features"]:
    """Return the outputs of all heads side by side, before the output projection."""
    return _heads(attention, x).flatten(2)


def _heads(
    attention: SelfAttention, x: Float[Tensor, "items tokens dim"]
) -> Float[Tensor, "items tokens heads head_features"]:
    a = attention

    def project(weight: Tensor, bias: Tensor | None, heads: int) -> Tensor:
        return linear(x, weight, bias).view(*x.shape[:2], heads, -1).transpose(1, 2)

    q, k, v = project(a.w_q, a.b_q, a.heads), project(a.w_k, a.b_k, a.kv_heads), project(a.w_v, a.b_v, a.kv_heads)
    grouped = a.kv_heads != a.heads
    out: Tensor = scaled_dot_product_attention(q, k, v, is_causal=a.causal, scale=a.scale, enable_gqa=grouped)
    return out.transpose(1, 2)


def attention_geometry(
    attention: SelfAttention, x: Float[Tensor, "items tokens dim"], pairing: Pairing, *, per_head: bool = False
) -> tuple[Geometry, list[Geometry]]:
    """Return the geometry of attention's outputs and, if asked for, of each head's before the output projection.

    The heads of a pass are held at once. Where that is shorter, they are not projected (`linear_geometries`).
    """
    step = max(1, _ELEMENTS.get(x.device.type, _ELEMENTS["cpu"]) // max(1, 3 * x[:1].numel()))
    first = _heads(attention, x[:step])
    heads = first.new_empty(len(x), *first.shape[1:])
    heads[:step] = first
    for start in range(step, len(x), step):
        heads[start : start + step] = _heads(attention, x[start : start + step])
    joined, output = heads.flatten(2), LinearMap(attention.w_o, attention.b_o)
    if joined.dtype == torch.float32 and linear_is_shorter([output], joined, pairing):
        (found,) = linear_geometries([output], joined, pairing)
    else:
        found = geometry(linear(joined, output.weight, output.bias), pairing)
    return found, [geometry(head, pairing) for head in heads.unbind(2)] if per_head else []
