"""Stratified splits with exact integer counts, from a seed of their own."""

import numpy as np
from jaxtyping import Int64

from pliant.data.sets import ImageData, ImageSet
from pliant.errors import ConfigError, DataError

HELD_OUT = 5
"""A set without its own test (validation) images gives one image in five of its training images to it."""


def allocate(counts: Int64[np.ndarray, " classes"], total: int, *, keep: int = 0) -> Int64[np.ndarray, " classes"]:
    """Distribute `total` images over classes in proportion to their sizes, exactly: largest remainders, integers only.

    Args:
        counts: images of each class.
        total: images wanted; all there are, if there are fewer.
        keep: images of each class that are not given away.

    >>> allocate(np.array([50, 30, 20]), 7).tolist()
    [4, 2, 1]
    >>> allocate(np.array([1, 1, 8]), 5, keep=1).tolist()
    [0, 0, 5]
    """
    room = np.maximum(counts - keep, 0).astype(np.int64)
    total = min(total, int(room.sum()))
    size = max(int(counts.sum()), 1)
    taken: Int64[np.ndarray, " classes"] = np.minimum(counts * total // size, room)
    order = np.lexsort((np.arange(len(counts)), -(counts * total % size)))
    while (left := total - int(taken.sum())) > 0:
        open_classes = order[taken[order] < room[order]]
        taken[open_classes[:left]] += 1
    return taken


def stratified(
    labels: Int64[np.ndarray, " images"], total: int, *, seed: int, purpose: str, keep: int = 0
) -> tuple[Int64[np.ndarray, " taken"], Int64[np.ndarray, " rest"]]:
    """Take `total` images at random, each class in proportion; return positions of the taken and of the rest, sorted.

    With the same seed and purpose, a class's share of a smaller total is part of its share of a larger one.
    """
    generator = np.random.default_rng([seed, *purpose.encode()])
    share = allocate(np.bincount(labels).astype(np.int64), total, keep=keep)
    taken = [generator.permutation(np.flatnonzero(labels == c))[:n] for c, n in enumerate(share)]
    positions = np.sort(np.concatenate(taken)) if taken else np.zeros(0, np.int64)
    rest = np.setdiff1d(np.arange(len(labels)), positions, assume_unique=True)
    return positions.astype(np.int64), rest.astype(np.int64)


def hold_out(images: ImageSet, *, seed: int, purpose: str) -> tuple[ImageSet, ImageSet]:
    """Split one image in five off for `purpose`, stratified; every class keeps at least one image.

    Returns:
        What is left, and what was split off.

    Raises:
        DataError: there are too few images for it.
    """
    taken, rest = stratified(images.labels, round(len(images) / HELD_OUT), seed=seed, purpose=purpose, keep=1)
    if not taken.size:
        raise DataError(
            f"{len(images)} images of {len(images.classes)} classes are too few to split off {purpose} images "
            f"(one in {HELD_OUT}, and each class keeps one); add images, or give {purpose} images of their own"
        )
    return images.subset(rest), images.subset(taken)


def limited(images: ImageSet, limit: int | None, *, seed: int, purpose: str) -> ImageSet:
    """Keep at most `limit` images, stratified; all of them for None.

    Raises:
        ConfigError: `limit` is not positive.
    """
    if limit is None:
        return images
    if limit < 1:
        raise ConfigError(f"got {purpose}={limit}; expected a positive number of images, or none for all")
    if limit >= len(images):
        return images
    return images.subset(stratified(images.labels, limit, seed=seed, purpose=f"limit {purpose}")[0])


def missing_classes(data: ImageData) -> tuple[str, ...]:
    """Say which classes have no image in a split that is not empty."""
    notes = []
    for name, images in data.splits.items():
        absent = [c for c, n in zip(data.classes, images.counts.tolist(), strict=True) if not n]
        if absent and len(images):
            more = f" and {len(absent) - 5} more" if len(absent) > 5 else ""
            notes.append(f"{name}: no image of {len(absent)} classes ({', '.join(absent[:5])}{more})")
    return tuple(notes)
