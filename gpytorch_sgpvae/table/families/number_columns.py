"""The families whose values are numbers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import pandas as pd
import torch
from torch import Tensor
from torch.distributions import Distribution, Normal

from ...likelihoods import (
    CensoredGaussianObservations,
    GaussianObservations,
    NegativeBinomialObservations,
    ObservationModel,
)
from ...likelihoods.observation_models.distributions import CensoredNormal
from ...likelihoods.observation_models.shifted_log_normal import ShiftedLogNormal
from ..errors import TableError, name_rows
from ..numbers import read_numbers
from .base import OutputColumn, as_vector, check_varies, skewness

# The decoder's values for counts are as large as for counts of this mean, or smaller where counts are.
TYPICAL_COUNT = 10.0
# The part of the variance of counts' logarithms that is noise before any training.
NOISE = 0.1
# Offsets of logarithms that are tried, in units of the typical value.
OFFSETS = (0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0)
# The least variance of predictions, in units of the column's.
LEAST_VARIANCE = 1e-12


class NumberColumn(OutputColumn):
    """A column of numbers, of which a family may take only some."""

    # The numbers that the family takes, in words.
    expected: ClassVar[str] = "any numbers"

    @classmethod
    def fit(cls, column: pd.Series) -> NumberColumn:
        values = read_numbers(column)
        check_varies(column, len(np.unique(values[~np.isnan(values)])))
        name = str(column.name)
        targets = cls(name).encode(column)
        targets = targets[~np.isnan(targets)]
        with np.errstate(all="ignore"):
            shift, scale = cls.units(targets)
            in_range = np.isfinite(scale) and scale > 0 and np.isfinite((targets - shift) / scale).all()
        if not in_range:
            raise TableError(
                f"The output {name!r} has values from {np.nanmin(values):g} to {np.nanmax(values):g}, too large or too "
                "small to compute with: write it in other units, or correct the outermost values."
            )
        return cls(name, shift, scale)

    def encode(self, column: pd.Series) -> np.ndarray:
        values = read_numbers(column)
        rows = np.flatnonzero(self.is_outside(values))
        if len(rows):
            raise TableError(
                f"The output {self.name!r} is of the family {self.family}, {self.expected}, but has "
                f"{values[rows[0]]:g} in {name_rows(column, rows)}. Correct it, or fit with another family: "
                f"families={{{self.name!r}: {RealColumn.family!r}}} takes any number."
            )
        return self.standardize(values)

    def standardize(self, values: np.ndarray) -> np.ndarray:
        """The targets of values that the family takes."""
        return (self.flatten(values) - self.shift) / self.scale

    @staticmethod
    def is_outside(values: np.ndarray) -> np.ndarray:
        """Tell which values the family does not take; NaN is none of them."""
        return np.zeros(len(values), dtype=bool)

    def flatten(self, values: np.ndarray) -> np.ndarray:
        """A function of the values that is closer to a Gaussian than they are."""
        return values

    @staticmethod
    def units(targets: np.ndarray) -> tuple[float, float]:
        """The shift and scale that standardize targets (`N`)."""
        return float(targets.mean()), float(targets.std())


class RealColumn(NumberColumn):
    """Any numbers: Gaussian, standardized."""

    family = "real"
    is_continuous = True
    is_gaussian = True

    def values_of(self, targets: Tensor) -> Tensor:
        return self.shift + self.scale * targets

    @classmethod
    def observation_model(cls, group: Sequence[OutputColumn]) -> ObservationModel:
        return GaussianObservations(len(group))

    @classmethod
    def widened(cls, targets: Distribution, variance: Tensor) -> Normal:
        assert isinstance(targets, Normal)
        # above zero also after a calibration that takes some of the noise away
        stddev = (targets.scale.square() + variance).clamp_min(LEAST_VARIANCE).sqrt()
        return Normal(targets.loc, stddev, validate_args=False)

    @classmethod
    def in_units(
        cls, group: Sequence[OutputColumn], targets: Distribution, added: Tensor, variance: Tensor
    ) -> Distribution:
        assert isinstance(targets, Normal)
        shift, scale = (as_vector(group, name, targets.loc) for name in ("shift", "scale"))
        wider = cls.widened(targets, variance)
        loc, stddev = shift + scale * (targets.loc + added), scale * wider.stddev
        return Normal(loc, stddev, validate_args=False)


@dataclass(frozen=True)
class PositiveColumn(RealColumn):
    """
    Numbers from 0 with a long tail, such as concentrations: the logarithms of the numbers and an offset are
    standardized and Gaussian. The offset is that with which they are most symmetric, so that the tail is as long as the
    column's own. There are no negative intervals.

    :param offset: Offset in the column's units.
    """

    family = "positive"
    expected = "numbers that are not negative"

    offset: float = 0.0

    @classmethod
    def fit(cls, column: pd.Series) -> PositiveColumn:
        values = read_numbers(column)
        values = values[~np.isnan(values)]
        name = str(column.name)
        check_varies(column, len(np.unique(values)))
        cls(name, offset=1.0).encode(column)  # refuses what is negative
        typical = float(np.median(values[values > 0]))
        offset = min((factor * typical for factor in OFFSETS), key=lambda c: abs(skewness(np.log(values + c))))
        return cls(name, *cls.units(np.log(values + offset)), offset=offset)

    @staticmethod
    def is_outside(values: np.ndarray) -> np.ndarray:
        return values < 0

    def flatten(self, values: np.ndarray) -> np.ndarray:
        return np.log(values + self.offset)

    def values_of(self, targets: Tensor) -> Tensor:
        return (super().values_of(targets).exp() - self.offset).clamp_min(0.0)

    @classmethod
    def in_units(
        cls, group: Sequence[OutputColumn], targets: Distribution, added: Tensor, variance: Tensor
    ) -> Distribution:
        logarithms: Any = super().in_units(group, targets, added, variance)
        offset = as_vector(group, "offset", logarithms.loc)
        return ShiftedLogNormal(logarithms.loc, logarithms.scale, offset)


class AmountColumn(NumberColumn):
    """Numbers from 0, often exactly 0: the square of a Gaussian, and zero for all of it that is below zero."""

    family = "amount"
    expected = "numbers that are not negative"
    is_continuous = True

    @staticmethod
    def is_outside(values: np.ndarray) -> np.ndarray:
        return values < 0

    def flatten(self, values: np.ndarray) -> np.ndarray:
        return np.sqrt(values)

    @staticmethod
    def units(targets: np.ndarray) -> tuple[float, float]:
        return 0.0, float(np.sqrt(np.mean(targets**2)))  # zeros stay zeros

    def values_of(self, targets: Tensor) -> Tensor:
        return (self.scale * targets).square()

    @classmethod
    def observation_model(cls, group: Sequence[OutputColumn]) -> ObservationModel:
        return CensoredGaussianObservations(len(group))

    @classmethod
    def in_units(
        cls, group: Sequence[OutputColumn], targets: Distribution, added: Tensor, variance: Tensor
    ) -> Distribution:
        assert isinstance(targets, CensoredNormal)
        scale = as_vector(group, "scale", targets.normal.loc)
        return CensoredNormal(scale * targets.normal.loc, scale * targets.normal.scale, power=2)


class CountColumn(NumberColumn):
    """
    Whole numbers from 0: negative binomial. Its targets have no units, but its rates do: the scale is that of
    :class:`~gpytorch_sgpvae.NegativeBinomialObservations`, 1 for small counts.
    """

    family = "count"
    expected = "whole numbers from 0"

    def standardize(self, values: np.ndarray) -> np.ndarray:
        return values

    @staticmethod
    def is_outside(values: np.ndarray) -> np.ndarray:
        return (values < 0) | (values != np.floor(values)) & ~np.isnan(values)

    @staticmethod
    def units(targets: np.ndarray) -> tuple[float, float]:
        # Counts of any size are to the decoder what those around 10 are: a value below zero is a small rate, and not
        # one of exp(-1000), which large counts would pull at with a million times the force of all others.
        return 0.0, max(1.0, float(targets.mean()) / TYPICAL_COUNT)

    def decode(self, values: np.ndarray) -> np.ndarray:
        return np.round(values)

    @classmethod
    def observation_model(cls, group: Sequence[OutputColumn]) -> ObservationModel:
        return NegativeBinomialObservations(len(group), rate_scale=torch.tensor([column.scale for column in group]))

    @classmethod
    def initialize(cls, observation_model: Any, targets: np.ndarray) -> None:
        # The variance of the logarithm of a count is about 1 / μ + 1 / r. A part of what is seen is noise, the rest is
        # what the model explains: no optimizer gets from 1 to the hundreds that large counts may need.
        variance = np.nanvar(np.log1p(targets), 0)
        observation_model.dispersion = torch.tensor(1 / (NOISE * np.maximum(variance, 1 / np.nanmean(targets, 0))))
