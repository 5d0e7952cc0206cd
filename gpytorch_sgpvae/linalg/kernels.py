"""GPyTorch's kernels, where a gradient by hand makes them faster, and different ones for groups of latent functions."""

from __future__ import annotations

import math
from collections.abc import Sequence
from copy import deepcopy
from itertools import groupby
from typing import Any

import torch
from gpytorch.constraints import Positive
from gpytorch.kernels import AdditiveKernel, Kernel, MaternKernel, PeriodicKernel, RBFKernel, ScaleKernel
from gpytorch.settings import trace_mode
from linear_operator import to_dense
from torch import Tensor

from ..utils.shapes import expands_to
from .functions import SquaredExponentialFunction

# A cycle changes its form over this many periods, or more slowly: over fewer of them it would hardly be one.
FEWEST_PERIODS = 4


class ScaledRBFKernel(ScaleKernel):
    r"""
    GPyTorch's :class:`~gpytorch.kernels.ScaleKernel` of an :class:`~gpytorch.kernels.RBFKernel`, in a third of the
    passes over the matrix:

    .. math::

        k(\mathbf x, \mathbf x') = s \exp \left( -\tfrac 1 2 \sum_d (x_d - x'_d)^2 / \ell_d^2 \right)

    Its parameters, their names, and everything else about it are GPyTorch's. The ready-made models have it by default.

    :param kwargs: Arguments of the :class:`~gpytorch.kernels.RBFKernel`: `ard_num_dims`, `batch_shape` and so on.

    Example:
        >>> import torch
        >>> from gpytorch_sgpvae.linalg.kernels import ScaledRBFKernel
        >>> ScaledRBFKernel(ard_num_dims=2)(torch.rand(5, 2), torch.rand(4, 2)).to_dense().shape
        torch.Size([5, 4])
    """

    def __init__(self, **kwargs: Any):
        base_kernel = RBFKernel(**kwargs)
        super().__init__(base_kernel, batch_shape=base_kernel.batch_shape)

    def forward(
        self, x1: Tensor, x2: Tensor, last_dim_is_batch: bool = False, diag: bool = False, **params: Any
    ) -> Tensor:
        if diag or last_dim_is_batch or trace_mode.on():
            return super().forward(x1, x2, last_dim_is_batch=last_dim_is_batch, diag=diag, **params)
        lengthscale, outputscale = self.base_kernel.lengthscale, self.outputscale
        return SquaredExponentialFunction.evaluate(x1 / lengthscale, x2 / lengthscale, outputscale[..., None, None])


