"""Folders of images: one folder per class, or train/, val/, test/ with one folder per class each."""

import os
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from pliant.data.decode import EncodedImages
from pliant.data.findings import Finding, Severity, notes, refuse
from pliant.data.listing import Listing, Request
from pliant.data.sets import ImageSet
from pliant.errors import DataError
from pliant.terms import nearest

SPLIT_FOLDERS = {
    "train": "train",
    "val": "validation",
    "valid": "validation",
    "validation": "validation",
    "test": "test",
}
"""Names of split folders, in any case, and the splits they hold."""

IMAGE_SUFFIXES = frozenset(
    ".avif .bmp .dib .gif .ico .j2k .jfif .jp2 .jpe .jpeg .jpg .pbm .pcx .pgm .png .pnm .ppm .tga .tif .tiff "
    ".webp".split()
)
"""Endings of files that count as images, in any case."""

Paths = dict[str, list[Path]]
"""Image files by class name."""


@dataclass
class FolderScan:
    """What a folder holds: image files by split and class, and what was found on the way."""

    root: Path
    splits: dict[str, Paths] = field(default_factory=dict)
    findings: list[Finding] = field(default_factory=list)

    def found(self, kind: str, where: Path, detail: str, severity: Severity = "error") -> None:
        """Add a finding."""
        self.findings.append(Finding(kind, severity, str(where), detail))


def folder(argument: str | None, request: Request) -> Listing:
    """List a folder of images, or refuse it with everything that is wrong with it."""
    root = existing_folder(argument)
    scan = scan_folder(root)
    refuse(str(root), scan.findings)
    classes = tuple(scan.splits["train"])
    sets = {name: file_set(paths, classes) for name, paths in scan.splits.items()}
    return Listing(f"folder:{argument}", sets["train"], sets.get("validation"), sets.get("test"), notes(scan.findings))


def existing_folder(argument: str | None) -> Path:
    """Return the folder that a name gives after its colon.

    Raises:
        DataError: there is none.
    """
    if argument is None:
        raise DataError("got folder: without a path; expected folder:PATH, a folder with one folder per class")
    root = Path(argument).expanduser()
    if not root.is_dir():
        what = "is a file" if root.exists() else "does not exist"
        raise DataError(f"{root} {what}; expected a folder with one folder per class")
    return root


def file_set(paths: Paths, classes: tuple[str, ...]) -> ImageSet:
    """Make a split of undecoded files, by class, then by name."""
    files = [path for members in paths.values() for path in members]
    labels = [classes.index(name) for name, members in paths.items() for _ in members]
    return ImageSet(EncodedImages(files), np.array(labels, dtype=np.int64), classes, [str(f) for f in files])


def scan_folder(root: Path) -> FolderScan:
    """List the images of a folder by split and class, with findings instead of exceptions."""
    scan = FolderScan(root)
    folders, images = _visible(scan, root)
    held = {f: _visible(FolderScan(root), f) for f in folders if f.name.lower() in SPLIT_FOLDERS}
    if any(f.name.lower() == "train" and inner for f, (inner, _) in held.items()):
        _scan_splits(scan, folders)
        if images:
            _stray(scan, root, images)
    elif held and len(held) == len(folders):
        _no_train(scan, list(held))
    else:
        scan.splits["train"] = _scan_classes(scan, root, folders, images, of_train=True)
    return scan


def _scan_splits(scan: FolderScan, folders: list[Path]) -> None:
    """Scan split folders, and hold their classes against those of train."""
    for split_folder in sorted(folders, key=lambda f: f.name.lower() != "train"):
        split = SPLIT_FOLDERS.get(split_folder.name.lower())
        inner, images = _visible(scan, split_folder)
        if split is None:
            severity: Severity = "error" if _first_image(split_folder) else "note"
            detail = "lies beside train/ but is no split; expected train, val (validation, valid) or test: move it away"
            scan.found("no-split", split_folder, detail, severity)
        elif split in scan.splits:
            scan.found("two-splits", split_folder, f"is a second folder for {split}; expected one: join or remove it")
        else:
            scan.splits[split] = _scan_classes(scan, split_folder, inner, images, of_train=split == "train")
    known = scan.splits["train"]
    for split, classes in scan.splits.items():
        for name in [c for c in classes if c not in known]:
            near = nearest(name, known)
            hint = f"; did you mean {' or '.join(map(repr, near))}?" if near else ""
            detail = f"class {name!r} of {split} has no folder in train{hint}"
            scan.found("unknown-class", classes[name][0].parent if classes[name] else scan.root / split, detail)


