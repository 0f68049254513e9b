"""The numerical core: tensors in, tensors and plain numbers out. It knows no model, no name, no file."""

from pliant.numerics.attention_bounds import AttentionBound, TokenBall, attention_bound, attention_bound_paper
from pliant.numerics.bounds import (
    ACTIVATION_LIPSCHITZ,
    layer_norm_bound,
    layer_norm_gain,
    linear_bound,
    norm_pair_bounds,
    rms_norm_bound,
    rms_norm_gain,
    token_scale,
)
from pliant.numerics.estimate import Design, RateStatistics, RateSummary
from pliant.numerics.rates import (
    distances_all,
    distances_matched,
    distances_within,
    norms,
    rates_of_change,
    squared_distances,
)
from pliant.numerics.spectral import LocalNorm, jacobian_norm, product_norms, spectral_norm, spectral_norms

__all__ = [
    "ACTIVATION_LIPSCHITZ",
    "AttentionBound",
    "Design",
    "LocalNorm",
    "RateStatistics",
    "RateSummary",
    "TokenBall",
    "attention_bound",
    "attention_bound_paper",
    "distances_all",
    "distances_matched",
    "distances_within",
    "jacobian_norm",
    "layer_norm_bound",
    "layer_norm_gain",
    "linear_bound",
    "norm_pair_bounds",
    "norms",
    "product_norms",
    "rates_of_change",
    "rms_norm_bound",
    "rms_norm_gain",
    "spectral_norm",
    "spectral_norms",
    "squared_distances",
    "token_scale",
]
