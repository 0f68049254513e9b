"""The page: one HTML file with everything in it, scripts included; it opens from disk and asks for nothing else."""

import json
from collections.abc import Sequence
from functools import cache
from importlib.metadata import version
from importlib.resources import files
from typing import Any

from jinja2 import Environment

from pliant.reporting.figure import Figure, Spec, plain, vega_lite_version
from pliant.reporting.palette import DARK, LIGHT, theme
from pliant.reporting.section import Section
from pliant.reporting.tables import ROWS_ON_PAGE, Table

KINDS = {"sweep": "a sweep", "tune": "a tuning run", "measurement": "a measurement"}


def render(
    sections: Sequence[Section], *, title: str, kind: str, asked: str, answer: str, warnings: Sequence[str], source: str
) -> str:
    """Return the page. All text is escaped, wherever it comes from.

    Args:
        sections: in order; their figures' specifications and tables go into the page.
        title: names what is reported.
        kind: one of `KINDS`; else nothing is said of it.
        asked: the question.
        answer: the answer, with its uncertainty.
        warnings: what limits it.
        source: the folder or file that it was made from.
    """
    specs: list[Spec] = []
    shown = [_section(section, specs) for section in sections]
    environment = Environment(autoescape=True, trim_blocks=True, lstrip_blocks=True)
    template = environment.from_string(_text("page.html.j2"))
    return template.render(
        version=version("pliant"),
        title=title,
        kind=KINDS.get(kind, ""),
        asked=asked,
        answer=answer,
        warnings=list(warnings),
        sections=shown,
        source=source,
        charts=bool(specs),
        specs=embedded(specs),
        themes=embedded({"light": theme(LIGHT, transparent=True), "dark": theme(DARK, transparent=True)}),
        bundle=bundle() if specs else "",
        css=_text("page.css"),
        js=_text("page.js"),
    )


def embedded(value: Any) -> str:
    r"""Write a value as JSON that is safe within a script element: no `<`, `>` or `&` is left in it.

    >>> embedded({"a": "</script><!--"})
    '{"a":"\\u003c/script\\u003e\\u003c!--"}'
    """
    text = json.dumps(value, separators=(",", ":"), allow_nan=False, ensure_ascii=True)
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


@cache
def bundle() -> str:
    """Return Vega, Vega-Lite and Vega-Embed as one script, once for a whole page."""
    import vl_convert

    script = str(vl_convert.javascript_bundle(vl_version=vega_lite_version()))
    return script.replace("</script", "<\\/script").replace("<!--", "<\\!--")


def alone(figure: Figure) -> str:
    """Return a page of one figure, as interactive as on a report."""
    section = Section(figure.title, figures=(figure,))
    return render([section], title=figure.title, kind="", asked="", answer="", warnings=(), source="a chart's data")


def _text(name: str) -> str:
    return files("pliant.reporting").joinpath("template", name).read_text(encoding="utf-8")


def _section(section: Section, specs: list[Spec]) -> dict[str, Any]:
    return {
        "anchor": section.anchor,
        "title": section.title,
        "lead": section.lead,
        "absent": section.absent,
        "figures": [_figure(figure, specs) for figure in section.figures],
        "tables": [_table(made) for made in section.tables],
    }


def _figure(figure: Figure, specs: list[Spec]) -> dict[str, Any]:
    first = len(specs)
    specs += figure.specs()
    return {
        "name": figure.name,
        "title": figure.title,
        "reading": figure.reading,
        "note": figure.note,
        "columns": figure.columns,
        "panels": [
            {"title": panel.title, "height": panel.height, "number": first + i} for i, panel in enumerate(figure.panels)
        ],
    }


def _table(made: Table) -> dict[str, Any]:
    shown = Table(made.name, made.title, made.note, made.columns, made.frame.iloc[:ROWS_ON_PAGE])
    numeric = [c.kind not in ("text", "yes") for c in made.columns]
    keys = [
        [_key(v) if n else None for v in shown.frame[c.name].tolist()]
        for c, n in zip(made.columns, numeric, strict=True)
    ]
    rows = [[{"text": text, "key": keys[c][r]} for c, text in enumerate(row)] for r, row in enumerate(shown.rows)]
    heads = [{"title": c.title, "numeric": n} for c, n in zip(made.columns, numeric, strict=True)]
    return {
        "name": made.name,
        "title": made.title,
        "note": made.note,
        "columns": heads,
        "rows": rows,
        "total": len(made.frame),
    }


def _key(value: Any) -> str:
    """What a number is sorted by; nothing for a missing one."""
    number = plain(value)
    return "" if number is None else str(number)