def _scan_classes(scan: FolderScan, root: Path, folders: list[Path], images: list[Path], *, of_train: bool) -> Paths:
    """Scan class folders; the images lie directly in them."""
    if not folders:
        what = f"it holds {len(images)} images, in no class" if images else "it is empty"
        scan.found("no-class-folders", root, f"no class folders: {what}; expected one folder of images per class")
        return {}
    if images:
        _stray(scan, root, images)
    paths: Paths = {}
    for class_folder in folders:
        inner, files = _visible(scan, class_folder)
        deep = next((d for d in inner if _first_image(d)), None)
        if deep is not None:
            hint = f"; did you mean folder:{class_folder}?" if len(folders) == 1 else ""
            detail = "uneven depth: images lie in a folder within a class folder; expected them directly in it" + hint
            scan.found("uneven-depth", deep, detail)
        elif not files:
            detail = "empty class folder: no image in it; add images or remove it"
            scan.found("empty-class", class_folder, detail, "error" if of_train else "note")
        paths[class_folder.name] = files
    if of_train and len(folders) == 1 and not any(f.kind == "uneven-depth" for f in scan.findings):
        scan.found("single-class", folders[0], "the only class folder; classifying needs two or more classes")
    return paths


def _no_train(scan: FolderScan, held: list[Path]) -> None:
    """Report split folders without a train folder that holds classes."""
    for split_folder in held:
        if split_folder.name.lower() == "train":
            scan.found("no-class-folders", split_folder, "no class folders in it; expected one folder per class")
            return
    names = ", ".join(sorted(f.name for f in held))
    scan.found("no-train", scan.root, f"holds {names} but no train folder; expected train with one folder per class")
    scan.splits["train"] = {}


def _stray(scan: FolderScan, root: Path, images: list[Path]) -> None:
    """Report images beside class or split folders."""
    names = ", ".join(i.name for i in images[:3]) + (" ..." if len(images) > 3 else "")
    detail = f"uneven depth: {len(images)} images beside the folders ({names}) belong to no class; move or remove them"
    scan.found("uneven-depth", root, detail)


def _visible(scan: FolderScan, folder: Path) -> tuple[list[Path], list[Path]]:
    """Return the folders and image files of a folder, sorted; note what is passed over."""
    folders, images, hidden, others = [], [], [], Counter[str]()
    for entry in _entries(scan, folder):
        suffix = Path(entry.name).suffix.lower()
        if entry.name.startswith(".") or entry.name == "__MACOSX":
            if entry.is_dir():
                hidden.append(entry.name)
        elif entry.is_dir():
            folders.append(Path(entry.path))
        elif suffix in IMAGE_SUFFIXES:
            images.append(Path(entry.path))
        else:
            others[suffix or "no ending"] += 1
    if hidden:
        scan.found("hidden-folder", folder, f"hidden folders passed over: {', '.join(hidden)}", "note")
    if others:
        kinds = ", ".join(f"{count} ({kind})" for kind, count in others.most_common(5))
        scan.found("other-files", folder, f"files that are no images passed over: {kinds}", "note")
    return folders, images


def _entries(scan: FolderScan, folder: Path) -> list[os.DirEntry[str]]:
    """Return what a folder holds, sorted by name; a folder that cannot be read is a finding."""
    try:
        with os.scandir(folder) as entries:
            return sorted(entries, key=lambda entry: entry.name)
    except OSError as error:
        scan.found("unreadable", folder, f"the folder cannot be read: {error.strerror or error}")
        return []


def _first_image(folder: Path) -> str | None:
    """Return some image at any depth of a folder, or None."""
    for inner, folders, files in os.walk(folder):
        folders[:] = [f for f in folders if not f.startswith(".")]
        for name in files:
            if not name.startswith(".") and Path(name).suffix.lower() in IMAGE_SUFFIXES:
                return os.path.join(inner, name)
    return None
