"""Sections on what a store's cells led to: accuracy, tests, robustness, cost, training."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

import pandas as pd

from pliant.errors import ConfigError
from pliant.reporting.analysis import Series
from pliant.reporting.charts import (
    POOLED,
    accuracy_and_cost,
    accuracy_by_set,
    criterion_and_outcome,
    draw_accuracy,
    draw_cost,
    draw_criterion,
    draw_gain,
    draw_ranks,
    draw_robustness,
    gain_by_set,
    rank_diagram,
    robustness_boxes,
)
from pliant.reporting.figure import Figure
from pliant.reporting.section import Section, attempt
from pliant.reporting.tables import Table, columns, table
from pliant.stats import Comparison, Unavailable, association_table


def probe_lines(series: Series) -> dict[str, tuple[float, float, float]]:
    """Return accuracy, low and high (Wilson's 95 % interval) of each data set's linear probe."""
    return {d: (p.test.accuracy, p.test.ci_low, p.test.ci_high) for d, p in series.probes.items()}


def accuracy_section(series: Series) -> Section:
    """Accuracy and gain by component set, and the table of choices."""
    absent: list[str] = []
    chosen = series.chosen
    probes = probe_lines(series)
    figures: tuple[Figure, ...] = ()
    tables: tuple[Table, ...] = ()
    if len(chosen):
        given = chosen.rename(columns={"data": "panel", "test": "mean"})
        accuracy = attempt(lambda: accuracy_by_set(given, series.order), absent)
        figures = tuple(draw_accuracy(frame, probes) for frame in accuracy)
        if probes and accuracy:
            figures += attempt(lambda: draw_gain(gain_by_set(accuracy[0], probes)), absent)
        tables = (_results_table(chosen, series),)
    lacking = [name for name in series.data if name not in probes]
    if lacking:
        absent.append(
            f"No linear probe of {', '.join(lacking)} in this store, so no gain over it (run `pliant probe`)."
        )
    return Section(
        "Accuracy",
        "Learning rate and checkpoint were chosen on validation images; the test images were read once per run.",
        figures,
        tables,
        tuple(absent),
    ).of(series.label)


def _results_table(chosen: pd.DataFrame, series: Series) -> Table:
    shown = columns(
        data=("data", "text"),
        variant=("trained", "text"),
        parameters=("parameters", "count"),
        learning_rate=("learning rate", "rate"),
        edge=("edge of grid", "text"),
        validation=("validation", "percent"),
        test=("test", "percent"),
        std=("std, points", "points"),
        n=("seeds", "count"),
        gain=("gain over probe", "percent"),
        memory=("peak memory, MB", "count"),
        seconds=("time, s", "number"),
        diverged=("diverged", "count"),
        unfinished=("unfinished", "count"),
    )
    probes = "; ".join(f"{d}: {p.test.accuracy:.1%} of {p.test.n}" for d, p in series.probes.items())
    return table(
        "results",
        "Results at the chosen learning rates",
        chosen,
        shown,
        note="Mean test accuracy over seeds and its standard deviation in percentage points; accuracy: correct / all. "
        f"Linear probe: {probes or 'none'}.",
    )


def tests_section(series: Series) -> Section:
    """Tests over data sets, on families too, and how criteria agree with the outcome."""
    found = series.comparison
    if found is None:
        return Section("Tests over data sets", absent=("No test accuracy, so nothing to test.",)).of(series.label)
    absent: list[str] = []
    figures: list[Figure] = []
    tables: list[Table] = []
    for whole, of in ((found, ""), (series.alone, " of single components")):
        for part in (whole, whole.families) if whole is not None else ():
            if part is None:
                continue
            tests = (part.friedman, part.pairwise, part.critical_difference)  # criteria have a section of their own
            reasons = [test.reason for test in tests if isinstance(test, Unavailable)]
            absent += [reason for reason in dict.fromkeys(reasons) if reason not in absent]
            if not isinstance(part.critical_difference, Unavailable):
                figure = draw_ranks(rank_diagram(part.critical_difference), part.critical_difference)
                named = f"{figure.name}-alone" if of else figure.name
                figures.append(replace(figure, name=named, title=figure.title.replace("ranks", f"ranks{of}")))
            tables += _test_tables(part, of)
    if found.dropped_data:
        absent.append(f"Left out of the tests, for want of a score: {', '.join(found.dropped_data)}.")
    return Section(
        "Tests over data sets",
        "Two-sided; pairs are corrected by Holm over all pairs. Data sets that share images count once in the tests on "
        "families. Groups of more sets are told apart less easily, so single components are also compared alone.",
        tuple(figures),
        tuple(tables),
        tuple(absent),
    ).of(series.label)


def _test_tables(part: Comparison, of: str) -> list[Table]:
    over = "families" if part.varied == "family" else "data sets"
    suffix = ("-families" if part.varied == "family" else "") + ("-alone" if of else "")
    tables = []
    test = part.friedman
    if not isinstance(test, Unavailable):
        means = dict(part.means)
        frame = pd.DataFrame([{"variant": c, "rank": rank, "mean": means[c]} for c, rank in test.mean_ranks])
        shown = columns(
            variant=("trained", "text"), rank=("mean rank", "number"), mean=("mean test accuracy", "percent")
        )
        note = (
            f"Friedman over {test.n} {over}: χ² = {test.statistic:.3g}, p = {test.p:.2g} (permutations: "
            f"{test.p_permutation:.2g}{'' if test.exact else ', sampled'}), Kendall's W = {test.concordance:.2f}."
        )
        tables.append(table(f"ranks{suffix}", f"Mean ranks{of} over {over}", frame, shown, note=note))
    if not isinstance(part.pairwise, Unavailable):
        shown = columns(
            a=("a", "text"),
            b=("b", "text"),
            mean=("a − b, points", "points"),
            mean_low=("from", "points"),
            mean_high=("to", "points"),
            cohen_dz=("effect d", "number"),
            rank_biserial=("rank-biserial", "number"),
            wilcoxon_p=("Wilcoxon p", "p"),
            wilcoxon_holm=("Holm", "p"),
            t_p=("t test p", "p"),
            t_holm=("Holm ", "p"),
        )
        note = f"Paired over {part.n} {over}; from–to: 95 % interval of the mean difference; effect d: mean / std."
        tables.append(table(f"pairs{suffix}", f"Pairs{of} over {over}", part.pairwise.frame, shown, note=note))
    return tables


def criterion_section(series: Series) -> Section:
    """Whether plasticity orders the outcome, beside the controls."""
    absent: list[str] = []
    figures: tuple[Figure, ...] = ()
    if series.plasticity and series.scores is not None:
        scores, name = series.scores, f"plasticity: {series.convention}, mean over blocks"
        figures = attempt(lambda: draw_criterion(criterion_and_outcome(scores, series.plasticity), name=name), absent)
    elif not series.plasticity:
        absent.append("No measurement of this model in the folder (`pliant measure --out FOLDER/measurement.parquet`).")
    found = series.comparison
    tables: list[Table] = []
    for method in ("spearman", "kendall"):
        result = None if found is None else getattr(found, method)
        if isinstance(result, Unavailable):
            absent.append(result.reason)
        elif result is not None:
            tables.append(_association_table(association_table(result), method))
    return Section(
        "Does plasticity order the outcome?",
        "Rank correlation over component sets, mean over data sets, beside two controls: the number of parameters, and "
        "a random order.",
        figures,
        tuple(tables),
        tuple(dict.fromkeys(absent)),
    ).of(series.label)


def _association_table(frame: pd.DataFrame, method: str) -> Table:
    shown = columns(
        criterion=("criterion", "text"),
        mean=("mean correlation", "number"),
        p=("p", "p"),
        smallest_p=("smallest p possible", "p"),
        random_low=("chance from", "number"),
        random_high=("to", "number"),
        n=("data sets", "count"),
        k=("component sets", "count"),
    )
    symbol = "Spearman's ρ" if method == "spearman" else "Kendall's τ"
    note = "p: two-sided, over permutations of the component sets; chance: the middle 95 % of random orders."
    return table(f"criteria-{method}", f"Order of criteria and outcome, {symbol}", frame, shown, note=note)


def robustness_section(series: Sequence[Series]) -> Section:
    """Spread over learning rates and seeds, by data set and pooled, optimisers side by side."""
    absent: list[str] = []
    parts, full = [], {}
    for one in series:
        place = ", ".join(str(v) for k, v in one.values.items() if k != "optimizer")
        for data in one.data:
            panel = f"{place}: {data}" if place else data
            cells = one.runs[(one.runs["data"].astype(str) == data) & (one.runs["status"] == "done")]
            parts.append(cells.assign(panel=panel, value=cells["test_accuracy"].astype("float64"), of=_best(one, data)))
            choice = one.choice(data, "full")
            if choice is not None and choice.test is not None:
                full[panel, str(one.runs["optimizer"].iloc[0])] = choice.test.mean
    cells = pd.concat(parts, ignore_index=True)
    if cells["panel"].nunique() > 1:
        pooled = cells.assign(panel=POOLED, value=cells["value"] - cells["of"])
        cells = pd.concat([pooled, cells], ignore_index=True)
    order = series[0].order
    figures = attempt(lambda: draw_robustness(robustness_boxes(cells, order), full), absent)
    absent += [u.reason for one in series for u in one.robustness.unavailable]
    tables = tuple(_spread_table(one) for one in series if one.robustness.spreads)
    lead = "Spread of test accuracy over learning rates and seeds: how much depends on choosing them well."
    return Section("Robustness", lead, figures, tables, tuple(absent))


def _best(series: Series, data: str) -> float:
    """Accuracy of full fine-tuning at its chosen rate, or of the best set where it was not run."""
    full = series.choice(data, "full")
    if full is not None and full.test is not None:
        return full.test.mean
    return max((c.test.mean for c in series.choices.choices if c.key[0] == data and c.test is not None), default=0.0)


def _spread_table(series: Series) -> Table:
    shown = columns(
        data=("data", "text"),
        variant=("trained", "text"),
        n=("runs", "count"),
        missing=("without result", "count"),
        mean=("mean", "percent"),
        std=("std, points", "points"),
        min=("lowest", "percent"),
        median=("median", "percent"),
        max=("highest", "percent"),
        over_rates=("std over rates", "points"),
        over_seeds=("std over seeds", "points"),
    )
    note = "Over all finished runs. Over rates: between the rates' means; over seeds: within a rate, pooled."
    made = table("robustness", "Spread over learning rates and seeds", series.robustness.frame, shown, note=note)
    return Section("", tables=(made,)).of(series.label).tables[0]


def cost_section(series: Series) -> Section:
    """Accuracy against parameters, memory and time."""
    absent: list[str] = []
    chosen = series.chosen
    figures = (
        attempt(lambda: draw_cost(accuracy_and_cost(averaged(chosen)), over=_over(chosen)), absent)
        if len(chosen)
        else ()
    )
    lead = "Parameters include the final norm and the new classifier, which are trained with every set."
    return Section("Cost", lead, figures, (), tuple(absent)).of(series.label)


def averaged(chosen: pd.DataFrame) -> pd.DataFrame:
    """Average the chosen results over the data sets that every component set has a test accuracy on.

    Raises:
        ConfigError: there is no such data set.
    """
    known = chosen[chosen["test"].notna()]
    counts = known.groupby("data")["variant"].nunique()
    everywhere = counts.index[counts == known["variant"].nunique()]
    shared = known[known["data"].isin(everywhere)]
    if shared.empty:
        raise ConfigError("no data set has a test accuracy for every component set, so means would not compare.")
    means = shared.groupby("variant", sort=False)[["test", "parameters", "memory", "seconds"]].mean()
    return means.reset_index().rename(columns={"test": "mean"})


def _over(chosen: pd.DataFrame) -> str:
    names = list(chosen["data"].drop_duplicates())
    return names[0] if len(names) == 1 else f"mean over {len(names)} data sets"


def scores_by_set(series: Series) -> Mapping[str, float]:
    """Return the mean test accuracy of each component set over the data sets that all sets have."""
    try:
        means = averaged(series.chosen)
    except (ConfigError, KeyError):
        return {}
    return dict(zip(means["variant"].astype(str), means["mean"].astype(float), strict=True))
