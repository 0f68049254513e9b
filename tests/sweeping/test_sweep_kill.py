"""Sweeps whose processes are killed at any moment, and then resumed: the same results as if nothing had happened."""

import json
import multiprocessing
import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest

from pliant.runs import Record, Store
from pliant.sweeping import Event, Recipe, cells, sweep
from pliant.sweeping.jobs import CellJob, job_to_json
from pliant.sweeping.process import OWNER_IS_GONE
from pliant.sweeping.worker import Worker, train_away
from sweeping.small_sweep import away, command, drive, make_recipe, outcomes, twelve

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="no SIGKILL there")

KILLS = 20


@pytest.fixture(scope="module")
def processes():
    """Start processes from a server that has imported everything already: many times faster than anew."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["pliant.tuning", "pliant.sweeping", "sklearn.datasets", "sklearn.linear_model"])
    return context


@pytest.fixture(scope="module")
def recipe(model: Path) -> Recipe:
    return twelve(model)


@pytest.fixture(scope="module")
def undisturbed(recipe: Recipe, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    folder = tmp_path_factory.mktemp("undisturbed")
    assert sweep(recipe, out=folder).complete
    return outcomes(Store(folder))


def finished(store: Store) -> dict[str, tuple[int, int]]:
    """Which result files there are; a result that was written again would have another inode or time."""
    stats = {e.cell.id: (e.folder / "result.json").stat() for e in store.entries() if e.state == "done"}
    return {cell: (stat.st_ino, stat.st_mtime_ns) for cell, stat in stats.items()}


def starts(store: Store) -> Counter[str]:
    journal = store.folder / "journal"
    return Counter(journal.read_text().split() if journal.exists() else ())


def wait_for(condition: Callable[[], object], *, seconds: float = 120) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "this did not happen in time"
        time.sleep(0.005)


def test_killed_at_random_moments(processes, recipe: Recipe, undisturbed, tmp_path: Path):
    chance = random.Random(0)
    store = Store(tmp_path)
    started, seen, resumed = Counter(), {}, 0
    for _ in range(KILLS):
        begun = processes.Event()
        process = processes.Process(target=drive, args=(recipe, tmp_path, begun))
        process.start()
        wait_for(lambda begun=begun, process=process: begun.is_set() or not process.is_alive())
        time.sleep(chance.uniform(0, 0.3))
        process.kill()
        process.join()
        now, after = finished(store), starts(store)
        assert all(now[cell] == stat for cell, stat in seen.items()), "a finished result was touched"
        assert all(after[cell] == started[cell] for cell in seen), "a finished cell was started again"
        assert {entry.state for entry in store.entries()} <= {"done", "missing"}
        resumed += len(list(tmp_path.glob("cells/*/checkpoint/checkpoint.pt")))
        started, seen = after, now
    assert resumed > 0
    assert max(started.values()) > 1
    result = sweep(recipe, out=tmp_path)
    assert result.complete
    assert outcomes(store) == undisturbed
    assert not store.problems()
    assert not list(tmp_path.rglob("*.tmp"))
    assert not list(tmp_path.glob("cells/*/checkpoint"))


def test_a_sweep_with_workers_is_stopped_in_every_way(processes, recipe: Recipe, undisturbed, tmp_path: Path):
    """By Ctrl-C, by the death of all its processes; then it is resumed to its end."""
    out, file, said = tmp_path / "out", tmp_path / "twelve.yaml", tmp_path / "said"
    file.write_text(json.dumps(recipe.model_dump(mode="json")))  # JSON is YAML
    arguments = ["sweep", str(file), "--out", str(out), "--workers", "2"]
    for way, least in (("interrupt", 1), ("tree", 3)):
        before = finished(Store(out))
        owner = processes.Process(target=command, args=(arguments, said))
        owner.start()
        wait_for(lambda least=least: len(list(out.glob("cells/*/result.json"))) >= least)
        workers = psutil.Process(owner.pid).children(recursive=True)
        assert len(workers) == 2
        if way == "interrupt":
            os.killpg(owner.pid, signal.SIGINT)  # what Ctrl-C does
        for process in [psutil.Process(owner.pid), *workers] if way == "tree" else []:
            process.kill()
        _, alive = psutil.wait_procs(workers, timeout=20)
        owner.join()
        assert not alive
        assert owner.exitcode == (130 if way == "interrupt" else -signal.SIGKILL)
        entries = Store(out).entries()
        assert {entry.state for entry in entries} == {"done", "missing"}
        now = finished(Store(out))
        assert all(now[cell] == stat for cell, stat in before.items()), "a finished result was touched"
        if way == "interrupt":
            shown = said.read_text()
            assert f"Interrupted. What is finished is kept; to go on: pliant {' '.join(arguments)}" in shown
            assert "Traceback" not in shown
    assert sweep(recipe, out=out).complete
    assert outcomes(Store(out)) == undisturbed


def test_a_worker_does_not_outlive_its_owner(model: Path, tmp_path: Path):
    """Its input ends when the owner dies, in whatever way; it is gone at once, in the midst of a cell."""
    (cell,) = cells(make_recipe(model, steps=[100_000], eval_every=[1000]))
    with subprocess.Popen(
        [sys.executable, "-m", "pliant.sweeping.process", "1", "cpu", "30"],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE,
    ) as worker:  # fmt: skip
        worker.stdin.write(json.dumps(job_to_json(CellJob(cell, tmp_path))).encode() + b"\n")
        worker.stdin.flush()
        while json.loads(worker.stdout.readline()).get("event", {"kind": ""})["kind"] != "step":
            pass
        assert Store(tmp_path).entry(cell).state == "running"
        worker.stdin.close()
        assert worker.wait(timeout=5) == OWNER_IS_GONE
    assert Store(tmp_path).entry(cell).state == "missing"


def test_killed_within_a_cell(processes, model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    recipe = make_recipe(model, steps=[400], eval_every=[20], components=["mha"])
    (cell,) = cells(recipe)
    calm = tmp_path / "calm"
    assert sweep(recipe, out=calm).complete
    out = tmp_path / "out"
    store, begun = Store(out), processes.Event()
    process = processes.Process(target=drive, args=(recipe, out, begun))
    process.start()
    wait_for((store.path(cell) / "checkpoint" / "checkpoint.pt").exists)
    process.kill()
    process.join()
    assert store.entry(cell).state == "missing"
    monkeypatch.setattr("pliant.sweeping.desk.STEP_SECONDS", 0)
    steps: list[int] = []

    def listener(event: Event, standing: object) -> None:
        if event.kind == "step":
            steps.append(event.step)

    assert sweep(recipe, out=out, listener=listener).complete
    assert 20 < steps[0] < 400
    assert steps[-1] == 400
    assert outcomes(store) == outcomes(Store(calm))


def test_a_cell_that_is_killed_on_a_cluster_goes_on_elsewhere(processes, model: Path, tmp_path: Path):
    """With a folder that the machines share; without one it starts anew."""
    (cell,) = cells(make_recipe(model, steps=[400], eval_every=[20]))
    calm = train_away(Worker(), cell, scratch=None)
    process = processes.Process(target=away, args=(cell, tmp_path))
    process.start()
    wait_for((tmp_path / cell.name / "checkpoint" / "checkpoint.pt").exists)
    process.kill()
    process.join()
    steps: list[int] = []
    worker = Worker()
    again = worker.train(
        cell, checkpoint=tmp_path / cell.name / "checkpoint",
        metrics=tmp_path / cell.name / "metrics.jsonl", progress=steps.append,
    )  # fmt: skip
    assert steps[0] > 20
    assert again.outcome() == Record(**calm["record"]).outcome()
    resumed = train_away(worker, cell, scratch=tmp_path)
    assert resumed["metrics"] == calm["metrics"]
    assert not list(tmp_path.iterdir())


def test_a_damaged_checkpoint_costs_no_more_than_time(model: Path, undisturbed, recipe: Recipe, tmp_path: Path):
    store, cell = Store(tmp_path), cells(recipe)[0]
    checkpoint = store.path(cell) / "checkpoint" / "checkpoint.pt"
    checkpoint.parent.mkdir(parents=True)
    checkpoint.write_bytes(b"PK\x03\x04 and then nothing")
    changes = {"components": cell.components, "seed": cell.seed, "learning_rate": cell.learning_rate}
    assert sweep(recipe, out=tmp_path, changes=changes).complete
    assert outcomes(store) == {cell.id: undisturbed[cell.id]}


def test_two_sweeps_at_once(processes, recipe: Recipe, undisturbed, tmp_path: Path):
    begun = [processes.Event() for _ in range(2)]
    both = [processes.Process(target=drive, args=(recipe, tmp_path, event)) for event in begun]
    for process in both:
        process.start()
    for process in both:
        process.join()
        assert process.exitcode == 0
    store = Store(tmp_path)
    assert starts(store) == dict.fromkeys(undisturbed, 1)
    assert outcomes(store) == undisturbed
    assert all(event.is_set() for event in begun), "one of them did nothing"
