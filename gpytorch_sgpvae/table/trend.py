"""The trend, which is taken off the targets before any model: constants of places, and cycles of time."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

import numpy as np

from .blocks import MOST_ENTRIES
from .cycles import Cycles
from .inputs import InputColumn
from .outputs import Outputs
from .places import FEWEST_ROWS, PlaceEffects
from .plan import Plan
from .reading import TaskTable

# Without tasks, times are cut into this many stretches, each of which counts as one.
NUM_STRETCHES = 30
# A place with its neighbors, in a field.
NEIGHBORHOOD = 25


@dataclass(frozen=True)
class Trend:
    """
    Constants of places, and cycles, of outputs whose targets are Gaussian.

    :param places: The constants.
    :param cycles: The cycles.
    :param time: The input that cycles are of, or None.
    """

    places: PlaceEffects
    cycles: Cycles
    time: int | None

    @classmethod
    def none(cls, num_outputs: int) -> Trend:
        """Nothing is taken off."""
        return cls(PlaceEffects.none(num_outputs), Cycles.none(num_outputs), None)

    @classmethod
    def fit(cls, inputs: list[InputColumn], outputs: Outputs, plan: Plan, table: TaskTable, seed: int) -> Trend:
        """
        :param inputs: The input columns.
        :param outputs: The output columns.
        :param plan: The shape of the model.
        :param table: The table.
        :param seed: Seed of what is drawn.
        """
        gaussian = [column.is_gaussian for column in outputs.columns]
        groups = np.zeros(len(table.x), dtype=int)
        for number, rows in enumerate(table.rows):
            groups[rows] = number
        if len(table.rows) < NUM_STRETCHES and plan.has_places:
            times = table.x[:, plan.time]
            # each with some rows of a place
            pieces = min(NUM_STRETCHES, max(1, len(np.unique(times)) // FEWEST_ROWS))
            width = np.ptp(times) / pieces
            stretches = np.floor((times - times.min()) / (width if width > 0 else 1.0)).astype(int).clip(max=pieces - 1)
            groups = np.unique(groups * (NUM_STRETCHES + 1) + stretches, return_inverse=True)[1].reshape(-1)
        places = PlaceEffects.none(len(outputs))
        if plan.has_places:
            fit = partial(PlaceEffects.fit, table.x, table.y, groups)
            places = fit(gaussian, plan.place, seed, not plan.labels)
            if len(places.places) and _is_seen_at_once(table, plan):
                additive = [is_gaussian and not places.is_smooth(p) for p, is_gaussian in enumerate(gaussian)]
                places = places if additive == gaussian else fit(additive, plan.place, seed, not plan.labels)
        if plan.time is None:
            return cls(places, Cycles.none(len(outputs)), None)
        rest = table.y - places.at(table.x)[0]
        cycles = Cycles.fit(table.raw[:, plan.time], rest, np.array(gaussian), inputs[plan.time].is_date)
        return cls(places, cycles, plan.time)

    def at(self, table: TaskTable, rows: np.ndarray | slice = slice(None)) -> tuple[np.ndarray, np.ndarray]:
        """The trend in some rows, and the deviation of constants that are not known (`n x P` each)."""
        effects, spread = self.places.at(table.x[rows])
        if self.time is not None:
            effects = effects + self.cycles.at(table.raw[rows, self.time])
        return effects, spread


def _is_seen_at_once(table: TaskTable, plan: Plan) -> bool:
    """
    Return whether a block of the model has room for the whole record of a place and its neighbors. Then the model
    itself sees what stays the same in a field. Constants would be means over a short time, in which slow changes look
    like constants, and would be taken for certain.
    """
    times = len(np.unique(table.x[:, plan.time]))
    return len(table.rows) == 1 and NEIGHBORHOOD * times * table.y.shape[1] <= MOST_ENTRIES
