"""Scores of what was held out, as numbers for a table."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial

import torch
from torch import Tensor
from torch.distributions import Normal

from gpytorch_sgpvae import Prediction, metrics
from gpytorch_sgpvae.likelihoods.observation_models.distributions import LogNormal

SCORES: dict[str, Callable[..., Tensor]] = {
    "mae": metrics.mae,
    "rmse": metrics.rmse,
    "smse": metrics.smse,
    "nll": metrics.nll,
    "nll_mixture": partial(metrics.nll, mixture=True),
    "crps": metrics.crps,
    "coverage": metrics.coverage,
}


def score(
    prediction: Prediction, truth: Tensor, names: Iterable[str] = SCORES, median: bool = False
) -> dict[str, float]:
    """
    The mean over the outputs of each score; the coverage is that of the 95 % interval, the NLL that of matched moments.

    :param prediction: In original units (`*T x N x P`).
    :param truth: NaN where nothing was held out (`*T x N x P`).
    :param names: Which scores; the CRPS takes as long as a training where there are many values.
    :param median: Whether the absolute error is that of the median, which makes it least, instead of the mean.
    """
    judged = (~truth.isnan()).flatten(0, -2).any(0)  # (P,)
    scores = {name: torch.as_tensor(SCORES[name](prediction, truth))[judged].mean().item() for name in names}
    if median:
        scores["mae"] = metrics.mae(prediction.quantile(0.5), truth)[judged].mean().item()
    return scores


def pool(predictions: Sequence[Prediction], log: bool = False) -> Prediction:
    """
    The equal mixture of what several models predict (:meth:`~gpytorch_sgpvae.Prediction.pool`), to be scored.

    :param predictions: Predictions of the same values, with as many Gaussian components each.
    :param log: Whether they are of the values' logarithms; the mixture is of the values themselves.
    """
    pooled = Prediction.pool(predictions)
    return pooled.transform(_log_normal) if log else pooled


def _log_normal(logarithms: Normal) -> LogNormal:
    return LogNormal(logarithms.loc, logarithms.scale, validate_args=False)
