r"""
Scores of predictions, for each output, over all tasks and points with a value to compare with.

A missing value (NaN in y) is not scored; a missing prediction of a value that is there makes the score NaN, as does
an output without any values. All scores are in the units of y: normalize the observations for training, and come back
by :meth:`~gpytorch_sgpvae.Prediction.rescale`.

The functions in :mod:`gpytorch.metrics` have other definitions of missing (none), of an output's variance (that of all
outputs together) and of a prediction (one Gaussian); without NaN, :func:`mae` and :func:`rmse` are the same as there.

Example:
    >>> import torch
    >>> from gpytorch_sgpvae import SGPVAE, metrics
    >>> x, y = torch.rand(20, 2), 20 + 5 * torch.randn(20, 3)
    >>> y[:5, 1] = torch.nan
    >>> mean, stddev = y.nanmean(0), torch.tensor([5.0, 5.0, 5.0])
    >>> model = SGPVAE(num_outputs=3, num_latents=2, inducing_points=torch.rand(8, 2))
    >>> prediction = model.predict(x, context=(x, (y - mean) / stddev)).rescale(mean, stddev)
    >>> metrics.rmse(prediction, y).shape, metrics.nll(prediction, y).shape
    (torch.Size([3]), torch.Size([3]))
"""

from __future__ import annotations

import math
from functools import partial

import torch
from torch import Tensor
from torch.distributions import Distribution, Normal, constraints

from .likelihoods import Prediction
from .likelihoods.missing import fill_missing
from .likelihoods.mixture import cdf, draw
from .likelihoods.observation_models.distributions import ColumnwiseDistribution
from .likelihoods.prediction import BLOCK_SIZE
from .likelihoods.targets import as_rows

# Probabilities whose quantiles make the score of a single component.
NUM_LEVELS = 200


def mae(prediction: Prediction | Tensor, y: Tensor) -> Tensor:
    r"""
    Mean absolute error of the predictive mean (`P`).

    :param prediction: The prediction, or only its mean (`*T x N x P`).
    :param y: The values (`*T x N x P`, or `*T x N` for one output).
    """
    mean, y = _mean_and_values(prediction, y)
    return _mean_over_values((mean - y).abs(), y)


def rmse(prediction: Prediction | Tensor, y: Tensor) -> Tensor:
    r"""
    Root mean squared error of the predictive mean (`P`).

    :param prediction: The prediction, or only its mean (`*T x N x P`).
    :param y: The values (`*T x N x P`, or `*T x N` for one output).
    """
    mean, y = _mean_and_values(prediction, y)
    return _mean_over_values((mean - y).square(), y).sqrt()


def smse(prediction: Prediction | Tensor, y: Tensor) -> Tensor:
    r"""
    Standardized mean squared error of the predictive mean (`P`): in units of the variance of the output's values,

    .. math::

        \frac{\sum_n (y_{np} - \hat y_{np})^2}{\sum_n (y_{np} - \bar y_p)^2}

    It is 1 for a prediction by the values' own mean.

    :param prediction: The prediction, or only its mean (`*T x N x P`).
    :param y: The values (`*T x N x P`, or `*T x N` for one output).
    """
    mean, y = _mean_and_values(prediction, y)
    variance = _mean_over_values((y - _mean_over_values(y, y)).square(), y)
    return _mean_over_values((mean - y).square(), y) / variance


def nll(prediction: Prediction, y: Tensor, mixture: bool = False) -> Tensor:
    r"""
    Mean negative log density of the values, in nats (`P`).

    :param prediction: The prediction.
    :param y: The values (`*T x N x P`, or `*T x N` for one output).
    :param mixture: Whether it is the density of the mixture; by default that of the Gaussian with its mean and
        variance, as in the SGP-VAE's paper.
    """
    log_probs = prediction.log_prob(y) if mixture else prediction.gaussian_log_prob(y)
    return -_mean_over_values(log_probs, as_rows(y, torch.Size([1, *log_probs.shape])))


