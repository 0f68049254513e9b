"""timm's own checkpoint folders, through transformers' wrapper."""

import json

import pytest
import timm
import torch
import transformers as tf

from models.small_checkpoints import images, scrambled
from pliant import models
from pliant.errors import ModelError

VIT = {"img_size": 32, "patch_size": 8, "depth": 2, "num_classes": 5}
TINY = {**VIT, "embed_dim": 32, "num_heads": 2}

ARCHITECTURES = {
    "plain": ("vit_tiny_patch16_224", TINY),
    "qk norm, layer scale": ("vit_tiny_patch16_224", {**TINY, "qk_norm": True, "init_values": 1e-2}),
    "distilled": ("deit_tiny_distilled_patch16_224", TINY),
    "rotary": ("eva02_tiny_patch14_224", TINY),
    "dinov3": ("vit_small_patch16_dinov3", TINY),
    "relative": ("beit_base_patch16_224", TINY),
    "windows": (
        "swin_tiny_patch4_window7_224",
        {"img_size": 32, "window_size": 4, "embed_dim": 16, "depths": (1, 1), "num_heads": (2, 2), "num_classes": 5},
    ),
}


def write(folder, kind="plain", **change):
    name, arguments = ARCHITECTURES[kind]
    model = scrambled(timm.create_model(name, pretrained=False, **{**arguments, **change}))
    timm.models.save_for_hf(model, folder, safe_serialization=True)
    return model


@pytest.mark.parametrize("kind", ARCHITECTURES)
def test_folder_saved_by_timm_gives_the_same_logits(kind, tmp_path):
    model = write(tmp_path, kind)
    loaded = models.load(str(tmp_path))
    assert type(loaded.model) is tf.TimmWrapperForImageClassification
    assert torch.equal(loaded.model(images()).logits, model(images()))
    assert loaded.preprocessing.origin == f"pretrained_cfg in config.json of {tmp_path}"
    assert loaded.notes == ()


def test_folder_without_a_classifier_is_a_backbone(tmp_path):
    model = write(tmp_path, num_classes=0)
    loaded = models.load(str(tmp_path))
    assert type(loaded.model) is tf.TimmWrapperModel
    assert torch.equal(loaded.model(images()).pooler_output, model(images()))


@pytest.mark.parametrize("kind", ARCHITECTURES)
@pytest.mark.parametrize("size", [None, 64])
def test_new_classes_another_size_and_back(kind, size, tmp_path):
    write(tmp_path / "checkpoint", kind)
    loaded = models.load(str(tmp_path / "checkpoint"), classes=["a", "b", "c"], image_size=size)
    batch = images(size=size or 32)
    assert loaded.model(batch).logits.shape == (2, 3)
    saved = models.save(loaded.model, tmp_path / "saved", preprocessing=loaded.preprocessing)
    back = tf.AutoModelForImageClassification.from_pretrained(saved).eval()
    assert torch.equal(back(batch).logits, loaded.model(batch).logits)
    assert back.config.id2label == {0: "a", 1: "b", 2: "c"}
    again = models.load(str(saved)).preprocessing
    assert (again.height, again.resize) == (loaded.preprocessing.height, loaded.preprocessing.resize)


def test_interpolation_is_timm_s_own(tmp_path):
    model = write(tmp_path)
    model.set_input_size(img_size=(64, 64))
    loaded = models.load(str(tmp_path), image_size=64)
    assert torch.equal(loaded.model(images(size=64)).logits, model(images(size=64)))


def test_old_label_names_do_not_survive_new_classes(tmp_path):
    write(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    config |= {"label_names": [f"old {i}" for i in range(5)], "label_descriptions": {"old 0": "an old one"}}
    (tmp_path / "config.json").write_text(json.dumps(config))
    assert models.load(str(tmp_path)).model.config.id2label[0] == "old 0"
    loaded = models.load(str(tmp_path), classes=["a", "b"])
    saved = models.save(loaded.model, tmp_path / "saved", preprocessing=loaded.preprocessing)
    assert models.load(str(saved)).model.config.id2label == {0: "a", 1: "b"}
    assert "old" not in (saved / "config.json").read_text()


def test_missing_tensors_are_an_error(tmp_path):
    from safetensors.torch import load_file, save_file

    write(tmp_path)
    tensors = load_file(tmp_path / "model.safetensors")
    save_file({k: v for k, v in tensors.items() if "blocks.1.attn" not in k}, tmp_path / "model.safetensors")
    with pytest.raises(ModelError, match=r"28 of 32 tensors were loaded\. missing: timm_model\.blocks\.1\.attn"):
        models.load(str(tmp_path))


@pytest.mark.parametrize(
    ("entries", "resize"),
    [({"crop_pct": 1.0}, 32), ({"crop_pct": 0.9}, 35), ({"crop_pct": 1.0, "crop_mode": "squash"}, None)],
)
def test_crop_share_is_timm_s(entries, resize, tmp_path):
    write(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    config["pretrained_cfg"] |= entries
    (tmp_path / "config.json").write_text(json.dumps(config))
    loaded = models.load(str(tmp_path))
    assert (loaded.preprocessing.resize, loaded.preprocessing.interpolation) == (resize, "bicubic")
    saved = models.save(loaded.model, tmp_path / "saved", preprocessing=loaded.preprocessing)
    assert models.load(str(saved)).preprocessing.resize == resize


def test_unknown_architecture_is_one_message(tmp_path):
    write(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text()) | {"architecture": "vit_of_tomorrow"}
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(ModelError, match="'vit_of_tomorrow' is not supported in your version of timm"):
        models.load(str(tmp_path))
