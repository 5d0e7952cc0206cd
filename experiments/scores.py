"""Scores of what was held out, as numbers for a table."""

from __future__ import annotations

import torch
from torch import Tensor

from gpytorch_sgpvae import Prediction, metrics

SCORES = ("mae", "rmse", "smse", "nll", "nll_mixture", "crps", "coverage")


def score(prediction: Prediction, truth: Tensor) -> dict[str, float]:
    """
    The mean over the outputs of each score; the coverage is that of the 95 % interval, the NLL that of matched moments.

    :param prediction: In original units (`*T x N x P`).
    :param truth: NaN where nothing was held out (`*T x N x P`).
    """
    judged = (~truth.isnan()).flatten(0, -2).any(0)  # (P,)
    values = {
        "mae": metrics.mae(prediction, truth),
        "rmse": metrics.rmse(prediction, truth),
        "smse": metrics.smse(prediction, truth),
        "nll": metrics.nll(prediction, truth),
        "nll_mixture": metrics.nll(prediction, truth, mixture=True),
        "crps": metrics.crps(prediction, truth),
        "coverage": metrics.coverage(prediction, truth),
    }
    return {name: torch.as_tensor(value)[judged].mean().item() for name, value in values.items()}
