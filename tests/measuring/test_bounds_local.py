"""The local constant of attention: right against a dense Jacobian, below the bound, and the model is left as it was."""

import pytest
import torch
from torch import nn

from families import Sample, sample
from pliant.components import find_components
from pliant.errors import MeasurementError
from pliant.measuring import bounds as module
from pliant.measuring.bounds import bounds
from pliant.measuring.bounds_attention import attention_written_out, called
from pliant.measuring.bounds_calls import see_one_item
from pliant.measuring.bounds_local import LOCAL_COLUMNS
from pliant.measuring.capture import observing

KINDS = (
    ("timm VisionTransformer", "plain"),
    ("timm VisionTransformer", "layerscale, qk norm"),  # no bound, but a local constant
    ("timm Eva, gated", "DINOv3"),
    ("timm Swin", "two widths"),
    ("transformers BEiT", "shared bias"),
    ("transformers BERT", "encoder"),
    ("transformers LLaMA and Qwen", "LLaMA"),
    ("transformers GPT-2", "language model"),
    ("torchvision VisionTransformer", "plain"),
)
both = pytest.mark.parametrize("convention", ["insitu", "shared"])


def dense(one: Sample, model: nn.Module, convention: str, block: int) -> float:
    """Largest singular value of the whole Jacobian of a block's attention at the first item."""
    found = find_components(model)
    component = next(c for c in found.of("mha") if c.block == block)
    with observing(model), attention_written_out(model):
        call = see_one_item(found, [component], one.inputs(1), convention).calls[component.id].call
        modules = [found.module(n) for n in component.modules]
        jacobian = torch.func.jacrev(lambda x: called(modules, call, x))(call.tokens)
    whole = jacobian.reshape(-1, call.tokens.numel())
    return torch.linalg.eigvalsh(whole @ whole.T)[-1].sqrt().item()


@both
@pytest.mark.parametrize("name", KINDS, ids=lambda n: f"{n[0]}, {n[1]}")
def test_local_constant_is_the_norm_of_the_jacobian_and_below_the_bound(name: tuple[str, str], convention: str) -> None:
    one = sample(*name)
    model, items = one.model(), one.inputs(3)
    report = bounds(model, items, convention=convention, roles=["mha"], local=1)
    assert tuple(report.local.columns) == LOCAL_COLUMNS
    whole = report.local[report.local["head"].isna()].set_index("component")
    last = len(one.blocks) - 1
    assert whole["local"][f"block{last:02d}.mha"] == pytest.approx(dense(one, model, convention, last), rel=2e-3)
    given = report.local[report.local["bound"].notna()]
    assert (given["local"] <= given["bound"]).all()
    assert given.empty == ("qk norm" in one.variant)
    assert report.local["converged"].all()
    heads = report.local.groupby("component")["head"].count()
    assert (heads >= 2).all()


def test_every_item_is_taken_by_itself() -> None:
    one = sample("timm VisionTransformer", "plain")
    model, items = one.model(), one.inputs(3)
    several = bounds(model, items, roles=["mha"], local=2).local
    second = bounds(model, items[1:], roles=["mha"], local=1).local
    assert set(several["item"]) == {0, 1}
    values = several[several["item"] == 1]["local"].to_numpy()
    assert values == pytest.approx(second["local"].to_numpy(), rel=1e-4)


def state(model: nn.Module) -> list[object]:
    hooks = [len(m._forward_hooks) + len(m._forward_pre_hooks) for m in model.modules()]
    tensors = [(t.sum().item(), t.dtype, t.device) for t in model.state_dict().values()]
    config = getattr(model, "config", None)
    return [
        hooks,
        tensors,
        [m.training for m in model.modules()],
        [(p.requires_grad, p.grad is None) for p in model.parameters()],
        [getattr(m, "fused_attn", None) for m in model.modules()],
        getattr(config, "_attn_implementation", None),
        torch.get_rng_state().tolist(),
        (torch.backends.cuda.flash_sdp_enabled(), torch.is_grad_enabled()),
    ]


@both
@pytest.mark.parametrize("name", ["timm VisionTransformer", "transformers ViT", "torchvision VisionTransformer"])
def test_the_model_is_given_back_as_it_was(name: str, convention: str) -> None:
    one = sample(name)
    model = one.model()
    list(model.modules())[-1].train()
    next(model.parameters()).requires_grad_(False)
    before = state(model)
    bounds(model, one.inputs(3), convention=convention, local=1)
    assert state(model) == before


@pytest.mark.parametrize("stage", ["component_form", "local_norms", "certified_bound"])
def test_the_model_is_given_back_as_it_was_after_an_exception(stage: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*args: object, **kwargs: object) -> None:
        torch.rand(2)
        raise MeasurementError("in the middle")

    one = sample("transformers ViT")
    model = one.model().train()
    monkeypatch.setattr(module, stage, fail)
    before = state(model)[:-2]
    with pytest.raises(MeasurementError, match="in the middle"):
        bounds(model, one.inputs(3), local=1)
    assert state(model)[:-2] == before
