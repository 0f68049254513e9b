import json

import numpy as np
import pytest
from PIL import Image

from pliant.errors import ConfigError, MissingExtraError
from pliant.landscapes.surface import Surface, axis
from pliant.reporting.charts import contour_lines, draw_landscape, map_cells
from pliant.reporting.maps import write_maps
from pliant.reporting.surfaces import save_surfaces


def bowl(component: str = "mha", *, kind: str = "loss", points: int = 11) -> dict:
    """x² + 4 y² + 0.1 with a path down to its bottom."""
    x = y = axis(-1.0, 1.0, points)
    columns, rows = np.meshgrid(x, y)
    grid = columns**2 + 4 * rows**2 + 0.1
    path = tuple((0.8 * (1 - t), 0.5 * (1 - t), (0.8**2 + 4 * 0.25) * (1 - t) ** 2 + 0.1) for t in np.linspace(0, 1, 5))
    if kind == "rate":
        grid[points // 2, points // 2] = np.nan
        path = ()
    about = {"directions": "pca", "shares": [0.9, 0.05]} if kind == "loss" else {}
    return Surface(kind, component, x, y, grid, path, about).plain()


def test_contours_of_a_bowl_lie_on_its_ellipses():
    surface = bowl(points=81)
    lines = contour_lines(surface["x"], surface["y"], np.array(surface["values"]), [0.35, 0.6])
    for level, part in lines.groupby("level"):
        for x, y in ((part["x"], part["y"]), (part["x2"], part["y2"])):
            assert np.abs(x**2 + 4 * y**2 + 0.1 - level).max() < 2e-3
        ends = np.round(np.concatenate([part[["x", "y"]].to_numpy(), part[["x2", "y2"]].to_numpy()]), 9)
        _, counts = np.unique(ends, axis=0, return_counts=True)
        assert (counts % 2 == 0).all(), "a closed line: every end is met by another"


@pytest.mark.parametrize(("grid", "joined"), [([[1, 0], [0, 1]], 0.4), ([[1, 0], [0, 1]], 0.6)])
def test_saddles_are_joined_through_the_mean(grid, joined):
    lines = contour_lines([0, 1], [0, 1], np.array(grid, dtype=float), [joined])
    assert len(lines) == 2
    around_the_first_corner = lines[(lines[["x", "y", "x2", "y2"]] <= 0.6 + 1e-9).all(axis=1)]
    assert len(around_the_first_corner) == (1 if joined > 0.5 else 0)


def test_contours_leave_out_squares_with_a_missing_corner():
    grid = np.array(bowl()["values"], dtype=float)
    grid[5, 5] = np.nan
    lines = contour_lines(bowl()["x"], bowl()["y"], grid, [0.11])
    assert lines.empty


def test_cells_touch_and_leave_out_what_is_missing():
    cells = map_cells(bowl(kind="rate"))
    assert len(cells) == 120
    assert (cells["right"] - cells["left"]).to_numpy() == pytest.approx(0.2)
    broken = bowl() | {"x": [0.0, 1.0]}
    with pytest.raises(ConfigError, match="a map of mha needs a grid of numbers"):
        map_cells(broken)
    with pytest.raises(ConfigError, match="needs a grid of numbers"):
        map_cells(bowl() | {"values": [[None] * 11] * 11})


@pytest.mark.parametrize("kind", ["loss", "rate"])
def test_maps_share_one_colour_scale(kind):
    surfaces = [bowl(c, kind=kind) for c in ("ln1", "fc1", "mha")]
    surfaces[2]["values"] = [[None if v is None else 10 * v for v in row] for row in surfaces[2]["values"]]
    figure = draw_landscape([*surfaces, bowl(kind="rate" if kind == "loss" else "loss")], kind)
    assert [p.title for p in figure.panels] == ["ln1", "fc1", "mha"]
    figure.chart().to_dict(validate=True)
    domains = set()
    for spec in figure.specs():
        json.dumps(spec, allow_nan=False)
        (colour,) = [layer["encoding"]["color"] for layer in spec["layer"] if "color" in layer.get("encoding", {})]
        domains.add(tuple(colour["scale"]["domain"]))
        assert colour["scale"]["type"] == ("log" if kind == "loss" else "linear")
    assert len(domains) == 1
    with pytest.raises(ConfigError, match="no surface of kind"):
        draw_landscape([], kind)


def test_files_and_page(tmp_path, monkeypatch):
    monkeypatch.setattr("pliant.reporting.page.bundle", lambda: "")
    path = tmp_path / "landscape-pca.json"
    surfaces = [bowl(), bowl(kind="rate")]
    path.write_text(json.dumps({"provenance": {"model": "bundled", "data": "digits"}, "surfaces": surfaces}))
    told = []
    written = write_maps(path, progress=lambda *step: told.append(step))
    assert [p.name for p in written] == [
        "landscape-loss.svg", "landscape-loss.png", "landscape-rate.svg", "landscape-rate.png", "report.html",
    ]  # fmt: skip
    assert "Loss around the checkpoint" in written[-1].read_text()
    assert "bundled on ? images of digits" in written[-1].read_text()
    assert told[-1][1] == 3


def test_three_dimensions(tmp_path):
    pytest.importorskip("matplotlib", reason="needs matplotlib (the extra `plots`)")
    surfaces = [bowl("ln1"), bowl("mha"), bowl("block03.mha", kind="rate")]
    still, moving = save_surfaces(surfaces, "loss", tmp_path, frames=4)
    with Image.open(still) as picture:
        assert picture.width > picture.height
    with Image.open(moving) as picture:
        assert picture.n_frames == 4
    (alone,) = save_surfaces(surfaces, "rate", tmp_path, frames=0)
    assert alone.name == "landscape-rate-3d.png"
    with pytest.raises(ConfigError, match="no surface of kind"):
        save_surfaces(surfaces[:2], "rate", tmp_path)


def test_without_matplotlib_the_message_says_how_to_get_it(tmp_path, monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "matplotlib.figure", None)
    with pytest.raises(MissingExtraError, match=r"pip install 'pliant\[plots\]'"):
        save_surfaces([bowl()], "loss", tmp_path)
