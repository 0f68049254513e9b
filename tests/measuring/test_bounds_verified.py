"""A module that computes something else than the formula that is bounded gets no bound, whatever it is called."""

import math
from collections.abc import Callable

import pytest
import timm
import torch
import transformers as hf
from torch import Tensor, nn
from transformers.models.gemma.modeling_gemma import GemmaRMSNorm
from transformers.models.llama.modeling_llama import LlamaRMSNorm
from transformers.pytorch_utils import Conv1D

from families import sample
from pliant.components import find_components
from pliant.measuring.bounds import bounds
from pliant.measuring.bounds_attention import attention_form
from pliant.measuring.bounds_calls import see_one_item
from pliant.measuring.bounds_forms import NotCovered, linear_form, norm_form
from pliant.measuring.capture import observing

DIM = 24


def drawn(module: nn.Module) -> nn.Module:
    with torch.no_grad():
        for p in module.parameters():
            p.add_(torch.randn(p.shape, generator=torch.Generator().manual_seed(1)))
    return module.eval()


@pytest.mark.parametrize(
    ("module", "centred", "shift", "eps"),
    [
        (nn.LayerNorm(DIM, eps=1e-12), True, 0, 1e-12),
        (nn.LayerNorm(DIM, eps=1e-3), True, 0, 1e-3),
        (nn.LayerNorm(DIM, bias=False), True, 0, 1e-5),
        (nn.RMSNorm(DIM), False, 0, torch.finfo(torch.float32).eps),
        (LlamaRMSNorm(DIM, eps=1e-5), False, 0, 1e-5),
        (GemmaRMSNorm(DIM, eps=1e-6), False, 1, 1e-6),
        (timm.layers.LayerNorm(DIM), True, 0, 1e-6),
        (timm.layers.RmsNorm(DIM), False, 0, 1e-6),
    ],
    ids=lambda v: type(v).__name__ if isinstance(v, nn.Module) else str(v),
)
def test_formula_of_a_norm_is_found(module: nn.Module, centred: bool, shift: int, eps: float) -> None:
    form = norm_form(drawn(module), width=DIM)
    assert form.centred is centred
    assert form.eps == pytest.approx(eps)
    torch.testing.assert_close(form.weight, module.weight.detach().double() + shift)


def test_norm_without_weight_has_ones() -> None:
    form = norm_form(nn.LayerNorm(DIM, elementwise_affine=False), width=DIM)
    assert form.bound(0.5) == pytest.approx(2.0)


class Doubled(nn.LayerNorm):
    """Computes twice what its class says."""

    def forward(self, x: Tensor) -> Tensor:
        return 2 * super().forward(x)


class OtherEps(nn.LayerNorm):
    """Adds another eps than it stores."""

    def forward(self, x: Tensor) -> Tensor:
        return nn.functional.layer_norm(x, self.normalized_shape, self.weight, self.bias, 1e-2)


class Tanh(nn.Module):
    """A dynamic tanh in the place of a norm."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(DIM))

    def forward(self, x: Tensor) -> Tensor:
        return self.weight * torch.tanh(x)


@pytest.mark.parametrize(
    ("module", "reason"),
    [
        (Doubled(DIM), "Doubled computes neither a LayerNorm nor an RMSNorm"),
        (OtherEps(DIM), "OtherEps computes neither"),
        (Tanh(), "Tanh computes neither"),
        (nn.BatchNorm1d(DIM), "BatchNorm1d computes neither"),
        (nn.Identity(), "Identity computes neither"),
        (nn.LayerNorm(DIM // 2), "no weight of 24 features"),
    ],
    ids=lambda v: type(v).__name__ if isinstance(v, nn.Module) else "",
)
def test_another_function_in_the_place_of_a_norm_is_not_covered(module: nn.Module, reason: str) -> None:
    with pytest.raises(NotCovered, match=reason):
        norm_form(drawn(module), width=DIM)


@pytest.mark.parametrize(
    "module", [nn.Linear(DIM, 7), nn.Linear(DIM, 7, bias=False), Conv1D(7, DIM)], ids=["bias", "no bias", "Conv1D"]
)
def test_weight_of_a_linear_map_is_found_out_by_in(module: nn.Module) -> None:
    form = linear_form([drawn(module)])
    assert form.weight.shape == (7, DIM)
    right = torch.linalg.svd(form.weight.double()).Vh[:1].float()
    change = module(right) - module(torch.zeros(1, DIM))  # attained
    assert change.norm().item() == pytest.approx(form.bound(), rel=1e-5)


def test_reparametrised_weight_is_taken_as_it_acts() -> None:
    module = nn.utils.parametrizations.weight_norm(drawn(nn.Linear(DIM, 7)))
    torch.testing.assert_close(linear_form([module]).weight, module.weight.detach())


class Scaled(nn.Linear):
    """Multiplies by more than its weight."""

    def forward(self, x: Tensor) -> Tensor:
        return 1.5 * super().forward(x)


class Packed(nn.Module):
    """A quantised layer: its weight is no floating point matrix."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.zeros(7, DIM, dtype=torch.int8)


