"""The evaluation transform: uint8 RGB images to the pixel values that a checkpoint expects."""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace
from typing import Literal

import numpy as np
import torch
from jaxtyping import Float, UInt8
from torch import Tensor
from torchvision.transforms import InterpolationMode
from torchvision.transforms.v2 import functional

from pliant.errors import ConfigError
from pliant.terms import Preprocessing

Normalization = Literal["checkpoint", "imagenet"]

IMAGENET_MEAN = (0.485, 0.456, 0.406)
IMAGENET_STD = (0.229, 0.224, 0.225)


def normalized(preprocessing: Preprocessing, normalization: Normalization) -> Preprocessing:
    """Keep the checkpoint's mean and std, or replace them by ImageNet's (as the paper does) and say so in `origin`."""
    if normalization == "checkpoint":
        return preprocessing
    if normalization != "imagenet":
        raise ConfigError(f"got normalization={normalization!r}; expected 'checkpoint' or 'imagenet'")
    origin = f"{preprocessing.origin}, mean and std of ImageNet instead of {preprocessing.mean} and {preprocessing.std}"
    return replace(preprocessing, mean=IMAGENET_MEAN, std=IMAGENET_STD, origin=origin)


def pixel_values(
    images: Sequence[UInt8[np.ndarray, "_ _ 3"]], preprocessing: Preprocessing
) -> Float[Tensor, "batch 3 height width"]:
    """Transform images as for evaluation: resize with antialiasing, centre crop, scale to [0, 1], normalise.

    The result is that of transformers' image processor of the same checkpoint. Where timm and torchvision round half a
    pixel of the crop's margin up, transformers rounds it down, and so does this.

    Args:
        images: RGB arrays of any sizes.
        preprocessing: what the checkpoint expects.

    >>> grey = np.full((4, 6, 3), 51, np.uint8)
    >>> checkpoint = Preprocessing(2, 2, None, "bicubic", (0.2, 0.2, 0.2), (0.5, 0.5, 0.5), "example")
    >>> pixel_values([grey, grey], checkpoint).abs().max().item() < 1e-6
    True
    """
    by_size = defaultdict(list)
    for position, image in enumerate(images):
        by_size[image.shape].append(position)
    result = torch.empty(len(images), 3, preprocessing.height, preprocessing.width)
    for positions in by_size.values():
        batch = torch.from_numpy(np.stack([images[p] for p in positions])).permute(0, 3, 1, 2)
        result[positions] = scale(framed(batch, preprocessing), preprocessing)
    return result


def framed(
    images: UInt8[Tensor, "batch 3 source_height source_width"], preprocessing: Preprocessing
) -> UInt8[Tensor, "batch 3 height width"]:
    """Resize and centre crop, in whole pixel values."""
    size = resized_size(images.shape[-2], images.shape[-1], preprocessing)
    mode = InterpolationMode(preprocessing.interpolation)
    if size != images.shape[-2:]:
        images = functional.resize(images, list(size), interpolation=mode, antialias=True)
    return centre_crop(images, preprocessing.height, preprocessing.width)


def resized_size(height: int, width: int, preprocessing: Preprocessing) -> tuple[int, int]:
    """Return the size in pixels between resize and centre crop.

    >>> resized_size(100, 150, Preprocessing(224, 224, 256, "bicubic", (0, 0, 0), (1, 1, 1), "example"))
    (256, 384)
    """
    if preprocessing.resize is None:
        return preprocessing.height, preprocessing.width
    short, long = min(height, width), max(height, width)
    longer = preprocessing.resize * long // short
    return (preprocessing.resize, longer) if height <= width else (longer, preprocessing.resize)


def centre_crop(
    images: UInt8[Tensor, "batch 3 _ _"], height: int, width: int
) -> UInt8[Tensor, "batch 3 {height} {width}"]:
    """Cut the middle out, the margin's half pixel rounded down; what is smaller is padded with black."""
    missing_y, missing_x = max(height - images.shape[-2], 0), max(width - images.shape[-1], 0)
    if missing_y or missing_x:
        padding = [missing_x // 2, missing_y // 2, (missing_x + 1) // 2, (missing_y + 1) // 2]
        images = functional.pad(images, padding)
    top, left = (images.shape[-2] - height) // 2, (images.shape[-1] - width) // 2
    return images[..., top : top + height, left : left + width]


def scale(
    images: UInt8[Tensor, "batch 3 height width"], preprocessing: Preprocessing
) -> Float[Tensor, "batch 3 height width"]:
    """Scale to [0, 1] and normalise."""
    mean = torch.tensor(preprocessing.mean, device=images.device).view(3, 1, 1)
    std = torch.tensor(preprocessing.std, device=images.device).view(3, 1, 1)
    return (images.float() / 255 - mean) / std
