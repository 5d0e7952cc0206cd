"""How wide intervals have to be, learnt from entries that training did not see."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from statistics import NormalDist
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..likelihoods import Prediction
from .errors import listed
from .outputs import Outputs

# The intervals that are made to hold as many entries as they promise.
LEVEL = 0.95
# A factor is learnt from so many entries at least, and counts half with as many as this.
FEWEST_ENTRIES, HALF_ENTRIES = 20, 20
# Factors beyond these limits say that something else is wrong.
SMALLEST, LARGEST = 0.25, 4.0
# Factors that are tried for outputs that are not Gaussian.
NUM_TRIED = 13


@dataclass(frozen=True)
class Calibration:
    r"""
    Factors for predicted standard deviations. Those of a Gaussian output's target, whose total variance is
    :math:`s^2 = v + \sigma^2 + \tau^2`, depend on how sure the prediction is: on a line in :math:`\log s` between two
    anchors, the entries that are predicted well and those in long gaps,

    .. math::

        s \mapsto c(s) \, s, \qquad c(s) \, s \leq \max(s, s_\text{marginal})

    where the share of held-out entries within :math:`\pm 1.96 \, c s` is 95 % at both. The values of other outputs have
    one factor each, with which held-out entries are most probable.

    :param anchors: :math:`\log s` (`2 x P`).
    :param factors: :math:`\log c` there (`2 x P`).
    :param marginal: :math:`s_\text{marginal}`, the deviation of the targets less their trend (`P`).
    :param failed: Names of the outputs for which no factor was found, or one beyond all limits.
    """

    anchors: np.ndarray
    factors: np.ndarray
    marginal: np.ndarray
    failed: tuple[str, ...] = ()

    @classmethod
    def none(cls, num_outputs: int) -> Calibration:
        """Deviations as the model says."""
        return cls(np.zeros((2, num_outputs)), np.zeros((2, num_outputs)), np.full(num_outputs, np.inf))

    @classmethod
    def fit(
        cls,
        outputs: Outputs,
        model: Any,
        moments: tuple[Tensor, Tensor],
        spread: Tensor,
        targets: Tensor,
        marginal: np.ndarray,
        predict: Callable[[Calibration], Prediction],
    ) -> Calibration:
        """
        :param outputs: The output columns.
        :param model: The model.
        :param moments: Mean and variance of the decoder's values in rows with held-out entries (`n x J` each).
        :param spread: The deviation of the trend there (`n x P`).
        :param targets: The held-out targets less their trend; NaN for all other entries (`n x P`).
        :param marginal: The deviation of all known targets less their trend (`P`).
        :param predict: The prediction of these targets with some calibration.
        """
        number = len(outputs)
        anchors, factors = np.zeros((2, number)), np.zeros((2, number))
        failed = []
        mean, total = _gaussian_moments(outputs, model, moments[0], moments[1].sqrt(), spread)
        for p, column in enumerate(outputs.columns):
            known = ~targets[:, p].isnan()
            if column.is_gaussian and int(known.sum()) >= FEWEST_ENTRIES:
                deviation = total[known, p].sqrt().cpu().double().numpy()
                error = (targets[known, p] - mean[known, p]).abs().cpu().double().numpy()
                anchors[:, p], factors[:, p] = _by_sureness(deviation, error)
            if np.abs(factors[:, p]).max() >= np.log(LARGEST) or int(known.sum()) < FEWEST_ENTRIES:
                failed.append(column.name)
        marginal = np.where(np.isfinite(marginal), marginal, np.inf)
        draft = cls(anchors, factors, marginal)
        if not all(column.is_gaussian for column in outputs.columns):
            factors = factors + _most_probable(outputs, targets, draft, predict)
            failed += [
                column.name
                for p, column in enumerate(outputs.columns)
                if not column.is_gaussian and abs(factors[0, p]) >= np.log(LARGEST) - 1e-9
            ]
        return cls(anchors, factors, marginal, tuple(dict.fromkeys(failed)))

    @property
    def warning(self) -> str | None:
        """What to tell about outputs whose intervals may be wrong."""
        if not self.failed:
            return None
        return (
            f"The intervals of {listed(self.failed)} could not be calibrated: too few entries could be held out, or "
            "these are predicted much better or worse than the model thinks. Read them with care."
        )

    def widen(self, outputs: Outputs, model: Any, stddev: Tensor, spread: Tensor) -> tuple[Tensor, Tensor]:
        """
        :param outputs: The output columns.
        :param model: The model.
        :param stddev: Deviation of the decoder's values (`n x J`).
        :param spread: The deviation of the trend (`n x P`).
        :return: The deviation of the decoder's values that are not Gaussian outputs', zero for those (`n x J`), and what
            is to be added to the variance of Gaussian outputs' targets (`n x P`).
        """
        _, total = _gaussian_moments(outputs, model, stddev, stddev, spread)  # (n, P)
        anchors, factors, marginal = (
            torch.as_tensor(part).to(stddev) for part in (self.anchors, self.factors, self.marginal)
        )
        width = anchors[1] - anchors[0]
        position = (0.5 * total.log() - anchors[0]) / torch.where(width > 0, width, 1.0)
        position = torch.where(width > 0, position.clamp(0.0, 1.0), 0.0)
        log_factor = factors[0] + position * (factors[1] - factors[0])
        wider = (2 * log_factor).exp() * total
        wider = torch.minimum(wider, torch.maximum(total, marginal.square()))
        noise = _noise(outputs, model, stddev)  # (P,)
        of_values = torch.repeat_interleave(factors[0], torch.tensor(outputs.num_values, device=stddev.device))
        corrected = torch.tensor(outputs.are_corrected, device=stddev.device)
        return torch.where(corrected, of_values.exp() * stddev, 0.0), wider - noise


def _gaussian_moments(
    outputs: Outputs, model: Any, mean: Tensor, stddev: Tensor, spread: Tensor
) -> tuple[Tensor, Tensor]:
    """Mean and total variance of each output's target, of those that are Gaussian (`n x P` each)."""
    first = torch.tensor(np.cumsum([0, *outputs.num_values])[:-1], device=mean.device)
    total = stddev[:, first].square() + spread.square() + _noise(outputs, model, stddev)
    return mean[:, first], total


