"""The 11 data sets of the paper, from their own files or from the hub, with the paper's splits.

Files are looked for in the folders of the environment variable PLIANT_DATA (several are separated as in PATH), or in
DIR for `name:DIR`. The hub is asked only for `name:hub`, or if `hub` is among the folders of PLIANT_DATA.
"""

import io
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np

from pliant.data.cifar import cifar10, cifar10_corrupted, cifar100, paper_split
from pliant.data.decode import EncodedImages
from pliant.data.folders import IMAGE_SUFFIXES
from pliant.data.hub import fetch
from pliant.data.listing import Listing, Request, Source
from pliant.data.objects import listing_of
from pliant.data.sets import ImageSet
from pliant.data.trees import Tree, open_tree
from pliant.errors import DataError

CORRUPTIONS = ("contrast", "gaussian_noise", "motion_blur", "snow", "speckle_noise")
DOMAINS = ("clipart", "sketch")

HUB = "hub"
"""Stands for the hub where a folder could stand."""


@dataclass(frozen=True, kw_only=True)
class Benchmark:
    """One of the paper's data sets.

    Attributes:
        name: as in the paper's table.
        classes: their number.
        train: images of its training part, before validation is split off; None where the paper gives only shares.
        test: images of its test part.
        places: folders and archives that it may lie in, below the folder that is searched.
        marker: a file or folder that tells it, below one of `inner`.
        inner: where the marker may lie within a place, with a slash at the end.
        obtain: where its files come from.
        local: from the files and where in them the marker lies to a listing.
        repository: on the hub; None where it has none that is known to hold the same images.
        from_hub: from the hub's data set to a listing.
    """

    name: str
    classes: int
    train: int | None = None
    test: int | None = None
    places: tuple[str, ...]
    marker: str
    inner: tuple[str, ...]
    obtain: str
    local: Callable[[Tree, str], Listing]
    repository: str | None = None
    from_hub: Callable[[Any, str], Listing] = listing_of

    @property
    def about(self) -> str:
        """One line for the list of names."""
        return f"data set of the paper, {self.classes} classes"

    def list_images(self, argument: str | None, request: Request) -> Listing:
        """Find the data set and list it with the paper's splits.

        Raises:
            DataError: it is nowhere; says where to get it and where to put it.
        """
        roots = [argument] if argument else [r for r in os.environ.get("PLIANT_DATA", "").split(os.pathsep) if r]
        for root in roots:
            if root == HUB:
                listing = self._list_from_hub()
            else:
                found = self._find(Path(root).expanduser())
                listing = None if found is None else self.local(*found)
            if listing is not None:
                suffix = f":{argument}" if argument else ""
                return replace(listing, name=self.name + suffix, notes=(*listing.notes, *self._count_notes(listing)))
        raise DataError(self._missing(roots))

    def _find(self, root: Path) -> tuple[Tree, str] | None:
        """Open the first place that holds the marker: below `root`, `root` itself, or where `root` is the marker."""
        around = [root.parent] if root.name == self.marker else []
        for path in (*(root / place for place in self.places), root, *around):
            tree = open_tree(path)
            for inner in self.inner:
                if tree is not None and tree.has(inner + self.marker):
                    return tree, inner
        return None

    def _list_from_hub(self) -> Listing | None:
        return None if self.repository is None else self.from_hub(fetch(self.repository), self.name)

    def _missing(self, roots: list[str]) -> str:
        """Say where the data set was looked for, where to get it and where to put it."""
        looked = f"it is not in {', '.join(roots)}" if roots else "PLIANT_DATA names no folder to look in"
        hub = f", or use {self.name}:hub to download {self.repository}" if self.repository else ""
        return (
            f"{self.name}: {looked}. Get it: {self.obtain}. Put it as {self.places[0]} into a folder and name that "
            f"folder: {self.name}:DIR, or in the environment variable PLIANT_DATA{hub}."
        )

    def _count_notes(self, listing: Listing) -> tuple[str, ...]:
        """Say so if there are more or fewer images than the paper had."""
        test = 0 if listing.test is None else len(listing.test)
        counts = {"training": (len(listing.train), self.train), "test": (test, self.test)}
        return tuple(
            f"{self.name}: {got} {split} images here, {expected} in the paper"
            for split, (got, expected) in counts.items()
            if expected is not None and got != expected
        )


