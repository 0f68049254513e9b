"""Linear probing: how far the pretrained features go with a linear classifier on top; the line that tuning has to beat.

Features are the output of the last block (or of every component of every block), averaged over tokens or taken at the
class token, L2-normalised, standardised on the training images; the classifier is a logistic regression whose strength
of regularisation is chosen on the validation images (PAPER protocol of arXiv 2602.06883).
"""

import warnings
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
import pandas as pd
import torch
from jaxtyping import Float
from numpy.typing import NDArray
from torch import Tensor, nn

from pliant.components import Anatomy, Component, Family, find_components
from pliant.data import ImageData, ImageSet
from pliant.errors import ConfigError, MeasurementError, ModelError
from pliant.measuring.capture import first_tensor, listening, observing
from pliant.models import Loaded
from pliant.runs import Score
from pliant.terms import BLOCK_ROLES
from pliant.tuning.batches import evaluation_batches

Pooling = Literal["mean", "cls"]
Layers = Literal["last", "all"]
Features = Float[np.ndarray, "images dim"]

STRENGTHS: tuple[float, ...] = (0.01, 0.1, 1.0, 10.0, 100.0)
"""Inverse regularisation strengths C that the validation images choose from."""

ITERATIONS = 1000


@dataclass(frozen=True)
class ProbeRow:
    """The probe of one layer.

    Attributes:
        layer: a component's id (`block03.mha`), or a block (`block11`) for the residual stream that leaves it.
        role, block: where it is; the role of a block's output is None.
        c: inverse regularisation strength, chosen on validation accuracy (the smaller of equals).
        converged: whether the chosen fit ended before its last iteration.
        validation, test: scores; the test images are read once, after the choice.
    """

    layer: str
    role: str | None
    block: int
    c: float
    converged: bool
    validation: Score
    test: Score


@dataclass(frozen=True)
class ProbeResult:
    """Linear probing of a model on a data set.

    Attributes:
        pooling: `mean` over tokens, or the `cls` token.
        rows: one per layer that was probed, in the order of the forward pass; the last block's output comes last.
        notes: what the user should be told.
    """

    pooling: Pooling
    rows: tuple[ProbeRow, ...] = field(repr=False)
    notes: tuple[str, ...] = ()

    @property
    def last(self) -> ProbeRow:
        """The last block's output: the reference line."""
        return self.rows[-1]

    @property
    def test(self) -> Score:
        """Test score of the last block's output."""
        return self.last.test

    @property
    def validation(self) -> Score:
        """Validation score of the last block's output."""
        return self.last.validation

    @property
    def frame(self) -> pd.DataFrame:
        """One row per layer: where it is, the chosen fit, accuracy on the test images with interval, on validation."""
        rows = [
            {
                "layer": r.layer,
                "role": r.role,
                "block": r.block,
                "c": r.c,
                "converged": r.converged,
                "n": r.test.n,
                "accuracy": r.test.accuracy,
                "ci_low": r.test.ci_low,
                "ci_high": r.test.ci_high,
                "macro_accuracy": r.test.macro_accuracy,
                "validation_accuracy": r.validation.accuracy,
            }
            for r in self.rows
        ]
        return pd.DataFrame(rows)


