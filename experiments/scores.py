"""Scores of what was held out, as numbers for a table."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial

import torch
from torch import Tensor
from torch.distributions import Distribution, Normal, constraints

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


def pool(predictions: Sequence[Prediction], logs: Sequence[bool]) -> Prediction:
    r"""
    What several models say together, each as likely to be right as the others: the equal mixture of all their
    components, to be scored.

    .. math::

        p(y_{np}) = \frac 1 R \sum_{r=1}^R p_r(y_{np})

    :param predictions: Of the same values, with as many Gaussian components each.
    :param logs: Of each, whether it is of the values' logarithms; the mixture is of the values themselves.
    """
    parts = [prediction.components for prediction in predictions]
    parameters = torch.cat(
        [
            torch.cat([part.mean, part.stddev, torch.full_like(part.mean, log)], dim=-1)
            for part, log in zip(parts, logs, strict=True)
        ]
    )  # (R S, *T, N, 3 P)
    # the parameters themselves, as samples of functions
    unit = torch.ones_like(parameters[0])
    return Prediction(
        NormalOrLogNormal if any(logs) else _gaussian,
        torch.zeros_like(unit),
        unit,
        len(parameters),
        base_samples=parameters,
    )


class NormalOrLogNormal(Distribution):
    """
    Normal distributions, of values or of their logarithms.

    :param parameters: Locations, scales, and 1 where they are of the logarithm, else 0 (`... x 3 P`).
    """

    arg_constraints: dict[str, constraints.Constraint] = {}  # noqa: RUF012 (torch's own idiom)
    support = constraints.real

    def __init__(self, parameters: Tensor):
        *moments, log = parameters.chunk(3, dim=-1)
        self._log = log.bool()
        self._normal, self._log_normal = (kind(*moments, validate_args=False) for kind in (Normal, LogNormal))
        super().__init__(log.shape, validate_args=False)

    @property
    def mean(self) -> Tensor:
        return torch.where(self._log, self._log_normal.mean, self._normal.mean)

    @property
    def variance(self) -> Tensor:
        return torch.where(self._log, self._log_normal.variance, self._normal.variance)

    def sample(self, sample_shape: Sequence[int] = ()) -> Tensor:
        values = self._normal.sample(torch.Size(sample_shape))
        return torch.where(self._log, values.exp(), values)

    def log_prob(self, value: Tensor) -> Tensor:
        positive = value > 0
        of_log = torch.where(positive, self._log_normal.log_prob(torch.where(positive, value, 1.0)), -torch.inf)
        return torch.where(self._log, of_log, self._normal.log_prob(value))

    def cdf(self, value: Tensor) -> Tensor:
        return torch.where(self._log, self._log_normal.cdf(value), self._normal.cdf(value))

    def icdf(self, value: Tensor) -> Tensor:
        return torch.where(self._log, self._log_normal.icdf(value), self._normal.icdf(value))


def _gaussian(parameters: Tensor) -> Normal:
    return Normal(*parameters.chunk(3, dim=-1)[:2], validate_args=False)
