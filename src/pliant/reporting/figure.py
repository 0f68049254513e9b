"""A figure: its data, its panels, one line on how to read it; and its files, made without a browser."""

import io
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, get_args

import altair as alt
import pandas as pd
from PIL import Image

from pliant.errors import UnknownNameError
from pliant.reporting.palette import LIGHT, style_of, theme
from pliant.runs import write_atomically
from pliant.terms import nearest

Format = Literal["svg", "png", "pdf", "html"]
FORMATS: tuple[Format, ...] = get_args(Format)

Spec = dict[str, Any]
"""A Vega-Lite chart as plain values."""

WIDTH = 360
"""Pixels across one panel in a file; on a page panels are as wide as there is room."""

SHOWN_POINTS = 400
"""Marks of one kind in one panel: more would be one blot, and would make a page large and slow."""


@dataclass(frozen=True)
class Panel:
    """One part of a figure, with axes of its own.

    Attributes:
        title: what sets it apart from the other panels; empty if it is the only one.
        chart: the Altair chart, without width.
        height: pixels.
    """

    title: str
    chart: Any = field(repr=False)
    height: int = 240


@dataclass(frozen=True)
class Figure:
    """What a chart shows, before it is drawn to a page or a file.

    Attributes:
        name: of its files.
        title: what it shows.
        reading: how to read it, in one line.
        data: the numbers that are drawn, tidy.
        panels: in order.
        note: what limits it (cells left out, points thinned); empty if nothing does.
        columns: panels side by side in a file.
    """

    name: str
    title: str
    reading: str
    data: pd.DataFrame = field(repr=False)
    panels: tuple[Panel, ...] = field(repr=False)
    note: str = ""
    columns: int = 2

    def specs(self) -> tuple[Spec, ...]:
        """Return each panel as Vega-Lite for a page: as wide as its place, without a background."""
        return tuple(_spec(panel, width="container", titled=False) for panel in self.panels)

    def chart(self) -> Any:
        """Return all panels as one Altair chart, for notebooks and files."""
        alone = len(self.panels) == 1
        made = [_sized(p, width=WIDTH + 160 if alone else WIDTH, titled=not alone) for p in self.panels]
        several = alt.concat(*made, columns=self.columns, spacing=24)
        whole = (
            made[0]
            if alone
            else several.resolve_scale(
                color="independent", shape="independent", size="independent", strokeDash="independent"
            )
        )
        title = alt.TitleParams(self.title, subtitle=_lines(self.reading), anchor="start", fontSize=15, offset=14)
        return whole.properties(title=title).configure(**theme(LIGHT))

    def save(self, folder: Path, formats: Iterable[str] = ("svg",)) -> tuple[Path, ...]:
        """Write the figure as `folder/<name>.<format>`: svg, png (twice the pixels), pdf, or html for itself alone.

        Raises:
            UnknownNameError: a format that is none of these.
        """
        wanted = tuple(dict.fromkeys(formats))
        check_formats(wanted)
        folder.mkdir(parents=True, exist_ok=True)
        spec = self.chart().to_dict(validate=False)
        written = []
        for kind in wanted:
            path = folder / f"{self.name}.{kind}"
            write_atomically(path, _page(self) if kind == "html" else _render(spec, kind))
            written.append(path)
        return tuple(written)


def check_formats(formats: Sequence[str]) -> None:
    """Refuse a format that charts cannot be written in.

    Raises:
        UnknownNameError: it is named, with those that can.
    """
    for kind in formats:
        if kind not in FORMATS:
            raise UnknownNameError.among("format of charts", kind, FORMATS, nearest(kind, FORMATS))


def values(frame: pd.DataFrame) -> Any:
    """Turn a table into a chart's data: numbers to six digits, missing ones as null (never as nan).

    A chart made of it must name every field's type.
    """
    rows = [{str(k): plain(v) for k, v in row.items()} for row in frame.to_dict(orient="records")]
    return alt.Data(values=rows)


