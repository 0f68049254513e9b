"""Sections on training as it went, on the race, and on what the main job ended with."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import pandas as pd

from pliant.errors import PliantError
from pliant.reporting.analysis import Series
from pliant.reporting.charts import draw_race, draw_training, race_trials, steps_to_loss, training_curves
from pliant.reporting.chosen import cells_of
from pliant.reporting.material import Material
from pliant.reporting.palette import in_order
from pliant.reporting.section import Section, attempt
from pliant.reporting.tables import Table, columns, table
from pliant.runs import Record, Store


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


def validation_section(material: Material) -> Section:
    """Runs that did not read the test images, such as a race whose main job is not finished."""
    runs = material.runs
    if runs.empty:
        return Section("On validation images")
    cell = ["model", "data", "variant", "optimizer", "learning_rate"]
    done = runs[runs["status"] == "done"]
    if done.duplicated(cell).any() or done["data"].nunique() != 1 or done["model"].nunique() != 1:
        reason = "The runs differ in more than component set and learning rate; the table of all runs has them."
        return Section("On validation images", absent=(reason,))
    share = done["validation_accuracy"]
    trials = pd.DataFrame(
        {
            "components": done["variant"],
            "learning_rate": done["learning_rate"],
            "validation_accuracy": share,
            "stderr": (share * (1 - share) / done["n_validation"].astype("float64")).pow(0.5),
            "parameters": done["trained_parameters"],
        }
    )
    best = trials.sort_values("validation_accuracy", ascending=False).drop_duplicates("components")
    absent: list[str] = []
    data = attempt(lambda: race_trials(trials, chosen="", tied=[str(v) for v in best["components"]]), absent)
    lead = "The test images were not read, so this says which set to train, not how good it is."
    figures = tuple(replace(draw_race(d), title="Validation accuracy so far", reading=SO_FAR) for d in data)
    return Section("On validation images", lead, figures, (), tuple(absent))


SO_FAR = "Every finished run; bars are one standard error. The shaded band reaches one standard error below the best."


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
    return Section(
        "Result",
        tables=(table("result", "The trained set beside the linear probe", pd.DataFrame(rows), shown, note=note),),
    )


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
