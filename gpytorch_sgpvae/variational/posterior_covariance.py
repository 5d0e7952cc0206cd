from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from linear_operator import to_linear_operator
from linear_operator.operators import LinearOperator, MatmulLinearOperator, SumLinearOperator
from linear_operator.utils.memoize import cached
from torch import Tensor


class LazyCovariance(LinearOperator):
    """A covariance matrix that is put together only if somebody asks for more than a subclass knows already."""

    def explicit(self) -> LinearOperator:
        """The same matrix, made of linear_operator's own parts."""
        raise NotImplementedError

    def representation(self) -> tuple[Tensor, ...]:
        return self.explicit().representation()

    def representation_tree(self) -> Any:
        return self.explicit().representation_tree()

    def to_dense(self) -> Tensor:
        return self.explicit().to_dense()

    def _transpose_nonbatch(self) -> LinearOperator:
        return self

    def _matmul(self, rhs: Tensor) -> Tensor:
        return self.explicit()._matmul(rhs)

    def _t_matmul(self, rhs: Tensor) -> Tensor:
        return self.explicit()._matmul(rhs)

    def _getitem(self, *indices: Any) -> LinearOperator:
        return self.explicit()._getitem(*indices)

    def _get_indices(self, *indices: Any) -> Tensor:
        return self.explicit()._get_indices(*indices)

    def _expand_batch(self, batch_shape: torch.Size | list[int]) -> LinearOperator:
        return self.explicit()._expand_batch(batch_shape)

    def _permute_batch(self, *dims: int) -> LinearOperator:
        return self.explicit()._permute_batch(*dims)

    def _unsqueeze_batch(self, dim: int) -> LinearOperator:
        return self.explicit()._unsqueeze_batch(dim)


class PosteriorCovariance(LazyCovariance):
    r"""
    The covariance matrix of q(f*), lazy, with a diagonal that is known already:

    .. math::

        K_{**} - A_*^\top F A_*

    Most callers look at the diagonal alone; nothing else is put together before somebody asks for it.

    :param prior_covar: :math:`K_{**}` (`*T x K x N x N`).
    :param A: (`*T x K x M x N`).
    :param reduction: F (`*T x K x M x M`).
    :param variance: The diagonal (`*T x K x N`), which has all batch dimensions.
    """

    def __init__(self, prior_covar: LinearOperator, A: Tensor, reduction: Tensor, variance: Tensor):
        super().__init__(prior_covar, A, reduction, variance)
        self.prior_covar = prior_covar
        self.A = A
        self.reduction = reduction
        self.variance = variance

    @cached(name="explicit")
    def explicit(self) -> SumLinearOperator:
        """The same matrix, made of linear_operator's own parts."""
        A = self.A.expand(*self.batch_shape, *self.A.shape[-2:])
        prior_covar = self.prior_covar.expand(self.shape)
        return SumLinearOperator(prior_covar, MatmulLinearOperator(-A.mT, self.reduction @ A))

    def _size(self) -> torch.Size:
        return torch.Size((*self.variance.shape, self.variance.shape[-1]))

    def _diagonal(self) -> Tensor:
        return self.variance


class PointwiseCovariance(LazyCovariance):
    """
    The covariance matrix of q(f*) of K latent functions, point by point (`N K x N K`), lazy, with the block of each
    point known already.
    """

    blocks: Tensor

    def _size(self) -> torch.Size:
        *batch, N, K, _ = self.blocks.shape
        return torch.Size([*batch, N * K, N * K])

    def _diagonal(self) -> Tensor:
        return self.blocks.diagonal(dim1=-2, dim2=-1).flatten(-2)


