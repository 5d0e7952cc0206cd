"""Sets of windows as PyPOTS has them: dictionaries of arrays, or HDF5 files of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

# A training set, a validation set or a test set.
WindowSet = Mapping[str, Any] | str | Path


def read_windows(
    given: WindowSet, name: str, keys: Sequence[str], shape: tuple[int, int], file_type: str = "hdf5"
) -> list[Tensor]:
    """
    Read windows in double precision (`T x N x P` each), and raise unless they are such.

    :param given: A dictionary of arrays, tensors or lists, or the path of a file.
    :param name: The name of the set in messages.
    :param keys: The keys to read.
    :param shape: The expected numbers of steps N and features P.
    :param file_type: Type of the file, if it is one: `"hdf5"`.

    Example:
        >>> from gpytorch_sgpvae.windows.sets import read_windows
        >>> read_windows({"X": [[[1.0, float("nan")]]]}, "train_set", ["X"], (1, 2))
        [tensor([[[1., nan]]], dtype=torch.float64)]
    """
    sets = _read_file(Path(given), keys, file_type) if isinstance(given, (str, Path)) else given
    if not isinstance(sets, Mapping):
        raise TypeError(
            f"{name} is a {type(given).__name__}: expected a dictionary with the key 'X', or the path of an HDF5 file."
        )
    missing = [key for key in keys if key not in sets]
    if missing:
        raise ValueError(f"{name} must contain {missing[0]!r}, got the keys {sorted(map(str, sets))}.")
    arrays = [_as_windows(sets[key], f"{name}[{key!r}]", shape) for key in keys]
    if len({len(array) for array in arrays}) > 1:
        numbers = ", ".join(f"{len(array)} in {key}" for key, array in zip(keys, arrays, strict=True))
        raise ValueError(f"{name} has {numbers}: expected the same number of samples.")
    return arrays


def _as_windows(values: Any, name: str, shape: tuple[int, int]) -> Tensor:
    given = values.detach().cpu() if isinstance(values, Tensor) else np.asarray(values)
    windows = torch.as_tensor(given, dtype=torch.float64, device="cpu")
    if windows.dim() != 3 or windows.shape[1:] != shape or not len(windows):
        raise ValueError(
            f"{name} has shape {tuple(windows.shape)}: expected (n_samples, {shape[0]}, {shape[1]}), as n_steps and "
            "n_features say, and at least one sample."
        )
    if windows.isinf().any():
        raise ValueError(f"{name} has infinite values: write NaN where something is missing.")
    return windows


def _read_file(path: Path, keys: Sequence[str], file_type: str) -> dict[str, Any]:
    if file_type != "hdf5":
        raise ValueError(f"file_type must be 'hdf5', got {file_type!r}.")
    try:
        import h5py
    except ImportError as error:
        raise ImportError(f"Reading {path} needs h5py: pip install 'gpytorch-sgpvae[hdf5]'") from error
    with h5py.File(path, "r") as file:
        return {key: file[key][...] for key in file if key in keys}
