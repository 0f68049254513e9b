import ast
import itertools
import math
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats as scipy_stats

import pliant.stats
from pliant.errors import ConfigError
from pliant.stats import (
    Unavailable,
    associate,
    association_table,
    associations,
    compare,
    complete_table,
    critical_difference,
    family_means,
    friedman,
    holm,
    paired,
    pairwise,
    random_order,
    relative_gain,
    relative_gains,
)
from pliant.stats.effects import cohen_dz, hodges_lehmann, rank_biserial, signed_rank_probabilities
from pliant.stats.paired import wilcoxon

ROLES = ["mha", "fc1", "fc2", "ln2", "ln1"]
PLASTICITY_ORDER = {"mha": 5.0, "fc1": 4.0, "fc2": 3.0, "ln2": 2.0, "ln1": 1.0}
PARAMETERS = {"mha": 28_348_416, "fc1": 28_348_416, "fc2": 28_320_768, "ln2": 18_432, "ln1": 18_432}


@pytest.fixture(scope="module")
def paper() -> pd.DataFrame:
    path = Path(__file__).parent / "reference" / "paper_table.csv"
    return pd.read_csv(path, comment="#").set_index("dataset")


@pytest.fixture(scope="module")
def scores(paper: pd.DataFrame) -> pd.DataFrame:
    return paper[ROLES]


def frame(rows: list[list[float]], columns: list[str] | None = None) -> pd.DataFrame:
    columns = columns or ROLES[: len(rows[0])]
    return pd.DataFrame(rows, index=[f"set{i}" for i in range(len(rows))], columns=columns, dtype="float64")


def score_tables(
    *, rows: tuple[int, int] = (2, 6), columns: tuple[int, int] = (3, 5)
) -> st.SearchStrategy[pd.DataFrame]:
    """Accuracies as they come from small test sets, so that ties are common."""
    shapes = st.tuples(st.integers(*rows), st.integers(*columns))
    return shapes.flatmap(
        lambda shape: st.lists(
            st.lists(st.integers(0, 40).map(lambda correct: correct / 40), min_size=shape[1], max_size=shape[1]),
            min_size=shape[0],
            max_size=shape[0],
        ).map(frame)
    )


