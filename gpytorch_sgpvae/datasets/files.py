"""
The places that the loaders' files come from: the folder that the environment variable `SGPVAE_DATA` names, where it is
set; else the cache of downloads; else a download into it.
"""

from __future__ import annotations

import hashlib
import importlib
import os
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

FOLDER_VARIABLE = "SGPVAE_DATA"
# Each part begins with a letter, a digit or _, so that none is "..", hidden, or an option of a command.
_NAME = re.compile(r"(?:[A-Za-z0-9_][A-Za-z0-9_.-]*/)*[A-Za-z0-9_][A-Za-z0-9_.-]*")
# Names that are devices on Windows, whatever follows the point.
_DEVICE = re.compile(r"(?i:con|prn|aux|nul|com\d|lpt\d)(\..*)?")
GITHUB = "https://raw.githubusercontent.com"


class DataFile(NamedTuple):
    """
    A file, and how to get it.

    :param path: Below the data folder, or below the cache.
    :param sha256: The checksum of its contents; None where its publisher keeps changing them.
    :param url: The address to download it from; None where nobody offers it.
    :param instead: The user's other ways to a file that nobody offers.
    :param size: Its size in bytes; None where its publisher keeps changing it.
    """

    path: str
    sha256: str | None = None
    url: str | None = None
    instead: str = f"name the folder that holds it in {FOLDER_VARIABLE}"
    size: int | None = None


def data_folder() -> Path | None:
    """The folder that `SGPVAE_DATA` names, or None."""
    folder = os.environ.get(FOLDER_VARIABLE)
    if not folder:
        return None
    if not Path(folder).is_dir():
        raise FileNotFoundError(
            f"{FOLDER_VARIABLE} is {folder!r}, which is no folder: name the one that holds the data, or unset the "
            "variable to download them."
        )
    return Path(folder)


def cache_folder() -> Path:
    """The folder where downloads are kept."""
    return Path(require("pooch").os_cache("gpytorch_sgpvae"))


def locate(file: DataFile) -> Path:
    """
    The file on this computer, complete and undamaged.

    :param file: The file to find.
    """
    check_name(file.path)
    folder = data_folder()
    if folder is None and file.url is not None:
        return _download(file, file.url)
    return _check((folder or cache_folder()) / file.path, file)


def check_name(path: str) -> None:
    """
    Raise unless this is the name of a file below a folder, however it is read, on any system. Names that a publisher's
    inventory has could be others.

    :param path: Names of folders and of a file, with / between.
    """
    if not _NAME.fullmatch(path) or any(_DEVICE.fullmatch(part) for part in path.split("/")):
        raise ValueError(
            f"{path!r} is no name of a file below a folder: expected letters, digits, '-', '_' and '.', not at the "
            "beginning, with '/' between folders. If it is from an inventory, delete that file and get it again."
        )


def read_table(path: Path, columns: Sequence[str], optional: Sequence[str] = ()) -> Any:
    """
    Columns of a file of comma-separated values, as a pandas data frame.

    :param path: The file.
    :param columns: The names of the columns, in the order in which they are wanted.
    :param optional: Further ones, that the file may not have.
    """
    pandas = require("pandas")
    with reading(path, f"comma-separated values with columns {', '.join(columns)}"):
        header = list(pandas.read_csv(path, nrows=0).columns)
        missing = [column for column in columns if column not in header]
        if missing:
            raise ValueError(f"it has no {', '.join(missing)}, but {', '.join(header)}")
        wanted = [*columns, *(column for column in optional if column in header)]
        return pandas.read_csv(path, usecols=wanted)[wanted]


@contextmanager
def reading(path: Path, expected: str) -> Iterator[None]:
    """
    Errors of values that a file should not have get its name.

    :param path: The file.
    :param expected: The content that it should hold.
    """
    try:
        yield
    except ValueError as error:
        raise ValueError(
            f"{path} cannot be read ({error}). Expected {expected}: ask for what it has, or delete it and get it again."
        ) from error


def require(module: str) -> Any:
    """
    A module that comes with the extra `datasets`.

    :param module: The name of the module.
    """
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise ImportError(
            f"This data set needs {module}, which is not installed: pip install 'gpytorch-sgpvae[datasets]'"
        ) from error


def _check(path: Path, file: DataFile) -> Path:
    if file.url is None:
        remedy = f"Nobody offers it for download: put your copy there, or {file.instead}."
    else:
        remedy = f"Put there what {file.url} has, or unset {FOLDER_VARIABLE} to download it."
    if not path.is_file():
        raise FileNotFoundError(f"There is no file {path}. {remedy}")
    if file.size is not None and path.stat().st_size != file.size:
        raise ValueError(
            f"{path} is damaged, or another version: it has {path.stat().st_size} bytes, expected {file.size}. {remedy}"
        )
    if file.sha256 is not None:
        found = hashlib.sha256(path.read_bytes()).hexdigest()
        if found != file.sha256:
            raise ValueError(
                f"{path} is damaged, or another version: its sha256 is {found}, expected {file.sha256}. {remedy}"
            )
    return path


def _download(file: DataFile, url: str) -> Path:
    pooch, cache = require("pooch"), cache_folder()
    otherwise = f"or put the file into a folder, as {file.path}, and name that folder in {FOLDER_VARIABLE}."
    # A file that is damaged in the cache is downloaded again. A download has another name until its sum is checked.
    fetcher = pooch.create(cache, base_url="", registry={file.path: file.sha256}, urls={file.path: url})
    # Not as a stream: of one that breaks off, pooch leaves the connection open.
    downloader = pooch.HTTPDownloader(stream=False)
    try:
        path = Path(fetcher.fetch(file.path, downloader=downloader))
    except OSError as error:  # as all of the network's are
        raise ConnectionError(
            f"{url} could not be downloaded to {cache} ({error}). Try again when that is mended, {otherwise}"
        ) from error
    except ValueError as error:
        raise ValueError(
            f"What {url} sent does not have the sha256 {file.sha256}: it was damaged on the way, or has changed there. "
            f"Try again, {otherwise}"
        ) from error
    if file.size is not None and path.stat().st_size != file.size:
        found = path.stat().st_size
        path.unlink()
        raise ValueError(f"What {url} sent has {found} bytes, expected {file.size}. Try again, {otherwise}")
    return path
