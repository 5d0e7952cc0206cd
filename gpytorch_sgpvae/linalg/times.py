"""The times in inputs: the one column that all parts of a kernel over time read."""

from __future__ import annotations

from collections.abc import Iterator

from gpytorch.kernels import AdditiveKernel, ConstantKernel, Kernel, ProductKernel, ScaleKernel
from torch import Tensor

from .kernels import GroupedKernel


def times_of(kernel: Kernel, x: Tensor, selected: bool = False) -> Tensor:
    """
    The times (`... x N`), in float64, which are the one column of the inputs that all parts of a kernel read. A
    :class:`~gpytorch.kernels.ConstantKernel` reads none.

    :param kernel: The kernel. It and the kernels within may have `active_dims`.
    :param x: Inputs (`... x N x D`).
    :param selected: Whether the kernel's own `active_dims` have been applied to the inputs already, but not those of
        kernels within it. The inputs of a :class:`~gpytorch.lazy.LazyEvaluatedKernelTensor` are such.

    Example:
        >>> import torch
        >>> from gpytorch.kernels import MaternKernel, ScaleKernel
        >>> from gpytorch_sgpvae.linalg.times import times_of
        >>> x = torch.tensor([[0.0, 7.0], [1.0, 8.0]])
        >>> times_of(ScaleKernel(MaternKernel(active_dims=(1,))), x)
        tensor([7., 8.], dtype=torch.float64)
    """
    found = sorted(set(_columns_read(kernel, tuple(range(x.shape[-1])), selected)))
    if not found and x.shape[-1] == 1:
        found = [(0,)]
    if len(found) != 1 or len(found[0]) != 1:
        columns = " and ".join(str(columns) for columns in found) or "none"
        raise ValueError(
            f"Within {type(kernel).__name__}, kernels read the columns {columns} of inputs with {x.shape[-1]} columns: "
            "a state space has one input, time, so all must read the same single column. Say which one it is with "
            "active_dims=(0,) in each of the kernels that are scaled, added or multiplied."
        )
    return x[..., found[0][0]].double()


def _columns_read(kernel: Kernel, columns: tuple[int, ...], selected: bool = False) -> Iterator[tuple[int, ...]]:
    """The columns that each kernel within a kernel reads, out of those that are passed to it."""
    if not selected and kernel.active_dims is not None:
        dims = kernel.active_dims.tolist()
        if max(dims) >= len(columns):
            raise ValueError(
                f"A {type(kernel).__name__} with active_dims={tuple(dims)} gets inputs with {len(columns)} columns."
            )
        columns = tuple(columns[i] for i in dims)
    if isinstance(kernel, ScaleKernel):
        # Its own active_dims are those of the kernel that it scales, which does not select again.
        yield from _columns_read(kernel.base_kernel, columns, selected=True)
    elif isinstance(kernel, AdditiveKernel | ProductKernel | GroupedKernel):
        for part in kernel.kernels:
            yield from _columns_read(part, columns)
    elif not isinstance(kernel, ConstantKernel):
        yield columns
