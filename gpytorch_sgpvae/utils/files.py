"""Files that are whole or not there."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO


@contextmanager
def replacing(path: Path) -> Iterator[BinaryIO]:
    """
    Write a file beside its place, down to the disk, and then move it there: whenever a process is killed, the file is
    the old one or the new one, never a part of it.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    # Always the same name: what a killed process leaves behind is written over by the next.
    part = path.with_name(f"{path.name}.part")
    with part.open("wb") as file:
        yield file
        file.flush()
        os.fsync(file.fileno())
    os.replace(part, path)
    if os.name == "posix":
        folder = os.open(path.parent, os.O_RDONLY)
        try:
            os.fsync(folder)  # the move itself
        finally:
            os.close(folder)
