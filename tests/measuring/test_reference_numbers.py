"""Agreement with known numbers: those of the paper's published code on a small random model."""

import json
from pathlib import Path

import numpy as np
import pytest
import timm
import torch
from safetensors.torch import load_file

from pliant.measuring import measure

FOLDER = Path(__file__).parents[1] / "reference"


@pytest.fixture(scope="module")
def known() -> tuple[dict, torch.nn.Module, torch.Tensor, torch.Tensor]:
    about = json.loads((FOLDER / "vit_small_random.json").read_text())
    tensors = load_file(FOLDER / "vit_small_random.safetensors")
    source, target = tensors.pop("images_a"), tensors.pop("images_b")
    model = timm.models.vision_transformer.VisionTransformer(**about["model"]["kwargs"])
    model.load_state_dict({name.removeprefix("model."): tensor for name, tensor in tensors.items()})
    return about, model, source, target


@pytest.mark.parametrize("batch_size", [1, 7, 32])
def test_every_component_agrees(known: tuple, batch_size: int) -> None:
    about, model, source, target = known
    found = measure(model, source, target, convention="shared", pairs="matched", batch_size=batch_size)
    frame = found.frame.set_index(["block", "role"])
    assert len(frame) == len(about["rows"])
    for row in about["rows"]:
        ours = frame.loc[(row["block"], row["component"])]
        ratios = np.array(row["ratios"])
        assert ours.plasticity == pytest.approx(row["mean"], rel=1e-5)
        assert ours["max"] == pytest.approx(ratios.max(), rel=1e-5)
        assert ours.stderr == pytest.approx(ratios.std(ddof=1) / np.sqrt(len(ratios)), rel=1e-4)
        assert ours.n_pairs == len(ratios)
