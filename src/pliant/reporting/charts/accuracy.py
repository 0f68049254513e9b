"""Charts of what training led to: accuracy, gain over the probe, robustness, cost, and orders held to outcomes."""

from collections.abc import Mapping, Sequence
from typing import Any

import altair as alt
import numpy as np
import pandas as pd

from pliant.reporting.charts.components import need
from pliant.reporting.figure import Figure, Panel, log_scale, role_scales, thinned, values

SHOWN_PANELS = 12
"""Data sets with a panel of their own; further ones are in the tables."""

ACCURACY_AXIS = "test accuracy"

POOLED = "all data sets"
"""The panel in which accuracies are differences from full fine-tuning's on their data set."""


def shown_panels(data: pd.DataFrame, column: str) -> tuple[list[str], str]:
    """Return the values that get a panel, and a note on those that get none."""
    names = [str(name) for name in data[column].drop_duplicates()]
    left = len(names) - SHOWN_PANELS
    note = f"{left} more panels are left out ({', '.join(names[SHOWN_PANELS:][:5])}, ...); see the tables."
    return names[:SHOWN_PANELS], note if left > 0 else ""


def accuracy_by_set(choices: pd.DataFrame, order: Sequence[str]) -> pd.DataFrame:
    """Return what the accuracy chart draws, in the order of rows that it is drawn in.

    Args:
        choices: one row for each data set and component set at its chosen learning rate: columns panel, variant, mean,
            low, high, interval (what low and high are), n (seeds).
        order: component sets from top to bottom.

    Returns:
        These columns; without accuracy a row is left out.
    """
    columns = ["panel", "variant", "mean", "low", "high", "interval", "n"]
    need(choices, tuple(columns), what="accuracy by component set")
    found = choices.loc[choices["mean"].notna(), columns]
    need(found, tuple(columns), what="accuracy by component set")
    place = {variant: i for i, variant in enumerate(order)}
    ranked = found.assign(_place=found["variant"].map(lambda v: place.get(v, len(place))))
    return ranked.sort_values("_place", kind="stable").drop(columns="_place").reset_index(drop=True)


def draw_accuracy(data: pd.DataFrame, probes: Mapping[str, tuple[float, float, float]]) -> Figure:
    """Draw accuracies as points with intervals, a panel for each data set; the probe (value, low, high) is a line."""
    names, note = shown_panels(data, "panel")
    panels = []
    for name in names:
        part = data[data["panel"] == name]
        interval = " or ".join(dict.fromkeys(part["interval"].astype(str)))
        low, high = zoom(part, probes.get(name))
        scale = alt.Scale(domain=[low, high], nice=False, zero=False)
        chart = dots(part, title=f"{ACCURACY_AXIS} (bar: {interval})", scale=scale)
        if name in probes:
            chart = alt.layer(*probe_line(probes[name], scale=scale, low=low), chart)
        panels.append(Panel(name, chart, height=rows_height(part)))
    absent = [name for name in names if name not in probes]
    if absent and probes:
        note = f"No linear probe for {', '.join(absent)}. {note}".strip()
    return Figure(
        "accuracy",
        "Accuracy by component set",
        "Rows go from the most plastic role down (full fine-tuning first, where it was run). The axis is zoomed, so "
        "compare points with their bars; the dashed line with its band is the linear probe.",
        data,
        tuple(panels),
        note,
    )


def rows_height(part: pd.DataFrame) -> int:
    """Pixels that a chart with a row for each component set needs."""
    return 28 * part["variant"].nunique() + 24


def zoom(part: pd.DataFrame, probe: tuple[float, float, float] | None) -> tuple[float, float]:
    """Return the ends of an accuracy axis: all intervals with a margin, and the probe if it is not far off."""
    low, high = float(part["low"].min()), float(part["high"].max())
    reach = max(high - low, 0.004)
    if probe is not None and low - 1.5 * reach <= probe[0] <= high + reach:
        low, high = min(low, probe[1]), max(high, probe[2])
    return max(0.0, low - 0.07 * reach), min(1.0, high + 0.07 * reach)