def _noise(outputs: Outputs, model: Any, like: Tensor) -> Tensor:
    """The noise variance of Gaussian targets, 0 for others (`P`)."""
    observation_model = model.likelihood.observation_model
    parts = getattr(observation_model, "observation_models", [observation_model])
    noises = [
        part.noise.detach().expand(part.num_outputs) if hasattr(part, "raw_noise") else like.new_zeros(part.num_outputs)
        for part in parts
    ]
    gaussian = torch.tensor([column.is_gaussian for column in outputs.columns], device=like.device)
    return torch.where(gaussian, torch.cat(noises).to(like), 0.0)


def _by_sureness(deviation: np.ndarray, error: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Anchors and factors of the surer half of the entries, and of the others (`2` each)."""
    order = np.argsort(deviation, kind="stable")
    halves = np.array_split(order, 2) if len(order) >= 4 * FEWEST_ENTRIES else [order, order]
    quantile = NormalDist().inv_cdf(0.5 + 0.5 * LEVEL)
    anchors, factors = [], []
    for half in halves:
        factor = np.quantile(error[half] / deviation[half], LEVEL) / quantile
        shrunk = np.log(max(factor, 1e-12)) * len(half) / (len(half) + HALF_ENTRIES)
        anchors.append(np.log(deviation[half]).mean())
        factors.append(np.clip(shrunk, np.log(SMALLEST), np.log(LARGEST)))
    return np.array(anchors), np.array(factors)


def _most_probable(
    outputs: Outputs, targets: Tensor, draft: Calibration, predict: Callable[[Calibration], Prediction]
) -> np.ndarray:
    """The logarithms of factors with which outputs that are not Gaussian are most probable, 0 for the others (`P`)."""
    tried = np.linspace(np.log(SMALLEST), np.log(LARGEST), NUM_TRIED)
    other = np.array([not column.is_gaussian for column in outputs.columns])
    scores = []
    for log_factor in tried:
        factors = draft.factors + np.where(other, log_factor, 0.0)
        log_prob = predict(Calibration(draft.anchors, factors, draft.marginal)).log_prob(targets)
        # a few entries do not overrule what was trained
        scores.append(np.nansum(log_prob.cpu().double().numpy(), 0) - 0.5 * FEWEST_ENTRIES * log_factor**2)
    best = tried[np.nan_to_num(np.array(scores), nan=-np.inf).argmax(0)]
    return np.where(other, best, 0.0)
