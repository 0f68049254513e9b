"""The function and the commands: what they refuse, what they print, and stores that something is wrong with."""

import json
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import IO

import pytest
from safetensors.torch import load_file

from pliant.cli.app import run
from pliant.errors import (
    AnatomyError,
    ConfigError,
    DataError,
    ModelNotFoundError,
    PliantError,
    StoreError,
    UnknownNameError,
)
from pliant.models import load
from pliant.runs import CellConfig, Store, read_metrics
from pliant.runs.probes import read_probes
from pliant.sweeping import Recipe, cells, plan_sweep, sweep
from sweeping.small_sweep import make_recipe, outcomes


@pytest.fixture
def recipe(model: Path) -> Recipe:
    return make_recipe(model, components=["mha", "ln1"], learning_rate=[0.1, 0.3])


@pytest.fixture(scope="module")
def finished(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store with the four cells of `recipe`."""
    folder = tmp_path_factory.mktemp("finished")
    sweep(make_recipe(model, components=["mha", "ln1"], learning_rate=[0.1, 0.3]), out=folder)
    return folder


@pytest.fixture
def file(recipe: Recipe, tmp_path: Path) -> Path:
    """The recipe as a file."""
    path = tmp_path / "small.yaml"
    path.write_text(json.dumps(recipe.model_dump(mode="json")))
    return path


# --- what comes out ---------------------------------------------------------------------------------------------------


def test_a_sweep_and_its_summary(recipe: Recipe, finished: Path):
    before = outcomes(Store(finished))
    result = sweep(recipe, out=finished)  # nothing is left to do
    assert outcomes(Store(finished)) == before
    assert result.complete
    assert result.counts == {"done": 4, "diverged": 0, "failed": 0, "missing": 0}
    assert (result.problems, result.pruned, result.share) == ((), (), 1.0)
    (line,) = result.probes
    assert read_probes(finished) == (line,)
    table = result.table.set_index("train")
    assert list(table.index) == ["mha", "ln1", "linear-probe"]
    assert table.loc["linear-probe", "test accuracy"] == line.test.accuracy
    mha = [r for r in result.records if r.cell.components == "mha"]
    best = max(mha, key=lambda record: record.validation_accuracy)
    assert table.loc["mha", "validation"] == best.validation_accuracy
    assert table.loc["mha", "test accuracy"] == best.test.accuracy
    assert table.loc["mha", "parameters"] == best.trained_parameters
    rows = read_metrics(finished / "cells" / best.cell.name / "metrics.jsonl")
    assert {row["step"] for row in rows} >= {point.step for point in best.curve}
    norms = {row["step"]: row["gradient_norm.block01.mha"] for row in rows if "gradient_norm" in row}
    assert list(norms) == list(range(1, best.cell.steps + 1))  # of so few steps, each
    assert min(norms.values()) > 0


def test_cells_without_test_images_have_no_probe(model: Path, tmp_path: Path):
    result = sweep(make_recipe(model, read_test=[False]), out=tmp_path)
    assert result.complete
    assert result.probes == ()
    assert result.records[0].test is None


@pytest.mark.parametrize("save", ["model", "delta"])
def test_trained_models_are_kept_on_request(model: Path, finished: Path, tmp_path: Path, save: str):
    recipe = make_recipe(model, components=["mha", "ln1"])
    result = sweep(recipe, out=tmp_path, save=save)
    assert {r.cell.id: r.outcome() for r in result.records} == {
        cell.id: Store(finished).record(cell).outcome() for cell in cells(recipe)
    }
    for record in result.records:
        folder = Store(tmp_path).path(record.cell)
        if save == "delta":
            changed = load_file(folder / "delta.safetensors")
            assert set(changed) <= set(record.trained_names)
            assert len(changed) == record.trained_tensors_moved
            assert (folder / "delta.safetensors").stat().st_size <= record.saved_bytes
        else:
            loaded = load(str(folder / "model"))
            assert sum(p.numel() for p in loaded.model.parameters()) == record.total_parameters
            assert loaded.preprocessing.height == 8


def test_what_cannot_be_saved():
    with pytest.raises(ConfigError, match="got save='all'; expected model or delta"):
        sweep("digits", save="all")
    with pytest.raises(ConfigError, match="the engine ray brings back records, not weights"):
        sweep("digits", save="model", engine="ray")


def test_the_command_prints_data_on_stdout_and_talk_on_stderr(file: Path, finished: Path, capsys):
    assert run(["sweep", str(file), "--out", str(finished), "--set", "seed=5", "--json"]) == 0
    shown = capsys.readouterr()
    found = json.loads(shown.out)
    assert found["counts"]["done"] == len(found["records"]) == 4
    assert {record["cell"]["seed"] for record in found["records"]} == {5}
    assert "[4/4] digits ln1 lr 0.3 seed 5: validation" in shown.err
    assert run(["sweep", str(file), "--out", str(finished)]) == 0
    shown = capsys.readouterr()
    assert "linear-probe" in shown.out
    assert f"4 done in 0 s; results in {finished}" in shown.out.replace("\n", "")


def test_runs_lists_cells(finished: Path, capsys):
    assert run(["runs", str(finished)]) == 0
    assert "done" in capsys.readouterr().out
    assert run(["runs", str(finished), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert {cell["state"] for cell in found["cells"]} == {"done"}
    assert found["problems"] == []
    assert run(["runs", str(finished / "cells")]) == 1
    assert "is no store of runs" in capsys.readouterr().err


def test_a_failed_cell_is_listed_and_retried(model: Path, tmp_path: Path, capsys, monkeypatch: pytest.MonkeyPatch):
    recipe, out = make_recipe(model, components=["mha", "ln1"]), tmp_path / "out"
    from pliant.sweeping.worker import Worker

    right = Worker.train

    def out_of_memory(self, cell, **options):
        if cell.components == "mha":
            raise MemoryError("no room for activations")
        return right(self, cell, **options)

    with monkeypatch.context() as patch:
        patch.setattr(Worker, "train", out_of_memory)
        result = sweep(recipe, out=out)
    assert not result.complete
    assert result.counts == {"done": 1, "diverged": 0, "failed": 1, "missing": 0}
    assert "MemoryError: no room for activations" in result.failed[0].error
    assert list(result.table["train"]) == ["ln1", "linear-probe"]
    assert run(["runs", str(out)]) == 0
    shown = capsys.readouterr().out
    assert "1 done, 1 failed" in shown
    path = tmp_path / "small.yaml"
    path.write_text(json.dumps(recipe.model_dump(mode="json")))
    assert run(["sweep", str(path), "--out", str(out)]) == 1
    said = capsys.readouterr().err
    assert "1 of 2 cells failed, the first with: MemoryError: no room for activations" in said
    assert "--retry-failed" in said
    assert run(["runs", str(out), "--retry-failed"]) == 0
    assert "Cells that the next sweep runs again: 1" in capsys.readouterr().err
    assert run(["sweep", str(path), "--out", str(out), "--retry-failed"]) == 0
    assert (next(out.glob("cells/*-mha-*")) / "errors" / "001-error.txt").exists()


# --- dry run ----------------------------------------------------------------------------------------------------------


def test_a_dry_run_writes_nothing_and_counts(recipe: Recipe, finished: Path, tmp_path: Path, file: Path, capsys):
    plan = plan_sweep(recipe, out=tmp_path / "none")
    assert not (tmp_path / "none").exists()
    trained = {cell.id: Store(finished).record(cell).trained_parameters for cell in cells(recipe)}
    assert {planned.cell.id: planned.parameters.trained for planned in plan.cells} == trained
    assert {planned.basis for planned in plan.cells} == {"timed"}
    assert 0 < plan.seconds < 60
    assert "4 from a few timed steps here (cpu" in plan.notes[0]
    stored = plan_sweep(recipe, out=finished)
    assert {planned.basis for planned in stored.cells} == {"stored"}
    assert (stored.missing, stored.seconds) == ((), 0)
    assert run(["sweep", str(file), "--out", str(tmp_path / "none"), "--dry-run"]) == 0
    shown = capsys.readouterr().out
    assert "small: 4 cells, 4 to run" in shown
    assert "Estimated time: about" in shown
    assert run(["sweep", str(file), "--out", str(finished), "--dry-run", "--json", "--prune"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["share_of_steps"] == pytest.approx(1 / 3 + 2 / 4)
    assert not (finished / "rungs").exists()


def test_a_dry_run_without_the_model_still_counts_cells(model: Path, tmp_path: Path):
    plan = plan_sweep(make_recipe(tmp_path / "nowhere", seed=[0, 1]), out=tmp_path)
    assert len(plan.cells) == 2
    assert plan.cells[0].parameters is None
    assert plan.seconds is None
    assert any("nowhere" in note for note in plan.notes)


def test_shipped_recipes_can_be_planned_anywhere(tmp_path: Path):
    plan = plan_sweep("paper", out=tmp_path, changes={"data": ["cifar10", "pet"]})
    assert len(plan.cells) == 7 * 4 * 3 * 2
    assert plan.seconds is None
    assert len(plan.notes) >= 3  # both data sets and the model are not here


# --- bad input --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("fields", "error", "message"),
    [
        ({"components": ["mha", "layerscale"]}, AnatomyError, "'layerscale' cannot be trained in .*tiny.* has no"),
        ({"learning_rate": [0.1, 0.0]}, ConfigError, "learning_rate = 0.0: input should be greater than 0"),
        ({"learning_rate": [-1.0]}, ConfigError, "learning_rate = -1.0"),
        ({"components": ["mha", "mah"]}, ConfigError, "unknown component 'mah'. Did you mean 'mha'"),
        ({"data": ["digits", "digtis"]}, UnknownNameError, "unknown data 'digtis'. Did you mean 'digits'"),
        ({"data": ["digits", "folder:nowhere"]}, DataError, "1 of 2 data sets cannot be used. To run the others"),
        ({"image_size": [7]}, PliantError, "7"),
        ({"components": ["mha+fc1", "fc1+mha"]}, ConfigError, "two cells are one and the same run"),
    ],
)
def test_what_cannot_be_is_refused_before_anything_runs(model: Path, tmp_path: Path, fields, error, message: str):
    with pytest.raises(error, match=message):
        sweep(make_recipe(model, **fields), out=tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_a_model_that_is_not_here_is_refused_before_anything_runs(tmp_path: Path):
    with pytest.raises(ModelNotFoundError, match="nowhere"):
        sweep(make_recipe("./nowhere"), out=tmp_path / "out")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("name: x\nbase: {setps: 3}", "unknown key 'setps' in base. Did you mean 'steps'"),
        ("name: x\naxes: {lr: [1]}", "unknown key 'lr' in axes. Did you mean 'learning_rate'"),
        ("name: x\naxes: {learning_rate: []}", "axis 'learning_rate' has no values: the grid would be empty"),
        ("name: x\ngrid: {}", "unknown key 'grid'"),
        ("name: x\ndevice: cuda\nbase: {steps: 1, eval_every: 1, learning_rate: 1.0}", "recipe 'x' is to run on"),
    ],
)
def test_recipes_that_cannot_be_give_one_message(tmp_path: Path, text: str, message: str, capsys):
    import torch

    if "cuda" in text and torch.cuda.is_available():
        pytest.skip("there is a GPU here")
    (tmp_path / "x.yaml").write_text(text)
    assert run(["sweep", str(tmp_path / "x.yaml"), "--out", str(tmp_path / "out")]) == 1
    shown = capsys.readouterr()
    assert message in shown.err
    assert "Traceback" not in shown.err
    assert shown.out == ""


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["digts"], 1, "unknown recipe 'digts'. Did you mean 'digits'"),
        (["digits", "--engine", "rya"], 1, "unknown engine 'rya'. Did you mean 'ray'"),
        (["digits", "--set", "stpes=3"], 1, "unknown key 'stpes'. Did you mean 'steps'"),
        (["digits", "--set", "steps"], 1, "expected key=value, got 'steps'"),
        (["paper", "--prune"], 1, "recipe 'paper' is not pruned"),
        (["digits", "--workers", "0"], 2, "--workers"),
        (["digits", "--workers", "999"], 1, "got 999 workers; expected at most"),
        ([], 2, "Missing argument"),
    ],
)
def test_arguments_that_cannot_be(tmp_path: Path, monkeypatch, arguments: list[str], code: int, message: str, capsys):
    monkeypatch.chdir(tmp_path)
    assert run(["sweep", *arguments]) == code
    shown = capsys.readouterr()
    assert message in shown.err
    assert "Traceback" not in shown.err
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("name", ["sweep", "runs"])
def test_help_has_an_example(name: str, capsys):
    assert run([name, "--help"]) == 0
    assert f"Example: pliant {name}" in capsys.readouterr().out


# --- stores that something is wrong with ------------------------------------------------------------------------------


def test_damage_and_foreign_files_keep_no_other_cell_from_running(recipe: Recipe, finished: Path, tmp_path: Path):
    """A damaged result counts as failed, a folder that cannot be used is refused; both are said, the others are run."""
    store, (first, second, third, fourth) = Store(tmp_path), cells(recipe)
    sweep(recipe, out=tmp_path, changes={"components": "mha"})
    (store.path(first) / "result.json").write_text('{"cell": ')
    (tmp_path / "cells" / "notes.txt").write_text("mine")
    store.path(third).write_text("a file where a folder should be")
    result = sweep(recipe, out=tmp_path)
    assert result.counts == {"done": 2, "diverged": 0, "failed": 1, "missing": 1}
    assert "result.json is damaged" in result.failed[0].error
    assert len(result.problems) == 1
    assert str(store.path(third)) in result.problems[0]
    assert store.record(second).status == store.record(fourth).status == "done"
    assert (tmp_path / "cells" / "notes.txt").read_text() == "mine"
    store.path(third).unlink()
    assert sweep(recipe, out=tmp_path, retry_failed=True).complete
    assert outcomes(store) == outcomes_of(finished, recipe)


def outcome_of(store: Store, cell: CellConfig) -> object:
    return store.record(cell).outcome(), (store.path(cell) / "metrics.jsonl").read_bytes()


def outcomes_of(folder: Path, recipe: Recipe) -> dict[str, object]:
    own = {cell.id for cell in cells(recipe)}
    return {name: outcome for name, outcome in outcomes(Store(folder)).items() if name in own}


@pytest.fixture
def small_disk(mounted_tmpfs: Callable[[str], Path]) -> Path:
    return mounted_tmpfs("400k")


def fill(file: IO[bytes], *, block: int) -> None:
    """Write until there is no room left."""
    try:
        while file.write(bytes(block)):
            pass
    except OSError:
        return


def test_a_full_disk(recipe: Recipe, finished: Path, small_disk: Path):
    """Cells that cannot be stored are run by the next call; what was stored stays."""
    store, out = Store(small_disk / "out"), small_disk / "out"
    sweep(recipe, out=out, changes={"components": "mha"})
    before = outcomes(store)
    store.plan(cells(recipe))
    filler = small_disk / "filler"
    with filler.open("wb", buffering=0) as file:
        fill(file, block=1024)
    result = sweep(recipe, out=out)
    assert result.counts == {"done": 2, "diverged": 0, "failed": 0, "missing": 2}
    assert all("the disk is full. Free some space" in problem for problem in result.problems)
    assert len(result.problems) == 2
    assert all(outcome_of(store, cell) == before[cell.id] for cell in cells(recipe)[:2])
    filler.unlink()
    assert sweep(recipe, out=out).complete
    assert outcomes(store) == outcomes_of(finished, recipe)


def test_a_disk_that_has_room_again_before_the_end_loses_nothing(recipe: Recipe, finished: Path, small_disk: Path):
    out, filler = small_disk / "out", small_disk / "filler"
    store = Store(out)
    store.plan(cells(recipe))
    heard: list[str] = []

    def listener(event, standing):
        heard.append(event.kind)
        if event.kind == "started" and event.cell == cells(recipe)[0] and event.job == "cell":
            # Room for the cell's metrics, but not for a result beside them.
            metrics = Store(finished).path(event.cell) / "metrics.jsonl"
            room = -(-metrics.stat().st_size // 4096) * 4096
            with filler.open("wb", buffering=0) as file:
                fill(file, block=4096)
            with filler.open("rb+") as file:
                file.truncate(filler.stat().st_size - room)
        if event.kind == "kept":
            filler.unlink()

    assert sweep(recipe, out=out, listener=listener).complete
    assert heard.count("kept") == 1
    assert outcomes(store) == outcomes_of(finished, recipe)


def test_a_read_only_store(recipe: Recipe, model: Path, small_disk: Path, capsys):
    out = small_disk / "out"
    sweep(recipe, out=out, changes={"components": "mha"})
    subprocess.run(["mount", "-o", "remount,ro", small_disk], check=True)
    assert sweep(recipe, out=out, changes={"components": "mha"}).complete  # what is there can be looked at
    assert run(["runs", str(out)]) == 0
    result = sweep(recipe, out=out)
    assert result.counts["done"] == 2
    assert "the file system is read-only" in result.problems[0]
    with pytest.raises(StoreError, match=r"the file system is read-only\. Choose another folder"):
        sweep(recipe, out=small_disk / "other")
