import dataclasses
import os
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from sklearn.linear_model import LogisticRegression
from sklearn.preprocessing import StandardScaler, normalize

from families import SAMPLES, Sample
from pliant.components import find_components
from pliant.data import ImageData, pixel_values
from pliant.errors import ConfigError, DataError, MeasurementError, ModelError
from pliant.models import Loaded, from_module
from pliant.terms import BLOCK_ROLES, Preprocessing
from pliant.tuning.features import LOOKED_AT
from pliant.tuning.probe import GRID, probe
from tuning.tiny_cells import CLASSES, PREPROCESSING, changed, data, images, loaded, state


def reference(model: object, sets: ImageData, pooling: str, strengths: tuple[float, ...]) -> tuple[int, float, int]:
    """The slow, plain version: hidden states of transformers, scikit-learn's own scalers, fits from zero."""
    found = []
    for split in (sets.train, sets.validation, sets.test):
        with torch.no_grad():
            output = model(pixel_values(list(split), PREPROCESSING), output_hidden_states=True)
        tokens = output.hidden_states[-1].double().numpy()
        found.append(normalize(tokens[:, 0] if pooling == "cls" else tokens.mean(1)))
    scaler = StandardScaler().fit(found[0])
    train, validation, test = (scaler.transform(f) for f in found)
    best = (-1, 0.0, 0)
    for strength in strengths:
        fit = LogisticRegression(C=strength, max_iter=5000).fit(train, sets.train.labels)
        correct = int((fit.predict(validation) == sets.validation.labels).sum())
        if correct > best[0]:
            best = correct, strength, int((fit.predict(test) == sets.test.labels).sum())
    return best


@pytest.mark.parametrize("pooling", ["mean", "cls"])
@pytest.mark.parametrize("strengths", [GRID, (0.01,), (1.0,)])
def test_agrees_with_a_plain_version(pooling: str, strengths: tuple[float, ...]):
    model, sets = loaded(), data(train=80, validation=200, test=300)
    before = state(model.model)
    result = probe(model, sets, pooling=pooling, device="cpu", strengths=strengths)
    validation, strength, test = reference(model.model, sets, pooling, strengths)
    assert result.validation.correct == pytest.approx(validation, abs=1)
    if result.last.strength == strength:
        assert result.test.correct == pytest.approx(test, abs=1)
    else:  # two strengths with nearly the same score; fits end at slightly different places
        assert strengths == GRID
    assert (result.test.n, result.validation.n, result.n_train) == (300, 200, 80)
    assert (result.last.layer, result.last.width) == ("block01", 16)
    assert result.test.ci_low < result.test.accuracy < result.test.ci_high
    assert changed(before, model.model) == set()


def test_the_same_again():
    model, sets = loaded(), data()
    assert probe(model, sets, device="cpu").rows == probe(model, sets, device="cpu").rows


@pytest.mark.parametrize("pooling", ["mean", "cls"])
def test_every_component_of_every_block(pooling: str):
    result = probe(loaded(), data(), pooling=pooling, layer="all", device="cpu")
    expected = [f"block{i:02d}{end}" for i in (0, 1) for end in (*(f".{role}" for role in BLOCK_ROLES), "")]
    assert [row.layer for row in result.rows] == expected
    assert result.frame["layer"].tolist() == expected
    assert result.frame.set_index("layer")["width"]["block00.fc1"] == 32
    assert result.last.layer == "block01"
    last = probe(loaded(), data(), pooling=pooling, device="cpu")
    assert last.rows == (result.last,)
    blocks = probe(loaded(), data(), pooling=pooling, layer="blocks", device="cpu")
    assert [row.layer for row in blocks.rows] == ["block00", "block01"]


IMAGE_SAMPLES = [s for s in SAMPLES if s.size]


@pytest.mark.parametrize("sample", IMAGE_SAMPLES, ids=lambda s: s.id)
def test_every_family_of_image_models_can_be_probed(sample: Sample):
    model = sample.model()
    size = Preprocessing(sample.size, sample.size, None, "bilinear", (0.5,) * 3, (0.5,) * 3, "made for tests")
    sets = ImageData("made", CLASSES, *(images(16, seed=i) for i in range(3)))
    result = probe(from_module(model, preprocessing=size), sets, layer="all", device="cpu", strengths=(1.0,))
    anatomy = find_components(model)
    inside = [c for role in BLOCK_ROLES for c in anatomy.of(role) if c.block is not None]
    assert len(result.rows) == len(anatomy.blocks) + len(inside)
    assert not any(m._forward_hooks for m in model.modules())


