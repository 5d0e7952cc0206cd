from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from gpytorch.distributions import MultivariateNormal
from linear_operator.operators import BlockDiagLinearOperator, DenseLinearOperator
from torch import Tensor

from ..linalg.conditionals import (
    Evidence,
    joint_evidence_of_sites,
    joint_shift_and_shrinkage,
    whitened_posterior,
)
from ..sites import GaussianSites
from .amortized_variational_strategy import AmortizedVariationalStrategy, PriorAt, SparseEncoding
from .joint_normal import JointNormal
from .joint_strategy import JointStrategy
from .posterior_covariance import JointPosteriorCovariance


@dataclass(frozen=True, eq=False)
class JointSparseEncoding(SparseEncoding):
    """
    What the sparse joint strategy remembers of a context: evidence and posterior are those of the whitened inducing
    values of all latent functions together (`*T x (K M)`), latent functions first.
    """

    @property
    def tasks(self) -> torch.Size:
        return self.posterior.weights.shape[:-1]

    def predict(self, x: Tensor, at_x: PriorAt | None, diag: bool, **kwargs: Any) -> MultivariateNormal:
        at_x = self.strategy.prior_at(x, self, **kwargs) if at_x is None else at_x
        shift, shrinkage = joint_shift_and_shrinkage(at_x.A, self.posterior)  # (*T, K, N), (*T, N, K, K)
        mean = (at_x.mean + shift).mT  # (*T, N, K)
        blocks = torch.diag_embed(at_x.variance.mT) - shrinkage  # (*T, N, K, K)
        if diag:
            return JointNormal(mean, BlockDiagLinearOperator(DenseLinearOperator(blocks)))
        reduction = self.posterior.reduction.to(blocks.dtype)
        return JointNormal(mean, JointPosteriorCovariance(at_x.covar(), at_x.A, reduction, blocks))


class JointAmortizedVariationalStrategy(JointStrategy, AmortizedVariationalStrategy):
    r"""
    The sparse strategy of :class:`~gpytorch_sgpvae.AmortizedVariationalStrategy` for sites that couple the latent
    functions: an output that is a sum of latent functions says something about their sum, and what one of them explains
    the others need not ("explaining away"). With J pseudo-observations of each point, of the sums
    :math:`\mathbf a_j^\top \mathbf f_n`, and the whitened inducing values :math:`\mathbf v \in \mathbb R^{K M}` of all
    latent functions:

    .. math::

        S = B^{-1}, \qquad
        B_{kl} = \delta_{kl} I + A_k \, \mathrm{diag} \Big( \sum_j \lambda_{nj} a_{jk} a_{jl} \Big) A_l^\top, \qquad
        \mathbf m = S \, \Big[ A_k \sum_j a_{jk} \lambda_{nj} (g_{nj} - \mathbf a_j^\top \boldsymbol \mu_n) \Big]_k

    .. math::

        \mathrm{cov}(f_k(\mathbf x_*), f_l(\mathbf x_*)) =
        \delta_{kl} \left( k_{**} - \mathbf a_{*k}^\top \mathbf a_{*k} \right)
        + \mathbf a_{*k}^\top S_{kl} \, \mathbf a_{*l}

    It returns q(f) as a :class:`~gpytorch.distributions.MultitaskMultivariateNormal` (`N x K`) and needs no wrapper;
    :func:`~gpytorch_sgpvae.point_covariances` gives the K x K covariance of each point. Sites without loadings make it
    the strategy of independent latent functions. Cost per task: :math:`O(N K^2 M^2 + K^3 M^3)`.

    The parameters are those of :class:`~gpytorch_sgpvae.AmortizedVariationalStrategy`.

    Example:
        >>> import gpytorch, torch
        >>> from gpytorch_sgpvae import (
        ...     AmortizedVariationalDistribution, JointAmortizedVariationalStrategy, JointFactorNet,
        ... )
        >>> class Model(gpytorch.models.ApproximateGP):
        ...     def __init__(self, inducing_points):
        ...         q_u = AmortizedVariationalDistribution(JointFactorNet(num_outputs=5, num_latents=3))
        ...         super().__init__(JointAmortizedVariationalStrategy(self, inducing_points, q_u))
        ...         self.mean_module = gpytorch.means.ZeroMean()
        ...         self.covar_module = gpytorch.kernels.MaternKernel(nu=1.5, batch_shape=torch.Size([3]))
        ...     def forward(self, x):
        ...         return gpytorch.distributions.MultivariateNormal(self.mean_module(x), self.covar_module(x))
        >>> model = Model(torch.rand(8, 2))
        >>> model(torch.rand(4, 2), context=(torch.rand(20, 2), torch.randn(20, 5))).event_shape
        torch.Size([4, 3])
    """

    def _evidence_at(self, at_sites: PriorAt, sites: GaussianSites) -> Evidence:
        if self.num_latents is None:
            return super()._evidence_at(at_sites, sites)
        return joint_evidence_of_sites(at_sites.A, sites, at_sites.mean)

    @property
    def _saved_shapes(self) -> dict[str, tuple[str, ...]]:
        if self.num_latents is None:
            return super()._saved_shapes
        return {**super()._saved_shapes, "precision_mean": ("KM",), "precision": ("KM", "KM")}

    def _encoding(self, Z: Tensor, Luu_inv: Tensor, evidence: Evidence) -> SparseEncoding:
        if self.num_latents is None:
            return super()._encoding(Z, Luu_inv, evidence)
        return JointSparseEncoding(self, Z, Luu_inv, evidence, whitened_posterior(evidence))

    def _prior_without_context(self) -> Any:
        prior = super()._prior_without_context()
        if self.num_latents is None:
            return prior
        return type(prior)(prior.loc.flatten(-2), BlockDiagLinearOperator(prior.lazy_covariance_matrix))
