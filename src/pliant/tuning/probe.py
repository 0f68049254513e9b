"""Linear probing: a logistic regression on frozen features, the reference line that every training is held against.

As in arXiv 2602.06883: features after a block or component, pooled over tokens, L2-normalised, standardised.
"""

import time
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd
from jaxtyping import Float, Int64
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import LogisticRegression

from pliant.components import Anatomy, find_components
from pliant.data import ImageData, Normalization, normalized
from pliant.errors import ConfigError, MeasurementError, ModelError
from pliant.models import Loaded
from pliant.runs import Score
from pliant.runs.atomic import write_file
from pliant.tuning.features import Features, Layers, Pooling, on_device

GRID = (0.001, 0.01, 0.1, 1.0, 10.0)
"""Inverse strengths of the L2 penalty that validation chooses among."""

ITERATIONS = 1000
"""Most that a fit may take; one that has not converged by then is noted."""

NAMED = 6
"""Layers that a note names; the rest are counted."""


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
        reused: images whose features were read from disk, where an earlier run had kept them.
        notes: what a reader should know: fits that did not converge, a strength at the edge of its grid.
    """

    rows: tuple[ProbeRow, ...]
    pooling: Pooling
    n_train: int
    seconds: float
    reused: int
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

    def save(self, path: str | Path) -> Path:
        """Write the table as Parquet (`.parquet`), CSV (`.csv`) or JSON (`.json`), whole or not at all.

        Raises:
            ConfigError: a name with another ending.
            StoreError: it cannot be written.
        """
        path = Path(path)
        match path.suffix:
            case ".parquet":
                content = self.frame.to_parquet()
            case ".csv":
                content = self.frame.to_csv(index=False, float_format="%.17g").encode()
            case ".json":
                content = self.frame.to_json(orient="records", indent=1).encode()
            case _:
                raise ConfigError(f"{path.name}: expected a name that ends in .parquet, .csv or .json")
        return write_file(path, content)


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
    cache: Path | None = None,
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
        cache: folder where features are looked for and kept (see `Features`); by default they are kept nowhere.
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
    preprocessing = normalized(loaded.preprocessing, normalization)
    layers = Features(found, layer, pooling, cache=cache)
    sets = (data.train, data.validation, data.test)
    total, done = sum(len(s) for s in sets), 0
    features = []
    with on_device(found, device) as where:
        for images in sets:
            report = None if progress is None else lambda n, before=done: progress(before + n, total)
            features.append(layers.of(images, preprocessing, where, progress=report))
            done += len(images)
    rows, notes = [], list[str]()
    for name in layers.layers:
        row, remarks = _probed(name, [f[name] for f in features], [s.labels for s in sets], strengths)
        rows.append(row)
        notes += remarks
    if len(set(strengths)) > 1 and (edge := [row.layer for row in rows if row.strength == max(strengths)]):
        more = f" and {len(edge) - NAMED} more" if len(edge) > NAMED else ""
        notes.append(
            f"{', '.join(edge[:NAMED])}{more}: C={max(strengths):g} is at the upper edge of its grid; a larger one may "
            "be better"
        )
    seconds = time.perf_counter() - started
    return ProbeResult(tuple(rows), pooling, len(data.train), seconds, layers.reused, tuple(notes))


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
