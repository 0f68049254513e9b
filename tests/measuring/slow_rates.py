"""Rates of change computed another way than pliant does: one item at a time, in float64, every pair subtracted.

Inputs and outputs come from replaced `forward` methods (no hooks), parts from the paths written in `families.py`;
norms and linear maps of the shared convention are written out, attention is called again as it was called.
"""

import copy
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from families import Sample

Rates = dict[tuple[str, int], Tensor]
"""Role and depth → rates of every pair of items, (items, items)."""


@dataclass
class Seen:
    """One call of a module."""

    args: tuple[Any, ...] = ()
    kwargs: dict[str, Any] = field(default_factory=dict)
    output: Tensor = field(default_factory=lambda: torch.empty(0))

    @property
    def input(self) -> Tensor:
        """The first tensor that the module was given."""
        return next(v for v in (*self.args, *self.kwargs.values()) if isinstance(v, Tensor))


def slow_rates(sample: Sample, model: nn.Module, items: Tensor, *, convention: str) -> Rates:
    """Return the rates of every two items for every part of every block."""
    model = copy.deepcopy(model).double()
    of_items = [_values(sample, model, item[None], convention) for item in items]
    return {
        key: torch.stack([torch.stack([_rate(x[key], y[key]) for y in of_items]) for x in of_items])
        for key in of_items[0]
    }


def _rate(x: tuple[Tensor, Tensor], y: tuple[Tensor, Tensor]) -> Tensor:
    distances = [(a - b).square().sum().sqrt() for a, b in zip(x, y, strict=True)]
    return distances[1] / distances[0]


def _values(sample: Sample, model: nn.Module, item: Tensor, convention: str) -> dict[tuple[str, int], tuple]:
    names = {n for role in sample.paths for d in range(len(sample.blocks)) for n in sample.modules(role, d)}
    names |= {_block(sample, d) for d in range(len(sample.blocks))}
    arguments: dict[str, Any] = {}
    if "MAE" in sample.variant:
        model.config.mask_ratio = 0.0
        patches = (sample.size // model.config.patch_size) ** 2
        arguments["noise"] = torch.arange(patches, dtype=torch.float64)[None] / patches
    if hasattr(getattr(model, "config", None), "use_cache"):
        arguments["use_cache"] = False
    with torch.no_grad(), _recorded(model, names) as seen:
        model(item.double() if item.is_floating_point() else item, **arguments)
        calls = dict(seen)
        value = _shared_value if convention == "shared" else _insitu_value
        return {
            (role, depth): value(sample, model, calls, role, depth)
            for role in sample.paths
            for depth in range(len(sample.blocks))
        }


@contextmanager
def _recorded(model: nn.Module, names: set[str]) -> Iterator[dict[str, Seen]]:
    seen: dict[str, Seen] = {}

    def replaced(name: str, module: nn.Module) -> Any:
        original = module.forward

        def forward(*args: Any, **kwargs: Any) -> Any:
            output = original(*args, **kwargs)
            if name not in seen:
                seen[name] = Seen(args, kwargs, output if isinstance(output, Tensor) else output[0])
            return output

        return forward

    for name in names:
        model.get_submodule(name).forward = replaced(name, model.get_submodule(name))
    try:
        yield seen
    finally:
        for name in names:
            del model.get_submodule(name).forward


def _block(sample: Sample, depth: int) -> str:
    """The longest path that all parts of a block share."""
    split = [name.split(".") for role in sample.paths for name in sample.modules(role, depth)]
    shared = []
    for names in zip(*split, strict=False):
        if len(set(names)) > 1:
            break
        shared.append(names[0])
    return ".".join(shared)


def _insitu_value(
    sample: Sample, model: nn.Module, calls: dict[str, Seen], role: str, depth: int
) -> tuple[Tensor, Tensor]:
    modules = sample.modules(role, depth)
    outputs = [calls[name].output for name in modules]
    return calls[modules[0]].input, outputs[-1] if role == "mha" else torch.cat(outputs, dim=-1)


def _shared_value(
    sample: Sample, model: nn.Module, calls: dict[str, Seen], role: str, depth: int
) -> tuple[Tensor, Tensor]:
    inputs = [calls[_block(sample, d)].input for d in range(depth + 1)]
    tokens = next(x for x in inputs if x.shape == inputs[-1].shape)
    names = sample.modules(role, depth)
    modules = [model.get_submodule(name) for name in names]
    if role == "mha":
        if "Swin" in sample.family:
            tokens = _windows(tokens, shift=2 if depth % 2 and tokens.numel() // tokens.shape[-1] > 16 else 0)
        output = _again(calls[names[0]], modules[0], tokens)
        return tokens, modules[1](output) if len(modules) > 1 else output
    if role == "fc2":
        wide = nn.functional.pad(tokens, (0, _matrix(modules[0]).shape[1] - tokens.shape[-1]))
        return wide, _linear(modules[0], wide)
    if role == "fc1":
        return tokens, torch.cat([_linear(m, tokens) for m in modules], dim=-1)
    return tokens, _norm(modules[0], tokens)


def _matrix(module: nn.Module) -> Tensor:
    return module.weight.T if type(module).__name__ == "Conv1D" else module.weight


def _linear(module: nn.Module, x: Tensor) -> Tensor:
    y = torch.einsum("...d,od->...o", x, _matrix(module))
    return y if module.bias is None else y + module.bias


def _norm(module: nn.Module, x: Tensor) -> Tensor:
    eps = next(e for e in (getattr(module, n, None) for n in ("eps", "variance_epsilon")) if e is not None)
    if "RMS" not in type(module).__name__:
        x = x - x.sum(-1, keepdim=True) / x.shape[-1]
    scaled = x / (x.square().sum(-1, keepdim=True) / x.shape[-1] + eps).sqrt() * module.weight
    return scaled if getattr(module, "bias", None) is None else scaled + module.bias


def _again(call: Seen, module: nn.Module, tokens: Tensor) -> Tensor:
    """Call attention as it was called, with other tokens wherever its own stood."""
    was = call.input
    args = [tokens if v is was else v for v in call.args]
    kwargs = {k: tokens if v is was else v for k, v in call.kwargs.items()}
    output = module(*args, **kwargs)
    return output if isinstance(output, Tensor) else output[0]


def _windows(tokens: Tensor, *, shift: int, side: int = 4) -> Tensor:
    """Cut one image's tokens into windows of 4 x 4, after a cyclic shift: (windows, 16, dim)."""
    dim = tokens.shape[-1]
    length = round((tokens.numel() // dim) ** 0.5)
    grid = tokens.reshape(length, length, dim)
    grid = torch.cat([grid[shift:], grid[:shift]], dim=0)
    grid = torch.cat([grid[:, shift:], grid[:, :shift]], dim=1)
    rows = [grid[i : i + side, j : j + side] for i in range(0, length, side) for j in range(0, length, side)]
    return torch.stack([w.reshape(side * side, dim) for w in rows])
