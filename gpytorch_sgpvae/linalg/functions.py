r"""
Functions whose gradients are written by hand, as in :mod:`gpytorch.functions`: their backward passes are the few
products that the mathematics asks for, instead of those that the chain rule finds step by step through Cholesky
factors and triangular solves. A bar is the gradient of the loss, :math:`\bar B = \partial \text{loss} / \partial B`.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from .._compat import cholesky_dtype, is_compiling, is_in_transform
from .autograd import HandwrittenFunction
from .cholesky import safe_cholesky
from .factored import FactoredPosterior
from .products import identity_like, matvec, outer

# The least precision, in units of the prior's, that can be divided by at a cost of no more than three digits.
LEAST_INFORMATION = 1e-3


class SquaredExponentialFunction(HandwrittenFunction):
    r"""
    :math:`K_{ij} = s \exp(-\tfrac 1 2 |\mathbf x_i - \mathbf z_j|^2)`. With :math:`G = \bar K \circ K`,

    .. math::

        \bar{\mathbf x}_i = \sum_j G_{ij} (\mathbf z_j - \mathbf x_i), \qquad
        \bar{\mathbf z}_j = \sum_i G_{ij} (\mathbf x_i - \mathbf z_j), \qquad
        \bar s = \sum_{ij} G_{ij} / s
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, z: Tensor, scale: Tensor) -> Tensor:
        x_given, z_given = x, z
        x, z = _centred(x, z)
        # −½ |x − z|² = x·z − ½ |x|² − ½ |z|²
        left = torch.cat([x, -0.5 * x.square().sum(-1, keepdim=True), torch.ones_like(x[..., :1])], dim=-1)
        right = torch.cat([z, torch.ones_like(z[..., :1]), -0.5 * z.square().sum(-1, keepdim=True)], dim=-1)
        K = (left @ right.mT).clamp_max_(0.0).exp_().mul_(scale)  # (..., N, M)
        ctx.save_for_backward(x_given, z_given, scale, K)
        return K

    @staticmethod
    def backward(ctx: Any, K_bar: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        x_given, z_given, scale, K = ctx.saved_tensors
        x, z = _centred(x_given, z_given)
        G = K_bar * K  # (..., N, M)
        z_sum, row_sum = _weighted_sums(z, G)  # (..., N, D), (..., N, 1)
        x_sum, column_sum = _weighted_sums(x, G.mT)  # (..., M, D), (..., M, 1)
        scale_bar = row_sum.sum(-2, keepdim=True) / scale  # (..., 1, 1)
        x_bar, z_bar = z_sum - row_sum * x, x_sum - column_sum * z
        return _like(x_given, x_bar), _like(z_given, z_bar), _like(scale, scale_bar)


class InverseCholeskyFunction(HandwrittenFunction):
    r"""
    :math:`R = \mathrm{chol}(B)^{-1}`, in the working dtype. With :math:`\Phi` the lower triangle and half of the
    diagonal,

    .. math::

        \bar B = -R^\top \, \Phi(\bar R R^\top) \, R
    """

    @staticmethod
    def forward(ctx: Any, B: Tensor) -> Tensor:
        R = _inverse_cholesky(B.to(working_dtype(B)))  # (..., M, M)
        ctx.dtype = B.dtype
        ctx.save_for_backward(R)
        return R

    @staticmethod
    def backward(ctx: Any, R_bar: Tensor) -> Tensor:
        (R,) = ctx.saved_tensors
        return _inverse_cholesky_backward(R, R_bar).to(ctx.dtype)


class WhitenedPosteriorFunction(HandwrittenFunction):
    r"""
    Computes m, R, F and KL from :math:`A \Lambda A^\top` and :math:`b = A (\lambda g - \lambda \mu_f)`, where

    .. math::

        B = I + A \Lambda A^\top, \quad R = \mathrm{chol}(B)^{-1}, \quad S = R^\top R, \quad m = S b, \quad
        F = I - S, \quad \mathrm{KL} = \tfrac 1 2 \left( \mathrm{tr} S + m^\top m - M + \log |B| \right)

    .. math::

        \bar b = S (\bar m + \kappa m), \qquad
        \bar B = S \left( \bar F - \tfrac 1 2 \kappa I \right) S + \tfrac 1 2 \kappa S - \bar b m^\top, \qquad
        \kappa = \overline{\mathrm{KL}}
    """

    @staticmethod
    def forward(ctx: Any, precision: Tensor, b: Tensor) -> tuple[Tensor, ...]:
        R = _inverse_cholesky(precision + identity_like(precision))  # (..., M, M)
        S = R.mT @ R  # (..., M, M)
        m = matvec(S, b)  # (..., M)
        F = identity_like(S) - S  # (..., M, M)
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(R, F, m)
        return m, R, F, _kl_divergence(R, m.square().sum(-1))

    @staticmethod
    def backward(
        ctx: Any, m_bar: Tensor | None, R_bar: Tensor | None, F_bar: Tensor | None, kl_bar: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        R, F, m = ctx.saved_tensors
        eye = identity_like(F)
        S = eye - F
        m_bar = torch.zeros_like(m) if m_bar is None else m_bar
        F_bar = torch.zeros_like(F) if F_bar is None else F_bar
        B_bar = torch.zeros_like(F)
        if kl_bar is not None:
            kl_bar = kl_bar.unsqueeze(-1)
            m_bar = m_bar + kl_bar * m
            half = 0.5 * kl_bar.unsqueeze(-1)
            F_bar = F_bar - half * eye
            B_bar = half * S
        b_bar = matvec(S, m_bar)  # (..., M)
        B_bar = B_bar + S @ F_bar @ S - outer(b_bar, m)  # (..., M, M)
        if R_bar is not None:
            B_bar = B_bar + _inverse_cholesky_backward(R, R_bar)
        return B_bar, b_bar


class DensePosteriorFunction(HandwrittenFunction):
    r"""
    Computes :math:`\alpha`, P, KL, the posterior mean less the prior's, :math:`\delta = K \alpha`, and the posterior
    variance, :math:`\mathrm{diag} \Sigma`, from K, :math:`\lambda` and :math:`h = \lambda g - \lambda \mu_f`, where

    .. math::

        W = \Lambda^{1/2}, \quad B = I + W K W, \quad P = W B^{-1} W, \quad \alpha = E h, \quad E = I - P K, \quad
        \Sigma = K E

    .. math::

        \mathrm{KL} = \tfrac 1 2 \left( \mathrm{tr} B^{-1} + \alpha^\top \delta - N + \log |B| \right)

    As :math:`d \Sigma = E^\top dK E - \Sigma \, d\Lambda \, \Sigma` and :math:`dP = E \, d\Lambda E^\top - P \, dK P`,
    with :math:`\kappa = \overline{\mathrm{KL}}`, :math:`a = \bar \alpha + \kappa \delta`, :math:`\bar V` the gradient
    of the variance as a diagonal matrix and :math:`X = \bar P - \tfrac 1 2 \kappa K`,

    .. math::

        \bar h &= \Sigma \bar \delta + E^\top a \\
        \bar K &= E \bar V E^\top + (E \bar \delta - P a + \tfrac 1 2 \kappa \alpha) \alpha^\top - P X P \\
        \bar \lambda &= \mathrm{diag} \left( E^\top X E + \tfrac 1 2 \kappa \Sigma - \Sigma \bar V \Sigma \right)
        - \bar h \circ \delta

    in which no root of a precision is left: any of them may be 0. Where none is, as where nothing is missing, two
    products of matrices are not needed:

    .. math::

        E = W B^{-1} W^{-1}, \qquad \Sigma = \Lambda^{-1} (I - E)
    """

    @staticmethod
    def forward(ctx: Any, K: Tensor, precision: Tensor, h: Tensor) -> tuple[Tensor, ...]:
        posterior = FactoredPosterior(K, precision, h)
        B_inv, P = posterior.inverse, posterior.reduction  # (..., N, N)
        alpha, delta = posterior.weights, posterior.shift  # (..., N)
        ctx.informed = _are_informative(precision, K)
        if ctx.informed:
            E = B_inv * outer(posterior.root, posterior.root.reciprocal())  # (..., N, N)
            variance = (1 - B_inv.diagonal(dim1=-2, dim2=-1)) / precision  # (..., N)
        else:
            E = identity_like(K) - P @ K
            variance = (K * E).sum(-2)
        kl_divergence = posterior.kl_divergence
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(K, precision, P, E, alpha, delta)
        return alpha, P, kl_divergence, delta, variance

    @staticmethod
    def backward(ctx: Any, *bars: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
        alpha_bar, P_bar, kl_bar, delta_bar, variance_bar = bars
        K, precision, P, E, alpha, delta = ctx.saved_tensors
        if torch.is_grad_enabled():
            E = identity_like(K) - P @ K  # the backward pass is itself to be differentiated
        if torch.is_grad_enabled() or not ctx.informed:
            Sigma = K @ E  # (..., N, N)
        else:
            Sigma = (identity_like(K) - E) / precision.unsqueeze(-1)
        zeros = torch.zeros_like(alpha)
        half_kl = zeros[..., :1] if kl_bar is None else 0.5 * kl_bar.unsqueeze(-1)  # (..., 1)
        a = 2 * half_kl * delta if alpha_bar is None else alpha_bar + 2 * half_kl * delta  # (..., N)
        delta_bar = zeros if delta_bar is None else delta_bar
        V_bar = zeros if variance_bar is None else variance_bar
        h_bar = matvec(Sigma, delta_bar) + matvec(E.mT, a)
        EV, half = E * V_bar.unsqueeze(-2), half_kl.unsqueeze(-1)
        # E V Eᵀ + ½ κ P K P, with P K = I − E
        half_P = half * P
        K_bar = half_P + E @ (EV.mT - half_P)
        K_bar = torch.addcmul(
            K_bar, (matvec(E, delta_bar) - matvec(P, a) + half_kl * alpha).unsqueeze(-1), alpha.unsqueeze(-2)
        )
        # Σ V Σ + ½ κ Eᵀ K E, with Eᵀ K = Σ
        weighted = torch.addcmul(V_bar.unsqueeze(-1) * Sigma, half, E)
        diagonal = half_kl * Sigma.diagonal(dim1=-2, dim2=-1)
        precision_bar = torch.addcmul(diagonal, h_bar, delta, value=-1) - (Sigma * weighted).sum(-2)
        if P_bar is not None:
            K_bar = K_bar - P @ P_bar @ P
            precision_bar = precision_bar + (E * (P_bar @ E)).sum(-2)
        return _like(K, K_bar), _like(alpha, precision_bar), _like(alpha, h_bar)


class EvidenceFunction(HandwrittenFunction):
    r"""
    :math:`A \Lambda A^\top` and :math:`b = A h`, in the working dtype. With :math:`P = (\bar B + \bar B^\top) A`,

    .. math::

        \bar A = P \Lambda + \bar b h^\top, \qquad
        \bar \lambda_n = \tfrac 1 2 \mathbf a_n^\top \mathbf p_n, \qquad
        \bar h = A^\top \bar b
    """

    @staticmethod
    def forward(ctx: Any, A: Tensor, precision: Tensor, h: Tensor) -> tuple[Tensor, Tensor]:
        ctx.save_for_backward(A, precision, h)
        dtype = working_dtype(A)
        A, precision, h = A.to(dtype), precision.to(dtype), h.to(dtype)
        return (A * precision.unsqueeze(-2)) @ A.mT, matvec(A, h)

    @staticmethod
    def backward(ctx: Any, B_bar: Tensor, b_bar: Tensor) -> tuple[Tensor, ...]:
        A, precision, h = ctx.saved_tensors
        B_bar, b_bar = B_bar.to(A.dtype), b_bar.to(A.dtype)
        P = (B_bar + B_bar.mT) @ A  # (..., M, N)
        precision_bar = 0.5 * (A * P).sum(-2)  # (..., N)
        A_bar = _add_outer(_scale_columns(P, precision), b_bar, h)  # (..., M, N)
        return _like(A, A_bar), _like(precision, precision_bar), _like(h, matvec(A.mT, b_bar))


class MarginalsFunction(HandwrittenFunction):
    r"""
    :math:`A^\top m` and the diagonal of :math:`A^\top F A`, for a symmetric F:

    .. math::

        \bar A = m \bar \mu^\top + 2 F A \bar V, \qquad
        \bar m = A \bar \mu, \qquad
        \bar F = A \bar V A^\top
    """

    @staticmethod
    def forward(ctx: Any, A: Tensor, m: Tensor, F: Tensor) -> tuple[Tensor, Tensor]:
        FA = F @ A  # (..., M, N)
        ctx.save_for_backward(A, m, F, FA)
        return matvec(A.mT, m), (A * FA).sum(-2)

    @staticmethod
    def backward(ctx: Any, mean_bar: Tensor, variance_bar: Tensor) -> tuple[Tensor, ...]:
        A, m, F, FA = ctx.saved_tensors
        if torch.is_grad_enabled():
            FA = F @ A  # the backward pass is itself to be differentiated
        F_bar = (A * variance_bar.unsqueeze(-2)) @ A.mT  # (..., M, M)
        A_bar = _add_outer(FA * (2 * variance_bar).unsqueeze(-2), m, mean_bar)  # (..., M, N)
        return _like(A, A_bar), _like(m, matvec(A, mean_bar)), _like(F, F_bar)


class JointEvidenceFunction(HandwrittenFunction):
    r"""
    The evidence of points whose sites couple K latent functions, in the working dtype. With :math:`\Lambda_n` (`K x K`)
    the precision of a point, :math:`C_{kl} = \mathrm{diag}(\Lambda_{1kl}, \dots, \Lambda_{Nkl})`:

    .. math::

        E_{kl} = A_k C_{kl} A_l^\top, \qquad b_k = A_k h_k

    .. math::

        \bar A_k = \sum_l D_{kl} A_l C_{kl} + \bar b_k h_k^\top, \qquad
        \bar \Lambda_{nkl} = \tfrac 1 2 \mathbf a_{nk}^\top D_{kl} \mathbf a_{nl}, \qquad
        \bar h_k = A_k^\top \bar b_k, \qquad
        D_{kl} = \bar E_{kl} + \bar E_{lk}^\top
    """

    @staticmethod
    def forward(ctx: Any, A: Tensor, precision: Tensor, h: Tensor) -> tuple[Tensor, Tensor]:
        ctx.save_for_backward(A, precision, h)
        dtype = working_dtype(A)
        A, precision, h = A.to(dtype), precision.to(dtype), h.to(dtype)
        return _coupled_gram(A, precision), matvec(A, h).flatten(-2)

    @staticmethod
    def backward(ctx: Any, E_bar: Tensor, b_bar: Tensor) -> tuple[Tensor, ...]:
        A, precision, h = ctx.saved_tensors
        E_bar, b_bar = (E_bar + E_bar.mT).to(A.dtype), b_bar.to(A.dtype).unflatten(-1, A.shape[-3:-1])
        A_bar, precision_bar = _coupled_products(A, E_bar, precision)
        A_bar = _add_outer(A_bar, b_bar, h)
        return _like(A, A_bar), _like(precision, 0.5 * precision_bar), _like(h, matvec(A.mT, b_bar))


class JointMarginalsFunction(HandwrittenFunction):
    r"""
    Shifts :math:`s_k = A_k^\top m_k` (`K x N`) and, for each point,
    :math:`V_{nkl} = \mathbf a_{nk}^\top F_{kl} \mathbf a_{nl}` (`N x K x K`), for a symmetric F over all latent
    functions.

    .. math::

        \bar A_k = \sum_l F_{kl} A_l \, \mathrm{diag}(\bar V_{\cdot kl} + \bar V_{\cdot lk}) + m_k \bar s_k^\top, \qquad
        \bar m_k = A_k \bar s_k, \qquad
        \bar F_{kl} = A_k \, \mathrm{diag}(\bar V_{\cdot kl}) \, A_l^\top
    """

    @staticmethod
    def forward(ctx: Any, A: Tensor, m: Tensor, F: Tensor) -> tuple[Tensor, Tensor]:
        ctx.save_for_backward(A, m, F)
        _, V = _coupled_products(A, F, None)
        return matvec(A.mT, m), V

    @staticmethod
    def backward(ctx: Any, shift_bar: Tensor, V_bar: Tensor) -> tuple[Tensor, ...]:
        A, m, F = ctx.saved_tensors
        A_bar, _ = _coupled_products(A, F, V_bar + V_bar.mT)
        A_bar = _add_outer(A_bar, m, shift_bar)
        return _like(A, A_bar), _like(m, matvec(A, shift_bar)), _like(F, _coupled_gram(A, V_bar))


def working_dtype(tensor: Tensor) -> torch.dtype:
    """The dtype that matrices are factorized in: GPyTorch's Cholesky dtype, or a wider one that is there already."""
    return torch.promote_types(tensor.dtype, cholesky_dtype())


def _are_informative(precision: Tensor, K: Tensor) -> bool:
    """
    Whether all precisions are far enough from 0, beside the prior variances, to divide by them. False where values
    cannot be seen, or where a GPU would have to wait for them.
    """
    if type(precision) is not Tensor or precision.device.type != "cpu" or is_compiling() or is_in_transform():
        return False
    return bool((precision * K.diagonal(dim1=-2, dim2=-1) > LEAST_INFORMATION).all())


def _centred(x: Tensor, z: Tensor) -> tuple[Tensor, Tensor]:
    """Differences are all that counts, and they lose fewest digits around zero."""
    centre = x.mean(-2, keepdim=True)
    return x - centre, z - centre


def _weighted_sums(points: Tensor, weights: Tensor) -> tuple[Tensor, Tensor]:
    """Σ_j w_ij x_j and Σ_j w_ij, of points in rows."""
    with_ones = torch.cat([points, torch.ones_like(points[..., :1])], dim=-1)
    # the large matrix on the right, as in matvec
    sums = (with_ones.mT @ weights.mT).mT
    return sums[..., :-1], sums[..., -1:]


def _scale_columns(matrix: Tensor, scale: Tensor) -> Tensor:
    """Scale columns in place, unless the backward pass is itself to be differentiated."""
    scale = scale.unsqueeze(-2)
    return matrix * scale if torch.is_grad_enabled() else matrix.mul_(scale)


def _add_outer(matrix: Tensor, left: Tensor, right: Tensor) -> Tensor:
    """Add an outer product in place, unless the backward pass is itself to be differentiated."""
    left, right = left.unsqueeze(-1), right.unsqueeze(-2)
    return torch.addcmul(matrix, left, right) if torch.is_grad_enabled() else matrix.addcmul_(left, right)


def _like(tensor: Tensor, gradient: Tensor) -> Tensor:
    """The gradient of a tensor that was broadcast on its way."""
    return gradient.sum_to_size(tensor.shape)


def _inverse_cholesky(B: Tensor) -> Tensor:
    chol = safe_cholesky(B)
    return torch.linalg.solve_triangular(chol, identity_like(chol), upper=False)


def _inverse_cholesky_backward(R: Tensor, R_bar: Tensor) -> Tensor:
    Phi = (R_bar @ R.mT).tril()
    Phi = Phi - 0.5 * torch.diag_embed(Phi.diagonal(dim1=-2, dim2=-1))
    B_bar = R.mT @ Phi @ R
    return -0.5 * (B_bar + B_bar.mT)


def _kl_divergence(R: Tensor, mahalanobis: Tensor) -> Tensor:
    half_log_det = -R.diagonal(dim1=-2, dim2=-1).log().sum(-1)
    return 0.5 * (R.square().sum((-2, -1)) + mahalanobis - R.shape[-1]) + half_log_det


def _coupled_gram(A: Tensor, weights: Tensor) -> Tensor:
    r""":math:`A_k \mathrm{diag}(w_{\cdot kl}) A_l^\top` for all k and l, from A (`K x M x N`) and w (`N x K x K`)."""
    K = A.shape[-3]
    weights = weights.movedim(-3, -1).unsqueeze(-2)  # (..., K, K, 1, N)
    # one k after the other: K² matrices of M x N need not exist at once
    rows = [(A[..., k : k + 1, :, :] * weights[..., k, :, :, :]) @ A.mT for k in range(K)]  # (..., K, M, M) each
    return torch.stack(rows, dim=-4).transpose(-3, -2).flatten(-4, -3).flatten(-2)  # (..., K M, K M)


def _coupled_products(A: Tensor, F: Tensor, weights: Tensor | None) -> tuple[Tensor, Tensor]:
    r"""
    :math:`\sum_l F_{kl} A_l \mathrm{diag}(w_{\cdot kl})` (`K x M x N`; A itself without weights), and
    :math:`\mathbf a_{nk}^\top F_{kl} \mathbf a_{nl}` (`N x K x K`).
    """
    K, M, _ = A.shape[-3:]
    F = F.unflatten(-2, (K, M)).unflatten(-1, (K, M)).movedim(-2, -3)  # (..., K, K, M, M)
    sums, forms = [], []
    for k in range(K):
        FA = F[..., k, :, :, :] @ A  # (..., K, M, N)
        forms.append((A[..., k : k + 1, :, :] * FA).sum(-2))  # (..., K, N)
        if weights is not None:
            sums.append((FA * weights[..., k, :].mT.unsqueeze(-2)).sum(-3))  # (..., M, N)
    return torch.stack(sums, dim=-3) if sums else A, torch.stack(forms, dim=-3).movedim(-1, -3)
