"""What a command will write is looked at before its work: no hour is spent on what cannot be kept."""

import tempfile
from pathlib import Path

from pliant.errors import ConfigError, StoreError
from pliant.runs.atomic import storing


def check_file(path: Path | None, *endings: str) -> None:
    """Refuse the name of a file that could not be written later; its folder is made.

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
    if path.is_dir():
        raise ConfigError(f"got --out {path}, which is a folder; expected the name of a file")
    check_folder(path.parent)


def check_folder(path: Path) -> None:
    """Make a folder, and refuse one in which nothing can be written.

    Raises:
        StoreError: nothing can be written there.
    """
    blocked = next((p for p in (path, *path.parents) if p.exists() and not p.is_dir()), None)
    if blocked is not None:
        raise StoreError(f"cannot write into {path}: {blocked} is a file. Choose another folder")
    with storing("write into", path):
        path.mkdir(parents=True, exist_ok=True)
        tempfile.TemporaryFile(dir=path).close()
