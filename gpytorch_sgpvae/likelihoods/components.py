"""The two parts of a prediction: a source of latent function values, and a decoder of them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from gpytorch.distributions import MultivariateNormal
from torch import Tensor
from torch.distributions import AffineTransform, Distribution, Normal, TransformedDistribution

from ..variational.point_marginals import PointMarginals


class FunctionPosterior(Protocol):
    """The part of a :class:`~gpytorch_sgpvae.Posterior` that a prediction needs."""

    def __call__(self, x: Tensor) -> MultivariateNormal: ...

    def point_marginals(self, x: Tensor, chunk_size: int | None = None) -> PointMarginals: ...

    def in_chunks(self, x: Tensor, chunk_size: int | None) -> Iterable[MultivariateNormal]: ...


@dataclass(frozen=True)
class Derived:
    """A decoder followed by a function of its distributions. The decoder takes the first this many of the rows."""

    decode: Callable[..., Distribution]
    num_rows: int
    function: Callable[..., Distribution]

    def __call__(self, functions: Tensor, *rows: Tensor) -> Distribution:
        return self.function(self.decode(functions, *rows[: self.num_rows]), *rows[self.num_rows :])


def given_gaussian(functions: Tensor, mean: Tensor, stddev: Tensor) -> Normal:
    """A decoder that is told its answer."""
    shape = torch.Size([*functions.shape[:-1], mean.shape[-1]])
    return Normal(mean.expand(shape), stddev.expand(shape), validate_args=False)


def in_units(components: Distribution, shift: Tensor, scale: Tensor) -> Distribution:
    """The distribution of shift + scale times a value."""
    if not shift.dim():  # never rescaled
        return components
    if isinstance(components, Normal):
        return Normal(shift + scale * components.mean, scale * components.stddev, validate_args=False)
    return TransformedDistribution(components, AffineTransform(shift, scale))


def checked_rows(rows: Sequence[Tensor], function_mean: Tensor) -> tuple[Tensor, ...]:
    """Raise unless there is a row for each input."""
    num_points = function_mean.shape[-2]
    for row in rows:
        if row.dim() < 2 or row.shape[-2] != num_points:
            raise ValueError(f"Expected rows of shape (..., {num_points}, C), got {tuple(row.shape)}.")
    return tuple(rows)
