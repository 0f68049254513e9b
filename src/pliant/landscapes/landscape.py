"""The landscapes of components: loss and rate of change, over planes that can be compared side by side."""

import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import Any, Literal

import pandas as pd
import torch
from torch import Tensor

from pliant.components import Anatomy, Component, find_components
from pliant.data import ImageData, load, pixel_values
from pliant.errors import ConfigError, ModelError, UnknownNameError
from pliant.landscapes.directions import coordinates, filter_normalised, principal
from pliant.landscapes.loss import Loss, common_descent, over_grid, probed_loss
from pliant.landscapes.rates import component_at, rates_over_grid, sensitive_plane
from pliant.landscapes.surface import Surface, axis
from pliant.measuring.capture import observing
from pliant.measuring.subject import pick_device
from pliant.models import Loaded
from pliant.models import load as load_model
from pliant.runs.atomic import write_file
from pliant.terms import BLOCK_ROLES, nearest, parse_components

Progress = Callable[[int, int], None]
Directions = Literal["pca", "random"]
DIRECTIONS: tuple[Directions, ...] = ("pca", "random")

MARGIN = 0.75
"""How far a grid reaches around the middle of the path, in lengths of the path's longer side."""


@dataclass(frozen=True)
class Landscape:
    """Surfaces of several components of one model on the same images.

    Attributes:
        surfaces: losses first, then rates, each in the order of the components.
        provenance: model, weights' fingerprint, data, images, directions, seed, versions.
    """

    surfaces: tuple[Surface, ...]
    provenance: Mapping[str, Any] = field(repr=False)

    @property
    def frame(self) -> pd.DataFrame:
        """One row for each point of each grid: kind, component, x, y, value."""
        return pd.concat([s.frame for s in self.surfaces], ignore_index=True)

    def to_json(self) -> str:
        """Return provenance and surfaces as JSON."""
        values = {"provenance": dict(self.provenance), "surfaces": [s.plain() for s in self.surfaces]}
        return json.dumps(values, allow_nan=False)

    def save(self, path: str | Path) -> Path:
        """Write it as JSON; `landscape*.json` in a folder is taken in by its report.

        Raises:
            ConfigError: a name that does not end in .json.
        """
        path = Path(path)
        if path.suffix != ".json":
            raise ConfigError(f"{path.name}: expected a name that ends in .json")
        return write_file(path, self.to_json())


def landscape(
    model: str | Loaded = "bundled",
    data: str | ImageData = "digits",
    *,
    components: Sequence[str] = ("ln1", "fc1", "mha"),
    directions: Directions = "pca",
    points: int = 21,
    images: int = 100,
    steps: int = 30,
    learning_rate: float | None = None,
    block: int | None = None,
    reach: float = 1.0,
    seed: int = 0,
    device: str = "auto",
    progress: Progress | None = None,
) -> Landscape:
    """Compute for each component the loss over two directions of its weights, and its rate of change over two of input.

    Everything starts from the checkpoint with its classifier fitted on the frozen features of the same images. The
    model is given back as it was.

    Args:
        model: a name, or a loaded model with a classifier for the data's classes.
        data: a name, or a data set; training images are used.
        components: component sets (`mha`, `mha+fc1`, in all blocks), or single components (`block03.mha`).
        directions: of weights: `pca` of a short path of gradient descent, or `random` with the length of each filter
            (Li et al., NeurIPS 2018).
        points: of a side of each grid.
        images: at most so many.
        steps: of gradient descent.
        learning_rate: of gradient descent, one for all components; left out, the largest at which no loss rises.
        block: whose component the rates are of; the middle one if left out.
        reach: of the grid of inputs, in units of the input's own norm; and of random directions of weights.
        seed: of everything that is drawn.
        device: `auto`, `cpu`, `cuda`, ...
        progress: called with points done and points in all.

    Raises:
        UnknownNameError: a component or kind of directions that there is not.
        ConfigError: a grid or path that cannot be; rates of a model whose attention works on windows.
        ModelError: the model takes no images.
        MeasurementError: gradient descent does not move, or no derivative is finite.
    """
    if directions not in DIRECTIONS:
        raise UnknownNameError.among("kind of directions", directions, DIRECTIONS, nearest(directions, DIRECTIONS))
    if learning_rate is not None and not (math.isfinite(learning_rate) and learning_rate > 0):
        raise ConfigError(f"learning_rate is {learning_rate}; expected a positive number")
    if points < 3 or steps < 2 or not components or not reach > 0:
        raise ConfigError(
            f"got points={points}, steps={steps}, components={list(components)}, "
            f"reach={reach}; expected at least 3 points, 2 steps, a component, and positive numbers."
        )
    found = load(data, train=images, seed=seed) if isinstance(data, str) else data
    loaded = load_model(model, classes=found.classes, seed=seed) if isinstance(model, str) else model
    where = pick_device(device)
    job = _Job(loaded, found, images, seed=seed, device=where, progress=progress)
    surfaces, rate = job.run(components, directions, points, steps=steps, rate=learning_rate, block=block, reach=reach)
    about = {
        "model": loaded.name,
        "fingerprint": loaded.fingerprint,
        "data": found.name,
        "images": len(job.labels),
        "directions": directions,
        "points": points,
        "steps": steps,
        "learning_rate": rate,
        "seed": seed,
        "device": where,
        "threads": torch.get_num_threads(),
        "versions": {name: version(name) for name in ("pliant", "torch", "transformers")},
    }
    return Landscape(surfaces, about)