def dots(part: pd.DataFrame, *, title: str, scale: Any) -> Any:
    """Points with intervals, a row for each component set in its colour and shape."""
    variants = list(part["variant"].drop_duplicates())
    looks = role_scales(variants)
    axis = alt.Axis(format="~%", tickCount=5)
    form = ".2%"
    base = alt.Chart(values(part)).encode(
        y=alt.Y("variant:N", sort=variants, title=None),
        color=alt.Color("variant:N", scale=looks["color"], legend=None),
    )
    tips = ["variant:N", *(alt.Tooltip(f"{c}:Q", format=form) for c in ("mean", "low", "high")), "interval:N", "n:Q"]
    x = alt.X("mean:Q", scale=scale, title=title, axis=axis)
    return alt.layer(
        base.mark_rule(strokeWidth=2).encode(x=alt.X("low:Q", scale=scale, title=title), x2="high:Q"),
        base.mark_point(filled=True, size=75, opacity=1).encode(
            x=x, shape=alt.Shape("variant:N", scale=looks["shape"], legend=None), tooltip=tips
        ),
    )


def probe_line(probe: tuple[float, float, float], *, scale: Any, low: float) -> tuple[Any, ...]:
    """The linear probe: a dashed line, and its interval as a band; a word where it lies left of the axis."""
    row = alt.Data(values=[{"probe": probe[0], "low": probe[1], "high": probe[2]}])
    x = alt.X("probe:Q", scale=scale)
    if probe[0] < low:
        word = alt.Data(values=[{"at": low, "text": f"← linear probe {probe[0]:.1%}"}])
        text = alt.Chart(word).mark_text(style="note", align="left", baseline="bottom", dx=3, dy=-2)
        return (text.encode(x=alt.X("at:Q", scale=scale), y=alt.value("height"), text="text:N"),)
    tip = [alt.Tooltip("probe:Q", title="linear probe", format=".2%")]
    return (
        alt.Chart(row).mark_rect(style="quiet", opacity=0.5).encode(x=alt.X("low:Q", scale=scale), x2="high:Q"),
        alt.Chart(row).mark_rule(style="reference", strokeDash=[4, 4], strokeWidth=1.5).encode(x=x, tooltip=tip),
    )


def gain_by_set(accuracy: pd.DataFrame, probes: Mapping[str, tuple[float, float, float]]) -> pd.DataFrame:
    """Return relative gains over the probe, (accuracy - probe) / probe; data sets without a probe are left out.

    Args:
        accuracy: as `accuracy_by_set` returns it.
        probes: accuracy, low, high of the linear probe of each panel.

    Returns:
        Columns panel, variant, gain, low, high: the accuracy's interval in units of the probe's accuracy (the probe
        counts as exact).
    """
    found = accuracy[accuracy["panel"].isin([name for name, (value, *_) in probes.items() if value > 0])]
    need(found, ("panel", "variant", "mean"), what="gain over the linear probe")
    line = found["panel"].map(lambda name: probes[name][0])
    scaled = {to: (found[name] - line) / line for to, name in (("gain", "mean"), ("low", "low"), ("high", "high"))}
    return found[["panel", "variant"]].assign(**scaled).reset_index(drop=True)


def draw_gain(data: pd.DataFrame) -> Figure:
    """Draw relative gains over the linear probe as bars from zero, a panel for each data set."""
    names, note = shown_panels(data, "panel")
    panels = []
    for name in names:
        part = data[data["panel"] == name]
        variants = list(part["variant"])
        base = alt.Chart(values(part)).encode(
            y=alt.Y("variant:N", sort=variants, title=None),
            color=alt.Color("variant:N", scale=role_scales(variants)["color"], legend=None),
        )
        title = "relative gain over the linear probe"
        tips = ["variant:N", *(alt.Tooltip(f"{c}:Q", format="+.1%") for c in ("gain", "low", "high"))]
        chart = alt.layer(
            base.mark_bar(size=15, opacity=0.8).encode(
                x=alt.X("gain:Q", title=title, axis=alt.Axis(format="+~%", tickCount=5), scale=alt.Scale(zero=True)),
                tooltip=tips,
            ),
            alt.Chart(values(part))
            .mark_rule(style="reference", strokeWidth=1.5)
            .encode(y=alt.Y("variant:N", sort=variants), x=alt.X("low:Q", title=title), x2="high:Q"),
        )
        panels.append(Panel(name, chart, height=rows_height(part)))
    return Figure(
        "gain",
        "Gain over the linear probe",
        "(accuracy − probe) / probe: how much training inside the model adds to a classifier on frozen features. Bars "
        "start at zero; the thin line is the interval of the accuracy.",
        data,
        tuple(panels),
        note,
    )


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
