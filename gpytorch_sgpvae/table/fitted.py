"""What fitting a table gives: all that is needed to predict its entries, and to be saved."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from ..context import Context
from ..likelihoods import Prediction
from ..models import SGPVAE
from ..utils.seeds import derive_seed, seeded
from .places import PlaceEffects
from .reading import TableReader, TaskTable

# Samples of the latent functions in a prediction, and rows that are predicted at a time.
NUM_SAMPLES = 100
ROWS_AT_A_TIME = 2000


@dataclass(frozen=True)
class FittedTable:
    """
    A model of a table, with the way from the table's columns to its numbers and back.

    :param reader: What was learnt of the columns.
    :param effects: The constants of places.
    :param model: The model of the targets, less these constants.
    :param history: The scores of held-out entries in the course of training.
    """

    reader: TableReader
    effects: PlaceEffects
    model: SGPVAE
    history: pd.DataFrame

    def predictions(
        self, context: TaskTable, places: TaskTable, rows: np.ndarray, seed: int, one_by_one: bool = False
    ) -> Iterator[tuple[np.ndarray, Prediction]]:
        """
        Yield some rows at a time with their prediction, in the columns' units (`n x P`). Until the last one has been
        taken, all that the caller draws at random comes from the seed too.

        :param context: What is known.
        :param places: Where to predict.
        :param rows: Which of these rows.
        :param seed: The seed of all random numbers.
        :param one_by_one: Whether each task is to be predicted at once.
        """
        wanted = np.zeros(len(places.x), dtype=bool)
        wanted[rows] = True
        targets = context.y - self.effects.at(context.x)[0]
        effects, spread = self.effects.at(places.x)  # (N, P)
        nothing = np.zeros(0, dtype=int)
        with torch.no_grad(), seeded(derive_seed("predict", seed)):
            for number, task_rows in enumerate(places.rows):
                asked = task_rows[wanted[task_rows]]
                if not len(asked):
                    continue
                known = context.rows[number] if number < len(context.rows) else nothing
                seen = Context(self.as_tensor(context.x[known]), self.as_tensor(targets[known]))
                posterior = self.model.condition(seen, ROWS_AT_A_TIME)
                size = len(asked) if one_by_one else ROWS_AT_A_TIME
                for start in range(0, len(asked), size):
                    part = asked[start : start + size]
                    of_targets = Prediction.from_posterior(
                        self.model.likelihood,
                        posterior,
                        self.as_tensor(places.x[part]),
                        NUM_SAMPLES,
                        chunk_size=ROWS_AT_A_TIME if one_by_one else None,
                    )
                    added = self.as_tensor(effects[part]), self.as_tensor(spread[part])
                    yield part, of_targets.transform(self.reader.outputs.in_units, *added)

    def as_tensor(self, values: np.ndarray) -> Tensor:
        """Numbers of the model's type, on its device."""
        parameter = next(self.model.parameters())
        return torch.as_tensor(values, dtype=parameter.dtype, device=parameter.device)