def crps(prediction: Prediction, y: Tensor) -> Tensor:
    r"""
    Mean continuous ranked probability score (`P`) of the mixture, with distribution function F:

    .. math::

        \int \left( F(z) - 1_{z \geq y} \right)^2 dz = \mathbb E |Y - y| - \tfrac 1 2 \mathbb E |Y - Y'|,
        \qquad Y, Y' \sim F

    It is exact for Gaussian components, in :math:`O(S^2)` a value (`Grimit et al. (2006)`_). A single component of
    another kind that knows its quantiles :math:`q(\tau)` has the sum of its quantile scores at 200 probabilities,

    .. math::

        2 \int_0^1 \left( 1_{y < q(\tau)} - \tau \right) \left( q(\tau) - y \right) d\tau

    and all others an unbiased estimate from some 4000 draws a value.

    :param prediction: The prediction.
    :param y: The values (`*T x N x P`, or `*T x N` for one output).

    .. _Grimit et al. (2006):
        https://doi.org/10.1256/qj.05.235
    """
    # random numbers are drawn in blocks, so that the prediction's chunk size does not change them
    is_drawn = prediction.num_samples > 1 and not issubclass(prediction.family, Normal)
    chunk_size = BLOCK_SIZE if is_drawn else None
    with torch.no_grad():
        scores = prediction.scale * prediction.score(_crps, y, chunk_size)  # distances have the units of y
        return _mean_over_values(scores, as_rows(y, torch.Size([1, *scores.shape])))


def coverage(prediction: Prediction, y: Tensor, level: float = 0.95) -> Tensor:
    r"""
    Fraction of the values inside the central interval of a given probability, bounds included (`P`): close to that
    probability if the prediction is calibrated.

    :param prediction: The prediction.
    :param y: The values (`*T x N x P`, or `*T x N` for one output).
    :param level: Probability of the interval.
    """
    if not 0 < level < 1:
        raise ValueError(f"Expected a level strictly between 0 and 1, got {level}.")
    try:
        inside = prediction.score(partial(_inside, level=level), y)
    except NotImplementedError:  # a family without a distribution function has its quantiles from draws
        lower, upper = prediction.quantile([0.5 - 0.5 * level, 0.5 + 0.5 * level])
        rows = as_rows(y, torch.Size([1, *lower.shape]))
        # an interval that is NaN is not one that misses
        inside = torch.where(lower <= upper, ((lower <= rows) & (rows <= upper)).to(lower.dtype), torch.nan)
    return _mean_over_values(inside, as_rows(y, torch.Size([1, *inside.shape])))


