import functools
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from pliant.errors import ConfigError, UnknownNameError
from pliant.runs import CellConfig
from pliant.sweeping import Recipe, cells, load_recipe, read_changes, read_recipe, recipe_names

BASE = {"steps": 100, "eval_every": 10, "learning_rate": 0.1}
SETS = {"full", "emb", "ln1", "mha", "ln2", "fc1", "fc2"}
SEEDS = {0, 42, 3407}


def recipe(**fields: object) -> Recipe:
    return Recipe(**{"name": "mine", "base": BASE, **fields})


@functools.cache
def shipped(name: str) -> tuple[CellConfig, ...]:
    return cells(load_recipe(name))


def values(chosen: tuple[CellConfig, ...] | list[CellConfig], field: str) -> set[object]:
    return {getattr(cell, field) for cell in chosen}


# --- the recipes that come with pliant, against the paper's facts -----------------------------------------------------


@pytest.mark.parametrize(
    ("name", "count"), [("paper", 924), ("paper-adam", 336), ("paper-sizes", 168), ("paper-lora", 24), ("digits", 84)]
)
def test_counts(name: str, count: int):
    made = shipped(name)
    assert len(made) == len({cell.id for cell in made}) == count
    assert values(made, "seed") == SEEDS
    assert load_recipe(name).description.endswith(f" {count} runs.")


def test_every_recipe_is_counted():
    assert set(recipe_names()) == {"paper", "paper-adam", "paper-sizes", "paper-lora", "digits"}
    assert all(load_recipe(name).name == name for name in recipe_names())


@pytest.mark.parametrize(
    ("data", "steps", "eval_every", "rates"),
    [
        ("cifar10", 10_000, 500, {1e-3, 3e-3, 1e-2, 3e-2}),
        ("cifar100", 10_000, 500, {1e-3, 3e-3, 1e-2, 3e-2}),
        ("cifar10-c-contrast", 10_000, 350, {1e-3, 3e-3, 1e-2, 3e-2}),
        ("cifar10-c-gaussian_noise", 10_000, 350, {1e-3, 3e-3, 1e-2, 3e-2}),
        ("cifar10-c-motion_blur", 10_000, 350, {1e-3, 3e-3, 1e-2, 3e-2}),
        ("cifar10-c-snow", 10_000, 350, {1e-3, 3e-3, 1e-2, 3e-2}),
        ("cifar10-c-speckle_noise", 10_000, 350, {1e-3, 3e-3, 1e-2, 3e-2}),
        ("domainnet-clipart", 20_000, 500, {3e-3, 1e-2, 3e-2, 6e-2}),
        ("domainnet-sketch", 20_000, 500, {3e-3, 1e-2, 3e-2, 6e-2}),
        ("flowers102", 5_000, 250, {1e-3, 3e-3, 1e-2, 3e-2}),
        ("pet", 4_000, 200, {1e-3, 3e-3, 1e-2, 3e-2}),
    ],
)
def test_paper_per_data_set(data: str, steps: int, eval_every: int, rates: set[float]):
    made = [cell for cell in shipped("paper") if cell.data == data]
    assert len(made) == 7 * 4 * 3
    assert values(made, "steps") == {steps}
    assert values(made, "eval_every") == {eval_every}
    assert values(made, "learning_rate") == rates
    assert values(made, "components") == SETS


def test_paper_protocol():
    made = shipped("paper")
    assert len(values(made, "data")) == 11
    protocol = {
        "model": "google/vit-base-patch16-224-in21k", "image_size": 224, "augmentation": "flip-crop",
        "crop_scale_min": 0.08, "normalization": "imagenet", "optimizer": "sgd", "momentum": 0.9, "weight_decay": 0.0,
        "clip_norm": 1.0, "schedule": "cosine", "warmup_steps": 2000, "images_per_step": 512, "train": None,
        "read_test": True,
    }  # fmt: skip
    assert {field: values(made, field) for field in protocol} == {field: {value} for field, value in protocol.items()}


