"""Upper bounds on how far a component can bend: norms, linear maps, activations (docs/bounds.md).

A bound L of a component f on a set of tokens means ‖f(X) − f(Y)‖_F ≤ L ‖X − Y‖_F for all token matrices X, Y (tokens ×
dim) whose rows lie in the set; so no rate of change of a pair from the set, and no mean of them, exceeds it. Norms and
linear maps treat each token by itself: a bound for tokens is one for token matrices, since the squares add up.
Biases are constants of these maps and change no difference. Bounds are real numbers about the exact function; they are
computed in float64 and rounded up, while a model that runs in float32 has rates that are off by about 1e-6 of them.
Attention is in `attention_bounds`.
"""

import math
from types import MappingProxyType

import torch
from jaxtyping import Float
from torch import Tensor

from pliant.errors import ConfigError, MeasurementError
from pliant.numerics.rates import float64
from pliant.numerics.spectral import require_finite, spectral_norm

ACTIVATION_LIPSCHITZ = MappingProxyType(
    {"relu": 1.0, "gelu": 1.128905, "gelu_tanh": 1.128994, "silu": 1.099840, "quick_gelu": 1.099840}
)
"""Lipschitz constants, rounded up: the largest slope of each activation on the real line.

GELU's is at x = √2, its tanh form's at x ≈ 1.41850, SiLU's at x ≈ 2.39936; the sigmoid form of GELU ("quick") is
SiLU(1.702 x)/1.702 and has SiLU's slopes.
"""


_UP = 1 + 1e-12
"""More than the rounding of a token's scale in float64 can have taken away, for up to 4096 features."""


def token_scale(x: Float[Tensor, "*batch dim"], eps: float, *, centred: bool = True) -> Float[Tensor, " *batch"]:
    """Return what a normalisation divides each token by.

    s(t) = √(var(t) + eps), the variance over features, for LayerNorm; √(mean(t²) + eps) for RMSNorm (`centred` False).

    >>> token_scale(torch.tensor([[1.0, 3.0], [2.0, 2.0]]), 0.0).tolist()
    [1.0, 0.0]
    >>> token_scale(torch.tensor([[1.0, 7.0]]), 0.0, centred=False).tolist()
    [5.0]
    """
    t = float64(x)
    if centred:
        t = t - t.mean(-1, keepdim=True)
    return (t.square().mean(-1) + eps).sqrt()


def layer_norm_gain(weight: Float[Tensor, " dim"]) -> float:
    """Return ‖diag(γ) C‖₂ with C = I − 11ᵀ/d: the most that γ stretches a normalised difference.

    Normalised tokens have mean zero, and so have their differences: C leaves them alone, hence ‖γ ⊙ z‖ = ‖diag(γ) C z‖
    ≤ ‖diag(γ) C‖₂ ‖z‖. This is at most max|γ|, and less where the largest |γ| stands alone.

    The squared value is the largest eigenvalue λ of diag(γ)C·C diag(γ) = D − vvᵀ with D = diag(γ²) and v = γ/√d. By
    interlacing λ lies between the second largest and the largest γ²; there it is the root of Σ_i v_i²/(γ_i² − λ) = 1,
    whose left side increases. The root is bracketed by halving and the upper end is taken. An error of d·eps in the
    sum moves the root by at most d·eps·max γ², and λ ≥ (1 − 1/d) max γ²; so a factor 1 + 4·d·eps covers it.

    >>> round(layer_norm_gain(torch.tensor([2.0, 0.0, 0.0, 0.0])), 12)
    1.732050807569
    >>> round(layer_norm_gain(torch.tensor([-2.0, 2.0, 1.0])), 12)
    2.0

    Args:
        weight: γ; ones where the norm has none.

    Raises:
        ModelError: a value is not finite.
    """
    require_finite("weight", weight)
    size = weight.numel()
    gamma = float64(weight).abs()
    scale = float(gamma.max()) if size else 0.0
    if size < 2 or scale == 0.0:
        return 0.0  # one feature is always at its own mean
    squares = (gamma / scale).square()
    second, first = (float(s) for s in squares.sort().values[-2:])
    while (middle := (second + first) / 2) not in (second, first):
        if float((squares / (squares - middle)).sum()) / size < 1:
            second = middle
        else:
            first = middle
    return scale * math.sqrt(first * (1 + 4 * size * torch.finfo(torch.float64).eps))


def rms_norm_gain(weight: Float[Tensor, " dim"]) -> float:
    """Return max|γ|: the most that γ stretches a normalised difference of an RMSNorm.

    Where a model scales by 1 + γ, give that.

    >>> rms_norm_gain(torch.tensor([1.0, -3.0]))
    3.0

    Raises:
        ModelError: a value is not finite.
    """
    require_finite("weight", weight)
    return float(weight.abs().max()) if weight.numel() else 0.0


