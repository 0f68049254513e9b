"""Images on their way into a model: which ones a step sees, and as what pixel values."""

import weakref
from collections.abc import Iterator
from typing import TypedDict

import numpy as np
import torch
from jaxtyping import Float, Int64, UInt8
from torch import Tensor

from pliant.data import Augment, ImageSet, normalized, pixel_values
from pliant.errors import ConfigError, ModelError
from pliant.models import Loaded
from pliant.runs import CellConfig
from pliant.terms import Preprocessing

EVALUATION_BATCH = 128
"""Images per forward pass where no gradient is kept."""

KEPT_BYTES = 1 << 29
"""Pixels of one split are kept, as uint8 and as values, up to so many bytes each; what is larger is made per batch."""

_raw: "weakref.WeakKeyDictionary[ImageSet, UInt8[Tensor, 'images height width 3'] | None]" = weakref.WeakKeyDictionary()
_values: "weakref.WeakKeyDictionary[ImageSet, dict[Preprocessing, Tensor]]" = weakref.WeakKeyDictionary()
# Both live as long as their image set, so the cells that one process trains on it share them.


class Batch(TypedDict, total=False):
    """One forward pass of training: labels, and images either as they are or as pixel values.

    `number` counts forward passes from the start of the run; draws of the augmentation follow from it.
    """

    labels: Int64[Tensor, " batch"]
    images: UInt8[Tensor, "batch _ _ 3"] | list[np.ndarray]
    values: Float[Tensor, "batch 3 height width"]
    number: int


