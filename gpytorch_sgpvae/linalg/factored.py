"""The posterior of Gaussian sites on function values, of which only what is asked for is computed."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from .cholesky import safe_cholesky
from .products import identity_like, matvec, outer

# Below this a site is as good as linear: its precision times any latent value squared is beyond float64's sight.
SMALLEST_PRECISION = 1e-12
# Triangular solves for fewer columns than this share of the rows are quicker than the inverse.
FEW_COLUMNS = 0.25


@dataclass(frozen=True, eq=False)
class FactoredPosterior:
    r"""
    The posterior from a prior covariance K and sites with precisions :math:`\lambda` and :math:`h = \lambda g - \lambda
    \mu_f`. With :math:`W = \Lambda^{1/2}`,

    .. math::

        B = I + W K W = L L^\top, \quad P = W B^{-1} W, \quad \alpha = (I - P K) h, \quad
        \mathbf k_*^\top P \, \mathbf k_* = | L^{-1} W \mathbf k_* |^2

    Few columns :math:`\mathbf k_*` need the Cholesky factor alone, not the inverse, which takes twice as long.

    :param K: (`*T x N x N`).
    :param precision: :math:`\lambda` (`*T x N`).
    :param h: (`*T x N`).

    Example:
        >>> import torch
        >>> from gpytorch_sgpvae.linalg.factored import FactoredPosterior
        >>> posterior = FactoredPosterior(torch.eye(3), torch.ones(3), torch.tensor([2.0, 0.0, 4.0]))
        >>> posterior.shift, posterior.variance
        (tensor([1., 0., 2.]), tensor([0.5000, 0.5000, 0.5000]))
    """

    K: Tensor
    precision: Tensor
    h: Tensor

    @cached_property
    def root(self) -> Tensor:
        """W, 0 where a site is as good as linear (`*T x N`)."""
        return self._safe_root * self._is_informative

    @cached_property
    def chol(self) -> Tensor:
        """L (`*T x N x N`)."""
        return safe_cholesky(torch.addcmul(identity_like(self.K), self._root_products, self.K))

    @cached_property
    def inverse(self) -> Tensor:
        r""":math:`B^{-1}` (`*T x N x N`)."""
        return torch.cholesky_inverse(self.chol)

    @cached_property
    def reduction(self) -> Tensor:
        """P (`*T x N x N`)."""
        return self._root_products * self.inverse

    @cached_property
    def weights(self) -> Tensor:
        r""":math:`\alpha`, without a difference of large numbers for any precision (`*T x N`)."""
        W = self.root
        # h = W r + h₀, where h₀ is of the points whose precision is as good as 0
        r, h0 = self.h / self._safe_root * self._is_informative, self.h * ~self._is_informative  # (*T, N)
        # α = W B⁻¹ (r − W K h₀) + h₀
        right = r - W * matvec(self.K, h0)
        if "inverse" in self.__dict__:
            return W * matvec(self.inverse, right) + h0
        return W * torch.cholesky_solve(right.unsqueeze(-1), self.chol).squeeze(-1) + h0

    @cached_property
    def shift(self) -> Tensor:
        r"""The posterior mean less the prior's, :math:`K \alpha` (`*T x N`)."""
        return matvec(self.K, self.weights)

    @cached_property
    def variance(self) -> Tensor:
        """The diagonal of K − K P K (`*T x N`)."""
        return self.K.diagonal(dim1=-2, dim2=-1) - (self.K * (self.reduction @ self.K)).sum(-2)

    @cached_property
    def kl_divergence(self) -> Tensor:
        r""":math:`\tfrac 1 2 (\mathrm{tr} B^{-1} + \alpha^\top K \alpha - N + \log |B|)` (`*T`)."""
        trace = self.inverse.diagonal(dim1=-2, dim2=-1).sum(-1)
        half_log_det = self.chol.diagonal(dim1=-2, dim2=-1).log().sum(-1)
        return 0.5 * (trace + (self.weights * self.shift).sum(-1) - self.K.shape[-1]) + half_log_det

    def shift_and_shrinkage(self, A: Tensor) -> tuple[Tensor, Tensor]:
        r"""
        :math:`A^\top \alpha` and the diagonal of :math:`A^\top P A` (`*T x C` each).

        :param A: The prior covariance of these points with others (`*T x N x C`).
        """
        A = A.to(self.K.dtype)
        shift = matvec(A.mT, self.weights)
        if "reduction" in self.__dict__ or A.shape[-1] > FEW_COLUMNS * A.shape[-2]:
            return shift, (A * (self.reduction @ A)).sum(-2)
        solved = torch.linalg.solve_triangular(self.chol, self.root.unsqueeze(-1) * A, upper=False)  # (*T, N, C)
        return shift, solved.square().sum(-2)

    def detach(self) -> FactoredPosterior:
        """The same without gradients."""
        return FactoredPosterior(self.K.detach(), self.precision.detach(), self.h.detach())

    @cached_property
    def _is_informative(self) -> Tensor:
        return self.precision > SMALLEST_PRECISION

    @cached_property
    def _safe_root(self) -> Tensor:
        return torch.where(self._is_informative, self.precision, 1.0).sqrt()

    @cached_property
    def _root_products(self) -> Tensor:
        return outer(self.root, self.root)
