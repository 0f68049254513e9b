"""The estimate of plasticity: formulas against slow references, coverage by simulation, exact merging."""

import json
import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import t as student

from pliant.errors import ConfigError, MeasurementError
from pliant.numerics.estimate import Design, RateStatistics, RateSummary

Passes = list[tuple[torch.Tensor, torch.Tensor]]


def random_passes(seed: int, shapes: list[tuple[int, ...]], *, drops: float = 0.0) -> Passes:
    rng = np.random.default_rng(seed)
    made = []
    for shape in shapes:
        inputs = rng.uniform(1, 2, shape) * (rng.uniform(size=shape) >= drops)
        outputs = inputs * rng.lognormal(size=shape)
        made.append((torch.from_numpy(inputs), torch.from_numpy(outputs)))
    return made


def symmetric(passes: Passes) -> Passes:
    return [tuple((m.triu(1) + m.triu(1).T) for m in pair) for pair in passes]  # type: ignore[misc]


def gather(design: Design, passes: Passes, start: int = 0) -> RateStatistics:
    made = RateStatistics(design)
    for index, (inputs, outputs) in enumerate(passes, start):
        made.update(index, inputs, outputs)
    return made


def slow_two_sample(passes: Passes) -> tuple[float, float, int, int]:
    """Mean, standard error and item counts by loops, as docs/plasticity.md writes them."""
    rates, rows, columns = [], [], []
    for inputs, outputs in passes:
        r = {
            (i, j): float(outputs[i, j] / inputs[i, j])
            for i in range(inputs.shape[0])
            for j in range(inputs.shape[1])
            if inputs[i, j] > 0
        }
        rates += list(r.values())
        for side, means in ((0, rows), (1, columns)):
            for item in range(inputs.shape[side]):
                own = [v for key, v in r.items() if key[side] == item]
                if own:
                    means.append(sum(own) / len(own))
    variance = np.var(rows, ddof=1) / len(rows) + np.var(columns, ddof=1) / len(columns)
    return sum(rates) / len(rates), math.sqrt(variance), len(rows), len(columns)


@pytest.mark.parametrize("drops", [0.0, 0.5, 0.8])
@pytest.mark.parametrize("shapes", [[(8, 12)], [(5, 5)] * 3, [(6, 4), (3, 2)]])
def test_two_samples(shapes: list[tuple[int, ...]], drops: float) -> None:
    passes = random_passes(3, shapes, drops=drops)
    found = gather("two-sample", passes).summary()
    mean, stderr, n, m = slow_two_sample(passes)
    assert (found.mean, found.stderr) == pytest.approx((mean, stderr), rel=1e-12)
    assert (found.n_source, found.n_target) == (n, m)
    assert found.n_dropped == sum(int((x == 0).sum()) for x, _ in passes)
    assert found.n_pairs + found.n_dropped == sum(x.numel() for x, _ in passes)
    half = student.ppf(0.975, min(n, m) - 1) * stderr
    assert (found.ci_low, found.ci_high) == pytest.approx((mean - half, mean + half), rel=1e-9)


@pytest.mark.parametrize("sizes", [[5], [4, 4, 4], [6, 3]])
def test_one_sample(sizes: list[int]) -> None:
    passes = symmetric(random_passes(1, [(n, n) for n in sizes]))
    passes[0][0][0, 1] = passes[0][0][1, 0] = 0
    found = gather("one-sample", passes).summary()
    pairs, items = [], []
    for inputs, outputs in passes:
        n = len(inputs)
        r = {(i, j): float(outputs[i, j] / inputs[i, j]) for i in range(n) for j in range(n) if inputs[i, j] > 0}
        pairs += [v for (i, j), v in r.items() if i < j]
        items += [np.mean([v for (a, _), v in r.items() if a == i]) for i in range(n)]
    assert found.mean == pytest.approx(np.mean(pairs), rel=1e-12)
    assert found.stderr == pytest.approx(math.sqrt(4 * np.var(items, ddof=1) / len(items)), rel=1e-12)
    assert (found.n_source, found.n_target, found.n_pairs, found.n_dropped) == (len(items), len(items), len(pairs), 1)


