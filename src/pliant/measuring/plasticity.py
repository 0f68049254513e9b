"""Measuring plasticity: the expected rate of change of every component (Odonnat et al. 2026, arXiv 2602.06883).

P(f) = E over distinct pairs (x, y) of ‖f(x) − f(y)‖_F / ‖x − y‖_F
"""

import platform
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from importlib.metadata import version
from typing import Any

import torch
from torch import nn

from pliant.components import Anatomy, Family, find_components
from pliant.errors import ConfigError, DataError
from pliant.measuring.items import DEFAULT_ITEMS, Items, items_of
from pliant.measuring.measurement import Measurement, threads
from pliant.measuring.passing import Progress, measure_items, moved, one_pass
from pliant.measuring.plan import Pass, Plan, Precision, measured, passes, plan_of
from pliant.measuring.subject import opened, pick_device
from pliant.models import Loaded
from pliant.terms import BLOCK_ROLES, Convention, PairMode, Role

__all__ = [
    "Pass",
    "Plan",
    "Progress",
    "environment",
    "measure",
    "measure_items",
    "measured",
    "moved",
    "one_pass",
    "passes",
    "plan_of",
    "provenance_of",
    "sides_of",
]


def measure(
    model: str | nn.Module | Loaded,
    source: Any = None,
    target: Any = None,
    *,
    convention: Convention = "insitu",
    pairs: PairMode = "all",
    items: int | None = None,
    until: float | None = None,
    batch_size: int = 32,
    roles: Sequence[Role] = BLOCK_ROLES,
    per_head: bool = False,
    precision: Precision = "float32",
    length: int | None = None,
    seed: int = 0,
    device: str | torch.device = "cpu",
    family: Family | None = None,
    progress: Progress | None = None,
) -> Measurement:
    """Measure the plasticity of every component of a model.

    Under `torchrun` each process takes a share of the passes, and all return the same result.

    Args:
        model: a name (`bundled`, folder, hub id), a loaded model, or any module. It is given back as it was.
        source: items x: name of a data set, `text:FILE` for a language model, ImageSet, pixel values (batch, channels,
            height, width), token ids (batch, tokens), or a mapping of the model's arguments to tensors, whose
            `attention_mask` says which tokens count.
        target: items y, likewise. With one of the two only, pairs are all unordered pairs within it.
        convention: `insitu` gives a component the input it really has in the forward pass; `shared` (the paper's)
            applies every component to the embedded tokens. Numbers of the two are not comparable.
        pairs: `all` pairs (x_i, y_j) within a pass, or `matched` pairs (x_i, y_i).
        items: at most so many images, or pieces of text, of a named data set on each side, a seeded random sample; by
            default 128, with `until` all there are. Tensors are taken whole.
        until: go on in passes until the standard error of every role's mean is below this share of the mean (0.02 for
            2 %), or the data are used up; the provenance says which (`stopped`).
        batch_size: source items, and target items, of one pass.
        roles: which components of each block.
        per_head: measure each attention head's output before the output projection as well (`Measurement.heads`).
        precision: what the model computes in, by autocast; rates are taken in float32. In bfloat16 the means over roles
            agree with those in float32 to about 2 %.
        length: tokens of one piece of text; by default 128, or as many as the model takes.
        seed: of the samples.
        device: where the model runs.
        family: row of the table of families, for a model of another kind.
        progress: called after each pass.

    Returns:
        Table of components, means over roles, provenance.

    Raises:
        ConfigError: an argument that cannot be, such as matched pairs within one set.
        DataError: source and target differ in the shape of an item, or in number if pairs are matched; too few items.
        AnatomyError: the model's blocks are not found.
        MeasurementError: values that are not finite, or no distinct pair.
    """
    two = source is not None and target is not None
    extra = {"until": until, "per_head": per_head, "precision": precision}
    plan = plan_of(convention, pairs, batch_size, roles, two=two, **extra)  # type: ignore[arg-type]
    if items is not None and (not isinstance(items, int) or items < 1):
        raise ConfigError(f"items is {items!r}; expected a whole number from 1 on, or None")
    if isinstance(device, str):
        device = pick_device(device)
    loaded = opened(model)
    anatomy = find_components(loaded.model, family=family)
    count = items if items is not None else DEFAULT_ITEMS if until is None else None
    sides = sides_of(loaded, source, target, count=count, seed=seed, length=length, pairs=pairs)
    meter = measure_items(anatomy, *sides.values(), plan=plan, device=device, progress=progress)
    provenance = provenance_of(loaded, anatomy, plan, sides, seed=seed, device=device)
    return Measurement(meter.frame(), meter.by_role(), {**provenance, **meter.course}, meter.heads_frame())


def sides_of(
    loaded: Loaded,
    source: Any,
    target: Any,
    *,
    count: int | None,
    seed: int,
    length: int | None = None,
    pairs: PairMode = "all",
) -> dict[str, Items]:
    """Turn what is given of source and target into items, the source first.

    Raises:
        ConfigError: neither is given.
        DataError: matched pairs of sides that differ in number.
    """
    sides = {side: data for side, data in (("source", source), ("target", target)) if data is not None}
    if not sides:
        raise ConfigError("nothing to measure on: pass a target (the downstream data), and a source if there is one.")
    found = {
        side: items_of(data, loaded, side=side, count=count, seed=seed, length=length) for side, data in sides.items()
    }
    numbers = [len(items) for items in found.values()]
    if pairs == "matched" and len(set(numbers)) > 1:
        raise DataError(
            f"matched pairs (x_i, y_i) need as many source as target items; got {numbers[0]} and {numbers[1]}. "
            f"Pass as many of both (of named data, items={min(numbers)}), or pairs='all'."
        )
    return found


def provenance_of(
    loaded: Loaded, anatomy: Anatomy, plan: Plan, sides: Mapping[str, Items], *, seed: int, device: str | torch.device
) -> dict[str, Any]:
    """Return what a measurement was made of, and what its numbers may depend on."""
    return {
        "model": loaded.name,
        "model_source": loaded.source,
        "fingerprint": loaded.fingerprint,
        "family": anatomy.family.name,
        **{side: items.name for side, items in sides.items()},
        "items": {side: len(items) for side, items in sides.items()},
        "preprocessing": asdict(loaded.preprocessing) if loaded.preprocessing is not None else None,
        "convention": plan.convention,
        "pairs": plan.pairs,
        "design": plan.design,
        "batch_size": plan.batch_size,
        "until": plan.until,
        "seed": seed,
        **environment(device),
        "dtype": plan.precision,
    }


def environment(device: str | torch.device) -> dict[str, Any]:
    """Return what the numbers may depend on beside the arguments."""
    names = ("pliant", "torch", "transformers", "timm")
    return {
        "device": str(device),
        "dtype": "float32",
        "threads": threads(),
        "python": platform.python_version(),
        "versions": {name: version(name) for name in names},
    }
