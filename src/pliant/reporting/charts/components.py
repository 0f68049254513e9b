"""Charts of a model before training: plasticity by role and depth, bounds beside it, probes by depth."""

import math
from typing import Any

import altair as alt
import pandas as pd

from pliant.errors import ConfigError
from pliant.reporting.figure import Figure, Panel, log_scale, role_scales, thinned, values
from pliant.reporting.palette import BAR
from pliant.terms import BLOCK_ROLES

QUARTILES = {"low": 0.0, "q25": 0.25, "median": 0.5, "q75": 0.75, "high": 1.0}
BLOCK_AXIS = "block (0 is nearest to the image)"
PLASTICITY_AXIS = "plasticity: output change / input change"


def need(frame: pd.DataFrame, columns: tuple[str, ...], *, what: str) -> None:
    """Refuse a table that lacks columns or rows.

    Raises:
        ConfigError: names what is missing.
    """
    if missing := [column for column in columns if column not in frame.columns]:
        raise ConfigError(f"{what} needs the columns {', '.join(columns)}; missing: {', '.join(missing)}.")
    if frame.empty:
        raise ConfigError(f"{what} needs at least one row, got an empty table.")


def ratio_scale(*columns: pd.Series) -> Any:
    """Return the scale of ratios: logarithmic, unless a value is not positive."""
    smallest = min((float(c.min()) for c in columns if c.notna().any()), default=1.0)
    one = pd.Series([1.0])  # the line at 1 is always in sight
    return log_scale(*columns, one) if smallest > 0 else alt.Scale(type="linear")


def plasticity_by_role(frame: pd.DataFrame) -> pd.DataFrame:
    """Return each component's plasticity with the quartiles of its role: what the box chart draws.

    Args:
        frame: columns model, role, block, plasticity (as of measurements, with the model's name).

    Returns:
        Columns model, role, block, plasticity, and low, q25, median, q75, high of the role over its blocks.
    """
    need(frame, ("model", "role", "block", "plasticity"), what="plasticity by role")
    found = frame[["model", "role", "block", "plasticity"]]
    grouped = found.groupby(["model", "role"], sort=False)["plasticity"]
    boxes = pd.DataFrame({name: grouped.quantile(share) for name, share in QUARTILES.items()}).reset_index()
    return found.merge(boxes, on=["model", "role"], how="left")


def draw_plasticity_by_role(data: pd.DataFrame) -> Figure:
    """Draw boxes over blocks with every block as a point, a panel for each model, and a line at 1."""
    panels = []
    for model, part in data.groupby("model", sort=False):
        roles = [r for r in BLOCK_ROLES if r in set(part["role"])]
        y = alt.Y("role:N", sort=roles, title=None)
        scale = ratio_scale(part["plasticity"])
        colour = alt.Color("role:N", scale=role_scales(roles)["color"], legend=None)
        boxes = part.drop_duplicates("role")
        base = alt.Chart(values(boxes)).encode(y=y, color=colour)
        x = alt.X("low:Q", scale=scale, title=PLASTICITY_AXIS)
        tips = [alt.Tooltip(f"{n}:{k}", format=f) for n, k, f in (("role", "N", ""), ("median", "Q", ".4g"))]
        points = alt.Chart(values(thinned(part))).mark_point(filled=True, opacity=0.55, size=28)
        chart = alt.layer(
            one_line(),
            base.mark_rule().encode(x=x, x2="high:Q"),
            base.mark_bar(size=16, opacity=0.35).encode(x=alt.X("q25:Q", scale=scale), x2="q75:Q", tooltip=tips),
            base.mark_tick(thickness=3, size=18).encode(x=alt.X("median:Q", scale=scale), tooltip=tips),
            points.encode(
                x=alt.X("plasticity:Q", scale=scale),
                y=y,
                color=colour,
                tooltip=["role:N", "block:O", alt.Tooltip("plasticity:Q", format=".4g")],
            ),
        )
        panels.append(Panel(str(model), chart, height=40 * len(roles) + 20))
    return Figure(
        "plasticity-by-role",
        "Plasticity by role",
        "Each point is one block, the box holds the middle half of them, the tick is the median. Right of the dashed "
        "line at 1 a component amplifies a change of its input, left of it the component contracts it.",
        data,
        tuple(panels),
    )


