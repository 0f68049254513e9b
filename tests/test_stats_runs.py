import itertools
import math

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats as scipy_stats

from pliant.errors import ConfigError
from pliant.stats import choose_learning_rates, complete_table, fewest_within_error, robustness, summarize


def runs(*, rates: tuple[float, ...] = (0.01, 0.1, 1.0), seeds: tuple[int, ...] = (0, 1, 2)) -> pd.DataFrame:
    """Cells of one group; the middle rate validates best, the largest tests best."""
    cells = [
        {
            "data": "digits",
            "variant": "mha",
            "learning_rate": rate,
            "seed": seed,
            "validation_accuracy": {0.01: 0.7, 0.1: 0.9, 1.0: 0.8}[rate] + seed / 100,
            "test_accuracy": {0.01: 0.6, 0.1: 0.7, 1.0: 0.95}[rate] + seed / 50,
            "status": "done",
        }
        for rate, seed in itertools.product(rates, seeds)
    ]
    return pd.DataFrame(cells)


class TestChoice:
    def test_validation_chooses_and_test_is_reported(self):
        (choice,) = choose_learning_rates(runs()).choices
        assert choice.learning_rates == (0.1,)
        assert choice.test.mean == pytest.approx(0.72)
        assert choice.test.std == pytest.approx(0.02)
        assert (choice.test.n, choice.test.varied, choice.seeds) == (3, "seed", (0, 1, 2))
        assert choice.edge is None
        assert choice.warnings == ()

    @settings(max_examples=20, deadline=None)
    @given(st.lists(st.floats(0, 1), min_size=9, max_size=9))
    def test_test_accuracy_never_chooses(self, test_accuracy):
        table = runs().assign(test_accuracy=test_accuracy)
        assert choose_learning_rates(table).choices[0].learning_rates == (0.1,)

    @pytest.mark.parametrize(
        ("rates", "edge", "said"),
        [((0.1, 1.0), "low", "at the low end"), ((0.01, 0.1), "high", "at the high end"), ((0.1,), "only", "only one")],
    )
    def test_edge_of_grid(self, rates, edge, said):
        found = choose_learning_rates(runs(rates=rates))
        assert found.choices[0].edge == edge
        assert any(said in warning for warning in found.warnings)

    def test_rate_that_diverged_still_bounds_the_grid(self):
        table = runs(rates=(0.01, 0.1, 1.0))
        table.loc[table["learning_rate"] == 1.0, ["status", "validation_accuracy"]] = ["diverged", math.nan]
        choice = choose_learning_rates(table).choices[0]
        assert choice.edge is None
        assert (choice.diverged, choice.unfinished) == (3, 0)
        assert any("cells that diverged: 3" in warning for warning in choice.warnings)

    def test_rate_with_a_missing_seed_does_not_compete(self):
        table = runs()
        lost = (table["learning_rate"] == 0.1) & (table["seed"] == 0)
        table.loc[lost, "status"] = "failed"
        choice = choose_learning_rates(table).choices[0]
        assert choice.learning_rates == (1.0,)
        assert choice.unfinished == 1

    def test_ties_go_to_the_smallest_rate(self):
        choice = choose_learning_rates(runs().assign(validation_accuracy=0.5)).choices[0]
        assert (choice.learning_rates, choice.tied) == ((0.01,), (0.1, 1.0))

    def test_a_rate_for_each_seed(self):
        table = runs()
        table.loc[(table["seed"] == 2) & (table["learning_rate"] == 1.0), "validation_accuracy"] = 0.99
        choice = choose_learning_rates(table, per="seed").choices[0]
        assert choice.learning_rates == (0.1, 0.1, 1.0)
        assert choice.test.n == 3
        assert choice.edge == "high"
        assert pd.isna(choose_learning_rates(table, per="seed").frame["learning_rate"][0])

    def test_one_seed_has_no_spread(self):
        choice = choose_learning_rates(runs(seeds=(0,))).choices[0]
        assert choice.test.std is None
        assert any("one seed" in warning for warning in choice.warnings)

    def test_without_test_accuracies(self):
        found = choose_learning_rates(runs().drop(columns="test_accuracy"))
        assert found.choices[0].test is None
        assert any("no test accuracy" in warning for warning in found.warnings)
        assert found.scores().isna().all(axis=None)

    def test_group_without_result_stands_apart(self):
        lost = runs().assign(variant="ln1", status="diverged")
        found = choose_learning_rates(pd.concat([runs(), lost], ignore_index=True))
        assert len(found.choices) == 1
        assert "digits/ln1: none of its 9 cells" in found.unavailable[0].reason
        assert found.warnings[-1] == found.unavailable[0].reason

    def test_scores_are_laid_out_for_tests(self):
        table = pd.concat([runs().assign(data=d, variant=c) for d in ("pet", "snow") for c in ("mha", "ln1")])
        table = table[~((table["data"] == "snow") & (table["variant"] == "ln1"))]
        scores = choose_learning_rates(table).scores()
        assert scores.index.tolist() == ["pet", "snow"]
        assert scores.columns.tolist() == ["mha", "ln1"]
        assert pd.isna(scores.loc["snow", "ln1"])
        assert complete_table(scores).dropped_data == ("snow",)

    def test_store_dtypes(self):
        """The store's frame has nullable integers, and NA where a cell has no value."""
        table = runs().astype({"seed": "Int64"})
        table.loc[0, ["status", "validation_accuracy", "test_accuracy"]] = ["diverged", None, None]
        choice = choose_learning_rates(table).choices[0]
        assert (choice.learning_rates, choice.seeds, choice.diverged) == ((0.1,), (0, 1, 2), 1)
        assert robustness(table).spreads[0].n == 8

    def test_optimisers_are_not_mixed(self):
        table = pd.concat([runs().assign(optimizer=o) for o in ("sgd", "adamw")], ignore_index=True)
        with pytest.raises(ConfigError, match="name in `by` what else differs"):
            choose_learning_rates(table)
        both = choose_learning_rates(table, by=("data", "variant", "optimizer"))
        assert both.frame["optimizer"].tolist() == ["sgd", "adamw"]
        with pytest.raises(ConfigError, match="one model and one optimiser at a time"):
            both.scores()

    def test_bad_tables(self):
        with pytest.raises(ConfigError, match="lacks seed"):
            choose_learning_rates(runs().drop(columns="seed"))
        with pytest.raises(ConfigError, match="nothing has been run yet"):
            choose_learning_rates(runs().iloc[:0])
        with pytest.raises(ConfigError, match="nothing to lay out"):
            choose_learning_rates(runs().assign(status="failed")).scores()
        with pytest.raises(ConfigError, match="do not name optimizer"):
            choose_learning_rates(runs()).scores(columns="optimizer")


