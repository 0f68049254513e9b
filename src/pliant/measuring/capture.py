"""Inputs and outputs of components in a forward pass, handed over as the pass goes; nothing is stored.

Hooks sit at module boundaries only: inner parts of an attention never fire under fused kernels.
"""

import inspect
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import torch
from jaxtyping import Float
from torch import Tensor, nn

from pliant.components import Anatomy, Component
from pliant.errors import DataError, MeasurementError, PliantError

Inputs = Tensor | Mapping[str, Tensor]
"""Pixel values (batch, channels, height, width), token ids (batch, tokens), or keyword arguments of the model."""

Listener = Callable[[Component, Float[Tensor, "batch *tokens width"], Float[Tensor, "batch *tokens out"]], None]
"""Called with a component, its input and its output, once per forward pass."""


@runtime_checkable
class Visitor(Protocol):
    """Is shown inputs and outputs of components at the moment they exist, so that it need not keep them."""

    def enter(self, component: Component, tokens: Float[Tensor, "batch *tokens width"]) -> None:
        """See the input of a component."""

    def leave(self, component: Component, output: Float[Tensor, "batch *tokens out"]) -> None:
        """See the output of a component: of a gated `fc1` the two halves, one after the other."""


_POSITIONS = ("position_ids", "cache_position")


class StopForward(Exception):
    """Ends a forward pass early, when all that is wanted has been seen."""


@dataclass(frozen=True)
class Call:
    """The arguments of one call of a module, to call it again with other tokens.

    Attributes:
        args, kwargs: as the module got them.
        at: index of the tokens in `args`, or their name in `kwargs`; several places if they were given repeatedly
            (query, key and value of `nn.MultiheadAttention`).
    """

    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    at: tuple[int | str, ...]

    @classmethod
    def of(cls, args: tuple[Any, ...], kwargs: dict[str, Any], *, where: str) -> "Call":
        """Find the tokens among a module's arguments: the first tensor, and wherever it is given again."""
        places: list[tuple[int | str, Any]] = [*enumerate(args), *kwargs.items()]
        first = next((value for _, value in places if isinstance(value, Tensor)), None)
        if first is None:
            raise MeasurementError(f"{where} was called without any tensor; its input cannot be told.")
        return cls(args, kwargs, tuple(place for place, value in places if value is first))

    @property
    def tokens(self) -> Tensor:
        """The tokens of this call."""
        place = self.at[0]
        found = self.args[place] if isinstance(place, int) else self.kwargs[place]
        return torch.as_tensor(found)

    @property
    def extra(self) -> bool:
        """Whether anything but the tokens is a tensor or holds one (a mask, rotary tables).

        Positions alone do not count: without rotary tables there is nothing in a block to use them for.
        """
        others = [v for i, v in enumerate(self.args) if i not in self.at]
        others += [v for name, v in self.kwargs.items() if name not in self.at and name not in _POSITIONS]
        return any(isinstance(v, Tensor) or (isinstance(v, tuple | list) and v) for v in others)

    def without_tokens(self) -> "Call":
        """Return the same call without its tokens, so that keeping it keeps no activations."""
        args = tuple(None if i in self.at else v for i, v in enumerate(self.args))
        kwargs = {name: None if name in self.at else v for name, v in self.kwargs.items()}
        return Call(args, kwargs, self.at)

    def again(self, module: nn.Module, tokens: Tensor) -> Tensor:
        """Call the module with other tokens and everything else as it was."""
        args = tuple(tokens if i in self.at else v for i, v in enumerate(self.args))
        kwargs = {name: tokens if name in self.at else v for name, v in self.kwargs.items()}
        return first_tensor(module(*args, **kwargs), where=type(module).__name__)


def first_tensor(output: object, *, where: str) -> Tensor:
    """Return a module's main output: the tensor itself, or the first of a tuple (attention gives weights beside)."""
    if isinstance(output, Tensor):
        return output
    if isinstance(output, tuple | list) and output and isinstance(output[0], Tensor):
        return output[0]
    raise MeasurementError(
        f"{where} returned {type(output).__name__}; expected a tensor or a tuple that starts with one."
    )


def run(model: nn.Module, inputs: Inputs) -> None:
    """Run one forward pass for its hooks' sake."""
    more = {**_unmasked(model, inputs), **_positions(model, inputs)}
    try:
        if isinstance(inputs, Mapping):
            model(**{**more, **inputs})
        else:
            model(inputs, **more)
    except StopForward:
        pass
    except PliantError:
        raise
    except (RuntimeError, AssertionError, ValueError, IndexError) as error:
        if isinstance(error, torch.OutOfMemoryError):
            raise
        shapes = {k: tuple(v.shape) for k, v in inputs.items()} if isinstance(inputs, Mapping) else tuple(inputs.shape)
        raise DataError(
            f"{type(model).__name__} could not take a batch of shape {shapes}: {str(error).splitlines()[0]}. Give "
            "images of the size and channels, or tokens of the length, that the model expects."
        ) from error


