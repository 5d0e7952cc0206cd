from __future__ import annotations

from gpytorch.constraints import GreaterThan, Interval
from gpytorch.priors import Prior
from torch import Tensor

from .base import LearntParameter, ObservationModel
from .distributions import LogNormal
from .initial_sites import mask_sites


class LogNormalObservations(ObservationModel):
    r"""
    Positive outputs, such as amounts and concentrations, whose logarithms have Gaussian noise around the decoder's
    values:

    .. math::

        \log y_{np} \sim \mathcal N \left( h_p(\mathbf f_n), \sigma_p^2 \right)

    Zero is not among them: for amounts that are often exactly zero, such as rain, there is
    :class:`~gpytorch_sgpvae.CensoredGaussianObservations`.

    :param num_outputs: Number of outputs P.
    :param noise_prior: Prior for the noise variance :math:`\sigma^2` of the logarithms.
    :param noise_constraint: Constraint for the noise variance; by default greater than 1e-4.

    :ivar torch.Tensor noise: :math:`\sigma^2` (`P`).

    Example:
        >>> import torch
        >>> from gpytorch_sgpvae import LogNormalObservations
        >>> observations = LogNormalObservations(num_outputs=2).initialize(noise=0.01)
        >>> observations(torch.zeros(1, 2)).mean
        tensor([[1.0050, 1.0050]], grad_fn=<ExpBackward0>)
    """

    is_elementwise = True

    noise = LearntParameter()

    def __init__(self, num_outputs: int, noise_prior: Prior | None = None, noise_constraint: Interval | None = None):
        super().__init__(num_outputs)
        type(self).noise.register(self, num_outputs, noise_constraint or GreaterThan(1e-4), noise_prior)

    def distribution(self, decoded: Tensor) -> LogNormal:
        return LogNormal(decoded, self.noise.sqrt().expand_as(decoded), validate_args=False)

    def initial_sites(self, y: Tensor, observed: Tensor | None = None) -> tuple[Tensor, Tensor]:
        r"""
        The likelihood itself, which is Gaussian in h:

        .. math::

            g_{np} = \log y_{np}, \qquad \lambda_{np} = \frac 1 {\sigma_p^2}
        """
        y, observed = self._fill(y, observed)
        return mask_sites(y.log(), self.noise.reciprocal(), observed)
