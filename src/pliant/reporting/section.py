"""A section of a report: charts and tables on one question, and what could not be shown and why."""

import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TypeVar

from pliant.errors import ConfigError
from pliant.reporting.figure import Figure
from pliant.reporting.tables import Table

Made = TypeVar("Made")


@dataclass(frozen=True)
class Section:
    """One question of a report.

    Attributes:
        title: the question, or its subject.
        lead: one or two sentences before the charts.
        figures: charts, in order.
        tables: below them.
        absent: what is not shown, each with its reason.
    """

    title: str
    lead: str = ""
    figures: tuple[Figure, ...] = ()
    tables: tuple[Table, ...] = ()
    absent: tuple[str, ...] = ()

    @property
    def anchor(self) -> str:
        """The section's name in links."""
        return slug(self.title)

    @property
    def empty(self) -> bool:
        """Whether there is nothing in it."""
        return not (self.figures or self.tables or self.absent)

    def of(self, label: str) -> "Section":
        """Return the section as that of one series among several: its label in titles and in the names of files."""
        if not label:
            return self
        figures = tuple(replace(f, name=f"{f.name}-{slug(label)}") for f in self.figures)
        tables = tuple(replace(t, name=f"{t.name}-{slug(label)}", title=f"{t.title} ({label})") for t in self.tables)
        return replace(self, title=f"{self.title} ({label})", figures=figures, tables=tables)


def attempt(make: Callable[[], Made], absent: list[str]) -> tuple[Made, ...]:
    """Return what `make` makes, or nothing; then the reason goes to `absent`."""
    try:
        return (make(),)
    except ConfigError as error:
        reason = str(error)
        if reason not in absent:
            absent.append(reason)
        return ()


def slug(text: str) -> str:
    """Return a word that is safe in a file's name and in a link.

    >>> slug("Accuracy: mha & co. (sgd)")
    'accuracy-mha-co-sgd'
    """
    return re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")[:60] or "x"
