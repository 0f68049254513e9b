"""Singular values against float64 SVDs and exact integers; the local norm against the whole Jacobian."""

from fractions import Fraction

import hypothesis.extra.numpy as arrays
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from pliant.errors import MeasurementError, ModelError
from pliant.numerics.spectral import jacobian_norm, product_norms, spectral_norm, spectral_norms


def normal(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("shape", [(1, 1), (7, 7), (30, 8), (8, 30), (1, 9), (9, 1), (200, 200)])
@pytest.mark.parametrize("scale", [1e-200, 1.0, 1e200])
def test_spectral_norm_is_that_of_the_svd(shape: tuple[int, int], scale: float) -> None:
    w = normal(*shape) * scale
    found, exact = spectral_norm(w), float(torch.linalg.svdvals(w)[0])
    assert exact <= found <= exact * (1 + 1e-10)


INTEGERS = arrays.arrays(np.int64, st.integers(1, 12), elements=st.integers(-1000, 1000))


@settings(max_examples=100, deadline=None)
@given(u=INTEGERS, v=INTEGERS)
def test_rounding_never_goes_below_the_truth(u: np.ndarray, v: np.ndarray) -> None:
    """‖u vᵀ‖₂² = ‖u‖²‖v‖² is an integer, known exactly; so are the norms of (u)(vᵀ)."""
    exact = Fraction(int((u * u).sum()) * int((v * v).sum()))
    column, row = torch.from_numpy(u).double()[:, None], torch.from_numpy(v).double()[None, :]
    assert Fraction(spectral_norm(column @ row)) ** 2 >= exact
    assert Fraction(float(product_norms(column, row))) ** 2 >= exact


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_weights_of_any_precision_are_taken_as_they_are(dtype: torch.dtype) -> None:
    w = normal(6, 4).to(dtype)
    assert spectral_norm(w) == spectral_norm(w.double())


def test_batches() -> None:
    w = normal(3, 2, 5, 4)
    w[1, 1] = 0
    torch.testing.assert_close(spectral_norms(w), torch.linalg.matrix_norm(w, 2), rtol=1e-10, atol=0)


def test_nothing_has_no_norm() -> None:
    assert spectral_norm(torch.zeros(3, 4)) == 0
    assert spectral_norm(torch.zeros(0, 4)) == 0


@pytest.mark.parametrize("bad", [float("nan"), float("-inf")])
def test_weights_that_are_not_finite_are_refused(bad: float) -> None:
    w = torch.ones(3, 4)
    w[0, 0] = bad
    with pytest.raises(ModelError, match="weight holds 1 values of 12 that are not finite"):
        spectral_norm(w)


@pytest.mark.parametrize(("rows", "inner", "cols"), [(20, 3, 30), (3, 20, 4), (5, 5, 5), (40, 8, 6), (1, 1, 1)])
def test_product_norms_are_those_of_the_products(rows: int, inner: int, cols: int) -> None:
    a, b = normal(4, rows, inner, seed=1), normal(4, inner, cols, seed=2)
    a[1] = 0
    found, exact = product_norms(a, b), torch.linalg.matrix_norm(a @ b, 2)
    assert (found >= exact).all()
    torch.testing.assert_close(found, exact, rtol=1e-9, atol=0)


def test_a_product_that_cancels_keeps_its_digits() -> None:
    """Row spaces that are nearly orthogonal: a root of a Gram matrix would lose half of the digits."""
    basis = torch.linalg.qr(normal(40, 8)).Q
    a, b = basis[:, :4], (basis[:, 4:] + 1e-9 * basis[:, :4]).T
    found, exact = float(product_norms(a.T, b.T)), 1e-9
    assert exact <= found * (1 + 1e-6)
    assert found <= exact * (1 + 5e-2)


def attention(x: Tensor) -> Tensor:
    w = normal(6, 6, seed=3)
    return torch.softmax(x @ w @ x.mT, -1) @ x


@pytest.mark.parametrize("seed", range(3))
def test_jacobian_norm_is_that_of_the_whole_jacobian(seed: int) -> None:
    x = normal(5, 6, seed=seed)
    jacobian = torch.func.jacrev(attention)(x).reshape(30, 30)
    exact = float(torch.linalg.matrix_norm(jacobian, 2))
    found = jacobian_norm(attention, x, tolerance=1e-9)
    assert found.converged
    assert exact * (1 - 1e-8) <= found.value <= exact * (1 + 1e-12)


def test_jacobian_norm_is_never_above_even_before_it_has_converged() -> None:
    x = normal(5, 6)
    values = [jacobian_norm(attention, x, iterations=k, tolerance=0.0).value for k in (1, 2, 4, 8)]
    assert values == sorted(values)
    assert not jacobian_norm(attention, x, iterations=2, tolerance=0.0).converged


def test_jacobian_norm_of_a_linear_map_in_float32() -> None:
    w = normal(50, 40).float()
    assert jacobian_norm(lambda x: x @ w, torch.zeros(7, 50)).value == pytest.approx(spectral_norm(w), rel=1e-3)


def test_jacobian_norm_ends_when_the_directions_are_used_up() -> None:
    found = jacobian_norm(lambda x: 2 * x, torch.zeros(3, dtype=torch.float64), tolerance=0.0)
    assert (round(found.value, 12), found.iterations, found.converged) == (2.0, 1, True)


def test_jacobian_norm_of_a_constant_is_zero() -> None:
    assert jacobian_norm(lambda x: 0 * x, torch.ones(3)).value == 0


def test_jacobian_norm_of_a_module_leaves_it_and_the_random_state_alone() -> None:
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(4, 8), nn.GELU(), nn.Linear(8, 4))
    state = torch.get_rng_state()
    with torch.no_grad():
        found = jacobian_norm(module, torch.ones(2, 4))
    assert found.value > 0
    assert torch.equal(torch.get_rng_state(), state)
    assert all(p.grad is None and p.requires_grad for p in module.parameters())


def test_a_derivative_that_is_not_finite_is_refused() -> None:
    with pytest.raises(MeasurementError, match="not finite after 0 power iterations"):
        jacobian_norm(torch.sqrt, torch.zeros(3))
