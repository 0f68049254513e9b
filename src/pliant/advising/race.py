"""The race: every candidate is trained for a short, equal number of steps over a small grid of learning rates.

A grid whose best value lies at its edge is extended, so that no candidate loses for want of a learning rate.
Validation accuracy decides; candidates within one standard error of the best are a tie, which goes to the set that
trains the fewest parameters. The test images are not read.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass

import pandas as pd

from pliant.advising.budget import Candidate
from pliant.errors import DivergedError
from pliant.runs import CellConfig, Record
from pliant.stats import fewest_within_error
from pliant.terms import Role

Train = Callable[[CellConfig], Record]
"""Trains one cell from the pretrained weights; its record need not hold a reading of the test images."""

GRIDS: dict[str, dict[str, tuple[float, ...]]] = {
    "sgd": {"full": (0.03, 0.1, 0.3), "norms": (0.3, 1.0, 3.0), "other": (0.1, 0.3, 1.0)},
    "adamw": {"full": (3e-4, 1e-3, 3e-3), "norms": (3e-3, 1e-2, 3e-2), "other": (1e-3, 3e-3, 1e-2)},
}
"""Learning rates to begin with, by optimiser and kind of component set: what fits one kind is too much or too little
for another. Where the best lies at an edge the grid goes on beyond it, see `EXTENSIONS`."""

EXTENSIONS = 4
"""Most learning rates that a candidate's grid is extended by while its best lies at the edge."""


def learning_rates(components: str, roles: Sequence[Role], optimizer: str) -> tuple[float, ...]:
    """Return the learning rates that a component set begins with."""
    small = set(roles) <= {"ln1", "ln2", "layerscale"}
    kind = "full" if components == "full" else "norms" if small else "other"
    return GRIDS[optimizer][kind]


def beyond(rates: Sequence[float], edge: float) -> float:
    """Return the next learning rate beyond the upper or lower edge of a grid, on the scale 1, 3, 10.

    >>> beyond((0.03, 0.1, 0.3), 0.3), beyond((0.03, 0.1, 0.3), 0.03)
    (1.0, 0.01)
    """
    halves = round(2 * math.log10(edge)) + (1 if edge == max(rates) else -1)
    return float(f"{10 ** (halves / 2):.0e}")


@dataclass(frozen=True)
class Trial:
    """One short training run.

    Attributes:
        components: what was trained; parameters how many that are.
        learning_rate: the schedule's highest.
        validation_accuracy: at the end, of n_validation images; None if the loss stopped being finite.
        stderr: binomial standard error of the accuracy.
        status: "done", or where the run diverged.
        seconds: it took.
    """

    components: str
    parameters: int
    learning_rate: float
    validation_accuracy: float | None
    stderr: float | None
    n_validation: int
    status: str
    seconds: float | None


@dataclass(frozen=True)
class Race:
    """What a race showed.

    Attributes:
        trials: in the order they were run.
        best: the best trial of each candidate that has one, best first.
        chosen: component set; learning_rate that of its best trial.
        tied: candidates within one standard error of the best.
        reason: the choice in one sentence.
        warnings: what limits it (best at the edge of a grid, diverged trials).
    """

    trials: tuple[Trial, ...]
    best: tuple[Trial, ...]
    chosen: str
    learning_rate: float
    tied: tuple[str, ...]
    reason: str
    warnings: tuple[str, ...]

    @property
    def outcome(self) -> dict[str, float]:
        """Best validation accuracy of each candidate."""
        return {t.components: t.validation_accuracy for t in self.best if t.validation_accuracy is not None}

    @property
    def frame(self) -> pd.DataFrame:
        """One row per trial, columns as the attributes of `Trial`."""
        return pd.DataFrame([asdict(t) for t in self.trials])


def run_race(
    candidates: Sequence[Candidate],
    base: CellConfig,
    *,
    train: Train,
    fixed: Mapping[str, Sequence[float]] | None = None,
    progress: Callable[[int, int, str], None] | None = None,
) -> Race:
    """Train every candidate at every learning rate of its grid, beyond it while the best is at the edge, and choose.

    Args:
        candidates: in the order that they are started in.
        base: the cell of every trial but for components and learning rate: its steps are the race's.
        train: trains a cell.
        fixed: learning rates by component set, where they are given; such a grid is not extended.
        progress: called after each trial with trials done, trials in all, and a line about the trial.

    Raises:
        DivergedError: no trial of any candidate stayed finite.
    """
    trials: list[Trial] = []

    def run(c: Candidate, rate: float, left: int) -> None:
        record = train(base.replace(components=c.components, learning_rate=rate))
        trials.append(_trial(c, rate, record))
        if progress is not None:
            progress(len(trials), len(trials) + left, f"{c.components} at {rate:g}: {_outcome(record)}")

    grids = [_grid(c, base, fixed or {}) for c in candidates]
    for place, (c, grid) in enumerate(zip(candidates, grids, strict=True)):
        later = sum(len(g) for g in grids[place + 1 :])
        for n, rate in enumerate(grid, start=1):
            run(c, rate, later + len(grid) - n)
        for _ in range(EXTENSIONS if c.components not in (fixed or {}) else 0):
            further = _beyond([t for t in trials if t.components == c.components])
            if further is None:
                break
            run(c, further, later)
    return decide(trials)


