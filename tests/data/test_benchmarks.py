"""Miniature copies of the paper's data sets, written in the formats that they are published in."""

import os
import pickle
import tarfile
import zipfile
from pathlib import Path

import datasets
import numpy as np
import PIL.Image
import pytest
from scipy.io import savemat

import pliant.data as data
from pliant.data import benchmarks
from pliant.data.benchmarks import BENCHMARKS, CORRUPTIONS, DOMAINS
from pliant.data.cifar import CIFAR10_CLASSES
from pliant.errors import DataError

PER_BATCH = 20
PER_SEVERITY = 100


def as_python_two(values: dict) -> bytes:
    """Pickle as the original files are: protocol 2, numpy under its old module name."""
    return pickle.dumps(values, protocol=2).replace(b"numpy._core.multiarray", b"numpy.core.multiarray")


def numbered_batch(first: int, count: int) -> np.ndarray:
    """Images whose red channel is their number, green 50 and blue their row: channel by channel."""
    red = np.repeat(np.arange(first, first + count, dtype=np.uint8)[:, None], 1024, axis=1)
    green = np.full((count, 1024), 50, np.uint8)
    blue = np.repeat(np.repeat(np.arange(32, dtype=np.uint8), 32)[None], count, axis=0)
    return np.concatenate([red, green, blue], axis=1)


def write_cifar10(root: Path) -> None:
    folder = root / "cifar-10-batches-py"
    folder.mkdir()
    for i, name in enumerate([*(f"data_batch_{i}" for i in range(1, 6)), "test_batch"]):
        labels = [(i * PER_BATCH + j) % 10 for j in range(PER_BATCH)]
        batch = {"data": numbered_batch(i * PER_BATCH, PER_BATCH), "labels": labels, "batch_label": "x"}
        (folder / name).write_bytes(as_python_two(batch))
    (folder / "batches.meta").write_bytes(as_python_two({"label_names": list(CIFAR10_CLASSES)}))


def write_cifar100(root: Path) -> None:
    folder = root / "cifar-100-python"
    folder.mkdir()
    for name, first, count in (("train", 0, 100), ("test", 100, 50)):
        labels = {b"fine_labels": [j % 50 for j in range(count)], b"coarse_labels": [0] * count}
        (folder / name).write_bytes(as_python_two({b"data": numbered_batch(first, count), **labels}))
    (folder / "meta").write_bytes(as_python_two({"fine_label_names": [f"thing {i}" for i in range(50)]}))


def write_cifar10_c(root: Path) -> None:
    folder = root / "CIFAR-10-C"
    folder.mkdir()
    labels = np.tile(np.arange(PER_SEVERITY) % 10, 5).astype(np.uint8)
    np.save(folder / "labels.npy", labels)
    for c, corruption in enumerate(CORRUPTIONS):
        pixels = np.zeros((5 * PER_SEVERITY, 32, 32, 3), np.uint8)
        pixels[..., 0] = np.tile(np.arange(PER_SEVERITY), 5)[:, None, None]
        pixels[..., 1] = np.repeat(np.arange(1, 6), PER_SEVERITY)[:, None, None]
        pixels[..., 2] = c
        np.save(folder / f"{corruption}.npy", pixels)


def write_domainnet(root: Path) -> None:
    number = 0
    for domain in DOMAINS:
        for name in ("zebra", "The_Eiffel_Tower", "ant"):
            folder = root / "domainnet" / domain / name
            folder.mkdir(parents=True)
            for i in range(10):
                PIL.Image.new("RGB", (5, 4), (number, 0, 0)).save(folder / f"{domain}_{i:03d}.png")
                number += 1
            (folder / "list.txt").write_text("no image")


def write_flowers(root: Path) -> None:
    folder = root / "flowers-102"
    (folder / "jpg").mkdir(parents=True)
    for i in range(1, 13):
        PIL.Image.new("RGB", (8, 8), (i * 20, 0, 0)).save(folder / "jpg" / f"image_{i:05d}.jpg", quality=100)
    savemat(folder / "imagelabels.mat", {"labels": np.array([[1, 2, 3] * 4], np.uint8)})
    savemat(folder / "setid.mat", {"trnid": [[4, 2, 3]], "valid": [[1, 5, 6]], "tstid": [[12, 11, 10, 9, 8, 7]]})


