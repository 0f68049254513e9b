"""The files of a landscape: maps as SVG and PNG, the page, and surfaces in three dimensions where asked for."""

import json
from collections.abc import Callable
from pathlib import Path

from pliant.errors import ConfigError
from pliant.reporting.charts import draw_landscape
from pliant.reporting.report import report
from pliant.reporting.surfaces import save_surfaces


def write_maps(
    path: Path, *, surfaces: bool = False, progress: Callable[[int, int], None] | None = None
) -> tuple[Path, ...]:
    """Draw a landscape that was saved: files beside it, and the report of its folder.

    Args:
        path: what `Landscape.save` wrote.
        surfaces: also in three dimensions, as PNG and animated GIF.
        progress: called with parts drawn and parts in all.

    Raises:
        MissingExtraError: surfaces were asked for, and matplotlib is not installed.
    """
    found = json.loads(path.read_bytes())["surfaces"]
    kinds = [kind for kind in ("loss", "rate") if any(s["kind"] == kind for s in found)]
    if not kinds:
        raise ConfigError(f"{path} holds no surface.")
    parts = len(kinds) * (2 if surfaces else 1) + 1
    written: list[Path] = []

    def told() -> None:
        if progress is not None:
            progress(min(parts, len(written)), parts)

    if surfaces:
        for kind in kinds:
            written += save_surfaces(found, kind, path.parent)
            told()
    for kind in kinds:
        written += draw_landscape(found, kind).save(path.parent, ("svg", "png"))
        told()
    return (*written, report(path.parent))
