"""
Output columns: what kind of values each has, and how these become targets of a model and come back.

======== ================================== ===========================================================
family   values                             model
======== ================================== ===========================================================
real     any numbers                        Gaussian, standardized
positive numbers above 0 with a long tail   Gaussian logarithm, standardized: log-normal
amount   numbers from 0, often exactly 0    Gaussian square root, zero for all that is below it
count    0, 1, 2, ...                       negative binomial
flag     two values: yes or no, 0 or 1      Bernoulli
category labels, from 3 to 50 of them       a probability for each
======== ================================== ===========================================================
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

import numpy as np
import pandas as pd
import torch
from torch import Tensor
from torch.distributions import Distribution, Normal

from ..likelihoods import (
    BernoulliObservations,
    CategoricalObservations,
    CensoredGaussianObservations,
    GaussianObservations,
    MixedObservations,
    NegativeBinomialObservations,
    ObservationModel,
)
from ..likelihoods.observation_models.distributions import CensoredNormal, ColumnwiseDistribution, LogNormal
from .errors import TableError, listed, name_rows
from .numbers import is_mostly_text, read_numbers

FAMILIES = ("real", "positive", "amount", "count", "flag", "category")
# More labels than that are names, or free text.
MOST_LABELS = 50
# From so many zeros on, a column of amounts has a mass there.
MANY_ZEROS = 0.05
# Where values have a longer tail than that, their logarithms are looked at (an exponential distribution has 2).
LONG_TAIL = 1.0


@dataclass(frozen=True)
class OutputColumn:
    """
    How an output column becomes targets, and how predictions become values of the column again.

    :param name: Of the column.
    :param family: One of :data:`FAMILIES`.
    :param shift: Of the target: (t(y) - shift) / scale, with t the logarithm, the square root or nothing.
    :param scale: Of the target.
    :param levels: The labels of flags and categories, in the order of their targets 0, 1, ....
    """

    name: str
    family: str
    shift: float = 0.0
    scale: float = 1.0
    levels: tuple[Any, ...] = ()

    @classmethod
    def fit(cls, column: pd.Series, family: str | None = None) -> OutputColumn:
        """
        :param column: Of the table to learn from.
        :param family: Of its values, by default :func:`guess_family`.
        """
        if column.notna().sum() == 0:
            raise TableError(
                f"The output {column.name!r} has no values at all: there is nothing to learn it from. Leave it out of "
                "the outputs."
            )
        if family is not None and family not in FAMILIES:
            raise TableError(f"There is no family {family!r} for output {column.name!r}: choose of {listed(FAMILIES)}.")
        name, family = str(column.name), family or guess_family(column)
        if family in ("flag", "category"):
            levels = _labels(column)
            _check_varies(column, len(levels))
            if family == "flag" and len(levels) != 2:
                raise TableError(
                    f"The output {name!r} is to be a flag, but has {len(levels)} different values: {_some(levels)}. "
                    "Choose the family category."
                )
            if len(levels) > MOST_LABELS:
                raise TableError(
                    f"The output {name!r} has {len(levels)} different labels, such as {_some(levels)}: a category has "
                    f"at most {MOST_LABELS}. Is it text that should stay out of the outputs?"
                )
            return cls(name, family, levels=levels)
        values = read_numbers(column)
        _check_varies(column, len(np.unique(values[~np.isnan(values)])))
        draft = cls(name, family)
        targets = draft.encode(column)
        targets = targets[~np.isnan(targets)]
        if family == "amount":  # whose zeros stay zeros
            return cls(name, family, 0.0, float(np.sqrt(np.mean(targets**2))))
        return draft if family == "count" else cls(name, family, float(targets.mean()), float(targets.std()))

    def encode(self, column: pd.Series) -> np.ndarray:
        """Targets of a model, NaN where the value is missing (`N`)."""
        if self.levels:
            return self._encode_labels(column)
        values = read_numbers(column)
        bad, expected = {
            "positive": (values <= 0, "numbers greater than 0"),
            "amount": (values < 0, "numbers that are not negative"),
            "count": ((values < 0) | (values != np.floor(values)) & ~np.isnan(values), "whole numbers from 0"),
        }.get(self.family, (np.zeros(len(values), dtype=bool), ""))
        if bad.any():
            rows = np.flatnonzero(bad)
            raise TableError(
                f"The output {self.name!r} is of the family {self.family}, {expected}, but has {values[rows[0]]:g} in "
                f"{name_rows(column, rows)}. Correct it, or fit with another family (real takes any number)."
            )
        if self.family == "positive":
            values = np.log(values)
        elif self.family == "amount":
            values = np.sqrt(values)
        return (values - self.shift) / self.scale

    def decode(self, point: np.ndarray) -> np.ndarray:
        """
        Values of the column's own kind: labels, whole numbers for counts.

        :param point: Predictions in the column's units; of flags and categories the index of the label.
        """
        if self.levels:
            levels = np.empty(len(self.levels), dtype=object)
            levels[:] = self.levels
            return levels[point.astype(int)]
        return np.round(point) if self.family == "count" else point

    def _encode_labels(self, column: pd.Series) -> np.ndarray:
        index = {level: i for i, level in enumerate(self.levels)}
        plain = column.astype(object)
        targets = plain.map(index).to_numpy(float, na_value=np.nan)
        unseen = np.flatnonzero(np.isnan(targets) & column.notna().to_numpy())
        if len(unseen):
            raise TableError(
                f"The output {self.name!r} has {plain.iloc[unseen[0]]!r} in {name_rows(column, unseen)}, which was not "
                f"among the values it was fitted with: {_some(self.levels)}. Correct it, or fit again with it."
            )
        return targets


def guess_family(column: pd.Series) -> str:
    """
    Two different values that are text, booleans, or 0 and 1 are a flag; other text is a category. Whole numbers from 0
    are counts, if there are zeros or they vary at least as much as Poisson's. Numbers from 0 of which one in twenty is
    exactly 0 are amounts; numbers above 0 with a long tail, which their logarithms do not have, are positive. All
    others are real.
    """
    present = column.dropna()
    if isinstance(column.dtype, pd.CategoricalDtype) or is_mostly_text(column):
        return "flag" if present.nunique() == 2 else "category"
    if present.map(lambda value: isinstance(value, (bool, np.bool_))).all():
        return "flag"
    values = read_numbers(column)
    values = values[~np.isnan(values)]
    if set(np.unique(values)) == {0.0, 1.0}:
        return "flag"
    if values.min() < 0:
        return "real"
    if (values == np.floor(values)).all() and (values.min() == 0 or values.var() >= values.mean()):
        return "count"
    if np.mean(values == 0) >= MANY_ZEROS:
        return "amount"
    if values.min() > 0 and _skewness(values) > LONG_TAIL and abs(_skewness(np.log(values))) < _skewness(values):
        return "positive"
    return "real"


class Outputs:
    """
    All output columns together: one observation model for their targets, and predictions in their own units.

    :param columns: In the order of the targets.
    """

    def __init__(self, columns: Sequence[OutputColumn]):
        self.columns = list(columns)
        # neighbors of one kind share an observation model; classes differ in number
        self.groups = [list(group) for _, group in groupby(self.columns, key=lambda c: (c.family, len(c.levels)))]

    def observation_model(self) -> ObservationModel:
        models = [_MODELS[group[0].family](group) for group in self.groups]
        return models[0] if len(models) == 1 else MixedObservations(models)

    def decoder_scale(self, targets: np.ndarray) -> tuple[list[float], list[float]]:
        """
        What the decoder's values are shifted and scaled by, so that it need not learn how large counts are.

        :param targets: (`N x P`).
        """
        shift: list[float] = []
        scale: list[float] = []
        for column, values in zip(self.columns, targets.T, strict=True):
            if column.family == "count":
                shift.append(float(np.nanmean(values)))
                scale.append(float(np.nanstd(values)))
            else:
                size = len(column.levels) if column.family == "category" else 1
                shift += [0.0] * size
                scale += [1.0] * size
        return shift, scale

    @property
    def has_units(self) -> list[bool]:
        """Which targets are Gaussian, so that something can be added to them (`P`)."""
        return [column.family in ("real", "positive") for column in self.columns]

    def in_units(self, likelihood: Callable[[Tensor], Distribution]) -> Callable[[Tensor], Distribution]:
        """
        A likelihood of the columns' own values, from that of their targets. Beside the K functions it takes what is to
        be added to the targets, and the deviation of that, for each output (`... x (K + 2 P)`).
        """
        num_outputs, sizes = len(self.columns), [len(group) for group in self.groups]

        def original(values: Tensor) -> Distribution:
            functions, shift, spread = values.split([values.shape[-1] - 2 * num_outputs, num_outputs, num_outputs], -1)
            targets = likelihood(functions)
            parts = targets.parts if isinstance(targets, ColumnwiseDistribution) else [targets]
            units = [
                _in_units(*arguments)
                for arguments in zip(parts, self.groups, shift.split(sizes, -1), spread.split(sizes, -1), strict=True)
            ]
            return units[0] if len(units) == 1 else ColumnwiseDistribution(units)

        return original

    def values_of(self, targets: Tensor) -> Tensor:
        """Targets in the columns' own units; flags and categories stay numbers of labels (`... x P`)."""
        shift, scale = (_vector(self.columns, name, targets) for name in ("shift", "scale"))
        values = shift + scale * targets
        families = [column.family for column in self.columns]
        positive, amount = (torch.tensor([f == name for f in families]) for name in ("positive", "amount"))
        values = torch.where(positive.to(values.device), values.exp(), values)
        return torch.where(amount.to(values.device), values.square(), values)


