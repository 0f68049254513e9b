"""Charts of training as it goes: gradient norm and losses over steps, and the race."""

from collections.abc import Sequence
from typing import Any

import altair as alt
import pandas as pd

from pliant.reporting.charts.components import need
from pliant.reporting.figure import Figure, Panel, log_scale, role_scales, values

QUANTITIES = {
    "gradient_norm": "gradient norm (log scale)",
    "train_loss": "training loss (log scale)",
    "validation_loss": "validation loss (log scale)",
}
"""What is followed over steps, and its axis."""

STEPS_SHOWN = 40
"""Points of one line: steps are averaged in so many equal stretches."""

MARKS_SHOWN = 8
"""Points that carry the shape of a line, about so many on each."""

PANELS_SHOWN = 4
"""Data sets whose training is drawn."""


def training_curves(frame: pd.DataFrame, order: Sequence[str]) -> pd.DataFrame:
    """Average what was logged over seeds and stretches of steps: what the training chart draws.

    Args:
        frame: one row for each cell, step and quantity: columns panel (data set), variant, seed, step, quantity (one
            of `QUANTITIES`), value.
        order: component sets, as legends list them.

    Returns:
        Columns panel, variant, quantity, step, value, low, high, n: mean, lowest and highest over n seeds of the
        seeds' own means in that stretch. Values that are not finite or not positive are left out.
    """
    columns = ("panel", "variant", "seed", "step", "quantity", "value")
    need(frame, columns, what="curves over steps")
    found = frame[frame["value"].gt(0) & frame["value"].lt(float("inf")) & frame["quantity"].isin(list(QUANTITIES))]
    need(found, columns, what="curves over steps")
    longest = int(found["step"].max())
    width = max(1, -(-longest // STEPS_SHOWN))
    binned = found.assign(step=((found["step"].astype("int64") + width - 1) // width) * width)
    keys = ["panel", "variant", "quantity", "step"]
    per_seed = binned.groupby([*keys, "seed"], sort=False)["value"].mean().reset_index()
    grouped = per_seed.groupby(keys, sort=False)["value"]
    curves = pd.DataFrame(
        {"value": grouped.mean(), "low": grouped.min(), "high": grouped.max(), "n": grouped.size()}
    ).reset_index()
    place = {variant: i for i, variant in enumerate(order)}
    curves["_place"] = curves["variant"].map(lambda v: place.get(v, len(place)))
    return curves.sort_values(["panel", "_place", "step"], kind="stable").drop(columns="_place").reset_index(drop=True)


def draw_training(data: pd.DataFrame) -> Figure:
    """Draw each quantity over steps, a line for each component set, panels for data sets and quantities."""
    names = [str(n) for n in data["panel"].drop_duplicates()]
    left = len(names) - PANELS_SHOWN
    panels = []
    for name in names[:PANELS_SHOWN]:
        for quantity in [q for q in QUANTITIES if q in set(data["quantity"])]:
            part = data[(data["panel"] == name) & (data["quantity"] == quantity)]
            if not part.empty:
                title = QUANTITIES[quantity].split(" (")[0]
                label = f"{name}: {title}" if len(names) > 1 else title
                panels.append(Panel(label, _curves(part, QUANTITIES[quantity]), height=250))
    return Figure(
        "training",
        "Training, step by step",
        "Each set at the learning rate that validation chose; the line is the mean over seeds, the band reaches from "
        "the lowest to the highest seed. A loss that falls earlier means faster convergence.",
        data,
        tuple(panels),
        f"{left} more data sets are not drawn." if left > 0 else "",
        columns=3,
    )


def _curves(part: pd.DataFrame, title: str) -> Any:
    variants = list(part["variant"].drop_duplicates())
    looks = role_scales(variants)
    scale = log_scale(part["low"], part["high"], margin=1.1)
    legend = alt.Legend(title=None)
    base = alt.Chart(values(part)).encode(
        x=alt.X("step:Q", title="optimizer step"),
        color=alt.Color("variant:N", scale=looks["color"], legend=legend, sort=variants),
    )
    tips = ["variant:N", "step:Q", *(alt.Tooltip(f"{c}:Q", format=".4g") for c in ("value", "low", "high")), "n:Q"]
    layers = [
        base.mark_line(strokeWidth=1.8).encode(
            y=alt.Y("value:Q", scale=scale, title=title),
            strokeDash=alt.StrokeDash("variant:N", scale=looks["strokeDash"], legend=legend, sort=variants),
            tooltip=tips,
        )
    ]
    if part["n"].max() > 1:
        area = base.mark_area(opacity=0.13, line=False)
        layers.insert(0, area.encode(y=alt.Y("low:Q", scale=scale, title=title), y2="high:Q"))
    marked = part[part.groupby("variant").cumcount() % max(1, len(part) // (MARKS_SHOWN * len(variants))) == 0]
    points = base.properties(data=values(marked)).mark_point(filled=True, size=36, opacity=1)
    shape = alt.Shape("variant:N", scale=looks["shape"], legend=legend, sort=variants)
    layers.append(points.encode(y=alt.Y("value:Q", scale=scale), shape=shape, tooltip=tips))
    return alt.layer(*layers)


def steps_to_loss(frame: pd.DataFrame, *, share: float = 0.5) -> pd.DataFrame:
    """Return how many steps each set took to bring its training loss down to a common level.

    The level lies `share` of the way (on a log scale) from the highest first loss to the lowest last loss among the
    sets of a panel, so it says who gets there first, not how low each can get.

    Args:
        frame: as `training_curves` returns it.
        share: how far down the level lies.

    Returns:
        Columns panel, variant, level, steps; steps is missing where the level was never reached.
    """
    need(frame, ("panel", "variant", "quantity", "step", "value"), what="steps to a loss")
    rows = []
    losses = frame[frame["quantity"] == "train_loss"].sort_values("step", kind="stable")
    for panel, of_panel in losses.groupby("panel", sort=False):
        curves = {str(v): c for v, c in of_panel.groupby("variant", sort=False)}
        first = max(float(c["value"].iloc[0]) for c in curves.values())
        last = min(float(c["value"].min()) for c in curves.values())
        level = first ** (1 - share) * last**share
        for variant, curve in curves.items():
            reached = curve.loc[curve["value"] <= level, "step"]
            steps = int(reached.iloc[0]) if len(reached) else None
            rows.append({"panel": str(panel), "variant": variant, "level": level, "steps": steps})
    return pd.DataFrame(rows, columns=["panel", "variant", "level", "steps"]).astype({"steps": "Int64"})


def race_trials(frame: pd.DataFrame, *, chosen: str, tied: Sequence[str]) -> pd.DataFrame:
    """Return what the race chart draws: every trial with an accuracy, its interval, and its part in the outcome.

    Args:
        frame: one row for each trial: columns components, learning_rate, validation_accuracy, stderr, parameters.
        chosen: component set that won.
        tied: sets within one standard error of the best.

    Returns:
        Columns variant, learning_rate, accuracy, low, high (one standard error either way), parameters, outcome:
        "chosen", "tie", "best of its set", or empty.
    """
    need(frame, ("components", "learning_rate", "validation_accuracy", "stderr", "parameters"), what="the race")
    done = frame[frame["validation_accuracy"].notna()].reset_index(drop=True)
    need(done, ("components",), what="the race")
    accuracy, error = done["validation_accuracy"].astype("float64"), done["stderr"].astype("float64")
    best = set(done.groupby("components", sort=False)["validation_accuracy"].idxmax())
    outcome = [
        "" if i not in best else "chosen" if v == chosen else "tie" if v in tied else "best of its set"
        for i, v in enumerate(done["components"].astype(str))
    ]
    return pd.DataFrame(
        {
            "variant": done["components"].astype(str),
            "learning_rate": done["learning_rate"].astype("float64"),
            "accuracy": accuracy,
            "low": (accuracy - error).clip(lower=0.0),
            "high": (accuracy + error).clip(upper=1.0),
            "parameters": done["parameters"],
            "outcome": outcome,
        }
    )


def draw_race(data: pd.DataFrame) -> Figure:
    """Draw validation accuracy over learning rates, a line for each candidate, the chosen trial marked."""
    best = data[data["outcome"] != ""].sort_values("accuracy", ascending=False, kind="stable")
    variants = list(best["variant"])
    looks = role_scales(variants)
    rates = sorted(set(data["learning_rate"]))
    axis = alt.Axis(values=rates, format="~g") if len(rates) <= 8 else alt.Axis(format="~g")
    x = alt.X("learning_rate:Q", scale=log_scale(data["learning_rate"]), title="learning rate (log scale)", axis=axis)
    y = alt.Y("accuracy:Q", scale=alt.Scale(zero=False), title="validation accuracy", axis=alt.Axis(format="%"))
    legend = alt.Legend(title="best first", titleOrient="left")
    colour = alt.Color("variant:N", scale=looks["color"], sort=variants, legend=legend)
    shape = alt.Shape("variant:N", scale=looks["shape"], sort=variants, legend=legend)
    tips = [
        "variant:N",
        "learning_rate:Q",
        alt.Tooltip("accuracy:Q", format=".2%"),
        alt.Tooltip("parameters:Q", format=","),
        "outcome:N",
    ]
    base = alt.Chart(values(data)).encode(color=colour)
    top = float(best["accuracy"].iloc[0])
    floor = alt.Data(values=[{"low": float(best["low"].iloc[0]), "high": top}])
    band = alt.Chart(floor).mark_rect(style="quiet", opacity=0.6)
    won = best[best["outcome"] == "chosen"]
    ring = alt.Chart(values(won)).mark_point(style="reference", size=260, strokeWidth=2).encode(x=x, y=y)
    chart = alt.layer(
        band.encode(y=alt.Y("low:Q", scale=alt.Scale(zero=False)), y2="high:Q"),
        base.mark_line(strokeWidth=1.5).encode(
            x=x, y=y, strokeDash=alt.StrokeDash("variant:N", scale=looks["strokeDash"], legend=legend, sort=variants)
        ),
        base.mark_rule().encode(x=x, y=alt.Y("low:Q", scale=alt.Scale(zero=False)), y2="high:Q"),
        base.mark_point(filled=True, size=55, opacity=1).encode(x=x, y=y, shape=shape, tooltip=tips),
        *([ring] if len(won) else []),
    )
    return Figure(
        "race",
        "The race",
        "Every trial after the same few steps; bars are one standard error. Sets whose best trial lies in the shaded "
        "band tie with the best; the one with the fewest parameters is taken (ringed).",
        data,
        (Panel("", chart, height=320),),
    )
