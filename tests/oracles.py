"""
Dense textbook formulas in float64, the judges of the package. Nothing here imports it.

Matrices are plain tensors; Kuu comes with its jitter already added, and every formula inverts what it needs.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor


class Gaussian(NamedTuple):
    mean: Tensor
    covariance: Tensor


def exact_gp(
    Kff: Tensor, Ksf: Tensor, Kss: Tensor, mean_f: Tensor, mean_s: Tensor, y: Tensor, noise: float
) -> Gaussian:
    """Rasmussen and Williams (2006), eqs. 2.23 and 2.24."""
    inverse = torch.linalg.inv(Kff + noise * torch.eye(len(y), dtype=Kff.dtype))
    return Gaussian(mean_s + Ksf @ inverse @ (y - mean_f), Kss - Ksf @ inverse @ Ksf.T)


def log_normal_density(y: Tensor, mean: Tensor, covariance: Tensor) -> Tensor:
    residual = y - mean
    quadratic = residual @ torch.linalg.solve(covariance, residual)
    return -0.5 * (quadratic + torch.linalg.slogdet(covariance).logabsdet + len(y) * math.log(2 * math.pi))


def titsias_bound(Kuu: Tensor, Kuf: Tensor, Kff: Tensor, mean_f: Tensor, y: Tensor, noise: float) -> Tensor:
    """Titsias (2009), eq. 9."""
    Qff = Kuf.T @ torch.linalg.solve(Kuu, Kuf)
    evidence = log_normal_density(y, mean_f, Qff + noise * torch.eye(len(y), dtype=y.dtype))
    return evidence - torch.trace(Kff - Qff) / (2 * noise)


def sparse_posterior(
    Kuu: Tensor, Kuf: Tensor, mean_u: Tensor, mean_f: Tensor, precision_mean: Tensor, precision: Tensor
) -> Gaussian:
    """q(u) ∝ p(u) Π N(g_n | μ_n + k_nu Kuu⁻¹ (u − μ_u), v_n), by its natural parameters."""
    projection = torch.linalg.solve(Kuu, Kuf).T  # (N, M)
    posterior_precision = torch.linalg.inv(Kuu) + projection.T @ torch.diag(precision) @ projection
    covariance = torch.linalg.inv(posterior_precision)
    return Gaussian(mean_u + covariance @ projection.T @ (precision_mean - precision * mean_f), covariance)


def sparse_predictive(q_u: Gaussian, Kuu: Tensor, Kus: Tensor, Kss: Tensor, mean_u: Tensor, mean_s: Tensor) -> Gaussian:
    """q(f*) = ∫ p(f* | u) q(u) du."""
    projection = torch.linalg.solve(Kuu, Kus).T
    mean = mean_s + projection @ (q_u.mean - mean_u)
    return Gaussian(mean, Kss - projection @ Kus + projection @ q_u.covariance @ projection.T)


def dense_posterior(
    Kff: Tensor, Ksf: Tensor, Kss: Tensor, mean_f: Tensor, mean_s: Tensor, precision_mean: Tensor, precision: Tensor
) -> Gaussian:
    """Exact regression on the points that have a precision at all, with noise of its inverse."""
    kept = precision > 0
    noise = torch.diag(1 / precision[kept])
    inverse = torch.linalg.inv(Kff[kept][:, kept] + noise)
    residual = precision_mean[kept] / precision[kept] - mean_f[kept]
    cross = Ksf[:, kept]
    return Gaussian(mean_s + cross @ inverse @ residual, Kss - cross @ inverse @ cross.T)


def gp_factor_analysis(K: Tensor, W: Tensor, b: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
    """
    Mean and covariance of vec(y), rows first, for y_n = W f_n + b + noise with independent f_k ~ N(0, K_k);
    K is (K, N, N), W is (P, K).
    """
    N, P = K.shape[-1], len(b)
    covariance = torch.einsum("knm,pk,qk->npmq", K, W, W).reshape(N * P, N * P)
    return b.repeat(N), covariance + torch.diag(noise.repeat(N))


def observed_sums(W: Tensor, observed: Tensor) -> Tensor:
    """
    The matrix that takes vec(f), rows first (N K), to the sums of latent functions that are observed (E x N K).

    W is (P, K), or (N, P, K) where each point has its own; observed is (N, P).
    """
    N, P = observed.shape
    W = W.expand(N, P, W.shape[-1])
    return torch.einsum("npk,nm->npmk", W, torch.eye(N, dtype=W.dtype)).reshape(N * P, -1)[observed.reshape(-1)]


def by_points(K: Tensor) -> Tensor:
    """The covariance of vec(f) and vec(f'), rows first, of independent functions with covariances K (K, N, N')."""
    num_latents, N, M = K.shape
    eye = torch.eye(num_latents, dtype=K.dtype)
    return torch.einsum("knm,kl->nkml", K, eye).reshape(N * num_latents, M * num_latents)


def coregionalization(
    Kff: Tensor, Ksf: Tensor, Kss: Tensor, mean_f: Tensor, mean_s: Tensor, W: Tensor, noise: Tensor, y: Tensor
) -> tuple[Gaussian, Tensor]:
    """
    The linear model of coregionalization, y_n = W f_n + noise, from those entries of y (N, P) that are not NaN: the
    posterior of vec(f*), rows first, and the log marginal likelihood. Covariances are (K, N, N'), means (K, N), W is
    (P, K) or (N, P, K), noise (P,) or (N, P).
    """
    observed = ~y.isnan()
    H, noise = observed_sums(W, observed), torch.diag(noise.expand(y.shape)[observed])
    covariance, mean = H @ by_points(Kff) @ H.T + noise, H @ mean_f.T.reshape(-1)
    cross = by_points(Ksf) @ H.T
    posterior = Gaussian(
        mean_s.T.reshape(-1) + cross @ torch.linalg.solve(covariance, y[observed] - mean),
        by_points(Kss) - cross @ torch.linalg.solve(covariance, cross.T),
    )
    return posterior, log_normal_density(y[observed], mean, covariance)


def coregionalized_titsias_bound(
    Kuu: Tensor, Kuf: Tensor, Kff: Tensor, mean_f: Tensor, W: Tensor, noise: Tensor, y: Tensor
) -> Tensor:
    """Titsias' bound of that log marginal likelihood, with inducing points of each latent function (Kuu: K, M, M)."""
    observed = ~y.isnan()
    Qff = Kuf.mT @ torch.linalg.solve(Kuu, Kuf)
    _, evidence = coregionalization(Qff, Qff, Qff, mean_f, mean_f, W, noise, y)
    H = observed_sums(W, observed)
    lost = (H @ by_points(Kff - Qff) @ H.T).diagonal() / noise.expand(y.shape)[observed]
    return evidence - lost.sum() / 2


def joint_sparse_posterior(
    Kuu: Tensor, Kuf: Tensor, mean_f: Tensor, W: Tensor, precision_mean: Tensor, precision: Tensor
) -> Gaussian:
    """
    q(u − μ_u) of the inducing values of all latent functions together (K M, latent functions first) by its natural
    parameters, for sites Π_np N(g_np | w_npᵀ f_n, 1 / λ_np); λ g and λ are (N, P), and 0 where nothing is known.
    """
    num_latents, _, N = Kuf.shape
    projection = torch.linalg.solve(Kuu, Kuf).mT  # (K, N, M)
    W = W.expand(N, precision.shape[-1], num_latents)
    design = torch.einsum("npk,knm->npkm", W, projection).reshape(precision.numel(), -1)
    residual = precision_mean - precision * torch.einsum("npk,kn->np", W, mean_f)
    inverse = torch.linalg.inv(torch.block_diag(*Kuu)) + design.T @ torch.diag(precision.reshape(-1)) @ design
    covariance = torch.linalg.inv(inverse)
    return Gaussian(covariance @ design.T @ residual.reshape(-1), covariance)


def joint_sparse_predictive(q_u: Gaussian, Kuu: Tensor, Kus: Tensor, Kss: Tensor, mean_s: Tensor) -> Gaussian:
    """q(vec(f*)), rows first."""
    num_latents = len(Kuu)
    projection = torch.linalg.solve(Kuu, Kus).mT  # (K, N*, M)
    blocks = torch.einsum("knm,kl->nklm", projection, torch.eye(num_latents, dtype=Kuu.dtype))
    design = blocks.reshape(-1, len(q_u.mean))  # (N* K, K M)
    conditional = by_points(Kss - projection @ Kus)
    return Gaussian(mean_s.T.reshape(-1) + design @ q_u.mean, conditional + design @ q_u.covariance @ design.T)


def factorized_optimum(K: Tensor, W: Tensor, b: Tensor, noise: Tensor, y: Tensor) -> Tensor:
    """
    The largest ELBO of GP factor analysis over all q(f) = Π_k q(f_k): each factor has the posterior's mean, and the
    posterior precision's diagonal block for a precision. The gap to the evidence is KL(q || posterior).
    """
    num_latents, N = K.shape[:2]
    prior = torch.block_diag(*K)
    design = torch.einsum("pk,nm->npkm", W, torch.eye(N, dtype=K.dtype)).reshape(N * len(b), num_latents * N)
    precision = torch.linalg.inv(prior) + design.T @ torch.diag(1 / noise.repeat(N)) @ design
    exact = torch.linalg.inv(precision)
    blocks = [precision[k * N : (k + 1) * N, k * N : (k + 1) * N] for k in range(num_latents)]
    factorized = torch.linalg.inv(torch.block_diag(*blocks))
    zero = torch.zeros(num_latents * N, dtype=K.dtype)
    mean, covariance = gp_factor_analysis(K, W, b, noise)
    evidence = log_normal_density(y.reshape(-1), mean, covariance)
    return evidence - kl_divergence(Gaussian(zero, factorized), Gaussian(zero, exact))


def kl_divergence(q: Gaussian, p: Gaussian) -> Tensor:
    """KL between two multivariate normals."""
    difference = p.mean - q.mean
    return 0.5 * (
        torch.trace(torch.linalg.solve(p.covariance, q.covariance))
        + difference @ torch.linalg.solve(p.covariance, difference)
        - len(difference)
        + torch.linalg.slogdet(p.covariance).logabsdet
        - torch.linalg.slogdet(q.covariance).logabsdet
    )
