"""The course of a measurement: passes, when it stops, what it says about itself, what it refuses."""

from collections.abc import Sequence

import numpy as np
import pytest
import torch

from families import sample
from pliant import from_module
from pliant.errors import ConfigError, DataError, MeasurementError, ModelError, PliantError, UnknownNameError
from pliant.measuring import measure
from pliant.measuring.plan import Plan, passes, plan_of

VIT = sample("timm VisionTransformer")


@pytest.mark.parametrize(
    ("source", "target", "expected"),
    [
        (32, 32, [(32, 32)]),
        (33, 32, [(16, 16), (17, 16)]),
        (3, 4, [(3, 4)]),
        (64, 33, [(32, 16), (32, 17)]),
        (2, 1000, [(1, 32), (1, 32)]),  # to use more target items, the two source items would have to count again
        (1, 1, [(1, 1)]),
    ],
)
def test_passes_of_two_sets(source: int, target: int, expected: Sequence[tuple[int, int]]) -> None:
    cut = passes(source, target, plan_of("insitu", "all", 32, ("mha",), two=True))
    assert [(len(x), len(y)) for x, y in cut if y is not None] == list(expected)
    for side in (0, 1):
        positions = [i for part in cut for i in part[side] or ()]
        assert positions == sorted(set(positions))


@pytest.mark.parametrize(("items", "expected"), [(32, [32]), (33, [16, 17]), (2, [2]), (3, [3]), (65, [21, 22, 22])])
def test_passes_of_one_set(items: int, expected: list[int]) -> None:
    cut = passes(items, None, plan_of("insitu", "all", 32, ("mha",), two=False))
    assert [len(x) for x, _ in cut] == expected
    assert min(expected) > 1


def test_matched_pairs_need_as_many_of_both(tiny_vit) -> None:
    images = torch.rand(6, 3, 16, 16)
    with pytest.raises(DataError, match=r"as many source as target items; got 6 and 4\. .* items=4"):
        measure(tiny_vit, images, images[:4], pairs="matched")


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"items": 0}, "items is 0; expected a whole number"),
        ({"items": 2.5}, "items is 2.5"),
        ({"batch_size": 2.5}, "batch_size is 2.5; expected a whole number"),
        ({"until": "2%"}, "until is '2%'"),
        ({"device": "tpu"}, "device 'tpu' cannot be used here"),
        ({"pairs": None}, "None"),
    ],
)
def test_arguments_of_the_wrong_kind(tiny_vit, wrong: dict, message: str) -> None:
    with pytest.raises(PliantError, match=message):
        measure(tiny_vit, torch.rand(6, 3, 16, 16), **wrong)


@pytest.mark.parametrize("model", [None, 3, ["bundled"]])
def test_what_is_no_model(model: object) -> None:
    with pytest.raises(ModelError, match="as a model; expected a name"):
        measure(model, torch.rand(6, 3, 16, 16))


def test_passes_of_matched_pairs() -> None:
    cut = passes(70, 50, plan_of("insitu", "matched", 32, ("mha",), two=True))
    assert [(x.start, len(x), list(x) == list(y or ())) for x, y in cut] == [(0, 25, True), (25, 25, True)]


@pytest.mark.parametrize("convention", ["insitu", "shared"])
def test_passes_do_not_change_the_items(convention: str) -> None:
    """Matched pairs are the same however they are cut; later in-situ passes end with the last block."""
    model, x, y = VIT.model(), VIT.inputs(12, 1), VIT.inputs(12, 2)
    found = [measure(model, x, y, convention=convention, pairs="matched", batch_size=b).frame for b in (1, 5, 12)]
    for frame in found[1:]:
        for column in ("plasticity", "stderr", "max", "ratio_of_means", "relative", "token_norm", "token_std_min"):
            np.testing.assert_allclose(frame[column], found[0][column], rtol=2e-5)


def test_it_stops_when_sure() -> None:
    model, x, y = VIT.model(), VIT.inputs(64, 1), VIT.inputs(64, 2)
    whole = measure(model, x, y, batch_size=8)
    worst = (whole.by_role["stderr"] / whole.by_role["plasticity"]).max()
    early = measure(model, x, y, batch_size=8, until=2 * worst)
    assert early.provenance["stopped"] == "sure"
    assert 1 <= early.provenance["passes"] < 8
    assert (early.by_role["stderr"] / early.by_role["plasticity"]).max() < 2 * worst
    assert early.provenance["until"] == 2 * worst
    assert (early.frame["n_source"] == 8 * early.provenance["passes"]).all()
    never = measure(model, x, y, batch_size=8, until=1e-6)
    assert never.provenance["stopped"] == "data used up"
    assert never.provenance["passes"] == whole.provenance["passes"] == 8
    np.testing.assert_array_equal(never.frame["plasticity"], whole.frame["plasticity"])


def test_two_items_cannot_make_it_sure() -> None:
    found = measure(VIT.model(), VIT.inputs(2), until=0.9)
    assert found.provenance["stopped"] == "data used up"
    assert found.by_role["stderr"].isna().all()


def test_until_takes_all_of_a_named_set_unless_told_otherwise() -> None:
    few = measure("bundled", target="digits", until=1e-6, items=10, batch_size=4)
    assert few.provenance["items"] == {"target": 10}
    assert measure("bundled", target="digits", roles=("ln1",)).provenance["items"] == {"target": 128}


