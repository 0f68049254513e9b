"""Bad and extreme input: a finite right answer, or a clear error that says where."""

import math

import numpy as np
import pytest
import torch
import transformers as hf
from torch import nn

from families import sample
from pliant.components import find_components
from pliant.components.attention import attention_weights
from pliant.errors import ConfigError, DataError, MeasurementError, ModelError
from pliant.measuring import bounds as module
from pliant.measuring.bounds import bounds
from pliant.measuring.bounds_certified import ComponentBound
from pliant.measuring.bounds_sets import CertainMeter

VIT = sample("timm VisionTransformer", "plain")


@pytest.mark.parametrize(
    ("name", "tensor"),
    [
        ("timm VisionTransformer", "blocks.1.attn.qkv.weight"),
        ("timm VisionTransformer", "blocks.0.norm2.weight"),
        ("timm VisionTransformer", "blocks.0.mlp.fc1.bias"),
        ("transformers GPT-2", "transformer.h.1.mlp.c_proj.weight"),
        ("torchvision VisionTransformer", "encoder.layers.encoder_layer_0.self_attention.in_proj_weight"),
    ],
)
@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_weights_that_are_not_finite_are_named(name: str, tensor: str, value: float) -> None:
    one = sample(name)
    model = one.model()
    with torch.no_grad():
        model.get_parameter(tensor).view(-1)[3] = value
    with pytest.raises(ModelError, match=rf"^{tensor} holds 1 values of \d+ that are not finite"):
        bounds(model, one.inputs(3))


def test_a_broken_weight_in_a_role_that_is_not_bounded_does_not_stop() -> None:
    model = VIT.model()
    with torch.no_grad():
        model.head.weight[0, 0] = math.nan
    assert set(bounds(model, VIT.inputs(3)).frame["kind"]) == {"certified"}


def test_zero_weights_have_bound_zero() -> None:
    model = VIT.model()
    with torch.no_grad():
        for parameter in (*model.blocks[0].attn.parameters(), *model.blocks[0].mlp.fc2.parameters()):
            parameter.zero_()
    frame = bounds(model, VIT.inputs(4)).frame.set_index("component")
    for name in ("block00.mha", "block00.fc2"):
        assert frame.loc[name, ["bound", "max", "mean"]].tolist() == [0, 0, 0]
        assert math.isnan(frame["slack"][name])


def with_a_constant_token(eps: float) -> nn.Module:
    """The class token is zero, so it has no variance at the first norm."""
    model = VIT.model()
    with torch.no_grad():
        model.cls_token.zero_()
        model.pos_embed[:, 0].zero_()
    for block in model.blocks:
        block.norm1.eps = block.norm2.eps = eps
    return model


@pytest.mark.parametrize("convention", ["insitu", "shared"])
def test_tokens_without_variance_are_bounded_through_eps(convention: str) -> None:
    frame = bounds(with_a_constant_token(1e-4), VIT.inputs(4), convention=convention).frame.set_index("component")
    row = frame.loc["block00.ln1"]
    assert row["s_min"] == pytest.approx(1e-2)
    assert row["bound"] == pytest.approx(row["without_data"])
    assert math.isfinite(row["bound"])


def test_tokens_without_variance_and_no_eps_stop_with_the_components_name() -> None:
    with pytest.raises(MeasurementError, match=r"block00\.ln1: .*not finite"):
        bounds(with_a_constant_token(0.0), VIT.inputs(4))


def test_norms_without_eps_are_bounded_by_data_alone() -> None:
    model = VIT.model()
    for block in model.blocks:
        block.norm1.eps = block.norm2.eps = 0.0
    frame = bounds(model, VIT.inputs(4)).frame
    norms = frame[frame["role"].isin(["ln1", "ln2"])]
    assert set(norms["kind"]) == {"certified"}
    assert norms["without_data"].isna().all()
    assert np.isfinite(norms["bound"]).all()


SIZES = {"hidden_size": 32, "num_hidden_layers": 2, "intermediate_size": 48, "vocab_size": 50}
GPT2 = {"n_embd": 32, "n_layer": 2, "vocab_size": 50, "n_positions": 20}
SPECIAL = {"bos_token_id": 1, "eos_token_id": 2}


def drawn(model: nn.Module) -> nn.Module:
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.1 * torch.randn(parameter.shape, generator=generator))
    return model.eval()