class TestPaperTable:
    """The published table's statistics (arXiv 2602.06883)."""

    def test_file_has_the_published_means(self, paper):
        means = paper[["full", *ROLES, "linear_probe"]].mean().round(2)
        assert means.tolist() == [90.85, 90.75, 90.68, 90.31, 89.93, 89.82, 64.22]

    def test_friedman(self, scores):
        test = friedman(scores)
        assert (test.n, test.k, test.varied) == (11, 5, "data set")
        assert test.p == pytest.approx(0.0081, abs=5e-5)
        assert test.statistic == pytest.approx(13.7534, abs=1e-4)
        assert test.p_permutation == pytest.approx(0.006, abs=0.002)
        assert dict(test.mean_ranks)["fc1"] == 2.0

    def test_wilcoxon_mha_ln1_is_exact(self, scores):
        test = paired(scores, "mha", "ln1")
        assert test.wilcoxon_method == "exact"
        assert test.wilcoxon_p == 6 / 2048  # 0.0029: three of the 2^11 sign patterns on each side
        assert test.wilcoxon_smallest_p == 2 / 2048

    def test_holm_over_the_ten_pairs(self, scores):
        tests = pairwise(scores)
        assert len(tests.tests) == 10
        assert tests.of("mha", "ln1")[1] == pytest.approx(60 / 2048, rel=1e-12)  # 0.029
        assert sum(p < 0.05 for p in tests.wilcoxon_holm) == 1

    def test_wilcoxon_mha_fc1_counts_its_tie(self, scores):
        """0.75 goes over all signs of the mean ranks; a method that overlooks the tie says 0.765."""
        test = paired(scores, "mha", "fc1")
        assert test.wilcoxon_method == "all signs"
        assert test.wilcoxon_p == 0.75

    def test_zero_is_left_out_of_wilcoxon(self, scores):
        test = paired(scores, "mha", "fc2")
        assert (test.n, test.zeros) == (11, 1)
        assert test.wilcoxon_smallest_p == 2 / 1024
        assert test.wilcoxon_p == 10 / 1024

    def test_families(self, scores, paper):
        means = family_means(scores, paper["family"].to_dict())
        test = friedman(means)
        assert (test.n, test.varied) == (5, "family")
        assert test.p == pytest.approx(0.245, abs=5e-4)

    def test_spearman_of_criteria(self, scores):
        found = associations(scores, {"plasticity order": PLASTICITY_ORDER}, parameters=PARAMETERS)
        plasticity, parameters, random = found
        assert plasticity.mean == pytest.approx(0.484, abs=5e-4)
        assert parameters.mean == pytest.approx(0.484, abs=5e-4)
        assert (random.mean, random.p) == (0.0, None)
        assert plasticity.p == pytest.approx(0.1)  # 12 of the 120 orders do as well, counting both sides
        assert plasticity.exact
        assert plasticity.random_low < plasticity.mean < plasticity.random_high

    def test_kendall_of_criteria(self, scores):
        found = associate(scores, PLASTICITY_ORDER, method="kendall")
        each = [scipy_stats.kendalltau(list(PLASTICITY_ORDER.values()), row).statistic for row in scores.to_numpy()]
        assert found.mean == pytest.approx(np.mean(each), abs=1e-12)
        assert found.mean == pytest.approx(0.376, abs=5e-4)

    def test_gain_over_the_probe(self, paper, scores):
        gains = relative_gains(scores, paper["linear_probe"].to_dict())
        assert gains.loc["domainnet-sketch", "mha"] == pytest.approx((69.23 - 29.08) / 29.08)

    def test_comparison_holds_it_all(self, scores, paper):
        result = compare(
            scores,
            families=paper["family"].to_dict(),
            criteria={"plasticity order": PLASTICITY_ORDER},
            parameters=PARAMETERS,
        )
        assert result.unavailable == ()
        assert result.families is not None
        assert (result.n, result.families.n, result.families.varied) == (11, 5, "family")
        assert result.friedman == friedman(scores)
        assert result.critical_difference.holm_groups == (("fc1", "mha", "ln2", "fc2"), ("ln2", "fc2", "ln1"))


