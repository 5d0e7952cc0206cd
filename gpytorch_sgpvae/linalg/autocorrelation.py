"""
Starting values of lengthscales, and of the part of the noise that is a process of its own: estimates from pairs of
rows, as pure functions of plain tensors, under the rules of :mod:`gpytorch_sgpvae.linalg.factor_analysis`.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

from .factor_analysis import CHUNK_NUMBERS, FactorAnalysis, scored, spread_numbers

# An autocorrelation is estimated from this many pairs of points, and this many points of a task if D > 1.
MAX_PAIRS, MAX_POINTS = 2**18, 512
NUM_DISTANCES, NUM_LENGTHSCALES = 32, 64
# This number of pairs counts for half of a full bin, and a series with fewer in all gets the defaults.
FEW_PAIRS = 30.0
# Without evidence: the lengthscale as a share of the extent, and the share of the variance that is correlated.
DEFAULT_LENGTHSCALE_SHARE, DEFAULT_CORRELATED_SHARE = 0.2, 0.5
# A smaller correlated share says nothing about a lengthscale.
SMALLEST_CORRELATED_SHARE = 0.05
# Neither a private process nor the noise gets less of what they divide, so that both can learn.
SMALLEST_SPLIT = 0.01

# (1 + a) exp(−a) = exp(−1)
_MATERN32_DECAY = 2.1461932206205825


class Autocorrelation(NamedTuple):
    r"""
    The autocorrelation of a series along the inputs: white noise, and a process that forgets.

    :param correlated_share: The share of each series' variance that is not white noise (`C`).
    :param lengthscale: The distance at which the correlation of that share falls to :math:`e^{-1}` (`C x D`). It is a
        Matérn-1/2 kernel's lengthscale, and 1.24 times that of a Matérn-3/2 kernel.
    """

    correlated_share: Tensor
    lengthscale: Tensor


class PrivateSplit(NamedTuple):
    """
    The residuals of each output from the factors, divided into a process and white noise.

    :param private_variance: The variance of a process of its own (`P`).
    :param private_lengthscale: The lengthscales of this process (`P x D`).
    :param noise: The variance of white noise (`P`).
    """

    private_variance: Tensor
    private_lengthscale: Tensor
    noise: Tensor


@torch.no_grad()
def autocorrelation(x: Tensor, values: Tensor, weights: Tensor) -> Autocorrelation:
    r"""
    Estimate how each of C series is correlated along the inputs, from pairs of points of the same task.

    The pairs are binned by their distance, in logarithmic steps, and the correlation :math:`\rho_b` in each bin b is
    compared with a process plus white noise,

    .. math::

        \rho(d) \approx s \, \kappa(d / \ell), \qquad d > 0,

    by least squares over the bins, for the Matérn-1/2 and the Matérn-3/2 kernel :math:`\kappa`, whichever fits better:
    s is the correlated share, 1 - s the noise (the nugget). At most 2¹⁸ pairs are used, and if D > 1, at most 512
    points of each task. The lengthscale lies between the median distance of nearest neighbours and ten times the
    extent, which is the largest distance between the points of a pair.

    For D > 1 the correlation is taken for isotropic in units of each input's root mean square difference: the
    lengthscales of a series differ between the inputs by these units only.

    With fewer than 30 pairs the share is 1/2 and the lengthscale a fifth of the extent. This is also the lengthscale of
    a series whose correlated share is below 1/20. An input that never differs has lengthscale 1.

    :param x: Inputs (`*T x N x D`, or `N x D` for all tasks).
    :param values: The series (`*T x N x C`).
    :param weights: The weight of each value, from 0 (not observed) to 1 (`*T x N x C`).
    """
    if weights.shape != values.shape or x.shape[-2] != values.shape[-2]:
        raise ValueError(
            f"x has shape {tuple(x.shape)}, values {tuple(values.shape)} and weights {tuple(weights.shape)}: expected "
            "(*T, N, D), (*T, N, C) and (*T, N, C)."
        )
    dtype, T, (N, C), D = values.dtype, values.shape[:-2].numel(), values.shape[-2:], x.shape[-1]
    x = x.double().expand(*values.shape[:-1], D).reshape(T, N, D)
    weights = weights.double().reshape(T, N, C)
    values = torch.where(weights > 0, values.double().reshape(T, N, C), 0.0)
    informative = (weights > 0).any(-1)  # (T, N)

    left, right = _pairs(x, informative)  # (Q,), (Q,), rows of (T N)
    x, values, weights = x.reshape(-1, D), values.reshape(-1, C), weights.reshape(-1, C)
    difference = x[right] - x[left]  # (Q, D)
    unit = _root_mean_square(difference)  # (D,), 1 for an input that never differs
    distance = (difference / unit).square().sum(-1).sqrt()  # (Q,)
    nearest, extent = _range(distance, left, len(x))
    if extent == 0.0:
        return Autocorrelation(
            torch.full((C,), DEFAULT_CORRELATED_SHARE, dtype=dtype, device=x.device),
            torch.ones(C, D, dtype=dtype, device=x.device),
        )
    bins = _correlogram(distance, left, right, values, weights, nearest, extent)
    share, lengthscale = _fit(bins, nearest, 10 * extent)  # (C,), (C,)
    few = bins.weight.sum(0) < FEW_PAIRS
    share = torch.where(few, DEFAULT_CORRELATED_SHARE, share)
    unknown = few | (share < SMALLEST_CORRELATED_SHARE)
    lengthscale = torch.where(unknown, DEFAULT_LENGTHSCALE_SHARE * extent, lengthscale)
    differs = difference.abs().amax(0) > 0  # (D,)
    return Autocorrelation(share.to(dtype), torch.where(differs, lengthscale.unsqueeze(-1) * unit, 1.0).to(dtype))


@torch.no_grad()
def private_split(x: Tensor, y: Tensor, observed: Tensor, analysis: FactorAnalysis) -> PrivateSplit:
    r"""
    Divide the noise :math:`\psi_p` of a factor analysis between a private process and white noise, by the
    :func:`autocorrelation` of the residuals

    .. math::

        r_{np} = y_{np} - \mu_p - \mathbf w_p^\top \mathrm E [\mathbf f_n \mid \mathbf y_n], \qquad
        \mathrm{var} \, r_{np} = a_{np} \psi_p, \qquad
        a_{np} = 1 - \mathbf w_p^\top V_n \mathbf w_p / \psi_p

    The share :math:`a_{np}` of a residual's variance is its own output's; the rest comes from the factors and from
    other outputs, where few entries of a row are observed. Residuals are weighted by :math:`a_{np}`, but with few
    outputs per factor the shares are still drawn towards those of the other outputs. Each part is at least a hundredth
    of :math:`\psi_p`.

    :param x: Inputs (`*T x N x D`, or `N x D` for all tasks).
    :param y: (`*T x N x P`).
    :param observed: The entries of y that count (`*T x N x P`, boolean).
    :param analysis: The factor analysis of these data.
    """
    mean, _, reliability = scored(y, observed, analysis)
    fitted = analysis.mean.double() + mean @ analysis.loadings.double().mT
    residual = torch.where(observed, y.double() - fitted, 0.0)
    share, lengthscale = autocorrelation(x, residual, reliability * observed)
    noise = analysis.noise.double()
    private_variance = share.clamp(SMALLEST_SPLIT, 1 - SMALLEST_SPLIT) * noise
    return PrivateSplit(private_variance.to(y), lengthscale.to(y), (noise - private_variance).to(y))


def _pairs(x: Tensor, informative: Tensor) -> tuple[Tensor, Tensor]:
    """
    Rows of the same task, as indices into all rows (`T N`): with D = 1 neighbours in the order of x, the next, the one
    after it and so on in growing steps; otherwise all pairs. Few enough in both cases.
    """
    T, N, D = x.shape
    if N < 2:
        nothing = torch.zeros(0, dtype=torch.long, device=x.device)
        return nothing, nothing
    if D == 1:
        key = torch.where(informative, x.squeeze(-1), torch.inf)  # (T, N)
        order = key.argsort(dim=-1, stable=True)
        # 1, 2, …, 8, 10, 12, …: a bin of distances is about so wide
        steps, step = [], 1
        while step < N:
            steps.append(step)
            step = max(step + 1, int(1.2 * step))
    else:
        order = (~informative).to(torch.uint8).argsort(dim=-1, stable=True)
        longest = max(2, int(informative.sum(-1).max()))
        order = order[:, spread_numbers(longest, MAX_POINTS, x.device)]
        steps = list(range(1, order.shape[-1]))
    n = order.shape[-1]
    rows = (order + N * torch.arange(T, device=x.device).unsqueeze(-1)).reshape(-1)  # (T n)
    first = spread_numbers(T * n, max(1, MAX_PAIRS // len(steps)), x.device).unsqueeze(-1)
    second = first + torch.tensor(steps, device=x.device)  # (A, S)
    exists = first % n + torch.tensor(steps, device=x.device) < n
    left, right = rows[first.expand_as(second)[exists]], rows[second[exists]]
    kept = informative.reshape(-1)[left] & informative.reshape(-1)[right]
    return left[kept], right[kept]


def _root_mean_square(difference: Tensor) -> Tensor:
    """The scale of each column, or 1 if it is zero."""
    if not len(difference):
        return difference.new_ones(difference.shape[-1])
    root = difference.square().mean(0).sqrt()
    return torch.where(root > 0, root, 1.0)


def _range(distance: Tensor, left: Tensor, num_rows: int) -> tuple[float, float]:
    """The median distance from a point to the nearest one elsewhere, and the largest distance; 0 if there is none."""
    apart = distance > 0
    if not apart.any():
        return 0.0, 0.0
    nearest = distance.new_full((num_rows,), torch.inf)
    nearest = nearest.scatter_reduce(0, left[apart], distance[apart], "amin")
    return float(nearest[torch.isfinite(nearest)].median()), float(distance.max())


class _Bins(NamedTuple):
    """The correlogram of C series: of the pairs in each of B bins their weight, distance and correlation (`B x C`)."""

    weight: Tensor
    distance: Tensor
    correlation: Tensor


def _correlogram(
    distance: Tensor, left: Tensor, right: Tensor, values: Tensor, weights: Tensor, nearest: float, extent: float
) -> _Bins:
    # log d from the nearest to the extent, in equal steps
    width = max(math.log(extent / nearest), 1e-6) / NUM_DISTANCES
    index = ((distance / nearest).clamp_min(1.0).log() / width).long().clamp_max(NUM_DISTANCES - 1)  # (Q,)
    mean = (weights * values).sum(0) / weights.sum(0).clamp_min(torch.finfo(values.dtype).tiny)
    deviation = values - mean  # (T N, C)
    scale = (weights * deviation.square()).sum(0).sqrt()
    deviation = deviation / torch.where(scale > 0, scale, 1.0)
    C = values.shape[-1]
    weight, total, product, power = values.new_zeros(4, NUM_DISTANCES, C)
    for pairs in torch.arange(len(index), device=index.device).split(max(1, CHUNK_NUMBERS // C)):
        i, j = left[pairs], right[pairs]
        bins = torch.nn.functional.one_hot(index[pairs], NUM_DISTANCES).to(values).mT  # (B, Q)
        w, u, v = weights[i] * weights[j], deviation[i], deviation[j]  # (Q, C) each
        weight += bins @ w
        total += bins @ (w * distance[pairs].unsqueeze(-1))
        product += bins @ (w * u * v)
        power += bins @ (w * 0.5 * (u.square() + v.square()))
    # Σ w u v / Σ w (u² + v²) / 2 lies between −1 and 1 in every bin.
    correlation = torch.where(power > 0, product / torch.where(power > 0, power, 1.0), 0.0)
    return _Bins(weight, torch.where(weight > 0, total / torch.where(weight > 0, weight, 1.0), 0.0), correlation)


def _fit(bins: _Bins, shortest: float, longest: float) -> tuple[Tensor, Tensor]:
    """The correlated share and the lengthscale of each series (`C`), by least squares over a grid of lengthscales."""
    grid = torch.linspace(math.log(shortest), math.log(longest), NUM_LENGTHSCALES, device=bins.weight.device)
    grid = grid.to(bins.weight).exp()  # (G,)
    scaled = bins.distance / grid[:, None, None]  # (G, B, C)
    decay = _MATERN32_DECAY * scaled
    kernels = torch.cat([(-scaled).exp(), (1 + decay) * (-decay).exp()])  # (2 G, B, C)
    weight = bins.weight / (bins.weight + FEW_PAIRS)  # (B, C)
    # min_s Σ_b w (ρ − s κ)²
    squares = (weight * kernels.square()).sum(-2)  # (2 G, C)
    products = (weight * kernels * bins.correlation).sum(-2)
    share = (products / squares.clamp_min(torch.finfo(squares.dtype).tiny)).clamp(0.0, 1.0)
    loss = share.square() * squares - 2 * share * products  # + Σ_b w ρ², the same for all
    best = loss.argmin(0, keepdim=True)  # (1, C)
    return share.gather(0, best).squeeze(0), torch.cat([grid, grid])[best.squeeze(0)]