def test_paper_adam_divides_the_rates_by_100():
    sgd, adam = shipped("paper"), shipped("paper-adam")
    assert values(adam, "optimizer") == {"adamw"}
    assert values(adam, "weight_decay") == {0.0}
    assert len(values(adam, "data")) == 4
    expected = {
        (cell.data, cell.components, cell.seed, cell.steps, cell.eval_every, f"{cell.learning_rate / 100:g}")
        for cell in sgd
        if cell.data in values(adam, "data")
    }
    assert expected == {
        (cell.data, cell.components, cell.seed, cell.steps, cell.eval_every, f"{cell.learning_rate:g}") for cell in adam
    }


def test_paper_sizes_is_paper_with_larger_models():
    large = shipped("paper-sizes")
    assert values(large, "model") == {f"google/vit-{size}-in21k" for size in ("large-patch16-224", "huge-patch14-224")}
    assert values(large, "images_per_step") == {512}
    same = {"model": "x", "batch_size": 1, "accumulation": 1}
    base = {cell.replace(**same) for cell in shipped("paper") if cell.data == "domainnet-clipart"}
    assert {cell.replace(**same) for cell in large} == base


def test_paper_lora():
    made = shipped("paper-lora")
    assert Counter(cell.variant for cell in made) == {"lora-r16-q+v": 12, "norms": 12}
    assert values(made, "data") == {"cifar100"}
    assert values(made, "optimizer") == {"adamw"}
    assert values(made, "steps") == {10_000}


def test_digits():
    made = shipped("digits")
    assert values(made, "components") == SETS
    for name in SETS:
        own = [cell for cell in made if cell.components == name]
        assert len(own) == 12
        rates = sorted(values(own, "learning_rate"))
        assert np.allclose(np.diff(np.log10(rates)), 0.5, atol=0.03)  # grids differ in place, not in length or spacing
    assert min(cell.steps for cell in made) >= 200
    assert values(made, "model") == {"bundled"}


# --- spelling out -----------------------------------------------------------------------------------------------------


def test_order_is_that_of_the_axes():
    made = cells(recipe(axes={"components": ["mha", "fc1"], "seed": [2, 1]}))
    assert [(cell.components, cell.seed) for cell in made] == [("mha", 2), ("mha", 1), ("fc1", 2), ("fc1", 1)]


def test_without_axes_there_is_one_cell():
    assert cells(recipe()) == (CellConfig(**BASE),)


def test_the_last_fitting_override_wins():
    overrides = [
        {"when": {"data": "domainnet-*"}, "set": {"steps": 200, "train": 5}, "axes": {"seed": [1, 2]}},
        {"when": {"data": ["domainnet-sketch", "pet"]}, "set": {"steps": 300}, "axes": {"seed": [3]}},
    ]
    axes = {"seed": [0], "data": ["digits", "domainnet-clipart", "domainnet-sketch", "pet"]}
    made = cells(recipe(axes=axes, overrides=overrides))
    assert [(cell.data, cell.seed, cell.steps, cell.train) for cell in made] == [
        ("digits", 0, 100, None),
        ("domainnet-clipart", 1, 200, 5),
        ("domainnet-clipart", 2, 200, 5),
        ("domainnet-sketch", 3, 300, 5),
        ("pet", 3, 300, None),
    ]


def test_methods_have_axes_of_their_own():
    overrides = [
        {"when": {"method": "components"}, "axes": {"components": ["mha", "fc1"]}},
        {"when": {"method": "lora"}, "axes": {"lora_rank": [4, 16], "lora_targets": [["q", "v"], ["fc1"]]}},
    ]
    made = cells(recipe(axes={"method": ["components", "lora", "norms"]}, overrides=overrides))
    variants = ["mha", "fc1", "lora-r4-q+v", "lora-r4-fc1", "lora-r16-q+v", "lora-r16-fc1", "norms"]
    assert [cell.variant for cell in made] == variants


def test_conditions_see_base_and_defaults():
    overrides = [
        {"when": {"optimizer": "sgd", "method": "components"}, "set": {"train": 7}},
        {"when": {"train": None}, "set": {"test": 8}},
    ]
    (cell,) = cells(recipe(overrides=overrides))
    assert (cell.train, cell.test) == (7, 8)


