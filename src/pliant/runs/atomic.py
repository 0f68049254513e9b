"""Writing files so that a reader sees the old one or the new one, never a part, whenever the writer dies."""

import contextlib
import errno
import os
import secrets
import sys
from collections.abc import Iterator
from pathlib import Path

from pliant.errors import StoreError

ADVICE = {
    errno.ENOSPC: "the disk is full. Free some space, then run the same command again: finished cells are kept",
    errno.EDQUOT: "the quota is used up. Free some space, then run the same command again: finished cells are kept",
    errno.EFBIG: "the file is larger than is allowed here",
    errno.EROFS: "the file system is read-only. Choose another folder",
    errno.EACCES: "permission denied. Choose another folder, or ask its owner",
    errno.EPERM: "permission denied. Choose another folder, or ask its owner",
}


@contextlib.contextmanager
def storing(action: str, path: Path) -> Iterator[None]:
    """Turn an operating system's error into a `StoreError` that says what was tried, where, and what to do.

    Raises:
        StoreError: the block raised an OSError; its `errno` is kept.
    """
    try:
        yield
    except StoreError:
        raise
    except OSError as error:
        reason = ADVICE.get(error.errno or 0, error.strerror or str(error))
        failure = StoreError(f"cannot {action} {path}: {reason}")
        failure.errno = error.errno
        raise failure from error


def write_atomically(path: Path, content: str | bytes, *, durable: bool = True) -> None:
    """Write a file in one step: to a temporary file beside it, to the disk, then renamed into place.

    Args:
        path: the file; its folder must exist.
        content: text (UTF-8) or bytes.
        durable: wait until file and name are on the disk, so that they outlive a power cut. Without it they outlive
            the death of the process only.

    Raises:
        StoreError: it cannot be written (disk full, read-only, ...). A file that was there before is untouched.
    """
    data = content.encode() if isinstance(content, str) else content
    temporary = path.with_name(f".{path.name}.{os.getpid()}-{secrets.token_hex(4)}.tmp")
    with storing("write", path):
        try:
            with temporary.open("xb") as file:
                file.write(data)
                file.flush()
                if durable:
                    os.fsync(file.fileno())
            temporary.replace(path)
        except BaseException:
            temporary.unlink(missing_ok=True)
            raise
        if durable:
            sync_folder(path.parent)


def write_file(path: Path, content: str | bytes) -> Path:
    """Write a file in one step, and its folder if need be; return its path. A link stays, its target is replaced.

    Raises:
        StoreError: it cannot be written.
    """
    with storing("write", path):
        path.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(Path(os.path.realpath(path)), content)
    return path


def sync_folder(folder: Path) -> None:
    """Wait until the names in a folder are on the disk."""
    if sys.platform == "win32":  # folders cannot be opened there, and renames are journalled
        return
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
