"""Criteria that order roles before anything is trained. Plasticity is one of them; the race is what they are held to.

A new criterion is one entry in `CRITERIA`.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
import pandas as pd

from pliant.stats import associate
from pliant.terms import BLOCK_ROLES


@dataclass(frozen=True)
class Evidence:
    """What is known of a model before training, by role.

    Attributes:
        plasticity: mean over blocks (convention `insitu` in the main job).
        energy: gradient energy at the probed head.
        parameters: number of parameters.
        seed: of the control `random`.
    """

    plasticity: Mapping[str, float]
    energy: Mapping[str, float]
    parameters: Mapping[str, int]
    seed: int = 0


@dataclass(frozen=True)
class Criterion:
    """A rule that scores roles; a higher score means "train this".

    Attributes:
        about: what it says, for tables.
        scores: from the evidence to a score per role.
        control: whether it is there only to compare others with.
    """

    about: str
    scores: Callable[[Evidence], dict[str, float]]
    control: bool = False


def _present(values: Mapping[str, float]) -> dict[str, float]:
    return {role: float(values[role]) for role in BLOCK_ROLES if role in values}


def _random(evidence: Evidence) -> dict[str, float]:
    roles = list(_present(evidence.plasticity))
    order = np.random.default_rng(evidence.seed).permutation(len(roles))
    return {role: float(rank) for role, rank in zip(roles, order, strict=True)}


CRITERIA: dict[str, Criterion] = {
    "gradient energy": Criterion("Σ(∂loss/∂w)² at the probed head", lambda e: _present(e.energy)),
    "plasticity": Criterion("mean rate of change of the component", lambda e: _present(e.plasticity)),
    "parameters": Criterion("number of parameters", lambda e: _present(e.parameters), control=True),
    "random": Criterion("a seeded random order", _random, control=True),
}
"""Every criterion by name."""


def order(scores: Mapping[str, float]) -> tuple[str, ...]:
    """Return the names from the highest score to the lowest."""
    return tuple(sorted(scores, key=lambda name: -scores[name]))


def agreement(evidence: Evidence, outcome: Mapping[str, float]) -> pd.DataFrame:
    """Hold every criterion's order of roles to the race's.

    Args:
        evidence: what the criteria are computed from.
        outcome: validation accuracy by role, as far as roles were raced.

    Returns:
        One row per criterion: criterion, about, control, order, same (as the race's), spearman, p (two-sided, exact
        over all orders of so few roles), n (roles). Correlation and p are missing where they are not defined: fewer
        than three roles, or all tied.
    """
    rows = []
    for name, criterion in CRITERIA.items():
        scores = {role: s for role, s in criterion.scores(evidence).items() if role in outcome}
        row = {
            "criterion": name,
            "about": criterion.about,
            "control": criterion.control,
            "order": " > ".join(order(scores)),
            "same": order(scores) == order({role: outcome[role] for role in scores}),
            "spearman": None,
            "p": None,
            "n": len(scores),
        }
        if len(scores) >= 3 and len(set(scores.values())) > 1 and len({outcome[r] for r in scores}) > 1:
            found = associate(pd.DataFrame([{r: outcome[r] for r in scores}], index=["race"]), scores, name=name)
            row |= {"spearman": found.mean, "p": found.p}
        rows.append(row)
    return pd.DataFrame(rows)
