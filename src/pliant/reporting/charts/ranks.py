"""The critical-difference diagram (Demšar, JMLR 2006): mean ranks, and which of them the data do not tell apart."""

from typing import Any

import altair as alt
import pandas as pd

from pliant.reporting.figure import Figure, Panel, role_scales, values
from pliant.stats import CriticalDifference


def rank_diagram(test: CriticalDifference) -> pd.DataFrame:
    """Return what the diagram draws: columns kind, label, low, high, row.

    Kind `component`: its mean rank (low = high), one row each, best first. Kind `Wilcoxon-Holm`: from the best to the
    worst rank of a group that the paired tests do not tell apart. Kind `Nemenyi`: a span as long as the critical
    difference.
    """
    ranks = dict(test.mean_ranks)
    rows: list[dict[str, Any]] = [
        {"kind": "component", "label": name, "low": rank, "high": rank, "row": row}
        for row, (name, rank) in enumerate(test.mean_ranks)
    ]
    for number, group in enumerate(test.holm_groups):
        spread = [ranks[name] for name in group]
        rows.append(
            {"kind": "Wilcoxon-Holm", "label": ", ".join(group), "low": min(spread), "high": max(spread), "row": number}
        )
    rows.append(
        {"kind": "Nemenyi", "label": "critical difference", "low": 1.0, "high": 1.0 + test.difference, "row": 0}
    )
    return pd.DataFrame(rows)


def draw_ranks(data: pd.DataFrame, test: CriticalDifference) -> Figure:
    """Draw mean ranks on a line, best on the left, with bars that join what is not told apart."""
    components = data[data["kind"] == "component"]
    groups = data[data["kind"] == "Wilcoxon-Holm"]
    names = list(components["label"])
    n_rows = len(names)
    reach = alt.Scale(domain=[0.8, test.k + 0.2], nice=False, zero=False)
    x = alt.X("low:Q", scale=reach, title="mean rank (1 is best)", axis=alt.Axis(orient="top", tickMinStep=1))
    y = alt.Y("row:Q", scale=alt.Scale(domain=[-1.0 - len(groups) * 0.55, n_rows - 0.3], reverse=True), axis=None)
    looks = role_scales(names)
    colour = alt.Color("label:N", scale=looks["color"], legend=None)
    base = alt.Chart(values(components)).encode(y=y, color=colour)
    lifted = groups.assign(row=[-0.55 * (i + 1) for i in range(len(groups))])
    stems = components.assign(top=-0.3 - 0.55 * max(len(groups), 1))
    tips = ["label:N", alt.Tooltip("low:Q", title="mean rank", format=".2f")]
    layers = [
        alt.Chart(values(stems)).mark_rule(style="quiet").encode(x=x, y=y, y2="top:Q"),
        base.mark_point(filled=True, size=70, opacity=1).encode(
            x=x, shape=alt.Shape("label:N", scale=looks["shape"], legend=None), tooltip=tips
        ),
        alt.Chart(values(components)).mark_text(style="strong", align="left", dx=9).encode(x=x, y=y, text="label:N"),
    ]
    if len(groups):
        bar = alt.Chart(values(lifted)).mark_rule(style="reference", strokeWidth=5, strokeCap="round")
        layers.append(bar.encode(x=x, x2="high:Q", y=y, tooltip=["label:N"]))
    span = data[data["kind"] == "Nemenyi"].assign(row=n_rows - 0.6)
    ruler = alt.Chart(values(span))
    layers += [
        ruler.mark_rule(style="reference", strokeWidth=1.5).encode(x=x, x2="high:Q", y=y),
        ruler.mark_text(style="note", align="left", dy=-7).encode(x=x, y=y, text="label:N"),
    ]
    n_text = f"{test.n} {'families' if test.varied == 'family' else 'data sets'}"
    return Figure(
        "ranks" if test.varied == "data set" else "ranks-families",
        f"Mean ranks over {n_text}",
        f"Sets under one thick bar are not told apart by paired Wilcoxon tests with Holm's correction at "
        f"{test.alpha:g}. The thin line is Nemenyi's critical difference, {test.difference:.2f}. "
        f"Friedman p = {test.friedman.p:.2g}"
        + ("" if test.friedman.p < test.alpha else ": ranks do not differ, and groups mean little")
        + ".",
        data,
        (Panel("", alt.layer(*layers), height=34 * n_rows + 50),),
    )
