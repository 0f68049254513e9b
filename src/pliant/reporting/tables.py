"""Tables of a report, each as HTML (on the page), Markdown, LaTeX and CSV."""

import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import pandas as pd

from pliant.runs import write_atomically

Kind = Literal["text", "percent", "points", "number", "count", "p", "rate", "yes"]

MISSING = "–"

ROWS_ON_PAGE = 600
"""Rows of one table that a page shows; all of them are in the files."""


@dataclass(frozen=True)
class Column:
    """One column of a table.

    Attributes:
        name: in the frame.
        title: as it is shown, with its unit.
        kind: how values are written. `percent`: a share of 1 as 91.2 %; `points`: a difference of shares in percentage
            points; `p`: a probability; `rate`: a learning rate; `yes`: a truth value.
    """

    name: str
    title: str
    kind: Kind = "text"


@dataclass(frozen=True)
class Table:
    """A table with what is needed to read it.

    Attributes:
        name: of its files.
        title: what it shows.
        note: how its numbers were obtained.
        columns: those shown, in order.
        frame: the numbers, unrounded.
    """

    name: str
    title: str
    note: str
    columns: tuple[Column, ...]
    frame: pd.DataFrame = field(repr=False)

    @property
    def rows(self) -> list[list[str]]:
        """Every cell as text."""
        shown = [[write(v, c.kind) for v in self.frame[c.name].tolist()] for c in self.columns]
        return [list(row) for row in zip(*shown, strict=True)]

    def markdown(self) -> str:
        """Return the table for Markdown, its title above and its note below."""
        titles = [_markdown(c.title) for c in self.columns]
        lines = [
            "| " + " | ".join(titles) + " |",
            "|" + "|".join("---" if c.kind == "text" else "---:" for c in self.columns) + "|",
            *("| " + " | ".join(_markdown(text) for text in row) + " |" for row in self.rows),
        ]
        return f"**{_markdown(self.title)}**\n\n" + "\n".join(lines) + f"\n\n{_markdown(self.note)}\n"

    def latex(self) -> str:
        """Return the table for LaTeX with the package booktabs: a float with caption and label."""
        layout = "".join("l" if c.kind == "text" else "r" for c in self.columns)
        head = " & ".join(_latex(c.title) for c in self.columns)
        body = "\n".join("    " + " & ".join(_latex(text) for text in row) + r" \\" for row in self.rows)
        return (
            "% needs \\usepackage{booktabs}\n"
            "\\begin{table}\n  \\centering\n"
            f"  \\caption{{{_latex(self.title)}. {_latex(self.note)}}}\n  \\label{{tab:{self.name}}}\n"
            f"  \\begin{{tabular}}{{{layout}}}\n    \\toprule\n    {head} \\\\\n    \\midrule\n{body}\n"
            "    \\bottomrule\n  \\end{tabular}\n\\end{table}\n"
        )

    def save(self, folder: Path) -> tuple[Path, ...]:
        """Write `folder/<name>.md`, `.tex` (as shown) and `.csv` (unrounded, every column of the frame)."""
        folder.mkdir(parents=True, exist_ok=True)
        texts = {"md": self.markdown(), "tex": self.latex(), "csv": self.frame.to_csv(index=False)}
        written = []
        for suffix, text in texts.items():
            path = folder / f"{self.name}.{suffix}"
            write_atomically(path, text)
            written.append(path)
        return tuple(written)


def write(value: Any, kind: Kind) -> str:
    """Write one value the way a reader wants it; a missing one is a dash.

    >>> [write(v, k) for v, k in ((0.9123, "percent"), (0.00004, "p"), (0.0081, "p"), (1234567, "count"))]
    ['91.2 %', '< 0.0001', '0.0081', '1,234,567']
    >>> write(None, "number"), write(0.03, "rate"), write(True, "yes"), write(-0.0123, "points")
    ('–', '0.03', 'yes', '-1.23')
    """
    if value is None or value is pd.NA or value is pd.NaT or (isinstance(value, float) and math.isnan(value)):
        return MISSING
    return _WRITERS[kind](value)


def _p(value: float) -> str:
    return "< 0.0001" if value < 0.0001 else f"{value:.4f}" if value < 0.01 else f"{value:.3f}"


_WRITERS: Mapping[str, Callable[[Any], str]] = {
    "text": str,
    "percent": lambda v: f"{v:.1%}".replace("%", " %"),
    "points": lambda v: f"{100 * v:.2f}",
    "number": lambda v: f"{v:.4g}",
    "count": lambda v: f"{int(v):,}",
    "p": _p,
    "rate": lambda v: f"{v:g}",
    "yes": lambda v: "yes" if v else "no",
}


def columns(**kinds: tuple[str, Kind]) -> tuple[Column, ...]:
    """Write columns as `name=(title, kind)`."""
    return tuple(Column(name, title, kind) for name, (title, kind) in kinds.items())


def table(name: str, title: str, frame: pd.DataFrame, shown: Sequence[Column], *, note: str) -> Table:
    """Make a table of those columns that the frame has any value in."""
    kept = tuple(c for c in shown if c.name in frame.columns and frame[c.name].notna().any())
    return Table(name, title, note, kept, frame)


def _markdown(text: str) -> str:
    """Keep a text from being read as Markdown or HTML."""
    one_line = " ".join(text.split())
    escaped = re.sub(r"([\\`*_{}\[\]|~])", r"\\\1", one_line)
    return escaped.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


_LATEX = {
    "\\": r"\textbackslash{}", "&": r"\&", "%": r"\%", "$": r"\$", "#": r"\#", "_": r"\_", "{": r"\{", "}": r"\}",
    "~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "<": r"\textless{}", ">": r"\textgreater{}",
    "–": "--", "−": r"$-$", "±": r"$\pm$", "×": r"$\times$",
    "²": r"\textsuperscript{2}", "ρ": r"$\rho$", "τ": r"$\tau$",
    "χ": r"$\chi$", "→": r"$\to$", "≥": r"$\geq$", "≤": r"$\leq$", "…": r"\ldots{}", "’": "'",
}  # fmt: skip


def _latex(text: str) -> str:
    """Keep a text from being read as LaTeX."""
    return "".join(_LATEX.get(letter, letter) for letter in " ".join(text.split()))
