"""The result of bounding: bounds beside measured rates, and whether both order the components alike."""

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pandas as pd
from scipy import stats

from pliant.errors import ConfigError
from pliant.measuring.bounds_sets import TokenSet
from pliant.measuring.measurement import Measurement
from pliant.runs.atomic import write_file

BOUND_COLUMNS = (
    "component",
    "role",
    "block",
    "bound",
    "kind",
    "reason",
    "max",
    "mean",
    "slack",
    "without_data",
    "holds_on",
    "radius",
    "largest",
    "s_min",
    "tokens",
    "n_pairs",
)
"""Columns of `BoundsReport.frame` and `.paper`.

bound with its kind (`certified`: proved for the stated set, `paper`: the published formula, `none`) and the reason of a
kind that is not certified; measured maximum and mean of the rates of change; slack = bound / max; the bound for all
tokens where there is one; the set that the bound holds on, in words and numbers: radius of the ball about its centre
(`BoundsReport.sets`), largest token norm, smallest s(t) of a norm, tokens per sequence; pairs measured.
"""


@dataclass(frozen=True)
class Order:
    """Whether bounds and measurements order things alike.

    Attributes:
        by_bound, by_measurement: names from the largest to the smallest.
        kendall, spearman: rank correlation; NaN with fewer than two, or if all are equal.
        left_out: names without a certified bound, which are in neither order.
    """

    by_bound: tuple[str, ...]
    by_measurement: tuple[str, ...]
    kendall: float
    spearman: float
    left_out: tuple[str, ...] = ()

    @property
    def agree(self) -> bool:
        """Whether the two orders are the same."""
        return self.by_bound == self.by_measurement

    @classmethod
    def of(cls, frame: pd.DataFrame, name: str) -> "Order":
        """Compare columns `bound` and `mean` of a table; rows without a bound are left out."""
        given = frame[frame["bound"].notna()]
        bound, mean = given["bound"].to_numpy(dtype=float), given["mean"].to_numpy(dtype=float)
        varied = len(given) > 1 and len(set(bound)) > 1 and len(set(mean)) > 1
        return cls(
            tuple(given.sort_values("bound", ascending=False, kind="stable")[name]),
            tuple(given.sort_values("mean", ascending=False, kind="stable")[name]),
            float(stats.kendalltau(bound, mean).statistic) if varied else math.nan,
            float(stats.spearmanr(bound, mean).statistic) if varied else math.nan,
            tuple(frame[frame["bound"].isna()][name]),
        )

    def __str__(self) -> str:
        """Say it in one line."""
        if not self.by_bound:
            return "no order: nothing has a certified bound"
        left = f"; without a bound: {', '.join(self.left_out)}" if self.left_out else ""
        verdict = "they agree" if self.agree else "they differ"
        return (
            f"by bound {' > '.join(self.by_bound)}; by measurement {' > '.join(self.by_measurement)}; {verdict} "
            f"(Kendall {self.kendall:.2f}, Spearman {self.spearman:.2f}){left}"
        )


@dataclass(frozen=True)
class BoundsReport:
    """Bounds of every component of a model, beside the rates of change that were measured on the same tokens.

    Attributes:
        frame: one row per component, columns as in `BOUND_COLUMNS`.
        paper: likewise, the published bound of each attention, for comparison; it ignores biases.
        by_role: one row per role: mean bound over blocks (missing unless all are certified), mean rate, largest rate,
            smallest and largest slack, ranks.
        order: of the roles, by mean bound and by mean rate.
        order_of_components: likewise, of single components.
        local: ‖J(X)‖₂ of attention at single items, a diagnostic and no bound; None unless it was asked for.
        sets: the tokens that each component got: the sets that the bounds hold on, centres of balls included.
        measurement: of the same pairs.
        provenance: model, data, convention, pairs, seed, versions, and how sets were found.
    """

    frame: pd.DataFrame = field(repr=False)
    paper: pd.DataFrame = field(repr=False)
    by_role: pd.DataFrame
    order: Order
    order_of_components: Order = field(repr=False)
    local: pd.DataFrame | None = field(repr=False)
    sets: Mapping[str, TokenSet] = field(repr=False)
    measurement: Measurement = field(repr=False)
    provenance: Mapping[str, Any] = field(repr=False)

    def to_json(self) -> str:
        """Return all of it as JSON: provenance, order, by_role, components, paper, local, sets."""
        values = {
            "provenance": dict(self.provenance),
            "order": _order(self.order),
            "order_of_components": _order(self.order_of_components),
            "by_role": _records(self.by_role),
            "components": _records(self.frame),
            "paper": _records(self.paper),
            "local": None if self.local is None else _records(self.local),
            "sets": {name: _set(tokens) for name, tokens in self.sets.items()},
        }
        return json.dumps(values, indent=1)

    def save(self, path: str | Path) -> Path:
        """Write everything as JSON (`.json`), or the table of components alone as CSV (`.csv`).

        Raises:
            ConfigError: a name with another ending.
        """
        path = Path(path)
        if path.suffix == ".json":
            text = self.to_json()
        elif path.suffix == ".csv":
            text = self.frame.to_csv(index=False, float_format="%.17g")
        else:
            raise ConfigError(f"{path.name}: expected a name that ends in .json or .csv")
        return write_file(path, text)


def role_table(frame: pd.DataFrame, by_role: pd.DataFrame) -> pd.DataFrame:
    """Return one row per role from the table of components and the measured means over blocks."""
    rows = []
    for role, plasticity in zip(by_role["role"], by_role["plasticity"], strict=True):
        of = frame[frame["role"] == role]
        certified = int((of["kind"] == "certified").sum())
        whole = certified == len(of)
        kind = "certified" if whole else f"certified in {certified} of {len(of)}" if certified else "none"
        rows.append(
            {
                "role": role,
                "bound": float(of["bound"].mean()) if whole else math.nan,
                "kind": kind,
                "mean": plasticity,
                "max": float(of["max"].max()),
                "slack_min": float(of["slack"].min()),
                "slack_max": float(of["slack"].max()),
                "blocks": len(of),
            }
        )
    table = pd.DataFrame(rows)
    ranks = table[table["bound"].notna()][["bound", "mean"]].rank(ascending=False, method="min").astype("Int64")
    return table.assign(rank_bound=ranks["bound"], rank_mean=ranks["mean"])


def _order(order: Order) -> dict[str, Any]:
    values = {"kendall": order.kendall, "spearman": order.spearman}
    return {
        "by_bound": order.by_bound,
        "by_measurement": order.by_measurement,
        **{name: None if math.isnan(value) else value for name, value in values.items()},
        "agree": order.agree,
        "left_out": order.left_out,
    }


def _set(tokens: TokenSet) -> dict[str, Any]:
    values: dict[str, Any] = {"count": tokens.count, "per_item": tokens.per_item}
    if tokens.s_min is not None:
        values["s_min"] = tokens.s_min
    if tokens.ball is not None:
        values |= {"centre": tokens.ball.centre.tolist(), "radius": tokens.ball.radius, "largest": tokens.ball.largest}
    return values


def _records(frame: pd.DataFrame) -> Sequence[Mapping[str, Any]]:
    records: Sequence[Mapping[str, Any]] = json.loads(frame.to_json(orient="records", double_precision=15))
    return records
