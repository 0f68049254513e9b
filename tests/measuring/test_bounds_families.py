"""Bounds of every family: no measured rate exceeds a certified bound, and the sets hold exactly the measured tokens."""

import math

import numpy as np
import pandas as pd
import pytest
import torch
from torch import Tensor, nn

from families import SAMPLES, Sample, sample
from measuring.slow_rates import _values as slow_values
from pliant.components import find_components
from pliant.measuring.bounds import bounds
from pliant.measuring.bounds_attention import attention_written_out, called
from pliant.measuring.bounds_calls import see_one_item
from pliant.measuring.bounds_certified import TOLERANCE
from pliant.measuring.bounds_report import BOUND_COLUMNS, BoundsReport
from pliant.measuring.capture import observing
from pliant.terms import BLOCK_ROLES

SOURCE, TARGET = 3, 4
INDEPENDENT = (
    ("timm VisionTransformer", "plain"),
    ("timm Eva, gated", "DINOv3"),
    ("timm Swin", "two widths"),
    ("transformers BEiT", "bias per block"),
    ("transformers BERT", "encoder"),
    ("transformers LLaMA and Qwen", "Qwen2"),
    ("transformers GPT-2", "language model"),
    ("torchvision VisionTransformer", "plain"),
)
"""Every kind of attention: plain, rotary, windows with position bias, post-norm, grouped heads, Conv1D, packed."""

both = pytest.mark.parametrize("convention", ["insitu", "shared"])
NORMALISED = {"layerscale, qk norm", "Qwen3"}
"""Samples whose queries and keys are normalised: their attention has no bound."""


def no_rate_exceeds(report: BoundsReport) -> None:
    certified = report.frame[report.frame["kind"] == "certified"]
    assert (certified["max"] <= certified["bound"] * (1 + TOLERANCE)).all()
    assert (certified["mean"] <= certified["max"]).all()
    np.testing.assert_allclose(certified["slack"], certified["bound"] / certified["max"])


@both
@pytest.mark.parametrize("one", SAMPLES, ids=lambda s: s.id)
def test_no_measured_rate_exceeds_a_certified_bound(one: Sample, convention: str) -> None:
    pairs = "all" if convention == "insitu" else "matched"
    source, target = one.inputs(SOURCE, 1), one.inputs(SOURCE if pairs == "matched" else TARGET, 2)
    report = bounds(one.model(), source, target, convention=convention, pairs=pairs)
    assert tuple(report.frame.columns) == BOUND_COLUMNS
    assert len(report.frame) == len(one.blocks) * len(BLOCK_ROLES)
    no_rate_exceeds(report)
    without = report.frame[report.frame["kind"] != "certified"]
    if one.variant in NORMALISED:
        assert set(without["role"]) == {"mha"}
        assert set(without["reason"]) == {"queries and keys are normalised"}
        assert without["bound"].isna().all()
        assert report.paper.empty
    else:
        assert without.empty
        assert list(report.paper["component"]) == list(report.frame["component"][report.frame["role"] == "mha"])


@both
@pytest.mark.parametrize(
    ("name", "pairs"),
    [(n, "all") for n in INDEPENDENT] + [(n, p) for n in INDEPENDENT[::2][:2] for p in ("one set", "matched")],
    ids=str,
)
def test_sets_hold_exactly_the_tokens_of_the_measured_pairs(name: tuple[str, str], convention: str, pairs: str) -> None:
    one = sample(*name)
    model, items = one.model(), one.inputs(SOURCE + TARGET)
    if pairs == "one set":
        report, used = bounds(model, items, convention=convention), items
    else:
        used = items if pairs == "all" else items[: 2 * SOURCE]
        report = bounds(model, used[:SOURCE], used[SOURCE:], convention=convention, pairs=pairs)
    no_rate_exceeds(report)
    values = [slow_values(one, model.double(), item[None], convention) for item in used]
    frame = report.frame.set_index(["role", "block"])
    for key in values[0]:
        row, tokens = frame.loc[key], torch.cat([v[key][0].flatten(0, -2) for v in values])
        found = report.sets[row["component"]]
        assert found.count == len(tokens)
        if key[0] == "mha":
            centre = found.ball.centre
            assert row["radius"] == pytest.approx((tokens - centre).norm(dim=1).max().item(), rel=1e-5)
            assert row["largest"] == pytest.approx(tokens.norm(dim=1).max().item(), rel=1e-5)
            torch.testing.assert_close(centre, tokens.mean(0), rtol=1e-4, atol=1e-5)  # all fits in one pass here
        if key[0] in ("ln1", "ln2"):
            centred = "LLaMA" not in one.family
            eps = 1e-6 if not centred else norm_eps(model, one, key)
            spread = tokens.var(1, correction=0) if centred else tokens.square().mean(1)
            assert row["s_min"] == pytest.approx(math.sqrt(spread.min().item() + eps), rel=1e-5)


def norm_eps(model: nn.Module, one: Sample, key: tuple[str, int]) -> float:
    return float(model.get_submodule(one.modules(*key)[0]).eps)