class TestWilcoxon:
    @staticmethod
    def all_signs(difference: np.ndarray) -> float:
        """The definition: share of sign patterns whose rank sum is as far from its mean, zeros left out."""
        used = difference[difference != 0]
        sizes = np.abs(used)
        ranks = [sum(2 * (other < size) + (other == size) for other in sizes) + 1 for size in sizes]  # doubled
        observed = abs(sum(np.sign(d) * r for d, r in zip(used, ranks, strict=True)))
        patterns = itertools.product((-1, 1), repeat=len(ranks))
        sums = [abs(sum(s * r for s, r in zip(signs, ranks, strict=True))) for signs in patterns]
        return sum(s >= observed for s in sums) / len(sums)

    @settings(max_examples=40, deadline=None)
    @given(st.lists(st.integers(-6, 6), min_size=1, max_size=9))
    def test_matches_all_sign_patterns(self, values):
        difference = np.array(values, dtype=float)
        assert wilcoxon(difference)[1] == pytest.approx(self.all_signs(difference), abs=1e-12)

    def test_no_difference_at_all(self):
        test = paired(frame([[0.5, 0.5]] * 4), "mha", "fc1")
        assert (test.wilcoxon_p, test.zeros, test.t_p, test.rank_biserial) == (1.0, 4, None, 0.0)
        assert test.cohen_dz.value is None
        assert "equal" in test.cohen_dz.reason

    def test_constant_difference_has_no_t(self):
        test = paired(frame([[0.3, 0.1], [0.5, 0.3], [0.9, 0.7]]), "mha", "fc1")
        assert test.t_p is None
        assert test.mean.low is None
        assert test.wilcoxon_p == 0.25
        assert pairwise(frame([[0.3, 0.1], [0.5, 0.3]])).t_holm == (None,)

    def test_rounding_is_no_difference(self):
        table = frame([[0.1 + 0.2, 0.3], [0.7, 0.5], [0.8, 0.5]])
        assert table.loc["set0", "mha"] != table.loc["set0", "fc1"]
        assert paired(table, "mha", "fc1").zeros == 1

    @pytest.mark.parametrize(("size", "method"), [(20, "normal"), (13, "all signs")])
    def test_many_ties(self, size, method):
        values = np.array([1.0, 1.0, *range(2, size)])
        _, p, used = wilcoxon(values * np.resize([1.0, 1.0, -1.0], size))
        assert used == method
        assert 0 < p < 1

    def test_large_without_ties_is_normal(self):
        values = np.arange(1.0, 61.0) * np.resize([1.0, -1.0], 60)
        assert wilcoxon(values)[2] == "normal"

    @settings(max_examples=15, deadline=None)
    @given(score_tables(), st.randoms())
    def test_order_of_data_sets_is_irrelevant(self, table, random):
        rows = list(table.index)
        random.shuffle(rows)
        ours, shuffled = pairwise(table), pairwise(table.loc[rows])
        assert ours.wilcoxon_holm == pytest.approx(shuffled.wilcoxon_holm, abs=1e-12)
        assert friedman(table, resamples=9).p == pytest.approx(friedman(table.loc[rows], resamples=9).p, abs=1e-12)

    @settings(max_examples=30, deadline=None)
    @given(score_tables())
    def test_swapping_sides_changes_signs_only(self, table):
        ours, swapped = paired(table, "mha", "fc1"), paired(table, "fc1", "mha")
        assert ours.wilcoxon_p == swapped.wilcoxon_p
        assert ours.rank_biserial == -swapped.rank_biserial
        assert (ours.cohen_dz.low is None) == (swapped.cohen_dz.low is None)
        if ours.cohen_dz.low is not None:
            assert ours.cohen_dz.low == pytest.approx(-swapped.cohen_dz.high, abs=1e-6)
        assert ours.hodges_lehmann.value == pytest.approx(-swapped.hodges_lehmann.value, abs=1e-15)

    @settings(max_examples=12, deadline=None)
    @given(score_tables(rows=(2, 4)))
    def test_nothing_is_nan(self, table):
        result = compare(table, criteria={"order": dict(zip(table.columns, (1.0, 2.0, 3.0, 4.0, 5.0), strict=False))})
        numbers = [p for t in result.pairwise.tests for p in (t.wilcoxon_p, t.t_p, t.rank_biserial, t.cohen_dz.value)]
        numbers += [result.friedman.p, result.friedman.p_permutation, result.friedman.concordance]
        if not isinstance(result.spearman, Unavailable):
            numbers += [value for a in (*result.spearman, *result.kendall) for value in (a.mean, a.p, a.random_low)]
        assert all(number is None or math.isfinite(number) for number in numbers)


