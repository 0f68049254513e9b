import json
import os
import shutil

import pytest
import torch
import transformers as tf

from models.small_checkpoints import (
    CONFIGS,
    OLD_NAMES,
    edit_config,
    images,
    old_name,
    small_model,
    write,
    write_tensors,
)
from pliant import models
from pliant.errors import ConfigError, ModelError, ModelNotFoundError
from pliant.models.checkpoint import classifier_parameters
from pliant.models.quiet import quiet
from pliant.terms import Preprocessing

HALF = (0.5, 0.5, 0.5)


@pytest.fixture
def vit(tmp_path):
    return write(small_model("vit"), tmp_path / "vit")


def test_bundled_is_ready_to_use():
    loaded = models.load("bundled")
    assert not loaded.model.training
    assert loaded.name == "bundled"
    assert loaded.preprocessing.origin.startswith("preprocessor_config.json of ")
    assert loaded.fingerprint == models.fingerprint(loaded.model)
    size = loaded.preprocessing.height
    assert loaded.model(pixel_values=images(size=size))[0].isfinite().all()


@pytest.mark.parametrize("family", CONFIGS)
def test_backbone_gets_a_classifier_and_keeps_its_weights(family, tmp_path):
    backbone = small_model(family)
    loaded = models.load(str(write(backbone, tmp_path / "checkpoint")), classes=["cat", "dog", "owl"])
    assert loaded.model.config.id2label == {0: "cat", 1: "dog", 2: "owl"}
    assert loaded.model.config.label2id == {"cat": 0, "dog": 1, "owl": 2}
    assert loaded.model(pixel_values=images()).logits.shape == (2, 3)
    new = set(classifier_parameters(loaded.model))
    theirs = list(backbone.state_dict().values())
    for name, tensor in loaded.model.named_parameters():
        if "pooler.layernorm" in name and family == "data2vec-vision":  # comes with the classifier, as the identity
            assert torch.equal(tensor, torch.full_like(tensor, float(name.endswith("weight"))))
        elif name not in new:
            assert any(t.shape == tensor.shape and torch.equal(t, tensor) for t in theirs), name


@pytest.mark.parametrize("family", CONFIGS)
def test_backbone_loads_as_it_is(family, tmp_path):
    loaded = models.load(str(write(small_model(family), tmp_path / "checkpoint")))
    assert "ForImageClassification" not in type(loaded.model).__name__
    output = loaded.model(pixel_values=images()).last_hidden_state
    assert torch.equal(output, loaded.model(pixel_values=images()).last_hidden_state)  # no random masking


@pytest.mark.parametrize("family", OLD_NAMES)
@pytest.mark.parametrize("prefixed", [True, False])
def test_old_and_new_tensor_names_give_the_same_model(family, prefixed, tmp_path):
    factory = tf.AutoModelForImageClassification if prefixed else tf.AutoModel
    model = small_model(family, factory=factory)
    current = dict(model.state_dict())
    before = {old_name(family, name): tensor for name, tensor in current.items()}
    assert before.keys() != current.keys()
    outputs = []
    for variant, tensors in (("old", before), ("new", current)):
        folder = write(model, tmp_path / variant)
        write_tensors(folder, tensors)
        outputs.append(models.load(str(folder)).model(pixel_values=images())[0])
    assert torch.equal(outputs[0], outputs[1])
    assert torch.equal(outputs[0], model(pixel_values=images())[0])


def test_checkpoint_with_classifier_loads_as_it_is(tmp_path):
    model = small_model("vit", factory=tf.AutoModelForImageClassification, num_labels=5)
    loaded = models.load(str(write(model, tmp_path / "checkpoint")))
    assert torch.equal(loaded.model(pixel_values=images()).logits, model(pixel_values=images()).logits)
    assert loaded.notes == ()


@pytest.mark.parametrize("classes", [5, 3])
def test_own_classifier_is_replaced_whatever_its_size(classes, tmp_path):
    model = small_model("vit", factory=tf.AutoModelForImageClassification, num_labels=5)
    folder = str(write(model, tmp_path / "checkpoint"))
    loaded = models.load(folder, classes=[f"class {i}" for i in range(classes)], seed=3)
    weight = loaded.model.classifier.weight
    assert weight.shape == (classes, 32)
    assert weight.abs().max() <= 0.04
    assert not torch.equal(weight[:3], model.classifier.weight[:3])
    assert loaded.model.classifier.bias.abs().max() == 0


def test_new_classifier_depends_on_the_seed_alone(vit):
    torch.manual_seed(1)
    first = models.load(str(vit), classes=["a", "b"], seed=7)
    torch.manual_seed(2)
    state = torch.get_rng_state()
    again = models.load(str(vit), classes=["a", "b"], seed=7)
    assert torch.equal(torch.get_rng_state(), state)
    other = models.load(str(vit), classes=["a", "b"], seed=8)
    assert first.fingerprint == again.fingerprint != other.fingerprint


