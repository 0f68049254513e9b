"""The shared convention: every component is applied to the embedded tokens, the input of block 0 (docs/plasticity.md).

`fc2`, whose input is wider, gets them zero-padded; attention gets the masks and rotary tables of the real pass. Models
whose width changes between stages use the input of each stage's first block; attention on windows is called through
its block, with the first norm switched to the identity, so that the block's own code cuts the windows.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn
from transformers.pytorch_utils import Conv1D

from pliant.components import Anatomy, Component
from pliant.errors import MeasurementError
from pliant.measuring.capture import Call, Inputs, StopForward, first_tensor, run

_ELEMENTS = {"cpu": 1 << 20, "cuda": 1 << 26}
"""Elements of inputs that are embedded at a time: patch embedding by convolution takes several times their memory."""


@dataclass
class SharedPass:
    """What a forward pass leaves for the shared convention.

    Attributes:
        stages: per block, the tokens that its components are applied to (one tensor for all blocks of a width).
        blocks: per block, how it was called, without the tokens.
        attention: per block, how its attention was called, without the tokens.
    """

    stages: dict[int, Float[Tensor, "batch *tokens dim"]] = field(default_factory=dict)
    blocks: dict[int, Call] = field(default_factory=dict)
    attention: dict[int, Call] = field(default_factory=dict)


class SharedInput:
    """Runs the model as far as needed to get the embedded tokens, and what attention gets beside them."""

    def __init__(self, anatomy: Anatomy) -> None:
        """Take a model's anatomy; nothing is run yet."""
        self.anatomy = anatomy
        self._one: SharedPass | None = None
        self._stops = False

    def __call__(self, inputs: Inputs) -> SharedPass:
        """Return the embedded tokens of a batch.

        One item is run through all blocks first, to see how they are called. If attention got nothing but tokens, and
        all blocks tokens of one shape, these calls serve any batch, which is then run up to block 0, a few items at a
        time.
        """
        if isinstance(inputs, Mapping):  # a mask may depend on the batch
            return self._recorded(inputs, whole=True)
        if self._one is None:
            with _without_linear_maps(self.anatomy):
                self._one = self._recorded(inputs[:1], whole=True)
            shapes = {tokens.shape for tokens in self._one.stages.values()}
            self._stops = len(shapes) == 1 and not any(call.extra for call in self._one.attention.values())
        if not self._stops:
            return self._recorded(inputs, whole=True)
        step = max(1, _ELEMENTS.get(inputs.device.type, _ELEMENTS["cpu"]) // max(1, inputs[0].numel()))
        parts = [self._recorded(part, whole=False).stages[0] for part in torch.split(inputs, step)]
        tokens = parts[0] if len(parts) == 1 else torch.cat(parts)
        stages = dict.fromkeys(range(len(self.anatomy.blocks)), tokens)
        return SharedPass(stages, self._one.blocks, self._one.attention)

    def _recorded(self, inputs: Inputs, *, whole: bool) -> SharedPass:
        found = SharedPass()
        with _recording(self.anatomy, found, whole=whole):
            run(self.anatomy.model, inputs)
        if 0 not in found.blocks:
            raise MeasurementError(
                f"block 0 ({self.anatomy.blocks[0]}) was not called in the forward pass; expected the model to run its "
                "blocks in order. Pass the part of the model that does."
            )
        return found


@contextmanager
def _without_linear_maps(anatomy: Anatomy) -> Iterator[None]:
    """Let the linear maps of all blocks give zeros at once: how modules are called does not depend on values."""
    blocks = [anatomy.module(name) for name in anatomy.blocks]
    maps = {id(m): m for block in blocks for m in block.modules() if type(m) in (nn.Linear, Conv1D)}
    replaced = [m for m in maps.values() if "forward" not in vars(m)]
    try:
        for module in replaced:
            module.forward = _zeros(module)
        yield
    finally:
        for module in replaced:
            vars(module).pop("forward", None)


def _zeros(module: nn.Module) -> Callable[[Tensor], Tensor]:
    width = _width_out(module)
    return lambda x: x.new_zeros(*x.shape[:-1], width)


def _width_out(linear: nn.Module) -> int:
    weight = torch.as_tensor(linear.weight)
    return weight.shape[1] if type(linear) is Conv1D else weight.shape[0]


@contextmanager
def _recording(anatomy: Anatomy, found: SharedPass, *, whole: bool) -> Iterator[None]:
    handles: list[Any] = []

    def block_hook(i: int) -> Any:
        def hook(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            call = Call.of(args, kwargs, where=anatomy.blocks[i])
            before = found.stages.get(i - 1)
            same = before is not None and before.shape == call.tokens.shape
            found.stages[i] = before if same and before is not None else call.tokens
            found.blocks[i] = call.without_tokens()
            if not whole:
                raise StopForward

        return hook

    def attention_hook(i: int) -> Any:
        def hook(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            found.attention[i] = Call.of(args, kwargs, where=f"attention of {anatomy.blocks[i]}").without_tokens()
            if len(found.attention) == len(anatomy.blocks):  # all that is needed was seen
                raise StopForward

        return hook

    try:
        for i, name in enumerate(anatomy.blocks[: None if whole else 1]):
            handles.append(anatomy.module(name).register_forward_pre_hook(block_hook(i), with_kwargs=True))
        for component in anatomy.of("mha") if whole else ():
            if component.block is not None:
                module = anatomy.module(component.modules[0])
                handles.append(module.register_forward_pre_hook(attention_hook(component.block), with_kwargs=True))
        yield
    finally:
        for handle in handles:
            handle.remove()


def apply_component(
    anatomy: Anatomy, component: Component, shared: SharedPass
) -> tuple[Float[Tensor, "batch *positions width"], Float[Tensor, "batch *positions out"]]:
    """Apply one component to the shared tokens of its block; return what it got and what it gave."""
    if component.block is None:
        raise MeasurementError(f"{component.id} is outside the blocks; the shared convention is defined inside them.")
    tokens = shared.stages[component.block]
    modules = [anatomy.module(name) for name in component.modules]
    if component.role == "mha":
        if anatomy.family.windowed:
            return _through_block(anatomy, component, shared)
        output = shared.attention[component.block].again(modules[0], tokens)
        for module in modules[1:]:
            output = first_tensor(module(output), where=component.id)
        return tokens, output
    if component.role == "fc2":
        tokens = nn.functional.pad(tokens, (0, _width_in(modules[0]) - tokens.shape[-1]))
    outputs = [first_tensor(module(tokens), where=component.id) for module in modules]
    return tokens, outputs[0] if len(outputs) == 1 else torch.cat(outputs, dim=-1)


def _width_in(linear: nn.Module) -> int:
    """Return the number of features that a linear map takes."""
    weight = linear.weight
    if not isinstance(weight, Tensor):
        raise MeasurementError(f"expected a linear map, got {type(linear).__name__}.")
    return weight.shape[0] if type(linear).__name__ == "Conv1D" else weight.shape[1]


def _through_block(anatomy: Anatomy, component: Component, shared: SharedPass) -> tuple[Tensor, Tensor]:
    """Call attention on windows by running its block up to it, with the first norm as the identity."""
    block = component.block or 0
    tokens = shared.stages[block]
    norm = anatomy.module(next(c for c in anatomy.of("ln1") if c.block == block).modules[0])
    attention = anatomy.module(component.modules[0])
    seen: list[Tensor] = []

    def identity(module: nn.Module, args: tuple[Any, ...], output: Tensor) -> Tensor:
        return torch.as_tensor(args[0])

    def catch(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: object) -> None:
        windows = Call.of(args, kwargs, where=component.id).tokens
        seen.extend(
            t.reshape(len(tokens), -1, t.shape[-1]) for t in (windows, first_tensor(output, where=component.id))
        )
        raise StopForward

    handles = [norm.register_forward_hook(identity), attention.register_forward_hook(catch, with_kwargs=True)]
    try:
        shared.blocks[block].again(anatomy.module(anatomy.blocks[block]), tokens)
    except StopForward:
        pass
    finally:
        for handle in handles:
            handle.remove()
    return seen[0], seen[1]