class _Job:
    """Model and images on the device, and how far the work is."""

    def __init__(
        self, loaded: Loaded, data: ImageData, images: int, *, seed: int, device: str, progress: Progress | None
    ) -> None:
        if loaded.preprocessing is None:
            raise ModelError(f"{loaded.name} does not say what it expects of images; a landscape needs images")
        chosen = data.train.subset(range(min(images, len(data.train))))
        self.loaded, self.seed, self.device = loaded, seed, device
        self.anatomy: Anatomy = find_components(loaded.model)
        self.classes = len(data.classes)
        self.pixels = pixel_values([chosen[i] for i in range(len(chosen))], loaded.preprocessing)
        self.labels = torch.as_tensor(chosen.labels)
        self._progress, self._done, self._total = progress, 0, 1

    def run(
        self,
        components: Sequence[str],
        directions: Directions,
        points: int,
        *,
        steps: int,
        rate: float | None,
        block: int | None,
        reach: float,
    ) -> tuple[tuple[Surface, ...], float]:
        weights = {name: _weights(self.anatomy, name) for name in components}
        single = [c for name in components if (c := _single(self.anatomy, name, block)) is not None]
        self._total = len(components) * (points**2 + steps + 1) + len(single) * points**2
        model, was = self.loaded.model, next(self.loaded.model.parameters()).device
        try:
            model.to(self.device)
            self.pixels, self.labels = self.pixels.to(self.device), self.labels.to(self.device)
            with observing(model):
                loss = probed_loss(self.anatomy, self.pixels, self.labels, classes=self.classes)
                starts = {n: {k: w.to(self.device) for k, w in start.items()} for n, start in weights.items()}
                paths, used = common_descent(loss, starts, steps=steps, learning_rate=rate, advance=self._advance)
                losses = [
                    self._loss(name, loss, start, paths[name], directions, points, reach=reach)
                    for name, start in starts.items()
                ]
                rates = [] if self.anatomy.family.windowed else [self._rate(c, points, reach=reach) for c in single]
        finally:
            model.to(was)
        return (*losses, *rates), used

    def _loss(
        self,
        name: str,
        loss: Loss,
        start: Mapping[str, Tensor],
        steps: Sequence[tuple[Tensor, float]],
        directions: Directions,
        points: int,
        *,
        reach: float,
    ) -> Surface:
        path = torch.stack([moved for moved, _ in steps])
        about: dict[str, Any] = {"directions": directions, "distance": float(torch.linalg.vector_norm(path[-1]))}
        if directions == "pca":
            plane, shares = principal(path, seed=self.seed)
            about["shares"] = list(shares)
        else:
            plane = filter_normalised(start, seed=self.seed)
        places = coordinates(path, plane).cpu().tolist()
        x, y = _axes(places, points) if directions == "pca" else (axis(-reach, reach, points),) * 2
        together = torch.device(self.device).type == "cuda"
        values = over_grid(loss, start, plane, x=x, y=y, together=together, advance=self._advance)
        ways = tuple((a, b, value) for (a, b), (_, value) in zip(places, steps, strict=True))
        return Surface("loss", name, x, y, values, ways, about)

    def _rate(self, component: Component, points: int, *, reach: float) -> Surface:
        f, tokens = component_at(self.anatomy, component, self.pixels[:1])
        plane, steepest = sensitive_plane(self.anatomy, f, tokens, seed=self.seed)
        size = float(torch.linalg.vector_norm(tokens))
        ends = axis(-reach * size, reach * size, points)
        values = rates_over_grid(f, tokens, plane, x=ends, y=ends, advance=self._advance)
        shares = axis(-reach, reach, points)
        return Surface("rate", component.id, shares, shares, values, (), {"steepest": steepest, "input_norm": size})

    def _advance(self, count: int) -> None:
        self._done += count
        if self._progress is not None:
            self._progress(min(self._done, self._total), self._total)


def _axes(places: Sequence[Sequence[float]], points: int) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Return a square grid around a path, with the start and the end well inside."""
    sides = [(min(p[i] for p in places), max(p[i] for p in places)) for i in (0, 1)]
    half = MARGIN * max(high - low for low, high in sides)
    middles = [(low + high) / 2 for low, high in sides]
    return axis(middles[0] - half, middles[0] + half, points), axis(middles[1] - half, middles[1] + half, points)


def _weights(anatomy: Anatomy, name: str) -> dict[str, Tensor]:
    """Return the weights of a component set or of a single component."""
    parameters = dict(anatomy.model.named_parameters())
    one = next((c for c in anatomy.components if c.id == name), None)
    if one is not None and one.block is not None:
        names: Sequence[str] = one.parameters
    elif "." in name:
        known = [c.id for c in anatomy.components if c.block is not None]
        raise UnknownNameError.among("component", name, known, nearest(name, known))
    else:
        names = list(anatomy.parameters(parse_components(name)))
    if not names:
        raise ConfigError(f"{name} has no weights in this model; its components are {', '.join(anatomy.roles)}.")
    return {n: parameters[n].detach() for n in names}


def _single(anatomy: Anatomy, name: str, block: int | None) -> Component | None:
    """Return the component whose rates stand for a name: itself, or the role's in one block; None for sets of roles."""
    blocks = len(anatomy.blocks)
    chosen = blocks // 2 if block is None else block
    if not 0 <= chosen < blocks:
        raise ConfigError(f"got block {block}; the model has blocks 0 to {blocks - 1}.")
    for component in anatomy.components:
        if component.id == name or (component.role == name and component.block == chosen):
            return component if component.role in BLOCK_ROLES else None
    return None
