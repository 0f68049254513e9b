"""Measuring plasticity: the expected rate of change of every component (Odonnat et al. 2026, arXiv 2602.06883).

P(f) = E over distinct pairs (x, y) of ‖f(x) − f(y)‖_F / ‖x − y‖_F
"""

import math
import platform
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn

from pliant.components import Anatomy, Component, Family, find_components
from pliant.errors import ConfigError, DataError, UnknownNameError
from pliant.measuring.capture import Listener, listening, observing, run
from pliant.measuring.items import Items, items_of, joined
from pliant.measuring.measurement import Measurement, threads
from pliant.measuring.meter import Meter
from pliant.measuring.shared import SharedInput, apply_component
from pliant.models import Loaded, from_module, load
from pliant.numerics.estimate import Design
from pliant.terms import BLOCK_ROLES, CONVENTIONS, PAIR_MODES, Convention, PairMode, Role, nearest

Progress = Callable[[int, int], None]
"""Called after each pass with passes done and passes in all."""

Pass = tuple[range, range | None]
"""Positions of the source items of a pass, and of its target items; None if pairs are formed within one set."""


@dataclass(frozen=True)
class Plan:
    """Everything that a measurement depends on beside the model and the data."""

    convention: Convention
    pairs: PairMode
    batch_size: int
    roles: tuple[Role, ...]
    design: Design


def measure(
    model: str | nn.Module | Loaded,
    source: Any = None,
    target: Any = None,
    *,
    convention: Convention = "insitu",
    pairs: PairMode = "all",
    items: int | None = 128,
    batch_size: int = 32,
    roles: Sequence[Role] = BLOCK_ROLES,
    seed: int = 0,
    device: str | torch.device = "cpu",
    family: Family | None = None,
    progress: Progress | None = None,
) -> Measurement:
    """Measure the plasticity of every component of a model.

    Args:
        model: a name (`bundled`, folder, hub id), a loaded model, or any module. It is given back as it was.
        source: items x: name of a data set, ImageSet, pixel values (batch, channels, height, width), or token ids.
        target: items y, likewise. With one of the two only, pairs are all unordered pairs within it.
        convention: `insitu` gives a component the input it really has in the forward pass; `shared` (the paper's)
            applies every component to the embedded tokens. Numbers of the two are not comparable.
        pairs: `all` pairs (x_i, y_j) within a pass, or `matched` pairs (x_i, y_i).
        items: at most so many images of a named data set on each side, a seeded random sample; tensors are taken whole.
        batch_size: source items, and target items, of one pass.
        roles: which components of each block.
        seed: of the samples.
        device: where the model runs.
        family: row of the table of families, for a model of another kind.
        progress: called after each pass.

    Returns:
        Table of components, means over roles, provenance.

    Raises:
        ConfigError: an argument that cannot be, such as matched pairs within one set.
        DataError: source and target differ in the shape of an item; too few items.
        AnatomyError: the model's blocks are not found.
        MeasurementError: values that are not finite, or no distinct pair.
    """
    loaded = load(model) if isinstance(model, str) else model if isinstance(model, Loaded) else from_module(model)
    anatomy = find_components(loaded.model, family=family)
    plan = plan_of(convention, pairs, batch_size, roles, two=source is not None and target is not None)
    sides = sides_of(loaded, source, target, count=items, seed=seed)
    meter = measure_items(anatomy, *sides.values(), plan=plan, device=device, progress=progress)
    provenance = provenance_of(loaded, anatomy, plan, sides, seed=seed, device=device)
    return Measurement(meter.frame(), meter.by_role(), provenance)


def sides_of(loaded: Loaded, source: Any, target: Any, *, count: int | None, seed: int) -> dict[str, Items]:
    """Turn what is given of source and target into items, the source first.

    Raises:
        ConfigError: neither is given.
    """
    sides = {side: data for side, data in (("source", source), ("target", target)) if data is not None}
    if not sides:
        raise ConfigError("nothing to measure on: pass a target (the downstream data), and a source if there is one.")
    return {
        side: items_of(data, side=side, preprocessing=loaded.preprocessing, count=count, seed=seed)
        for side, data in sides.items()
    }


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
        "convention": plan.convention,
        "pairs": plan.pairs,
        "design": plan.design,
        "batch_size": plan.batch_size,
        "seed": seed,
        **environment(device),
    }


def environment(device: str | torch.device) -> dict[str, Any]:
    """Return what the numbers may depend on beside the arguments."""
    from importlib.metadata import version

    names = ("pliant", "torch", "transformers", "timm")
    return {
        "device": str(device),
        "dtype": "float32",
        "threads": threads(),
        "python": platform.python_version(),
        "versions": {name: version(name) for name in names},
    }


