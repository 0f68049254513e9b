import json
import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

from pliant.components import find_components
from pliant.data import pixel_values
from pliant.errors import ConfigError, MeasurementError, UnknownNameError
from pliant.landscapes import landscape
from pliant.landscapes.directions import (
    coordinates,
    filter_normalised,
    flat,
    most_sensitive,
    orthogonal,
    principal,
    unflat,
)
from pliant.landscapes.loss import RATES, common_descent, descent, over_grid, probed_loss
from pliant.landscapes.rates import component_at, rates_over_grid, sensitive_plane
from pliant.landscapes.surface import Surface, axis
from pliant.measuring.bounds_attention import attention_written_out
from pliant.numerics.spectral import jacobian_norm
from pliant.terms import BLOCK_ROLES
from tuning import tiny_cells


@pytest.fixture(scope="module")
def small():
    """A tiny model, its anatomy, pixel values and labels."""
    loaded = tiny_cells.loaded()
    data = tiny_cells.data(train=24)
    pixels = pixel_values([data.train[i] for i in range(24)], loaded.preprocessing)
    return loaded, data, find_components(loaded.model), pixels, torch.as_tensor(data.train.labels)


def weights_of(anatomy, role):
    return {n: p.detach() for n, p in anatomy.parameters([role]).items()}


class TestDirections:
    def test_principal_directions_hold_a_path_in_a_plane(self):
        generator = torch.Generator().manual_seed(0)
        basis = torch.linalg.qr(torch.randn(50, 2, generator=generator)).Q.T
        path = torch.randn(8, 2, generator=generator) @ basis
        plane, shares = principal(path)
        assert sum(shares) == pytest.approx(1.0, abs=1e-6)
        assert torch.allclose(plane @ plane.T, torch.eye(2), atol=1e-5)
        assert torch.allclose(coordinates(path, plane) @ plane, path, atol=1e-5)
        assert shares[0] >= shares[1]

    def test_shares_are_of_the_squared_distance_from_the_start(self):
        plane, shares = principal(torch.tensor([[0.0, 3.0, 0.0], [0.0, 3.0, 4.0], [1.0, 0.0, 0.0]]))
        singular = torch.linalg.svdvals(torch.tensor([[0.0, 3.0, 0.0], [0.0, 3.0, 4.0], [1.0, 0.0, 0.0]]).double())
        assert shares == pytest.approx((singular**2 / (singular**2).sum()).tolist()[:2])
        assert float(plane[0] @ torch.tensor([1.0, 0.0, 0.0])) >= 0

    def test_a_straight_path_gets_a_second_direction_at_right_angles(self):
        plane, shares = principal(torch.outer(torch.arange(1.0, 4.0), torch.tensor([1.0, 2.0, 2.0])))
        assert shares == (pytest.approx(1.0), 0.0)
        assert torch.allclose(plane @ plane.T, torch.eye(2), atol=1e-6)

    def test_a_path_that_does_not_move_is_refused(self):
        with pytest.raises(MeasurementError, match="did not move the weights"):
            principal(torch.zeros(4, 10))

    def test_filters_keep_their_length(self):
        weights = {"w": torch.randn(5, 7), "b": torch.randn(5), "zero": torch.zeros(3, 2)}
        for direction in filter_normalised(weights, seed=3):
            drawn = unflat(direction, weights)
            assert torch.allclose(drawn["w"].norm(dim=1), weights["w"].norm(dim=1), rtol=1e-5)
            assert drawn["b"].norm() == pytest.approx(float(weights["b"].norm()), rel=1e-5)
            assert (drawn["zero"] == 0).all()
        assert torch.equal(filter_normalised(weights, seed=3), filter_normalised(weights, seed=3))
        assert not torch.equal(*filter_normalised(weights, seed=3))

    def test_laying_flat_and_back(self):
        weights = {"a": torch.randn(2, 3), "b": torch.randn(4)}
        back = unflat(flat(weights), weights)
        assert all(torch.equal(back[n], weights[n]) for n in weights)

    def test_most_sensitive_direction_is_the_first_singular_vector(self):
        matrix = torch.diag(torch.tensor([1.0, 2.0, 5.0])) @ torch.linalg.qr(torch.randn(3, 3)).Q
        v, rate = most_sensitive(lambda x: x @ matrix.T, torch.zeros(2, 3), iterations=60)
        assert rate == pytest.approx(5.0, rel=1e-4)
        assert float(torch.linalg.vector_norm(v)) == pytest.approx(1.0, rel=1e-5)
        assert float(torch.linalg.vector_norm(v @ matrix.T)) == pytest.approx(5.0, rel=1e-4)

    def test_constant_functions_have_none(self):
        with pytest.raises(MeasurementError, match="no direction is most sensitive"):
            most_sensitive(lambda x: x * 0.0, torch.ones(3))

    def test_right_angles(self):
        unit = torch.tensor([0.6, 0.8])
        assert float(orthogonal(torch.tensor([1.0, 0.0]), unit) @ unit) == pytest.approx(0.0, abs=1e-7)