def _unmasked(model: nn.Module, inputs: Inputs) -> dict[str, Tensor]:
    """Arguments that keep a masked autoencoder (MAE) from shuffling: it orders patches by noise even if it masks none.

    Equal positions would then hold different places of two images, and a rate would compare those.
    """
    config: Any = getattr(model, "config", None)
    if not hasattr(config, "mask_ratio") or "noise" not in inspect.signature(model.forward).parameters:
        return {}
    pixels = inputs["pixel_values"] if isinstance(inputs, Mapping) else inputs
    side = config.patch_size
    patches = (pixels.shape[-2] // side) * (pixels.shape[-1] // side)
    return {"noise": torch.arange(patches, dtype=torch.float32, device=pixels.device).expand(len(pixels), -1)}


def _positions(model: nn.Module, inputs: Inputs) -> dict[str, Tensor]:
    """Arguments that count positions from a text's first token where it is filled up on the left."""
    mask = inputs.get("attention_mask") if isinstance(inputs, Mapping) else None
    if mask is None or mask.ndim != 2 or bool(mask[:, 0].all()) or "position_ids" in inputs:
        return {}
    counts_itself = any(hasattr(m, "create_position_ids_from_input_ids") for m in model.modules())  # RoBERTa
    if counts_itself or "position_ids" not in inspect.signature(model.forward).parameters:
        return {}
    return {"position_ids": (mask.long().cumsum(1) - 1).clamp(min=0)}


def batch_size(inputs: Inputs) -> int:
    """Return the number of items in a batch."""
    return len(next(iter(inputs.values())) if isinstance(inputs, Mapping) else inputs)


@contextmanager
def observing(model: nn.Module) -> Iterator[None]:
    """Put a model into the state it is measured in, and back, whatever happens.

    Evaluation mode, no gradients, no key-value cache, no masking of patches (MAE), global random state kept; matrix
    products on a GPU in full float32.
    """
    training = [m for m in model.modules() if m.training]
    config = getattr(model, "config", None)
    changed = {n: getattr(config, n) for n in ("use_cache", "mask_ratio") if getattr(config, n, None)}
    model.eval()
    for name in changed:
        setattr(config, name, False if name == "use_cache" else 0.0)
    try:
        with torch.no_grad(), torch.random.fork_rng(devices=_cuda_devices(model)), _full_precision():
            yield
    finally:
        for name, value in changed.items():
            setattr(config, name, value)
        for module in training:
            module.training = True


@contextmanager
def _full_precision() -> Iterator[None]:
    """Keep TF32 out: its ten bits are too few for a difference of two activations."""
    backends: list[Any] = [torch.backends.cuda.matmul, getattr(torch.backends.cudnn, "conv", None)]
    settings = [b for b in backends if hasattr(b, "fp32_precision")] if torch.cuda.is_available() else []
    was = [s.fp32_precision for s in settings]
    try:
        for setting in settings:
            setting.fp32_precision = "ieee"
        yield
    finally:
        for setting, value in zip(settings, was, strict=True):
            setting.fp32_precision = value


def _cuda_devices(model: nn.Module) -> list[torch.device]:
    return sorted({p.device for p in model.parameters() if p.device.type == "cuda"}, key=lambda d: d.index or 0)


class Watch:
    """Counts how often each component was seen, so that a hook that never fires is not taken for silence.

    Once a whole pass has been checked, later ones may end as soon as every component was seen: what comes after them
    (a decoder, the logits of a language model) is not computed.
    """

    def __init__(self, components: Iterable[Component]) -> None:
        """Expect each of these components once per pass."""
        self._components = tuple(components)
        self._checked = False
        self.seen: Counter[str] = Counter()

    def see(self, component: Component) -> None:
        """Note that a component was left.

        Raises:
            StopForward: the pass has shown all that it is run for.
        """
        self.seen[component.id] += 1
        if self._checked and len(self.seen) == len(self._components):
            raise StopForward

    def check(self) -> None:
        """Check that every component was seen exactly once since the last check.

        Raises:
            MeasurementError: some were not, or more than once.
        """
        wrong = [f"{c.id} ({self.seen[c.id]} times)" for c in self._components if self.seen[c.id] != 1]
        self.seen.clear()
        self._checked = True
        if wrong:
            raise MeasurementError(
                f"in one forward pass these components were not seen exactly once: {', '.join(wrong)}. Shared, skipped "
                "or fused blocks cannot be measured; turn off layer dropping, or pass a family row that fits the model."
            )


@contextmanager
def visiting(anatomy: Anatomy, components: Iterable[Component], visitor: Visitor) -> Iterator["Hooks"]:
    """Show `visitor` each component's input and output while the model runs forward passes.

    Windows of tokens are joined again, so all tensors have one row per item.
    """
    hooks = Hooks(anatomy, tuple(components), visitor)
    try:
        hooks.attach()
        yield hooks
    finally:
        hooks.remove()


@contextmanager
def listening(anatomy: Anatomy, components: Iterable[Component], listener: Listener, *, batch: int) -> Iterator[Watch]:
    """Call `listener` with each component's input and output while the model runs forward passes of `batch` items.

    Windows of tokens are joined again, so both tensors have one row per item: (batch, tokens, dim). The two halves of
    a gated `fc1` are joined along the last axis.
    """
    with visiting(anatomy, components, _Keeper(listener)) as hooks:
        hooks.batch = batch
        yield hooks.watch


class _Keeper:
    """Keeps a component's input until its output is there, for a listener that needs both."""

    def __init__(self, listener: Listener) -> None:
        self._listener = listener
        self._inputs: dict[str, Tensor] = {}
        self._parts: list[Tensor] = []

    def enter(self, component: Component, tokens: Tensor) -> None:
        self._inputs[component.id] = tokens

    def leave(self, component: Component, output: Tensor) -> None:
        self._parts.append(output)
        if len(self._parts) == outputs_of(component):
            joined = self._parts[0] if len(self._parts) == 1 else torch.cat(self._parts, dim=-1)
            self._parts = []
            self._listener(component, self._inputs.pop(component.id), joined)


def outputs_of(component: Component) -> int:
    """Return the number of tensors that a component gives: two for a gated `fc1`, else one."""
    return 1 if component.role == "mha" else len(component.modules)


class Hooks:
    """The hooks of some components: where each is entered and left."""

    def __init__(self, anatomy: Anatomy, components: tuple[Component, ...], visitor: Visitor) -> None:
        """Attach nothing yet; `batch` is the number of items of the passes to come."""
        self.anatomy = anatomy
        self.watch = Watch(components)
        self.batch = 0
        self._components = components
        self._visitor = visitor
        self._left: Counter[str] = Counter()
        self._handles: list[Any] = []

    def attach(self) -> None:
        """Attach all hooks."""
        for component in self._components:
            modules = [self.anatomy.module(name) for name in component.modules]
            left = modules[-1:] if component.role == "mha" else modules  # a sequence: in at the first, out at the last
            enter, leave = self._hooks(component)
            self._handles.append(modules[0].register_forward_pre_hook(enter, with_kwargs=True))
            self._handles += [m.register_forward_hook(leave) for m in left]

    def remove(self) -> None:
        """Remove all hooks."""
        for handle in self._handles:
            handle.remove()

    def run(self, inputs: Inputs) -> None:
        """Run one forward pass.

        Raises:
            MeasurementError: some component was not seen exactly once.
        """
        self.batch = batch_size(inputs)
        run(self.anatomy.model, inputs)
        self.watch.check()

    def _hooks(self, component: Component) -> tuple[Callable[..., None], Callable[..., None]]:
        def enter(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            tokens = Call.of(args, kwargs, where=component.id).tokens
            self._visitor.enter(component, rows(self.anatomy, component.id, tokens, self.batch))

        def leave(module: nn.Module, args: tuple[Any, ...], output: object) -> None:
            tokens = first_tensor(output, where=component.id)
            self._visitor.leave(component, rows(self.anatomy, component.id, tokens, self.batch))
            self._left[component.id] += 1
            if self._left[component.id] == outputs_of(component):
                del self._left[component.id]
                self.watch.see(component)

        return enter, leave


def rows(anatomy: Anatomy, where: str, tokens: Tensor, batch: int) -> Tensor:
    """Return tokens with one row per item, windows of an item joined.

    Raises:
        MeasurementError: the first axis is not the batch.
    """
    if len(tokens) == batch:
        return tokens
    if anatomy.family.windowed and len(tokens) % batch == 0:
        return tokens.reshape(batch, -1, tokens.shape[-1])
    raise MeasurementError(
        f"{where} got a tensor of shape {tuple(tokens.shape)} in a pass of {batch} items: its "
        "first axis is not the batch, so its input cannot be told apart by item."
    )
