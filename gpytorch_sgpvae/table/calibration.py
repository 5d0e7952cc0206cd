"""Widths of intervals, learnt from entries that training did not see."""

from __future__ import annotations

import logging
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

logger = logging.getLogger(__name__)

# The intervals that are made to hold as many entries as they promise.
LEVEL = 0.95
# A factor is learnt from this many entries at least, and counts half with as many as this.
FEWEST_ENTRIES, HALF_ENTRIES = 20, 20
# An output with fewer known entries is small: that little of it could be held out is told in the log alone.
FEWEST_KNOWN = 200
# Factors beyond these limits say that something else is wrong.
SMALLEST, LARGEST = 0.25, 4.0
# Factors that are tried for outputs that are not Gaussian.
NUM_TRIED = 13


@dataclass(frozen=True)
class Calibration:
    r"""
    Factors for predicted standard deviations. Those of a Gaussian output's target, whose total variance is
    :math:`s^2 = v + \sigma^2` at known places, depend on how sure the prediction is: on a line in :math:`\log s`
    between two anchors, the entries that are predicted well and those in long gaps,

    .. math::

        s \mapsto c(s) \, s, \qquad c(s) \, s \leq \max(s, s_\text{marginal})

    where the share of held-out entries within :math:`\pm 1.96 \, c s` is 95 % at both. The values of other outputs have
    one factor each, with which held-out entries are most probable.

    :param anchors: :math:`\log s` (`2 x P`).
    :param factors: :math:`\log c` there (`2 x P`).
    :param marginal: :math:`s_\text{marginal}`, the deviation of the targets less their trend (`P`).
    :param failed: Names of the outputs for which no factor was found, though they have many entries, or one beyond all
        limits.
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
        num_filled: int,
        num_known: np.ndarray,
    ) -> Calibration:
        """
        :param outputs: The output columns.
        :param model: The model.
        :param moments: Mean and variance of the decoder's values in rows with held-out entries (`n x J` each).
        :param spread: The deviation of the trend there (`n x P`).
        :param targets: The held-out targets less their trend; NaN for all other entries (`n x P`).
        :param marginal: The deviation of all known targets less their trend (`P`).
        :param predict: The prediction of these targets with some calibration.
        :param num_filled: The number of outputs that are no covariates.
        :param num_known: The known entries of each output, held out or not (`P`).
        """
        number = len(outputs)
        anchors, factors = np.zeros((2, number)), np.zeros((2, number))
        failed, small = [], []
        mean = moments[0][:, outputs.first_values(moments[0].device)]
        total = gaussian_variance(outputs, model, moments[1].clamp_min(0.0).sqrt(), spread)
        for p, column in enumerate(outputs.columns[:num_filled]):
            known = ~targets[:, p].isnan()
            if column.is_gaussian and int(known.sum()) >= FEWEST_ENTRIES:
                deviation = total[known, p].sqrt().cpu().double().numpy()
                error = (targets[known, p] - mean[known, p]).abs().cpu().double().numpy()
                anchors[:, p], factors[:, p] = _by_sureness(deviation, error)
            is_few = int(known.sum()) < FEWEST_ENTRIES
            if np.abs(factors[:, p]).max() >= np.log(LARGEST) - 1e-9 or (is_few and num_known[p] >= FEWEST_KNOWN):
                failed.append(column.name)
            elif is_few:
                small.append(column.name)
        if small:
            logger.info("The intervals of %s are not calibrated: they have too few known entries.", listed(small))
        marginal = np.where(np.isfinite(marginal), marginal, np.inf)
        draft = cls(anchors, factors, marginal)
        if not all(column.is_gaussian for column in outputs.columns):
            factors = factors + _most_probable(outputs, targets, draft, predict)
            failed += [
                column.name
                for p, column in enumerate(outputs.columns[:num_filled])
                if not column.is_gaussian and abs(factors[0, p]) >= np.log(LARGEST) - 1e-9
            ]
        return cls(anchors, factors, marginal, tuple(dict.fromkeys(failed)))

    def or_earlier(self, earlier: Calibration, num_hidden: np.ndarray, outputs: Outputs) -> Calibration:
        """
        The same, with an earlier calibration of outputs of which too few entries were held out this time.

        :param earlier: The earlier calibration.
        :param num_hidden: The held-out entries of each output (`P`).
        :param outputs: The output columns.
        """
        is_few = num_hidden < FEWEST_ENTRIES
        few = [name for name, few in zip(outputs.names, is_few, strict=True) if few]
        failed = [name for name in self.failed if name not in few] + [name for name in earlier.failed if name in few]
        return Calibration(
            np.where(is_few, earlier.anchors, self.anchors),
            np.where(is_few, earlier.factors, self.factors),
            np.where(is_few, earlier.marginal, self.marginal),
            tuple(failed),
        )

    @property
    def warning(self) -> str | None:
        """The warning about outputs whose intervals may be wrong, or None."""
        if not self.failed:
            return None
        return (
            f"The intervals of {listed(self.failed)} could not be calibrated: too few entries could be held out, or "
            "these are predicted much better or worse than the model thinks. Read them with care."
        )

    def ratios(self, total: Tensor) -> Tensor:
        """
        Compute the factor of each output's deviation (`n x P`).

        :param total: The variance of Gaussian outputs' targets (`n x P`), see :func:`gaussian_variance`.
        """
        anchors, factors, marginal = (
            torch.as_tensor(part).to(total) for part in (self.anchors, self.factors, self.marginal)
        )
        width = anchors[1] - anchors[0]
        log_stddev = 0.5 * total.clamp_min(torch.finfo(total.dtype).tiny).log()
        position = ((log_stddev - anchors[0]) / torch.where(width > 0, width, 1.0)).clamp(0.0, 1.0)
        factor = (factors[0] + torch.where(width > 0, position, 0.0) * (factors[1] - factors[0])).exp()
        # no wider than the column is, unless the model itself says so
        most = (marginal / total.sqrt().clamp_min(1e-300 if total.dtype == torch.float64 else 1e-30)).clamp_min(1.0)
        return torch.minimum(factor, most)


def gaussian_variance(outputs: Outputs, model: Any, stddev: Tensor, spread: Tensor) -> Tensor:
    r"""
    The variance :math:`v + \sigma^2 + \tau^2` of each Gaussian output's target (`n x P`); of others that of the value.

    :param outputs: The output columns.
    :param model: The model.
    :param stddev: The deviation of the decoder's values (`n x J`).
    :param spread: The deviation of the trend (`n x P`).
    """
    first = stddev[..., outputs.first_values(stddev.device)]
    return first.square() + spread.square() + noise_variance(outputs, model, stddev)


def noise_variance(outputs: Outputs, model: Any, like: Tensor) -> Tensor:
    """
    The noise of Gaussian targets, 0 for others (`P`).

    :param outputs: The output columns.
    :param model: The model.
    :param like: The result has its dtype and device.
    """
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
    judged = (~targets.isnan()).any(0).cpu().numpy()
    return np.where(other & judged, best, 0.0)