def one_line(channel: str = "x") -> Any:
    """A dashed line at 1, where a component neither amplifies nor contracts."""
    at = alt.X("one:Q") if channel == "x" else alt.Y("one:Q")
    return alt.Chart(alt.Data(values=[{"one": 1}])).mark_rule(style="reference", strokeDash=[4, 4]).encode(at)


def plasticity_by_depth(frame: pd.DataFrame) -> pd.DataFrame:
    """Return what the depth chart draws: columns model, role, block, plasticity, ci_low, ci_high.

    Args:
        frame: the same columns among others. Intervals that are not finite become missing.
    """
    columns = ["model", "role", "block", "plasticity", "ci_low", "ci_high"]
    need(frame, tuple(columns), what="plasticity by depth")
    found = frame[columns].sort_values(["role", "block"], kind="stable")
    found = found.sort_values("model", key=lambda names: names.map(list(frame["model"].unique()).index), kind="stable")
    finite = found[["ci_low", "ci_high"]].map(lambda v: v if math.isfinite(v) else math.nan)
    return found.assign(ci_low=finite["ci_low"], ci_high=finite["ci_high"]).reset_index(drop=True)


def draw_plasticity_by_depth(data: pd.DataFrame) -> Figure:
    """Draw plasticity over depth, a line for each role with its 95 % interval, a panel for each model."""
    panels = []
    for model, part in data.groupby("model", sort=False):
        y = ratio_scale(part["plasticity"], part["ci_low"], part["ci_high"])
        chart = lines_by_role(part, "plasticity", scale=y, title=PLASTICITY_AXIS, low="ci_low", high="ci_high")
        panels.append(Panel(str(model), alt.layer(one_line("y"), chart), height=260))
    return Figure(
        "plasticity-by-depth",
        "Plasticity by depth",
        "A line for each role; the band is the 95 % interval over images. Where bands of two roles do not overlap, "
        "these images tell them apart.",
        data,
        tuple(panels),
    )


def lines_by_role(
    part: pd.DataFrame, value: str, *, scale: Any, title: str, low: str, high: str, percent: bool = False
) -> Any:
    """Lines over blocks in the roles' colours, dashes and shapes, with a band from `low` to `high`."""
    roles = [r for r in BLOCK_ROLES if r in set(part["role"])]
    looks = role_scales(roles)
    axis = alt.Axis(format="%") if percent else alt.Axis()
    legend = alt.Legend(title=None)
    base = alt.Chart(values(part)).encode(
        x=alt.X("block:Q", title=BLOCK_AXIS, axis=alt.Axis(format="d", tickMinStep=1), scale=alt.Scale(zero=False)),
        color=alt.Color("role:N", scale=looks["color"], legend=legend, sort=roles),
    )
    y = alt.Y(f"{value}:Q", scale=scale, title=title, axis=axis)
    form = ".1%" if percent else ".4g"
    tips = ["role:N", "block:O", *(alt.Tooltip(f"{name}:Q", format=form) for name in (value, low, high))]
    return alt.layer(
        base.mark_area(opacity=0.16, line=False).encode(y=alt.Y(f"{low}:Q", scale=scale, title=title), y2=f"{high}:Q"),
        base.mark_line(strokeWidth=1.8).encode(
            y=y, strokeDash=alt.StrokeDash("role:N", scale=looks["strokeDash"], legend=legend, sort=roles)
        ),
        base.mark_point(filled=True, size=42, opacity=1).encode(
            y=y, shape=alt.Shape("role:N", scale=looks["shape"], legend=legend, sort=roles), tooltip=tips
        ),
    )


