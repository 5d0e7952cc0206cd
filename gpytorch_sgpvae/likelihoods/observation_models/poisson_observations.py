from __future__ import annotations

from torch import Tensor

from .base import ObservationModel
from .distributions import Poisson, log_softplus


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

    def distribution(self, decoded: Tensor) -> Poisson:
        return Poisson(log_softplus(decoded))
