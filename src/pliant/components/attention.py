"""The weights of a self-attention, head by head, in one convention for every family.

Rows of W_Q, W_K, W_V and columns of W_O belong to heads: head h takes rows h·k to (h+1)·k (docs/bounds.md).
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor, nn

from pliant.components.component import Anatomy, Component
from pliant.errors import AnatomyError

_UNCOVERED_MODULES = {
    "norm": "normalises the joined heads before the output projection",
    "gate": "multiplies the joined heads by a gate that depends on the input",
    "sinks": "adds learned logits beside those of the tokens",
}


@dataclass(frozen=True)
class AttentionWeights:
    """Weights of one self-attention as `nn.Linear` stores them (out x in), whatever the model's own layout is.

    Attributes:
        w_q: (heads · head_dim, dim). w_k, w_v: (kv_heads · head_dim, dim), w_o: (dim, heads · head_dim).
        b_q, b_k, b_v, b_o: biases, None where the model has none.
        heads, kv_heads: number of query heads; of key and value heads (fewer in grouped-query attention).
        head_dim: features per head, k.
        scale: factor of the logits, 1/sqrt(k) unless the model says otherwise.
        causal: whether a token attends only to itself and those before it.
        rotary: whether queries and keys are rotated by their position.
        qk_norm: whether queries and keys are normalised.
        position_bias: whether a learned constant that depends on relative position is added to the logits.
        uncovered: what else the module does that these weights do not say; None if nothing.
    """

    w_q: Float[Tensor, "q_features dim"]
    w_k: Float[Tensor, "kv_features dim"]
    w_v: Float[Tensor, "kv_features dim"]
    w_o: Float[Tensor, "dim q_features"]
    b_q: Float[Tensor, " q_features"] | None
    b_k: Float[Tensor, " kv_features"] | None
    b_v: Float[Tensor, " kv_features"] | None
    b_o: Float[Tensor, " dim"] | None
    heads: int
    kv_heads: int
    head_dim: int
    scale: float
    causal: bool
    rotary: bool
    qk_norm: bool
    position_bias: bool
    uncovered: str | None


@dataclass(frozen=True)
class _Projections:
    q: tuple[Tensor, Tensor | None]
    k: tuple[Tensor, Tensor | None]
    v: tuple[Tensor, Tensor | None]
    inner: nn.Module  # the module that holds heads, scale and norms


def _linear(module: nn.Module) -> tuple[Tensor, Tensor | None]:
    """Return weight (out x in) and bias of an `nn.Linear` or of transformers' transposed Conv1D."""
    weight, bias = module.weight, module.bias
    if not isinstance(weight, Tensor) or weight.ndim != 2:
        raise AnatomyError(f"expected a linear layer inside attention, got {type(module).__name__}.")
    transposed = type(module).__name__ == "Conv1D"
    return (weight.T if transposed else weight), (bias if isinstance(bias, Tensor) else None)


def _thirds(weight: Tensor, bias: Tensor | None, inner: nn.Module) -> _Projections:
    w = weight.chunk(3, dim=0)
    b = bias.chunk(3, dim=0) if bias is not None else (None, None, None)
    return _Projections((w[0], b[0]), (w[1], b[1]), (w[2], b[2]), inner)


def _packed(name: str) -> Callable[[nn.Module], _Projections]:
    def read(attention: nn.Module) -> _Projections:
        weight, bias = _linear(attention.get_submodule(name))
        q_bias, v_bias = getattr(attention, "q_bias", None), getattr(attention, "v_bias", None)
        if q_bias is not None and v_bias is not None:  # timm's Eva keeps them apart; keys have none
            bias = torch.cat([q_bias, torch.zeros_like(q_bias), v_bias])
        return _thirds(weight, bias, attention)

    return read


def _separate(inner: str, q: str, k: str, v: str) -> Callable[[nn.Module], _Projections]:
    def read(attention: nn.Module) -> _Projections:
        holder = attention.get_submodule(inner) if inner else attention
        w_q, w_k, w_v = (_linear(holder.get_submodule(n)) for n in (q, k, v))
        return _Projections(w_q, w_k, w_v, holder)

    return read


def _multihead(attention: nn.Module) -> _Projections:
    if not isinstance(attention, nn.MultiheadAttention) or attention.in_proj_weight is None:
        raise AnatomyError("expected nn.MultiheadAttention with one packed input projection.")
    if attention.bias_k is not None or attention.add_zero_attn:
        raise AnatomyError("nn.MultiheadAttention with bias_k or add_zero_attn is not supported.")
    return _thirds(attention.in_proj_weight, attention.in_proj_bias, attention)


