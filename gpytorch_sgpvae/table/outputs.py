"""All outputs of a table together."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import groupby
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.distributions import Distribution, Normal

from ..likelihoods import GaussianObservations, MixedObservations, ObservationModel, Prediction
from ..likelihoods.observation_models.distributions import ColumnwiseDistribution
from .families import OutputColumn


class Outputs:
    """
    All output columns together: one observation model for their targets, and predictions in their own units.

    :param columns: The columns, in the order of the targets.
    :param num_filled: The number of them that are predicted: those after them are covariates, which have targets only.

    :ivar groups: Neighboring columns that share an observation model.
    """

    def __init__(self, columns: Sequence[OutputColumn], num_filled: int | None = None):
        self.columns = list(columns)
        self.num_filled = len(self.columns) if num_filled is None else num_filled
        # classes differ in number, and covariates have groups of their own
        kinds = [(c.family, len(c.levels), p >= self.num_filled) for p, c in enumerate(self.columns)]
        numbered = groupby(range(len(self.columns)), key=kinds.__getitem__)
        self.groups = [[self.columns[p] for p in numbers] for _, numbers in numbered]

    @property
    def filled(self) -> Outputs:
        """The columns that are predicted."""
        return self if self.num_filled == len(self.columns) else Outputs(self.columns[: self.num_filled])

    def __len__(self) -> int:
        return len(self.columns)

    @property
    def names(self) -> list[str]:
        return [column.name for column in self.columns]

    @property
    def description(self) -> str:
        """The columns and their families in a line."""
        return "Outputs: " + ", ".join(column.description for column in self.columns)

    @property
    def _are_gaussian(self) -> bool:
        """True if all targets are Gaussian, so that real and positive columns have one observation model together."""
        return all(column.is_gaussian for column in self.columns)

    def observation_model(self) -> ObservationModel:
        """The observation model of all targets together."""
        if self._are_gaussian:
            return GaussianObservations(len(self.columns))
        models = [group[0].observation_model(group) for group in self.groups]
        return models[0] if len(models) == 1 else MixedObservations(models)

    def initialize(self, observation_model: Any, targets: np.ndarray) -> None:
        """
        Set what is known of the observation model before any training.

        :param observation_model: The observation model that :meth:`observation_model` made.
        :param targets: (`N x P`)
        """
        if self._are_gaussian:
            return
        models = getattr(observation_model, "observation_models", [observation_model])
        ends = np.cumsum([len(group) for group in self.groups])[:-1]
        for group, model, part in zip(self.groups, models, np.split(targets, ends, axis=1), strict=True):
            group[0].initialize(model, part)

    @property
    def num_values(self) -> list[int]:
        """The number of the decoder's values that each column takes (`P`)."""
        return [column.num_values for column in self.columns]

    @property
    def are_corrected(self) -> list[bool]:
        """True for the decoder's values that a network has to correct (`J`)."""
        return [not column.is_gaussian for column in self.columns for _ in range(column.num_values)]

    def first_values(self, device: torch.device) -> Tensor:
        """The first of the decoder's values that each column takes (`P`)."""
        return torch.tensor(np.cumsum([0, *self.num_values])[:-1], device=device)

    def for_values(self, of_columns: Tensor) -> Tensor:
        """Repeat values of the columns (`... x P`) for each of the decoder's values (`... x J`)."""
        return of_columns.repeat_interleave(torch.tensor(self.num_values, device=of_columns.device), -1)

    def set_noise(self, observation_model: Any, noise: Tensor) -> None:
        """
        Set the noise variance where columns have one.

        :param observation_model: The observation model that :meth:`observation_model` made.
        :param noise: The noise of each of the decoder's values (`J`).
        """
        models = getattr(observation_model, "observation_models", [observation_model])
        for model, part in zip(models, noise.split([model.decoder_size for model in models]), strict=True):
            if hasattr(model, "raw_noise"):
                model.noise = part

    def values_of(self, targets: Tensor) -> Tensor:
        """Targets in the columns' own units; those of labels stay the labels' numbers (`... x P`)."""
        parts = zip(self.columns, targets.unbind(-1), strict=True)
        return torch.stack([column.values_of(values) for column, values in parts], -1)

    def in_units(self, targets: Distribution, added: Tensor, variance: Tensor) -> Distribution:
        """
        The distribution of the columns' own values, from that of their targets (`... x N x P`).

        :param targets: The observation model's result.
        :param added: The values to be added to targets that are Gaussian (`N x P`).
        :param variance: The variance to be added to theirs (`N x P`).
        """
        parts = zip(self.groups, self._parts(targets), self._split(added), self._split(variance), strict=True)
        values = [group[0].in_units(group, part, more, width) for group, part, more, width in parts]
        return _side_by_side(values[: len(self.filled.groups)])

    def widened(self, targets: Distribution, variance: Tensor) -> Distribution:
        """
        The distribution of the targets, where these are Gaussian with another variance (`... x N x P`).

        :param targets: The observation model's result.
        :param variance: The values to be added to the variance of Gaussian targets (`N x P`).
        """
        parts = zip(self.groups, self._parts(targets), self._split(variance), strict=True)
        return _side_by_side([group[0].widened(part, more) for group, part, more in parts])

    def numbers_of(self, values: Distribution) -> Distribution:
        """The distributions of those outputs that are numbers to draw and to average (`... x N x Q`)."""
        parts = zip(self.groups, self._parts(values), strict=True)
        return _side_by_side([part for group, part in parts if group[0].is_number])

    def points(self, prediction: Prediction) -> Tensor:
        """The mean of each value, or where values are labels the number of the most probable one (`N x P`)."""
        return self._by_group(prediction, prediction.mean, lambda column: column.point)

    def probabilities(self, prediction: Prediction, points: Tensor) -> Tensor:
        """The probabilities of labels, NaN where values are none (`N x P`)."""
        return self._by_group(prediction, points, lambda column: column.probability)

    def _by_group(
        self, prediction: Prediction, values: Tensor, method: Callable[[OutputColumn], Callable[..., Tensor]]
    ) -> Tensor:
        parts = zip(self.groups, self._parts(prediction.components), self._split(values), strict=True)
        return torch.cat([method(group[0])(components, columns) for group, components, columns in parts], -1)

    def _parts(self, distribution: Distribution) -> list[Distribution]:
        """The distribution of each group."""
        if isinstance(distribution, ColumnwiseDistribution):
            return distribution.parts
        if len(self.groups) == 1:
            return [distribution]
        assert isinstance(distribution, Normal)
        moments = zip(self._split(distribution.loc), self._split(distribution.scale), strict=True)
        return [Normal(loc, scale, validate_args=False) for loc, scale in moments]

    def _split(self, values: Tensor) -> tuple[Tensor, ...]:
        return values.split([len(group) for group in self.groups], -1)


def _side_by_side(parts: list[Distribution]) -> Distribution:
    return parts[0] if len(parts) == 1 else ColumnwiseDistribution(parts)