@pytest.mark.parametrize("classes", [["only"], ["a", "a"], []])
def test_impossible_classes_are_refused(vit, classes):
    with pytest.raises(ConfigError, match="at least two classes with different names"):
        models.load(str(vit), classes=classes)


def test_architecture_without_classification_model_says_what_there_is(tmp_path):
    with quiet():
        model = tf.DINOv3ViTModel(tf.DINOv3ViTConfig(**SMALL_DINOV3))
    folder = str(write(model, tmp_path / "dinov3"))
    assert models.load(folder).model(pixel_values=images()).last_hidden_state.shape[0] == 2
    with pytest.raises(ModelError, match=r"no image classification model for 'dinov3_vit'.*timm.*such as vit, deit"):
        models.load(folder, classes=["a", "b"])


SMALL_DINOV3 = {
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 64,
    "image_size": 32,
    "patch_size": 8,
}


def test_missing_pooler_is_left_out_not_drawn(tmp_path):
    model = small_model("vit", factory=tf.AutoModelForImageClassification)
    folder = write(model, tmp_path / "checkpoint")
    edit_config(folder, architectures=["ViTModel"])
    loaded = models.load(str(folder))
    assert loaded.model.pooler is None
    assert "the checkpoint has no pooler; none is built" in loaded.notes
    assert any("classifier" in note for note in loaded.notes)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("classes", [None, ["a", "b"]])
def test_half_precision_checkpoints_become_float32(dtype, classes, tmp_path):
    folder = write(small_model("dinov2").to(dtype), tmp_path / "half")
    assert json.loads((folder / "config.json").read_text())["dtype"] != "float32"
    loaded = models.load(str(folder), classes=classes)
    assert {p.dtype for p in loaded.model.parameters()} == {torch.float32}
    assert loaded.model.config.dtype == torch.float32


def test_text_model_has_a_tokenizer_if_its_files_are_there(tmp_path):
    config = tf.GPT2Config(n_embd=32, n_layer=1, n_head=2, vocab_size=4, n_positions=8, bos_token_id=0, eos_token_id=0)
    with quiet():
        tf.GPT2LMHeadModel(config).save_pretrained(tmp_path)
    loaded = models.load(str(tmp_path))
    assert loaded.tokenizer is None
    assert loaded.preprocessing is None
    (tmp_path / "vocab.json").write_text(json.dumps({"<|endoftext|>": 0, "a": 1, "b": 2, "ab": 3}))
    (tmp_path / "merges.txt").write_text("#version: 0.2\na b\n")
    assert models.load(str(tmp_path)).tokenizer("ab")["input_ids"] == [3]
    with pytest.raises(ConfigError, match="takes no images"):
        models.load(str(tmp_path), image_size=32)
    with pytest.raises(ModelError, match="no image classification model for 'gpt2'"):
        models.load(str(tmp_path), classes=["a", "b"])


def test_random_weights_only_by_name(vit, tmp_path):
    os.remove(vit / "model.safetensors")
    with pytest.raises(ModelNotFoundError, match=r"has no weights; expected one of model\.safetensors"):
        models.load(str(vit))
    first = models.load(f"random:{vit}", seed=1)
    assert first.notes == ("random weights, drawn under seed 1",)
    assert first.source == f"random weights (seed 1) from {vit / 'config.json'}"
    assert models.load(f"random:{vit / 'config.json'}", seed=1).fingerprint == first.fingerprint
    assert models.load(f"random:{vit}", seed=2).fingerprint != first.fingerprint
    assert models.load(f"random:{vit}", classes=["a", "b"], image_size=48).model(images(size=48)).logits.shape == (2, 2)
    os.remove(vit / "preprocessor_config.json")
    assert models.load(f"random:{vit}").preprocessing == Preprocessing(
        32, 32, None, "bilinear", HALF, HALF, "default for random weights"
    )
    with pytest.raises(ModelNotFoundError, match="to build a model with random weights from"):
        models.load(f"random:{tmp_path / 'nothing'}")


def test_missing_preprocessor_is_an_error_or_given(vit):
    os.remove(vit / "preprocessor_config.json")
    with pytest.raises(ModelError, match=r"preprocessor_config\.json is missing.*preprocessing="):
        models.load(str(vit))
    mine = Preprocessing(32, 32, 36, "bicubic", HALF, HALF, "mine")
    assert models.load(str(vit), preprocessing=mine).preprocessing == mine


