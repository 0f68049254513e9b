"""How the components of a model are called in a forward pass of one item."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from pliant.components import Anatomy, Component
from pliant.measuring.bounds_attention import SeenCall
from pliant.measuring.capture import Call, Inputs
from pliant.measuring.passing import one_pass
from pliant.measuring.shared import SharedInput
from pliant.terms import Convention


@dataclass(frozen=True)
class OneItem:
    """How components are called in a forward pass of one item.

    Attributes:
        widths: features of each component's input.
        calls: of each attention, what it was given and what it gave.
    """

    widths: dict[str, int]
    calls: dict[str, SeenCall]


def see_one_item(anatomy: Anatomy, components: Sequence[Component], item: Inputs, convention: Convention) -> OneItem:
    """Run one item through the model, which is in the state it is measured in, and note how components are called."""
    entered: dict[str, Call] = {}
    found = OneItem({}, {})

    def listener(component: Component, tokens: Tensor, output: Tensor) -> None:
        found.widths[component.id] = tokens.shape[-1]
        if component.id in entered:
            found.calls[component.id] = SeenCall(entered[component.id], output)

    def hook(name: str) -> Any:
        def enter(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            entered[name] = Call.of(args, kwargs, where=name)

        return enter

    handles = [
        anatomy.module(c.modules[0]).register_forward_pre_hook(hook(c.id), with_kwargs=True)
        for c in components
        if c.role == "mha"
    ]
    try:
        one_pass(anatomy, components, listener, item, shared=SharedInput(anatomy), convention=convention)
    finally:
        for handle in handles:
            handle.remove()
    return found


@contextmanager
def on_device(model: nn.Module, device: str | torch.device) -> Iterator[None]:
    """Let a model be on a device, and back where it was."""
    was = next(model.parameters()).device
    model.to(device)
    try:
        yield
    finally:
        model.to(was)
