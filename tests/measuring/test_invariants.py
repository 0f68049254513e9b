"""What must not change: the model that is measured, and results under changes that keep the network's function."""

import copy
from typing import Any

import numpy as np
import pytest
import torch
import transformers as hf
from torch import Tensor, nn

from families import SAMPLES, Sample, sample
from pliant.components import find_components
from pliant.components.attention import attention_weights
from pliant.errors import MeasurementError
from pliant.measuring import Measurement, measure

both = pytest.mark.parametrize("convention", ["insitu", "shared"])


def state(model: nn.Module) -> dict[str, Any]:
    """Everything of a model that measuring could leave changed."""
    hooks = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_forward_hooks_with_kwargs")
    config = getattr(model, "config", None)
    return {
        "modes": [m.training for m in model.modules()],
        "gradients": [p.requires_grad for p in model.parameters()],
        "grads": [p.grad is None for p in model.parameters()],
        "tensors": [(t.dtype, t.device, t.sum().item()) for t in model.state_dict().values() if t.numel()],
        "hooks": [len(getattr(m, name)) for m in model.modules() for name in hooks],
        "own": [sorted(vars(m)) for m in model.modules()],
        "config": config.to_dict() if config is not None else None,
    }


def values(found: Measurement) -> np.ndarray:
    return found.frame.set_index(["role", "block"])["plasticity"].to_numpy()


@both
@pytest.mark.parametrize("sample", SAMPLES, ids=lambda s: s.id)
def test_the_model_is_given_back_as_it_was(sample: Sample, convention: str) -> None:
    model = sample.model()
    list(model.modules())[-1].train()
    next(model.parameters()).requires_grad_(False)
    before, random = state(model), torch.get_rng_state()
    measure(model, sample.inputs(2, 1), sample.inputs(2, 2), convention=convention)
    assert state(model) == before
    assert torch.equal(torch.get_rng_state(), random)


class Broken(Exception):
    """Raised in the middle of a forward pass."""


@both
@pytest.mark.parametrize("name", ["timm VisionTransformer", "timm Swin", "transformers BERT", "transformers GPT-2"])
def test_the_model_is_given_back_as_it_was_after_an_exception(name: str, convention: str) -> None:
    chosen = sample(name)
    model = chosen.model().train()
    before, random = state(model), torch.get_rng_state()
    embedding = find_components(model).of("emb")[0].parameters[-1].rpartition(".")[0]
    broken = model.get_submodule(chosen.modules("mha", 1)[0] if convention == "insitu" else embedding)

    def fail(*args: object, **kwargs: object) -> None:
        torch.rand(3)
        raise Broken("in the middle")

    broken.forward = fail
    with pytest.raises(Broken, match="in the middle"):
        measure(model, chosen.inputs(3), convention=convention)
    del broken.forward
    assert state(model) == before
    assert torch.equal(torch.get_rng_state(), random)


@both
def test_a_model_in_training_mode_is_measured_in_evaluation_mode(convention: str) -> None:
    config = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 32}
    dropping = {"hidden_dropout_prob": 0.5, "attention_probs_dropout_prob": 0.5}
    model = hf.ViTModel(hf.ViTConfig(**config, **dropping, image_size=8, patch_size=4)).train()
    items = torch.randn(4, 3, 8, 8)
    first = measure(model, items, convention=convention)
    assert np.array_equal(values(measure(model, items, convention=convention)), values(first))


def permuted(model: nn.Module, order: Tensor, first: str, second: str) -> nn.Module:
    """Return the model with the hidden features of a feed-forward part in another order: the same function."""
    changed = copy.deepcopy(model)
    with torch.no_grad():
        up, down = changed.get_submodule(first), changed.get_submodule(second)
        up.weight.copy_(up.weight[order])
        up.bias.copy_(up.bias[order])
        down.weight.copy_(down.weight[:, order])
    return changed


def test_permuting_hidden_features_leaves_insitu_unchanged_and_changes_fc2_shared() -> None:
    chosen = sample("timm VisionTransformer")
    model, items = chosen.model(), chosen.inputs(5)
    changed = permuted(model, torch.randperm(4 * 32), "blocks.0.mlp.fc1", "blocks.0.mlp.fc2")
    torch.testing.assert_close(model(items), changed(items), rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(values(measure(changed, items)), values(measure(model, items)), rtol=1e-5)
    shared = [measure(m, items, convention="shared").frame.set_index("component").plasticity for m in (model, changed)]
    moved = (shared[0] / shared[1] - 1).abs() > 1e-4
    assert list(moved[moved].index) == ["block00.fc2"]


@both
@pytest.mark.parametrize("name", ["timm VisionTransformer", "transformers ViT"])
def test_permuting_heads_leaves_everything_unchanged(name: str, convention: str) -> None:
    chosen = sample(name)
    model, items = chosen.model(), chosen.inputs(5)
    changed = copy.deepcopy(model)
    found = find_components(changed)
    w = attention_weights(found, next(c for c in found.of("mha") if c.block == 0))
    order = torch.randperm(w.heads, generator=torch.Generator().manual_seed(3))
    with torch.no_grad():
        for rows in (w.w_q, w.w_k, w.w_v, w.b_q, w.b_k, w.b_v):
            grouped = rows.view(w.heads, w.head_dim, *rows.shape[1:])
            grouped.copy_(grouped[order].clone())
        columns = w.w_o.view(-1, w.heads, w.head_dim)
        columns.copy_(columns[:, order].clone())
    assert not torch.equal(w.w_q, attention_weights(find_components(model), found.of("mha")[0]).w_q)
    np.testing.assert_allclose(
        values(measure(changed, items, convention=convention)),
        values(measure(model, items, convention=convention)),
        rtol=1e-5,
    )


@both
def test_activations_that_are_not_finite_stop_with_the_components_name(convention: str) -> None:
    chosen = sample("timm VisionTransformer")
    model = chosen.model()
    with torch.no_grad():
        model.blocks[1].norm2.weight[3] = torch.nan
    with pytest.raises(MeasurementError, match=r"block01\.ln2: .*not finite"):
        measure(model, chosen.inputs(3), convention=convention)


def test_mae_gives_the_numbers_of_a_vit_with_the_same_weights() -> None:
    chosen = sample("transformers ViT", "MAE encoder")
    model = chosen.model()
    vit = hf.ViTModel(hf.ViTConfig(**{k: getattr(model.config, k) for k in SIZES}), add_pooling_layer=False)
    vit.load_state_dict(model.state_dict())
    source, target = chosen.inputs(3, 1), chosen.inputs(4, 2)
    for convention in ("insitu", "shared"):
        ours, theirs = (measure(m, source, target, convention=convention) for m in (model, vit))
        np.testing.assert_allclose(values(ours), values(theirs), rtol=1e-6)
    assert model.config.mask_ratio == 0.75


SIZES = ("hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size", "image_size", "patch_size")
