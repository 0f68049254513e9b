"""What is wrong with a data set, as a table: nothing is raised for what an image or a class folder is like."""

import hashlib
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from jaxtyping import UInt8

from pliant.data.decode import CONVERTED, Decoded, EncodedImages, Failure, Progress, attempts
from pliant.data.findings import SEVERITIES, Finding
from pliant.data.folders import existing_folder, file_set, scan_folder
from pliant.data.listing import Request
from pliant.data.sets import ImageSet
from pliant.data.sources import list_images

TINY_CLASS = 10
"""Training images below which a class is called tiny."""

IMBALANCE = 10
"""Largest over smallest class of train, from which on accuracy alone misleads."""

SMALL_SIDE = 32
"""Pixels of the shorter side below which an image is called small."""


@dataclass(frozen=True)
class Audit:
    """The findings about a data set.

    Attributes:
        name: of the data set.
        images: how many images it lists.
        frame: one row per finding, errors first; columns kind, severity, where (path, class or split), detail.
    """

    name: str
    images: int
    frame: pd.DataFrame

    @property
    def ok(self) -> bool:
        """Whether nothing stands against training on it."""
        return not (self.frame["severity"] == "error").any()


@dataclass
class _Seen:
    """What was noticed while every image was looked at once."""

    findings: list[Finding]
    copies: dict[bytes, list[tuple[str, str, str]]] = field(default_factory=lambda: defaultdict(list))
    conversions: Counter[str] = field(default_factory=Counter)
    examples: dict[str, str] = field(default_factory=dict)
    small: dict[str, list[tuple[int, int, str]]] = field(default_factory=lambda: defaultdict(list))


def audit(data: Any, *, progress: Progress | None = None) -> Audit:
    """Look at every image of a data set once and list what is wrong, odd or good to know.

    Kinds of findings: unreadable, empty-class, no-class-folders, single-class, uneven-depth, unknown-class, no-split,
    two-splits, no-train; duplicate-across-splits, conflicting-labels, duplicate (equal pixels); tiny-class, imbalance,
    too-few, missing-class, blank, small-images; converted, hidden-folder, other-files.

    Args:
        data: a name, such as folder:PATH, or an object, as `load` takes it.
        progress: called with images looked at and their total.

    Raises:
        UnknownNameError: a name that nothing is known by.
        DataError: there is nothing to look at: no such folder, missing files of a named data set.
    """
    name, findings, sets = _sets(data)
    total = sum(len(images) for images in sets.values())
    seen = _Seen(findings)
    done = 0
    for split, images in sets.items():
        for position, outcome in enumerate(_outcomes(images)):
            _look(seen, split, images.classes[images.labels[position]], images.origins[position], outcome)
            done += 1
            if progress is not None:
                progress(done, total)
    _report_copies(seen)
    _report_sizes(seen, {split: len(images) for split, images in sets.items()})
    _report_conversions(seen)
    _report_classes(seen, sets)
    ordered = sorted(seen.findings, key=lambda f: (SEVERITIES.index(f.severity), f.kind, f.where))
    rows = [(f.kind, f.severity, f.where, f.detail) for f in ordered]
    return Audit(name, total, pd.DataFrame(rows, columns=["kind", "severity", "where", "detail"]).astype(str))


def _sets(data: Any) -> tuple[str, list[Finding], dict[str, ImageSet]]:
    """List the images split by split, with what was found on the way."""
    if isinstance(data, str | Path) and str(data).startswith("folder:"):
        scan = scan_folder(existing_folder(str(data).partition(":")[2] or None))
        classes = tuple(dict.fromkeys(name for paths in scan.splits.values() for name in paths))
        return str(data), list(scan.findings), {s: file_set(paths, classes) for s, paths in scan.splits.items()}
    listing = list_images(data, Request())
    sets = {"train": listing.train, "validation": listing.validation, "test": listing.test}
    findings = [Finding("listing", "note", listing.name, note) for note in listing.notes]
    return listing.name, findings, {split: images for split, images in sets.items() if images is not None}


def _outcomes(images: ImageSet) -> Iterator[Decoded | Failure]:
    """Decode the images of a split in order; arrays come as they are."""
    source, indices = images.stored()
    if isinstance(source, EncodedImages):
        yield from attempts(source, indices)
    else:
        yield from (Decoded(pixels, ()) for pixels in images)


