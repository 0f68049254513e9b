import numpy as np
import pytest
import torch
from torchvision.transforms import InterpolationMode, RandomResizedCrop
from torchvision.transforms.v2 import functional

from pliant.data import Augment
from pliant.data.augment import Draw, draw_boxes, resized_crops
from pliant.data.images import scale
from pliant.data.threads import in_parts
from pliant.errors import ConfigError
from pliant.terms import Preprocessing

IMAGENET = ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))
PLAIN = ((0.0, 0.0, 0.0), (1.0, 1.0, 1.0))


def to(height: int, width: int | None = None, mean_std=PLAIN) -> Preprocessing:
    return Preprocessing(height, width or height, None, "bilinear", *mean_std, "test")


def noise(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.from_numpy(np.random.default_rng(seed).integers(0, 256, (*shape, 3), dtype=np.uint8))


@pytest.mark.parametrize(
    ("height", "width", "smallest"), [(32, 32, 0.08), (60, 90, 0.08), (60, 90, 0.5), (200, 20, 0.08), (20, 200, 0.5)]
)
def test_crops_have_torchvisions_distribution(height, width, smallest):
    count = 2500
    torch.manual_seed(0)
    image = torch.empty(3, height, width)
    theirs = torch.tensor(
        [RandomResizedCrop.get_params(image, [smallest, 1.0], [3 / 4, 4 / 3]) for _ in range(count)]
    ).double()
    sizes = torch.tensor([[height, width]]).repeat(count, 1)
    ours = draw_boxes(sizes, torch.Generator().manual_seed(1), area=(smallest, 1.0)).double()
    assert (ours[:, :2] >= 0).all()
    assert (ours[:, :2] + ours[:, 2:] <= sizes).all()
    assert (ours[:, 2:] > 0).all()
    for mine, other in [(ours, theirs), (ours.prod(1), theirs.prod(1))]:
        mine, other = mine.reshape(count, -1), other.reshape(count, -1)
        spread = torch.sqrt((mine.var(0) + other.var(0)) / count).clamp(min=1e-9)
        assert ((mine.mean(0) - other.mean(0)).abs() / spread < 4.5).all()
    for q in (0.1, 0.5, 0.9):
        gap = (ours[:, 2:].quantile(q, dim=0) - theirs[:, 2:].quantile(q, dim=0)).abs()
        assert (gap <= 0.05 * sizes[0] + 1).all()


def test_the_fallback_is_torchvisions():
    sizes = torch.tensor([[10, 100], [100, 10], [30, 30]])
    boxes = draw_boxes(sizes, torch.Generator(), area=(3.0, 3.0))  # no crop can be three times the image
    expected = [
        RandomResizedCrop.get_params(torch.empty(3, h, w), [3.0, 3.0], [3 / 4, 4 / 3]) for h, w in sizes.tolist()
    ]
    assert [tuple(b) for b in boxes.tolist()] == expected


BOXES = [(0, 0, 40, 40), (3, 5, 20, 30), (10, 1, 7, 9), (39, 39, 1, 1), (0, 20, 40, 3)]


@pytest.mark.parametrize("antialias", [True, False])
@pytest.mark.parametrize("size", [(12, 12), (40, 40), (64, 50)])
def test_pixels_are_those_of_torchvisions_resized_crop(size, antialias):
    images = noise(len(BOXES), 40, 40)
    draw = Draw(torch.tensor(BOXES), torch.zeros(len(BOXES), dtype=torch.bool))
    ours = resized_crops(images, draw, to(*size), antialias=antialias)
    for image, box, mine in zip(images, BOXES, ours, strict=True):
        for pixels, tolerance in [(image.permute(2, 0, 1).float(), 1e-3), (image.permute(2, 0, 1), 1.1)]:
            theirs = functional.resized_crop(
                pixels, *box, list(size), interpolation=InterpolationMode.BILINEAR, antialias=antialias
            )
            assert (mine * 255 - theirs).abs().max() <= tolerance


def test_flips_are_exact():
    images = noise(6, 24, 24)
    boxes = torch.tensor([[2, 3, 15, 17]] * 6)
    flips = torch.tensor([True, False, True, True, False, False])
    plain = resized_crops(images, Draw(boxes, torch.zeros(6, dtype=torch.bool)), to(20))
    mixed = resized_crops(images, Draw(boxes, flips), to(20))
    assert torch.equal(mixed[~flips], plain[~flips])
    assert torch.allclose(mixed[flips], plain[flips].flip(-1), atol=1e-6, rtol=0)
    whole = torch.tensor([[0, 0, 24, 24]] * 6)
    untouched = resized_crops(images, Draw(whole, flips), to(24)) * 255
    assert torch.equal(untouched[0].round().byte(), images[0].permute(2, 0, 1).flip(-1))


def test_normalising_first_is_normalising_last():
    images = noise(4, 30, 22)
    draw = Draw(torch.tensor([[1, 2, 20, 15]] * 4), torch.zeros(4, dtype=torch.bool))
    after = (resized_crops(images, draw, to(16)) - torch.tensor(IMAGENET[0]).view(3, 1, 1)) / torch.tensor(
        IMAGENET[1]
    ).view(3, 1, 1)
    assert torch.allclose(resized_crops(images, draw, to(16, mean_std=IMAGENET)), after, atol=1e-5)


def test_large_sources_take_another_way_to_the_same_pixels():
    large = noise(3, 130, 110)
    augment = Augment(to(24), seed=5)
    draw = augment.draw(torch.tensor([[130, 110]] * 3), step=1)
    assert (augment(large, step=1) - resized_crops(large, draw, to(24))).abs().max() <= 1.1 / 255


@pytest.mark.parametrize("side", [32, 100])
@pytest.mark.parametrize("inference", [True, False])
def test_threads_change_nothing(side, inference):
    images = noise(70, side, side)
    augment = Augment(to(24), seed=2)
    before = torch.get_num_threads()
    try:
        results = []
        for threads in (1, 3):
            torch.set_num_threads(threads)
            with torch.inference_mode(inference):
                results.append(augment(images, step=0))
            assert torch.get_num_threads() == threads
    finally:
        torch.set_num_threads(before)
    assert torch.equal(*results)


def test_an_error_in_a_thread_is_raised():
    def work(part: slice) -> None:
        raise ValueError(f"part {part.start}")

    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        with pytest.raises(ValueError, match="part 0"):
            in_parts(work, 40, torch.device("cpu"))
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)


