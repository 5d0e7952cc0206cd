"""Numbers from 0 with a tail that may be as long as that of a log-normal distribution, or shorter."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.distributions import Distribution, Normal, constraints


class ShiftedLogNormal(Distribution):
    r"""
    The exponential of a Gaussian variable less an offset, and zero for all that is below it:

    .. math::

        y = \max(e^z - c, 0), \qquad z \sim \mathcal N(\mu, \sigma^2)

    With a small offset it is log-normal, and the larger it is the closer to a Gaussian. All that is below zero is a
    probability of exactly zero; densities are those of :math:`e^z - c`.

    :param loc: :math:`\mu`.
    :param scale: :math:`\sigma`.
    :param offset: c, greater than 0.

    Example:
        >>> import torch
        >>> from gpytorch_sgpvae.likelihoods.observation_models.shifted_log_normal import ShiftedLogNormal
        >>> distribution = ShiftedLogNormal(torch.tensor(0.0), torch.tensor(1.0), torch.tensor(1.0))
        >>> distribution.cdf(torch.tensor([-1.0, 0.0, 1.0]))
        tensor([0.0000, 0.5000, 0.7559])
    """

    def __init__(self, loc: Tensor, scale: Tensor, offset: Tensor):
        loc, scale = torch.broadcast_tensors(loc, scale)
        self.normal = Normal(loc, scale, validate_args=False)
        self.offset = offset.expand_as(self.normal.loc)
        super().__init__(self.normal.batch_shape, validate_args=False)

    @property
    def support(self) -> constraints.Constraint:
        return constraints.nonnegative

    @property
    def mean(self) -> Tensor:
        # E max(e^z − c, 0) = e^(μ + σ²/2) Φ(d + σ) − c Φ(d), with d = (μ − log c) / σ
        first, _, above = self._partial_moments()
        return first - self.offset * above

    @property
    def variance(self) -> Tensor:
        first, second, above = self._partial_moments()
        square = second - 2 * self.offset * first + self.offset.square() * above
        return (square - self.mean.square()).clamp_min(0.0)

    @property
    def stddev(self) -> Tensor:
        return self.variance.sqrt()

    def expand(self, batch_shape: Sequence[int], _instance: Distribution | None = None) -> ShiftedLogNormal:
        shape = torch.Size(batch_shape)
        return ShiftedLogNormal(
            self.normal.loc.expand(shape), self.normal.scale.expand(shape), self.offset.expand(shape)
        )

    def log_prob(self, value: Tensor) -> Tensor:
        logarithm = (value + self.offset).log()
        return self.normal.log_prob(logarithm) - logarithm

    def cdf(self, value: Tensor) -> Tensor:
        logarithm = (value.clamp_min(0.0) + self.offset).log()
        return torch.where(value < 0, 0.0, self.normal.cdf(logarithm))

    def icdf(self, value: Tensor) -> Tensor:
        return (self.normal.icdf(value).exp() - self.offset).clamp_min(0.0)

    def rsample(self, sample_shape: Sequence[int] = ()) -> Tensor:
        return (self.normal.rsample(torch.Size(sample_shape)).exp() - self.offset).clamp_min(0.0)

    @torch.no_grad()
    def sample(self, sample_shape: Sequence[int] = ()) -> Tensor:
        return self.rsample(sample_shape)

    def _partial_moments(self) -> tuple[Tensor, Tensor, Tensor]:
        """The first and second moment of the exponential where it is above the offset, and the probability of that."""
        loc, scale = self.normal.loc, self.normal.scale
        d = (loc - self.offset.log()) / scale
        first = (loc + 0.5 * scale.square()).exp() * torch.special.ndtr(d + scale)
        second = (2 * loc + 2 * scale.square()).exp() * torch.special.ndtr(d + 2 * scale)
        return first, second, torch.special.ndtr(d)
