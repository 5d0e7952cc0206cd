"""
Kernels over time as state spaces: a Gaussian process with such a kernel is a Markov chain, so that its posterior costs
time proportional to the number of points.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from gpytorch.kernels import (
    AdditiveKernel,
    ConstantKernel,
    CosineKernel,
    Kernel,
    MaternKernel,
    PeriodicKernel,
    ProductKernel,
    RBFKernel,
    ScaleKernel,
)
from gpytorch.settings import debug
from torch import Tensor
from torch.nn.functional import pad

from ..utils.shapes import expands_to
from .kernels import GroupedKernel, ScaledRBFKernel

# The part of a periodic kernel's variance that may be missing without a warning.
LARGEST_NEGLECTED = 0.01
# Nodes of the quadrature in a periodic kernel, on half of the circle. Its coefficients then are exact up to rounding
# for lengthscales from 1e-4. Below they are too small, not too large, so that `neglected` is still a bound.
QUADRATURE_NODES = 512
# Matérn kernels: the drift F of ds/dz = F s + noise in units of the rate, dz = λ dt, with the state
# (f, df/dz, d²f/dz²), and the stationary covariance of that state, each for its ν.
MATERN_DRIFT = {0.5: [[-1]], 1.5: [[0, 1], [-1, -2]], 2.5: [[0, 1, 0], [0, 0, 1], [-1, -3, -3]]}
MATERN_STATIONARY = {0.5: [[1]], 1.5: [[1, 0], [0, 1]], 2.5: [[1, 0, -1 / 3], [0, 1 / 3, 0], [-1 / 3, 0, 1]]}


@dataclass(frozen=True, eq=False)
class StateSpace:
    r"""
    A stationary Gaussian process over time as an observation of a Markov process with d dimensions, its state:

    .. math::

        f(t) &= \mathbf h^\top \mathbf s(t), \qquad
        k(\tau) = \mathbf h^\top \boldsymbol \Phi(\tau) \, \mathbf P_\infty \, \mathbf h, \\
        \mathbf s(t + \Delta) &= \boldsymbol \Phi(\Delta) \, \mathbf s(t) + \boldsymbol \varepsilon, \qquad
        \boldsymbol \varepsilon \sim \mathcal N \left( \mathbf 0, \,
        \mathbf P_\infty - \boldsymbol \Phi(\Delta) \, \mathbf P_\infty \boldsymbol \Phi(\Delta)^\top \right)

    The sum of two state spaces is that of the sum of two independent processes, and has :math:`d_1 + d_2` dimensions;
    their product has the product of the two kernels, and :math:`d_1 d_2` dimensions. All tensors are float64.

    :param transition: A function from steps :math:`\Delta \ge 0` (`... x N`) to :math:`\boldsymbol \Phi` (`... x N x d
        x d`). The leading dimensions of the steps broadcast with the batch shape: with batch shape `K`, steps `*T x 1 x
        N` give `*T x K x N x d x d`.
    :param stationary_covariance: :math:`\mathbf P_\infty` (`*batch x d x d`).
    :param observation: :math:`\mathbf h` (`d` or `*batch x d`).
    :param neglected: A bound on how far :math:`k(\tau)` above is from the kernel it stands for, at any lag
        (`*batch`). It is 0 unless a :class:`~gpytorch.kernels.PeriodicKernel` is involved.

    Example:
        >>> import torch
        >>> from gpytorch.kernels import CosineKernel, MaternKernel
        >>> from gpytorch_sgpvae.linalg.state_space import to_state_space
        >>> [smooth], [wave] = to_state_space(MaternKernel(nu=1.5)), to_state_space(CosineKernel())
        >>> (smooth + wave).state_size, (smooth * wave).state_size
        (4, 4)
        >>> (smooth * wave).transition(torch.rand(7)).shape
        torch.Size([7, 4, 4])
    """

    transition: Callable[[Tensor], Tensor]
    stationary_covariance: Tensor
    observation: Tensor
    neglected: Tensor

    def __post_init__(self) -> None:
        P, h = self.stationary_covariance, self.observation
        *batch, d, other_d = P.shape if P.dim() >= 2 else (0, 0)
        if d != other_d or list(h.shape) not in ([d], [*batch, d]) or list(self.neglected.shape) != batch:
            raise ValueError(
                f"A state space has a stationary covariance of shape {tuple(P.shape)}, an observation of shape "
                f"{tuple(h.shape)} and a neglected covariance of shape {tuple(self.neglected.shape)}: expected "
                "(*batch, d, d), then (d,) or (*batch, d), and *batch."
            )
        if {P.dtype, h.dtype, self.neglected.dtype} != {torch.float64}:
            raise ValueError(
                f"A state space has tensors in {P.dtype}, {h.dtype} and {self.neglected.dtype}: expected float64 for "
                "all, which is what kernel.lengthscale.double() gives."
            )

    @property
    def state_size(self) -> int:
        """The number of the state's dimensions, d."""
        return self.stationary_covariance.shape[-1]

    @property
    def batch_shape(self) -> torch.Size:
        """The batch shape: `K` for a state space of each latent function, or empty for a single one."""
        return self.stationary_covariance.shape[:-2]

    @property
    def variance(self) -> Tensor:
        r"""The variance :math:`k(0) = \mathbf h^\top \mathbf P_\infty \, \mathbf h` (`*batch`)."""
        h = self.observation
        return (h[..., :, None] * self.stationary_covariance * h[..., None, :]).sum((-2, -1))

    def covariance(self, lags: Tensor) -> Tensor:
        r"""
        The kernel of the state space, :math:`k(\tau) = \mathbf h^\top \boldsymbol \Phi(|\tau|) \, \mathbf P_\infty \,
        \mathbf h`, for checks and plots.

        :param lags: :math:`\tau` (`... x N`).
        """
        h = self.observation
        Ph = (self.stationary_covariance * h[..., None, :]).sum(-1)  # (*B, d)
        PhiPh = (self.transition(lags.abs()) @ Ph[..., None, :, None])[..., 0]  # (..., *B, N, d)
        return (PhiPh * h[..., None, :]).sum(-1)  # (..., *B, N)

    def expand(self, batch_shape: torch.Size | tuple[int, ...]) -> StateSpace:
        """
        The same state space for each member of a larger batch. Nothing is copied.

        :param batch_shape: The new batch shape.
        """
        batch_shape, d = torch.Size(batch_shape), self.state_size
        if batch_shape == self.batch_shape:
            return self
        if not expands_to(self.batch_shape, batch_shape):
            raise ValueError(
                f"Cannot expand a state space with batch shape {tuple(self.batch_shape)} to {tuple(batch_shape)}."
            )

        def transition(steps: Tensor) -> Tensor:
            leading = torch.broadcast_shapes(steps.shape[:-1], batch_shape)
            return self.transition(steps).expand(*leading, steps.shape[-1], d, d)

        return StateSpace(
            transition=transition,
            stationary_covariance=self.stationary_covariance.expand(*batch_shape, d, d),
            observation=self.observation if self.observation.dim() == 1 else self.observation.expand(*batch_shape, d),
            neglected=self.neglected.expand(batch_shape),
        )

    def scaled(self, factor: Tensor) -> StateSpace:
        r"""
        The state space of the kernel :math:`c \, k(\tau)`.

        :param factor: :math:`c > 0` (`*batch`).
        """
        space = self.expand(torch.broadcast_shapes(factor.shape, self.batch_shape))
        P, neglected = factor[..., None, None] * space.stationary_covariance, factor * space.neglected
        return replace(space, stationary_covariance=P, neglected=neglected)

    def __add__(self, other: StateSpace) -> StateSpace:
        one, two = self._broadcast(other)
        # All but the last dimension of the observations broadcast.
        h1, h2 = torch.broadcast_tensors(one.observation[..., None], two.observation[..., None, :])  # (..., d₁, d₂)
        return StateSpace(
            transition=lambda steps: _block_diagonal(one.transition(steps), two.transition(steps)),
            stationary_covariance=_block_diagonal(one.stationary_covariance, two.stationary_covariance),
            observation=torch.cat([h1[..., 0], h2[..., 0, :]], dim=-1),
            neglected=one.neglected + two.neglected,
        )

    def __mul__(self, other: StateSpace) -> StateSpace:
        one, two = self._broadcast(other)
        return StateSpace(
            transition=lambda steps: _kronecker(one.transition(steps), two.transition(steps)),
            stationary_covariance=_kronecker(one.stationary_covariance, two.stationary_covariance),
            observation=(one.observation[..., :, None] * two.observation[..., None, :]).flatten(-2),
            # |k₁ k₂ − k̂₁ k̂₂| ≤ |k₁ − k̂₁| |k̂₂| + |k₁| |k₂ − k̂₂|, and |k̂₂| is largest at lag 0
            neglected=one.neglected * two.variance + (one.variance + one.neglected) * two.neglected,
        )

    def _broadcast(self, other: StateSpace) -> tuple[StateSpace, StateSpace]:
        batch_shape = torch.broadcast_shapes(self.batch_shape, other.batch_shape)
        return self.expand(batch_shape), other.expand(batch_shape)


