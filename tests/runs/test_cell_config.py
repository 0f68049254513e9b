import json
import pickle
import re
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pliant.errors import ConfigError, PliantError, UnknownNameError
from pliant.runs import CellConfig
from pliant.runs.config import SCHEMA

BASE = {"learning_rate": 0.1, "steps": 100, "eval_every": 10}


def cell(**fields: object) -> CellConfig:
    return CellConfig(**{**BASE, **fields})


def test_id_is_stable():
    # A changed id orphans every store there is: change SCHEMA and this line together, knowingly.
    assert SCHEMA == 1
    assert cell().id == "e8b892b2c9b922a0"


def test_id_depends_on_every_field():
    changes = {
        "model": "other", "model_fingerprint": "0" * 16, "data": "cifar10", "train": 5, "validation": 5, "test": 5,
        "data_seed": 1, "skip_unreadable": True, "image_size": 98, "method": "bitfit", "components": "fc1",
        "optimizer": "adamw", "learning_rate": 0.2, "momentum": 0.5, "weight_decay": 0.1, "warmup_steps": 3,
        "clip_norm": None, "steps": 200, "batch_size": 64, "accumulation": 2, "eval_every": 20,
        "precision": "bfloat16", "augmentation": "flip", "normalization": "imagenet", "seed": 42,
        "read_test": False,
    }  # fmt: skip
    lora = {"lora_rank": 4, "lora_alpha": 3.0, "lora_dropout": 0.5, "lora_targets": ("q",)}
    crop = {"crop_scale_min": 0.5}
    only_one_value = {"schedule"}
    assert set(changes) | set(lora) | set(crop) | only_one_value == set(CellConfig.model_fields)
    ids = [cell().id, cell(method="lora").id, cell(augmentation="crop").id]
    ids += [cell(**{key: value}).id for key, value in changes.items()]
    ids += [cell(method="lora", **{key: value}).id for key, value in lora.items()]
    ids += [cell(augmentation="crop", **{key: value}).id for key, value in crop.items()]
    assert len(set(ids)) == len(ids)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ({"components": "fc1+mha"}, {"components": "mha+fc1+head"}),
        ({}, {"components": "mha", "method": "components", "momentum": 0.9, "clip_norm": 1}),
        ({"learning_rate": 1}, {"learning_rate": 1.0}),
        ({"weight_decay": -0.0}, {"weight_decay": 0.0}),
        ({"method": "lora"}, {"method": "lora", "lora_rank": 16, "lora_alpha": 16.0, "lora_targets": ["v", "q"]}),
        ({"optimizer": "adamw"}, {"optimizer": "adamw", "momentum": 0}),
        ({"augmentation": "flip-crop"}, {"augmentation": "flip-crop", "crop_scale_min": 0.08}),
    ],
)
def test_one_run_has_one_id(one: dict[str, object], other: dict[str, object]):
    assert cell(**one) == cell(**other)
    assert cell(**one).id == cell(**other).id


@pytest.mark.parametrize("fields", [{}, {"method": "lora"}, {"optimizer": "adamw", "augmentation": "crop"}])
def test_round_trips(fields: dict[str, object]):
    original = cell(**fields)
    for copy in (CellConfig.from_json(original.to_json()), pickle.loads(pickle.dumps(original)), original.replace()):
        assert copy == original
        assert copy.id == original.id