def measure_items(
    anatomy: Anatomy,
    source: Items,
    target: Items | None = None,
    *,
    plan: Plan,
    device: str | torch.device = "cpu",
    progress: Progress | None = None,
    meter: Meter | None = None,
) -> Meter:
    """Run all passes and return the meter that has counted them: a new one, or the one that is given."""
    for side in (source, target):
        if side is not None and len(side) < (2 if target is None else 1):
            raise DataError(f"got {len(side)} items of {side.name}; a rate needs two distinct items")
    meter = Meter(measured(anatomy, plan), plan.design) if meter is None else meter
    shared = SharedInput(anatomy)
    was = next(anatomy.model.parameters()).device
    try:
        anatomy.model.to(device)
        with observing(anatomy.model):
            cut = passes(len(source), None if target is None else len(target), plan)
            for index, part in enumerate(cut):
                batch, n_source = joined(source, target, *part)
                meter.begin(index, source=n_source)
                one_pass(
                    anatomy, meter.components, meter.listen, batch.to(device), shared=shared, convention=plan.convention
                )
                meter.end()
                if progress is not None:
                    progress(index + 1, len(cut))
    finally:
        anatomy.model.to(was)
    return meter


def measured(anatomy: Anatomy, plan: Plan) -> tuple[Component, ...]:
    """Return the components that a plan measures, in the order of a forward pass."""
    return tuple(c for c in anatomy.components if c.role in plan.roles and c.block is not None)


def one_pass(
    anatomy: Anatomy,
    components: Sequence[Component],
    listener: Listener,
    batch: Tensor,
    *,
    shared: SharedInput,
    convention: Convention,
) -> None:
    """Show every component's input and output for one batch, source items first."""
    if convention == "insitu":
        with listening(anatomy, components, listener, batch=len(batch)) as watch:
            run(anatomy.model, batch)
            watch.check()
        return
    tokens = shared(batch)
    for component in components:
        listener(component, *apply_component(anatomy, component, tokens))


def passes(source: int, target: int | None, plan: Plan) -> list[Pass]:
    """Cut the items into passes of at most `batch_size` a side, as even as can be: no item is left without a pair.

    >>> plan = Plan("insitu", "all", 32, ("mha",), "two-sample")
    >>> [(len(x), len(y)) for x, y in passes(50, 64, plan)]
    [(25, 32), (25, 32)]

    With so few items on one side that some pass would have none, the other side's surplus is not used: to use it, items
    would have to be counted twice.
    """
    if plan.design == "matched":
        source = target = min(source, source if target is None else target)
    count = math.ceil(max(source, target or 0) / plan.batch_size)
    if target is None:  # a pass needs two items of the one set
        count = min(count, max(1, source // 2))
        return [(part, None) for part in _even(source, count)]
    count = min(count, source, target)
    most = count * plan.batch_size
    return list(zip(_even(min(source, most), count), _even(min(target, most), count), strict=True))


def _even(total: int, parts: int) -> list[range]:
    """Cut `total` positions into parts whose lengths differ by at most one."""
    bounds = [total * k // parts for k in range(parts + 1)]
    return [range(a, b) for a, b in pairwise(bounds)]


def plan_of(convention: str, pairs: str, batch_size: int, roles: Sequence[str], *, two: bool) -> Plan:
    """Check the arguments of a measurement and put them together; `two` says whether both sides are given.

    Raises:
        UnknownNameError: a convention, way to form pairs or role that does not exist.
        ConfigError: values that do not fit together.
    """
    for kind, got, known in (("convention", convention, CONVENTIONS), ("pairs", pairs, PAIR_MODES)):
        if got not in known:
            raise UnknownNameError.among(kind, got, known, nearest(got, known))
    if unknown := [r for r in roles if r not in BLOCK_ROLES]:
        raise UnknownNameError.among("component to measure", unknown[0], BLOCK_ROLES, nearest(unknown[0], BLOCK_ROLES))
    if batch_size < (1 if pairs == "matched" else 2):
        raise ConfigError(f"batch_size is {batch_size}; pairs are formed within a pass, so it must be at least 2.")
    if pairs == "matched" and not two:
        raise ConfigError(
            "matched pairs (x_i, y_i) need both source and target; got one set. Pass both, or pairs='all'."
        )
    design: Design = "matched" if pairs == "matched" else "two-sample" if two else "one-sample"
    chosen = tuple(r for r in BLOCK_ROLES if r in roles)
    return Plan(
        convention="shared" if convention == "shared" else "insitu",
        pairs="matched" if pairs == "matched" else "all",
        batch_size=batch_size,
        roles=chosen,
        design=design,
    )
