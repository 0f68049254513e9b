"""Exact shortcuts equal the plain computation, done in float64, to 1e-5 relative or better."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.nn.functional import layer_norm, pad, rms_norm

from pliant.numerics import kernels
from pliant.numerics.estimate import Design
from pliant.numerics.geometry import Geometry, Pairing
from pliant.numerics.kernels import (
    LinearMap,
    Norm,
    SelfAttention,
    attention_geometry,
    attention_heads,
    linear_geometries,
    linear_is_shorter,
    norm_geometries,
)

DESIGNS: list[Design] = ["two-sample", "one-sample", "matched"]
designs = pytest.mark.parametrize("design", DESIGNS)
scales = pytest.mark.parametrize("scale", [1e-6, 1.0, 1e6])


def draw(seed: int, *shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def pairing(design: Design, items: int) -> Pairing:
    return Pairing(design, items if design == "one-sample" else items // 2)


def agrees(found: Geometry, outputs: Tensor, how: Pairing, *, rtol: float = 1e-5, atol: float = 0.0) -> None:
    """Compare with outputs in float64, each pair subtracted by itself; those of equal items may differ by rounding."""
    items, sizes = len(outputs), outputs.flatten(1).norm(dim=1)
    atol = max(atol, 1e-14 * float(sizes.max()))
    i, j = how.indices(items)
    listed = (outputs[i] - outputs[j]).flatten(1).norm(dim=1)
    torch.testing.assert_close(found.distances, how.arranged(listed, items), rtol=rtol, atol=atol)
    torch.testing.assert_close(found.norms.square().mean(), sizes.square().mean(), rtol=rtol, atol=0)


def linear64(m: LinearMap, x: Tensor) -> Tensor:
    wide = pad(x.double(), (0, m.weight.shape[1] - x.shape[-1]))
    return wide @ m.weight.double().T + (0 if m.bias is None else m.bias.double())


def tokens(items: int, scale: float = 1.0) -> Tensor:
    """Items that share a large common part, as embedded tokens do; two of them are equal."""
    x = scale * (draw(0, items, 7, 24) + 3 * draw(1, 1, 7, 24))
    x[items - 1] = x[0]
    return x


@designs
@scales
@pytest.mark.parametrize(("items", "dim"), [(2, 24), (8, 24), (6, 10), (6, 3), (4, 1)])
def test_linear_maps(design: Design, scale: float, items: int, dim: int) -> None:
    x, how = tokens(items, scale)[..., :dim], pairing(design, items)
    maps = [
        LinearMap(draw(2, 30, dim), draw(3, 30)),
        LinearMap(draw(4, dim, 96), draw(5, dim)),  # tokens are padded with zeros
        LinearMap(1e-3 * draw(6, 96, dim).T.contiguous().T, None),
    ]
    for m, found in zip(maps, linear_geometries(maps, x, how), strict=True):
        agrees(found, linear64(m, x), how)


@designs
def test_a_linear_map_that_nearly_loses_a_pair(design: Design) -> None:
    """Differences lie where the map all but vanishes: the inner product of Gram matrices has no digits left."""
    singular = torch.diag(torch.cat([torch.full((20,), 1e-5), torch.ones(4)]))
    x = draw(7, 6, 7, 24)
    x[..., 20:] = x[:1, :, 20:]
    agrees(next(linear_geometries([LinearMap(singular, None)], x, pairing(design, 6))), x.double() @ singular.double(),
           pairing(design, 6))  # fmt: skip


@designs
@pytest.mark.parametrize("gap", [1e-1, 1e-4, 1e-6])
def test_nearly_equal_items(design: Design, gap: float) -> None:
    """The difference of two inputs is exact in float32; of two outputs computed in float32 it is not."""
    base = draw(8, 3, 7, 24)
    x, how = torch.cat([base, base + gap * draw(9, 3, 7, 24)]), pairing(design, 6)
    linear, norm = LinearMap(draw(10, 40, 24), draw(11, 40)), Norm(draw(12, 24), None, 1e-6, True)
    agrees(next(linear_geometries([linear], x, how)), linear64(linear, x), how)
    exact = norm64(norm, x)
    agrees(norm_geometries([norm], x, how)[0], exact, how, rtol=1e-5 + 3e-7 / gap)


@designs
@pytest.mark.parametrize("scale", [1e-22, 1e-15, 1e18])
def test_weights_whose_squares_leave_float32(design: Design, scale: float) -> None:
    x, how = tokens(6), pairing(design, 6)
    m = LinearMap(scale * draw(2, 30, 24), None)
    agrees(next(linear_geometries([m], x, how)), linear64(m, x), how)


@designs
def test_a_bias_that_cancels_the_outputs(design: Design) -> None:
    """Their mean square is a small rest of three large sums."""
    x, how = 1e-3 * draw(7, 6, 7, 24) + draw(8, 24), pairing(design, 6)
    weight = draw(9, 30, 24)
    m = LinearMap(weight, -(weight @ x.mean((0, 1))))
    agrees(next(linear_geometries([m], x, how)), linear64(m, x), how)


def test_groups_and_chunks_do_not_show(monkeypatch: pytest.MonkeyPatch) -> None:
    x, how = tokens(8), Pairing("two-sample", 4)
    maps = [LinearMap(draw(k, 30, 24), None) for k in range(5)]
    norm, attention = Norm(draw(13, 24), draw(14, 24), 1e-6, True), random_attention()

    def everything() -> list[Geometry]:
        found = [*linear_geometries(maps, x, how), *norm_geometries([norm], x, how)]
        for design in ("two-sample", "matched"):
            outputs, heads = attention_geometry(attention, x, Pairing(design, 4), per_head=True)
            found += [outputs, *heads]
        return found

    whole = everything()
    monkeypatch.setattr(kernels, "_ELEMENTS", {"cpu": 1})
    monkeypatch.setattr(kernels, "_group_size", lambda maps, x: 2)
    for got, expected in zip(everything(), whole, strict=True):
        torch.testing.assert_close(got.distances, expected.distances, rtol=1e-5, atol=1e-12)
        torch.testing.assert_close(got.norms.sort().values, expected.norms.sort().values, rtol=1e-5, atol=0)


def test_the_shortcut_is_taken_where_it_is_shorter() -> None:
    wide, narrow = torch.zeros(32, 197, 768), torch.zeros(2, 1, 64)
    up = LinearMap(torch.zeros(3072, 768), None)
    assert linear_is_shorter([up] * 12, wide, Pairing("matched", 16))
    assert linear_is_shorter([up] * 12, wide, Pairing("two-sample", 16))
    assert not linear_is_shorter([LinearMap(torch.zeros(256, 64), None)], narrow, Pairing("matched", 1))


def norm64(n: Norm, x: Tensor) -> Tensor:
    dim = x.shape[-1]
    x = x.double()
    gain = torch.ones(dim).double() if n.gain is None else n.gain.double()
    hat = layer_norm(x, (dim,), eps=n.eps) if n.centred else rms_norm(x, (dim,), eps=n.eps)
    return hat * gain + (0 if n.bias is None else n.bias.double())


@designs
@scales
@pytest.mark.parametrize("items", [2, 8])
def test_norms(design: Design, scale: float, items: int) -> None:
    x, how = tokens(items, scale), pairing(design, items)
    modules = [
        Norm(draw(2, 24), draw(3, 24), 1e-6, True),
        Norm(draw(4, 24), None, 1e-6, True),
        Norm(draw(5, 24), draw(6, 24), 1e-2, True),
        Norm(None, None, 1e-6, False),
        Norm(draw(7, 24), None, 1e-6, False),
    ]
    for n, found in zip(modules, norm_geometries(modules, x, how), strict=True):
        agrees(found, norm64(n, x), how)


def random_attention(*, kv_heads: int = 4, causal: bool = False, biased: bool = True) -> SelfAttention:
    kv = 6 * kv_heads
    b = (draw(24, 24), draw(25, kv), draw(26, kv), draw(27, 24)) if biased else (None,) * 4
    w = (draw(20, 24, 24) / 5, draw(21, kv, 24) / 5, draw(22, kv, 24), draw(23, 24, 24))
    return SelfAttention(*w, *b, heads=4, kv_heads=kv_heads, scale=0.4, causal=causal)


def attention64(a: SelfAttention, x: Tensor) -> tuple[Tensor, Tensor]:
    """Head by head, softmax written out; returns outputs and heads."""
    x = x.double()
    heads, group, k = [], a.heads // a.kv_heads, a.w_q.shape[0] // a.heads

    def project(weight: Tensor, bias: Tensor | None, h: int) -> Tensor:
        rows = slice(h * k, (h + 1) * k)
        return x @ weight[rows].double().T + (0 if bias is None else bias[rows].double())

    for h in range(a.heads):
        q, key = project(a.w_q, a.b_q, h), project(a.w_k, a.b_k, h // group)
        logits = a.scale * torch.einsum("bqk,bsk->bqs", q, key)
        if a.causal:
            logits = logits + torch.full_like(logits[0], -torch.inf).triu(1)
        p = logits.exp() / logits.exp().sum(-1, keepdim=True)
        heads.append(torch.einsum("bqs,bsk->bqk", p, project(a.w_v, a.b_v, h // group)))
    joined = torch.cat(heads, dim=-1)
    return joined @ a.w_o.double().T + (0 if a.b_o is None else a.b_o.double()), joined


@designs
@pytest.mark.parametrize("items", [2, 8])
@pytest.mark.parametrize(("kv_heads", "causal", "biased"), [(4, False, True), (2, True, True), (1, False, False)])
def test_attention(design: Design, items: int, kv_heads: int, causal: bool, biased: bool) -> None:
    attention = random_attention(kv_heads=kv_heads, causal=causal, biased=biased)
    x, how = tokens(items, 0.3), pairing(design, items)
    outputs, joined = attention64(attention, x)
    torch.testing.assert_close(attention_heads(attention, x).double(), joined, rtol=1e-4, atol=1e-5)
    found, heads = attention_geometry(attention, x, how, per_head=True)
    agrees(found, outputs, how)
    for h, head in enumerate(heads):
        agrees(head, joined[..., 6 * h : 6 * (h + 1)], how)
    assert attention_geometry(attention, x, how)[1] == []


@settings(max_examples=25, deadline=None)
@given(
    items=st.integers(2, 5),
    tokens_per_item=st.integers(1, 6),
    dim=st.integers(1, 12),
    out=st.integers(1, 20),
    exponent=st.integers(-8, 8),
    seed=st.integers(0, 99),
)
def test_linear_maps_and_norms_of_any_shape(
    items: int, tokens_per_item: int, dim: int, out: int, exponent: int, seed: int
) -> None:
    x = 10.0**exponent * draw(seed, 2 * items, tokens_per_item, dim)
    m, n = LinearMap(draw(seed + 1, out, dim), draw(seed + 2, out)), Norm(draw(seed + 3, dim), None, 1e-6, False)
    how = Pairing("two-sample", items)
    agrees(next(linear_geometries([m], x, how)), linear64(m, x), how)
    outputs = norm64(n, x)  # where one feature is normalised to ±1, float32 cannot tell outputs apart by more digits
    agrees(norm_geometries([n], x, how)[0], outputs, how, atol=1e-6 * float(outputs.flatten(1).norm(dim=1).max()))
