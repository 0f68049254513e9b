"""A lock that the kernel holds for a process, and takes back when it dies, in whatever way.

On POSIX it is `flock` on a file that is never deleted (deleting it would let two processes lock two files of one
name). A local file system, and NFS since Linux 2.6.12, honour it between all processes that see the file; some
network file systems do so within one machine only, and a few not at all: there, one driver per store.
"""

import os
import socket
import sys
import time
from pathlib import Path

from pliant.runs.atomic import storing

if sys.platform == "win32":
    import msvcrt

    def _try(descriptor: int, *, shared: bool) -> bool:
        os.lseek(descriptor, 1 << 20, os.SEEK_SET)  # far behind the owner's name: a locked range cannot be read
        try:
            msvcrt.locking(descriptor, msvcrt.LK_NBRLCK if shared else msvcrt.LK_NBLCK, 1)
        except OSError:
            return False
        return True
else:
    import fcntl

    def _try(descriptor: int, *, shared: bool) -> bool:
        try:
            fcntl.flock(descriptor, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True


_held: set[int] = set()


def _forget() -> None:
    """Close in a forked child what its parent has locked: a lock lives as long as any copy of its descriptor."""
    for descriptor in _held:
        os.close(descriptor)
    _held.clear()


if sys.platform != "win32":
    os.register_at_fork(after_in_child=_forget)


class Lock:
    """A lock that this process holds until `release`, or until it dies."""

    def __init__(self, descriptor: int) -> None:
        """Take over a locked descriptor; use `acquire`."""
        self._descriptor: int | None = descriptor
        _held.add(descriptor)

    def release(self) -> None:
        """Give the lock back; a second time does nothing."""
        if self._descriptor in _held:  # not in a forked child, which never had it
            _held.discard(self._descriptor)
            os.close(self._descriptor)
        self._descriptor = None


def acquire(path: Path) -> Lock | None:
    """Lock a file, made if need be, and write into it who has it; None if somebody else has.

    Raises:
        StoreError: the file cannot be made or written.
    """
    with storing("lock", path):
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
        try:
            # `is_locked` holds the lock for an instant, so one refusal proves nothing.
            for _ in range(5):
                if _try(descriptor, shared=False):
                    owner = f"process {os.getpid()} on {socket.gethostname()}\n".encode()
                    os.ftruncate(descriptor, 0)
                    os.write(descriptor, owner)
                    lock = Lock(descriptor)
                    descriptor = -1
                    return lock
                time.sleep(0.01)
            return None
        finally:
            if descriptor >= 0:
                os.close(descriptor)


def is_locked(path: Path) -> bool:
    """Whether some process, this one included, holds the lock. Needs no right to write.

    Raises:
        StoreError: the file is there and cannot be opened.
    """
    with storing("read", path):
        try:
            descriptor = os.open(path, os.O_RDONLY)
        except FileNotFoundError:
            return False
        try:
            return not _try(descriptor, shared=True)
        finally:
            os.close(descriptor)


def owner_of(path: Path) -> str | None:
    """Return who has the lock, as the owner wrote it; None where that cannot be read. For messages only."""
    try:
        return path.read_text(encoding="utf-8").strip() or None
    except OSError:
        return None
