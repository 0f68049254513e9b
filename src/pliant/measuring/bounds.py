"""Bounding components: how far each can bend, beside how far it was measured to bend (docs/bounds.md).

One pass over the data gives the measured rates and the tokens that each component really gets; the bounds hold on
these tokens, so every measured rate is at most its component's certified bound, which is checked before anything is
returned. What a component computes is found by calling it (`bounds_forms`, `bounds_attention`).
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import pandas as pd
import torch
from torch import nn

from pliant.components import Anatomy, Component, Family, find_components
from pliant.errors import ConfigError, DataError
from pliant.measuring.bounds_attention import AttentionForm
from pliant.measuring.bounds_calls import on_device, see_one_item
from pliant.measuring.bounds_certified import (
    ComponentBound,
    Form,
    certified_bound,
    check_excess,
    check_weights,
    component_form,
    exceeds,
    paper_bound,
)
from pliant.measuring.bounds_forms import NormForm
from pliant.measuring.bounds_local import local_frame, local_norms
from pliant.measuring.bounds_report import BOUND_COLUMNS, BoundsReport, Order, role_table
from pliant.measuring.bounds_sets import CertainMeter, SetMeter, TokenSet
from pliant.measuring.capture import observing
from pliant.measuring.items import Items, MappingItems
from pliant.measuring.measurement import Measurement
from pliant.measuring.passing import Progress, measure_items, moved
from pliant.measuring.plan import Plan, measured, plan_of
from pliant.measuring.plasticity import provenance_of, sides_of
from pliant.measuring.subject import opened
from pliant.models import Loaded
from pliant.terms import BLOCK_ROLES, Convention, PairMode, Role


def bounds(
    model: str | nn.Module | Loaded,
    source: Any = None,
    target: Any = None,
    *,
    convention: Convention = "insitu",
    pairs: PairMode = "all",
    items: int | None = 128,
    batch_size: int = 32,
    roles: Sequence[Role] = BLOCK_ROLES,
    local: int = 0,
    length: int | None = None,
    seed: int = 0,
    device: str | torch.device = "cpu",
    family: Family | None = None,
    progress: Progress | None = None,
) -> BoundsReport:
    """Bound the rate of change of every component of a model, and measure it on the same tokens.

    Args:
        model: a name (`bundled`, folder, hub id), a loaded model, or any module. It is given back as it was.
        source: items x: name of a data set, `text:FILE` for a language model, ImageSet, pixel values (batch, channels,
            height, width), token ids (batch, tokens), or a mapping of the model's arguments to tensors; no padding.
        target: items y, likewise. With one of the two only, pairs are all unordered pairs within it.
        convention: `insitu` gives a component the input it really has in the forward pass; `shared` (the paper's)
            applies every component to the embedded tokens. Bounds hold on the tokens of the chosen one.
        pairs: `all` pairs (x_i, y_j) within a pass, or `matched` pairs (x_i, y_i).
        items: at most so many images, or pieces of text, of a named data set on each side, a seeded random sample; None
            for all. Tensors are taken whole.
        batch_size: source items, and target items, of one pass.
        roles: which components of each block.
        local: at so many items (the first ones), also find ‖J(X)‖₂ of each attention and head: a diagnostic.
        length: tokens of one piece of text; by default 128, or as many as the model takes.
        seed: of the samples.
        device: where the model runs.
        family: row of the table of families, for a model of another kind.
        progress: called after each pass.

    Returns:
        Bounds with their kind, set and reason beside measured maxima and means; the order that each gives.

    Raises:
        ConfigError: an argument that cannot be, such as matched pairs within one set.
        DataError: source and target differ in the shape of an item, or in number if pairs are matched; too few items.
        AnatomyError: the model's blocks are not found.
        ModelError: a weight is not finite; names the tensor.
        MeasurementError: activations that are not finite, no distinct pair; or a rate above a certified bound, which
            would be an error of pliant.
    """
    loaded = opened(model)
    anatomy = find_components(loaded.model, family=family)
    plan = plan_of(convention, pairs, batch_size, roles, two=source is not None and target is not None)
    sides = sides_of(loaded, source, target, count=items, seed=seed, length=length, pairs=pairs)
    _refuse_padding(sides)
    components = measured(anatomy, plan)
    first, *_ = sides.values()
    if not 0 <= local <= len(first):
        raise ConfigError(f"local is {local}; expected a number of items from 0 to {len(first)}")
    check_weights(anatomy, components)
    forms = _forms(anatomy, plan, first)
    norm_forms = {name: form for name, form in forms.items() if isinstance(form, NormForm)}
    go = partial(measure_items, anatomy, *sides.values(), plan=plan, device=device, progress=progress)
    go(meter=(meter := SetMeter(components, plan.design, norm_forms)))
    found = {name: certified_bound(form, meter.sets[name]) for name, form in forms.items()}
    provenance = provenance_of(loaded, anatomy, plan, sides, seed=seed, device=device)
    provenance |= {**meter.course, "centre": "mean token of the first pass"}
    measurement = Measurement(meter.frame(), meter.by_role(), provenance)
    if above := _above(measurement, components, found):
        go(meter=(certain := CertainMeter(above, plan.design)))
        for name, rate in certain.largest.items():
            check_excess(name, rate, found[name])
            found[name] = replace(found[name], reason="rates above it are rounding: those inputs are nearly equal")
    rows = _local(anatomy, plan, first, local, found, device=device, seed=seed) if local else None
    return _report(measurement, forms, meter.sets, found, rows)


def _refuse_padding(sides: Mapping[str, Items]) -> None:
    """Refuse texts of different length: with another mask attention is another function, which no bound compares."""
    masks = [side.values.get("attention_mask") for side in sides.values() if isinstance(side, MappingItems)]
    given = [mask for mask in masks if mask is not None]
    if len({mask.shape[1:] for mask in given}) > 1 or any(not bool(mask.all()) for mask in given):
        raise DataError(
            "got texts of different length, filled up to one; a bound compares items under the same mask. Cut them to "
            "one length."
        )


def _above(
    measurement: Measurement, components: Sequence[Component], found: Mapping[str, ComponentBound]
) -> list[Component]:
    """Return the components with a rate above their bound, as rounding can make it if two inputs are nearly equal."""
    largest = dict(zip(measurement.frame["component"], measurement.frame["max"], strict=True))
    return [c for c in components if exceeds(largest[c.id], found[c.id])]


def _forms(anatomy: Anatomy, plan: Plan, items: Items) -> dict[str, Form]:
    """Find out what every component computes, from one pass of one item."""
    components = measured(anatomy, plan)
    with observing(anatomy.model):
        item = moved(items.batch(0, 1), next(anatomy.model.parameters()).device)
        seen = see_one_item(anatomy, components, item, plan.convention)
        return {
            c.id: component_form(
                anatomy, c, width=seen.widths[c.id], call=seen.calls.get(c.id), convention=plan.convention
            )
            for c in components
        }


def _local(
    anatomy: Anatomy,
    plan: Plan,
    items: Items,
    count: int,
    found: Mapping[str, ComponentBound],
    *,
    device: str | torch.device,
    seed: int,
) -> pd.DataFrame:
    rows = []
    components = [c for c in measured(anatomy, plan) if c.role == "mha"]
    with on_device(anatomy.model, device), observing(anatomy.model):
        for i in range(count):
            item = moved(items.batch(i, i + 1), device)
            calls = see_one_item(anatomy, components, item, plan.convention).calls
            for c in components:
                rows += local_norms(anatomy, c, calls[c.id], item=i, bound=found[c.id], seed=seed)
    return local_frame(rows)


def _report(
    measurement: Measurement,
    forms: Mapping[str, Form],
    sets: Mapping[str, TokenSet],
    found: Mapping[str, ComponentBound],
    local: pd.DataFrame | None,
) -> BoundsReport:
    frame = _frame(measurement, forms, sets, found)
    published = {name: b for name, form in forms.items() if (b := paper_bound(form, sets[name])) is not None}
    by_role = role_table(frame, measurement.by_role)
    return BoundsReport(
        frame=frame,
        paper=_frame(measurement, forms, sets, published),
        by_role=by_role,
        order=Order.of(by_role, "role"),
        order_of_components=Order.of(frame, "component"),
        local=local,
        sets=sets,
        measurement=measurement,
        provenance=measurement.provenance,
    )


def _frame(
    measurement: Measurement,
    forms: Mapping[str, Form],
    sets: Mapping[str, TokenSet],
    found: Mapping[str, ComponentBound],
) -> pd.DataFrame:
    rows = []
    for row in measurement.frame.to_dict(orient="records"):
        name = row["component"]
        if (bound := found.get(name)) is None:
            continue
        form, tokens = forms[name], sets[name]
        rows.append(
            {
                **{key: row[key] for key in ("component", "role", "block", "max", "n_pairs")},
                "mean": row["plasticity"],
                "bound": bound.value,
                "kind": bound.kind,
                "reason": bound.reason,
                "slack": bound.value / row["max"] if row["max"] > 0 else math.nan,
                "without_data": bound.without_data,
                "holds_on": bound.holds_on,
                "radius": math.nan if tokens.ball is None else tokens.ball.radius,
                "largest": math.nan if tokens.ball is None else tokens.ball.largest,
                "s_min": math.nan if tokens.s_min is None else tokens.s_min,
                "tokens": form.tokens if isinstance(form, AttentionForm) else tokens.per_item,
            }
        )
    return pd.DataFrame(rows, columns=list(BOUND_COLUMNS))
