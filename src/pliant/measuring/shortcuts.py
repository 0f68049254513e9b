"""The shared convention with as few operations as a component's structure allows; the numbers stay the same.

A linear map, a norm and a plain softmax attention have shortcuts (`numerics.kernels`), if `structure` recognises them.
The rest (windows, rotary tables, masks, wrapped or hooked modules) is called as it is.
"""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from pliant.components import Anatomy, Component
from pliant.measuring.heads import heads_shown
from pliant.measuring.meter import Meter
from pliant.measuring.shared import SharedPass, apply_component
from pliant.measuring.structure import attention_of, linear_map_of, norm_of
from pliant.numerics.geometry import Geometry, combined, token_scale
from pliant.numerics.kernels import (
    LinearMap,
    SelfAttention,
    attention_geometry,
    linear_geometries,
    linear_is_shorter,
    norm_geometries,
)

_SAFE_NORMS = (1e-8, 1e15)
"""Norms between these leave room for squares of differences and of their products in float32."""


@dataclass(frozen=True)
class _Stage:
    """Components of some blocks that get the same tokens."""

    tokens: Tensor
    entered: Geometry
    components: tuple[Component, ...]


class Shortcuts:
    """Measures the components of a model in the shared convention, pass by pass."""

    def __init__(self, anatomy: Anatomy, components: Iterable[Component]) -> None:
        """Look at every component's structure once."""
        self.anatomy = anatomy
        self.components = tuple(components)
        self._maps = {c.id: self._linear_maps(c) for c in self.components if c.role in ("fc1", "fc2")}
        self._norms = {c.id: norm_of(anatomy.module(c.modules[0])) for c in self.components if c.role in ("ln1", "ln2")}
        self._attention: dict[str, SelfAttention | None] = {}

    def show(self, meter: Meter, shared: SharedPass, *, padded: bool = False, per_head: bool = False) -> None:
        """Let a meter count every component in one pass."""
        for stage in self._stages(meter, shared):
            rest = list(stage.components)
            if not padded and stage.tokens.dtype == torch.float32 and _safe(stage.entered):
                with torch.autocast(stage.tokens.device.type, enabled=False):
                    rest = self._norms_shown(meter, stage, rest)
                    rest = self._maps_shown(meter, stage, rest)
                rest = self._attention_shown(meter, stage, shared, rest, per_head=per_head)
            for component in rest:
                shown = per_head and component.role == "mha"
                with heads_shown(self.anatomy, [component], meter) if shown else nullcontext():
                    meter.listen(component, *apply_component(self.anatomy, component, shared))

    def _stages(self, meter: Meter, shared: SharedPass) -> Iterator[_Stage]:
        groups: dict[int, list[Component]] = {}
        for component in self.components:
            groups.setdefault(id(shared.stages[component.block or 0]), []).append(component)
        for group in groups.values():
            tokens = shared.stages[group[0].block or 0]
            yield _Stage(tokens, meter.measured(tokens, scale=True), tuple(group))

    def _norms_shown(self, meter: Meter, stage: _Stage, components: Sequence[Component]) -> list[Component]:
        """Count the norms among the components; return the others."""
        known = [(c, n) for c in components if (n := self._norms.get(c.id)) is not None]
        outputs = norm_geometries([n for _, n in known], stage.tokens, meter.pairing)
        for (component, _), left in zip(known, outputs, strict=True):
            meter.count(component, stage.entered, left)
        done = {c.id for c, _ in known}
        return [c for c in components if c.id not in done]

    def _maps_shown(self, meter: Meter, stage: _Stage, components: Sequence[Component]) -> list[Component]:
        """Count the linear maps among the components; return the others."""
        known = [(c, maps) for c in components if (maps := self._maps.get(c.id)) is not None]
        every = [m for _, maps in known for m in maps]
        if not every or not linear_is_shorter(every, stage.tokens, meter.pairing):
            return list(components)
        outputs = linear_geometries(every, stage.tokens, meter.pairing)
        for component, maps in known:
            left = combined([next(outputs) for _ in maps])
            width = maps[0].weight.shape[1]
            entered = stage.entered
            if width > stage.tokens.shape[-1]:
                entered = replace(entered, scale=token_scale(stage.tokens, width=width))
            meter.count(component, entered, left)
        done = {c.id for c, _ in known}
        return [c for c in components if c.id not in done]

    def _attention_shown(
        self, meter: Meter, stage: _Stage, shared: SharedPass, components: Sequence[Component], *, per_head: bool
    ) -> list[Component]:
        """Count the plain attentions among the components; return the others."""
        rest = []
        for component in components:
            attention = self._attention_of(component, stage.tokens, shared) if component.role == "mha" else None
            if attention is None:
                rest.append(component)
                continue
            left, heads = attention_geometry(attention, stage.tokens, meter.pairing, per_head=per_head)
            meter.count(component, stage.entered, left, heads)
        return rest

    def _linear_maps(self, component: Component) -> tuple[LinearMap, ...] | None:
        maps = [linear_map_of(self.anatomy.module(name)) for name in component.modules]
        return None if None in maps else tuple(m for m in maps if m is not None)

    def _attention_of(self, component: Component, tokens: Tensor, shared: SharedPass) -> SelfAttention | None:
        if component.id not in self._attention:
            call = shared.attention[component.block or 0]
            self._attention[component.id] = attention_of(self.anatomy, component, call, tokens)
        return self._attention[component.id]


def _safe(entered: Geometry) -> bool:
    sizes = entered.norms
    return bool(((sizes == 0) | ((sizes >= _SAFE_NORMS[0]) & (sizes <= _SAFE_NORMS[1]))).all())
