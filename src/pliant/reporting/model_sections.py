"""Sections on the model before training: plasticity, bounds, probes by depth, landscapes."""

from collections.abc import Mapping
from functools import partial
from typing import Any

import pandas as pd

from pliant.reporting.charts import (
    bounds_beside_measured,
    draw_bounds,
    draw_landscape,
    draw_plasticity_by_depth,
    draw_plasticity_by_role,
    draw_probe_by_depth,
    plasticity_by_depth,
    plasticity_by_role,
    probe_by_depth,
)
from pliant.reporting.material import Material, short
from pliant.reporting.section import Section, attempt
from pliant.reporting.tables import Table, columns, table

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
        f"{short(str(origin.get('model', 'The model')))} on {origin.get('images', '?')} images of "
        f"{short(str(origin.get('data', '?')))}; "
        f"gradient descent of {origin.get('steps', '?')} steps at rate {origin.get('learning_rate', '?')}, seed "
        f"{origin.get('seed', '?')}."
    )
    label = f"{origin.get('model', '')} {origin.get('data', '')} {origin.get('directions', '')}" if several else ""
    return Section("Landscapes", lead, figures, (), tuple(absent)).of(label.strip())