def test_images_of_many_sizes_come_back_in_their_order():
    arrays = [noise(h, w, seed=h).numpy() for h, w in [(20, 30), (8, 8), (20, 30), (120, 140), (1, 1)]]
    augment = Augment(to(16, 12, IMAGENET), seed=1)
    result = augment(arrays, step=0)
    draw = augment.draw(torch.tensor([a.shape[:2] for a in arrays]), step=0)
    assert result.shape == (5, 3, 16, 12)
    for i, array in enumerate(arrays):
        one = Draw(draw.boxes[i : i + 1], draw.flips[i : i + 1])
        alone = resized_crops(torch.from_numpy(array)[None], one, to(16, 12, IMAGENET))[0]
        assert (result[i] - alone).abs().max() <= 1.1 / 255 / 0.224


def test_a_seed_and_a_step_decide_and_nothing_else_does():
    images = noise(8, 32, 32)
    torch.manual_seed(0)
    first = Augment(to(24), seed=3)(images, step=7)
    before = torch.get_rng_state()
    torch.rand(5)
    np.random.default_rng(1).random()
    fresh = Augment(to(24), seed=3)
    fresh(images)
    assert torch.equal(fresh(images, step=7), first)
    assert torch.equal(fresh(list(images.numpy()), step=7), first)
    assert not torch.equal(fresh(images, step=8), first)
    assert not torch.equal(Augment(to(24), seed=4)(images, step=7), first)
    torch.set_rng_state(before)
    fresh(images)
    assert torch.equal(torch.get_rng_state(), before)


def test_without_a_step_the_generator_goes_on():
    images = noise(8, 32, 32)
    augment, again = Augment(to(24), seed=3), Augment(to(24), seed=3)
    assert torch.equal(augment(images), again(images))
    second = augment(images)
    state = again.generator.get_state()
    assert torch.equal(again(images), second)
    again.generator.set_state(state)
    assert torch.equal(again(images), second)


def test_without_a_crop_the_view_is_that_of_evaluation():
    preprocessing = Preprocessing(16, 16, 20, "bicubic", *IMAGENET, "test")
    images = noise(10, 30, 44)
    augment = Augment(preprocessing, crop_scale_min=1.0, seed=0)
    whole = Augment(preprocessing, crop_scale_min=1.0, flip=False)(images)
    framed = functional.center_crop(functional.resize(images.permute(0, 3, 1, 2), [20], interpolation=3), [16, 16])
    assert torch.equal(whole, scale(framed, preprocessing))
    flips = augment.draw(torch.tensor([[30, 44]] * 10), step=2).flips
    mixed = augment(images, step=2)
    assert flips.any()
    assert not flips.all()
    assert torch.equal(mixed[flips], whole[flips].flip(-1))
    assert torch.equal(mixed[~flips], whole[~flips])


@pytest.mark.parametrize("share", [0.0, -1.0, 1.5, float("nan")])
def test_a_crop_share_that_cannot_be_meant(share):
    with pytest.raises(ConfigError, match="expected a share of the area"):
        Augment(to(8), crop_scale_min=share)
