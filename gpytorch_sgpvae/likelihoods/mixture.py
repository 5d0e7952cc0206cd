"""
Equal mixtures, as functions of their components: a distribution of batch shape `S x *T x N x P`, of which the first
dimension is averaged over. Values, and what the functions return, are `*T x N x P`.
"""

from __future__ import annotations

import math
from functools import partial

import torch
from torch import Tensor
from torch.distributions import Distribution, Normal, constraints

from .observation_models.distributions import ColumnwiseDistribution, bisect, whole_quantile
from .targets import check_support

# Draws for each value where a family of distributions knows no distribution function.
NUM_DRAWS = 4000


def moments(components: Distribution) -> tuple[Tensor, Tensor]:
    """Mean and variance."""
    means = components.mean
    return means.mean(0), components.variance.mean(0) + means.var(0, correction=0)


def log_prob(components: Distribution, y: Tensor) -> Tensor:
    """Log density, for each output on its own."""
    # what was missing is filled with a value of the support
    check_support(components, y, torch.ones_like(y, dtype=torch.bool))
    log_probs = components.log_prob(y)  # (S, *T, N, P)
    return log_probs.logsumexp(0) - math.log(log_probs.shape[0])


def gaussian_log_prob(components: Distribution, y: Tensor) -> Tensor:
    """Log density of the Gaussian with the mixture's mean and variance."""
    mean, variance = moments(components)
    return Normal(mean, variance.sqrt(), validate_args=False).log_prob(y)


def cdf(components: Distribution, y: Tensor) -> Tensor:
    """Distribution function."""
    support = components.support
    if support is None or support is constraints.real:
        return components.cdf(y).mean(0)
    # A family is asked about its support only: below it the answer is 0, above it 1.
    center = components.mean.nan_to_num(0.0)  # (S, *T, N, P); torch's classes have no mean
    if support.is_discrete:
        center, y = center.floor(), y.floor()
    inside = support.check(y)
    return torch.where(inside, components.cdf(torch.where(inside, y, center)), (y > center).to(y.dtype)).mean(0)


def quantiles(components: Distribution, levels: Tensor) -> Tensor:
    """The smallest values whose distribution function is at least each of Q levels, by bisection (`Q x *T x N x P`)."""
    return torch.stack([_quantile(components, level) for level in levels])


def draw_quantiles(components: Distribution, levels: Tensor) -> Tensor:
    """The same from draws, for a family that knows no distribution function (`Q x *T x N x P`)."""
    ordered = draw(components).flatten(0, 1).sort(dim=0).values  # (R S, *T, N, P)
    return ordered[(levels * ordered.shape[0]).ceil().long() - 1]  # (Q, *T, N, P)


def draw(components: Distribution) -> Tensor:
    """R > 1 draws from each of the S components, together at least NUM_DRAWS (`R x S x *T x N x P`)."""
    return components.sample(torch.Size([max(2, math.ceil(NUM_DRAWS / components.batch_shape[0]))]))


def _quantile(components: Distribution, p: Tensor) -> Tensor:
    if isinstance(components, ColumnwiseDistribution):
        return torch.cat([_quantile(part, p) for part in components.parts], dim=-1)
    if components.support is not None and components.support.is_discrete:
        mean, variance = moments(components)
        if bool((mean.isfinite() & variance.isfinite()).all()):
            return whole_quantile(partial(cdf, components), p, mean, variance.sqrt())
    try:
        # The mixture's quantile lies between those of its components.
        bounds = components.icdf(p)  # (S, *T, N, P)
        lower, upper = bounds.amin(0), bounds.amax(0)
        if torch.equal(lower, upper):  # all components agree
            return lower
    except NotImplementedError:
        lower, upper = _bracket(components, p)
    lower, upper = bisect(partial(cdf, components), p, lower, upper)
    # A whole number between the two is the quantile of counts, exactly; to a real quantile it is as close as the rest.
    return torch.where(upper.floor() >= lower, upper.floor(), 0.5 * (lower + upper))


def _bracket(components: Distribution, p: Tensor) -> tuple[Tensor, Tensor]:
    """Values with F(lower) < p <= F(upper), by expansion around the mean."""
    mean, variance = moments(components)
    # heavy tails have no moments: then it starts from 0 ± 1
    center = torch.where(mean.isfinite(), mean, 0.0)
    width = torch.where(variance.isfinite() & (variance > 0), variance.sqrt(), 1.0)
    for _ in range(1024):  # float64's largest number is 2^1024
        lower, upper = center - width, center + width
        outside = (cdf(components, lower) >= p) | (cdf(components, upper) < p)
        if not bool(outside.any()):
            break
        width = torch.where(outside, 2 * width, width)
    return lower, upper
