from __future__ import annotations

from collections.abc import Callable

import torch
from gpytorch.distributions import MultivariateNormal
from linear_operator.operators import DiagLinearOperator, LinearOperator
from torch import Tensor
from torch.distributions.kl import register_kl


class AmortizedPrior(MultivariateNormal):
    r"""The prior :math:`p(\mathbf u)` that belongs to an :class:`AmortizedMultivariateNormal`."""


def standard_normal(zeros: Tensor) -> AmortizedPrior:
    """The prior N(0, I) of the shape of zeros, which are its mean."""
    return AmortizedPrior(zeros, DiagLinearOperator(torch.ones_like(zeros)))


class AmortizedMultivariateNormal(MultivariateNormal):
    r"""
    A :math:`q(\mathbf u)` that brings its KL divergence from the prior along, so that the divergence which GPyTorch's
    strategies and objectives ask for costs no second Cholesky.

    :param mean: (`*batch_shape x M`).
    :param covariance_matrix: (`*batch_shape x M x M`).
    :param prior_kl: KL divergence from the :class:`AmortizedPrior` (`*batch_shape`), or what computes it when somebody
        asks. Distributions that GPyTorch derives from this one (by indexing, say) do not know theirs: GPyTorch's own
        formula takes over.
    """

    def __init__(
        self,
        mean: Tensor,
        covariance_matrix: Tensor | LinearOperator,
        validate_args: bool = False,
        prior_kl: Tensor | Callable[[], Tensor] | None = None,
    ):
        super().__init__(mean, covariance_matrix, validate_args=validate_args)
        self._prior_kl = prior_kl

    @property
    def prior_kl(self) -> Tensor | None:
        """The KL divergence from the prior, None where it is not known (`*batch_shape`)."""
        if callable(self._prior_kl):
            self._prior_kl = self._prior_kl()
        return self._prior_kl

    def expand(self, batch_size: torch.Size) -> AmortizedMultivariateNormal:
        expanded = super().expand(batch_size)
        if self.prior_kl is not None:
            expanded._prior_kl = self.prior_kl.expand(torch.Size(batch_size))
        return expanded


@register_kl(AmortizedMultivariateNormal, AmortizedPrior)
def _kl_amortized_prior(q: AmortizedMultivariateNormal, p: AmortizedPrior) -> Tensor:
    if q.prior_kl is None:
        return torch.distributions.kl_divergence(
            MultivariateNormal(q.loc, q.lazy_covariance_matrix), MultivariateNormal(p.loc, p.lazy_covariance_matrix)
        )
    if q.batch_shape == p.batch_shape:
        return q.prior_kl
    return q.prior_kl.expand(torch.broadcast_shapes(q.batch_shape, p.batch_shape))
