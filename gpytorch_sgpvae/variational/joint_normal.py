from __future__ import annotations

from typing import Any

from gpytorch.distributions import MultitaskMultivariateNormal, MultivariateNormal
from linear_operator.operators import LinearOperator
from torch import Tensor


class JointNormal(MultitaskMultivariateNormal):
    """
    A distribution of K latent functions at N points, point by point. Nothing but its class differs from what GPyTorch
    makes of mean and covariance: GPyTorch compares the number of entries of one with the size of the other, so that
    `torch.export` takes N for a constant. Here they have to fit.

    :param mean: (`*T x N x K`).
    :param covariance_matrix: (`*T x (N K) x (N K)`).
    """

    def __init__(
        self,
        mean: Tensor,
        covariance_matrix: LinearOperator | Tensor,
        validate_args: bool = False,
        interleaved: bool = True,
        **kwargs: Any,
    ):
        if not interleaved or not isinstance(covariance_matrix, LinearOperator):
            super().__init__(mean, covariance_matrix, validate_args, interleaved, **kwargs)
            return
        self._output_shape = mean.shape
        self._interleaved = True
        MultivariateNormal.__init__(self, mean.flatten(-2), covariance_matrix, validate_args, **kwargs)
