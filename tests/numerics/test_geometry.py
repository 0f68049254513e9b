"""Distances, norms and scales of activations against slow float64 references."""

import math

import pytest
import torch
from torch import Tensor

from pliant.errors import DataError
from pliant.numerics.estimate import Design
from pliant.numerics.geometry import CLOSE_FLOAT32, Geometry, Pairing, combined, distances, geometry, token_scale

DESIGNS: list[Design] = ["two-sample", "one-sample", "matched"]
designs = pytest.mark.parametrize("design", DESIGNS)


def draw(seed: int, *shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def pairing(design: Design, items: int) -> Pairing:
    return Pairing(design, items if design == "one-sample" else items // 2)


def slow(z: Tensor, how: Pairing) -> Tensor:
    """Every pair subtracted on its own, in float64."""
    found = torch.stack([torch.stack([(a.double() - b.double()).square().sum().sqrt() for b in z]) for a in z])
    if how.design == "one-sample":
        return found
    block = found[: how.source, how.source :]
    return block.diagonal() if how.design == "matched" else block


@designs
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("shape", [(7,), (5, 16), (2, 3, 8), (40, 900)])
def test_every_design_precision_and_shape(design: Design, dtype: torch.dtype, shape: tuple[int, ...]) -> None:
    z = draw(0, 6, *shape).to(dtype)
    how = pairing(design, 6)
    found = geometry(z, how, scale=True)
    torch.testing.assert_close(found.distances, slow(z, how), rtol=1e-6, atol=0)
    torch.testing.assert_close(found.norms, z.double().flatten(1).norm(dim=1), rtol=1e-6, atol=0)


@designs
@pytest.mark.parametrize("scale", [1e-30, 1e-12, 1e-4, 1.0, 1e10, 1e18, 1e30])
def test_tiny_and_huge_scales(design: Design, scale: float) -> None:
    z, how = scale * draw(1, 8, 5, 16), pairing(design, 8)
    torch.testing.assert_close(distances(z, how), slow(z, how), rtol=1e-6, atol=0)


@designs
@pytest.mark.parametrize("gap", [0.5, CLOSE_FLOAT32, 1e-2, 1e-5])
@pytest.mark.parametrize("offset", [0.0, 30.0, 1e4])
def test_close_items_keep_their_digits(design: Design, gap: float, offset: float) -> None:
    """Four items, four near them, and a far one: within each half of the norms lies what is to be told apart."""
    base = draw(2, 4, 9, 32) + offset
    z = torch.cat([base, base + gap * draw(3, 4, 9, 32), 2 * base[:2]])
    how = pairing(design, 10)
    torch.testing.assert_close(distances(z, how), slow(z, how), rtol=1e-5, atol=0)


@designs
def test_equal_items_are_at_distance_zero(design: Design) -> None:
    z = draw(4, 3, 4, 8).repeat(2, 1, 1)
    found = distances(z, pairing(design, 6))
    expected = slow(z, pairing(design, 6))
    assert torch.equal(found == 0, expected == 0)
    assert distances(torch.ones(4, 3, 8), pairing(design, 4)).count_nonzero() == 0


def test_one_sample_is_symmetric_with_a_zero_diagonal() -> None:
    found = distances(draw(5, 7, 4, 8), Pairing("one-sample", 7))
    assert torch.equal(found, found.T)
    assert found.diagonal().count_nonzero() == 0


def test_chunks_do_not_show(monkeypatch: pytest.MonkeyPatch) -> None:
    z = draw(6, 6, 11, 13)
    z[3] = z[0] + 1e-3
    whole = [distances(z, pairing(d, 6)) for d in DESIGNS]
    monkeypatch.setattr("pliant.numerics.geometry._CHUNK", {"cpu": 40})
    for design, expected in zip(DESIGNS, whole, strict=True):
        torch.testing.assert_close(distances(z, pairing(design, 6)), expected, rtol=1e-6, atol=0)


@designs
def test_pairs_are_listed_as_they_are_arranged(design: Design) -> None:
    z, how = draw(7, 6, 3), pairing(design, 6)
    i, j = how.indices(6)
    listed = torch.stack([(z[a] - z[b]).norm() for a, b in zip(i.tolist(), j.tolist(), strict=True)]).double()
    assert how.count(6) == len(i)
    torch.testing.assert_close(how.arranged(listed, 6), slow(z, how), rtol=1e-6, atol=0)


def test_matched_pairs_of_unequal_sets_are_refused() -> None:
    with pytest.raises(DataError, match="as many items on both sides, got 2 and 3"):
        Pairing("matched", 2).indices(5)
    with pytest.raises(DataError, match="as many items on both sides, got 2 and 3"):
        geometry(torch.zeros(5, 3), Pairing("matched", 2))


@pytest.mark.parametrize("bad", [math.nan, math.inf])
@designs
def test_values_that_are_not_finite_stay_visible(design: Design, bad: float) -> None:
    z = draw(8, 4, 5)
    z[1, 2] = bad
    found = geometry(z, pairing(design, 4))
    assert not found.distances.isfinite().all()
    assert not found.norms[1].isfinite()


@pytest.mark.parametrize("offset", [0.0, 1.0, 1e3, 1e6])
@pytest.mark.parametrize("spread", [1e-3, 1.0])
def test_scale_of_tokens(offset: float, spread: float) -> None:
    z = offset + spread * draw(9, 3, 50, 24)
    found = token_scale(z)
    wide = z.double()
    assert found.count == 150
    assert found.total == pytest.approx(wide.norm(dim=-1).sum().item(), rel=1e-6)
    assert found.std_min == pytest.approx(wide.std(dim=-1, correction=0).min().item(), rel=1e-5)


def test_scale_of_padded_tokens() -> None:
    z = draw(10, 2, 5, 6)
    expected = torch.nn.functional.pad(z, (0, 10)).double()
    found = token_scale(z, width=16)
    assert found.std_min == pytest.approx(expected.std(dim=-1, correction=0).min().item(), rel=1e-5)
    assert found.total == pytest.approx(token_scale(z).total)


def test_two_halves_make_one_output() -> None:
    z, how = draw(11, 6, 4, 10), Pairing("two-sample", 3)
    whole = geometry(z, how)
    halves = combined([geometry(z[..., :3], how), geometry(z[..., 3:], how)])
    torch.testing.assert_close(halves.distances, whole.distances, rtol=1e-6, atol=0)
    torch.testing.assert_close(halves.norms, whole.norms, rtol=1e-6, atol=0)
    assert isinstance(combined([whole]), Geometry)