def to_state_space(kernel: Kernel, num_harmonics: int = 6) -> list[StateSpace]:
    r"""
    The state space of a kernel over time, or those of the groups of a :class:`~gpytorch_sgpvae.GroupedKernel`. These
    kernels have one:

    - :class:`~gpytorch.kernels.MaternKernel` with :math:`\nu` of 1/2, 3/2 or 5/2, in :math:`\nu + 1/2` dimensions;
    - :class:`~gpytorch.kernels.ConstantKernel` in one dimension, :class:`~gpytorch.kernels.CosineKernel` in two;
    - :class:`~gpytorch.kernels.PeriodicKernel`, approximately, in 1 + 2 `num_harmonics` dimensions;
    - :class:`~gpytorch.kernels.ScaleKernel`, sums and products of these, nested in any way;
    - kernels of your own, with :func:`register_state_space`.

    With period p and lengthscale :math:`\ell`, GPyTorch's periodic kernel is the sum

    .. math::

        \exp \left( - 2 \sin^2(\pi \tau / p) / \ell \right) = \sum_{j = 0}^\infty q_j \cos(2 \pi j \tau / p), \qquad
        q_j = (2 - [j = 0]) \, I_j(1 / \ell) \, e^{-1 / \ell}

    with the modified Bessel functions :math:`I_j`. It is cut off after `num_harmonics` terms beyond the constant. What
    is left out is :attr:`StateSpace.neglected`, and a warning says so if that is more than 1 % of the variance.

    All tensors are float64, whatever the kernel's dtype. Gradients flow to the kernel's parameters.

    :param kernel: The kernel, with one input dimension; `active_dims` say which one, if there are several.
    :param num_harmonics: The number of harmonics of periodic kernels, at least 1.
    :return: One state space for each group, with batch shape `(size,)` of the group; for a kernel that is not grouped a
        list of one, with the kernel's batch shape.

    Example:
        >>> import torch
        >>> from gpytorch.kernels import MaternKernel, PeriodicKernel
        >>> from gpytorch_sgpvae import GroupedKernel
        >>> from gpytorch_sgpvae.linalg.state_space import to_state_space
        >>> rough, daily = MaternKernel(nu=0.5), PeriodicKernel() * MaternKernel(nu=1.5)
        >>> spaces = to_state_space(GroupedKernel([rough, daily], sizes=[2, 3]))
        >>> [(space.state_size, space.batch_shape) for space in spaces]
        [(1, torch.Size([2])), (26, torch.Size([3]))]
    """
    if num_harmonics < 1:
        raise ValueError(f"num_harmonics must be at least 1, got {num_harmonics}.")
    if not isinstance(kernel, GroupedKernel):
        return [_make_form(kernel, num_harmonics).expand(kernel.batch_shape)]
    spaces = []
    for own_kernel, size in zip(kernel.kernels, kernel.sizes, strict=True):
        parts = to_state_space(own_kernel, num_harmonics)
        # A group may itself be grouped.
        sizes = [size] if len(parts) == 1 else [part.batch_shape[-1] for part in parts]
        spaces += [part.expand((*kernel.batch_shape[:-1], n)) for part, n in zip(parts, sizes, strict=True)]
    return spaces