def norm_pair_bounds(
    gain: float, s_x: Float[Tensor, "*tokens"], s_y: Float[Tensor, "*tokens"]
) -> Float[Tensor, "*tokens"]:
    """Bound the rate of change of a LayerNorm or RMSNorm for each pair of tokens: 2·gain/(s(x) + s(y)).

    Statement: ‖N(t) − N(u)‖ ≤ gain · 2‖C(t − u)‖/(s(t) + s(u)) ≤ gain · 2‖t − u‖/(s(t) + s(u)), for every t and u, with
    C = I for RMSNorm. For token matrices the largest of the tokens' bounds holds.

    Derivation: let z(t) = (Ct, √(d·eps)), one feature more. Then ‖z(t)‖ = √d s(t), so the normalised token Ct/s(t) is
    √d times the first d features of z/‖z‖. Dunkl and Williams: ‖z/‖z‖ − w/‖w‖‖ ≤ 2‖z − w‖/(‖z‖ + ‖w‖). The constant
    feature cancels in z − w, and C is a projection. Last, γ stretches by at most the gain (`layer_norm_gain`).

    >>> norm_pair_bounds(3.0, torch.tensor([1.0, 2.0]), torch.tensor([1.0, 4.0])).round(decimals=6).tolist()
    [3.0, 1.0]

    Args:
        gain: `layer_norm_gain` or `rms_norm_gain`.
        s_x: `token_scale` of the first tokens, eps included.
        s_y: that of the second.

    Raises:
        MeasurementError: both scales of a pair are zero, so that the norm divides by zero there.
    """
    sums = s_x + s_y
    if gain > 0 and bool((sums <= 0).any()):
        raise _zero_scale()
    return 2 * gain / sums * _UP if gain > 0 else torch.zeros_like(sums)


def layer_norm_bound(weight: Float[Tensor, " dim"], s_min: float) -> float:
    """Bound a LayerNorm on the tokens with √(var + eps) ≥ s_min: ‖diag(γ)(I − 11ᵀ/d)‖₂/s_min.

    It follows from `norm_pair_bounds`, where s(t) + s(u) ≥ 2 s_min; the set need not be convex. It is attained, in the
    limit of close tokens, where s = s_min and the difference is orthogonal to the centred token (d ≥ 3).
    Without data s_min = √eps holds for every token: valid, and useless in practice (eps = 1e-6 gives 1000·γ).

    >>> round(layer_norm_bound(torch.tensor([1.0, 1.0, 1.0]), 0.5), 9)
    2.0

    Args:
        weight: γ; ones where the norm has none.
        s_min: the smallest `token_scale` in the set, eps included.

    Raises:
        ConfigError: s_min is negative or not a number.
        MeasurementError: s_min is zero and γ is not; no finite bound exists.
        ModelError: a value of γ is not finite.
    """
    return _over(layer_norm_gain(weight), s_min)


def rms_norm_bound(weight: Float[Tensor, " dim"], s_min: float) -> float:
    """Bound an RMSNorm on the tokens with √(mean(t²) + eps) ≥ s_min: max|γ|/s_min.

    As `layer_norm_bound`, without centring. It is attained, in the limit of close tokens, where s = s_min and the
    difference lies along the feature of the largest |γ|, on which the token is zero.

    >>> round(rms_norm_bound(torch.tensor([1.0, -3.0]), 0.5), 9)
    6.0

    Args:
        weight: γ, or 1 + γ where the model scales by that; ones where the norm has none.
        s_min: the smallest `token_scale` in the set, eps included.

    Raises:
        ConfigError: s_min is negative or not a number.
        MeasurementError: s_min is zero and γ is not; no finite bound exists.
        ModelError: a value of γ is not finite.
    """
    return _over(rms_norm_gain(weight), s_min)


def linear_bound(*weights: Float[Tensor, "out dim"]) -> float:
    """Bound a linear map: its largest singular value, on all tokens, attained by its right singular vector.

    Several weights are maps that share their input and whose outputs stand side by side (gate and up of a gated
    feed-forward part, or q, k and v): the bound is that of the stacked matrix.

    >>> round(linear_bound(torch.tensor([[3.0, 0.0]]), torch.tensor([[4.0, 0.0]])), 12)
    5.0

    Args:
        weights: as nn.Linear stores them (out × in).

    Raises:
        ModelError: a value is not finite.
    """
    return spectral_norm(torch.cat([float64(w) for w in weights]))


def _over(gain: float, s_min: float) -> float:
    if not 0 <= s_min < math.inf:
        raise ConfigError(f"s_min must be a number of at least 0, the smallest √(var + eps) of the tokens; got {s_min}")
    if gain > 0 and s_min == 0:
        raise _zero_scale()
    return gain / s_min * _UP if gain > 0 else 0.0


def _zero_scale() -> MeasurementError:
    return MeasurementError(
        "no finite bound: a token has no variance and eps is 0, so the norm divides by zero there. Leave such tokens "
        "out, or give the norm a positive eps."
    )