def _look(seen: _Seen, split: str, label: str, origin: str, outcome: Decoded | Failure) -> None:
    """Note what one image is like."""
    if isinstance(outcome, Failure):
        detail = f"cannot be read: {outcome.reason}; repair or remove it, or train with --skip-unreadable"
        seen.findings.append(Finding("unreadable", "error", origin, detail))
        return
    pixels = outcome.pixels
    seen.copies[_digest(pixels)].append((split, label, origin))
    seen.conversions.update(outcome.conversions)
    for kind in outcome.conversions:
        seen.examples.setdefault(kind, origin)
    if min(pixels.shape[:2]) < SMALL_SIDE:
        seen.small[split].append((pixels.shape[0], pixels.shape[1], origin))
    if (pixels == pixels[0, 0]).all():
        seen.findings.append(Finding("blank", "warning", origin, "every pixel has the same colour"))


def _digest(pixels: UInt8[np.ndarray, "height width 3"]) -> bytes:
    """Return what is equal for equal pixels, whatever the files look like."""
    return hashlib.blake2b(pixels.tobytes(), digest_size=16, salt=str(pixels.shape[0]).encode()).digest()


def _report_copies(seen: _Seen) -> None:
    """Report equal images: with different labels, in different splits, or twice in one."""
    for copies in seen.copies.values():
        if len(copies) < 2:
            continue
        splits, labels = ({c[i] for c in copies} for i in (0, 1))
        others = ", ".join(origin for _, _, origin in copies[1:4]) + (" ..." if len(copies) > 4 else "")
        where = copies[0][2]
        if len(labels) > 1:
            detail = f"the same pixels as {others}, but labelled {' and '.join(sorted(labels))}: correct or remove them"
            seen.findings.append(Finding("conflicting-labels", "error", where, detail))
        if len(splits) > 1:
            detail = f"in {' and '.join(sorted(splits))} at once, as {others}: remove it from one; it inflates accuracy"
            seen.findings.append(Finding("duplicate-across-splits", "error", where, detail))
        elif len(labels) == 1:
            detail = f"the same pixels as {others}; if a split is made, they may be on both sides of it"
            seen.findings.append(Finding("duplicate", "warning", where, detail))


def _report_sizes(seen: _Seen, counts: dict[str, int]) -> None:
    """Report small images, one line per split."""
    for split, small in seen.small.items():
        height, width, origin = min(small, key=lambda s: min(s[:2]))
        detail = f"{len(small)} of {counts[split]} images have a side under {SMALL_SIDE} pixels, such as {origin}"
        seen.findings.append(Finding("small-images", "note", split, f"{detail} ({width}×{height})"))


def _report_conversions(seen: _Seen) -> None:
    """Report modes other than RGB, one line per kind."""
    for kind, count in seen.conversions.items():
        detail = f"{count} images made RGB: {CONVERTED.get(kind, kind)}, such as {seen.examples[kind]}"
        seen.findings.append(Finding("converted", "note", kind, detail))


def _report_classes(seen: _Seen, sets: dict[str, ImageSet]) -> None:
    """Report tiny, unequal and missing classes."""
    if "train" not in sets or not len(sets["train"]):
        return
    train = sets["train"]
    counts = {c: n for c, n in zip(train.classes, train.counts.tolist(), strict=True) if n}
    for name, count in counts.items():
        if count < TINY_CLASS:
            detail = f"{count} training images; expected {TINY_CLASS} or more to learn from and to split"
            seen.findings.append(Finding("tiny-class", "warning", name, detail))
    held = [name for name in ("validation", "test") if name not in sets]
    if held and (need := (1 + len(held)) * len(counts)) > sum(counts.values()):
        detail = f"{sum(counts.values())} images of {len(counts)} classes are too few to split off {' and '.join(held)}"
        seen.findings.append(Finding("too-few", "error", "train", f"{detail}; {need} or more are needed"))
    large, small = max(counts, key=lambda c: counts[c]), min(counts, key=lambda c: counts[c])
    if counts[large] >= IMBALANCE * counts[small]:
        detail = f"{large!r} has {counts[large]} training images, {small!r} {counts[small]}: look at macro accuracy"
        seen.findings.append(Finding("imbalance", "warning", "train", detail))
    for split, images in sets.items():
        missing = _missing(images, counts)
        for name in missing:
            detail = f"no image of this class in {split}: its accuracy there is unknown"
            seen.findings.append(Finding("missing-class", "warning", name, detail))


def _missing(images: ImageSet, known: dict[str, int]) -> Sequence[str]:
    """Return the classes of train that a split has no image of."""
    return [c for c, n in zip(images.classes, images.counts.tolist(), strict=True) if not n and c in known]