def test_id_is_the_same_in_another_process():
    code = f"from pliant.runs.config import CellConfig as C; print(C(**{BASE!r}).id)"
    # pliant.runs imports no torch: a store opens without it.
    code += "; import sys; print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == [cell().id, "False"]


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"componnts": "mha"}, r"unknown key 'componnts'\. Did you mean 'components'\?"),
        ({"lr": 0.1}, r"unknown key 'lr'\. Did you mean 'learning_rate'\?"),
        ({"optimiser": "sgd"}, "Did you mean 'optimizer'"),
        ({"zzz": 1}, r"unknown key 'zzz'\. Known: model, "),
        ({"learning_rate": 0.0}, "learning_rate = 0.0: input should be greater than 0"),
        ({"learning_rate": -1.0}, "learning_rate = -1.0: input should be greater than 0"),
        ({"learning_rate": float("nan")}, "learning_rate = nan: input should be a finite number"),
        ({"learning_rate": float("inf")}, "learning_rate = inf: input should be a finite number"),
        ({"learning_rate": "0.1"}, "learning_rate = '0.1': input should be a valid number"),
        ({"learning_rate": True}, "learning_rate = True"),
        ({"steps": 10.0}, "steps = 10.0: input should be a valid integer"),
        ({"steps": 0}, "steps = 0: input should be greater than 0"),
        ({"train": True}, "train = True: input should be a valid integer"),
        ({"method": "lor"}, "method = 'lor': input should be 'components', 'lora', 'bitfit' or 'norms'"),
        ({"method": "lora", "components": "mha"}, "components = 'mha' means nothing with method 'lora'"),
        ({"method": "norms", "components": "mha"}, "components = 'mha' means nothing with method 'norms'"),
        ({"lora_rank": 16}, "lora_rank means nothing with method 'components'"),
        ({"lora_targets": ["q"]}, "lora_targets means nothing with method 'components'"),
        ({"method": "lora", "lora_targets": []}, "lora_targets"),
        ({"method": "lora", "lora_targets": ["query"]}, r"lora_targets\.0 = 'query': input should be 'q', 'k', 'v'"),
        ({"method": "lora", "lora_targets": "q"}, "lora_targets = 'q'"),
        ({"optimizer": "adamw", "momentum": 0.9}, "momentum = 0.9 means nothing with adamw"),
        ({"momentum": 1.0}, "momentum = 1.0"),
        ({"crop_scale_min": 0.5}, "crop_scale_min means nothing with augmentation 'none'"),
        ({"warmup_steps": 100}, "a warm-up of 100 steps leaves none of the 100 steps"),
        ({"eval_every": 101}, "eval_every = 101 is beyond the 100 steps"),
        ({"data": ""}, "data = ''"),
        ({"model": "a\nb"}, "model = 'a.nb'"),
        ({"model_fingerprint": "abc"}, "model_fingerprint = 'abc'"),
        ({"clip_norm": 0.0}, "clip_norm = 0.0"),
        ({"seed": -1}, "seed = -1"),
    ],
)
def test_refuses(fields: dict[str, object], message: str):
    with pytest.raises(ConfigError, match=message):
        cell(**fields)


def test_names_all_mistakes_at_once():
    with pytest.raises(ConfigError, match=r"(?s)3 mistakes:.*learning_rate is missing.*steps = 0.*unknown key 'sed'"):
        CellConfig(steps=0, eval_every=1, sed=3)


def test_unknown_component():
    with pytest.raises(UnknownNameError, match=r"unknown component 'fc'\. Did you mean 'fc"):
        cell(components="mha+fc")


def test_is_frozen():
    with pytest.raises(ValueError, match="frozen"):
        cell().seed = 3


@pytest.mark.parametrize("text", ["", "[]", "{", "null", '{"steps": 3', b"\xff\x00"])
def test_from_json_refuses(text: str | bytes):
    with pytest.raises(ConfigError, match="CellConfig"):
        CellConfig.from_json(text)


def test_replace_fills_in_anew():
    lora = cell(method="lora", lora_rank=4)
    assert lora.replace(method="components").components == "mha"
    assert lora.replace(seed=3).lora_rank == 4
    assert cell().replace(optimizer="adamw").momentum == 0.0
    assert cell(augmentation="crop").replace(augmentation="none").crop_scale_min is None


def test_variant_roles_and_counts():
    assert cell(components="full").variant == "full"
    assert "head" in cell(components="full").roles
    assert cell(components="fc1+mha").roles == ("mha", "fc1")
    assert cell(method="lora").variant == "lora-r16-q+v"
    assert cell(method="lora").roles == ()
    assert cell(batch_size=64, accumulation=8).images_per_step == 512
    assert (cell(augmentation="flip-crop").flip, cell(augmentation="flip-crop").crop) == (True, True)


@settings(max_examples=40)
@given(st.text(min_size=1, max_size=300), st.text(min_size=1, max_size=300))
def test_name_is_a_safe_folder(model: str, data: str):
    try:
        name = cell(model=model, data=data).name
    except PliantError:
        return  # control characters
    assert re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._+-]*-[0-9a-f]{16}", name)
    assert len(name) < 200
    assert Path(name).name == name


def test_name_reads_well():
    paper = cell(model="google/vit-base-patch16-224-in21k", data="cifar10-c-contrast", learning_rate=3e-5, seed=3407)
    assert paper.name == f"vit-base-patch16-224-in21k-cifar10-c-contrast-mha-sgd-3e-05-s3407-{paper.id}"
    assert cell(data="hub:org/name:config").name.startswith("bundled-hub_name_config-")


def test_json_is_plain():
    fields = json.loads(cell(method="lora").to_json())
    assert list(fields) == list(CellConfig.model_fields)
    assert fields["lora_targets"] == ["q", "v"]