def _mean_and_values(prediction: Prediction | Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    mean = prediction.mean if isinstance(prediction, Prediction) else prediction
    return mean, as_rows(y, torch.Size([1, *mean.shape]))


def _mean_over_values(scores: Tensor, y: Tensor) -> Tensor:
    """Mean over all but the outputs, where y is not NaN (`P`)."""
    observed = fill_missing(y)[1].expand_as(scores)
    dims = tuple(range(scores.dim() - 1))
    return torch.where(observed, scores, 0.0).sum(dims) / observed.sum(dims)


def _inside(components: Distribution, y: Tensor, level: float) -> Tensor:
    """Tell by their probabilities which values lie between two quantiles: no quantile has to be searched for."""
    if isinstance(components, ColumnwiseDistribution):
        return torch.cat([_inside(part, columns, level) for part, columns in components.split(y)], dim=-1)
    # inf {z : F(z) >= p} <= y  where  F(y) >= p,  and  y <= inf {z : F(z) >= p}  where no smaller value has F >= p
    below = before = cdf(components, y)
    if components.support is not None and components.support is not constraints.real:
        # a value that has a probability of its own: what comes just before it
        before = cdf(components, y.nextafter(torch.full_like(y, -math.inf)))
    inside = (below >= 0.5 - 0.5 * level) & (before < 0.5 + 0.5 * level)
    return torch.where(below.isnan(), torch.nan, inside.to(below.dtype))


def _crps(components: Distribution, y: Tensor) -> Tensor:
    if isinstance(components, ColumnwiseDistribution):
        return torch.cat([_crps(part, columns) for part, columns in components.split(y)], dim=-1)
    if isinstance(components, Normal):
        return _gaussian_crps(components, y)
    if components.batch_shape[0] == 1 and not getattr(components.support, "is_discrete", False):
        try:
            return _quantile_crps(components, y)
        except NotImplementedError:  # it does not know its quantiles
            pass
    return _drawn_crps(components, y)


def _quantile_crps(components: Distribution, y: Tensor) -> Tensor:
    scores = torch.zeros_like(y)
    for i in range(NUM_LEVELS):
        level = torch.as_tensor((i + 0.5) / NUM_LEVELS, dtype=y.dtype, device=y.device)
        quantile = components.icdf(level.expand(components.batch_shape)).squeeze(0)  # (*T, N, P)
        scores += ((y < quantile).to(y.dtype) - level) * (quantile - y)
    return 2 * scores / NUM_LEVELS


def gaussian_crps(mean: Tensor, stddev: Tensor, y: Tensor) -> Tensor:
    r"""
    The continuous ranked probability score of single Gaussians, entry by entry, NaN where y is NaN:

    .. math::

        \mathrm{CRPS} = \mathrm E |Y - y| - \tfrac 1 2 \mathrm E |Y - Y'|
        = \mathrm E |Y - y| - \sigma / \sqrt \pi, \qquad Y, Y' \sim \mathcal N(\mu, \sigma^2)

    :param mean: :math:`\mu`.
    :param stddev: :math:`\sigma`.
    :param y: The true values.

    Example:
        >>> import torch
        >>> from gpytorch_sgpvae import metrics
        >>> metrics.gaussian_crps(torch.zeros(2), torch.ones(2), torch.tensor([0.0, 3.0]))
        tensor([0.2337, 2.4366])
    """
    return _mean_absolute_gaussian(mean - y, stddev.square()) - stddev / math.sqrt(math.pi)


def _gaussian_crps(components: Distribution, y: Tensor) -> Tensor:
    means, variances = components.mean, components.variance  # (S, *T, N, P)
    num_components = means.shape[0]
    # 1/S Σ_i E|Y_i - y| - 1/(2 S²) Σ_ij E|Y_i - Y_j'|: differences of Gaussians are Gaussian
    distance = _mean_absolute_gaussian(means - y, variances).mean(0)
    spread = 0.5 * _mean_absolute_gaussian(torch.zeros_like(means), 2 * variances).sum(0)  # i = j
    # pairs i < j, one i at a time: S x S of them need not exist at once
    for i in range(num_components - 1):
        spread += _mean_absolute_gaussian(means[i] - means[i + 1 :], variances[i] + variances[i + 1 :]).sum(0)
    return distance - spread / num_components**2


def _mean_absolute_gaussian(mean: Tensor, variance: Tensor) -> Tensor:
    # E|Z| = 2 σ φ(μ/σ) + μ (2 Φ(μ/σ) - 1)
    stddev = variance.sqrt()
    z = mean / stddev
    return stddev * math.sqrt(2 / math.pi) * torch.exp(-0.5 * z.square()) + mean * torch.erf(z / math.sqrt(2))


def _drawn_crps(components: Distribution, y: Tensor) -> Tensor:
    draws = draw(components) - y  # (R, S, *T, N, P)
    R, S = draws.shape[:2]
    # Each component has the same number of draws, so that among their pairs those from one component are too few:
    # R (R - 1) where there should be R². Averaged on their own they leave no bias.
    within = _sum_of_distances(draws).sum(0)
    across = _sum_of_distances(draws.flatten(0, 1)) - within
    return draws.abs().mean((0, 1)) - (within / (R * (R - 1)) + across / R**2) / S**2


def _sum_of_distances(draws: Tensor) -> Tensor:
    """Sum of |z_i - z_j| over the pairs i < j in the first dimension."""
    # = Σ_i (2 i - R + 1) z_(i) over the ordered z, i from 0
    num_draws = draws.shape[0]
    weights = 2 * torch.arange(num_draws, dtype=draws.dtype, device=draws.device) - num_draws + 1
    return torch.tensordot(weights, draws.sort(dim=0).values, dims=1)