def register_state_space(kernel_class: type[Kernel], make: Callable[[Any], StateSpace] | None = None) -> Callable:
    """
    Register the state space of a kernel of your own, so that :func:`to_state_space` finds it, also within scales, sums
    and products. Subclasses of a registered kernel have its state space, unless they have a `forward` of their own.

    :param kernel_class: The class of the kernel.
    :param make: The function that makes a :class:`StateSpace` from a kernel of that class. Without it, this is a
        decorator of such a function.
    :return: `make`, or the decorator.

    Example:
        >>> import torch
        >>> from gpytorch.kernels import Kernel
        >>> from gpytorch_sgpvae.linalg.state_space import StateSpace, register_state_space, to_state_space
        >>> class ExponentialKernel(Kernel):
        ...     has_lengthscale = True
        ...     def forward(self, x1, x2, **params):
        ...         return torch.exp(-self.covar_dist(x1 / self.lengthscale, x2 / self.lengthscale, **params))
        >>> @register_state_space(ExponentialKernel)
        ... def make_exponential(kernel):
        ...     lengthscale = kernel.lengthscale.double()  # (*batch, 1, 1)
        ...     return StateSpace(
        ...         transition=lambda steps: torch.exp(-steps / lengthscale[..., 0])[..., None, None],
        ...         stationary_covariance=torch.ones_like(lengthscale),
        ...         observation=torch.ones_like(lengthscale[..., 0]),
        ...         neglected=torch.zeros_like(lengthscale[..., 0, 0]),
        ...     )
        >>> [space] = to_state_space(ExponentialKernel() + ExponentialKernel(batch_shape=torch.Size([3])))
        >>> space.state_size, space.batch_shape
        (2, torch.Size([3]))
    """
    if make is None:
        return partial(register_state_space, kernel_class)

    def make_and_check(kernel: Kernel, num_harmonics: int) -> StateSpace:
        space = make(kernel)
        if not isinstance(space, StateSpace):
            raise TypeError(
                f"What is registered for {kernel_class.__name__} gave a {type(space).__name__}: expected a StateSpace."
            )
        return space

    _FORMS[kernel_class] = make_and_check
    return make


