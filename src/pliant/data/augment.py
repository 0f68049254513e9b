"""The training transform, batched on any device: random resized crop, flip, normalise.

Crop and resize are separable. A crop box of one image is two small matrices, one per axis, each row holding the weights
that one output pixel gives to the source's rows (columns); a batch of crops is then two batched matrix products.
"""

from collections import defaultdict
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Bool, Float, Int64, UInt8
from torch import Tensor
from torch.nn import functional

from pliant.data.images import framed, scale
from pliant.data.threads import in_parts
from pliant.errors import ConfigError
from pliant.terms import Preprocessing

TRIES = 10
"""Crops that are drawn before the whole image (as far as the aspect ratio allows) is taken; torchvision's number."""

DENSE_SIDE = 96
"""On a CPU, larger sources are resized one by one by PyTorch's kernels, which skip the zeros of the matrices."""


RATIO = (3 / 4, 4 / 3)


class Draw(NamedTuple):
    """What is random about a batch: crop boxes (top, left, height, width) in source pixels, and which are flipped."""

    boxes: Int64[Tensor, "batch 4"]
    flips: Bool[Tensor, " batch"]


def draw_boxes(
    sizes: Int64[Tensor, "batch 2"],
    generator: torch.Generator,
    *,
    area: tuple[float, float] = (0.08, 1.0),
    ratio: tuple[float, float] = RATIO,
) -> Int64[Tensor, "batch 4"]:
    """Draw crop boxes with the distribution of torchvision's RandomResizedCrop.

    A share of the area uniform in `area`, an aspect ratio log-uniform in `ratio`, the first of ten draws that fits in
    the image, at a uniform place; if none fits, the largest centred box with an aspect ratio within `ratio`.

    Args:
        sizes: height and width of each image.
        generator: on the CPU, whatever device the images are on, so that a seed means the same everywhere.
        area: smallest and largest share of the image's area.
        ratio: smallest and largest width over height.
    """
    count = len(sizes)
    uniform = torch.rand(4, count, TRIES, generator=generator, dtype=torch.float64)
    height, width = sizes[:, :1].double(), sizes[:, 1:].double()
    areas = height * width * (area[0] + (area[1] - area[0]) * uniform[0])
    low, high = np.log(ratio[0]), np.log(ratio[1])
    aspect = torch.exp(low + (high - low) * uniform[1])
    box_width, box_height = torch.sqrt(areas * aspect).round(), torch.sqrt(areas / aspect).round()
    fits = (box_width > 0) & (box_width <= width) & (box_height > 0) & (box_height <= height)
    top = (uniform[2] * (height - box_height + 1)).floor()
    left = (uniform[3] * (width - box_width + 1)).floor()
    candidates = torch.stack([top, left, box_height, box_width], dim=-1)
    first = fits.int().argmax(dim=1)  # the first of equal maxima
    boxes = candidates[torch.arange(count), first].long()
    return torch.where(fits.any(dim=1)[:, None], boxes, _centred_boxes(sizes, ratio))


def _centred_boxes(sizes: Int64[Tensor, "batch 2"], ratio: tuple[float, float]) -> Int64[Tensor, "batch 4"]:
    """Return the largest centred boxes whose aspect ratio lies within `ratio`."""
    height, width = sizes[:, 0].double(), sizes[:, 1].double()
    box_height = torch.where(width / height < ratio[0], (width / ratio[0]).round(), height)
    box_width = torch.where(width / height > ratio[1], (height * ratio[1]).round(), width)
    top, left = (height - box_height).div(2, rounding_mode="floor"), (width - box_width).div(2, rounding_mode="floor")
    return torch.stack([top, left, box_height, box_width], dim=-1).long()


