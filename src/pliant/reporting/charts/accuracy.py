"""Charts of what training led to: accuracy by component set, and the gain over the linear probe."""

from collections.abc import Mapping, Sequence
from typing import Any

import altair as alt
import pandas as pd

from pliant.reporting.charts.components import need
from pliant.reporting.figure import Figure, Panel, role_scales, values

SHOWN_PANELS = 12
"""Data sets with a panel of their own; further ones are in the tables."""

ACCURACY_AXIS = "test accuracy"


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