def bounds_beside_measured(frame: pd.DataFrame) -> pd.DataFrame:
    """Return what the bounds chart draws: columns role, block, what, value; `what` is bound, paper, maximum or mean.

    Args:
        frame: a table of bounds, columns role, block, bound, kind, max, mean. Rows of kind `none` have no bound. A
            column `model` is kept.
    """
    need(frame, ("role", "block", "bound", "kind", "max", "mean"), what="bounds beside measured values")
    named = frame if "model" in frame.columns else frame.assign(model="")
    parts = []
    for what, column, kinds in (
        ("certified bound", "bound", ("certified",)),
        ("paper's bound", "bound", ("paper",)),
        ("largest measured", "max", None),
        ("mean measured", "mean", None),
    ):
        rows = named if kinds is None else named[named["kind"].isin(kinds)]
        parts.append(rows[["model", "role", "block"]].assign(what=what, value=rows[column].astype("float64")))
    joined = pd.concat(parts, ignore_index=True)
    kept = joined[joined["value"].map(lambda v: math.isfinite(v) and v > 0)]
    return kept.drop_duplicates(["model", "role", "block", "what"]).reset_index(drop=True)


MEASURES = {
    "certified bound": BAR,
    "paper's bound": "cross",
    "largest measured": "triangle-up",
    "mean measured": "circle",
}
"""How the bounds chart tells its four values apart, beside their order from top to bottom."""


def draw_bounds(data: pd.DataFrame) -> Figure:
    """Draw bound, largest and mean measured rate of every component on a log scale, a panel for each role."""
    panels = []
    several = data["model"].nunique() > 1
    shapes = [name for name in MEASURES if name in set(data["what"])]
    for model, of_model in data.groupby("model", sort=False):
        for role in [r for r in BLOCK_ROLES if r in set(of_model["role"])]:
            part = of_model[of_model["role"] == role]
            shape = alt.Scale(domain=shapes, range=[MEASURES[s] for s in shapes])
            base = alt.Chart(values(part)).encode(
                x=alt.X("block:O", title=BLOCK_AXIS, axis=alt.Axis(labelAngle=0)),
                color=alt.value(role_scales([role])["color"]["range"][0]),
            )
            y = alt.Y("value:Q", scale=log_scale(part["value"]), title="rate of change (log scale)")
            span = base.mark_rule(opacity=0.35).encode(y=alt.Y("min(value):Q", title=None), y2="max(value):Q")
            points = base.mark_point(filled=True, opacity=0.95, size=60).encode(
                y=y,
                shape=alt.Shape("what:N", scale=shape, sort=shapes, legend=alt.Legend(title=None, columns=2)),
                tooltip=["what:N", "block:O", alt.Tooltip("value:Q", format=".4g")],
            )
            panels.append(Panel(f"{model}: {role}" if several else role, alt.layer(span, points), height=220))
    return Figure(
        "bounds",
        "Bounds beside what was measured",
        "A certified bound lies above everything that can be measured on its set; the closer the bar is to the largest "
        "measured rate, the tighter it is. The paper's form ignores biases.",
        data,
        tuple(panels),
        columns=3,
    )


def probe_by_depth(frame: pd.DataFrame) -> pd.DataFrame:
    """Return what the probe chart draws: columns data, role, block, accuracy, ci_low, ci_high.

    Args:
        frame: one row for each probed component: columns data, role, block, accuracy, ci_low, ci_high. Rows without a
            block (the model's output) are left out.
    """
    columns = ["data", "role", "block", "accuracy", "ci_low", "ci_high"]
    need(frame, tuple(columns), what="probe accuracy by block")
    found = frame.loc[frame["block"].notna() & frame["role"].isin(BLOCK_ROLES), columns]
    need(found, tuple(columns), what="probe accuracy by block")
    return found.sort_values(["data", "role", "block"], kind="stable").reset_index(drop=True)


def draw_probe_by_depth(data: pd.DataFrame) -> Figure:
    """Draw the accuracy of a linear probe after every component, a panel for each data set."""
    panels = []
    for name, part in data.groupby("data", sort=False):
        scale = alt.Scale(zero=False)
        chart = lines_by_role(
            part,
            "accuracy",
            scale=scale,
            title="test accuracy of the probe",
            low="ci_low",
            high="ci_high",
            percent=True,
        )
        panels.append(Panel(str(name), chart, height=260))
    return Figure(
        "probe-by-depth",
        "Linear probe after every component",
        "How well a linear classifier does on the output of each component, frozen; the band is the 95 % interval "
        "(Wilson). It shows where in depth the classes become linearly separable.",
        data,
        tuple(panels),
    )
