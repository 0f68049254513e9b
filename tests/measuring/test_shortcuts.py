"""With shortcuts and without: the same numbers in every column, on every family; and which components have one."""

from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import pytest
import torch
from torch import nn

from families import SAMPLES, Sample, sample
from pliant.components import find_components
from pliant.measuring import Measurement, measure, shortcuts
from pliant.measuring.capture import observing
from pliant.measuring.shared import SharedInput, apply_component
from pliant.measuring.shortcuts import Shortcuts
from pliant.measuring.structure import attention_of, linear_map_of, norm_of

EXACT = ("n_source", "n_target", "n_pairs", "n_dropped")


def same_numbers(found: Measurement, expected: Measurement, rtol: float = 1e-5) -> None:
    assert list(found.frame["component"]) == list(expected.frame["component"])
    for column in found.frame.columns[4:]:
        ours, theirs = (m.frame[column].to_numpy(dtype=float) for m in (found, expected))
        if column in EXACT:
            np.testing.assert_array_equal(ours, theirs, err_msg=column)
        else:  # quantiles are rounded to 0.1 %, and standard errors are differences
            loose = {"q05": 2e-3, "q50": 2e-3, "q95": 2e-3, "stderr": 1e-3}.get(column, rtol)
            np.testing.assert_allclose(ours, theirs, rtol=loose, err_msg=column)


@contextmanager
def without_shortcuts() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(shortcuts, "_safe", lambda entered: False)
        yield


@contextmanager
def always_shortcuts() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(shortcuts, "linear_is_shorter", lambda maps, x, pairing: True)
        yield


@pytest.mark.parametrize("sample", SAMPLES, ids=lambda s: s.id)
def test_every_column_is_the_same(sample: Sample) -> None:
    model = sample.model()
    source, target = sample.inputs(4, 1), sample.inputs(4, 2)
    target[2] = source[1]  # a pair that is dropped
    for arguments in ((source, target, "all"), (source, None, "all"), (source, target, "matched")):
        x, y, pairs = arguments
        with always_shortcuts():
            found = measure(model, x, y, convention="shared", pairs=pairs)
        with without_shortcuts():
            expected = measure(model, x, y, convention="shared", pairs=pairs)
        same_numbers(found, expected)


PLAIN = {
    "timm VisionTransformer/plain": {"norms", "maps", "attention"},
    "timm VisionTransformer/layerscale, qk norm": {"norms", "maps"},
    "timm Eva, gated/DINOv3": {"norms", "maps"},
    "timm Swin/two widths": {"norms", "maps"},
    "transformers ViT/classifier": {"norms", "maps", "attention"},
    "transformers BEiT/bias per block": {"norms", "maps"},
    "transformers ViT before 5.9/classifier": {"norms", "maps", "attention"},
    "transformers DINOv2/registers": {"norms", "maps", "attention"},
    "transformers DINOv3/plain": {"norms", "maps"},
    "transformers CLIP and SigLIP vision/SigLIP": {"norms", "maps", "attention"},
    "transformers BERT/encoder": {"norms", "maps", "attention"},
    "transformers LLaMA and Qwen/Qwen3": {"norms", "maps"},
    "transformers GPT-2/language model": {"norms", "maps", "attention"},
    "torchvision VisionTransformer/plain": {"norms", "maps", "attention"},
}


@pytest.mark.parametrize("name", PLAIN)
def test_which_components_have_a_shortcut(name: str) -> None:
    chosen = sample(*name.split("/"))
    model = chosen.model()
    anatomy = find_components(model)
    components = [c for c in anatomy.components if c.block == 0]
    found = Shortcuts(anatomy, components)
    with observing(model):
        shared = SharedInput(anatomy)(chosen.inputs(2))
        attention = next(c for c in components if c.role == "mha")
        plain = attention_of(anatomy, attention, shared.attention[0], shared.stages[0])
    kinds = {
        "norms": all(found._norms.values()),
        "maps": all(found._maps.values()),
        "attention": plain is not None,
    }
    assert {kind for kind, has in kinds.items() if has} == PLAIN[name]


class Louder(nn.Linear):
    """A linear map that does more than its name says."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Map, twice as loud."""
        return 2 * super().forward(x)