def _grid(c: Candidate, base: CellConfig, fixed: Mapping[str, Sequence[float]]) -> tuple[float, ...]:
    given = fixed.get(c.components)
    return learning_rates(c.components, c.roles, base.optimizer) if given is None else tuple(given)


def _beyond(mine: Sequence[Trial]) -> float | None:
    """Return the learning rate to try next, or None if the best lies inside; a lower one where all have diverged."""
    rates = [t.learning_rate for t in mine]
    if all(t.validation_accuracy is None for t in mine):
        return float(f"{min(rates) / 10:.0e}")
    edge = _best_edge(mine)
    return None if edge is None else beyond(rates, edge)


def _best_edge(mine: Sequence[Trial]) -> float | None:
    """Return the edge of a grid that did better than every rate inside; None if there is no such edge, or one rate."""
    rates = [t.learning_rate for t in mine]
    highest = max(t.validation_accuracy or 0.0 for t in mine)
    best = [t.learning_rate for t in mine if t.validation_accuracy == highest]
    inside = any(min(rates) < rate < max(rates) for rate in best)
    return None if inside or len(rates) < 2 or not best else min(best)


def _outcome(record: Record) -> str:
    if record.validation_accuracy is None or record.status == "diverged":
        return f"diverged at step {record.diverged_at}"
    return f"{record.validation_accuracy:.1%}"


def _trial(c: Candidate, rate: float, record: Record) -> Trial:
    done = record.status == "done" and record.validation_accuracy is not None
    accuracy, n = (record.validation_accuracy if done else None), record.n_validation or 0
    return Trial(
        components=c.components,
        parameters=c.parameters,
        learning_rate=rate,
        validation_accuracy=accuracy,
        stderr=None if accuracy is None or not n else math.sqrt(accuracy * (1 - accuracy) / n),
        n_validation=n,
        status="done" if done else f"diverged at step {record.diverged_at}",
        seconds=record.seconds,
    )


def decide(trials: Sequence[Trial]) -> Race:
    """Choose from finished trials.

    Raises:
        DivergedError: none of them is finite.
    """
    done = [t for t in trials if t.validation_accuracy is not None]
    if not done:
        raise DivergedError(
            f"all {len(trials)} trials of the race diverged: the loss was not finite. Lower the learning rate "
            "(--learning-rate), and check the images and weights for NaN."
        )
    ranked = sorted(done, key=lambda t: (-(t.validation_accuracy or 0.0), t.learning_rate))
    best: dict[str, Trial] = {}
    for trial in ranked:
        best.setdefault(trial.components, trial)
    pick = fewest_within_error(
        {name: t.validation_accuracy or 0.0 for name, t in best.items()},
        {name: t.stderr or 0.0 for name, t in best.items()},
        parameters={name: t.parameters for name, t in best.items()},
    )
    chosen = best[pick.chosen]
    return Race(
        trials=tuple(trials),
        best=tuple(best.values()),
        chosen=pick.chosen,
        learning_rate=chosen.learning_rate,
        tied=tuple(pick.tied),
        reason=_reason(best, pick.chosen, pick.tied),
        warnings=_warnings(trials, best),
    )


def _reason(best: Mapping[str, Trial], chosen: str, tied: Sequence[str]) -> str:
    found = f"{best[chosen].validation_accuracy:.1%} of {best[chosen].n_validation} validation images"
    if len(best) == 1:
        return f"{chosen} was the only candidate; its best trial reached {found}"
    if len(tied) == 1:
        return f"{chosen} reached the highest validation accuracy, {found}, by more than one standard error"
    others = ", ".join(f"{name} {best[name].validation_accuracy:.1%}" for name in tied if name != chosen)
    return f"{chosen} trains the fewest parameters of those within one standard error of the best: {found} ({others})"


def _warnings(trials: Sequence[Trial], best: Mapping[str, Trial]) -> tuple[str, ...]:
    found = []
    for name in best:
        mine = [t for t in trials if t.components == name]
        if (edge := _best_edge(mine)) is not None:
            grid = [t.learning_rate for t in mine]
            found.append(
                f"{name}: its best learning rate {edge:g} is at the edge of its grid ({min(grid):g} to {max(grid):g}); "
                "a better one may lie beyond"
            )
    found += [f"{t.components} at {t.learning_rate:g}: {t.status}" for t in trials if t.validation_accuracy is None]
    return tuple(found)
