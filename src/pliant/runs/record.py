"""What a cell produced: scores with their uncertainty, proof of what was trained, and the learning curve."""

import math
from collections.abc import Sequence
from typing import Annotated, ClassVar, Literal, Self

import numpy as np
from numpy.typing import ArrayLike
from pydantic import Field, JsonValue, field_validator, model_validator

from pliant.errors import PliantError, StoreError
from pliant.runs.config import CellConfig
from pliant.runs.strict import FromList, Real, Strict

Z95 = 1.959963984540054
"""The normal quantile of a two-sided 95 % interval."""

Share = Annotated[float, Field(ge=0, le=1)]
Natural = Annotated[int, Field(ge=0)]


class Score(Strict):
    """Accuracy over a whole set (correct / n, never a mean of batch means) with its uncertainty.

    Attributes:
        n: number of images.
        correct: how many of them were classified correctly.
        accuracy: correct / n.
        stderr: binomial standard error, sqrt(accuracy (1 - accuracy) / n).
        ci_low: lower end of Wilson's 95 % interval; `ci_high` its upper end. Unlike the normal interval it stays in
            [0, 1] and keeps its width at 0 and 1 (Wilson 1927).
        macro_accuracy: mean over classes of the accuracy within the class; classes without an image are left out.
            None where the classes are not known.
    """

    failure: ClassVar[type[PliantError]] = StoreError

    n: Annotated[int, Field(gt=0)]
    correct: Natural
    accuracy: Share
    stderr: Share
    ci_low: Share
    ci_high: Share
    macro_accuracy: Share | None = None

    @model_validator(mode="after")
    def _agrees(self) -> Self:
        if self.correct > self.n or not math.isclose(self.accuracy, self.correct / self.n, abs_tol=1e-12):
            raise ValueError(f"accuracy {self.accuracy} is not {self.correct} correct of {self.n}")
        return self

    @classmethod
    def from_counts(cls, n: int, correct: int, *, per_class: Sequence[tuple[int, int]] | None = None) -> Self:
        """Score from counts; `per_class` holds (images, correct) of each class and gives the macro accuracy.

        >>> score = Score.from_counts(10, 9, per_class=[(8, 8), (2, 1), (0, 0)])
        >>> score.accuracy, score.macro_accuracy, round(score.ci_low, 3), round(score.ci_high, 3)
        (0.9, 0.75, 0.596, 0.982)

        Raises:
            StoreError: there are no images, or more correct ones than images, or the classes do not add up.
        """
        if not 0 <= correct <= n or n == 0:
            raise StoreError(f"cannot score {correct} correct of {n} images")
        macro = None
        if per_class is not None:
            if (sum(of for of, _ in per_class), sum(right for _, right in per_class)) != (n, correct):
                raise StoreError(f"the classes' counts do not add up to {correct} correct of {n} images")
            macro = min(1.0, float(np.mean([right / of for of, right in per_class if of])))
        accuracy = correct / n
        stderr = math.sqrt(accuracy * (1 - accuracy) / n)
        low, high = wilson(n, correct)
        return cls(
            n=n, correct=correct, accuracy=accuracy, stderr=stderr, ci_low=low, ci_high=high, macro_accuracy=macro
        )

    @classmethod
    def from_labels(cls, labels: ArrayLike, predicted: ArrayLike) -> Self:
        """Score predictions against true labels, both integers of shape (images,).

        >>> Score.from_labels([0, 0, 0, 1], [0, 0, 1, 1]).macro_accuracy
        0.8333333333333333

        Raises:
            StoreError: no images, or not as many predictions as labels.
        """
        true, guessed = np.asarray(labels), np.asarray(predicted)
        if true.ndim != 1 or true.shape != guessed.shape:
            raise StoreError(f"labels {true.shape} and predictions {guessed.shape} must be two lists of one length")
        right = true == guessed
        classes = [(int((true == c).sum()), int(right[true == c].sum())) for c in np.unique(true)]
        return cls.from_counts(len(true), int(right.sum()), per_class=classes)


def wilson(n: int, correct: int, *, z: float = Z95) -> tuple[float, float]:
    """Wilson's interval of a proportion.

    >>> [round(end, 4) for end in wilson(10, 10)]
    [0.7225, 1.0]
    """
    share = correct / n
    centre = (share + z**2 / (2 * n)) / (1 + z**2 / n)
    half = z / (1 + z**2 / n) * math.sqrt(share * (1 - share) / n + z**2 / (4 * n**2))
    # At the ends the interval reaches 0 or 1 exactly; rounding must not push it past the share itself.
    low = 0.0 if correct == 0 else min(share, centre - half)
    high = 1.0 if correct == n else max(share, centre + half)
    return max(0.0, low), min(1.0, high)