def _make_form(kernel: Kernel, num_harmonics: int) -> StateSpace:
    """The state space of a kernel that is not grouped, from what is registered for its class or one it inherits."""
    for cls in type(kernel).__mro__:
        if cls in _FORMS:
            return _FORMS[cls](kernel, num_harmonics)
        if "forward" in vars(cls):  # a different kernel from those further up, such as Matern52KernelGrad
            break
    name = type(kernel).__name__
    hint = next((f" {hint}" for kernel_class, hint in _HINTS.items() if isinstance(kernel, kernel_class)), "")
    raise TypeError(
        f"{name} has no state-space form. These kernels have one: {', '.join(cls.__name__ for cls in _FORMS)}. If "
        f"yours has one too, say so with register_state_space({name}, make).{hint}"
    )


def _matern(kernel: MaternKernel, num_harmonics: int) -> StateSpace:
    lengthscale = _for_one_input(kernel, kernel.lengthscale)  # (*B, 1)
    options: dict[str, Any] = {"dtype": torch.float64, "device": lengthscale.device}
    F, P = (torch.tensor(constants[kernel.nu], **options) for constants in (MATERN_DRIFT, MATERN_STATIONARY))  # (d, d)
    d = len(P)
    # exp(F z) = e^{−z} Σ_{i < d} (F + I)ⁱ zⁱ / i!, because F + I is nilpotent
    nilpotent = F + torch.eye(d, **options)
    series = torch.stack([nilpotent.matrix_power(i).flatten() / math.factorial(i) for i in range(d)])  # (d, d²)

    def transition(steps: Tensor) -> Tensor:
        z = math.sqrt(2 * kernel.nu) * (steps / lengthscale)  # (..., N)
        powers = [torch.exp(-z)]
        for _ in range(1, d):
            powers.append(powers[-1] * z)  # e^{−z} zⁱ, which in this order is 0 for large z
        return (torch.stack(powers, dim=-1) @ series).unflatten(-1, (d, d))  # (..., N, d, d)

    return _exact(transition, P.expand(*lengthscale.shape[:-1], d, d), observed=[1] + [0] * (d - 1))


