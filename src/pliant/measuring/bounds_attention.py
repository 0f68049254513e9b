"""What an attention module computes, found by watching it: what the derivation does not cover gets no bound.

The bound (numerics/attention_bounds.py) holds for P = softmax(logits) over a token's own sequence, with logits that are
scale·q_iᵀR_ij k_j plus anything that does not depend on the tokens: masks and relative position biases; R_ij is the
identity, or a rotation by position. To know that a module is of this form, pliant calls it on the tokens of a real pass
and on random ones, records each matrix product and softmax that it executes (whatever code executes them), and checks
against the weights that were read from it, head by head:

1. logits − scale·q_iᵀk_j is the same for all inputs; or, with rotation, the two factors of the logits have the inner
   products over inputs that the queries, and the keys, have at every position (so an orthogonal map, which does not
   depend on the input, leads from one to the other), and the logits are their product, scaled, plus a constant;
2. the output is Σ_h W_O,h P_h (x W_V,hᵀ + b_V,h) + b_O;
3. on the tokens of the real pass the output is the one that the pass gave.

Inputs are random, so a module of another form agrees by chance with probability zero, up to rounding.
"""

import math
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Bool, Float, Shaped
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils._python_dispatch import TorchDispatchMode

from pliant.components import Anatomy, Component
from pliant.components.attention import AttentionWeights, attention_weights
from pliant.errors import AnatomyError
from pliant.measuring.bounds_forms import NotCovered
from pliant.measuring.capture import Call, first_tensor
from pliant.numerics.rates import float64

_TOLERANCE = 1e-4
"""Of the largest value involved: more than float32 loses, less than any part that the weights leave out."""

_MASKED = -1e3
"""An unexplained part of a logit below this is a mask, if the softmax is zero there; its exact value is irrelevant."""

_TRIALS = 3
"""Random inputs beside the real one."""


@dataclass(frozen=True, eq=False)
class SeenCall:
    """One call of an attention component in a forward pass of one item: its arguments and what it gave."""

    call: Call
    output: Tensor


@dataclass(frozen=True, eq=False)
class AttentionForm:
    """An attention that the derivation covers.

    Attributes:
        weights: by head.
        rotary: whether queries and keys are rotated by position.
        tokens: n, per sequence; per window where attention is windowed.
    """

    weights: AttentionWeights
    rotary: bool
    tokens: int


@dataclass(frozen=True, eq=False)
class _Watched:
    """What one call did.

    Attributes:
        left, right: their product is the logits, up to a factor and a constant.
        logits: before the softmax.
        unused: where the softmax is zero.
    """

    left: Float[Tensor, "batch heads tokens head_dim"]
    right: Float[Tensor, "batch heads tokens head_dim"]
    logits: Float[Tensor, "batch heads tokens tokens"]
    unused: Bool[Tensor, "batch heads tokens tokens"]


def attention_form(anatomy: Anatomy, component: Component, seen: SeenCall) -> AttentionForm:
    """Find out whether an attention component is of the form that is bounded.

    Args:
        anatomy: of the model, which is in the state it is measured in.
        component: of role `mha`.
        seen: one call of it in a forward pass.

    Raises:
        NotCovered: it is not, or it cannot be told.
    """
    try:
        w = attention_weights(anatomy, component)
    except AnatomyError as error:
        raise NotCovered(str(error)) from error
    if w.uncovered is not None:
        raise NotCovered(f"the attention {w.uncovered}")
    if w.qk_norm:
        raise NotCovered("queries and keys are normalised")
    tokens = seen.call.tokens
    if tokens.ndim != 3:
        raise NotCovered(f"the attention takes tokens of shape {tuple(tokens.shape)}, not (batch, tokens, dim)")
    modules = [anatomy.module(name) for name in component.modules]
    inputs = _inputs(tokens)
    with attention_written_out(anatomy.model):
        _check_again(modules, seen)
        watched = [_watch(modules, seen.call, x, w) for x in inputs]
    alone = tokens.shape[1] == 1  # a token alone attends to itself whatever its logit
    return AttentionForm(w, not alone and _rotates(inputs, watched, w), tokens.shape[1])


