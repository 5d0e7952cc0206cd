from __future__ import annotations

from gpytorch.constraints import GreaterThan, Interval
from gpytorch.priors import Prior
from torch import Tensor
from torch.distributions import Normal

from .base import LearntParameter, ObservationModel
from .initial_sites import mask_sites


class GaussianObservations(ObservationModel):
    r"""
    Outputs with Gaussian noise around the decoder's values:

    .. math::

        y_{np} \sim \mathcal N \left( h_p(\mathbf f_n), \sigma_p^2 \right)

    :param num_outputs: Number of outputs P.
    :param shared_noise: One noise variance for all outputs instead of one for each.
    :param noise_prior: Prior for the noise variance :math:`\sigma^2`.
    :param noise_constraint: Constraint for the noise variance; by default greater than 1e-4.

    :ivar torch.Tensor noise: :math:`\sigma^2` (`P`, or 1 if shared).

    Example:
        >>> import torch
        >>> from gpytorch_sgpvae import GaussianObservations
        >>> observations = GaussianObservations(num_outputs=5)
        >>> observations.noise = 0.01
        >>> observations(torch.zeros(10, 5)).batch_shape
        torch.Size([10, 5])
    """

    is_elementwise = True

    noise = LearntParameter()

    def __init__(
        self,
        num_outputs: int,
        shared_noise: bool = False,
        noise_prior: Prior | None = None,
        noise_constraint: Interval | None = None,
    ):
        super().__init__(num_outputs)
        size = 1 if shared_noise else num_outputs
        type(self).noise.register(self, size, noise_constraint or GreaterThan(1e-4), noise_prior)

    def distribution(self, decoded: Tensor) -> Normal:
        return Normal(decoded, self.noise.sqrt().expand_as(decoded), validate_args=False)

    def initial_sites(self, y: Tensor, observed: Tensor | None = None) -> tuple[Tensor, Tensor]:
        r"""
        The likelihood itself, which is Gaussian in h:

        .. math::

            g_{np} = y_{np}, \qquad \lambda_{np} = \frac 1 {\sigma_p^2}
        """
        y, observed = self._fill(y, observed)
        return mask_sites(y, self.noise.reciprocal(), observed)
