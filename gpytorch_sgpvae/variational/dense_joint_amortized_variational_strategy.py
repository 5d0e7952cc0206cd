from __future__ import annotations

import warnings
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from gpytorch.distributions import MultitaskMultivariateNormal, MultivariateNormal
from linear_operator import to_linear_operator
from linear_operator.operators import BlockDiagLinearOperator
from torch import Tensor

from ..context import Context
from ..linalg.conditionals import DensePosterior, entry_posterior, root_of_rounded, shift_and_shrinkage
from ..linalg.entries import (
    cross_covariance,
    entry_covariance,
    informative_entries,
    put_back,
    take,
    take_block,
    take_rows,
)
from ..linalg.factored import FactoredPosterior
from ..linalg.products import matvec
from ..sites import GaussianSites, side_by_side
from .amortized_multivariate_normal import AmortizedMultivariateNormal, AmortizedPrior
from .dense_amortized_variational_strategy import (
    OVER_TIME,
    DenseAmortizedVariationalStrategy,
    PriorAt,
    prior_of_second_group,
)
from .encoding import Encoding
from .joint_strategy import JointStrategy
from .posterior_covariance import JointPosteriorCovariance, LazyJointCovariance, LazyMatrix, check_rows
from .saved_posterior import ROWS, check_saved


