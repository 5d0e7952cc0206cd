r"""
The algebra of the sparse posterior: pure functions of plain tensors.

All of it is per latent function, whitened by :math:`L = \mathrm{chol}(K_{uu} + \epsilon I)`, with
:math:`u = L v + \mu_u` and :math:`p(v) = \mathcal N(0, I)`:

.. math::

    A = L^{-1} K_{uf}, \quad
    B = I + A \Lambda A^\top, \quad
    S = B^{-1}, \quad
    m = S A (\lambda g - \lambda \mu_f), \quad
    q(v) = \mathcal N(m, S)

.. math::

    q(f_*) = \mathcal N \left( \mu_* + a_*^\top m, \; k_{**} - |a_*|^2 + a_*^\top S a_* \right), \quad
    \mathrm{KL} = \tfrac 1 2 \left( \mathrm{tr} S + m^\top m - M + \log |B| \right)

Where u = f, at the context's own inputs, nothing is inverted and no jitter is needed, with :math:`W = \Lambda^{1/2}`:

.. math::

    B = I + W K_{ff} W, \quad
    \alpha = (I - W B^{-1} W K_{ff}) (\lambda g - \lambda \mu_f), \quad
    q(f_*) = \mathcal N \left( \mu_* + k_{*f} \alpha, \; k_{**} - k_{*f} W B^{-1} W k_{f*} \right)

.. math::

    \mathrm{KL} = \tfrac 1 2 \left( \mathrm{tr} B^{-1} + \alpha^\top K_{ff} \alpha - N + \log |B| \right)

Everything M x M, and the sums over N that lead there, is computed in GPyTorch's Cholesky dtype (float64 unless
:class:`gpytorch.settings.linalg_dtypes` says otherwise). In float32 the rounding of :math:`A \Lambda A^\top` alone
exceeds I as soon as the precisions of a task sum to more than 1e7, and B is no longer positive definite.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch
from gpytorch.settings import _linalg_dtype_cholesky
from linear_operator.utils.cholesky import psd_safe_cholesky
from torch import Tensor

from .sites import GaussianSites

# Below this a site is as good as linear: its precision times any latent value squared is beyond float64's sight.
SMALLEST_PRECISION = 1e-12


@dataclass(frozen=True, eq=False)
class Evidence:
    r"""
    What a set of points says about v: the natural parameters of :math:`\prod_n l_n`. Disjoint sets of points add.

    :param precision_mean: :math:`A (\lambda g - \lambda \mu_f)` (`*T x K x M`).
    :param precision: :math:`A \Lambda A^\top` (`*T x K x M x M`).
    """

    precision_mean: Tensor
    precision: Tensor

    def __add__(self, other: Evidence) -> Evidence:
        return Evidence(self.precision_mean + other.precision_mean, self.precision + other.precision)


class WhitenedPosterior(NamedTuple):
    r"""
    :math:`q(v) = \mathcal N(m, R^\top R)`, and its divergence from :math:`\mathcal N(0, I)`.

    :param mean: m (`*T x K x M`).
    :param inv_cholesky: :math:`R = \mathrm{chol}(B)^{-1}`, lower triangular (`*T x K x M x M`).
    :param kl_divergence: (`*T x K`).
    """

    mean: Tensor
    inv_cholesky: Tensor
    kl_divergence: Tensor


class DensePosterior(NamedTuple):
    r"""
    :math:`q(f)` at the context's inputs, as :math:`f = \mu_f + K_{ff} \alpha` with covariance
    :math:`K_{ff} - K_{ff} G^\top G K_{ff}`, and its divergence from the prior.

    :param weights: :math:`\alpha` (`*T x K x N`).
    :param root: :math:`G = \mathrm{chol}(B)^{-1} W` (`*T x K x N x N`).
    :param kl_divergence: (`*T x K`).
    """

    weights: Tensor
    root: Tensor
    kl_divergence: Tensor


def inverse_cholesky(matrix: Tensor) -> Tensor:
    """
    The inverse of the Cholesky factor. Products with it replace triangular solves of wide right-hand sides, which are
    slow in batches.
    """
    matrix = matrix.to(_working_dtype(matrix))
    chol = psd_safe_cholesky(matrix)  # (..., M, M)
    return torch.linalg.solve_triangular(chol, _identity_like(chol), upper=False)  # (..., M, M)


def whitened_cross_covariance(Luu_inv: Tensor, Kuf: Tensor) -> Tensor:
    # A = L⁻¹ K_uf, rounded once: L⁻¹ holds entries as large as ϵ^-½, whose rounding would cost digits of the variance
    return rounded_product(Luu_inv, Kuf)  # (*T, K, M, N)


def evidence_of_sites(A: Tensor, sites: GaussianSites, mean: Tensor) -> Evidence:
    r"""
    :param A: (`*T x K x M x N`).
    :param sites: (`*T x K x N`).
    :param mean: The prior mean :math:`\mu_f` (`*T x K x N`).
    """
    # λg − λμ
    shift = sites.precision_mean - sites.precision * mean  # (*T, K, N)
    A = A.to(_working_dtype(A))
    # A Λ Aᵀ
    precision = (A * sites.precision.to(A.dtype).unsqueeze(-2)) @ A.mT  # (*T, K, M, M)
    # A (λg − λμ)
    precision_mean = _matvec(A, shift.to(A.dtype))  # (*T, K, M)
    return Evidence(precision_mean, precision)


def whitened_posterior(evidence: Evidence) -> WhitenedPosterior:
    # B = I + A Λ Aᵀ
    B = evidence.precision + _identity_like(evidence.precision)  # (*T, K, M, M)
    # S = Rᵀ R
    R = inverse_cholesky(B)  # (*T, K, M, M)
    # m = S A (λg − λμ)
    m = _matvec(R.mT, _matvec(R, evidence.precision_mean))  # (*T, K, M)
    return WhitenedPosterior(m, R, _kl_divergence(m.square().sum(-1), R))


def dense_posterior(Kff: Tensor, sites: GaussianSites, mean: Tensor) -> DensePosterior:
    r"""
    :param Kff: (`*T x K x N x N`).
    :param sites: (`*T x K x N`).
    :param mean: The prior mean :math:`\mu_f` (`*T x K x N`).
    """
    Kff = _exact_enough(Kff)  # (*T, K, N, N)
    precision = sites.precision.to(Kff.dtype)
    # h = λg − λμ
    h = sites.precision_mean.to(Kff.dtype) - precision * mean.to(Kff.dtype)  # (*T, K, N)
    # W = Λ^½; the root of 0 has no gradient, so 1 stands there and is masked after
    informative = precision > SMALLEST_PRECISION
    safe_root = torch.where(informative, precision, 1.0).sqrt()
    W = safe_root * informative  # (*T, K, N)
    # h = W r + h₀, where h₀ is of the points whose precision is as good as 0
    r, h0 = h / safe_root * informative, h * ~informative  # (*T, K, N)
    # B = I + W K W
    scaled = W.unsqueeze(-1) * Kff * W.unsqueeze(-2)  # (*T, K, N, N)
    B = scaled + _identity_like(scaled)
    R = inverse_cholesky(B)  # (*T, K, N, N)
    # α = W B⁻¹ (r − W K h₀) + h₀, without a difference of large numbers for any precision
    residual = r - W * _matvec(Kff, h0)  # (*T, K, N)
    alpha = W * _matvec(R.mT, _matvec(R, residual)) + h0  # (*T, K, N)
    quadratic = (alpha * _matvec(Kff, alpha)).sum(-1)  # (*T, K)
    return DensePosterior(alpha, R * W.unsqueeze(-2), _kl_divergence(quadratic, R))


def rounded_product(left: Tensor, right: Tensor) -> Tensor:
    """A product with something M x M, rounded once, to the dtype of what it is applied to."""
    return (left @ right.to(left.dtype)).to(right.dtype)


def predictive_mean(mean: Tensor, A: Tensor, m: Tensor) -> Tensor:
    # μ* + A*ᵀ m
    return mean + _matvec(A.mT, m.to(A.dtype))  # (*T, K, N)


def predictive_root(A: Tensor, inv_cholesky: Tensor) -> Tensor:
    # C = R A, so that Cᵀ C = A*ᵀ S A*
    return inv_cholesky.to(A.dtype) @ A  # (*T, K, M, N)


def predictive_variance(prior_variance: Tensor, A: Tensor, C: Tensor) -> Tensor:
    # k** − |a*|² + a*ᵀ S a*
    return prior_variance - A.square().sum(-2) + C.square().sum(-2)  # (*T, K, N)


def _matvec(matrix: Tensor, vector: Tensor) -> Tensor:
    return (matrix @ vector.unsqueeze(-1)).squeeze(-1)


def _identity_like(matrix: Tensor) -> Tensor:
    return torch.eye(matrix.shape[-1], dtype=matrix.dtype, device=matrix.device)


def _exact_enough(K: Tensor) -> Tensor:
    """
    A covariance matrix in the working dtype. One that was rounded on its way, to float32, may have lost its
    definiteness by up to N ϵ times its diagonal, which precisions of a million would turn into a B that has none:
    as much is added to the diagonal.
    """
    dtype = _working_dtype(K)
    if K.dtype == dtype:
        return K
    rounding = K.shape[-1] * torch.finfo(K.dtype).eps
    K = K.to(dtype)
    return K + torch.diag_embed(rounding * K.diagonal(dim1=-2, dim2=-1))


def _kl_divergence(mahalanobis: Tensor, R: Tensor) -> Tensor:
    # tr B⁻¹ = |R|²
    trace = R.square().sum((-2, -1))
    # log |B| = −2 Σ log R_ii
    half_log_det = -R.diagonal(dim1=-2, dim2=-1).log().sum(-1)
    return 0.5 * (trace + mahalanobis - R.shape[-1]) + half_log_det  # (*T, K)


def _working_dtype(tensor: Tensor) -> torch.dtype:
    return torch.promote_types(tensor.dtype, _linalg_dtype_cholesky.value())
