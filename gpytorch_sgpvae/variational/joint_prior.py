from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import accumulate, product
from math import prod

import torch
from gpytorch.distributions import MultivariateNormal
from gpytorch.lazy import LazyEvaluatedKernelTensor
from linear_operator import to_linear_operator
from linear_operator.operators import (
    ConstantMulLinearOperator,
    DenseLinearOperator,
    LinearOperator,
    SumLinearOperator,
)
from torch import Tensor

from .._compat import is_compiling

# The most entries that a dense matrix of all tasks may have before one of the tasks is tried alone.
MOST_ENTRIES = 2**26


class JointPrior:
    r"""
    The prior at several groups of inputs (inducing points, a context's inputs, new inputs), from one call of the
    model's `forward`:

    .. math::

        \begin{pmatrix} \mathbf f_1 \\ \mathbf f_2 \\ \vdots \end{pmatrix} \sim \mathcal N \left(
        \begin{pmatrix} \boldsymbol \mu_1 \\ \boldsymbol \mu_2 \\ \vdots \end{pmatrix},
        \begin{pmatrix} K_{11} & K_{12} & \cdots \\ K_{21} & K_{22} & \cdots \\ \vdots & \vdots \end{pmatrix} \right)

    It is one call, as a `forward` may depend on all inputs that it is given: with BatchNorm or Dropout in a feature
    extractor the matrices of two calls belong to two kernels, and make negative variances. The rows of all tasks go in
    together, and those of each group once. A kernel's matrix is lazy: only the blocks that are taken out of it are
    ever computed.

    :param joint: What `forward` made of the rows of all groups (`K` x N).
    :param tasks: The batch shape `*T` of each group.
    :param sizes: The number of points N that each group has in each of its tasks.
    """

    def __init__(self, joint: MultivariateNormal, tasks: Sequence[torch.Size], sizes: Sequence[int]):
        self._mean = joint.mean
        self._covar = joint.lazy_covariance_matrix
        self._tasks = tasks
        self._sizes = sizes
        lengths = [prod(batch) * size for batch, size in zip(tasks, sizes, strict=True)]
        self._rows = [slice(end - length, end) for end, length in zip(accumulate(lengths), lengths, strict=True)]

    @property
    def is_lazy(self) -> bool:
        """Whether blocks can be computed without the whole matrix."""
        return not isinstance(self._covar, DenseLinearOperator)

    def mean(self, group: int) -> Tensor:
        """(`*T x K x N`)"""
        return self._by_task(self._mean[..., self._rows[group]].unsqueeze(-1), group).squeeze(-1)

    def variance(self, group: int) -> Tensor:
        """(`*T x K x N`)"""
        rows = self._rows[group]
        return self._by_task(self._covar[..., rows, rows].diagonal(dim1=-1, dim2=-2).unsqueeze(-1), group).squeeze(-1)

    def covariance(self, left: int, right: int) -> LinearOperator:
        """The covariance of two groups within each task (`*T x K x N x N'`), lazy if it is made of kernels."""
        return self._blocks(self._covar[..., self._rows[left], self._rows[right]], left, right)

    def _blocks(self, covar: LinearOperator, left: int, right: int) -> LinearOperator:
        """The blocks within each task, of a matrix of all rows of two groups (`K x (T N) x (T N')`)."""
        if not self._tasks[left] and not self._tasks[right]:
            return covar
        if isinstance(covar, LazyEvaluatedKernelTensor):
            x1, x2 = self._by_task(covar.x1, left), self._by_task(covar.x2, right)
            batch = torch.broadcast_shapes(x1.shape[:-2], x2.shape[:-2])
            x1, x2 = (x.expand(*batch, *x.shape[-2:]) for x in (x1, x2))
            options = {"last_dim_is_batch": covar.last_dim_is_batch, **covar.params}
            return LazyEvaluatedKernelTensor(x1, x2, kernel=covar.kernel, **options)
        if isinstance(covar, SumLinearOperator):
            return SumLinearOperator(*(self._blocks(part, left, right) for part in covar.linear_ops))
        if isinstance(covar, ConstantMulLinearOperator):
            return self._blocks(covar.base_linear_op, left, right) * covar.expanded_constant
        if not self._tasks[left]:
            return to_linear_operator(self._by_task(covar.to_dense().mT, right).mT)
        if not self._tasks[right]:
            return to_linear_operator(self._by_task(covar.to_dense(), left))
        tasks = torch.broadcast_shapes(self._tasks[left], self._tasks[right])
        blocks = [
            covar[..., self._rows_of_task(left, task), self._rows_of_task(right, task)].to_dense()
            for task in product(*map(range, tasks))
        ]
        return to_linear_operator(torch.stack(blocks).unflatten(0, tasks))

    def _by_task(self, rows: Tensor, group: int) -> Tensor:
        """The rows of a group (`K x (T N) x C`), which lie one task after the other, as `*T x K x N x C`."""
        tasks = self._tasks[group]
        if not tasks:
            return rows
        rows = rows.unflatten(-2, (*tasks, self._sizes[group]))  # (K, *T, N, C)
        first = rows.dim() - 2 - len(tasks)
        return rows.movedim(tuple(range(first, first + len(tasks))), tuple(range(len(tasks))))

    def _rows_of_task(self, group: int, task: tuple[int, ...]) -> slice:
        """The rows that a task has among those of a group."""
        number = 0
        for i, size in zip(_own_index(task, self._tasks[group]), self._tasks[group], strict=True):
            number = number * size + i
        return slice(number * self._sizes[group], (number + 1) * self._sizes[group])


