from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas as pd
import torch

from .answers import TableAnswers
from .choice import settled
from .fitted import FittedTable
from .fitting import fit_table, update_table
from .form import TableForm
from .frames import read_frame
from .settings import Settings
from .storage import load_table, save_table

# Rows of a sample of a data set that is larger than memory.
SAMPLE_ROWS = 100_000


class SGPVAEImputer(TableAnswers):
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

    Tables are of pandas, Polars or Arrow, or arrays of two dimensions, whose columns are called by their numbers; what
    goes out is of the kind that came in.

    :param inputs: Columns that say where a row is: numbers, dates or labels, without holes. Inputs and the task may be
        levels of the index by their names; an index of dates without a name is `"index"`. By default the index if it
        has dates, and otherwise the number of the row, from 0 in each table.
    :param outputs: Columns with holes, by default all other columns of numbers that have two different values.
    :param task: Column with the same value in all rows of a task, or what makes tasks of a column of dates, such as
        `"week(date)"` (hour, day, week, month, quarter, year); None if the table is one task.
    :param long: For a table in long format, with a row for each reading: the column that names the sensor and that of
        the value, such as `("sensor", "value")`. Outputs are the names of sensors then, by default all in the table.
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
        trained on from where they are, for a quarter of the steps. The columns, their families and units, the model's
        shape and the trend stay as they were fitted. A tenth of the new known entries is held out again: training goes
        back to where they were predicted best, be it its beginning, and intervals are made as wide as they demand.
        Outputs with few of them keep the earlier intervals. The first call is :meth:`fit`.

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

        :param source: A folder, a file, a list of files, or a `pyarrow.dataset.Dataset`: Parquet or CSV.
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
