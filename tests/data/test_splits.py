import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given, settings

from pliant.data.sets import ArrayImages, ImageData, ImageSet, empty_like
from pliant.data.splits import allocate, hold_out, limited, missing_classes, stratified
from pliant.errors import ConfigError, DataError


def numbered(labels: list[int], classes: int | None = None) -> ImageSet:
    """Images whose pixels are their position, so that a mix-up of images and labels shows."""
    count = len(labels)
    pixels = np.arange(count, dtype=np.uint8).reshape(count, 1, 1).repeat(2, 1).repeat(3, 2)
    names = tuple(f"class {i}" for i in range(classes or max(labels) + 1))
    return ImageSet(ArrayImages(pixels), np.array(labels, dtype=np.int64), names, [f"at {i}" for i in range(count)])


@given(st.lists(st.integers(0, 50), min_size=1, max_size=12), st.integers(0, 400), st.integers(0, 2))
@settings(deadline=None)
def test_allocation_is_exact_proportional_and_within_what_there_is(counts, total, keep):
    sizes = np.array(counts, dtype=np.int64)
    share = allocate(sizes, total, keep=keep)
    room = np.maximum(sizes - keep, 0)
    assert share.sum() == min(total, room.sum())
    assert (share >= 0).all()
    assert (share <= room).all()
    if keep == 0 and total <= sizes.sum() and sizes.sum():
        assert (np.abs(share - sizes * total / sizes.sum()) < 1).all()


def test_a_split_is_a_partition_the_same_for_a_seed_and_another_for_another():
    labels = np.repeat([0, 1, 2], [50, 30, 20])
    taken, rest = stratified(labels, 20, seed=3, purpose="test")
    assert sorted([*taken, *rest]) == list(range(100))
    assert np.bincount(labels[taken]).tolist() == [10, 6, 4]
    again, _ = stratified(labels, 20, seed=3, purpose="test")
    other, _ = stratified(labels, 20, seed=4, purpose="test")
    elsewhere, _ = stratified(labels, 20, seed=3, purpose="validation")
    assert taken.tolist() == again.tolist()
    assert taken.tolist() != other.tolist()
    assert taken.tolist() != elsewhere.tolist()


def test_a_smaller_limit_is_part_of_a_larger_one():
    images = numbered([0] * 40 + [1] * 40)
    small = limited(images, 10, seed=0, purpose="train")
    large = limited(images, 30, seed=0, purpose="train")
    assert set(small.origins) < set(large.origins)


def test_subset_keeps_image_label_and_origin_together():
    images = numbered([0, 1, 2, 1, 0]).subset([4, 3, 1]).subset([2, 0])
    assert [int(i[0, 0, 0]) for i in images] == [1, 4]
    assert images.labels.tolist() == [1, 0]
    assert list(images.origins) == ["at 1", "at 4"]
    assert images[-1].shape == (2, 3, 3)


def test_an_image_is_a_copy():
    images = numbered([0, 1])
    images[1][:] = 99
    assert int(images[1].max()) == 1


def test_every_class_keeps_an_image_for_training():
    left, held = hold_out(numbered([0] + [1] * 20), seed=0, purpose="test")
    assert left.counts[0] == 1
    assert len(held) == 4


def test_too_few_images_to_split():
    with pytest.raises(DataError, match="2 images of 2 classes are too few to split off test"):
        hold_out(numbered([0, 1]), seed=0, purpose="test")


@pytest.mark.parametrize("limit", [0, -3])
def test_a_limit_is_positive(limit):
    with pytest.raises(ConfigError, match=f"train={limit}"):
        limited(numbered([0, 1]), limit, seed=0, purpose="train")


def test_labels_that_do_not_fit_are_refused():
    with pytest.raises(DataError, match="at 1: label 5 lies outside the 2 classes"):
        numbered([0, 5], classes=2)
    with pytest.raises(DataError, match="2 images, 1 labels"):
        ImageSet(ArrayImages(np.zeros((2, 1, 1), np.uint8)), np.zeros(1, np.int64), ("a",), ["x", "y"])


def test_arrays_of_another_kind_are_refused():
    with pytest.raises(DataError, match="expected uint8 of shape"):
        ArrayImages(np.zeros((2, 4, 4, 2), np.uint8))


def test_missing_classes_are_named_and_data_without_test_is_for_measuring():
    train = numbered([0, 1, 2])
    data = ImageData("x", train.classes, train, train.subset([0]), empty_like(train))
    assert missing_classes(data) == ("validation: no image of 2 classes (class 1, class 2)",)
    with pytest.raises(DataError, match="no test images, so it serves for measuring only"):
        data.require_splits()