def probe(
    loaded: Loaded,
    data: ImageData,
    *,
    pooling: Pooling = "mean",
    layers: Layers = "last",
    device: str = "cpu",
    family: Family | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> ProbeResult:
    """Probe a pretrained model on a data set. The model is given back as it was.

    Args:
        loaded: the model; its classifier, if it has one, is not used.
        data: with three splits.
        pooling: `mean` over all tokens, or the class token (`cls`), the first of the sequence.
        layers: the `last` block's output, or `all`: every component of every block, and every block's output.
        device: where the model runs.
        family: row of the table of families, for a model of another kind.
        progress: called with images done and images in all, then nothing more while the classifiers are fitted.

    Raises:
        ModelError: the model does not say what it expects of an image.
        ConfigError: an unknown pooling or choice of layers.
        MeasurementError: features that are not finite; names the layer.
    """
    if pooling not in ("mean", "cls") or layers not in ("last", "all"):
        raise ConfigError(f"got pooling={pooling!r}, layers={layers!r}; expected mean or cls, and last or all")
    data.require_splits()
    anatomy = find_components(loaded.model, family=family)
    total, before = sum(len(images) for images in data.splits.values()), 0
    found: dict[str, dict[str, Features]] = {}
    for name, images in data.splits.items():
        report = None if progress is None else lambda n, done=before: progress(done + n, total)
        found[name] = features(loaded, anatomy, images, pooling=pooling, layers=layers, device=device, progress=report)
        before += len(images)
    rows = tuple(_row(anatomy, layer, {s: found[s][layer] for s in found}, data) for layer in found["train"])
    loose = [r.layer for r in rows if not r.converged]
    notes = (
        (f"the logistic regression of {', '.join(loose)} was stopped after {ITERATIONS} iterations",) if loose else ()
    )
    return ProbeResult(pooling, rows, notes)


def features(
    loaded: Loaded,
    anatomy: Anatomy,
    images: ImageSet,
    *,
    pooling: Pooling = "mean",
    layers: Layers = "last",
    device: str = "cpu",
    progress: Callable[[int], None] | None = None,
) -> dict[str, Features]:
    """Return pooled features of each layer, by its name, in the order of the forward pass; in float32."""
    if loaded.preprocessing is None:
        raise ModelError(f"{loaded.name} takes no images, or does not say what it expects of them; a probe needs both")
    kept: dict[str, list[Tensor]] = defaultdict(list)

    def keep(layer: str, output: Tensor) -> None:
        pooled = output.mean(dim=1) if pooling == "mean" else output[:, 0]
        kept[layer].append(pooled.detach().float().cpu())

    components = [c for c in anatomy.components if c.role in BLOCK_ROLES and c.block is not None and layers == "all"]
    blocks = range(len(anatomy.blocks)) if layers == "all" else [len(anatomy.blocks) - 1]
    was, done = next(loaded.model.parameters()).device, 0
    try:
        loaded.model.to(device)
        with observing(loaded.model), _block_outputs(anatomy, blocks, keep):
            for values, _ in evaluation_batches(images, loaded.preprocessing):
                listener = _component_listener(keep)
                with listening(anatomy, components, listener, batch=len(values)):
                    loaded.model(values.to(device))
                done += len(values)
                if progress is not None:
                    progress(done)
    finally:
        loaded.model.to(was)
    return {layer: torch.cat(parts).numpy() for layer, parts in kept.items()}


def _component_listener(keep: Callable[[str, Tensor], None]) -> Callable[[Component, Tensor, Tensor], None]:
    return lambda component, entered, left: keep(component.id, left)


class _block_outputs:
    """Hands over the residual stream that leaves each of some blocks."""

    def __init__(self, anatomy: Anatomy, blocks: Any, keep: Callable[[str, Tensor], None]) -> None:
        self._modules = [(f"block{i:02d}", anatomy.module(anatomy.blocks[i])) for i in blocks]
        self._keep = keep
        self._handles: list[Any] = []

    def __enter__(self) -> None:
        for name, module in self._modules:
            self._handles.append(module.register_forward_hook(self._hook(name)))

    def __exit__(self, *_: object) -> None:
        for handle in self._handles:
            handle.remove()

    def _hook(self, name: str) -> Callable[[nn.Module, Any, Any], None]:
        return lambda module, args, output: self._keep(name, first_tensor(output, where=name))


def _row(anatomy: Anatomy, layer: str, by_split: dict[str, Features], data: ImageData) -> ProbeRow:
    for split, values in by_split.items():
        if not np.isfinite(values).all():
            raise MeasurementError(f"{layer}: features of {split} images are not finite. Check weights for NaN.")
    x = standardised(by_split)
    best = max(
        (_fitted(x["train"], data.train.labels, c, x["validation"], data.validation.labels) for c in STRENGTHS),
        key=lambda fit: fit[0].accuracy,  # the first of equals: the smallest C
    )
    validation, c, model, converged = best
    test = Score.from_labels(data.test.labels, model.predict(x["test"]))
    component = next((k for k in anatomy.components if k.id == layer), None)
    block = component.block if component is not None else int(layer.removeprefix("block"))
    return ProbeRow(layer, component.role if component else None, block or 0, c, converged, validation, test)


def standardised(by_split: dict[str, Features]) -> dict[str, NDArray[np.float64]]:
    """L2-normalise each image's features, then centre and scale each feature by its training mean and deviation.

    A feature that is constant over the training images is centred only.

    >>> x = standardised({"train": np.array([[3.0, 4.0], [0.0, 2.0]]), "test": np.array([[6.0, 8.0]])})
    >>> x["train"].round(6).tolist(), x["test"].round(6).tolist()
    ([[1.0, -1.0], [-1.0, 1.0]], [[1.0, -1.0]])
    """
    unit = {}
    for split, values in by_split.items():
        wide = values.astype(np.float64)
        lengths = np.linalg.norm(wide, axis=1, keepdims=True)
        unit[split] = wide / np.where(lengths > 0, lengths, 1.0)
    mean, deviation = unit["train"].mean(0), unit["train"].std(0)
    deviation = np.where(deviation > 1e-12, deviation, 1.0)
    return {split: (values - mean) / deviation for split, values in unit.items()}


def _fitted(
    x: NDArray[np.float64], labels: NDArray[np.int64], c: float, x_val: NDArray[np.float64], val: NDArray[np.int64]
) -> tuple[Score, float, Any, bool]:
    from sklearn.exceptions import ConvergenceWarning
    from sklearn.linear_model import LogisticRegression

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)  # said once, in the result
        model = LogisticRegression(C=c, max_iter=ITERATIONS).fit(x, labels)
    converged = int(np.max(model.n_iter_)) < ITERATIONS
    return Score.from_labels(val, model.predict(x_val)), c, model, converged
