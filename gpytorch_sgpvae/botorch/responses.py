"""
The distribution of E[y | f] at some inputs, jointly over them, as the Gaussian that BoTorch's acquisition functions ask
for: exact where E[y | f] is linear in f, of matched moments elsewhere.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import torch
from botorch.posteriors import GPyTorchPosterior
from botorch.sampling.get_sampler import get_sampler
from botorch.utils.sampling import draw_sobol_normal_samples
from gpytorch.distributions import MultitaskMultivariateNormal, MultivariateNormal
from gpytorch.likelihoods import Likelihood
from linear_operator.operators import DiagLinearOperator, LinearOperator
from torch import Tensor

from ..likelihoods import DecoderLikelihood
from ..likelihoods.quadrature import gauss_hermite
from ..mlp import linear_part
from ..variational.point_marginals import PointMarginals
from ..variational.posterior_covariance import LazyMatrix
from .conditionals import Conditional, has_linear_mean

# Correlations that are found from samples are made smaller by this factor, so that those of equal points have a root.
SHRINKAGE = 1 - 1e-6
SEED = 0


class Moments(NamedTuple):
    """The moments of each output at each input (`*T x N x P` each)."""

    mean: Tensor  # E y
    variance: Tensor  # var E[y | f]
    noise: Tensor  # E var[y | f]


def response(likelihood: Likelihood, q_f: MultivariateNormal, num_samples: int) -> MultivariateNormal:
    """
    The distribution of E[y | f], with an event of N x P, or of N for one output.

    :param likelihood: The likelihood.
    :param q_f: The q(f) that the model returns.
    :param num_samples: Number of samples of the latent functions, where there is no closed form.
    """
    if not has_linear_mean(likelihood):
        mean, variance, _ = moments(likelihood, q_f, num_samples)
        compute = partial(_matched_covariance, likelihood, q_f, num_samples, variance)
    elif isinstance(likelihood, DecoderLikelihood):
        mean, variance = likelihood.value_marginals(q_f)
        linear: Any = likelihood.decoder
        compute = partial(_linear_covariance, linear.weight, q_f)
    else:
        return q_f
    return gaussian(mean, _lazy(variance, compute))


def moments(likelihood: Likelihood, q_f: MultivariateNormal, num_samples: int) -> Moments:
    r"""
    The moments of each output by itself. They are integrals over one decoded value where the decoder is linear and
    outputs depend on one each, and of low-discrepancy samples elsewhere, the same at all inputs.
    """
    conditional, weights = _at_nodes(likelihood, q_f, num_samples)
    means = conditional.mean  # (S, *T, N, P)
    weights = weights.view(-1, *[1] * (means.dim() - 1))
    mean = (weights * means).sum(0)
    noise = (weights * conditional.variance).sum(0)
    return Moments(mean, (weights * (means - mean).square()).sum(0), noise)


def gaussian(mean: Tensor, covar: LinearOperator) -> MultivariateNormal:
    """
    :param mean: (`*T x N x P`).
    :param covar: The covariance of all outputs of a point side by side (`*T x (N P) x (N P)`).
    """
    if mean.shape[-1] == 1:
        return MultivariateNormal(mean.squeeze(-1), covar)
    return MultitaskMultivariateNormal(mean, covar)


def with_noise(distribution: MultivariateNormal, noise: Tensor) -> MultivariateNormal:
    """
    :param distribution: The distribution that :func:`response` returned.
    :param noise: The variance of the outputs given it (`*T x N x P`, or what broadcasts to that).
    """
    if not isinstance(distribution, MultitaskMultivariateNormal):
        return _with_more_variance(distribution, noise.squeeze(-1).expand(distribution.mean.shape))
    noise = noise.expand(distribution.mean.shape)
    return _with_more_variance(distribution, (noise if distribution._interleaved else noise.mT).flatten(-2))


def select(distribution: MultivariateNormal, outputs: list[int]) -> MultivariateNormal:
    """The distribution of some of its outputs, in the order in which they are named."""
    if not isinstance(distribution, MultitaskMultivariateNormal):
        return distribution
    N, P = distribution.event_shape
    rows = torch.arange(N * P, device=distribution.mean.device)
    rows = rows.view(N, P) if distribution._interleaved else rows.view(P, N).mT  # (N, P)
    rows = rows[:, outputs].flatten()
    variance = distribution.variance[..., outputs]

    def covariance() -> Tensor:
        return distribution.lazy_covariance_matrix.to_dense()[..., rows.unsqueeze(-1), rows]

    return gaussian(distribution.mean[..., outputs], _lazy(variance, covariance))


def with_jitter(q_f: MultivariateNormal) -> MultivariateNormal:
    """q(f) with so much more variance that its covariance has a root also where inputs are as good as equal."""
    variance = q_f.variance.flatten(-len(q_f.event_shape))  # (*T, N K)
    jitter = math.sqrt(torch.finfo(variance.dtype).eps) * variance.mean(-1, keepdim=True)
    return _with_more_variance(q_f, jitter.expand(variance.shape))


def joint_draws(q_f: MultivariateNormal, num_samples: int) -> Tensor:
    """Samples of the latent functions, jointly over all inputs and the same at each call (`S x *T x N x K`)."""
    posterior = GPyTorchPosterior(with_jitter(q_f))
    return get_sampler(posterior, torch.Size([num_samples]), seed=SEED)(posterior)


def _at_nodes(likelihood: Likelihood, q_f: MultivariateNormal, num_samples: int) -> tuple[Conditional, Tensor]:
    """p(y | f) at values of the latent functions, which lead (`S x *T x N x P`), and their weights (`S`)."""
    marginals = PointMarginals.of(q_f)
    K = marginals.mean.shape[-1]
    if isinstance(likelihood, DecoderLikelihood):
        linear = linear_part(likelihood.decoder)
        if linear is likelihood.decoder and getattr(likelihood.observation_model, "is_elementwise", False):
            mean, variance = likelihood.value_marginals(q_f)
            nodes, weights = gauss_hermite(mean)
            stddev = variance.clamp_min(torch.finfo(variance.dtype).tiny).sqrt()
            values = mean + stddev * nodes.view(-1, *[1] * mean.dim())  # (S, *T, N, J)
            return Conditional(_Decoded(likelihood), values, q_f), weights
    elif K == 1:
        nodes, weights = gauss_hermite(marginals.mean)
        return Conditional(likelihood, marginals.draw(nodes.view(-1, *[1] * marginals.mean.dim())), q_f), weights
    mean = marginals.mean
    nodes = draw_sobol_normal_samples(K, num_samples, mean.device, mean.dtype, seed=SEED)  # (S, K)
    nodes = nodes.view(num_samples, *[1] * (mean.dim() - 1), K)
    return Conditional(likelihood, marginals.draw(nodes), q_f), torch.full_like(
        nodes[..., 0].flatten(), 1 / num_samples
    )


def _with_more_variance(distribution: MultivariateNormal, variance: Tensor) -> MultivariateNormal:
    """The same with something added to the diagonal of its covariance, in that order."""
    covar = distribution.lazy_covariance_matrix + DiagLinearOperator(variance)
    if isinstance(distribution, MultitaskMultivariateNormal):
        return MultitaskMultivariateNormal(distribution.mean, covar, interleaved=distribution._interleaved)
    return MultivariateNormal(distribution.mean, covar)


class _Decoded(DecoderLikelihood):
    """A likelihood from its decoded values on."""

    def __init__(self, likelihood: DecoderLikelihood):
        super().__init__(torch.nn.Identity(), likelihood.observation_model)


def _lazy(variance: Tensor, compute: Callable[[], Tensor]) -> LinearOperator:
    """
    :param variance: The diagonal (`*T x N x P`).
    :param compute: Returns the matrix (`*T x (N P) x (N P)`).
    """
    variance = variance.flatten(-2)
    if variance.shape[-1] == 1:
        return DiagLinearOperator(variance)
    return LazyMatrix(variance, torch.Size([*variance.shape, variance.shape[-1]]), compute, variance)


def _linear_covariance(weight: Tensor, q_f: MultivariateNormal) -> Tensor:
    r""":math:`\mathrm{cov}(\mathbf w_p^\top \mathbf f_n, \mathbf w_r^\top \mathbf f_m)` (`*T x (N P) x (N P)`)."""
    covar, (N, K) = q_f.covariance_matrix, (*q_f.event_shape, 1)[:2]
    if isinstance(q_f, MultitaskMultivariateNormal) and not q_f._interleaved:
        covar = covar.unflatten(-1, (K, N)).unflatten(-3, (K, N)).transpose(-1, -2).transpose(-3, -4)
    else:
        covar = covar.unflatten(-1, (N, K)).unflatten(-3, (N, K))  # (*T, N, K, N, K)
    decoded = torch.einsum("pk,...nkml,rl->...npmr", weight, covar, weight)
    return decoded.flatten(-2).flatten(-3, -2)


def _matched_covariance(likelihood: Likelihood, q_f: MultivariateNormal, num_samples: int, variance: Tensor) -> Tensor:
    r"""
    Combine given variances with the correlations of samples (`*T x (N P) x (N P)`).

    :param variance: (`*T x N x P`).
    """
    functions = joint_draws(q_f, num_samples)
    means = Conditional(likelihood, functions, q_f).mean.flatten(-2)  # (S, *T, N P)
    centered = (means - means.mean(0)).movedim(0, -1)  # (*T, N P, S)
    lengths = torch.linalg.vector_norm(centered, dim=-1, keepdim=True)
    directions = centered / lengths.clamp_min(torch.finfo(lengths.dtype).tiny)
    correlations = SHRINKAGE * (directions @ directions.mT)
    stddev = variance.flatten(-2).clamp_min(0.0)
    stddev = torch.where(stddev > 0, stddev, 1.0).sqrt() * (stddev > 0)
    eye = torch.eye(stddev.shape[-1], dtype=stddev.dtype, device=stddev.device)
    correlations = torch.where(eye.bool(), 1.0, correlations)
    return stddev.unsqueeze(-1) * correlations * stddev.unsqueeze(-2)
