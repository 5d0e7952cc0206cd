"""Which model suits a table, by its shape: what its inputs are, and how its rows run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from .inputs import InputColumn
from .reading import TaskTable

# Inputs that agree in this many digits are the same.
DIGITS = 9
# Dimensions of the states of all latent functions of a Markov model, at most: its cost is quadratic in them.
MOST_STATES = 64
# Shared latent functions of each of the three groups, at most: over time, where they cost, a few are enough.
MOST_SHARED, MOST_SHARED_OVER_TIME = 12, 3
# A rough process (of one dimension) and a smooth one (of two) for each of the decoder's values.
PRIVATE_STATES = 3
# Groups of shared latent functions: rough and short, smooth, rough and long.
NUM_GROUPS, GROUP_STATES = 3, 4
# A place comes again if it has this many rows, on average.
FEWEST_ROWS_OF_PLACE = 3
# Places have a learnt embedding if there are this many of them, with this many rows each on average.
FEWEST_EMBEDDED, MOST_EMBEDDED, FEWEST_ROWS_OF_EMBEDDED = 3, 64, 200
# With inducing points: shared latent functions, at most, and their inducing points.
MOST_SHARED_SPARSE, MOST_INDUCING, FEWEST_INDUCING = 8, 150, 20


@dataclass(frozen=True)
class Plan:
    """
    The model of a table.

    :param kind: `"markov"`, for rows along time: exact, in time proportional to their number; `"dense"`, for rows in
        space, or in space and time: exact in blocks of neighboring rows; `"sparse"`, with inducing points.
    :param time: The input along which rows run, or None.
    :param space: The other inputs that are numbers.
    :param labels: Inputs that are labels.
    :param cycles: Inputs with a period.
    :param has_places: Whether places, made of all inputs but the time, come again.
    :param group_size: Latent functions that all outputs share, in each group of them.
    :param num_groups: How many groups there are, with different kernels.
    :param num_private: Latent functions that each of the decoder's values has for itself.
    :param num_inducing: Number of inducing points of a sparse model.
    :param num_embedded: Number of places that have a learnt embedding, 0 for none.
    """

    kind: str
    time: int | None
    space: tuple[int, ...]
    labels: tuple[int, ...]
    cycles: tuple[int, ...]
    has_places: bool
    group_size: int
    num_groups: int
    num_private: int
    num_inducing: int | None = None
    num_embedded: int = 0

    def __post_init__(self) -> None:
        for name in ("space", "labels", "cycles"):  # JSON has lists only
            object.__setattr__(self, name, tuple(getattr(self, name)))

    @property
    def num_shared(self) -> int:
        """Latent functions that all outputs share."""
        return self.group_size * self.num_groups

    @property
    def place(self) -> tuple[int, ...]:
        """The inputs that make a place."""
        return (*self.space, *self.labels)

    @property
    def numbers(self) -> tuple[int, ...]:
        """The inputs that have distances: the time, if there is one, and those of space."""
        return (*(() if self.time is None else (self.time,)), *self.space)

    def to_dict(self) -> dict[str, Any]:
        """A description that JSON can hold, from which `Plan(**description)` makes it again."""
        return asdict(self)

    @property
    def description(self) -> str:
        """The model in a sentence, for those who wonder."""
        kinds = {
            "markov": "exact inference over time (Markov)",
            "dense": "exact inference in blocks of neighboring rows (dense)",
            "sparse": f"{self.num_inducing} inducing points (sparse)",
        }
        return (
            f"Model: {kinds[self.kind]}; {self.num_shared} latent functions that all outputs share, and "
            f"{self.num_private} of each output's own"
        )


def make_plan(
    inputs: Sequence[InputColumn],
    table: TaskTable,
    num_values: int,
    num_latents: int | None = None,
    num_inducing: int | None = None,
) -> Plan:
    """
    Choose the model by the shape of the table.

    :param inputs: The input columns.
    :param table: The table.
    :param num_values: The decoder's values for a row: one for each output, or as many as a category has labels.
    :param num_latents: Latent functions that all outputs share, if not the usual number.
    :param num_inducing: Number of inducing points: a sparse model, whatever the table's shape.
    """
    labels = tuple(d for d, column in enumerate(inputs) if column.is_category)
    cycles = tuple(d for d, column in enumerate(inputs) if column.period is not None)
    plain = [d for d in range(len(inputs)) if d not in labels and d not in cycles]
    time = _find_time(inputs, plain, labels, table)
    space = tuple(d for d in plain if d != time)
    rest = [*space, *labels]
    has_places = time is not None and bool(rest) and _come_again(table.x[:, rest])
    kind = "dense"
    if num_inducing is not None:
        kind = "sparse"
    elif time is not None and _vary_in_time_only(table, time):
        kind, has_places = "markov", False
    if kind == "markov":
        num_private = 2 if PRIVATE_STATES * num_values + GROUP_STATES <= MOST_STATES else 1
        left = MOST_STATES - (PRIVATE_STATES if num_private == 2 else 1) * num_values
        if left < GROUP_STATES:
            num_private, left = 0, MOST_STATES
        most = MOST_SHARED_OVER_TIME if num_private else MOST_STATES
        group_size, num_groups = max(1, min(num_values, most, left // GROUP_STATES)), NUM_GROUPS
    elif kind == "dense":
        group_size, num_groups, num_private = min(num_values, MOST_SHARED), NUM_GROUPS, 2
    else:
        group_size, num_groups = min(MOST_SHARED_SPARSE, num_values // 2 + 1), 1
        num_private = int(group_size + num_values <= 2 * MOST_SHARED_SPARSE)
    if num_latents is not None:
        num_groups = min(num_groups, num_latents)
        group_size = num_latents // num_groups
    num_embedded = len(different_places(table.x[:, rest])) if kind == "dense" and has_places else 0
    if not FEWEST_EMBEDDED <= num_embedded <= min(MOST_EMBEDDED, len(table.x) / FEWEST_ROWS_OF_EMBEDDED):
        num_embedded = 0
    shape = group_size, num_groups, num_private
    return Plan(kind, time, space, labels, cycles, has_places, *shape, num_inducing, num_embedded)


def different_places(x: np.ndarray) -> np.ndarray:
    """The different rows of inputs (`S x D`)."""
    return np.unique(x.round(DIGITS), axis=0)


def number_places(x: np.ndarray) -> np.ndarray:
    """A number for each row, which rows with equal inputs share (`N`)."""
    if not x.shape[1]:
        return np.zeros(len(x), dtype=int)
    return np.unique(x.round(DIGITS), axis=0, return_inverse=True)[1].reshape(-1)


def _find_time(
    inputs: Sequence[InputColumn], plain: list[int], labels: tuple[int, ...], table: TaskTable
) -> int | None:
    """
    The input along which rows run: a date, the only number, or that without which places come again most often, of
    those with even steps if there are any.
    """
    dates = [d for d in plain if inputs[d].is_date]
    if len(dates) == 1:
        return dates[0]
    if len(plain) == 1:
        return plain[0]
    candidates = dates or [d for d in plain if _has_even_steps(table.x[:, d])] or plain
    if not candidates:
        return None
    counts = {
        d: len(np.unique(number_places(table.x[:, [k for k in (*plain, *labels) if k != d]]))) for d in candidates
    }
    best = min(candidates, key=lambda d: counts[d])
    return best if len(table.x) >= FEWEST_ROWS_OF_PLACE * counts[best] else None


def _has_even_steps(values: np.ndarray) -> bool:
    """Whether values mostly follow each other in steps of one size, as hours and days do and positions do not."""
    steps = np.diff(np.unique(values.round(DIGITS)))
    return len(steps) > 1 and bool((steps < 1.5 * steps.min()).mean() > 0.5)


def _come_again(places: np.ndarray) -> bool:
    number = len(np.unique(number_places(places)))
    return number > 1 and len(places) >= FEWEST_ROWS_OF_PLACE * number


def _vary_in_time_only(table: TaskTable, time: int) -> bool:
    """Whether the rows of each task differ in time alone."""
    rest = np.delete(table.x, time, axis=1)
    return all(not len(rows) or bool((rest[rows] == rest[rows[0]]).all()) for rows in table.rows)
