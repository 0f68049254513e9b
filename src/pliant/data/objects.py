"""Data set objects: those of the datasets library, and torch data sets of (image, label)."""

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

import numpy as np
from torch import Tensor

from pliant.data.decode import EncodedImages
from pliant.data.listing import Listing
from pliant.data.sets import ImageSet
from pliant.errors import DataError
from pliant.terms import nearest

SPLIT_KEYS = {
    "train": "train",
    "training": "train",
    "validation": "validation",
    "valid": "validation",
    "val": "validation",
    "dev": "validation",
    "test": "test",
    "testing": "test",
}
"""Names of splits, in any case, and what they are here."""

LABEL_COLUMNS = ("label", "labels", "fine_label")
"""Names that decide where several columns could be the label; the first that is there."""

UNLABELLED = -1
"""The label of images whose class is secret, as of many test sets."""


class Rows(NamedTuple):
    """One split of a data set object: undecoded images, the class name of each (None without one), names if stated."""

    images: EncodedImages
    names: list[str | None]
    stated: tuple[str, ...] | None


def listing_of(data: Any, name: str) -> Listing:
    """List a data set object, or a mapping from split names to data set objects.

    Raises:
        DataError: it is of another type, or has no image column, no label column or no length.
    """
    parts, notes = _by_split(data, name)
    rows = {split: _rows(part, f"{name}, {split}") for split, part in parts.items()}
    if "test" in rows and not any(v is not None for v in rows["test"].names):
        del rows["test"]
        notes.append("the test images come without labels and are not used")
    train = rows["train"]
    classes = train.stated or tuple(sorted({v for v in train.names if v is not None}, key=_in_order))
    sets = {split: _image_set(part, classes, split, name) for split, part in rows.items()}
    return Listing(name, sets["train"], sets.get("validation"), sets.get("test"), tuple(notes))


def _by_split(data: Any, name: str) -> tuple[dict[str, Any], list[str]]:
    """Give the parts of a data set their names here: a lone one is train."""
    if not isinstance(data, Mapping):
        return {"train": data}, []
    parts: dict[str, Any] = {}
    notes = []
    for key, part in data.items():
        split = SPLIT_KEYS.get(str(key).lower())
        if split is None and len(data) == 1:
            split = "train"
        if split is None:
            notes.append(f"split {key!r} is not used; train, validation and test are")
        elif split in parts:
            raise DataError(f"{name} has two splits for {split}, one of them {key!r}; expected one")
        else:
            parts[split] = part
    if "train" not in parts:
        raise DataError(f"{name} has the splits {', '.join(map(str, data))}; expected one called train")
    return parts, notes


def _rows(part: Any, where: str) -> Rows:
    """Return the images and labels of one split."""
    import datasets

    if isinstance(part, datasets.IterableDataset) or not (hasattr(part, "__len__") and hasattr(part, "__getitem__")):
        raise DataError(
            f"{where}: got {type(part).__name__}; expected a data set with a length and access by index: "
            "datasets.Dataset, datasets.DatasetDict, a torch data set of (image, label), or a mapping of split names "
            "to these"
        )
    if isinstance(part, datasets.Dataset):
        return _dataset_rows(part, where)
    stated = getattr(part, "classes", None)
    stated = None if stated is None else unique_names(stated)
    images = EncodedImages(range(len(part)), lambda index: as_pixels(part[index][0]))
    return Rows(images, [_name(v, stated) for v in _torch_labels(part, where)], stated)


def _dataset_rows(part: Any, where: str) -> Rows:
    """Find the image column by its type and the label column by type and name."""
    import datasets

    images = [c for c, feature in part.features.items() if isinstance(feature, datasets.Image)]
    if len(images) != 1:
        raise DataError(
            f"{where}: {len(images)} image columns among {', '.join(part.features)}; expected one. "
            "Choose with select_columns, or give the column the type datasets.Image with cast_column"
        )
    plain = part.with_format(None)
    encoded = plain.select_columns(images).cast_column(images[0], datasets.Image(decode=False))
    label = label_column(part.features, where)
    stated = getattr(part.features[label], "names", None)
    stated = None if stated is None else unique_names(stated)
    values = plain.select_columns([label])[:][label]
    read = EncodedImages(range(len(part)), lambda index: _encoded(encoded[index][images[0]]))
    return Rows(read, [_name(v, stated) for v in values], stated)


