"""Checkpoints that must not be loaded: what does not fit, and what would run or fetch something."""

import json
import os

import pytest
import torch
import transformers as tf
from safetensors.torch import load_file

from models.small_checkpoints import CONFIGS, edit_config, images, scrambled, small_model, write, write_tensors
from pliant import models
from pliant.errors import ModelError
from pliant.models.checkpoint import read_config


@pytest.fixture
def vit(tmp_path):
    return write(small_model("vit"), tmp_path / "vit")


def rewrite(folder, change):
    write_tensors(folder, change(load_file(folder / "model.safetensors")))


def without(part):
    return lambda tensors: {k: v for k, v in tensors.items() if part not in k}


def test_missing_tensors_are_counted_and_listed(vit):
    rewrite(vit, without("layer.1.layernorm"))
    with pytest.raises(ModelError, match=r"36 of 40 tensors were loaded\. missing: layers\.1\.layernorm_after\.bias"):
        models.load(str(vit))
    with pytest.raises(ModelError, match=r"34 of 38 tensors were loaded\. missing: vit\.layers\.1\.layernorm"):
        models.load(str(vit), classes=["a", "b"])


def test_checkpoint_of_another_architecture_is_an_error(vit):
    rewrite(vit, lambda tensors: {f"backbone.{k}": v for k, v in tensors.items()})
    with pytest.raises(ModelError, match=r"does not fit ViTModel: 0 of 40 tensors were loaded.*and 36 more"):
        models.load(str(vit))


def test_one_missing_tensor_is_enough(vit):
    rewrite(vit, without("cls_token"))
    with pytest.raises(ModelError, match=r"39 of 40 tensors were loaded\. missing: embeddings\.cls_token"):
        models.load(str(vit))


def test_other_shapes_are_an_error(vit):
    edit_config(vit, patch_size=16)
    with pytest.raises(ModelError, match=r"other shape: .*\(1, 17, 32\) in the checkpoint, \(1, 5, 32\) in the"):
        models.load(str(vit))


def test_more_blocks_than_the_configuration_says_is_an_error(vit):
    edit_config(vit, num_hidden_layers=1)
    with pytest.raises(ModelError, match=r"in the checkpoint but not in the model: layers\.1\..* and 12 more"):
        models.load(str(vit))


def test_known_left_over_parts_are_noted(vit):
    rewrite(
        vit, lambda tensors: {**tensors, "embeddings.mask_token": torch.zeros(1, 1, 32), "lm_head.bias": torch.ones(3)}
    )
    parts = "embeddings.mask_token (1 tensor), lm_head (1 tensor)"
    assert models.load(str(vit)).notes == (f"in the checkpoint but not in the model: {parts}",)


def test_a_part_that_the_model_has_leaves_nothing_over(vit):
    rewrite(vit, lambda tensors: {**tensors, "pooler.second.weight": torch.zeros(2, 2)})
    with pytest.raises(ModelError, match=r"40 of 40 tensors were loaded\. in the checkpoint but.*pooler\.second"):
        models.load(str(vit))


@pytest.mark.parametrize("classes", [None, ["a", "b"]])
@pytest.mark.parametrize(
    ("family", "pretraining"),
    [
        ("vit", tf.ViTForMaskedImageModeling),
        ("deit", tf.DeiTForMaskedImageModeling),
        ("beit", tf.BeitForMaskedImageModeling),
        ("vit_mae", tf.ViTMAEForPreTraining),
        ("deit", tf.DeiTForImageClassificationWithTeacher),
    ],
)
def test_pretraining_checkpoints_lose_only_their_heads(family, pretraining, classes, tmp_path):
    stride = {} if family == "beit" else {"encoder_stride": 8}
    config = CONFIGS[family]()
    config.update(stride)
    folder = str(write(scrambled(pretraining(config)), tmp_path / "checkpoint"))
    loaded = models.load(folder, classes=classes)
    output = loaded.model(pixel_values=images())[0]
    assert torch.equal(output, loaded.model(pixel_values=images())[0])
    heads = ("classifier", "decoder", "mask_token", "lm_head", "layernorm")
    kept = [n for n in loaded.notes if n.startswith("in the checkpoint but not in the model")]
    assert all(any(h in part for h in heads) for note in kept for part in note.split(": ")[1].split(", "))


