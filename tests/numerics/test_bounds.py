"""Bounds of norms, linear maps and activations: never exceeded, and attained."""

import math

import hypothesis.extra.numpy as arrays
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.nn import functional

from pliant.errors import ConfigError, MeasurementError, ModelError
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

GAMMAS = st.integers(2, 9).flatmap(
    lambda d: arrays.arrays(np.float64, d, elements=st.floats(-5, 5, allow_subnormal=False))
)
SEEDS = st.integers(0, 10_000)


def normal(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def layer_norm(x: Tensor, gamma: Tensor, eps: float) -> Tensor:
    return functional.layer_norm(x, gamma.shape, gamma, gamma.flip(0), eps)


def rms_norm(x: Tensor, gamma: Tensor, eps: float) -> Tensor:
    return functional.rms_norm(x, gamma.shape, gamma, eps)


def centred_gamma(gamma: Tensor) -> Tensor:
    """diag(γ)(I − 11ᵀ/d), whole."""
    d = len(gamma)
    return torch.diag(gamma) @ (torch.eye(d, dtype=torch.float64) - 1 / d)


@settings(max_examples=150, deadline=None)
@given(gamma=GAMMAS)
def test_the_gain_is_the_spectral_norm_of_the_whole_matrix(gamma: np.ndarray) -> None:
    g = torch.from_numpy(gamma)
    exact = float(torch.linalg.matrix_norm(centred_gamma(g), 2))
    assert layer_norm_gain(g) == pytest.approx(exact, rel=1e-12, abs=1e-300)
    assert layer_norm_gain(g) <= rms_norm_gain(g) * (1 + 1e-12)


def test_the_gain_of_a_wide_norm() -> None:
    g = 1 + 0.3 * normal(384)
    assert layer_norm_gain(g) == pytest.approx(float(torch.linalg.matrix_norm(centred_gamma(g), 2)), rel=1e-12)


@pytest.mark.parametrize("centred", [True, False])
@settings(max_examples=60, deadline=None)
@given(gamma=GAMMAS, seed=SEEDS, scale=st.sampled_from([1e-3, 1.0, 1e3]), eps=st.sampled_from([1e-12, 1e-5, 1.0]))
def test_no_pair_exceeds_the_norms_bounds(
    centred: bool, gamma: np.ndarray, seed: int, scale: float, eps: float
) -> None:
    g, d = torch.from_numpy(gamma), len(gamma)
    x = scale * normal(40, 3, d, seed=seed) + normal(d, seed=seed + 1)
    y = torch.where(normal(40, 1, 1, seed=seed + 2) > 0, x + 1e-4 * normal(40, 3, d), normal(40, 3, d, seed=seed + 3))
    norm, bound, gain = (
        (layer_norm, layer_norm_bound, layer_norm_gain) if centred else (rms_norm, rms_norm_bound, rms_norm_gain)
    )
    s_x, s_y = token_scale(x, eps, centred=centred), token_scale(y, eps, centred=centred)
    change = norm(x, g, eps) - norm(y, g, eps)
    rounding = 1e-12 * (gain(g) + 1) * (1 + 1e-3 / math.sqrt(eps))
    per_token = norm_pair_bounds(gain(g), s_x, s_y)
    assert (change.norm(dim=-1) <= per_token * (x - y).norm(dim=-1) + rounding).all()
    per_image = change.flatten(1).norm(dim=1) / (x - y).flatten(1).norm(dim=1)
    certified = bound(g, float(torch.minimum(s_x, s_y).min()))
    assert (per_image <= per_token.amax(1) * (1 + 1e-7)).all()
    assert (per_image <= certified * (1 + 1e-7)).all()
    assert certified <= bound(g, math.sqrt(eps)) * (1 + 1e-12)


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("s_min", [0.05, 1.0, 20.0])
def test_the_layer_norm_bound_is_attained(seed: int, s_min: float) -> None:
    """A token at s_min, moved along the right singular vector, which is orthogonal to it and to 1."""
    gamma, eps = normal(6, seed=seed), 1e-6
    v = torch.linalg.svd(centred_gamma(gamma)).Vh[0]
    t = normal(6, seed=seed + 50)
    t = t - t.mean()
    t = t - (t @ v) * v
    t = t * math.sqrt(6 * (s_min**2 - eps)) / t.norm()
    step = 1e-3 * s_min * v
    ratio = float((layer_norm(t + step, gamma, eps) - layer_norm(t - step, gamma, eps)).norm() / (2 * step).norm())
    bound = layer_norm_bound(gamma, s_min)
    assert bound * (1 - 1e-3) <= ratio <= bound


@pytest.mark.parametrize("seed", range(5))
def test_the_rms_norm_bound_is_attained(seed: int) -> None:
    gamma, eps, s_min = normal(6, seed=seed), 1e-6, 0.5
    at = int(gamma.abs().argmax())
    t = normal(6, seed=seed + 50)
    t[at] = 0
    t = t * math.sqrt(6 * (s_min**2 - eps)) / t.norm()
    step = torch.zeros_like(t)
    step[at] = 1e-4
    ratio = float((rms_norm(t + step, gamma, eps) - rms_norm(t - step, gamma, eps)).norm() / (2 * step).norm())
    bound = rms_norm_bound(gamma, s_min)
    assert bound * (1 - 1e-3) <= ratio <= bound


def test_without_data_the_bound_is_attained_at_constant_tokens() -> None:
    gamma, eps = torch.ones(4, dtype=torch.float64), 1e-2
    step = 1e-5 * torch.tensor([1.0, -1.0, 0.0, 0.0], dtype=torch.float64)
    ratio = float((layer_norm(step, gamma, eps) - layer_norm(0 * step, gamma, eps)).norm() / step.norm())
    assert ratio == pytest.approx(layer_norm_bound(gamma, math.sqrt(eps)), rel=1e-3)


@pytest.mark.parametrize("shape", [(3, 5), (5, 3), (4, 4), (1, 6)])
def test_the_linear_bound_is_attained_and_not_exceeded(shape: tuple[int, int]) -> None:
    w, bias = normal(*shape), normal(shape[0], seed=1)
    bound = linear_bound(w)
    x, y = normal(50, shape[1], seed=2), normal(50, shape[1], seed=3)
    y[0] = x[0] + torch.linalg.svd(w).Vh[0]
    change = functional.linear(x, w, bias) - functional.linear(y, w, bias)
    ratios = change.norm(dim=1) / (x - y).norm(dim=1)
    assert (ratios <= bound).all()
    assert ratios[0] >= bound * (1 - 1e-3)


def test_maps_side_by_side_are_one_map() -> None:
    gate, up = normal(7, 4), normal(7, 4, seed=1)
    assert linear_bound(gate, up) == linear_bound(torch.cat([gate, up]))
    assert linear_bound(gate, up) < linear_bound(gate) + linear_bound(up)


ACTIVATIONS = {
    "relu": torch.relu,
    "gelu": functional.gelu,
    "gelu_tanh": lambda x: functional.gelu(x, approximate="tanh"),
    "silu": functional.silu,
    "quick_gelu": lambda x: x * torch.sigmoid(1.702 * x),
}


@pytest.mark.parametrize("name", ACTIVATION_LIPSCHITZ)
def test_activations_reach_their_constant_and_no_more(name: str) -> None:
    x = torch.linspace(-8, 8, 400_001, dtype=torch.float64)
    slopes = ACTIVATIONS[name](x).diff() / x.diff()
    largest = float(slopes.abs().max())
    assert largest <= ACTIVATION_LIPSCHITZ[name] + 1e-9
    assert largest == pytest.approx(ACTIVATION_LIPSCHITZ[name], rel=1e-5)


def test_zero_weights_bend_nothing() -> None:
    zero = torch.zeros(4)
    assert layer_norm_bound(zero, 0.0) == rms_norm_bound(zero, 0.0) == 0
    assert linear_bound(torch.zeros(4, 4)) == 0
    assert norm_pair_bounds(0.0, torch.zeros(2), torch.zeros(2)).tolist() == [0, 0]


def test_a_norm_over_one_feature_is_constant() -> None:
    assert layer_norm_bound(torch.tensor([3.0]), 0.1) == 0


def test_tokens_without_variance_and_no_eps_are_refused() -> None:
    ones, constant = torch.ones(4), torch.full((2, 4), 5.0)
    s = token_scale(constant, 0.0)
    assert s.tolist() == [0, 0]
    with pytest.raises(MeasurementError, match="no finite bound: a token has no variance and eps is 0"):
        layer_norm_bound(ones, float(s.min()))
    with pytest.raises(MeasurementError, match="no finite bound"):
        rms_norm_bound(ones, 0.0)
    with pytest.raises(MeasurementError, match="no finite bound"):
        norm_pair_bounds(1.0, s, s)
    assert layer_norm_bound(ones, float(token_scale(constant, 1e-4).min())) == pytest.approx(100)


@pytest.mark.parametrize("s_min", [-1.0, math.nan, math.inf])
def test_a_scale_that_is_none_is_refused(s_min: float) -> None:
    with pytest.raises(ConfigError, match="s_min must be a number of at least 0"):
        layer_norm_bound(torch.ones(3), s_min)


@pytest.mark.parametrize("bound", [layer_norm_gain, rms_norm_gain])
def test_gamma_that_is_not_finite_is_refused(bound) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(ModelError, match="weight holds 1 values of 2 that are not finite"):
        bound(torch.tensor([1.0, math.nan]))