ERROR = {"mha": 0.02, "fc1": 0.02, "ln1": 0.02}
SIZE = {"mha": 100, "fc1": 100, "ln1": 1}


class TestPick:
    def test_outside_one_standard_error_the_best_wins(self):
        pick = fewest_within_error({"mha": 0.9, "fc1": 0.85, "ln1": 0.87}, ERROR, parameters=SIZE)
        assert (pick.chosen, pick.tied) == ("mha", ("mha",))

    def test_exactly_one_standard_error_ties(self):
        pick = fewest_within_error({"mha": 0.9, "fc1": 0.85, "ln1": 0.88}, ERROR, parameters=SIZE)
        assert (pick.chosen, pick.best, pick.tied) == ("ln1", "mha", ("mha", "ln1"))

    def test_equal_sizes_go_to_the_more_accurate(self):
        pick = fewest_within_error({"fc1": 0.89, "mha": 0.9}, ERROR, parameters=SIZE)
        assert pick.chosen == "mha"

    def test_bad_candidates(self):
        with pytest.raises(ConfigError, match="no candidate"):
            fewest_within_error({}, {}, parameters={})
        with pytest.raises(ConfigError, match="no standard error or parameter count for emb"):
            fewest_within_error({"emb": 0.9}, {}, parameters={"emb": 1})
        with pytest.raises(ConfigError, match="not so for mha"):
            fewest_within_error({"mha": math.nan}, ERROR, parameters=SIZE)


class TestSpreadAndSummary:
    def test_robustness_over_rates_and_seeds(self):
        table = runs()
        (spread,) = robustness(table).spreads
        values = table["test_accuracy"]
        assert (spread.n, spread.learning_rates, spread.seeds, spread.missing) == (9, 3, 3, 0)
        assert spread.std == pytest.approx(values.std())
        assert spread.over_seeds == pytest.approx(0.02)
        assert spread.over_rates == pytest.approx(np.std([0.62, 0.72, 0.97], ddof=1))
        assert spread.range == pytest.approx(0.99 - 0.6)
        assert spread.quantiles[2] == pytest.approx(values.median())

    def test_robustness_counts_what_is_missing(self):
        table = runs()
        table.loc[0, "status"] = "diverged"
        assert robustness(table).spreads[0].missing == 1

    def test_robustness_of_one_cell(self):
        spread = robustness(runs(rates=(0.1,), seeds=(0,))).spreads[0]
        assert (spread.std, spread.over_rates, spread.over_seeds) == (None, None, None)

    def test_robustness_tables(self):
        table = pd.concat([runs(), runs().assign(variant="ln1", status="failed")], ignore_index=True)
        found = robustness(table)
        assert "ln1" in found.unavailable[0].reason
        assert found.frame["max"].tolist() == [pytest.approx(0.99)]
        assert found.table(measure="range").loc["digits", "mha"] == pytest.approx(0.39)
        assert robustness(runs()).table().loc["digits", "mha"] == pytest.approx(runs()["test_accuracy"].std())
        assert robustness(table[table["variant"] == "ln1"]).frame.empty

    def test_summary_interval_is_students(self):
        values = [0.90, 0.92, 0.97]
        summary = summarize(values)
        interval = scipy_stats.ttest_1samp(values, 0).confidence_interval(0.95)
        assert (summary.low, summary.high) == pytest.approx((interval.low, interval.high))
        assert str(summarize([0.5])) == "0.5000 (n = 1, seed)"

    @pytest.mark.parametrize("values", [[], [0.5, math.nan]])
    def test_summary_of_no_values(self, values):
        with pytest.raises(ConfigError, match="needs finite values"):
            summarize(values)
