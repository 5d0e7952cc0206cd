"""What a saved posterior must look like before anything is computed from it."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from typing import Any

import torch
from torch import Tensor

from ..utils.shapes import broadcast

ANY = "..."
# Sites of rows: pseudo-observations of J sums of latent functions.
ROWS = {"x": (ANY, "N", "D"), "precision_mean": ("J", "N"), "precision": ("J", "N"), "loadings": (ANY, "J", "K")}


def check_saved(
    state_dict: Any,
    shapes: Mapping[str, tuple[str, ...]],
    sizes: Mapping[str, int | None],
    optional: Collection[str] = (),
) -> None:
    """
    Raise unless these are the tensors of a saved posterior: all of them and no others, of shapes that fit each other
    and the model, with finite numbers and without negative precisions.

    :param state_dict: The tensors by name.
    :param shapes: The last dimensions of each, by letters: a letter is the same number everywhere, several stand for
        their product. What stands before them are tasks, or anything where the first is :data:`ANY`.
    :param sizes: The letters that the model knows; a dimension of size None is left out.
    :param optional: Names that may be missing.

    Example:
        >>> check_saved({"x": torch.ones(7, 2), "y": torch.ones(6)}, {"x": ("N", "D"), "y": ("N",)}, {"D": 2})
        Traceback (most recent call last):
        ...
        ValueError: This is no posterior of the model: y has shape (6,), expected (*T, N) with N = 7. Pass what ...
    """
    if not isinstance(state_dict, Mapping):
        _refuse(f"expected a dictionary of tensors, got a {type(state_dict).__name__}")
    missing = [name for name in shapes if name not in state_dict and name not in optional]
    unexpected = [str(name) for name in state_dict if name not in shapes]
    if missing or unexpected:
        parts = [f"it lacks {', '.join(missing)}"] * bool(missing)
        parts += [f"it has {', '.join(unexpected)}, which it should not have"] * bool(unexpected)
        _refuse(" and ".join(parts))
    for name, value in state_dict.items():
        if not isinstance(value, Tensor) or not value.is_floating_point() or value.layout != torch.strided:
            kind = value.dtype if isinstance(value, Tensor) else type(value).__name__
            _refuse(f"{name} must be a dense tensor of floating-point numbers, got {kind}")
    _check_shapes(state_dict, shapes, dict(sizes))
    for name, value in state_dict.items():
        if not value.isfinite().all():
            _refuse(f"{name} has {int((~value.isfinite()).sum())} numbers that are not finite")
    precision = state_dict["precision"] if "precision" in shapes else None
    if precision is not None:
        is_matrix = len(set(shapes["precision"][-2:])) == 1
        smallest = (precision.diagonal(dim1=-2, dim2=-1) if is_matrix else precision).min() if precision.numel() else 0
        if smallest < 0:
            _refuse(f"precision must not be negative, but its smallest is {float(smallest):.3g}")


def _check_shapes(
    state_dict: Mapping[str, Tensor], shapes: Mapping[str, tuple[str, ...]], sizes: dict[str, int | None]
) -> None:
    tasks = torch.Size()
    for name, template in shapes.items():
        if name not in state_dict:
            continue
        shape, has_tasks = state_dict[name].shape, template[0] != ANY
        letters = [letter for letter in template if letter != ANY and sizes.get(letter, 0) is not None]
        expected = f"({'*T' if has_tasks else '...'}, {', '.join(letters)})"
        known = [
            f"{letter} = {size}" for letter in dict.fromkeys(letters) if (size := _size(letter, sizes)) is not None
        ]
        if has_tasks and tasks:
            known.append(f"T = {tuple(tasks)}")
        num_leading = len(shape) - len(letters)
        fits = num_leading >= 0
        for letter, size in zip(letters, shape[max(num_leading, 0) :], strict=False):
            fits = fits and _size(letter, sizes) in (None, size)
            sizes.setdefault(letter, size)
        batch = broadcast(tasks, shape[:num_leading]) if has_tasks and fits else tasks
        if not fits or batch is None:
            _refuse(f"{name} has shape {tuple(shape)}, expected {expected}{' with ' * bool(known)}{', '.join(known)}")
        else:
            tasks = batch


def _size(letters: str, sizes: Mapping[str, int | None]) -> int | None:
    """The number that a letter stands for, or the product of several; None if it is not known yet."""
    known = [sizes.get(letter) for letter in letters]
    return None if None in known else math.prod(size for size in known if size is not None)


def _refuse(reason: str) -> None:
    raise ValueError(
        f"This is no posterior of the model: {reason}. Pass what Posterior.state_dict() of the same model returned, or "
        "condition on the data again."
    )
