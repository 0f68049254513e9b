"""One look for every role and component set: colour, dash and shape, the same in all charts and on both backgrounds.

Colours of roles are Okabe and Ito's, which people with any of the common colour deficiencies tell apart; dashes (norms)
and shapes say the same again for whoever sees none of them.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from pliant.terms import ROLES

BAR = "M-1,-0.22H1V0.22H-1Z"
"""A flat bar as the shape of a point, an SVG path."""


@dataclass(frozen=True)
class Style:
    """How a role or component set is drawn: colour, dash of its lines ([] is solid), shape of its points."""

    colour: str
    dash: tuple[int, ...] = ()
    shape: str = "circle"


STYLES: dict[str, Style] = {
    "mha": Style("#0072B2", (), "circle"),
    "fc1": Style("#D55E00", (), "square"),
    "fc2": Style("#E69F00", (), "diamond"),
    "ln1": Style("#009E73", (5, 3), "triangle-up"),
    "ln2": Style("#56B4E9", (5, 3), "triangle-down"),
    "full": Style("#767676", (), "cross"),
    "emb": Style("#CC79A7", (), "triangle-right"),
    "head": Style("#8C6D31", (2, 2), "triangle-left"),
    "lora": Style("#8F5FD0", (8, 3), BAR),
    "norms": Style("#2A9D9D", (5, 3), "triangle-up"),
    "bitfit": Style("#8A8F1F", (2, 2), "triangle-left"),
    "layerscale": Style("#B07AA1", (2, 2), "circle"),
    "final_norm": Style("#4E9A6B", (2, 2), "circle"),
    "other": Style("#9C8477", (2, 2), "circle"),
}
"""Every role, and every other word that `CellConfig.variant` may start with."""

SEVERAL = Style("#A65628", (6, 2, 2, 2), "diamond")
"""Sets of several roles, such as `mha+fc1`."""


def style_of(variant: str) -> Style:
    """Return the style of a role or component set.

    >>> style_of("mha").colour, style_of("lora-r16-q+v") is STYLES["lora"], style_of("mha+fc1") is SEVERAL
    ('#0072B2', True, True)
    """
    return STYLES.get(variant) or (STYLES["lora"] if variant.startswith("lora-") else SEVERAL)


def in_order(variants: Iterable[str], plasticity: Mapping[str, float] | None = None) -> list[str]:
    """Order component sets: full, then measured roles from the most plastic down, then the rest in canonical order.

    >>> in_order(["ln1", "lora-r16-q+v", "full", "mha"], {"ln1": 0.5, "mha": 0.7})
    ['full', 'mha', 'ln1', 'lora-r16-q+v']
    """
    known = ["full", *ROLES, "norms", "bitfit"]
    measured = plasticity or {}

    def place(variant: str) -> tuple[int, float, int, str]:
        canonical = known.index(variant) if variant in known else len(known)
        if variant == "full":
            return (0, 0.0, 0, "")
        if variant in measured:
            return (1, -measured[variant], canonical, variant)
        return (2, 0.0, canonical, variant)

    return sorted(dict.fromkeys(variants), key=place)


@dataclass(frozen=True)
class Ink:
    """Colours of everything that is no data: background, text, lines of the grid, lines of reference."""

    background: str
    text: str
    faint: str
    grid: str
    reference: str


LIGHT = Ink("#ffffff", "#1d2129", "#5a6270", "#e4e7ec", "#3b4250")
DARK = Ink("#15181e", "#e8eaee", "#a4adbb", "#2d333d", "#c3cad6")


def theme(ink: Ink, *, transparent: bool = False) -> dict[str, Any]:
    """Return the Vega-Lite configuration that draws in this ink.

    Marks of no role take a named style: `reference` (lines to compare with), `note` (text in the chart), `quiet` (what
    is behind the data).
    """
    return {
        "background": "transparent" if transparent else ink.background,
        "font": FONT,
        "view": {"stroke": "transparent"},
        "axis": {
            "labelColor": ink.faint,
            "titleColor": ink.text,
            "titleFontWeight": "normal",
            "titleFontSize": 12,
            "labelFontSize": 11,
            "gridColor": ink.grid,
            "domainColor": ink.faint,
            "tickColor": ink.faint,
            "labelLimit": 160,
        },
        "legend": {
            "labelColor": ink.text,
            "titleColor": ink.text,
            "titleFontWeight": "normal",
            "labelFontSize": 11,
            "labelLimit": 200,
            "symbolLimit": 40,
            "symbolOpacity": 1,
            "symbolStrokeWidth": 0,
            "orient": "bottom",
            "columns": 4,
        },
        "title": {"color": ink.text, "subtitleColor": ink.faint, "fontSize": 13, "anchor": "start"},
        "style": {
            "reference": {"stroke": ink.reference, "color": ink.reference},
            "note": {"fill": ink.faint, "color": ink.faint, "fontSize": 11},
            "strong": {"fill": ink.text, "color": ink.text, "fontSize": 12},
            "quiet": {"stroke": ink.grid, "fill": ink.grid, "color": ink.grid},
        },
    }


FONT = "system-ui, -apple-system, 'Segoe UI', Roboto, 'Liberation Sans', Helvetica, Arial, sans-serif"
