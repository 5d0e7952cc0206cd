from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from gpytorch.distributions import MultivariateNormal
from linear_operator.operators import BlockDiagLinearOperator
from torch import Tensor

from ..context import Context
from ..linalg.conditionals import root_of_rounded
from ..linalg.entries import cross_covariance
from ..linalg.entry_posterior import EntryPosterior
from ..linalg.private_functions import PrivatePosterior
from ..linalg.products import matvec
from ..sites import GaussianSites, side_by_side
from .amortized_multivariate_normal import AmortizedMultivariateNormal, AmortizedPrior
from .dense_amortized_variational_strategy import PriorAt
from .encoding import Encoding
from .joint_normal import JointNormal
from .posterior_covariance import JointPosteriorCovariance, LazyJointCovariance, LazyMatrix, check_rows

if TYPE_CHECKING:
    from .dense_joint_amortized_variational_strategy import DenseJointAmortizedVariationalStrategy


@dataclass(frozen=True, eq=False)
class DenseJointEncoding(Encoding):
    """
    What the dense joint strategy remembers of a context.

    :param x: The context's inputs (`*T x N x D`).
    :param sites: The sites there (`*T x J x N`), with loadings.
    :param prior: The prior mean (`*T x K x N`) and covariances (`*T x K x N x N`) there.
    :param posterior: The posterior of the pseudo-observed sums.
    """

    strategy: DenseJointAmortizedVariationalStrategy
    x: Tensor
    sites: GaussianSites
    prior: tuple[Tensor, Tensor]
    posterior: EntryPosterior | PrivatePosterior

    @property
    def tasks(self) -> torch.Size:
        return self.posterior.tasks

    @property
    def weights(self) -> Tensor:
        """The weights of the context's points in the mean of each latent function (`*T x K x N`)."""
        alpha = self.posterior.weights  # (*T, J, N)
        return self.sites.to(alpha.dtype).to_latents(alpha)

    def predict(self, x: Tensor, at_x: PriorAt | None, diag: bool, **kwargs: Any) -> MultivariateNormal:
        at_x = self.strategy.prior_at(x, self.x, **kwargs) if at_x is None else at_x
        dtype = at_x.mean.dtype
        shift = matvec(at_x.Kfs.to(self.posterior.weights.dtype).mT, self.weights)  # (*T, K, N*)
        mean = (at_x.mean + shift.to(dtype)).mT  # (*T, N*, K)
        K = mean.shape[-1]
        blocks = LazyMatrix(mean, torch.Size([*mean.shape, K]), partial(self._blocks, at_x))
        if diag:
            q_f = JointNormal(mean, BlockDiagLinearOperator(blocks))
        else:
            size = mean.shape[-2] * K
            whole = LazyMatrix(mean, torch.Size([*mean.shape[:-2], size, size]), partial(self._whole, at_x))
            q_f = JointNormal(mean, LazyJointCovariance(blocks, whole))
        q_f.projected = partial(self._projected, at_x, mean)
        return q_f

    def _whole(self, at_x: PriorAt) -> Tensor:
        """The covariance of all points together (`*T x (N* K) x (N* K)`)."""
        C, dtype = self._cross_covariance(at_x), at_x.mean.dtype
        covar = JointPosteriorCovariance(
            at_x.covar(), C.to(dtype), self.posterior.reduction.to(dtype), self._blocks(at_x, C)
        )
        return covar.to_dense()

    def _cross_covariance(self, at_x: PriorAt) -> Tensor:
        """(`*T x K x E x N*`)"""
        dtype = self.posterior.weights.dtype
        loadings = self.sites.explicit_loadings().to(dtype)
        return cross_covariance(at_x.Kfs.to(dtype), loadings, self.posterior.entries)

    def _blocks(self, at_x: PriorAt, C: Tensor | None = None) -> Tensor:
        """The covariance of each point (`*T x N* x K x K`)."""
        C = self._cross_covariance(at_x) if C is None else C
        PC = self.posterior.reduction.unsqueeze(-3) @ C  # (*T, K, E, N*)
        shrinkage = C.movedim(-1, -3) @ PC.movedim(-1, -3).mT  # (*T, N*, K, K)
        blocks = torch.diag_embed(at_x.variance.mT).to(shrinkage.dtype) - shrinkage
        return blocks.to(at_x.mean.dtype)

    def _projected(
        self, at_x: PriorAt, mean: Tensor, loadings: Tensor, asked: Tensor | None = None
    ) -> tuple[Tensor, Tensor] | None:
        """
        Mean and variance of the sums that the context's sites are of (`*T x N* x J` each), without any K x K matrix;
        None for the sums by other loadings, and where the K x K matrices are the shortest way. What is not asked for
        (`*T x N* x J`) may be any finite number.
        """
        if not self.sites.are_of(loadings):
            return None
        if at_x.is_context:
            shift, variance = (part.mT.to(mean.dtype) for part in self.posterior.at_context(asked))
            return at_x.mean.mT @ loadings.mT + shift, variance
        variance_at_x = self.posterior.variance_at(at_x.Kfs, at_x.variance)
        return None if variance_at_x is None else (mean @ loadings.mT, variance_at_x.mT.to(mean.dtype))

    def q_u(self) -> AmortizedMultivariateNormal:
        """q(f) at the context's inputs, point by point; its covariance is computed if somebody looks at it."""
        at_x = self.strategy.at_context(self)
        mean = self.predict(self.x, at_x, diag=True).mean  # (*T, N, K)
        size = mean.shape[-2] * mean.shape[-1]

        def covariance() -> Tensor:
            check_rows(size)
            return self.predict(self.x, at_x, diag=False).lazy_covariance_matrix.to_dense()

        covar = LazyMatrix(mean, torch.Size([*mean.shape[:-2], size, size]), covariance)
        return AmortizedMultivariateNormal(
            mean.flatten(-2), covar, prior_kl=lambda: self.posterior.kl_divergence.to(mean.dtype)
        )

    def p_u(self) -> AmortizedPrior:
        mean, Kff = self.prior
        K, N = mean.shape[-2:]

        def covariance() -> Tensor:
            check_rows(N * K)
            eye = torch.eye(K, dtype=Kff.dtype, device=Kff.device)[:, :, None, None]
            covar = (eye * Kff.unsqueeze(-3)).movedim(-2, -4).movedim(-1, -2)  # (*T, N, K, N, K)
            return covar.flatten(-4, -3).flatten(-2).expand(*self.tasks, N * K, N * K)

        mean = mean.mT.flatten(-2).expand(*self.tasks, N * K)
        return AmortizedPrior(mean, LazyMatrix(mean, torch.Size([*self.tasks, N * K, N * K]), covariance))

    def sites_of(self, q_f: MultivariateNormal) -> GaussianSites:
        if isinstance(q_f.lazy_covariance_matrix, BlockDiagLinearOperator):
            raise ValueError(
                "This q(f) knows the covariance of each point alone: call the model with diag=False for joint samples."
            )
        return self.sites

    def sample(self, x: Tensor, n: int) -> Tensor:
        r"""
        Draw the latent functions, each draw jointly over all inputs (`n x *T x N* x K`), by Matheron's rule: with
        :math:`\mathbf f` drawn from the prior and :math:`\epsilon_{jn} \sim \mathcal N(0, \lambda_{jn}^{-1})`,

        .. math::

            f_{k*} + \sum_{jn} a_{jk} k_k(\mathbf x_*, \mathbf x_n) \, [P (\mathbf g - \mathbf a^\top \mathbf f
            - \boldsymbol \epsilon)]_{jn}, \qquad P = W B^{-1} W

        It takes Cholesky factors of (N + N*) x (N + N*), one for each latent function.
        """
        prior = self.strategy.priors(self.x, x)
        N, sites = self.x.shape[-2], self.sites.to(self.posterior.weights.dtype)
        Kff, Kfs, Kss = self.prior[1], *(prior.covariance(i, 1).to_dense() for i in (0, 1))
        root = root_of_rounded(_joint(Kff, Kfs, Kss))
        # tasks that share their inputs share the root, but no draws
        tasks = torch.broadcast_shapes(self.tasks, root.shape[:-3])
        root = root.expand(*tasks, *root.shape[-3:])  # (*T, K, N + N*, N + N*)
        paths = root @ torch.randn(n, *root.shape[:-1], 1, dtype=root.dtype, device=root.device)
        seen, new = paths.squeeze(-1).split([N, x.shape[-2]], dim=-1)  # (n, *T, K, N), (n, *T, K, N*)
        known = sites.precision > 0  # (*T, J, N)
        noise = torch.where(known, sites.precision, 1.0).rsqrt() * torch.randn_like(
            sites.precision.expand(n, *self.tasks, *sites.shape[-2:])
        )
        sums = (sites.explicit_loadings() @ seen.mT.unsqueeze(-1)).squeeze(-1).mT  # (n, *T, J, N)
        alpha = self.posterior.weights - self.posterior.reduce(torch.where(known, sums + noise, 0.0))
        draws = new + matvec(Kfs.to(root.dtype).mT, sites.to_latents(alpha))  # (n, *T, K, N*)
        return (prior.mean(1) + draws.to(self.prior[0].dtype)).mT

    def absorb(self, context: Context) -> DenseJointEncoding:
        """Absorb new points at the cubic cost of all entries together: their matrix is factorized anew."""
        further = self.strategy.sites_of_further(context, self.tasks)
        x = torch.cat([part.expand(*self.tasks, *part.shape[-2:]) for part in (self.x, context.x)], dim=-2)
        sites = side_by_side([part.expand((*self.tasks, *part.shape[-2:])) for part in (self.sites, further)])
        return self.strategy.encode_sites(x, sites, x)[0]

    def state_dict(self) -> dict[str, Tensor]:
        return {
            "x": self.x.detach(),
            "precision_mean": self.sites.precision_mean.detach(),
            "precision": self.sites.precision.detach(),
            "loadings": self.sites.explicit_loadings().detach(),
        }

    def detach(self) -> DenseJointEncoding:
        prior = (self.prior[0].detach(), self.prior[1].detach())
        return DenseJointEncoding(self.strategy, self.x.detach(), self.sites.detach(), prior, self.posterior.detach())


def _joint(Kff: Tensor, Kfs: Tensor, Kss: Tensor) -> Tensor:
    """The covariance at two sets of inputs together (`*T x K x (N + N*) x (N + N*)`)."""
    tasks = torch.broadcast_shapes(*(K.shape[:-2] for K in (Kff, Kfs, Kss)))
    Kff, Kfs, Kss = (K.expand(*tasks, *K.shape[-2:]) for K in (Kff, Kfs, Kss))
    return torch.cat([torch.cat([Kff, Kfs], -1), torch.cat([Kfs.mT, Kss], -1)], -2)
