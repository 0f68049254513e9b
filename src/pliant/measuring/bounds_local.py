"""A diagnostic beside the bounds: how much attention amplifies small changes at the tokens of single items.

‖J(X)‖₂ at one X is the local Lipschitz constant there. It is found iteratively, from below, and says nothing about
pairs: it is no bound. Beside a bound it shows how much of the slack is due to the bound (which holds on a whole set)
and how much to the pairs (whose differences point in harmless directions).
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import pandas as pd
import torch
from torch import Tensor, nn

from pliant.components import Anatomy, Component
from pliant.components.attention import AttentionWeights, attention_weights
from pliant.errors import AnatomyError
from pliant.measuring.bounds_attention import SeenCall, attention_written_out, called
from pliant.measuring.bounds_certified import ComponentBound
from pliant.measuring.capture import Call
from pliant.numerics.spectral import LocalNorm, jacobian_norm

LOCAL_COLUMNS = ("component", "role", "block", "head", "item", "local", "converged", "iterations", "bound")
"""Columns of the diagnostic. `head` is missing for the whole component; a head's value is of its output before the
output projection, and so is the bound beside it. `bound` is missing where there is none."""

_ITERATIONS, _CHANGE = 60, 1e-4


def local_norms(
    anatomy: Anatomy,
    component: Component,
    seen: SeenCall,
    *,
    item: int,
    bound: ComponentBound,
    seed: int = 0,
) -> list[dict[str, Any]]:
    """Find ‖J(X)‖₂ of one attention at the tokens of one item, and of each of its heads.

    Args:
        anatomy: of the model, which is in the state it is measured in.
        component: of role `mha`.
        seen: its call in the forward pass of the item.
        item: for the table.
        bound: of the component.
        seed: of the iteration's first direction.

    Returns:
        Rows with columns as in `LOCAL_COLUMNS`.

    Raises:
        MeasurementError: a derivative is not finite.
    """
    modules = [anatomy.module(name) for name in component.modules]
    place = {"component": component.id, "role": component.role, "block": component.block, "item": item}
    rows = []
    with attention_written_out(anatomy.model):
        for head, parts in [(None, modules), *_heads(anatomy, component, modules)]:
            found = _local_norm(parts, seen.call, seed=seed)
            limit = bound.value if head is None else bound.heads[head] if bound.heads else math.nan
            rows.append(
                {**place, "head": head, "local": found.value, "converged": found.converged}
                | {"iterations": found.iterations, "bound": limit}
            )
    return rows


def local_frame(rows: Sequence[Mapping[str, Any]]) -> pd.DataFrame:
    """Put the rows of several components and items into one table."""
    return pd.DataFrame(list(rows), columns=list(LOCAL_COLUMNS)).astype({"head": "Int64", "block": "Int64"})


def _local_norm(modules: Sequence[nn.Module], call: Call, *, seed: int) -> LocalNorm:
    return jacobian_norm(
        lambda x: called(modules, call, x), call.tokens.detach(), iterations=_ITERATIONS, tolerance=_CHANGE, seed=seed
    )


def _heads(
    anatomy: Anatomy, component: Component, modules: Sequence[nn.Module]
) -> Iterator[tuple[int, list[nn.Module]]]:
    """Yield, for each head, the component with its output projection replaced by the choice of that head's output."""
    try:
        w = attention_weights(anatomy, component)
    except AnatomyError:
        return
    if w.head_dim > len(w.w_o):  # the choice would not fit in the projection's place
        return
    place, name = _projection(modules, w)
    stored = modules[place].get_parameter(name)
    for head in range(w.heads):
        chosen = torch.zeros_like(w.w_o)
        rows = torch.arange(w.head_dim, device=chosen.device)
        chosen[rows, head * w.head_dim + rows] = 1.0
        chosen = chosen if stored.shape == w.w_o.shape and stored.stride() == w.w_o.stride() else chosen.T
        yield head, [_Replaced(m, {name: chosen}) if i == place else m for i, m in enumerate(modules)]


def _projection(modules: Sequence[nn.Module], w: AttentionWeights) -> tuple[int, str]:
    """Return which module holds the weight of the output projection, and under what name."""
    return next(
        (place, name)
        for place, module in enumerate(modules)
        for name, parameter in module.named_parameters()
        if parameter.data_ptr() == w.w_o.data_ptr()
    )


class _Replaced(nn.Module):
    """A module that is called with some of its parameters replaced."""

    def __init__(self, module: nn.Module, parameters: dict[str, Tensor]) -> None:
        super().__init__()
        self.module, self.replaced = module, parameters

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return torch.func.functional_call(self.module, self.replaced, args, kwargs)
