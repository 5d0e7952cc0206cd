from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from gpytorch.distributions import MultivariateNormal
from gpytorch.models import ApproximateGP
from linear_operator.operators import DiagLinearOperator
from torch import Tensor

from ..context import Context
from ..sites import GaussianSites
from .amortized_multivariate_normal import AmortizedMultivariateNormal, AmortizedPrior, standard_normal
from .amortized_strategy import AmortizedStrategy
from .amortized_variational_distribution import AmortizedVariationalDistribution
from .encoding import Encoding


@dataclass(frozen=True, eq=False)
class PointwiseEncoding(Encoding):
    """
    The latent values of the context's points.

    :param context: The context, which tells whether inputs are its own.
    :param sites: The sites of its points (`*T x K x N`).
    """

    strategy: PointwiseStrategy
    context: Context
    sites: GaussianSites

    @property
    def tasks(self) -> torch.Size:
        return self.context.batch_shape

    @property
    def mean(self) -> Tensor:
        # m = λg / (1 + λ)
        return self.sites.precision_mean / (1 + self.sites.precision)

    @property
    def variance(self) -> Tensor:
        # 1 / (1 + λ)
        return (1 + self.sites.precision).reciprocal()

    def predict(self, x: Tensor, at_x: None, diag: bool, **kwargs: Any) -> MultivariateNormal:
        mean, variance = self.mean, self.variance  # (*T, K, N)
        own = self.context.x
        if not (self.context.is_at(x) or (x.shape == own.shape and torch.equal(x, own))):
            same = (x.unsqueeze(-2) == own.unsqueeze(-3)).all(-1)  # (*T, N*, N)
            if self.strategy.num_latents is not None:
                same = same.unsqueeze(-3)  # (*T, 1, N*, N)
            mean, variance = _look_up(mean, same, 0.0), _look_up(variance, same, 1.0)
        return MultivariateNormal(mean, DiagLinearOperator(variance))

    def split(self, x: Tensor, chunk_size: int) -> Sequence[Tensor]:
        """A part of the inputs would not be recognized as the context's own."""
        return [x]

    def q_u(self) -> AmortizedMultivariateNormal:
        mean, variance = self.mean, self.variance
        kl_divergence = 0.5 * (variance + mean.square() - 1 - variance.log()).sum(-1)  # (*T, K)
        return AmortizedMultivariateNormal(mean, DiagLinearOperator(variance), prior_kl=kl_divergence)

    def p_u(self) -> AmortizedPrior:
        return standard_normal(torch.zeros_like(self.sites.precision))

    def sites_of(self, q_f: MultivariateNormal) -> GaussianSites:
        return self.sites

    def detach(self) -> PointwiseEncoding:
        return PointwiseEncoding(self.strategy, self.context, self.sites.detach())


class PointwiseStrategy(AmortizedStrategy):
    r"""
    The dense strategy for a prior under which all latent values are independent, :math:`f_{nk} \sim \mathcal N(0, 1)`:
    the algebra of a delta kernel, K = I, in O(N).

    .. math::

        q(f_{nk}) = \mathcal N \left( \lambda_{nk} g_{nk} / (1 + \lambda_{nk}), \; 1 / (1 + \lambda_{nk}) \right)

    It tells something of the context's own points, which new inputs are if they are equal to theirs (to the first of
    them, if several are); everywhere else q(f) is the prior.
    """

    def __init__(self, model: ApproximateGP, variational_distribution: AmortizedVariationalDistribution):
        super().__init__(model, torch.empty(0, 1), variational_distribution, False, None)

    def _encode(
        self, context: Context, sites: GaussianSites, x: Tensor, **kwargs: Any
    ) -> tuple[PointwiseEncoding, None]:
        return PointwiseEncoding(self, context, sites), None


def _look_up(values: Tensor, same: Tensor, otherwise: float) -> Tensor:
    """The values (`*T x K x N`) of the points that inputs (`N*`) are the same as, if there are any."""
    batch = torch.broadcast_shapes(values.shape[:-1], same.shape[:-2])
    if not same.shape[-1]:
        return values.new_full((*batch, same.shape[-2]), otherwise)
    found, first = same.any(-1), same.to(torch.uint8).argmax(-1)  # (*T, 1, N*)
    values = values.expand(*batch, -1).gather(-1, first.expand(*batch, -1))  # (*T, K, N*)
    return torch.where(found, values, otherwise)
