"""Folders and archives read alike: names with forward slashes, and the bytes behind them."""

import tarfile
import threading
import zipfile
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path
from typing import Protocol, runtime_checkable

from pliant.errors import DataError

ARCHIVES = (".zip", ".tar", ".tar.gz", ".tgz")


@runtime_checkable
class Tree(Protocol):
    """A folder or an archive."""

    root: Path

    def has(self, name: str) -> bool:
        """Whether there is a file or folder of this name."""

    def inside(self, folder: str) -> list[str]:
        """Names of what lies directly in a folder, sorted, without the folder's own."""

    def read(self, name: str) -> bytes:
        """Return a file's bytes; threads may read at once."""

    def origin(self, name: str) -> str:
        """Where a file lies, for messages."""


class FolderTree:
    """A folder on disk."""

    def __init__(self, root: Path) -> None:
        """Look into `root`."""
        self.root = root

    def has(self, name: str) -> bool:
        """Whether there is a file or folder of this name."""
        return (self.root / name).exists()

    def inside(self, folder: str) -> list[str]:
        """Names of what lies directly in a folder, sorted."""
        try:
            return sorted(path.name for path in (self.root / folder).iterdir())
        except OSError as error:
            raise DataError(f"{self.origin(folder)} cannot be read ({error.strerror})") from error

    def read(self, name: str) -> bytes:
        """Return a file's bytes."""
        try:
            return (self.root / name).read_bytes()
        except OSError as error:
            raise DataError(f"{self.origin(name)} cannot be read ({error.strerror})") from error

    def origin(self, name: str) -> str:
        """Return the path."""
        return str(self.root / name)


class ArchiveTree:
    """A zip or tar file, read where it is: nothing is unpacked, so no name in it can lead elsewhere."""

    def __init__(self, root: Path) -> None:
        """Read the list of members.

        Raises:
            DataError: it is damaged or of another kind.
        """
        self.root = root
        self.zip: zipfile.ZipFile | None = None
        self.members: dict[str, tarfile.TarInfo] = {}
        self.lock = threading.Lock()  # reads of a zip file share its position
        try:
            if root.name.endswith(".zip"):
                self.zip = zipfile.ZipFile(root)
                names: Iterable[str] = self.zip.namelist()
            else:
                with tarfile.open(root) as archive:
                    self.members = {m.name.removeprefix("./"): m for m in archive.getmembers() if m.isfile()}
                names = self.members
        except (OSError, EOFError, zipfile.BadZipFile, tarfile.TarError) as error:
            raise DataError(f"{root} cannot be read as an archive ({error}); fetch it again") from error
        self.folders: dict[str, set[str]] = defaultdict(set)
        for name in names:
            parts = name.strip("/").split("/")
            for depth, part in enumerate(parts):
                self.folders["/".join(parts[:depth])].add(part)

    def has(self, name: str) -> bool:
        """Whether there is a file or folder of this name."""
        parent, _, last = name.rpartition("/")
        return last in self.folders.get(parent, ())

    def inside(self, folder: str) -> list[str]:
        """Names of what lies directly in a folder, sorted."""
        return sorted(self.folders.get(folder, ()))

    def read(self, name: str) -> bytes:
        """Return a file's bytes.

        Raises:
            DataError: the archive is damaged there.
        """
        try:
            if self.zip is not None:
                with self.lock:
                    return self.zip.read(name)
            with tarfile.open(self.root) as archive:
                member = archive.extractfile(self.members[name])
                return member.read() if member is not None else b""
        except (OSError, EOFError, KeyError, zipfile.BadZipFile, tarfile.TarError, RuntimeError) as error:
            raise DataError(f"{self.origin(name)} cannot be read ({error}); fetch the archive again") from error

    def origin(self, name: str) -> str:
        """Return the archive's path and the member."""
        return f"{self.root}:{name}"


def open_tree(path: Path) -> Tree | None:
    """Open a folder or archive; None if there is none."""
    if path.is_dir():
        return FolderTree(path)
    return ArchiveTree(path) if path.is_file() and path.name.endswith(ARCHIVES) else None
