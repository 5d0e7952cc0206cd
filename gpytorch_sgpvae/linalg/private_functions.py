r"""
The posterior of sums of latent functions of which most are private to one sum each, without a matrix over all sums.

Given the L functions that the sums share, the sums are independent of each other, each with a process of its own,

.. math::

    h_{jn} = \sum_{k=1}^L w_{jk} f_k(\mathbf x_n) + p_j(\mathbf x_n), \qquad
    (G_j)_{nm} = \sum_{k \text{ of } j} a_{jk}^2 \, k_k(\mathbf x_n, \mathbf x_m)

so that J matrices of N x N are factorized, and one of LN x LN, instead of one of JN x JN.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from .autograd import HandwrittenFunction
from .cholesky import safe_cholesky, safe_root
from .conditionals import entry_posterior, exact_enough
from .products import identity_like, matvec, outer


class SharedPosteriorFunction(HandwrittenFunction):
    r"""
    The posterior of functions that are observed together. From their prior covariances :math:`K = \mathrm{diag}(K_1,
    \ldots, K_L)`, precision matrix H and precision times observation b it computes :math:`S = (K^{-1} + H)^{-1}`, m = S
    b and
    :math:`\ell = \log |I + H K|`. K may be singular, and so may H: with any root :math:`K = R R^\top`

    .. math::

        B = I + R^\top H R, \qquad S = R B^{-1} R^\top, \qquad \ell = \log |B|

    With :math:`E = I - H S` there are :math:`S = K E`, :math:`dS = E^\top dK E - S \, dH \, S` and
    :math:`d\ell = \mathrm{tr}(S \, dH) + \mathrm{tr}(E H \, dK)`, so that

    .. math::

        Z = E (\bar S + \bar m b^\top) E^\top, \qquad
        \bar K = Z + \bar\ell E H, \qquad
        \bar H = \bar\ell S - K Z K, \qquad
        \bar b = S \bar m

    in which no root is left. Products with K are cheap, and only the diagonal blocks of :math:`\bar K` are needed.
    """

    @staticmethod
    def forward(ctx: Any, K: Tensor, H: Tensor, b: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        root = safe_root(K)  # (*T, L, N, N)
        HR = _times_blocks(H, root)  # (*T, L N, L N)
        B = identity_like(HR) + _times_blocks(HR.mT, root)
        chol = safe_cholesky(0.5 * (B + B.mT))
        S = _times_blocks(_times_blocks(torch.cholesky_inverse(chol), root.mT).mT, root.mT)
        m = matvec(S, b)
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(K, H, b, S)
        return S, m, 2 * chol.diagonal(dim1=-2, dim2=-1).log().sum(-1)

    @staticmethod
    def backward(
        ctx: Any, S_bar: Tensor | None, m_bar: Tensor | None, log_det_bar: Tensor | None
    ) -> tuple[Tensor, Tensor, Tensor]:
        K, H, b, S = ctx.saved_tensors
        N = K.shape[-1]
        S_bar = torch.zeros_like(S) if S_bar is None else S_bar
        m_bar = torch.zeros_like(S[..., 0]) if m_bar is None else m_bar
        S_bar = torch.addcmul(S_bar, m_bar.unsqueeze(-1), b.unsqueeze(-2))
        E = identity_like(S) - H @ S  # (*T, L N, L N)
        Z = E @ S_bar @ E.mT
        K_bar, H_bar = _diagonal_blocks(Z, N), -_times_blocks(_times_blocks(Z, K).mT, K).mT
        if log_det_bar is not None:
            log_det_bar = log_det_bar.unsqueeze(-1).unsqueeze(-1)
            EH = E.unflatten(-2, (-1, N)) @ H.unflatten(-2, (-1, N)).mT  # (*T, L, N, N)
            K_bar = K_bar + log_det_bar.unsqueeze(-1) * EH
            H_bar = torch.addcmul(H_bar, log_det_bar, S)
        return K_bar.sum_to_size(K.shape), H_bar.sum_to_size(H.shape), matvec(S, m_bar).sum_to_size(b.shape)


class PrivatePosterior:
    r"""
    The posterior of sums :math:`h_{jn}` given a pseudo-observation of each, with any precision, 0 as well. With
    :math:`C_j = (G_j + \Lambda_j^{-1})^{-1}`, what is left to know of sum j given its own process, the shared functions
    see

    .. math::

        H_{kl} = \sum_j w_{jk} w_{jl} C_j, \qquad
        b_k = \sum_j w_{jk} C_j \Lambda_j^{-1} h_j, \qquad
        S = (K^{-1} + H)^{-1}, \qquad m = S b

    and the sums at the observed points have, with :math:`R_j = I - G_j C_j` and :math:`D_j = \sum_{kl} w_{jk} w_{jl}
    S_{kl}`,

    .. math::

        \mathrm{cov}(\mathbf h_j) = G_j - G_j C_j G_j + R_j D_j R_j^\top, \qquad
        \log |B| = \sum_j \log |B_j| + \log |I + H K|

    It costs :math:`O(J N^3 + L^3 N^3 + J L^2 N^2)`.

    :param K: The prior covariances of all latent functions (`*T x K x N x N`).
    :param loadings: (`J x K`).
    :param owners: See :class:`~gpytorch_sgpvae.GaussianSites`.
    :param precision: :math:`\lambda` (`*T x J x N`).
    :param h: :math:`\lambda (g - \mathbf a^\top \boldsymbol \mu)` (`*T x J x N`).

    :ivar weights: The weights of the pseudo-observations in posterior means (`*T x J x N`).
    :ivar shift: The difference of the posterior means of the sums from the prior's (`*T x J x N`).
    :ivar variance: The posterior variances of the sums (`*T x J x N`).
    :ivar kl_divergence: The divergence of the latent functions' posterior from the prior (`*T`).
    """

    # The pseudo-observations that it is about: all of them.
    entries = None

    def __init__(self, K: Tensor, loadings: Tensor, owners: tuple[int, ...], precision: Tensor, h: Tensor):
        self.functions = Functions(loadings, owners)
        G, shared = exact_enough(self.functions.private_sums(K)), exact_enough(self.functions.shared(K))
        own = entry_posterior(G, precision, h)
        self.C = own.reduction  # (*T, J, N, N)
        self.w = self.functions.shared_loadings.to(G.dtype)  # (J, L)
        # H_kl = Σ_j w_jk w_jl C_j, b_k = Σ_j w_jk α_j
        self.H = _of_pairs(self.pairs.mT @ self.C.flatten(-2), G.shape[-1], shared.shape[-3])  # (*T, L N, L N)
        b = (self.w.mT @ own.weights).flatten(-2)  # (*T, L N)
        self.S, m, log_det = SharedPosteriorFunction.evaluate(shared, self.H, b)
        sums = self.w @ m.unflatten(-1, shared.shape[-3:-1])  # (*T, J, N)
        self.weights = own.weights - matvec(self.C, sums)
        R = identity_like(G) - G @ self.C  # (*T, J, N, N)
        self.shift = own.shift + matvec(R, sums)
        more = ((R @ self.D) * R).sum(-1)  # (*T, J, N)
        self.variance = own.variance + more
        # KL = ½ (log|B| − Σ λ v + αᵀ δ), of which the private functions' alone has that of the others left out
        log_det = log_det - (precision.to(more.dtype) * more).sum((-2, -1))
        quadratic = (self.weights * self.shift - own.weights * own.shift).sum((-2, -1))
        self.kl_divergence = own.kl_divergence.sum(-1) + 0.5 * (log_det + quadratic)

    @property
    def tasks(self) -> torch.Size:
        return self.weights.shape[:-2]

    @property
    def pairs(self) -> Tensor:
        """:math:`w_{jk} w_{jl}` (`J x (L L)`)."""
        return outer(self.w, self.w).flatten(-2)

    @cached_property
    def D(self) -> Tensor:
        """The posterior covariance of the shared part of each sum (`*T x J x N x N`)."""
        N = self.C.shape[-1]
        return self._kept(lambda: (self.pairs @ _pairs(self.S, N).flatten(-2)).unflatten(-1, (N, N)))

    @cached_property
    def E(self) -> Tensor:
        """:math:`E = I - H S` (`*T x (L N) x (L N)`)."""
        return self._kept(lambda: identity_like(self.S) - self.H @ self.S)

    @cached_property
    def F(self) -> Tensor:
        """:math:`F = H - H S H`, by which the data reduce the shared functions' variance (`*T x (L N) x (L N)`)."""
        return self._kept(lambda: self.E @ self.H)

    @cached_property
    def reduction(self) -> Tensor:
        r"""
        :math:`P = C - C A S A^\top C` over all sums and points (`*T x (J N) x (J N)`), which only covariances of the
        private functions need.
        """
        return self._kept(self._reduction)

    def _reduction(self) -> Tensor:
        CA = torch.einsum("jk,...jnm->...jnkm", self.w, self.C).flatten(-4, -3).flatten(-2)  # (*T, J N, L N)
        each = torch.eye(self.C.shape[-3], dtype=self.C.dtype, device=self.C.device)
        own = torch.einsum("ij,...jnm->...injm", each, self.C).flatten(-4, -3).flatten(-2)  # (*T, J N, J N)
        return own - CA @ self.S @ CA.mT

    def reduce(self, values: Tensor) -> Tensor:
        """:attr:`reduction` times values (`... x *T x J x N`)."""
        own = matvec(self.C, values)
        m = matvec(self.S, (self.w.mT @ own).flatten(-2)).unflatten(-1, (-1, own.shape[-1]))
        return own - matvec(self.C, self.w @ m)

    def at_context(self, asked: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Shift and variance of the sums at the observed points (`*T x J x N` each)."""
        return self.shift, self.variance

    def variance_at(self, Kfs: Tensor, variance: Tensor) -> Tensor:
        r"""
        The posterior variances of the sums at other points. With :math:`g_j` the covariance of the private part with
        its values at the observed points, and :math:`t_j = C_j g_j`,

        .. math::

            \sum_{kl} w_{jk} w_{jl} \, \mathrm{cov}(f_{k*}, f_{l*})
            - 2 \sum_{kl} w_{jk} w_{jl} (K_{* k} E)_{l}^\top t_j + t_j^\top D_j t_j + G_{j **} - g_j^\top t_j

        :param Kfs: The prior covariances of all latent functions with the other points (`*T x K x N x N*`).
        :param variance: The prior variances of all latent functions there (`*T x K x N*`).
        :return: (`*T x J x N*`)
        """
        Kfs, variance = Kfs.to(self.w.dtype), variance.to(self.w.dtype)
        (g, own), (Ksf, diagonal) = (
            (part(Kfs), part(variance.unsqueeze(-1)).squeeze(-1))
            for part in (self.functions.private_sums, self.functions.shared)
        )
        Ksf = Ksf.mT  # (*T, L, N*, N)
        L, N = Ksf.shape[-3], Ksf.shape[-1]
        t = self.C @ g  # (*T, J, N, N*)
        # point by point: cov(f_*, f) = K_* E, cov(f_*) = K_** − K_* F K_*ᵀ
        cross, reduced = ((Ksf @ part.unflatten(-2, (L, N))).unflatten(-1, (L, N)) for part in (self.E, self.F))
        shrinkage = (reduced * Ksf.movedim(-3, -2).unsqueeze(-4)).sum(-1)  # (*T, L, N*, L)
        shared = self.w.square() @ diagonal - self.pairs @ shrinkage.transpose(-2, -1).flatten(-3, -2)  # (*T, J, N*)
        cross = cross.transpose(-3, -2).flatten(-4, -3)  # (*T, L L, N*, N)
        seen = (self.pairs @ cross.flatten(-2)).unflatten(-1, cross.shape[-2:])  # (*T, J, N*, N)
        return shared + own + (t * (self.D @ t - 2 * seen.mT - g)).sum(-2)

    def detach(self) -> PrivatePosterior:
        detached = copy.copy(self)
        detached.__dict__.update({k: v.detach() for k, v in vars(self).items() if isinstance(v, Tensor)})
        detached.functions = self.functions.detach()
        return detached

    def _kept(self, compute: Callable[[], Tensor]) -> Tensor:
        """Compute something to be kept, with its graph where S has one: later callers may record gradients."""
        with torch.set_grad_enabled(torch.is_grad_enabled() or self.S.requires_grad):
            return compute()


class Functions:
    """
    Latent functions, told apart by whether one sum or all have them.

    :param loadings: (`J x K`).
    :param owners: See :class:`~gpytorch_sgpvae.GaussianSites`.
    """

    def __init__(self, loadings: Tensor, owners: tuple[int, ...]):
        self.loadings, self.owners = loadings, owners

    @property
    def num_shared(self) -> int:
        return self.owners.count(-1)

    @property
    def shared_loadings(self) -> Tensor:
        """(`J x L`)"""
        return self.loadings.index_select(-1, self._numbers(is_shared=True))

    def shared(self, values: Tensor) -> Tensor:
        """Select the shared functions (`*T x L x N x N*`, from `*T x K x N x N*`)."""
        return values.index_select(-3, self._numbers(is_shared=True))

    def private_sums(self, K: Tensor) -> Tensor:
        r""":math:`\sum_{k \text{ of } j} a_{jk}^2 K_k` (`*T x J x N x N*`, from `*T x K x N x N*`)."""
        numbers = self._numbers(is_shared=False)
        owners = torch.tensor([owner for owner in self.owners if owner >= 0], dtype=torch.long, device=K.device)
        squares = self.loadings[owners, numbers].square().to(K.dtype)
        own = squares.unsqueeze(-1).unsqueeze(-1) * K.index_select(-3, numbers)
        sums = own.new_zeros(*own.shape[:-3], self.loadings.shape[-2], *own.shape[-2:])
        return sums.index_add(-3, owners, own)

    def detach(self) -> Functions:
        return Functions(self.loadings.detach(), self.owners)

    def _numbers(self, is_shared: bool) -> Tensor:
        numbers = [k for k, owner in enumerate(self.owners) if (owner < 0) == is_shared]
        return torch.tensor(numbers, dtype=torch.long, device=self.loadings.device)


def _times_blocks(X: Tensor, blocks: Tensor) -> Tensor:
    """X times a block diagonal matrix (`... x L x N x N`)."""
    L, N = blocks.shape[-3:-1]
    return (X.unflatten(-1, (L, N)).transpose(-3, -2) @ blocks).transpose(-3, -2).flatten(-2)


def _diagonal_blocks(X: Tensor, N: int) -> Tensor:
    """The diagonal blocks of a matrix (`... x (L N) x (L N)`), as `... x L x N x N`."""
    return X.unflatten(-2, (-1, N)).unflatten(-1, (-1, N)).diagonal(dim1=-4, dim2=-2).movedim(-1, -3)


def _pairs(X: Tensor, N: int) -> Tensor:
    """The blocks of a matrix (`... x (L N) x (L N)`) of each pair of functions (`... x (L L) x N x N`)."""
    return X.unflatten(-2, (-1, N)).unflatten(-1, (-1, N)).transpose(-3, -2).flatten(-4, -3)


def _of_pairs(X: Tensor, N: int, L: int) -> Tensor:
    """The matrix (`... x (L N) x (L N)`) of blocks of each pair of functions (`... x (L L) x (N N)`)."""
    return X.unflatten(-2, (L, L)).unflatten(-1, (N, N)).transpose(-3, -2).flatten(-4, -3).flatten(-2)
