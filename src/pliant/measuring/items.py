"""What pairs are made of: items in a fixed, seeded order, given to the model a batch at a time."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import pad

from pliant.data import ImageSet, load, pixel_values
from pliant.errors import ConfigError, DataError
from pliant.measuring.capture import Inputs, batch_size
from pliant.measuring.text import TEXT_PREFIX, text_tokens
from pliant.models import Loaded
from pliant.terms import Preprocessing

DEFAULT_ITEMS = 128
"""Items of a named data set on each side, unless more are asked for."""


@runtime_checkable
class Items(Protocol):
    """A set of items that pairs are made of."""

    @property
    def name(self) -> str:
        """What the items are, for the provenance."""

    def __len__(self) -> int:
        """Return the number of items."""

    def batch(self, start: int, stop: int) -> Any:
        """Return items start to stop, as the model takes them: stacked along the first axis."""


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
class MappingItems:
    """Items that are given as keyword arguments of the model, each a tensor with one row per item."""

    name: str
    values: Mapping[str, Tensor]

    def __len__(self) -> int:
        """Return the number of items."""
        return batch_size(self.values)

    def batch(self, start: int, stop: int) -> dict[str, Tensor]:
        """Return the arguments for items start to stop."""
        return {name: tensor[start:stop] for name, tensor in self.values.items()}


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
    data: Any, loaded: Loaded, *, side: str, count: int | None = None, seed: int = 0, length: int | None = None
) -> Items:
    """Turn what the user named or passed into items.

    Images of a named data set are a seeded random sample of its training images: the first ones of a class-ordered
    folder would be of one class. The same holds for the pieces of a text. A tensor is taken whole and in its order.

    Args:
        data: name of a data set, `text:FILE`, an ImageSet, a tensor of pixel values (batch, channels, height, width)
            or of token ids (batch, tokens), or a mapping of the model's arguments to such tensors.
        loaded: the model that takes them.
        side: "source" or "target", for messages.
        count: at most so many images or pieces of text; None for all.
        seed: of the sample.
        length: tokens of a piece of text; by default 128, or as many as the model takes.

    Raises:
        DataError: nothing to measure on, or a tensor that is no batch.
        ConfigError: images for a model that does not say what it expects of an image.
    """
    if isinstance(data, np.ndarray):
        data = torch.from_numpy(data)
    if isinstance(data, list | tuple) and data and all(isinstance(item, Tensor) for item in data):
        raise DataError(f"{side}: got {len(data)} tensors in a {type(data).__name__}; pass torch.stack(...) of them")
    if isinstance(data, Tensor):
        return TensorItems(f"tensor {tuple(data.shape)}", _checked(data, side))
    if isinstance(data, Mapping):
        return _mapping_items(data, side)
    if isinstance(data, str) and data.startswith(TEXT_PREFIX):
        tokens = text_tokens(data, loaded, length=length)
        chosen = sample_of(len(tokens), count, seed=seed)
        return TensorItems(f"{data} ({tokens.shape[1]} tokens each)", tokens[torch.tensor(chosen)])
    images = data if isinstance(data, ImageSet) else load(data, seed=seed).train
    if loaded.preprocessing is None:
        text = getattr(loaded.model, "main_input_name", None) == "input_ids"
        raise ConfigError(
            f"{side}: got images, and {loaded.name} takes text; pass text:FILE or a tensor of token ids"
            if text
            else f"{side}: got images, but this model does not say what it expects of an image; pass a tensor of pixel "
            "values, or the model by name, or pliant.from_module(model, preprocessing=...)"
        )
    name = data if isinstance(data, str) else "images"
    return ImageItems(name, images.subset(sample_of(len(images), count, seed=seed)), loaded.preprocessing)


def _checked(values: Tensor, side: str) -> Tensor:
    if values.ndim not in (2, 4) or len(values) == 0:
        raise DataError(
            f"{side}: got a tensor of shape {tuple(values.shape)}; expected pixel values (batch, channels, height, "
            "width) or token ids (batch, tokens), at least one item"
        )
    if values.ndim == 4 and not values.is_floating_point():
        raise DataError(
            f"{side}: got pixels of type {values.dtype}; expected pixel values as the model takes them, scaled and "
            "normalised, in floating point (pliant.data.pixel_values makes them from uint8 images)"
        )
    return values.float() if values.ndim == 4 else values


def _mapping_items(data: Mapping[str, Any], side: str) -> MappingItems:
    wrong = [name for name, value in data.items() if not isinstance(value, Tensor)]
    lengths = {len(v) for v in data.values() if isinstance(v, Tensor) and v.ndim}
    if wrong or len(lengths) != 1 or 0 in lengths:
        raise DataError(
            f"{side}: got a mapping of {', '.join(map(str, data)) or 'nothing'}; expected arguments of the model, "
            f"each a tensor with one row per item{f' ({wrong[0]} is none)' if wrong else ''}, at least one"
        )
    shapes = ", ".join(f"{name} {tuple(value.shape)}" for name, value in data.items())
    return MappingItems(f"tensors {shapes}", dict(data))


def sample_of(total: int, count: int | None, *, seed: int) -> Sequence[int]:
    """Draw at most `count` of `total` positions, in random order, from `seed`."""
    chosen = np.random.default_rng(seed).permutation(total)
    return [int(i) for i in (chosen if count is None else chosen[:count])]


def joined(source: Items, target: Items | None, first: range, second: range | None) -> tuple[Inputs, int]:
    """Return the items of one pass, source before target, and how many of them are source items.

    Raises:
        DataError: source and target items differ in kind or shape.
    """
    x = source.batch(first.start, first.stop)
    if target is None or second is None:
        return x, batch_size(x)
    y = target.batch(second.start, second.stop)
    if isinstance(x, Mapping) and isinstance(y, Mapping):
        return _joined_mappings(x, y), batch_size(x)
    if isinstance(x, Mapping) or isinstance(y, Mapping):
        raise DataError("one of source and target is a mapping of tensors, the other is not; give both in one form")
    _same_shape(x, y, "")
    return torch.cat([x, y.to(x.dtype)]), len(x)


def _joined_mappings(x: Mapping[str, Tensor], y: Mapping[str, Tensor]) -> dict[str, Tensor]:
    if x.keys() != y.keys():
        raise DataError(
            f"source gives {', '.join(x)} and target gives {', '.join(y)}; give the same arguments for both"
        )
    if "attention_mask" in x:  # shorter texts are filled up, and the mask says so
        length = max(x["attention_mask"].shape[1], y["attention_mask"].shape[1])
        x, y = (_filled(side, length) for side in (x, y))
    for name in x:
        _same_shape(x[name], y[name], f" of {name}")
    return {name: torch.cat([x[name], y[name]]) for name in x}


def _filled(side: Mapping[str, Tensor], length: int) -> dict[str, Tensor]:
    own = side["attention_mask"].shape[1]
    return {
        name: pad(value, (0, length - own)) if value.ndim == 2 and value.shape[1] == own else value
        for name, value in side.items()
    }


def _same_shape(x: Tensor, y: Tensor, what: str) -> None:
    if x.shape[1:] != y.shape[1:]:
        raise DataError(
            f"source items{what} have shape {tuple(x.shape[1:])}, target items {tuple(y.shape[1:])}; "
            "a difference needs equal shapes. Bring both to one size."
        )
