"""Successive halving: many cells run short, the best of them longer, few to the end.

Contestants are cells that differ only in their seed; those of one model and data set compete. In each rung every
contestant is trained anew for a share of its steps, with its whole schedule (warm-up and fall) squeezed into them: a
run that is merely cut off would be judged at learning rates that the finished run has long left behind. The best third
by mean validation accuracy goes on to the next rung. The last rung is the cells themselves, unchanged, so their records
are those of a sweep without pruning (Jamieson and Talwalkar 2016, with a reduction factor of 3).

The short runs do not read the test images. They are kept apart, in a store of their own.
"""

import json
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from pliant.errors import ConfigError, StoreError
from pliant.runs import CellConfig, Record, Store, write_atomically
from pliant.runs.probes import ProbeKey
from pliant.runs.pruning import VERDICTS, Verdict

FACTOR = 3
"""One in so many contestants goes on to the next rung, which is so many times as long."""

SHORTEST = 1 / FACTOR**2
"""Share of the steps in the first rung: there are at most three rungs."""

NEVER = ("paper",)
"""Recipes whose point is that every cell is run."""


@dataclass(frozen=True)
class Contestant:
    """Cells that differ in their seed alone.

    Attributes:
        group: what they compete within: model and data set.
        cells: one for each seed.
    """

    group: str
    cells: tuple[CellConfig, ...]

    @property
    def id(self) -> str:
        """That of its cells with seed 0."""
        return self.cells[0].replace(seed=0).id


def check_prunable(recipe: str) -> None:
    """Refuse pruning where it defeats the purpose.

    Raises:
        ConfigError: the recipe's point is that every cell is run.
    """
    if recipe in NEVER:
        raise ConfigError(
            f"recipe {recipe!r} is not pruned: it compares component sets over all learning rates and seeds, and "
            "pruning would leave only those that look best early. Leave out --prune"
        )


def contestants(cells: Iterable[CellConfig]) -> tuple[Contestant, ...]:
    """Gather cells that differ in their seed alone."""
    found: dict[CellConfig, list[CellConfig]] = {}
    for cell in cells:
        found.setdefault(cell.replace(seed=0), []).append(cell)
    return tuple(Contestant(ProbeKey.of(seeds[0]).id, tuple(seeds)) for seeds in found.values())


def shares(contestants: int) -> tuple[float, ...]:
    """Return the shares of the steps of the rungs before the last, for so many contestants.

    >>> shares(28), shares(5), shares(1)
    ((0.1111111111111111, 0.3333333333333333), (0.3333333333333333,), ())
    """
    if contestants < 2:
        return ()
    return (SHORTEST, 1 / FACTOR) if contestants >= FACTOR**2 else (1 / FACTOR,)


def shortened(cell: CellConfig, share: float) -> CellConfig:
    """Return a cell's short run: its schedule in a share of its steps, evaluated once, at its end."""
    steps = max(1, math.ceil(cell.steps * share))
    warmup = min(round(cell.warmup_steps * share), steps - 1)
    return cell.replace(steps=steps, warmup_steps=warmup, eval_every=steps, read_test=False)


def planned_share(cells: Sequence[CellConfig]) -> float:
    """Return the steps of a pruned sweep, as a share of those of the whole."""
    total = sum(cell.steps for cell in cells)
    steps = 0.0
    for group in _groups(contestants(cells)).values():
        left = len(group)
        mean = sum(cell.steps for c in group for cell in c.cells) / len(group)
        for share in shares(len(group)):
            steps += left * mean * share
            left = math.ceil(left / FACTOR)
        steps += left * mean
    return steps / total