def test_scaling_the_tokens_changes_nothing():
    """Features are normalised: a network whose last block's output is ten times as large has the same probe."""
    sets = data()
    plain = probe(loaded(), sets, device="cpu")
    model = loaded()
    model.model.vit.layers[-1].register_forward_hook(lambda module, args, output: output * 10)
    assert probe(model, sets, device="cpu").validation == plain.validation


def test_a_class_that_train_lacks_is_counted_as_wrong():
    sets = data()
    short = sets.train.subset(np.flatnonzero(sets.train.labels != 3))
    result = probe(loaded(), ImageData("made", CLASSES, short, sets.validation, sets.test), device="cpu")
    assert result.test.macro_accuracy <= 0.75


def test_progress_counts_images():
    seen = []
    probe(loaded(), data(), device="cpu", progress=lambda done, total: seen.append((done, total)))
    assert seen == [(40, 120), (70, 120), (120, 120)]


def test_a_strength_at_the_upper_edge_is_noted():
    result = probe(loaded(), data(), device="cpu", strengths=(1e-9, 0.001))
    assert any("upper edge" in note for note in result.notes) == (result.last.strength == 0.001)


def test_fits_that_do_not_converge_are_noted(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(sys.modules["pliant.tuning.probe"], "ITERATIONS", 2)
    result = probe(loaded(), data(), device="cpu")
    assert any("did not converge in 2 iterations" in note for note in result.notes)


def test_what_cannot_be_probed_is_refused():
    sets = data()
    with pytest.raises(ConfigError, match=r"pooling='max'; expected 'mean' or 'cls'"):
        probe(loaded(), sets, pooling="max")
    with pytest.raises(ConfigError, match=r"layer='first'; expected 'last', 'blocks' or 'all'"):
        probe(loaded(), sets, layer="first")
    with pytest.raises(ConfigError, match=r"no strength to choose from"):
        probe(loaded(), sets, strengths=(), device="cpu")
    with pytest.raises(ModelError, match=r"does not say what it expects of images"):
        probe(from_module(loaded().model), sets)
    with pytest.raises(DataError, match=r"made has no test images"):
        probe(loaded(), ImageData("made", CLASSES, sets.train, sets.validation, sets.test.subset([])))
    swin = next(s for s in SAMPLES if s.id.startswith("transformers_Swin"))
    with pytest.raises(ConfigError, match=r"has no class token; use pooling='mean'"):
        probe(from_module(swin.model(), preprocessing=PREPROCESSING), sets, pooling="cls")


def test_features_that_are_not_finite_are_refused():
    model = loaded()
    with torch.no_grad():
        model.model.vit.layers[1].mlp.fc2.bias.fill_(torch.nan)
    with pytest.raises(MeasurementError, match=r"block01: features are not finite"):
        probe(model, data(), device="cpu")


def test_features_are_kept_on_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    model, sets = loaded(), data()
    plain = probe(model, sets, layer="all", device="cpu")
    first = probe(model, sets, layer="all", device="cpu", cache=tmp_path)
    passed = count_images(model, monkeypatch)
    again = probe(model, sets, layer="all", device="cpu", cache=tmp_path)
    assert plain.rows == first.rows == again.rows
    assert (plain.reused, first.reused, again.reused) == (0, 0, 120)
    assert sum(passed) == 3 * LOOKED_AT
    # A layer is there for whoever asks for fewer; the other pooling is another feature.
    assert probe(model, sets, device="cpu", cache=tmp_path).reused == 120
    assert probe(model, sets, pooling="cls", device="cpu", cache=tmp_path).reused == 0
    assert not list(tmp_path.rglob("*.tmp"))


def count_images(model: Loaded, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    passed: list[int] = []
    forward = model.model.forward
    monkeypatch.setattr(model.model, "forward", lambda x, **named: passed.append(len(x)) or forward(x, **named))
    return passed


@pytest.mark.parametrize("change", ["weights", "pixels", "order", "preprocessing", "architecture"])
def test_features_of_something_else_are_not_used(change: str, tmp_path: Path):
    model, sets = loaded(), data()
    probe(model, sets, device="cpu", cache=tmp_path)
    if change == "weights":
        with torch.no_grad():
            model.model.vit.layers[0].mlp.fc1.weight[0, 0] += 0.5
        model = from_module(model.model, preprocessing=model.preprocessing)
    elif change == "pixels":
        sets = ImageData("made", CLASSES, *(images(n, seed=9 + n) for n in (40, 30, 50)))
    elif change == "order":
        splits = [s.subset(np.arange(len(s))[::-1]) for s in (sets.train, sets.validation, sets.test)]
        sets = ImageData("made", CLASSES, *splits)
    elif change == "preprocessing":
        model = dataclasses.replace(model, preprocessing=dataclasses.replace(PREPROCESSING, mean=(0.4,) * 3))
    else:  # weights, names and shapes are the same: only the features tell
        model.model.vit.layers[-1].register_forward_hook(lambda module, args, output: output + 0.1 * output.roll(1, -1))
    found = probe(model, sets, device="cpu", cache=tmp_path)
    assert found.reused == 0
    assert found.rows == probe(model, sets, device="cpu").rows


@pytest.mark.parametrize("damage", ["cut", "empty", "byte", "another"])
def test_damaged_features_are_computed_again(damage: str, tmp_path: Path):
    model, sets = loaded(), data()
    before = probe(model, sets, device="cpu", cache=tmp_path)
    files = sorted(tmp_path.rglob("*.features"))
    assert len(files) == 3
    contents = [file.read_bytes() for file in files]
    for number, (file, content) in enumerate(zip(files, contents, strict=True)):
        match damage:
            case "cut":
                file.write_bytes(content[:-100])
            case "empty":
                file.write_bytes(b"")
            case "byte":  # in the middle, where no image is looked at
                middle = len(content) // 2
                file.write_bytes(content[:middle] + bytes([content[middle] ^ 1]) + content[middle + 1 :])
            case "another":
                file.write_bytes(contents[number - 1])
    again = probe(model, sets, device="cpu", cache=tmp_path)
    assert (again.rows, again.reused) == (before.rows, 0)
    assert probe(model, sets, device="cpu", cache=tmp_path).reused == 120


def test_the_longest_unused_features_give_way(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    model, sets = loaded(), data()
    probe(model, sets, device="cpu", cache=tmp_path)
    size = sum(file.stat().st_size for file in tmp_path.rglob("*.features"))
    monkeypatch.setattr("pliant.tuning.features.MOST_BYTES", 2 * size)
    for seconds, folder in enumerate(tmp_path.iterdir()):
        os.utime(folder, (seconds, seconds))
    for pooling in ("cls", "mean"):  # what is used again is young again
        assert probe(model, sets, pooling=pooling, device="cpu", cache=tmp_path).reused == (0, 120)[pooling == "mean"]
    probe(loaded(seed=1), sets, device="cpu", cache=tmp_path)
    assert sum(file.stat().st_size for file in tmp_path.rglob("*.features")) <= 2 * size
    assert probe(model, sets, device="cpu", cache=tmp_path).reused == 120
    assert probe(model, sets, pooling="cls", device="cpu", cache=tmp_path).reused < 120


def test_the_classifier_is_no_part_of_the_features(tmp_path: Path):
    model, sets = loaded(), data()
    probe(model, sets, device="cpu", cache=tmp_path)
    with torch.no_grad():
        model.model.classifier.weight += 1
    moved = dataclasses.replace(model.preprocessing, origin="elsewhere")
    again = from_module(model.model, preprocessing=moved)
    assert again.fingerprint != model.fingerprint
    assert probe(again, sets, device="cpu", cache=tmp_path).reused == 120


def test_a_cache_without_room_only_costs_time(tmp_path: Path, mounted_tmpfs: Callable[[str], Path]):
    model, sets = loaded(), data()
    folder = mounted_tmpfs("16k")
    file = tmp_path / "file"
    file.write_text("no folder")
    for cache in (folder, file, file / "below"):
        found = probe(model, sets, layer="all", device="cpu", cache=cache)
        assert (found.rows, found.reused) == (probe(model, sets, layer="all", device="cpu").rows, 0)
    assert not [path for path in folder.rglob("*") if path.is_file()]
