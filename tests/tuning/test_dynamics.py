import math
from pathlib import Path

import pytest

from pliant.errors import ConfigError
from pliant.runs import read_metrics
from pliant.tuning import train
from pliant.tuning.trainer import Watch
from tuning.tiny_cells import cell, data, loaded


def rows_of(path: Path) -> tuple[list[dict], list[dict]]:
    rows = read_metrics(path)
    return [r for r in rows if "loss" in r], [r for r in rows if "loss" not in r]


def test_each_step_has_norms_by_component_and_role(tmp_path: Path):
    path = tmp_path / "metrics.jsonl"
    record = train(cell(components="mha+fc1"), loaded(), data(), metrics=path, device="cpu", dynamics=1)
    steps, evaluations = rows_of(path)
    assert [r["step"] for r in steps] == [1, 2, 3, 4, 5, 6]
    assert [r["step"] for r in evaluations] == [3, 6]
    assert evaluations[0]["train_loss"] == pytest.approx(sum(r["loss"] for r in steps[:3]) / 3)
    assert evaluations[-1]["validation_loss"] == record.curve[-1].validation_loss
    for row in steps:
        for quantity in ("gradient_norm", "update_norm"):
            by_role = {r: row[f"{quantity}.{r}"] for r in ("mha", "fc1", "final_norm", "head")}
            for role in ("mha", "fc1"):
                assert by_role[role] == pytest.approx(
                    math.hypot(row[f"{quantity}.block00.{role}"], row[f"{quantity}.block01.{role}"]), rel=1e-6
                )
            assert row[quantity] == pytest.approx(math.hypot(by_role["mha"], by_role["fc1"]), rel=1e-6)
            assert row[f"{quantity}.total"] == pytest.approx(math.hypot(*by_role.values()), rel=1e-6)


def test_norms_are_those_of_the_gradients_before_clipping(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    seen = []
    original = Watch.on_pre_optimizer_step

    def spy(self: Watch, *arguments: object, **more: object) -> None:
        original(self, *arguments, **more)
        seen.append(float(self.trainer.gradient_norm))

    monkeypatch.setattr(Watch, "on_pre_optimizer_step", spy)
    path = tmp_path / "metrics.jsonl"
    train(cell(clip_norm=0.02), loaded(), data(), metrics=path, device="cpu", dynamics=1)
    steps, _ = rows_of(path)
    assert [r["gradient_norm.total"] for r in steps] == pytest.approx(seen, rel=1e-4)
    # With plain SGD the first update is the rate times the clipped gradient.
    assert steps[0]["update_norm.total"] == pytest.approx(0.1 * 0.02, rel=1e-3)


def test_watching_changes_nothing(tmp_path: Path):
    plain = train(cell(), loaded(), data(), device="cpu")
    watched = train(cell(), loaded(), data(), metrics=tmp_path / "m.jsonl", device="cpu", dynamics=1)
    assert watched.outcome() == plain.outcome()


def test_the_head_alone_is_reported_as_what_is_trained(tmp_path: Path):
    train(cell(components="head"), loaded(), data(), metrics=tmp_path / "m.jsonl", device="cpu", dynamics=1)
    assert all(r["gradient_norm"] == r["gradient_norm.total"] for r in rows_of(tmp_path / "m.jsonl")[0])


def test_every_so_many_steps(tmp_path: Path):
    train(cell(steps=9), loaded(), data(), metrics=tmp_path / "m.jsonl", device="cpu", dynamics=4)
    assert [r["step"] for r in rows_of(tmp_path / "m.jsonl")[0]] == [4, 8]


@pytest.mark.parametrize("death", [1, 4, 5])
def test_a_resumed_run_has_the_same_rows(tmp_path: Path, death: int):
    class Killed(BaseException):
        pass

    def run(folder: Path, die_at: int | None = None) -> list:
        def progress(step: int, steps: int, point: object) -> None:
            if step == die_at:
                raise Killed

        where = {"out": folder / "checkpoint", "metrics": folder / "m.jsonl"}
        folder.mkdir(exist_ok=True)
        train(cell(), loaded(), data(), **where, device="cpu", dynamics=1, checkpoint_seconds=0, progress=progress)
        return read_metrics(folder / "m.jsonl")

    with pytest.raises(Killed):
        run(tmp_path / "killed", death)
    assert run(tmp_path / "killed") == run(tmp_path / "undisturbed")


def test_a_diverged_run_keeps_its_rows(tmp_path: Path):
    fields = {"components": "full", "learning_rate": 1e30, "clip_norm": None, "steps": 30, "eval_every": 30}
    record = train(cell(**fields), loaded(), data(), metrics=tmp_path / "m.jsonl", device="cpu", dynamics=1)
    steps, _ = rows_of(tmp_path / "m.jsonl")
    assert [r["step"] for r in steps] == list(range(1, record.diverged_at + 1))
    assert not math.isfinite(steps[-1]["loss"])


def test_lora_is_followed_by_the_component_it_is_added_to(tmp_path: Path):
    train(cell(method="lora"), loaded(), data(), metrics=tmp_path / "m.jsonl", device="cpu", dynamics=1)
    row = rows_of(tmp_path / "m.jsonl")[0][0]
    assert {k for k in row if k.startswith("gradient_norm.block")} == {f"gradient_norm.block0{i}.mha" for i in (0, 1)}


def test_dynamics_need_a_place(tmp_path: Path):
    for options in ({"dynamics": 1}, {"dynamics": -1, "metrics": tmp_path / "m.jsonl"}):
        with pytest.raises(ConfigError, match=r"got dynamics=-?1, metrics=.*; dynamics counts steps"):
            train(cell(), loaded(), data(), device="cpu", **options)
