r"""
Starting values of a linear model's loadings: factor analysis of rows with holes, as pure functions of plain tensors.

The model is that of coregionalization with private processes, for every point n and output p,

.. math::

    y_{np} = \mu_p + \sum_k w_{pk} f_k(\mathbf x_n) + g_p(\mathbf x_n) + \epsilon_{np}

Three steps give its start. :func:`factor_analysis` forgets the inputs and finds :math:`\mu`, W, and the variance
:math:`\psi_p` of what is left, :math:`g_p + \epsilon_p`. The autocorrelation of the :func:`factor_scores` gives the
lengthscale of each :math:`f_k`, and :func:`~gpytorch_sgpvae.linalg.autocorrelation.private_split` divides
:math:`\psi_p` between :math:`g_p` and :math:`\epsilon_p`.

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
# EM works on at most this many rows, and on fewer if there are many factors: a row takes K x K numbers.
MAX_ROWS, MIN_ROWS, MAX_ROW_NUMBERS = 8192, 1024, 2**22
# EM stops when an observed entry gains less than this, in nats, from another iteration.
SMALLEST_GAIN = 1e-7
# At the start of EM no output has less noise than this share of its variance: with none it would stay so.
FIRST_NOISE_SHARE = 0.1
# Numbers in one temporary tensor (16 MB).
CHUNK_NUMBERS = 2**21

_GOLDEN = (math.sqrt(5) - 1) / 2


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

    - Rows in which nothing is observed are ignored. At most 2²² / K² rows are used (but at least 1024 and at most
      8192), spread evenly.
    - Columns of W that explain nearly nothing, e.g. those beyond P, hold small numbers of either sign, no two alike.
    - An output that is never observed has mean 0, noise 1, and small loadings.
    - A constant output counts as one that hardly varies: a typical output's standard deviation is taken for its own.

    :param y: (`... x P`).
    :param observed: The entries of y that count (`... x P`, boolean).
    :param num_factors: K, at least 1.
    :param num_iterations: The largest number of iterations; EM stops when an observed entry gains less than 1e-7 nats.

    Example:
        >>> import torch
        >>> from gpytorch_sgpvae.linalg.factor_analysis import factor_analysis
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
    :param observed: The entries of y that count (`*T x N x P`, boolean).
    """
    mean, variance, _ = scored(y, observed, analysis)
    return FactorScores(mean.to(y), variance.to(y))


def scored(y: Tensor, observed: Tensor, analysis: FactorAnalysis) -> tuple[Tensor, Tensor, Tensor]:
    """Compute, in float64, E[f | y] and its variance (`*T x N x K`) and the share a of each residual (`*T x N x P`)."""
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


def spread_numbers(total: int, count: int, device: torch.device) -> Tensor:
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
    chosen = informative[spread_numbers(len(informative), bound, y.device)]
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
