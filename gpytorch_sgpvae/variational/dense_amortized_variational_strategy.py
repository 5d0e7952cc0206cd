from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import torch
from gpytorch import settings
from gpytorch.distributions import MultivariateNormal
from gpytorch.models import ApproximateGP
from linear_operator import to_linear_operator
from linear_operator.operators import DiagLinearOperator, LinearOperator
from torch import Tensor

from .._compat import is_compiling
from ..context import Context
from ..linalg.conditionals import DensePosterior, dense_posterior, shift_and_shrinkage
from ..sites import GaussianSites, side_by_side
from .amortized_multivariate_normal import AmortizedMultivariateNormal, AmortizedPrior
from .amortized_strategy import AmortizedStrategy
from .amortized_variational_distribution import AmortizedVariationalDistribution
from .encoding import Encoding
from .joint_prior import JointPrior
from .posterior_covariance import PosteriorCovariance

# Measured by `python -m benchmarks markov`: with three latent functions the two take the same time at about 260 points
# where these are independent, and between 128 and 256 where they are inferred together.
OVER_TIME = (
    ", or for kernels over time MarkovAmortizedVariationalStrategy (MarkovGPVAE): the same posterior, in time "
    "proportional to the number of points, and faster from about 300 points on."
)


class PriorAt(NamedTuple):
    """The prior at some inputs, as seen from the context's."""

    mean: Tensor  # μ_*                                   (*T, K, N*)
    variance: Tensor  # diag K_**                         (*T, K, N*)
    Kfs: Tensor  # K_f*                                   (*T, K, N, N*)
    covar: Callable[[], LinearOperator]  # K_**, lazy     (*T, K, N*, N*)
    is_context: bool = False  # whether these are the context's own inputs, where the posterior is known


@dataclass(frozen=True, eq=False)
class DenseEncoding(Encoding):
    """
    What the dense strategy remembers of a context.

    :param x: The context's inputs (`*T x N x D`).
    :param sites: The sites there (`*T x K x N`).
    :param prior: The prior there (`*T x K` x N).
    :param posterior: The posterior there (`*T x K x N x N`).
    """

    strategy: DenseAmortizedVariationalStrategy
    x: Tensor
    sites: GaussianSites
    prior: AmortizedPrior
    posterior: DensePosterior

    @property
    def tasks(self) -> torch.Size:
        batch = self.posterior.weights.shape[:-1]
        return batch if self.strategy.num_latents is None else batch[:-1]

    def predict(self, x: Tensor, at_x: PriorAt | None, diag: bool, **kwargs: Any) -> MultivariateNormal:
        at_x = self.strategy.prior_at(x, self.x, **kwargs) if at_x is None else at_x
        posterior = self.posterior
        if at_x.is_context:
            shift, variance = posterior.shift, posterior.variance  # (*T, K, N)
        else:
            # in the working dtype: P holds entries as large as the precisions, whose rounding would cost digits
            shift, shrinkage = shift_and_shrinkage(at_x.Kfs.to(posterior.reduction.dtype), posterior)
            variance = at_x.variance - shrinkage  # (*T, K, N*)
        mean = at_x.mean + shift.to(at_x.mean.dtype)  # (*T, K, N*)
        if variance.dtype != mean.dtype:
            # known better than in the model's dtype, in which GPyTorch takes anything below this for a failure
            variance = variance.to(mean.dtype).clamp_min(settings.min_variance.value(mean.dtype))
        if diag:
            return MultivariateNormal(mean, DiagLinearOperator(variance))
        reduction = posterior.reduction.to(mean.dtype)
        return MultivariateNormal(mean, PosteriorCovariance(at_x.covar(), at_x.Kfs, reduction, variance))

    def q_u(self) -> AmortizedMultivariateNormal:
        """q(f) at the context's inputs; its covariance is lazy, and mostly nobody looks at it."""
        prior = self.prior
        _, reduction, kl_divergence, shift, variance = (tensor.to(prior.loc.dtype) for tensor in self.posterior)
        Kff = prior.lazy_covariance_matrix  # (*T, K, N, N)
        covar = PosteriorCovariance(Kff, Kff.to_dense(), reduction, variance)
        return AmortizedMultivariateNormal(prior.loc + shift, covar, prior_kl=kl_divergence)

    def p_u(self) -> AmortizedPrior:
        batch = self.posterior.weights.shape[:-1]
        return self.prior if self.prior.batch_shape == batch else self.prior.expand(batch)

    def absorb(self, context: Context) -> DenseEncoding:
        """Absorb new points at the cubic cost of all points together: their matrices are factorized anew."""
        further = self.strategy.sites_of_further(context, self.tasks)
        x = torch.cat([part.expand(*self.tasks, *part.shape[-2:]) for part in (self.x, context.x)], dim=-2)
        batch = self.posterior.weights.shape[:-1]
        sites = side_by_side([part.expand((*batch, part.shape[-1])) for part in (self.sites, further)])
        return self.strategy.encode_sites(x, sites, x)[0]

    def sites_of(self, q_f: MultivariateNormal) -> GaussianSites:
        if isinstance(q_f.lazy_covariance_matrix, DiagLinearOperator):
            raise ValueError(
                "This q(f) knows its variances alone: call the strategy with diag=False for joint samples."
            )
        return self.sites

    def detach(self) -> DenseEncoding:
        prior = AmortizedPrior(self.prior.loc.detach(), self.prior.lazy_covariance_matrix.detach())
        return DenseEncoding(self.strategy, self.x.detach(), self.sites.detach(), prior, self.posterior.detach())


