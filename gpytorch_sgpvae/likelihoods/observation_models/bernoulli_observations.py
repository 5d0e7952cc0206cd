from __future__ import annotations

import torch
from torch import Tensor

from .base import ObservationModel
from .distributions import Bernoulli
from .initial_sites import LOGISTIC_SHIFT, mask_sites, step_site


class BernoulliObservations(ObservationModel):
    r"""
    Flags, 0 or 1, whose log-odds the decoder gives:

    .. math::

        y_{np} \sim \mathrm{Bernoulli} \left( \frac 1 {1 + \exp(-h_p(\mathbf f_n))} \right)

    :param num_outputs: Number of outputs P.

    Example:
        >>> import torch
        >>> from gpytorch_sgpvae import BernoulliObservations
        >>> BernoulliObservations(num_outputs=2)(torch.zeros(1, 2)).mean
        tensor([[0.5000, 0.5000]])
    """

    is_elementwise = True

    def distribution(self, decoded: Tensor) -> Bernoulli:
        return Bernoulli(logits=decoded, validate_args=False)

    def initial_sites(self, y: Tensor, observed: Tensor | None = None) -> tuple[Tensor, Tensor]:
        r"""
        The site that gives the exact posterior mean and variance under a unit Gaussian prior on the log-odds:

        .. math::

            g_{np} = \frac {2 y_{np} - 1} m, \qquad \lambda_{np} = \frac {m^2} {1 - m^2}, \qquad
            m = \mathbb E[h \mid y = 1] = 0.413

        that is, :math:`g = \pm 2.42` and :math:`\lambda = 0.206`.
        """
        y, observed = self._fill(y, observed)
        g, precision = step_site(torch.full_like(y, LOGISTIC_SHIFT))
        return mask_sites((2 * y - 1) * g, precision, observed)