def plain(value: Any) -> Any:
    """Turn one value of a table into what JSON can hold.

    >>> [plain(v) for v in (0.123456789, float("nan"), float("inf"), pd.NA, 3, "a")]
    [0.123457, None, None, None, 3, 'a']
    """
    if value is None or value is pd.NA or value is pd.NaT:
        return None
    if hasattr(value, "item"):
        value = value.item()
    if isinstance(value, float):
        return float(f"{value:.6g}") if math.isfinite(value) else None
    return value if isinstance(value, bool | int) else str(value)


def log_scale(*columns: pd.Series, margin: float = 1.25) -> Any:
    """Return a logarithmic scale that reaches a little beyond the values, not to the next power of ten."""
    low = min(float(c.min()) for c in columns)
    high = max(float(c.max()) for c in columns)
    return alt.Scale(type="log", domain=[low / margin, high * margin], nice=False)


def role_scales(variants: Sequence[str]) -> dict[str, Any]:
    """Return the scales `color`, `strokeDash` and `shape` for these roles or component sets, in this order."""
    styles = [style_of(v) for v in variants]
    return {
        "color": alt.Scale(domain=list(variants), range=[s.colour for s in styles]),
        "strokeDash": alt.Scale(domain=list(variants), range=[list(s.dash) or [1, 0] for s in styles]),
        "shape": alt.Scale(domain=list(variants), range=[s.shape for s in styles]),
    }


def thinned(frame: pd.DataFrame, limit: int = SHOWN_POINTS) -> pd.DataFrame:
    """Return at most `limit` rows, evenly spaced over the table, first and last among them."""
    if len(frame) <= limit:
        return frame
    positions = [round(i * (len(frame) - 1) / (limit - 1)) for i in range(limit)]
    return frame.iloc[positions]


def _sized(panel: Panel, *, width: int | str, titled: bool) -> Any:
    chart = panel.chart.properties(width=width, height=panel.height)
    return chart.properties(title=panel.title) if titled and panel.title else chart


def _spec(panel: Panel, *, width: int | str, titled: bool) -> Spec:
    chart = _sized(panel, width=width, titled=titled)
    spec: Spec = chart.to_dict(validate=False)  # checking against the schema takes most of the time; tests do it
    spec["autosize"] = {"type": "fit-x", "contains": "padding"}
    spec.pop("config", None)
    return spec


def _lines(text: str, *, longest: int = 95) -> list[str]:
    """Break a line for a title, which Vega does not wrap."""
    lines = [""]
    for word in text.split():
        if lines[-1] and len(lines[-1]) + 1 + len(word) > longest:
            lines.append("")
        lines[-1] = f"{lines[-1]} {word}".strip()
    return lines


def _render(spec: Mapping[str, Any], kind: str) -> bytes:
    """Draw a chart without a browser."""
    import vl_convert

    version = vega_lite_version()
    if kind == "svg":
        return str(vl_convert.vegalite_to_svg(dict(spec), vl_version=version)).encode()
    if kind == "png":
        return small_png(vl_convert.vegalite_to_png(dict(spec), vl_version=version, scale=2))
    return bytes(vl_convert.vegalite_to_pdf(dict(spec), vl_version=version))


def small_png(picture: bytes) -> bytes:
    """Return the same picture in about a quarter of the bytes: without transparency, better compressed."""
    written = io.BytesIO()
    with Image.open(io.BytesIO(picture)) as opened:
        opened.convert("RGB").save(written, "PNG", optimize=True)
    return written.getvalue()


def _page(figure: Figure) -> str:
    """Return a page of one figure."""
    from pliant.reporting.page import alone  # a page is made of figures

    return alone(figure)


def vega_lite_version() -> str:
    """Return the version of Vega-Lite that Altair writes, as `vl_convert` names it."""
    return ".".join(str(alt.SCHEMA_VERSION).lstrip("v").split(".")[:2])
