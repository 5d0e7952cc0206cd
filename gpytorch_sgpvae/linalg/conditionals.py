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

    q(f_*) = \mathcal N \left( \mu_* + a_*^\top m, \; k_{**} - a_*^\top F a_* \right), \quad
    F = I - S, \quad
    \mathrm{KL} = \tfrac 1 2 \left( \mathrm{tr} S + m^\top m - M + \log |B| \right)

Where u = f, at the context's own inputs, nothing is inverted and no jitter is needed, with :math:`W = \Lambda^{1/2}`:

.. math::

    B = I + W K_{ff} W, \quad
    \alpha = (I - W B^{-1} W K_{ff}) (\lambda g - \lambda \mu_f), \quad
    q(f_*) = \mathcal N \left( \mu_* + k_{*f} \alpha, \; k_{**} - k_{*f} W B^{-1} W k_{f*} \right)

.. math::

    \mathrm{KL} = \tfrac 1 2 \left( \mathrm{tr} B^{-1} + \alpha^\top K_{ff} \alpha - N + \log |B| \right)

Everything M x M is computed in GPyTorch's Cholesky dtype (float64 unless
:class:`gpytorch.settings.linalg_dtypes` says otherwise), and so is :math:`A \Lambda A^\top`. In float32 its rounding
alone exceeds I as soon as the precisions of a task sum to more than 1e7, and B is no longer positive definite.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from typing import NamedTuple

import torch
from linear_operator.utils.cholesky import psd_safe_cholesky
from linear_operator.utils.warnings import NumericalWarning
from torch import Tensor

from .._compat import is_compiling, is_in_transform
from ..sites import GaussianSites
from . import functions
from .factored import FactoredPosterior
from .functions import working_dtype


@dataclass(frozen=True, eq=False)
class Evidence:
    r"""
    The evidence of a set of points about v: the natural parameters of :math:`\prod_n l_n`. Disjoint sets of points add.

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

    :param weights: m (`*T x K x M`).
    :param reduction: :math:`F = I - S`, by which the data reduce the variance of v (`*T x K x M x M`).
    :param inv_cholesky: :math:`R = \mathrm{chol}(B)^{-1}`, lower triangular (`*T x K x M x M`).
    :param kl_divergence: (`*T x K`).
    """

    weights: Tensor
    reduction: Tensor
    inv_cholesky: Tensor
    kl_divergence: Tensor


class DensePosterior(NamedTuple):
    r"""
    :math:`q(f)` at the context's inputs, as :math:`f = \mu_f + K_{ff} \alpha` with covariance
    :math:`K_{ff} - K_{ff} P K_{ff}`, and its divergence from the prior.

    :param weights: :math:`\alpha` (`*T x K x N`).
    :param reduction: :math:`P = W B^{-1} W` (`*T x K x N x N`).
    :param kl_divergence: (`*T x K`).
    :param shift: :math:`K_{ff} \alpha` (`*T x K x N`).
    :param variance: The diagonal of the covariance (`*T x K x N`).
    """

    weights: Tensor
    reduction: Tensor
    kl_divergence: Tensor
    shift: Tensor
    variance: Tensor

    def detach(self) -> DensePosterior:
        """The same without gradients."""
        return DensePosterior(*(tensor.detach() for tensor in self))


def inverse_cholesky(matrix: Tensor) -> Tensor:
    """
    The inverse of the Cholesky factor. Products with it replace triangular solves of wide right-hand sides, which are
    slow in batches.
    """
    return functions.InverseCholeskyFunction.evaluate(matrix)


def whitened_cross_covariance(Luu_inv: Tensor, Kuf: Tensor) -> Tensor:
    # A = L⁻¹ K_uf
    return Luu_inv.to(Kuf.dtype) @ Kuf  # (*T, K, M, N)


def evidence_of_sites(A: Tensor, sites: GaussianSites, mean: Tensor) -> Evidence:
    r"""
    :param A: (`*T x K x M x N`).
    :param sites: (`*T x K x N`).
    :param mean: The prior mean :math:`\mu_f` (`*T x K x N`).
    """
    # A Λ Aᵀ, A (λg − λμ)
    precision, precision_mean = functions.EvidenceFunction.evaluate(A, sites.precision, sites.seen_by(mean))
    return Evidence(precision_mean, precision)


def joint_evidence_of_sites(A: Tensor, sites: GaussianSites, mean: Tensor) -> Evidence:
    r"""
    The evidence of sites with loadings, for v of all latent functions together (`*T x (K M)`, latent functions first).

    :param A: (`*T x K x M x N`).
    :param sites: (`*T x J x N`).
    :param mean: The prior mean :math:`\mu_f` (`*T x K x N`).
    """
    # A_k diag(Σ_j λ_nj a_jk a_jl) A_lᵀ, A_k Σ_j a_jk λ_nj (g_nj − a_jᵀ μ_n)
    h = sites.to_latents(sites.seen_by(mean))  # (*T, K, N)
    precision, precision_mean = functions.JointEvidenceFunction.evaluate(A, sites.point_precision(), h)
    return Evidence(precision_mean, precision)


