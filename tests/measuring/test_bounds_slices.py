"""A head is rows of W_Q, W_K, W_V and columns of W_O: its slice gives its output; cut otherwise, nothing is bounded."""

import math

import pytest
import torch
from torch import Tensor

from families import Sample, sample
from pliant.components import find_components
from pliant.components.attention import AttentionWeights, attention_weights
from pliant.measuring.bounds import bounds
from pliant.measuring.bounds_attention import called
from pliant.measuring.bounds_calls import see_one_item
from pliant.measuring.bounds_local import _heads as with_one_head
from pliant.measuring.capture import observing
from pliant.numerics import attention_bound

SLICED = (
    ("timm VisionTransformer", "plain"),  # one nn.Linear for q, k and v
    ("transformers ViT", "backbone"),  # three
    ("transformers GPT-2", "language model"),  # Conv1D, in x out
    ("torchvision VisionTransformer", "plain"),  # nn.MultiheadAttention, parameters without a module
)


def head_by_hand(w: AttentionWeights, x: Tensor, head: int, *, causal: bool) -> Tensor:
    rows = slice(head * w.head_dim, (head + 1) * w.head_dim)
    q, k, v = (x @ m[rows].T + b[rows] for m, b in ((w.w_q, w.b_q), (w.w_k, w.b_k), (w.w_v, w.b_v)))
    logits = q @ k.mT / math.sqrt(w.head_dim)
    if causal:
        logits = logits.masked_fill(torch.ones_like(logits).triu(1).bool(), -math.inf)
    return torch.softmax(logits, -1) @ v


@pytest.mark.parametrize("name", SLICED, ids=lambda n: n[0])
def test_slice_of_a_head_reproduces_its_output(name: tuple[str, str]) -> None:
    one: Sample = sample(*name)
    model = one.model()
    found = find_components(model)
    component = next(c for c in found.of("mha") if c.block == 1)
    w = attention_weights(found, component)
    with observing(model):
        call = see_one_item(found, [component], one.inputs(1), "insitu").calls[component.id].call
        modules = [found.module(n) for n in component.modules]
        heads = dict(with_one_head(found, component, modules))
        assert list(heads) == list(range(w.heads))
        for head, chosen in heads.items():
            output = called(chosen, call, call.tokens) - w.b_o  # the head's features stand first, the others are zero
            expected = head_by_hand(w, call.tokens, head, causal="GPT" in one.family)
            torch.testing.assert_close(output[..., : w.head_dim], expected, rtol=1e-4, atol=1e-5)
            assert output[..., w.head_dim :].abs().max() < 1e-5


def cut_wrongly(w: AttentionWeights) -> dict[str, Tensor]:
    """Weights whose rows are what a cut by columns takes for heads, as the paper's published code does."""
    return {"w_q": w.w_q.T, "w_k": w.w_k.T, "w_v": w.w_v.T, "w_o": w.w_o}


def test_cutting_along_the_wrong_axis_falls_below_a_measured_rate() -> None:
    """Head 0's values come from the features that a cut by columns gives to head 1, whose output is not used."""
    one = sample("timm VisionTransformer", "plain")
    model = one.model()
    attention = model.blocks[0].attn
    dim, k = 32, 8
    with torch.no_grad():
        attention.qkv.weight[: 2 * dim].zero_()
        attention.qkv.bias.zero_()
        values = attention.qkv.weight[2 * dim :].zero_()
        values[:k, k : 2 * k] = 5 * torch.eye(k)
        attention.proj.weight.zero_()[:, :k] = torch.eye(dim, k)
    report = bounds(model, one.inputs(4, 1), one.inputs(4, 2), roles=["mha"])
    row = report.frame.set_index("component").loc["block00.mha"]
    found = find_components(model)
    with torch.no_grad():
        weights = cut_wrongly(attention_weights(found, found.of("mha")[0]))
        wrong = attention_bound(**weights, heads=4, ball=report.sets["block00.mha"].ball, tokens=5)
    assert wrong.value < row["max"] <= row["bound"]
    assert row["max"] > 0.1


def test_square_projections_of_both_layouts_are_told_apart() -> None:
    for name in (SLICED[1], SLICED[2]):
        one = sample(*name)
        model = one.model()
        found = find_components(model)
        component = next(c for c in found.of("mha") if c.block == 0)
        stored = found.module(component.modules[0])
        stored = stored.o_proj.weight if "ViT" in one.family else stored.c_proj.weight
        replaced = dict(with_one_head(found, component, [found.module(n) for n in component.modules]))[1][0].replaced
        (chosen,) = replaced.values()
        assert chosen.shape == stored.shape
        position = (0, 8) if "ViT" in one.family else (8, 0)  # first feature of the output, first of head 1
        assert chosen[position] == 1
