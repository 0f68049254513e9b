"""The rate of change of one component over a plane of inputs around the one that it really has."""

from collections.abc import Callable

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from pliant.components import Anatomy, Component
from pliant.errors import ConfigError
from pliant.landscapes.directions import most_sensitive, orthogonal
from pliant.measuring.bounds_attention import attention_written_out
from pliant.measuring.capture import Call, StopForward, first_tensor
from pliant.measuring.capture import run as run_model

AT_ONCE = 64
"""Points of the grid in one batched call."""

Function = Callable[[Float[Tensor, "batch tokens width"]], Float[Tensor, "batch tokens out"]]


def component_at(anatomy: Anatomy, component: Component, pixels: Tensor) -> tuple[Function, Tensor]:
    """Return a component as a function of its tokens, and the tokens that it has for one image.

    Args:
        anatomy: of the model, in evaluation mode.
        component: one with modules.
        pixels: one image, (1, 3, height, width).

    Raises:
        ConfigError: attention on windows of tokens, whose input is not one sequence.
    """
    if anatomy.family.windowed:
        raise ConfigError(
            f"{component.id} is part of a model whose attention works on windows; its rate of change over input "
            "directions is not defined for one sequence. Look at the loss only."
        )
    modules = [anatomy.module(name) for name in component.modules]
    calls: list[Call] = []

    def catch(module: object, args: tuple[object, ...], kwargs: dict[str, object]) -> None:
        calls.append(Call.of(args, kwargs, where=component.id))
        raise StopForward

    handle = modules[0].register_forward_pre_hook(catch, with_kwargs=True)
    try:
        with torch.no_grad():
            run_model(anatomy.model, pixels)
    finally:
        handle.remove()
    call = calls[0]
    tokens, rest = call.tokens.detach(), call.without_tokens()

    def f(x: Tensor) -> Tensor:
        if component.role == "mha":  # a sequence of modules
            output = rest.again(modules[0], x)
            for module in modules[1:]:
                output = first_tensor(module(output), where=component.id)
            return output
        return torch.cat([rest.again(module, x) for module in modules], dim=-1)

    return f, tokens


def rates_over_grid(
    f: Function,
    tokens: Float[Tensor, "1 tokens width"],
    plane: Float[Tensor, "2 tokens width"],
    *,
    x: tuple[float, ...],
    y: tuple[float, ...],
    advance: Callable[[int], None] = lambda points: None,
) -> Float[np.ndarray, "rows columns"]:
    """Return ‖f(t + δ) − f(t)‖ / ‖δ‖ at δ = x·plane[0] + y·plane[1] for every point of a grid; nan at δ = 0."""
    points = torch.tensor([[column, row] for row in y for column in x]).to(tokens)
    values = []
    with torch.no_grad():
        here = f(tokens)
        for part in torch.split(points, AT_ONCE):
            delta = torch.einsum("pk,ktw->ptw", part, plane)
            change = torch.linalg.vector_norm((f(tokens + delta) - here).flatten(1).double(), dim=1)
            values.append(change / torch.linalg.vector_norm(delta.flatten(1).double(), dim=1))  # 0/0 is nan
            advance(len(part))
    found = torch.cat(values).cpu().numpy().reshape(len(y), len(x))
    return np.where(np.isfinite(found), found, np.nan)


def sensitive_plane(
    anatomy: Anatomy, f: Function, tokens: Float[Tensor, "1 tokens width"], *, seed: int
) -> tuple[Float[Tensor, "2 tokens width"], float]:
    """Return unit directions: the one that f is most sensitive to at the tokens, and a random one at right angles.

    Also the rate of change along the first, in the limit of a small step: about ‖J‖₂.
    """
    with attention_written_out(anatomy.model), torch.enable_grad():
        first, rate = most_sensitive(f, tokens, seed=seed)
    drawn = torch.randn(tokens.numel(), generator=torch.Generator().manual_seed(seed + 1)).to(tokens)
    second = orthogonal(drawn, first.flatten())
    return torch.stack([first[0], second.reshape(tokens.shape)[0]]), rate
