"""Files that are whole or not there."""

from __future__ import annotations

import errno
import hashlib
import os
import secrets
import stat
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

from .locks import is_at, try_lock

# No disk, no quota and no limit of the process has room for more.
_FULL = tuple(getattr(errno, name) for name in ("ENOSPC", "EDQUOT", "EFBIG") if hasattr(errno, name))
# A folder of which the system writes no contents down on demand, or that may not be read.
_NO_SYNC = (errno.EACCES, errno.EBADF, errno.EINVAL, errno.ENOTSUP, errno.EPERM)
# Windows refuses to replace a file while somebody reads it.
_TRIES, _SECONDS_BETWEEN_TRIES = 100, 0.02
# Windows has no lock that tells whether the process that writes a temporary file is still alive.
_SECONDS_OF_A_WRITE = 3600.0


class DiskFullError(OSError):
    """The error of a full disk: there is no room for a file, and what was there before is still there."""

    def __str__(self) -> str:
        return str(self.strerror)


def is_url(name: str | Path) -> bool:
    """Return whether this names something that is not a file of this computer, such as `https://…` or `s3://…`."""
    return "://" in str(name)


@contextmanager
def replacing(path: Path, previous: Path | None = None) -> Iterator[BinaryIO]:
    """
    Write a file beside its place, down to the disk, and then move it there. Whenever a process is killed, and however
    many write it at once, readers find the old file or a new one, never a part of one.

    The permissions of an old file are kept. A link stays a link: the file that it leads to is replaced. What is no
    file, such as a folder or a device, is refused. Whatever goes wrong, nothing is left behind; what a killed process
    leaves, the next one that writes this file removes.

    :param path: The file.
    :param previous: Keep the old file under this name, in the same folder.
    """
    with naming_full_disks(path):
        target = _target(path)
        status = _status(path)
        target.parent.mkdir(parents=True, exist_ok=True)
        _remove_leftovers(target)
        part, file = _create(target, status)
        try:
            yield file
            file.flush()
            os.fsync(file.fileno())
            if status is not None:
                _copy_permissions(status, file)
            if sys.platform == "win32":  # could not move it; on others it stays open, and so locked, until it is moved
                file.close()
            if previous is not None and status is not None:
                _keep(target, previous)
            _move(part, target)
            _sync_folder(target.parent)
        finally:
            with suppress(OSError):  # it may hold something that there is no room for
                file.close()
            part.unlink(missing_ok=True)


@contextmanager
def naming_full_disks(path: str | Path) -> Iterator[None]:
    """
    Errors of a disk without room become a :class:`DiskFullError`, which is a sentence.

    :param path: The file that is being written.
    """
    try:
        yield
    except DiskFullError:
        raise
    except OSError as error:
        if error.errno not in _FULL:
            raise
        message = (
            f"{path} could not be written: there is no room for it ({error.strerror}). What was there before is still "
            "there: make room and try again."
        )
        raise DiskFullError(error.errno, message) from error


def _target(path: Path) -> Path:
    """The file itself, where a link leads to it."""
    if not path.is_symlink():
        return path
    target = Path(os.path.realpath(path))
    if target.is_symlink():
        raise OSError(f"{path} is a link that leads nowhere but to itself: remove it, or choose another name.")
    return target


def _status(path: Path) -> os.stat_result | None:
    """Read the status of the old file; None where there is none."""
    try:
        status = path.stat()
    except FileNotFoundError:
        return None
    if stat.S_ISDIR(status.st_mode):
        raise IsADirectoryError(f"{path} is a folder: choose the name of a file.")
    if not stat.S_ISREG(status.st_mode):
        raise FileExistsError(
            f"{path} is a device, a pipe or a socket, which would be replaced by a file: choose the name of a file."
        )
    return status


def _parts_of(target: Path) -> str:
    """Return the beginning of the names of this file's temporary files, of one length whatever its own name is."""
    return f".sgpvae-{hashlib.sha256(os.fsencode(target.name)).hexdigest()[:12]}-"


def _create(target: Path, status: os.stat_result | None) -> tuple[Path, BinaryIO]:
    """A temporary file in the same folder that did not exist before, and is locked as long as it is written."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL
    flags |= getattr(os, "O_BINARY", 0) | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_CLOEXEC", 0)
    # A new file has the permissions that new files have; only the system knows which.
    mode = 0o666 if status is None else 0o600
    for _ in range(_TRIES):
        part = target.with_name(f"{_parts_of(target)}{secrets.token_hex(8)}.part")
        descriptor = os.open(part, flags, mode)
        try:
            # Another process may have taken it for a leftover before it was locked.
            if sys.platform == "win32" or (try_lock(descriptor) and is_at(descriptor, part)):
                return part, os.fdopen(descriptor, "wb")
        except BaseException:
            os.close(descriptor)
            part.unlink(missing_ok=True)
            raise
        os.close(descriptor)
    raise OSError(f"{target} could not be written: others remove its temporary files. Choose another folder.")


def _remove_leftovers(target: Path) -> None:
    """Remove what killed processes have left of this file: temporary files that nobody holds a lock of."""
    prefix = _parts_of(target)
    with os.scandir(target.parent) as entries:
        leftovers = [Path(entry.path) for entry in entries if entry.name.startswith(prefix)]
    for leftover in leftovers:
        with suppress(OSError):
            if sys.platform == "win32":
                if time.time() - leftover.stat().st_mtime > _SECONDS_OF_A_WRITE:
                    leftover.unlink()
                continue
            descriptor = os.open(leftover, os.O_RDWR | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0))
            try:
                if try_lock(descriptor, without_locks=False) and is_at(descriptor, leftover):
                    leftover.unlink()
            finally:
                os.close(descriptor)


def _copy_permissions(status: os.stat_result, file: BinaryIO) -> None:
    if sys.platform == "win32":
        return
    with suppress(OSError):  # only root gives files away
        os.fchown(file.fileno(), status.st_uid, status.st_gid)
    os.fchmod(file.fileno(), stat.S_IMODE(status.st_mode) & 0o777)


def _keep(target: Path, previous: Path) -> None:
    """Give the old file a second name, so that it is never without one; or another, where it cannot have two."""
    second = target.with_name(f"{_parts_of(target)}{secrets.token_hex(8)}.part")
    try:
        os.link(target, second)
    except (OSError, NotImplementedError):
        _move(target, previous)
        return
    try:
        _move(second, previous)
    finally:
        second.unlink(missing_ok=True)  # a move between two names of one file does nothing


def _move(source: Path, target: Path) -> None:
    for _ in range(_TRIES if sys.platform == "win32" else 0):
        try:
            os.replace(source, target)
            return
        except PermissionError:
            time.sleep(_SECONDS_BETWEEN_TRIES)
    os.replace(source, target)


def _sync_folder(folder: Path) -> None:
    """Write the move itself down to the disk."""
    if sys.platform == "win32":
        return
    try:
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
    except OSError as error:
        if error.errno not in _NO_SYNC:
            raise
