"""What the commands about sweeps print: a live display or lines while cells run, tables at the end."""

import json as json_module
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pandas as pd
import typer
from rich.columns import Columns
from rich.console import Console, Group
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from pliant.cli.console import ConsoleTalk, compact
from pliant.errors import TrainingError
from pliant.runs.store import STATES
from pliant.sweeping import Event, Plan, Standing, SweepResult
from pliant.sweeping.events import ENDS
from pliant.sweeping.jobs import last_line
from pliant.sweeping.progress import duration, label, line
from pliant.sweeping.run import Listener

DRAW_SECONDS = 0.25
COLUMNS = 5
"""Data sets that the display has room for; those with the latest results are shown."""


@contextmanager
def watching(*, json: bool) -> Iterator[tuple[ConsoleTalk, Listener]]:
    """Show how a sweep goes on stderr: one live display on a terminal, a line per event elsewhere."""
    talk = ConsoleTalk(stderr=True)
    if not talk.console.is_terminal:
        yield talk, lambda event, standing: _log(talk, event, standing)
        return
    display = LiveDisplay(talk.console)
    try:
        yield talk, display.take
    finally:
        display.stop()


def _log(talk: ConsoleTalk, event: Event, standing: Standing) -> None:
    said = line(event, standing)
    if said is not None:
        talk.say(said)


class LiveDisplay:
    """A display that is redrawn in place: counts, time left, the best of each component set, what is running."""

    def __init__(self, console: Console) -> None:
        """Show nothing before the first event."""
        self._console = console
        self._live: Live | None = None
        self._title = ""
        self._drawn = 0.0

    def take(self, event: Event, standing: Standing) -> None:
        """Redraw after an event; what went wrong stays on the screen as a line above."""
        if self._live is not None and standing.title != self._title:
            self.stop()
        if self._live is None:
            self._title = standing.title
            self._live = Live(drawn(standing), console=self._console, auto_refresh=False)
            self._live.start()
        if event.kind not in ("started", "step", "done", "skipped") or event.job == "probe":
            said = line(event, standing)
            if said is not None:
                self._live.console.print(said, markup=False)
        if event.kind in ENDS or time.monotonic() - self._drawn > DRAW_SECONDS:
            self._drawn = time.monotonic()
            self._live.update(drawn(standing), refresh=True)

    def stop(self) -> None:
        """Leave the last state on the screen."""
        if self._live is not None:
            self._live.stop()
            self._live = None


def drawn(standing: Standing) -> Group:
    """Draw a standing."""
    counts = standing.counts
    parts = [f"{counts.get('done', 0)} done"]
    parts += [f"{counts[kind]} {kind}" for kind in ("diverged", "failed", "refused", "unstored") if counts.get(kind)]
    parts.append(f"{standing.left} left of {len(standing.cells)}")
    left = standing.seconds_left
    parts.append(f"{duration(standing.seconds)} gone" + ("" if left is None else f", about {duration(left)} left"))
    total = len(standing.cells)
    lines: list[Any] = [
        Text(f"{standing.title}: {'; '.join(parts)}", style="bold"),
        Columns([ProgressBar(total=total, completed=total - standing.left, width=60)]),  # which end the line
    ]
    if standing.best:
        lines.append(_best(standing))
    running = [f"{label(cell, standing.cells)} ({step}/{cell.steps})" for cell, step in standing.running.items()]
    return Group(*lines, *(Text(f"  {text}", style="dim") for text in running[:8]))


def _best(standing: Standing) -> Table:
    """Draw the best so far: component sets down, data sets across."""
    shown = list(dict.fromkeys(data for data, _ in standing.best))[-COLUMNS:]
    table = Table(title="best so far (validation)", title_justify="left", title_style="dim", header_style="bold")
    table.add_column("trained")
    for data in shown:
        table.add_column(data, justify="right")
    for variant in dict.fromkeys(variant for _, variant in standing.best):
        found = [standing.best.get((data, variant)) for data in shown]
        table.add_row(
            variant,
            *("–" if r is None else f"{r.validation_accuracy:.1%} at {r.cell.learning_rate:g}" for r in found),
        )
    return table


