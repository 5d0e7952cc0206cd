from __future__ import annotations

from torch import Tensor

from .base import ObservationModel
from .distributions import Bernoulli


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

    def distribution(self, decoded: Tensor) -> Bernoulli:
        return Bernoulli(logits=decoded, validate_args=False)
