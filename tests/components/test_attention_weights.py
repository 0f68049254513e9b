"""Weights of attention read in one convention reproduce what the module computes, on every family they cover."""

import pytest
import torch
from torch import Tensor

from families import SAMPLES, Sample
from pliant.components import find_components
from pliant.components.attention import AttentionWeights, attention_weights
from pliant.errors import AnatomyError
from pliant.measuring.capture import listening, observing, run


def attend(w: AttentionWeights, x: Tensor) -> Tensor:
    """Softmax attention written out in sums, head by head."""
    repeat, k, out = w.heads // w.kv_heads, w.head_dim, torch.zeros_like(x)

    def project(weight: Tensor, bias: Tensor | None, head: int) -> Tensor:
        rows = slice(head * k, (head + 1) * k)
        return x @ weight[rows].T + (0 if bias is None else bias[rows])

    for h in range(w.heads):
        q = project(w.w_q, w.b_q, h)
        keys, values = project(w.w_k, w.b_k, h // repeat), project(w.w_v, w.b_v, h // repeat)
        logits = q @ keys.transpose(-1, -2) * w.scale
        if w.causal:
            logits = logits.masked_fill(torch.ones_like(logits[0]).triu(1).bool(), -torch.inf)
        out = out + logits.softmax(-1) @ values @ w.w_o[:, h * k : (h + 1) * k].T
    return out if w.b_o is None else out + w.b_o


@pytest.mark.parametrize("sample", SAMPLES, ids=lambda s: s.id)
def test_weights_reproduce_the_module(sample: Sample) -> None:
    model, items = sample.model(), sample.inputs(2)
    found = find_components(model)
    seen = {}
    blocks = [c for c in found.of("mha") if c.block is not None]
    with observing(model), listening(found, blocks, lambda c, x, y: seen.__setitem__(c.id, (x, y)), batch=2):
        run(model, items)
        for component in blocks:
            w = attention_weights(found, component)
            assert w.heads * w.head_dim == w.w_q.shape[0] == w.w_o.shape[1]
            assert w.kv_heads * w.head_dim == w.w_k.shape[0] == w.w_v.shape[0]
            x, y = seen[component.id]
            plain = not (w.rotary or w.qk_norm or w.position_bias or w.uncovered or found.family.windowed)
            close = torch.allclose(attend(w, x), y, rtol=1e-4, atol=1e-5) if x.ndim == 3 else False
            assert close == plain, "weights that leave something out must say so"


@pytest.mark.parametrize(
    ("variant", "flag"), [("Qwen3", "qk_norm"), ("LLaMA", "rotary"), ("bias per block", "position_bias")]
)
def test_what_the_weights_leave_out_is_flagged(variant: str, flag: str) -> None:
    found = find_components(next(s for s in SAMPLES if s.variant == variant).model())
    component = next(c for c in found.of("mha") if c.block == 0)
    assert getattr(attention_weights(found, component), flag) is True


def test_what_is_no_attention_is_refused() -> None:
    found = find_components(SAMPLES[0].model())
    with pytest.raises(AnatomyError, match=r"block00\.fc1 is no self-attention"):
        attention_weights(found, next(c for c in found.of("fc1")))