def flowers102(tree: Tree, folder: str) -> Listing:
    """List Oxford 102 Flowers in torchvision's layout, with its own validation set."""
    from scipy.io import loadmat
    from torchvision.datasets import Flowers102

    def matrix(name: str, key: str) -> np.ndarray:
        try:
            values = loadmat(io.BytesIO(tree.read(folder + name)))[key]  # type: ignore[arg-type]
        except Exception as error:  # damaged files raise nearly every type
            raise DataError(f"{tree.origin(folder + name)} cannot be read ({error}); fetch it again") from error
        return np.asarray(values, dtype=np.int64).reshape(-1)

    labels = matrix("imagelabels.mat", "labels") - 1
    classes = tuple(getattr(Flowers102, "classes", ())) or tuple(str(i) for i in range(1, 103))
    sets = []
    for key in ("trnid", "valid", "tstid"):
        numbers = matrix("setid.mat", key)
        names = [f"{folder}jpg/image_{n:05d}.jpg" for n in numbers.tolist()]
        sets.append(_tree_set(tree, names, labels[numbers - 1], classes))
    return Listing("flowers102", sets[0], validation=sets[1], test=sets[2])


def pet(tree: Tree, folder: str) -> Listing:
    """List Oxford-IIIT Pet in torchvision's layout: the breeds, trainval for training."""
    rows = {}
    for split in ("trainval", "test"):
        name = f"{folder}annotations/{split}.txt"
        lines = tree.read(name).decode().splitlines()
        rows[split] = [line.split()[:2] for line in lines if line.strip() and not line.startswith("#")]
    breeds = {int(label): name.rpartition("_")[0] for name, label in rows["trainval"]}
    if sorted(breeds) != list(range(1, len(breeds) + 1)):
        raise DataError(f"{tree.origin(folder + 'annotations/trainval.txt')}: labels are not 1 to {len(breeds)}")
    classes = tuple(" ".join(part.title() for part in breeds[i].split("_")) for i in sorted(breeds))
    sets = []
    for members in rows.values():
        labels = np.array([int(label) - 1 for _, label in members], dtype=np.int64)
        sets.append(_tree_set(tree, [f"{folder}images/{name}.jpg" for name, _ in members], labels, classes))
    return Listing("pet", sets[0], test=sets[1])


def domainnet(tree: Tree, folder: str, domain: str) -> Listing:
    """List one domain of DomainNet: 80 % and 20 % of its images, sorted by class then name, in the paper's order."""
    base = f"{folder}{domain}"
    classes = tuple(c for c in tree.inside(base) if not c.startswith("."))
    names: list[str] = []
    labels: list[int] = []
    for label, name in enumerate(classes):
        files = [f for f in tree.inside(f"{base}/{name}") if PurePosixPath(f).suffix.lower() in IMAGE_SUFFIXES]
        names += [f"{base}/{name}/{f}" for f in files if not f.startswith(".")]
        labels += [label] * (len(names) - len(labels))
    everything = _tree_set(tree, names, np.array(labels, dtype=np.int64), classes)
    train, test = paper_split(len(everything))
    return Listing(f"domainnet-{domain}", everything.subset(train), test=everything.subset(test))


def _tree_set(tree: Tree, names: list[str], labels: np.ndarray, classes: tuple[str, ...]) -> ImageSet:
    """Make a split of undecoded files of a folder or archive."""
    return ImageSet(EncodedImages(names, tree.read), labels, classes, [tree.origin(name) for name in names])


