import gzip
import struct

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pliant.data.idx import read_idx
from pliant.errors import DataError

CODES = {0x08: ">u1", 0x09: ">i1", 0x0B: ">i2", 0x0C: ">i4", 0x0D: ">f4", 0x0E: ">f8"}


def gz(content):
    return gzip.compress(content, mtime=0)  # without the hour, which would make another test name in each process


def idx(array, code=0x08):
    sizes = struct.pack(f">{array.ndim}I", *array.shape)
    return bytes((0, 0, code, array.ndim)) + sizes + array.astype(CODES[code]).tobytes()


IMAGES = np.arange(2 * 3 * 4, dtype=np.uint8).reshape(2, 3, 4)


@given(
    code=st.sampled_from(sorted(CODES)), shape=st.lists(st.integers(0, 4), min_size=1, max_size=4), packed=st.booleans()
)
def test_every_type_and_size_comes_back(tmp_path_factory, code, shape, packed):
    values = np.arange(np.prod(shape), dtype=np.int64).reshape(shape).astype(CODES[code])
    path = tmp_path_factory.mktemp("idx") / ("a.gz" if packed else "a")
    content = idx(values, code)
    path.write_bytes(gzip.compress(content) if packed else content)
    read = read_idx(path)
    np.testing.assert_array_equal(read, values)
    assert read.dtype == np.dtype(CODES[code]).newbyteorder("=")
    assert read.dtype.isnative
    assert read.flags.writeable


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", r"not an IDX file: it starts with 0x\(nothing\)"),
        (b"\x89PNG\r\n\x1a\n", "not an IDX file: it starts with 0x89504e47"),
        (bytes((0, 0, 0x0A, 1, 0, 0, 0, 0)), "not an IDX file: it starts with 0x00000a01"),
        (idx(IMAGES)[:10], "truncated: 10 bytes, its header alone needs 16"),
        (idx(IMAGES)[:-1], r"truncated: 39 bytes, but its header \(sizes \(2, 3, 4\), 1 bytes a value\) needs 40"),
        (idx(IMAGES) + b"x", "too long: 41 bytes"),
        (struct.pack(">4B3I", 0, 0, 8, 3, 2**32 - 1, 2**32 - 1, 2**32 - 1), "truncated: 16 bytes"),
        (gz(idx(IMAGES))[:-9], "damaged gzip"),
        (gz(idx(IMAGES))[:5], "damaged gzip"),
        (b"\x1f\x8bnonsense that is no gzip", "damaged gzip"),
    ],
)
def test_a_damaged_file_is_one_clear_error(tmp_path, content, message):
    path = tmp_path / "some-images"
    path.write_bytes(content)
    with pytest.raises(DataError, match=message) as caught:
        read_idx(path)
    assert str(path) in str(caught.value)


def test_a_corrupt_byte_inside_gzip_is_found(tmp_path):
    packed = bytearray(gzip.compress(idx(np.random.default_rng(0).integers(256, size=(50, 9)).astype(np.uint8))))
    packed[len(packed) // 2] ^= 0xFF
    path = tmp_path / "a.gz"
    path.write_bytes(packed)
    with pytest.raises(DataError, match="damaged gzip"):
        read_idx(path)


def test_a_missing_file_and_a_folder_are_errors_with_the_path(tmp_path):
    with pytest.raises(DataError, match=r"cannot read .*absent"):
        read_idx(tmp_path / "absent")
    with pytest.raises(DataError, match="cannot read"):
        read_idx(tmp_path)