def test_matched() -> None:
    passes = random_passes(2, [(8,), (5,)])
    found = gather("matched", passes).summary()
    rates = torch.cat([y / x for x, y in passes]).numpy()
    assert found.mean == pytest.approx(rates.mean(), rel=1e-12)
    assert found.stderr == pytest.approx(rates.std(ddof=1) / math.sqrt(13), rel=1e-12)
    assert (found.n_source, found.n_target, found.n_pairs, found.n_dropped) == (13, 13, 13, 0)


@pytest.mark.parametrize("q", [0.05, 0.5, 0.95])
def test_quantiles_are_those_of_the_pairs(q: float) -> None:
    passes = random_passes(5, [(16, 16)] * 4)
    found = gather("two-sample", passes).summary()
    rates = torch.cat([(y / x).flatten() for x, y in passes]).numpy()
    expected = np.quantile(rates, q, method="inverted_cdf")
    assert getattr(found, f"q{round(100 * q):02d}") == pytest.approx(expected, rel=2**-11)
    assert found.max == rates.max()


def test_ratio_of_means_and_relative_plasticity() -> None:
    statistics = RateStatistics("matched")
    inputs, outputs = torch.tensor([1.0, 3.0, 0.0]), torch.tensor([2.0, 9.0, 0.0])
    in_norms, out_norms = torch.tensor([3.0, 4.0]), torch.tensor([5.0, 10.0])
    statistics.update(0, inputs, outputs, input_norms=in_norms, output_norms=out_norms)
    found = statistics.summary()
    assert found.mean == 2.5
    assert found.ratio_of_means == 11 / 4
    assert (found.input_rms, found.output_rms) == (math.sqrt(12.5), math.sqrt(62.5))
    assert found.relative == pytest.approx(2.5 / math.sqrt(5), rel=1e-15)


@settings(max_examples=25, deadline=None)
@given(a=st.floats(1e-6, 1e6), b=st.floats(1e-6, 1e6))
def test_relative_plasticity_does_not_change_with_scale(a: float, b: float) -> None:
    ((inputs, outputs),) = random_passes(0, [(3, 4)])
    norms = torch.tensor([1.0, 2.0, 3.0], dtype=torch.float64)
    found = []
    for p, q in ((1.0, 1.0), (a, b)):
        statistics = RateStatistics("two-sample")
        statistics.update(0, p * inputs, q * outputs, input_norms=p * norms, output_norms=q * norms)
        found.append(statistics.summary())
    assert found[1].relative == pytest.approx(found[0].relative, rel=1e-12)
    assert found[1].mean == pytest.approx(found[0].mean * b / a, rel=1e-12)
    assert found[1].stderr == pytest.approx(found[0].stderr * b / a, rel=1e-9)


@pytest.mark.parametrize(
    ("design", "passes", "size"), [("two-sample", 1, 16), ("two-sample", 3, 8), ("one-sample", 2, 24)]
)
def test_the_interval_covers_the_truth(design: Design, passes: int, size: int) -> None:
    """Rates with item effects on both sides: the interval holds the true mean in about 95 % of repetitions.

    An interval from independent pairs would hold it in about half of them.
    """
    rng = np.random.default_rng(0)
    repetitions, hits, means, stderrs, naive = 400, 0, [], [], 0
    for _ in range(repetitions):
        statistics = RateStatistics(design)
        for index in range(passes):
            source = rng.exponential(size=size)
            target = source if design == "one-sample" else rng.exponential(size=size)
            noise = rng.uniform(-0.3, 0.3, (size, size))
            rate = 1 + source[:, None] + target[None, :] + (noise + noise.T if design == "one-sample" else noise)
            rate = torch.from_numpy(rate)
            statistics.update(index, torch.ones_like(rate), rate)
        found = statistics.summary()
        hits += found.ci_low <= 3 <= found.ci_high
        naive += abs(found.mean - 3) <= 1.96 * rate.std().item() / math.sqrt(found.n_pairs)
        means.append(found.mean)
        stderrs.append(found.stderr)
    assert 0.92 <= hits / repetitions <= 0.98
    assert naive / repetitions < 0.7
    assert np.mean(stderrs) == pytest.approx(np.std(means), rel=0.12)