def test_what_does_more_than_its_kind_has_no_shortcut() -> None:
    assert linear_map_of(nn.Linear(3, 4)) is not None
    assert linear_map_of(Louder(3, 4)) is None
    assert linear_map_of(nn.Linear(3, 4).double()) is None
    hooked = nn.Linear(3, 4)
    hooked.register_forward_hook(lambda module, args, output: 2 * output)
    assert linear_map_of(hooked) is None
    assert linear_map_of(nn.utils.parametrizations.weight_norm(nn.Linear(3, 4))) is None
    assert norm_of(nn.LayerNorm(4)) is not None
    assert norm_of(nn.LayerNorm((2, 4))) is None
    assert norm_of(nn.RMSNorm(4)) is None  # its epsilon depends on the input's precision
    assert norm_of(nn.BatchNorm1d(4)) is None


@pytest.mark.parametrize("part", ["fc1", "mha", "ln1"])
def test_a_changed_module_is_measured_as_it_is(part: str) -> None:
    """A hook of the user's that doubles an output doubles its plasticity, in both conventions."""
    chosen = sample("timm VisionTransformer")
    model, items = chosen.model(), chosen.inputs(6)
    for convention in ("shared", "insitu"):
        before = measure(model, items, convention=convention)
        handle = model.get_submodule(chosen.modules(part, 1)[0]).register_forward_hook(lambda m, a, out: 2 * out)
        after = measure(model, items, convention=convention)
        handle.remove()
        ratio = (after.frame["plasticity"] / before.frame["plasticity"]).to_numpy()
        row = list(before.frame["component"]).index(f"block01.{part}")
        assert ratio[row] == pytest.approx(2, rel=1e-5)
        assert ratio[:row] == pytest.approx(np.ones(row), rel=1e-5)


def test_attention_that_does_something_else_inside_is_found_out() -> None:
    chosen = sample("timm VisionTransformer")
    model = chosen.model()
    model.blocks[0].attn.attn_drop = nn.Identity()
    model.blocks[0].attn.proj_drop = Doubled()  # no name tells of it
    anatomy = find_components(model)
    first = next(c for c in anatomy.of("mha") if c.block == 0)
    with torch.no_grad():
        shared = SharedInput(anatomy)(chosen.inputs(2))
        assert attention_of(anatomy, first, shared.attention[0], shared.stages[0]) is None


class Doubled(nn.Module):
    """Doubles."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return 2 x."""
        return 2 * x


@pytest.mark.parametrize("scale", [1e-20, 1e-4, 1e4, 1e20])
def test_embedded_tokens_of_any_scale(scale: float) -> None:
    chosen = sample("timm VisionTransformer")
    model, items = chosen.model(), chosen.inputs(6)
    with torch.no_grad():
        for name in ("cls_token", "pos_embed", "patch_embed.proj.weight", "patch_embed.proj.bias"):
            model.get_parameter(name).mul_(scale)
    found = measure(model, items, convention="shared", roles=("fc1", "fc2")).frame
    anatomy = find_components(model)
    with torch.no_grad():
        shared = SharedInput(anatomy)(items)
        for row in found.itertuples():
            component = next(c for c in anatomy.components if c.id == row.component)
            x, y = (t.double().flatten(1) for t in apply_component(anatomy, component, shared))
            i, j = torch.triu_indices(6, 6, 1)
            rates = (y[i] - y[j]).norm(dim=1) / (x[i] - x[j]).norm(dim=1)
            assert row.plasticity == pytest.approx(rates.mean().item(), rel=1e-5)


def test_shared_fc1_of_padded_width_is_told_by_its_input_scale() -> None:
    """`fc2` gets zero-padded tokens: the same norms, a smaller standard deviation over its many features."""
    chosen = sample("timm VisionTransformer")
    frame = measure(chosen.model(), chosen.inputs(4), convention="shared").frame.set_index("role")
    assert frame.token_norm["fc2"].iloc[0] == pytest.approx(frame.token_norm["fc1"].iloc[0], rel=1e-6)
    assert frame.token_std_min["fc2"].iloc[0] < frame.token_std_min["fc1"].iloc[0]
