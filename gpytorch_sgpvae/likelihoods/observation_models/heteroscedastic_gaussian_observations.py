from __future__ import annotations

import torch
from gpytorch.constraints import GreaterThan, Interval
from torch import Tensor
from torch.distributions import Normal

from .base import ObservationModel
from .initial_sites import mask_sites


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

    def initial_sites(self, y: Tensor, observed: Tensor | None = None) -> tuple[Tensor, Tensor]:
        r"""
        The mean's likelihood with the variance where the decoder gives 0, and nothing about the variance:

        .. math::

            g_{np} = y_{np}, \qquad \lambda_{np} = \frac 1 {\sigma_p^2(0)}, \qquad g_{n,P+p} = \lambda_{n,P+p} = 0

        A single value says nothing about its variance as long as its mean is unknown:
        :math:`\int \mathcal N(y \mid h, \sigma^2) \, dh = 1` for all :math:`\sigma^2`.
        """
        y, observed = self._fill(y, observed)
        noise = self.noise_constraint.transform(torch.zeros_like(y))
        g, precision = mask_sites(y, noise.reciprocal(), observed)
        return torch.cat([g, torch.zeros_like(g)], -1), torch.cat([precision, torch.zeros_like(precision)], -1)