@pytest.mark.parametrize("name", INDEPENDENT, ids=lambda n: n[0])
def test_no_adversarial_pair_in_the_ball_exceeds_the_bound(name: tuple[str, str]) -> None:
    """Gradient ascent on the rate of change of the module itself, tokens kept in the ball."""
    one = sample(*name)
    model, items = one.model(), one.inputs(4)
    report = bounds(model, items, roles=["mha"])
    found = find_components(model)
    component = next(c for c in found.of("mha") if c.block == 1)
    ball, bound = report.sets[component.id].ball, report.frame.set_index("component")["bound"][component.id]
    with observing(model):
        call = see_one_item(found, [component], items[:1], "insitu").calls[component.id].call
    modules = [found.module(n) for n in component.modules]
    generator = torch.Generator().manual_seed(5)
    x = (ball.centre + 0.3 * ball.radius * torch.randn(call.tokens.shape, generator=generator).double()).float()
    change = 1e-2 * torch.randn(x.shape, generator=generator)
    best = 0.0
    with attention_written_out(model):
        for _ in range(25):
            x, y = (inside(t, ball.centre.float(), ball.radius).requires_grad_() for t in (x, x + change))
            rate = (called(modules, call, x) - called(modules, call, y)).norm() / (x - y).norm()
            best = max(best, rate.item())
            step_x, step_y = torch.autograd.grad(rate, (x, y))
            x = (x + 0.3 * ball.radius * step_x / step_x.norm()).detach()
            change = (y + 0.3 * ball.radius * step_y / step_y.norm()).detach() - x
    largest = report.frame.set_index("component")["max"][component.id]
    assert largest < best <= bound * (1 + TOLERANCE), "ascent finds larger rates than data do, and none above the bound"


def inside(tokens: Tensor, centre: Tensor, radius: float) -> Tensor:
    offset = (tokens - centre).detach()
    return centre + offset * (radius / offset.norm(dim=-1, keepdim=True).clamp(min=radius))


def test_attention_bound_is_that_of_the_weights_cut_by_hand() -> None:
    from pliant.numerics import attention_bound, attention_bound_paper

    one = sample("timm VisionTransformer", "plain")
    model = one.model()
    report = bounds(model, one.inputs(3, 1), one.inputs(3, 2))
    attention = model.blocks[1].attn
    w, b = attention.qkv.weight.detach(), attention.qkv.bias.detach()
    dim, row = w.shape[1], report.frame.set_index("component").loc["block01.mha"]
    parts = (w[:dim], w[dim : 2 * dim], w[2 * dim :], attention.proj.weight.detach())
    ball = report.sets["block01.mha"].ball
    expected = attention_bound(*parts, heads=4, ball=ball, tokens=5, b_q=b[:dim], b_k=b[dim : 2 * dim])
    assert row["bound"] == pytest.approx(expected.value, rel=1e-12)
    assert row["tokens"] == 5
    published = report.paper.set_index("component").loc["block01.mha"]
    assert published["kind"] == "paper"
    assert published["reason"] == "ignores the query bias: certifies nothing here"
    assert published["bound"] == pytest.approx(attention_bound_paper(*parts, heads=4, radius=ball.largest, tokens=5))


def test_windows_count_as_sequences() -> None:
    one = sample("timm Swin")
    report = bounds(one.model(), one.inputs(3))
    assert set(report.frame["tokens"][report.frame["role"] == "mha"]) == {16}


def test_biases_that_are_zero_leave_the_published_bound_valid() -> None:
    one = sample("timm VisionTransformer", "plain")
    model = one.model()
    with torch.no_grad():
        for block in model.blocks:
            block.attn.qkv.bias.zero_()
    report = bounds(model, one.inputs(3))
    assert set(report.paper["reason"]) == {"what it ignores is zero here"}
    assert (report.paper["bound"] > report.frame["bound"][report.frame["role"] == "mha"].to_numpy()).all()


def test_padded_fc2_of_the_shared_convention_is_bounded_by_the_columns_that_tokens_reach() -> None:
    one = sample("transformers GPT-2")
    model = one.model()
    shared, insitu = (
        bounds(model, one.inputs(3), convention=c).frame.set_index("component") for c in ("shared", "insitu")
    )
    weight = model.transformer.h[1].mlp.c_proj.weight.detach().T.double()  # Conv1D stores in x out
    assert shared["bound"]["block01.fc2"] == pytest.approx(torch.linalg.svdvals(weight[:, :32])[0].item(), rel=1e-9)
    assert insitu["bound"]["block01.fc2"] == pytest.approx(torch.linalg.svdvals(weight)[0].item(), rel=1e-9)
    assert shared["holds_on"]["block01.fc2"] == "all tokens, padded with zeros"


def test_gate_and_up_are_bounded_as_one_map() -> None:
    one = sample("transformers LLaMA and Qwen", "LLaMA")
    model = one.model()
    report = bounds(model, one.inputs(3), roles=["fc1"])
    mlp = model.model.layers[0].mlp
    stacked = torch.cat([mlp.gate_proj.weight, mlp.up_proj.weight]).detach().double()
    assert report.frame["bound"][0] == pytest.approx(torch.linalg.svdvals(stacked)[0].item(), rel=1e-9)
    assert report.frame["without_data"][0] == report.frame["bound"][0]


def test_radius_grows_pass_by_pass_about_the_first_centre() -> None:
    one = sample("timm VisionTransformer", "plain")
    model, items = one.model(), one.inputs(9)
    many = bounds(model, items[:4], items[4:], batch_size=2, roles=["mha"])
    first = bounds(model, items[:1], items[4:5], roles=["mha"])  # the items of the first of five passes
    name = "block00.mha"
    torch.testing.assert_close(many.sets[name].ball.centre, first.sets[name].ball.centre)
    assert many.sets[name].ball.radius > first.sets[name].ball.radius
    assert many.provenance["centre"] == "mean token of the first pass"


def test_roles_can_be_chosen_and_blocks_keep_their_order() -> None:
    one = sample("transformers ViT", "backbone")
    report = bounds(one.model(), one.inputs(3), roles=["fc1", "ln1"])
    assert list(report.frame["component"]) == ["block00.ln1", "block00.fc1", "block01.ln1", "block01.fc1"]
    assert isinstance(report.by_role, pd.DataFrame)
    assert report.paper.empty
