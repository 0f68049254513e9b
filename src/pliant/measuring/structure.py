"""Recognising linear maps, norms and plain self-attention by exact type, so that a shortcut may stand in for them.

Attention modules are of many types, so theirs is not asked: the weights are read, and tried on a few tokens against the
module itself. Whatever is, or may be, anything more (a subclass, a wrapper, a hook, half precision) is not recognised.
"""

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from transformers.pytorch_utils import Conv1D

from pliant.components import Anatomy, Component
from pliant.components.attention import attention_weights
from pliant.errors import AnatomyError
from pliant.measuring.capture import Call
from pliant.numerics.kernels import LinearMap, Norm, SelfAttention, attention_heads

_PLAIN_RMS_NORMS = frozenset({"LlamaRMSNorm", "MistralRMSNorm", "Qwen2RMSNorm", "Qwen3RMSNorm"})
_TRIED_TOKENS = 8


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
