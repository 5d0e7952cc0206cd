from __future__ import annotations

import math

import torch
from gpytorch.constraints import GreaterThan, Interval
from gpytorch.priors import Prior
from torch import Tensor

from .base import LearntParameter, ObservationModel
from .distributions import CensoredNormal
from .initial_sites import mask_sites, step_site


class CensoredGaussianObservations(ObservationModel):
    r"""
    Amounts that are often exactly zero, such as rain: Gaussian noise around the decoder's values, and zero for all that
    is below it (`Tobin (1958)`_):

    .. math::

        y_{np} = \max(z_{np}, 0), \qquad z_{np} \sim \mathcal N \left( h_p(\mathbf f_n), \sigma_p^2 \right)

    A zero has the probability :math:`\Phi(-h_p / \sigma_p)`, every other value the density of z. Amounts have long
    tails: take their square or cube roots.

    :param num_outputs: Number of outputs P.
    :param noise_prior: Prior for the noise variance :math:`\sigma^2`.
    :param noise_constraint: Constraint for the noise variance; by default greater than 1e-4.

    :ivar torch.Tensor noise: :math:`\sigma^2` (`P`).

    Example:
        >>> import torch
        >>> from gpytorch_sgpvae import CensoredGaussianObservations
        >>> rain = CensoredGaussianObservations(num_outputs=1).initialize(noise=1.0)
        >>> rain(torch.tensor([[-1.0]])).log_prob(torch.tensor([[0.0]])).exp()  # dry
        tensor([[0.8413]], grad_fn=<ExpBackward0>)

    .. _Tobin (1958):
        https://doi.org/10.2307/1907382
    """

    is_elementwise = True

    noise = LearntParameter()

    def __init__(self, num_outputs: int, noise_prior: Prior | None = None, noise_constraint: Interval | None = None):
        super().__init__(num_outputs)
        type(self).noise.register(self, num_outputs, noise_constraint or GreaterThan(1e-4), noise_prior)

    def distribution(self, decoded: Tensor) -> CensoredNormal:
        return CensoredNormal(decoded, self.noise.sqrt().expand_as(decoded))

    def initial_sites(self, y: Tensor, observed: Tensor | None = None) -> tuple[Tensor, Tensor]:
        r"""
        An amount is a Gaussian observation. A zero has the likelihood :math:`\Phi(-h / \sigma)`, for which the site is
        the one that gives the exact posterior mean and variance under a unit Gaussian prior:

        .. math::

            g_{np}, \lambda_{np} = \begin{cases}
                y_{np}, \; \sigma_p^{-2} & y_{np} > 0 \\
                -\sqrt{\tfrac \pi 2 (1 + \sigma_p^2)}, \; \dfrac 2 {\pi (1 + \sigma_p^2) - 2} & y_{np} = 0
            \end{cases}
        """
        y, observed = self._fill(y, observed)
        # h ~ N(0, 1) and z = h + noise < 0: E[h | z < 0] = -√(2 / π) / √(1 + σ²)
        zero_g, zero_precision = step_site((2 / (math.pi * (1 + self.noise))).sqrt())
        positive = y > 0
        precision = torch.where(positive, self.noise.reciprocal(), zero_precision)
        return mask_sites(torch.where(positive, y, -zero_g), precision, observed)
