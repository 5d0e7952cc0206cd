from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from gpytorch.distributions import MultitaskMultivariateNormal, MultivariateNormal
from gpytorch.models import ApproximateGP
from torch import Tensor

from ..context import Context
from ..linalg.chain import Chain, MarkovSites
from ..sites import GaussianSites
from .amortized_variational_distribution import AmortizedVariationalDistribution
from .joint_prior import JointPrior
from .joint_strategy import JointStrategy
from .markov_encoding import MarkovEncoding, Strand
from .saved_posterior import ROWS, check_saved
from .state_space_prior import StateSpacePrior, state_space_prior


class MarkovAmortizedVariationalStrategy(JointStrategy):
    r"""
    The exact strategy for time series of any length. A kernel over time with a state-space form
    (:func:`~gpytorch_sgpvae.to_state_space`) makes the latent functions observations of a Markov process,

    .. math::

        \mathbf f(t) = H \, \mathbf s(t), \qquad
        \mathbf s_n = \Phi(t_n - t_{n-1}) \, \mathbf s_{n-1} + \boldsymbol \varepsilon_n, \qquad
        \mathrm{cov}(\boldsymbol \varepsilon_n) = P_\infty - \Phi P_\infty \Phi^\top

    so that the posterior given the sites is found by a Kalman filter and a smoother, without inducing points and
    without any approximation, in time proportional to the number of points: :math:`O(N \sum_k d_k^2)` for latent
    functions that are inferred each by itself, and :math:`O(N D^2 (J + d))` with :math:`D = \sum_k d_k` for J
    pseudo-observations of each point that couple them. Times may be irregular, in any order, tie, and lie anywhere.

    It is the same posterior as that of :class:`~gpytorch_sgpvae.DenseAmortizedVariationalStrategy` and, for sites with
    loadings, :class:`~gpytorch_sgpvae.DenseJointAmortizedVariationalStrategy`. It returns q(f) as a
    :class:`~gpytorch.distributions.MultitaskMultivariateNormal` (`N x K`) and needs no wrapper. A
    :class:`~gpytorch_sgpvae.Posterior` takes in further rows in time proportional to *their* number, and draws whole
    paths in O(N). All recursions are in float64, whatever the model's dtype.

    The kernel, and the times it reads, are taken from the lazy matrix that the model's `forward` returns; with several
    input dimensions `active_dims` says which one is time.

    :param model: The model this strategy is applied to, typically `self` in the model's `__init__`.
    :param variational_distribution: Holds the inference network.
    :param x_has_latents: Whether new inputs come with a dimension for the latent functions, `*T x K x N x D` (see
        :class:`~gpytorch_sgpvae.AmortizedVariationalStrategy`); the times must be the same for all of them.
    :param num_harmonics: The harmonics by which a :class:`~gpytorch.kernels.PeriodicKernel` is represented (see
        :func:`~gpytorch_sgpvae.to_state_space`).

    Example:
        >>> import gpytorch, torch
        >>> from gpytorch_sgpvae import (
        ...     AmortizedVariationalDistribution, JointFactorNet, MarkovAmortizedVariationalStrategy,
        ... )
        >>> class Model(gpytorch.models.ApproximateGP):
        ...     def __init__(self):
        ...         q_f = AmortizedVariationalDistribution(JointFactorNet(num_outputs=5, num_latents=3))
        ...         super().__init__(MarkovAmortizedVariationalStrategy(self, q_f))
        ...         self.mean_module = gpytorch.means.ZeroMean()
        ...         self.covar_module = gpytorch.kernels.MaternKernel(nu=1.5, batch_shape=torch.Size([3]))
        ...     def forward(self, x):
        ...         return gpytorch.distributions.MultivariateNormal(self.mean_module(x), self.covar_module(x))
        >>> times = torch.rand(10_000, 1) * 500
        >>> Model()(torch.rand(4, 1), context=(times, torch.randn(10_000, 5))).event_shape
        torch.Size([4, 3])
    """

    def __init__(
        self,
        model: ApproximateGP,
        variational_distribution: AmortizedVariationalDistribution,
        x_has_latents: bool = False,
        num_harmonics: int = 6,
    ):
        # There are no inducing points, but GPyTorch asks them for the dtype.
        super().__init__(model, torch.empty(0, 1), variational_distribution, False, None, x_has_latents)
        self.num_harmonics = num_harmonics

    def prior_at(self, x: Tensor, **kwargs: Any) -> StateSpacePrior:
        """The prior at new inputs (`*T x N x D`)."""
        return self._prior_of(self._prior(self._for_latents(x), **kwargs), 0)

    def prior_at_rows(self, x: Tensor) -> StateSpacePrior:
        """The prior at inputs of a context, which never have a latent dimension (`*T x N x D`)."""
        return self._prior_of(self._prior(self._insert_latents(x)), 0)

    def prior_of_rows(self, x: Tensor) -> MultivariateNormal:
        """The same as a distribution (`*T` x N x K, or `*T` x N)."""
        prior = self.model.forward(self._insert_latents(x))
        return prior if self.num_latents is None else MultitaskMultivariateNormal.from_batch_mvn(prior)

    def chains(self, at_x: StateSpacePrior, is_coupled: bool) -> tuple[list[Chain], Tensor]:
        """
        The processes, one for all latent functions or one for each group of them, and the times with the leading
        dimensions that these have.
        """
        chains = [Chain.together(at_x.spaces)] if is_coupled else [Chain.separate(space) for space in at_x.spaces]
        return chains, self.for_chains(at_x.times, is_coupled)

    def for_chains(self, times: Tensor, is_coupled: bool) -> Tensor:
        """Times of tasks (`*T x N`) with the leading dimensions of processes: `*T x 1 x N` for one each."""
        return times if is_coupled or self.num_latents is None else times.unsqueeze(-2)

    def along_chains(
        self, at_x: StateSpacePrior, sites: GaussianSites
    ) -> tuple[Tensor, list[Chain], list[MarkovSites]]:
        """
        Sites in the order of time.

        :param at_x: The prior at their points.
        :param sites: (`*T x J x N`).
        :return: Which row comes first, which second, and so on (`*T x N`); the processes; the sites of each.
        """
        is_coupled = sites.loadings is not None
        chains, _ = self.chains(at_x, is_coupled)
        order = at_x.times.detach().argsort(dim=-1, stable=True)  # (*T, N)
        times = self.for_chains(at_x.times.gather(-1, order), is_coupled)
        sites, has_rows = sites.double(), self.num_latents is not None
        h = _in_order(sites.seen_by(at_x.mean.double()), order, has_rows)
        precision = _in_order(sites.precision, order, has_rows)
        if sites.loadings is not None:
            loadings = sites.loadings
            if loadings.dim() > 2:
                tasks = torch.broadcast_shapes(sites.shape[:-2], order.shape[:-1])
                loadings = loadings.expand(*tasks, order.shape[-1], *loadings.shape[-2:])
                loadings = torch.take_along_dim(loadings, order.expand(*tasks, -1)[..., None, None], dim=-3)
            C = loadings @ chains[0].observation
            return order, chains, [MarkovSites(times, C, precision.mT, h.mT)]
        # a pseudo-observation of each latent function itself, J = 1
        sizes = [space.batch_shape.numel() for space in at_x.spaces]
        parts = zip(*((p.split(sizes, dim=-2) if has_rows else [p]) for p in (precision, h)), strict=True)
        along = [
            MarkovSites(times, chain.own_loadings(own_h.shape), own_precision.unsqueeze(-1), own_h.unsqueeze(-1))
            for chain, (own_precision, own_h) in zip(chains, parts, strict=True)
        ]
        return order, chains, along

    def encode_sites(
        self, context_x: Tensor, sites: GaussianSites, x: Tensor, **kwargs: Any
    ) -> tuple[MarkovEncoding, StateSpacePrior]:
        """The encoding of sites at a context's inputs, and the prior at x."""
        new_inputs = [] if x is context_x else [self._for_latents(x)]
        prior = self._prior(self._insert_latents(context_x), *new_inputs, **kwargs)
        at_context = self._prior_of(prior, 0)
        order, chains, along = self.along_chains(at_context, sites)
        strands = [Strand.along(chain, part) for chain, part in zip(chains, along, strict=True)]
        encoding = MarkovEncoding(self, context_x, sites, at_context.mean, order, strands)
        return encoding, self._prior_of(prior, 1) if new_inputs else at_context._replace(is_context=True)

    def encoding_from_state_dict(self, state_dict: dict[str, Tensor]) -> MarkovEncoding:
        # without loadings a pseudo-observation is one of each latent function
        rows = {} if isinstance(state_dict, Mapping) and "loadings" in state_dict else {"J": self.num_latents}
        check_saved(state_dict, ROWS, {"K": self.num_latents, **rows}, optional=["loadings"])
        x = state_dict["x"]
        sites = GaussianSites(state_dict["precision_mean"], state_dict["precision"], state_dict.get("loadings"))
        return self.encode_sites(x, sites, x)[0]

    def _encode(
        self, context: Context, sites: GaussianSites, x: Tensor, **kwargs: Any
    ) -> tuple[MarkovEncoding, StateSpacePrior]:
        return self.encode_sites(context.x, sites, x, **kwargs)

    def _prior_of(self, prior: JointPrior, group: int) -> StateSpacePrior:
        covar = prior.covariance(group, group)
        return state_space_prior(prior.mean(group), covar, self.num_latents, self.num_harmonics)


def _in_order(values: Tensor, order: Tensor, has_rows: bool) -> Tensor:
    """
    Values of points (`*T x J x N`, or `*T x N`) in another order.

    :param has_rows: Whether there is a J.
    """
    order = order.unsqueeze(-2) if has_rows else order
    shape = torch.broadcast_shapes(values.shape[:-1], order.shape[:-1])
    return values.expand(*shape, -1).gather(-1, order.expand(*shape, -1))
