import json
import os
import re
import runpy
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors import safe_open
from transformers import AutoImageProcessor, AutoModelForImageClassification

from pliant.assets import BUNDLED, FASHION_SAMPLE
from pliant.data.idx import read_idx

FASHION_MNIST = Path(os.environ.get("PLIANT_FASHION_MNIST", "/usr/share/datasets/fashion-mnist"))


@pytest.fixture(scope="module")
def model():
    return AutoModelForImageClassification.from_pretrained(BUNDLED).eval()


def accuracy(model, images, labels):
    prepare = AutoImageProcessor.from_pretrained(BUNDLED)
    rgb = [torch.from_numpy(image).expand(3, -1, -1) for image in images]
    with torch.inference_mode():
        logits = model(prepare(rgb, return_tensors="pt", input_data_format="channels_first")["pixel_values"]).logits
    return np.mean(logits.argmax(-1).numpy() == labels)


def idx(name):
    plain = FASHION_MNIST / name
    return read_idx(plain if plain.exists() else plain.with_name(name + ".gz"))


def test_the_folder_is_small_and_holds_nothing_but_data():
    assert sorted(p.name for p in BUNDLED.iterdir()) == [
        "README.md",
        "config.json",
        "model.safetensors",
        "preprocessor_config.json",
    ]
    assert sum(p.stat().st_size for p in BUNDLED.iterdir()) <= 3_000_000


def test_the_architecture_is_the_stated_one(model):
    config = model.config
    assert (config.image_size, config.patch_size, config.num_channels) == (28, 7, 3)
    assert (config.hidden_size, config.num_hidden_layers, config.num_attention_heads) == (96, 6, 3)
    assert config.id2label[9] == "Ankle boot"
    assert config.label2id["T-shirt/top"] == 0
    with safe_open(BUNDLED / "model.safetensors", "pt") as file:
        stored = {name: file.get_tensor(name) for name in file.keys()}
    assert {tensor.dtype for tensor in stored.values()} == {torch.float32}
    assert all(tensor.isfinite().all() for tensor in stored.values())
    assert sum(tensor.numel() for tensor in stored.values()) == model.num_parameters() == 688_138


def test_the_preprocessing_is_plain(model):
    stated = json.loads((BUNDLED / "preprocessor_config.json").read_text())
    assert stated["size"] == {"height": 28, "width": 28}
    assert stated["image_mean"] == stated["image_std"] == [0.5, 0.5, 0.5]
    prepare = AutoImageProcessor.from_pretrained(BUNDLED)
    grey = torch.arange(28 * 28).reshape(28, 28).remainder(256).to(torch.uint8)
    values = prepare(grey.expand(3, -1, -1), return_tensors="pt", input_data_format="channels_first")["pixel_values"]
    torch.testing.assert_close(values[0, 0], grey / 127.5 - 1, atol=1e-6, rtol=0)


def test_the_card_states_its_accuracy_and_recipe():
    card = (BUNDLED / "README.md").read_text(encoding="utf-8")
    share, count, right = re.search(
        r"\*\*([\d.]+) %\*\* of the ([\d,]+) Fashion-MNIST test images\s+\(([\d,]+) right", card
    ).groups()
    assert int(count.replace(",", "")) == 10_000
    assert float(share) == pytest.approx(int(right.replace(",", "")) / 100)
    assert float(share) >= 88
    for word in ("95 % interval", "AdamW", "warm-up", "seed", "time", "transformers", "MIT", "Apache-2.0"):
        assert word in card


def test_the_sample_is_balanced_and_mostly_recognised(model):
    with np.load(FASHION_SAMPLE) as sample:
        images, labels = sample["images"], sample["labels"]
    assert (images.shape, images.dtype) == ((128, 28, 28), np.uint8)
    assert (labels.shape, labels.dtype) == ((128,), np.int64)
    assert set(np.bincount(labels, minlength=10)) == {12, 13}
    assert accuracy(model, images, labels) >= 0.8


@pytest.fixture(scope="module")
def script():
    return runpy.run_path(str(Path(__file__).parents[1] / "scripts" / "pretrain_bundled.py"))


def test_augmentation_moves_whole_images_and_keeps_their_kind(script):
    torch.manual_seed(0)
    image = torch.zeros(64, 28, 28, dtype=torch.uint8)
    image[:, 10:18, 12:20] = 200
    moved = script["shifted"](image, most=2)
    assert moved.dtype == torch.uint8
    assert (moved.sum((1, 2)) == image.sum((1, 2))).all()
    assert len({tuple(m.nonzero()[0].tolist()) for m in moved}) > 12
    changed = script["erased"](image, probability=0.25, sides=(4, 10)).ne(image).sum((1, 2))
    assert 0 < (changed > 0).sum() < 40
    assert changed.max() <= 100
    assert script["augmented"](image).shape == image.shape


def test_batches_are_what_the_folder_preprocesses_to(script):
    images = torch.arange(2 * 28 * 28).reshape(2, 28, 28).remainder(256).to(torch.uint8)
    prepared = AutoImageProcessor.from_pretrained(BUNDLED)(
        [image.expand(3, -1, -1) for image in images], return_tensors="pt", input_data_format="channels_first"
    )
    torch.testing.assert_close(script["pixel_values"](images), prepared["pixel_values"], atol=1e-6, rtol=0)
    batch = script["Batches"](images, torch.tensor([3, 4])).__getitems__([1, 0])
    assert batch["pixel_values"].shape == (2, 3, 28, 28)
    assert batch["labels"].tolist() == [4, 3]


@pytest.mark.skipif(
    not FASHION_MNIST.is_dir(),
    reason="no Fashion-MNIST: apt install dataset-fashion-mnist, or set PLIANT_FASHION_MNIST to its folder",
)
def test_unseen_images_are_recognised(model, script, tmp_path):
    images, labels = idx("t10k-images-idx3-ubyte"), idx("t10k-labels-idx1-ubyte")
    assert accuracy(model, images[:2000], labels[:2000]) >= 0.87
    script["write_sample"](FASHION_MNIST, tmp_path / "again.npz", seed=0)
    with np.load(FASHION_SAMPLE) as stored, np.load(tmp_path / "again.npz") as again:
        np.testing.assert_array_equal(stored["images"], again["images"])
        np.testing.assert_array_equal(stored["labels"], again["labels"])
