"""
Files of tensors that show when they are damaged. They are what `torch.save` writes, and `torch.load` reads them; the
sha256 of all that stands before it is the comment of the ZIP archive that such a file is. It tells of damage, not of
forgery: whoever can write the file can write the sum too, and so what was read is still looked at.
"""

from __future__ import annotations

import hashlib
import io
import struct
import zipfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from .files import replacing

_MARK = b"gpytorch_sgpvae sha256 "
_DIGITS = 64
# The last record of a ZIP archive, which ends with the length of the comment.
_END_OF_ARCHIVE, _END_SIZE = b"PK\x05\x06", 22


class DamagedFileError(ValueError):
    """A file that is not as it was written, or that holds what such a file must not."""


def write_tensors(path: Path, content: Any, previous: Path | None = None) -> None:
    """
    Write tensors, numbers, names and containers of them to a file, whole or not at all, with its sha256.

    :param path: The file.
    :param content: Anything that :func:`torch.load` reads with `weights_only=True`.
    :param previous: Keep the old file under this name, see :func:`~gpytorch_sgpvae.utils.files.replacing`.

    Example:
        >>> import tempfile
        >>> path = Path(tempfile.mkdtemp()) / "weights.pt"
        >>> write_tensors(path, {"weight": torch.ones(2)})
        >>> read_tensors(path)
        {'weight': tensor([1., 1.])}
    """
    data = to_bytes(content)  # before there is a file: torch does not survive a full disk
    with replacing(path, previous) as file:
        file.write(data)


def read_tensors(path: Path, map_location: Any = "cpu") -> Any:
    """
    Read what :func:`write_tensors` wrote. A file that is damaged, that holds anything that could run code, or that
    would take more memory than it has bytes, is refused with a :class:`DamagedFileError`.

    :param path: The file.
    :param map_location: See :func:`torch.load`.
    """
    return from_bytes(path.read_bytes(), str(path), map_location)


def is_whole(path: Path) -> bool:
    """Return whether the file exists and is intact, as :func:`write_tensors` wrote it."""
    try:
        _check_sum(path.read_bytes(), str(path))
    except (OSError, DamagedFileError):
        return False
    return True


def to_bytes(content: Any) -> bytes:
    """The bytes of a file of tensors, with their sha256 at the end."""
    buffer = io.BytesIO()
    torch.save(content, buffer)
    data = buffer.getvalue()
    # The archive ends without a comment: the last two bytes, its length, are zero.
    if data[-_END_SIZE:][:4] != _END_OF_ARCHIVE or data[-2:] != b"\0\0":
        raise RuntimeError(f"torch {torch.__version__} has not written a ZIP archive without a comment.")
    signed = data[:-2] + struct.pack("<H", len(_MARK) + _DIGITS) + _MARK
    return signed + hashlib.sha256(signed).hexdigest().encode()


def from_bytes(data: bytes, name: str, map_location: Any = "cpu") -> Any:
    """
    Read the content that :func:`to_bytes` turned into bytes.

    :param data: The bytes.
    :param name: The file's name in error messages.
    :param map_location: See :func:`torch.load`.
    """
    _check_sum(data, name)
    _check_archive(data, name)
    try:
        content = torch.load(io.BytesIO(data), map_location=map_location, weights_only=True)
    except Exception as error:
        raise DamagedFileError(
            f"{name} holds more than tensors, numbers and names, which could run code when loaded and is therefore "
            f"refused. ({type(error).__name__})"
        ) from error
    for tensor in _tensors_in(content):
        _check_tensor(tensor, len(data), name)
    return content


def check_finite(tensors: Mapping[str, Tensor], like: Mapping[str, Tensor], name: str) -> None:
    """
    Refuse tensors with numbers that are not finite. Where those of a model have them too, as the bounds of a
    constraint, they may have the same.

    :param tensors: The tensors, by name.
    :param like: The tensors of the model at hand, by the same names.
    :param name: The file's name in the error message.
    """
    for key, value in tensors.items():
        if not isinstance(value, Tensor) or value.isfinite().all():
            continue
        wrong = ~value.isfinite()
        ours = like.get(key)
        if ours is not None and ours.shape == value.shape:
            wrong &= ~value.isclose(ours.to(value), rtol=0, atol=0, equal_nan=True)
        if wrong.any():
            raise DamagedFileError(
                f"{name} has {int(wrong.sum())} numbers in {key} that are not finite, such as "
                f"{value[wrong][0].item()}: take another copy, or train again."
            )


def _check_sum(data: bytes, name: str) -> None:
    """Raise unless the sum at the end is that of what stands before it."""
    signed, found = data[:-_DIGITS], data[-_DIGITS:]
    if not signed.endswith(_MARK):
        raise DamagedFileError(
            f"{name} cannot be read: it has no checksum at its end, so that it is damaged or was written by something "
            "else. Take another copy, or write it again."
        )
    expected = hashlib.sha256(signed).hexdigest()
    if found != expected.encode():
        raise DamagedFileError(
            f"{name} is damaged: its sha256 is {expected[:16]}…, expected {found[:16].decode(errors='replace')}…. Take "
            "another copy, or write it again."
        )


def _check_archive(data: bytes, name: str) -> None:
    """Raise if the archive is larger unpacked than packed: torch packs nothing."""
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            entries = archive.infolist()
    except zipfile.BadZipFile as error:
        raise DamagedFileError(f"{name} is no archive of tensors: {error}.") from error
    packed = [entry for entry in entries if entry.compress_type != zipfile.ZIP_STORED]
    if packed or sum(entry.file_size for entry in entries) > len(data):
        raise DamagedFileError(f"{name} is refused: unpacked it would be larger than the {len(data)} bytes it has.")


def _check_tensor(tensor: Tensor, num_bytes: int, name: str) -> None:
    if tensor.layout != torch.strided or tensor.device.type == "meta":
        raise DamagedFileError(f"{name} is refused: it has a tensor that is not a plain array of numbers.")
    size = tensor.numel() * tensor.element_size()
    if size > num_bytes:
        raise DamagedFileError(
            f"{name} is refused: a tensor of shape {tuple(tensor.shape)} in it takes {size} bytes, more than the "
            f"{num_bytes} that the file has."
        )


def _tensors_in(content: Any) -> Iterator[Tensor]:
    """All tensors in nested containers, each once."""
    seen, waiting = set(), [content]
    while waiting:
        value = waiting.pop()
        if isinstance(value, Tensor):
            yield value
        elif isinstance(value, (Mapping, list, tuple)) and id(value) not in seen:
            seen.add(id(value))
            waiting += value.values() if isinstance(value, Mapping) else value
