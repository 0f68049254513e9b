import os

import pytest
import torch
import transformers as tf

from models.small_checkpoints import images, small_model, write
from pliant import models
from pliant.errors import ConfigError, ModelError
from pliant.models import saving
from pliant.terms import Preprocessing

HALF = (0.5, 0.5, 0.5)
PREPROCESSING = Preprocessing(32, 32, None, "bilinear", HALF, HALF, "test")


@pytest.fixture
def loaded(tmp_path):
    return models.load(str(write(small_model("vit"), tmp_path / "checkpoint")), classes=["a", "b", "c"])


def save(loaded, folder, **options):
    return models.save(loaded.model, folder, preprocessing=loaded.preprocessing, **options)


def test_transformers_loads_what_was_saved(loaded, tmp_path):
    folder = save(loaded, tmp_path / "deep" / "er" / "saved")
    back = tf.AutoModelForImageClassification.from_pretrained(folder)
    assert torch.equal(back(images()).logits, loaded.model(images()).logits)
    assert back.config.id2label == {0: "a", 1: "b", 2: "c"}
    processor = tf.AutoImageProcessor.from_pretrained(folder)
    assert (processor.size["height"], list(processor.image_mean)) == (32, list(HALF))
    assert sorted(p.name for p in folder.iterdir()) == [
        "config.json",
        "model.safetensors",
        "pliant.json",
        "preprocessor_config.json",
    ]
    assert [p.name for p in folder.parent.iterdir()] == ["saved"]  # nothing temporary is left


def test_model_and_random_state_are_left_as_they_were(loaded, tmp_path):
    model = loaded.model.train()
    model.vit.layers[0].eval()
    model.vit.layers[1].requires_grad_(False)
    before = [(m.training, [p.requires_grad for p in m.parameters()]) for m in model.modules()]
    torch.manual_seed(3)
    state = torch.get_rng_state()
    save(loaded, tmp_path / "saved")
    assert [(m.training, [p.requires_grad for p in m.parameters()]) for m in model.modules()] == before
    assert torch.equal(torch.get_rng_state(), state)
    assert models.fingerprint(model) == loaded.fingerprint


def test_a_former_result_is_replaced_anything_else_is_not(loaded, tmp_path):
    folder = save(loaded, tmp_path / "saved")
    with torch.no_grad():
        loaded.model.classifier.bias.add_(1.0)
    save(loaded, folder)
    assert models.load(str(folder)).fingerprint == models.fingerprint(loaded.model)
    (folder / "notes.txt").write_text("mine")
    with pytest.raises(ConfigError, match=r"holds something else than a model saved by pliant \(notes\.txt\)"):
        save(loaded, folder)
    with pytest.raises(ConfigError, match=r"holds something else.*config\.json.*overwrite=True"):
        save(loaded, tmp_path / "checkpoint")
    assert (folder / "notes.txt").read_text() == "mine"
    save(loaded, tmp_path / "checkpoint", overwrite=True)
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match="is a file"):
        save(loaded, tmp_path / "file")
    (tmp_path / "empty").mkdir()
    save(loaded, tmp_path / "empty")


def test_result_can_be_read_by_others(loaded, tmp_path):
    folder = save(loaded, tmp_path / "saved")
    (tmp_path / "plain").mkdir()
    assert folder.stat().st_mode == (tmp_path / "plain").stat().st_mode


def test_what_does_not_come_back_is_not_saved(loaded, tmp_path, monkeypatch):
    model = loaded.model
    monkeypatch.setattr(
        model, "forward", lambda pixel_values: tf.ViTForImageClassification.forward(model, pixel_values * 1.01)
    )
    with pytest.raises(ModelError, match=r"not saved: the reloaded model's outputs differ by"):
        save(loaded, tmp_path / "saved")
    assert not (tmp_path / "saved").exists()
    assert [p.name for p in tmp_path.iterdir()] == ["checkpoint"]


def test_nan_is_not_the_same(loaded, tmp_path):
    with torch.no_grad():
        loaded.model.classifier.bias.fill_(float("nan"))
    with pytest.raises(ModelError, match="outputs differ by nan"):
        save(loaded, tmp_path / "saved")


def test_replaced_part_is_noticed(loaded, tmp_path):
    loaded.model.vit.layers[1].mlp.fc1 = torch.nn.Sequential(loaded.model.vit.layers[1].mlp.fc1)
    with pytest.raises(
        ModelError,
        match=r"not saved: .* does not come back: what was written does not fit.*38 of 40",
    ):
        save(loaded, tmp_path / "saved")
    assert not (tmp_path / "saved").exists()


def test_interrupt_leaves_nothing_and_keeps_the_former_result(loaded, tmp_path, monkeypatch):
    folder = save(loaded, tmp_path / "saved")

    def interrupted(*args):
        raise KeyboardInterrupt

    for step in ("_compare", "_write"):
        with monkeypatch.context() as patch:
            patch.setattr(saving, step, interrupted)
            with pytest.raises(KeyboardInterrupt, match=r"^$"):
                save(loaded, folder)
    replace = os.replace

    def interrupted_replace(source, target):
        if str(source).endswith(".tmp"):
            raise KeyboardInterrupt
        replace(source, target)

    monkeypatch.setattr(os, "replace", interrupted_replace)
    with pytest.raises(KeyboardInterrupt, match=r"^$"):
        save(loaded, folder)
    assert models.load(str(folder)).fingerprint == loaded.fingerprint
    assert sorted(p.name for p in tmp_path.iterdir()) == ["checkpoint", "saved"]


@pytest.mark.parametrize("model", [torch.nn.Linear(2, 2), torch.nn.Sequential()])
def test_other_modules_are_refused(model, tmp_path):
    with pytest.raises(ModelError, match=r"is no transformers model.*merge_and_unload"):
        models.save(model, tmp_path / "saved", preprocessing=PREPROCESSING)


@pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing`:FutureWarning")  # peft asks by the old name
def test_half_precision_and_adapters_are_refused(loaded, tmp_path):
    from peft import LoraConfig, get_peft_model

    adapted = get_peft_model(loaded.model, LoraConfig(target_modules=["q_proj"], r=2))
    with pytest.raises(ModelError, match=r"PeftModel is no transformers model.*merge_and_unload"):
        models.save(adapted, tmp_path / "saved", preprocessing=PREPROCESSING)
    merged = adapted.merge_and_unload()
    assert models.load(str(models.save(merged, tmp_path / "saved", preprocessing=PREPROCESSING))).notes == ()
    with pytest.raises(ModelError, match=r"tensors that are not float32.*\.float\(\), then save"):
        models.save(merged.half(), tmp_path / "saved", preprocessing=PREPROCESSING)
