"""Files to uint8 RGB arrays: one rule for every kind of image, and a cache that is decoded once."""

import contextlib
import errno
import io
import os
import shutil
import tempfile
import warnings
from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import numpy as np
import PIL.Image
from jaxtyping import Int64, UInt8
from PIL import ImageOps

from pliant.data.sets import ImageSet
from pliant.errors import DataError

Progress = Callable[[int, int], None]
"""Called with the number of images done and their total."""

MEMORY_LIMIT = 1 << 30
"""Decoded bytes of one split that stay in memory; beyond, they go to a memory-mapped file."""

AHEAD = 2
"""Images per thread that are decoded ahead; bounds the memory that finished ones wait in."""

LISTED = 20
"""Unreadable images that an error message names; `audit` names all."""

PIL.Image.init()
_PICTURES = "AVIF BMP DIB GIF ICO JPEG JPEG2000 MPO PCX PNG PPM TGA TIFF WEBP"
FORMATS = tuple(name for name in _PICTURES.split() if name in PIL.Image.OPEN)
"""Decoders that are tried, whatever a file is called: pictures only, none that starts another program."""

ORIENTATION = 0x0112
FULL_16_BIT = 65535


class Decoded(NamedTuple):
    """One image as RGB, and what was done to make it so (nothing for plain 8-bit RGB)."""

    pixels: UInt8[np.ndarray, "height width 3"]
    conversions: tuple[str, ...]


def to_rgb(image: PIL.Image.Image) -> Decoded:
    """Make any image 8-bit RGB by one rule.

    1. The EXIF orientation is applied: the image is as a viewer shows it.
    2. Of an animation or a file of many pages, the first frame counts.
    3. More than 8 bits are scaled, never clipped: 16-bit values by 255/65535; 32-bit integers likewise if they fit
       16 bits, else they and floats linearly from their own smallest to their own largest value
       (floats within [0, 1]: by 255).
    4. Transparency, of whichever mode, is composited on white.
    5. Palettes are looked up, grey and 1-bit values are repeated over the channels; CMYK, YCbCr, LAB and HSV are
       converted as Pillow does, without colour profiles.
    """
    conversions = []
    if getattr(image, "n_frames", 1) > 1:
        conversions.append("first frame")
        image.seek(0)
    image.load()
    if image.getexif().get(ORIENTATION, 1) != 1:
        conversions.append("orientation")
        image = ImageOps.exif_transpose(image)
    if image.mode != "RGB":
        conversions.append(image.mode)
    if image.mode[0] in "IF":
        image = PIL.Image.fromarray(_eight_bits(np.asarray(image), sixteen=image.mode != "F"))
    if image.has_transparency_data:
        conversions.append("transparency")
        layered = (image.convert("LA") if image.mode == "La" else image).convert("RGBA")
        image = PIL.Image.alpha_composite(PIL.Image.new("RGBA", layered.size, "white"), layered)
    return Decoded(np.array(image.convert("RGB")), tuple(conversions))


def _eight_bits(values: np.ndarray, *, sixteen: bool) -> UInt8[np.ndarray, "height width"]:
    """Scale values of more than 8 bits to 0..255 (rule 3 of `to_rgb`)."""
    low, high = float(values.min()), float(values.max())
    if not (np.isfinite(low) and np.isfinite(high)):
        raise ValueError("it holds values that are not finite")
    if sixteen and low >= 0 and high <= FULL_16_BIT:
        low, high = 0.0, float(FULL_16_BIT)
    elif not sixteen and low >= 0 and high <= 1:
        low, high = 0.0, 1.0
    span = high - low or 1.0
    return np.rint((values.astype(np.float64) - low) * (255 / span)).astype(np.uint8)


def open_image(source: Any) -> PIL.Image.Image:
    """Open a path, the bytes of a file, an array (height, width[, 1, 3 or 4]) or an image, undecoded where possible."""
    if isinstance(source, PIL.Image.Image):
        return source
    if isinstance(source, bytes | bytearray | memoryview):
        return PIL.Image.open(io.BytesIO(source), formats=FORMATS)
    if isinstance(source, np.ndarray):
        return PIL.Image.fromarray(source[..., 0] if source.ndim == 3 and source.shape[2] == 1 else source)
    return PIL.Image.open(source, formats=FORMATS)