def _name(value: Any, stated: tuple[str, ...] | None) -> str | None:
    """Return the class name of a label value; None for no label."""
    if value is None or value == UNLABELLED:
        return None
    if stated is not None and isinstance(value, int) and 0 <= value < len(stated):
        return stated[value]
    return str(value)


def unique_names(names: Iterable[Any]) -> tuple[str, ...]:
    """Return class names as strings, those that occur twice with their index.

    >>> unique_names(["crane", "dog", "crane"])
    ('crane (0)', 'dog', 'crane (2)')
    """
    texts = [", ".join(n) if isinstance(n, tuple | list) else str(n) for n in names]
    counts = Counter(texts)
    return tuple(f"{text} ({i})" if counts[text] > 1 else text for i, text in enumerate(texts))


def _in_order(name: str) -> tuple[int, int, str]:
    """Sort numbers by value, before other names."""
    return (0, int(name), "") if name.isdecimal() else (1, 0, name)


def label_column(features: Mapping[str, Any], where: str) -> str:
    """Return the label column: the only ClassLabel, else the first of `LABEL_COLUMNS`.

    Raises:
        DataError: there is none, or several and none has such a name.
    """
    import datasets

    labels = [c for c, feature in features.items() if isinstance(feature, datasets.ClassLabel)]
    if len(labels) == 1:
        return labels[0]
    for name in LABEL_COLUMNS:
        if name in (labels or features):
            return name
    raise DataError(
        f"{where}: {len(labels)} columns of type ClassLabel among {', '.join(features)}; expected one, "
        f"or one called {' or '.join(LABEL_COLUMNS)}. Rename or cast it (rename_column, class_encode_column)"
    )


def _encoded(cell: Mapping[str, Any] | None) -> Any:
    """Return the bytes or the path of an image that datasets leaves undecoded."""
    if cell is None:
        raise ValueError("there is no image in this row")
    return cell["bytes"] if cell["bytes"] is not None else cell["path"]


def _torch_labels(part: Any, where: str) -> list[Any]:
    """Return the labels of a torch data set, without reading images where it keeps them as `targets`."""
    targets = getattr(part, "targets", None)
    if targets is not None and len(targets) == len(part) and getattr(part, "target_transform", None) is None:
        return [_plain(v) for v in targets]
    values: list[Any] = []
    for index in range(len(part)):
        try:
            item = part[index]
        except Exception:  # an unreadable image: decoding meets it again and lists or skips it
            values.append(None)
            continue
        if not isinstance(item, tuple | list) or len(item) < 2:
            raise DataError(f"{where}[{index}]: got {type(item).__name__}; expected a pair (image, label)")
        values.append(_plain(item[1]))
    known = next((v for v in values if v is not None), 0)
    return [known if v is None else v for v in values]


def _plain(value: Any) -> Any:
    return value.item() if hasattr(value, "item") else value


def as_pixels(image: Any) -> Any:
    """Turn a tensor (channels, height, width) into an array (height, width, channels) of uint8; pass others on.

    Raises:
        ValueError: floats outside [0, 1], as normalising leaves them: pixels cannot be recovered from these.
    """
    if not isinstance(image, Tensor):
        return image
    values = image.detach().cpu()
    if values.is_floating_point():
        if not bool(((values >= 0) & (values <= 1)).all()):
            raise ValueError("float values outside [0, 1]; give the data set without a Normalize transform")
        values = (values * 255).round().byte()
    return values.permute(1, 2, 0).numpy() if values.ndim == 3 else values.numpy()


def _image_set(rows: Rows, classes: tuple[str, ...], split: str, name: str) -> ImageSet:
    """Turn class names into indices of `classes`, those of train."""
    index = {c: i for i, c in enumerate(classes)}
    for position, label in enumerate(rows.names):
        if label is None:
            more = sum(v is None for v in rows.names) - 1
            raise DataError(f"{name}, {split}[{position}]: no label (so for {more} more); expected one for each image")
        if label not in index:
            near = nearest(label, classes)
            hint = f"; did you mean {' or '.join(map(repr, near))}?" if near else ""
            raise DataError(
                f"{name}, {split}[{position}]: label {label!r} is none of the {len(classes)} classes of train{hint}"
            )
    labels = np.array([index[str(v)] for v in rows.names], dtype=np.int64)
    return ImageSet(rows.images, labels, classes, [f"{split}[{i}]" for i in range(len(labels))])
