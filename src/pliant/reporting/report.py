"""From a folder to its report."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from pathlib import Path

from pliant.reporting.analysis import Series, analyse
from pliant.reporting.claims import claims_section
from pliant.reporting.figure import check_formats
from pliant.reporting.findings import answer, asked, warnings
from pliant.reporting.material import Material, read
from pliant.reporting.model_sections import (
    bounds_section,
    landscape_section,
    layers_section,
    plasticity_section,
)
from pliant.reporting.page import render
from pliant.reporting.provenance import cells_section, provenance_section
from pliant.reporting.results import (
    accuracy_section,
    cost_section,
    criterion_section,
    robustness_section,
    tests_section,
)
from pliant.reporting.run_sections import (
    race_section,
    result_section,
    step_rows,
    training_section,
    validation_section,
)
from pliant.reporting.section import Section
from pliant.runs import write_atomically

Progress = Callable[[int, int], None]

SERIES_SHOWN = 6
"""Series with charts of their own; further ones have their table of results."""


def report(
    folder: str | Path,
    *,
    charts: Iterable[str] = (),
    tables: bool = False,
    progress: Progress | None = None,
) -> Path:
    """Write the report of a folder: one self-contained HTML page.

    Args:
        folder: a store of runs (a sweep), a folder of `pliant tune`, or the file of a measurement; what else is there
            (measurement*.parquet, bounds*.parquet, probe*.parquet, landscape*.json) is taken in.
        charts: formats (svg, png, pdf, html) to write each chart in, too.
        tables: write each table as Markdown, LaTeX and CSV, too.
        progress: called with parts written and parts in all.

    Returns:
        The page: `folder/report.html`, or `NAME.report.html` beside a file. Charts and tables lie in the folder of the
        same name without `.html`.

    Raises:
        DataError: nothing there to report.
        UnknownNameError: an unknown format.
    """
    formats = tuple(charts)
    check_formats(formats)
    material = read(folder)
    series = analyse(material)
    parts = sections(material, series)
    page = material.path / "report.html" if material.path.is_dir() else material.path.with_suffix(".report.html")
    text = render(
        parts,
        title=material.name,
        kind=material.kind,
        asked=asked(material, series),
        answer=answer(material, series),
        warnings=warnings(material, series),
        source=str(material.path),
    )
    write_atomically(page, text)
    _write_files(parts, page.with_suffix(""), formats, tables=tables, progress=progress)
    return page


def sections(material: Material, series: Sequence[Series]) -> tuple[Section, ...]:
    """Return the sections that have something in them, in order."""
    found: list[Section] = []
    if material.kind == "tune":
        found += [result_section(material), race_section(material)]
        found += [training_section(one, step_rows(one, material)) for one in series]
    elif material.kind == "sweep" and not series:
        found.append(validation_section(material))
    elif material.kind == "sweep":
        for one in series[:SERIES_SHOWN]:
            found += [accuracy_section(one), tests_section(one), criterion_section(one)]
        found += [replace(accuracy_section(one), figures=()) for one in series[SERIES_SHOWN:]]
        found.append(robustness_section(series))
        for one in series[:SERIES_SHOWN]:
            curves = step_rows(one, material)
            found += [cost_section(one), training_section(one, curves), claims_section(one, curves)]
    found += [plasticity_section(material), bounds_section(material), layers_section(material)]
    found += [landscape_section(one, several=len(material.landscapes) > 1) for one in material.landscapes]
    found += [cells_section(material), provenance_section(material)]
    return tuple(section for section in found if not section.empty)


def _write_files(
    parts: Sequence[Section], folder: Path, formats: Sequence[str], *, tables: bool, progress: Progress | None
) -> None:
    figures = [figure for part in parts for figure in part.figures] if formats else []
    made = [one for part in parts for one in part.tables] if tables else []
    total = len(figures) + len(made)
    for done, figure in enumerate(figures, start=1):
        figure.save(folder, formats)
        if progress is not None:
            progress(done, total)
    for done, one in enumerate(made, start=len(figures) + 1):
        one.save(folder)
        if progress is not None:
            progress(done, total)
