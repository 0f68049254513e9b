"""What the chosen learning rates led to: one row for each data set and component set."""

from collections.abc import Mapping, Sequence

import pandas as pd

from pliant.runs.probes import ProbeLine
from pliant.stats import Choice, Summary, relative_gain


def chosen_table(
    choices: Sequence[Choice],
    runs: pd.DataFrame,
    *,
    order: Sequence[str],
    probes: Mapping[str, ProbeLine],
    parameters: Mapping[str, int],
) -> pd.DataFrame:
    """Return one row for each choice, by data set and then in the order of component sets.

    Columns: data, variant, parameters, learning_rate, edge, n, validation, test, std, low, high, interval, gain,
    seconds, memory (MB), diverged, unfinished. low and high are mean ± standard deviation over seeds; for a single
    seed Wilson's 95 % interval of its images. gain is None without a probe.
    """
    data = list(dict.fromkeys(c.key[0] for c in choices))
    ranked = sorted(choices, key=lambda c: (data.index(c.key[0]), order.index(c.key[1])))
    rows = []
    for choice in ranked:
        cells, probe = cells_of(choice, runs), probes.get(choice.key[0])
        low, high, interval = _interval(choice.test, cells)
        test, rates = choice.test, set(choice.learning_rates)
        rows.append(
            {
                "data": choice.key[0],
                "variant": choice.key[1],
                "parameters": parameters.get(choice.key[1]),
                "learning_rate": choice.learning_rates[0] if len(rates) == 1 else None,
                "edge": choice.edge,
                "n": choice.validation.n,
                "validation": choice.validation.mean,
                "test": None if test is None else test.mean,
                "std": None if test is None else test.std,
                "low": low,
                "high": high,
                "interval": interval,
                "gain": None if test is None or probe is None else relative_gain(test.mean, probe.test.accuracy),
                "seconds": _mean(cells["seconds"]),
                "memory": _mean(cells["peak_memory_bytes"].astype("float64") / 1e6),
                "diverged": choice.diverged,
                "unfinished": choice.unfinished,
            }
        )
    return pd.DataFrame(rows)


def cells_of(choice: Choice, runs: pd.DataFrame) -> pd.DataFrame:
    """Return the finished cells of a choice, one for each seed."""
    data, variant = choice.key
    here = (runs["data"].astype(str) == data) & (runs["variant"].astype(str) == variant) & (runs["status"] == "done")
    return runs[here & runs["learning_rate"].isin(choice.learning_rates)]


def _interval(test: Summary | None, cells: pd.DataFrame) -> tuple[float | None, float | None, str]:
    if test is None:
        return None, None, ""
    if test.std is not None:
        return test.mean - test.std, test.mean + test.std, f"± std over {test.n} seeds"
    one = cells.iloc[0]
    return float(one["test_ci_low"]), float(one["test_ci_high"]), "95 % interval of one run"


def _mean(values: pd.Series) -> float | None:
    return float(values.astype("float64").mean()) if values.notna().any() else None