class TestLoss:
    def test_at_the_checkpoint_it_is_the_models_own_with_the_fitted_head(self, small):
        loaded, _, anatomy, pixels, labels = small
        loss = probed_loss(anatomy, pixels, labels, classes=4)
        before = {n: p.clone() for n, p in loaded.model.named_parameters()}
        with torch.no_grad():
            value, again = float(loss(weights_of(anatomy, "mha"))), float(loss({}))
        assert value < math.log(4), "the fitted head beats chance"
        assert all(torch.equal(p, before[n]) for n, p in loaded.model.named_parameters())
        assert value == again

    def test_two_classes(self):
        loaded = tiny_cells.loaded(num_labels=2)
        anatomy = find_components(loaded.model)
        data = tiny_cells.data(train=24)
        keep = np.flatnonzero(data.train.labels < 2)
        pixels = pixel_values([data.train[int(i)] for i in keep], loaded.preprocessing)
        loss = probed_loss(anatomy, pixels, torch.as_tensor(data.train.labels[keep]), classes=2)
        assert 0 < float(loss({}).detach()) < math.log(2)

    def test_descent_descends_from_the_start(self, small):
        _, _, anatomy, pixels, labels = small
        loss = probed_loss(anatomy, pixels, labels, classes=4)
        start = weights_of(anatomy, "fc1")
        found = list(descent(loss, start, steps=5, learning_rate=1e-5))
        losses = [value for _, value in found]
        assert len(found) == 6
        assert float(found[0][0].abs().max()) == 0.0
        assert losses == sorted(losses, reverse=True)
        with torch.enable_grad():
            first = {n: w.clone().requires_grad_() for n, w in start.items()}
            gradient = flat(dict(zip(first, torch.autograd.grad(loss(first), list(first.values())), strict=True)))
        assert torch.allclose(found[1][0], -1e-5 * gradient, atol=1e-7)

    def test_descent_ends_where_the_loss_is_not_finite(self, small):
        _, _, anatomy, pixels, labels = small
        loss = probed_loss(anatomy, pixels, labels, classes=4)
        found = list(descent(loss, weights_of(anatomy, "mha"), steps=50, learning_rate=1e25))
        assert 1 <= len(found) < 51

    def test_one_rate_for_all_at_which_none_rises(self, small):
        _, _, anatomy, pixels, labels = small
        loss = probed_loss(anatomy, pixels, labels, classes=4)
        starts = {role: weights_of(anatomy, role) for role in ("ln1", "mha")}
        counted = []
        paths, rate = common_descent(loss, starts, steps=4, learning_rate=None, advance=counted.append)
        assert rate in RATES
        assert sum(counted) == 2 * 5
        for path in paths.values():
            assert max(value for _, value in path) == path[0][1]
        higher = RATES[RATES.index(rate) - 1]
        _, given = common_descent(loss, starts, steps=4, learning_rate=higher)
        assert given == higher
        with pytest.raises(MeasurementError, match="rises along its gradient even at a learning rate of 1e-08"):
            common_descent(lambda w: -loss(w) * 1e30, starts, steps=4, learning_rate=None)

    def test_grid_equals_the_loss_point_by_point_both_ways(self, small):
        _, _, anatomy, pixels, labels = small
        loss = probed_loss(anatomy, pixels, labels, classes=4)
        start = weights_of(anatomy, "mha")
        plane = filter_normalised(start, seed=0)
        x, y = axis(-0.5, 0.5, 3), axis(-1.0, 1.0, 2)
        counted = []
        grid = over_grid(loss, start, plane, x=x, y=y, together=False, advance=counted.append)
        assert sum(counted) == 6
        one = {n: start[n] + 0.5 * d + 1.0 * e for (n, d), e in zip(
            unflat(plane[0], start).items(), unflat(plane[1], start).values(), strict=True)}  # fmt: skip
        with torch.no_grad():
            assert grid[1, 2] == pytest.approx(float(loss(one)), rel=1e-5)
        batched = over_grid(loss, start, plane, x=x, y=y, together=True, advance=counted.append)
        assert batched == pytest.approx(grid, rel=1e-5)
        assert sum(counted) == 12

    def test_overflow_is_missing(self, small):
        _, _, anatomy, pixels, labels = small
        loss = probed_loss(anatomy, pixels, labels, classes=4)
        start = weights_of(anatomy, "ln1")
        grid = over_grid(loss, start, filter_normalised(start, seed=0), x=(0.0, 1e38), y=(0.0, 1.0), together=False)
        assert np.isfinite(grid[0, 0])
        assert not np.isinf(grid).any()