def test_nothing_leaks_to_the_terminal_and_verbosity_comes_back(tmp_path, capfd):
    model = small_model("vit", factory=tf.AutoModelForImageClassification)
    folder = str(write(model, tmp_path / "checkpoint"))
    before = tf.utils.logging.get_verbosity(), tf.utils.logging.is_progress_bar_enabled()
    capfd.readouterr()
    loaded = models.load(folder, classes=["a", "b", "c"])
    models.save(loaded.model, tmp_path / "saved", preprocessing=loaded.preprocessing)
    assert capfd.readouterr() == ("", "")
    assert (tf.utils.logging.get_verbosity(), tf.utils.logging.is_progress_bar_enabled()) == before


# Names


@pytest.mark.parametrize(
    ("name", "near"),
    [
        ("bundeld", "Did you mean 'bundled'"),
        ("gpt2", "Did you mean 'openai-community/gpt2'"),
        ("dinov2-smal", "Did you mean 'facebook/dinov2-small'"),
        ("vit_base_patch16_224", r"Did you mean 'timm/vit_base_patch16_224\.orig_in21k'"),
        ("", "ORGANISATION/NAME"),
    ],
)
def test_unknown_name_names_the_nearest(name, near):
    with pytest.raises(ModelNotFoundError, match=f"unknown model '{name}'.*{near}"):
        models.load(name)


def test_missing_folder_names_the_neighbours(vit):
    with pytest.raises(ModelNotFoundError, match=rf"there is no folder.*Did you mean '{vit}'"):
        models.load(str(vit.parent / "vitt"))
    with pytest.raises(ModelNotFoundError, match=r"is a file; give the folder that holds config\.json"):
        models.load(str(vit / "model.safetensors"))
    with pytest.raises(ModelNotFoundError, match=r"has no config\.json"):
        models.load(str(vit.parent))


def test_relative_folders_are_found(vit, monkeypatch):
    monkeypatch.chdir(vit.parent)
    assert models.load("vit").fingerprint == models.load("./vit").fingerprint == models.load(str(vit)).fingerprint


# Objects


def test_module_is_taken_as_it_is():
    module = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.BatchNorm1d(2)).train()
    loaded = models.from_module(module, name="mine")
    assert loaded.model is module
    assert module.training
    assert (loaded.name, loaded.preprocessing, loaded.tokenizer) == ("mine", None, None)
    assert loaded.source == "object of class torch.nn.modules.container.Sequential"
    assert models.from_module(module).name == "Sequential"
    with pytest.raises(ModelError, match=r"2 tensors that are not float32.*Call model\.float\(\) first"):
        models.from_module(torch.nn.Linear(2, 2).half())


def test_torchvision_model_is_taken():
    from torchvision.models import VisionTransformer

    vit = VisionTransformer(32, 8, 1, 2, 16, 32, num_classes=3)
    assert len(models.from_module(vit).fingerprint) == 16


def test_fingerprint_sees_values_shapes_names_and_buffers():
    def layer():
        torch.manual_seed(0)
        return torch.nn.BatchNorm1d(4)

    base = models.fingerprint(layer())
    assert models.fingerprint(layer().eval()) == base
    changed = layer()
    changed.running_mean[0] = 1e-6
    assert models.fingerprint(changed) != base
    assert models.fingerprint(torch.nn.Sequential(layer())) != base
    flat, tall = torch.nn.Linear(4, 1, bias=False), torch.nn.Linear(1, 4, bias=False)
    flat.weight.data.fill_(1.0)
    tall.weight.data.fill_(1.0)
    assert models.fingerprint(flat) != models.fingerprint(tall)
    assert models.fingerprint(flat.bfloat16()) != models.fingerprint(flat.half())


# A real pretrained model


@pytest.mark.skipif("PLIANT_DINOV2" not in os.environ, reason="PLIANT_DINOV2 does not name a DINOv2-small folder")
def test_real_dinov2_at_its_own_and_another_size(tmp_path):
    folder = os.environ["PLIANT_DINOV2"]
    backbone = models.load(folder)
    assert type(backbone.model).__name__ == "Dinov2Model"
    assert (backbone.preprocessing.height, backbone.preprocessing.resize) == (224, 256)
    loaded = models.load(folder, classes=[str(i) for i in range(10)], image_size=98)
    assert (loaded.preprocessing.height, loaded.preprocessing.resize) == (98, 112)
    tokens = backbone.model(pixel_values=images(size=98)).last_hidden_state
    assert torch.equal(loaded.model.dinov2(pixel_values=images(size=98)).last_hidden_state, tokens)
    saved = models.save(loaded.model, tmp_path / "saved", preprocessing=loaded.preprocessing)
    assert models.load(str(saved)).fingerprint == loaded.fingerprint
    shutil.rmtree(saved)