class JointPosteriorCovariance(PointwiseCovariance):
    r"""
    The covariance matrix of q(f*) of K latent functions that were inferred together, point by point (`N K x N K`),
    lazy, with blocks for each point that are known already:

    .. math::

        \mathrm{cov}(f_k(\mathbf x_n), f_l(\mathbf x_m)) = \delta_{kl} k_k(\mathbf x_n, \mathbf x_m)
        - \mathbf c_{nk}^\top F_{kl} \, \mathbf c_{ml}

    :param prior_covar: The prior covariances (`*T x K x N x N`).
    :param C: :math:`\mathbf c` (`*T x K x R x N`).
    :param reduction: F for all latent functions together (`*T x (K R) x (K R)`), or one that all pairs share
        (`*T x R x R`).
    :param blocks: The covariance of each point (`*T x N x K x K`), which has all batch dimensions.
    """

    def __init__(self, prior_covar: LinearOperator, C: Tensor, reduction: Tensor, blocks: Tensor):
        super().__init__(prior_covar, C, reduction, blocks)
        self.prior_covar = prior_covar
        self.C = C
        self.reduction = reduction
        self.blocks = blocks

    @cached(name="explicit")
    def explicit(self) -> LinearOperator:
        K, R = self.C.shape[-3:-1]
        F = self.reduction
        if F.shape[-1] == R:
            right = (F.unsqueeze(-3) @ self.C).unsqueeze(-4)  # (*T, 1, K, R, N)
        else:
            F = F.unflatten(-2, (K, R)).unflatten(-1, (K, R)).movedim(-2, -3)  # (*T, K, K, R, R)
            right = F @ self.C.unsqueeze(-4)  # (*T, K, K, R, N)
        reduced = self.C.mT.unsqueeze(-3) @ right  # (*T, K, K, N, N)
        prior = self.prior_covar.to_dense()  # (*T, K, N, N)
        diagonal = torch.eye(K, dtype=prior.dtype, device=prior.device)[:, :, None, None]
        covar = diagonal * prior.unsqueeze(-3) - reduced  # (*T, K, K, N, N)
        covar = covar.movedim(-2, -4).movedim(-1, -2)  # (*T, N, K, N, K)
        return to_linear_operator(covar.flatten(-4, -3).flatten(-2).expand(self.shape))


class LazyMatrix(LazyCovariance):
    """
    A matrix that is computed when it is needed.

    :param like: A tensor of its dtype, on its device.
    :param shape: Its shape, with batch dimensions.
    :param compute: Returns it.
    :param diagonal: Its diagonal, where that is known already.
    """

    def __init__(self, like: Tensor, shape: torch.Size, compute: Callable[[], Tensor], diagonal: Tensor | None = None):
        super().__init__(like, shape=shape, compute=compute, diagonal=diagonal)
        self._like = like
        self._shape = torch.Size(shape)
        self._compute = compute
        self._known_diagonal = diagonal

    @cached(name="explicit")
    def explicit(self) -> LinearOperator:
        # it is kept for callers with gradients too, whoever asks first
        with torch.set_grad_enabled(torch.is_grad_enabled() or self._like.requires_grad):
            return to_linear_operator(self._compute())

    def _size(self) -> torch.Size:
        # Sizes are tensors while torch.jit traces, and linear_operator multiplies them in place.
        return torch.Size([1 * size for size in self._shape])

    def _diagonal(self) -> Tensor:
        if self._known_diagonal is not None:
            return self._known_diagonal
        return self.explicit().diagonal(dim1=-1, dim2=-2)


class LazyJointCovariance(PointwiseCovariance):
    """
    A covariance matrix of all points that is computed when it is needed, as is that of each point.

    :param blocks: The covariance of each point (`*T x N x K x K`).
    :param whole: The matrix (`*T x (N K) x (N K)`).
    """

    def __init__(self, blocks: LazyMatrix, whole: LazyMatrix):
        super().__init__(blocks, whole)
        self._blocks = blocks
        self._whole = whole

    @property
    def blocks(self) -> Tensor:  # type: ignore[override]
        return self._blocks.to_dense()

    def explicit(self) -> LinearOperator:
        return self._whole.explicit()

    def _size(self) -> torch.Size:
        return self._whole.shape


# A covariance of all points of a context as a dense matrix of more rows than that is refused.
MOST_ROWS = 5000


def check_rows(size: int) -> None:
    """Raise if a covariance matrix of all points would have too many rows."""
    if size > MOST_ROWS:
        raise ValueError(
            f"The joint covariance of q(f) at these inputs is a matrix of {size} x {size}, more than {MOST_ROWS}: use "
            "point_covariances(q_f), Posterior.sample for joint draws, or fewer inputs."
        )