# input projections: (a submodule or parameter that tells the layout, how it is read); output projection names
_INPUTS: tuple[tuple[str, Callable[[nn.Module], _Projections]], ...] = (
    ("in_proj_weight", _multihead),
    ("qkv", _packed("qkv")),
    ("c_attn", _packed("c_attn")),
    ("q_proj", _separate("", "q_proj", "k_proj", "v_proj")),
    ("attention", _separate("attention", "query", "key", "value")),
    ("self", _separate("self", "query", "key", "value")),
    ("query", _separate("", "query", "key", "value")),
)
_OUTPUTS = ("o_proj", "out_proj", "proj", "c_proj", "output.dense", "dense")


def _submodule(module: nn.Module, path: str) -> nn.Module | None:
    try:
        found = module.get_submodule(path)
    except AttributeError:
        return None
    return found if isinstance(found, nn.Module) else None


def _first_int(module: nn.Module, *names: str) -> int | None:
    """Return the first of these attributes, of the module or of its configuration, that is a whole number."""
    for holder in (module, getattr(module, "config", None)):
        for name in names:
            value = getattr(holder, name, None)
            if isinstance(value, int) and not isinstance(value, bool):
                return value
    return None


def output_projection(anatomy: Anatomy, component: Component) -> str | None:
    """Return the full name of the module that takes the joined outputs of all heads; None if there is none."""
    last = component.modules[-1]
    if len(component.modules) > 1:
        return last
    return next((f"{last}.{name}" for name in _OUTPUTS if _submodule(anatomy.module(last), name) is not None), None)


def _output(anatomy: Anatomy, component: Component) -> tuple[Tensor, Tensor | None]:
    name = output_projection(anatomy, component)
    if name is None:
        kind = type(anatomy.module(component.modules[-1])).__name__
        raise AnatomyError(f"{component.id}: no output projection found in {kind}.")
    return _linear(anatomy.module(name))


def _scale(inner: nn.Module, head_dim: int) -> float:
    for name in ("scaling", "scale"):
        value = getattr(inner, name, None)
        if isinstance(value, float):
            return value
    factor = float(head_dim**-0.5)
    if getattr(inner, "scale_attn_weights", True) is False:
        factor = 1.0
    if getattr(inner, "scale_attn_by_inverse_layer_idx", False):
        factor /= float(getattr(inner, "layer_idx", 0) + 1)
    return factor


def attention_weights(anatomy: Anatomy, component: Component) -> AttentionWeights:
    """Read the weights of a block's self-attention in one convention for every family.

    Raises:
        AnatomyError: the component is no attention, or its layout is not known.
    """
    if component.role != "mha" or not component.modules:
        raise AnatomyError(f"{component.id} is no self-attention; pass a component of role 'mha' inside a block.")
    attention = anatomy.module(component.modules[0])
    reader = next((read for tell, read in _INPUTS if getattr(attention, tell, None) is not None), None)
    if reader is None:
        known = ", ".join(tell for tell, _ in _INPUTS)
        raise AnatomyError(
            f"{component.id}: {type(attention).__name__} has no projections of a known layout ({known})."
        )
    found = reader(attention)
    inner = found.inner
    heads = _first_int(inner, "num_heads", "num_attention_heads", "n_head") or _first_int(attention, "num_heads")
    if heads is None:
        raise AnatomyError(f"{component.id}: {type(inner).__name__} does not say how many heads it has.")
    head_dim = found.q[0].shape[0] // heads
    w_o, b_o = _output(anatomy, component)
    return AttentionWeights(
        w_q=found.q[0],
        w_k=found.k[0],
        w_v=found.v[0],
        w_o=w_o,
        b_q=found.q[1],
        b_k=found.k[1],
        b_v=found.v[1],
        b_o=b_o,
        heads=heads,
        kv_heads=found.k[0].shape[0] // head_dim,
        head_dim=head_dim,
        scale=_scale(inner, head_dim),
        causal=anatomy.family.causal,
        rotary=_is_rotary(anatomy, attention),
        qk_norm=any(not isinstance(getattr(inner, n, nn.Identity()), nn.Identity) for n in ("q_norm", "k_norm")),
        position_bias=_has_position_bias(anatomy, component),
        uncovered=_uncovered(inner),
    )


def _is_rotary(anatomy: Anatomy, attention: nn.Module) -> bool:
    owners = ("rope", "rotary_emb", "rope_embeddings")
    return any(name.rsplit(".", 1)[-1] in owners for name, _ in anatomy.model.named_modules())


def _has_position_bias(anatomy: Anatomy, component: Component) -> bool:
    tables = [
        p for c in anatomy.components if c.role == "mha" and c.block in (None, component.block) for p in c.parameters
    ]
    return any("position_bias" in name for name in tables)


def _uncovered(inner: nn.Module) -> str | None:
    for name, what in _UNCOVERED_MODULES.items():
        part = getattr(inner, name, None)
        if isinstance(part, nn.Module | nn.Parameter) and not isinstance(part, nn.Identity):
            return what
    return None