class GroupedKernel(Kernel):
    r"""
    A kernel for K latent functions that fall into groups, each with a kernel of its own kind: rough ones and smooth
    ones, say, or periodic ones. With :math:`g(k)` the group of latent function k,

    .. math::

        k_k(\mathbf x, \mathbf x') = k^{(g(k))}_{k} (\mathbf x, \mathbf x'), \qquad
        g = (\underbrace{1, \ldots, 1}_{K_1}, \underbrace{2, \ldots, 2}_{K_2}, \ldots), \qquad K = K_1 + K_2 + \cdots

    Each group's kernel is evaluated for its own latent functions alone. Inputs are `... x K x N x D`, or `N x D` and
    `... x 1 x N x D` for those that all latent functions share; matrices are `... x K x N x N'`.

    Scale, add and multiply kernels within the groups. A :class:`~gpytorch.kernels.ScaleKernel`, a sum or a product
    *of* this kernel is not possible in general: GPyTorch broadcasts the batch shapes of all kernels within them.

    :param kernels: The kernel of each group, with batch shape `(size,)` of its group for parameters of each latent
        function's own, and `()` or `(1,)` for parameters that the group shares.
    :param sizes: The number of latent functions in each group.

    :ivar kernels: The kernels, a :class:`torch.nn.ModuleList`.
    :ivar sizes: The sizes, a tuple.

    Example:
        >>> import torch
        >>> from gpytorch.kernels import MaternKernel, PeriodicKernel
        >>> from gpytorch_sgpvae import SGPVAE, GroupedKernel
        >>> rough = MaternKernel(nu=0.5, batch_shape=torch.Size([2]))
        >>> daily = PeriodicKernel() * MaternKernel(nu=1.5)  # the same for three latent functions
        >>> kernel = GroupedKernel([rough, daily], sizes=[2, 3])
        >>> kernel.batch_shape, kernel(torch.rand(7, 1)).shape
        (torch.Size([5]), torch.Size([5, 7, 7]))
        >>> sgpvae = SGPVAE(num_outputs=4, num_latents=5, inducing_points=torch.rand(8, 1), kernel=kernel)
    """

    def __init__(self, kernels: Sequence[Kernel], sizes: Sequence[int]):
        _check_groups(kernels, sizes)
        super().__init__(batch_shape=torch.Size([sum(sizes)]))
        self.kernels: Any = torch.nn.ModuleList(kernels)  # whose type would not say that these are kernels
        self.sizes = tuple(sizes)

    @property
    def batch_shape(self) -> torch.Size:
        # GPyTorch's own would broadcast those of the groups.
        return self._batch_shape

    @batch_shape.setter
    def batch_shape(self, batch_shape: torch.Size) -> None:
        self._batch_shape = batch_shape

    @property
    def is_stationary(self) -> bool:
        return all(kernel.is_stationary for kernel in self.kernels)

    def num_outputs_per_input(self, x1: Tensor, x2: Tensor) -> int:
        numbers = [kernel.num_outputs_per_input(x1, x2) for kernel in self.kernels]
        if len(set(numbers)) > 1:
            raise ValueError(
                f"The groups' kernels have {numbers} outputs for an input: expected the same number of all."
            )
        return numbers[0]

    def __call__(self, x1: Tensor, x2: Tensor | None = None, *args: Any, **kwargs: Any) -> Any:
        # Here too, as what is lazy would fail much later, and with another message.
        self._check_inputs(x1, x1 if x2 is None else x2)
        return super().__call__(x1, x2, *args, **kwargs)

    def forward(self, x1: Tensor, x2: Tensor, diag: bool = False, **params: Any) -> Tensor:
        self._check_inputs(x1, x2)
        leading = torch.broadcast_shapes(x1.shape[:-3], x2.shape[:-3], self.batch_shape[:-1])
        num_last = (1 if diag else 2) + params.get("last_dim_is_batch", False)
        parts = []
        for kernel, size, own_x1, own_x2 in zip(
            self.kernels, self.sizes, self._split(x1), self._split(x2), strict=True
        ):
            part = to_dense(kernel(own_x1, own_x2, diag=diag, **params))
            parts.append(part.expand(*leading, size, *part.shape[-num_last:]))  # (..., K_g, N, N'), or (..., K_g, N)
        return torch.cat(parts, dim=-1 - num_last)  # (..., K, N, N'), or (..., K, N)

    def expand_batch(self, *sizes: Any) -> GroupedKernel:
        """
        The same kernel with a larger batch shape `... x K`. It shares the groups' kernels with this one: they are the
        same for all of the new batch.
        """
        batch_shape = torch.Size(sizes if all(isinstance(size, int) for size in sizes) else sizes[0])
        if not expands_to(self.batch_shape, batch_shape):
            raise RuntimeError(
                f"Cannot expand a kernel with batch shape {tuple(self.batch_shape)} to {tuple(batch_shape)}."
            )
        group_sizes = self.sizes if batch_shape[-1] == sum(self.sizes) else batch_shape[-1:]
        return _with_batch_shape(batch_shape, list(self.kernels), group_sizes)

    def __getitem__(self, index: Any) -> Kernel:
        """
        The kernel of some latent functions: `kernel[k]` is one without a batch shape, `kernel[:3]` a grouped one. Where
        GPyTorch selects parameters, it copies them; kernels that stay as they are keep their parameters.
        """
        if any(len(kernel.batch_shape) > 1 for kernel in self.kernels):
            raise NotImplementedError("A GroupedKernel with samples of its hyperparameters cannot be indexed.")
        index = index if isinstance(index, tuple) else (index,)
        index = tuple(i.cpu() if isinstance(i, Tensor) else i for i in index)
        # The latent function that each entry of the new batch is of.
        latents = torch.arange(sum(self.sizes), device="cpu").expand(self.batch_shape)[index]
        # The kernel of each latent function, and its number within the group.
        places = [(kernel, k) for kernel, size in zip(self.kernels, self.sizes, strict=True) for k in range(size)]
        if latents.dim() == 0:
            selected = _select(*places[int(latents)])
            # A lazy matrix expects inputs of which its kernel's active dimensions are selected. Within a sum they are.
            return selected if selected.active_dims is None else AdditiveKernel(selected)
        rows = latents.reshape(-1, latents.shape[-1])
        if (rows != rows[:1]).any():
            raise IndexError(
                f"The index {index} of a GroupedKernel mixes tasks and latent functions: index one by one."
            )
        kernels, sizes = [], []
        for _, run in groupby((places[latent] for latent in rows[0].tolist()), key=lambda place: id(place[0])):
            same_kernel, numbers = zip(*run, strict=True)
            kernels.append(_select(same_kernel[0], list(numbers)))
            sizes.append(len(numbers))
        return _with_batch_shape(latents.shape, kernels, sizes)

    def _split(self, x: Tensor) -> Sequence[Tensor]:
        """The inputs of each group's latent functions (`... x K_g x N x D`), or those that all of them share."""
        if x.dim() < 3 or x.shape[-3] == 1:
            return [x] * len(self.sizes)
        return x.split(self.sizes, dim=-3)

    def _check_inputs(self, x1: Tensor, x2: Tensor) -> None:
        self.num_outputs_per_input(x1, x2)
        num_latents = sum(self.sizes)
        for x in (x1, x2):
            if x.dim() >= 3 and x.shape[-3] not in (1, num_latents):
                raise ValueError(
                    f"Inputs of shape {tuple(x.shape)} are of {x.shape[-3]} latent functions, but a GroupedKernel with "
                    f"sizes={self.sizes} of {num_latents}: expected (..., {num_latents}, N, D), or (..., 1, N, D) or "
                    "(N, D) for inputs that all of them share."
                )