@settings(max_examples=30, deadline=None)
@given(owners=st.lists(st.integers(0, 2), min_size=6, max_size=6), order=st.permutations(range(3)))
def test_merging_is_exact_in_any_order(owners: list[int], order: list[int]) -> None:
    passes = random_passes(7, [(4, 5)] * 6, drops=0.2)
    parts = [RateStatistics("two-sample") for _ in range(3)]
    for index, owner in reversed(list(enumerate(owners))):
        parts[owner].update(index, *passes[index])
    sent = [RateStatistics.from_state(json.loads(json.dumps(parts[k].state()))) for k in order]
    merged = RateStatistics("two-sample").merge(*sent)
    whole = gather("two-sample", passes)
    assert merged.state() == whole.state()
    assert repr(merged.summary()) == repr(whole.summary())


def test_memory_does_not_grow_with_the_pairs() -> None:
    """Rates between 1 and 2 fill one octave of the histogram, however many there are."""
    ones = torch.ones(300, 300)
    rate = 1 + torch.rand(300, 300, generator=torch.Generator().manual_seed(0))
    state = gather("two-sample", [(ones, rate)] * 3).state()
    assert len(state["histogram"]) <= 1025


def test_too_few_items_give_a_mean_without_an_error() -> None:
    for design, shape in (("two-sample", (1, 5)), ("matched", (1,)), ("one-sample", (2, 2))):
        passes = random_passes(0, [shape])
        found = gather(design, symmetric(passes) if design == "one-sample" else passes).summary()  # type: ignore[arg-type]
        assert math.isfinite(found.mean)
        assert math.isnan(found.stderr)
        assert math.isnan(found.ci_low)


def test_equal_rates_have_no_spread() -> None:
    ones = torch.ones(4, 4)
    found = gather("two-sample", [(ones, 2 * ones)]).summary()
    assert (found.mean, found.stderr, found.ci_low, found.q05, found.q95, found.max) == (2, 0, 2, 2, 2, 2)


def test_no_distinct_pair_is_an_error() -> None:
    with pytest.raises(MeasurementError, match="no distinct pair: the inputs were equal in all 4 pairs of 1 passes"):
        gather("two-sample", [(torch.zeros(2, 2), torch.zeros(2, 2))]).summary()
    with pytest.raises(MeasurementError, match="no distinct pair"):
        RateStatistics("matched").summary()
    with pytest.raises(MeasurementError, match="no distinct pair"):
        gather("one-sample", [(torch.zeros(1, 1), torch.zeros(1, 1))]).summary()


def test_a_pass_counts_once() -> None:
    statistics = gather("matched", random_passes(0, [(3,)]))
    assert len(statistics) == 1
    with pytest.raises(ConfigError, match="pass 0 was counted before"):
        statistics.update(0, torch.ones(3), torch.ones(3))
    with pytest.raises(ConfigError, match=r"passes \[0\] are in both"):
        statistics.merge(gather("matched", random_passes(1, [(3,)])))


def test_misuse_is_refused() -> None:
    ones = torch.ones(2, 3)
    with pytest.raises(ConfigError, match=r"must both be \(pairs,\); got shapes \(2, 3\)"):
        RateStatistics("matched").update(0, ones, ones)
    with pytest.raises(ConfigError, match=r"must both be \(source items, target items\)"):
        RateStatistics("two-sample").update(0, ones, ones.T)
    with pytest.raises(ConfigError, match="must be square"):
        RateStatistics("one-sample").update(0, ones, ones)
    with pytest.raises(ConfigError, match="both inputs and outputs"):
        RateStatistics("two-sample").update(0, ones, ones, input_norms=torch.ones(5))
    with pytest.raises(ConfigError, match="cannot merge statistics of matched pairs into those of two-sample pairs"):
        RateStatistics("two-sample").merge(RateStatistics("matched"))


def test_values_that_are_not_finite_are_refused() -> None:
    ones, nan = torch.ones(3), torch.tensor([1.0, math.nan, 1.0])
    with pytest.raises(MeasurementError, match="1 of 3 output distances are not finite"):
        RateStatistics("matched").update(0, ones, nan)
    with pytest.raises(MeasurementError, match="norms of the outputs are not finite"):
        RateStatistics("matched").update(0, ones, ones, input_norms=ones, output_norms=nan)


def test_a_refused_pass_leaves_nothing_behind() -> None:
    statistics = RateStatistics("matched")
    with pytest.raises(MeasurementError, match="not finite"):
        statistics.update(0, torch.ones(2), torch.tensor([1.0, math.inf]))
    assert len(statistics) == 0
    statistics.update(0, torch.ones(2), torch.ones(2))
    assert isinstance(statistics.summary(), RateSummary)
