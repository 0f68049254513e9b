"""What a report says in words: the question, the answer in one sentence with its uncertainty, and the warnings."""

from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd

from pliant.reporting.analysis import Series
from pliant.reporting.material import Material, short
from pliant.stats import Choice, Comparison, Unavailable
from pliant.terms import BLOCK_ROLES

WARNINGS_SHOWN = 40
"""More warnings than this are counted, not listed."""

NAMES_SHOWN = 12
"""Groups of cells that one warning names."""


def asked(material: Material, series: Sequence[Series]) -> str:
    """Say what the folder was made to find out."""
    if material.kind == "tune":
        config = material.config or {}
        chosen = config.get("components", "auto")
        what = "which components to train" if chosen == "auto" else f"how well training {chosen} does"
        budget = f", training at most {config['budget']} of the parameters" if config.get("budget") else ""
        data, model = (short(str(config.get(key, "?"))) for key in ("data", "model"))
        return f"On the images of {data}: {what} of {model}{budget}?"
    if material.kind == "sweep":
        runs = material.runs
        if runs.empty:
            return "Which components are worth training? No cell has a result yet."
        data, models = _listed(runs["data"]), _listed(runs["model"])
        count = runs["variant"].nunique()
        rates = runs.groupby(["data", "variant"], sort=False)["learning_rate"].nunique().max()
        return (
            f"Which of {count} component sets of {models} are worth training on {data}? "
            f"{len(runs)} runs over {'up to ' if _grids_vary(runs) else ''}{rates} learning rates each and "
            f"{runs['seed'].nunique()} seed{'s' if runs['seed'].nunique() != 1 else ''}."
        )
    labels = [label for label, _ in material.labelled]
    return (
        f"Which components bend? {'; '.join(labels)}."
        if labels
        else "What bounds, probes or landscapes say of a model."
    )


def _grids_vary(runs: pd.DataFrame) -> bool:
    return bool(runs.groupby(["data", "variant"], sort=False)["learning_rate"].nunique().nunique() > 1)


def _listed(names: pd.Series, *, shown: int = 4) -> str:
    unique = [short(str(n)) for n in names.drop_duplicates()]
    more = f" and {len(unique) - shown} more" if len(unique) > shown else ""
    return ", ".join(unique[:shown]) + more


def answer(material: Material, series: Sequence[Series]) -> str:
    """Give the answer in a sentence, with its uncertainty."""
    if material.kind == "tune":
        return _tuned(material.result or {})
    if material.kind == "sweep":
        said = [text for one in series if (text := _compared(one))]
        return " ".join(said) or "There is no answer yet: no run with a test accuracy is finished."
    return (
        " ".join(_measured(label, m.by_role) for label, m in material.labelled)
        or "See the charts; no plasticity was measured."
    )


def _tuned(result: Mapping[str, Any]) -> str:
    low, high = result.get("test_accuracy_ci", (None, None))
    share = ""
    if result.get("trained_parameters") and result.get("total_parameters"):
        share = f" ({result['trained_parameters'] / result['total_parameters']:.1%} of the parameters)"
    probe = result.get("probe_test_accuracy")
    beside = ""
    if isinstance(probe, float):
        ends = result.get("probe_test_accuracy_ci", (probe, probe))
        beside = f"; linear probing, {probe:.1%} ({ends[0]:.1%} to {ends[1]:.1%})"
    if low is None or high is None:
        return f"{result.get('chosen', '?')} was chosen: {result.get('reason', '')}."
    return (
        f"Training {result['chosen']}{share} gets {result['test_accuracy']:.1%} of {result['n_test']} test images "
        f"right (95 % interval {low:.1%} to {high:.1%}){beside}. One seed: how much another "
        "would change it is not known."
    )


