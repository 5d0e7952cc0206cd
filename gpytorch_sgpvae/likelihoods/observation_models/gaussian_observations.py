from __future__ import annotations

import torch
from gpytorch import Module
from gpytorch.constraints import GreaterThan, Interval
from gpytorch.priors import Prior
from torch import Tensor
from torch.distributions import Normal


class GaussianObservations(Module):
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

    raw_noise: Tensor
    raw_noise_constraint: Interval

    def __init__(
        self,
        num_outputs: int,
        shared_noise: bool = False,
        noise_prior: Prior | None = None,
        noise_constraint: Interval | None = None,
    ):
        super().__init__()
        self.num_outputs = num_outputs
        self.register_parameter("raw_noise", torch.nn.Parameter(torch.zeros(1 if shared_noise else num_outputs)))
        if noise_prior is not None:
            self.register_prior("noise_prior", noise_prior, _get_noise, _set_noise)
        self.register_constraint("raw_noise", noise_constraint or GreaterThan(1e-4))

    @property
    def noise(self) -> Tensor:
        return self.raw_noise_constraint.transform(self.raw_noise)

    @noise.setter
    def noise(self, value: Tensor | float) -> None:
        value = torch.as_tensor(value).to(self.raw_noise)
        self.initialize(raw_noise=self.raw_noise_constraint.inverse_transform(value))

    def forward(self, decoded: Tensor) -> Normal:
        """
        :param decoded: The decoder's values (`... x N x P`).
        :return: p(y | f), of batch shape `... x N x P`.
        """
        if decoded.shape[-1] != self.num_outputs:
            raise ValueError(
                f"GaussianObservations({self.num_outputs}) takes {self.num_outputs} values per row, but the decoder "
                f"gave it values of shape {tuple(decoded.shape)}: give the decoder out_size={self.num_outputs}."
            )
        return Normal(decoded, self.noise.sqrt().expand_as(decoded), validate_args=False)


def _get_noise(module: GaussianObservations) -> Tensor:
    return module.noise


def _set_noise(module: GaussianObservations, value: Tensor) -> None:
    module.noise = value
