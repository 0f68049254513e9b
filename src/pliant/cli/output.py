"""What a command will write is looked at before its work: no hour is spent on what cannot be kept."""

import os
import tempfile
from collections.abc import Iterable
from pathlib import Path

from pliant.errors import ConfigError, StoreError
from pliant.runs.atomic import storing


def check_file(path: Path | None, *endings: str) -> None:
    """Refuse the name of a file that could not be written later.

    Args:
        path: the file; None is nothing to check.
        endings: of names, each a format that the command can write.

    Raises:
        ConfigError: another ending, or the name of a folder.
        StoreError: nothing can be written there.
    """
    if path is None:
        return
    if path.suffix not in endings:
        known = " or ".join([", ".join(endings[:-1]), endings[-1]] if len(endings) > 1 else endings)
        raise ConfigError(f"got --out {path}; expected a name that ends in {known}")
    if path.parts[0].startswith("~"):
        raise ConfigError(f"got --out {path}; the shell has not expanded {path.parts[0]}: write the folder out")
    if os.path.isdir(path):
        raise ConfigError(f"got --out {path}, which is a folder; expected the name of a file")
    check_folder(path.parent, files=(f".{path.stem}.provenance.json.{os.getpid()}-00000000.tmp",))


def check_folder(path: Path, *, files: Iterable[str] = ()) -> None:
    """Refuse a folder in which nothing could be written, or that could not be made; nothing is left behind.

    Args:
        path: the folder, which need not be there.
        files: names that must be possible in it.

    Raises:
        StoreError: nothing can be written there.
    """
    there = next(p for p in (path, *path.parents) if os.path.lexists(p))
    if not os.path.isdir(there):
        raise StoreError(f"cannot write into {path}: {there} is no folder. Choose another one")
    with storing("write into", path):
        with tempfile.TemporaryDirectory(dir=there) as trial:
            folder = Path(trial, *path.relative_to(there).parts)
            folder.mkdir(parents=True, exist_ok=True)
            for name in files:
                (folder / name).touch()
