import io
from collections import Counter
from types import SimpleNamespace

import numpy as np
import PIL.Image
import pytest

from pliant.data import decode as decoding
from pliant.data.decode import EncodedImages, PackedImages, conversion_note, decode, open_image, to_rgb
from pliant.data.sets import ImageSet

RAMP = np.arange(256, dtype=np.uint8).reshape(16, 16)


def stored(image: PIL.Image.Image, kind: str, **options) -> bytes:
    buffer = io.BytesIO()
    image.save(buffer, kind, **options)
    return buffer.getvalue()


def rgb(source) -> tuple[np.ndarray, tuple[str, ...]]:
    with open_image(source) as image:
        return to_rgb(image)


def test_rgb_is_left_alone():
    pixels = np.random.default_rng(0).integers(0, 256, (5, 7, 3), dtype=np.uint8)
    result, conversions = rgb(stored(PIL.Image.fromarray(pixels), "PNG"))
    assert (result == pixels).all()
    assert conversions == ()


def test_grey_and_one_bit_are_repeated_over_the_channels():
    result, conversions = rgb(stored(PIL.Image.fromarray(RAMP), "PNG"))
    assert (result == RAMP[..., None]).all()
    assert conversions == ("L",)
    result, conversions = rgb(stored(PIL.Image.fromarray(RAMP > 100), "PNG"))
    assert (result == (RAMP > 100)[..., None] * np.uint8(255)).all()
    assert conversions == ("1",)


def test_palettes_are_looked_up():
    image = PIL.Image.fromarray(np.array([[0, 1], [1, 0]], np.uint8), "L").convert("P")
    image.putpalette([10, 20, 30, 200, 100, 0])
    result, conversions = rgb(stored(image, "PNG"))
    assert result[0].tolist() == [[10, 20, 30], [200, 100, 0]]
    assert conversions == ("P",)


@pytest.mark.parametrize("mode", ["RGBA", "LA", "PA", "La", "RGBa"])
def test_transparency_is_composited_on_white(mode):
    layered = PIL.Image.new("RGBA", (2, 1))
    layered.putpixel((0, 0), (0, 0, 0, 0))
    layered.putpixel((1, 0), (0, 0, 0, 255))
    if mode == "PA":
        image = layered.convert("RGB").convert("P")
        image.putalpha(layered.getchannel("A"))
    else:
        image = layered.convert("LA").convert(mode) if mode == "La" else layered.convert(mode)
    result, conversions = to_rgb(image)
    assert result.tolist() == [[[255, 255, 255], [0, 0, 0]]]
    assert conversions == (mode, "transparency")


def test_half_transparent_red_on_white():
    result, _ = rgb(stored(PIL.Image.new("RGBA", (1, 1), (255, 0, 0, 128)), "PNG"))
    assert result.tolist() == [[[255, 127, 127]]]


def test_a_transparent_palette_entry_is_white():
    image = PIL.Image.new("P", (2, 1))
    image.putpalette([0, 0, 0, 9, 9, 9])
    image.putpixel((1, 0), 1)
    result, conversions = rgb(stored(image, "PNG", transparency=0))
    assert result.tolist() == [[[255, 255, 255], [9, 9, 9]]]
    assert conversions == ("P", "transparency")


@pytest.mark.parametrize("kind", ["PNG", "TIFF"])
def test_sixteen_bits_are_scaled_not_clipped(kind):
    values = np.array([[0, 257, 32768, 65535]], np.uint16)
    result, conversions = rgb(stored(PIL.Image.fromarray(values), kind))
    assert result[0, :, 0].tolist() == [0, 1, 128, 255]
    assert len(conversions) == 1


def test_wide_integers_and_floats_are_scaled_over_their_own_range():
    result, _ = rgb(PIL.Image.fromarray(np.array([[-100_000, 0, 100_000]], np.int32)))
    assert result[0, :, 0].tolist() == [0, 128, 255]
    result, _ = rgb(stored(PIL.Image.fromarray(np.array([[-2.0, 0, 2.0]], np.float32)), "TIFF"))
    assert result[0, :, 0].tolist() == [0, 128, 255]
    result, _ = rgb(PIL.Image.fromarray(np.array([[0.0, 0.2, 0.4]], np.float32)))
    assert result[0, :, 0].tolist() == [0, 51, 102]
    result, _ = rgb(PIL.Image.fromarray(np.full((1, 2), 7.0, np.float32)))
    assert result.tolist() == [[[0, 0, 0]] * 2]


def test_floats_that_are_not_finite_are_unreadable():
    image = PIL.Image.fromarray(np.array([[0.0, np.nan]], np.float32))
    with pytest.raises(ValueError, match="not finite"):
        to_rgb(image)


def test_cmyk_is_converted():
    image = PIL.Image.new("CMYK", (8, 8), (0, 255, 255, 0))
    result, conversions = rgb(stored(image, "JPEG", quality=95))
    assert result[4, 4, 0] > 240
    assert result[4, 4, 1] < 15
    assert conversions == ("CMYK",)