def resize_weights(
    starts: Int64[Tensor, " batch"],
    lengths: Int64[Tensor, " batch"],
    source: int,
    target: int,
    *,
    antialias: bool = True,
) -> Float[Tensor, "batch {target} {source}"]:
    """Return, per image, the matrix that cuts `lengths` pixels from `starts` on and resizes them bilinearly.

    Rows sum to one. With antialiasing the triangle widens with the reduction, and is cut at the edge of the crop.

    >>> resize_weights(torch.tensor([1]), torch.tensor([2]), 4, 4, antialias=False)[0, :, 1:3].tolist()
    [[1.0, 0.0], [0.75, 0.25], [0.25, 0.75], [0.0, 1.0]]
    """
    device = starts.device
    length = lengths.float().view(-1, 1, 1)
    step = length / target
    centres = (torch.arange(target, device=device).view(1, -1, 1) + 0.5) * step
    if not antialias:
        centres = torch.minimum(centres.clamp(min=0.5), length - 0.5)
    places = torch.arange(source, device=device).view(1, 1, -1) - starts.view(-1, 1, 1) + 0.5
    width = step.clamp(min=1) if antialias else torch.ones_like(step)
    weights = (places - centres).abs_().div_(width).neg_().add_(1).clamp_(min=0)
    weights *= (places > 0) & (places < length)
    return weights / weights.sum(dim=-1, keepdim=True)


def resized_crops(
    images: UInt8[Tensor, "batch source_height source_width 3"],
    draw: Draw,
    preprocessing: Preprocessing,
    *,
    antialias: bool = True,
) -> Float[Tensor, "batch 3 height width"]:
    """Crop each image to its box, resize bilinearly, flip those that `draw` says, normalise.

    Normalising comes first, on the few pixels of the source: rows of the matrices sum to one.
    """
    height, width = preprocessing.height, preprocessing.width
    out = torch.empty(len(images), 3, height, width, device=images.device)
    boxes, flips = draw.boxes.to(images.device), draw.flips.to(images.device)

    def work(part: slice) -> None:
        pixels = scale(images[part].permute(0, 3, 1, 2), preprocessing)
        top, left, box_height, box_width = boxes[part].unbind(1)
        rows = resize_weights(top, box_height, images.shape[1], height, antialias=antialias)
        columns = resize_weights(left, box_width, images.shape[2], width, antialias=antialias)
        columns = torch.where(flips[part].view(-1, 1, 1), columns.flip(1), columns)
        narrow = torch.matmul(rows[:, None], pixels).view(len(pixels), 3 * height, -1)
        torch.bmm(narrow, columns.mT, out=out[part].view(len(pixels), 3 * height, width))

    in_parts(work, len(images), images.device)
    return out


def large_resized_crops(
    images: UInt8[Tensor, "batch source_height source_width 3"],
    draw: Draw,
    preprocessing: Preprocessing,
    *,
    antialias: bool = True,
) -> Float[Tensor, "batch 3 height width"]:
    """Do the same one image after another, in whole pixel values as torchvision; for sources too large for matrices."""
    size = (preprocessing.height, preprocessing.width)
    out = torch.empty(len(images), 3, *size, device=images.device)
    boxes, flips = draw.boxes.tolist(), draw.flips.tolist()

    def work(part: slice) -> None:
        for position in range(len(images))[part]:
            top, left, height, width = boxes[position]
            crop = images[position, top : top + height, left : left + width].permute(2, 0, 1)[None]
            crop = functional.interpolate(crop, size=size, mode="bilinear", antialias=antialias)
            out[position] = scale(crop.flip(-1) if flips[position] else crop, preprocessing)[0]

    in_parts(work, len(images), images.device)
    return out