def lora() -> nn.Module:
    from peft.tuners.lora import Linear, LoraConfig

    return Linear(nn.Linear(DIM, 7), "default", LoraConfig(r=2), r=2)


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (lambda: Scaled(DIM, 7), "Scaled does something else than multiply by its weight"),
        (Packed, "Packed has no floating point matrix"),
        (lambda: nn.Conv2d(DIM, 7, 1), "Conv2d has no floating point matrix"),
        (lora, "an adapter .* adds to this layer's weight; merge it into the model first"),
    ],
    ids=["scaled", "packed", "convolution", "adapter"],
)
def test_another_function_in_the_place_of_a_linear_map_is_not_covered(
    make: Callable[[], nn.Module], reason: str
) -> None:
    with pytest.raises(NotCovered, match=reason):
        linear_form([make()])


def written_out(self: nn.Module, x: Tensor, change: Callable[..., Tensor]) -> Tensor:
    """timm's attention by hand, with a part that may be changed."""
    q, k, v = self.qkv(x).unflatten(-1, (3, self.num_heads, -1)).permute(2, 0, 3, 1, 4)
    out = change(self, x, q, k, v)
    return self.proj(out.transpose(1, 2).flatten(2))


def plain(self: nn.Module, x: Tensor, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return torch.softmax(self.scale * q @ k.mT, -1) @ v


def rotated(self: nn.Module, x: Tensor, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    angle = torch.arange(q.shape[-2])[:, None] / (1 + torch.arange(q.shape[-1] // 2))

    def turned(z: Tensor) -> Tensor:
        a, b = z.chunk(2, -1)
        return torch.cat([a * angle.cos() - b * angle.sin(), a * angle.sin() + b * angle.cos()], -1)

    return torch.softmax(self.scale * turned(q) @ turned(k).mT, -1) @ v


def biased(self: nn.Module, x: Tensor, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    n = q.shape[-2]
    logits = self.scale * q @ k.mT + torch.arange(n * n).reshape(n, n).sin()
    return torch.softmax(logits.masked_fill(torch.ones(n, n).triu(2).bool(), -math.inf), -1) @ v


def capped(self: nn.Module, x: Tensor, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return torch.softmax(2 * torch.tanh(self.scale * q @ k.mT / 2), -1) @ v


def cosine(self: nn.Module, x: Tensor, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return torch.softmax(10 * nn.functional.normalize(q, dim=-1) @ nn.functional.normalize(k, dim=-1).mT, -1) @ v


def scaled(self: nn.Module, x: Tensor, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return torch.softmax(2 * self.scale * q @ k.mT, -1) @ v


def moved_by_content(self: nn.Module, x: Tensor, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return torch.softmax(self.scale * q @ k.mT + x.norm(dim=-1)[:, None, None, :], -1) @ v


def masked_by_content(self: nn.Module, x: Tensor, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    hidden = (x[..., 0] > 0)[:, None, None, :].index_fill(-1, torch.tensor([0]), False)
    return torch.softmax((self.scale * q @ k.mT).masked_fill(hidden, -math.inf), -1) @ v


def gated(self: nn.Module, x: Tensor, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return plain(self, x, q, k, v) * torch.sigmoid(q)


def twice(self: nn.Module, x: Tensor, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return plain(self, x, q, k, plain(self, x, q, k, v))


def linear(self: nn.Module, x: Tensor, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return self.scale * q @ k.mT @ v


def heads_in_another_order(self: nn.Module, x: Tensor, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return plain(self, x, q.flip(1), k.flip(1), v)


def random(self: nn.Module, x: Tensor, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return plain(self, x, q, k, v) + 0.01 * torch.randn(v.shape)


def changed_attention(monkeypatch: pytest.MonkeyPatch, change: Callable[..., Tensor]) -> nn.Module:
    kind = timm.layers.attention.Attention
    monkeypatch.setattr(kind, "forward", lambda self, x, **masks: written_out(self, x, change))
    return sample("timm VisionTransformer", "plain").model()


@pytest.mark.parametrize("change", [plain, rotated, biased])
def test_attention_of_any_code_is_covered_if_it_is_of_the_form(
    monkeypatch: pytest.MonkeyPatch, change: Callable[..., Tensor]
) -> None:
    model = changed_attention(monkeypatch, change)
    found = find_components(model)
    component = next(c for c in found.of("mha") if c.block == 0)
    with observing(model):
        seen = see_one_item(found, [component], torch.randn(1, 3, 32, 32), "insitu")
        form = attention_form(found, component, seen.calls[component.id])
    assert form.rotary is (change is rotated)
    report = bounds(model, torch.randn(4, 3, 32, 32), roles=["mha"])
    assert set(report.frame["kind"]) == {"certified"}


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (capped, "more than products|no products"),
        (cosine, "no products of queries and keys"),
        (scaled, r"scaled by 0\.70\d+; the module says 0\.35"),
        (moved_by_content, "more than products of rotated queries and keys"),
        (masked_by_content, "more than products of rotated queries and keys"),
        (gated, "not the projected mean of the values"),
        (twice, "seen to take 2 softmaxes"),
        (linear, "seen to take 0 softmaxes"),
        (heads_in_another_order, "no products of queries and keys"),
        (random, "gives other values when it is called again"),
    ],
    ids=lambda v: v.__name__ if callable(v) else "",
)
def test_another_attention_has_no_bound_and_says_why(
    monkeypatch: pytest.MonkeyPatch, change: Callable[..., Tensor], reason: str
) -> None:
    model = changed_attention(monkeypatch, change)
    items = torch.randn(4, 3, 32, 32, generator=torch.Generator().manual_seed(2))
    frame = bounds(model, items, roles=["mha"]).frame
    assert set(frame["kind"]) == {"none"}
    assert frame["reason"].str.contains(reason, regex=True).all(), list(frame["reason"])
    assert frame[["bound", "slack", "without_data"]].isna().all(axis=None)
    assert (frame["max"] > 0).all()


def test_cosine_attention_of_swin_v2_has_no_bound() -> None:
    config = {"image_size": 16, "patch_size": 2, "embed_dim": 16, "depths": [2], "num_heads": [2], "window_size": 4}
    model = hf.Swinv2Model(hf.Swinv2Config(**config)).eval()
    frame = bounds(model, torch.randn(3, 3, 16, 16)).frame
    attention = frame[frame["role"] == "mha"]
    assert set(attention["kind"]) == {"none"}


def test_other_kernels_are_written_out_and_put_back() -> None:
    from pliant.measuring.bounds_attention import attention_written_out

    model = sample("transformers ViT", "backbone").model()
    model.config._attn_implementation = "flex_attention"

    def broken() -> None:
        with attention_written_out(model):
            seen.append(model.config._attn_implementation)
            raise KeyError("in the middle")

    seen: list[str] = []
    with pytest.raises(KeyError, match="in the middle"):
        broken()
    assert seen == ["sdpa"]
    assert model.config._attn_implementation == "flex_attention"
    assert torch.backends.cuda.flash_sdp_enabled()