def test_orientation_is_applied():
    image = PIL.Image.new("RGB", (4, 2))
    image.putpixel((0, 0), (255, 0, 0))
    exif = PIL.Image.Exif()
    exif[0x0112] = 6  # the camera was turned: show it a quarter to the right
    result, conversions = rgb(stored(image, "PNG", exif=exif))
    assert result.shape == (4, 2, 3)
    assert result[0, 1].tolist() == [255, 0, 0]
    assert conversions == ("orientation",)


def test_the_first_frame_counts():
    frames = [PIL.Image.new("RGB", (2, 2), c) for c in ("red", "blue")]
    result, conversions = rgb(stored(frames[0], "GIF", save_all=True, append_images=frames[1:]))
    assert result[0, 0].tolist() == [255, 0, 0]
    assert "first frame" in conversions


def test_conversions_are_said_in_words():
    assert conversion_note(Counter({"L": 2, "transparency": 1})) == (
        "made RGB: 2 grey, 1 transparent ones composited on white"
    )


def image_set(items: list) -> ImageSet:
    origins = [f"file {i}" for i in range(len(items))]
    return ImageSet(EncodedImages(items), np.zeros(len(items), np.int64), ("a", "b"), origins)


@pytest.fixture
def files() -> list[bytes]:
    sizes = [(3, 4), (5, 2), (1, 1), (6, 6)]
    generator = np.random.default_rng(0)
    return [stored(PIL.Image.fromarray(generator.integers(0, 256, (*s, 3), dtype=np.uint8)), "PNG") for s in sizes]


@pytest.mark.parametrize("limit", [1 << 20, 50, 0])
def test_decoded_once_in_memory_or_in_a_mapped_file(files, limit, tmp_path, monkeypatch):
    monkeypatch.setenv("PLIANT_CACHE", str(tmp_path / "cache"))
    images = image_set(files).subset([3, 0, 1, 2])
    expected = list(images)
    seen = []
    outcome = decode(images, limit=limit, progress=lambda done, total: seen.append((done, total)))
    assert seen == [(1, 4), (2, 4), (3, 4), (4, 4)]
    assert isinstance(outcome.images.images, PackedImages)
    assert isinstance(outcome.images.images.buffer, np.memmap) == (limit < 1000)
    for got, want in zip(outcome.images, expected, strict=True):
        assert (got == want).all()
    assert not list(tmp_path.glob("cache/*"))  # the file has no name: nothing is left behind


def test_unreadable_files_are_found_and_listed(files):
    outcome = decode(image_set([files[0], files[1][:40], b"no image", files[2]]))
    assert [origin for origin, _ in outcome.failures] == ["file 1", "file 2"]
    assert "UnidentifiedImageError" in outcome.failures[1][1]
    assert list(outcome.images.origins) == ["file 0", "file 3"]


def test_a_truncated_jpeg_is_unreadable():
    noise = np.random.default_rng(0).integers(0, 256, (64, 64, 3), dtype=np.uint8)
    whole = stored(PIL.Image.fromarray(noise), "JPEG")
    outcome = decode(image_set([whole, whole[: len(whole) // 2]]))
    assert [origin for origin, _ in outcome.failures] == ["file 1"]
    assert "truncated" in outcome.failures[0][1]


@pytest.mark.parametrize("free", [0, 150])
def test_a_full_disk_leaves_images_decoded_on_demand(files, free, monkeypatch, tmp_path):
    monkeypatch.setenv("PLIANT_CACHE", str(tmp_path))
    monkeypatch.setattr(decoding.shutil, "disk_usage", lambda folder: SimpleNamespace(free=free))
    outcome = decode(image_set(files), limit=50)
    assert not outcome.cached
    assert isinstance(outcome.images[0], np.ndarray)
    assert len(outcome.images) == 4


def test_postscript_is_never_given_to_an_interpreter():
    page = b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n%%EndComments\nshowpage\n"
    with pytest.raises(PIL.UnidentifiedImageError, match="cannot identify"):
        open_image(page)


def test_a_cache_folder_that_cannot_be_written(files, monkeypatch, tmp_path):
    (tmp_path / "file").write_text("x")
    monkeypatch.setenv("PLIANT_CACHE", str(tmp_path / "file"))
    outcome = decode(image_set(files), limit=50)
    assert not outcome.cached
    assert len(list(outcome.images)) == 4


def test_a_decompression_bomb_is_listed_not_unpacked(files, monkeypatch):
    monkeypatch.setattr(PIL.Image, "MAX_IMAGE_PIXELS", 5)
    outcome = decode(image_set(files))
    assert [reason.partition(":")[0] for _, reason in outcome.failures] == ["DecompressionBombError"] * 2
    assert list(outcome.images.origins) == ["file 1", "file 2"]
