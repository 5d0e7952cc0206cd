from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from torch import Tensor
from tqdm import tqdm

from ..likelihoods import Prediction
from ..utils.seeds import derive_seed, seeded
from .choice import settled
from .errors import TableError, TableWarning, listed
from .estimator import TableEstimator
from .filling import fill, fill_with, hide
from .fitted import FittedTable, in_order
from .fitting import fit_table, update_table
from .forecast import rows_past_the_end
from .form import GivenTable, TableForm
from .frames import read_frame
from .judgment import known_values, unlike_the_fit
from .outputs import Outputs
from .reading import TaskTable
from .settings import Settings, check_seed
from .storage import load_table, save_table
from .summaries import overall, score, summarize

# Predictions of more rows take long enough for a progress bar.
MOST_ROWS_WITHOUT_BAR = 5000
# Rows of a sample of a data set that is larger than memory.
SAMPLE_ROWS = 100_000


class SGPVAEImputer(TableEstimator):
    r"""
    Fills the holes of a table, with error bars, and predicts rows that it does not have. The rows of a task (a week, a
    patient, a recording; or the whole table) are points :math:`\mathbf x` with outputs :math:`\mathbf y`, some of them
    missing. Gaussian processes over the inputs, some of which all outputs share and some of which each has for itself,
    explain all outputs together, so that a hole is filled from the same row and from rows nearby:

    .. math::

        h_{nj} = \sum_k w_{jk} f_k(\mathbf x_n) + \sum_i v_{ji} \, g_{ji}(\mathbf x_n) + b_j, \qquad
        p(y_{np} \mid \text{all known entries of the task})

    They are inferred together; where outputs are Gaussian the posterior is exact. Fitted once, it fills tables with
    tasks that it has never seen.

    **The model** follows from the table's shape. Where the rows of each task differ in time alone, it is a
    :class:`~gpytorch_sgpvae.MarkovGPVAE`, exact for series of any length; no task is needed. Rows in space, or in space
    and time, have a :class:`~gpytorch_sgpvae.GPVAE` without inducing points, which looks at blocks of neighboring rows;
    places that come again (stations) have constants and processes of their own. With `num_inducing` it is an
    :class:`~gpytorch_sgpvae.SGPVAE`. Cycles of the day, the year and others that the data's spectrum shows are taken
    off first.

    **The fit** holds out a tenth of the known entries, single ones and runs like real outages, of at most 15,000 rows.
    It trains on the rest, for a fixed number of steps and `max_minutes` at the most, stops when held-out entries are
    predicted no better, and goes back to where they were predicted best. Then it makes intervals as wide as these
    entries demand, and compares its errors with those of simpler ways (`comparison_`); a warning tells where it is
    behind.

    Inputs are standardized. Dates, also as text, are counted in days, from the start of each task where no two tasks
    overlap in time (so that the weeks of a year share what is learnt about a week), otherwise from a fixed day.

    The family of each output is guessed, and told in the log and by `families_`: real, positive (log-normal), amount
    (often exactly zero, as rain is), count, flag (two values), category (labels).

    :param inputs: Columns that say where a row is: numbers, dates or labels, without holes. Inputs and the task may be
        levels of the index by their names; an index of dates without a name is `"index"`.
    :param outputs: Columns with holes.
    :param task: Column with the same value in all rows of a task, or what makes tasks of a column of dates, such as
        `"week(date)"` (hour, day, week, month, quarter, year); None if the table is one task.
    :param covariates: Columns without holes that tell of the outputs, and are never filled: a forecast, say.
    :param periodic: Periods of inputs, in the column's units, or in days for dates: `{"hour": 24}` gives a periodic
        kernel on that input times the one on the others.
    :param families: Families of outputs for which the guess is wrong; category also for inputs whose numbers are
        labels.
    :param num_latents: Number of latent functions that all outputs share, by default by the table's shape.
    :param num_inducing: Number of inducing points M, for a sparse model; by default there are none.
    :param batch_size: Windows of the table in a training step, by default by the table's shape.
    :param max_epochs: Rounds over these windows at the most, by default a number of steps.
    :param max_minutes: Minutes of training at the most; by default one, and one more for each 20,000 rows, up to ten.
        Where the time is up before the steps are done, the same seed may give another model.
    :param compare: Whether `fit` compares itself with simpler ways, which takes seconds to a minute.
    :param seed: Seed of everything random: the same table and seed give the same model and the same predictions.
    :param device: By default the CPU.
    :param dtype: Type of the computations, `"float64"` or `"float32"`.
    :param devices: Processes on this machine that share the training, see :doc:`/docs/large_tables`.
    :param num_nodes: Machines that share it.
    :param progress: Whether `fit`, and predictions of more than 5000 rows, show a progress bar.

    :ivar families\_: The family of each output, by its name.
    :ivar outputs\_: The fitted output columns, `outputs_.columns`, each of the class of its family.
    :ivar comparison\_: The errors of held-out entries, in standard deviations of each output, beside those of the mean,
        linear interpolation and boosted trees, a DataFrame.
    :ivar history\_: The scores of held-out entries in the course of training, a DataFrame.
    :ivar fitted\_: All that was fitted, for those who want to look into it: columns, plan, trend, model, calibration.
    :ivar model\_: The model, an :class:`~gpytorch_sgpvae.AmortizedModel`.

    Example:
        >>> import numpy as np, pandas as pd
        >>> from gpytorch_sgpvae.table import SGPVAEImputer
        >>> day = np.tile(np.arange(14.0), 6)
        >>> table = pd.DataFrame({"site": np.repeat(list("abcdef"), 14), "day": day, "warm": 9 + np.sin(day)})
        >>> table["warmer"] = 2 * table["warm"] - 3
        >>> table.loc[::5, "warmer"] = np.nan
        >>> imputer = SGPVAEImputer(["day"], ["warm", "warmer"], task="site", max_epochs=5, progress=False)
        >>> filled = imputer.fit(table).transform(table)
        >>> int(table["warmer"].isna().sum()), int(filled["warmer"].isna().sum())
        (17, 0)
        >>> imputer.predict(pd.DataFrame({"site": ["a"], "day": [3.5]}), context=table).columns.tolist()[:4]
        ['warm', 'warm_std', 'warm_lower', 'warm_upper']
    """

    def __init__(
        self,
        inputs: Sequence[str | int] | None = None,
        outputs: Sequence[str | int] | None = None,
        task: str | int | None = None,
        *,
        long: Sequence[str] | None = None,
        covariates: Sequence[str] = (),
        periodic: Mapping[str, float] | None = None,
        families: Mapping[str, str] | None = None,
        num_latents: int | None = None,
        num_inducing: int | None = None,
        batch_size: int | None = None,
        max_epochs: int | None = None,
        max_minutes: float | None = None,
        compare: bool = True,
        seed: int = 0,
        device: str | torch.device | None = None,
        dtype: str | torch.dtype = "float64",
        devices: int = 1,
        num_nodes: int = 1,
        progress: bool = True,
    ):
        self.inputs = inputs
        self.outputs = outputs
        self.task = task
        self.long = long
        self.covariates = covariates
        self.periodic = periodic
        self.families = families
        self.num_latents = num_latents
        self.num_inducing = num_inducing
        self.batch_size = batch_size
        self.max_epochs = max_epochs
        self.max_minutes = max_minutes
        self.compare = compare
        self.seed = seed
        self.device = device
        self.dtype = dtype
        self.devices = devices
        self.num_nodes = num_nodes
        self.progress = progress

    def fit(self, df: Any, y: Any = None) -> SGPVAEImputer:
        """
        Learn from a table with holes, or without any.

        :param df: With all input and output columns, and that of the task.
        :param y: Not used.
        """
        given = read_frame(df)
        settings = settled(Settings(**self.get_params(deep=False)), given)
        form = TableForm.fit(given, settings)
        if form.long is not None:
            settings = replace(settings, outputs=form.long.sensors)
        return self._take(fit_table(form.open(given).frame, settings, form))

    def partial_fit(self, df: Any, y: Any = None) -> SGPVAEImputer:
        """
        Learn from further tasks, or further rows, without the table that was fitted before: the model's parameters are
        trained on from where they are, for a quarter of the steps. The columns, their families
        and units, the model's shape and the trend stay as they were fitted. A tenth of the new known entries is held
        out again: training goes back to where they were predicted best, be it its beginning, and intervals are made as
        wide as they demand. Of outputs with few of them the earlier intervals stay. The first call is :meth:`fit`.

        The model is not shown the earlier tasks again: what is special about the new ones replaces what it had learnt,
        little by little. Where they are of another kind, in other units or with much faster changes, fit anew.

        :param df: A table of the columns that were fitted.
        :param y: Not used.
        """
        if not self.__sklearn_is_fitted__():
            return self.fit(df)
        settings = Settings(**self.get_params(deep=False))
        return self._take(update_table(self.fitted_, self._open(df).frame, settings))

    def fit_dataset(self, source: Any, sample_rows: int = SAMPLE_ROWS) -> SGPVAEImputer:
        """
        Learn from a data set that is larger than memory. What is learnt of columns, the trend, where the model starts,
        intervals and the comparison with simpler ways come from a sample, and each epoch of training has another. A
        sample is of up to 32 partitions (files, or row groups of large ones), drawn at random, and of each has whole
        tasks, drawn at random; where most tasks lie in several partitions, or there are none, stretches of time. Needs
        the extra `arrow`.

        :param source: A folder, a file, a list of files, or a :class:`pyarrow.dataset.Dataset`: Parquet or CSV.
        :param sample_rows: Rows of a sample, about. A data set with no more rows is fitted as the table that it is.
        """
        from .large.fit import fit_dataset

        return self._take(fit_dataset(source, Settings(**self.get_params(deep=False)), sample_rows))

    def impute_dataset(
        self,
        source: Any,
        target: str | Path,
        intervals: bool = True,
        workers: int = 1,
        scheduler: str | None = None,
    ) -> pd.DataFrame:
        """
        Fill the holes of a data set that is larger than memory, partition by partition, into Parquet files of the same
        names in another folder. Each is written whole or not at all; begun again, it goes on with those that are
        missing, or whose rows or model have changed. The rows of a task that lies in several partitions are filled
        together; a long series that goes on from one partition to the next is filled with 1000 rows of each series on
        either side. Needs the extra `arrow`, and `distributed` for several workers.

        :param source: As for :meth:`fit_dataset`.
        :param target: Folder for the filled partitions.
        :param intervals: Whether to add the columns that :meth:`transform` adds with intervals.
        :param workers: Processes on this machine, by Dask if there are several.
        :param scheduler: Address of a Dask scheduler, such as `tcp://10.0.0.1:8786`, whose workers see the same files,
            instead of workers on this machine.
        :return: A row for each partition: its name, rows, whether it was there already, seconds, and holes filled.
        """
        from .large.impute import impute_dataset

        return impute_dataset(self.fitted_, source, target, intervals, self.seed, self.progress, workers, scheduler)

    @property
    def comparison_(self) -> pd.DataFrame:
        return self.fitted_.comparison

    @property
    def families_(self) -> dict[str, str]:
        return {column.name: column.family for column in self.outputs_.columns}

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
        (a 95 % interval). Of flags and categories `NAME_probability` is that of the label, and `NAME_std` is the
        standard deviation of being right; categories have no order and so no interval.

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

    def save(self, path: str | Path) -> None:
        """
        Write the fitted model to a folder, JSON and tensors without any code: whole, or not at all.

        :param path: Path of the folder; a model that is there is replaced.
        """
        save_table(Path(path), self.fitted_, self.get_params(deep=False))

    @classmethod
    def load(
        cls, path: str | Path, device: str | torch.device | None = None, dtype: str | torch.dtype | None = None
    ) -> SGPVAEImputer:
        """
        A model that was saved, here or on another machine.

        :param path: Path of the folder.
        :param device: To compute on, by default the CPU.
        :param dtype: To compute with, by default that of the fit.
        """
        fitted, parameters = load_table(Path(path), device, dtype)
        imputer = cls(**parameters, device=device)
        if dtype is not None:
            imputer.dtype = dtype
        return imputer._take(fitted)

    def __repr__(self, **kwargs: Any) -> str:
        text = super().__repr__(**kwargs)
        return f"{text}\n{self.outputs_.description}" if hasattr(self, "_table") else text

    def _take(self, fitted: FittedTable) -> SGPVAEImputer:
        self._table = fitted
        self.model_, self.history_ = fitted.model, fitted.history
        return self

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
