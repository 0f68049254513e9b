import pytest
import torch
from transformers import BitImageProcessor

from models.small_checkpoints import CONFIGS, images, small_model, write
from pliant import models
from pliant.errors import ConfigError, ModelError
from pliant.models.quiet import quiet
from pliant.models.resizing import resize_model

INTERPOLATED = ("vit", "deit", "clip", "siglip", "vit_msn")
"""Families whose forward pass takes one size only, unless told to interpolate in each pass."""


@pytest.mark.parametrize("family", CONFIGS)
@pytest.mark.parametrize("classes", [None, ["a", "b", "c"]])
def test_every_family_takes_another_size_and_comes_back(family, classes, tmp_path):
    folder = write(small_model(family), tmp_path / "checkpoint", size={"height": 32, "width": 32})
    loaded = models.load(str(folder), classes=classes, image_size=48)
    assert (loaded.preprocessing.height, loaded.preprocessing.width) == (48, 48)
    output = loaded.model(pixel_values=images(size=48))[0]
    saved = models.save(loaded.model, tmp_path / "saved", preprocessing=loaded.preprocessing)
    back = models.load(str(saved))
    assert torch.equal(back.model(pixel_values=images(size=48))[0], output)


@pytest.mark.parametrize("family", INTERPOLATED)
def test_interpolation_is_the_model_s_own(family, tmp_path):
    folder = write(small_model(family), tmp_path / "checkpoint")
    own = models.load(str(folder), classes=["a", "b"])
    other = models.load(str(folder), classes=["a", "b"], image_size=48)
    expected = own.model(pixel_values=images(size=48), interpolate_pos_encoding=True).logits
    assert torch.allclose(other.model(pixel_values=images(size=48)).logits, expected, atol=1e-6)
    config = getattr(other.model.config, "vision_config", None) or other.model.config
    assert config.image_size == 48


def test_own_size_changes_nothing(tmp_path):
    folder = str(write(small_model("vit"), tmp_path / "checkpoint"))
    assert models.load(folder, image_size=32).fingerprint == models.load(folder).fingerprint


@pytest.mark.parametrize(("size", "valid"), [(30, "24 or 32"), (33, "32 or 40"), (3, "8"), (0, "8"), (-16, "8")])
def test_part_of_a_patch_names_the_nearest_sizes(size, valid, tmp_path):
    folder = str(write(small_model("dinov2"), tmp_path / "checkpoint"))
    with pytest.raises(ConfigError, match=rf"image size {size} is not a whole number of patches of 8.*: {valid}\."):
        models.load(folder, image_size=size)


def test_crop_keeps_its_share(tmp_path):
    processor = {"size": {"shortest_edge": 40}, "do_center_crop": True, "crop_size": {"height": 32, "width": 32}}
    folder = write(small_model("dinov2"), tmp_path / "checkpoint")
    with quiet():
        BitImageProcessor(**processor).save_pretrained(folder)
    preprocessing = models.load(str(folder), image_size=64).preprocessing
    assert (preprocessing.height, preprocessing.resize) == (64, 80)


def test_a_model_bound_to_its_size_says_so(tmp_path, monkeypatch):
    folder = write(small_model("vit"), tmp_path / "checkpoint")
    model = models.load(str(folder)).model
    monkeypatch.delattr(type(model.embeddings), "interpolate_pos_encoding")
    with pytest.raises(ModelError, match=r"bound to its image size by embeddings\.position_embeddings"):
        resize_model(model, 48)