@dataclass(frozen=True, eq=False)
class DenseJointEncoding(Encoding):
    """
    What the dense joint strategy remembers of a context.

    :param x: The context's inputs (`*T x N x D`).
    :param sites: The sites there (`*T x J x N`), with loadings.
    :param entries: The numbers of those pseudo-observations that say anything (`*T x E`), or None for all.
    :param prior: The prior mean (`*T x K x N`) and covariances (`*T x K x N x N`) there.
    :param G: The prior covariance of all pseudo-observed sums (`*T x (J N) x (J N)`).
    :param posterior: The posterior of the informative ones (`*T x E x E`).
    """

    strategy: DenseJointAmortizedVariationalStrategy
    x: Tensor
    sites: GaussianSites
    entries: Tensor | None
    prior: tuple[Tensor, Tensor]
    G: Tensor
    posterior: DensePosterior | FactoredPosterior

    @property
    def tasks(self) -> torch.Size:
        return self.posterior.weights.shape[:-1]

    @property
    def weights(self) -> Tensor:
        """The weights of the context's points in the mean of each latent function (`*T x K x N`)."""
        J, N = self.sites.shape[-2:]
        alpha = put_back(self.posterior.weights, self.entries, J * N).unflatten(-1, (J, N))  # (*T, J, N)
        return self._sites_in_working_dtype().to_latents(alpha)

    def predict(self, x: Tensor, at_x: PriorAt | None, diag: bool, **kwargs: Any) -> MultivariateNormal:
        at_x = self.strategy.prior_at(x, self.x, **kwargs) if at_x is None else at_x
        dtype = at_x.mean.dtype
        shift = matvec(at_x.Kfs.to(self.posterior.weights.dtype).mT, self.weights)  # (*T, K, N*)
        mean = (at_x.mean + shift.to(dtype)).mT  # (*T, N*, K)
        K = mean.shape[-1]
        blocks = LazyMatrix(mean, torch.Size([*mean.shape, K]), partial(self._blocks, at_x))
        if diag:
            q_f = MultitaskMultivariateNormal(mean, BlockDiagLinearOperator(blocks))
        else:
            size = mean.shape[-2] * K
            whole = LazyMatrix(mean, torch.Size([*mean.shape[:-2], size, size]), partial(self._whole, at_x))
            q_f = MultitaskMultivariateNormal(mean, LazyJointCovariance(blocks, whole))
        if at_x.is_context:
            q_f.projected = partial(self._projected, at_x)
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
        loadings = self._sites_in_working_dtype().explicit_loadings()
        return cross_covariance(at_x.Kfs.to(loadings.dtype), loadings, self.entries)

    def _blocks(self, at_x: PriorAt, C: Tensor | None = None) -> Tensor:
        """The covariance of each point (`*T x N* x K x K`)."""
        C = self._cross_covariance(at_x) if C is None else C
        PC = self.posterior.reduction.unsqueeze(-3) @ C  # (*T, K, E, N*)
        shrinkage = C.movedim(-1, -3) @ PC.movedim(-1, -3).mT  # (*T, N*, K, K)
        blocks = torch.diag_embed(at_x.variance.mT).to(shrinkage.dtype) - shrinkage
        return blocks.to(at_x.mean.dtype)

    def _projected(self, at_x: PriorAt, loadings: Tensor, asked: Tensor | None = None) -> tuple[Tensor, Tensor] | None:
        """
        Mean and variance of the sums that the context's sites are of, at all its points (`*T x N x J` each), without
        any K x K matrix; None for the sums by other loadings. If only some entries are asked for (`*T x N x J`), the
        others may be those of the prior mean, with variance 0, and cost nothing; nor do informative ones, which are all
        that training asks for.
        """
        if not self.sites.are_of(loadings):
            return None
        J, N = self.sites.shape[-2:]
        if self.entries is None:
            shift, variance = self.posterior.shift, self.posterior.variance  # (*T, J N)
        elif asked is not None and asked.shape[-2:] == (N, J) and self._covers(asked):
            shift, variance = (
                put_back(part, self.entries, J * N) for part in (self.posterior.shift, self.posterior.variance)
            )
        else:
            wanted = None if asked is None else informative_entries(asked.mT.flatten(-2))
            cross = take_rows(take_rows(self.G, self.entries).mT, wanted).mT  # (*T, E, J N), or those asked for
            shift, shrinkage = shift_and_shrinkage(cross, self.posterior)
            variance = take(self.G.diagonal(dim1=-2, dim2=-1), wanted) - shrinkage
            shift, variance = (put_back(part, wanted, J * N) for part in (shift, variance))
        shift, variance = (part.unflatten(-1, (J, N)).mT.to(at_x.mean.dtype) for part in (shift, variance))
        return at_x.mean.mT @ loadings.mT + shift, variance

    def _covers(self, asked: Tensor) -> bool:
        """Whether the posterior is about all entries that are asked for (`*T x N x J`)."""
        assert self.entries is not None
        covered = put_back(torch.ones_like(self.entries), self.entries, asked.shape[-2:].numel()).bool()
        return not bool((asked.mT.flatten(-2) & ~covered).any())

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
        sites, N = self._sites_in_working_dtype(), self.x.shape[-2]
        Kff, Kfs, Kss = self.prior[1], *(prior.covariance(i, 1).to_dense() for i in (0, 1))
        root = root_of_rounded(_joint(Kff, Kfs, Kss))  # (*T, K, N + N*, N + N*)
        paths = root @ torch.randn(n, *root.shape[:-1], 1, dtype=root.dtype, device=root.device)
        seen, new = paths.squeeze(-1).split([N, x.shape[-2]], dim=-1)  # (n, *T, K, N), (n, *T, K, N*)
        known = sites.precision > 0  # (*T, J, N)
        noise = torch.where(known, sites.precision, 1.0).rsqrt() * torch.randn_like(
            sites.precision.expand(n, *self.tasks, *sites.shape[-2:])
        )
        sums = (sites.explicit_loadings() @ seen.mT.unsqueeze(-1)).squeeze(-1).mT  # (n, *T, J, N)
        seen_sums = torch.where(known, sums + noise, 0.0).flatten(-2)  # (n, *T, J N)
        if self.entries is not None:
            seen_sums = seen_sums.gather(-1, self.entries.expand(*seen_sums.shape[:-1], self.entries.shape[-1]))
        weights = self.posterior.weights - matvec(self.posterior.reduction, seen_sums)  # (n, *T, E)
        alpha = put_back(weights, self.entries, known.shape[-2:].numel()).unflatten(-1, known.shape[-2:])
        draws = new + matvec(Kfs.to(root.dtype).mT, sites.to_latents(alpha))  # (n, *T, K, N*)
        return (prior.mean(1) + draws.to(self.prior[0].dtype)).mT

    def absorb(self, context: Context) -> DenseJointEncoding:
        """In the cubic cost of all entries together: their matrix is factorized anew."""
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
        return DenseJointEncoding(
            self.strategy,
            self.x.detach(),
            self.sites.detach(),
            self.entries,
            (self.prior[0].detach(), self.prior[1].detach()),
            self.G.detach(),
            self.posterior.detach(),
        )

    def _sites_in_working_dtype(self) -> GaussianSites:
        dtype, sites = self.posterior.weights.dtype, self.sites
        return GaussianSites(
            sites.precision_mean.to(dtype), sites.precision.to(dtype), sites.explicit_loadings().to(dtype)
        )


