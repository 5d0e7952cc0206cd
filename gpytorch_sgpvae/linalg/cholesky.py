"""The Cholesky factor of matrices that are covariances but for rounding, or a sentence why there is none."""

from __future__ import annotations

import torch
from linear_operator.utils.cholesky import psd_safe_cholesky
from linear_operator.utils.errors import NanError, NotPSDError
from torch import Tensor


def safe_cholesky(matrix: Tensor) -> Tensor:
    """
    The lower Cholesky factor (`... x M x M`), with GPyTorch's jitter where rounding has cost definiteness. Errors are
    of GPyTorch's classes.

    :param matrix: (`... x M x M`).
    """
    try:
        return psd_safe_cholesky(matrix)
    except (NanError, NotPSDError) as error:
        if not matrix.isfinite().all():
            raise _not_finite(matrix) from error
        raise NotPSDError(
            f"A covariance matrix of shape {tuple(matrix.shape)} is not positive definite in {matrix.dtype}, not even "
            "with GPyTorch's jitter on its diagonal: inducing points or inputs lie too close together for the kernel's "
            "scale, the kernel is no covariance function, or gpytorch.settings.linalg_dtypes is float32. Use fewer "
            "points, a larger jitter_val of the strategy, smaller outputscales, or float64 for linear algebra, as is "
            "the default."
        ) from error


def safe_root(matrix: Tensor) -> Tensor:
    r"""
    A square root :math:`R` with :math:`R R^\top` equal to the matrix, which may be singular (`... x M x M`).

    :param matrix: A covariance but for rounding (`... x M x M`).
    """
    try:
        values, vectors = torch.linalg.eigh(matrix)
    except torch.linalg.LinAlgError as error:
        raise _not_finite(matrix) from error
    return vectors * values.clamp_min(0.0).sqrt().unsqueeze(-2)


def _not_finite(matrix: Tensor) -> NanError:
    return NanError(
        f"A covariance matrix of shape {tuple(matrix.shape)} has {int((~matrix.isfinite()).sum())} entries that are "
        f"not finite in {matrix.dtype}: a parameter of the kernel or the network, or an inducing point, is not finite "
        "or so extreme that these overflow. Look for it among model.named_parameters(), and scale the data to about "
        "1 before training."
    )
