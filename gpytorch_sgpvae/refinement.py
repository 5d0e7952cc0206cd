"""Refinement, from amortized to optimal: how much a network's posterior could still be improved for a given task."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, TypeVar

import torch
from gpytorch import settings
from gpytorch.distributions import MultitaskMultivariateNormal, MultivariateNormal
from gpytorch.likelihoods import Likelihood
from gpytorch.models import ApproximateGP
from gpytorch.variational import IndependentMultitaskVariationalStrategy
from linear_operator.operators import BlockDiagLinearOperator, DenseLinearOperator, DiagLinearOperator
from torch import Tensor

from .context import Context, as_context
from .likelihoods import DecoderLikelihood
from .mlls import TaskELBO
from .models.base import AmortizedModel, parts_of
from .sites import GaussianSites
from .variational import Posterior
from .variational.point_marginals import PointMarginals, is_coupled, point_covariances
from .variational.posterior import amortized_strategy


class Refinement(NamedTuple):
    r"""
    The pair that :func:`refine` returns:

    .. math::

        \text{gap} = \mathcal L(\text{refined sites}) - \mathcal L(\text{the network's sites}) \geq 0

    :param posterior: The refined posterior.
    :param gap: The amortization gap of each task in nats, by how much its ELBO has grown (`*T`).

    Example:
        >>> import torch
        >>> from gpytorch_sgpvae import Refinement
        >>> Refinement(posterior=None, gap=torch.zeros(7)).gap.shape
        torch.Size([7])
    """

    posterior: Posterior
    gap: Tensor


@torch.no_grad()
def refine(
    model: AmortizedModel | ApproximateGP,
    context: Context | tuple[Tensor, Tensor],
    steps: int = 50,
    likelihood: Likelihood | None = None,
    num_samples: int = 100,
) -> Refinement:
    r"""
    Optimize the sites of fixed tasks, starting from the network's, with the model held fixed: to the optimum for a
    log-concave likelihood, to one near the network's sites in general.

    The steps are natural gradients (`Khan and Lin (2017)`_): with the expected log likelihood
    :math:`E_n(m, v) = \mathbb E_{\mathcal N(m, v)} \log p(\mathbf y_n \mid f_n)` at the marginals of q(f),

    .. math::

        \lambda_n \leftarrow (1 - \rho) \lambda_n - 2 \rho \, \partial_v E_n, \qquad
        \lambda_n g_n \leftarrow (1 - \rho) \lambda_n g_n + \rho \, (\partial_m E_n - 2 m_n \, \partial_v E_n)

    One of them is enough for a Gaussian likelihood of one latent function. For latent functions that are inferred
    together the same is done with the mean and the K x K covariance of each point, and one step is enough for any
    linear decoder with Gaussian noise. :math:`\rho` is halved for a task whose bound would not grow, so that no gap is
    negative. Where the likelihood needs samples, one set serves throughout, so that the bound is a function of the
    sites.

    Independent latent functions that outputs couple strongly, as a sum of two with little noise does, need many more
    steps than the default: their sites are changed one beside the other. Infer such functions together instead
    (:class:`~gpytorch_sgpvae.JointFactorNet`).

    :param model: A ready-made model, or an approximate GP along with its likelihood. Its latent functions must be what
        the likelihood sees: independent, inferred together, or one.
    :param context: One task or many.
    :param steps: Natural gradient steps.
    :param likelihood: The likelihood, where the model does not bring one.
    :param num_samples: Samples for the bound, where the likelihood needs them.

    Example:
        >>> import torch
        >>> from gpytorch_sgpvae import SGPVAE, refine
        >>> sgpvae = SGPVAE(num_outputs=5, num_latents=3, inducing_points=torch.rand(8, 2))
        >>> posterior, gap = refine(sgpvae, (torch.rand(20, 2), torch.randn(7, 20, 5)))
        >>> gap.shape, bool((gap >= 0).all())
        (torch.Size([7]), True)

    .. _Khan and Lin (2017):
        https://proceedings.mlr.press/v54/khan17a.html
    """
    model, likelihood = parts_of(model, likelihood)
    context = as_context(context)
    strategy = amortized_strategy(model)
    objective = TaskELBO(likelihood, model)
    if not isinstance(model.variational_strategy, (type(strategy), IndependentMultitaskVariationalStrategy)):
        raise NotImplementedError(
            f"The likelihood sees what {type(model.variational_strategy).__name__} makes of the latent functions: only "
            "these themselves can be refined."
        )
    sites = strategy.point_sites(context)
    keywords = _base_samples(model, likelihood, context, num_samples)

    def bound(state: _Natural) -> tuple[Tensor, _Marginals]:
        q_f = model(context.x, context=strategy.encode(context, family.sites(state)))
        return objective(q_f, context.y, **keywords), family.marginals(q_f)

    # GPyTorch's own Gaussian likelihoods need to be told about missing targets.
    with settings.num_likelihood_samples(num_samples), settings.observation_nan_policy("fill"):
        family = _family_of(model(context.x, context=context))
        state = family.natural(sites)
        start, marginals = bound(state)
        elbo, rate = start, torch.ones_like(start)
        for _ in range(steps):
            target = _natural_gradient(
                lambda q: likelihood.expected_log_prob(context.y, q, **keywords), marginals, family
            )
            proposal = _mix(state, target, rate)
            proposed_elbo, proposed_marginals = bound(proposal)
            grown = proposed_elbo > elbo  # (*T,)
            kept = grown.to(elbo.dtype)
            state, marginals = _mix(state, proposal, kept), _mix(marginals, proposed_marginals, kept)
            elbo = torch.where(grown, proposed_elbo, elbo)
            rate = torch.where(grown, (2 * rate).clamp_max(1.0), 0.5 * rate)
    return Refinement(Posterior(model, strategy.encode(context, family.sites(state))), elbo - start)


_Pair = TypeVar("_Pair", "_Natural", "_Marginals")


class _Natural(NamedTuple):
    """The natural parameters of each point's site: what multiplies f, and minus twice what multiplies f squared."""

    linear: Tensor
    quadratic: Tensor


class _Marginals(NamedTuple):
    """The moments of q(f) at each point."""

    mean: Tensor
    variance: Tensor


class _Single:
    """The family of one latent function without a dimension for it: all tensors are `*T x N`."""

    def natural(self, sites: GaussianSites) -> _Natural:
        return _Natural(sites.precision_mean, sites.precision)

    def sites(self, state: _Natural) -> GaussianSites:
        return GaussianSites(state.linear, state.quadratic)

    def marginals(self, q_f: MultivariateNormal) -> _Marginals:
        return _Marginals(q_f.mean, q_f.variance)

    def distribution(self, marginals: _Marginals) -> MultivariateNormal:
        return MultivariateNormal(marginals.mean, DiagLinearOperator(marginals.variance))

    def target(self, mean: Tensor, slope: Tensor, curvature: Tensor) -> _Natural:
        # A likelihood that is not log-concave may ask for a negative precision, which no site can have.
        precision = (-2 * curvature).clamp_min(0.0)
        return _Natural(slope + precision * mean, precision)


class _Independent(_Single):
    """The family of latent functions that are independent: all tensors are `*T x K x N`."""

    def marginals(self, q_f: MultivariateNormal) -> _Marginals:
        return _Marginals(q_f.mean.mT, q_f.variance.mT)

    def distribution(self, marginals: _Marginals) -> MultivariateNormal:
        return MultitaskMultivariateNormal.from_batch_mvn(super().distribution(marginals))


class _Coupled:
    """The family of latent functions that were inferred together: `*T x N x K` and `*T x N x K x K`."""

    # What stands for the precision 0 in a direction in which a likelihood has a slope and no curvature.
    SMALLEST_PRECISION = 1e-8

    def natural(self, sites: GaussianSites) -> _Natural:
        return _Natural(sites.to_latents(sites.precision_mean).mT, sites.point_precision())

    def sites(self, state: _Natural) -> GaussianSites:
        # Λ = Q diag(λ) Qᵀ: pseudo-observations of the sums by the columns of Q
        precision, Q = torch.linalg.eigh(state.quadratic)  # (*T, N, K), (*T, N, K, K)
        anything = (state.linear != 0).any(-1, keepdim=True) | (state.quadratic != 0).any(-1).any(-1, keepdim=True)
        precision = precision.clamp_min(self.SMALLEST_PRECISION) * anything
        precision_mean = (state.linear.unsqueeze(-2) @ Q).squeeze(-2)
        return GaussianSites(precision_mean.mT, precision.mT, Q.mT)

    def marginals(self, q_f: MultivariateNormal) -> _Marginals:
        return _Marginals(q_f.mean, point_covariances(q_f))

    def distribution(self, marginals: _Marginals) -> MultivariateNormal:
        return MultitaskMultivariateNormal(
            marginals.mean, BlockDiagLinearOperator(DenseLinearOperator(marginals.variance))
        )

    def target(self, mean: Tensor, slope: Tensor, curvature: Tensor) -> _Natural:
        values, Q = torch.linalg.eigh(-(curvature + curvature.mT))
        precision = (Q * values.clamp_min(0.0).unsqueeze(-2)) @ Q.mT  # (*T, N, K, K)
        return _Natural(slope + (precision @ mean.unsqueeze(-1)).squeeze(-1), precision)


def _family_of(q_f: MultivariateNormal) -> _Single | _Coupled:
    if not isinstance(q_f, MultitaskMultivariateNormal):
        return _Single()
    return _Coupled() if is_coupled(q_f) else _Independent()


def _natural_gradient(
    expected_log_prob: Callable[[MultivariateNormal], Tensor], marginals: _Marginals, family: _Single | _Coupled
) -> _Natural:
    """The sites that the likelihood would have, were it Gaussian with its present slope and curvature."""
    with torch.enable_grad():
        leaves = _Marginals(*(tensor.detach().clone().requires_grad_() for tensor in marginals))
        slope, curvature = torch.autograd.grad(expected_log_prob(family.distribution(leaves)).sum(), leaves)
    return family.target(marginals.mean, slope, curvature)


def _mix(old: _Pair, new: _Pair, weight: Tensor) -> _Pair:
    """Interpolate between two pairs of tensors, with a weight of the new one for each task (`*T`)."""
    mixed = (
        torch.lerp(before, after, weight.view(*weight.shape, *[1] * (before.dim() - weight.dim())))
        for before, after in zip(old, new, strict=True)
    )
    return type(old)(*mixed)


def _base_samples(
    model: ApproximateGP, likelihood: Likelihood, context: Context, num_samples: int
) -> dict[str, Tensor]:
    """Draw the samples that a decoder uses throughout; GPyTorch's own likelihoods are analytic or use quadrature."""
    if not isinstance(likelihood, DecoderLikelihood):
        return {}
    mean = PointMarginals.of(model(context.x, context=context)).mean
    return {"base_samples": torch.randn(num_samples, *mean.shape, dtype=mean.dtype, device=mean.device)}
