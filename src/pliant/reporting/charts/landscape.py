"""Maps of surfaces: the loss over two directions of weights, the rate of change over two directions of the input."""

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import altair as alt
import numpy as np
import pandas as pd
from jaxtyping import Float

from pliant.errors import ConfigError
from pliant.reporting.figure import Figure, Panel, values

LEVELS = 9
"""Contour lines of one map."""

SCHEME = "viridis"


def grid_of(surface: Mapping[str, Any]) -> Float[np.ndarray, "rows columns"]:
    """Return a surface's values; nan where there is none."""
    return np.array([[math.nan if v is None else float(v) for v in row] for row in surface["values"]], dtype=np.float64)


def map_cells(surface: Mapping[str, Any]) -> pd.DataFrame:
    """Return one row for each cell of a map: columns left, right, low, high (its edges), x, y, value.

    Args:
        surface: kind, component, x, y, values, path, about, as `Surface.plain` writes them.

    Raises:
        ConfigError: the grid does not fit its axes, or holds no number.
    """
    grid = grid_of(surface)
    x, y = (np.asarray(surface[name], dtype=np.float64) for name in ("x", "y"))
    if grid.shape != (len(y), len(x)) or min(grid.shape) < 2 or not np.isfinite(grid).any():
        raise ConfigError(f"a map of {surface.get('component')} needs a grid of numbers, got shape {grid.shape}.")
    half = ((x[1] - x[0]) / 2, (y[1] - y[0]) / 2)
    columns, rows = np.meshgrid(x, y)
    cells = pd.DataFrame({"x": columns.ravel(), "y": rows.ravel(), "value": grid.ravel()})
    ends = {"left": cells["x"] - half[0], "right": cells["x"] + half[0], "low": cells["y"] - half[1]}
    return cells.assign(**ends, high=cells["y"] + half[1]).dropna(subset="value").reset_index(drop=True)


def contour_lines(
    x: Sequence[float], y: Sequence[float], grid: Float[np.ndarray, "rows columns"], levels: Sequence[float]
) -> pd.DataFrame:
    """Return the lines along which a surface has given values: columns level, x, y, x2, y2, a row for each stretch.

    Marching squares: in every square of four neighbouring points, the line crosses the sides whose ends lie on
    different sides of the level, at the linear interpolation. Of the two ways to join four crossings the mean of the
    four points decides. Squares with a missing value are left out.
    """
    rows = [
        {"level": level, "x": a[0], "y": a[1], "x2": b[0], "y2": b[1]}
        for level in levels
        for i in range(len(y) - 1)
        for j in range(len(x) - 1)
        for a, b in _crossings((x[j], x[j + 1]), (y[i], y[i + 1]), grid[i : i + 2, j : j + 2], level)
    ]
    return pd.DataFrame(rows, columns=["level", "x", "y", "x2", "y2"])


Point = tuple[float, float]


def _crossings(
    x: tuple[float, float], y: tuple[float, float], square: Float[np.ndarray, "2 2"], level: float
) -> Iterator[tuple[Point, Point]]:
    """Yield the stretches of one contour line within one square."""
    around = ((0, 0), (0, 1), (1, 1), (1, 0))  # corners as (row, column), in a circle
    corners = [float(square[c]) for c in around]
    if not all(map(math.isfinite, corners)):
        return
    crossed = []
    for k in range(4):
        here, there = corners[k], corners[(k + 1) % 4]
        if (here >= level) != (there >= level):
            share = (level - here) / (there - here)
            (r0, c0), (r1, c1) = around[k], around[(k + 1) % 4]
            crossed.append((x[c0] + share * (x[c1] - x[c0]), y[r0] + share * (y[r1] - y[r0])))
    if len(crossed) == 2:
        yield crossed[0], crossed[1]
    elif len(crossed) == 4:  # a saddle: which corners belong together
        joined = (sum(corners) / 4 >= level) == (corners[0] >= level)
        first, second = ((0, 1), (2, 3)) if joined else ((3, 0), (1, 2))
        yield crossed[first[0]], crossed[first[1]]
        yield crossed[second[0]], crossed[second[1]]