class Order:
    """Which images each step sees: all of them in a random order, then all again in another, without end.

    A step's images follow from the seed and the step's number alone, so a resumed run sees what an undisturbed one
    does. Each step sees the same number of images, across the ends of those rounds.
    """

    def __init__(self, images: int, per_step: int, *, seed: int) -> None:
        """Order `images` images, `per_step` for each step."""
        self.images = images
        self.per_step = per_step
        self.seed = seed
        self._rounds: dict[int, Int64[np.ndarray, " images"]] = {}

    def __call__(self, step: int) -> Int64[np.ndarray, " per_step"]:
        """Return the positions of the images of a step, counted from 0."""
        first, last = step * self.per_step, (step + 1) * self.per_step
        parts = []
        for number in range(first // self.images, (last - 1) // self.images + 1):
            start = number * self.images
            parts.append(self._round(number)[max(first - start, 0) : last - start])
        return np.concatenate(parts)

    def _round(self, number: int) -> Int64[np.ndarray, " images"]:
        if number not in self._rounds:
            if len(self._rounds) > 1:
                self._rounds.pop(min(self._rounds))
            generator = np.random.default_rng([self.seed, *b"order", number])
            self._rounds[number] = generator.permutation(self.images)
        return self._rounds[number]


class TrainingBatches:
    """The forward passes of the steps from `start` on, each a `Batch`.

    With several processes each gets its share of every forward pass, so a cell means the same on any number of them.
    """

    def __init__(
        self, cell: CellConfig, images: ImageSet, preprocessing: Preprocessing, *, share: tuple[int, int] = (0, 1)
    ) -> None:
        """Prepare the batches of a cell; `share` is this process's rank and their number.

        Raises:
            ConfigError: the batch cannot be divided among the processes.
        """
        rank, processes = share
        if cell.batch_size % processes:
            raise ConfigError(f"got batch_size={cell.batch_size} on {processes} processes; expected a multiple of them")
        self.cell = cell
        self.dataset = images
        self.start = 0
        self._mine = slice(rank, None, processes)
        self._order = Order(len(images), cell.images_per_step, seed=cell.seed)
        self._labels = torch.from_numpy(images.labels)
        self._augment = augmentation(cell, preprocessing)
        self._values = None if self._augment else values_of(images, preprocessing)
        self._preprocessing = preprocessing
        self._rank = rank

    def __len__(self) -> int:
        """Return the number of forward passes that are left."""
        return (self.cell.steps - self.start) * self.cell.accumulation

    def __iter__(self) -> Iterator[Batch]:
        """Yield the batch of each forward pass."""
        for step in range(self.start, self.cell.steps):
            passes = self._order(step).reshape(self.cell.accumulation, self.cell.batch_size)
            for number, positions in enumerate(passes):
                mine = np.ascontiguousarray(positions[self._mine])
                chosen = torch.from_numpy(mine)
                batch: Batch = {"labels": self._labels[chosen], "number": step * len(passes) + number}
                if self._augment is not None:
                    batch["images"] = raw(self.dataset, mine)
                elif self._values is not None:
                    batch["values"] = self._values[chosen]
                else:
                    batch["values"] = pixel_values([self.dataset[i] for i in mine.tolist()], self._preprocessing)
                yield batch

    def values(self, batch: Batch, device: torch.device) -> Float[Tensor, "batch 3 height width"]:
        """Turn a batch into pixel values on the device, augmented by a draw that depends on seed and number only."""
        if self._augment is None:
            return batch["values"].to(device)
        # The rank is part of the draw, or all processes would cut and flip their different images alike.
        return self._augment(batch["images"], step=(batch["number"] << 16) + self._rank, device=device)


def augmentation(cell: CellConfig, preprocessing: Preprocessing) -> Augment | None:
    """Return the training transform of a cell; None if images are only transformed as for evaluation."""
    if cell.augmentation == "none":
        return None
    smallest = cell.crop_scale_min if cell.crop_scale_min is not None else 1.0
    return Augment(preprocessing, crop_scale_min=smallest, flip=cell.flip, seed=cell.seed)


def preprocessing_of(cell: CellConfig, loaded: Loaded) -> Preprocessing:
    """Return what images are turned into in this cell.

    Raises:
        ModelError: the model takes no images, or nobody knows what it expects of them.
        ConfigError: the model was loaded for another image size than the cell's.
    """
    found = loaded.preprocessing
    if found is None:
        raise ModelError(f"{loaded.name} does not say what it expects of images; load it with preprocessing=")
    if cell.image_size is not None and (found.height, found.width) != (cell.image_size, cell.image_size):
        raise ConfigError(
            f"the cell asks for image_size={cell.image_size}, but {loaded.name} was loaded for "
            f"{found.height}x{found.width}; load it with image_size={cell.image_size}"
        )
    return normalized(found, cell.normalization)


def raw(images: ImageSet, positions: Int64[np.ndarray, " some"]) -> UInt8[Tensor, "some _ _ 3"] | list[np.ndarray]:
    """Return images as they are: one tensor where all of the set have one size and are kept, else a list of arrays."""
    if images not in _raw:
        _raw[images] = _stacked(images)
    kept = _raw[images]
    return [images[i] for i in positions.tolist()] if kept is None else kept[torch.from_numpy(positions)]


def _stacked(images: ImageSet) -> UInt8[Tensor, "images height width 3"] | None:
    first = images[0]
    if first.nbytes * len(images) > KEPT_BYTES:
        return None
    stack = np.empty((len(images), *first.shape), np.uint8)
    for position, image in enumerate(images):
        if image.shape != first.shape:
            return None
        stack[position] = image
    return torch.from_numpy(stack)


def values_of(images: ImageSet, preprocessing: Preprocessing) -> Float[Tensor, "images 3 height width"] | None:
    """Return the evaluation pixel values of a whole set; None if they are too large to be kept."""
    if 12 * len(images) * preprocessing.height * preprocessing.width > KEPT_BYTES:
        return None
    kept = _values.setdefault(images, {})
    if preprocessing not in kept:
        kept[preprocessing] = torch.cat([values for values, _ in _made(images, preprocessing, (0, 1))])
    return kept[preprocessing]


def evaluation_batches(
    images: ImageSet, preprocessing: Preprocessing, *, share: tuple[int, int] = (0, 1)
) -> Iterator[tuple[Float[Tensor, "batch 3 height width"], Int64[Tensor, " batch"]]]:
    """Yield pixel values and labels of a whole set in order, or of this process's share of it."""
    rank, processes = share
    kept = values_of(images, preprocessing)
    if kept is None:
        yield from _made(images, preprocessing, share)
        return
    values, labels = kept[rank::processes], torch.from_numpy(images.labels)[rank::processes]
    for start in range(0, len(labels), EVALUATION_BATCH):
        yield values[start : start + EVALUATION_BATCH], labels[start : start + EVALUATION_BATCH]


def _made(
    images: ImageSet, preprocessing: Preprocessing, share: tuple[int, int]
) -> Iterator[tuple[Float[Tensor, "batch 3 height width"], Int64[Tensor, " batch"]]]:
    mine = range(share[0], len(images), share[1])
    for start in range(0, len(mine), EVALUATION_BATCH):
        rows = list(mine[start : start + EVALUATION_BATCH])
        yield pixel_values([images[i] for i in rows], preprocessing), torch.from_numpy(images.labels[rows])