@pytest.mark.parametrize(
    "model",
    [
        hf.LlamaModel(hf.LlamaConfig(**SIZES, num_attention_heads=4, num_key_value_heads=2)),
        hf.GPT2Model(hf.GPT2Config(**GPT2, n_head=4, **SPECIAL)),
        hf.BertModel(hf.BertConfig(**SIZES, num_attention_heads=4)),
    ],
    ids=lambda m: type(m).__name__,
)
def test_one_token_makes_attention_a_linear_map(model: nn.Module) -> None:
    drawn(model)
    report = bounds(model, torch.arange(3, 11)[:, None])
    found = find_components(model)
    for component in found.of("mha"):
        row = report.frame.set_index("component").loc[component.id]
        w = attention_weights(found, component)
        values = w.w_v.detach().double().unflatten(0, (w.kv_heads, -1)).repeat_interleave(w.heads // w.kv_heads, 0)
        exact = torch.linalg.svdvals(w.w_o.detach().double() @ values.flatten(0, 1))[0].item()
        assert row["kind"] == "certified"
        assert row["tokens"] == 1
        assert row["bound"] == pytest.approx(exact, rel=1e-9)
        assert row["without_data"] == row["bound"]
        assert 0 < row["max"] <= row["bound"] * (1 + 1e-5)


@pytest.mark.parametrize(
    "config",
    [
        {"num_attention_heads": 1, "num_key_value_heads": 1},
        {"num_attention_heads": 4, "num_key_value_heads": 1, "head_dim": 16},
        {"num_attention_heads": 2, "num_key_value_heads": 2, "head_dim": 4},
    ],
    ids=["one head", "wider than the tokens", "narrower than the tokens"],
)
def test_one_head_and_projections_that_are_not_square(config: dict[str, int]) -> None:
    model = drawn(hf.LlamaModel(hf.LlamaConfig(**SIZES, **config)))
    tokens = torch.randint(3, 50, (6, 5), generator=torch.Generator().manual_seed(0))
    report = bounds(model, tokens[:3], tokens[3:], local=1)
    assert set(report.frame["kind"]) == {"certified"}
    assert (report.local["local"] <= report.local["bound"]).all()
    assert len(report.local) == 2 * (1 + config["num_attention_heads"])


def test_a_rate_above_a_certified_bound_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        module, "certified_bound", lambda form, tokens: ComponentBound(1e-3, "certified", "", "nothing")
    )
    with pytest.raises(MeasurementError, match=r"block00\.ln1: a measured rate of change of .* exceeds the certified"):
        bounds(VIT.model(), VIT.inputs(3))


@pytest.mark.parametrize("pairs", ["all", "matched"])
def test_pairs_that_differ_by_rounding_alone_are_not_taken_for_errors(pairs: str) -> None:
    model, items = VIT.model(), VIT.inputs(4)
    with torch.no_grad():
        for block in model.blocks:  # far below the noise that equal images leave
            block.mlp.fc1.weight.mul_(1e-4)
            block.mlp.fc2.weight.mul_(1e-4)
    near = items + 1e-7 * torch.randn(items.shape, generator=torch.Generator().manual_seed(3))
    frame = bounds(model, items, near, pairs=pairs).frame.set_index("component")
    above = frame[frame["slack"] < 1]
    assert not above.empty
    assert set(above["kind"]) == {"certified"}
    assert set(above["reason"]) == {"rates above it are rounding: those inputs are nearly equal"}


@pytest.mark.parametrize("design", ["two-sample", "one-sample", "matched"])
def test_certain_rate_is_the_rate_where_pairs_are_apart_and_less_where_they_are_not(design: str) -> None:
    component = find_components(VIT.model()).of("fc1")[0]
    meter = CertainMeter([component], design)
    meter.begin(0, source=4 if design == "one-sample" else 2)
    x = torch.randn(4, 5, 8, generator=torch.Generator().manual_seed(0))
    meter.listen(component, x, 3 * x)
    assert meter.largest[component.id] == pytest.approx(3.0, rel=1e-4)
    again = CertainMeter([component], design)
    again.begin(0, source=4 if design == "one-sample" else 2)
    close = x[:1] + 1e-7 * x
    again.listen(component, close, 3 * close + 1e-7 * torch.randn(x.shape))
    assert again.largest[component.id] < 3.0


def test_texts_of_different_length_are_refused() -> None:
    one = sample("transformers BERT")
    ids, mask = one.inputs(3), torch.ones(3, 7, dtype=torch.long)
    texts = {"input_ids": ids, "attention_mask": mask}
    assert set(bounds(one.model(), texts).frame["kind"]) == {"certified"}
    mask[1, 5:] = 0
    with pytest.raises(DataError, match=r"texts of different length.* Cut them to one length"):
        bounds(one.model(), texts)


def test_local_asks_for_no_more_items_than_there_are() -> None:
    with pytest.raises(ConfigError, match="local is 4; expected a number of items from 0 to 3"):
        bounds(VIT.model(), VIT.inputs(3), local=4)