def write_pet(root: Path) -> None:
    folder = root / "oxford-iiit-pet"
    (folder / "images").mkdir(parents=True)
    (folder / "annotations").mkdir()
    lines: dict[str, list[str]] = {"trainval": [], "test": []}
    for label, breed in enumerate(["Abyssinian", "american_pit_bull_terrier"], start=1):
        for i in range(10):
            name = f"{breed}_{i}"
            PIL.Image.new("RGB", (8, 8), (label * 90 + i * 8, 0, 0)).save(
                folder / "images" / f"{name}.jpg", quality=100
            )
            lines["trainval" if i < 6 else "test"].append(f"{name} {label} {label} 1")
    for split, rows in lines.items():
        (folder / "annotations" / f"{split}.txt").write_text("\n".join(rows) + "\n")


@pytest.fixture(scope="module")
def root(tmp_path_factory) -> Path:
    root = tmp_path_factory.mktemp("data")
    for write in (write_cifar10, write_cifar100, write_cifar10_c, write_domainnet, write_flowers, write_pet):
        write(root)
    return root


@pytest.fixture(autouse=True)
def folder_of_the_environment(root, monkeypatch):
    monkeypatch.setenv("PLIANT_DATA", f"{root / 'nothing here'}{os.pathsep}{root}")


SIZES = {
    "cifar10": (80, 20, 20),
    "cifar100": (80, 20, 50),
    **{f"cifar10-c-{c}": (64, 16, 20) for c in CORRUPTIONS},
    **{f"domainnet-{d}": (19, 5, 6) for d in DOMAINS},
    "flowers102": (3, 3, 6),
    "pet": (10, 2, 8),
}


@pytest.mark.parametrize("name", BENCHMARKS)
def test_every_benchmark_is_found_and_split(name, root):
    loaded = data.load(name)
    assert tuple(len(v) for v in loaded.splits.values()) == SIZES[name]
    assert loaded.name == name
    pictures = [image.tobytes() for images in loaded.splits.values() for image in images]
    assert len(set(pictures)) == len(pictures)
    assert len(data.load(f"{name}:{root}").test) == SIZES[name][2]


@pytest.mark.parametrize("name", BENCHMARKS)
def test_a_missing_benchmark_says_where_to_get_it_and_where_to_put_it(name, monkeypatch, tmp_path):
    benchmark = BENCHMARKS[name]
    monkeypatch.delenv("PLIANT_DATA")
    for given, looked in ((name, "PLIANT_DATA names no folder"), (f"{name}:{tmp_path}", f"it is not in {tmp_path}")):
        with pytest.raises(DataError, match=f"^{name}: {looked}") as caught:
            data.load(given)
        for part in (benchmark.obtain, f"Put it as {benchmark.places[0]}", f"{name}:DIR", "PLIANT_DATA"):
            assert part in str(caught.value)


def red(images: data.ImageSet) -> list[int]:
    return [int(image[0, 0, 0]) for image in images]


def test_cifar10_keeps_order_channels_and_labels():
    loaded = data.load("cifar10")
    assert loaded.classes == CIFAR10_CLASSES
    assert red(loaded.test) == list(range(100, 120))
    assert sorted(red(loaded.train) + red(loaded.validation)) == list(range(100))
    for images in loaded.splits.values():
        assert [number % 10 for number in red(images)] == images.labels.tolist()
    assert loaded.test[3][7, 0].tolist() == [103, 50, 7]
    assert loaded.validation.counts.tolist() == [2] * 10
    assert "cifar10: 100 training images here, 50000 in the paper" in loaded.notes


def test_cifar100_has_its_fine_labels():
    loaded = data.load("cifar100")
    assert loaded.classes[3] == "thing 3"
    assert loaded.test.labels.tolist() == list(range(50))


def test_cifar10_c_is_severity_five_in_the_papers_order():
    order = np.random.RandomState(42).permutation(PER_SEVERITY).tolist()
    for c, corruption in enumerate(CORRUPTIONS):
        loaded = data.load(f"cifar10-c-{corruption}")
        assert red(loaded.test) == order[80:]
        assert sorted(red(loaded.train) + red(loaded.validation)) == sorted(order[:80])
        assert {int(image[0, 0, 1]) for image in loaded.test} == {5}
        assert {int(image[0, 0, 2]) for image in loaded.test} == {c}
        assert loaded.test.labels.tolist() == [i % 10 for i in order[80:]]


