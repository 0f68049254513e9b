"""The tokens that components get in the measured pairs: the sets that bounds hold on, found while rates are measured.

For each component, over every token of every item that pairs are made of: the smallest s(t) of a norm, and for
attention a ball. The ball's centre is the mean token of the first pass, its radius grows with every pass. (Any centre
gives a valid bound. The mean of all tokens would need all passes twice, to make the radius smaller by next to nothing.)
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from pliant.components import Component
from pliant.measuring.bounds_forms import NormForm
from pliant.measuring.meter import Meter
from pliant.numerics.attention_bounds import TokenBall
from pliant.numerics.estimate import Design
from pliant.numerics.rates import distances_all, distances_matched, distances_within, norms

ROUNDING = 2e-6
"""What float32 may change an output by, relative to its size ‖f(x)‖ and to what a bound L allows it to be, L·‖x‖: it
covers sums of thousands of products. Only pairs that are nearly equal notice it."""


@dataclass(frozen=True, eq=False)
class TokenSet:
    """The tokens that one component got.

    Attributes:
        count: how many.
        per_item: tokens per item.
        ball: about the mean token of the first pass; for attention only.
        s_min: the smallest value that a norm divided by; for norms only.
    """

    count: int = 0
    per_item: int = 0
    ball: TokenBall | None = None
    s_min: float | None = None


class SetMeter(Meter):
    """A meter that also keeps the set of tokens that each component got."""

    def __init__(self, components: Iterable[Component], design: Design, norm_forms: Mapping[str, NormForm]) -> None:
        """Prepare an empty set per component.

        Args:
            components: to be measured and bounded.
            design: how pairs are formed.
            norm_forms: formula of each norm, by component.
        """
        super().__init__(components, design)
        self.norm_forms = dict(norm_forms)
        self.sets = {c.id: TokenSet() for c in self.components}

    def listen(
        self, component: Component, entered: Float[Tensor, "batch *tokens width"], left: Float[Tensor, "batch *output"]
    ) -> None:
        """Count one component's input and output in this pass, and its tokens.

        Raises:
            MeasurementError: values that are not finite; names the component.
        """
        super().listen(component, entered, left)
        was, tokens = self.sets[component.id], entered.flatten(1, -2)
        ball, s_min = was.ball, was.s_min
        if component.role == "mha":
            ball = TokenBall.around(tokens) if ball is None else ball.including(tokens)
        if (form := self.norm_forms.get(component.id)) is not None:
            smallest = float(form.scales(tokens).min())
            s_min = smallest if s_min is None else min(s_min, smallest)
        seen = was.count + tokens.shape[0] * tokens.shape[1]
        self.sets[component.id] = TokenSet(seen, tokens.shape[1], ball, s_min)


class CertainMeter(Meter):
    """Finds the largest rate of change of each component that rounding cannot have caused, and nothing else.

    It is (‖f(x) − f(y)‖ − u(‖f(x)‖ + ‖f(y)‖))/(‖x − y‖ + u(‖x‖ + ‖y‖)) with u = `ROUNDING`: if f has the Lipschitz
    constant L and f(x) is computed within u·(‖f(x)‖ + L‖x‖), this is at most L. Distances are taken in float64.
    """

    def __init__(self, components: Iterable[Component], design: Design) -> None:
        """Prepare for pairs that are formed by this design."""
        super().__init__(components, design)
        self.largest = {c.id: 0.0 for c in self.components}

    def listen(
        self, component: Component, entered: Float[Tensor, "batch *input"], left: Float[Tensor, "batch *output"]
    ) -> None:
        """Take the rates of all pairs of one component."""
        inputs, outputs = self._distances(entered), self._distances(left)
        certain = (outputs - ROUNDING * self._sizes(left)).clamp(min=0)
        rates = torch.where(inputs > 0, certain / (inputs + ROUNDING * self._sizes(entered)), 0.0)
        self.largest[component.id] = max(self.largest[component.id], float(rates.max()))

    def _sizes(self, z: Tensor) -> Tensor:
        """Sum of the norms of the two items of each pair."""
        sizes, source = norms(z), self.pairing.source
        if self.design == "one-sample":
            return sizes[:, None] + sizes
        x, y = sizes[:source], sizes[source:]
        return x + y if self.design == "matched" else x[:, None] + y

    def _distances(self, z: Tensor) -> Tensor:
        source = self.pairing.source
        if self.design == "one-sample":
            return distances_within(z)
        between = distances_matched if self.design == "matched" else distances_all
        return between(z[:source], z[source:])