def spread_lengthscales(num_latents: int, shortest: float, longest: float) -> Tensor:
    r"""
    Lengthscales in equal ratios from the shortest to the longest (`K`); a single one lies in the middle:

    .. math::

        \ell_k = \ell_\text{shortest} \,
        (\ell_\text{longest} / \ell_\text{shortest})^{(k - 1) / (K - 1)}, \qquad k = 1, \ldots, K

    :param num_latents: The number of lengthscales, K.
    :param shortest: The first one.
    :param longest: The last one.

    Example:
        >>> from gpytorch_sgpvae.linalg.kernels import spread_lengthscales
        >>> spread_lengthscales(3, shortest=1.0, longest=100.0)
        tensor([  1.0000,  10.0000, 100.0000])
    """
    if not 0 < shortest <= longest < math.inf:
        raise ValueError(f"Expected 0 < shortest <= longest, both finite, got shortest={shortest}, longest={longest}.")
    if num_latents == 1:
        shortest = longest = math.sqrt(shortest * longest)
    return torch.linspace(math.log(shortest), math.log(longest), num_latents).exp()


def default_grouped_kernel(
    num_latents: int, input_dim: int | None, *, shortest: float, longest: float, periods: Sequence[float] = ()
) -> GroupedKernel:
    r"""
    A group of rough functions, a group of smooth ones, and one for each period, all of about the same size. The rough
    functions have Matérn kernels with :math:`\nu = 1/2`, the smooth ones with :math:`\nu = 3/2`, and those with period
    p repeat themselves, but not forever:

    .. math::

        k(\mathbf x, \mathbf x') = \exp \left( - 2 \sin^2(\pi (x_1 - x'_1) / p) / \ell \right)
        \, k_{3/2}(\mathbf x, \mathbf x')

    All variances are 1 and not learnt: the decoder has scales of its own. Lengthscales are learnt, one for each latent
    function and input dimension. Periods are not.

    :param num_latents: Number of latent functions K. With periods, there must be at least one for each group; a single
        latent function without periods is a smooth one.
    :param input_dim: Number of input dimensions D, or None for one lengthscale for all of them.
    :param shortest: The first lengthscale of the rough and of the smooth group, in units of x.
    :param longest: The last one; see :func:`spread_lengthscales` for those between. Cycles change their form over this
        distance, or over four periods if that is longer.
    :param periods: The periods of cycles, in units of the first input dimension: 24 for days, where that counts hours.

    Example:
        >>> from gpytorch_sgpvae.linalg.kernels import default_grouped_kernel
        >>> kernel = default_grouped_kernel(7, input_dim=1, shortest=2.0, longest=200.0, periods=[24.0])
        >>> kernel.sizes
        (2, 3, 2)
        >>> kernel.kernels[1].lengthscale.detach().flatten()
        tensor([  2.0000,  20.0000, 200.0000])
    """
    num_groups = 2 + len(periods)
    if num_latents < (num_groups if periods else 1):
        raise ValueError(
            f"num_latents={num_latents} is too few for rough, smooth and {len(periods)} kinds of periodic functions: "
            f"expected at least {num_groups if periods else 1}."
        )
    if not all(0 < period < math.inf for period in periods):
        raise ValueError(f"Expected periods that are positive and finite, got {list(periods)}.")
    num_periodic = num_latents // num_groups
    num_rough = (num_latents - len(periods) * num_periodic) // 2
    num_smooth = num_latents - len(periods) * num_periodic - num_rough
    groups = [
        (_matern(nu, input_dim, spread_lengthscales(size, shortest, longest)), size)
        for nu, size in ((0.5, num_rough), (1.5, num_smooth))
        if size
    ]
    for period in periods:
        cycle = PeriodicKernel(batch_shape=torch.Size([num_periodic]), active_dims=None if input_dim == 1 else (0,))
        cycle.initialize(period_length=float(period), lengthscale=1.0)
        cycle.raw_period_length.requires_grad_(False)
        change = torch.full((num_periodic,), max(longest, FEWEST_PERIODS * period))
        groups.append((cycle * _matern(1.5, input_dim, change), num_periodic))
    kernels, sizes = zip(*groups, strict=True)
    return GroupedKernel(kernels, sizes)


