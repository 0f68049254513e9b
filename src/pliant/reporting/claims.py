"""The paper's four claims (arXiv 2602.06883), held to what a store shows.

A verdict is about these runs only: "holds", "holds in part", "does not hold", or "cannot be told" with the reason.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

import numpy as np
import pandas as pd
from scipy import stats

from pliant.errors import ConfigError
from pliant.reporting.analysis import PAPERS_CONVENTION, Series
from pliant.reporting.charts import steps_to_loss, training_curves
from pliant.reporting.chosen import cells_of
from pliant.reporting.results import scores_by_set
from pliant.reporting.section import Section
from pliant.reporting.tables import columns, table
from pliant.stats import associate
from pliant.terms import BLOCK_ROLES

Verdict = Literal["holds", "holds in part", "does not hold", "cannot be told"]

MAPS = ("mha", "fc1", "fc2")
NORMS = ("ln2", "ln1")

DECISIVE = 0.1
"""Largest two-sided p, over all permutations of the roles, at which a rank correlation decides: |ρ| ≥ 0.9 for five."""


@dataclass(frozen=True)
class Claim:
    """One claim and what the runs say of it.

    Attributes:
        text: the claim.
        verdict: about these runs.
        evidence: the numbers behind it.
    """

    text: str
    verdict: Verdict
    evidence: str


def claims(series: Series, curves: pd.DataFrame) -> tuple[Claim, ...]:
    """Hold the paper's claims to a series.

    Args:
        series: an analysed store.
        curves: as `step_rows` returns them; may be empty.
    """
    scores = scores_by_set(series)
    return (
        _order_of_plasticity(series),
        _maps_beat_norms(scores),
        _maps_vary_less(series),
        *_plastic_is_faster(series, curves),
        _mha_competes(series),
    )


def claims_section(series: Series, curves: pd.DataFrame) -> Section:
    """The claims as a table."""
    frame = pd.DataFrame([vars(claim) for claim in claims(series, curves)])
    shown = columns(text=("claim", "text"), verdict=("here it", "text"), evidence=("because", "text"))
    note = (
        "Verdicts are about these runs: this model, this data, these steps. Differences within one standard deviation "
        f"prove nothing; a rank correlation decides at p ≤ {DECISIVE:g}."
    )
    made = table("claims", "Claims and these runs", frame, shown, note=note)
    return Section("The paper's claims", "", (), (made,)).of(series.label)


def _order_of_plasticity(series: Series) -> Claim:
    text = "1. Plasticity: mha > fc1 ≈ fc2 > ln2 > ln1, above 1 for mha and fc, below 1 for the norms."
    plasticity = series.plasticity
    known = [role for role in (*MAPS, *NORMS) if role in plasticity]
    if len(known) < len(BLOCK_ROLES):
        return Claim(text, "cannot be told", "this model's plasticity was not measured.")
    order = sorted(known, key=lambda role: -plasticity[role])
    maps, norms = [plasticity[r] for r in MAPS], [plasticity[r] for r in NORMS]
    ordered = plasticity["mha"] > max(plasticity["fc1"], plasticity["fc2"]) and min(maps) > max(norms)
    sides = min(maps) > 1 > max(norms)
    shown = " > ".join(f"{role} {plasticity[role]:.2f}" for role in order)
    how = f"{series.convention} convention"
    if series.convention != PAPERS_CONVENTION:
        how += f", the paper's is {PAPERS_CONVENTION}"
    return Claim(text, _verdict([ordered, sides]), f"measured ({how}) {shown}.")


def _maps_beat_norms(scores: Mapping[str, float]) -> Claim:
    text = "2a. mha, fc1 and fc2 alone reach higher accuracy than the norms alone."
    pairs = [(a, b) for a in MAPS for b in NORMS if a in scores and b in scores]
    if not pairs:
        return Claim(text, "cannot be told", "no accuracy of both kinds.")
    won = [scores[a] > scores[b] for a, b in pairs]
    shown = ", ".join(f"{name} {scores[name]:.1%}" for name in (*MAPS, *NORMS) if name in scores)
    return Claim(text, _verdict(won), f"{sum(won)} of {len(won)} pairs that way: {shown}.")


def _maps_vary_less(series: Series) -> Claim:
    text = "2b. They vary less than the norms over learning rates and seeds."
    if series.pruned:
        return Claim(text, "cannot be told", "settings were pruned after short runs, so spreads are not known.")
    frame = series.robustness.frame
    if frame.empty or frame["std"].notna().sum() == 0:
        return Claim(text, "cannot be told", "no set has several runs.")
    spread = frame.dropna(subset="std").groupby("variant", sort=False)["std"].mean()
    pairs = [(a, b) for a in MAPS for b in NORMS if a in spread.index and b in spread.index]
    if not pairs:
        return Claim(text, "cannot be told", "no runs of both kinds.")
    won = [bool(spread[a] < spread[b]) for a, b in pairs]
    shown = ", ".join(f"{name} {100 * spread[name]:.1f}" for name in (*MAPS, *NORMS) if name in spread.index)
    own = ", each over its own grid of rates" if _grids_differ(series) else ""
    return Claim(
        text, _verdict(won), f"{sum(won)} of {len(won)} pairs that way; standard deviation in points{own}: {shown}."
    )


def _grids_differ(series: Series) -> bool:
    """Whether maps and norms were tried at different learning rates on one data set."""
    grids: dict[str, set[tuple[float, ...]]] = {}
    for choice in series.choices.choices:
        data, variant = choice.key
        if variant in (*MAPS, *NORMS):
            grids.setdefault(data, set()).add(choice.grid)
    return any(len(found) > 1 for found in grids.values())


def _plastic_is_faster(series: Series, curves: pd.DataFrame) -> tuple[Claim, Claim]:
    norms = "3a. The more plastic a component, the larger its gradient norm."
    steps = "3b. The more plastic a component, the faster its loss falls."
    try:
        drawn = training_curves(curves, series.order)
        reached = steps_to_loss(drawn)
    except ConfigError as error:
        return Claim(norms, "cannot be told", str(error)), Claim(steps, "cannot be told", str(error))
    gradient = drawn[drawn["quantity"] == "gradient_norm"].groupby("variant")["value"].mean()
    never = float(reached["steps"].max()) * 2 if reached["steps"].notna().any() else 1.0
    speed = -reached.assign(steps=reached["steps"].astype("float64").fillna(never)).groupby("variant")["steps"].mean()
    return (
        _correlated(norms, series, gradient, what="mean gradient norm", shown=lambda v: f"{v:.3g}"),
        _correlated(steps, series, speed, what="steps to a common training loss", shown=lambda v: f"{-v:.0f}"),
    )


def _correlated(text: str, series: Series, outcome: pd.Series, *, what: str, shown: object) -> Claim:
    plasticity = series.plasticity
    roles = [r for r in BLOCK_ROLES if r in plasticity and r in outcome.index]
    write = shown if callable(shown) else str
    if len(roles) < 3:
        return Claim(text, "cannot be told", f"plasticity and {what} are both known for {len(roles)} roles only.")
    values = [float(outcome[r]) for r in roles]
    if len(set(values)) == 1:
        return Claim(text, "cannot be told", f"{what} is the same for all roles.")
    try:
        found = associate(pd.DataFrame([values], columns=roles), {r: plasticity[r] for r in roles})
    except ConfigError as error:
        return Claim(text, "cannot be told", str(error))
    p = 1.0 if found.p is None else found.p
    verdict: Verdict = "cannot be told" if p > DECISIVE else "holds" if found.mean > 0 else "does not hold"
    chance = ", as by chance" if p > DECISIVE else ""
    listed = ", ".join(f"{r} {write(v)}" for r, v in sorted(zip(roles, values, strict=True), key=lambda pair: -pair[1]))
    return Claim(
        text,
        verdict,
        f"Spearman's ρ with plasticity ({series.convention}) is {found.mean:.2f} over {len(roles)} roles (p {p:.2g}"
        f"{chance}); {what}, at the chosen rates: {listed}.",
    )


def _mha_competes(series: Series) -> Claim:
    text = "4. mha alone competes with full fine-tuning (and with LoRA, where it was run)."
    rivals = [v for v in series.order if v == "full" or v.startswith("lora")]
    said, kept = [], []
    for rival in rivals:
        difference = _paired(series, "mha", rival)
        if len(difference) == 0:
            continue
        mean = float(difference.mean())
        if len(difference) > 1:
            reach = float(stats.t.ppf(0.975, len(difference) - 1) * difference.std(ddof=1) / np.sqrt(len(difference)))
            said.append(f"mha − {rival} = {100 * mean:+.1f} points (95 % ± {100 * reach:.1f}, n = {len(difference)})")
            kept.append(mean + reach >= 0)
        else:
            said.append(f"mha − {rival} = {100 * mean:+.1f} points (one pair, no interval)")
            kept.append(mean >= 0)
    if not said:
        return Claim(
            text, "cannot be told", "mha and full fine-tuning have no test accuracy on the same data and seed."
        )
    return Claim(text, _verdict(kept), f"{'; '.join(said)}; pairs share data set and seed.")


def _paired(series: Series, a: str, b: str) -> np.ndarray:
    """Differences of test accuracy at the chosen rates, a pair for each data set and seed that both have."""
    found = []
    for data in series.data:
        sides = [series.choice(data, name) for name in (a, b)]
        if sides[0] is None or sides[1] is None:
            continue
        left, right = (cells_of(c, series.runs).set_index("seed")["test_accuracy"] for c in sides if c is not None)
        found += [float(left[seed] - right[seed]) for seed in left.index.intersection(right.index)]
    return np.asarray([v for v in found if np.isfinite(v)], dtype=np.float64)


def _verdict(parts: list[bool]) -> Verdict:
    return "holds" if all(parts) else "holds in part" if any(parts) else "does not hold"
