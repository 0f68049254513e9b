import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from pliant.data import ImageSet, pixel_values
from pliant.errors import ConfigError
from pliant.tuning import batches
from pliant.tuning.batches import Order, TrainingBatches, evaluation_batches
from tuning.tiny_cells import CLASSES, PREPROCESSING, cell, data, images


@given(count=st.integers(1, 30), per_step=st.integers(1, 70), steps=st.integers(1, 12), seed=st.integers(0, 2**32 - 1))
def test_every_image_is_seen_once_before_any_is_seen_again(count: int, per_step: int, steps: int, seed: int):
    order = Order(count, per_step, seed=seed)
    seen = np.concatenate([order(s) for s in range(steps)])
    assert len(seen) == steps * per_step
    for start in range(0, len(seen), count):
        part = seen[start : start + count]
        assert len(set(part.tolist())) == len(part)
    again = Order(count, per_step, seed=seed)
    assert np.array_equal(again(steps - 1), seen[-per_step:])


def test_seeds_and_rounds_are_ordered_differently():
    order = Order(50, 50, seed=3)
    assert not np.array_equal(order(0), order(1))
    assert not np.array_equal(order(0), Order(50, 50, seed=4)(0))


@pytest.mark.parametrize("augmentation", ["none", "flip", "crop", "flip-crop"])
def test_values_do_not_depend_on_what_came_before(augmentation: str):
    config = cell(augmentation=augmentation, steps=5, accumulation=2)
    sets = data()

    def values(start: int) -> list[torch.Tensor]:
        found = TrainingBatches(config, sets.train, PREPROCESSING)
        found.start = start
        assert len(found) == (5 - start) * 2
        return [found.values(batch, torch.device("cpu")) for batch in found]

    whole, rest = values(0), values(3)
    assert [v.shape for v in whole] == [(8, 3, 8, 8)] * 10
    assert all(torch.equal(a, b) for a, b in zip(whole[6:], rest, strict=True))
    assert not torch.equal(whole[0], whole[1])


def test_images_keep_their_labels():
    config = cell(steps=3)
    found = TrainingBatches(config, data().train, PREPROCESSING)
    for batch in found:
        values = found.values(batch, torch.device("cpu"))
        left, right = values[..., :4].mean((1, 2, 3)) > 0, values[..., 4:].mean((1, 2, 3)) > 0
        assert torch.equal(left.long() + 2 * right.long(), batch["labels"])


def test_flips_flip_half_of_the_images():
    config = cell(augmentation="flip", steps=40)
    sets = data()
    found = TrainingBatches(config, sets.train, PREPROCESSING)
    plain = pixel_values([sets.train[i] for i in range(len(sets.train))], PREPROCESSING)
    flipped = 0
    for batch in found:
        for value in found.values(batch, torch.device("cpu")):
            same = [torch.equal(value, p) for p in plain]
            mirrored = [torch.equal(value, p.flip(-1)) for p in plain]
            assert any(same) != any(mirrored)
            flipped += any(mirrored)
    assert 120 < flipped < 200


@pytest.mark.parametrize("kept", [0, 1 << 29])
@pytest.mark.parametrize("augmentation", ["none", "flip-crop"])
def test_large_sets_are_not_kept_and_give_the_same(monkeypatch: pytest.MonkeyPatch, kept: int, augmentation: str):
    reference = data()
    config = cell(augmentation=augmentation)
    expected = list(TrainingBatches(config, reference.train, PREPROCESSING))
    monkeypatch.setattr(batches, "KEPT_BYTES", kept)
    sets = data()
    found = TrainingBatches(config, sets.train, PREPROCESSING)
    whole = TrainingBatches(config, reference.train, PREPROCESSING)
    for batch, other in zip(found, expected, strict=True):
        a, b = found.values(batch, torch.device("cpu")), whole.values(other, torch.device("cpu"))
        assert torch.allclose(a, b, atol=1e-6)
    values, labels = zip(*evaluation_batches(sets.test, PREPROCESSING), strict=True)
    assert torch.equal(torch.cat(labels), torch.from_numpy(sets.test.labels))
    assert torch.equal(torch.cat(values), pixel_values(list(sets.test), PREPROCESSING))


class Mixed:
    """Images of two sizes."""

    def __init__(self, small: ImageSet, large: ImageSet) -> None:
        self.all = [*small, *large]

    def __len__(self) -> int:
        return len(self.all)

    def __getitem__(self, index: int, /) -> np.ndarray:
        return self.all[index].copy()


def test_images_of_several_sizes_can_be_trained_on():
    mixed = Mixed(images(10, seed=0), images(10, seed=1, size=12))
    sets = ImageSet(mixed, np.arange(20) % 4, CLASSES, [str(i) for i in range(20)])
    for augmentation in ("none", "flip-crop"):
        found = TrainingBatches(cell(augmentation=augmentation, batch_size=20), sets, PREPROCESSING)
        assert all(found.values(b, torch.device("cpu")).shape == (20, 3, 8, 8) for b in found)


def test_processes_share_every_batch():
    config = cell(accumulation=2)
    sets = data()
    whole = [b["labels"] for b in TrainingBatches(config, sets.train, PREPROCESSING)]
    shares = [TrainingBatches(config, sets.train, PREPROCESSING, share=(rank, 2)) for rank in range(2)]
    for one, first, second in zip(whole, *shares, strict=True):
        assert torch.equal(one, torch.stack([first["labels"], second["labels"]], 1).flatten())
    parts = [
        torch.cat([labels for _, labels in evaluation_batches(sets.test, PREPROCESSING, share=(r, 3))])
        for r in range(3)
    ]
    assert sorted(torch.cat(parts).tolist()) == sorted(sets.test.labels.tolist())
    with pytest.raises(ConfigError, match=r"batch_size=8 on 3 processes; expected a multiple"):
        TrainingBatches(config, sets.train, PREPROCESSING, share=(0, 3))


def test_pixels_are_shared_between_cells_and_freed_with_their_set():
    sets = data()
    one = TrainingBatches(cell(), sets.train, PREPROCESSING)
    other = TrainingBatches(cell(seed=1), sets.train, PREPROCESSING)
    assert one._values is other._values
    kept = len(batches._values)
    del one, other, sets
    assert len(batches._values) < kept
