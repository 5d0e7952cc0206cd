"""From amortized to optimal: how much a network's posterior could still be improved for a given task."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from gpytorch import settings
from gpytorch.distributions import MultitaskMultivariateNormal, MultivariateNormal
from gpytorch.likelihoods import Likelihood
from gpytorch.models import ApproximateGP
from gpytorch.variational import IndependentMultitaskVariationalStrategy
from linear_operator.operators import DiagLinearOperator
from torch import Tensor

from .context import Context, as_context
from .likelihoods import DecoderLikelihood
from .mlls import TaskELBO
from .models.base import AmortizedModel, parts_of
from .sites import GaussianSites
from .variational import Posterior
from .variational.point_marginals import PointMarginals
from .variational.posterior import amortized_strategy


class Refinement(NamedTuple):
    r"""
    What :func:`refine` returns, a pair:

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

    One of them is enough for a Gaussian likelihood of one latent function. :math:`\rho` is halved for a task whose
    bound would not grow, so that no gap is negative. Where the likelihood needs samples, one set serves throughout, so
    that the bound is a function of the sites.

    :param model: A ready-made model, or an approximate GP along with its likelihood. Its latent functions must be what
        the likelihood sees: independent, or one.
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
            "independent ones can be refined."
        )
    sites = strategy.point_sites(context)
    keywords = _base_samples(model, likelihood, context, num_samples)

    def bound(sites: GaussianSites) -> tuple[Tensor, _Marginals]:
        q_f = model(context.x, context=strategy.encode(context, sites))
        return objective(q_f, context.y, **keywords), _Marginals.of(q_f)

    # GPyTorch's own Gaussian likelihoods need to be told about missing targets.
    with settings.num_likelihood_samples(num_samples), settings.observation_nan_policy("fill"):
        start, marginals = bound(sites)
        elbo, rate = start, torch.ones_like(start)
        for _ in range(steps):
            target = _natural_gradient(lambda q: likelihood.expected_log_prob(context.y, q, **keywords), marginals)
            proposal = GaussianSites(*(_mix(old, new, rate) for old, new in _pairs(sites, target)))
            proposed_elbo, proposed_marginals = bound(proposal)
            grown = proposed_elbo > elbo  # (*T,)
            kept = grown.to(elbo.dtype)
            sites = GaussianSites(*(_mix(old, new, kept) for old, new in _pairs(sites, proposal)))
            mean = _mix(marginals.mean, proposed_marginals.mean, kept)
            variance = _mix(marginals.variance, proposed_marginals.variance, kept)
            marginals = _Marginals(mean, variance, marginals.multitask)
            elbo = torch.where(grown, proposed_elbo, elbo)
            rate = torch.where(grown, (2 * rate).clamp_max(1.0), 0.5 * rate)
    return Refinement(Posterior(model, strategy.encode(context, sites)), elbo - start)


class _Marginals(NamedTuple):
    """Mean and variance of q(f) at each point (`*T x K x N`, or `*T x N` where q(f) has no latent dimension)."""

    mean: Tensor
    variance: Tensor
    multitask: bool

    @classmethod
    def of(cls, q_f: MultivariateNormal) -> _Marginals:
        multitask = isinstance(q_f, MultitaskMultivariateNormal)
        return cls(*((q_f.mean.mT, q_f.variance.mT) if multitask else (q_f.mean, q_f.variance)), multitask)

    def distribution(self) -> MultivariateNormal:
        marginals = MultivariateNormal(self.mean, DiagLinearOperator(self.variance))
        return MultitaskMultivariateNormal.from_batch_mvn(marginals) if self.multitask else marginals


def _natural_gradient(
    expected_log_prob: Callable[[MultivariateNormal], Tensor], marginals: _Marginals
) -> GaussianSites:
    """The sites that the likelihood would have, were it Gaussian with its present slope and curvature."""
    with torch.enable_grad():
        mean, variance = (tensor.detach().clone().requires_grad_() for tensor in (marginals.mean, marginals.variance))
        q_f = _Marginals(mean, variance, marginals.multitask).distribution()
        slope, curvature = torch.autograd.grad(expected_log_prob(q_f).sum(), (mean, variance))
    # A likelihood that is not log-concave may ask for a negative precision, which no site can have.
    precision = (-2 * curvature).clamp_min(0.0)
    return GaussianSites(slope + precision * marginals.mean, precision)


def _mix(old: Tensor, new: Tensor, weight: Tensor) -> Tensor:
    """Of a weight for each task (`*T`)."""
    return torch.lerp(old, new, weight.view(*weight.shape, *[1] * (old.dim() - weight.dim())))


def _pairs(old: GaussianSites, new: GaussianSites) -> tuple[tuple[Tensor, Tensor], tuple[Tensor, Tensor]]:
    return (old.precision_mean, new.precision_mean), (old.precision, new.precision)


def _base_samples(
    model: ApproximateGP, likelihood: Likelihood, context: Context, num_samples: int
) -> dict[str, Tensor]:
    """For a decoder the samples to use throughout; GPyTorch's own likelihoods are analytic or use quadrature."""
    if not isinstance(likelihood, DecoderLikelihood):
        return {}
    mean = PointMarginals.of(model(context.x, context=context)).mean
    return {"base_samples": torch.randn(num_samples, *mean.shape, dtype=mean.dtype, device=mean.device)}
