"""Names to data sets: `load` and the registry of sources behind it."""

import os
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from pliant.assets import FASHION_SAMPLE
from pliant.data.benchmarks import BENCHMARK_SOURCES
from pliant.data.decode import Progress, conversion_note, decode, unreadable_error
from pliant.data.folders import folder
from pliant.data.hub import hub
from pliant.data.idx import read_idx
from pliant.data.listing import Listing, Request, Source
from pliant.data.objects import listing_of
from pliant.data.sets import ArrayImages, ImageData, ImageSet, empty_like
from pliant.data.splits import hold_out, limited, missing_classes, stratified
from pliant.errors import ConfigError, DataError, UnknownNameError
from pliant.terms import nearest

FASHION_CLASSES = (
    "T-shirt/top",
    "Trouser",
    "Pullover",
    "Dress",
    "Coat",
    "Sandal",
    "Shirt",
    "Sneaker",
    "Bag",
    "Ankle boot",
)
FASHION_FOLDER = Path("/usr/share/datasets/fashion-mnist")
"""Where the Debian package dataset-fashion-mnist puts its files."""

DIGITS_TRAIN = 300


def digits(argument: str | None, request: Request) -> Listing:
    """List scikit-learn's 1,797 handwritten digits: 300 for training (or `train`), the rest half and half."""
    _no_argument("digits", argument)
    from sklearn.datasets import load_digits

    bunch = load_digits()
    pixels = np.rint(bunch.images * (255 / 16)).astype(np.uint8)
    origins = [f"digits[{i}]" for i in range(len(pixels))]
    everything = ImageSet(ArrayImages(pixels), bunch.target.astype(np.int64), tuple("0123456789"), origins)
    count = DIGITS_TRAIN if request.train is None else request.train
    if not 1 <= count <= len(everything) - 2:
        raise ConfigError(f"got train={count} for digits; expected 1 to {len(everything) - 2} of {len(everything)}")
    train, rest = stratified(everything.labels, count, seed=request.seed, purpose="digits train")
    held = everything.subset(rest)
    test, validation = stratified(held.labels, (len(held) + 1) // 2, seed=request.seed, purpose="digits test")
    return Listing("digits", everything.subset(train), held.subset(validation), held.subset(test))


def fashion_mnist(argument: str | None, request: Request) -> Listing:
    """List Fashion-MNIST from its four IDX files: 60,000 training and 10,000 test images, grey, 28×28."""
    folder = Path(argument or os.environ.get("PLIANT_FASHION_MNIST") or FASHION_FOLDER)
    train, test = (_idx_split(folder, prefix) for prefix in ("train", "t10k"))
    return Listing("fashion-mnist", train, test=test)


def _idx_split(folder: Path, prefix: str) -> ImageSet:
    """Read the images and labels of one split, gzipped or not."""
    arrays = []
    for kind in ("images-idx3-ubyte", "labels-idx1-ubyte"):
        candidates = [folder / f"{prefix}-{kind}{ending}" for ending in (".gz", "")]
        path = next((c for c in candidates if c.is_file()), None)
        if path is None:
            raise DataError(
                f"Fashion-MNIST: no {candidates[0].name} in {folder}. Install the Debian package "
                "dataset-fashion-mnist, or put the four IDX files into a folder and name it: "
                "fashion-mnist:DIR, or in the environment variable PLIANT_FASHION_MNIST"
            )
        arrays.append(read_idx(path))
    pixels, labels = arrays
    origins = [f"{prefix}[{i}]" for i in range(len(pixels))]
    return ImageSet(ArrayImages(pixels), labels.astype(np.int64), FASHION_CLASSES, origins)


def fashion_sample(argument: str | None, request: Request) -> Listing:
    """List the bundled 128 test images of Fashion-MNIST; for measuring only."""
    _no_argument("fashion-sample", argument)
    with np.load(FASHION_SAMPLE, allow_pickle=False) as arrays:
        pixels, labels = arrays["images"], arrays["labels"].astype(np.int64)
    origins = [f"fashion-sample[{i}]" for i in range(len(pixels))]
    images = ImageSet(ArrayImages(pixels), labels, FASHION_CLASSES, origins)
    return Listing("fashion-sample", images, measuring_only=True)


def text(argument: str | None, request: Request) -> Listing:
    """Refuse text: it has no images to train on."""
    raise DataError(
        f"text:{argument or 'FILE'} is for measure and bounds of language models only; "
        "training, advice and audit take images"
    )


def _no_argument(name: str, argument: str | None) -> None:
    if argument is not None:
        raise UnknownNameError(f"unknown data {name}:{argument}; expected plain {name!r}, which takes nothing after it")


SOURCES: dict[str, Source] = {
    "digits": Source("digits", "1,797 handwritten digits, 8×8, in scikit-learn", digits),
    "fashion-mnist": Source("fashion-mnist[:DIR]", "70,000 grey images of clothing, 28×28", fashion_mnist),
    "fashion-sample": Source("fashion-sample", "128 bundled images of clothing, for measuring only", fashion_sample),
    "folder": Source("folder:PATH", "class folders; or train/, val/, test/ with class folders", folder),
    "hub": Source("hub:ORG/NAME[:CONFIG]", "a data set of the hub, through datasets", hub),
    **BENCHMARK_SOURCES,
    "text": Source("text:FILE", "text for language models, measure and bounds only", text),
}
"""Every kind of data set that has a name."""


def find_source(name: str) -> tuple[Source, str | None]:
    """Split a data set's name into its source and what follows the colon.

    Raises:
        UnknownNameError: no source is known by this name; lists the nearest, and all.
    """
    key, colon, argument = name.partition(":")
    if key in SOURCES:
        return SOURCES[key], argument if colon and argument else None
    forms = [s.form for s in SOURCES.values()]
    if Path(name).is_dir():
        raise UnknownNameError(f"unknown data {name!r}. It is a folder: did you mean 'folder:{name}'?")
    near = [SOURCES[n].form for n in nearest(key, SOURCES)]
    raise UnknownNameError.among("data", name, forms, near)


def load(
    name_or_object: Any,
    *,
    train: int | None = None,
    validation: int | None = None,
    test: int | None = None,
    seed: int = 0,
    skip_unreadable: bool = False,
    progress: Progress | None = None,
) -> ImageData:
    """Load images with labels in three splits; every image that will be used is decoded once, here.

    A set without test images of its own gives one training image in five to them, then one in five of the rest to
    validation if it has none; both stratified, from `seed`. Classes are those of the training images, for all splits.

    Args:
        name_or_object: a name (`digits`, `folder:PATH`, ...; the forms in `SOURCES`), a datasets.Dataset or
            DatasetDict, a torch data set of (image, label), or a mapping from split names to such data sets.
        train: at most so many training images, stratified; None for all (digits: for 300, the rest is halved).
        validation: at most so many validation images.
        test: at most so many test images.
        seed: of the splits and of which images a limit keeps.
        skip_unreadable: leave unreadable images out, with a note that counts them.
        progress: called with images decoded and their total, split by split.

    Raises:
        UnknownNameError: a name that nothing is known by.
        DataError: data that cannot be used as they are: unreadable images (by path), missing files, a single class.
    """
    request = Request(train, validation, test, seed)
    listing = list_images(name_or_object, request)
    return _decoded(split(listing, request), skip_unreadable=skip_unreadable, progress=progress)


def list_images(name_or_object: Any, request: Request) -> Listing:
    """List a data set without decoding its images."""
    if isinstance(name_or_object, str | Path):
        source, argument = find_source(str(name_or_object))
        return source.lists(argument, request)
    return listing_of(name_or_object, type(name_or_object).__name__)


def split(listing: Listing, request: Request) -> ImageData:
    """Complete the splits of a listing and apply the limits; images stay undecoded."""
    train, validation, test = listing.train, listing.validation, listing.test
    if np.count_nonzero(train.counts) < 2:
        only = train.classes[int(train.labels[0])] if len(train) else "none"
        raise DataError(f"{listing.name} has a single class with images, {only!r}; classifying needs two or more")
    for purpose, images in (("validation", validation), ("test", test)):
        _refuse_unknown(listing.name, purpose, images, train)
    if listing.measuring_only:
        validation = test = empty_like(train)
    if test is None:
        train, test = hold_out(train, seed=request.seed, purpose="test")
    if validation is None:
        train, validation = hold_out(train, seed=request.seed, purpose="validation")
    return ImageData(
        listing.name,
        train.classes,
        limited(train, request.train, seed=request.seed, purpose="train"),
        limited(validation, request.validation, seed=request.seed, purpose="validation"),
        limited(test, request.test, seed=request.seed, purpose="test"),
        listing.notes,
    )


def _refuse_unknown(name: str, purpose: str, images: ImageSet | None, train: ImageSet) -> None:
    """Refuse a split with images of a class that train has none of: it cannot be learnt."""
    if images is None:
        return
    unknown = np.flatnonzero((images.counts > 0) & (train.counts == 0)).tolist()
    if unknown:
        names = ", ".join(repr(images.classes[c]) for c in unknown[:5]) + (" ..." if len(unknown) > 5 else "")
        raise DataError(
            f"{name}: {purpose} has images of {names}, of which train has none. Add such images to train "
            "(or raise the limit on training images), or remove these"
        )


def _decoded(data: ImageData, *, skip_unreadable: bool, progress: Progress | None) -> ImageData:
    """Decode all splits; refuse or skip what cannot be read; add notes."""
    total = sum(len(images) for images in data.splits.values())
    done, notes, conversions = 0, list(data.notes), Counter[str]()
    failures: list[tuple[str, str]] = []
    kept: dict[str, ImageSet] = {}
    for name, images in data.splits.items():
        report = None if progress is None else lambda n, _, before=done: progress(before + n, total)
        outcome = decode(images, progress=report)
        done += len(images)
        conversions += outcome.conversions
        failures += outcome.failures
        kept[name] = outcome.images
        if not outcome.cached:
            notes.append(f"{name}: too little room on the disk to keep decoded images; they are decoded when read")
    if failures and not skip_unreadable:
        raise unreadable_error(data.name, failures, total)
    if conversions:
        notes.append(conversion_note(conversions))
    if failures:
        notes.append(f"skipped {len(failures)} of {total} images that cannot be read, the first {failures[0][0]}")
    decoded = replace(data, train=kept["train"], validation=kept["validation"], test=kept["test"])
    if failures:
        _refuse_emptied(decoded, failures, data)
    return replace(decoded, notes=(*notes, *missing_classes(decoded)))


def _refuse_emptied(data: ImageData, failures: list[tuple[str, str]], before: ImageData) -> None:
    """Refuse a split that lost all its images to skipping, or training data that lost a class."""
    for name, images in data.splits.items():
        if len(before.splits[name]) and not len(images):
            raise DataError(f"{data.name}: none of the {name} images can be read, such as {failures[0][0]}")
    emptied = np.flatnonzero((before.train.counts > 0) & (data.train.counts == 0))
    lost = [data.classes[c] for c in emptied.tolist()]
    if lost:
        raise DataError(
            f"{data.name}: every training image of {', '.join(map(repr, lost))} is unreadable, such as {failures[0][0]}"
        )
