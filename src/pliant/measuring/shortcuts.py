"""The shared convention with as few operations as a component's structure allows; the numbers stay the same.

A linear map, a norm and a plain softmax attention have shortcuts (`numerics.kernels`); each is recognised by its exact
type, and attention is also tried on a few tokens against the module itself. Whatever is not recognised (windows, rotary
tables, masks, wrapped or hooked modules) is called as it is.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn
from transformers.pytorch_utils import Conv1D

from pliant.components import Anatomy, Component
from pliant.components.attention import attention_weights
from pliant.errors import AnatomyError
from pliant.measuring.capture import Call
from pliant.measuring.meter import Meter
from pliant.measuring.shared import SharedPass, apply_component
from pliant.numerics.geometry import Geometry, combined, token_scale
from pliant.numerics.kernels import (
    LinearMap,
    Norm,
    SelfAttention,
    attention_geometry,
    attention_heads,
    linear_geometries,
    linear_is_shorter,
    norm_geometries,
)

_SAFE_NORMS = (1e-8, 1e15)
"""Norms between these leave room for squares of differences and of their products in float32."""

_PLAIN_RMS_NORMS = frozenset({"LlamaRMSNorm", "MistralRMSNorm", "Qwen2RMSNorm", "Qwen3RMSNorm"})
_TRIED_TOKENS = 8


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


def _hooked(module: nn.Module) -> bool:
    return bool(module._forward_hooks or module._forward_pre_hooks) or "forward" in vars(module)


def _float32(*tensors: Tensor | None) -> bool:
    return all(t is None or t.dtype == torch.float32 for t in tensors)


def linear_map_of(module: nn.Module) -> LinearMap | None:
    """Read a linear map; None if the module is, or may be, anything more."""
    if type(module) not in (nn.Linear, Conv1D) or _hooked(module):
        return None
    weight, bias = module.weight, module.bias
    if not isinstance(weight, Tensor) or isinstance(bias, nn.Module) or not _float32(weight, bias):
        return None
    return LinearMap(weight.T if type(module) is Conv1D else weight, bias)


def norm_of(module: nn.Module) -> Norm | None:
    """Read a LayerNorm or RMSNorm over the last axis; None if the module is, or may be, anything more."""
    if _hooked(module) or not _float32(getattr(module, "weight", None), getattr(module, "bias", None)):
        return None
    if _is_layer_norm(module) and isinstance(module, nn.LayerNorm) and len(module.normalized_shape) == 1:
        return Norm(module.weight, module.bias, module.eps, centred=True)
    if type(module) is nn.RMSNorm and len(module.normalized_shape) == 1 and module.eps is not None:
        return Norm(module.weight, None, module.eps, centred=False)
    if type(module).__name__ in _PLAIN_RMS_NORMS and type(module).__module__.startswith("transformers."):
        return Norm(module.weight, None, float(module.variance_epsilon), centred=False)  # type: ignore[arg-type]
    return None


def _is_layer_norm(module: nn.Module) -> bool:
    """Whether it is torch's LayerNorm, or timm's, which computes the same."""
    kind = type(module)
    return kind is nn.LayerNorm or (kind.__name__ == "LayerNorm" and kind.__module__.startswith("timm.layers"))


def attention_of(anatomy: Anatomy, component: Component, call: Call, tokens: Tensor) -> SelfAttention | None:
    """Read a plain self-attention and try it on a few tokens; None if the module is, or may be, anything more."""
    modules = [anatomy.module(name) for name in component.modules]
    if anatomy.family.windowed or call.extra or tokens.ndim != 3 or any(_hooked(m) for m in modules):
        return None
    found = weights_of(anatomy, component)
    return found if found is not None and _reproduces(found, modules, call, tokens[:1, :_TRIED_TOKENS]) else None


def weights_of(anatomy: Anatomy, component: Component) -> SelfAttention | None:
    """Read the weights of an attention; None if it does more than its weights say, or their layout is not known."""
    try:
        w = attention_weights(anatomy, component)
    except AnatomyError:
        return None
    if w.rotary or w.qk_norm or w.position_bias or w.uncovered or not _float32(w.w_q, w.w_k, w.w_v, w.w_o):
        return None
    return SelfAttention(w.w_q, w.w_k, w.w_v, w.w_o, w.b_q, w.b_k, w.b_v, w.b_o, w.heads, w.kv_heads, w.scale, w.causal)


def _reproduces(attention: SelfAttention, modules: Sequence[nn.Module], call: Call, tokens: Tensor) -> bool:
    """Whether the weights give what the module gives; it may do something that its names do not tell."""
    with torch.autocast(tokens.device.type, enabled=False):
        try:
            expected = call.again(modules[0], tokens)
            for module in modules[1:]:
                expected = module(expected)
        except (RuntimeError, ValueError, TypeError, IndexError, AssertionError):  # it needs all of its tokens
            return False
        found = nn.functional.linear(attention_heads(attention, tokens), attention.w_o, attention.b_o)
    error = torch.linalg.vector_norm(found - expected)
    return bool(error <= 1e-4 * torch.linalg.vector_norm(expected))