def domainnet_from_hub(data: Any, name: str, *, domain: str) -> Listing:
    """List one domain of the hub's DomainNet: its own splits joined, sorted by class then path, then the paper's split.

    Raises:
        DataError: the columns domain and image_path, which this needs, are not there.
    """
    import datasets

    joined = datasets.concatenate_datasets(list(data.values())) if isinstance(data, Mapping) else data
    lacking = {"domain", "image_path"} - set(joined.features)
    if lacking:
        raise DataError(
            f"{name}: the hub's copy has no column {', '.join(sorted(lacking))}; use a local folder instead"
        )
    kind = joined.features["domain"]
    wanted = kind.str2int(domain) if isinstance(kind, datasets.ClassLabel) else domain
    domains = np.array(joined.select_columns(["domain"])[:]["domain"])
    chosen = joined.select(np.flatnonzero(domains == wanted)).remove_columns("domain")
    listing = listing_of(chosen, name)
    paths = [PurePosixPath(p).name for p in chosen.select_columns(["image_path"])[:]["image_path"]]
    by_class = [listing.train.classes[label] for label in listing.train.labels]
    order = sorted(range(len(paths)), key=lambda i: (by_class[i], paths[i]))
    train, test = paper_split(len(order))
    positions = np.array(order, dtype=np.int64)
    return Listing(name, listing.train.subset(positions[train]), test=listing.train.subset(positions[test]))


_CIFAR = "from https://www.cs.toronto.edu/~kriz/cifar.html, unpacked or not"

_ALL = (
    Benchmark(
        name="cifar10",
        train=50_000,
        test=10_000,
        classes=10,
        places=("cifar-10-batches-py", "cifar-10-python.tar.gz"),
        marker="data_batch_1",
        inner=("", "cifar-10-batches-py/"),
        obtain=f"cifar-10-python.tar.gz {_CIFAR}",
        local=cifar10,
        repository="uoft-cs/cifar10",
    ),
    Benchmark(
        name="cifar100",
        train=50_000,
        test=10_000,
        classes=100,
        places=("cifar-100-python", "cifar-100-python.tar.gz"),
        marker="meta",
        inner=("", "cifar-100-python/"),
        obtain=f"cifar-100-python.tar.gz {_CIFAR}",
        local=cifar100,
        repository="uoft-cs/cifar100",
    ),
    *(
        Benchmark(
            name=f"cifar10-c-{corruption}",
            train=8_000,
            test=2_000,
            classes=10,
            places=("CIFAR-10-C", "CIFAR-10-C.tar"),
            marker=f"{corruption}.npy",
            inner=("", "CIFAR-10-C/"),
            obtain="CIFAR-10-C.tar from https://zenodo.org/records/2535967, unpacked or not",
            local=partial(cifar10_corrupted, corruption=corruption),
        )
        for corruption in CORRUPTIONS
    ),
    *(
        Benchmark(
            name=f"domainnet-{domain}",
            classes=345,
            places=("domainnet", f"domainnet/{domain}.zip", f"{domain}.zip"),
            marker=domain,
            inner=("", "domainnet/"),
            obtain=f"{domain}.zip from https://ai.bu.edu/M3SDA/, unpacked (to domainnet/{domain}) or not",
            local=partial(domainnet, domain=domain),
            repository="wltjr1007/DomainNet",
            from_hub=partial(domainnet_from_hub, domain=domain),
        )
        for domain in DOMAINS
    ),
    Benchmark(
        name="flowers102",
        train=1_020,
        test=6_149,
        classes=102,
        places=("flowers-102",),
        marker="setid.mat",
        inner=("",),
        obtain="torchvision.datasets.Flowers102(DIR, download=True), or 102flowers.tgz (unpacked: a folder jpg), "
        "imagelabels.mat and setid.mat from https://www.robots.ox.ac.uk/~vgg/data/flowers/102/",
        local=flowers102,
        repository="dpdl-benchmark/oxford_flowers102",
    ),
    Benchmark(
        name="pet",
        train=3_680,
        test=3_669,
        classes=37,
        places=("oxford-iiit-pet",),
        marker="annotations/trainval.txt",
        inner=("",),
        obtain="torchvision.datasets.OxfordIIITPet(DIR, download=True), or images.tar.gz and annotations.tar.gz, "
        "unpacked, from https://www.robots.ox.ac.uk/~vgg/data/pets/",
        local=pet,
        repository="timm/oxford-iiit-pet",
    ),
)

BENCHMARKS: dict[str, Benchmark] = {benchmark.name: benchmark for benchmark in _ALL}
"""The paper's data sets by name, in the order of its table."""

BENCHMARK_SOURCES: dict[str, Source] = {
    name: Source(f"{name}[:DIR]", benchmark.about, benchmark.list_images) for name, benchmark in BENCHMARKS.items()
}
"""The same as kinds of data sets."""