class StackedPrior(JointPrior):
    """
    The same for a `forward` that makes dense matrices, which would grow with the square of the number of tasks: from
    one call for each task.

    :param priors: One for each task.
    :param tasks: The batch shape `*T` of all groups together.
    """

    def __init__(self, priors: Sequence[JointPrior], tasks: torch.Size):
        self._priors = priors
        self._all_tasks = tasks

    @property
    def is_lazy(self) -> bool:
        return False

    def mean(self, group: int) -> Tensor:
        return self._stack([prior.mean(group) for prior in self._priors])

    def variance(self, group: int) -> Tensor:
        return self._stack([prior.variance(group) for prior in self._priors])

    def covariance(self, left: int, right: int) -> LinearOperator:
        return to_linear_operator(self._stack([prior.covariance(left, right).to_dense() for prior in self._priors]))

    def _stack(self, parts: list[Tensor]) -> Tensor:
        return torch.stack(parts).unflatten(0, self._all_tasks)


def joint_prior(
    forward: Callable[[Tensor], MultivariateNormal], groups: Sequence[Tensor], has_latents: bool, known_lazy: bool
) -> JointPrior:
    r"""
    :param forward: The model's.
    :param groups: Inputs (`*T x K x N x D`), with batch shapes `*T` that broadcast.
    :param has_latents: Whether they have the dimension of size K.
    :param known_lazy: Whether `forward` is known to make lazy matrices, so that nothing needs to be tried.
    """
    depth = 3 if has_latents else 2

    def call(parts: Sequence[Tensor]) -> JointPrior:
        rows = torch.cat([_flatten(x, depth) for x in parts], dim=-2)
        joint = forward(rows)
        _check_size(joint, rows.shape[-2])
        return JointPrior(joint, [x.shape[:-depth] for x in parts], [x.shape[-2] for x in parts])

    def call_one(task: tuple[int, ...]) -> JointPrior:
        return call([x[_own_index(task, x.shape[:-depth])] for x in groups])

    tasks = torch.broadcast_shapes(*(x.shape[:-depth] for x in groups))
    every_task = list(product(*map(range, tasks)))
    if len(every_task) == 1:
        return call(groups)
    num_rows = sum(prod(x.shape[:-depth]) * x.shape[-2] for x in groups)
    if known_lazy or num_rows**2 <= MOST_ENTRIES or call_one(every_task[0]).is_lazy:
        prior = call(groups)
        if prior.is_lazy:
            return prior
    return StackedPrior([call_one(task) for task in every_task], tasks)


def _check_size(joint: MultivariateNormal, num_rows: int) -> None:
    """Raise unless `forward` made one value of each input, which a kernel with derivatives does not."""
    if is_compiling():
        return
    size = joint.lazy_covariance_matrix.shape[-1]
    if size != num_rows:
        raise ValueError(
            f"The model's forward made a covariance matrix of {size} x {size} of {num_rows} inputs: expected one value "
            "of each latent function at each input. Kernels with several values for an input, such as RBFKernelGrad "
            "and MultitaskKernel, have no place here; several functions are a batch dimension of the kernel."
        )


def _flatten(x: Tensor, depth: int) -> Tensor:
    """The rows of all tasks, one after the other, from `*T x K x N x D` to `K x (T N) x D`."""
    if x.dim() == depth:
        return x
    return x.flatten(0, -2) if depth == 2 else x.movedim(-3, 0).flatten(1, -2)


def _own_index(task: tuple[int, ...], batch: torch.Size) -> tuple[int, ...]:
    """The index of a task in a group whose batch shape broadcasts with that of all tasks."""
    return tuple(i if size > 1 else 0 for i, size in zip(task[len(task) - len(batch) :], batch, strict=True))
