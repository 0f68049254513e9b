"""The estimate of plasticity from passes over pairs: mean rate, standard error, quantiles (docs/plasticity.md).

A *pass* takes some source and some target items and forms pairs within it. `RateStatistics` keeps a handful of sums
per pass and a histogram of the rates, never the pairs, so memory stays small however many passes are taken, and
statistics gathered by several processes merge to exactly what one process would have found, in any order.

Items are what is independent, pairs are not: a rate shares its source item with all others of its row. With h_i the
mean of the rates over the partners that item i has in its own pass, g_j likewise for target items,

    two samples   Var ≈ s²(h)/N + s²(g)/M        N source items, M target items
    one sample    Var ≈ 4 s²(h)/N                N items, each unordered pair once
    matched       Var = s²(r)/N                  N pairs (x_i, y_i)

where s² is the sample variance over all items of all passes. These are the first-order (Hoeffding) terms of the
variance of a U-statistic. The interval is Student's t with as many degrees of freedom as the smaller side has items,
less one: with few images the normal interval is too short.
"""

import math
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Any, Literal

import numpy as np
import torch
from jaxtyping import Float
from numpy.typing import NDArray
from scipy.special import stdtrit
from torch import Tensor

from pliant.errors import ConfigError, MeasurementError
from pliant.numerics.rates import rates_of_change

Design = Literal["two-sample", "one-sample", "matched"]
"""How pairs are formed in a pass: every source with every target item; every two items of one set; item by item."""

_DROPPED_BITS = 42
"""Low bits of a float64 that the histogram rounds away: 10 of the 52 bits of the mantissa stay, 1024 bins an octave."""


@dataclass(frozen=True)
class RateSummary:
    """What the pairs say about one component.

    Attributes:
        mean: plasticity P, the mean rate over distinct pairs.
        stderr: its standard error; NaN where too few items were seen to tell (two per side, three in one sample).
        ci_low, ci_high: 95 % interval, Student's t.
        n_source, n_target: items with at least one distinct partner (equal for one sample and matched pairs).
        n_pairs, n_dropped: pairs counted, and pairs dropped because their inputs were equal.
        q05, q50, q95: quantiles of the rates, within 0.05 % of an observed value. max: the exact largest one.
        ratio_of_means: mean output distance over mean input distance.
        input_rms, output_rms: root mean square Frobenius norm of the inputs and outputs; NaN if not recorded.
        relative: P · input_rms / output_rms, which does not change with the scale of inputs or outputs.
    """

    mean: float
    stderr: float
    ci_low: float
    ci_high: float
    n_source: int
    n_target: int
    n_pairs: int
    n_dropped: int
    q05: float
    q50: float
    q95: float
    max: float
    ratio_of_means: float
    input_rms: float
    output_rms: float
    relative: float


@dataclass(frozen=True)
class _Moments:
    """Number, mean and sum of squared deviations of some values."""

    count: int
    mean: float
    deviation: float

    @classmethod
    def of(cls, values: NDArray[np.float64]) -> "_Moments":
        mean = float(values.mean()) if values.size else 0.0
        return cls(values.size, mean, float(np.square(values - mean).sum()))

    @classmethod
    def pooled(cls, parts: Iterable["_Moments"]) -> "_Moments":
        """Pool; `fsum` rounds once, so the order of the parts does not matter to the last bit."""
        kept = [p for p in parts if p.count]
        count = sum(p.count for p in kept)
        if not count:
            return cls(0, math.nan, math.nan)
        mean = math.fsum(p.count * p.mean for p in kept) / count
        terms = [p.deviation for p in kept] + [p.count * (p.mean - mean) ** 2 for p in kept]
        return cls(count, mean, math.fsum(terms))

    @property
    def variance(self) -> float:
        """Sample variance; NaN for fewer than two values."""
        return self.deviation / (self.count - 1) if self.count > 1 else math.nan


@dataclass(frozen=True)
class _Pass:
    """The sums that one pass leaves behind."""

    pairs: int
    dropped: int
    total: float
    largest: float
    input_total: float
    output_total: float
    source: _Moments
    target: _Moments
    normed: int
    input_squares: float
    output_squares: float

    @classmethod
    def load(cls, state: Mapping[str, Any]) -> "_Pass":
        sides = {side: _Moments(**state[side]) for side in ("source", "target")}
        return cls(**{**state, **sides})


