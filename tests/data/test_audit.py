from pathlib import Path

import numpy as np
import PIL.Image
import pytest

from pliant.data.audit import audit
from pliant.errors import DataError, UnknownNameError


def draw(path: Path, seed: int, mode: str = "RGB", size: int = 40) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    pixels = np.random.default_rng(seed).integers(0, 256, (size, size, 3), dtype=np.uint8)
    PIL.Image.fromarray(pixels).convert(mode).save(path)
    return path


def fill(root: Path, counts: dict[str, int], first: int = 0) -> Path:
    for name, count in counts.items():
        for i in range(count):
            draw(root / name / f"{i}.png", first)
            first += 1
    return root


def found(root: Path, kind: str) -> list[tuple[str, str, str]]:
    frame = audit(f"folder:{root}").frame
    chosen = frame[frame["kind"] == kind]
    return list(zip(chosen["severity"], chosen["where"], chosen["detail"], strict=True))


def test_a_sound_folder_has_no_finding(tmp_path):
    result = audit(f"folder:{fill(tmp_path, {'a': 10, 'b': 12})}")
    assert result.ok
    assert result.images == 22
    assert result.frame.empty
    assert list(result.frame.columns) == ["kind", "severity", "where", "detail"]


def test_unreadable_images_are_listed_not_raised(tmp_path):
    fill(tmp_path, {"a": 10, "b": 10})
    (tmp_path / "a" / "3.png").write_bytes(b"nothing")
    (tmp_path / "b" / "x.jpg").write_bytes(b"")
    result = audit(f"folder:{tmp_path}")
    assert not result.ok
    assert [w for _, w, _ in found(tmp_path, "unreadable")] == [
        str(tmp_path / "a" / "3.png"),
        str(tmp_path / "b" / "x.jpg"),
    ]


def test_equal_pixels_in_other_files_are_found(tmp_path):
    for split, first in (("train", 0), ("val", 100), ("test", 200)):
        fill(tmp_path / split, {"a": 10, "b": 10}, first)
    draw(tmp_path / "test" / "a" / "leak.bmp", 3)  # train/a/3.png
    draw(tmp_path / "train" / "b" / "both.png", 4)  # train/a/4.png
    draw(tmp_path / "val" / "a" / "again.png", 101)  # val/a/1.png
    across, labels, plain = (
        found(tmp_path, kind) for kind in ("duplicate-across-splits", "conflicting-labels", "duplicate")
    )
    assert [(s, w) for s, w, _ in across] == [("error", str(tmp_path / "train" / "a" / "3.png"))]
    assert "in test and train at once" in across[0][2]
    assert str(tmp_path / "test" / "a" / "leak.bmp") in across[0][2]
    assert [(s, w) for s, w, _ in labels] == [("error", str(tmp_path / "train" / "a" / "4.png"))]
    assert "labelled a and b" in labels[0][2]
    assert [(s, w) for s, w, _ in plain] == [("warning", str(tmp_path / "val" / "a" / "1.png"))]


def test_unequal_tiny_and_missing_classes(tmp_path):
    fill(tmp_path / "train", {"a": 30, "b": 3, "c": 10})
    fill(tmp_path / "test", {"a": 10, "c": 10}, 100)
    assert found(tmp_path, "imbalance") == [
        ("warning", "train", "'a' has 30 training images, 'b' 3: look at macro accuracy")
    ]
    assert [(w, d[:17]) for _, w, d in found(tmp_path, "tiny-class")] == [("b", "3 training images")]
    assert [(s, w) for s, w, _ in found(tmp_path, "missing-class")] == [("warning", "b")]


def test_modes_small_and_blank_images(tmp_path):
    fill(tmp_path, {"a": 10, "b": 10})
    draw(tmp_path / "a" / "grey.png", 50, "L")
    draw(tmp_path / "a" / "cmyk.jpg", 51, "CMYK")
    draw(tmp_path / "b" / "small.png", 52, size=9)
    PIL.Image.new("RGB", (40, 40), "red").save(tmp_path / "b" / "blank.png")
    assert {(w, d[:17]) for _, w, d in found(tmp_path, "converted")} == {
        ("L", "1 images made RGB"),
        ("CMYK", "1 images made RGB"),
    }
    small = found(tmp_path, "small-images")
    assert small[0][1] == "train"
    assert "1 of 24 images" in small[0][2]
    assert "(9×9)" in small[0][2]
    assert [w for _, w, _ in found(tmp_path, "blank")] == [str(tmp_path / "b" / "blank.png")]


@pytest.mark.parametrize(
    ("kind", "spoil"),
    [
        ("empty-class", lambda root: (root / "empty").mkdir()),
        ("uneven-depth", lambda root: draw(root / "a" / "deep" / "1.png", 99)),
        ("uneven-depth", lambda root: draw(root / "stray.png", 99)),
        ("hidden-folder", lambda root: (root / ".cache").mkdir()),
        ("other-files", lambda root: (root / "a" / "list.txt").write_text("x")),
    ],
)
def test_what_folders_are_refused_for_is_listed(tmp_path, kind, spoil):
    fill(tmp_path, {"a": 10, "b": 10})
    spoil(tmp_path)
    assert len(found(tmp_path, kind)) == 1
    assert audit(f"folder:{tmp_path}").images == 20


def test_folders_without_classes_or_with_one(tmp_path):
    assert len(found(tmp_path, "no-class-folders")) == 1
    fill(tmp_path, {"a": 10})
    assert len(found(tmp_path, "single-class")) == 1


def test_a_class_that_train_lacks(tmp_path):
    fill(tmp_path / "train", {"cat": 10, "dog": 10})
    fill(tmp_path / "test", {"cats": 10, "dog": 10}, 100)
    assert "did you mean 'cat'?" in found(tmp_path, "unknown-class")[0][2]


def test_errors_come_first(tmp_path):
    fill(tmp_path, {"a": 3, "b": 3})
    (tmp_path / "c").mkdir()
    (tmp_path / ".cache").mkdir()
    severities = list(audit(f"folder:{tmp_path}").frame["severity"])
    assert severities == ["error", "warning", "warning", "note"]


def test_named_data_and_progress():
    seen = []
    result = audit("fashion-sample", progress=lambda done, total: seen.append((done, total)))
    assert seen[-1] == (128, 128)
    assert result.ok
    assert list(result.frame["kind"]) == ["small-images"]


def test_names_that_lead_nowhere(tmp_path):
    with pytest.raises(UnknownNameError, match="Did you mean 'digits'"):
        audit("digit")
    with pytest.raises(DataError, match="does not exist"):
        audit(f"folder:{tmp_path / 'absent'}")