def test_provenance_says_what_the_numbers_depend_on() -> None:
    seen = []
    found = measure(
        VIT.model(), VIT.inputs(6, 1), VIT.inputs(5, 2), batch_size=3, seed=7, progress=lambda *at: seen.append(at)
    ).provenance
    assert seen == [(1, 2), (2, 2)]
    assert found["source"] == "tensor (6, 3, 32, 32)"
    assert found["items"] == {"source": 6, "target": 5}
    assert found["item_shape"] == [3, 32, 32]
    assert (found["design"], found["dtype"], found["seed"], found["passes"]) == ("two-sample", "float32", 7, 2)
    assert (found["until"], found["stopped"], found["processes"]) == (None, "data used up", 1)
    assert {"torch", "transformers", "timm", "pliant"} <= set(found["versions"])
    assert len(found["fingerprint"]) == 16


def test_items_that_are_left_over_do_not_count() -> None:
    found = measure(VIT.model(), VIT.inputs(1, 1), VIT.inputs(9, 2), batch_size=4)
    assert (found.frame["n_target"] == 4).all()
    assert found.provenance["items"] == {"source": 1, "target": 9}


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"convention": "share"}, UnknownNameError, "unknown convention 'share'. Did you mean 'shared'"),
        ({"pairs": "al"}, UnknownNameError, "unknown pairs 'al'"),
        ({"precision": "float61"}, UnknownNameError, "unknown precision 'float61'. Did you mean"),
        ({"roles": ("mah",)}, UnknownNameError, "unknown component to measure 'mah'. Did you mean 'mha'"),
        ({"roles": ()}, ConfigError, "no components to measure"),
        ({"batch_size": 1}, ConfigError, "batch_size is 1; pairs are formed within a pass"),
        ({"pairs": "matched"}, ConfigError, "matched pairs .* need both source and target"),
        ({"until": 2.0}, ConfigError, "until is 2.0; expected a relative standard error such as 0.02"),
        ({"until": 0.0}, ConfigError, "until is 0.0"),
    ],
)
def test_arguments_that_cannot_be(arguments: dict, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        measure(VIT.model(), VIT.inputs(4), **arguments)


def test_data_that_cannot_be() -> None:
    model = VIT.model()
    with pytest.raises(ConfigError, match="nothing to measure on"):
        measure(model)
    with pytest.raises(DataError, match=r"source items have shape \(3, 32, 32\), target items \(3, 32, 16\)"):
        measure(model, VIT.inputs(3), VIT.inputs(3)[..., :16])
    with pytest.raises(DataError, match=r"got 1 items of tensor .*; a rate needs two distinct items"):
        measure(model, VIT.inputs(1))
    with pytest.raises(DataError, match=r"got a tensor of shape \(3, 32, 32\)"):
        measure(model, VIT.inputs(1)[0])
    with pytest.raises(DataError, match="at least one item"):
        measure(model, VIT.inputs(3)[:0])
    with pytest.raises(ConfigError, match="does not say what it expects of an image"):
        measure(from_module(model), target="digits")


@pytest.mark.parametrize("convention", ["insitu", "shared"])
def test_equal_images(convention: str) -> None:
    model, items = VIT.model(), VIT.inputs(4)
    items[2] = items[0]
    found = measure(model, items, convention=convention)
    assert (found.frame["n_dropped"] == 1).all()
    assert (found.by_role["n_dropped"] == 1).all()
    assert (found.frame["n_pairs"] == 5).all()
    with pytest.raises(MeasurementError, match="no distinct pair: the inputs were equal in all 6 pairs"):
        measure(model, items[:1].expand(4, -1, -1, -1), convention=convention)


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
@pytest.mark.parametrize("convention", ["insitu", "shared"])
def test_images_that_are_not_finite(convention: str, bad: float) -> None:
    items = VIT.inputs(4)
    items[1, 0, 3, 3] = bad
    with pytest.raises(MeasurementError, match=r"block00\.ln1: .*not finite.*NaN and overflow"):
        measure(VIT.model(), items, convention=convention)


@pytest.mark.parametrize("convention", ["insitu", "shared"])
@pytest.mark.parametrize("name", ["timm VisionTransformer", "timm Eva, gated", "transformers GPT-2"])
def test_half_precision_agrees_within_two_per_cent(name: str, convention: str) -> None:
    """The tolerance that `measure` states for means over roles; rates are taken in float32."""
    chosen = sample(name)
    model, x, y = chosen.model(), chosen.inputs(12, 1), chosen.inputs(12, 2)
    exact = measure(model, x, y, convention=convention)
    half = measure(model, x, y, convention=convention, precision="bfloat16")
    np.testing.assert_allclose(half.by_role["plasticity"], exact.by_role["plasticity"], rtol=0.02)
    np.testing.assert_allclose(half.frame["plasticity"], exact.frame["plasticity"], rtol=0.05)
    assert half.provenance["dtype"] == "bfloat16"
    assert {p.dtype for p in model.parameters()} == {torch.float32}


def test_a_plan_is_plain_values() -> None:
    plan = plan_of("shared", "all", 8, ("fc1", "ln1"), two=False)
    assert plan == Plan("shared", "all", 8, ("ln1", "fc1"), "one-sample")
