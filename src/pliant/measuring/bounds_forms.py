"""What a norm or a linear map computes, found by calling it: a module that computes something else gets no bound.

Class names and attributes tell too little: norms scale by γ or by 1 + γ, with or without centring; linear layers are
wrapped by adapters, quantised or reparametrised under the same name. So each module is called on random tokens, and
only a formula that reproduces its output is believed.
"""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor, nn

from pliant.numerics.bounds import layer_norm_bound, linear_bound, rms_norm_bound, token_scale
from pliant.numerics.rates import float64

_TOLERANCE = 3e-5
"""Of the largest output: more than float32 loses, less than any part that a formula leaves out."""


class NotCovered(Exception):
    """A component that no bound is derived for; the message is the reason that tables show."""


@dataclass(frozen=True, eq=False)
class NormForm:
    """γ ⊙ (t − mean(t))/√(var(t) + eps) + β, or γ ⊙ t/√(mean(t²) + eps) where it is not centred.

    Attributes:
        weight: what the normalised token is multiplied by: γ, or 1 + γ in models that store it so.
        eps: under the root.
        centred: LayerNorm if true, RMSNorm if not.
    """

    weight: Float[Tensor, " dim"]
    eps: float
    centred: bool

    def scales(self, tokens: Float[Tensor, "*batch dim"]) -> Float[Tensor, " *batch"]:
        """Return what each token is divided by."""
        return token_scale(tokens, self.eps, centred=self.centred)

    def bound(self, s_min: float) -> float:
        """Bound the norm on the tokens that are divided by at least `s_min`."""
        return (layer_norm_bound if self.centred else rms_norm_bound)(self.weight, s_min)

    def __call__(self, tokens: Float[Tensor, "*batch dim"]) -> Float[Tensor, "*batch dim"]:
        """Apply it, without β, in float64."""
        wide = float64(tokens)
        centre = wide.mean(-1, keepdim=True) if self.centred else 0.0
        return self.weight * (wide - centre) / self.scales(wide)[..., None]


@dataclass(frozen=True, eq=False)
class LinearForm:
    """A linear map, or several that share their input, stacked.

    Attributes:
        weight: (out, in); only the columns that the input reaches, if it is padded with zeros.
        padded: whether the input is padded with zeros.
    """

    weight: Float[Tensor, "out dim"]
    padded: bool = False

    def bound(self) -> float:
        """Return its largest singular value."""
        return linear_bound(self.weight)


def norm_form(module: nn.Module, *, width: int) -> NormForm:
    """Find the formula of a norm over the features of a token.

    Args:
        module: LayerNorm, RMSNorm or any module that computes what one of them does.
        width: features of a token.

    Raises:
        NotCovered: no formula reproduces what the module gives.
    """
    name = type(module).__name__
    eps = _eps(module)
    gamma = getattr(module, "weight", None)
    like = gamma if isinstance(gamma, Tensor) else next(module.parameters(), torch.empty(0))
    if gamma is None:
        gamma = like.new_ones(width)
    if not isinstance(gamma, Tensor) or gamma.shape != (width,):
        raise NotCovered(f"{name} has no weight of {width} features; expected a LayerNorm or an RMSNorm")
    for centred, shifted in itertools.product((True, False), (False, True)):
        form = NormForm(float64(gamma.detach()) + float(shifted), eps, centred)
        if all(_reproduces(module, form(x) + _bias(module), x) for x in _tokens(like, width, eps)):
            return form
    raise NotCovered(f"{name} computes neither a LayerNorm nor an RMSNorm of each token")


def linear_form(modules: Sequence[nn.Module], *, padded: bool = False) -> LinearForm:
    """Find the weight of a linear map; of several that share their input, the stacked one.

    Args:
        modules: `nn.Linear`, transformers' Conv1D (whose weight is stored in × out), or what computes the same.
        padded: whether the input is tokens of the block's width, padded with zeros: then only the first columns count.
            A feed-forward part gives back tokens of the width that it got, so its last map has as many rows.

    Raises:
        NotCovered: a module does something else than multiply by its weight and add its bias.
    """
    weights = [_linear_weight(module) for module in modules]
    if padded:
        weights = [w[:, : w.shape[0]] for w in weights]
    return LinearForm(torch.cat(weights), padded)


def _linear_weight(module: nn.Module) -> Float[Tensor, "out dim"]:
    name = type(module).__name__
    if hasattr(module, "base_layer"):
        raise NotCovered(f"an adapter ({name}) adds to this layer's weight; merge it into the model first")
    weight = getattr(module, "weight", None)
    if not isinstance(weight, Tensor) or weight.ndim != 2 or not weight.is_floating_point():
        raise NotCovered(f"{name} has no floating point matrix as its weight; expected a linear layer")
    weight = (weight.T if name == "Conv1D" else weight).detach()
    for x in _tokens(weight, weight.shape[1], 0.0):
        if not _reproduces(module, float64(x) @ float64(weight).T + _bias(module), x):
            raise NotCovered(f"{name} does something else than multiply by its weight and add its bias")
    return weight


def _bias(module: nn.Module) -> Tensor | float:
    bias = getattr(module, "bias", None)
    return float64(bias) if isinstance(bias, Tensor) else 0.0


def _eps(module: nn.Module) -> float:
    for name in ("eps", "variance_epsilon", "epsilon"):
        value = getattr(module, name, 0.0)
        if value is None:  # torch's RMSNorm then takes that of the input's type
            return torch.finfo(torch.float32).eps
        if isinstance(value, float) and value:
            return value
    return 0.0


def _tokens(like: Tensor, width: int, eps: float) -> list[Float[Tensor, "2 3 dim"]]:
    """Random tokens: of size 1, with a mean; and so small that a norm's eps matters."""
    generator = torch.Generator().manual_seed(0)
    tokens = torch.randn(2, 3, width, generator=generator) + torch.randn(2, 3, 1, generator=generator)
    dtype = like.dtype if like.is_floating_point() else torch.float32
    return [(scale * tokens).to(like.device, dtype) for scale in (1.0, eps**0.5) if scale > 0]


@torch.no_grad()
def _reproduces(module: nn.Module, expected: Tensor, tokens: Tensor) -> bool:
    """Tell whether the module gives these outputs; one that cannot be called on tokens alone does not."""
    try:
        output = module(tokens)
    except (RuntimeError, TypeError, ValueError, IndexError):
        return False
    if not isinstance(output, Tensor) or output.shape != expected.shape:
        return False
    return float((float64(output) - expected).abs().max()) <= _TOLERANCE * max(float(expected.abs().max()), 1e-30)