def test_rates_may_depend_on_components_and_optimizer():
    overrides = [
        {"when": {"optimizer": "adamw"}, "axes": {"learning_rate": [1e-4]}},
        {"when": {"optimizer": "adamw", "components": "ln*"}, "axes": {"learning_rate": [1e-3]}},
    ]
    axes = {"learning_rate": [0.1], "components": ["mha", "ln1"], "optimizer": ["sgd", "adamw"]}
    made = cells(recipe(base={"steps": 100, "eval_every": 10}, axes=axes, overrides=overrides))
    rates = {(cell.components, cell.optimizer): cell.learning_rate for cell in made}
    assert rates == {("mha", "sgd"): 0.1, ("ln1", "sgd"): 0.1, ("mha", "adamw"): 1e-4, ("ln1", "adamw"): 1e-3}


# --- changes from outside ---------------------------------------------------------------------------------------------


def test_the_paper_scaled_down():
    changes = read_changes("model=bundled data=digits steps=20 warmup_steps=2 eval_every=10 train=50 seed=0".split())
    changes |= read_changes(["learning_rate=1e-2,3e-2", "image_size=null", "batch_size=16", "accumulation=1"])
    made = cells(load_recipe("paper"), changes=changes)
    assert len(made) == 7 * 2
    assert values(made, "steps") == {20}
    assert values(made, "data") == {"digits"}
    assert values(made, "image_size") == {None}
    assert values(made, "components") == SETS


def test_changes_beat_overrides_but_keep_the_others():
    made = cells(load_recipe("paper"), changes={"data": ["pet", "domainnet-sketch"], "eval_every": 100, "seed": [0]})
    assert {(cell.data, cell.steps, cell.eval_every) for cell in made} == {
        ("pet", 4000, 100),
        ("domainnet-sketch", 20_000, 100),
    }
    assert values([cell for cell in made if cell.data == "pet"], "learning_rate") == {1e-3, 3e-3, 1e-2, 3e-2}


def test_changes_change_no_id_by_themselves():
    paper = shipped("paper")
    some = cells(load_recipe("paper"), changes={"data": ["pet"], "components": ["mha", "ln1"]})
    assert len(some) == 24
    assert set(some) < set(paper)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("steps", "expected key=value, got 'steps'"),
        ("lr=0.1", r"unknown key 'lr'\. Did you mean 'learning_rate'"),
        ("data=[", "cannot be read"),
    ],
)
def test_changes_refused(text: str, message: str):
    with pytest.raises(ConfigError, match=message):
        read_changes([text])


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"lr": 0.1}, "unknown key 'lr' in axes.*Did you mean 'learning_rate'"),
        ({"seed": []}, "axis 'seed' has no values: the grid would be empty"),
        ({"learning_rate": 0.0}, r"cell \(.*\): learning_rate = 0.0: input should be greater than 0"),
        ({"steps": 20}, r"warm-up of 2000 steps leaves none of the 20 steps"),
    ],
)
def test_changes_are_checked(changes: dict[str, object], message: str):
    with pytest.raises(ConfigError, match=message):
        cells(load_recipe("paper"), changes=changes)