class TestRates:
    @pytest.mark.parametrize("role", BLOCK_ROLES)
    def test_rates_of_every_role(self, small, role):
        _, _, anatomy, pixels, _ = small
        component = next(c for c in anatomy.components if c.role == role and c.block == 1)
        f, tokens = component_at(anatomy, component, pixels[:1])
        plane, steepest = sensitive_plane(anatomy, f, tokens, seed=0)
        assert float((plane[0] * plane[1]).sum()) == pytest.approx(0.0, abs=1e-5)
        with attention_written_out(anatomy.model):
            exact = jacobian_norm(f, tokens).value
        assert steepest == pytest.approx(exact, rel=0.02)
        grid = rates_over_grid(f, tokens, plane, x=(-1e-3, 0.0, 1e-3), y=(0.0, 0.1))
        assert math.isnan(grid[0, 1]), "no rate at the input itself"
        assert grid[0, 2] == pytest.approx(steepest, rel=0.05)
        with torch.no_grad():
            delta = 1e-3 * plane[0] + 0.1 * plane[1]
            rate = (f(tokens + delta) - f(tokens)).norm() / delta.norm()
        assert grid[1, 2] == pytest.approx(float(rate), rel=1e-5)

    def test_a_linear_map_has_the_same_rate_however_far(self, small):
        _, _, anatomy, pixels, _ = small
        component = next(c for c in anatomy.components if c.id == "block00.fc2")
        f, tokens = component_at(anatomy, component, pixels[:1])
        plane, _ = sensitive_plane(anatomy, f, tokens, seed=0)
        grid = rates_over_grid(f, tokens, plane, x=(0.1, 1.0, 10.0), y=(0.0,))
        assert grid[0] == pytest.approx([grid[0, 0]] * 3, rel=1e-4)

    def test_windows_are_refused(self, small):
        _, _, anatomy, pixels, _ = small
        windowed = replace(anatomy, family=replace(anatomy.family, windowed=True))
        with pytest.raises(ConfigError, match="attention works on windows"):
            component_at(windowed, anatomy.components[2], pixels[:1])


@pytest.fixture(scope="module")
def found(small):
    """A landscape of three components, what was told on the way, and whether the model changed."""
    loaded, data, *_ = small
    state = tiny_cells.state(loaded.model)
    modes = [m.training for m in loaded.model.modules()]
    told = []
    made = landscape(
        loaded, data, components=["ln1", "mha+fc1", "block01.mha"], points=5, images=24, steps=3, device="cpu",
        progress=lambda *step: told.append(step),
    )  # fmt: skip
    return (
        made,
        told,
        tiny_cells.changed(state, loaded.model),
        modes == [m.training for m in loaded.model.modules()],
    )


