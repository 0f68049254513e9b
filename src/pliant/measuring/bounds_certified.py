"""From what a component computes and the tokens that it gets to a bound: certified, or none with the reason."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch

from pliant.components import Anatomy, Component
from pliant.errors import MeasurementError
from pliant.measuring.bounds_attention import AttentionForm, SeenCall, attention_form
from pliant.measuring.bounds_forms import LinearForm, NormForm, NotCovered, linear_form, norm_form
from pliant.measuring.bounds_sets import TokenSet
from pliant.numerics.attention_bounds import AttentionBound, attention_bound, attention_bound_paper
from pliant.numerics.spectral import require_finite
from pliant.terms import Convention

Kind = Literal["certified", "paper", "none"]
"""Proved for the stated set; the published formula, for comparison; no bound, with the reason."""

Form = NormForm | LinearForm | AttentionForm | NotCovered
"""What a component computes, or why that is not known."""

TOLERANCE = 1e-5
"""Relative excess over a bound that a measured rate may have: bounds are about the exact function, rates of norms and
linear maps reach them, and models run in float32."""


@dataclass(frozen=True)
class ComponentBound:
    """A bound on one component.

    Attributes:
        value: NaN where there is none.
        kind: what may be concluded from it.
        reason: why there is none, or what the published formula leaves out; for a certified bound empty, unless rates
            were measured that exceed it by rounding.
        holds_on: the set of tokens, in words.
        without_data: a bound for all tokens, NaN where there is none.
        heads: for attention, a bound on each head's output before the output projection.
    """

    value: float
    kind: Kind
    reason: str
    holds_on: str = ""
    without_data: float = math.nan
    heads: tuple[float, ...] = ()


def component_form(
    anatomy: Anatomy, component: Component, *, width: int, call: SeenCall | None, convention: Convention
) -> Form:
    """Find out what a component computes.

    Args:
        anatomy: of the model, which is in the state it is measured in.
        component: of a block.
        width: features of the tokens that it gets.
        call: for attention, one call of it in a forward pass.
        convention: in which it is measured.

    Raises:
        ModelError: a weight is not finite; names the tensor.
    """
    modules = [anatomy.module(name) for name in component.modules]
    try:
        if component.role in ("ln1", "ln2"):
            return norm_form(modules[0], width=width)
        if component.role == "mha":
            if call is None:
                raise NotCovered("the attention was not called in the forward pass")
            return attention_form(anatomy, component, call)
        return linear_form(modules, padded=convention == "shared" and component.role == "fc2")
    except NotCovered as reason:
        return reason


def check_weights(anatomy: Anatomy, components: Sequence[Component]) -> None:
    """Refuse a model with a weight that is not finite in one of these components.

    Raises:
        ModelError: names the tensor.
    """
    names = {name for c in components for name in c.parameters}
    for name, parameter in anatomy.model.named_parameters():
        if name in names:
            require_finite(name, parameter)


@torch.no_grad()
def certified_bound(form: Form, tokens: TokenSet) -> ComponentBound:
    """Bound a component on the set of tokens that it got."""
    try:
        if isinstance(form, NormForm):
            value = form.bound(tokens.s_min or 0.0)
            root = "√(var + eps)" if form.centred else "√(mean square + eps)"
            bound = ComponentBound(value, "certified", "", f"tokens with {root} ≥ s_min", _without_data(form))
        elif isinstance(form, LinearForm):
            value = form.bound()
            holds_on = "all tokens, padded with zeros" if form.padded else "all tokens"
            bound = ComponentBound(value, "certified", "", holds_on, value)
        elif isinstance(form, AttentionForm):
            found = _attention_bound(form, tokens)
            alone = found.form == "linear"  # one token a sequence: no softmax, no set
            holds_on, without_data = ("all tokens", found.value) if alone else ("tokens in the ball", math.nan)
            bound = ComponentBound(found.value, "certified", "", holds_on, without_data, found.heads)
        else:
            return ComponentBound(math.nan, "none", str(form))
    except MeasurementError as error:  # no finite bound exists on this set
        return ComponentBound(math.nan, "none", str(error))
    if not math.isfinite(bound.value):
        return ComponentBound(math.nan, "none", "the bound is too large for a number")
    return bound


@torch.no_grad()
def paper_bound(form: Form, tokens: TokenSet) -> ComponentBound | None:
    """Evaluate the published bound of attention on the same tokens; None for what it does not speak of.

    It is stated for attention without biases and rotation, on a ball about the origin. The reason says what of that is
    not the case.
    """
    if not isinstance(form, AttentionForm) or tokens.ball is None:
        return None
    w = form.weights
    value = attention_bound_paper(
        w.w_q, w.w_k, w.w_v, w.w_o, heads=w.heads, kv_heads=w.kv_heads, scale=w.scale,
        radius=tokens.ball.largest, tokens=form.tokens,
    )  # fmt: skip
    ignored = ", ".join(what for what, given in _leaves_out(form).items() if given)
    reason = f"ignores {ignored}: certifies nothing here" if ignored else "what it ignores is zero here"
    return ComponentBound(value, "paper", reason, "tokens of at most the largest norm")


def exceeds(rate: float, bound: ComponentBound) -> bool:
    """Tell whether a rate of change is above a certified bound."""
    return bound.kind == "certified" and rate > bound.value * (1 + TOLERANCE)


def check_excess(name: str, rate: float, bound: ComponentBound) -> None:
    """Check that a rate that rounding cannot have caused is not above a certified bound.

    Raises:
        MeasurementError: it is; names the component.
    """
    if exceeds(rate, bound):
        raise MeasurementError(
            f"{name}: a measured rate of change of {rate:.9g} exceeds the certified bound {bound.value:.9g} "
            f"({bound.holds_on}). This cannot be: either pliant has an error, or the component's output depends on "
            "more than its input. Please report it with the model's name and versions."
        )


def _attention_bound(form: AttentionForm, tokens: TokenSet) -> AttentionBound:
    w = form.weights
    if tokens.ball is None:
        raise MeasurementError("no tokens were seen, so there is no set to bound attention on")
    return attention_bound(
        w.w_q, w.w_k, w.w_v, w.w_o, heads=w.heads, kv_heads=w.kv_heads, b_q=w.b_q, b_k=w.b_k, scale=w.scale,
        rotary=form.rotary, ball=tokens.ball, tokens=form.tokens,
    )  # fmt: skip


def _without_data(form: NormForm) -> float:
    """A norm divides every token by at least √eps."""
    return form.bound(math.sqrt(form.eps)) if form.eps > 0 else math.nan


def _leaves_out(form: AttentionForm) -> dict[str, bool]:
    w = form.weights
    return {
        "the query bias": w.b_q is not None and bool(w.b_q.any()),
        "the rotation by position": form.rotary,
        "the key bias": form.rotary and w.b_k is not None and bool(w.b_k.any()),
    }
