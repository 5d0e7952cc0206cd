"""JSON files that show when they are damaged: their last entry is the sha256 of all the rest."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from .files import replacing
from .tensor_files import DamagedFileError

SUM = "sha256"
# More than any description needs, and less than a computer has.
MOST_BYTES = 64 * 2**20
_BLANK = "0" * 64
_TAIL = f'"{SUM}": "{_BLANK}"\n}}'


def write_json(path: Path, content: Mapping[str, Any]) -> None:
    """
    Write a mapping to a JSON file, whole or not at all, with the sha256 of all the rest as its last entry.

    :param path: The file.
    :param content: Values that JSON can hold, by name.

    Example:
        >>> import tempfile
        >>> path = Path(tempfile.mkdtemp()) / "model.json"
        >>> write_json(path, {"kind": "model"})
        >>> read_json(path)
        {'kind': 'model'}
    """
    text = json.dumps({**content, SUM: _BLANK}, indent=2)
    data = (text.removesuffix(_TAIL) + _TAIL.replace(_BLANK, _sum_of(text.encode()))).encode()
    with replacing(path) as file:
        file.write(data)


def read_json(path: Path) -> dict[str, Any]:
    """
    Read what :func:`write_json` wrote. A file that is damaged, too large, or that names anything twice is refused with
    a :class:`~gpytorch_sgpvae.utils.tensor_files.DamagedFileError`.

    :param path: The file.
    """
    with path.open("rb") as file:
        data = file.read(MOST_BYTES + 1)
    if len(data) > MOST_BYTES:
        raise DamagedFileError(f"{path} is refused: it has more than {MOST_BYTES} bytes.")
    before, after = _TAIL.encode().split(_BLANK.encode())
    start, end = len(data) - len(after) - len(_BLANK), len(data) - len(after)
    if not (data.endswith(after) and data[:start].endswith(before)):
        raise DamagedFileError(
            f"{path} cannot be read: it does not end with its checksum, so that it is damaged or was written by "
            "something else. Take another copy, or write it again."
        )
    expected = _sum_of(data[:start] + _BLANK.encode() + after)
    if data[start:end] != expected.encode():
        found = data[start : start + 16].decode(errors="replace")
        raise DamagedFileError(
            f"{path} is damaged, or was edited: its sha256 is {expected[:16]}…, expected {found}…. Take another copy, "
            "or write it again."
        )
    try:
        content = json.loads(data, object_pairs_hook=_unique)
    except (ValueError, RecursionError) as error:
        raise DamagedFileError(f"{path} is no JSON file: {error}.") from error
    if not isinstance(content, dict):
        raise DamagedFileError(f"{path} must hold names with values, not a {type(content).__name__}.")
    content.pop(SUM)
    return content


def _sum_of(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    content = dict(pairs)
    if len(content) != len(pairs):
        raise ValueError("a name comes twice")
    return content
