"""Products of matrices and vectors, each as its last dimensions say, in the order that is quickest in batches."""

from __future__ import annotations

import torch
from torch import Tensor


def matvec(matrix: Tensor, vector: Tensor) -> Tensor:
    """A matrix times a column (`... x M`)."""
    # the vector as a row: batches of matrix times column are several times slower on CPU
    return (vector.unsqueeze(-2) @ matrix.mT).squeeze(-2)


def outer(left: Tensor, right: Tensor) -> Tensor:
    """A column times a row (`... x M x N`)."""
    return left.unsqueeze(-1) * right.unsqueeze(-2)


def identity_like(matrix: Tensor) -> Tensor:
    """The identity of a square matrix's size, dtype and device (`M x M`)."""
    return torch.eye(matrix.shape[-1], dtype=matrix.dtype, device=matrix.device)
