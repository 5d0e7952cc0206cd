from __future__ import annotations

from gpytorch.constraints import GreaterThan, Interval
from torch import Tensor
from torch.distributions import Normal

from .base import ObservationModel


class HeteroscedasticGaussianObservations(ObservationModel):
    r"""
    Outputs with Gaussian noise whose variance the decoder gives too:

    .. math::

        y_{np} \sim \mathcal N \left( h_p(\mathbf f_n), \sigma_p^2(\mathbf f_n) \right), \qquad
        \sigma_p^2(\mathbf f_n) = \sigma_\text{min}^2 + \mathrm{softplus} \left( h_{P + p}(\mathbf f_n) \right)

    The decoder gives 2P values for each row: the P means, then what the P variances are made of.

    :param num_outputs: Number of outputs P.
    :param noise_constraint: Maps the decoder's values to variances; by default greater than 1e-4. A variance without
        a lower bound lets a single point that is fitted exactly make the likelihood infinite.

    Example:
        >>> import torch
        >>> from gpytorch_sgpvae import MLP, DecoderLikelihood, HeteroscedasticGaussianObservations
        >>> observations = HeteroscedasticGaussianObservations(num_outputs=5)
        >>> likelihood = DecoderLikelihood(MLP(3, observations.decoder_size), observations)
        >>> likelihood(torch.zeros(10, 3)).variance.shape
        torch.Size([10, 5])
    """

    def __init__(self, num_outputs: int, noise_constraint: Interval | None = None):
        super().__init__(num_outputs)
        self.noise_constraint = noise_constraint or GreaterThan(1e-4)

    @property
    def decoder_size(self) -> int:
        return 2 * self.num_outputs

    def distribution(self, decoded: Tensor) -> Normal:
        mean, raw_noise = decoded.chunk(2, dim=-1)  # (..., N, P)
        return Normal(mean, self.noise_constraint.transform(raw_noise).sqrt(), validate_args=False)
