"""What a sweep would do, before it does it: cells, trained parameters, time."""

import statistics
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

import pandas as pd

from pliant.runs import CellConfig, Record
from pliant.sweeping.check import DataSize, Parameters
from pliant.sweeping.progress import duration

BATCH = 16
"""Images of a timed forward pass on the CPU, where time goes with their number; a GPU gets the cell's own batch."""

STEPS = 4
"""Optimizer steps of a timed run: one to warm up, one to time alone, two with an evaluation."""

IMAGES = 64
"""Images of each split in a timed run."""

Basis = Literal["stored", "timed", "unknown"]


@dataclass(frozen=True)
class Speed:
    """How long parts of a cell take, in seconds: an image trained on, an image evaluated."""

    train: float
    evaluate: float

    def seconds(self, cell: CellConfig, size: DataSize) -> float:
        """Return the time of a cell on data of this size; reading and decoding the data are not in it."""
        evaluations = -(-cell.steps // cell.eval_every)
        read = evaluations * size.validation + (size.test if cell.read_test else 0)
        return cell.steps * cell.images_per_step * self.train + read * self.evaluate


@dataclass(frozen=True)
class Planned:
    """One cell of a sweep that has not been run yet, or has.

    Attributes:
        cell: the cell.
        state: what the store says of it.
        parameters: what it trains; None where the model is not at hand.
        seconds: it would take; None if that is not known.
        basis: where that is from: records of like cells, a few timed steps, or nowhere.
    """

    cell: CellConfig
    state: str
    parameters: Parameters | None
    seconds: float | None
    basis: Basis


@dataclass(frozen=True)
class Plan:
    """What a sweep would do.

    Attributes:
        recipe: its name.
        cells: all of them.
        slots: cells that would be run at a time.
        share: of the steps that are run; below 1 with pruning.
        notes: how the numbers were obtained, and what could not be.
    """

    recipe: str
    cells: tuple[Planned, ...]
    slots: int
    share: float
    notes: tuple[str, ...]

    @property
    def missing(self) -> tuple[Planned, ...]:
        """Cells that would be run."""
        return tuple(planned for planned in self.cells if planned.state in ("missing", "running"))

    @property
    def seconds(self) -> float | None:
        """Time of the whole sweep; None if that of a cell is not known."""
        known = [planned.seconds for planned in self.missing]
        total = sum(seconds for seconds in known if seconds is not None)
        return None if None in known else total * self.share / self.slots

    @property
    def frame(self) -> pd.DataFrame:
        """One row for each kind of cell: model, data, trained, optimizer, rates, seeds, cells, parameters, seconds."""
        kinds: dict[CellConfig, list[Planned]] = {}
        for planned in self.cells:
            kinds.setdefault(kind_of(planned.cell), []).append(planned)
        return pd.DataFrame([_row(members) for members in kinds.values()])

    def to_json(self) -> dict[str, object]:
        """Return it as plain values."""
        cells = [
            {
                "id": p.cell.id,
                "cell": p.cell.model_dump(mode="json"),
                "state": p.state,
                "trained_parameters": None if p.parameters is None else p.parameters.trained,
                "total_parameters": None if p.parameters is None else p.parameters.total,
                "seconds": p.seconds,
                "basis": p.basis,
            }
            for p in self.cells
        ]
        return {
            "recipe": self.recipe, "seconds": self.seconds, "slots": self.slots, "share_of_steps": self.share,
            "notes": list(self.notes), "cells": cells,
        }  # fmt: skip


def kind_of(cell: CellConfig) -> CellConfig:
    """Return a cell without what does not change how long it takes: learning rate and seeds."""
    return cell.replace(learning_rate=1.0, seed=0, data_seed=0)


def stored_seconds(records: Iterable[Record]) -> dict[CellConfig, float]:
    """Return the mean time of finished cells of each kind."""
    times: dict[CellConfig, list[float]] = {}
    for record in records:
        if record.status == "done" and record.seconds is not None:
            times.setdefault(kind_of(record.cell), []).append(record.seconds)
    return {kind: statistics.fmean(seconds) for kind, seconds in times.items()}


def timed(cells: Sequence[CellConfig], *, device: str, progress: Callable[[int, int], None]) -> dict[CellConfig, Speed]:
    """Time a few steps of one cell of each kind; cells that differ in data or number of steps alone are one kind.

    Returns:
        the speed of each cell.
    """
    kinds: dict[CellConfig, list[CellConfig]] = {}
    for cell in cells:
        kinds.setdefault(_timed_cell(cell, device), []).append(cell)
    shared: dict[CellConfig, CellConfig] = {}
    for short in kinds:  # what is the same but for the data is as fast
        shared.setdefault(short.replace(data="any"), short)
    speeds: dict[CellConfig, Speed] = {}
    for number, (kind, short) in enumerate(shared.items()):
        progress(number, len(shared))
        speeds[kind] = _time(short, device)
    progress(len(shared), len(shared))
    return {cell: speeds[short.replace(data="any")] for short, members in kinds.items() for cell in members}


def _timed_cell(cell: CellConfig, device: str) -> CellConfig:
    batch = cell.batch_size if device == "cuda" else min(cell.batch_size, BATCH)
    return cell.replace(
        learning_rate=1e-3, seed=0, data_seed=0, steps=STEPS, eval_every=2, warmup_steps=0, accumulation=1,
        batch_size=batch, train=max(IMAGES, batch), validation=IMAGES, test=IMAGES, read_test=False,
    )  # fmt: skip


def _time(cell: CellConfig, device: str) -> Speed:
    from pliant.sweeping.worker import Worker

    ends: list[float] = []
    record = Worker(device=device).train(cell, progress=lambda step: ends.append(time.perf_counter()))
    step = ends[2] - ends[1]
    evaluation = max(0.0, ends[3] - ends[2] - step)
    return Speed(step / cell.images_per_step, evaluation / (record.n_validation or 1))


def about(plan_basis: Sequence[Basis], slots: int, *, device: str) -> str:
    """Say how the times were obtained."""
    counts = {basis: plan_basis.count(basis) for basis in ("stored", "timed", "unknown")}
    parts = []
    if counts["stored"]:
        parts.append(f"{counts['stored']} from records of like cells in this store")
    if counts["timed"]:
        how = "the cell's own batch" if device == "cuda" else f"{BATCH} images, scaled to the cell's number"
        parts.append(f"{counts['timed']} from a few timed steps here ({device}, {how})")
    if counts["unknown"]:
        parts.append(f"{counts['unknown']} not known")
    beside = f"; {slots} at a time, as if they did not slow each other down" if slots > 1 else ""
    return f"times of cells: {', '.join(parts)}; reading the data is not in them{beside}" if parts else ""


def _row(members: Sequence[Planned]) -> dict[str, object]:
    cell, one = members[0].cell, members[0]
    times = [m.seconds for m in members]
    return {
        "model": cell.model,
        "data": cell.data,
        "train": cell.variant,
        "optimizer": cell.optimizer,
        "rates": ", ".join(f"{rate:g}" for rate in dict.fromkeys(m.cell.learning_rate for m in members)),
        "seeds": ", ".join(str(seed) for seed in dict.fromkeys(m.cell.seed for m in members)),
        "steps": cell.steps,
        "cells": len(members),
        "missing": sum(m.state in ("missing", "running") for m in members),
        "parameters": "" if one.parameters is None else f"{one.parameters.trained:,}",
        "share": None if one.parameters is None else one.parameters.trained / one.parameters.total,
        "a cell": "?" if times[0] is None else duration(times[0]),
    }
