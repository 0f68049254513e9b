from pathlib import Path

import numpy as np
import PIL.Image
import pytest

import pliant.data as data
from pliant.errors import DataError, UnknownNameError


def draw(path: Path, seed: int = 0, mode: str = "RGB", size: tuple[int, int] = (9, 7)) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    pixels = np.random.default_rng(seed).integers(0, 256, (*size, 3), dtype=np.uint8)
    PIL.Image.fromarray(pixels).convert(mode).save(path)
    return path


def class_folders(root: Path, count: int = 10, classes: tuple[str, ...] = ("cat", "dog")) -> Path:
    for c, name in enumerate(classes):
        for i in range(count):
            draw(root / name / f"{i}.png", seed=100 * c + i)
    return root


def load(root: Path, **options):
    return data.load(f"folder:{root}", **options)


def test_class_folders_are_split_in_fifths(tmp_path):
    loaded = load(class_folders(tmp_path))
    assert loaded.classes == ("cat", "dog")
    assert {k: v.counts.tolist() for k, v in loaded.splits.items()} == {
        "train": [6, 7],
        "validation": [2, 1],
        "test": [2, 2],
    }
    origins = [o for images in loaded.splits.values() for o in images.origins]
    assert len(set(origins)) == 20
    for images in loaded.splits.values():
        for image, label, origin in zip(images, images.labels, images.origins, strict=True):
            assert Path(origin).parent.name == loaded.classes[label]
            assert (image == np.asarray(PIL.Image.open(origin))).all()
    again = load(tmp_path)
    assert list(again.test.origins) == list(loaded.test.origins)
    assert list(load(tmp_path, seed=1).test.origins) != list(loaded.test.origins)


@pytest.mark.parametrize("validation", ["val", "valid", "validation", "Val"])
def test_split_folders_are_kept_as_they_are(tmp_path, validation):
    for split, count in (("train", 5), (validation, 2), ("test", 3)):
        class_folders(tmp_path / split, count)
    loaded = load(tmp_path)
    assert [len(v) for v in loaded.splits.values()] == [10, 4, 6]
    assert all(f"/{validation}/" in o for o in loaded.validation.origins)
    assert loaded.notes == ()


def test_train_and_test_only(tmp_path):
    class_folders(tmp_path / "train", 10)
    class_folders(tmp_path / "test", 3)
    assert [len(v) for v in load(tmp_path).splits.values()] == [16, 4, 6]


def test_a_class_called_train_among_others_is_a_class(tmp_path):
    loaded = load(class_folders(tmp_path, 5, ("bus", "test", "train")))
    assert loaded.classes == ("bus", "test", "train")


def test_limits_decode_only_what_is_used(tmp_path):
    class_folders(tmp_path)
    counted = []
    loaded = load(tmp_path, train=4, validation=2, test=2, progress=lambda done, total: counted.append((done, total)))
    assert [len(v) for v in loaded.splits.values()] == [4, 2, 2]
    assert counted == [(i, 8) for i in range(1, 9)]


def test_mixed_modes_are_made_rgb_and_counted(tmp_path):
    class_folders(tmp_path, 4)
    draw(tmp_path / "cat" / "grey.png", mode="L")
    draw(tmp_path / "cat" / "bit.png", mode="1")
    draw(tmp_path / "dog" / "cmyk.jpg", mode="CMYK")
    draw(tmp_path / "dog" / "palette.gif", mode="P")
    draw(tmp_path / "dog" / "alpha.webp", mode="RGBA")
    loaded = load(tmp_path)
    assert len(loaded.notes) == 1
    for part in ("1 grey", "1 1-bit", "1 CMYK", "1 palette", "made RGB"):
        assert part in loaded.notes[0]
    assert all(i.shape == (9, 7, 3) for images in loaded.splits.values() for i in images)


def test_hidden_folders_and_other_files_are_passed_over_with_a_note(tmp_path):
    class_folders(tmp_path, 5)
    draw(tmp_path / ".thumbnails" / "x.png")
    draw(tmp_path / "__MACOSX" / "x.png")
    (tmp_path / "cat" / ".DS_Store").write_bytes(b"x")
    (tmp_path / "cat" / "notes.txt").write_text("x")
    loaded = load(tmp_path)
    assert loaded.classes == ("cat", "dog")
    assert loaded.notes == (
        f"{tmp_path}: hidden folders passed over: .thumbnails, __MACOSX",
        f"{tmp_path / 'cat'}: files that are no images passed over: 1 (.txt)",
    )


def test_unreadable_images_are_listed_by_path_or_skipped(tmp_path):
    class_folders(tmp_path)
    for name in ("cat/3.png", "dog/7.png"):
        path = tmp_path / name
        path.write_bytes(path.read_bytes()[:60])
    (tmp_path / "dog" / "empty.jpg").write_bytes(b"")
    with pytest.raises(DataError, match="3 of 21 images cannot be read") as caught:
        load(tmp_path)
    for name in ("cat/3.png", "dog/7.png", "dog/empty.jpg"):
        assert str(tmp_path / name) in str(caught.value)
    assert "skip_unreadable=True (--skip-unreadable)" in str(caught.value)
    loaded = load(tmp_path, skip_unreadable=True)
    assert sum(map(len, loaded.splits.values())) == 18
    assert any(n.startswith("skipped 3 of 21 images that cannot be read, the first ") for n in loaded.notes)


