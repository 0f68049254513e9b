"""Printing for people: sentences, tables with their notes, progress bars."""

import math
import sys
import time
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from typing import Any

import pandas as pd
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.table import Table
from rich.text import Text

SHOW_AFTER = 2.0
"""Seconds after which a job that is not finished shows a progress bar."""

SPEAK_EVERY = 60.0
"""Seconds between two lines of progress where no bar can be drawn (a log file)."""


class ConsoleTalk:
    """Prints what a job tells; to stderr where stdout is for data."""

    def __init__(self, *, stderr: bool) -> None:
        """Print to stderr or stdout."""
        self.console = Console(stderr=stderr, highlight=False, emoji=False, soft_wrap=not sys.stdout.isatty())

    def say(self, text: str) -> None:
        """Print one sentence."""
        self.console.print(text, markup=False)

    def table(self, title: str, frame: pd.DataFrame, *, note: str = "") -> None:
        """Print a table, and under it how its numbers were obtained."""
        self.console.print(rendered(title, frame))
        if note:
            self.console.print(f"  {note}\n", style="dim", markup=False)

    @contextmanager
    def bar(self, label: str) -> Iterator[Callable[[int, int], None]]:
        """Show a bar that appears when the job takes longer than two seconds; a line at the end either way."""
        began = spoke = time.monotonic()
        columns = (
            TextColumn("{task.description}", markup=False),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            TimeRemainingColumn(),
        )
        progress = Progress(*columns, console=self.console, transient=True)
        task = progress.add_task(label, total=None)
        started = False

        def update(done: int, total: int) -> None:
            nonlocal started, spoke
            now = time.monotonic()
            if not started and now - began > SHOW_AFTER and self.console.is_terminal:
                progress.start()
                started = True
            elif not self.console.is_terminal and now - spoke > SPEAK_EVERY:
                spoke = now
                self.say(f"{label}: {done:,} of {total:,} after {now - began:.0f} s")
            progress.update(task, completed=done, total=total)

        try:
            yield update
        finally:
            if started:
                progress.stop()
        self.say(f"{label}: {time.monotonic() - began:.1f} s")


def compact(
    table: pd.DataFrame, *, kept: Collection[str] = ("id", "state", "train", "cells")
) -> tuple[pd.DataFrame, str]:
    """Take out columns that have one value throughout, and say them in a sentence; those of `kept` stay.

    >>> table, said = compact(pd.DataFrame({"role": ["ln1", "mha"], "blocks": [6, 6]}))
    >>> list(table), said
    (['role'], 'all: blocks 6')
    """
    if len(table) < 2:
        return table, ""
    same = [name for name in table.columns if name not in kept and table[name].nunique(dropna=False) == 1]
    said = [f"{name} {_cell(name, table[name].iloc[0])}" for name in same if str(table[name].iloc[0]) not in _NOTHING]
    return table.drop(columns=same), f"all: {'; '.join(said)}" if said else ""


_NOTHING = ("", "nan", "None", "<NA>")


def rendered(title: str, frame: pd.DataFrame) -> Table:
    """Turn a frame into a table for the terminal; numbers are right-aligned and rounded, missing ones a dash."""
    table = Table(title=Text(title), title_justify="left", title_style="bold", header_style="bold")
    for name in frame.columns:
        numeric = pd.api.types.is_numeric_dtype(frame[name]) and not pd.api.types.is_bool_dtype(frame[name])
        table.add_column(str(name), justify="right" if numeric else "left", overflow="fold")
    for row in frame.itertuples(index=False):
        table.add_row(*(_cell(str(n), v) for n, v in zip(frame.columns, row, strict=True)))
    return table


_SHARES = ("share", "validation", "test accuracy")


def _cell(name: str, value: Any) -> str:
    from rich.markup import escape

    if value is None or value is pd.NA or (isinstance(value, float) and math.isnan(value)):
        return "–"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float) and name in _SHARES:
        return f"{value:.1%}"
    if isinstance(value, float):
        return f"{value:.4g}"
    if isinstance(value, int):
        return f"{value:,}"
    return escape(str(value))
