import gzip
import struct

import numpy as np
import pytest
import torch

import pliant.data as data
from pliant.data.sources import SOURCES, find_source
from pliant.errors import ConfigError, DataError, UnknownNameError


def idx(values: np.ndarray) -> bytes:
    return struct.pack(f">HBB{values.ndim}I", 0, 8, values.ndim, *values.shape) + values.tobytes()


def miniature(folder, zipped: bool = True):
    generator = np.random.default_rng(0)
    for prefix, count in (("train", 60), ("t10k", 20)):
        images = generator.integers(0, 256, (count, 28, 28), dtype=np.uint8)
        labels = np.arange(count, dtype=np.uint8) % 10
        for kind, values in (("images-idx3-ubyte", images), ("labels-idx1-ubyte", labels)):
            content = gzip.compress(idx(values)) if zipped else idx(values)
            (folder / f"{prefix}-{kind}{'.gz' if zipped else ''}").write_bytes(content)
    return folder


def test_digits_are_300_and_halves():
    loaded = data.load("digits")
    assert [len(v) for v in loaded.splits.values()] == [300, 748, 749]
    assert loaded.classes == tuple("0123456789")
    assert max(loaded.train.counts) - min(loaded.train.counts) <= 2
    origins = [o for images in loaded.splits.values() for o in images.origins]
    assert len(set(origins)) == 1797
    assert loaded.train[0].shape == (8, 8, 3)
    assert max(int(i.max()) for i in loaded.train) == 255
    assert loaded.notes == ()


def test_digits_of_another_number_and_with_limits():
    loaded = data.load("digits", train=100, validation=50, test=60, seed=3)
    assert [len(v) for v in loaded.splits.values()] == [100, 50, 60]
    with pytest.raises(ConfigError, match="train=1797 for digits"):
        data.load("digits", train=1797)


@pytest.mark.parametrize("zipped", [True, False])
def test_fashion_mnist_from_a_folder(tmp_path, zipped, monkeypatch):
    miniature(tmp_path, zipped)
    loaded = data.load(f"fashion-mnist:{tmp_path}")
    assert [len(v) for v in loaded.splits.values()] == [48, 12, 20]
    assert loaded.classes[9] == "Ankle boot"
    assert loaded.test.labels.tolist() == [i % 10 for i in range(20)]
    monkeypatch.setenv("PLIANT_FASHION_MNIST", str(tmp_path))
    assert len(data.load("fashion-mnist", train=20).train) == 20


def test_fashion_mnist_that_is_not_there(tmp_path):
    with pytest.raises(DataError, match="Install the Debian package dataset-fashion-mnist"):
        data.load(f"fashion-mnist:{tmp_path}")


def test_the_bundled_sample_is_for_measuring():
    loaded = data.load("fashion-sample")
    assert [len(v) for v in loaded.splits.values()] == [128, 0, 0]
    assert loaded.train[0].shape == (28, 28, 3)
    with pytest.raises(DataError, match="for measuring only"):
        loaded.require_splits()


@pytest.mark.parametrize(
    ("name", "near"), [("digit", "digits"), ("fashion-mnst", "fashion-mnist"), ("foldr:/x", "folder:PATH")]
)
def test_unknown_names_come_with_the_nearest_and_all(name, near):
    with pytest.raises(UnknownNameError, match=f"Did you mean '{near}") as caught:
        data.load(name)
    assert all(source.form in str(caught.value) for source in SOURCES.values())


@pytest.mark.parametrize("name", ["digits:x", "fashion-sample:x"])
def test_names_that_take_nothing_after_a_colon(name):
    with pytest.raises(UnknownNameError, match="which takes nothing after it"):
        data.load(name)


def test_text_is_for_measure_and_bounds():
    with pytest.raises(DataError, match=r"text:a\.txt is for measure and bounds"):
        data.load("text:a.txt")


def test_every_source_has_a_form_that_leads_to_it():
    for key, source in SOURCES.items():
        assert source.form.startswith(key)
        assert find_source(key)[0] is source
        assert find_source(f"{key}:a:b") == (source, "a:b")


def test_loading_leaves_global_random_numbers_alone():
    torch.manual_seed(0)
    before = torch.get_rng_state()
    state = np.random.get_state()[1].copy()
    data.load("digits", train=20)
    assert torch.equal(torch.get_rng_state(), before)
    assert (np.random.get_state()[1] == state).all()
