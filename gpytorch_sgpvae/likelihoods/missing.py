"""The likelihoods' door for NaN: targets with holes, and what becomes of them."""

from __future__ import annotations

import torch
from torch import Tensor


def fill_missing(y: Tensor, observed: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """
    A target that any density can be evaluated at, and where it is real. Filled before the density and masked after
    it: a mask alone would leave NaN in the gradients. The filling is 1, which real numbers, positive ones, counts,
    flags and classes all can be.

    :param y: The target; NaN is missing.
    :param observed: False for what is missing too, whatever y holds there (boolean); broadcasts with y.
    """
    real = ~torch.isnan(y)
    observed = real if observed is None else observed & real
    return torch.where(observed, y, 1.0), observed
