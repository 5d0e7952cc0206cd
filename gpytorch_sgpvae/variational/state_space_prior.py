from __future__ import annotations

from typing import NamedTuple

import torch
from gpytorch import settings
from gpytorch.lazy import LazyEvaluatedKernelTensor
from linear_operator.operators import ConstantMulLinearOperator, LinearOperator, SumLinearOperator
from torch import Tensor

from ..linalg.state_space import StateSpace, to_state_space
from ..linalg.times import times_of


class StateSpacePrior(NamedTuple):
    """
    The prior at some inputs, by its kernels' state spaces.

    :param mean: (`*T x K x N`).
    :param times: The inputs' times, float64 (`*T x N`).
    :param spaces: One for each group of latent functions, of batch shape `K_g`; or a single one without any.
    :param is_context: Whether these are the context's own inputs.
    """

    mean: Tensor
    times: Tensor
    spaces: list[StateSpace]
    is_context: bool = False


def state_space_prior(
    mean: Tensor, covar: LinearOperator, num_latents: int | None, num_harmonics: int
) -> StateSpacePrior:
    """
    Read the kernels and the times off what the model's `forward` returned.

    :param mean: (`*T x K x N`).
    :param covar: Lazy matrices of kernels, their sums and multiples (`*T x K x N x N`).
    :param num_latents: K, or None for no such dimension.
    :param num_harmonics: See :func:`~gpytorch_sgpvae.to_state_space`.
    """
    spaces, times = _read(covar, num_latents, num_harmonics)
    if num_latents is not None:
        _check_shared(times)
        times = times[..., 0, :]  # (*T, N)
    return StateSpacePrior(mean, times, spaces)


def _read(covar: LinearOperator, num_latents: int | None, num_harmonics: int) -> tuple[list[StateSpace], Tensor]:
    """The state spaces, and the times of each latent function (`*T x K x N`)."""
    if isinstance(covar, LazyEvaluatedKernelTensor):
        spaces = to_state_space(covar.kernel, num_harmonics)
        if num_latents is not None and len(spaces) == 1:
            spaces = [spaces[0].expand((num_latents,))]
        return spaces, times_of(covar.kernel, covar.x1, selected=True)
    if isinstance(covar, ConstantMulLinearOperator):
        spaces, times = _read(covar.base_linear_op, num_latents, num_harmonics)
        factor = covar.expanded_constant[..., 0, 0].double()
        sizes = [space.batch_shape.numel() for space in spaces]
        factors = factor.expand(num_latents).split(sizes) if num_latents is not None else [factor]
        return [space.scaled(part) for space, part in zip(spaces, factors, strict=True)], times
    if isinstance(covar, SumLinearOperator):
        parts = [_read(part, num_latents, num_harmonics) for part in covar.linear_ops]
        (spaces, times), *others = parts
        for other_spaces, other_times in others:
            if [space.batch_shape for space in other_spaces] != [space.batch_shape for space in spaces]:
                raise TypeError(
                    "The model's forward adds kernels with different groups of latent functions: add kernels within "
                    "the groups of a GroupedKernel instead."
                )
            if settings.debug.on() and not torch.equal(times, other_times):
                raise ValueError("The model's forward adds kernels that read different times: expected the same.")
            spaces = [one + other for one, other in zip(spaces, other_spaces, strict=True)]
        return spaces, times
    raise TypeError(
        "MarkovAmortizedVariationalStrategy reads the kernel off the lazy matrix that the model's forward returns, got "
        f"a {type(covar).__name__}: return MultivariateNormal(mean, kernel(x)), a sum of such matrices or a multiple, "
        "without evaluating it, and leave gpytorch.settings.lazily_evaluate_kernels on."
    )


def _check_shared(times: Tensor) -> None:
    """All latent functions have the same times (`*T x K x N`)."""
    if settings.debug.on() and not (times == times[..., :1, :]).all():
        raise ValueError(
            "The model's forward gives each latent function times of its own: a Markov process has one time. Use the "
            "same inputs for all of them, or DenseJointAmortizedVariationalStrategy."
        )
