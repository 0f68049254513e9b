import json
from pathlib import Path

import numpy as np
import pytest
import torch
import transformers as tf
from PIL import Image

from models.small_checkpoints import small_model, write
from pliant import models
from pliant.errors import ModelError
from pliant.models.preprocessing import _from_timm, read_preprocessing, timm_entries, write_preprocessing
from pliant.terms import Preprocessing

HALF = (0.5, 0.5, 0.5)
IMAGENET = ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))
CLIP = ((0.48145466, 0.4578275, 0.40821073), (0.26862954, 0.26130258, 0.27577711))

PUBLISHED = [
    # google/vit-base-patch16-224-in21k: the old key, a bare number
    (
        {"feature_extractor_type": "ViTFeatureExtractor", "size": 224, "resample": 2, "do_resize": True}
        | {"do_normalize": True, "image_mean": HALF, "image_std": HALF},
        (224, 224, None, "bilinear", HALF, HALF),
    ),
    # facebook/dinov2-small
    (
        {"image_processor_type": "BitImageProcessor", "size": {"shortest_edge": 256}, "resample": 3}
        | {"crop_size": {"height": 224, "width": 224}, "do_center_crop": True, "rescale_factor": 1 / 255}
        | {"image_mean": IMAGENET[0], "image_std": IMAGENET[1]},
        (224, 224, 256, "bicubic", *IMAGENET),
    ),
    # openai/clip-vit-base-patch32: bare numbers that mean the shorter side
    (
        {"feature_extractor_type": "CLIPFeatureExtractor", "size": 224, "crop_size": 224, "resample": 3}
        | {"do_center_crop": True, "image_mean": CLIP[0], "image_std": CLIP[1]},
        (224, 224, 224, "bicubic", *CLIP),
    ),
    # google/siglip-base-patch16-224
    (
        {"image_processor_type": "SiglipImageProcessor", "size": {"height": 224, "width": 224}, "resample": 3}
        | {"image_mean": HALF, "image_std": HALF},
        (224, 224, None, "bicubic", HALF, HALF),
    ),
    # no normalisation
    (
        {"image_processor_type": "ViTImageProcessor", "size": {"height": 30, "width": 20}, "do_normalize": False},
        (30, 20, None, "bilinear", (0.0, 0.0, 0.0), (1.0, 1.0, 1.0)),
    ),
]


def read(folder, entries, config=None):
    (folder / "preprocessor_config.json").write_text(json.dumps(entries))
    (folder / "config.json").write_text(json.dumps({"model_type": "vit"}))
    return read_preprocessing(folder, config)


@pytest.mark.parametrize(("entries", "expected"), PUBLISHED)
def test_processors_as_published(entries, expected, tmp_path):
    found, notes = read(tmp_path, entries)
    origin = f"preprocessor_config.json of {tmp_path}"
    assert found == Preprocessing(*expected, origin)
    assert notes == ()


def test_squeezing_before_a_crop_is_said(tmp_path):
    entries = {"image_processor_type": "DeiTImageProcessor", "size": 256, "crop_size": 224, "do_center_crop": True}
    found, notes = read(tmp_path, entries)
    assert (found.height, found.width, found.resize) == (224, 224, 256)
    assert len(notes) == 1
    assert "squeezes each image to 256x256" in notes[0]


def test_resizing_without_a_crop_is_said(tmp_path):
    entries = {"image_processor_type": "BitImageProcessor", "size": {"shortest_edge": 64}, "do_center_crop": False}
    found, notes = read(tmp_path, entries)
    assert (found.height, found.width, found.resize) == (64, 64, 64)
    assert "crops the centre square" in notes[0]


@pytest.mark.parametrize(
    ("entries", "message"),
    [
        ({"rescale_factor": 1 / 127.5}, r"scaled by 0\.0078.*by 1/255 only"),
        ({"do_rescale": False}, "no rescaling"),
        ({"resample": 5}, r"interpolation <?.*pliant knows bicubic, bilinear"),
        ({"image_mean": [0.5, 0.5]}, "normalises 2 channels"),
    ],
)
def test_what_pliant_cannot_do_is_refused(entries, message, tmp_path):
    with pytest.raises(ModelError, match=message):
        read(tmp_path, {"image_processor_type": "ViTImageProcessor", **entries})


def test_unreadable_processor_is_refused_by_name(tmp_path):
    with pytest.raises(ModelError, match=r"preprocessor_config\.json cannot be read as an image processor"):
        read(tmp_path, {"image_processor_type": "NoSuchProcessor", "auto_map": {"AutoImageProcessor": "code.Mine"}})


@pytest.mark.parametrize("interpolation", ["nearest", "lanczos", "bilinear", "bicubic"])
@pytest.mark.parametrize(("height", "width", "resize"), [(32, 32, None), (30, 20, None), (32, 32, 37), (224, 224, 256)])
def test_what_is_written_comes_back_and_transformers_agrees(height, width, resize, interpolation, tmp_path):
    mine = Preprocessing(height, width, resize, interpolation, *IMAGENET, "mine")
    write_preprocessing(mine, tmp_path)
    found, notes = read_preprocessing(tmp_path, None)
    assert found == Preprocessing(height, width, resize, interpolation, *IMAGENET, found.origin)
    assert notes == ()
    if interpolation == "lanczos":
        return  # transformers' torch backend has none
    image = Image.fromarray(np.random.default_rng(0).integers(0, 256, (50, 70, 3), dtype=np.uint8))
    values = tf.AutoImageProcessor.from_pretrained(tmp_path)(image, return_tensors="pt")["pixel_values"]
    assert values.shape == (1, 3, height, width)


@pytest.mark.parametrize("side", [28, 32, 98, 224, 384, 518])
@pytest.mark.parametrize("ratio", [1.0, 0.875, 0.9, 0.95, 0.703])
def test_timm_shares_come_back(side, ratio):
    resize = int(side / ratio)
    mine = Preprocessing(side, side, resize, "bicubic", HALF, HALF, "mine")
    found, _ = _from_timm(timm_entries(mine), Path("config.json"))
    assert (found.height, found.width, found.resize) == (side, side, resize)


def test_preprocessing_that_the_model_cannot_take_is_refused(tmp_path):
    folder = write(small_model("vit"), tmp_path / "vit", size={"height": 40, "width": 40})
    with pytest.raises(ModelError, match=r"gives images of 40x40, which ViTModel does not take\. Give an image size"):
        models.load(str(folder))
    assert models.load(str(folder), image_size=40).preprocessing.height == 40
    folder = write(small_model("dinov2"), tmp_path / "dinov2", size={"height": 40, "width": 40})
    tokens = models.load(str(folder)).model(pixel_values=torch.zeros(1, 3, 40, 40)).last_hidden_state
    assert tokens.shape == (1, 26, 32)
