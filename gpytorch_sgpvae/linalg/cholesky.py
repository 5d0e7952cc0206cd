"""The Cholesky factor of matrices that are covariances but for rounding, or a sentence why there is none."""

from __future__ import annotations

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
        lost = int((~matrix.isfinite()).sum())
        if lost:
            raise NanError(
                f"A covariance matrix of shape {tuple(matrix.shape)} has {lost} entries that are not finite in "
                f"{matrix.dtype}: a parameter of the kernel or the network, or an inducing point, is not finite or so "
                "extreme that these overflow. Look for it among model.named_parameters(), and scale the data to about "
                "1 before training."
            ) from error
        raise NotPSDError(
            f"A covariance matrix of shape {tuple(matrix.shape)} is not positive definite in {matrix.dtype}, not even "
            "with GPyTorch's jitter on its diagonal: inducing points or inputs lie too close together for the kernel's "
            "scale, the kernel is none, or gpytorch.settings.linalg_dtypes is float32. Use fewer points, a larger "
            "jitter_val of the strategy, smaller outputscales, or float64 for linear algebra, as is the default."
        ) from error