@dataclass(frozen=True)
class Failure:
    """An image that cannot be decoded."""

    reason: str


class EncodedImages:
    """Images that are decoded each time they are read."""

    def __init__(self, items: Sequence[Any], read: Callable[[Any], Any] = lambda item: item) -> None:
        """Keep items; `read` turns one into something that `open_image` opens."""
        self.items = items
        self.read = read

    def __len__(self) -> int:
        """Return the number of images."""
        return len(self.items)

    def __getitem__(self, index: int, /) -> UInt8[np.ndarray, "height width 3"]:
        """Decode one image."""
        return self.decode(index).pixels

    def decode(self, index: int) -> Decoded:
        """Decode one image and say what was converted."""
        with open_image(self.read(self.items[index])) as image:
            return to_rgb(image)

    def attempt(self, index: int) -> Decoded | Failure:
        """Decode one image; whatever is wrong with it becomes a Failure with the reason."""
        try:
            return self.decode(index)
        except Exception as error:  # decoders raise nearly every type for a damaged file
            reason = " ".join(str(error).split()) or "no reason given"
            return Failure(f"{type(error).__name__}: {reason[:200]}")


class PackedImages:
    """Decoded images of any sizes, one after another in one buffer."""

    def __init__(self, buffer: UInt8[np.ndarray, " bytes"], sizes: Int64[np.ndarray, "images 2"]) -> None:
        """Keep a buffer of pixels and the height and width of each image in it."""
        self.buffer = buffer
        self.sizes = sizes
        self.starts = np.concatenate([[0], np.cumsum(sizes.prod(axis=1) * 3)])

    def __len__(self) -> int:
        """Return the number of images."""
        return len(self.sizes)

    def __getitem__(self, index: int, /) -> UInt8[np.ndarray, "height width 3"]:
        """Copy one image out of the buffer."""
        height, width = self.sizes[index].tolist()
        return np.array(self.buffer[self.starts[index] : self.starts[index + 1]]).reshape(height, width, 3)


class Packer:
    """Collects decoded images in memory, and moves to a file without a name once they outgrow it."""

    def __init__(self, limit: int) -> None:
        """Start empty; `limit` is in bytes."""
        self.limit = limit
        self.sizes: list[tuple[int, int]] = []
        self.parts: list[np.ndarray] = []
        self.bytes = 0
        self.file: BinaryIO | None = None
        self.room = 0

    def append(self, pixels: UInt8[np.ndarray, "height width 3"]) -> bool:
        """Add one image; False if there is no room, and then nothing is kept."""
        self.sizes.append((pixels.shape[0], pixels.shape[1]))
        self.bytes += pixels.nbytes
        self.parts.append(pixels.reshape(-1))
        try:
            if self.file is None and self.bytes > self.limit:
                self.file, self.room = _nameless_file()
            if self.file is not None:
                if self.bytes > self.room:
                    raise OSError(errno.ENOSPC, "the rest of the disk is left to others")
                for part in self.parts:
                    self.file.write(part.data)
                self.parts.clear()
        except OSError:
            self.abandon()
            return False
        return True

    def finish(self) -> PackedImages | None:
        """Return what was collected; None if there was no room for the last of it."""
        sizes = np.array(self.sizes, dtype=np.int64).reshape(-1, 2)
        if self.file is None:
            return PackedImages(np.concatenate([*self.parts, np.zeros(0, np.uint8)]), sizes)
        try:
            self.file.flush()
            return PackedImages(np.memmap(self.file, dtype=np.uint8, mode="r"), sizes)
        except OSError:
            return None
        finally:
            self.abandon()  # the mapping outlives the open file

    def abandon(self) -> None:
        """Free what was collected."""
        self.parts.clear()
        if self.file is not None:
            with contextlib.suppress(OSError):  # closing flushes, for which there may be no room
                self.file.close()


