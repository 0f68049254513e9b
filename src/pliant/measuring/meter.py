"""From inputs and outputs of components to rates of change: a meter that listens to passes."""

import math
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import asdict
from typing import Any

import pandas as pd
import torch
from jaxtyping import Float
from torch import Tensor

from pliant.components import Component
from pliant.errors import MeasurementError
from pliant.measuring.measurement import COLUMNS
from pliant.numerics.estimate import Design, RateStatistics
from pliant.numerics.rates import distances_all, distances_matched, distances_within, norms, rates_of_change
from pliant.terms import BLOCK_ROLES, Role


class Meter:
    """Takes each component's input and output, pass by pass, and keeps per-pair statistics only."""

    def __init__(self, components: Iterable[Component], design: Design) -> None:
        """Prepare one set of statistics per component and one per role."""
        self.components = tuple(components)
        self.design: Design = design
        self.statistics = {c.id: RateStatistics(design) for c in self.components}
        self.roles: dict[Role, RateStatistics] = {
            r: RateStatistics(design) for r in BLOCK_ROLES if any(c.role == r for c in self.components)
        }
        self.scales: dict[str, _Scale] = {c.id: _Scale() for c in self.components}
        self._pass = -1
        self._source = 0
        self._sums: dict[Role, tuple[Tensor, int]] = {}
        self._recent: list[tuple[Tensor, Tensor]] = []

    def begin(self, index: int, *, source: int) -> None:
        """Start pass `index`, whose first `source` items are source items."""
        self._pass, self._source = index, source
        self._sums.clear()

    def listen(
        self, component: Component, entered: Float[Tensor, "batch *input"], left: Float[Tensor, "batch *output"]
    ) -> None:
        """Count one component's input and output in this pass.

        Raises:
            MeasurementError: values that are not finite; names the component.
        """
        try:
            x, y = self._distances(entered), self._distances(left)
            self.statistics[component.id].update(self._pass, x, y, input_norms=norms(entered), output_norms=norms(left))
            found = rates_of_change(x, y)
        except MeasurementError as error:
            raise MeasurementError(
                f"{component.id}: {error}. Check the weights and the input for NaN and overflow."
            ) from error
        self.scales[component.id].add(entered)
        total, blocks = self._sums.get(component.role, (torch.zeros_like(found), 0))
        self._sums[component.role] = total + found, blocks + 1

    def end(self) -> None:
        """Finish the pass: the mean over a role's blocks is one rate per pair."""
        for role, (total, blocks) in self._sums.items():
            kept = ~total.isnan()
            self.roles[role].update(self._pass, kept.to(total), (total / blocks).where(kept, 0.0))
        self._recent.clear()

    def frame(self) -> pd.DataFrame:
        """Return the table of components, columns as in `COLUMNS`."""
        rows = []
        for c in self.components:
            found = asdict(self.statistics[c.id].summary())
            place = {"component": c.id, "role": c.role, "block": c.block, "depth": c.block}
            rows.append({**place, "plasticity": found.pop("mean"), **found, **self.scales[c.id].columns()})
        return pd.DataFrame(rows, columns=list(COLUMNS))

    def by_role(self) -> pd.DataFrame:
        """Return the table of roles: mean over blocks, its uncertainty, and the spread over blocks."""
        per_block: dict[Role, list[float]] = defaultdict(list)
        for c in self.components:
            per_block[c.role].append(self.statistics[c.id].summary().mean)
        rows: list[dict[str, Any]] = []
        for role, statistics in self.roles.items():
            found, values = statistics.summary(), per_block[role]
            rows.append(
                {
                    "role": role,
                    "plasticity": found.mean,
                    "stderr": found.stderr,
                    "ci_low": found.ci_low,
                    "ci_high": found.ci_high,
                    "blocks": len(values),
                    "spread": float(pd.Series(values).std()) if len(values) > 1 else math.nan,
                    "n_source": found.n_source,
                    "n_target": found.n_target,
                    "n_pairs": found.n_pairs,
                    "n_dropped": found.n_dropped,
                }
            )
        return pd.DataFrame(rows)

    def _distances(self, z: Float[Tensor, "batch *item"]) -> Float[Tensor, "*pairs"]:
        """Distances of this pass's pairs; the output of a norm is the input of what follows and is not done twice."""
        for seen, distances in self._recent:
            if seen is z:
                return distances
        if self.design == "one-sample":
            distances = distances_within(z)
        else:
            measure = distances_matched if self.design == "matched" else distances_all
            distances = measure(z[: self._source], z[self._source :])
        self._recent = [*self._recent[-1:], (z, distances)]
        return distances


class _Scale:
    """Scale of a component's input: mean token norm, smallest standard deviation of a token's features."""

    def __init__(self) -> None:
        self._total, self._count, self._smallest = 0.0, 0, math.inf

    def add(self, tokens: Float[Tensor, "batch *tokens dim"]) -> None:
        wide = tokens.to(torch.float32)
        lengths = torch.linalg.vector_norm(wide, dim=-1)
        self._total += float(lengths.sum(dtype=torch.float64))
        self._count += lengths.numel()
        self._smallest = min(self._smallest, float(wide.std(dim=-1, correction=0).min()))

    def columns(self) -> dict[str, float]:
        return {"token_norm": self._total / self._count, "token_std_min": self._smallest}
