from __future__ import annotations

from typing import Any

import torch
from linear_operator.operators import LinearOperator, MatmulLinearOperator, SumLinearOperator
from linear_operator.utils.memoize import cached
from torch import Tensor


class PosteriorCovariance(LinearOperator):
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

    def representation(self) -> tuple[Tensor, ...]:
        return self.explicit().representation()

    def representation_tree(self) -> Any:
        return self.explicit().representation_tree()

    def to_dense(self) -> Tensor:
        return self.explicit().to_dense()

    def _size(self) -> torch.Size:
        return torch.Size((*self.variance.shape, self.variance.shape[-1]))

    def _diagonal(self) -> Tensor:
        return self.variance

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
