"""From a cell's recipe to an optimizer: which tensors, with which decay, at which rate."""

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import nn
from torch.optim import SGD, AdamW, Optimizer

from pliant.errors import ConfigError
from pliant.runs import CellConfig
from pliant.terms import Role
from pliant.tuning.select import Selection

DECAYED: tuple[Role, ...] = ("mha", "fc1", "fc2", "head")
"""Weight decay acts on the weight matrices of these; never on norms, biases, LayerScale or embeddings."""

OPTIMIZERS: dict[str, Callable[[Iterable[dict[str, Any]], CellConfig, bool], Optimizer]] = {
    "sgd": lambda groups, cell, fused: SGD(groups, lr=cell.learning_rate, momentum=cell.momentum, fused=fused),
    "adamw": lambda groups, cell, fused: AdamW(groups, lr=cell.learning_rate, fused=fused),
}
"""How each optimizer is made. What it was given in the end is read back from it by `describe`."""


def make_optimizer(cell: CellConfig, selection: Selection) -> Optimizer:
    """Make the cell's optimizer over the trained tensors, and none of the frozen ones."""
    decayed: list[nn.Parameter] = []
    plain: list[nn.Parameter] = []
    for name, parameter in selection.parameters.items():
        role = selection.owner(name).rpartition(".")[2]
        acts = cell.weight_decay > 0 and role in DECAYED and parameter.ndim > 1
        (decayed if acts else plain).append(parameter)
    groups = [
        {"params": parameters, "weight_decay": decay}
        for parameters, decay in ((decayed, cell.weight_decay), (plain, 0.0))
        if parameters
    ]
    # One kernel for all tensors; on a CPU it takes a quarter to two thirds of the time.
    fused = all(p.device.type in ("cpu", "cuda") for p in selection.parameters.values())
    return OPTIMIZERS[cell.optimizer](groups, cell, fused)


def describe(optimizer: Optimizer, selection: Selection) -> list[dict[str, Any]]:
    """Read back what an optimizer really holds: per group its settings, tensors, weights, and the roles they are of."""
    names = {id(p): name for name, p in selection.parameters.items()}
    groups = []
    for group in optimizer.param_groups:
        held = [names.get(id(p), "a tensor that was not chosen") for p in group["params"]]
        settings = {
            key: value for key, value in group.items() if isinstance(value, bool | int | float | list | tuple | None)
        }
        settings.pop("params", None)
        roles = dict.fromkeys(selection.owner(n).rpartition(".")[2] if n in selection.parameters else n for n in held)
        groups.append(
            {
                "optimizer": type(optimizer).__name__,
                "tensors": len(held),
                "parameters": sum(p.numel() for p in group["params"]),
                "roles": list(roles),
                **{k: list(v) if isinstance(v, tuple) else v for k, v in settings.items() if v not in (None, False)},
            }
        )
    return groups


def check_precision(cell: CellConfig, device: torch.device) -> torch.dtype | None:
    """Return what autocast computes in, None for float32.

    Raises:
        ConfigError: the device cannot do it.
    """
    if cell.precision == "float32":
        return None
    if cell.precision == "bfloat16":
        if device.type == "cuda" and not torch.cuda.is_bf16_supported():
            raise ConfigError(f"precision bfloat16 is not supported by {torch.cuda.get_device_name()}; use float32")
        return torch.bfloat16
    if device.type != "cuda":
        raise ConfigError(f"precision float16 needs a CUDA device, got {device.type}; use bfloat16 or float32")
    return torch.float16
