"""Labelled images as sequences of uint8 RGB arrays, and a data set's three splits."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Protocol, runtime_checkable

import numpy as np
from jaxtyping import Int64, UInt8

from pliant.errors import DataError


@runtime_checkable
class Images(Protocol):
    """Where an ImageSet takes its pixels from: an array, a packed cache, or files decoded on demand."""

    def __len__(self) -> int:
        """Return the number of images."""

    def __getitem__(self, index: int, /) -> UInt8[np.ndarray, "height width 3"]:
        """Return one image, a fresh array that the caller may change."""


class ArrayImages:
    """Images of one size in one array, grey or RGB; grey is repeated over the channels when an image is read."""

    def __init__(self, pixels: UInt8[np.ndarray, "..."]) -> None:
        """Keep `pixels`: (images, height, width) or (images, height, width, 3)."""
        if pixels.dtype != np.uint8 or pixels.ndim not in (3, 4) or (pixels.ndim == 4 and pixels.shape[3] != 3):
            raise DataError(
                f"got images of type {pixels.dtype} and shape {pixels.shape}; expected uint8 of shape "
                "(images, height, width) or (images, height, width, 3)"
            )
        self.pixels = pixels

    def __len__(self) -> int:
        """Return the number of images."""
        return len(self.pixels)

    def __getitem__(self, index: int, /) -> UInt8[np.ndarray, "height width 3"]:
        """Return one image as RGB."""
        image = self.pixels[index]
        return np.repeat(image[..., None], 3, axis=2) if image.ndim == 2 else image.copy()


class ChosenImages:
    """Some images of another sequence, by position."""

    def __init__(self, images: Images, indices: Int64[np.ndarray, " chosen"]) -> None:
        """Look through another ChosenImages, so that views of views stay one step deep."""
        if isinstance(images, ChosenImages):
            indices = images.indices[indices]
            images = images.images
        self.images: Images = images
        self.indices: Int64[np.ndarray, " chosen"] = indices

    def __len__(self) -> int:
        """Return the number of images."""
        return len(self.indices)

    def __getitem__(self, index: int, /) -> UInt8[np.ndarray, "height width 3"]:
        """Return one image."""
        return self.images[int(self.indices[index])]


@dataclass(frozen=True, eq=False)
class ImageSet:
    """Images with labels, in the order of their source; a sequence of uint8 arrays (height, width, 3).

    Attributes:
        images: the pixels.
        labels: index into `classes`, one per image.
        classes: names; the same tuple in all splits of a data set.
        origins: where each image comes from: a path, or a place such as "train[17]".
    """

    images: Images
    labels: Int64[np.ndarray, " images"]
    classes: tuple[str, ...]
    origins: Sequence[str] = field(repr=False)

    def __post_init__(self) -> None:
        """Refuse labels that do not fit the images or the classes."""
        if not len(self.images) == len(self.labels) == len(self.origins):
            raise DataError(
                f"got {len(self.images)} images, {len(self.labels)} labels, {len(self.origins)} origins; "
                "expected one of each per image"
            )
        outside = np.flatnonzero((self.labels < 0) | (self.labels >= len(self.classes)))
        if outside.size:
            first = int(outside[0])
            raise DataError(
                f"{self.origins[first]}: label {self.labels[first]} lies outside the {len(self.classes)} classes "
                f"0 to {len(self.classes) - 1} (so do {outside.size - 1} more)"
            )

    def __len__(self) -> int:
        """Return the number of images."""
        return len(self.labels)

    def __getitem__(self, index: int, /) -> UInt8[np.ndarray, "height width 3"]:
        """Return one image, a fresh array."""
        return self.images[range(len(self))[index]]

    def __iter__(self) -> Iterator[UInt8[np.ndarray, "height width 3"]]:
        """Run through the images in order."""
        return (self[i] for i in range(len(self)))

    @property
    def counts(self) -> Int64[np.ndarray, " classes"]:
        """Number of images of each class."""
        return np.bincount(self.labels, minlength=len(self.classes)).astype(np.int64)

    def stored(self) -> tuple[Images, list[int]]:
        """Return what the images are stored in, and their positions in it."""
        if isinstance(self.images, ChosenImages):
            return self.images.images, self.images.indices.tolist()
        return self.images, list(range(len(self)))

    def subset(self, indices: Sequence[int] | np.ndarray) -> "ImageSet":
        """Return the images at `indices`, in that order, without copying pixels."""
        chosen = np.asarray(indices, dtype=np.int64).reshape(-1)
        origins = [self.origins[i] for i in chosen.tolist()]
        return ImageSet(ChosenImages(self.images, chosen), self.labels[chosen], self.classes, origins)


@dataclass(frozen=True, eq=False)
class ImageData:
    """A data set: its classes (those of train), three splits, and what the user should be told about it.

    Attributes:
        name: the name it was loaded by.
        classes: names, in the order of the labels; the same in all splits.
        train, validation, test: the splits; no image is in two of them.
        notes: sentences for the user: converted images, skipped files, missing classes.
    """

    name: str
    classes: tuple[str, ...]
    train: ImageSet
    validation: ImageSet
    test: ImageSet
    notes: tuple[str, ...] = ()

    @property
    def splits(self) -> dict[str, ImageSet]:
        """The splits by name, in the order train, validation, test."""
        return {"train": self.train, "validation": self.validation, "test": self.test}

    def require_splits(self) -> None:
        """Refuse data that are for measuring only.

        Raises:
            DataError: validation or test is empty.
        """
        empty = [name for name, images in self.splits.items() if not len(images)]
        if empty:
            raise DataError(
                f"{self.name} has no {' and no '.join(empty)} images, so it serves for measuring only; "
                "training needs data with all three splits, such as digits or fashion-mnist"
            )


def empty_like(images: ImageSet) -> ImageSet:
    """Return a split with the classes of `images` and no image."""
    return images.subset([])
