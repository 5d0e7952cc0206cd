"""Columns without units, and the way back."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

import torch
from torch import Tensor


class Normalizer(NamedTuple):
    r"""
    Columns with mean 0 and standard deviation 1, and the way back:

    .. math::

        y'_{np} = \frac{y_{np} - \mu_p}{\sigma_p}, \qquad y_{np} = \mu_p + \sigma_p \, y'_{np}

    It is a pair, and :meth:`~gpytorch_sgpvae.Prediction.rescale` takes it as such: `prediction.rescale(*normalizer)`.

    :param mean: :math:`\mu` (`P`).
    :param stddev: :math:`\sigma` (`P`), positive.

    Example:
        >>> import torch
        >>> from gpytorch_sgpvae.utils.normalizer import Normalizer
        >>> y = torch.tensor([[1.0, 5.0], [3.0, 5.0], [float("nan"), 5.0]])
        >>> normalizer = Normalizer.fit([y])
        >>> normalizer.normalize(y)
        tensor([[-1.,  0.],
                [ 1.,  0.],
                [nan,  0.]])
        >>> normalizer.denormalize(normalizer.normalize(y))
        tensor([[1., 5.],
                [3., 5.],
                [nan, 5.]])
    """

    mean: Tensor
    stddev: Tensor

    @classmethod
    def fit(cls, tables: Iterable[Tensor]) -> Normalizer:
        r"""
        Mean and standard deviation (of the population) of the columns' observed values. A constant column has
        :math:`\sigma = 1`, and one without any values :math:`\mu = 0` too.

        :param tables: One or more (`N_t x P`); NaN is a missing entry.
        """
        rows = torch.cat(list(tables))  # (N, P)
        mean = rows.nanmean(0)
        stddev = (rows - mean).square().nanmean(0).sqrt()
        # The mean of equal numbers may differ from them in the last digit.
        varies = stddev > 4 * torch.finfo(rows.dtype).eps * mean.abs()
        return cls(mean.nan_to_num(), torch.where(varies, stddev, 1.0))

    def normalize(self, y: Tensor) -> Tensor:
        """
        Convert from original units; NaN stays NaN.

        :param y: (`... x P`).
        """
        return (y - self.mean.to(y)) / self.stddev.to(y)

    def denormalize(self, y: Tensor) -> Tensor:
        """
        Convert back to original units; NaN stays NaN.

        :param y: (`... x P`).
        """
        return self.mean.to(y) + self.stddev.to(y) * y