def test_nothing_left_after_skipping(tmp_path):
    class_folders(tmp_path / "train", 5)
    class_folders(tmp_path / "test", 1)
    for path in (tmp_path / "test").rglob("*.png"):
        path.write_bytes(b"")
    with pytest.raises(DataError, match="none of the test images can be read"):
        load(tmp_path, skip_unreadable=True)


def test_a_class_lost_to_skipping(tmp_path):
    class_folders(tmp_path, 5)
    for path in (tmp_path / "dog").iterdir():
        path.write_bytes(b"")
    with pytest.raises(DataError, match="every training image of 'dog'"):
        load(tmp_path, skip_unreadable=True)


def refused(root: Path) -> str:
    with pytest.raises(DataError, match=r"\w") as caught:
        load(root)
    return str(caught.value)


def test_no_class_folders(tmp_path):
    assert refused(tmp_path) == (f"{tmp_path}: no class folders: it is empty; expected one folder of images per class")
    draw(tmp_path / "a.png")
    assert "it holds 1 images, in no class" in refused(tmp_path)


def test_no_such_folder(tmp_path):
    with pytest.raises(DataError, match="absent does not exist"):
        load(tmp_path / "absent")
    (tmp_path / "file").write_text("x")
    with pytest.raises(DataError, match="file is a file"):
        load(tmp_path / "file")
    with pytest.raises(DataError, match="folder: without a path"):
        data.load("folder:")


def test_an_empty_class(tmp_path):
    class_folders(tmp_path, 5)
    (tmp_path / "emu").mkdir()
    assert refused(tmp_path) == f"{tmp_path / 'emu'}: empty class folder: no image in it; add images or remove it"


def test_a_single_class(tmp_path):
    class_folders(tmp_path, 5, ("cat",))
    assert refused(tmp_path).startswith(f"{tmp_path / 'cat'}: the only class folder")


@pytest.mark.parametrize("deep", ["cat/young", "cat/a/b"])
def test_uneven_depth(tmp_path, deep):
    class_folders(tmp_path, 5)
    draw(tmp_path / deep / "1.png")
    message = refused(tmp_path)
    assert message.startswith(f"{tmp_path / Path(*Path(deep).parts[:2])}: uneven depth")


def test_one_level_too_high_is_guessed(tmp_path):
    class_folders(tmp_path / "images", 5)
    assert f"did you mean folder:{tmp_path / 'images'}?" in refused(tmp_path)


def test_images_beside_class_folders(tmp_path):
    class_folders(tmp_path, 5)
    draw(tmp_path / "stray.png")
    assert refused(tmp_path).startswith(f"{tmp_path}: uneven depth: 1 images beside the folders (stray.png)")


def test_a_class_that_train_lacks(tmp_path):
    class_folders(tmp_path / "train", 5, ("cat", "dog"))
    class_folders(tmp_path / "val", 2, ("cat", "dogs"))
    message = refused(tmp_path)
    assert "class 'dogs' of validation has no folder in train; did you mean 'dog'?" in message
    assert str(tmp_path / "val" / "dogs") in message


def test_a_class_that_only_train_has_is_noted(tmp_path):
    class_folders(tmp_path / "train", 5, ("ant", "cat", "dog"))
    class_folders(tmp_path / "test", 2, ("cat", "dog"))
    assert "test: no image of 1 classes (ant)" in load(tmp_path).notes


def test_split_folders_without_classes_in_train(tmp_path):
    for split in ("train", "test"):
        draw(tmp_path / split / "a.png")
    assert refused(tmp_path).startswith(f"{tmp_path / 'train'}: no class folders in it")


def test_split_folders_without_train(tmp_path):
    class_folders(tmp_path / "val", 5)
    class_folders(tmp_path / "test", 5)
    assert refused(tmp_path).startswith(f"{tmp_path}: holds test, val but no train folder")


def test_test_images_in_no_class(tmp_path):
    class_folders(tmp_path / "train", 5)
    draw(tmp_path / "test" / "a.png")
    assert refused(tmp_path).startswith(f"{tmp_path / 'test'}: no class folders: it holds 1 images")


def test_two_validation_folders_and_a_folder_that_is_no_split(tmp_path):
    for split in ("train", "val", "valid", "extra"):
        class_folders(tmp_path / split, 5)
    (tmp_path / "annotations").mkdir()
    message = refused(tmp_path)
    assert "for 2 reasons" in message
    assert f"{tmp_path / 'valid'}: is a second folder for validation" in message
    assert f"{tmp_path / 'extra'}: lies beside train/ but is no split" in message


def test_a_folder_given_without_its_prefix(tmp_path):
    with pytest.raises(UnknownNameError, match=f"did you mean 'folder:{tmp_path}'"):
        data.load(str(tmp_path))