def _constant(kernel: ConstantKernel, num_harmonics: int) -> StateSpace:
    P = kernel.constant[..., None].double()  # (*B, 1, 1)

    def transition(steps: Tensor) -> Tensor:
        leading = torch.broadcast_shapes(steps.shape[:-1], P.shape[:-2])
        return P.new_ones(()).expand(*leading, steps.shape[-1], 1, 1)

    return _exact(transition, P, observed=[1])


def _cosine(kernel: CosineKernel, num_harmonics: int) -> StateSpace:
    half_period = kernel.period_length[..., 0].double()  # (*B, 1); k(τ) = cos(π τ / p)

    def transition(steps: Tensor) -> Tensor:
        angle = math.pi * (steps / half_period)  # (..., N)
        cos, sin = angle.cos(), angle.sin()
        return torch.stack([cos, sin, -sin, cos], dim=-1).unflatten(-1, (2, 2))  # (..., N, 2, 2)

    identity = torch.eye(2, dtype=torch.float64, device=half_period.device)
    return _exact(transition, identity.expand(*half_period.shape[:-1], 2, 2), observed=[1, 0])


def _periodic(kernel: PeriodicKernel, num_harmonics: int) -> StateSpace:
    """The state is the constant, the cosines, and then the sines of all harmonics."""
    lengthscale = _for_one_input(kernel, kernel.lengthscale)  # (*B, 1)
    period = _for_one_input(kernel, kernel.period_length)  # (*B, 1)
    options: dict[str, Any] = {"dtype": torch.float64, "device": lengthscale.device}
    harmonics = torch.arange(1, num_harmonics + 1, **options)  # (J)
    # q_j = (2 − [j = 0]) / M Σ_m exp(−(1 − cos θ_m) / ℓ) cos(j θ_m), θ_m = π (m + 1/2) / M
    M = QUADRATURE_NODES
    nodes = (torch.arange(M, **options) + 0.5) * (math.pi / M)  # (M)
    basis = torch.cat([torch.ones(M, 1, **options), 2 * torch.cos(nodes[:, None] * harmonics)], dim=-1)  # (M, 1 + J)
    q = (torch.exp(-2 * torch.sin(nodes / 2).square() / lengthscale) @ basis) / M  # (*B, 1 + J)
    q = q.clamp(min=0.0)  # rounding can make tiny ones negative
    neglected = (1 - q.sum(-1)).clamp(min=0.0)  # (*B), as k(0) = Σ_j q_j = 1
    if debug.on() and (neglected > LARGEST_NEGLECTED).any():
        _warn_of_neglected(lengthscale.detach(), neglected.detach(), num_harmonics)

    def transition(steps: Tensor) -> Tensor:
        angle = 2 * math.pi * (steps / period)[..., None] * harmonics  # (..., N, J)
        cos, sin, one = angle.cos(), pad(angle.sin(), (1, 0)), torch.ones_like(angle[..., :1])
        # The constant stays, and the cosine and sine of each harmonic turn.
        Phi = torch.diag_embed(torch.cat([one, cos, cos], dim=-1))  # (..., N, d, d)
        return Phi + torch.diag_embed(sin, offset=num_harmonics) - torch.diag_embed(sin, offset=-num_harmonics)

    P = torch.diag_embed(torch.cat([q, q[..., 1:]], dim=-1))  # (*B, d, d)
    observed = [1] * (1 + num_harmonics) + [0] * num_harmonics
    return replace(_exact(transition, P, observed), neglected=neglected)