# --- what is refused --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"bass": {}}, r"unknown key 'bass'\. Did you mean 'base'"),
        ({"base": {**BASE, "stepz": 3}}, r"unknown key 'stepz' in base\. Did you mean 'steps'"),
        ({"axes": {"lr": [0.1]}}, r"unknown key 'lr' in axes\. Did you mean 'learning_rate'"),
        ({"axes": {"seed": []}}, "axis 'seed' has no values: the grid would be empty"),
        ({"axes": {"seed": 3}}, "axis 'seed' must be a list, got 3"),
        ({"axes": {"data": "digits"}}, "axis 'data' must be a list, got 'digits'"),
        ({"axes": {"seed": [1, 1]}}, r"axis 'seed' has a value twice: \[1, 1\]"),
        (
            {"axes": {"components": ["mha+fc1", "fc1+mha"]}},
            r"two cells are one .*mha\+fc1\) and \(components: fc1\+mha",
        ),
        ({"axes": {"steps": [1]}}, "steps: both in base and an axis"),
        ({"axes": {"components": ["mha", "fc3"]}}, r"cell \(components: fc3\): unknown component 'fc3'.*'fc"),
        ({"axes": {"optimizer": ["sgd", "adam"]}}, "optimizer = 'adam': input should be 'sgd' or 'adamw'"),
        ({"base": {**BASE, "learning_rate": 0}}, "the only one.*learning_rate = 0: input should be greater than 0"),
        ({"base": {**BASE, "learning_rate": -0.1}}, "learning_rate = -0.1: input should be greater than 0"),
        ({"base": {"steps": 1}}, "learning_rate is missing"),
        ({"base": {**BASE, "lora_rank": 3}}, "lora_rank means nothing with method 'components'"),
        ({"name": "a b"}, "name = 'a b'"),
        ({"device": "gpu"}, "device = 'gpu': input should be 'auto', 'cpu', 'cuda' or 'mps'"),
        ({"overrides": {}}, "overrides = {}"),
        ({"overrides": [{"when": {"seed": 0}}]}, "override 1: the override when seed: 0 has neither set nor axes"),
        ({"overrides": [{"when": {}, "set": {"steps": 2}}]}, "override 1: when = {}"),
        ({"overrides": [{"set": {"steps": 2}}]}, "override 1: when is missing"),
        ({"overrides": [{"if": {"seed": 0}, "set": {"steps": 2}}]}, "override 1: .*unknown key 'if'"),
        ({"overrides": [{"when": {"dat": "x"}, "set": {"steps": 2}}]}, "unknown key 'dat' in override 1, when.*'data'"),
        (
            {"overrides": [{"when": {"data": "x"}, "set": {"step": 2}}]},
            "unknown key 'step' in override 1, set.*'steps'",
        ),
        (
            {"overrides": [{"when": {"data": "digit"}, "set": {"steps": 2}}]},
            r"override 1 \(when data: digit\): data = 'digit' fits no cell\. data is digits",
        ),
        (
            {"axes": {"seed": [0, 1]}, "overrides": [{"when": {"data": "digits"}, "set": {"seed": 2}}]},
            "override 1 sets seed, which is an axis",
        ),
        (
            {
                "axes": {"seed": [0], "train": [5]},
                "overrides": [
                    {"when": {"seed": 0}, "axes": {"train": [6]}},
                    {"when": {"train": 5}, "axes": {"seed": [1]}},
                ],
            },
            "the axes seed, train depend on each other in a circle",
        ),
    ],
)
def test_refuses(fields: dict[str, object], message: str):
    with pytest.raises(ConfigError, match=f"(?s){message}"):
        cells(recipe(**fields))


# --- reading ----------------------------------------------------------------------------------------------------------


def test_reads_a_file_as_people_write_it(tmp_path: Path):
    path = tmp_path / "mine.yaml"
    path.write_text(
        "name: mine\nbase: {steps: 100, eval_every: 10}\naxes: {learning_rate: [1e-3, 1.5e-3, 3E-2, 1]}\n",
        encoding="utf-8",
    )
    assert [cell.learning_rate for cell in cells(load_recipe(path))] == [1e-3, 1.5e-3, 3e-2, 1.0]
    assert load_recipe(str(path)) == load_recipe(path)


@pytest.mark.parametrize("name", recipe_names())
def test_recipes_survive_json(name: str):
    original = load_recipe(name)
    assert Recipe.from_json(original.to_json()) == original


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "recipe: expected keys and values, got NoneType"),
        ("- a", "expected keys and values, got list"),
        ("name: [", "(?s)recipe: .*line 1"),
        ("name: a\nname: b", "(?s)the key 'name' is given twice.*line 2"),
        ("name: a\nbase: {steps: 1, steps: 2}", "the key 'steps' is given twice"),
        ("name: a\nbase: !!python/object:os.system {}", "could not determine a constructor"),
        ("base: {}", "recipe: name is missing"),
        ("name: a\nbase: 3", "recipe: base = 3: input should be a valid dictionary"),
        ("name: a\naxis: {}", "unknown key 'axis'. Did you mean 'axes'"),
    ],
)
def test_reading_refuses(text: str, message: str):
    with pytest.raises(ConfigError, match=message):
        read_recipe(text)


def test_unknown_recipe():
    with pytest.raises(UnknownNameError, match=r"unknown recipe 'papr'\. Did you mean 'paper'"):
        load_recipe("papr")


def test_missing_file(tmp_path: Path):
    with pytest.raises(ConfigError, match=r"mine\.yaml cannot be read: .*No such file"):
        load_recipe(tmp_path / "mine.yaml")
