"""Surfaces in three dimensions, as a picture and turning as an animated GIF; needs matplotlib (the extra `plots`)."""

import io
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from pliant.errors import ConfigError, MissingExtraError
from pliant.reporting.charts.landscape import SCHEME, grid_of
from pliant.reporting.figure import small_png
from pliant.runs import write_atomically

FRAMES = 24
"""Pictures of one turn."""

SWING = 40.0
"""Degrees that the view swings to either side: all of a surface is seen, and none of it from behind."""


def save_surfaces(
    surfaces: Sequence[Mapping[str, Any]], kind: str, folder: Path, *, frames: int = FRAMES
) -> tuple[Path, ...]:
    """Write `landscape-<kind>-3d.png`, and, turning, `.gif`: all surfaces of one kind side by side, on one scale.

    Args:
        surfaces: as `Surface.plain` writes them.
        kind: "loss" or "rate".
        folder: is made if it is not there.
        frames: of the GIF; 0 writes none.

    Raises:
        MissingExtraError: matplotlib is not installed.
        ConfigError: no surface of that kind.
    """
    drawn = [s for s in surfaces if s["kind"] == kind]
    if not drawn:
        raise ConfigError(f"no surface of kind {kind!r} to draw.")
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError as error:
        raise MissingExtraError(
            "three-dimensional surfaces need matplotlib: pip install 'pliant[plots]'. The maps need nothing more."
        ) from error
    folder.mkdir(parents=True, exist_ok=True)
    figure = Figure(figsize=(3.6 * len(drawn), 3.7), dpi=80)
    canvas: Any = FigureCanvasAgg(figure)
    plots = _draw(figure, drawn, kind)
    path = folder / f"landscape-{kind}-3d.png"
    buffer = io.BytesIO()
    figure.savefig(buffer, dpi=160, format="png")
    write_atomically(path, small_png(buffer.getvalue()))
    if not frames:
        return (path,)
    pictures = []
    for angle in SWING * np.sin(np.linspace(0, 2 * np.pi, frames, endpoint=False)):
        for plot in plots:
            plot.view_init(elev=28, azim=-60 + angle)
        canvas.draw()
        pictures.append(Image.fromarray(np.asarray(canvas.buffer_rgba())[..., :3].copy()))
    moving = path.with_suffix(".gif")
    write_atomically(moving, _animated(pictures))
    return path, moving


def _draw(figure: Any, surfaces: Sequence[Mapping[str, Any]], kind: str) -> list[Any]:
    """Draw one plot for each surface; heights of losses are logarithms, labelled with the losses."""
    grids = [_filled(grid_of(s)) for s in surfaces]
    log = kind == "loss" and min(float(g.min()) for g in grids) > 0
    heights = [np.log10(g) if log else g for g in grids]
    low, high = min(float(h.min()) for h in heights), max(float(h.max()) for h in heights)
    plots = []
    for place, (surface, height) in enumerate(zip(surfaces, heights, strict=True), start=1):
        plot: Any = figure.add_subplot(1, len(surfaces), place, projection="3d")
        x, y = np.meshgrid(surface["x"], surface["y"])
        plot.plot_surface(
            x, y, height, cmap=SCHEME, vmin=low, vmax=high, rstride=1, cstride=1, linewidth=0.15, edgecolor="#00000040"
        )
        path = np.array(surface.get("path") or np.empty((0, 3)), dtype=np.float64).reshape(-1, 3)
        if len(path):
            line = np.log10(path[:, 2]) if log else path[:, 2]
            plot.plot(path[:, 0], path[:, 1], line + 0.01 * (high - low), color="#D55E00", linewidth=2, zorder=10)
        plot.set_zlim(low, high if high > low else low + 1)
        plot.set_title(str(surface["component"]), fontsize=11)
        _label(plot, kind, log=log)
        plots.append(plot)
    figure.subplots_adjust(left=0.0, right=0.94, bottom=0.04, top=0.95, wspace=0.12)
    return plots


def _label(plot: Any, kind: str, *, log: bool) -> None:
    ends = ("first direction", "second") if kind == "loss" else ("most sensitive", "random")
    plot.set_xlabel(ends[0], fontsize=8, labelpad=-6)
    plot.set_ylabel(ends[1], fontsize=8, labelpad=-6)
    plot.set_zlabel("log₁₀ loss" if log else kind if kind == "loss" else "rate of change", fontsize=8, labelpad=-4)
    plot.tick_params(labelsize=6, pad=-3)
    plot.view_init(elev=28, azim=-60)


def _filled(grid: np.ndarray) -> np.ndarray:
    """Fill missing points by the mean of their neighbours, for drawing only: a surface with a hole cannot be drawn."""
    filled = grid.copy()
    for row, column in np.argwhere(~np.isfinite(grid)):
        around = grid[max(row - 1, 0) : row + 2, max(column - 1, 0) : column + 2]
        known = around[np.isfinite(around)]
        filled[row, column] = known.mean() if known.size else np.nanmax(grid)
    return filled


def _animated(pictures: Sequence[Image.Image]) -> bytes:
    """Put pictures together to a GIF that repeats, in one palette."""
    palette = pictures[0].quantize(colors=64, method=Image.Quantize.MEDIANCUT)
    frames = [p.quantize(palette=palette, dither=Image.Dither.NONE) for p in pictures]
    buffer = io.BytesIO()
    frames[0].save(buffer, format="GIF", save_all=True, append_images=frames[1:], duration=90, loop=0, optimize=True)
    return buffer.getvalue()
