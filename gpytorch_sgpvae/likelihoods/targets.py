"""The likelihoods' door for NaN: targets with holes."""

from __future__ import annotations

import torch
from torch import Tensor


def as_rows(y: Tensor, shape: torch.Size) -> Tensor:
    r"""
    A target as `*T x N x P`, also where one output came as `*T x N`.

    :param y: The target.
    :param shape: The batch shape of p(y | f), `S x *T x N x P`.
    """
    num_points, num_outputs = shape[-2:]
    rows = y
    if num_outputs == 1 and y.shape[-2:] != (num_points, 1) and y.shape[-1:] == (num_points,):
        rows = y.unsqueeze(-1)
    if rows.shape[-2:] != (num_points, num_outputs) or not _expands(rows.shape, shape[1:]):
        raise ValueError(
            f"The target of shape {tuple(y.shape)} does not fit predictions of shape {tuple(shape[1:])}: "
            f"expected (*T, {num_points}, {num_outputs})"
            + (f" or (*T, {num_points})" if num_outputs == 1 else "")
            + ", with tasks *T that q(f) has too."
        )
    return rows


def fill_missing(y: Tensor) -> tuple[Tensor, Tensor]:
    """
    A target that any density can be evaluated at, and where it is real. Filled before the density and masked after
    it: a mask alone would leave NaN in the gradients. The filling is 1, which real numbers, positive ones, counts,
    flags and classes all can be.
    """
    observed = ~torch.isnan(y)
    return torch.where(observed, y, 1.0), observed


def _expands(shape: torch.Size, target: torch.Size) -> bool:
    try:
        return torch.broadcast_shapes(shape, target) == target
    except RuntimeError:
        return False