class Augment:
    """Random resized crop, horizontal flip and normalisation of a batch of uint8 images, seeded.

    Randomness comes from a generator of its own and is drawn on the CPU, so neither other random numbers nor the device
    change it.

    Attributes:
        preprocessing: size, mean and std of the result; with `crop_scale_min` 1, also resize and centre crop.
        crop_scale_min: smallest share of an image's area that a crop keeps; 1 keeps the view of evaluation.
        flip: whether half of the images are mirrored.
        antialias: whether reducing averages over all source pixels (torchvision's default).
        generator: holds the state of draws without a step.
    """

    def __init__(
        self,
        preprocessing: Preprocessing,
        *,
        crop_scale_min: float = 0.08,
        flip: bool = True,
        antialias: bool = True,
        seed: int = 0,
    ) -> None:
        """Set up the transform; see the attributes.

        Raises:
            ConfigError: `crop_scale_min` lies outside (0, 1].
        """
        if not 0 < crop_scale_min <= 1:
            raise ConfigError(f"got crop_scale_min={crop_scale_min}; expected a share of the area in (0, 1]")
        self.preprocessing = preprocessing
        self.crop_scale_min = crop_scale_min
        self.flip = flip
        self.antialias = antialias
        self.seed = seed
        self.generator = torch.Generator().manual_seed(_mixed(seed))

    def __call__(
        self,
        images: Sequence[UInt8[np.ndarray, "_ _ 3"]] | UInt8[Tensor, "batch _ _ 3"],
        *,
        step: int | None = None,
        device: torch.device | str | None = None,
    ) -> Float[Tensor, "batch 3 height width"]:
        """Transform a batch.

        Args:
            images: arrays of any sizes, or one tensor of equal ones, channels last.
            step: with it, the draw depends on the seed and on this number only, so a resumed run repeats it; without,
                each call continues `generator`.
            device: where to work; by default where the tensor is, the CPU for arrays.
        """
        batches = _by_size(images)
        sizes = torch.empty(len(images), 2, dtype=torch.int64)
        for positions, batch in batches:
            sizes[positions] = torch.tensor(batch.shape[1:3])
        draw = self.draw(sizes, step=step)
        device = device or (images.device if isinstance(images, Tensor) else "cpu")
        parts = [
            (positions, self._transform(batch.to(device), Draw(draw.boxes[positions], draw.flips[positions])))
            for positions, batch in batches
        ]
        if len(parts) == 1:
            return parts[0][1]
        out = torch.empty(len(images), 3, self.preprocessing.height, self.preprocessing.width, device=device)
        for positions, part in parts:
            out[positions.to(device)] = part
        return out

    def draw(self, sizes: Int64[Tensor, "batch 2"], *, step: int | None = None) -> Draw:
        """Draw the boxes and flips of a batch of images of these heights and widths."""
        generator = self.generator if step is None else torch.Generator().manual_seed(_mixed(self.seed, step))
        flips = torch.rand(len(sizes), generator=generator) < 0.5
        if self.crop_scale_min == 1:
            boxes = torch.cat([torch.zeros_like(sizes), sizes], dim=1)
        else:
            boxes = draw_boxes(sizes, generator, area=(self.crop_scale_min, 1.0))
        return Draw(boxes, flips & self.flip)

    def _transform(
        self, images: UInt8[Tensor, "batch source_height source_width 3"], draw: Draw
    ) -> Float[Tensor, "batch 3 height width"]:
        """Transform images of one size."""
        if self.crop_scale_min == 1:
            whole = scale(framed(images.permute(0, 3, 1, 2), self.preprocessing), self.preprocessing)
            flips = draw.flips.to(whole.device).view(-1, 1, 1, 1)
            return torch.where(flips, whole.flip(-1), whole) if self.flip else whole
        large = images.device.type == "cpu" and max(images.shape[1:3]) > DENSE_SIDE
        crops = large_resized_crops if large else resized_crops
        return crops(images, draw, self.preprocessing, antialias=self.antialias)


def _by_size(
    images: Sequence[UInt8[np.ndarray, "_ _ 3"]] | UInt8[Tensor, "batch _ _ 3"],
) -> list[tuple[Int64[Tensor, " some"], UInt8[Tensor, "some _ _ 3"]]]:
    """Gather images of equal size into tensors, each with the positions of its images."""
    if isinstance(images, Tensor):
        return [(torch.arange(len(images)), images)]
    positions = defaultdict(list)
    for position, image in enumerate(images):
        positions[image.shape].append(position)
    return [(torch.tensor(p), torch.from_numpy(np.stack([images[i] for i in p]))) for p in positions.values()]


def _mixed(*numbers: int) -> int:
    """Mix seed and step into one seed, so that neighbouring ones share nothing."""
    return int(np.random.SeedSequence([n % 2**64 for n in numbers]).generate_state(1, np.uint64)[0] >> 1)
