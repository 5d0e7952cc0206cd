"""Scores of what was held out, as numbers for a table."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial

import torch
from torch import Tensor

from gpytorch_sgpvae import Prediction, metrics

SCORES: dict[str, Callable[..., Tensor]] = {
    "mae": metrics.mae,
    "rmse": metrics.rmse,
    "smse": metrics.smse,
    "nll": metrics.nll,
    "nll_mixture": partial(metrics.nll, mixture=True),
    "crps": metrics.crps,
    "coverage": metrics.coverage,
}


def score(prediction: Prediction, truth: Tensor, names: Iterable[str] = SCORES) -> dict[str, float]:
    """
    The mean over the outputs of each score; the coverage is that of the 95 % interval, the NLL that of matched moments.

    :param prediction: In original units (`*T x N x P`).
    :param truth: NaN where nothing was held out (`*T x N x P`).
    :param names: Which scores; the CRPS takes as long as a training where there are many values.
    """
    judged = (~truth.isnan()).flatten(0, -2).any(0)  # (P,)
    return {name: torch.as_tensor(SCORES[name](prediction, truth))[judged].mean().item() for name in names}
