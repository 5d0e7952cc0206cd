"""The preset for windows of time series on a grid: a linear model with its exact posterior."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from gpytorch.kernels import Kernel, MaternKernel, PeriodicKernel

from ..linalg.kernels import FEWEST_PERIODS, GroupedKernel, learnt_by_logarithm
from ..linalg.state_space import to_state_space
from ..mlp import MLP, LinearPlus, PrivateLinear
from .gpvae import GPVAE
from .markov_gpvae import MarkovGPVAE

# A rough process and a smooth one for each output.
NUM_PRIVATE = 2
# The number of shared latent functions for each output, and the most of them.
SHARED_PER_OUTPUT, MOST_SHARED = 4, 32
# Steps over which functions change, at the start: of the shared ones those that are rough, smooth, slow and periodic
# (these over some periods if that is longer), and of an output's own the rough and the smooth one.
ROUGH, SMOOTH, SLOW, OWN = 1.0, 8.0, 60.0, (2.0, 20.0)
# Windows with more entries are filtered over time. The cost of each step grows with the dimensions of the states: the
# most of these, and the number of harmonics of a cycle.
MOST_ENTRIES, MOST_STATES, NUM_HARMONICS = 1500, 64, 3


def window_model(
    num_points: int,
    num_outputs: int,
    num_shared: int | None = None,
    periods: Sequence[float] = (),
    perceptrons: bool = False,
) -> GPVAE | MarkovGPVAE:
    r"""
    The preset for windows of time series, of N steps and P outputs each, in standardized units: the linear model of
    coregionalization

    .. math::

        y_{np} = b_p + \sum_{k=1}^K w_{pk} f_k(n) + \sum_{i=1}^2 v_{pi} \, g_{pi}(n) + \varepsilon_{np}, \qquad
        n = 0, \dots, N - 1

    with rough, smooth, slow and periodic functions that the outputs share, a rough and a smooth one that each has for
    itself, and Gaussian noise. Its posterior is exact for any pattern of holes: perceptrons in the network, which could
    only spoil it, are switched off, unless the decoder has one too. It is a :class:`~gpytorch_sgpvae.GPVAE`; for
    windows of more than 1500 entries it is a :class:`~gpytorch_sgpvae.MarkovGPVAE`, with as many shared functions as
    that has time for, if the outputs are few enough.

    :param num_points: Number of steps N of a window.
    :param num_outputs: Number of outputs P.
    :param num_shared: Number of shared functions K; by default 4 P, at most 32.
    :param periods: Periods of cycles in steps, such as `[24]` for hours.
    :param perceptrons: Whether perceptrons in the network and in the decoder learn what is not linear in the shared
        functions. They start out as zero.

    Example:
        >>> import torch
        >>> from gpytorch_sgpvae.models import window_model
        >>> windows = torch.randn(30, 12, 3).cumsum(1)  # T x N x P
        >>> steps = torch.arange(12.0).unsqueeze(-1)
        >>> model = window_model(num_points=12, num_outputs=3)
        >>> model.initialize_from((steps, windows), lengthscales=False)
        >>> model.loss((steps, windows[:8])).backward()
        >>> model.eval().predict(steps, context=(steps, windows[:2])).mean.shape
        torch.Size([2, 12, 3])
    """
    for name, value in (("num_points", num_points), ("num_outputs", num_outputs), ("num_shared", num_shared)):
        if value is not None and value < 1:
            raise ValueError(f"{name} must be at least 1, got {value}.")
    if not all(0 < period < math.inf for period in periods):
        raise ValueError(f"Expected periods that are positive and finite, got {list(periods)}.")
    num_groups = 3 + len(periods)
    wanted = num_shared or max(min(SHARED_PER_OUTPUT * num_outputs, MOST_SHARED), num_groups)
    fewest = num_groups if periods else 1
    if num_points * num_outputs > MOST_ENTRIES:
        for number in range(wanted, fewest - 1, -1) if num_shared is None else [wanted]:
            kernel = _kernel(number, num_outputs, periods)
            if _num_states(kernel) <= MOST_STATES:
                options = {"num_harmonics": NUM_HARMONICS, **_options(number, num_outputs, perceptrons)}
                return _finish(MarkovGPVAE(num_outputs, number, kernel=kernel, **options), perceptrons)
    kernel = _kernel(wanted, num_outputs, periods)
    return _finish(GPVAE(num_outputs, wanted, kernel=kernel, **_options(wanted, num_outputs, perceptrons)), perceptrons)


def _kernel(num_shared: int, num_outputs: int, periods: Sequence[float]) -> GroupedKernel:
    """A kernel for each kind of functions, all of which share its lengthscale."""
    kernels: list[Kernel] = [_matern(0.5, ROUGH), _matern(0.5, SLOW)]
    for period in periods:
        cycle = PeriodicKernel()
        cycle.initialize(period_length=float(period), lengthscale=1.0)
        cycle.raw_period_length.requires_grad_(False)
        kernels.append(cycle * _matern(0.5, max(SLOW, FEWEST_PERIODS * period)))
    kernels.append(_matern(1.5, SMOOTH))
    sizes = [(num_shared + i) // len(kernels) for i in range(len(kernels))]  # about the same, the last ones first
    shared = [(kernel, size) for kernel, size in zip(kernels, sizes, strict=True) if size]
    own = [(_matern(nu, lengthscale), num_outputs) for nu, lengthscale in zip((0.5, 1.5), OWN, strict=True)]
    return GroupedKernel(*zip(*shared, *own, strict=True))


def _matern(nu: float, lengthscale: float) -> MaternKernel:
    kernel = MaternKernel(nu=nu, lengthscale_constraint=learnt_by_logarithm())
    kernel.lengthscale = lengthscale
    return kernel


def _options(num_shared: int, num_outputs: int, perceptrons: bool) -> dict[str, Any]:
    linear = PrivateLinear(num_shared, num_outputs, NUM_PRIVATE)
    decoder = LinearPlus(MLP(num_shared, num_outputs), start=0.0, linear=linear) if perceptrons else linear
    return {"network": "jointfactornet", "decoder": decoder, "num_private": NUM_PRIVATE}


def _num_states(kernel: GroupedKernel) -> int:
    """Dimensions of the states of all latent functions."""
    spaces = to_state_space(kernel, NUM_HARMONICS)
    return sum(space.state_size * size for space, size in zip(spaces, kernel.sizes, strict=True))


def _finish(model: Any, perceptrons: bool) -> Any:
    """Switch the network's corrections off where there is nothing to correct."""
    if not perceptrons:
        model.strategy._variational_distribution.network.correct_only([False] * model.likelihood.decoder.out_features)
    return model