@contextmanager
def attention_written_out(model: nn.Module) -> Iterator[None]:
    """Let attention be computed by matrix products and a softmax instead of a fused kernel; restored afterwards.

    It can then be watched, and differentiated twice.
    """
    configs = {id(c): c for m in model.modules() if (c := getattr(m, "config", None)) is not None}
    chosen = [(c, getattr(c, "_attn_implementation", None)) for c in configs.values()]
    other = [(c, name) for c, name in chosen if name not in (None, "eager", "sdpa")]
    for config, _ in other:
        config._attn_implementation = "sdpa"
    try:
        with sdpa_kernel(SDPBackend.MATH):
            yield
    finally:
        for config, name in other:  # outer ones first: setting one sets those that it holds
            config._attn_implementation = name


def called(modules: Sequence[nn.Module], call: Call, tokens: Tensor) -> Tensor:
    """Call an attention component, which may be a sequence of modules, with other tokens."""
    output = call.again(modules[0], tokens)
    for module in modules[1:]:
        output = first_tensor(module(output), where=type(module).__name__)
    return output


class _Recorder(TorchDispatchMode):  # type: ignore[no-untyped-call]  # torch's own is untyped
    """Records each softmax over the last axis, with the matrix product before it."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.products: tuple[Tensor, Tensor] | None = None
        self.found: list[tuple[Tensor, Tensor, tuple[Tensor, Tensor] | None]] = []

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        output = func(*args, **(kwargs or {}))
        name = func.name().removeprefix("aten::")
        if name in ("bmm", "baddbmm"):
            self.products = args[-2], args[-1]
        elif name in ("_softmax", "_safe_softmax") and args[1] in (-1, args[0].ndim - 1):
            self.found.append((args[0], output, self.products))
        return output


def _check_again(modules: Sequence[nn.Module], seen: SeenCall) -> None:
    again, given = float64(called(modules, seen.call, seen.call.tokens)), float64(seen.output)
    if again.numel() != given.numel() or not _close(again.flatten(), given.flatten()):
        raise NotCovered("the attention gives other values when it is called again, or written out")


def _watch(modules: Sequence[nn.Module], call: Call, tokens: Tensor, w: AttentionWeights) -> _Watched:
    """Call the attention, check its output against the values, and return what made its logits."""
    try:
        with torch.enable_grad(), _Recorder() as recorder:  # with gradients nn.MultiheadAttention takes no fused path
            output = called(modules, call, tokens.detach().requires_grad_().clone())
    except RuntimeError as error:
        raise NotCovered(f"the attention cannot be called on other tokens ({str(error).splitlines()[0]})") from error
    batch, n = tokens.shape[:2]
    if len(recorder.found) != 1:
        raise NotCovered(f"the attention was seen to take {len(recorder.found)} softmaxes of logits; expected one")
    logits, shares, products = recorder.found[0]
    sizes = [t.numel() for t in products or ()]
    if logits.numel() != batch * w.heads * n * n or (sizes != [batch * n * len(w.w_q)] * 2 and n > 1):
        raise NotCovered(
            f"the attention has logits of shape {tuple(logits.shape)}; expected every token of a sequence against "
            f"every other, for {batch} sequences, {w.heads} heads and {n} tokens"
        )
    shares = _by_head(shares, batch, w.heads)
    joined = (float64(shares) @ _heads(tokens, w.w_v, w.b_v, w)).transpose(1, 2).flatten(2)
    expected = joined @ float64(w.w_o).T + (0 if w.b_o is None else float64(w.b_o))
    if expected.shape != output.shape or not _close(float64(output.detach()), expected):
        raise NotCovered("the attention's output is not the projected mean of the values, head by head")
    left, right = (products[0], products[1].mT) if products is not None and n > 1 else (logits, logits)
    return _Watched(*(_by_head(t, batch, w.heads) for t in (left, right, logits, shares == 0)))


def _by_head(t: Tensor, batch: int, heads: int) -> Shaped[Tensor, "batch heads tokens features"]:
    """Bring what was seen to one shape, whether batch and heads were joined or not."""
    return t.detach().reshape(batch, heads, -1, t.shape[-1])


def _inputs(tokens: Float[Tensor, "batch tokens dim"]) -> list[Float[Tensor, "batch tokens dim"]]:
    """The real tokens, and random ones like them."""
    generator = torch.Generator().manual_seed(0)
    centre, spread = tokens.mean((0, 1)), tokens.std(correction=0).clamp(min=1e-6)
    drawn = [torch.randn(tokens.shape, generator=generator).to(tokens) for _ in range(_TRIALS)]
    return [tokens, *(centre + spread * x for x in drawn)]


def _heads(
    x: Float[Tensor, "batch tokens dim"],
    weight: Float[Tensor, "features dim"],
    bias: Tensor | None,
    w: AttentionWeights,
) -> Float[Tensor, "batch heads tokens head_features"]:
    """Project tokens and cut the features into heads; key and value heads are repeated for each query head."""
    out = float64(x) @ float64(weight).T + (0 if bias is None else float64(bias))
    own = len(weight) // w.head_dim
    cut = out.reshape(*out.shape[:-1], own, w.head_dim).transpose(1, 2)
    return cut.repeat_interleave(w.heads // own, 1)


def _rotates(inputs: Sequence[Tensor], watched: Sequence[_Watched], w: AttentionWeights) -> bool:
    """Tell whether queries and keys are rotated.

    Raises:
        NotCovered: the logits are something else than their products and a constant, rotated or not.
    """
    queries, keys = ([_heads(x, weight, bias, w) for x in inputs] for weight, bias in ((w.w_q, w.b_q), (w.w_k, w.b_k)))
    if _constant(watched, (w.scale * q @ k.mT for q, k in zip(queries, keys, strict=True))):
        return False
    factor = _rotation([o.left for o in watched], queries) * _rotation([o.right for o in watched], keys)
    seen = watched[0].logits > -1e30  # a difference of masks is no number
    changes = [
        float64(one)[seen] - float64(other)[seen]
        for one, other in zip(*((_product(o), o.logits) for o in watched[:2]), strict=True)
    ]
    slope = _slope(*changes)
    if not _constant(watched, (slope * _product(o) for o in watched)):
        raise NotCovered("the logits are more than products of rotated queries and keys, plus a constant")
    if abs(slope * factor / w.scale - 1) > 1e-3:
        raise NotCovered(f"the logits are scaled by {slope * factor:.6g}; the module says {w.scale:.6g}")
    return True


def _product(watched: _Watched) -> Tensor:
    return float64(watched.left) @ float64(watched.right).mT


def _rotation(found: Sequence[Tensor], expected: Sequence[Tensor]) -> float:
    """Return the factor between vectors and what they are rotated from.

    Raises:
        NotCovered: their inner products are not the same up to a factor.
    """
    products, wanted = _inner_products(found), _inner_products(expected)
    ratio = _slope(wanted, products)
    if not (products.shape == wanted.shape and ratio > 0 and _close(products, ratio * wanted)):
        raise NotCovered(
            "the logits are no products of queries and keys, plain or rotated by position, plus a constant"
        )
    return math.sqrt(ratio)


def _inner_products(vectors: Sequence[Float[Tensor, "batch heads tokens head_dim"]]) -> Tensor:
    """Inner products over inputs, for every batch entry, head and position."""
    stacked = torch.stack([float64(v) for v in vectors])
    return torch.einsum("s...k,t...k->st...", stacked, stacked)


def _slope(x: Tensor, y: Tensor) -> float:
    """The factor that takes x to y, by least squares."""
    if x.shape != y.shape:
        return 0.0
    return float((x * y).sum() / x.square().sum().clamp(min=1e-300))


def _constant(watched: Sequence[_Watched], explained: Iterable[Tensor]) -> bool:
    """Tell whether what is not explained of the logits is the same for all inputs."""
    size = change = 0.0
    constant = masked = torch.empty(0)
    for i, (one, expected) in enumerate(zip(watched, explained, strict=True)):
        size = max(size, float(expected.abs().max()))
        rest = float64(one.logits) - expected
        if i == 0:
            constant, masked = rest, rest < _MASKED
        unused = bool(one.unused[masked].all())
        if masked.all() or not (unused and torch.equal(rest < _MASKED, masked)):
            return False
        change = max(change, float((rest - constant)[~masked].abs().max()))
    return change <= _TOLERANCE * size + 4e-6 * float(constant[~masked].abs().max())


def _close(x: Tensor, y: Tensor) -> bool:
    """Tell whether two tensors are equal up to float32 rounding; NaN is equal to nothing."""
    return float((x - y).abs().max()) <= _TOLERANCE * max(float(y.abs().max()), 1e-30)
