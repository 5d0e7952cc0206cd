"""Kernels of inputs that are labels, which are equal or not and have no distance."""

from __future__ import annotations

from typing import Any

import torch
from gpytorch.kernels import Kernel
from torch import Tensor


class LabelKernel(Kernel):
    r"""
    A kernel of labels: rows with equal labels share everything, others are alike to a degree that is learnt,

    .. math::

        k(\mathbf x, \mathbf x') = \prod_d e^{-[x_d \neq x'_d] / \ell_d}

    :param kwargs: Arguments of :class:`gpytorch.kernels.Kernel`: `ard_num_dims`, `batch_shape`, `active_dims`.

    Example:
        >>> import torch
        >>> from gpytorch_sgpvae.linalg.label_kernels import LabelKernel
        >>> kernel = LabelKernel(ard_num_dims=1).initialize(lengthscale=1.0)
        >>> kernel(torch.tensor([[0.0], [1.0], [0.0]])).to_dense().detach()
        tensor([[1.0000, 0.3679, 1.0000],
                [0.3679, 1.0000, 0.3679],
                [1.0000, 0.3679, 1.0000]])
    """

    has_lengthscale = True

    def forward(self, x1: Tensor, x2: Tensor, diag: bool = False, **params: Any) -> Tensor:
        differs = _differs(x1, x2, diag)  # (..., D, N) or (..., D, N, N')
        lengthscale = self.lengthscale.mT  # (..., D, 1)
        return (-differs / (lengthscale if diag else lengthscale.unsqueeze(-1))).sum(-2 if diag else -3).exp()


class SameKernel(Kernel):
    r"""
    A kernel of rows that have nothing in common unless all inputs are equal,

    .. math::

        k(\mathbf x, \mathbf x') = [\mathbf x = \mathbf x']

    Times a kernel over time it makes a process of each place's own: what a sensor keeps to itself.

    :param kwargs: Arguments of :class:`gpytorch.kernels.Kernel`: `batch_shape`, `active_dims`.

    Example:
        >>> import torch
        >>> from gpytorch_sgpvae.linalg.label_kernels import SameKernel
        >>> SameKernel()(torch.tensor([[0.0], [1.0], [0.0]])).to_dense()
        tensor([[1., 0., 1.],
                [0., 1., 0.],
                [1., 0., 1.]])
    """

    def forward(self, x1: Tensor, x2: Tensor, diag: bool = False, **params: Any) -> Tensor:
        values = 1.0 - _differs(x1, x2, diag).amax(-2 if diag else -3)
        own = 1 if diag else 2
        return values.expand(*torch.broadcast_shapes(values.shape[:-own], self.batch_shape), *values.shape[-own:])


def _differs(x1: Tensor, x2: Tensor, diag: bool) -> Tensor:
    """1 where inputs differ (`... x D x N`, or `... x D x N x N'`)."""
    left, right = x1.mT, x2.mT  # (..., D, N), (..., D, N')
    if not diag:
        left, right = left.unsqueeze(-1), right.unsqueeze(-2)
    return (left != right).to(x1.dtype)
