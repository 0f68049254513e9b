"""The dry run: what a sweep would do, without doing it."""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from pliant.errors import DataError, ModelError, PliantError
from pliant.runs import CellConfig
from pliant.sweeping.check import (
    DataSize,
    Parameters,
    check_device,
    check_models,
    count_parameters,
    data_key,
    list_data,
)
from pliant.sweeping.estimate import Basis, Plan, Planned, Speed, about, kind_of, stored_seconds, timed
from pliant.sweeping.grid import cells as spell_out
from pliant.sweeping.listing import look
from pliant.sweeping.prune import planned_share
from pliant.sweeping.recipe import Recipe
from pliant.sweeping.run import default_folder, open_recipe
from pliant.sweeping.worker import limited_threads, share_of_cores
from pliant.talk import Silent, Talk

T = TypeVar("T")


def plan_sweep(
    recipe: str | Path | Recipe,
    *,
    out: str | Path | None = None,
    engine: str = "local",
    workers: int | None = None,
    threads: int | None = None,
    device: str | None = None,
    changes: Mapping[str, Any] | None = None,
    prune: bool = False,
    talk: Talk | None = None,
) -> Plan:
    """Say what `sweep` would do: cells, what they train, how long it takes. Nothing is written.

    Times come from records of like cells, where the store has some, else from a few timed steps on this machine. What
    needs data or a model that are not here is left open, with a note.

    Args: as for `sweep`.

    Raises:
        ConfigError, UnknownNameError: something in the recipe, or in how it is to be run, cannot be.
        AnatomyError: a component set that the model's family lacks.
    """
    from pliant.measuring.subject import pick_device

    opened = open_recipe(recipe, engine=engine, prune=prune)
    device = device or opened.device
    cells = spell_out(opened, changes=changes)
    slots = workers or 1
    if engine == "local":
        check_device(device, recipe=opened.name)
        threads = share_of_cores(slots, threads) if slots > 1 else threads
    device = pick_device(device if engine == "local" else "auto")  # of a cluster, this machine is what can be timed
    work = _Planning(cells, Path(out) if out is not None else default_folder(opened), talk or Silent())
    work.count()
    work.time(device, threads=threads)
    return Plan(
        recipe=opened.name,
        cells=work.planned(),
        slots=slots,
        share=planned_share(cells) if prune else 1.0,
        notes=work.notes(slots, device),
    )


class _Planning:
    """What is found out on the way to a plan."""

    def __init__(self, cells: tuple[CellConfig, ...], folder: Path, talk: Talk) -> None:
        self.cells = cells
        self.talk = talk
        self.entries = look(folder, cells)
        self.sizes: dict[tuple[object, ...], DataSize] = {}
        self.parameters: dict[CellConfig, Parameters] = {}
        self.speeds: dict[CellConfig, Speed] = {}
        self.stored = stored_seconds(record for _, record in self.entries.values() if record is not None)
        self.lacking: list[str] = []

    def count(self) -> None:
        """List data, and count parameters wherever data and model are here."""
        for cell in {data_key(cell): cell for cell in self.cells}.values():
            self.sizes |= self._try(partial(list_data, [cell])) or {}
        classes = {key: size.classes for key, size in self.sizes.items()}
        for model in dict.fromkeys((cell.model, cell.image_size) for cell in self.cells):
            own = [c for c in self.cells if (c.model, c.image_size) == model]
            known = [c for c in own if data_key(c) in classes]
            if not known:  # the component sets can be looked for nevertheless
                self._try(partial(check_models, own))
            self.parameters |= self._try(partial(count_parameters, known, classes)) or {}

    def time(self, device: str, *, threads: int | None) -> None:
        """Time what is not known from records."""
        open_cells = [c for c in self.parameters if kind_of(c) not in self.stored]
        if open_cells:
            with limited_threads(threads), self.talk.bar("Timing a few steps of each kind of cell") as bar:
                found = self._try(lambda: timed(open_cells, device=device, progress=bar))
            self.speeds = found or {}

    def planned(self) -> tuple[Planned, ...]:
        """Put together what was found."""
        return tuple(self._planned(cell) for cell in self.cells)

    def notes(self, slots: int, device: str) -> tuple[str, ...]:
        """Say how, and what could not be found."""
        basis: Sequence[Basis] = [self._seconds(cell)[1] for cell in self.cells]
        return (about(basis, slots, device=device), *dict.fromkeys(self.lacking))

    def _planned(self, cell: CellConfig) -> Planned:
        seconds, basis = self._seconds(cell)
        return Planned(cell, self.entries[cell][0], self.parameters.get(cell), seconds, basis)

    def _seconds(self, cell: CellConfig) -> tuple[float | None, Basis]:
        if kind_of(cell) in self.stored:
            return self.stored[kind_of(cell)], "stored"
        if cell in self.speeds:
            return self.speeds[cell].seconds(cell, self.sizes[data_key(cell)]), "timed"
        return None, "unknown"

    def _try(self, find: Callable[[], T]) -> T | None:
        """Find something out; what is not here leaves a note."""
        try:
            return find()
        except (DataError, ModelError) as error:
            self.lacking.append(_start(error))
            return None


def _start(error: PliantError) -> str:
    """Return the first sentences of a message."""
    text = " ".join(str(error).split())
    return text if len(text) <= 300 else text[:297] + "..."
