"""Linear probing: a logistic regression on frozen features, the reference line that every training is held against.

PAPER.md, Training: features after a block or component, pooled over tokens, L2-normalised, standardised.
"""

import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import pandas as pd
import torch
from jaxtyping import Float, Int64
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import LogisticRegression
from torch import Tensor

from pliant.components import Anatomy, Component, find_components
from pliant.data import ImageData, ImageSet, Normalization, normalized
from pliant.errors import ConfigError, MeasurementError, ModelError
from pliant.measuring.capture import first_tensor, listening, observing
from pliant.measuring.subject import pick_device
from pliant.models import Loaded
from pliant.runs import Score
from pliant.terms import BLOCK_ROLES, Preprocessing
from pliant.tuning.batches import evaluation_batches

Pooling = Literal["mean", "cls"]
Layers = Literal["last", "blocks", "all"]

GRID = (0.001, 0.01, 0.1, 1.0, 10.0)
"""Inverse strengths of the L2 penalty that validation chooses among."""

ITERATIONS = 1000
"""Most that a fit may take; one that has not converged by then is noted."""


@dataclass(frozen=True)
class ProbeRow:
    """The probe of one layer.

    Attributes:
        layer: `block03` for a block's output, `block03.mha` for a component's.
        role: of the component; `block` for a block's output.
        block: its index.
        width: number of features.
        strength: the C that was chosen on validation (the smaller of equals).
        validation: score on the validation images; `test` on the test images, read once, after the choice.
    """

    layer: str
    role: str
    block: int
    width: int
    strength: float
    validation: Score
    test: Score


@dataclass(frozen=True)
class ProbeResult:
    """What linear probing found.

    Attributes:
        rows: one per layer, in order of depth.
        pooling: `mean` over tokens or `cls`, the class token.
        n_train: images that the classifiers were fitted on.
        seconds: it took.
        notes: what a reader should know: fits that did not converge, a strength at the edge of its grid.
    """

    rows: tuple[ProbeRow, ...]
    pooling: Pooling
    n_train: int
    seconds: float
    notes: tuple[str, ...]

    @property
    def last(self) -> ProbeRow:
        """The last block's output: the figure that tables compare with."""
        return next(row for row in reversed(self.rows) if row.role == "block")

    @property
    def validation(self) -> Score:
        """Validation score of the last block's output."""
        return self.last.validation

    @property
    def test(self) -> Score:
        """Test score of the last block's output."""
        return self.last.test

    @property
    def frame(self) -> pd.DataFrame:
        """One row per layer: where it is, the chosen C, and test accuracy with its interval beside validation's."""
        return pd.DataFrame(
            [
                {
                    "layer": row.layer,
                    "role": row.role,
                    "block": row.block,
                    "width": row.width,
                    "c": row.strength,
                    "n": row.test.n,
                    "accuracy": row.test.accuracy,
                    "ci_low": row.test.ci_low,
                    "ci_high": row.test.ci_high,
                    "macro_accuracy": row.test.macro_accuracy,
                    "validation_accuracy": row.validation.accuracy,
                }
                for row in self.rows
            ]
        )


