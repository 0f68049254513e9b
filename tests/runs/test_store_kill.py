"""Processes that die at any moment, and processes that work on one store at once."""

import multiprocessing
import os
import random
import signal
import sys
import time
from collections import Counter
from pathlib import Path

import pytest

from pliant.runs import Store
from runs.cell_work import hold, make_cells, work

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="no SIGKILL there")

CELLS = make_cells(12)
KILLS = 20


@pytest.fixture(scope="module")
def processes():
    """Start processes from a server that has imported everything already: 30 times faster than anew."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["pliant.runs"])
    return context


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> dict[str, object]:
    folder = tmp_path_factory.mktemp("undisturbed")
    work(folder, CELLS)
    return contents(Store(folder))


def contents(store: Store) -> dict[str, object]:
    """What must be equal in the end: outcome and metrics of every cell."""
    entries = store.entries()
    assert [entry.state for entry in entries] == ["done"] * len(CELLS)
    assert not store.problems()
    assert not list(store.folder.rglob("*.tmp"))
    return {e.cell.id: (e.record.outcome(), (e.folder / "metrics.jsonl").read_bytes()) for e in entries}


def finished(store: Store) -> dict[str, tuple[int, int]]:
    """Which result files there are; a result that was written again would have another inode or time."""
    stats = {e.cell.id: (e.folder / "result.json").stat() for e in store.entries() if e.state == "done"}
    return {cell: (stat.st_ino, stat.st_mtime_ns) for cell, stat in stats.items()}


def starts(store: Store) -> Counter[str]:
    return Counter((store.folder / "journal").read_text().split())


def test_killed_at_random_moments(processes, undisturbed, tmp_path: Path):
    chance = random.Random(0)
    store = Store(tmp_path)
    started, seen = Counter(), {}
    resumed = 0
    for _ in range(KILLS):
        begun = processes.Event()
        process = processes.Process(target=work, args=(tmp_path, CELLS), kwargs={"pause": 0.01, "begin": begun.set})
        process.start()
        assert begun.wait(timeout=60)
        time.sleep(chance.uniform(0, 0.2))  # the whole work takes longer than all of these together can
        process.kill()
        process.join()
        assert process.exitcode == -signal.SIGKILL
        now, after = finished(store), starts(store) if (tmp_path / "journal").exists() else Counter()
        assert all(now[cell] == stat for cell, stat in seen.items()), "a finished result was touched"
        assert all(after[cell] == started[cell] for cell in seen), "a finished cell was started again"
        assert {entry.state for entry in store.entries()} <= {"done", "missing"}
        resumed += len(list(tmp_path.glob("cells/*/checkpoint/state.json")))
        started, seen = after, now
    assert resumed > 0
    assert 0 < len(seen) < len(CELLS)
    work(tmp_path, CELLS)
    assert contents(store) == undisturbed


def test_several_processes_at_once(processes, undisturbed, tmp_path: Path):
    kwargs = {"pause": 0.02, "begin": processes.Barrier(3).wait}
    team = [processes.Process(target=work, args=(tmp_path, CELLS), kwargs=kwargs) for _ in range(3)]
    for process in team:
        process.start()
    while any(process.is_alive() for process in team):
        if (tmp_path / "cells").exists():
            Store(tmp_path, create=False).entries()  # somebody who only looks disturbs nobody
    for process in team:
        process.join()
        assert process.exitcode == 0
    store = Store(tmp_path)
    assert starts(store) == Counter(cell.id for cell in CELLS)
    assert len({record.environment["process"] for record in store.records()}) > 1
    assert contents(store) == undisturbed


def test_a_killed_owner_gives_its_cell_back_at_once(processes, tmp_path: Path):
    store, ready = Store(tmp_path / "out"), tmp_path / "ready"
    process = processes.Process(target=hold, args=(store.folder, CELLS[0], ready))
    process.start()
    try:
        deadline = time.monotonic() + 20
        while not ready.exists():
            assert time.monotonic() < deadline
            time.sleep(0.005)
        entry = store.entry(CELLS[0])
        assert (entry.state, entry.owner.split()[:2]) == ("running", ["process", str(process.pid)])
        assert store.claim(CELLS[0]) is None
    finally:
        process.kill()
        process.join()
    # A child of the owner lives on (as data loading workers may); the lock was never its.
    child = int(ready.read_text())
    os.kill(child, 0)
    assert store.entry(CELLS[0]).state == "missing"
    store.claim(CELLS[0]).release()
    os.kill(child, signal.SIGKILL)