class TestEffects:
    def test_signed_rank_probabilities_are_those_of_the_exact_test(self):
        for n in (5, 9):
            cumulative = np.cumsum(signed_rank_probabilities(n))
            for losing in range(n):
                values = np.arange(1.0, n + 1)
                values[losing] *= -1  # the negative rank sum is losing + 1
                exact = scipy_stats.wilcoxon(values, alternative="greater", method="exact").pvalue
                assert cumulative[losing + 1] == pytest.approx(exact, abs=1e-12)

    @settings(max_examples=25, deadline=None)
    @given(st.lists(st.floats(-1, 1), min_size=6, max_size=12, unique=True))
    def test_hodges_lehmann_interval_inverts_the_test(self, values):
        """Shifts just inside the interval are not rejected, just outside they are."""
        difference = np.array(values)
        first, second = np.triu_indices(len(values))
        walsh = np.sort((difference[first] + difference[second]) / 2)
        if np.diff(walsh).min() < 1e-6:
            return
        estimate = hodges_lehmann(difference, level=0.95)
        assert estimate.low < estimate.value < estimate.high
        for bound, inwards in ((estimate.low, 1e-7), (estimate.high, -1e-7)):
            assert scipy_stats.wilcoxon(difference - bound - inwards, method="exact").pvalue > 0.05
            assert scipy_stats.wilcoxon(difference - bound + inwards, method="exact").pvalue <= 0.05

    def test_hodges_lehmann_needs_six_differences_for_95_percent(self):
        assert "too few" in hodges_lehmann(np.arange(1.0, 6.0), level=0.95).reason
        assert hodges_lehmann(np.arange(1.0, 6.0), level=0.90).low == 1.0

    def test_cohen_interval_solves_the_noncentral_t(self):
        difference = np.array([0.2, 1.1, 0.4, 0.9, -0.3, 0.5])
        estimate = cohen_dz(difference, level=0.9)
        t = scipy_stats.ttest_1samp(difference, 0).statistic
        assert estimate.value == pytest.approx(t / math.sqrt(6))
        for bound, probability in ((estimate.low, 0.95), (estimate.high, 0.05)):
            assert scipy_stats.nct.cdf(t, 5, bound * math.sqrt(6)) == pytest.approx(probability, abs=1e-6)

    def test_noncentral_t_against_its_integral(self):
        """P(T <= t) is the mean of Phi(t sqrt(v / df) - nc) over chi-squared v."""
        estimate = cohen_dz(np.array([0.2, 1.1, 0.4, 0.9, -0.3, 0.5]), level=0.95)
        t, nc = estimate.value * math.sqrt(6), estimate.low * math.sqrt(6)
        v = (np.arange(200_000) + 0.5) / 200_000
        values = scipy_stats.norm.cdf(t * np.sqrt(scipy_stats.chi2.ppf(v, 5) / 5) - nc)
        assert values.mean() == pytest.approx(0.975, abs=1e-5)

    @pytest.mark.parametrize("values", [[1.0, 1.0001], [-1.0, -1.0001]])
    def test_cohen_interval_out_of_reach_is_said(self, values):
        estimate = cohen_dz(np.array(values), level=0.95)
        assert abs(estimate.value) > 1e4
        assert estimate.low is None
        assert "noncentral t" in estimate.reason

    def test_interval_excludes_zero_exactly_when_t_rejects(self):
        random = np.random.default_rng(0)
        for shift in (0.0, 0.6, 0.9, 2.0):
            difference = random.normal(shift, 1, 8)
            estimate = cohen_dz(difference, level=0.95)
            assert (scipy_stats.ttest_1samp(difference, 0).pvalue < 0.05) == (estimate.low > 0 or estimate.high < 0)

    def test_rank_biserial_ends(self):
        assert rank_biserial(np.array([1.0, 2.0, 0.0])) == 1.0
        assert rank_biserial(np.array([-1.0, -2.0])) == -1.0

    def test_frame_has_a_row_for_each_pair(self, scores):
        table = pairwise(scores).frame
        assert len(table) == 10
        first = table.iloc[0]
        assert first["mean"] == pytest.approx(scores["mha"].mean() - scores["fc1"].mean())
        assert first["hodges_lehmann_low"] <= first["hodges_lehmann"] <= first["hodges_lehmann_high"]


class TestHolm:
    @settings(max_examples=50, deadline=None)
    @given(st.lists(st.floats(0, 1), min_size=1, max_size=12))
    def test_definition_and_order(self, p):
        corrected = holm(p)
        for i, value in enumerate(p):
            below = [q for q in p if q <= value]
            steps = [(len(p) - sum(r < q for r in p)) * q for q in below]
            assert corrected[i] == pytest.approx(min(1.0, max(steps)), abs=1e-12)
            assert value <= corrected[i] <= min(1.0, len(p) * value) + 1e-12
        assert sorted(corrected) == [corrected[i] for i in np.argsort(p, kind="stable")]

    def test_none_is_none(self):
        assert holm([]) == ()

    @pytest.mark.parametrize("bad", [[0.1, math.nan], [1.2], [-0.1]])
    def test_refuses_what_is_no_probability(self, bad):
        with pytest.raises(ConfigError, match="probabilities from 0 to 1"):
            holm(bad)

    def test_of_unknown_pair(self, scores):
        with pytest.raises(ConfigError, match="no test of 'mha' against 'emb'"):
            pairwise(scores).of("mha", "emb")