class DenseAmortizedVariationalStrategy(AmortizedStrategy):
    r"""
    The strategy of the GP-VAE (`Pearce (2020)`_; appendix B of `Ashman et al. (2020)`_): the inducing points are the
    context's own inputs, :math:`\mathbf u = \mathbf f`. With :math:`W = \Lambda^{1/2}` and :math:`B = I + W K W`:

    .. math::

        q(\mathbf f_*) = \mathcal N \left( \boldsymbol \mu_* + K_{* \mathbf f} (I - W B^{-1} W K)
        (\lambda g - \lambda \boldsymbol \mu_{\mathbf f}), \;
        K_{**} - K_{* \mathbf f} W B^{-1} W K_{\mathbf f *} \right)

    No inverse of K, no jitter, and any precision may be zero. Cost per call: :math:`O(T K N^3)`, one Cholesky of B
    for each latent function and task. Beyond :attr:`max_points` points a warning points to the sparse
    :class:`~gpytorch_sgpvae.AmortizedVariationalStrategy`, and for kernels over time to
    :class:`~gpytorch_sgpvae.MarkovAmortizedVariationalStrategy`, which has the same posterior and is faster from about
    300 points on.

    :param model: The model this strategy is applied to, typically `self` in the model's `__init__`.
    :param variational_distribution: Holds the inference network.
    :param jitter_val: Added to the diagonal of K; none by default, as none is needed.
    :param x_has_latents: Whether new inputs come with a dimension for the latent functions, `*T x K x N x D` (see
        :class:`~gpytorch_sgpvae.AmortizedVariationalStrategy`).

    Example:
        >>> import gpytorch, torch
        >>> from gpytorch_sgpvae import AmortizedVariationalDistribution, DenseAmortizedVariationalStrategy, FactorNet
        >>> class Model(gpytorch.models.ApproximateGP):
        ...     def __init__(self):
        ...         q_f = AmortizedVariationalDistribution(FactorNet(num_outputs=1, num_latents=None))
        ...         super().__init__(DenseAmortizedVariationalStrategy(self, q_f))
        ...         self.mean_module = gpytorch.means.ConstantMean()
        ...         self.covar_module = gpytorch.kernels.ScaleKernel(gpytorch.kernels.RBFKernel())
        ...     def forward(self, x):
        ...         return gpytorch.distributions.MultivariateNormal(self.mean_module(x), self.covar_module(x))
        >>> Model()(torch.rand(4, 2), context=(torch.rand(20, 2), torch.randn(20))).event_shape
        torch.Size([4])

    .. _Pearce (2020):
        https://proceedings.mlr.press/v118/pearce20a.html
    .. _Ashman et al. (2020):
        https://arxiv.org/abs/2010.10177
    """

    max_points = 2000

    def __init__(
        self,
        model: ApproximateGP,
        variational_distribution: AmortizedVariationalDistribution,
        jitter_val: float | None = None,
        x_has_latents: bool = False,
    ):
        # There are none, but GPyTorch's wrappers ask them for the dtype.
        no_inducing_points = torch.empty(0, 1)
        super().__init__(model, no_inducing_points, variational_distribution, False, jitter_val, x_has_latents)

    @property
    def jitter_val(self) -> float:
        return self._jitter_val or 0.0

    @jitter_val.setter
    def jitter_val(self, jitter_val: float | None) -> None:
        self._jitter_val = jitter_val

    def prior_at(self, x: Tensor, context_x: Tensor, **kwargs: Any) -> PriorAt:
        """The prior at new inputs, as seen from a context's."""
        return prior_of_second_group(self.priors(context_x, x, **kwargs))

    def priors(self, context_x: Tensor, x: Tensor, **kwargs: Any) -> JointPrior:
        """The prior at a context's inputs and at new ones together."""
        self._check_input_dim(x, context_x)
        return self._prior(self._insert_latents(context_x), self._for_latents(x), **kwargs)

    def _encode(
        self, context: Context, sites: GaussianSites, x: Tensor, **kwargs: Any
    ) -> tuple[DenseEncoding, PriorAt]:
        return self.encode_sites(context.x, sites, x, **kwargs)

    def encode_sites(
        self, context_x: Tensor, sites: GaussianSites, x: Tensor, **kwargs: Any
    ) -> tuple[DenseEncoding, PriorAt]:
        """The encoding of sites at a context's inputs, and the prior at x."""
        num_points = context_x.shape[-2]
        if not is_compiling() and num_points > self.max_points:
            warnings.warn(
                f"{type(self).__name__} factorizes a matrix of {num_points} x {num_points} for each "
                f"latent function and task; beyond {self.max_points} points consider the sparse "
                f"AmortizedVariationalStrategy (SGPVAE){OVER_TIME}",
                stacklevel=2,
            )
        self._check_input_dim(x, context_x)
        new_inputs = [] if x is context_x else [self._for_latents(x)]
        prior = self._prior(self._insert_latents(context_x), *new_inputs, **kwargs)
        covar, mean = prior.covariance(0, 0), prior.mean(0)
        covar = covar.add_jitter(self.jitter_val) if self.jitter_val else covar
        Kff = covar.to_dense()  # (*T, K, N, N)
        # evaluated: a lazy kernel would remember the graph of whoever looks at it first
        at_context = AmortizedPrior(mean, to_linear_operator(Kff))
        encoding = DenseEncoding(self, context_x, sites, at_context, dense_posterior(Kff, sites, mean))
        if new_inputs:
            return encoding, prior_of_second_group(prior)
        covar = at_context.lazy_covariance_matrix
        return encoding, PriorAt(mean, Kff.diagonal(dim1=-2, dim2=-1), Kff, lambda: covar, is_context=True)

    def _check_input_dim(self, x: Tensor, context_x: Tensor) -> None:
        if x.shape[-1] != context_x.shape[-1]:
            raise ValueError(
                f"x of shape {tuple(x.shape)} has {x.shape[-1]} input dimensions, but the context's x of shape "
                f"{tuple(context_x.shape)} has {context_x.shape[-1]}: expected (*T, N, D)."
            )


def prior_of_second_group(prior: JointPrior) -> PriorAt:
    """The prior at the second group of inputs, as seen from the first."""
    return PriorAt(prior.mean(1), prior.variance(1), prior.covariance(0, 1).to_dense(), partial(prior.covariance, 1, 1))
