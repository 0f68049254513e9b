"""IDX files, the format that MNIST and its successors come in: a four-byte magic, the sizes, the values."""

import gzip
import math
import struct
import zlib
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np

from pliant.errors import DataError

_GZIP_MAGIC = b"\x1f\x8b"
_TYPES: dict[int, str] = {0x08: ">u1", 0x09: ">i1", 0x0B: ">i2", 0x0C: ">i4", 0x0D: ">f4", 0x0E: ">f8"}


def _content(path: Path) -> bytes:
    """Read the file's bytes, unpacked when they are gzip; the bytes decide, not the name."""
    try:
        raw = path.read_bytes()
    except OSError as error:
        raise DataError(
            f"cannot read {path}: {error.strerror or error}. Expected an IDX file, plain or .gz."
        ) from error
    if not raw.startswith(_GZIP_MAGIC):
        return raw
    try:
        return gzip.decompress(raw)
    except (OSError, EOFError, zlib.error) as error:
        raise DataError(f"{path} is a damaged gzip file ({error}). Fetch it again.") from error


def read_idx(path: str | PathLike[str]) -> np.ndarray[Any, Any]:
    """Read one IDX file, plain or gzip-compressed, into an array of its own type and sizes, in native byte order.

    Source: the description at the end of the MNIST page: two zero bytes, a code for the type, the number of
    dimensions, each size as a big-endian unsigned 32-bit integer, then the values, last dimension fastest.

    Raises:
        DataError: the file cannot be read, is no IDX file, or has fewer or more values than its header says.
    """
    path = Path(path)
    content = _content(path)
    if len(content) < 4 or content[:2] != b"\0\0" or content[2] not in _TYPES:
        raise DataError(
            f"{path} is not an IDX file: it starts with 0x{content[:4].hex() or '(nothing)'}, expected 0x0000, then "
            f"one of {', '.join(f'0x{code:02x}' for code in _TYPES)}, then the number of dimensions."
        )
    dtype, dimensions = np.dtype(_TYPES[content[2]]), content[3]
    start = 4 + 4 * dimensions
    if len(content) < start:
        raise DataError(f"{path} is truncated: {len(content)} bytes, its header alone needs {start}. Fetch it again.")
    shape = struct.unpack(f">{dimensions}I", content[4:start])
    expected = start + math.prod(shape) * dtype.itemsize
    if len(content) != expected:
        fault = "truncated" if len(content) < expected else "too long"
        raise DataError(
            f"{path} is {fault}: {len(content)} bytes, but its header (sizes {shape}, {dtype.itemsize} bytes a value) "
            f"needs {expected}. Fetch it again."
        )
    return np.frombuffer(content, dtype, offset=start).reshape(shape).astype(dtype.newbyteorder("="))
