"""A table that a report is about, with some of it hidden, and the model's answers."""

from __future__ import annotations

from functools import cached_property
from typing import Any

import numpy as np
import pandas as pd
import torch
from matplotlib.dates import date2num
from torch import Tensor

from ..likelihoods import Prediction
from .baselines import groups_of_rows, series_columns, time_column
from .imputer import SGPVAEImputer
from .numbers import is_date, read_numbers

# What is hidden of a table to be asked for, and the seed of its choice: those of `score`.
FRACTION, SEED = 0.1, 0
NUM_EXAMPLES = 3
# Outputs that are drawn of a table with more.
MOST_OUTPUTS = 6
# Pairs of names of coordinates, the one to the right first.
COORDINATES = [
    ({"lon", "long", "lng", "longitude"}, {"lat", "latitude"}),
    ({"easting", "east"}, {"northing", "north"}),
    ({"x"}, {"y"}),
    ({"xloc"}, {"yloc"}),
]
FEWEST_PLACES = 5


class Case:
    """
    A table, with some of it hidden, and the model's answers.

    :ivar seen: The table with more holes.
    :ivar columns: The output columns, which know their family.
    :ivar values: All that is known of the outputs, as numbers (`N x P`); labels are counted.
    :ivar measured: The outputs but for categories, whose labels are no numbers to draw or to average.
    :ivar hidden: Which entries of these are hidden (`N x Q`).
    :ivar known: What the model is shown of them (`N x Q`).
    :ivar truth: What it is not (`N x Q`).
    """

    def __init__(self, imputer: SGPVAEImputer, frame: pd.DataFrame):
        self.imputer = imputer
        self.frame = frame.reset_index(drop=True)
        self.inputs, self.outputs, self.task = list(imputer.inputs), list(imputer.outputs), imputer.task
        self.columns = imputer.outputs_.columns
        self.values = imputer.read_outputs(self.frame)
        self.num_holes = int(self.frame[self.outputs].isna().to_numpy().sum())
        self.seen, mask = imputer.hide(self.frame, FRACTION, SEED)
        self.num_hidden = int(mask.to_numpy().sum())
        self.measured = [column.name for column in self.columns if column.is_number]
        values = self.values[:, [self.outputs.index(name) for name in self.measured]]
        self.hidden = torch.tensor(mask[self.measured].to_numpy(bool))
        self.known = values.masked_fill(self.hidden, torch.nan)
        self.truth = values.masked_fill(~self.hidden, torch.nan)
        self.drawn = list(range(min(len(self.measured), MOST_OUTPUTS)))

    def predict(self, frame: pd.DataFrame) -> Prediction:
        """The distributions of what was measured, at other inputs (`N x Q`)."""
        return self.imputer.predictive(frame, context=self.seen).transform(self.imputer.outputs_.numbers_of)

    @cached_property
    def numbers(self) -> pd.DataFrame:
        """The table that the model is shown, with outputs that are numbers."""
        return self.seen.assign(**dict(zip(self.measured, self.known.T.numpy(), strict=True)))

    @cached_property
    def time(self) -> str:
        return time_column(self.frame, self.inputs)

    @cached_property
    def series(self) -> list[np.ndarray]:
        """Rows that differ in time alone, of all series with at least two."""
        groups = groups_of_rows(self.frame, series_columns(self.frame, self.inputs, self.task))
        return [rows for rows in groups if len(rows) > 1]

    @cached_property
    def examples(self) -> list[np.ndarray]:
        """Series to draw: of the first task, one in the middle and the last one those with most hidden entries."""
        best: dict[Any, np.ndarray] = {}
        for rows in self.series:
            key = None if self.task is None else self.frame[self.task].iloc[rows[0]]
            if key not in best or self.hidden[rows].sum() > self.hidden[best[key]].sum():
                best[key] = rows
        found = list(best.values())
        chosen = np.linspace(0, len(found) - 1, min(NUM_EXAMPLES, len(found))).round().astype(int)
        return [found[i] for i in chosen]

    @cached_property
    def coordinates(self) -> tuple[str, str] | None:
        """The inputs to the right and upwards."""
        names = {name.lower(): name for name in self.inputs}
        for right, up in COORDINATES:
            pair = [names[name] for found in (right, up) for name in names if name in found]
            if len(pair) == 2 and self.frame[pair].drop_duplicates().shape[0] >= FEWEST_PLACES:
                return pair[0], pair[1]
        return None

    def positions(self, frame: pd.DataFrame) -> Tensor:
        """Of rows in time, as the axis of a picture has them (`N`)."""
        column = frame[self.time]
        if is_date(self.frame[self.time]):
            return torch.tensor(date2num(pd.to_datetime(column)))
        return torch.tensor(read_numbers(column))
