"""The output of each attention head, before the output projection joins them.

Seen at the input of the projection's module where there is one that is called; `nn.MultiheadAttention` calls none (its
kernel takes the weights), so there the heads are computed again from the weights.
"""

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

from torch import Tensor, nn

from pliant.components import Anatomy, Component
from pliant.components.attention import attention_weights, output_projection
from pliant.errors import AnatomyError
from pliant.measuring.capture import Call, rows
from pliant.measuring.meter import Meter
from pliant.measuring.structure import weights_of
from pliant.numerics.kernels import attention_heads


class HeadHooks:
    """Hooks that show a meter the heads of attention."""

    def __init__(self, anatomy: Anatomy, components: Iterable[Component], meter: Meter) -> None:
        """Find where heads can be seen; nothing is attached yet."""
        self.anatomy, self.meter = anatomy, meter
        self._components = [c for c in components if c.role == "mha"]
        self._handles: list[Any] = []

    def attach(self) -> None:
        """Attach all hooks.

        Raises:
            AnatomyError: an attention whose heads cannot be seen.
        """
        for component in self._components:
            module = self.anatomy.module(component.modules[0])
            if isinstance(module, nn.MultiheadAttention):
                handle = module.register_forward_pre_hook(self._recomputed(component), with_kwargs=True)
            else:
                name = output_projection(self.anatomy, component)
                if name is None:
                    raise AnatomyError(
                        f"{component.id}: {type(module).__name__} has no output projection, so its heads cannot be "
                        "told apart; measure without per_head."
                    )
                heads = attention_weights(self.anatomy, component).heads
                handle = self.anatomy.module(name).register_forward_pre_hook(self._projected(component, heads))
            self._handles.append(handle)

    def remove(self) -> None:
        """Remove all hooks."""
        for handle in self._handles:
            handle.remove()

    def _show(self, component: Component, joined: Tensor, heads: int) -> None:
        by_item = rows(self.anatomy, component.id, joined, self.meter.items)
        self.meter.see_heads(component, by_item.reshape(*by_item.shape[:-1], heads, -1).unbind(-2))

    def _projected(self, component: Component, heads: int) -> Callable[..., None]:
        def hook(module: nn.Module, args: tuple[Any, ...]) -> None:
            self._show(component, args[0], heads)

        return hook

    def _recomputed(self, component: Component) -> Callable[..., None]:
        def hook(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            call = Call.of(args, kwargs, where=component.id)
            attention = weights_of(self.anatomy, component)
            if attention is None or call.extra:
                raise AnatomyError(
                    f"{component.id}: the heads of this {type(module).__name__} cannot be computed from its weights "
                    "alone (a mask, or another layout); measure without per_head."
                )
            self._show(component, attention_heads(attention, call.tokens), attention.heads)

        return hook


@contextmanager
def heads_shown(anatomy: Anatomy, components: Iterable[Component], meter: Meter) -> Iterator[None]:
    """Show a meter the output of every head while forward passes run."""
    hooks = HeadHooks(anatomy, components, meter)
    try:
        hooks.attach()
        yield
    finally:
        hooks.remove()