def test_tied_weights_are_not_missing(tmp_path):
    config = tf.GPT2Config(n_embd=32, n_layer=1, n_head=2, vocab_size=8, n_positions=8, bos_token_id=0, eos_token_id=0)
    model = tf.GPT2LMHeadModel(config)
    model.save_pretrained(tmp_path)
    assert "lm_head.weight" not in load_file(tmp_path / "model.safetensors")
    assert type(models.load(str(tmp_path)).model).__name__ == "GPT2Model"


def test_damaged_weights_are_one_message(vit):
    content = (vit / "model.safetensors").read_bytes()
    (vit / "model.safetensors").write_bytes(content[: len(content) // 2])
    with pytest.raises(ModelError, match=rf"the weights in {vit} are damaged"):
        models.load(str(vit))
    os.remove(vit / "model.safetensors")
    (vit / "pytorch_model.bin").write_bytes(b"not a checkpoint")
    with pytest.raises(ModelError, match=rf"weights in {vit} "):
        models.load(str(vit))


@pytest.mark.parametrize("content", ["{", "[]", "\xff"])
def test_damaged_configuration_is_one_message(vit, content):
    (vit / "config.json").write_bytes(content.encode("latin-1"))
    with pytest.raises(ModelError, match=r"config\.json (cannot be read as JSON|holds no JSON object)"):
        models.load(str(vit))


class Hostile:
    def __init__(self, mark):
        self.mark = mark

    def __reduce__(self):
        return os.system, (f"touch {self.mark}",)


def test_pickled_tensors_are_read_but_nothing_else(vit, tmp_path):
    expected = models.load(str(vit))
    tensors = load_file(vit / "model.safetensors")
    os.remove(vit / "model.safetensors")
    torch.save(tensors, vit / "pytorch_model.bin")
    assert models.load(str(vit)).fingerprint == expected.fingerprint
    torch.save({**tensors, "extra": Hostile(tmp_path / "mark")}, vit / "pytorch_model.bin")
    with pytest.raises(ModelError, match=r"hold more than tensors and are not opened: .*system.*safetensors format"):
        models.load(str(vit))
    assert not (tmp_path / "mark").exists()


def test_safetensors_go_before_a_pickle_beside_them(vit, tmp_path):
    torch.save({"extra": Hostile(tmp_path / "mark")}, vit / "pytorch_model.bin")
    models.load(str(vit))
    assert not (tmp_path / "mark").exists()


@pytest.mark.parametrize("known", [True, False])
def test_code_in_the_folder_never_runs(vit, known, tmp_path):
    code = f"open({str(tmp_path / 'mark')!r}, 'w')\nfrom transformers import ViTConfig, ViTModel\n"
    (vit / "code.py").write_text(f"{code}class Config(ViTConfig): pass\nclass Model(ViTModel): pass\n")
    auto_map = {"AutoConfig": "code.Config", "AutoModel": "code.Model"}
    edit_config(vit, auto_map=auto_map, **({} if known else {"model_type": "mine"}))
    if known:  # transformers has the architecture itself, so the code is not needed
        assert type(models.load(str(vit)).model) is tf.ViTModel
    else:
        with pytest.raises(ModelError, match=r"needs Python code of its own.*from_module"):
            models.load(str(vit))
    assert not (tmp_path / "mark").exists()


def test_attention_kernels_named_in_a_configuration_are_not_fetched(vit):
    edit_config(vit, attn_implementation="someone/kernel")
    assert models.load(str(vit)).model.config._attn_implementation in ("sdpa", "eager")
    edit_config(vit, attn_implementation="eager")
    assert read_config(vit)._attn_implementation == "eager"


def test_unknown_architecture_is_one_message(vit):
    edit_config(vit, model_type="no_such_type")
    with pytest.raises(ModelError, match=r"describes a model \('no_such_type'\) that the installed transformers"):
        models.load(str(vit))


def test_adapters_and_quantised_weights_are_refused(vit):
    edit_config(vit, quantization_config={"quant_method": "bitsandbytes", "load_in_8bit": True})
    with pytest.raises(ModelError, match="holds quantised weights"):
        models.load(str(vit))
    (vit / "adapter_config.json").write_text(json.dumps({"base_model_name_or_path": "someone/else"}))
    with pytest.raises(ModelError, match=r"holds an adapter for 'someone/else', not a whole model.*merge_and_unload"):
        models.load(str(vit))


def test_global_random_state_is_untouched(vit):
    torch.manual_seed(5)
    state = torch.get_rng_state()
    models.load(str(vit), classes=["a", "b"], image_size=48)
    models.load(f"random:{vit}", seed=4)
    assert torch.equal(torch.get_rng_state(), state)
    assert models.load(str(vit)).model(pixel_values=images())[0].isfinite().all()
