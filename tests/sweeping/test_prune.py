"""Successive halving: what is run, what is kept, and whether the winner is that of the whole sweep."""

import json
import math
from pathlib import Path

import pytest

from pliant.errors import ConfigError, StoreError
from pliant.runs import CellConfig, Record, Store
from pliant.runs.pruning import given_up, read_verdicts
from pliant.sweeping import cells, load_recipe, sweep
from pliant.sweeping.prune import contestants, halve, planned_share, shares, shortened
from sweeping.small_sweep import make_recipe

CELLS = tuple(
    CellConfig(learning_rate=rate, components=components, seed=seed, steps=90, warmup_steps=9, eval_every=30)
    for components in ("mha", "ln1", "fc1")
    for rate in (0.01, 0.1, 1.0)
    for seed in (0, 1)
)


def record(cell: CellConfig, accuracy: float, *, status: str = "done") -> Record:
    fields = {"best_step": cell.steps, "validation_accuracy": accuracy, "n_validation": 400, "trained_parameters": 7}
    return Record(cell=cell, status=status, **({"diverged_at": 1} if status == "diverged" else fields))


def test_contestants_differ_in_more_than_their_seed():
    found = contestants(CELLS)
    assert len(found) == 9
    assert all(len(contestant.cells) == 2 for contestant in found)
    assert len({contestant.group for contestant in found}) == 1
    other = [cell.replace(data="pet") for cell in CELLS]
    assert len({contestant.group for contestant in contestants([*CELLS, *other])}) == 2


def test_a_short_run_is_the_whole_schedule_in_fewer_steps():
    short = shortened(CELLS[0], 1 / 3)
    assert (short.steps, short.warmup_steps, short.eval_every, short.read_test) == (30, 3, 30, False)
    least = shortened(CELLS[0].replace(steps=2, eval_every=1, warmup_steps=1), 1 / 9)
    assert (least.steps, least.warmup_steps) == (1, 0)


def test_the_best_third_goes_on(tmp_path: Path):
    """Accuracy grows with the rate, but the largest diverges with one seed; the share of steps is as announced."""
    trained: list[CellConfig] = []

    def run(store: Store, chosen) -> None:
        for cell in chosen:
            trained.append(cell)
            bad = cell.learning_rate == 1.0 and cell.seed == 1
            best = 0.2 if cell.components == "mha" else 0.0
            with store.claim(cell) as claim:
                claim.finish(record(cell, 0.5 + cell.learning_rate / 10 + best, status="diverged" if bad else "done"))

    left, verdicts = halve(CELLS, tmp_path, run=run)
    assert {(cell.components, cell.learning_rate, cell.seed) for cell in left} == {("mha", 0.1, 0), ("mha", 0.1, 1)}
    assert [verdict.kept for verdict in verdicts].count(True) == 3 + 1
    assert {cell.steps for cell in trained} == {10, 30}
    steps = sum(cell.steps for cell in trained) + sum(cell.steps for cell in left)
    assert steps / sum(cell.steps for cell in CELLS) == pytest.approx(planned_share(CELLS))
    assert planned_share(CELLS) == pytest.approx(1 / 9 + 1 / 9 + 1 / 9)
    written = json.loads((tmp_path / "pruning.json").read_text())
    assert [row["kept"] for row in written] == [verdict.kept for verdict in verdicts]
    assert next(row for row in written if row["learning_rate"] == 1.0)["accuracy"] is None


def test_nobody_is_judged_without_a_result(tmp_path: Path):
    with pytest.raises(StoreError, match="a short run could not be run or stored"):
        halve(CELLS, tmp_path / "none", run=lambda store, chosen: None)

    def diverge(store: Store, chosen) -> None:
        for cell in chosen:
            with store.claim(cell) as claim:
                claim.finish(record(cell, 0.0, status="diverged"))

    with pytest.raises(ConfigError, match="none of the 9 contestants on digits has a result after 11%"):
        halve(CELLS, tmp_path / "out", run=diverge)


def test_shares_of_recipes():
    assert planned_share(cells(load_recipe("digits"))) == pytest.approx((28 / 9 + 10 / 3 + 4) / 28)
    assert shares(1) == ()
    assert planned_share(CELLS[:2]) == 1.0


def test_recipe_paper_is_never_pruned(tmp_path: Path):
    with pytest.raises(ConfigError, match="recipe 'paper' is not pruned"):
        sweep("paper", out=tmp_path, prune=True)
    assert not list(tmp_path.iterdir())


def test_the_winner_is_that_of_the_whole_sweep(model: Path, tmp_path: Path):
    """Within one standard error of its validation accuracy, at the share of steps that was announced."""
    recipe = make_recipe(
        model, components=["mha", "ln1", "fc1"], learning_rate=[0.003, 0.03, 0.3], steps=[108],
        eval_every=[27], warmup_steps=[9], train=[150], validation=[200], batch_size=[16],
    )  # fmt: skip
    whole = sweep(recipe, out=tmp_path / "whole")
    pruned = sweep(recipe, out=tmp_path / "pruned", prune=True)
    assert whole.complete
    assert pruned.complete
    assert len(pruned.cells) == 1
    short = Store(tmp_path / "pruned" / "rungs").records()
    steps = sum(r.cell.steps for r in short) + sum(cell.steps for cell in pruned.cells)
    assert steps / sum(cell.steps for cell in whole.cells) == pytest.approx(pruned.share) == pytest.approx(1 / 3)
    assert all(r.test is None for r in short)
    best, chosen = whole.table["validation"][:3].max(), pruned.table["validation"][0]
    assert best - chosen <= math.sqrt(best * (1 - best) / 200)
    kept = {record.cell.id: record.outcome() for record in whole.records}
    assert all(record.outcome() == kept[record.cell.id] for record in pruned.records), "a finished run is another run"
    assert read_verdicts(tmp_path / "pruned") == pruned.pruned
    left = given_up(pruned.pruned)
    assert len(left) == 9 - 1
    own = left[left["variant"] == pruned.cells[0].variant]["learning_rate"]
    assert {*own, pruned.cells[0].learning_rate} == {0.003, 0.03, 0.3}
    at_an_end = pruned.cells[0].learning_rate != 0.03
    assert (pruned.table["edge"][0] in ("low", "high")) == at_an_end, "the grid is the whole sweep's"
    again = sweep(recipe, out=tmp_path / "pruned", prune=True)
    assert again.records == pruned.records