def halve(
    cells: Sequence[CellConfig], folder: Path, *, run: Callable[[Store, Sequence[CellConfig]], None]
) -> tuple[tuple[CellConfig, ...], tuple[Verdict, ...]]:
    """Run the short rungs and return the cells that are left for the last, and how all came through.

    Args:
        cells: of the whole sweep.
        folder: for the store of short runs and the file of verdicts, `pruning.json`.
        run: brings the missing ones of some cells into a store.

    Raises:
        ConfigError: no contestant of a group has a result.
        StoreError: a short run is run by another process, or could not be stored.
    """
    store = Store(folder)
    groups = _groups(contestants(cells))
    plans = {key: list(shares(len(group))) for key, group in groups.items()}
    verdicts: list[Verdict] = []
    while any(plans.values()):
        rung = {key: plan.pop(0) for key, plan in plans.items() if plan}
        short = [shortened(cell, share) for key, share in rung.items() for c in groups[key] for cell in c.cells]
        run(store, short)
        for key, share in rung.items():
            judged = _judge(groups[key], share, store)
            verdicts += judged
            kept = {verdict.contestant for verdict in judged if verdict.kept}
            groups[key] = [contestant for contestant in groups[key] if contestant.id in kept]
        _write(folder / VERDICTS, verdicts)
    left = {cell for group in groups.values() for contestant in group for cell in contestant.cells}
    return tuple(cell for cell in cells if cell in left), tuple(verdicts)


def _groups(all_of_them: Iterable[Contestant]) -> dict[str, list[Contestant]]:
    groups: dict[str, list[Contestant]] = {}
    for contestant in all_of_them:
        groups.setdefault(contestant.group, []).append(contestant)
    return groups


def _judge(group: Sequence[Contestant], share: float, store: Store) -> list[Verdict]:
    """Rank contestants by accuracy, then by how little they train; those without a whole result come last."""
    results = {c: [_result(shortened(cell, share), store) for cell in c.cells] for c in group}
    scores = {c: _score(records) for c, records in results.items()}
    able = [c for c in group if scores[c] is not None]
    if not able:
        raise ConfigError(
            f"none of the {len(group)} contestants on {group[0].cells[0].data} has a result after {share:.0%} of its "
            f"steps: all of them failed or diverged. See: pliant runs {store.folder}"
        )
    ranked = sorted(able, key=lambda c: (-(scores[c] or (0.0, 0.0))[0], _size(results[c])))
    kept = set(ranked[: math.ceil(len(group) / FACTOR)])
    return [_verdict(c, share, scores[c], kept=c in kept) for c in group]


def _result(cell: CellConfig, store: Store) -> Record:
    """Return the record of a short run; without one, nothing can be judged."""
    entry = store.entry(cell)
    if entry.record is None:
        reason = f"is being run by {entry.owner}" if entry.state == "running" else "could not be run or stored"
        raise StoreError(f"a short run {reason}: {entry.folder}. Run the same command again when it can be")
    return entry.record


def _verdict(contestant: Contestant, share: float, score: tuple[float, float] | None, *, kept: bool) -> Verdict:
    accuracy, stderr = score or (None, None)
    cell = contestant.cells[0]
    return Verdict(
        contestant=contestant.id,
        model=cell.model,
        optimizer=cell.optimizer,
        data=cell.data,
        variant=cell.variant,
        learning_rate=cell.learning_rate,
        share=share,
        accuracy=accuracy,
        stderr=stderr,
        kept=kept,
    )


def _score(records: Sequence[Record]) -> tuple[float, float] | None:
    """Return mean validation accuracy and its standard error; None if a seed has no result.

    Seeds are scored on the same images, so their errors are not independent: the error is that of one seed.
    """
    found = [r.validation_accuracy for r in records if r.status == "done"]
    known = [accuracy for accuracy in found if accuracy is not None]
    if len(known) < len(records):
        return None
    mean = sum(known) / len(known)
    return mean, math.sqrt(mean * (1 - mean) / (records[0].n_validation or 1))


def _size(records: Sequence[Record]) -> int:
    return records[0].trained_parameters or 0


def _write(path: Path, verdicts: Sequence[Verdict]) -> None:
    rows: list[Mapping[str, object]] = [vars(verdict) for verdict in verdicts]
    write_atomically(path, json.dumps(rows, indent=1) + "\n")