class DenseJointAmortizedVariationalStrategy(JointStrategy, DenseAmortizedVariationalStrategy):
    r"""
    The dense strategy for sites that couple the latent functions, without inducing points. Over the E
    pseudo-observations that say anything, of the sums :math:`\mathbf a_j^\top \mathbf f_n`, with
    :math:`W = \Lambda^{1/2}`:

    .. math::

        G_{(j n)(i m)} = \sum_k a_{jk} a_{ik} \, k_k(\mathbf x_n, \mathbf x_m), \qquad
        B = I + W G W, \qquad
        \boldsymbol \alpha = W B^{-1} W^{-1} \lambda (g - \mathbf a^\top \boldsymbol \mu)

    .. math::

        q(f_k(\mathbf x_*)): \quad \mu_{k*} + \sum_{jn} a_{jk} k_k(\mathbf x_*, \mathbf x_n) \, \alpha_{jn}, \qquad
        \mathrm{cov}_{kl} = \delta_{kl} k_{**} - \mathbf c_k^\top W B^{-1} W \mathbf c_l, \qquad
        c_{k, jn} = a_{jk} k_k(\mathbf x_n, \mathbf x_*)

    With a linear decoder and Gaussian noise, and a :class:`~gpytorch_sgpvae.JointFactorNet` that is tied to them, it is
    the exact linear model of coregionalization for any pattern of missing entries. It returns q(f) as a
    :class:`~gpytorch.distributions.MultitaskMultivariateNormal` (`N x K`) and needs no wrapper. The bound and the
    marginals of the outputs cost :math:`O(E^3)` per task, whatever K is; K x K covariances of each point, which only
    perceptrons and samples need, :math:`O(N K E^2)` more. Beyond :attr:`max_entries` entries a warning points to the
    other joint strategies.

    The parameters are those of :class:`~gpytorch_sgpvae.DenseAmortizedVariationalStrategy`.

    Example:
        >>> import gpytorch, torch
        >>> from gpytorch_sgpvae import (
        ...     AmortizedVariationalDistribution, DenseJointAmortizedVariationalStrategy, JointFactorNet,
        ... )
        >>> class Model(gpytorch.models.ApproximateGP):
        ...     def __init__(self):
        ...         q_f = AmortizedVariationalDistribution(JointFactorNet(num_outputs=5, num_latents=3))
        ...         super().__init__(DenseJointAmortizedVariationalStrategy(self, q_f))
        ...         self.mean_module = gpytorch.means.ZeroMean()
        ...         self.covar_module = gpytorch.kernels.MaternKernel(nu=1.5, batch_shape=torch.Size([3]))
        ...     def forward(self, x):
        ...         return gpytorch.distributions.MultivariateNormal(self.mean_module(x), self.covar_module(x))
        >>> Model()(torch.rand(4, 2), context=(torch.rand(20, 2), torch.randn(20, 5))).event_shape
        torch.Size([4, 3])
    """

    max_entries = 5000

    def encoding_from_state_dict(self, state_dict: dict[str, Tensor]) -> Encoding:
        if self.num_latents is None:
            return super().encoding_from_state_dict(state_dict)
        check_saved(state_dict, ROWS, {"K": self.num_latents})
        sites = GaussianSites(state_dict["precision_mean"], state_dict["precision"], state_dict["loadings"])
        return self.encode_sites(state_dict["x"], sites, state_dict["x"])[0]

    def at_context(self, encoding: DenseJointEncoding) -> PriorAt:
        """The prior at the context's own inputs, which the encoding knows."""
        mean, Kff = encoding.prior
        return PriorAt(mean, Kff.diagonal(dim1=-2, dim2=-1), Kff, lambda: to_linear_operator(Kff), is_context=True)

    def _encode(self, context: Context, sites: GaussianSites, x: Tensor, **kwargs: Any) -> tuple[Any, Any]:
        if self.num_latents is None:
            return super()._encode(context, sites, x, **kwargs)
        return self.encode_sites(context.x, sites, x, **kwargs)

    def encode_sites(
        self, context_x: Tensor, sites: GaussianSites, x: Tensor, **kwargs: Any
    ) -> tuple[DenseJointEncoding, PriorAt]:
        """The encoding of sites at a context's inputs, and the prior at x."""
        self._check_input_dim(x, context_x)
        new_inputs = [] if x is context_x else [self._for_latents(x)]
        prior = self._prior(self._insert_latents(context_x), *new_inputs, **kwargs)
        covar, mean = prior.covariance(0, 0), prior.mean(0)
        Kff = (covar.add_jitter(self.jitter_val) if self.jitter_val else covar).to_dense()  # (*T, K, N, N)
        G = entry_covariance(Kff, sites.explicit_loadings())  # (*T, J N, J N)
        precision = sites.precision.flatten(-2)  # (*T, J N)
        entries = informative_entries(precision.detach())
        num_entries = precision.shape[-1] if entries is None else entries.shape[-1]
        if num_entries > self.max_entries:
            warnings.warn(
                f"{type(self).__name__} factorizes a matrix of {num_entries} x {num_entries} for each task; beyond "
                f"{self.max_entries} observed entries consider the sparse JointAmortizedVariationalStrategy "
                f"(SGPVAE){OVER_TIME}",
                stacklevel=2,
            )
        h = take(sites.seen_by(mean).flatten(-2), entries)
        posterior = entry_posterior(take_block(G, entries), take(precision, entries), h)
        encoding = DenseJointEncoding(self, context_x, sites, entries, (mean, Kff), G, posterior)
        if not new_inputs:
            return encoding, self.at_context(encoding)
        return encoding, prior_of_second_group(prior)


def _joint(Kff: Tensor, Kfs: Tensor, Kss: Tensor) -> Tensor:
    """The covariance at two sets of inputs together (`*T x K x (N + N*) x (N + N*)`)."""
    tasks = torch.broadcast_shapes(*(K.shape[:-2] for K in (Kff, Kfs, Kss)))
    Kff, Kfs, Kss = (K.expand(*tasks, *K.shape[-2:]) for K in (Kff, Kfs, Kss))
    return torch.cat([torch.cat([Kff, Kfs], -1), torch.cat([Kfs.mT, Kss], -1)], -2)
