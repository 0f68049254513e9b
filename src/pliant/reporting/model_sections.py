"""Sections on the model before training, on training as it went, and on the race."""

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import pandas as pd

from pliant.errors import PliantError
from pliant.reporting.analysis import Series
from pliant.reporting.charts import (
    bounds_beside_measured,
    draw_bounds,
    draw_landscape,
    draw_plasticity_by_depth,
    draw_plasticity_by_role,
    draw_probe_by_depth,
    draw_race,
    draw_training,
    plasticity_by_depth,
    plasticity_by_role,
    probe_by_depth,
    race_trials,
    steps_to_loss,
    training_curves,
)
from pliant.reporting.chosen import cells_of
from pliant.reporting.material import Material
from pliant.reporting.palette import in_order
from pliant.reporting.section import Section, attempt
from pliant.reporting.tables import Table, columns, table
from pliant.runs import Record, Store

MODELS_SHOWN = 6
"""Measurements with a panel of their own."""


def plasticity_section(material: Material) -> Section:
    """Plasticity by role and by depth, for every measurement of the folder."""
    absent: list[str] = []
    frame = material.components
    if frame.empty:
        return Section("Plasticity")
    labels = [label for label, _ in material.labelled]
    if len(labels) > MODELS_SHOWN:
        absent.append(f"Charts of {len(labels) - MODELS_SHOWN} more measurements are left out; the table has them.")
        frame = frame[frame["model"].isin(labels[:MODELS_SHOWN])]
    figures = (
        *attempt(lambda: draw_plasticity_by_role(plasticity_by_role(frame)), absent),
        *attempt(lambda: draw_plasticity_by_depth(plasticity_by_depth(frame)), absent),
    )
    roles = pd.concat([m.by_role.assign(model=label) for label, m in material.labelled], ignore_index=True)
    return Section(
        "Plasticity",
        "How much a component's output changes for a change of its input, over pairs of images. Numbers of different "
        "conventions are not comparable.",
        figures,
        (_roles_table(roles), _components_table(material.components)),
        tuple(absent),
    )


def _roles_table(roles: pd.DataFrame) -> Table:
    shown = columns(
        model=("measurement", "text"),
        role=("role", "text"),
        plasticity=("plasticity", "number"),
        stderr=("standard error", "number"),
        ci_low=("95 % from", "number"),
        ci_high=("to", "number"),
        spread=("std over blocks", "number"),
        blocks=("blocks", "count"),
        n_source=("source images", "count"),
        n_target=("target images", "count"),
        n_pairs=("pairs", "count"),
        n_dropped=("dropped", "count"),
    )
    note = "Mean over blocks. The interval is over images; pairs that share an image are not counted as independent."
    return table("plasticity", "Plasticity by role", roles, shown, note=note)


def _components_table(frame: pd.DataFrame) -> Table:
    shown = columns(
        model=("measurement", "text"),
        component=("component", "text"),
        plasticity=("plasticity", "number"),
        stderr=("standard error", "number"),
        q05=("5 %", "number"),
        q95=("95 %", "number"),
        max=("largest", "number"),
        relative=("relative", "number"),
        token_norm=("token norm", "number"),
        token_std_min=("smallest token std", "number"),
    )
    note = "5 % and 95 %: quantiles of the rates over pairs. Relative: plasticity times input scale over output scale."
    return table("components", "Plasticity by component", frame, shown, note=note)


def bounds_section(material: Material) -> Section:
    """Bounds beside measured values."""
    frame = material.bounds
    if frame.empty:
        return Section("Bounds")
    absent: list[str] = []
    figures = attempt(lambda: draw_bounds(bounds_beside_measured(frame)), absent)
    none = frame[frame["kind"] == "none"] if "kind" in frame.columns else frame.iloc[:0]
    if len(none) and "reason" in none.columns:
        absent += [f"No bound: {reason}" for reason in dict.fromkeys(none["reason"].dropna().astype(str))]
    shown = columns(
        model=("model", "text"),
        component=("component", "text"),
        kind=("kind", "text"),
        bound=("bound", "number"),
        max=("largest measured", "number"),
        mean=("mean measured", "number"),
        slack=("bound / largest", "number"),
        reason=("reason", "text"),
    )
    note = "A certified bound holds for every pair of inputs in its set; a measured value above it would be an error."
    made = table("bounds", "Bounds and measured rates", frame, shown, note=note)
    lead = "How far a component can bend at most, beside how far it did."
    return Section("Bounds", lead, figures, (made,), tuple(absent))


