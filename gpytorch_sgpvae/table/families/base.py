"""The questions that every family of outputs can answer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, ClassVar

import numpy as np
import pandas as pd
import torch
from torch import Tensor
from torch.distributions import Distribution

from ...likelihoods import ObservationModel
from ..errors import TableError


@dataclass(frozen=True)
class OutputColumn:
    """
    A fitted output column: how it becomes targets of a model, and how predictions become values of the column again.
    Each family of values is a class of its own. Neighboring columns of one class and as many levels are a *group*: they
    share an observation model and its distributions, and methods for these take all of the group's columns.

    :param name: Name of the column.
    :param shift: Shift of the target: (t(y) - shift) / scale, with t the logarithm, the square root or nothing.
    :param scale: Scale of the target.
    :param levels: The labels of flags and categories, in the order of their targets 0, 1, ....
    """

    # What users call the family.
    family: ClassVar[str]
    # Whether values are on a scale without steps: the others are written as whole numbers, if they are numbers at all.
    is_continuous: ClassVar[bool] = False
    # Whether values are numbers that can be drawn and averaged; labels without an order are not.
    is_number: ClassVar[bool] = True
    # Whether the distribution of the targets is Gaussian: something can be added to them.
    is_gaussian: ClassVar[bool] = False
    # The fewest and the most labels that it may have.
    num_levels: ClassVar[tuple[int, int]] = (0, 0)
    # The scores of predictions that mean something.
    scores: ClassVar[tuple[str, ...]] = ("rmse", "mae", "nll", "crps", "coverage")

    name: str
    shift: float = 0.0
    scale: float = 1.0
    levels: tuple[Any, ...] = ()

    @classmethod
    def fit(cls, column: pd.Series) -> OutputColumn:
        """
        Learn the units or the labels of a column, and check that it suits the family.

        :param column: A column of the table to learn from, with at least one value.
        """
        raise NotImplementedError

    def to_dict(self) -> dict[str, Any]:
        """A description that JSON can hold, from which `make_column` makes it again."""
        return {"name": self.name, "family": self.family, **asdict(self)}

    @property
    def description(self) -> str:
        """The column and its family in a few words."""
        return f"{self.name} ({self.family})"

    # From the column to targets, and back.

    def encode(self, column: pd.Series) -> np.ndarray:
        """Targets of a model, NaN where the value is missing (`N`)."""
        raise NotImplementedError

    def values_of(self, targets: Tensor) -> Tensor:
        """Targets in the column's own units; those of labels stay the labels' numbers (any shape)."""
        return targets

    def decode(self, values: np.ndarray) -> np.ndarray:
        """
        Values of the column's own kind: labels, whole numbers for counts.

        :param values: Predictions in the column's units, for labels their numbers (`N`).
        """
        return values

    # The model.

    @classmethod
    def observation_model(cls, group: Sequence[OutputColumn]) -> ObservationModel:
        raise NotImplementedError

    @classmethod
    def initialize(cls, observation_model: Any, targets: np.ndarray) -> None:
        """
        Set what is known of the group's observation model before any training.

        :param targets: (`N x P_g`)
        """

    @property
    def num_values(self) -> int:
        """The number of the decoder's values that the column takes."""
        return 1

    @classmethod
    def widened(cls, targets: Distribution, variance: Tensor) -> Distribution:
        """
        The distribution of targets with another variance, where they are Gaussian (`... x N x P_g`).

        :param variance: The variance to be added (`N x P_g`).
        """
        return targets

    # Predictions. Components are of batch shape `S x N x P_g`, for the group's columns.

    @classmethod
    def in_units(
        cls, group: Sequence[OutputColumn], targets: Distribution, added: Tensor, variance: Tensor
    ) -> Distribution:
        """
        The distribution of the columns' own values, from that of their targets (`... x N x P_g`).

        :param added: The values to be added to targets that are Gaussian (`N x P_g`).
        :param variance: The variance to be added to theirs (`N x P_g`).
        """
        return targets

    @classmethod
    def point(cls, components: Distribution, mean: Tensor) -> Tensor:
        """The best single values: the mean, or the number of the most probable label (`N x P_g`)."""
        return mean

    @classmethod
    def probability(cls, components: Distribution, point: Tensor) -> Tensor:
        """The probabilities of single values, NaN where these are no labels (`N x P_g`)."""
        return torch.full_like(point, torch.nan)

    def interval(self, lower: np.ndarray, upper: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The ends of an interval as values of the column's own kind, NaN where values have no order (`N` each)."""
        return self.decode(lower), self.decode(upper)

    def summarize(self, found: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """
        The columns of a table of predictions, by what is added to this column's name.

        :param found: The entries `point`, `std`, `lower`, `upper` and `probability` in the column's units (`N` each).
        """
        lower, upper = self.interval(found["lower"], found["upper"])
        return {"": self.decode(found["point"]), "_std": found["std"], "_lower": lower, "_upper": upper}


def as_vector(group: Sequence[OutputColumn], name: str, like: Tensor) -> Tensor:
    """A parameter of each column of a group (`P_g`)."""
    return torch.tensor([getattr(column, name) for column in group], dtype=like.dtype, device=like.device)


def check_varies(column: pd.Series, num_values: int) -> None:
    if num_values < 2:
        raise TableError(
            f"The output {column.name!r} has the same value, {column.dropna().tolist()[0]!r}, in all its rows: there "
            "is nothing to learn. Leave it out of the outputs, and fill its holes with that value if you like."
        )


def skewness(values: np.ndarray) -> float:
    """Measure how much longer the upper tail of some values is than the lower one; 0 if they do not vary."""
    centered = values - values.mean()
    stddev = values.std()
    return float(np.mean(centered**3) / stddev**3) if stddev > 0 else 0.0