def draw_landscape(surfaces: Sequence[Mapping[str, Any]], kind: str) -> Figure:
    """Draw the surfaces of one kind side by side, with contours and, for losses, the path; one colour scale for all.

    Args:
        surfaces: as `Surface.plain` writes them; those of another kind are left out.
        kind: "loss" or "rate".

    Raises:
        ConfigError: none of that kind.
    """
    drawn = [s for s in surfaces if s["kind"] == kind]
    if not drawn:
        raise ConfigError(f"no surface of kind {kind!r} to draw.")
    cells = [map_cells(s) for s in drawn]
    low = min(float(c["value"].min()) for c in cells)
    high = max(float(c["value"].max()) for c in cells)
    log = kind == "loss" and low > 0
    levels = (np.geomspace if log else np.linspace)(low, high, LEVELS + 2)[1:-1].tolist() if high > low else []
    title = "loss (log scale)" if log else "loss" if kind == "loss" else "rate of change"
    colour = alt.Color(
        "value:Q",
        scale=alt.Scale(scheme=SCHEME, type="log" if log else "linear", domain=[low, high]),
        legend=alt.Legend(title=title, gradientLength=180, format=".2~g"),
    )
    panels = tuple(
        Panel(str(s["component"]), _map(s, c, colour, levels), height=280) for s, c in zip(drawn, cells, strict=True)
    )
    data = pd.concat([c.assign(component=s["component"]) for s, c in zip(drawn, cells, strict=True)], ignore_index=True)
    shown = _LOSS if kind == "loss" else _RATE
    return Figure(f"landscape-{kind}", shown[0], shown[1], data, panels, columns=3)


_LOSS = (
    "Loss around the checkpoint",
    "Each map varies the weights of one component set only, the rest is the checkpoint with its probed classifier. The "
    "line is gradient descent from the checkpoint (ring), equal steps and rate for all; colours mean the same in all.",
)
_RATE = (
    "Rate of change around an input",
    "How much the component changes per change of its input, for changes along its most sensitive direction (across) "
    "and a random one at right angles (up), in units of the input's norm. Colours mean the same in all maps.",
)


def _map(surface: Mapping[str, Any], cells: pd.DataFrame, colour: Any, levels: Sequence[float]) -> Any:
    titles = axis_titles(surface)
    scales = [
        alt.Scale(domain=[float(cells[a].min()), float(cells[b].max())], nice=False, zero=False)
        for a, b in (("left", "right"), ("low", "high"))
    ]
    x = alt.X("left:Q", scale=scales[0], title=titles[0], axis=alt.Axis(grid=False, tickCount=5))
    y = alt.Y("low:Q", scale=scales[1], title=titles[1], axis=alt.Axis(grid=False, tickCount=5))
    tips = [alt.Tooltip(f"{name}:Q", format=".4g") for name in ("x", "y", "value")]
    wider = 0.04 * (cells["right"] - cells["left"])  # cells overlap a little, else the background shows between them
    taller = 0.04 * (cells["high"] - cells["low"])
    drawn = cells.assign(right=cells["right"] + wider, high=cells["high"] + taller)
    layers = [
        alt.Chart(values(drawn))
        .mark_rect(clip=True)
        .encode(x=x, x2="right:Q", y=y, y2="high:Q", color=colour, tooltip=tips)
    ]
    at = {"x": alt.X("x:Q", scale=scales[0]), "y": alt.Y("y:Q", scale=scales[1])}
    lines = contour_lines(surface["x"], surface["y"], grid_of(surface), levels)
    if len(lines):
        contours = alt.Chart(values(lines)).mark_rule(color="white", opacity=0.55, strokeWidth=0.9)
        layers.append(contours.encode(**at, x2="x2:Q", y2="y2:Q"))
    path = pd.DataFrame(surface.get("path") or [], columns=["x", "y", "loss"]).assign(step=lambda d: range(len(d)))
    if len(path):
        tips = ["step:Q", alt.Tooltip("loss:Q", format=".4g")]
        way = alt.Chart(values(path)).encode(**at, order="step:Q", tooltip=tips)
        layers += [
            way.mark_line(color="black", strokeWidth=4, opacity=0.5),
            way.mark_line(color="white", strokeWidth=2),
            way.mark_point(filled=True, color="white", size=14, opacity=1),
        ]
        start = alt.Chart(values(path.iloc[:1])).mark_point(color="white", size=130, strokeWidth=2.5, opacity=1)
        layers.append(start.encode(**at))
    return alt.layer(*layers)


def axis_titles(surface: Mapping[str, Any]) -> tuple[str, str]:
    """Return what the axes of a surface say."""
    about = surface.get("about") or {}
    if surface["kind"] == "rate":
        return "most sensitive direction, share of the input's norm", "random direction, share of the input's norm"
    if about.get("directions") == "pca":
        shares = [f" ({share:.1%} of the path)" for share in about.get("shares", [])] + ["", ""]
        return f"first principal direction{shares[0]}", f"second{shares[1]}"
    return "first random direction, in lengths of the filters", "second random direction"
