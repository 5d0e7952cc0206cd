"""Tables in files: what kind a file is of, its bytes, and places where a file can be written."""

from __future__ import annotations

import bz2
import gzip
import importlib.util
import io
import lzma
import os
import stat
import sys
import tempfile
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd

from ..utils.files import is_url, naming_full_disks, replacing
from . import text_table
from .errors import TableError

PIPE = "-"
# Packed files, by the end of their names.
_PACKED: dict[str, tuple[Callable[[bytes], bytes], Callable[[bytes], bytes]]] = {
    ".gz": (gzip.decompress, lambda data: gzip.compress(data, mtime=0)),
    ".bz2": (bz2.decompress, bz2.compress),
    ".xz": (lzma.decompress, lzma.compress),
}


def read_table(source: str, separator: str | None = None, encoding: str | None = None) -> Any:
    """
    The table in a file: a `TextTable`, or an `ArrowTable` if it is a Parquet file.

    :param source: The name of the file, or - for the standard input.
    :param separator: The character between the cells of a text.
    :param encoding: Encoding of a text.
    """
    name = "the table of the pipe" if source == PIPE else source
    parquet = source != PIPE and is_parquet(source)
    data = _read_bytes(source)
    if parquet:
        from . import arrow_table

        return arrow_table.parse(data, name)
    return text_table.parse(data, name, separator, encoding)


def write_bytes(data: bytes, target: str) -> None:
    """
    Write a file, whole or not at all.

    :param data: The content of the file.
    :param target: The name of the file, or - for the standard output.
    """
    if target == PIPE:
        with naming_full_disks("The pipe"):
            sys.stdout.buffer.write(data)
            sys.stdout.flush()
            return
    packed = _PACKED.get(Path(target).suffix.lower())
    with replacing(Path(target)) as file:
        file.write(packed[1](data) if packed else data)


def frame_to_bytes(frame: pd.DataFrame, target: str, separator: str = ",", decimal: str = ".") -> bytes:
    """
    A table of pandas as a file.

    :param frame: The table.
    :param target: The name of the file, which tells its kind.
    :param separator: The character between the cells of a text.
    :param decimal: The decimal mark of a text.
    """
    if target != PIPE and is_parquet(target):
        from . import arrow_table

        return arrow_table.from_frame(frame, target).to_bytes()
    buffer = io.BytesIO()
    frame.to_csv(buffer, index=has_own_index(frame), sep=separator, decimal=decimal)
    return buffer.getvalue()


def has_own_index(frame: pd.DataFrame) -> bool:
    """Return whether the rows have names or dates, as Parquet files can hold them."""
    return isinstance(frame.index, (pd.DatetimeIndex, pd.PeriodIndex)) or any(name for name in frame.index.names)


def is_parquet(name: str) -> bool:
    """Return whether a file is of this kind, by its name; it is an error if it is and cannot be read here."""
    if Path(name).suffix.lower() not in (".parquet", ".pq"):
        return False
    if importlib.util.find_spec("pyarrow") is None:
        raise TableError(f"{name} is a Parquet file, which needs pyarrow: pip install pyarrow, or use CSV.")
    return True


def check_source(source: str) -> None:
    """
    Raise unless a file can be read.

    :param source: The name of the file, or - for the standard input.
    """
    if source == PIPE:
        return
    if is_url(source):
        raise TableError(f"{source} is an address, not a file: download it, and give the name of the file.")
    kind = _kind(source)
    if kind is None:
        raise TableError(f"There is no file {source}.")
    if stat.S_ISDIR(kind):
        raise TableError(f"{source} is a folder: give the name of a file with a table.")
    if stat.S_ISBLK(kind) or (
        stat.S_ISCHR(kind) and not os.path.realpath(source).startswith(("/dev/pts/", "/dev/tty"))
    ):
        raise TableError(f"{source} is a device: give the name of a file with a table.")


def check_target(target: str) -> None:
    """
    Raise unless a file can be written, before anything is computed for it.

    :param target: The name of the file, or - for the standard output.
    """
    if target == PIPE:
        return
    if not target.strip():
        raise TableError("The output has no name: say -o FILE.")
    if is_url(target):
        raise TableError(f"{target} is an address, not a file: write a file, and upload it.")
    kind = _kind(target)
    if kind is not None and not stat.S_ISREG(kind):
        what = "a folder" if stat.S_ISDIR(kind) else "a device, a pipe or a socket"
        raise TableError(f"{target} is {what}: choose the name of a file.")
    check_room(Path(target).parent)


def check_room(folder: Path) -> None:
    """
    Raise unless files can be written to a folder, which may not be there yet.

    :param folder: The folder.
    """
    there = next((path for path in (folder, *folder.absolute().parents) if _kind(str(path)) is not None), folder)
    if not there.is_dir():
        raise TableError(f"{there} is a file, so that nothing can be written to {folder}: choose another name.")
    try:
        with tempfile.TemporaryFile(dir=there):
            pass
    except OSError as error:
        raise TableError(f"Nothing can be written to {there} ({error.strerror}): choose another folder.") from error


def _kind(name: str) -> int | None:
    try:
        return os.stat(name).st_mode
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise TableError(f"{name[:200]!r} cannot be used as the name of a file ({reason}): choose another.") from error


def _read_bytes(source: str) -> bytes:
    check_source(source)
    try:
        data = sys.stdin.buffer.read() if source == PIPE else Path(source).read_bytes()
    except OSError as error:
        raise TableError(f"{source} cannot be read: {error.strerror}.") from error
    packed = _PACKED.get(Path(source).suffix.lower())
    if packed is None:
        return data
    try:
        return packed[0](data)
    except (OSError, EOFError, zlib.error, lzma.LZMAError, ValueError) as error:
        raise TableError(f"{source} cannot be unpacked: {error or type(error).__name__}. Take another copy.") from error
