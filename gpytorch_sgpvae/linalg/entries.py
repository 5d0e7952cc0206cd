r"""Matrices over single pseudo-observations: entry :math:`j N + n` is the j-th one of the n-th point."""

from __future__ import annotations

import torch
from torch import Tensor

from .._compat import is_compiling, is_in_transform


def informative_entries(precision: Tensor) -> Tensor | None:
    """
    The numbers of those entries that say anything, as many for each task as the one with most of them has, filled up
    with others (`*T x E`); None if they are all.

    How many there are is read from values: where these cannot be seen, as by a compiler, all entries are taken.

    :param precision: (`*T x (J N)`).
    """
    blind = type(precision) is not Tensor or precision.device.type == "meta" or is_compiling() or is_in_transform()
    if blind or not precision.numel():
        return None
    informative = precision > 0
    num_entries = max(1, int(informative.sum(-1).max()))
    if num_entries == precision.shape[-1]:
        return None
    return informative.to(torch.uint8).argsort(dim=-1, descending=True, stable=True)[..., :num_entries]


def entry_covariance(K: Tensor, loadings: Tensor) -> Tensor:
    r"""
    :math:`G_{(j n)(i m)} = \sum_k a_{jk} a_{ik} K_{k n m}` (`*T x (J N) x (J N)`).

    :param K: (`*T x K x N x N`).
    :param loadings: (`J x K`, or what broadcasts to `*T x N x J x K`).
    """
    if loadings.dim() > 2:
        loadings = _of_each_point(loadings, K.shape[-1])
        G = torch.einsum("...njk,...mik,...knm->...jnim", loadings, loadings, K)
        return G.flatten(-4, -3).flatten(-2)
    J = loadings.shape[0]
    pairs = (loadings.unsqueeze(1) * loadings.unsqueeze(0)).flatten(0, 1)  # (J J, K)
    G = (pairs @ K.flatten(-2)).unflatten(-2, (J, J)).unflatten(-1, K.shape[-2:])  # (*T, J, J, N, N)
    return G.transpose(-3, -2).flatten(-4, -3).flatten(-2)


def cross_covariance(Kfs: Tensor, loadings: Tensor, entries: Tensor | None) -> Tensor:
    r"""
    The covariance of entries with each latent function at other inputs, :math:`a_{jk} K_{k n *}` (`*T x K x E x N*`).

    :param Kfs: (`*T x K x N x N*`).
    :param loadings: (`J x K`, or what broadcasts to `*T x N x J x K`).
    :param entries: The numbers of the entries (`*T x E`), or None for all.
    """
    N, J = Kfs.shape[-2], loadings.shape[-2]
    if loadings.dim() == 2:
        rows = loadings.repeat_interleave(N, -2)  # (J N, K)
    else:
        rows = _of_each_point(loadings, N).transpose(-3, -2).flatten(-3, -2)  # (*T, J N, K)
    if entries is None:
        Kfs = Kfs.repeat(*[1] * (Kfs.dim() - 2), J, 1)  # (*T, K, J N, N*)
    else:
        points = entries.remainder(N).unsqueeze(-2).unsqueeze(-1)  # (*T, 1, E, 1)
        batch = torch.broadcast_shapes(Kfs.shape[:-2], points.shape[:-2])
        points = points.expand(*batch, -1, Kfs.shape[-1])
        Kfs = Kfs.expand(*batch, *Kfs.shape[-2:]).gather(-2, points)  # (*T, K, E, N*)
        rows = take_rows(rows, entries)
    return Kfs * rows.mT.unsqueeze(-1)


def take(values: Tensor, entries: Tensor | None) -> Tensor:
    """Some of the values (`*T x (J N)`) of each task."""
    if entries is None:
        return values
    return values.expand(*entries.shape[:-1], values.shape[-1]).gather(-1, entries)


def take_rows(matrix: Tensor, entries: Tensor | None) -> Tensor:
    """Some rows of a matrix (`*T x (J N) x C`) for each task."""
    if entries is None:
        return matrix
    if matrix.dim() == 2:
        return matrix[entries]
    matrix = matrix.expand(*entries.shape[:-1], *matrix.shape[-2:])
    return matrix.gather(-2, entries.unsqueeze(-1).expand(*entries.shape, matrix.shape[-1]))


def take_block(matrix: Tensor, entries: Tensor | None) -> Tensor:
    """Some rows and the same columns of a matrix (`*T x (J N) x (J N)`) for each task."""
    if entries is None:
        return matrix
    if matrix.dim() == 2:
        return matrix[entries.unsqueeze(-1), entries.unsqueeze(-2)]
    return take_rows(take_rows(matrix, entries).mT, entries).mT


def put_back(values: Tensor, entries: Tensor | None, size: int) -> Tensor:
    """Values of some entries among zeros for the others (`*T x (J N)`)."""
    if entries is None:
        return values
    return values.new_zeros(*values.shape[:-1], size).scatter(-1, entries.expand(values.shape), values)


def _of_each_point(loadings: Tensor, num_points: int) -> Tensor:
    """Loadings as `*T x N x J x K`, also where all points of a task share them (`*T x 1 x J x K`)."""
    return loadings.expand(*loadings.shape[:-3], num_points, *loadings.shape[-2:])
