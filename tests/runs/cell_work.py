"""Work that stands in for training: deterministic, resumable, quick to kill. Importing it needs no torch."""

import json
import os
import time
from collections.abc import Callable
from pathlib import Path

from pliant.runs import CellConfig, Claim, MetricLog, Record, Score, Store, write_atomically


def make_cells(count: int = 12, *, steps: int = 20) -> tuple[CellConfig, ...]:
    return tuple(CellConfig(learning_rate=0.1, steps=steps, eval_every=5, seed=seed) for seed in range(count))


def run_cell(claim: Claim, *, pause: float = 0.0) -> Record:
    """Train: one state per step, a checkpoint every fifth, metrics by step; go on from a checkpoint if there is one."""
    cell, saved = claim.cell, claim.checkpoint / "state.json"
    step, state = json.loads(saved.read_text()) if saved.exists() else (0, cell.seed)
    with MetricLog(claim.metrics, resume_at=step) as log:
        while step < cell.steps:
            step, state = step + 1, (state * 1103515245 + 12345) % 2**31
            log.write(step, loss=state / 2**31)
            time.sleep(pause)
            if step % 5 == 0:
                claim.checkpoint.mkdir(exist_ok=True)
                write_atomically(saved, json.dumps([step, state]))
    environment = {"process": os.getpid()}
    score = Score.from_counts(1000, state % 1001)
    return Record(
        cell=cell, status="done", best_step=step, validation_accuracy=0.5, test=score, environment=environment
    )


def work(folder: Path, cells: tuple[CellConfig, ...], *, pause: float = 0.0, begin: Callable[[], object] = int) -> None:
    """Do the missing cells of a store, one after another; write into a journal which were started."""
    begin()
    store = Store(folder)
    store.plan(cells)
    for cell in cells:
        claim = store.claim(cell)
        if claim is not None:
            with claim, (folder / "journal").open("a") as journal:
                journal.write(f"{cell.id}\n")
                journal.flush()
                claim.finish(run_cell(claim, pause=pause))


def hold(folder: Path, cell: CellConfig, ready: Path) -> None:
    """Claim a cell, leave a child that outlives this process, say so, and wait to be killed."""
    claim = Store(folder).claim(cell)
    assert claim is not None
    child = os.fork()
    if child:
        write_atomically(ready, str(child))
    time.sleep(60)
