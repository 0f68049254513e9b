"""From inputs and outputs of components to rates of change: a meter that is shown passes."""

import math
import weakref
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, replace
from typing import Any

import pandas as pd
import torch
from jaxtyping import Float
from torch import Tensor

from pliant.components import Component
from pliant.errors import MeasurementError
from pliant.measuring.capture import outputs_of
from pliant.measuring.measurement import COLUMNS, HEAD_COLUMNS
from pliant.measuring.padding import Padding
from pliant.numerics.estimate import Design, RateStatistics
from pliant.numerics.geometry import Geometry, Pairing, TokenScale, combined, geometry, token_scale
from pliant.numerics.rates import rates_of_change
from pliant.terms import BLOCK_ROLES, Role


class Meter:
    """Is shown each component's input and output, pass by pass, and keeps per-pair statistics only."""

    def __init__(self, components: Iterable[Component], design: Design) -> None:
        """Prepare one set of statistics per component and one per role."""
        self.components = tuple(components)
        self.design: Design = design
        self.statistics = {c.id: RateStatistics(design) for c in self.components}
        self.roles: dict[Role, RateStatistics] = {
            r: RateStatistics(design) for r in BLOCK_ROLES if any(c.role == r for c in self.components)
        }
        self.heads: dict[str, list[RateStatistics]] = {}
        self.course: dict[str, Any] = {}
        self.scales: dict[str, dict[int, TokenScale]] = {c.id: {} for c in self.components}
        self.items = 0
        self._pass = -1
        self._source = 0
        self._padding: Padding | None = None
        self._entered: dict[str, Geometry] = {}
        self._left: dict[str, list[Geometry]] = defaultdict(list)
        self._heads: dict[str, list[Geometry]] = {}
        self._sums: dict[Role, tuple[Tensor, int]] = {}
        self._recent: list[tuple[weakref.ref[Tensor], int, Geometry]] = []

    @property
    def pairing(self) -> Pairing:
        """How the items of this pass form pairs."""
        return Pairing(self.design, self._source)

    def begin(self, index: int, *, source: int, items: int = 0, padding: Padding | None = None) -> None:
        """Start pass `index`.

        Args:
            index: number of the pass.
            source: number of source items; they come first.
            items: number of all items; only heads need it.
            padding: which tokens do not count; None if all do.
        """
        self._pass, self._source, self.items, self._padding = index, source, items, padding
        self._sums.clear()
        self._entered.clear()
        self._left.clear()
        self._heads.clear()

    def enter(self, component: Component, tokens: Float[Tensor, "batch *input"]) -> None:
        """See the input of a component.

        Raises:
            MeasurementError: values that are not finite; names the component.
        """
        self._entered[component.id] = self.measured(tokens, scale=True)

    def leave(self, component: Component, output: Float[Tensor, "batch *output"]) -> None:
        """See the output of a component, or one of its parts; with the last one the component is counted.

        Raises:
            MeasurementError: values that are not finite; names the component.
        """
        parts = self._left[component.id]
        parts.append(self.measured(output))
        if len(parts) == outputs_of(component):
            self.count(component, self._entered[component.id], combined(parts))

    def listen(
        self, component: Component, entered: Float[Tensor, "batch *input"], left: Float[Tensor, "batch *output"]
    ) -> None:
        """Count one component's input and output in this pass.

        Raises:
            MeasurementError: values that are not finite; names the component.
        """
        self.count(component, self.measured(entered, scale=True), self.measured(left))

    def count(self, component: Component, entered: Geometry, left: Geometry, heads: Sequence[Geometry] = ()) -> None:
        """Count what was measured of one component's input and output, and of its heads, in this pass.

        Raises:
            MeasurementError: values that are not finite; names the component.
        """
        try:
            self.statistics[component.id].update(
                self._pass, entered.distances, left.distances, input_norms=entered.norms, output_norms=left.norms
            )
            found = rates_of_change(entered.distances, left.distances)
            self._count_heads(component, entered, heads or self._heads.pop(component.id, ()))
        except MeasurementError as error:
            raise MeasurementError(
                f"{component.id}: {error}. Check the weights and the input for NaN and overflow."
            ) from error
        if entered.scale is not None:
            self.scales[component.id][self._pass] = entered.scale
        total, blocks = self._sums.get(component.role, (torch.zeros_like(found), 0))
        self._sums[component.role] = total + found, blocks + 1

    def see_heads(self, component: Component, outputs: Sequence[Float[Tensor, "batch *output"]]) -> None:
        """See the output of each head of a component that is counted next."""
        self._heads[component.id] = [self._fresh(z) for z in outputs]

    def end(self) -> None:
        """Finish the pass: the mean over a role's blocks is one rate per pair."""
        for role, (total, blocks) in self._sums.items():
            kept = ~total.isnan()
            self.roles[role].update(self._pass, kept.to(total), (total / blocks).where(kept, 0.0))
        self._recent.clear()
        self._entered.clear()

    def relative_stderr(self) -> float:
        """Return the largest standard error of a role's mean, relative to the mean; NaN if one cannot be told yet."""
        found = [s.summary() for s in self.roles.values()]
        relative = [s.stderr / s.mean if s.mean else 0.0 for s in found]
        return math.nan if any(math.isnan(r) for r in relative) else max(relative)

    def state(self) -> dict[str, Any]:
        """Return everything that was counted, as plain values; `merge` takes it over."""
        return {
            "statistics": {name: s.state() for name, s in self.statistics.items()},
            "roles": {role: s.state() for role, s in self.roles.items()},
            "heads": {name: [s.state() for s in of] for name, of in self.heads.items()},
            "scales": {name: {i: asdict(s) for i, s in of.items()} for name, of in self.scales.items()},
        }

    def merge(self, state: Mapping[str, Any]) -> None:
        """Take over what another process has counted, exactly as if it had been counted here."""
        for name, of in state["statistics"].items():
            self.statistics[name].merge(RateStatistics.from_state(of))
        for role, of in state["roles"].items():
            self.roles[role].merge(RateStatistics.from_state(of))
        for name, of_heads in state["heads"].items():
            ours = self.heads.setdefault(name, [RateStatistics(self.design) for _ in of_heads])
            for mine, theirs in zip(ours, of_heads, strict=True):
                mine.merge(RateStatistics.from_state(theirs))
        for name, of in state["scales"].items():
            self.scales[name].update({int(i): TokenScale(**s) for i, s in of.items()})

    def frame(self) -> pd.DataFrame:
        """Return the table of components, columns as in `COLUMNS`."""
        rows = []
        for c in self.components:
            place = {"component": c.id, "role": c.role, "block": c.block, "depth": c.block}
            rows.append({**place, **_columns(self.statistics[c.id]), **_scale_columns(self.scales[c.id])})
        return pd.DataFrame(rows, columns=list(COLUMNS))

    def heads_frame(self) -> pd.DataFrame | None:
        """Return the table of heads, columns as in `HEAD_COLUMNS`; None if heads were not measured."""
        rows = [
            {"component": f"{c.id}.head{h:02d}", "role": c.role, "block": c.block, "head": h, **_columns(statistics)}
            for c in self.components
            for h, statistics in enumerate(self.heads.get(c.id, ()))
        ]
        return pd.DataFrame(rows, columns=list(HEAD_COLUMNS)) if rows else None

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

    def measured(self, z: Float[Tensor, "batch *item"], *, scale: bool = False) -> Geometry:
        """Measure activations of this pass, in float32 or better.

        The output of a norm is the input of what follows: a tensor that was measured just before is not measured again.
        """
        version = 0 if z.is_inference() else z._version  # counts changes in place
        known = next((g for seen, v, g in self._recent if seen() is z and v == version), None)
        if known is not None and scale and known.scale is None and self._padding is None:
            known = replace(known, scale=token_scale(z))
        if known is None or (scale and known.scale is None):
            known = self._fresh(z, scale=scale)
        self._recent = [*self._recent[-2:], (weakref.ref(z), version, known)]
        return known

    def _count_heads(self, component: Component, entered: Geometry, heads: Sequence[Geometry]) -> None:
        if not heads:
            return
        of_heads = self.heads.setdefault(component.id, [RateStatistics(self.design) for _ in heads])
        for statistics, head in zip(of_heads, heads, strict=True):
            norms = {"input_norms": entered.norms, "output_norms": head.norms}
            statistics.update(self._pass, entered.distances, head.distances, **norms)

    def _fresh(self, z: Float[Tensor, "batch *item"], *, scale: bool = False) -> Geometry:
        with torch.autocast(z.device.type, enabled=False):
            if self._padding is not None:
                return self._padding.geometry(z, self.pairing, scale=scale)
            return geometry(z, self.pairing, scale=scale)

    def _distances(self, z: Float[Tensor, "batch *item"]) -> Float[Tensor, "*pairs"]:
        """Distances of this pass's pairs."""
        return self.measured(z).distances


def _columns(statistics: RateStatistics) -> dict[str, Any]:
    found = asdict(statistics.summary())
    return {"plasticity": found.pop("mean"), **found}


def _scale_columns(scales: Mapping[int, TokenScale]) -> dict[str, float]:
    """Mean token norm and smallest standard deviation of a token's features, over all passes."""
    if not scales:
        return {"token_norm": math.nan, "token_std_min": math.nan}
    count = sum(s.count for s in scales.values())
    total = math.fsum(s.total for s in scales.values())
    return {"token_norm": total / count, "token_std_min": min(s.std_min for s in scales.values())}