def print_plan(plan: Plan, *, json: bool) -> None:
    """Print what a sweep would do."""
    if json:
        typer.echo(json_module.dumps(plan.to_json(), indent=1))
        return
    talk = ConsoleTalk(stderr=False)
    table, same = compact(plan.frame)
    talk.table(f"{plan.recipe}: {len(plan.cells)} cells, {len(plan.missing)} to run", table, note=same)
    if plan.share < 1:
        talk.say(f"With --prune: {plan.share:.0%} of the steps")
    time_needed = "not known" if plan.seconds is None else f"about {duration(plan.seconds)}"
    talk.say(f"Estimated time: {time_needed}")
    for note in plan.notes:
        talk.say(f"  {note}")


def print_result(result: SweepResult, *, json: bool) -> None:
    """Print what a sweep led to.

    Raises:
        TrainingError: cells failed, or could not be run; the message says how to go on.
    """
    if json:
        typer.echo(json_module.dumps(result.to_json(), indent=1))
    else:
        talk = ConsoleTalk(stderr=False)
        if not result.table.empty:
            talk.table(f"Sweep {result.recipe}", _printed(result.table), note=_about(result))
        talk.say(f"{_counted(result)} in {duration(result.seconds)}; results in {result.folder}")
    if not result.complete:
        raise TrainingError(_incomplete(result))


def print_store(entries: pd.DataFrame, problems: tuple[str, ...], *, folder: str) -> None:
    """Print the cells of a store."""
    talk = ConsoleTalk(stderr=False)
    states = list(entries["state"]) if len(entries) else []
    title = ", ".join(f"{states.count(state)} {state}" for state in STATES if state in states) or "no cells"
    if len(entries):
        table, same = compact(entries)
        talk.table(f"{folder}: {title}", table, note=same)
    elif not problems:
        talk.say(f"{folder}: {title} yet; `pliant sweep RECIPE --out {folder}` makes them")
    for problem in problems:
        talk.say(f"Problem: {problem}")


_NAMES = ("model", "data", "train", "optimizer")


def _printed(table: pd.DataFrame) -> pd.DataFrame:
    """Bring the summary into fewer and shorter columns."""
    rows = []
    for row in table.to_dict("records"):
        own: dict[str, Any] = {name: value for name, value in row.items() if name in _NAMES}
        own["rate"] = "" if pd.isna(row["learning rate"]) else f"{row['learning rate']:g}"
        own["trained"] = "" if pd.isna(row["parameters"]) else f"{row['parameters']:,}"
        own["val."] = _percent(row["validation"])
        own["test"] = " ± ".join(filter(None, (_percent(row["test accuracy"]), _percent(row["std"]))))
        own |= {"by rate": _percent(row["std over rates"]), "by seed": _percent(row["std over seeds"])}
        own["diverged"] = row["diverged"]
        rows.append(own)
    printed = pd.DataFrame(rows)
    return printed if (printed["diverged"].fillna(0) > 0).any() else printed.drop(columns="diverged")


def _percent(value: float) -> str:
    return "" if pd.isna(value) else f"{value:.1%}"


def _about(result: SweepResult) -> str:
    seeds = sorted({int(number) for number in result.table["seeds"].dropna()})
    parts = [
        "rate: by mean validation accuracy over seeds; test: accuracy of those cells ± std over "
        f"{' or '.join(map(str, seeds))} seeds; by rate, by seed: std over rates and over seeds of all cells of the row"
    ]
    ends = result.table[result.table["edge"].isin(["low", "high"])]
    if len(ends):
        named = ", ".join(f"{row['train']} ({row['edge']})" for row in ends.to_dict("records")[:8])
        parts.append(f"the best rate is at the end of its grid, and a better one may lie beyond: {named}")
    if result.counts["diverged"]:
        parts.append(f"{result.counts['diverged']} diverged cells are not averaged in")
    if result.pruned:
        parts.append(f"pruned: {result.share:.0%} of the steps of all cells")
    return "; ".join(parts)


def _counted(result: SweepResult) -> str:
    return ", ".join(f"{count} {status}" for status, count in result.counts.items() if count) or "no cells"


def _incomplete(result: SweepResult) -> str:
    parts = []
    if result.failed:
        first = last_line(result.failed[0].error or "")
        parts.append(
            f"{len(result.failed)} of {len(result.cells)} cells failed, the first with: {first}\n"
            f"`pliant runs {result.folder}` lists them; with --retry-failed the same sweep tries them again"
        )
    if result.problems:
        some = "\n".join(result.problems[:3])
        parts.append(f"{len(result.problems)} of {len(result.cells)} cells could not be run:\n{some}")
    return "\n".join(parts) or "some cells have no result; run the same command again"