def cache_folder() -> Path:
    """Return the folder for what is large or slow to make: PLIANT_CACHE, else pliant in the user's cache folder."""
    if named := os.environ.get("PLIANT_CACHE"):
        return Path(named).expanduser()
    if caches := os.environ.get("XDG_CACHE_HOME"):
        return Path(caches) / "pliant"
    try:
        return Path.home() / ".cache" / "pliant"
    except RuntimeError:  # a user without a home, as in some containers
        return Path(tempfile.gettempdir()) / f"pliant-{os.getuid()}"


def _nameless_file() -> tuple[BinaryIO, int]:
    """Open a temporary file that the system frees with the process, however it ends; and say how much it may hold."""
    folder = cache_folder()
    folder.mkdir(parents=True, exist_ok=True)
    return tempfile.TemporaryFile(dir=folder), shutil.disk_usage(folder).free // 2


@dataclass(frozen=True)
class Decoding:
    """What came of decoding a split: the images that could be read, conversions counted, failures."""

    images: ImageSet
    conversions: Counter[str]
    failures: tuple[tuple[str, str], ...]
    cached: bool = True


def attempts(images: EncodedImages, indices: Sequence[int]) -> Iterator[Decoded | Failure]:
    """Decode in order, on as many threads as there are cores (Pillow's decoders release the interpreter)."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    threads = min(cores, 16)
    waiting: deque[Future[Decoded | Failure]] = deque()
    with warnings.catch_warnings(), ThreadPoolExecutor(threads) as pool:
        warnings.simplefilter("ignore")  # Pillow warns of odd metadata in files that it decodes well
        for index in indices:
            waiting.append(pool.submit(images.attempt, index))
            if len(waiting) > AHEAD * threads:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()


def decode(images: ImageSet, *, progress: Progress | None = None, limit: int = MEMORY_LIMIT) -> Decoding:
    """Decode every image of a split once and keep the pixels, in memory or, beyond `limit` bytes, memory-mapped.

    Where they need more than half of what is free on the disk, every image is still decoded once, as a check, and again
    whenever it is read.
    """
    source, indices = images.stored()
    if not isinstance(source, EncodedImages):
        return Decoding(images, Counter(), ())
    packer: Packer | None = Packer(limit)
    conversions: Counter[str] = Counter()
    kept, failures = [], []
    for position, outcome in enumerate(attempts(source, indices)):
        if isinstance(outcome, Failure):
            failures.append((images.origins[position], outcome.reason))
        else:
            kept.append(position)
            conversions.update(outcome.conversions)
            if packer is not None and not packer.append(outcome.pixels):
                packer = None
        if progress is not None:
            progress(position + 1, len(indices))
    chosen = images.subset(kept)
    packed = packer.finish() if packer is not None else None
    if packed is not None:
        chosen = replace(chosen, images=packed)
    return Decoding(chosen, conversions, tuple(failures), cached=packed is not None)


CONVERTED = {
    "L": "grey",
    "1": "1-bit",
    "P": "palette",
    "PA": "palette with transparency",
    "LA": "grey with transparency",
    "RGBA": "RGB with transparency",
    "transparency": "transparent ones composited on white",
    "orientation": "turned by their EXIF orientation",
    "first frame": "of several frames, the first taken",
}


def conversion_note(conversions: Counter[str]) -> str:
    """Say how many images were made RGB, by kind.

    >>> conversion_note(Counter({"L": 3, "CMYK": 1}))
    'made RGB: 3 grey, 1 CMYK'
    """
    return "made RGB: " + ", ".join(f"{n} {CONVERTED.get(kind, kind)}" for kind, n in conversions.most_common())


def unreadable_error(name: str, failures: Sequence[tuple[str, str]], total: int) -> DataError:
    """Build the error that lists unreadable images by path."""
    listed = "\n".join(f"  {origin}: {reason}" for origin, reason in failures[:LISTED])
    more = f"\n  and {len(failures) - LISTED} more" if len(failures) > LISTED else ""
    return DataError(
        f"{name}: {len(failures)} of {total} images cannot be read:\n{listed}{more}\n"
        "Repair or remove them, or skip them with skip_unreadable=True (--skip-unreadable)"
    )
