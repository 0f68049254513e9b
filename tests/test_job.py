import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pandas as pd
import pytest
import torch
from transformers import AutoModelForImageClassification

import pliant
from pliant import models
from pliant.data import load, pixel_values
from pliant.errors import ConfigError, DivergedError, ModelNotFoundError, UnknownNameError
from pliant.job import TuneConfig, tune
from pliant.measuring import read_measurement
from pliant.runs import Store
from pliant.terms import Preprocessing

HALF = (0.5, 0.5, 0.5)
SMALL = Preprocessing(16, 16, None, "bilinear", HALF, HALF, "test")
QUICK = {
    "train": 60, "validation": 50, "test": 40, "steps": 6, "race_steps": 2, "batch_size": 8, "measure_items": 16,
    "energy_images": 30,
}  # fmt: skip


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> str:
    """A tiny model in a folder."""
    from transformers import ViTConfig, ViTForImageClassification

    with torch.random.fork_rng():
        torch.manual_seed(0)
        config = ViTConfig(
            hidden_size=16, num_hidden_layers=2, num_attention_heads=2, intermediate_size=32, image_size=16,
            patch_size=8, num_labels=3, initializer_range=0.2,
        )  # fmt: skip
        model = ViTForImageClassification(config).eval()
    return str(models.save(model, tmp_path_factory.mktemp("tiny") / "model", preprocessing=SMALL))


@pytest.fixture(scope="module")
def done(folder, tmp_path_factory):
    out = tmp_path_factory.mktemp("run") / "out"
    return tune(folder, "digits", out=out, device="cpu", **QUICK)


def test_everything_is_written(done):
    result = json.loads((done.folder / "result.json").read_text())
    asked = {
        "chosen", "trained_parameters", "total_parameters", "test_accuracy", "test_accuracy_ci", "probe_test_accuracy",
        "n_test", "plasticity_by_role", "race", "seconds",
    }  # fmt: skip
    assert asked <= set(result)
    assert result["n_test"] == 40
    assert result["test_accuracy_ci"][0] <= result["test_accuracy"] <= result["test_accuracy_ci"][1]
    assert "<html" in (done.folder / "report.html").read_text()[:500]
    assert set(result["plasticity_by_role"]) == {"ln1", "mha", "ln2", "fc1", "fc2"}
    assert len(result["race"]["trials"]) >= 18
    assert result["chosen"] == result["race"]["chosen"] == done.chosen
    assert TuneConfig.from_json((done.folder / "config.json").read_bytes()).steps == 6
    pd.testing.assert_frame_equal(
        read_measurement(done.folder / "measurement.parquet").frame, done.advice.measurement.frame
    )


def test_the_saved_model_scores_what_the_result_says(done):
    model = AutoModelForImageClassification.from_pretrained(done.folder / "model").eval()
    assert list(model.config.id2label.values()) == list("0123456789")
    data = load("digits", train=60, validation=50, test=40)
    with torch.no_grad():
        predicted = model(pixel_values(list(data.test), SMALL)).logits.argmax(1).numpy()
    assert (predicted == data.test.labels).sum() == done.test.correct


def test_the_race_never_reads_the_test_images(done):
    records = Store(done.folder, create=False).records()
    assert len(records) == len(done.advice.race.trials) + 1
    assert sum(r.test is not None for r in records) == 1
    assert {r.cell.steps for r in records if r.test is None} == {2}


def test_the_same_call_goes_on_and_trains_nothing_again(done, folder, monkeypatch):
    for module in ("run", "advice"):
        monkeypatch.setattr(f"pliant.job.{module}.train", lambda *a, **k: pytest.fail("trained again"))
    again = tune(folder, "digits", out=done.folder, device="cpu", **QUICK)
    assert again.record == done.record
    assert again.chosen == done.chosen


def test_another_configuration_in_the_same_folder_is_refused(done, folder):
    with pytest.raises(ConfigError, match=r"another configuration \(steps: 6 there, 7 now\).*--out"):
        tune(folder, "digits", out=done.folder, device="cpu", **{**QUICK, "steps": 7})


def test_a_foreign_folder_is_left_alone(folder, tmp_path):
    (tmp_path / "thesis.tex").write_text("mine")
    with pytest.raises(ConfigError, match="not empty and holds no run"):
        tune(folder, "digits", out=tmp_path, device="cpu", **QUICK)
    assert [p.name for p in tmp_path.iterdir()] == ["thesis.tex"]