def whitened_posterior(evidence: Evidence) -> WhitenedPosterior:
    m, R, F, kl_divergence = functions.WhitenedPosteriorFunction.evaluate(evidence.precision, evidence.precision_mean)
    return WhitenedPosterior(m, F, R, kl_divergence)


def dense_posterior(Kff: Tensor, sites: GaussianSites, mean: Tensor) -> DensePosterior:
    r"""
    :param Kff: (`*T x K x N x N`).
    :param sites: (`*T x K x N`).
    :param mean: The prior mean :math:`\mu_f` (`*T x K x N`).
    """
    Kff = exact_enough(Kff)  # (*T, K, N, N)
    precision, h = sites.precision.to(Kff.dtype), sites.seen_by(mean).to(Kff.dtype)  # (*T, K, N)
    return DensePosterior(*functions.DensePosteriorFunction.evaluate(Kff, precision, h))


def entry_posterior(G: Tensor, precision: Tensor, h: Tensor) -> DensePosterior | FactoredPosterior:
    r"""
    The posterior of the sums :math:`\mathbf a_j^\top \mathbf f_n` that E pseudo-observations are of. Where no
    gradients are recorded, only what is asked for is computed.

    :param G: The prior covariance of the sums (`*T x E x E`).
    :param precision: :math:`\lambda` (`*T x E`).
    :param h: :math:`\lambda (g - \mathbf a^\top \boldsymbol \mu)` (`*T x E`).
    """
    G = exact_enough(G)
    precision, h = precision.to(G.dtype), h.to(G.dtype)
    if torch.is_grad_enabled() or is_compiling() or is_in_transform():
        return DensePosterior(*functions.DensePosteriorFunction.evaluate(G, precision, h))
    return FactoredPosterior(G, precision, h)


def shift_and_shrinkage(
    A: Tensor, posterior: WhitenedPosterior | DensePosterior | FactoredPosterior
) -> tuple[Tensor, Tensor]:
    r"""
    Compute the difference of q(f*) from the prior: by how much its mean is larger, and by how much its variance is
    smaller (`*T x K x N`), in the dtype of A.

    :param A: :math:`A_*`, or :math:`K_{f*}` (`*T x K x M x N`).
    :param posterior: The posterior of the whitened inducing values, or of the function values at the context's inputs.
    """
    # A*ᵀ m, diag A*ᵀ F A*
    if isinstance(posterior, FactoredPosterior):
        return posterior.shift_and_shrinkage(A)
    return functions.MarginalsFunction.evaluate(A, posterior.weights.to(A.dtype), posterior.reduction.to(A.dtype))


def joint_shift_and_shrinkage(A: Tensor, posterior: WhitenedPosterior) -> tuple[Tensor, Tensor]:
    r"""
    The same of latent functions that are inferred together: the difference of the means (`*T x K x N`), and by how much
    the covariance of each point is smaller than the prior's (`*T x N x K x K`).

    :param A: :math:`A_*` (`*T x K x M x N`).
    :param posterior: The posterior of the whitened inducing values of all latent functions (`*T x (K M)`).
    """
    m = posterior.weights.unflatten(-1, A.shape[-3:-1]).to(A.dtype)  # (*T, K, M)
    # A_kᵀ m_k, a_kᵀ F_kl a_l
    return functions.JointMarginalsFunction.evaluate(A, m, posterior.reduction.to(A.dtype))


def root_of_rounded(K: Tensor) -> Tensor:
    """
    The Cholesky factor, in the working dtype, of a covariance matrix that rounding, or inputs that come twice, may have
    made singular: with a jitter on its diagonal that changes deviations by a ten-thousandth, or as rounding does; where
    that is too little, by up to a thousandth.

    :param K: (`... x N x N`).
    """
    jitter = max(1e-8, K.shape[-1] * torch.finfo(K.dtype).eps)
    K = K.to(working_dtype(K))
    with warnings.catch_warnings():
        # To GPyTorch equal inputs may be 1e-8 apart, and Matérn kernels of one input of several are wrong by as much.
        warnings.simplefilter("ignore", NumericalWarning)
        return psd_safe_cholesky(K + torch.diag_embed(jitter * K.diagonal(dim1=-2, dim2=-1)))


def exact_enough(K: Tensor) -> Tensor:
    """
    A covariance matrix in the working dtype. One that was rounded on its way, to float32, may have lost its
    definiteness by up to N ϵ times its diagonal, which precisions of a million would turn into a B that has none:
    as much is added to the diagonal.
    """
    dtype = working_dtype(K)
    if K.dtype == dtype:
        return K
    rounding = K.shape[-1] * torch.finfo(K.dtype).eps
    K = K.to(dtype)
    return K + torch.diag_embed(rounding * K.diagonal(dim1=-2, dim2=-1))
