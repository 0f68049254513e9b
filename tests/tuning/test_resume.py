import os
import signal
from pathlib import Path

import pytest
import torch

from pliant.errors import StoreError, TrainingError
from pliant.runs import CellConfig, Record, read_metrics
from pliant.tuning import train
from pliant.tuning.checkpoint import FILE
from tuning.tiny_cells import cell, changed, data, exit_of, in_child, loaded, state

DROPOUT = {"hidden_dropout_prob": 0.2, "attention_probs_dropout_prob": 0.2}
CELL = cell(components="full", steps=10, eval_every=2, augmentation="flip-crop", warmup_steps=2, batch_size=6)


class Killed(BaseException):
    pass


def run(config: CellConfig, folder: Path | None, *, die_at: int | None = None, **options: object) -> Record:
    def dying(step: int, steps: int, point: object) -> None:
        if step == die_at:
            raise Killed

    if folder is not None:
        options = {"out": folder / "checkpoint", "metrics": folder / "metrics.jsonl", **options}
    options = {"progress": dying, "checkpoint_seconds": 0.0, **options}
    return train(config, loaded(**DROPOUT), data(), device="cpu", **options)


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> tuple[Record, list]:
    folder = tmp_path_factory.mktemp("undisturbed")
    return run(CELL, folder), read_metrics(folder / "metrics.jsonl")


@pytest.mark.parametrize("deaths", [[1], [2], [5], [10], [3, 4, 7, 9]])
def test_a_run_that_died_goes_on_as_if_it_had_not(tmp_path: Path, undisturbed: tuple, deaths: list[int]):
    for death in deaths:
        with pytest.raises(Killed):
            run(CELL, tmp_path, die_at=death)
    seen = []
    record = train(
        CELL,
        loaded(**DROPOUT),
        data(),
        out=tmp_path / "checkpoint",
        metrics=tmp_path / "metrics.jsonl",
        progress=lambda step, steps, point: seen.append(step),
        device="cpu",
        checkpoint_seconds=0,
    )
    assert record.outcome() == undisturbed[0].outcome()
    assert read_metrics(tmp_path / "metrics.jsonl") == undisturbed[1]
    # The checkpoint is written at evaluations, before progress is reported.
    assert seen == list(range(max(deaths) // 2 * 2 + 1, 11))


@pytest.mark.parametrize("optimizer", ["adamw", "sgd"])
def test_optimizer_state_is_resumed(tmp_path: Path, optimizer: str):
    config = cell(optimizer=optimizer, steps=8, eval_every=2, learning_rate=0.01)
    with pytest.raises(Killed):
        run(config, tmp_path, die_at=5)
    assert run(config, tmp_path).outcome() == run(config, None).outcome()


def test_a_finished_run_is_not_trained_again(tmp_path: Path, undisturbed: tuple):
    run(CELL, tmp_path)
    record = run(CELL, tmp_path, die_at=10)
    assert record.outcome() == undisturbed[0].outcome()


def test_seconds_add_up_over_starts(tmp_path: Path):
    with pytest.raises(Killed):
        run(CELL, tmp_path, die_at=8)
    left = torch.load(tmp_path / "checkpoint" / FILE, weights_only=True)
    left["seconds"] += 1000.0
    torch.save(left, tmp_path / "checkpoint" / FILE)
    assert 1000 < run(CELL, tmp_path).seconds < 1100


@pytest.mark.skipif(not hasattr(os, "fork"), reason="a process to kill is started by fork")
@pytest.mark.parametrize("moment", [1, 4, 7, 10])
def test_killed_without_warning_it_resumes(tmp_path: Path, undisturbed: tuple, moment: int):
    def kill_oneself(step: int, steps: int, point: object) -> None:
        if step == moment:
            os.kill(os.getpid(), signal.SIGKILL)

    assert exit_of(in_child(lambda: run(CELL, tmp_path, progress=kill_oneself))) == -signal.SIGKILL
    assert run(CELL, tmp_path).outcome() == undisturbed[0].outcome()
    assert read_metrics(tmp_path / "metrics.jsonl") == undisturbed[1]


def test_a_write_that_fails_leaves_the_old_checkpoint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    with pytest.raises(Killed):
        run(CELL, tmp_path, die_at=2)
    before = (tmp_path / "checkpoint" / FILE).read_bytes()

    def full(content: object, file: object) -> None:
        file.write(b"half")
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(torch, "save", full)
        with pytest.raises(StoreError, match=r"cannot write .*checkpoint\.pt: the disk is full"):
            run(CELL, tmp_path)
    assert (tmp_path / "checkpoint" / FILE).read_bytes() == before
    assert [p.name for p in (tmp_path / "checkpoint").iterdir()] == [FILE]


def test_checkpoints_are_written_no_more_often_than_asked(tmp_path: Path):
    run(CELL, tmp_path, checkpoint_seconds=3600)
    assert not (tmp_path / "checkpoint").exists()


def test_only_what_is_trained_is_in_the_checkpoint(tmp_path: Path):
    config = cell(components="ln1")
    run(config, tmp_path)
    left = torch.load(tmp_path / "checkpoint" / FILE, weights_only=True)
    assert len(left["weights"]) == 8
    assert set(left["weights"]) == set(left["names"]) == set(left["best"]["weights"])


def test_the_state_of_another_component_set_is_refused_naming_both(tmp_path: Path):
    with pytest.raises(Killed):
        run(cell(components="mha"), tmp_path, die_at=4)
    model = loaded()
    before = state(model.model)
    with pytest.raises(TrainingError, match=r"optimizer state of 'mha' \(20 tensors\).* with 'fc1' \(8 tensors\)"):
        train(cell(components="fc1"), model, data(), out=tmp_path / "checkpoint", device="cpu")
    assert changed(before, model.model) == set()


def test_the_state_of_another_cell_is_refused_with_the_difference(tmp_path: Path):
    with pytest.raises(Killed):
        run(cell(seed=1), tmp_path, die_at=4)
    with pytest.raises(
        TrainingError, match=r"another cell \(learning_rate: 0\.1 there, 0\.2 here; seed: 1 there, 0 here\)"
    ):
        run(cell(learning_rate=0.2), tmp_path)


def test_a_damaged_checkpoint_is_told(tmp_path: Path):
    with pytest.raises(Killed):
        run(CELL, tmp_path, die_at=4)
    path = tmp_path / "checkpoint" / FILE
    path.write_bytes(path.read_bytes()[:1000])
    with pytest.raises(StoreError, match=r"checkpoint\.pt is damaged .* remove it to train this cell from its start"):
        run(CELL, tmp_path)


def test_a_diverged_run_is_not_trained_again(tmp_path: Path):
    config = cell(components="full", learning_rate=1e30, clip_norm=None, steps=4, eval_every=1)
    first = run(config, tmp_path)
    assert first.status == "diverged"
    second = run(config, tmp_path)
    assert second.outcome() == first.outcome()
