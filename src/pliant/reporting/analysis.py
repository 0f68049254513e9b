"""A store's runs, analysed: one series for each way of training, with choices, spreads and tests of `pliant.stats`."""

from collections.abc import Hashable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import pandas as pd

from pliant.errors import ConfigError
from pliant.reporting.chosen import chosen_table
from pliant.reporting.material import Material
from pliant.reporting.palette import in_order
from pliant.runs.probes import ProbeKey, ProbeLine
from pliant.runs.pruning import given_up
from pliant.stats import (
    Choice,
    Choices,
    Comparison,
    Robustness,
    choose_learning_rates,
    compare,
    robustness,
)
from pliant.terms import BLOCK_ROLES

CELL_FIELDS = (
    "model", "optimizer", "momentum", "weight_decay", "clip_norm", "steps", "warmup_steps", "batch_size",
    "accumulation", "eval_every", "precision", "augmentation", "crop_scale_min", "normalization", "image_size",
    "train_limit", "validation_limit", "test_limit", "data_seed", "skip_unreadable", "model_fingerprint",
    "lora_alpha", "lora_dropout",
)  # fmt: skip
"""Fields that may tell series apart, the most telling first."""

PAPERS_CONVENTION = "shared"
"""Every component applied to the embedded tokens: what the paper's plasticity is about (docs/plasticity.md)."""


@dataclass(frozen=True)
class Series:
    """Cells that differ only in data, component set, learning rate and seed: what can be compared.

    Attributes:
        label: what sets it apart from other series ("sgd"); empty if there is one.
        values: the fields behind the label.
        runs: its cells as a table.
        choices: learning rates by validation accuracy, and the accuracies they lead to.
        chosen: what these choices led to (see `chosen_table`).
        robustness: over learning rates and seeds.
        scores: data sets x component sets, mean test accuracy; None if there is none.
        comparison: tests of the scores; None without scores.
        alone: the same over single components only, as the paper compares them; None if there is nothing else.
        probes: data set to the linear probe's line.
        measured: convention to role to measured plasticity of the series' model, the paper's convention first.
        pruned: whether settings were given up after short runs: spreads are those of what was kept.
        parameters: trained parameters by component set.
        order: component sets in the order of charts and tables: full, then from the most plastic role down.
    """

    label: str
    values: Mapping[str, Any]
    runs: pd.DataFrame = field(repr=False)
    choices: Choices = field(repr=False)
    chosen: pd.DataFrame = field(repr=False)
    robustness: Robustness = field(repr=False)
    scores: pd.DataFrame | None = field(repr=False)
    comparison: Comparison | None = field(repr=False)
    alone: Comparison | None = field(repr=False)
    probes: Mapping[str, ProbeLine] = field(repr=False)
    measured: Mapping[str, Mapping[str, float]]
    pruned: bool
    parameters: Mapping[str, int]
    order: list[str]

    @property
    def plasticity(self) -> Mapping[str, float]:
        """Role to measured plasticity, in the paper's convention if that was measured; empty if nothing was."""
        return _first(self.measured)

    @property
    def convention(self) -> str:
        """Convention of `plasticity`; empty if nothing was measured."""
        return next(iter(self.measured), "")

    @property
    def data(self) -> list[str]:
        """Data sets, in the order of the cells."""
        return [str(name) for name in self.runs["data"].drop_duplicates()]

    def choice(self, data: str, variant: str) -> Choice | None:
        """Return the choice for one data set and component set."""
        return next((c for c in self.choices.choices if c.key == (data, variant)), None)


def analyse(material: Material) -> tuple[Series, ...]:
    """Split a store's runs into series and analyse each; none if no cell has read the test images.

    Cells that were told not to read the test images (those of a race) are no part of a comparison.
    """
    runs = material.runs
    if runs.empty or "read_test" not in runs.columns:
        return ()
    compared = runs[runs["read_test"].astype(bool)]
    return tuple(_series(label, values, part, material) for label, values, part in split(compared))


def split(runs: pd.DataFrame) -> Iterator[tuple[str, dict[str, Any], pd.DataFrame]]:
    """Yield label, fields and cells of every series, the largest first.

    Series differ in model and optimiser, and in whatever else two cells differ in that are alike otherwise.

    Fields that follow from the data set (steps, limits) do not split: within a data set they are the same.
    """
    if runs.empty:
        return
    by = [name for name in ("model", "optimizer") if runs[name].nunique(dropna=False) > 1]
    cell = ["data", "variant", "learning_rate", "seed"]
    for name in CELL_FIELDS:
        if not runs.duplicated([*by, *cell]).any():
            break
        if name not in by and _tells_apart(runs, [*by, *cell], name):
            by.append(name)
    if not by:
        yield "", {}, runs
        return
    found = []
    for key, part in runs.groupby(by, sort=False, dropna=False):
        values: dict[str, Any] = dict(zip(by, key, strict=True))
        found.append((", ".join(_shown(name, value) for name, value in values.items()), values, part))
    yield from sorted(found, key=lambda one: (-len(one[2]), one[0]))


