import numpy as np
import pytest
import torch
from PIL import Image
from sklearn.datasets import load_sample_images
from timm.data import create_transform
from transformers import BitImageProcessor, ViTImageProcessor

from pliant.data import normalized, pixel_values
from pliant.errors import ConfigError
from pliant.terms import Preprocessing

HALF = (0.5, 0.5, 0.5)
CLIP = ((0.48145466, 0.4578275, 0.40821073), (0.26862954, 0.26130258, 0.27577711))


@pytest.fixture(scope="module")
def photos() -> list[np.ndarray]:
    """Two photos and parts of them: landscape, portrait, square, narrow, tiny, odd margins."""
    china, flower = load_sample_images().images
    return [china, flower[:, 100:400], china[:300, :300], flower[:50, :600], china[::20, ::20], flower[:101, :177]]


@pytest.mark.parametrize("resample", [2, 3])
@pytest.mark.parametrize("size", [(224, 224), (28, 28), (40, 64)])
def test_equal_to_the_vit_image_processor(photos, resample, size):
    processor = ViTImageProcessor(
        size={"height": size[0], "width": size[1]}, resample=resample, image_mean=HALF, image_std=HALF
    )
    name = {2: "bilinear", 3: "bicubic"}[resample]
    ours = pixel_values(photos, Preprocessing(*size, None, name, HALF, HALF, "test"))
    theirs = processor([Image.fromarray(p) for p in photos], return_tensors="pt")["pixel_values"]
    assert torch.allclose(ours, theirs, atol=1e-5)


@pytest.mark.parametrize(("resize", "crop"), [(256, 224), (32, 28), (64, 64), (30, 40)])
def test_equal_to_the_bit_image_processor(photos, resize, crop):
    processor = BitImageProcessor(
        size={"shortest_edge": resize},
        crop_size={"height": crop, "width": crop},
        do_center_crop=True,
        image_mean=CLIP[0],
        image_std=CLIP[1],
    )
    ours = pixel_values(photos, Preprocessing(crop, crop, resize, "bicubic", *CLIP, "test"))
    theirs = processor([Image.fromarray(p) for p in photos], return_tensors="pt")["pixel_values"]
    assert torch.allclose(ours, theirs, atol=1e-5)


@pytest.mark.parametrize("interpolation", ["bilinear", "bicubic"])
@pytest.mark.parametrize(("size", "share"), [(224, 0.9), (96, 1.0), (32, 0.875)])
def test_timms_transform_gives_the_same_pixels(photos, interpolation, size, share):
    transform = create_transform(
        (3, size, size), interpolation=interpolation, crop_pct=share, mean=HALF, std=HALF, is_training=False
    )
    resize = int(size / share)
    for photo in photos:
        ours = pixel_values([photo], Preprocessing(size, size, resize, interpolation, HALF, HALF, "test"))[0]
        theirs = transform(Image.fromarray(photo))
        margins = [resize * side // min(photo.shape[:2]) - size for side in photo.shape[:2]]
        if any(m % 4 == 3 for m in margins):  # timm rounds half a pixel of these margins up
            shifts = [(m % 4 == 3) * 1 for m in margins]
            theirs = theirs[:, : size - shifts[0], : size - shifts[1]]
            ours = ours[:, shifts[0] :, shifts[1] :]
        assert (ours - theirs).abs().max() <= 2.01 / 255 * 2
        assert (ours - theirs).abs().mean() <= 0.2 / 255 * 2


def test_order_is_kept_over_sizes():
    greys = [np.full((4 + i % 2, 5, 3), i * 20, np.uint8) for i in range(6)]
    plain = Preprocessing(3, 3, None, "bicubic", (0, 0, 0), (1, 1, 1), "test")
    values = pixel_values(greys, plain)
    assert torch.allclose(values[:, 0, 1, 1] * 255, torch.arange(6) * 20.0, atol=1e-3)


def test_no_image_is_an_empty_batch():
    assert pixel_values([], Preprocessing(3, 4, None, "bicubic", HALF, HALF, "test")).shape == (0, 3, 3, 4)


def test_normalization_is_the_checkpoints_or_imagenets_and_says_so():
    own = Preprocessing(3, 3, None, "bicubic", HALF, HALF, "a file")
    assert normalized(own, "checkpoint") is own
    imagenet = normalized(own, "imagenet")
    assert imagenet.mean == (0.485, 0.456, 0.406)
    assert "a file, mean and std of ImageNet instead of (0.5, 0.5, 0.5)" in imagenet.origin
    with pytest.raises(ConfigError, match="expected 'checkpoint' or 'imagenet'"):
        normalized(own, "none")
