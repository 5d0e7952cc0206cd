r"""
Where the parameters of a linear model start: estimates from moments of the data, pure functions of plain tensors.

The model is that of coregionalization with private processes, for every point n and output p,

.. math::

    y_{np} = \mu_p + \sum_k w_{pk} f_k(\mathbf x_n) + g_p(\mathbf x_n) + \epsilon_{np}

Three steps give its start. :func:`factor_analysis` forgets the inputs and finds :math:`\mu`, W, and the variance
:math:`\psi_p` of what is left, :math:`g_p + \epsilon_p`. :func:`autocorrelation` of the :func:`factor_scores` finds the
lengthscale of each :math:`f_k`. :func:`private_split` divides :math:`\psi_p` between :math:`g_p` and
:math:`\epsilon_p`.

Missing entries are left out, whatever their places hold. Nothing here draws random numbers: equal data give equal
starts. All work is in float64, without gradients, and results have the dtype and the device of the data.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

# The noise's inverse gamma prior is worth two rows, in which half of an output's variance is noise.
PRIOR_ROWS = 2.0
PRIOR_NOISE_SHARE = 0.5
# Loadings, in standard deviations of their outputs, that explain nearly nothing and still have gradients.
SMALL_LOADING = 0.02
# EM works on at most so many rows, and on fewer if there are many factors: a row takes K x K numbers.
MAX_ROWS, MIN_ROWS, MAX_ROW_NUMBERS = 8192, 1024, 2**22
# EM stops when an observed entry gains less than this, in nats, from another iteration.
SMALLEST_GAIN = 1e-7
# At the start of EM no output has less noise than this share of its variance: with none it would stay so.
FIRST_NOISE_SHARE = 0.1

# An autocorrelation is estimated from so many pairs of points, and so many points of a task if D > 1.
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
# Numbers in one temporary tensor (16 MB).
CHUNK_NUMBERS = 2**21

_GOLDEN = (math.sqrt(5) - 1) / 2
# (1 + a) exp(−a) = exp(−1)
_MATERN32_DECAY = 2.1461932206205825


class FactorAnalysis(NamedTuple):
    r"""
    :math:`\mathbf y \sim \mathcal N(\mu, W W^\top + \mathrm{diag}(\psi))`.

    :param mean: :math:`\mu` (`P`).
    :param loadings: W (`P x K`).
    :param noise: :math:`\psi`, the variance that each output shares with no other (`P`).
    """

    mean: Tensor
    loadings: Tensor
    noise: Tensor


class FactorScores(NamedTuple):
    r"""
    The factors of each row given what is observed in it, :math:`p(\mathbf f_n \mid \mathbf y_n^o)`.

    :param mean: (`*T x N x K`).
    :param variance: (`*T x N x K`), 1 where nothing is observed. `1 - variance` weighs a score's evidence.
    """

    mean: Tensor
    variance: Tensor


class Autocorrelation(NamedTuple):
    r"""
    How a series is correlated along the inputs: white noise, and a process that forgets.

    :param correlated_share: The share of each series' variance that is not white noise (`C`).
    :param lengthscale: The distance at which the correlation of that share falls to :math:`e^{-1}` (`C x D`). It is a
        Matérn-1/2 kernel's lengthscale, and 1.24 times that of a Matérn-3/2 kernel.
    """

    correlated_share: Tensor
    lengthscale: Tensor


class PrivateSplit(NamedTuple):
    """
    What the factors leave in each output, divided.

    :param private_variance: The variance of a process of its own (`P`).
    :param private_lengthscale: The lengthscales of this process (`P x D`).
    :param noise: The variance of white noise (`P`).
    """

    private_variance: Tensor
    private_lengthscale: Tensor
    noise: Tensor


@torch.no_grad()
def factor_analysis(y: Tensor, observed: Tensor, num_factors: int, num_iterations: int = 100) -> FactorAnalysis:
    r"""
    Factor analysis of rows with missing entries, by maximum likelihood:

    .. math::

        \mathbf y_n = \mu + W \mathbf f_n + \epsilon_n, \qquad
        \mathbf f_n \sim \mathcal N(0, I), \qquad
        \epsilon_{np} \sim \mathcal N(0, \psi_p)

    EM with an exact E-step for each pattern of missing entries, from the eigenvectors of the pairwise correlations. An
    inverse gamma prior on :math:`\psi_p` that is worth two rows keeps it at or above `1 / (rows + 2)` of the output's
    variance; it matters only where rows are few. Each iteration also lets the factors have any mean and covariance,
    which W and :math:`\mu` then absorb (`Liu, Rubin and Wu, 1998`_): it converges faster and the likelihood still never
    decreases.

    Only W Wᵀ is identified. W is rotated such that its columns are orthogonal if each output is divided by its standard
    deviation. They are sorted by the variance that they then explain, largest first, and the entry that is then the
    largest in size is positive.

    Special cases:

    - Rows in which nothing is observed are ignored. Of more rows than 2²² / K², at least 1024 and at most 8192, only so
      many are used, spread evenly.
    - Columns of W that explain nearly nothing, e.g. those beyond P, hold small numbers of either sign, no two alike.
    - An output that is never observed has mean 0, noise 1, and small loadings.
    - A constant output counts as one that hardly varies: a typical output's standard deviation is taken for its own.

    :param y: (`... x P`).
    :param observed: Which entries of y count (`... x P`, boolean).
    :param num_factors: K, at least 1.
    :param num_iterations: At most; EM stops when an observed entry gains less than 1e-7 nats.

    Example:
        >>> import torch
        >>> from gpytorch_sgpvae.linalg.starting_values import factor_analysis
        >>> y = torch.tensor([[1.0, 2.0, 0.0], [2.0, 4.1, 0.0], [3.0, 5.9, 0.0], [4.0, 8.0, 0.0]])
        >>> analysis = factor_analysis(y, torch.ones_like(y, dtype=torch.bool), num_factors=1)
        >>> analysis.mean
        tensor([2.5000, 5.0000, 0.0000])
        >>> analysis.loadings.shape
        torch.Size([3, 1])

    .. _Liu, Rubin and Wu, 1998:
        https://doi.org/10.1093/biomet/85.4.755
    """
    if num_factors < 1:
        raise ValueError(f"Expected at least 1 factor, got {num_factors}.")
    if observed.shape != y.shape:
        raise ValueError(
            f"y has shape {tuple(y.shape)} and observed {tuple(observed.shape)}: give one boolean per entry of y."
        )
    P = y.shape[-1]
    rows, seen = _rows_with_data(y, observed, min(num_factors, P))  # (R, P), (R, P)
    count = seen.sum(0)  # (P,)
    mean, scale = _standardization(rows, seen)  # (P,), (P,)
    z = seen * (rows - mean) / scale

    ever = count > 0
    shift, W, noise = z.new_zeros(P), z.new_zeros(P, num_factors), z.new_ones(P)
    if ever.any():
        K = min(num_factors, int(ever.sum()))
        shift[ever], W[ever, :K], noise[ever] = _expectation_maximization(z[:, ever], seen[:, ever], K, num_iterations)

    W = _principal_axes(W)
    small = _small_loadings(W)
    unused = W.square().mean(0).sqrt() < SMALL_LOADING  # (K,)
    W = torch.where(unused | ~ever.unsqueeze(-1), small, W)
    return FactorAnalysis(
        (mean + scale * shift).to(y),
        (scale.unsqueeze(-1) * W).to(y),
        torch.where(ever, scale.square() * noise, 1.0).to(y),
    )


@torch.no_grad()
def factor_scores(y: Tensor, observed: Tensor, analysis: FactorAnalysis) -> FactorScores:
    r"""
    The factors of each row, with its missing entries left out, :math:`\Lambda = \mathrm{diag}(\text{observed} / \psi)`:

    .. math::

        V = (I + W^\top \Lambda W)^{-1}, \qquad
        \mathrm E [\mathbf f \mid \mathbf y] = V W^\top \Lambda (\mathbf y - \mu)

    :param y: (`*T x N x P`).
    :param observed: Which entries of y count (`*T x N x P`, boolean).
    """
    mean, variance, _ = _scores(y, observed, analysis)
    return FactorScores(mean.to(y), variance.to(y))


@torch.no_grad()
def autocorrelation(x: Tensor, values: Tensor, weights: Tensor) -> Autocorrelation:
    r"""
    How each of C series is correlated along the inputs, from pairs of points of the same task.

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
    :param weights: Which values are observed, or how much each counts, from 0 to 1 (`*T x N x C`).
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
    :param observed: Which entries of y count (`*T x N x P`, boolean).
    :param analysis: The factor analysis of these data.
    """
    mean, _, reliability = _scores(y, observed, analysis)
    fitted = analysis.mean.double() + mean @ analysis.loadings.double().mT
    residual = torch.where(observed, y.double() - fitted, 0.0)
    share, lengthscale = autocorrelation(x, residual, reliability * observed)
    noise = analysis.noise.double()
    private_variance = share.clamp(SMALLEST_SPLIT, 1 - SMALLEST_SPLIT) * noise
    return PrivateSplit(private_variance.to(y), lengthscale.to(y), (noise - private_variance).to(y))


def _spread(total: int, count: int, device: torch.device) -> Tensor:
    """
    `count` different numbers below `total`, spread evenly for any count, and in step with no period in the data:
    multiples of the golden section, modulo 1.
    """
    if count >= total:
        return torch.arange(total, device=device)
    step = max(1, round(_GOLDEN * total))
    while math.gcd(step, total) > 1:
        step += 1
    return torch.arange(count, device=device) * step % total


def _rows_with_data(y: Tensor, observed: Tensor, num_factors: int) -> tuple[Tensor, Tensor]:
    P = y.shape[-1]
    y, observed = y.reshape(-1, P), observed.reshape(-1, P)
    informative = observed.any(-1).nonzero().squeeze(-1)
    bound = min(max(MAX_ROW_NUMBERS // num_factors**2, MIN_ROWS), MAX_ROWS)
    chosen = informative[_spread(len(informative), bound, y.device)]
    y, observed = y[chosen], observed[chosen]
    return torch.where(observed, y, 0.0).double(), observed


def _standardization(y: Tensor, observed: Tensor) -> tuple[Tensor, Tensor]:
    """The mean and standard deviation of each column; of one that does not vary, that of a typical column."""
    count = observed.sum(0).clamp_min(1)
    mean = y.sum(0) / count
    deviation = ((y - mean) * observed).square().sum(0).div(count).sqrt()
    # A constant in float64 deviates from its mean by rounding.
    varies = deviation > 1e-10 * mean.abs()
    typical = deviation[varies].median() if varies.any() else deviation.new_ones(())
    return mean, torch.where(varies, deviation, typical)


def _expectation_maximization(
    z: Tensor, observed: Tensor, num_factors: int, num_iterations: int
) -> tuple[Tensor, Tensor, Tensor]:
    """The mean, loadings and noise of standardized rows (`R x P`), zero where nothing is observed."""
    P, K = z.shape[-1], num_factors
    patterns, pattern_of_row = torch.unique(observed, dim=0, return_inverse=True)  # (G, P), (R,)
    patterns, observed = patterns.double(), observed.double()
    count = observed.sum(0)  # (P,)
    squares = z.square().sum(0)  # (P,)
    identity = torch.eye(K, dtype=z.dtype, device=z.device)

    mean = z.new_zeros(P)
    W, noise = _first_loadings(z, observed, K)
    last = -math.inf
    for _ in range(num_iterations):
        # V = (I + Wᵀ Λ W)⁻¹
        precision = identity + ((patterns / noise) @ _outer(W).reshape(P, -1)).reshape(-1, K, K)  # (G, K, K)
        L = torch.linalg.cholesky(precision)
        V = torch.cholesky_inverse(L)  # (G, K, K)
        # E[f | y] = V Wᵀ Λ (y − μ)
        residual = (z - mean) * observed
        evidence = (residual / noise) @ W  # (R, K)
        scores = (V[pattern_of_row] @ evidence.unsqueeze(-1)).squeeze(-1)  # (R, K)

        # The log posterior of mean, W and noise, up to constants; per observed entry.
        log_determinants = 2 * L.diagonal(dim1=-2, dim2=-1).log().sum(-1)[pattern_of_row].sum()
        quadratics = (residual.square() / noise).sum() - (evidence * scores).sum()
        log_prior = -0.5 * PRIOR_ROWS * (noise.log() + PRIOR_NOISE_SHARE / noise).sum()
        value = float(log_prior - 0.5 * (log_determinants + quadratics + (count * noise.log()).sum()))
        if value - last < SMALLEST_GAIN * float(count.sum()):
            break
        last = value

        # Each output's regression on f̃ = (1, f): S = Σ E[f̃ f̃ᵀ], t = Σ y E[f̃]
        extended = torch.cat([torch.ones_like(scores[:, :1]), scores], dim=-1)  # (R, K + 1)
        moments = _outer(extended)  # (R, K + 1, K + 1)
        moments[:, 1:, 1:] += V[pattern_of_row]
        S = (observed.mT @ moments.flatten(1)).reshape(P, K + 1, K + 1)
        t = z.mT @ extended  # (P, K + 1)
        coefficients = torch.cholesky_solve(t.unsqueeze(-1), torch.linalg.cholesky(S)).squeeze(-1)  # (P, K + 1)
        left = (squares - (t * coefficients).sum(-1)).clamp_min(0.0)
        noise = (left + PRIOR_ROWS * PRIOR_NOISE_SHARE) / (count + PRIOR_ROWS)
        # The factors' own mean α and covariance Φ go into the parameters: μ + W α and W Φ^½.
        average = moments.mean(0)  # (K + 1, K + 1)
        alpha = average[0, 1:]
        Phi = average[1:, 1:] - alpha * alpha.unsqueeze(-1)
        mean, W = coefficients[:, 0] + coefficients[:, 1:] @ alpha, coefficients[:, 1:] @ torch.linalg.cholesky(Phi)
    return mean, W, noise


def _first_loadings(z: Tensor, observed: Tensor, num_factors: int) -> tuple[Tensor, Tensor]:
    """
    Principal components of the pairwise correlations, each shrunk as if two more rows had seen none. That of a column
    with itself is too, and it is zero if the column is constant: else such a column would be a component of its own.
    """
    together = observed.mT @ observed  # (P, P)
    variances = z.square().mT @ observed  # (P, P), row p: of column p where the other is observed
    scale = (variances * variances.mT).sqrt()
    correlation = torch.where(scale > 0, z.mT @ z / scale.clamp_min(torch.finfo(z.dtype).tiny), 0.0)
    correlation = correlation * together / (together + PRIOR_ROWS)
    eigenvalues, eigenvectors = torch.linalg.eigh(correlation)  # ascending
    # What the other components leave is noise, as in probabilistic PCA. Negative eigenvalues count as none.
    rest = eigenvalues[: len(eigenvalues) - num_factors].clamp_min(0.0)
    level = rest.mean() if len(rest) else 0.0
    explained = (eigenvalues[-num_factors:] - level).clamp_min(0.0)
    W = eigenvectors[:, -num_factors:] * explained.sqrt()  # (P, K)
    # Loadings that are exactly zero, e.g. of outputs that are never seen with others, would remain so in EM.
    W = W + _small_loadings(W)
    return W, (1.0 - W.square().sum(-1)).clamp_min(FIRST_NOISE_SHARE)


def _outer(vectors: Tensor) -> Tensor:
    return vectors.unsqueeze(-1) * vectors.unsqueeze(-2)


def _principal_axes(W: Tensor) -> Tensor:
    """Rotate W (`P x K`) such that its columns are orthogonal, the longest first, the largest entry positive."""
    P, K = W.shape
    U, S, _ = torch.linalg.svd(W, full_matrices=False)
    axes = U * S  # (P, min(P, K))
    largest = axes.gather(0, axes.abs().argmax(0, keepdim=True))  # (1, min(P, K))
    axes = torch.where(largest < 0, -axes, axes)
    return torch.cat([axes, W.new_zeros(P, K - axes.shape[-1])], dim=-1)


def _small_loadings(W: Tensor) -> Tensor:
    """Numbers of either sign and at least half of a small loading in size (`P x K`), no two columns alike."""
    p, k = (torch.arange(1, size + 1, dtype=W.dtype, device=W.device) for size in W.shape)
    wave = torch.cos(2 * math.pi * _GOLDEN * p.unsqueeze(-1) * k)
    return SMALL_LOADING * 0.5 * (wave + wave.sign())


def _scores(y: Tensor, observed: Tensor, analysis: FactorAnalysis) -> tuple[Tensor, Tensor, Tensor]:
    """In float64, E[f | y] and its variance (`*T x N x K`) and the share a of each residual (`*T x N x P`)."""
    mean, W, noise = (tensor.double() for tensor in analysis)
    P, K = W.shape
    identity = torch.eye(K, dtype=W.dtype, device=W.device)
    rows = torch.where(observed, y, 0.0).double().reshape(-1, P)
    pieces = []
    size = max(1, CHUNK_NUMBERS // (K * K + P))
    for z, seen in zip(rows.split(size), observed.reshape(-1, P).double().split(size), strict=True):
        precision = identity + ((seen / noise) @ _outer(W).reshape(P, -1)).reshape(-1, K, K)  # (R, K, K)
        V = torch.cholesky_inverse(torch.linalg.cholesky(precision))
        evidence = ((z - mean) * seen / noise) @ W  # (R, K)
        # wᵀ V w, for every row and output
        explained = V.flatten(1) @ _outer(W).reshape(P, -1).mT  # (R, P)
        scores = (V @ evidence.unsqueeze(-1)).squeeze(-1)
        pieces.append((scores, V.diagonal(dim1=-2, dim2=-1), (1 - explained / noise).clamp(0.0, 1.0)))
    scores, variance, reliability = (torch.cat(piece) for piece in zip(*pieces, strict=True))
    shape = y.shape[:-1]
    return scores.reshape(*shape, K), variance.reshape(*shape, K), reliability.reshape(*shape, P)


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
        order = order[:, _spread(longest, MAX_POINTS, x.device)]
        steps = list(range(1, order.shape[-1]))
    n = order.shape[-1]
    rows = (order + N * torch.arange(T, device=x.device).unsqueeze(-1)).reshape(-1)  # (T n)
    first = _spread(T * n, max(1, MAX_PAIRS // len(steps)), x.device).unsqueeze(-1)
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