class TestRanks:
    def test_friedman_textbook(self):
        """Full agreement over n rows gives the largest statistic, n (k - 1), and W = 1."""
        test = friedman(frame([[3.0, 2.0, 1.0], [9.0, 5.0, 4.0], [1.0, 0.5, 0.1]]))
        assert test.statistic == pytest.approx(6)
        assert test.concordance == pytest.approx(1)
        assert test.exact
        assert test.p_permutation == pytest.approx(1 / 36)  # 6 of the 6^3 arrangements agree fully
        assert test.mean_ranks == (("mha", 1.0), ("fc1", 2.0), ("fc2", 3.0))

    def test_everything_ties(self):
        test = friedman(frame([[0.5] * 3] * 3))
        assert (test.statistic, test.p, test.p_permutation) == (0.0, 1.0, 1.0)

    def test_permutations_are_seeded(self, scores):
        assert friedman(scores, seed=1) == friedman(scores, seed=1)

    @pytest.mark.parametrize(("k", "q"), [(2, 1.960), (5, 2.728), (10, 3.164)])
    def test_nemenyi_quantiles(self, k, q):
        """Critical values of Demšar (2006), table 5a."""
        distance = pliant.stats.nemenyi_difference(k, 6)
        assert distance / math.sqrt(k * (k + 1) / 36) == pytest.approx(q, abs=6e-4)

    def test_groups(self):
        """Three components apart by more than the distance, each alone: no bars."""
        clear = frame([[0.9, 0.5, 0.1]] * 30) + np.random.default_rng(0).normal(0, 0.01, (30, 3))
        result = critical_difference(clear)
        assert result.nemenyi_groups == ()
        assert result.holm_groups == ()
        assert result.frame["component"].tolist() == ["mha", "fc1", "fc2"]

    def test_groups_never_join_a_differing_pair(self, scores):
        result, tests = critical_difference(scores), pairwise(scores)
        ranks = dict(result.mean_ranks)
        for group in result.holm_groups:
            assert all(tests.of(a, b)[1] >= 0.05 for a, b in itertools.combinations(group, 2))
        for group in result.nemenyi_groups:
            assert ranks[group[-1]] - ranks[group[0]] < result.difference

    @pytest.mark.parametrize("alpha", [0.0, 1.0, -1.0])
    def test_alpha(self, scores, alpha):
        with pytest.raises(ConfigError, match="alpha lies between 0 and 1"):
            critical_difference(scores, alpha=alpha)

    def test_nemenyi_of_nothing(self):
        with pytest.raises(ConfigError, match="2 components and a data set"):
            pliant.stats.nemenyi_difference(1, 5)


