"""The families whose values are labels."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd
from torch import Tensor
from torch.distributions import Distribution

from ...likelihoods import BernoulliObservations, CategoricalObservations, ObservationModel
from ...likelihoods.observation_models.distributions import Categorical
from ..errors import TableError, listed, name_rows
from .base import OutputColumn, check_varies

# More labels than that are names, or free text.
MOST_LABELS = 50


class LabelColumn(OutputColumn):
    """A column of labels, whose targets are their numbers."""

    @classmethod
    def fit(cls, column: pd.Series) -> LabelColumn:
        levels = _labels(column)
        check_varies(column, len(levels))
        cls.check_levels(str(column.name), levels)
        if len(levels) == column.notna().sum() > 2:
            raise TableError(
                f"The output {column.name!r} has another label in each row, such as {_some(levels)}: nothing can be "
                "learnt of labels that never come again. Is it text that should stay out of the outputs?"
            )
        return cls(str(column.name), levels=levels)

    @classmethod
    def check_levels(cls, name: str, levels: Sequence[Any]) -> None:
        """Raise if the family does not take this many labels."""
        raise NotImplementedError

    @property
    def description(self) -> str:
        return f"{self.name} ({self.family}: {listed(self.levels[:5])})"

    def encode(self, column: pd.Series) -> np.ndarray:
        numbers = {level: i for i, level in enumerate(self.levels)}
        plain = column.astype(object)
        targets = plain.map(numbers).to_numpy(float, na_value=np.nan)
        unseen = np.flatnonzero(np.isnan(targets) & column.notna().to_numpy())
        if len(unseen):
            raise TableError(
                f"The output {self.name!r} has {plain.iloc[unseen[0]]!r} in {name_rows(column, unseen)}, which was not "
                f"among the values it was fitted with: {_some(self.levels)}. Correct it, or fit again with it."
            )
        return targets

    def decode(self, values: np.ndarray) -> np.ndarray:
        levels = np.empty(len(self.levels), dtype=object)
        levels[:] = self.levels
        return levels[values.astype(int)]

    @classmethod
    def probability(cls, components: Distribution, point: Tensor) -> Tensor:
        return components.log_prob(point).exp().mean(0)

    def summarize(self, found: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        right = found["probability"]
        stddev = np.sqrt(right * (1 - right))  # of being right
        return {**super().summarize({**found, "std": stddev}), "_probability": right}


class FlagColumn(LabelColumn):
    """Two labels, yes or no, 0 or 1: Bernoulli."""

    family = "flag"
    num_levels = (2, 2)
    scores = (*OutputColumn.scores, "accuracy")

    @classmethod
    def check_levels(cls, name: str, levels: Sequence[Any]) -> None:
        if len(levels) != 2:
            raise TableError(
                f"The output {name!r} is to be a flag, but has {len(levels)} different values: {_some(levels)}. "
                "Choose the family category."
            )

    @classmethod
    def observation_model(cls, group: Sequence[OutputColumn]) -> ObservationModel:
        return BernoulliObservations(len(group))

    @classmethod
    def point(cls, components: Distribution, mean: Tensor) -> Tensor:
        return (mean > 0.5).to(mean.dtype)


class CategoryColumn(LabelColumn):
    """Labels without an order, from 3 to 50 of them: a probability for each."""

    family = "category"
    num_levels = (2, MOST_LABELS)
    is_number = False
    scores = ("nll", "accuracy")

    @classmethod
    def check_levels(cls, name: str, levels: Sequence[Any]) -> None:
        if len(levels) > MOST_LABELS:
            raise TableError(
                f"The output {name!r} has {len(levels)} different labels, such as {_some(levels)}: a category has "
                f"at most {MOST_LABELS}. Is it text that should stay out of the outputs?"
            )

    @classmethod
    def observation_model(cls, group: Sequence[OutputColumn]) -> ObservationModel:
        return CategoricalObservations(len(group), len(group[0].levels))

    @property
    def num_values(self) -> int:
        return len(self.levels)

    @classmethod
    def point(cls, components: Distribution, mean: Tensor) -> Tensor:
        assert isinstance(components, Categorical)
        return components.probs.mean(0).argmax(-1).to(mean.dtype)

    def interval(self, lower: np.ndarray, upper: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        return np.full_like(lower, np.nan), np.full_like(upper, np.nan)


def _labels(column: pd.Series) -> tuple[Any, ...]:
    # as plain Python values, which JSON can hold
    labels = {value.item() if isinstance(value, np.generic) else value for value in column.dropna().astype(object)}
    odd = next((label for label in labels if not isinstance(label, (str, bool, int, float))), None)
    if odd is not None:
        raise TableError(f"The output {column.name!r} has a label that is a {type(odd).__name__}: make it text.")
    return tuple(sorted(labels, key=lambda label: (isinstance(label, str), label)))


def _some(levels: Sequence[Any]) -> str:
    return listed(levels[:5]) + (", ..." if len(levels) > 5 else "")