def layers_section(material: Material) -> Section:
    """Linear probe after every component."""
    frame = material.layers
    if frame.empty:
        return Section("Probe by depth")
    absent: list[str] = []
    figures = attempt(lambda: draw_probe_by_depth(probe_by_depth(frame)), absent)
    shown = columns(
        data=("data", "text"),
        layer=("layer", "text"),
        accuracy=("test accuracy", "percent"),
        ci_low=("95 % from", "percent"),
        ci_high=("to", "percent"),
        n=("test images", "count"),
        c=("C", "rate"),
    )
    note = "Logistic regression on frozen features; C was chosen on validation images; Wilson's interval."
    made = table("layers", "Linear probe by layer", frame, shown, note=note)
    return Section(
        "Probe by depth", "What the pretrained features already separate, and where.", figures, (made,), tuple(absent)
    )


def landscape_section(about: Mapping[str, Any], *, several: bool) -> Section:
    """Maps of one landscape: loss over directions of weights, rate of change over directions of the input."""
    absent: list[str] = []
    origin = about.get("provenance") or {}
    kinds = [k for k in ("loss", "rate") if any(s.get("kind") == k for s in about["surfaces"])]
    figures = tuple(f for kind in kinds for f in attempt(partial(draw_landscape, about["surfaces"], kind), absent))
    lead = (
        f"{origin.get('model', 'The model')} on {origin.get('images', '?')} images of {origin.get('data', '?')}; "
        f"gradient descent of {origin.get('steps', '?')} steps at rate {origin.get('learning_rate', '?')}, seed "
        f"{origin.get('seed', '?')}."
    )
    label = f"{origin.get('model', '')} {origin.get('data', '')} {origin.get('directions', '')}" if several else ""
    return Section("Landscapes", lead, figures, (), tuple(absent)).of(label.strip())


def training_section(series: Series, frame: pd.DataFrame) -> Section:
    """Losses and gradient norm over steps at the chosen rates (as of `step_rows`), and steps to a common loss."""
    absent: list[str] = []
    if frame.empty:
        return Section("Training", absent=("The chosen runs kept no curves.",)).of(series.label)
    curves = attempt(lambda: training_curves(frame, series.order), absent)
    if "gradient_norm" not in set(frame["quantity"]):
        absent.append("No gradient norms in the runs' metrics, so they are not drawn.")
    figures = tuple(draw_training(c) for c in curves)
    shown = columns(
        panel=("data", "text"), variant=("trained", "text"), level=("training loss", "number"), steps=("steps", "count")
    )
    note = "First step at which the mean training loss is at the level, half-way down on a log scale; – never reached."
    tables = tuple(table("steps", "Steps to a common loss", steps_to_loss(c), shown, note=note) for c in curves)
    lead = "Each set at the learning rate that validation chose for it."
    return Section("Training", lead, figures, tables, tuple(absent)).of(series.label)


def step_rows(series: Series, material: Material) -> pd.DataFrame:
    """Return what the chosen runs logged: columns panel, variant, seed, step, quantity, value."""
    records = {r.cell.id: r for r in material.records}
    rows: list[dict[str, Any]] = []
    for choice in series.choices.choices:
        for cell_id in cells_of(choice, series.runs)["id"]:
            rows += _logged(records[cell_id], material)
    return pd.DataFrame(rows, columns=["panel", "variant", "seed", "step", "quantity", "value"])