def add_private_groups(
    kernel: GroupedKernel, num_outputs: int, num_private: int, input_dim: int | None
) -> GroupedKernel:
    """
    The kernel of further latent functions, of which each output has some for itself, beside that of the shared ones:
    the first of each output is rough, the second smooth, and so on.

    :param kernel: The kernel of the shared latent functions.
    :param num_outputs: Number of outputs P.
    :param num_private: Number of private latent functions of each output.
    :param input_dim: Number of input dimensions D, or None for one lengthscale for all of them.
    """
    own = [_matern((0.5, 1.5)[i % 2], input_dim, torch.ones(num_outputs)) for i in range(num_private)]
    return GroupedKernel([*kernel.kernels, *own], [*kernel.sizes, *[num_outputs] * num_private])


def matern_over_time(num_latents: int, num_outputs: int, num_private: int) -> Kernel:
    """
    A Matérn kernel with :math:`\\nu = 3/2` for each latent function, with lengthscales from 0.3 to 3, and those of
    private functions of each output beside them.

    :param num_latents: Number of shared latent functions.
    :param num_outputs: Number of outputs P.
    :param num_private: Number of private latent functions of each output.
    """
    kernel = _matern(1.5, None, spread_lengthscales(num_latents, 0.3, 3.0))
    if not num_private:
        return kernel
    return add_private_groups(GroupedKernel([kernel], [num_latents]), num_outputs, num_private, None)


def learnt_by_logarithm() -> Positive:
    """Make a constraint of a positive parameter whose logarithm is learnt: hours and months in as many steps."""
    return Positive(transform=torch.exp, inv_transform=torch.log)


def _matern(nu: float, input_dim: int | None, lengthscales: Tensor) -> MaternKernel:
    """Make a kernel for each latent function; each starts from the same lengthscale in all input dimensions."""
    kernel = MaternKernel(nu=nu, ard_num_dims=input_dim, batch_shape=lengthscales.shape)
    kernel.lengthscale = lengthscales[:, None, None].expand(-1, 1, input_dim or 1)
    return kernel


def _with_batch_shape(batch_shape: torch.Size, kernels: Sequence[Kernel], sizes: Sequence[int]) -> GroupedKernel:
    """A grouped kernel that is the same for all of the batch but its last dimension."""
    kernel = GroupedKernel(kernels, sizes)
    kernel.batch_shape = batch_shape
    return kernel


def _select(kernel: Kernel, latents: int | list[int]) -> Kernel:
    """
    The kernel of some latent functions of its group. GPyTorch's own selection takes `active_dims` for a parameter with
    a batch shape, and selects from it too: it does not get to see them.
    """
    size = kernel.batch_shape.numel()
    if not kernel.batch_shape or (isinstance(latents, list) and (size == 1 or latents == list(range(size)))):
        return kernel
    if isinstance(kernel, GroupedKernel):
        return kernel[latents]
    modules = {name: module for name, module in kernel.named_modules() if isinstance(module, Kernel)}
    without_dims = deepcopy(kernel)
    for name in modules:
        without_dims.get_submodule(name).active_dims = None
    selected = without_dims[0 if size == 1 else latents]
    for name, module in modules.items():
        selected.get_submodule(name).active_dims = module.active_dims
    return selected


def _check_groups(kernels: Sequence[Kernel], sizes: Sequence[int]) -> None:
    if len(kernels) != len(sizes) or not kernels:
        raise ValueError(
            f"There are {len(kernels)} kernels and {len(sizes)} sizes: expected a kernel and a size for each group, "
            "and at least one group."
        )
    if not all(isinstance(size, int) and size >= 1 for size in sizes):
        raise ValueError(f"Expected sizes that are whole numbers of at least 1, got {list(sizes)}.")
    for i, (kernel, size) in enumerate(zip(kernels, sizes, strict=True)):
        if not isinstance(kernel, Kernel):
            raise TypeError(f"Expected a gpytorch.kernels.Kernel for each group, got {type(kernel).__name__}.")
        if kernel.batch_shape not in ((), (1,), (size,)):
            raise ValueError(
                f"kernels[{i}], a {type(kernel).__name__}, has batch shape {tuple(kernel.batch_shape)}, but its group "
                f"has {size} latent functions: expected ({size},), or () or (1,) for parameters that the group shares."
            )