def _tells_apart(runs: pd.DataFrame, cell: list[str], name: str) -> bool:
    repeated = runs[runs.duplicated(cell, keep=False)]
    return bool((repeated.groupby(cell, dropna=False)[name].nunique(dropna=False) > 1).any())


def _shown(name: str, value: Hashable) -> str:
    if name in ("model", "optimizer"):
        return str(value)
    return f"{name.replace('_', ' ')} {value}"


def _series(label: str, values: dict[str, Any], runs: pd.DataFrame, material: Material) -> Series:
    model = str(runs["model"].iloc[0])
    left = _given_up(material, runs)
    choices = choose_learning_rates(runs, given_up=left)
    try:
        scores: pd.DataFrame | None = choices.scores()
    except ConfigError:
        scores = None
    measured = plasticity_of(material, model)
    counted = runs.dropna(subset=["trained_parameters"]).groupby("variant", sort=False)["trained_parameters"].first()
    parameters = {str(v): int(count) for v, count in counted.items()}
    probes, order = _probes(runs, material), in_order(map(str, runs["variant"]), _first(measured))
    return Series(
        label=label,
        values=values,
        runs=runs,
        choices=choices,
        chosen=chosen_table(choices.choices, runs, order=order, probes=probes, parameters=parameters),
        robustness=robustness(runs),
        scores=scores,
        comparison=None if scores is None else _compare(scores, measured, parameters),
        alone=_compare_alone(scores),
        probes=probes,
        measured=measured,
        pruned=not left.empty,
        parameters=parameters,
        order=order,
    )


def _probes(runs: pd.DataFrame, material: Material) -> dict[str, ProbeLine]:
    """Return the probe of each data set that saw the same images of the same model as the series' cells."""
    lines = {line.key: line for line in material.probes}
    here = set(runs["id"])
    keys = {r.cell.data: ProbeKey.of(r.cell) for r in material.records if r.cell.id in here}
    return {data: lines[key] for data, key in keys.items() if key in lines}


def plasticity_of(material: Material, model: str) -> dict[str, dict[str, float]]:
    """Return plasticity of a model by convention and role; the paper's convention first.

    Of several measurements in one convention the first in the order of file names counts.
    """
    found: dict[str, dict[str, float]] = {}
    for _, measurement in material.measurements:
        if str(measurement.provenance.get("model")) == model:
            roles = measurement.by_role
            values = dict(zip(roles["role"].astype(str), roles["plasticity"].astype(float), strict=True))
            found.setdefault(str(measurement.provenance.get("convention", "unknown convention")), values)
    return dict(sorted(found.items(), key=lambda item: item[0] != PAPERS_CONVENTION))


def _given_up(material: Material, runs: pd.DataFrame) -> pd.DataFrame:
    """Return the settings of a series that pruning left and that have not been run since."""
    names = ["model", "optimizer", "data", "variant", "learning_rate"]
    left = given_up(material.pruned)
    for name in ("model", "optimizer"):
        left = left[left[name].isin(runs[name].unique())]
    return left[~pd.MultiIndex.from_frame(left[names]).isin(pd.MultiIndex.from_frame(runs[names]))]


def _first(measured: Mapping[str, Mapping[str, float]]) -> Mapping[str, float]:
    return next(iter(measured.values()), {})


def _compare(
    scores: pd.DataFrame, measured: Mapping[str, Mapping[str, float]], parameters: Mapping[str, int]
) -> Comparison:
    roles = [str(c) for c in scores.columns if str(c) in BLOCK_ROLES]
    criteria = {f"plasticity ({convention})": values for convention, values in measured.items()}
    families = {str(name): family_of(str(name)) for name in scores.index}
    return compare(
        scores,
        families=families,
        criteria=criteria,
        parameters={r: parameters[r] for r in roles if r in parameters} or None,
    )


def _compare_alone(scores: pd.DataFrame | None) -> Comparison | None:
    """Compare single components, if there are several of them and other sets beside them."""
    roles = [] if scores is None else [c for c in scores.columns if c in BLOCK_ROLES]
    if scores is None or len(roles) < 2 or len(roles) == scores.shape[1]:
        return None
    return compare(scores[roles], families={str(name): family_of(str(name)) for name in scores.index})


def family_of(data: str) -> str:
    """Return the family of a data set: those that share images are one row of a test.

    >>> family_of("cifar10-c-snow"), family_of("domainnet-clipart"), family_of("pet")
    ('cifar10', 'domainnet', 'pet')
    """
    name = data.partition(":")[0]
    if name.startswith("cifar10-c-"):
        return "cifar10"
    return "domainnet" if name.startswith("domainnet-") else data