def _compared(series: Series) -> str:
    """Name the best set; by ranks over data sets if there are several, else by its accuracy."""
    prefix = f"{series.label}: " if series.label else ""
    found = series.comparison
    if found is not None and found.n > 1 and not isinstance(found.friedman, Unavailable):
        return prefix + _ranked(found)
    chosen = series.chosen
    known = chosen[chosen["test"].notna()] if len(chosen) else chosen
    if known.empty:
        return ""
    said = []
    for data, part in known.groupby("data", sort=False):
        best = part.sort_values("validation", ascending=False, kind="stable").iloc[0]
        text = f"On {data}, {best['variant']} validates best; it gets {_with_interval(best)} of the test images right"
        full = part[part["variant"] == "full"]
        alone = part[part["variant"].isin(BLOCK_ROLES)].sort_values("validation", ascending=False, kind="stable")
        if best["variant"] == "full" and len(alone):
            text += f", and the best single component, {alone.iloc[0]['variant']}, {_with_interval(alone.iloc[0])}"
        elif len(full):
            text += f", full fine-tuning {_with_interval(full.iloc[0])}"
        if str(data) in series.probes:
            text += f", the linear probe {series.probes[str(data)].test.accuracy:.1%}"
        said.append(text + ".")
    return prefix + " ".join(said[:3])


def _with_interval(row: pd.Series) -> str:
    if pd.notna(row["std"]):
        return f"{row['test']:.1%} ± {100 * row['std']:.1f} points (std over {row['n']} seeds)"
    return f"{row['test']:.1%} (95 % interval {row['low']:.1%} to {row['high']:.1%}, one seed)"


def _ranked(found: Comparison) -> str:
    test = found.friedman
    if isinstance(test, Unavailable):
        return ""
    best, second = test.mean_ranks[0], test.mean_ranks[1]
    text = (
        f"Over {test.n} {'families' if test.varied == 'family' else 'data sets'}, {best[0]} ranks first (mean rank "
        f"{best[1]:.2f} of {test.k}), {second[0]} second ({second[1]:.2f}); ranks "
        f"{'differ' if test.p < 0.05 else 'do not differ significantly'} (Friedman p = {test.p:.2g}"
    )
    if found.families is not None and not isinstance(found.families.friedman, Unavailable):
        text += f"; on {found.families.n} families of data sets p = {found.families.friedman.p:.2g}"
    text += ")"
    if not isinstance(found.pairwise, Unavailable):
        pair, p = found.pairwise.of(best[0], second[0])
        sign = pair.mean.value if pair.a == best[0] else -(pair.mean.value or 0.0)
        text += f"; the two differ by {100 * (sign or 0.0):+.2f} points on average (Holm p = {p:.2g})"
    return text + "."


def _measured(label: str, roles: pd.DataFrame) -> str:
    ranked = roles.sort_values("plasticity", ascending=False, kind="stable")
    order = " > ".join(f"{r} {p:.3g}" for r, p in zip(ranked["role"], ranked["plasticity"], strict=True))
    error = float((ranked["stderr"] / ranked["plasticity"]).max())
    return f"{label}: plasticity {order} (standard errors at most {error:.1%})."


def warnings(material: Material, series: Sequence[Series]) -> tuple[str, ...]:
    """Return what limits the answer, a sentence each."""
    found = [*material.problems, *_unfinished(material.states)]
    if any(one.pruned for one in series):
        found.append(
            "Pruned: settings that were behind in short runs were given up, so spreads over learning rates are those "
            "of the settings that were kept, and a set without a row was not among the best."
        )
    if material.kind == "tune":
        found += [_sentence(note) for note in (material.result or {}).get("notes", [])]
        found += _disagreements(material.result or {})
    elif material.kind == "sweep":
        for one in series:
            found += [f"{one.label}: {text}" if one.label else text for text in _choice_warnings(one)]
            found += _order_warnings(one)
        found += _ties(series)
        found += _mixed(material)
    unique = list(dict.fromkeys(found))
    left = len(unique) - WARNINGS_SHOWN
    return (*unique[:WARNINGS_SHOWN], *([f"{left} more warnings of these kinds."] if left > 0 else []))


def _unfinished(states: Mapping[str, int]) -> list[str]:
    words = {
        "failed": "failed; their errors are in error.txt of their folders",
        "missing": "have not been run",
        "running": "were being run when this was written",
        "diverged": "diverged, so they have no accuracy",
    }
    total = sum(states.values())
    return [f"{states[s]} of {total} cells {text}." for s, text in words.items() if states.get(s)]