_MODELS: dict[str, Callable[[list[OutputColumn]], ObservationModel]] = {
    "real": lambda group: GaussianObservations(len(group)),
    "positive": lambda group: GaussianObservations(len(group)),
    "amount": lambda group: CensoredGaussianObservations(len(group)),
    "count": lambda group: NegativeBinomialObservations(len(group)),
    "flag": lambda group: BernoulliObservations(len(group)),
    "category": lambda group: CategoricalObservations(len(group), len(group[0].levels)),
}


def _in_units(targets: Distribution, group: list[OutputColumn], added: Tensor, spread: Tensor) -> Distribution:
    family = group[0].family
    if isinstance(targets, Normal):
        shift, scale = (_vector(group, name, targets.loc) for name in ("shift", "scale"))
        loc, stddev = shift + scale * (targets.loc + added), scale * torch.hypot(targets.scale, spread)
        kind = LogNormal if family == "positive" else Normal
        return kind(loc, stddev, validate_args=False)
    if isinstance(targets, CensoredNormal):
        scale = _vector(group, "scale", targets.normal.loc)
        return CensoredNormal(scale * targets.normal.loc, scale * targets.normal.scale, power=2)
    return targets


def _vector(group: Iterable[OutputColumn], name: str, like: Tensor) -> Tensor:
    return torch.tensor([getattr(column, name) for column in group], dtype=like.dtype, device=like.device)


def _labels(column: pd.Series) -> tuple[Any, ...]:
    # as plain Python values, which JSON can hold
    labels = {value.item() if isinstance(value, np.generic) else value for value in column.dropna().astype(object)}
    odd = next((label for label in labels if not isinstance(label, (str, bool, int, float))), None)
    if odd is not None:
        raise TableError(f"The output {column.name!r} has a label that is a {type(odd).__name__}: make it text.")
    return tuple(sorted(labels, key=lambda label: (isinstance(label, str), label)))


def _check_varies(column: pd.Series, num_values: int) -> None:
    if num_values < 2:
        raise TableError(
            f"The output {column.name!r} has the same value, {column.dropna().iloc[0]!r}, in all its rows: there is "
            "nothing to learn. Leave it out of the outputs, and fill its holes with that value if you like."
        )


def _some(levels: Sequence[Any]) -> str:
    return listed(levels[:5]) + (", ..." if len(levels) > 5 else "")


def _skewness(values: np.ndarray) -> float:
    centered = values - values.mean()
    stddev = values.std()
    return float(np.mean(centered**3) / stddev**3) if stddev > 0 else 0.0