def _logged(record: Record, material: Material) -> list[dict[str, Any]]:
    cell = record.cell
    about = {"panel": cell.data, "variant": cell.variant, "seed": cell.seed}
    try:
        logged: Sequence[Mapping[str, Any]] = Store(material.path, create=False).metrics(cell)
    except PliantError:
        logged = ()
    each_step = {"gradient_norm": "gradient_norm", "loss": "train_loss"}
    rows = [
        {**about, "step": int(row["step"]), "quantity": quantity, "value": float(row[name])}
        for row in logged
        for name, quantity in each_step.items()
        if isinstance(row.get(name), int | float)
    ]
    kept = ("validation_loss",) if any("loss" in row for row in logged) else ("validation_loss", "train_loss")
    return rows + [
        {**about, "step": point.step, "quantity": name, "value": float(value)}
        for point in record.curve
        for name in kept
        if (value := getattr(point, name)) is not None
    ]


def race_section(material: Material) -> Section:
    """The race of the main job, and whether what was known before agrees with it."""
    result = material.result or {}
    race = result.get("race")
    if not isinstance(race, dict) or not race.get("trials"):
        return Section("The race")
    absent: list[str] = []
    trials = pd.DataFrame(race["trials"])
    tied = [str(t) for t in race.get("tied", [])]
    data = attempt(lambda: race_trials(trials, chosen=str(race["chosen"]), tied=tied), absent)
    figures = tuple(draw_race(d) for d in data)
    shown = columns(
        components=("trained", "text"),
        learning_rate=("learning rate", "rate"),
        validation_accuracy=("validation", "percent"),
        stderr=("standard error, points", "points"),
        parameters=("parameters", "count"),
        seconds=("time, s", "number"),
        status=("status", "text"),
    )
    order = {v: i for i, v in enumerate(in_order(trials["components"].astype(str)))}
    ranked = trials.assign(_place=trials["components"].map(order)).sort_values(
        ["_place", "learning_rate"], kind="stable"
    )
    note = "Every trial of the race; validation images only, the test images were not read."
    tables = [table("race", "Trials", ranked.drop(columns="_place"), shown, note=note)]
    criteria = pd.DataFrame(result.get("criteria") or [])
    if len(criteria):
        tables.append(_agreement_table(criteria))
    lead = f"{race['chosen']} was chosen: {race.get('reason', 'no reason was kept')}."
    return Section("The race", lead, figures, tuple(tables), tuple(absent))


def result_section(material: Material) -> Section:
    """What the main job ended with: the trained set beside the linear probe."""
    result = material.result or {}
    rows = []
    for method, key, trained in (
        ("linear probe", "probe_test_accuracy", None),
        (str(result.get("chosen")), "test_accuracy", result.get("trained_parameters")),
    ):
        if isinstance(result.get(key), float):
            low, high = result.get(f"{key}_ci", (None, None))
            row = {"method": method, "parameters": trained, "accuracy": result[key], "low": low, "high": high}
            rows.append(row | {"n": result.get("n_test")})
    if not rows:
        return Section("Result")
    shown = columns(
        method=("method", "text"),
        parameters=("trained parameters", "count"),
        accuracy=("test accuracy", "percent"),
        low=("95 % from", "percent"),
        high=("to", "percent"),
        n=("test images", "count"),
    )
    note = (
        f"Correct / all; Wilson's interval; the test images were read once, after all choices. Learning rate "
        f"{result.get('learning_rate', '–')}, checkpoint of step {result.get('best_step', '–')}; "
        f"{result.get('frozen_tensors_unchanged', '–')} frozen tensors found unchanged, "
        f"{result.get('trained_tensors_moved', '–')} trained ones moved."
    )
    return Section("Result", tables=(table("result", "Result", pd.DataFrame(rows), shown, note=note),))


def _agreement_table(criteria: pd.DataFrame) -> Table:
    shown = columns(
        criterion=("criterion", "text"),
        about=("what it is", "text"),
        order=("its order of roles", "text"),
        same=("same as the race's", "yes"),
        spearman=("Spearman's ρ", "number"),
        p=("p", "p"),
        n=("roles", "count"),
    )
    note = "Rank correlation with the race's validation accuracy over roles; p two-sided over all orders."
    return table("agreement", "What was known before the race, held to its outcome", criteria, shown, note=note)
