"""Charts of accuracy against something else: what training costs, and what a criterion said before it."""

from collections.abc import Mapping
from typing import Any

import altair as alt
import numpy as np
import pandas as pd

from pliant.reporting.charts.accuracy import ACCURACY_AXIS, shown_panels
from pliant.reporting.charts.components import need
from pliant.reporting.figure import Figure, Panel, log_scale, role_scales, values

COSTS = {
    "parameters": "trained parameters (log scale)",
    "memory": "peak memory, MB (log scale)",
    "seconds": "time of a run, s (log scale)",
}
"""What training costs, and the axis that says so."""


def accuracy_and_cost(frame: pd.DataFrame) -> pd.DataFrame:
    """Return what the cost chart draws, long: one row for each component set and kind of cost.

    Args:
        frame: one row for each component set: columns variant, mean (accuracy), and of `COSTS` those that are known.

    Returns:
        Columns cost, variant, value, mean, pareto: no other set is as accurate and as cheap, and better in one of the
        two.
    """
    need(frame, ("variant", "mean"), what="accuracy and cost")
    parts = []
    for cost in COSTS:
        if cost in frame.columns:
            rows = frame.loc[frame["mean"].notna() & frame[cost].notna() & (frame[cost] > 0), ["variant", "mean", cost]]
            known = rows.rename(columns={cost: "value"}).astype({"value": "float64"}).assign(cost=cost)
            parts.append(known.assign(pareto=[_on_front(known, i) for i in range(len(known))]))
    joined = pd.concat(parts, ignore_index=True) if parts else pd.DataFrame(columns=["cost", "variant", "value"])
    need(joined, ("cost", "variant", "value"), what="accuracy and cost")
    return joined[["cost", "variant", "value", "mean", "pareto"]]


def _on_front(rows: pd.DataFrame, i: int) -> bool:
    value, mean = rows["value"].iloc[i], rows["mean"].iloc[i]
    better = ((rows["value"] < value) & (rows["mean"] >= mean)) | ((rows["value"] <= value) & (rows["mean"] > mean))
    return not bool(better.any())


def draw_cost(data: pd.DataFrame, *, over: str) -> Figure:
    """Draw accuracy against each cost; sets on the Pareto front are filled and joined.

    Args:
        data: as `accuracy_and_cost` returns it.
        over: what the accuracies are means of, for the axis ("digits", "11 data sets").
    """
    panels = []
    for cost in [c for c in COSTS if c in set(data["cost"])]:
        part = data[data["cost"] == cost].sort_values("value")
        variants = list(part["variant"])
        looks = role_scales(variants)
        scale = log_scale(part["value"], margin=1.5)
        encoded = alt.Chart(values(part)).encode(
            x=alt.X("value:Q", scale=scale, title=COSTS[cost], axis=alt.Axis(tickCount=4, format="~s")),
            y=alt.Y(
                "mean:Q",
                scale=alt.Scale(zero=False, padding=14),
                title=f"test accuracy, {over}",
                axis=alt.Axis(format="%"),
            ),
        )
        front = alt.Chart(values(part[part["pareto"]])).mark_line(
            style="reference", strokeDash=[3, 3], interpolate="step-after", opacity=0.6
        )
        tips = ["variant:N", alt.Tooltip("mean:Q", format=".2%"), alt.Tooltip("value:Q", format=",.4~g"), "pareto:N"]
        points = [
            encoded.properties(data=values(rows))
            .mark_point(size=80, strokeWidth=2, opacity=1, filled=filled)
            .encode(
                color=alt.Color("variant:N", scale=looks["color"], legend=None),
                shape=alt.Shape("variant:N", scale=looks["shape"], legend=None),
                tooltip=tips,
            )
            for filled, rows in ((True, part[part["pareto"]]), (False, part[~part["pareto"]]))
            if len(rows)
        ]
        steps = front.encode(x=alt.X("value:Q", scale=scale), y="mean:Q")
        chart = alt.layer(steps, *points, *labels(encoded, part, x="value", y="mean"))
        panels.append(Panel(COSTS[cost].split(" (")[0].split(",")[0], chart, height=260))
    return Figure(
        "cost",
        "Accuracy against what it costs",
        "Up and to the left is better. Filled points joined by the dashed line are the Pareto front: no other set is "
        "both as cheap and as accurate.",
        data,
        tuple(panels),
        columns=3,
    )


def labels(encoded: Any, part: pd.DataFrame, *, x: str, y: str) -> tuple[Any, ...]:
    """Names beside points: above, or below where another point is close above."""
    log = np.log(part[x].to_numpy(dtype=np.float64)) if part[x].min() > 0 else part[x].to_numpy(dtype=np.float64)
    across, up = (v / max(float(np.ptp(v)), 1e-12) for v in (log, part[y].to_numpy(dtype=np.float64)))
    close = [(abs(across - across[i]) < 0.16) & (up > up[i]) & (up - up[i] < 0.14) for i in range(len(part))]
    sides = ((14, part.loc[[bool(c.any()) for c in close]]), (-12, part.loc[[not c.any() for c in close]]))
    return tuple(
        encoded.properties(data=values(rows)).mark_text(style="note", dy=shift).encode(text="variant:N")
        for shift, rows in sides
        if len(rows)
    )


def criterion_and_outcome(scores: pd.DataFrame, criterion: Mapping[str, float]) -> pd.DataFrame:
    """Return a row for each data set and component with both: columns data, variant, criterion, accuracy.

    Args:
        scores: data sets x component sets, accuracies.
        criterion: value by component set; sets without one are left out.
    """
    shared = [str(c) for c in scores.columns if str(c) in criterion]
    rows = [
        {"data": str(name), "variant": v, "criterion": criterion[v], "accuracy": float(scores.loc[name, v])}
        for name in scores.index
        for v in shared
        if pd.notna(scores.loc[name, v])
    ]
    found = pd.DataFrame(rows, columns=["data", "variant", "criterion", "accuracy"])
    need(found, ("data", "variant", "criterion", "accuracy"), what="criterion and outcome")
    return found


def draw_criterion(data: pd.DataFrame, *, name: str) -> Figure:
    """Draw accuracy against a criterion's values, a panel for each data set."""
    names, note = shown_panels(data, "data")
    panels = []
    for data_set in names:
        part = data[data["data"] == data_set]
        variants = list(part["variant"])
        looks = role_scales(variants)
        scale = log_scale(part["criterion"]) if part["criterion"].min() > 0 else alt.Scale(padding=14)
        encoded = alt.Chart(values(part)).encode(
            x=alt.X("criterion:Q", scale=scale, title=name, axis=alt.Axis(tickCount=5)),
            y=alt.Y(
                "accuracy:Q", scale=alt.Scale(zero=False, padding=14), title=ACCURACY_AXIS, axis=alt.Axis(format="%")
            ),
        )
        points = encoded.mark_point(filled=True, size=85, opacity=1).encode(
            color=alt.Color("variant:N", scale=looks["color"], legend=None),
            shape=alt.Shape("variant:N", scale=looks["shape"], legend=None),
            tooltip=["variant:N", alt.Tooltip("criterion:Q", format=".4g"), alt.Tooltip("accuracy:Q", format=".2%")],
        )
        chart = alt.layer(points, *labels(encoded, part, x="criterion", y="accuracy"))
        panels.append(Panel(data_set, chart, height=240))
    return Figure(
        "criterion",
        f"{name.split(':')[0].capitalize()} against accuracy",
        "If it did, points would rise from left to right. The table of rank correlations says how often chance alone "
        "does as well.",
        data,
        tuple(panels),
        note,
    )
