"""The likelihoods' door for targets: their shape, and values that cannot be."""

from __future__ import annotations

import torch
from gpytorch import settings
from torch import Tensor
from torch.distributions import Distribution, constraints

from ..utils.shapes import expands_to
from .observation_models.distributions import ColumnwiseDistribution


def as_rows(y: Tensor, shape: torch.Size) -> Tensor:
    r"""
    A target as `*T x N x P`, also where one output came as `*T x N`.

    :param y: The target.
    :param shape: The batch shape of p(y | f), `S x *T x N x P`.
    """
    num_points, num_outputs = shape[-2:]
    rows = y
    if num_outputs == 1 and y.shape[-2:] != (num_points, 1) and y.shape[-1:] == (num_points,):
        rows = y.unsqueeze(-1)
    if rows.shape[-2:] != (num_points, num_outputs) or not expands_to(rows.shape, shape[1:]):
        raise ValueError(
            f"The target of shape {tuple(y.shape)} does not fit predictions of shape {tuple(shape[1:])}: "
            f"expected (*T, {num_points}, {num_outputs})"
            + (f" or (*T, {num_points})" if num_outputs == 1 else "")
            + ", with tasks *T that q(f) has too."
        )
    return rows


def check_support(distribution: Distribution, filled: Tensor, observed: Tensor, first_column: int = 0) -> None:
    r"""
    Raise a ValueError for observed targets that p(y | f) cannot produce, such as a negative count. This looks at values
    and so makes a GPU wait: it is left out under `gpytorch.settings.debug(False)`.

    :param distribution: p(y | f), of batch shape `S x *T x N x P`.
    :param filled: The target (`*T x N x P`), finite where nothing was observed.
    :param observed: True where a target is real (`*T x N x P`, boolean).
    :param first_column: The column of the target that the message calls the first one here.
    """
    if settings.debug.off():
        return
    if isinstance(distribution, ColumnwiseDistribution):
        for (part, columns), (_, seen) in zip(distribution.split(filled), distribution.split(observed), strict=True):
            check_support(part, columns, seen, first_column)
            first_column += columns.shape[-1]
        return
    try:
        support = distribution.support
    except NotImplementedError:
        support = None
    if support is None:  # a distribution of the user's own need not have one
        return
    if support is constraints.real and bool(filled.isfinite().all()):
        return
    bad = observed & ~(support.check(filled) & filled.isfinite())
    bad = bad.sum_to_size(filled.shape) > 0  # supports may differ from sample to sample
    if bool(bad.any()):
        *row, column = bad.nonzero()[0].tolist()
        raise ValueError(
            f"{int(bad.sum())} observed target(s) cannot come from {type(distribution).__name__} observations, which "
            f"are {_describe(support)}. The first is {filled[(*row, column)].item():g}, in output column "
            f"{first_column + column} at index {tuple(row)}: correct it, make it NaN if it is missing, or give this "
            "column another observation model (MixedObservations takes one for each column)."
        )


def _describe(support: constraints.Constraint) -> str:
    if isinstance(support, type(constraints.boolean)):
        return "0 or 1"
    if isinstance(support, constraints.integer_interval):
        return f"whole numbers from {support.lower_bound} to {support.upper_bound}"
    if isinstance(support, type(constraints.nonnegative_integer)):
        return f"whole numbers from {support.lower_bound}"
    if support is constraints.nonnegative:  # of the same class as what follows
        return "finite numbers from 0"
    if isinstance(support, type(constraints.positive)):
        return f"finite numbers greater than {support.lower_bound:g}"
    # any other may hold tensors as large as the prediction
    return "finite numbers" if isinstance(support, type(constraints.real)) else "finite numbers within its support"
