"""CIFAR-10, CIFAR-100 and CIFAR-10-C from their own files, without running anything that is in them.

The first two are published as pickles, which can hold any call. They are read by an unpickler that knows numbers, text,
lists, dictionaries and numpy arrays, and refuses the rest.
"""

import codecs
import io
import pickle
from typing import Any

import numpy as np
from jaxtyping import Int64, UInt8
from numpy._core import multiarray

from pliant.data.listing import Listing
from pliant.data.sets import ArrayImages, ImageSet
from pliant.data.trees import FolderTree, Tree
from pliant.errors import DataError

SIDE = 32
SEVERITIES = 5
"""CIFAR-10-C holds the test images once per severity, mildest first; the paper uses the last."""

PAPER_SEED = 42
"""Of the numpy legacy generator that orders images before the first 80 % are taken for training."""

EXPECTED = "Expected a file of CIFAR as published; fetch it again."

CIFAR10_CLASSES = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")


def _latin_bytes(text: str, encoding: str) -> bytes:
    """Stand in for codecs.encode, which pickles write bytes with: one encoding only."""
    if encoding != "latin1":
        raise pickle.UnpicklingError(f"asks for the encoding {encoding!r}")
    return codecs.latin_1_encode(text)[0]


_ALLOWED: dict[tuple[str, str], Any] = {
    ("numpy.core.multiarray", "_reconstruct"): multiarray._reconstruct,
    ("numpy._core.multiarray", "_reconstruct"): multiarray._reconstruct,
    ("numpy", "ndarray"): np.ndarray,
    ("numpy", "dtype"): np.dtype,
    ("_codecs", "encode"): _latin_bytes,
}


class ArrayUnpickler(pickle.Unpickler):
    """Reads pickles of plain values and numpy arrays, and nothing else."""

    def find_class(self, module_name: str, global_name: str, /) -> Any:
        """Return one of the few things that arrays are made of.

        Raises:
            UnpicklingError: the pickle asks for another.
        """
        try:
            return _ALLOWED[module_name, global_name]
        except KeyError:
            raise pickle.UnpicklingError(f"asks for {module_name}.{global_name}, which is never run") from None


def unpickle(content: bytes, origin: str) -> dict[str, Any]:
    """Read one of CIFAR's files.

    Raises:
        DataError: it holds more than plain values and arrays, or is damaged.
    """
    try:
        values = ArrayUnpickler(io.BytesIO(content), encoding="latin1").load()
    except Exception as error:  # damaged pickles raise nearly every type
        raise DataError(f"{origin} is refused: {error}. {EXPECTED}") from error
    if not isinstance(values, dict):
        raise DataError(f"{origin} holds {type(values).__name__}. {EXPECTED}")
    return {key.decode() if isinstance(key, bytes) else str(key): value for key, value in values.items()}


def cifar10(tree: Tree, folder: str) -> Listing:
    """List CIFAR-10: five training batches in their order, and the test batch."""
    classes = _names(tree, f"{folder}batches.meta", "label_names")
    train = _batches(tree, [f"{folder}data_batch_{i}" for i in range(1, 6)], "labels", classes, "train")
    return Listing("cifar10", train, test=_batches(tree, [f"{folder}test_batch"], "labels", classes, "test"))


def cifar100(tree: Tree, folder: str) -> Listing:
    """List CIFAR-100 with its fine labels."""
    classes = _names(tree, f"{folder}meta", "fine_label_names")
    train = _batches(tree, [f"{folder}train"], "fine_labels", classes, "train")
    return Listing("cifar100", train, test=_batches(tree, [f"{folder}test"], "fine_labels", classes, "test"))


def _names(tree: Tree, name: str, key: str) -> tuple[str, ...]:
    """Read class names."""
    values = unpickle(tree.read(name), tree.origin(name)).get(key)
    if not isinstance(values, list) or not values:
        raise DataError(f"{tree.origin(name)} has no {key}. {EXPECTED}")
    return tuple(v.decode() if isinstance(v, bytes) else str(v) for v in values)


def _batches(tree: Tree, names: list[str], key: str, classes: tuple[str, ...], split: str) -> ImageSet:
    """Read batches of images, stored channel by channel, one after another."""
    pixels, labels = [], []
    for name in names:
        values = unpickle(tree.read(name), tree.origin(name))
        data = values.get("data")
        if not isinstance(data, np.ndarray) or data.dtype != np.uint8 or data.ndim != 2 or data.shape[1] != 3 * SIDE**2:
            raise DataError(f"{tree.origin(name)} has no images of 3×{SIDE}×{SIDE}. {EXPECTED}")
        pixels.append(data)
        labels += list(values.get(key, ()))
    images = np.concatenate(pixels).reshape(-1, 3, SIDE, SIDE).transpose(0, 2, 3, 1)
    origins = [f"{split}[{i}]" for i in range(len(images))]
    return ImageSet(ArrayImages(np.ascontiguousarray(images)), np.array(labels, np.int64), classes, origins)


def cifar10_corrupted(tree: Tree, folder: str, corruption: str) -> Listing:
    """List one corruption of CIFAR-10-C at severity 5: the first 80 % of a fixed order for training, the rest for test.

    The order is a permutation by numpy's legacy generator with seed 42, so that all corruptions share their images.
    """
    pixels = _last_severity(_array(tree, f"{folder}{corruption}.npy"), tree.origin(f"{folder}{corruption}.npy"))
    labels = _last_severity(_array(tree, f"{folder}labels.npy"), tree.origin(f"{folder}labels.npy"))
    origins = [f"{corruption}[{i}]" for i in range(len(pixels))]
    everything = ImageSet(ArrayImages(pixels), labels.astype(np.int64), CIFAR10_CLASSES, origins)
    train, test = paper_split(len(everything))
    return Listing(f"cifar10-c-{corruption}", everything.subset(train), test=everything.subset(test))


def paper_split(count: int) -> tuple[Int64[np.ndarray, " train"], Int64[np.ndarray, " test"]]:
    """Return positions for training and test: 80 % and 20 % of numpy's legacy permutation with seed 42 (PAPER, Data).

    >>> [part.tolist() for part in paper_split(10)]
    [[8, 1, 5, 0, 7, 2, 9, 4], [3, 6]]
    """
    order = np.random.RandomState(PAPER_SEED).permutation(count).astype(np.int64)
    return order[: count * 4 // 5], order[count * 4 // 5 :]


def _array(tree: Tree, name: str) -> np.ndarray:
    """Read a .npy file, from a folder without taking all of it into memory; pickled objects in it are refused."""
    try:
        if isinstance(tree, FolderTree):
            values = np.load(tree.root / name, mmap_mode="r", allow_pickle=False)
        else:
            values = np.load(io.BytesIO(tree.read(name)), allow_pickle=False)
        return np.asanyarray(values)
    except (OSError, ValueError, EOFError) as error:
        raise DataError(f"{tree.origin(name)} cannot be read ({error}); fetch it again") from error


def _last_severity(values: np.ndarray, origin: str) -> UInt8[np.ndarray, "..."]:
    """Copy the rows of the highest severity out of an array."""
    if len(values) % SEVERITIES or not len(values):
        raise DataError(f"{origin} has {len(values)} rows, not {SEVERITIES} severities of equal size. {EXPECTED}")
    return np.array(values[len(values) // SEVERITIES * (SEVERITIES - 1) :])