class TestAssociation:
    @pytest.mark.parametrize("method", ["spearman", "kendall"])
    def test_against_scipy_one_permutation_at_a_time(self, method, scores):
        correlate = {"spearman": scipy_stats.spearmanr, "kendall": scipy_stats.kendalltau}[method]
        table, values = scores.iloc[[0, 1, 10]], [5.0, 4.0, 4.0, 2.0, 1.0]

        def mean(order: list[float]) -> float:
            return float(np.mean([correlate(order, row).statistic for row in table.to_numpy()]))

        found = associate(table, dict(zip(ROLES, values, strict=True)), method=method)
        null = np.array([mean(list(order)) for order in itertools.permutations(values)])
        assert found.mean == pytest.approx(mean(values), abs=1e-12)
        one_sided = min((null >= found.mean - 1e-12).mean(), (null <= found.mean + 1e-12).mean())
        assert found.p == pytest.approx(min(1.0, 2 * one_sided))
        assert (found.random_low, found.random_high) == pytest.approx(tuple(np.quantile(null, [0.025, 0.975])))

    def test_perfect_order(self):
        table = frame([[0.9, 0.8, 0.7, 0.6, 0.5]])
        found = associate(table, PLASTICITY_ORDER)
        assert found.mean == pytest.approx(1)
        assert found.p == found.smallest_p == pytest.approx(2 / 120)
        assert found.per_data[0].p == pytest.approx(2 / 120)

    def test_criterion_measured_on_each_data_set(self):
        table = frame([[0.9, 0.8, 0.7], [0.1, 0.2, 0.3]])
        assert associate(table, table * 2).mean == pytest.approx(1)
        assert associate(table, {"mha": 3.0, "fc1": 2.0, "fc2": 1.0}).mean == pytest.approx(0)

    def test_data_set_in_which_all_tie_is_named(self):
        found = associate(frame([[0.9, 0.8, 0.7], [0.5, 0.5, 0.5]]), {"mha": 3.0, "fc1": 2.0, "fc2": 1.0})
        assert (found.n, found.undefined) == (1, ("set1",))
        assert found.mean == pytest.approx(1)

    def test_more_components_than_can_be_permuted(self):
        names = [f"c{i}" for i in range(9)]
        table = frame([list(np.linspace(0.1, 0.9, 9))], names)
        found = associate(table, {name: float(i) for i, name in enumerate(names)})
        assert not found.exact
        assert found.p < 1e-3

    def test_random_control_is_zero_with_its_spread(self, scores):
        control = random_order(scores)
        assert (control.mean, control.p) == (0.0, None)
        assert control.random_low < 0 < control.random_high
        assert all(entry.value == 0.0 for entry in control.per_data)

    def test_table(self, scores):
        rows = association_table(associations(scores, {"order": PLASTICITY_ORDER}, parameters=PARAMETERS))
        assert rows["criterion"].tolist() == ["order", "number of parameters", "random"]

    @settings(max_examples=20, deadline=None)
    @given(score_tables(rows=(1, 4), columns=(3, 4)), st.randoms())
    def test_order_of_rows_and_columns_is_irrelevant(self, table, random):
        rows, columns = list(table.index), list(table.columns)
        random.shuffle(rows)
        random.shuffle(columns)
        criterion = dict(zip(table.columns, (3.0, 1.0, 2.0, 2.0), strict=False))
        if (table.nunique(axis=1) == 1).all():
            return
        ours, other = associate(table, criterion), associate(table.loc[rows, columns], criterion)
        assert ours.mean == pytest.approx(other.mean, abs=1e-12)
        assert ours.p == pytest.approx(other.p, abs=1e-12)

    @pytest.mark.parametrize(
        ("criterion", "message"),
        [
            ({"mha": 1.0, "fc1": 2.0}, "has no value for component fc2"),
            ({"mha": 1.0, "fc1": 1.0, "fc2": 1.0}, "is the same for all components"),
            ({"mha": 1.0, "fc1": math.nan, "fc2": 2.0}, "missing"),
            (frame([[1.0, 2.0, 3.0]]), "has no value for data set set1"),
        ],
    )
    def test_criterion_that_cannot_be_used(self, criterion, message):
        with pytest.raises(ConfigError, match=message):
            associate(frame([[0.9, 0.8, 0.7], [0.1, 0.2, 0.3]]), criterion)

    def test_too_small(self):
        with pytest.raises(ConfigError, match="at least 3 components, got 2"):
            associate(frame([[0.9, 0.8]]), {"mha": 1.0, "fc1": 2.0})
        with pytest.raises(ConfigError, match="same accuracy in every data set"):
            associate(frame([[0.9] * 3]), {"mha": 1.0, "fc1": 2.0, "fc2": 3.0})


