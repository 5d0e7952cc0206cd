from __future__ import annotations

from torch import Tensor

from .base import ObservationModel
from .distributions import Poisson
from .initial_sites import mask_sites, poisson_site
from .special_functions import log_softplus


class PoissonObservations(ObservationModel):
    r"""
    Counts without overdispersion:

    .. math::

        y_{np} \sim \mathrm{Poisson} \left( \mathrm{softplus}(h_p(\mathbf f_n)) \right)

    Small rates are the exponential of the decoder's value, so that their logarithm is modeled, and large ones the value
    itself: with an exponential throughout, one far sample of the latent functions would dominate a whole batch, or
    overflow. Densities are computed from the logarithm of the rate, and nothing is clamped: values and gradients stay
    finite, and the gradients alive, however far off the decoder starts.

    :param num_outputs: Number of outputs P.

    Example:
        >>> import torch
        >>> from gpytorch_sgpvae import PoissonObservations
        >>> PoissonObservations(num_outputs=2)(torch.tensor([[0.0, 100.0]])).mean
        tensor([[  0.6931, 100.0000]])
    """

    is_elementwise = True

    def distribution(self, decoded: Tensor) -> Poisson:
        return Poisson(log_softplus(decoded))

    def initial_sites(self, y: Tensor, observed: Tensor | None = None) -> tuple[Tensor, Tensor]:
        r"""
        The likelihood's mode, softplus(h) = y, and its curvature there. For a zero there is no mode, but
        :math:`p(0 \mid h) = 1 / (1 + \exp(h))` is the likelihood of a flag that is 0, whose site it gets: see
        :class:`~gpytorch_sgpvae.BernoulliObservations`.

        .. math::

            g_{np}, \lambda_{np} = \begin{cases}
                \mathrm{softplus}^{-1}(y_{np}), \; \left( 1 - \exp(-y_{np}) \right)^2 / y_{np} & y_{np} > 0 \\
                -2.42, \; 0.206 & y_{np} = 0
            \end{cases}

        A large count is close to a Gaussian observation of variance y.
        """
        y, observed = self._fill(y, observed)
        return mask_sites(*poisson_site(y), observed)
