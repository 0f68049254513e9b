"""Distances and rates against slow float64 references."""

import hypothesis.extra.numpy as arrays
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from pliant.errors import DataError, MeasurementError
from pliant.numerics.rates import CLOSE, distances_all, distances_matched, distances_within, norms, rates_of_change


def slow_distances(x: Tensor, y: Tensor) -> Tensor:
    """Every pair subtracted on its own, in float64."""
    return torch.stack([torch.stack([(a.double() - b.double()).square().sum().sqrt() for b in y]) for a in x])


def generator(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
@pytest.mark.parametrize("shape", [(), (3,), (5, 7), (2, 3, 4), (0,)])
def test_every_shape_and_precision(dtype: torch.dtype, shape: tuple[int, ...]) -> None:
    x, y = (torch.randn(n, *shape, generator=generator(n)).to(dtype) for n in (4, 6))
    torch.testing.assert_close(distances_all(x, y), slow_distances(x, y), rtol=1e-10, atol=0)
    torch.testing.assert_close(distances_within(y), slow_distances(y, y), rtol=1e-10, atol=0)
    torch.testing.assert_close(distances_matched(x, y[:4]), slow_distances(x, y[:4]).diagonal(), rtol=3e-7, atol=0)
    torch.testing.assert_close(norms(x), slow_distances(x, torch.zeros_like(x[:1]))[:, 0], rtol=3e-7, atol=0)


@pytest.mark.parametrize("scale", [1e-30, 1e-8, 1.0, 1e8, 1e30])
def test_tiny_and_huge_scales(scale: float) -> None:
    x, y = (torch.randn(5, 8, 16, generator=generator(seed)) * scale for seed in (1, 2))
    torch.testing.assert_close(distances_all(x, y), slow_distances(x, y), rtol=1e-9, atol=0)
    torch.testing.assert_close(distances_matched(x, y), slow_distances(x, y).diagonal(), rtol=3e-7, atol=0)


@pytest.mark.parametrize("gap", [1e-1, 1e-3, 1e-5])
@pytest.mark.parametrize("offset", [0.0, 1e3])
def test_close_pairs_keep_their_digits(gap: float, offset: float) -> None:
    """A matrix product in float32 is wrong here in its first digit."""
    x = torch.randn(4, 9, 32, generator=generator(0)) + offset
    y = x + gap * torch.randn(4, 9, 32, generator=generator(1))
    torch.testing.assert_close(distances_all(x, y), slow_distances(x, y), rtol=1e-9, atol=0)
    torch.testing.assert_close(distances_within(torch.cat([x, y]))[:4, 4:], slow_distances(x, y), rtol=1e-9, atol=0)


def test_equal_items_are_at_distance_exactly_zero() -> None:
    x = torch.randn(6, 40, generator=generator(0))
    y = torch.cat([x[2:3], torch.randn(3, 40, generator=generator(1)), x[5:]])
    found = distances_all(x, y)
    assert (found == 0).nonzero().tolist() == [[2, 0], [5, 4]]
    same = distances_within(x[:1].expand(5, 40))
    assert same.count_nonzero() == 0
    assert distances_matched(x, x).count_nonzero() == 0


def test_within_is_symmetric_with_a_zero_diagonal() -> None:
    found = distances_within(torch.randn(7, 3, 5, generator=generator(0)))
    assert torch.equal(found, found.T)
    assert found.diagonal().count_nonzero() == 0


def test_chunks_do_not_show(monkeypatch: pytest.MonkeyPatch) -> None:
    x, y = (torch.randn(5, 11, 13, generator=generator(seed)) for seed in (0, 1))
    y[0] = x[0] + CLOSE / 10
    whole = (distances_all(x, y), distances_within(x), distances_matched(x, y), norms(x))
    monkeypatch.setattr("pliant.numerics.rates._CHUNK", 40)
    for got, expected in zip(
        (distances_all(x, y), distances_within(x), distances_matched(x, y), norms(x)), whole, strict=True
    ):
        torch.testing.assert_close(got, expected, rtol=1e-12, atol=0)


def test_inputs_are_left_alone() -> None:
    x = torch.randn(3, 4, dtype=torch.float64, generator=generator(0))
    before = x.clone()
    distances_all(x, x + 1)
    distances_within(x)
    distances_matched(x, x + 1)
    assert torch.equal(x, before)


FINITE = st.floats(-100, 100, allow_subnormal=False)


@settings(max_examples=50, deadline=None)
@given(
    x=arrays.arrays(np.float64, (4, 3, 2), elements=FINITE),
    y=arrays.arrays(np.float64, (4, 3, 2), elements=FINITE),
    factor=st.floats(1e-3, 1e3),
)
def test_rates_follow_scaling_and_ignore_shifts(x: np.ndarray, y: np.ndarray, factor: float) -> None:
    """f(x) = factor · x + 1 changes every distance by exactly that factor."""
    a, b = torch.from_numpy(x), torch.from_numpy(y)
    found = rates_of_change(distances_matched(a, b), distances_matched(factor * a + 1, factor * b + 1))
    away = distances_matched(a, b) > 1e-6
    torch.testing.assert_close(found[away], torch.full_like(found[away], factor), rtol=1e-6, atol=0)


@pytest.mark.parametrize("seed", range(5))
def test_an_orthogonal_map_has_rate_one(seed: int) -> None:
    x, y = (torch.randn(6, 9, 20, dtype=torch.float64, generator=generator(seed + 10 * k)) for k in (0, 1))
    turn = torch.linalg.qr(torch.randn(20, 20, dtype=torch.float64, generator=generator(seed + 99)))[0]
    found = rates_of_change(distances_all(x, y), distances_all(x @ turn, y @ turn))
    torch.testing.assert_close(found, torch.ones_like(found), rtol=1e-12, atol=0)


def test_equal_inputs_give_nan_and_nothing_else_does() -> None:
    inputs, outputs = torch.tensor([[0.0, 1.0], [2.0, 0.0]]), torch.tensor([[0.0, 0.0], [5.0, 0.0]])
    assert rates_of_change(inputs, outputs).isnan().tolist() == [[True, False], [False, True]]


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_distances_that_are_not_finite_are_refused(bad: float) -> None:
    with pytest.raises(MeasurementError, match="1 of 2 output distances are not finite"):
        rates_of_change(torch.ones(2), torch.tensor([1.0, bad]))
    with pytest.raises(MeasurementError, match="1 of 2 input distances are not finite"):
        rates_of_change(torch.tensor([1.0, bad]), torch.ones(2))


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_activations_that_are_not_finite_stay_visible(bad: float) -> None:
    x = torch.ones(3, 4)
    x[1, 2] = bad
    assert not distances_all(x, torch.zeros(2, 4))[1].isfinite().any()
    assert not distances_matched(x, torch.zeros(3, 4))[1].isfinite()
    assert not norms(x)[1].isfinite()


def test_items_of_other_shapes_are_refused() -> None:
    with pytest.raises(DataError, match=r"\(4, 5\) and \(4, 6\)"):
        distances_all(torch.zeros(2, 4, 5), torch.zeros(2, 4, 6))
    with pytest.raises(DataError, match="as many items on both sides, got 2 and 3"):
        distances_matched(torch.zeros(2, 4), torch.zeros(3, 4))
