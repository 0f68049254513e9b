"""The chart of robustness: accuracy over learning rates and seeds."""

from collections.abc import Mapping, Sequence
from typing import Any

import altair as alt
import pandas as pd

from pliant.reporting.charts.accuracy import rows_height, shown_panels
from pliant.reporting.charts.components import need
from pliant.reporting.figure import Figure, Panel, role_scales, thinned, values

POOLED = "all data sets"
"""The panel in which accuracies are differences from full fine-tuning's on their data set."""


def robustness_boxes(cells: pd.DataFrame, order: Sequence[str]) -> pd.DataFrame:
    """Return every finished cell with the quartiles of its group: what the robustness chart draws.

    Args:
        cells: one row for each cell: columns panel, variant, optimizer, learning_rate, seed, value. `panel` is a data
            set, or `POOLED`, where `value` is the accuracy less full fine-tuning's on its data set.
        order: component sets from top to bottom.

    Returns:
        These columns, and low, q25, median, q75, high, n of panel, variant and optimiser.
    """
    columns = ["panel", "variant", "optimizer", "learning_rate", "seed", "value"]
    need(cells, tuple(columns), what="robustness")
    found = cells.loc[cells["value"].notna(), columns]
    need(found, tuple(columns), what="robustness")
    keys = ["panel", "variant", "optimizer"]
    grouped = found.groupby(keys, sort=False)["value"]
    quartiles = {"low": 0.0, "q25": 0.25, "median": 0.5, "q75": 0.75, "high": 1.0}
    boxes = pd.DataFrame({name: grouped.quantile(q) for name, q in quartiles.items()} | {"n": grouped.size()})
    place = {variant: i for i, variant in enumerate(order)}
    joined = found.merge(boxes.reset_index(), on=keys, how="left")
    joined["_place"] = joined["variant"].map(lambda v: place.get(v, len(place)))
    return joined.sort_values("_place", kind="stable").drop(columns="_place").reset_index(drop=True)


def draw_robustness(data: pd.DataFrame, full: Mapping[tuple[str, str], float]) -> Figure:
    """Draw boxes of test accuracy over learning rates and seeds, a panel for each data set and optimiser.

    Args:
        data: as `robustness_boxes` returns it.
        full: (panel, optimiser) to the accuracy of full fine-tuning at its chosen rate, drawn as a line.
    """
    several = data["optimizer"].nunique() > 1
    names, note = shown_panels(data, "panel")
    panels = []
    for name in names:
        of_panel = data[data["panel"] == name]
        reach = (float(of_panel["low"].min()), float(of_panel["high"].max()))
        for optimizer, part in of_panel.groupby("optimizer", sort=False):
            line = 0.0 if name == POOLED else full.get((name, str(optimizer)))
            chart = _boxes(part, line, pooled=name == POOLED, reach=reach)
            panels.append(Panel(f"{name}, {optimizer}" if several else name, chart, height=rows_height(part)))
    return Figure(
        "robustness",
        "Robustness over learning rates and seeds",
        "Each point is one run. A narrow box far to the right is good at whatever rate it is trained with. The dashed "
        "line is full fine-tuning at the rate that validation chose. Diverged runs have no point: see the warnings.",
        data,
        tuple(panels),
        note,
    )


def _boxes(part: pd.DataFrame, line: float | None, *, pooled: bool, reach: tuple[float, float]) -> Any:
    variants = list(part["variant"].drop_duplicates())
    low, high = (min(reach[0], line), max(reach[1], line)) if line is not None else reach
    scale = alt.Scale(zero=False, domain=[low, high], nice=True)
    title = "test accuracy − full fine-tuning's" if pooled else "test accuracy of every run"
    y = alt.Y("variant:N", sort=variants, title=None)
    colour = alt.Color("variant:N", scale=role_scales(variants)["color"], legend=None)
    boxes = alt.Chart(values(part.drop_duplicates("variant"))).encode(y=y, color=colour)
    x = alt.X("low:Q", scale=scale, title=title, axis=alt.Axis(format="+~%" if pooled else "~%", tickCount=6))
    tips = ["variant:N", *(alt.Tooltip(f"{c}:Q", format=".1%") for c in ("median", "low", "high")), "n:Q"]
    points = alt.Chart(values(thinned(part))).mark_point(filled=True, size=22, opacity=0.6)
    layers = [
        boxes.mark_rule().encode(x=x, x2="high:Q"),
        boxes.mark_bar(size=14, opacity=0.35).encode(x=alt.X("q25:Q", scale=scale), x2="q75:Q", tooltip=tips),
        boxes.mark_tick(thickness=3, size=16).encode(x=alt.X("median:Q", scale=scale), tooltip=tips),
        points.encode(
            x=alt.X("value:Q", scale=scale),
            y=y,
            color=colour,
            tooltip=["variant:N", "learning_rate:Q", "seed:Q", alt.Tooltip("value:Q", format=".2%")],
        ),
    ]
    if line is not None:
        data = alt.Data(values=[{"full": line}])
        rule = alt.Chart(data).mark_rule(style="reference", strokeDash=[4, 4], strokeWidth=1.5)
        layers.insert(0, rule.encode(x=alt.X("full:Q", scale=scale)))
    return alt.layer(*layers)
