import datasets
import numpy as np
import PIL.Image
import pytest
import torch
from torch.utils.data import Dataset

import pliant.data as data
from pliant.errors import DataError

NAMES = ["sun", "moon", "star"]


def picture(value: int) -> PIL.Image.Image:
    return PIL.Image.new("RGB", (4 + value % 3, 5), (value, value, value))


def dataset(labels: list[int], names: list[str] | None = None, start: int = 0) -> datasets.Dataset:
    features = datasets.Features(
        {
            "id": datasets.Value("int64"),
            "photo": datasets.Image(),
            "label": datasets.ClassLabel(names=names or NAMES),
        }
    )
    rows = {"id": list(range(len(labels))), "photo": [picture(start + i) for i in range(len(labels))], "label": labels}
    return datasets.Dataset.from_dict(rows, features=features)


def values(images: data.ImageSet) -> list[int]:
    return [int(i[0, 0, 0]) for i in images]


def test_a_dataset_is_split(tmp_path):
    loaded = data.load(dataset([0, 1, 2] * 10))
    assert loaded.classes == tuple(NAMES)
    assert [len(v) for v in loaded.splits.values()] == [19, 5, 6]
    for images in loaded.splits.values():
        assert [v % 3 for v in values(images)] == images.labels.tolist()
        assert [f"train[{v}]" for v in values(images)] == list(images.origins)


def test_a_dataset_dict_keeps_its_splits_and_others_are_noted():
    loaded = data.load(
        datasets.DatasetDict(
            {
                "train": dataset([0, 1, 2]),
                "dev": dataset([2, 1], start=10),
                "Test": dataset([0], start=20),
                "extra": dataset([0]),
            }
        )
    )
    assert values(loaded.train) == [0, 1, 2]
    assert values(loaded.validation) == [10, 11]
    assert values(loaded.test) == [20]
    assert "split 'extra' is not used; train, validation and test are" in loaded.notes


def test_class_names_decide_where_splits_number_them_otherwise():
    loaded = data.load(
        {
            "train": dataset([0, 1, 2]),
            "validation": dataset([0, 1, 2], names=["star", "sun", "moon"]),
            "test": dataset([0, 1, 2]),
        }
    )
    assert loaded.validation.labels.tolist() == [2, 0, 1]


def test_numeric_names_in_another_order_are_names():
    loaded = data.load({k: dataset([0, 1, 2], names=["10", "2", "0"]) for k in ("train", "validation", "test")})
    assert loaded.classes == ("10", "2", "0")
    assert loaded.train.labels.tolist() == [0, 1, 2]


def test_a_label_that_train_lacks_is_named():
    with pytest.raises(DataError, match=r"test\[1\]: label 'moons' is none of the 3 classes of train; did you mean"):
        data.load({"train": dataset([0, 1, 2] * 5), "test": dataset([0, 1], names=["sun", "moons"])})
    with pytest.raises(DataError, match="test has images of 'star', of which train has none"):
        data.load({"train": dataset([0, 1] * 5), "test": dataset([0, 2])})


def test_a_test_split_without_labels_is_not_used():
    loaded = data.load({"train": dataset([0, 1, 2] * 10), "test": dataset([-1, -1])})
    assert len(loaded.test) == 6
    assert "the test images come without labels and are not used" in loaded.notes


def test_a_training_image_without_label():
    with pytest.raises(DataError, match=r"train\[2\]: no label"):
        data.load(dataset([0, 1, -1]))


def test_columns_are_found_by_type():
    two = dataset([0, 1]).add_column("coarse", [0, 0]).cast_column("coarse", datasets.ClassLabel(names=["far"]))
    loaded = data.load({"train": two, "validation": two, "test": two})
    assert loaded.classes == tuple(NAMES)
    with pytest.raises(DataError, match="2 columns of type ClassLabel among id, photo, other, coarse"):
        data.load(two.rename_column("label", "other"))
    with pytest.raises(DataError, match="0 image columns among id, label"):
        data.load(dataset([0, 1]).remove_columns("photo"))


def test_text_labels_are_sorted():
    rows = {"image": [picture(i) for i in range(10)], "label": ["b", "a"] * 5}
    loaded = data.load(datasets.Dataset.from_dict(rows).cast_column("image", datasets.Image()))
    assert loaded.classes == ("a", "b")


def test_an_unreadable_row_is_listed(tmp_path):
    rows = {"image": [{"bytes": b"nothing", "path": None}] + [picture(i) for i in range(9)], "label": [0, 1] * 5}
    features = datasets.Features({"image": datasets.Image(), "label": datasets.Value("int64")})
    broken = datasets.Dataset.from_dict(rows, features=features)
    with pytest.raises(DataError, match=r"train\[0\]: UnidentifiedImageError"):
        data.load(broken)
    assert sum(map(len, data.load(broken, skip_unreadable=True).splits.values())) == 9


def test_an_iterable_dataset_is_refused():
    with pytest.raises(DataError, match="got IterableDataset; expected a data set with a length"):
        data.load(dataset([0, 1]).to_iterable_dataset())
    with pytest.raises(DataError, match="got int; expected a data set"):
        data.load(3)


class Pairs(Dataset):
    def __init__(self, items: list, classes: list[str] | None = None) -> None:
        self.items = items
        if classes is not None:
            self.classes = classes

    def __len__(self) -> int:
        return len(self.items)

    def __getitem__(self, index: int):
        item = self.items[index]
        if isinstance(item, Exception):
            raise item
        return item


def test_torch_data_of_pictures_arrays_and_tensors():
    array = np.full((5, 6, 3), 10, np.uint8)
    tensor = torch.full((3, 5, 6), 20, dtype=torch.uint8)
    floats = torch.full((1, 5, 6), 30 / 255)
    kinds = [picture(0), array, tensor, floats]
    pairs = Pairs([(kind, torch.tensor(i % 2)) for i, kind in enumerate(kinds)], classes=["even", "odd"])
    loaded = data.load({"train": pairs, "validation": pairs, "test": pairs})
    assert loaded.classes == ("even", "odd")
    assert values(loaded.train) == [0, 10, 20, 30]
    assert loaded.train[2].shape == (5, 6, 3)
    assert "made RGB: 3 grey" in loaded.notes


def test_torch_labels_without_names():
    loaded = data.load(Pairs([(picture(i), [7, 30][i % 2]) for i in range(20)]))
    assert loaded.classes == ("7", "30")


def test_normalised_tensors_are_refused():
    pairs = Pairs([(torch.randn(3, 4, 4), i % 2) for i in range(20)])
    with pytest.raises(DataError, match="without a Normalize transform"):
        data.load(pairs)


def test_a_torch_item_that_cannot_be_read_is_listed_or_skipped():
    items: list = [(picture(i), i % 2) for i in range(20)]
    items[4] = OSError("disk")
    with pytest.raises(DataError, match=r"train\[4\]: OSError: disk"):
        data.load(Pairs(items))
    loaded = data.load(Pairs(items), skip_unreadable=True)
    assert sum(map(len, loaded.splits.values())) == 19
    with pytest.raises(DataError, match=r"expected a pair \(image, label\)"):
        data.load(Pairs([picture(0)]))


def test_targets_spare_reading_every_image():
    pairs = Pairs([(picture(i), "never read") for i in range(20)])
    pairs.targets = [i % 2 for i in range(20)]
    assert data.load(pairs).classes == ("0", "1")