def test_the_papers_permutation_of_the_real_size():
    train, test = benchmarks.paper_split(10_000)
    assert len(train) == 8_000
    assert [*train, *test] == np.random.RandomState(42).permutation(10_000).tolist()
    assert train[:3].tolist() == [6252, 4684, 1731]


@pytest.mark.parametrize("domain", DOMAINS)
def test_domainnet_is_sorted_by_class_then_name(domain, root):
    loaded = data.load(f"domainnet-{domain}")
    assert loaded.classes == ("The_Eiffel_Tower", "ant", "zebra")
    paths = sorted((root / "domainnet" / domain).rglob("*.png"), key=lambda p: (p.parent.name, p.name))
    order = np.random.RandomState(42).permutation(30)
    assert list(loaded.test.origins) == [str(paths[i]) for i in order[24:]]
    assert sorted([*loaded.train.origins, *loaded.validation.origins]) == sorted(str(paths[i]) for i in order[:24])
    for origin, label in zip(loaded.train.origins, loaded.train.labels, strict=True):
        assert Path(origin).parent.name == loaded.classes[label]


def test_flowers_have_their_own_validation():
    loaded = data.load("flowers102")
    assert loaded.classes[:2] == ("pink primrose", "hard-leaved pocket orchid")
    assert [Path(o).name for o in loaded.train.origins] == [f"image_{i:05d}.jpg" for i in (4, 2, 3)]
    assert loaded.train.labels.tolist() == [0, 1, 2]
    assert [Path(o).name for o in loaded.validation.origins] == [f"image_{i:05d}.jpg" for i in (1, 5, 6)]
    assert loaded.test.labels.tolist() == [2, 1, 0, 2, 1, 0]


def test_pet_has_breeds():
    loaded = data.load("pet")
    assert loaded.classes == ("Abyssinian", "American Pit Bull Terrier")
    assert loaded.test.labels.tolist() == [0] * 4 + [1] * 4


@pytest.mark.parametrize("name", ["cifar10", "cifar10-c-snow", "domainnet-clipart", "flowers102", "pet"])
def test_the_folder_of_the_set_itself_will_do(name, root):
    inner = {"domainnet-clipart": "domainnet/clipart"}.get(name, BENCHMARKS[name].places[0])
    assert len(data.load(f"{name}:{root / inner}").test) == SIZES[name][2]


def packed(root: Path, member: str, archive: Path) -> Path:
    if archive.suffix == ".zip":
        with zipfile.ZipFile(archive, "w") as file:
            for path in sorted((root / member).rglob("*.*")):
                file.write(path, f"{Path(member).name}/{path.relative_to(root / member)}")
    else:
        with tarfile.open(archive, "w:gz" if archive.suffix == ".gz" else "w") as file:
            file.add(root / member, arcname=f"./{member}" if archive.suffix == ".tar" else member)
    return archive


@pytest.mark.parametrize(
    ("name", "member", "archive"),
    [
        ("cifar10", "cifar-10-batches-py", "cifar-10-python.tar.gz"),
        ("cifar100", "cifar-100-python", "cifar-100-python.tar.gz"),
        ("cifar10-c-snow", "CIFAR-10-C", "CIFAR-10-C.tar"),
        ("domainnet-sketch", "domainnet/sketch", "sketch.zip"),
    ],
)
def test_archives_are_read_where_they_are(name, member, archive, root, tmp_path):
    path = packed(root, member, tmp_path / archive)
    expected = data.load(name)
    for given in (tmp_path, path):
        loaded = data.load(f"{name}:{given}")
        for images, others in zip(loaded.splits.values(), expected.splits.values(), strict=True):
            assert images.labels.tolist() == others.labels.tolist()
            assert all((a == b).all() for a, b in zip(images, others, strict=True))
    assert sorted(p.name for p in tmp_path.iterdir()) == [archive]


class Malice:
    def __reduce__(self):
        return os.mkdir, ("malice-was-here",)


