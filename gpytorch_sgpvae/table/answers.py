"""What a fitted imputer is asked: to fill a table, to predict rows that it does not have, to judge itself."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from typing import Any

import numpy as np
import pandas as pd
import torch
from torch import Tensor
from tqdm import tqdm

from ..likelihoods import Prediction
from ..utils.seeds import derive_seed, seeded
from .errors import TableError, TableWarning, listed
from .estimator import TableEstimator
from .filling import fill, fill_with, hide
from .fitted import in_order
from .forecast import rows_past_the_end
from .form import GivenTable
from .frames import read_frame
from .judgment import known_values, unlike_the_fit
from .outputs import Outputs
from .reading import TaskTable
from .settings import check_seed
from .summaries import overall, score, summarize

# Predictions of more rows take long enough for a progress bar.
MOST_ROWS_WITHOUT_BAR = 5000


class TableAnswers(TableEstimator):
    """
    The questions that a fitted imputer answers. What goes out is of the kind that came in: a table of pandas, Polars or
    Arrow, or an array.
    """

    seed: int
    progress: bool

    @property
    def outputs_(self) -> Outputs:
        return self.fitted_.reader.outputs.filled

    def transform(self, df: Any, intervals: bool = False) -> Any:
        """
        The table with the holes of its outputs filled: everything else, the order of the rows and the index are as they
        were.

        :param df: With the columns of the table that was fitted; its tasks may be others.
        :param intervals: Whether to add, for each output NAME, `NAME_std`, `NAME_lower` and `NAME_upper` (a 95 %
            interval), empty where a value was known, and `NAME_filled`, whether it was not.
        """
        given, container = self._open(df), self._container
        names = self.outputs_.names
        table = self.fitted_.reader.read(given.frame)
        holes = self._holes(table)
        asked = given.asked(holes)
        if not asked.any():
            warnings.warn("The outputs have no holes: the table is returned as it came.", TableWarning, stacklevel=2)
        if intervals:
            given.check_added(names)
        text = unlike_the_fit(self.fitted_, table, self.seed)
        if text is not None:
            warnings.warn(text, TableWarning, stacklevel=2)
        rows = np.flatnonzero(asked.any(1))
        summary = summarize(self.outputs_, self._predictions(table, table, rows), rows, intervals)
        filled = fill(given.frame, self.outputs_, asked, summary, intervals)
        return given.filled(filled, names, holes, container)

    def predict(self, df: Any, context: Any = None) -> Any:
        """
        Predict the outputs at new inputs, with the index of these: for each output NAME the columns `NAME` (the mean;
        of a count rounded; of flags and categories the most probable label), `NAME_std`, `NAME_lower` and `NAME_upper`
        (a 95 % interval). Flags and categories also have `NAME_probability`, that of the label, and their `NAME_std` is
        the standard deviation of being right; categories have no order and so no interval.

        :param df: With the input columns, and that of the task.
        :param context: What is known of the tasks, as for :meth:`transform`; by default `df` itself, whose known
            entries are then predicted as if they were measured once more.
        """
        places = self._open(df, is_places=context is not None)
        known = places.frame if context is None else self._open(context).frame
        return places.predicted(self._predict(places.frame, known))

    def forecast(self, df: Any, horizon: int) -> Any:
        """
        Predict the outputs past the end of a table: for each series (the rows that agree in the task and in all inputs
        but the time) further rows at its usual step after its last one, with the columns of :meth:`predict` beside
        their task and inputs. Covariates and inputs with a period are not known then: predict rows that have them.

        :param df: As for :meth:`transform`.
        :param horizon: How many rows for each series.
        """
        given = self._open(df)
        places = rows_past_the_end(self.fitted_, given.frame, horizon)
        return given.ahead(places, self._predict(places, given.frame))

    @torch.no_grad()
    def predictive(self, df: Any, context: Any = None) -> Prediction:
        """
        The whole distributions that :meth:`predict` summarizes: of all outputs in all rows, in the outputs' own units
        (`N x P`); values of flags and categories are numbers of labels, in the order of `outputs_.columns[p].levels`.
        In long format all sensors are predicted in each row, at its place.

        :param df: As for :meth:`predict`.
        :param context: As for :meth:`predict`.

        Example:
            >>> import numpy as np, pandas as pd
            >>> from gpytorch_sgpvae.table import SGPVAEImputer
            >>> table = pd.DataFrame({"site": np.repeat(list("abcdef"), 9), "day": np.tile(np.arange(9.0), 6)})
            >>> table["warmth"] = np.sin(table["day"])
            >>> imputer = SGPVAEImputer(["day"], ["warmth"], task="site", max_epochs=1, progress=False).fit(table)
            >>> imputer.predictive(table, context=table).quantile([0.1, 0.9]).shape
            torch.Size([2, 54, 1])
        """
        places = self._open(df, is_places=context is not None)
        known = places.frame if context is None else self._open(context).frame
        every = np.arange(len(places.frame))
        with seeded(derive_seed("predictive", self.seed)):
            parts = self._predictions(*self._read_places(places.frame, known), every)
            return in_order(list(parts), places.of_rows(every))

    def scores(self, df: Any, fraction: float = 0.1, seed: int = 0) -> Any:
        """
        How well known entries are predicted when they are hidden, a row for each output: its family; their number `n`;
        `rmse` and `mae` of the mean (of flags, of the probability; of categories nothing); `nll`, minus the mean log
        density, in nats; `crps`, the continuous ranked probability score; `coverage` of the 95 % interval; `accuracy`
        of the labels of flags and categories. All are in the column's units.

        :param df: As for :meth:`transform`.
        :param fraction: Fraction of the known entries, to be hidden.
        :param seed: Seed of their choice.
        """
        given = self._open(df)
        return given.given.listed(self._scores(given.frame, fraction, seed))

    def score(self, df: Any, y: Any = None) -> float:
        r"""
        How well known entries are predicted when they are hidden, in one number for scikit-learn's `cross_val_score`
        and `GridSearchCV`. Higher is better, and 0 is the best. A tenth of the known entries is hidden, as by
        :meth:`scores`:

        .. math::

            - \frac 1 P \sum_p \mathrm{CRPS}_p / s_p

        with :math:`s_p` the standard deviation of the table's known values; of flags and categories the share of wrong
        labels takes the place of :math:`\mathrm{CRPS}_p / s_p`.

        :param df: As for :meth:`transform`.
        :param y: Not used.
        """
        frame = self._open(df).frame
        return overall(self.outputs_, self._scores(frame), self.read_outputs(df))

    def sample(self, df: Any, n: int) -> list[Any]:
        """
        Draw n filled tables: each is one of the ways the missing values may have been, jointly over all rows of a
        series over time, and over blocks of neighboring rows in other tables.

        :param df: As for :meth:`transform`.
        :param n: How many.
        """
        if n < 1:
            raise TableError(f"The number of samples must be at least 1, got {n}.")
        given = self._open(df)
        table = self.fitted_.reader.read(given.frame)
        holes = self._holes(table)
        asked = given.asked(holes)
        rows = np.flatnonzero(asked.any(1))
        draws = np.full((n, *holes.shape), np.nan)
        for numbers, values in self.fitted_.draws(table, table, rows, n, self.seed):
            draws[:, numbers] = values.cpu().numpy()
        drawn = (fill_with(given.frame, self.outputs_, asked, draw) for draw in draws)
        return [given.filled(frame, self.outputs_.names, holes) for frame in drawn]

    def read_outputs(self, df: Any) -> Tensor:
        """
        What is known of the outputs, as numbers in their own units, NaN where it is missing (`N x P`). Flags and
        categories are numbers of labels.

        :param df: As for :meth:`transform`; of a table in long format the rows are those of :meth:`as_wide`.
        """
        return torch.tensor(known_values(self.outputs_, self.fitted_.reader.read(self.as_wide(df))))

    def as_wide(self, df: Any) -> pd.DataFrame:
        """
        The table as pandas has it, with a column for each output, which it already has unless it is in long format.

        :param df: As for :meth:`transform`.
        """
        return self._open(df).frame

    def hide(self, df: Any, fraction: float = 0.1, seed: int = 0) -> tuple[Any, Any]:
        """
        Hide known entries of the outputs, to ask for them: the table with more holes, and where they are (True), with
        a column for each output.

        :param df: As for :meth:`transform`.
        :param fraction: Fraction of the known entries.
        :param seed: Seed of their choice.
        """
        check_seed(seed)
        given = self._open(df)
        return given.hidden(*hide(given.frame, self.outputs_.names, fraction, seed))

    def _open(self, df: Any, is_places: bool = False) -> GivenTable:
        return self.fitted_.form.open(read_frame(df), is_places)

    def _predict(self, places: pd.DataFrame, context: pd.DataFrame) -> pd.DataFrame:
        table, asked = self._read_places(places, context)
        unknown = asked.keys[len(table.keys) :]
        if unknown:
            warnings.warn(
                f"The context has no rows of the task{'s' if len(unknown) > 1 else ''} {listed(unknown[:5])}: nothing "
                "is known of it but what tasks are like in general.",
                TableWarning,
                stacklevel=3,
            )
        rows = np.arange(len(places))
        return summarize(self.outputs_, self._predictions(table, asked, rows), rows, intervals=True)

    def _scores(self, frame: pd.DataFrame, fraction: float = 0.1, seed: int = 0) -> pd.DataFrame:
        check_seed(seed)
        fitted = self.fitted_
        masked, mask = hide(frame, self.outputs_.names, fraction, seed)
        hidden = mask.to_numpy()
        truth = np.where(hidden, known_values(self.outputs_, fitted.reader.read(frame)), np.nan)
        table = fitted.reader.read(masked)
        predictions = self._predictions(table, table, np.flatnonzero(hidden.any(1)))
        return score(self.outputs_, predictions, fitted.as_tensor(truth))

    def _read_places(self, df: pd.DataFrame, context: pd.DataFrame) -> tuple[TaskTable, TaskTable]:
        reader = self.fitted_.reader
        table = reader.read(context)
        return table, table if df is context else reader.read_places(df, context, table)

    def _holes(self, table: TaskTable) -> np.ndarray:
        """Which entries of the outputs are missing (`N x P`)."""
        return np.isnan(table.y[:, : self.fitted_.reader.num_filled])

    def _predictions(
        self, context: TaskTable, places: TaskTable, rows: np.ndarray
    ) -> Iterator[tuple[np.ndarray, Prediction]]:
        shown = self.progress and len(rows) > MOST_ROWS_WITHOUT_BAR
        with tqdm(total=len(rows), desc="predict", unit="row", disable=not shown) as bar:
            for asked, prediction in self.fitted_.predictions(context, places, rows, self.seed):
                yield asked, prediction
                bar.update(len(asked))
