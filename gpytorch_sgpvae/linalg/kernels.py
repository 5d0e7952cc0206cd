"""GPyTorch's kernels, where a gradient by hand makes them faster."""

from __future__ import annotations

from typing import Any

from gpytorch.kernels import RBFKernel, ScaleKernel
from gpytorch.settings import trace_mode
from torch import Tensor

from .functions import SquaredExponentialFunction


class ScaledRBFKernel(ScaleKernel):
    r"""
    GPyTorch's :class:`~gpytorch.kernels.ScaleKernel` of an :class:`~gpytorch.kernels.RBFKernel`, in a third of the
    passes over the matrix:

    .. math::

        k(\mathbf x, \mathbf x') = s \exp \left( -\tfrac 1 2 \sum_d (x_d - x'_d)^2 / \ell_d^2 \right)

    Its parameters, their names, and everything else about it are GPyTorch's. The ready-made models have it by default.

    :param kwargs: Of the :class:`~gpytorch.kernels.RBFKernel`: `ard_num_dims`, `batch_shape` and so on.

    Example:
        >>> import torch
        >>> from gpytorch_sgpvae.linalg.kernels import ScaledRBFKernel
        >>> ScaledRBFKernel(ard_num_dims=2)(torch.rand(5, 2), torch.rand(4, 2)).to_dense().shape
        torch.Size([5, 4])
    """

    def __init__(self, **kwargs: Any):
        base_kernel = RBFKernel(**kwargs)
        super().__init__(base_kernel, batch_shape=base_kernel.batch_shape)

    def forward(
        self, x1: Tensor, x2: Tensor, last_dim_is_batch: bool = False, diag: bool = False, **params: Any
    ) -> Tensor:
        if diag or last_dim_is_batch or trace_mode.on():
            return super().forward(x1, x2, last_dim_is_batch=last_dim_is_batch, diag=diag, **params)
        lengthscale, outputscale = self.base_kernel.lengthscale, self.outputscale
        return SquaredExponentialFunction.apply(x1 / lengthscale, x2 / lengthscale, outputscale[..., None, None])
