"""One process at a time: locks of the operating system, which end with the process that holds them."""

from __future__ import annotations

import errno
import os
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

LOCK_NAME = ".sgpvae.lock"
# Between two looks at a lock that somebody else holds.
SECONDS_BETWEEN_TRIES = 0.02
# What file systems without locks answer.
_UNSUPPORTED = (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP, errno.ENOTSUP, errno.EINVAL, errno.EPERM, errno.EBADF)

if sys.platform == "win32":
    import msvcrt

    _HELD = (errno.EACCES, errno.EDEADLK)

    def _lock(descriptor: int) -> None:
        os.lseek(descriptor, 0, os.SEEK_SET)
        msvcrt.locking(descriptor, msvcrt.LK_NBLCK, 1)

    def _unlock(descriptor: int) -> None:
        os.lseek(descriptor, 0, os.SEEK_SET)
        msvcrt.locking(descriptor, msvcrt.LK_UNLCK, 1)

else:
    import fcntl

    _HELD = (errno.EAGAIN, errno.EWOULDBLOCK)

    def _lock(descriptor: int) -> None:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)

    def _unlock(descriptor: int) -> None:
        fcntl.flock(descriptor, fcntl.LOCK_UN)


def try_lock(descriptor: int, without_locks: bool = True) -> bool:
    """
    Lock an open file if nobody else has, without waiting. The lock ends with :func:`os.close`, or with the process.

    :param descriptor: The file, open for writing.
    :param without_locks: The answer on a file system that knows no locks.
    :return: Whether this process has it now.
    """
    try:
        _lock(descriptor)
    except OSError as error:
        if error.errno in _HELD:
            return False
        if error.errno in _UNSUPPORTED:
            return without_locks
        raise
    return True


def is_at(descriptor: int, path: Path) -> bool:
    """Return whether an open file is the one that a path names, and not one that was removed from there."""
    try:
        there = os.lstat(path)
    except FileNotFoundError:
        return False
    return os.path.samestat(os.fstat(descriptor), there)


@contextmanager
def locked(folder: Path, seconds: float = 60.0) -> Iterator[None]:
    """
    Be the only one who writes to a folder. Others that ask for it wait. The lock is one of the operating system: it
    ends with its process, so that a process that was killed blocks nobody.

    :param folder: The folder, which is made if it is missing.
    :param seconds: The longest time to wait for another holder of the lock before a :class:`TimeoutError`.

    Example:
        >>> import tempfile
        >>> folder = Path(tempfile.mkdtemp())
        >>> with locked(folder):
        ...     try:
        ...         with locked(folder, seconds=0.1):
        ...             pass
        ...     except TimeoutError as error:
        ...         print(str(error).replace(str(folder), "FOLDER"))
        FOLDER is being written by another process, and still is after 0.1 s: wait until it is through, or choose ...
    """
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / LOCK_NAME
    descriptor = _acquire(path, folder, seconds)
    try:
        yield
    finally:
        if sys.platform != "win32":  # while it is held: whoever waits for it sees that it is gone, and makes a new one
            with suppress(OSError):
                path.unlink()
        with suppress(OSError):  # also where a child process that was forked still has the file open
            _unlock(descriptor)
        os.close(descriptor)
        if sys.platform == "win32":  # which removes no open file, nor one that somebody waits for
            with suppress(OSError):
                path.unlink()


def _acquire(path: Path, folder: Path, seconds: float) -> int:
    deadline = time.monotonic() + seconds
    flags = os.O_RDWR | os.O_CREAT | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_CLOEXEC", 0)
    while True:
        try:
            descriptor = os.open(path, flags, 0o666)
        except OSError as error:
            if sys.platform != "win32" or not isinstance(error, PermissionError):  # Windows: it is just being removed
                raise OSError(
                    f"{folder} cannot be locked, because {path.name} in it cannot be opened ({error.strerror}): remove "
                    "it, or choose another folder."
                ) from error
        else:
            try:
                if try_lock(descriptor) and is_at(descriptor, path):
                    return descriptor
            except BaseException:
                os.close(descriptor)
                raise
            os.close(descriptor)
        if time.monotonic() > deadline:
            raise TimeoutError(
                f"{folder} is being written by another process, and still is after {seconds:g} s: wait until it is "
                "through, or choose another folder."
            )
        time.sleep(SECONDS_BETWEEN_TRIES)
