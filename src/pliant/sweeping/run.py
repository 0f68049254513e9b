"""A sweep from recipe to records."""

import contextlib
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from pliant.errors import StoreError
from pliant.runs import CellConfig, Store
from pliant.runs.probes import ProbeKey, ProbeLine, read_probe
from pliant.runs.pruning import RUNGS, Verdict
from pliant.sweeping.check import check_device, check_models, data_key, list_data
from pliant.sweeping.engine import Engine, Settings
from pliant.sweeping.engines import check_engine, make_engine
from pliant.sweeping.events import Event
from pliant.sweeping.grid import cells as spell_out
from pliant.sweeping.jobs import CellJob, Job, ProbeJob
from pliant.sweeping.listing import look
from pliant.sweeping.progress import Standing
from pliant.sweeping.prune import check_prunable, halve, planned_share
from pliant.sweeping.recipe import Recipe, load_recipe
from pliant.sweeping.result import SweepResult, reference_cells
from pliant.sweeping.saving import Save, check_save
from pliant.sweeping.worker import CHECKPOINT_SECONDS
from pliant.talk import Silent, Talk

Listener = Callable[[Event, Standing], None]
"""Called with every event, after the standing has taken it."""

LOOK_SECONDS = 1.0
"""Time between two looks at cells that another process runs."""


def sweep(
    recipe: str | Path | Recipe,
    *,
    out: str | Path | None = None,
    engine: str = "local",
    workers: int | None = None,
    threads: int | None = None,
    device: str | None = None,
    address: str | None = None,
    gpus_per_cell: float | None = None,
    scratch: str | Path | None = None,
    checkpoint_seconds: float = CHECKPOINT_SECONDS,
    changes: Mapping[str, Any] | None = None,
    retry_failed: bool = False,
    prune: bool = False,
    save: str | None = None,
    listener: Listener | None = None,
    talk: Talk | None = None,
) -> SweepResult:
    """Run a grid of cells, and the linear probe of each model and data set as the line to compare with.

    Cells that `out` has results of are not run again, so a call that was stopped can be repeated. Cells that another
    process is running are waited for.

    Args:
        recipe: a recipe, its name, or its file.
        out: folder of the store; by default `pliant-sweep-` and the recipe's name. It may hold other sweeps, too.
        engine: `local` or `ray`.
        workers: cells at a time; by default one on this machine, on a cluster as many as it has room for.
        threads: of each worker; by default the cores are shared out, on a cluster each gets one.
        device: `auto`, `cpu`, `cuda` or `mps`; by default the recipe's.
        address: of a Ray cluster; by default one is started on this machine.
        gpus_per_cell: GPUs that each worker on a cluster gets, possibly a part of one.
        scratch: folder on the cluster where cells keep checkpoints, for when a machine is lost.
        checkpoint_seconds: time between two checkpoints of a cell: what a cell that dies loses.
        changes: fields for all cells, whatever the recipe says; a list makes an axis (`{"steps": 20, "seed": [0, 1]}`).
        retry_failed: try cells again that failed before.
        prune: successive halving: most cells are run for a share of their steps only, and only the best to the end.
        save: also keep the trained `model` of each cell, or its `delta`, the tensors that training changed. Cells that
            are done already are not run again for it.
        listener: is told of every event.
        talk: is told what happens around the cells.

    Raises:
        ConfigError, UnknownNameError: something in the recipe, or in how it is to be run, cannot be.
        DataError, ModelError, AnatomyError: data, model, or component set are not to be had.
        MissingExtraError: the engine needs a library that is not installed.
        StoreError: results cannot be stored.
    """
    opened = open_recipe(recipe, engine=engine, prune=prune)
    saved = check_save(save, engine=engine)
    settings = Settings(
        workers=workers,
        threads=threads,
        device=device or opened.device,
        address=address,
        gpus_per_cell=gpus_per_cell,
        scratch=None if scratch is None else Path(scratch).absolute(),
        checkpoint_seconds=checkpoint_seconds,
    )
    cells = spell_out(opened, changes=changes)
    folder = Path(out) if out is not None else default_folder(opened)
    work = _Sweep(opened, cells, folder, engine=engine, settings=settings, listener=listener, talk=talk or Silent())
    with work:
        return work.run(retry_failed=retry_failed, prune=prune, save=saved)


def open_recipe(recipe: str | Path | Recipe, *, engine: str, prune: bool) -> Recipe:
    """Read a recipe, and refuse what can be refused without looking at its cells."""
    opened = recipe if isinstance(recipe, Recipe) else load_recipe(recipe)
    check_engine(engine)
    if prune:
        check_prunable(opened.name)
    return opened


def default_folder(recipe: Recipe) -> Path:
    """Return the folder that a recipe's results go to: the same one each time, so that a sweep can be extended."""
    return Path(f"pliant-sweep-{recipe.name}")