def probe(
    loaded: Loaded,
    data: ImageData,
    *,
    pooling: Pooling = "mean",
    layer: Layers = "last",
    normalization: Normalization = "checkpoint",
    anatomy: Anatomy | None = None,
    device: str = "auto",
    strengths: Sequence[float] = GRID,
    progress: Callable[[int, int], None] | None = None,
) -> ProbeResult:
    """Fit a logistic regression on frozen features and score it; the model is given back as it was.

    Args:
        loaded: a model with or without classifier.
        data: with three splits: fit on train, choose the penalty on validation, score test.
        pooling: `mean` over all tokens, or `cls`, the class token.
        layer: `last` block's output; `blocks`: every block's output; `all`: also every component's of every block.
        normalization: mean and std of the images.
        anatomy: of the model, where its family is not in the table.
        device: `auto`, `cpu`, `cuda` or `mps`.
        strengths: values of C.
        progress: called with images done and their total.

    Raises:
        DataError: a split is empty.
        ConfigError: the class token of a model that has none.
        ModelError: the model does not say what it expects of images.
        MeasurementError: a block's output is no tensor of tokens, or features are not finite.
    """
    started = time.perf_counter()
    data.require_splits()
    if loaded.preprocessing is None:
        raise ModelError(f"{loaded.name} does not say what it expects of images; load it with preprocessing=")
    found = anatomy or find_components(loaded.model)
    _check(found, pooling)
    preprocessing = normalized(loaded.preprocessing, normalization)
    collector = _Collector(found, layer, pooling)
    sets = (data.train, data.validation, data.test)
    total, done = sum(len(s) for s in sets), 0
    features = []
    with _on_device(found, device) as where:
        for images in sets:
            report = None if progress is None else lambda n, before=done: progress(before + n, total)
            features.append(collector.collect(images, preprocessing, where, progress=report))
            done += len(images)
    rows, notes = [], list[str]()
    for name in collector.layers:
        row, remarks = _probed(name, [f[name] for f in features], [s.labels for s in sets], strengths)
        rows.append(row)
        notes += remarks
    return ProbeResult(tuple(rows), pooling, len(data.train), time.perf_counter() - started, tuple(notes))


def _check(anatomy: Anatomy, pooling: str) -> None:
    if pooling not in ("mean", "cls"):
        raise ConfigError(f"got pooling={pooling!r}; expected 'mean' or 'cls'")
    embeddings = [p.rpartition(".")[2] for c in anatomy.of("emb") for p in c.parameters]
    if pooling == "cls" and not {"cls_token", "class_token", "class_embedding"} & set(embeddings):
        raise ConfigError(f"{type(anatomy.model).__name__} has no class token; use pooling='mean'")


@contextmanager
def _on_device(anatomy: Anatomy, device: str) -> Iterator[torch.device]:
    """Move the model, in evaluation mode, and back."""
    where = torch.device(pick_device(device))
    was = next(anatomy.model.parameters()).device
    try:
        anatomy.model.to(where)
        with observing(anatomy.model):
            yield where
    finally:
        anatomy.model.to(was)


class _Collector:
    """Runs a model over sets of images and keeps the pooled features of the layers that are asked for."""

    def __init__(self, anatomy: Anatomy, layer: str, pooling: Pooling) -> None:
        if layer not in ("last", "blocks", "all"):
            raise ConfigError(f"got layer={layer!r}; expected 'last', 'blocks' or 'all'")
        self.anatomy = anatomy
        self.pooling = pooling
        depth = len(anatomy.blocks)
        self.blocks = {f"block{i:02d}": anatomy.blocks[i] for i in (range(depth) if layer != "last" else [depth - 1])}
        inside = [c for c in anatomy.components if c.role in BLOCK_ROLES and c.modules]
        self.components: list[Component] = inside if layer == "all" else []
        self.layers = sorted([*self.blocks, *(c.id for c in self.components)], key=_depth)

    def collect(
        self,
        images: ImageSet,
        preprocessing: Preprocessing,
        device: torch.device,
        *,
        progress: Callable[[int], None] | None,
    ) -> dict[str, Float[np.ndarray, "images _"]]:
        """Return the features of a whole set by layer."""
        parts: dict[str, list[np.ndarray]] = {name: [] for name in self.layers}
        done = 0
        for values, _ in evaluation_batches(images, preprocessing):
            for name, pooled in self._pass(values.to(device)).items():
                parts[name].append(pooled.float().cpu().numpy())
            done += len(values)
            if progress is not None:
                progress(done)
        return {name: np.concatenate(found) for name, found in parts.items()}

    def _pass(self, values: Float[Tensor, "batch 3 height width"]) -> dict[str, Float[Tensor, "batch _"]]:
        seen: dict[str, Tensor] = {}

        def keep(name: str) -> Callable[..., None]:
            return lambda module, args, output: seen.update({name: self._pooled(output, name, len(values))})

        def listen(component: Component, given: Tensor, output: Tensor) -> None:
            seen[component.id] = self._pooled(output, component.id, len(values))

        with ExitStack() as stack:
            for name, path in self.blocks.items():
                handle = self.anatomy.module(path).register_forward_hook(keep(name))
                stack.callback(handle.remove)
            if self.components:
                watch = stack.enter_context(listening(self.anatomy, self.components, listen, batch=len(values)))
            self.anatomy.model(values)
            if self.components:
                watch.check()
        if missing := set(self.layers) - set(seen):
            raise MeasurementError(f"these layers gave no output in a forward pass: {', '.join(sorted(missing))}")
        return seen

    def _pooled(self, output: Any, name: str, batch: int) -> Float[Tensor, "{batch} _"]:
        tokens = first_tensor(output, where=name)
        if tokens.ndim < 3 or len(tokens) != batch:
            raise MeasurementError(
                f"{name} gave a tensor of shape {tuple(tokens.shape)}; expected ({batch}, tokens, width)"
            )
        tokens = tokens.flatten(1, -2)
        return tokens[:, 0] if self.pooling == "cls" else tokens.mean(dim=1)