class RateStatistics:
    """Statistics of one component's rates, gathered pass by pass.

    A pass has a number, so that one that comes twice is refused (its items would be counted as new ones), and
    processes that share the work number theirs apart (rank, rank + world size, ...).

    >>> statistics = RateStatistics("two-sample")
    >>> inputs = torch.tensor([[1.0, 2.0], [0.0, 4.0]])
    >>> statistics.update(0, inputs, torch.tensor([[2.0, 2.0], [0.0, 2.0]]))
    >>> found = statistics.summary()
    >>> found.mean, found.n_pairs, found.n_dropped, found.max
    (1.1666666666666667, 3, 1, 2.0)
    """

    def __init__(self, design: Design) -> None:
        """Start empty."""
        self.design: Design = design
        self._passes: dict[int, _Pass] = {}
        self._histogram: Counter[int] = Counter()

    def __len__(self) -> int:
        """Return the number of passes."""
        return len(self._passes)

    def update(
        self,
        index: int,
        inputs: Float[Tensor, "..."],
        outputs: Float[Tensor, "..."],
        *,
        input_norms: Float[Tensor, " items"] | None = None,
        output_norms: Float[Tensor, " items"] | None = None,
    ) -> None:
        """Count one pass.

        Args:
            index: number of the pass, each at most once.
            inputs: distances of the component's inputs: (source, target) for two samples, (items, items) symmetric
                for one sample (the diagonal is ignored), (pairs,) for matched pairs.
            outputs: distances of its outputs, in the same order.
            input_norms: Frobenius norm of each input of the pass, source and target together.
            output_norms: the same of the outputs; both or neither.

        Raises:
            ConfigError: a pass that was counted before, or distances of another shape than the design's.
            MeasurementError: distances or norms that are not finite.
        """
        self._check(index, inputs, outputs, input_norms, output_norms)
        x, y, r = (_numpy(t) for t in (inputs, outputs, rates_of_change(inputs, outputs)))
        kept, once = ~np.isnan(r), np.ones(r.shape, dtype=bool)
        if self.design == "one-sample":
            once = np.triu(once, 1)
            np.fill_diagonal(kept, False)
        counted = r[kept & once]
        source = counted if self.design == "matched" else _item_means(r, kept)
        target = _item_means(r.T, kept.T) if self.design == "two-sample" else source
        self._passes[index] = _Pass(
            pairs=counted.size,
            dropped=int((~kept & once).sum()),
            total=float(counted.sum()),
            largest=float(counted.max(initial=-math.inf)),
            input_total=float(x[kept & once].sum()),
            output_total=float(y[kept & once].sum()),
            source=_Moments.of(source),
            target=_Moments.of(target),
            normed=0 if input_norms is None else input_norms.numel(),
            input_squares=_sum_of_squares(input_norms),
            output_squares=_sum_of_squares(output_norms),
        )
        codes, counts = np.unique(_rounded(counted), return_counts=True)
        self._histogram.update(dict(zip(codes.tolist(), counts.tolist(), strict=True)))

    def merge(self, *others: "RateStatistics") -> "RateStatistics":
        """Take over the passes of others, exactly as if this object had counted them; return self.

        Raises:
            ConfigError: another design, or a pass that both have counted.
        """
        for other in others:
            if other.design != self.design:
                raise ConfigError(f"cannot merge statistics of {other.design} pairs into those of {self.design} pairs")
            if twice := sorted(self._passes.keys() & other._passes.keys()):
                raise ConfigError(f"passes {twice} are in both statistics; each pass may be counted once")
            self._passes.update(other._passes)
            self._histogram.update(other._histogram)
        return self

    def state(self) -> dict[str, Any]:
        """Return everything as plain values (JSON keeps them exactly); `from_state` reads them back."""
        return {
            "design": self.design,
            "passes": [[index, asdict(p)] for index, p in sorted(self._passes.items())],
            "histogram": [[code, count] for code, count in sorted(self._histogram.items())],
        }

    @classmethod
    def from_state(cls, state: Mapping[str, Any]) -> "RateStatistics":
        """Rebuild what `state` was taken from.

        >>> RateStatistics.from_state(RateStatistics("matched").state()).design
        'matched'
        """
        made = cls(state["design"])
        made._passes = {int(index): _Pass.load(p) for index, p in state["passes"]}
        made._histogram = Counter({int(code): int(count) for code, count in state["histogram"]})
        return made

    def summary(self) -> RateSummary:
        """Return the estimate from all passes so far.

        Raises:
            MeasurementError: no distinct pair was seen.
        """
        passes = list(self._passes.values())
        pairs, dropped = sum(p.pairs for p in passes), sum(p.dropped for p in passes)
        if not pairs:
            raise MeasurementError(
                f"no distinct pair: the inputs were equal in all {dropped} pairs of {len(passes)} passes, so no rate "
                "of change is defined. Give source and target images that differ."
            )
        mean = math.fsum(p.total for p in passes) / pairs
        source, target = _Moments.pooled(p.source for p in passes), _Moments.pooled(p.target for p in passes)
        stderr = self._stderr(source, target)
        margin = stderr * float(stdtrit(min(source.count, target.count) - 1, 0.975))
        largest = max(p.largest for p in passes)
        q05, q50, q95 = (min(self._quantile(q, pairs), largest) for q in (0.05, 0.5, 0.95))
        normed = sum(p.normed for p in passes) or math.nan
        input_rms = math.sqrt(math.fsum(p.input_squares for p in passes) / normed)
        output_rms = math.sqrt(math.fsum(p.output_squares for p in passes) / normed)
        return RateSummary(
            mean=mean,
            stderr=stderr,
            ci_low=mean - margin,
            ci_high=mean + margin,
            n_source=source.count,
            n_target=target.count,
            n_pairs=pairs,
            n_dropped=dropped,
            q05=q05,
            q50=q50,
            q95=q95,
            max=largest,
            ratio_of_means=math.fsum(p.output_total for p in passes) / math.fsum(p.input_total for p in passes),
            input_rms=input_rms,
            output_rms=output_rms,
            relative=mean * input_rms / output_rms if output_rms else math.nan,
        )

    def _stderr(self, source: _Moments, target: _Moments) -> float:
        if self.design == "two-sample":
            return math.sqrt(source.variance / source.count + target.variance / target.count)
        if self.design == "one-sample":  # two items share one rate: their means are equal and say nothing
            return math.sqrt(4 * source.variance / source.count) if source.count > 2 else math.nan
        return math.sqrt(source.variance / source.count)

    def _quantile(self, q: float, pairs: int) -> float:
        """Smallest rate that at least a share q of the pairs does not exceed."""
        codes, counts = (np.array(part) for part in zip(*sorted(self._histogram.items()), strict=True))
        at = int(np.searchsorted(np.cumsum(counts), math.ceil(q * pairs)))
        return float((codes[at : at + 1] << _DROPPED_BITS).view(np.float64)[0])

    def _check(self, index: int, x: Tensor, y: Tensor, x_norms: Tensor | None, y_norms: Tensor | None) -> None:
        if index in self._passes:
            raise ConfigError(f"pass {index} was counted before; its items may not count twice")
        shapes = f"got shapes {tuple(x.shape)} and {tuple(y.shape)}"
        if x.shape != y.shape or x.ndim != (1 if self.design == "matched" else 2):
            expected = "(pairs,)" if self.design == "matched" else "(source items, target items)"
            raise ConfigError(f"distances of {self.design} pairs must both be {expected}; {shapes}")
        if self.design == "one-sample" and x.shape[0] != x.shape[1]:
            raise ConfigError(f"distances within one sample must be square; {shapes}")
        if (x_norms is None) != (y_norms is None):
            raise ConfigError("give the norms of both inputs and outputs, or of neither")
        for kind, values in (("input", x_norms), ("output", y_norms)):
            if values is not None and not bool(values.isfinite().all()):
                raise MeasurementError(f"norms of the {kind}s are not finite (NaN or infinite)")


def _numpy(x: Tensor) -> NDArray[np.float64]:
    return np.asarray(x.detach().to("cpu", torch.float64).numpy())


def _sum_of_squares(norms: Tensor | None) -> float:
    return 0.0 if norms is None else float(np.square(_numpy(norms)).sum())


def _item_means(r: NDArray[np.float64], kept: NDArray[np.bool_]) -> NDArray[np.float64]:
    """Mean over each row's kept rates; rows without any are left out."""
    partners = kept.sum(1)
    sums = np.where(kept, r, 0.0).sum(1)
    return np.asarray(sums[partners > 0] / partners[partners > 0])


def _rounded(values: NDArray[np.float64]) -> NDArray[np.int64]:
    """Number the values so that equal numbers mean equal leading bits; the order of non-negative values is kept."""
    bits = np.ascontiguousarray(values).view(np.int64)
    return np.asarray((bits + (1 << (_DROPPED_BITS - 1))) >> _DROPPED_BITS)