class _Sweep(contextlib.ExitStack):
    """One call of `sweep`: a context, since it starts an engine when there is something to run."""

    def __init__(
        self,
        recipe: Recipe,
        cells: tuple[CellConfig, ...],
        folder: Path,
        *,
        engine: str,
        settings: Settings,
        listener: Listener | None,
        talk: Talk,
    ) -> None:
        super().__init__()
        self.recipe, self.cells, self.folder = recipe, cells, folder
        self.engine_name, self.settings = engine, settings
        self.listener, self.talk = listener, talk
        self.engine: Engine | None = None
        self.problems: dict[CellConfig, str] = {}

    def run(self, *, retry_failed: bool, prune: bool, save: Save | None) -> SweepResult:
        began = time.monotonic()
        self._check(retry_failed=retry_failed)
        store = Store(self.folder)
        if retry_failed:
            self._retry(store, self.cells)
        cells, verdicts, share = self.cells, tuple[Verdict, ...](), 1.0
        if prune:
            share = planned_share(cells)
            self.talk.say(f"Successive halving: {share:.0%} of the steps of all {len(cells)} cells")
            cells, verdicts = halve(cells, self.folder / RUNGS, run=self._rung)
        self.problems.clear()
        self._run(store, cells, title=self.recipe.name, probes=True, save=save)
        return self._result(store, cells, verdicts, share, seconds=time.monotonic() - began)

    def _check(self, *, retry_failed: bool) -> None:
        """Look at everything that the missing cells need, before anything is written or run."""
        open_states = {"missing", "running", *(("failed",) if retry_failed else ())}
        missing = [cell for cell, (state, _) in look(self.folder, self.cells).items() if state in open_states]
        if not missing:
            return
        elsewhere = self.engine_name != "local"
        if not elsewhere:
            check_device(self.settings.device, recipe=self.recipe.name)
        list_data(missing, elsewhere=elsewhere)
        check_models(missing, elsewhere=elsewhere)
        self._engine()

    def _retry(self, store: Store, cells: Sequence[CellConfig]) -> None:
        states = look(self.folder, cells)
        again = [cell for cell in cells if states[cell][0] == "failed" and store.retry(cell)]
        self.talk.say(f"Failed cells that are tried again: {len(again)}")

    def _rung(self, store: Store, cells: Sequence[CellConfig]) -> None:
        """Run the short cells of a rung; those that failed in an earlier call are tried again."""
        for cell in cells:
            store.retry(cell)
        self._run(store, cells, title=f"{self.recipe.name}, runs of {cells[0].steps} steps", probes=False)

    def _run(
        self, store: Store, cells: Sequence[CellConfig], *, title: str, probes: bool, save: Save | None = None
    ) -> None:
        """Bring the missing cells, and their probes, into the store."""
        self._plan(store, cells)
        standing = Standing(tuple(cells), title=title)
        entries = [store.entry(cell) for cell in cells if cell not in self.problems]
        standing.known(entry.record for entry in entries if entry.record is not None)
        open_cells = [entry.cell for entry in entries if entry.record is None]
        jobs = _in_order(
            open_cells, store.folder, references=reference_cells(tuple(cells)) if probes else (), save=save
        )
        if not jobs:
            return
        elsewhere: list[Job] = []

        def listen(event: Event) -> None:
            if event.kind == "elsewhere" and event.cell is not None:
                elsewhere.append(_find(jobs, event))
                return
            if event.kind in ("refused", "unstored") and event.job == "cell" and event.cell is not None:
                self.problems[event.cell] = event.text
            standing.take(event)
            if self.listener is not None:
                self.listener(event, standing)

        told = False
        while jobs:
            self._engine().run(jobs, listen=listen)
            jobs, elsewhere = elsewhere, []
            if jobs and not told:
                listen(Event("waiting", text=f"waiting for another process, which has {len(jobs)} of them"))
                told = True
            time.sleep(LOOK_SECONDS if jobs else 0.0)

    def _plan(self, store: Store, cells: Sequence[CellConfig]) -> None:
        """Write all configurations; a folder that cannot be used costs its own cell only."""
        refused: dict[CellConfig, str] = {}
        for cell in cells:
            try:
                store.plan([cell])
                store.entry(cell)
            except StoreError as error:
                refused[cell] = str(error)
        if len(refused) == len(cells):
            raise StoreError(next(iter(refused.values())))
        self.problems |= refused

    def _engine(self) -> Engine:
        """Return the engine, started when it is first needed."""
        if self.engine is None:
            self.engine = self.enter_context(make_engine(self.engine_name, self.settings))
        return self.engine

    def _result(
        self,
        store: Store,
        cells: tuple[CellConfig, ...],
        verdicts: tuple[Verdict, ...],
        share: float,
        *,
        seconds: float,
    ) -> SweepResult:
        records = {}
        for cell in cells:
            try:
                records[cell] = store.record(cell)
            except StoreError as error:
                self.problems[cell] = str(error)
        return SweepResult(
            recipe=self.recipe.name,
            folder=self.folder,
            cells=cells,
            records=tuple(record for record in records.values() if record is not None),
            problems=tuple(text for cell, text in self.problems.items() if records.get(cell) is None),
            probes=tuple(line for line in _lines(self.folder, cells)),
            pruned=verdicts,
            share=share,
            seconds=seconds,
        )


def _in_order(
    cells: Sequence[CellConfig], folder: Path, *, references: Sequence[CellConfig], save: Save | None
) -> list[Job]:
    """Bring cells of one model and data set together, their probe first: both are then loaded once."""
    lacking = [cell for cell in references if read_probe(folder, ProbeKey.of(cell)) is None]
    jobs: list[Job] = [ProbeJob(cell, folder) for cell in lacking]
    jobs += [CellJob(cell, folder, save) for cell in cells]
    places: dict[tuple[object, ...], int] = {}
    for cell in [*cells, *lacking]:
        places.setdefault((cell.model, cell.image_size, data_key(cell)), len(places))
    return sorted(jobs, key=lambda job: places[job.cell.model, job.cell.image_size, data_key(job.cell)])


def _find(jobs: Sequence[Job], event: Event) -> Job:
    return next(job for job in jobs if (job.kind, job.cell) == (event.job, event.cell))


def _lines(folder: Path, cells: tuple[CellConfig, ...]) -> list[ProbeLine]:
    found = [read_probe(folder, ProbeKey.of(cell)) for cell in reference_cells(cells)]
    return [line for line in found if line is not None]