def test_a_given_set_trains_that_set_and_no_other(folder, tmp_path):
    found = tune(folder, "digits", out=tmp_path / "o", device="cpu", components="fc2+ln1", learning_rate=0.05, **QUICK)
    assert found.advice.race is None
    assert found.chosen == "ln1+fc2"
    roles = {n.split(".")[-2] for n in found.record.trained_names}
    assert roles == {"layernorm_before", "fc2", "layernorm", "classifier"}
    before = AutoModelForImageClassification.from_pretrained(folder).state_dict()
    after = AutoModelForImageClassification.from_pretrained(found.folder / "model").state_dict()
    for name, tensor in before.items():
        if name.startswith("classifier"):
            continue
        assert torch.equal(tensor, after[name]) == (name not in found.record.trained_names), name


def test_a_budget_excludes_candidates(folder, tmp_path):
    found = tune(folder, "digits", out=tmp_path / "o", device="cpu", budget="10%", **QUICK)
    assert found.advice.race is not None
    assert {t.components for t in found.advice.race.trials} == {"ln1", "ln2"}
    assert (found.record.trained_parameters or 0) <= 0.1 * (found.record.total_parameters or 0)


def test_divergence_is_said_with_its_step(folder, tmp_path):
    with pytest.raises(DivergedError, match=r"diverged at step \d+: .* not finite.*--learning-rate"):
        tune(
            folder, "digits", out=tmp_path / "o", device="cpu", components="full", learning_rate=1e30,
            **{**QUICK, "clip_norm": None, "steps": 12},
        )  # fmt: skip
    assert not (tmp_path / "o" / "result.json").exists()
    assert not (tmp_path / "o" / "model").exists()


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"components": "mah"}, UnknownNameError, "unknown component 'mah'. Did you mean 'mha'"),
        ({"model": "bundeld"}, ModelNotFoundError, "Did you mean 'bundled'"),
        ({"data": "digtis"}, UnknownNameError, "unknown data 'digtis'. Did you mean 'digits'"),
        ({"setps": 3}, ConfigError, "unknown key 'setps'. Did you mean 'steps'"),
        ({"budget": "lots"}, ConfigError, "got the budget 'lots'"),
        ({"steps": 0}, ConfigError, "steps"),
        ({"learning_rate": -1.0}, ConfigError, "learning_rate"),
        ({"warmup_steps": 6}, ConfigError, "warm-up"),
        ({"device": "abacus"}, ConfigError, "device 'abacus' cannot be used here"),
    ],
)
def test_mistakes_are_told_in_one_message(options, error, message, tmp_path):
    given = {"model": "bundled", "data": "digits", "out": tmp_path / "o", "device": "cpu", **QUICK, **options}
    with pytest.raises(error, match=message):
        tune(**given)
    assert not (tmp_path / "o").exists()


def test_interrupt_leaves_nothing_that_looks_finished_and_the_same_command_finishes(folder, tmp_path):
    out = tmp_path / "o"
    arguments = [
        "tune", "--model", folder, "--out", str(out), "--train", "60", "--validation", "50", "--test", "40",
        "--steps", "400", "--race-steps", "2", "--batch-size", "8", "--components", "mha", "--learning-rate", "0.05",
        "--device", "cpu",
    ]  # fmt: skip
    command = [sys.executable, "-m", "pliant.cli", *arguments]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=os.environ)
    cells = out / "cells"
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline and not list(cells.glob("*/metrics.jsonl")):
        time.sleep(0.02)
    process.send_signal(signal.SIGINT)
    _, talk = process.communicate(timeout=60)
    assert process.returncode == 130, talk
    assert f"to go on: pliant tune --model {folder}" in talk
    assert not (out / "result.json").exists()
    assert not (out / "model").exists()
    subprocess.run(command, check=True, capture_output=True, timeout=120)
    assert (out / "result.json").exists()
    assert [p.name for p in out.iterdir() if p.name.startswith(".") or p.suffix == ".tmp"] == []


def test_python_names_are_the_commands():
    assert pliant.tune is tune


def test_the_result_keeps_its_source(done):
    assert Path(done.record.environment["source"]).name == "model"