def _scale(kernel: ScaleKernel, num_harmonics: int) -> StateSpace:
    return _make_form(kernel.base_kernel, num_harmonics).scaled(kernel.outputscale)


def _sum(kernel: AdditiveKernel, num_harmonics: int) -> StateSpace:
    first, *others = (_make_form(part, num_harmonics) for part in kernel.kernels)
    return sum(others, first)


def _product(kernel: ProductKernel, num_harmonics: int) -> StateSpace:
    first, *others = (_make_form(part, num_harmonics) for part in kernel.kernels)
    return math.prod(others, start=first)


# What makes the state space of a kernel of each class; register_state_space adds to it.
_FORMS: dict[type[Kernel], Callable[[Any, int], StateSpace]] = {
    MaternKernel: _matern,
    ConstantKernel: _constant,
    CosineKernel: _cosine,
    PeriodicKernel: _periodic,
    ScaleKernel: _scale,
    AdditiveKernel: _sum,
    ProductKernel: _product,
}
# What to do instead, for kernels that have none.
_HINTS: dict[Any, str] = {
    (
        RBFKernel,
        ScaledRBFKernel,
    ): "MaternKernel(nu=2.5) is the smoothest of them, and can take the place of an RBFKernel.",
    GroupedKernel: "Scale, add and multiply the kernels within the groups.",
}


def _exact(transition: Callable[[Tensor], Tensor], stationary_covariance: Tensor, observed: list[int]) -> StateSpace:
    """A state space that neglects nothing, and observes the sum of some entries of the state."""
    observation = stationary_covariance.new_tensor(observed)
    neglected = stationary_covariance.new_zeros(stationary_covariance.shape[:-2])
    return StateSpace(transition, stationary_covariance, observation, neglected)


def _for_one_input(kernel: Kernel, parameter: Tensor) -> Tensor:
    """A parameter for each input dimension (`*B x 1 x D`) of a kernel with a single one (`*B x 1`), in float64."""
    if parameter.shape[-1] > 1:
        raise ValueError(
            f"A {type(kernel).__name__} with ard_num_dims={parameter.shape[-1]}: a state space has one input, time. "
            "Leave ard_num_dims out, and select the column of the times with active_dims=(0,)."
        )
    return parameter[..., 0].double()


def _warn_of_neglected(lengthscale: Tensor, neglected: Tensor, num_harmonics: int) -> None:
    worst = neglected.argmax()
    warnings.warn(
        # One digit each, so that a training run repeats few different warnings.
        f"A PeriodicKernel with a lengthscale of about {lengthscale.flatten()[worst]:.1g} loses about "
        f"{100 * neglected.flatten()[worst]:.1g} % of its variance with num_harmonics={num_harmonics}: expected at "
        f"most {100 * LARGEST_NEGLECTED:.0f} %. Use more harmonics, or a longer lengthscale.",
        stacklevel=2,
    )


def _block_diagonal(A: Tensor, B: Tensor) -> Tensor:
    return torch.cat([pad(A, (0, B.shape[-1])), pad(B, (A.shape[-1], 0))], dim=-2)


def _kronecker(A: Tensor, B: Tensor) -> Tensor:
    product = A[..., :, None, :, None] * B[..., None, :, None, :]  # (..., d₁, d₂, d₁, d₂)
    return product.flatten(-4, -3).flatten(-2)  # (..., d₁ d₂, d₁ d₂)
