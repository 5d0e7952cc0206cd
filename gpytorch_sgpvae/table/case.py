"""A table that a report is about, with some of it hidden, and the model's answers."""

from __future__ import annotations

from dataclasses import replace
from functools import cached_property

import numpy as np
import pandas as pd
import torch
from matplotlib.dates import date2num
from torch import Tensor

from ..likelihoods import Prediction
from .baselines import groups_of_rows
from .comparison import compare
from .filling import hide
from .fitted import in_order
from .imputer import SGPVAEImputer
from .judgment import known_values
from .numbers import is_date, read_numbers
from .summaries import score

# What is hidden of a table to be asked for, and the seed of its choice: those of `scores`.
FRACTION, SEED = 0.1, 0
NUM_EXAMPLES, GRID_POINTS = 3, 240
# Rows of a series that a picture shows, and rows of its task around these that it is predicted from.
EXAMPLE_ROWS, NEAR_ROWS = 200, 500
# Rows whose hidden entries are asked for, at most: more of them hardly change the scores, and take long.
MOST_ASKED = 3000
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
    A table, with some of it hidden, and the model's answers: hidden entries and maps are asked for at once, and all
    series that are drawn at once, so that a large table is not conditioned on again and again.

    :ivar frame: The table, in which all inputs and the task are columns, and dates are pandas' own.
    :ivar seen: The table with more holes.
    :ivar columns: The output columns, which know their family.
    :ivar values: All that is known of the outputs, as numbers (`N x P`); labels are counted.
    :ivar measured: The outputs but for categories, whose labels are no numbers to draw or to average.
    :ivar hidden: True for the entries of these that are hidden (`N x Q`).
    :ivar known: The values of them that the model is shown (`N x Q`).
    :ivar truth: The values of them that it is not shown (`N x Q`).
    :ivar hidden_rows: The rows whose hidden entries are asked for, of a large table some of those that have any.
    :ivar asked: True for these entries (`N x P`).
    :ivar drawn: The numbers of the measured outputs that are drawn: the first ones that have values.
    """

    def __init__(self, imputer: SGPVAEImputer, frame: pd.DataFrame):
        self.imputer, self.fitted = imputer, imputer.fitted_
        reader = self.fitted.reader
        self.frame = reader.complete(imputer.as_wide(frame)).reset_index(drop=True)
        self.inputs, self.outputs = [column.name for column in reader.inputs], reader.outputs.filled.names
        self.task = None if reader.task is None else reader.task.name
        self.columns = imputer.outputs_.columns
        self.values = torch.tensor(known_values(imputer.outputs_, reader.read(self.frame)))
        self.num_holes = int(self.frame[self.outputs].isna().to_numpy().sum())
        self.seen, mask = hide(self.frame, self.outputs, FRACTION, SEED)
        hidden = mask.to_numpy(bool)  # (N, P)
        rows = np.flatnonzero(hidden.any(1))
        if len(rows) > MOST_ASKED:
            rows = np.sort(np.random.default_rng(SEED).choice(rows, MOST_ASKED, replace=False))
        self.hidden_rows, self.num_hidden = rows, int(hidden.sum())
        self.asked = np.zeros_like(hidden)
        self.asked[rows] = hidden[rows]
        self.table = reader.read(self.seen)
        numbers = [p for p, column in enumerate(self.columns) if column.is_number]
        self.measured = [self.columns[p].name for p in numbers]
        self.hidden = torch.tensor(hidden[:, numbers])
        self.known = self.values[:, numbers].masked_fill(self.hidden, torch.nan)
        self.truth = self.values[:, numbers].masked_fill(~self.hidden, torch.nan)
        with_values = (~self.values[:, numbers].isnan()).any(0).tolist()
        self.drawn = [q for q, known in enumerate(with_values) if known][:MOST_OUTPUTS]

    # What the model says.

    def at_rows(self, rows: np.ndarray) -> Prediction:
        """
        The predictions of all outputs in some rows of the table (`n x P`).

        :param rows: Rows with hidden entries, or of a map.
        """
        return in_order(self._at_rows, rows)

    @cached_property
    def _at_rows(self) -> list[tuple[np.ndarray, Prediction]]:
        rows = np.unique(np.concatenate([self.hidden_rows, *self.moments]))
        return list(self.fitted.predictions(self.table, self.table, rows, self.imputer.seed))

    @cached_property
    def along_series(self) -> list[tuple[pd.DataFrame, Prediction]]:
        """The rows that go through each example's time, and what was measured there (`n x Q`)."""
        grids = [self._grid(rows) for rows in self.examples]
        if not grids:
            return []
        every = pd.concat(grids, ignore_index=True)
        near = np.zeros(len(self.frame), dtype=bool)
        for rows in self.examples:
            near[self._near(rows)] = True
        places = self.fitted.reader.read_places(every, self.seen, self.table)
        context = replace(self.table, rows=[rows[near[rows]] for rows in self.table.rows])
        parts = list(self.fitted.predictions(context, places, np.arange(len(every)), self.imputer.seed))
        ends = np.cumsum([len(grid) for grid in grids])
        pieces = np.split(np.arange(len(every)), ends[:-1])
        numbers_of = self.imputer.outputs_.numbers_of
        return [(grid, in_order(parts, piece).transform(numbers_of)) for grid, piece in zip(grids, pieces, strict=True)]

    @cached_property
    @torch.no_grad()
    def scores(self) -> pd.DataFrame:
        """The scores of hidden entries, as :meth:`SGPVAEImputer.scores` has them."""
        truth = torch.where(torch.tensor(self.asked), self.values, torch.nan)
        prediction = self.at_rows(self.hidden_rows)
        outputs = self.imputer.outputs_
        return score(outputs, [(self.hidden_rows, prediction)], self.fitted.as_tensor(truth.numpy()))

    @cached_property
    @torch.no_grad()
    def comparison(self) -> pd.DataFrame:
        """The errors of hidden entries beside those of simpler ways, see :func:`~.comparison.compare`."""
        rows = self.hidden_rows
        truth = torch.where(torch.tensor(self.asked), self.values, torch.nan)[rows].numpy()
        prediction, outputs = self.at_rows(rows), self.imputer.outputs_
        return compare(outputs, prediction, self.numbers, rows, truth, self.inputs, self.task, SEED)

    @cached_property
    def numbers(self) -> pd.DataFrame:
        """The table that the model is shown, with outputs that are numbers."""
        return self.seen.assign(**dict(zip(self.measured, self.known.T.numpy(), strict=True)))

    # What is drawn.

    @cached_property
    def time(self) -> str | None:
        """The input along which rows run, if there is one."""
        time = self.fitted.plan.time
        return None if time is None else self.inputs[time]

    @cached_property
    def examples(self) -> list[np.ndarray]:
        """
        Rows of series to draw, in the order of time: stretches with values and holes, of the first task, one in the
        middle and the last one; without tasks, of different series.
        """
        if self.time is None or not self.drawn:
            return []
        together = [*([] if self.task is None else [self.task]), *(name for name in self.inputs if name != self.time)]
        series = [rows for rows in groups_of_rows(self.frame, together) if len(rows) > 1]
        known = (~self.known[:, self.drawn].isnan()).sum(1).numpy()
        pieces: dict[object, list[tuple[float, np.ndarray]]] = {}
        for number, rows in enumerate(series):
            key = number if self.task is None else self.frame[self.task].iloc[rows[0]]
            ordered = rows[np.argsort(self.positions(self.frame.iloc[rows]).numpy(), kind="stable")]
            for piece in np.array_split(ordered, -(-len(ordered) // EXAMPLE_ROWS)):
                entries = float(known[piece].sum())
                holes = len(self.drawn) * len(piece) - entries
                pieces.setdefault(key, []).append((entries * (1 + holes), piece))
        if len(pieces) < NUM_EXAMPLES:  # several stretches of each
            of_each = -(-NUM_EXAMPLES // max(len(pieces), 1))
            best = [sorted(found, key=lambda pair: -pair[0])[:of_each] for found in pieces.values()]
        else:
            best = [[max(found, key=lambda pair: pair[0])] for found in pieces.values()]
        found = [piece for pairs in best for _, piece in sorted(pairs, key=lambda pair: pair[1][0])]
        chosen = np.linspace(0, len(found) - 1, min(NUM_EXAMPLES, len(found))).round().astype(int)
        return [found[i] for i in chosen]

    def _grid(self, rows: np.ndarray) -> pd.DataFrame:
        """Rows that go evenly through the time of a series; where there are covariates, the rows themselves."""
        part = self.frame.iloc[rows]
        if self.fitted.reader.num_filled < len(self.fitted.reader.outputs):
            return part
        grid = pd.concat([part.iloc[[0]]] * GRID_POINTS, ignore_index=True)
        column = part[self.time]
        if is_date(column):
            grid[self.time] = pd.date_range(column.min(), column.max(), periods=GRID_POINTS)
        else:
            numbers = read_numbers(column)
            grid[self.time] = np.linspace(numbers.min(), numbers.max(), GRID_POINTS)
        return grid

    def _near(self, rows: np.ndarray) -> np.ndarray:
        """The rows of the same task that are closest in time, these included."""
        time = self.fitted.plan.time
        assert time is not None
        times = self.table.x[:, time]
        task = next(task_rows for task_rows in self.table.rows if rows[0] in task_rows)
        low, high = times[rows].min(), times[rows].max()
        distance = np.maximum(np.maximum(low - times[task], times[task] - high), 0.0)
        inside = int((distance == 0).sum())
        return task[np.argsort(distance, kind="stable")[: inside + 2 * NEAR_ROWS]]

    @cached_property
    def coordinates(self) -> tuple[str, str] | None:
        """The inputs to the right and upwards."""
        names = {name.lower(): name for name in self.inputs}
        pairs = [[names[name] for found in pair for name in names if name in found] for pair in COORDINATES]
        pairs.append([self.inputs[d] for d in self.fitted.plan.space])
        for pair in pairs:
            if len(pair) == 2 and self.frame[pair].drop_duplicates().shape[0] >= FEWEST_PLACES:
                return pair[0], pair[1]
        return None

    @cached_property
    def mapped(self) -> int:
        """The output on the map: that with most values."""
        return int((~self.known.isnan()).sum(0).argmax())

    @cached_property
    def moments(self) -> list[np.ndarray]:
        """The rows of a moment with as many known places as there are, and of one with many holes between them."""
        if self.coordinates is None or not self.drawn:
            return []
        known = ~self.known[:, self.mapped].isnan().numpy()
        groups = groups_of_rows(self.frame, self.moment_columns)
        counts = [(int(known[rows].sum()), int((~known[rows]).sum())) for rows in groups]
        full = max(range(len(groups)), key=lambda i: (counts[i][0], -counts[i][1]))
        holes = max(range(len(groups)), key=lambda i: (min(counts[i]), counts[i][1]))
        return [groups[i] for i in dict.fromkeys([full, holes])]

    @property
    def moment_columns(self) -> list[str]:
        """The columns whose values the rows of a map have in common."""
        assert self.coordinates is not None
        together = [] if self.task is None else [self.task]
        return together if self.time is None or self.time in self.coordinates else [*together, self.time]

    def positions(self, frame: pd.DataFrame) -> Tensor:
        """Positions of rows in time, as the axis of a picture has them (`N`)."""
        column = frame[self.time]
        return torch.tensor(date2num(column) if is_date(column) else read_numbers(column))