def _choice_warnings(series: Series) -> list[str]:
    """Say what limits the choices of learning rates, each kind once with the groups that it concerns."""
    chosen = series.choices.choices
    kinds = (
        ("The chosen learning rate is at an end of its grid, a better one may lie beyond", _edge),
        ("Only one learning rate was tried", lambda c: c.name if c.edge == "only" else ""),
        ("One seed only, so how much seeds matter is unknown", lambda c: c.name if len(c.seeds) == 1 else ""),
        ("Learning rates tie on validation, the smallest was taken", lambda c: c.name if c.tied else ""),
        ("Diverged runs", lambda c: f"{c.name} ({c.diverged})" if c.diverged else ""),
        ("Runs without a result", lambda c: f"{c.name} ({c.unfinished})" if c.unfinished else ""),
        ("Chosen runs without a test accuracy", lambda c: c.name if c.test is None else ""),
    )
    said = []
    for text, of in kinds:
        names = [name for choice in chosen if (name := of(choice))]
        if names:
            more = f" and {len(names) - NAMES_SHOWN} more" if len(names) > NAMES_SHOWN else ""
            said.append(f"{text}: {', '.join(names[:NAMES_SHOWN])}{more}.")
    return [*said, *(u.reason for u in series.choices.unavailable)]


def _edge(choice: Choice) -> str:
    if choice.edge not in ("low", "high"):
        return ""
    return f"{choice.name} ({choice.edge}, {min(choice.grid):g} to {max(choice.grid):g})"


def _disagreements(result: Mapping[str, Any]) -> list[str]:
    rows = [r for r in result.get("criteria") or [] if r.get("criterion") == "plasticity"]
    return [
        f"Plasticity's order of roles ({r['order']}) is not the race's: the race decided."
        for r in rows
        if r.get("same") is False
    ]


def _order_warnings(series: Series) -> list[str]:
    """Say so where the most plastic role is not the most accurate one."""
    if not series.plasticity or series.scores is None:
        return []
    found = []
    for data in series.scores.index:
        row = series.scores.loc[data]
        known = [c for c in series.scores.columns if c in series.plasticity and pd.notna(row[c])]
        if len(known) > 1:
            plastic = max(known, key=lambda c: series.plasticity[c])
            accurate = max(known, key=lambda c: float(row[c]))
            if plastic != accurate:
                found.append(f"{data} ({accurate}, not {plastic})")
    if not found:
        return []
    more = f" and {len(found) - NAMES_SHOWN} more" if len(found) > NAMES_SHOWN else ""
    how = f"The most accurate role is not the most plastic one ({series.convention})"
    return [f"{how}: {', '.join(found[:NAMES_SHOWN])}{more}."]


def _ties(series: Sequence[Series]) -> list[str]:
    """Name sets whose interval overlaps with the best one's."""
    found = []
    for one in series:
        chosen = one.chosen
        if chosen.empty:
            continue
        for data, part in chosen[chosen["test"].notna()].groupby("data", sort=False):
            best = part.sort_values("test", ascending=False, kind="stable").iloc[0]
            close = part[(part["high"] >= best["low"]) & (part["variant"] != best["variant"])]["variant"]
            if len(close):
                place = f"{one.label}, {data}" if one.label else str(data)
                found.append(f"{place}: {best['variant']} with {', '.join(close)}")
    if not found:
        return []
    more = f" and {len(found) - NAMES_SHOWN} more" if len(found) > NAMES_SHOWN else ""
    return [f"Intervals overlap, call it a tie: {'; '.join(found[:NAMES_SHOWN])}{more}."]


def _mixed(material: Material) -> list[str]:
    """Say so where cells ran under different versions or on different devices."""
    said = []
    for key in ("device", "threads", "versions", "dtype"):
        seen = {str(r.environment[key]) for r in material.records if key in r.environment}
        if len(seen) > 1:
            said.append(f"Cells differ in {key}: {'; '.join(sorted(seen)[:3])}. Small differences may come from that.")
    weights: dict[str, set[str]] = {}
    for record in material.records:
        weights.setdefault(record.cell.model, set()).add(str(record.environment.get("fingerprint")))
    changed = [model for model, seen in weights.items() if len(seen) > 1]
    return said + [f"{model}: cells were trained from different weights under this name." for model in changed]


def _sentence(text: str) -> str:
    return text if text.endswith((".", "!", "?")) else f"{text}."
