"""
Arithmetic on many small matrices at once. Arrays have the points of all chunks and of the whole batch, the columns, as
their last dimension, so that small matrices are multiplied by a few operations on long rows: a vector is `D x columns`,
a matrix `D x D x columns`, J vectors `J x D x columns`, and with the steps of a chunk in front `steps x ...`.

Loadings C are `J x D` if all points share them, otherwise `J x D x columns`. A block diagonal matrix is a list of the
blocks of each size, `K_g x d_g x d_g x columns`.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor


class Layout:
    """
    The layout of tensors with points in order as steps of chunks.

    :param batch: The batch shape.
    :param num_points: N.
    :param num_chunks: Chunks of equal length; the last ones are filled up with points at which nothing happens.
    """

    def __init__(self, batch: torch.Size, num_points: int, num_chunks: int):
        self.batch, self.num_points = batch, num_points
        self.num_steps = max(1, -(-num_points // num_chunks))
        self.num_chunks = max(1, -(-num_points // self.num_steps))
        self.size = batch.numel()

    def steps(self, points: Tensor, event: int) -> Tensor:
        """Reorder `... x N x event` to `steps x event x columns`."""
        points = points.expand(*self.batch, *points.shape[points.dim() - event - 1 :])
        shape = points.shape[points.dim() - event :]
        points = points.reshape(self.size, self.num_points, *shape)
        filling = self.num_chunks * self.num_steps - self.num_points
        if filling:
            points = torch.cat([points, points.new_zeros(self.size, filling, *shape)], dim=1)
        points = points.unflatten(1, (self.num_chunks, self.num_steps))  # (batch, chunks, steps, *event)
        order = (2, *range(3, 3 + event), 1, 0)
        return points.permute(order).contiguous().flatten(-2)

    def points(self, steps: Tensor) -> Tensor:
        """Reorder `steps x event x columns` to `... x N x event`."""
        event = steps.dim() - 2
        steps = steps.unflatten(-1, (self.num_chunks, self.size))  # (steps, *event, chunks, batch)
        points = steps.permute(event + 2, event + 1, 0, *range(1, event + 1)).flatten(1, 2)
        return points[:, : self.num_points].reshape(*self.batch, self.num_points, *points.shape[2:])

    def columns(self, chunks: Tensor) -> Tensor:
        """Reorder `chunks x batch x event` to `event x columns`."""
        return chunks.flatten(0, 1).movedim(0, -1).contiguous()

    def chunks(self, columns: Tensor) -> Tensor:
        """Reorder `event x columns` to `chunks x batch x event`."""
        return columns.movedim(-1, 0).unflatten(0, (self.num_chunks, self.size))


def move(blocks: Sequence[Tensor], matrix: Tensor, transpose: bool = False) -> Tensor:
    """Φ times vectors or matrices (`D x columns`, `D x E x columns`), or Φᵀ times them."""
    moved, first = torch.empty_like(matrix), 0
    for phi in blocks:
        K, d = phi.shape[:2]
        rows = slice(first, first + K * d)
        first = rows.stop
        part, out = matrix[rows].unflatten(0, (K, d)), moved[rows].unflatten(0, (K, d))
        if matrix.dim() == 3:
            phi = phi.unsqueeze(3)
        for j in range(d):
            column, row = phi[:, j, :] if transpose else phi[:, :, j], part[:, None, j]
            torch.mul(column, row, out=out) if j == 0 else out.addcmul_(column, row)
    return moved


def move_both(blocks: Sequence[Tensor], matrix: Tensor, transpose: bool = False) -> Tensor:
    """
    Φ S Φᵀ, or Φᵀ S Φ, of a symmetric matrix (`D x D x columns`), symmetric to the bit: a filter does not forget what
    rounding makes of the difference.
    """
    moved = move(blocks, move(blocks, matrix, transpose).transpose(0, 1).contiguous(), transpose)
    return plus_transpose(moved).mul_(0.5)


def see(C: Tensor, matrix: Tensor) -> Tensor:
    """C S of a matrix (`D x D x columns`), or C v of a vector (`D x columns`)."""
    if C.dim() == 2:
        return torch.mm(C, matrix.flatten(1)).unflatten(1, matrix.shape[1:])
    if matrix.dim() == 2:
        return (C * matrix).sum(1)
    return torch.stack([(row.unsqueeze(1) * matrix).sum(0) for row in C])


def see_back(C: Tensor, values: Tensor) -> Tensor:
    """Cᵀ V of values (`J x columns`, or `J x E x columns`)."""
    if C.dim() == 2:
        return torch.mm(C.T, values.flatten(1)).unflatten(1, values.shape[1:])
    if values.dim() == 2:
        return (C * values.unsqueeze(1)).sum(0)
    return _sum([row.unsqueeze(1) * value for row, value in zip(C, values, strict=True)])


def see_twice(C: Tensor, X: Tensor) -> Tensor:
    """C X, of X transposed (`J x D x columns`), where that is symmetric (`J x J x columns`)."""
    return torch.matmul(C, X) if C.dim() == 2 else inner_products(C, X)


def as_vectors(C: Tensor) -> Tensor:
    """The loadings as `J x D x columns`, or 1 for columns."""
    return C.unsqueeze(-1) if C.dim() == 2 else C


def inner_products(left: Tensor, right: Tensor) -> Tensor:
    """The inner products of vectors (`J x D x columns` each, `J x J x columns`)."""
    if len(left) == 1 and len(right) == 1:
        return (left * right).sum(1, keepdim=True)
    return (left.unsqueeze(1) * right.unsqueeze(0)).sum(2)


def along(vectors: Tensor, vector: Tensor) -> Tensor:
    """The inner products of J vectors (`J x D x columns`) and one (`D x columns`), or each of E (`D x E x columns`)."""
    if vector.dim() == 2:
        return (vectors * vector).sum(1)
    return torch.stack([(one.unsqueeze(1) * vector).sum(0) for one in vectors])


def mix(weights: Tensor, vectors: Tensor) -> Tensor:
    """Sums of vectors (`J x D x columns`) by weights (`J x J x columns`)."""
    if len(weights) == 1:
        return weights * vectors
    return _sum([weights[:, j, None] * vectors[None, j] for j in range(len(vectors))])


def multiply(left: Tensor, right: Tensor) -> Tensor:
    """(`J x J x columns` each)"""
    return left * right if len(left) == 1 else mix(left, right)


def apply(weights: Tensor, values: Tensor) -> Tensor:
    """`J x J x columns` times `J x columns`."""
    return weights[0] * values if len(values) == 1 else (weights * values).sum(1)


def add_vectors(total: Tensor, vectors: Tensor, values: Tensor, sign: float = 1.0) -> Tensor:
    """Add Σ_j v_j x_j, of vectors (`J x D x columns`) and values (`J x columns`), to a vector."""
    for vector, value in zip(vectors, values, strict=True):
        total = torch.addcmul(total, vector, value, value=sign)
    return total


def outer_sum(left: Tensor, right: Tensor) -> Tensor:
    """Σ_j l_j r_jᵀ of vectors (`J x D x columns` each)."""
    total = left[0].unsqueeze(1) * right[0]
    for one, other in zip(left[1:], right[1:], strict=True):
        total.addcmul_(one.unsqueeze(1), other)
    return total


def plus_transpose(matrix: Tensor) -> Tensor:
    return matrix + matrix.transpose(0, 1)


def times_vectors(matrix: Tensor, vectors: Tensor) -> Tensor:
    """A matrix (`D x D x columns`) times each of J vectors (`J x D x columns`)."""
    return torch.stack([(matrix * vector).sum(1) for vector in vectors])


def _sum(parts: Sequence[Tensor]) -> Tensor:
    total = parts[0]
    for part in parts[1:]:
        total = total + part
    return total


def diagonal_blocks(blocks: Sequence[Tensor], left: Tensor, right: Tensor) -> list[Tensor]:
    """The diagonal blocks (`K_g x d_g x d_g x columns`) of left times right (`D x E x columns`, `E x D x columns`)."""
    gradients, first = [], 0
    for phi in blocks:
        K, d = phi.shape[:2]
        rows = slice(first, first + K * d)
        first = rows.stop
        a = left[rows].unflatten(0, (K, d))  # (K, d, E, columns)
        b = right[:, rows].unflatten(1, (K, d)).movedim(0, 2)  # (K, d, E, columns)
        gradients.append((a.unsqueeze(2) * b.unsqueeze(1)).sum(3))
    return gradients


def symmetric(matrix: Tensor) -> Tensor:
    """(`... x D x D`)"""
    return 0.5 * (matrix + matrix.mT)