def _depth(layer: str) -> tuple[str, int]:
    """Sort a block's components by their order in it, and its output after them."""
    block, _, role = layer.partition(".")
    return block, list(BLOCK_ROLES).index(role) if role in BLOCK_ROLES else len(BLOCK_ROLES)


def _probed(
    layer: str,
    features: Sequence[Float[np.ndarray, "_ width"]],
    labels: Sequence[Int64[np.ndarray, " _"]],
    strengths: Sequence[float],
) -> tuple[ProbeRow, list[str]]:
    """Fit on train, choose on validation, score test."""
    train, validation, test = _standardised(features, layer)
    best: tuple[Score, float, LogisticRegression] | None = None
    notes = []
    model = LogisticRegression(max_iter=ITERATIONS, warm_start=True)  # each strength starts from the one before
    for strength in sorted(strengths):
        model.set_params(C=strength)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            model.fit(train, labels[0])
        if any(issubclass(w.category, ConvergenceWarning) for w in caught):
            notes.append(f"{layer}: the fit with C={strength:g} did not converge in {ITERATIONS} iterations")
        score = Score.from_labels(labels[1], model.predict(validation))
        if best is None or score.correct > best[0].correct:
            best = score, strength, _copy(model)
    if best is None:
        raise ConfigError("no strength to choose from: pass at least one C")
    score, strength, chosen = best
    if len(strengths) > 1 and strength == max(strengths):
        notes.append(f"{layer}: C={strength:g} is at the upper edge of its grid; a larger one may be better")
    block, _, role = layer.partition(".")
    found = ProbeRow(
        layer=layer,
        role=role or "block",
        block=int(block.removeprefix("block")),
        width=train.shape[1],
        strength=strength,
        validation=score,
        test=Score.from_labels(labels[2], chosen.predict(test)),
    )
    return found, notes


def _copy(model: LogisticRegression) -> LogisticRegression:
    """Freeze what a warm-started model has found so far: later fits write over its arrays."""
    copy = LogisticRegression(C=model.C)
    copy.classes_, copy.n_iter_ = model.classes_, model.n_iter_
    copy.coef_, copy.intercept_ = model.coef_.copy(), model.intercept_.copy()
    copy.n_features_in_ = model.n_features_in_
    return copy


def _standardised(features: Sequence[Float[np.ndarray, "_ width"]], layer: str) -> list[Float[np.ndarray, "_ width"]]:
    """Scale every vector to length 1, then every feature to mean 0 and deviation 1 over the training images."""
    unit = []
    for found in features:
        if not np.isfinite(found).all():
            raise MeasurementError(f"{layer}: features are not finite; check images and weights for NaN")
        length = np.linalg.norm(found.astype(np.float64), axis=1, keepdims=True)
        unit.append(found / np.where(length > 0, length, 1.0))
    mean, deviation = unit[0].mean(0), unit[0].std(0)
    # A feature that does not vary is left at zero, rounding included.
    deviation = np.where(deviation > 1e-12, deviation, np.inf)
    return [(u - mean) / deviation for u in unit]
