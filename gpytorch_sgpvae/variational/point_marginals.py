from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from gpytorch.distributions import MultitaskMultivariateNormal, MultivariateNormal
from linear_operator.operators import BlockDiagLinearOperator, BlockInterleavedLinearOperator, DiagLinearOperator
from torch import Tensor

from ..linalg.cholesky import safe_cholesky
from .posterior_covariance import PointwiseCovariance

# The rounding of a covariance matrix in units of its dtype's precision, which its Cholesky factor must stand.
ROUNDING = 100


def point_covariances(q_f: MultivariateNormal) -> Tensor:
    r"""
    The covariance matrix of the K latent functions at each point of q(f),

    .. math::

        S_n = \mathrm{cov}(\mathbf f(\mathbf x_n))

    without a matrix of all points together (`*T x N x K x K`; K = 1 for an event of N).

    :param q_f: What a model returns.

    Example:
        >>> import torch
        >>> from gpytorch_sgpvae import SGPVAE, point_covariances
        >>> sgpvae = SGPVAE(5, 3, inducing_points=torch.rand(8, 2), network="jointfactornet")
        >>> q_f = sgpvae(torch.rand(4, 2), context=(torch.rand(20, 2), torch.randn(20, 5)))
        >>> point_covariances(q_f).shape
        torch.Size([4, 3, 3])
    """
    if not isinstance(q_f, MultitaskMultivariateNormal):
        return q_f.variance.unsqueeze(-1).unsqueeze(-1)
    if not is_coupled(q_f):
        return torch.diag_embed(q_f.variance)
    covar = q_f.lazy_covariance_matrix
    if isinstance(covar, PointwiseCovariance):
        return covar.blocks
    if isinstance(covar, BlockDiagLinearOperator):  # a block for each point
        return covar.base_linear_op.to_dense()
    N, K = q_f.event_shape
    numbers = torch.arange(N * K, device=q_f.mean.device)
    rows = numbers.view(N, K) if q_f._interleaved else numbers.view(K, N).mT  # (N, K)
    rows, columns = rows.unsqueeze(-1).expand(N, K, K), rows.unsqueeze(-2).expand(N, K, K)
    return covar.evaluate_kernel()[..., rows.flatten(), columns.flatten()].unflatten(-1, (N, K, K))


def is_coupled(q_f: MultitaskMultivariateNormal) -> bool:
    """Whether the latent functions of a point may depend on each other: not if each has a block of its own."""
    covar = q_f.lazy_covariance_matrix
    by_function = BlockInterleavedLinearOperator if q_f._interleaved else BlockDiagLinearOperator
    return not isinstance(covar, (by_function, DiagLinearOperator))


@dataclass(frozen=True, eq=False)
class PointMarginals:
    """
    The marginals of q(f) at each point, from which the latent functions of a point are drawn together.

    :param mean: (`*T x N x K`).
    :param root: The standard deviations (`*T x N x K`), or, of latent functions that depend on each other, Cholesky
        factors of their covariance (`*T x N x K x K`).
    """

    mean: Tensor
    root: Tensor

    @classmethod
    def of(cls, q_f: MultivariateNormal) -> PointMarginals:
        """The marginals of what a model returns; an event of N counts as K = 1."""
        if not isinstance(q_f, MultitaskMultivariateNormal):
            return cls(q_f.mean.unsqueeze(-1), q_f.stddev.unsqueeze(-1))
        return cls(q_f.mean, _cholesky(point_covariances(q_f)) if is_coupled(q_f) else q_f.stddev)

    @classmethod
    def concatenate(cls, parts: Sequence[PointMarginals], order: Tensor | None = None) -> PointMarginals:
        """
        :param parts: Marginals of different points.
        :param order: Which of all these points comes first, which second, and so on (`N`).
        """
        dim = -3 if parts[0].is_coupled else -2
        mean, root = torch.cat([part.mean for part in parts], -2), torch.cat([part.root for part in parts], dim)
        if order is not None:
            mean, root = mean.index_select(-2, order), root.index_select(dim, order)
        return cls(mean, root)

    @property
    def is_coupled(self) -> bool:
        return self.root.dim() > self.mean.dim()

    @property
    def stddev(self) -> Tensor:
        """(`*T x N x K`)"""
        return torch.linalg.vector_norm(self.root, dim=-1) if self.is_coupled else self.root

    def __getitem__(self, points: slice) -> PointMarginals:
        return PointMarginals(
            self.mean[..., points, :], self.root[..., points, :, :] if self.is_coupled else self.root[..., points, :]
        )

    def draw(self, noise: Tensor) -> Tensor:
        """
        The latent functions, from standard normal noise (`S x *T x N x K`).

        :param noise: (`S x *T x N x K`).
        """
        if self.is_coupled:
            return self.mean + (self.root @ noise.unsqueeze(-1)).squeeze(-1)
        return self.mean + self.root * noise


def _cholesky(covariances: Tensor) -> Tensor:
    """The Cholesky factors of matrices that are covariances but for rounding."""
    scale = covariances.diagonal(dim1=-2, dim2=-1).abs().mean(-1, keepdim=True)
    rounding = ROUNDING * torch.finfo(covariances.dtype).eps * scale
    return safe_cholesky(covariances + torch.diag_embed(rounding.expand(covariances.shape[:-1])))