def test_a_pickle_that_asks_for_a_call_is_refused(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write_cifar10(tmp_path)
    (tmp_path / "cifar-10-batches-py" / "data_batch_2").write_bytes(pickle.dumps({"data": Malice()}))
    with pytest.raises(DataError, match=r"data_batch_2 is refused: asks for posix.mkdir, which is never run"):
        data.load(f"cifar10:{tmp_path}")
    assert not (tmp_path / "malice-was-here").exists()


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "is refused"),
        (b"\x80\x02garbage", "is refused"),
        (pickle.dumps([1]), "holds list"),
        (pickle.dumps({"data": np.zeros((2, 3), np.uint8)}), "has no images of 3×32×32"),
    ],
)
def test_damaged_batches(tmp_path, content, message):
    write_cifar10(tmp_path)
    (tmp_path / "cifar-10-batches-py" / "test_batch").write_bytes(content)
    with pytest.raises(DataError, match=f"test_batch {message}.*fetch it again"):
        data.load(f"cifar10:{tmp_path}")


def test_objects_in_an_array_file_are_refused(tmp_path):
    write_cifar10_c(tmp_path)
    np.save(tmp_path / "CIFAR-10-C" / "snow.npy", np.array([Malice()], dtype=object), allow_pickle=True)
    with pytest.raises(DataError, match=r"snow.npy cannot be read"):
        data.load(f"cifar10-c-snow:{tmp_path}")


def test_severities_of_unequal_size(tmp_path):
    write_cifar10_c(tmp_path)
    np.save(tmp_path / "CIFAR-10-C" / "snow.npy", np.zeros((7, 32, 32, 3), np.uint8))
    with pytest.raises(DataError, match="7 rows, not 5 severities"):
        data.load(f"cifar10-c-snow:{tmp_path}")


def test_damaged_archives(tmp_path):
    (tmp_path / "cifar-10-python.tar.gz").write_bytes(b"no archive")
    with pytest.raises(DataError, match="cannot be read as an archive"):
        data.load(f"cifar10:{tmp_path}")


@pytest.fixture
def hub(monkeypatch):
    """A hub whose sets have the columns that the paper's repositories have."""

    def fetch(repository: str):
        kind = {"uoft-cs/cifar100": ("img", "fine_label"), "wltjr1007/DomainNet": ("image", "label")}
        image, label = kind.get(repository, ("image", "label"))
        features = {image: datasets.Image(), label: datasets.ClassLabel(names=["b", "a"])}
        count = 40
        rows = {image: [PIL.Image.new("RGB", (2, 2), (i, 0, 0)) for i in range(count)], label: [0, 1] * (count // 2)}
        if repository == "uoft-cs/cifar100":
            features["coarse_label"] = datasets.ClassLabel(names=["all"])
            rows["coarse_label"] = [0] * count
        if repository == "wltjr1007/DomainNet":
            features["domain"] = datasets.ClassLabel(names=["clipart", "sketch"])
            features["image_path"] = datasets.Value("string")
            rows["domain"] = [0] * 20 + [1] * 20
            rows["image_path"] = [f"d/{'ba'[i % 2]}/{count - i:03d}.png" for i in range(count)]
        part = datasets.Dataset.from_dict(rows, features=datasets.Features(features))
        chosen = {"train": (0, 1), "test": (4, 5)}
        return datasets.DatasetDict(
            {split: part.select([i for i in range(count) if i % 8 in rest]) for split, rest in chosen.items()}
        )

    monkeypatch.setattr(benchmarks, "fetch", fetch)


def test_the_hub_is_asked_only_when_named(hub, monkeypatch):
    assert len(data.load("cifar100:hub").test) == 10
    with pytest.raises(DataError, match="cifar100: it is not in /absent"):
        data.load("cifar100:/absent")
    monkeypatch.setenv("PLIANT_DATA", f"/absent{os.pathsep}hub")
    assert len(data.load("cifar100").test) == 10
    with pytest.raises(DataError, match=r"zenodo.org"):
        data.load("cifar10-c-snow:hub")


def test_domainnet_of_the_hub_is_joined_sorted_and_split_as_the_files_are(hub):
    loaded = data.load("domainnet-sketch:hub")
    numbers = [i for i in range(40) if i % 4 < 2 and i >= 20]
    ordered = sorted(numbers, key=lambda i: ("ba"[i % 2], f"{40 - i:03d}"))
    order = np.random.RandomState(42).permutation(len(ordered))
    assert red(loaded.test) == [ordered[i] for i in order[8:]]
    assert sorted(red(loaded.train) + red(loaded.validation)) == sorted(ordered[i] for i in order[:8])
