"""What pairs are made of: items in a fixed, seeded order, given to the model a batch at a time."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from pliant.data import ImageSet, load, pixel_values
from pliant.errors import ConfigError, DataError
from pliant.terms import Preprocessing


class Items(Protocol):
    """A set of items that pairs are made of."""

    @property
    def name(self) -> str:
        """What the items are, for the provenance."""

    def __len__(self) -> int:
        """Return the number of items."""

    def batch(self, start: int, stop: int) -> Tensor:
        """Return items start to stop, stacked along the first axis."""


@dataclass(frozen=True, eq=False)
class TensorItems:
    """Items that are given as one tensor, in its order."""

    name: str
    values: Tensor

    def __len__(self) -> int:
        """Return the number of items."""
        return len(self.values)

    def batch(self, start: int, stop: int) -> Tensor:
        """Return items start to stop."""
        return self.values[start:stop]


@dataclass(frozen=True, eq=False)
class ImageItems:
    """Images, decoded and preprocessed as the checkpoint expects when they are asked for."""

    name: str
    images: ImageSet
    preprocessing: Preprocessing

    def __len__(self) -> int:
        """Return the number of images."""
        return len(self.images)

    def batch(self, start: int, stop: int) -> Tensor:
        """Return pixel values of images start to stop."""
        return pixel_values([self.images[i] for i in range(start, min(stop, len(self)))], self.preprocessing)


def items_of(
    data: Any, *, side: str, preprocessing: Preprocessing | None, count: int | None, seed: int
) -> TensorItems | ImageItems:
    """Turn what the user named or passed into items.

    Images of a named data set are a seeded random sample of its training images: the first ones of a class-ordered
    folder would be of one class. A tensor is taken whole and in its order.

    Args:
        data: name of a data set, an ImageSet, or a tensor of pixel values (batch, channels, height, width) or of token
            ids (batch, tokens).
        side: "source" or "target", for messages.
        preprocessing: what the checkpoint expects of an image; None if only tensors can be taken.
        count: at most so many images; None for all.
        seed: of the sample.

    Raises:
        DataError: nothing to measure on, or a tensor that is no batch.
        ConfigError: images for a model that does not say what it expects of an image.
    """
    if isinstance(data, Tensor):
        if data.ndim not in (2, 4) or len(data) == 0:
            raise DataError(
                f"{side}: got a tensor of shape {tuple(data.shape)}; expected pixel values (batch, channels, height, "
                "width) or token ids (batch, tokens), at least one item"
            )
        return TensorItems(f"tensor {tuple(data.shape)}", data)
    images = data if isinstance(data, ImageSet) else load(data, seed=seed).train
    if preprocessing is None:
        raise ConfigError(
            f"{side}: got images, but this model does not say what it expects of an image; pass a tensor of pixel "
            "values, or the model by name, or pliant.models.from_module(model, preprocessing=...)"
        )
    name = data if isinstance(data, str) else "images"
    return ImageItems(name, images.subset(sample_of(len(images), count, seed=seed)), preprocessing)


def sample_of(total: int, count: int | None, *, seed: int) -> Sequence[int]:
    """Draw at most `count` of `total` positions, in random order, from `seed`."""
    chosen = np.random.default_rng(seed).permutation(total)
    return [int(i) for i in (chosen if count is None else chosen[:count])]


def joined(source: Items, target: Items | None, first: range, second: range | None) -> tuple[Tensor, int]:
    """Return the items of one pass, source before target, and how many of them are source items.

    Raises:
        DataError: source and target items differ in shape.
    """
    x = source.batch(first.start, first.stop)
    if target is None or second is None:
        return x, len(x)
    y = target.batch(second.start, second.stop)
    if x.shape[1:] != y.shape[1:]:
        raise DataError(
            f"source items have shape {tuple(x.shape[1:])}, target items {tuple(y.shape[1:])}; "
            "a difference needs equal shapes. Bring both to one size."
        )
    return torch.cat([x, y.to(x.dtype)]), len(x)
