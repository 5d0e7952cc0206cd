"""Bounds on the numbers that the package accepts: inputs, outputs, inducing points, a decoder's values."""

from __future__ import annotations

import torch
from gpytorch import settings
from torch import Tensor

from ._compat import is_compiling, is_in_transform


class ExtremeNumberError(ValueError):
    """A number is not finite, or so large that computing with it would overflow."""


def largest_magnitude(dtype: torch.dtype) -> float:
    r"""
    The cube root of the largest number: squares of what is smaller may be multiplied by what is as large, such as a
    precision or a sum over points, and neither that nor its gradient overflows. It is about 7e12 in float32 and 6e102
    in float64. Nothing is computed in types of 16 bits, whose numbers may all be stored.

    Example:
        >>> import torch
        >>> from gpytorch_sgpvae.magnitudes import largest_magnitude
        >>> f"{largest_magnitude(torch.float32):.0e}"
        '7e+12'
    """
    info = torch.finfo(dtype)
    return info.max if info.bits <= 16 else info.max ** (1 / 3)


def check_magnitude(values: Tensor, name: str, advice: str, nan_passes: bool = False) -> None:
    """
    Raise an :class:`ExtremeNumberError` unless all values are finite and below :func:`largest_magnitude`. This looks at
    values and so makes a GPU wait: it is left out under `gpytorch.settings.debug(False)`, and where values cannot be
    seen, while a function is compiled or transformed.

    :param values: Numbers, in any shape.
    :param name: The message's words for the values, as the beginning of a sentence.
    :param advice: The message's advice, as the end of a sentence.
    :param nan_passes: Whether NaN is no error here, as where it came from somewhere else and shows in every result.
    """
    if settings.debug.off() or not values.numel() or values.is_meta or is_compiling() or is_in_transform():
        return
    smallest, largest = (float(bound) for bound in values.detach().aminmax())
    limit = largest_magnitude(values.dtype)
    if (-limit <= smallest and largest <= limit) or (nan_passes and smallest != smallest):  # NaN, if any value is
        return
    extreme = max(-smallest, largest) if smallest == smallest else smallest
    raise ExtremeNumberError(
        f"{name} of shape {tuple(values.shape)} has entries as large as {extreme:.3g}, but {values.dtype} can compute "
        f"with finite numbers up to {limit:.1g} only, whose squares and their multiples do not overflow: {advice}"
    )
