"""Take pictures and numbers of finished runs into docs/tour.md.

    python scripts/tour.py digits-sweep dinov2-run landscape

The folders are those that the commands in docs/tour.md make. Pictures go to docs/images, no larger than they
have to be; tables go between the markers of docs/tour.md. Whatever a folder does not hold is left as it was.
"""

import io
import re
import sys
from collections.abc import Iterator
from pathlib import Path

from PIL import Image

from pliant.reporting import report

ROOT = Path(__file__).resolve().parents[1]
DOCS = ROOT / "docs"

PICTURES = {
    "sweep": (
        "accuracy",
        "gain",
        "robustness",
        "cost",
        "training",
        "plasticity-by-depth",
        "criterion",
        "bounds",
        "probe-by-depth",
    ),
    "tune": ("race", "plasticity-by-role"),
    "landscape": ("landscape-loss", "landscape-rate", "landscape-loss-3d", "landscape-rate-3d"),
}
TABLES = {"sweep": ("results", "claims", "criteria-spearman"), "tune": ("result",)}


def small(picture: Image.Image, path: Path, *, colours: int = 0, widest: int = 1200) -> None:
    """Save a picture as PNG with no more pixels than a page shows; with few colours where none of them means a role."""
    shrunk = picture.convert("RGB")
    if shrunk.width > widest:
        shrunk = shrunk.resize((widest, round(shrunk.height * widest / shrunk.width)), Image.Resampling.LANCZOS)
    written = io.BytesIO()
    (shrunk.quantize(colours) if colours else shrunk).save(written, "PNG", optimize=True)
    path.write_bytes(written.getvalue())
    print(f"{path.relative_to(ROOT)}: {len(written.getvalue()):,} bytes")


def pictures(folder: Path, kind: str) -> Iterator[Path]:
    """Find the charts of a kind among a folder's files."""
    for name in PICTURES[kind]:
        for place in (folder / "report" / f"{name}.png", folder / f"{name}.png"):
            if place.exists():
                yield place
                break


def screenshot(page: Path, path: Path) -> None:
    """Take a picture of the top of a page, if Chromium is here."""
    sys.path.insert(0, str(ROOT / "tests"))
    from reporting.browser import Browser, chromium

    if chromium() is None:
        print("no Chromium, no picture of the page")
        return
    with Browser() as browser:
        browser.open(page, width=1200, height=1000)
        browser.screenshot(path)
    with Image.open(path) as picture:
        top = picture.crop((0, 0, picture.width, min(picture.height, 1250))).copy()
    small(top, path)


def insert(text: str, name: str, table: str) -> str:
    """Put a table between its markers."""
    begin, end = f"<!-- {name}: begin -->", f"<!-- {name}: end -->"
    if begin not in text:
        raise SystemExit(f"docs/tour.md has no marker {begin}")
    return re.sub(f"{re.escape(begin)}.*?{re.escape(end)}", lambda _: f"{begin}\n{table}{end}", text, flags=re.DOTALL)


def main(sweep: Path, tune: Path, landscape: Path) -> None:
    """Take everything over."""
    tour = DOCS / "tour.md"
    text = tour.read_text(encoding="utf-8")
    (DOCS / "images").mkdir(exist_ok=True)
    for kind, folder in (("sweep", sweep), ("tune", tune)):
        if folder.is_dir():
            page = report(folder, charts=["png"], tables=True)
            for name in TABLES[kind]:
                if (found := folder / "report" / f"{name}.md").exists():
                    text = insert(text, name, found.read_text(encoding="utf-8"))
            screenshot(page, DOCS / "images" / f"report-{kind}.png")
    for kind, folder in (("sweep", sweep), ("tune", tune), ("landscape", landscape)):
        for source in pictures(folder, kind):
            with Image.open(source) as picture:
                small(picture, DOCS / "images" / source.name, colours=96 if source.stem.endswith("3d") else 0)
    tour.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    if len(sys.argv) != 4:
        raise SystemExit(__doc__)
    main(*map(Path, sys.argv[1:]))