class CurvePoint(Strict):
    """One evaluation during training. Losses may be NaN or infinite: a run that diverges keeps what it saw."""

    failure: ClassVar[type[PliantError]] = StoreError

    step: Natural
    train_loss: Real | None = None
    validation_loss: Real | None = None
    validation_accuracy: Share | None = None


class Record(Strict):
    """What a cell produced. `done`: trained to its end. `diverged`: the loss stopped being finite. `failed`: an error.

    Attributes:
        cell: the configuration that was run.
        status: see above. A diverged run keeps its last good checkpoint's figures, and is never averaged in.
        best_step: step of the checkpoint that was chosen, by validation accuracy.
        validation_accuracy: of that checkpoint, over `n_validation` images.
        test: of that checkpoint; the test set is read once, after the choice, and not at all without `cell.read_test`.
        n_train: images trained on; `n_validation` images chosen on.
        trained_parameters: number of trained weights, of `total_parameters`.
        trained_names: full names of the trained tensors.
        frozen_tensors_unchanged: frozen tensors and buffers found byte-identical at the end.
        trained_tensors_moved: trained tensors found changed at the end.
        dtype: of the trained tensors.
        seconds: the run took, over all its starts.
        peak_memory_bytes: highest memory of the process or device.
        saved_bytes: size of the file of what was trained.
        curve: the evaluations, by step.
        diverged_at: the step whose loss was not finite.
        notes: what the user should be told (images converted or skipped, ...).
        environment: versions, device, threads, the weights' fingerprint: what a result may depend on beside the cell.
        error: why it failed, with the traceback.

    Raises:
        StoreError: a key is unknown or missing, or its value cannot be; status and fields contradict each other.
    """

    failure: ClassVar[type[PliantError]] = StoreError

    cell: CellConfig
    status: Literal["done", "diverged", "failed"]
    best_step: Natural | None = None
    validation_accuracy: Share | None = None
    test: Score | None = None
    n_train: Natural | None = None
    n_validation: Natural | None = None
    trained_parameters: Natural | None = None
    total_parameters: Natural | None = None
    trained_names: Annotated[tuple[str, ...], FromList] = ()
    frozen_tensors_unchanged: Natural | None = None
    trained_tensors_moved: Natural | None = None
    dtype: str | None = None
    seconds: Annotated[float, Field(ge=0)] | None = None
    peak_memory_bytes: Natural | None = None
    saved_bytes: Natural | None = None
    curve: Annotated[tuple[CurvePoint, ...], FromList] = ()
    diverged_at: Natural | None = None
    notes: Annotated[tuple[str, ...], FromList] = ()
    environment: dict[str, JsonValue] = Field(default_factory=dict)
    error: str | None = None

    @field_validator("cell", mode="before")
    @classmethod
    def _cell(cls, value: object) -> object:
        try:
            return CellConfig(**value) if isinstance(value, dict) else value
        except PliantError as error:
            raise ValueError(str(error)) from None

    @field_validator("curve", mode="before")
    @classmethod
    def _curve(cls, value: object) -> object:
        points = value if isinstance(value, list | tuple) else ()
        return tuple(CurvePoint(**p) if isinstance(p, dict) else p for p in points) or value

    @field_validator("test", mode="before")
    @classmethod
    def _test(cls, value: object) -> object:
        return Score(**value) if isinstance(value, dict) else value

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if self.status == "done" and (self.best_step is None or self.validation_accuracy is None):
            raise ValueError("a record that is done needs best_step and validation_accuracy")
        if self.status == "done" and (self.test is None) == self.cell.read_test:
            raise ValueError(f"test = {self.test} contradicts the cell's read_test = {self.cell.read_test}")
        if (self.status == "diverged") != (self.diverged_at is not None):
            raise ValueError(f"status {self.status!r} and diverged_at = {self.diverged_at} contradict each other")
        if (self.status == "failed") != (self.error is not None):
            raise ValueError(f"status {self.status!r} and error = {self.error!r} contradict each other")
        return self

    def outcome(self) -> dict[str, JsonValue]:
        """Everything that must be equal when the same cell runs again: all but time, memory and environment."""
        apart = {"seconds", "peak_memory_bytes", "environment"}
        outcome: dict[str, JsonValue] = self.model_dump(mode="json", exclude=apart)
        return outcome