class TestTables:
    def test_one_data_set_says_so(self):
        with pytest.raises(ConfigError, match=r"Friedman test needs at least 2 data sets, got 1 \(set0\)"):
            friedman(frame([[0.1, 0.2, 0.3]]))
        with pytest.raises(ConfigError, match="at least 2 data sets, got 1"):
            paired(frame([[0.1, 0.2]]), "mha", "fc1")

    def test_two_components_are_a_pair_and_no_friedman(self):
        with pytest.raises(ConfigError, match="at least 3 components, got 2"):
            friedman(frame([[0.1, 0.2]] * 3))

    def test_missing_cells_are_named(self):
        table = frame([[0.1, math.nan, 0.3], [0.2, 0.3, math.inf]])
        with pytest.raises(ConfigError, match="set0/fc1, set1/fc2"):
            friedman(table)

    def test_many_missing_cells_are_counted(self):
        with pytest.raises(ConfigError, match="and 9 more"):
            friedman(frame([[math.nan] * 5] * 3))

    def test_label_twice(self):
        with pytest.raises(ConfigError, match="more than once: mha"):
            friedman(frame([[0.1, 0.2, 0.3]] * 2, ["mha", "mha", "fc1"]))

    def test_no_numbers(self):
        with pytest.raises(ConfigError, match="holds numbers only"):
            friedman(pd.DataFrame({"mha": ["high", "low"], "fc1": [1, 2], "fc2": [1, 2]}))

    @pytest.mark.parametrize(("a", "b"), [("mha", "emb"), ("mha", "mha")])
    def test_unknown_pair(self, scores, a, b):
        with pytest.raises(ConfigError, match="two different components"):
            paired(scores, a, b)

    def test_level(self, scores):
        with pytest.raises(ConfigError, match="level lies between 0 and 1"):
            paired(scores, "mha", "fc1", level=95.0)

    def test_complete_table_of_nothing(self):
        assert complete_table(frame([[math.nan, math.nan]])).table.empty

    def test_family_of_one_is_itself(self, scores):
        pd.testing.assert_frame_equal(family_means(scores, {}), scores, check_names=False)

    def test_comparison_gives_reasons_instead_of_nan(self):
        result = compare(frame([[0.1, 0.2, 0.3], [0.1, math.nan, 0.2]]), criteria={"order": PLASTICITY_ORDER})
        assert result.dropped_data == ("set1",)
        assert isinstance(result.friedman, Unavailable)
        assert any("at least 2 data sets, got 1" in reason for reason in result.unavailable)
        assert not isinstance(result.spearman, Unavailable)

    def test_comparison_correlates_what_has_a_criterion(self, paper):
        result = compare(paper[[*ROLES, "full"]], criteria={"order": PLASTICITY_ORDER}, parameters=PARAMETERS)
        assert result.spearman[0].components == tuple(ROLES)
        assert result.friedman.k == 6
        assert "no criterion was given" in compare(paper[ROLES]).spearman.reason

    def test_comparison_of_families_that_share_everything(self, scores):
        result = compare(scores.iloc[:2], families=dict.fromkeys(scores.index, "cifar"))
        assert any("at least 2 families, got 1" in reason for reason in result.families.unavailable)

    def test_comparison_alpha(self, scores):
        with pytest.raises(ConfigError, match="alpha lies between 0 and 1"):
            compare(scores, alpha=5.0)

    def test_comparison_of_an_empty_table(self):
        result = compare(pd.DataFrame())
        assert result.n == 0
        assert result.unavailable
        assert result.families is None


class TestGain:
    @pytest.mark.parametrize("probe", [0.0, math.nan, -1.0])
    def test_gain_needs_a_probe(self, probe):
        with pytest.raises(ConfigError, match="positive probe accuracy"):
            relative_gain(0.9, probe)

    def test_gains_name_what_lacks_a_probe(self, scores):
        with pytest.raises(ConfigError, match="no linear probe for cifar100"):
            relative_gains(scores, {data: 50.0 for data in scores.index if data != "cifar100"})
        with pytest.raises(ConfigError, match="differ in unit"):
            relative_gains(scores, dict.fromkeys(scores.index, 0.5))
        with pytest.raises(ConfigError, match="positive probe accuracies"):
            relative_gains(scores, dict.fromkeys(scores.index[1:], 50.0) | {scores.index[0]: 0.0})


def test_statistics_need_no_torch():
    """`pliant report` and `pliant runs` must start without it."""
    for path in Path(pliant.stats.__path__[0]).glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            assert not [name for name in names if name.split(".")[0] in ("torch", "transformers", "ray")], path