class TestLandscape:
    def test_surfaces_and_progress(self, found):
        made, told, changed, same_mode = found
        assert [(s.kind, s.component) for s in made.surfaces] == [
            ("loss", "ln1"), ("loss", "mha+fc1"), ("loss", "block01.mha"),
            ("rate", "block01.ln1"), ("rate", "block01.mha"),
        ]  # fmt: skip
        assert told[-1][0] == told[-1][1] == 3 * (25 + 4) + 2 * 25
        assert not changed
        assert same_mode

    def test_the_path_starts_at_the_checkpoint_within_the_grid(self, found):
        for surface in found[0].surfaces[:3]:
            assert surface.values.shape == (5, 5)
            assert np.isfinite(surface.values).all()
            assert surface.path[0][:2] == pytest.approx((0.0, 0.0), abs=1e-6)
            assert len(surface.path) == 4
            for x, y, loss in surface.path:
                assert surface.x[0] < x < surface.x[-1]
                assert surface.y[0] < y < surface.y[-1]
                assert surface.values.min() * 0.9 < loss < surface.values.max() * 1.1
            assert sum(surface.about["shares"]) > 0.9

    def test_json_and_frame(self, found, tmp_path):
        made = found[0]
        path = made.save(tmp_path / "out" / "landscape.json")
        back = json.loads(path.read_text())
        assert back["provenance"]["images"] == 24
        assert back["surfaces"][3]["values"][2][2] is None
        assert len(made.frame) == 5 * 25
        assert list(made.frame) == ["kind", "component", "x", "y", "value"]
        with pytest.raises(ConfigError, match=r"ends in \.json"):
            made.save(tmp_path / "landscape.txt")

    def test_random_directions_are_centred_and_repeatable(self, small):
        loaded, data, *_ = small
        options = {
            "components": ["fc2"],
            "directions": "random",
            "points": 3,
            "images": 12,
            "steps": 2,
            "device": "cpu",
        }
        one, two = (landscape(loaded, data, **options) for _ in range(2))
        assert one.surfaces[0].x == (-1.0, 0.0, 1.0)
        assert one.surfaces[0].values == pytest.approx(two.surfaces[0].values)
        centre = one.surfaces[0].values[1, 1]
        assert centre == pytest.approx(one.surfaces[0].path[0][2], rel=1e-5)

    @pytest.mark.parametrize(
        ("options", "error", "said"),
        [
            ({"components": ["mah"]}, UnknownNameError, r"unknown component 'mah'\. Did you mean 'mha'"),
            ({"components": ["block07.mha"]}, UnknownNameError, r"unknown component 'block07\.mha'.*block0"),
            ({"components": ["head"]}, ConfigError, "head has no weights in this model"),
            ({"components": ["layerscale"]}, ConfigError, "layerscale has no weights"),
            ({"components": []}, ConfigError, "expected at least 3 points"),
            ({"points": 2}, ConfigError, "expected at least 3 points"),
            ({"block": 9}, ConfigError, "got block 9; the model has blocks 0 to 1"),
            ({"directions": "pac"}, UnknownNameError, r"unknown kind of directions 'pac'\. Did you mean 'pca'"),
        ],
    )
    def test_bad_arguments(self, small, options, error, said):
        loaded, data, *_ = small
        with pytest.raises(error, match=said):
            landscape(loaded, data, **{"device": "cpu", "images": 12, "points": 3, "steps": 2, **options})


def test_surface_without_numbers_is_null():
    surface = Surface("rate", "mha", (0.0,), (0.0,), np.array([[math.nan]]))
    assert surface.plain()["values"] == [[None]]
    json.dumps(surface.plain(), allow_nan=False)


def test_an_untrained_head_is_fitted_not_read():
    """The head's own weights are random; the loss must not depend on them."""
    losses = []
    for seed in (0, 1):
        loaded = tiny_cells.loaded()
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            nn.init.normal_(loaded.model.classifier.weight)
        anatomy = find_components(loaded.model)
        data = tiny_cells.data(train=16)
        pixels = pixel_values([data.train[i] for i in range(16)], loaded.preprocessing)
        loss = probed_loss(anatomy, pixels, torch.as_tensor(data.train.labels), classes=4)
        losses.append(float(loss({}).detach()))
    assert losses[0] == pytest.approx(losses[1], rel=1e-5)
