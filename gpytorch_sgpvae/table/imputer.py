from __future__ import annotations

import logging
import warnings
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from linear_operator.utils.warnings import NumericalWarning
from sklearn.base import BaseEstimator, TransformerMixin
from torch import Tensor

from ..likelihoods import Prediction
from ..utils.seeds import derive_seed, seeded
from .errors import TableError, TableWarning, listed
from .fitted import FittedTable
from .learning import hold_out, train, training_tasks
from .model import as_dtype, check_device, find_centers, fit_units, make_model
from .outputs import Outputs
from .places import PlaceEffects
from .reading import TableReader, TaskTable, check_columns
from .storage import load_table, save_table
from .summaries import put, score, summarize

logger = logging.getLogger(__name__)

# Joint draws take a Cholesky factor of as many rows as have holes.
MOST_ROWS_JOINTLY = 3000


class SGPVAEImputer(TransformerMixin, BaseEstimator):
    r"""
    Fills the holes of a table, with error bars, and predicts rows that it does not have. The rows of a task (a week, a
    patient, a recording) are points :math:`\mathbf x` with outputs :math:`\mathbf y`, some of them missing; K Gaussian
    processes over the inputs and a decoder explain all outputs together (:class:`~gpytorch_sgpvae.SGPVAE`), so that a
    hole is filled from the same row and from rows nearby:

    .. math::

        p(y_{np} \mid \text{all known entries of the task})

    Fitted once, it fills tables with tasks that it has never seen.

    What is None is chosen from the table's shape: `num_latents` is half the number of outputs and one more, at most 8;
    `num_inducing` is 100, or 200 where a task has more than 2000 rows, but no more than there are different inputs;
    `batch_size` is as many tasks as have 1000 rows together, at most a tenth of them; `max_epochs` makes 1500 steps.
    `fit` holds out a tenth of the known entries (of as many tasks as have 10,000 rows together), trains on the rest,
    stops when these are predicted no better, and goes back to where they were predicted best.

    Where places come again in several tasks (the stations of all weeks), each has a constant of its own, for outputs of
    the families real and positive. Inputs are standardized. Dates, also as text, are counted in days, from the start of
    each task where no two tasks overlap in time (so that the weeks of a year share what is learnt about a week),
    otherwise from a fixed day.

    The family of each output is guessed, and told in the log and by `families_`: real, positive (log-normal), amount
    (often exactly zero, as rain is), count, flag (two values), category (labels).

    :param inputs: Columns that say where a row is: numbers, dates or labels, without holes. Inputs and the task may be
        levels of the index by their names; an index of dates without a name is `"index"`.
    :param outputs: Columns with holes.
    :param task: Column with the same value in all rows of a task, or what makes tasks of a column of dates, such as
        `"week(date)"` (hour, day, week, month, quarter, year); None if the table is one task.
    :param periodic: Periods of inputs, in the column's units, or in days for dates: `{"hour": 24}` gives a periodic
        kernel on that input times the one on the others.
    :param families: Families of outputs for which the guess is wrong; category for inputs whose numbers are labels.
    :param network: `"factornet"`, `"indexnet"`, `"pointnet"` or `"zeroimputation"`.
    :param num_latents: Number of latent functions K.
    :param num_inducing: Number of inducing points M.
    :param batch_size: Tasks in a training step.
    :param max_epochs: Epochs of training at the most.
    :param seed: Of everything random: the same table and seed give the same model and the same predictions.
    :param device: By default the CPU.
    :param dtype: Of the computations, `torch.float64` or `torch.float32`.
    :param progress: Whether `fit` shows a progress bar.

    :ivar families\_: The family of each output, by its name.
    :ivar outputs\_: The fitted output columns, `outputs_.columns`, each of the class of its family.
    :ivar history\_: The scores of held-out entries in the course of training, a DataFrame.
    :ivar model\_: The :class:`~gpytorch_sgpvae.SGPVAE`.

    Example:
        >>> import numpy as np, pandas as pd
        >>> from gpytorch_sgpvae.table import SGPVAEImputer
        >>> day = np.tile(np.arange(14.0), 6)
        >>> table = pd.DataFrame({"site": np.repeat(list("abcdef"), 14), "day": day, "warm": 9 + np.sin(day)})
        >>> table["warmer"] = 2 * table["warm"] - 3
        >>> table.loc[::5, "warmer"] = np.nan
        >>> imputer = SGPVAEImputer(["day"], ["warm", "warmer"], task="site", max_epochs=2, progress=False)
        >>> filled = imputer.fit(table).transform(table)
        >>> int(table["warmer"].isna().sum()), int(filled["warmer"].isna().sum())
        (17, 0)
        >>> imputer.predict(pd.DataFrame({"site": ["a"], "day": [3.5]}), context=table).columns.tolist()[:4]
        ['warm', 'warm_std', 'warm_lower', 'warm_upper']
    """

    def __init__(
        self,
        inputs: Sequence[str],
        outputs: Sequence[str],
        task: str | None = None,
        *,
        periodic: Mapping[str, float] | None = None,
        families: Mapping[str, str] | None = None,
        network: str = "factornet",
        num_latents: int | None = None,
        num_inducing: int | None = None,
        batch_size: int | None = None,
        max_epochs: int | None = None,
        seed: int = 0,
        device: str | torch.device | None = None,
        dtype: str | torch.dtype = torch.float64,
        progress: bool = True,
    ):
        self.inputs = inputs
        self.outputs = outputs
        self.task = task
        self.periodic = periodic
        self.families = families
        self.network = network
        self.num_latents = num_latents
        self.num_inducing = num_inducing
        self.batch_size = batch_size
        self.max_epochs = max_epochs
        self.seed = seed
        self.device = device
        self.dtype = dtype
        self.progress = progress

    def fit(self, df: pd.DataFrame, y: None = None) -> SGPVAEImputer:
        """
        Learn from a table with holes, or without any.

        :param df: With all input and output columns, and that of the task.
        :param y: Not used.
        """
        for name in ("num_latents", "num_inducing", "batch_size", "max_epochs"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise TableError(f"{name} must be at least 1, or None for a choice by the table's shape, got {value}.")
        check_device(self.device)
        reader = TableReader.fit(df, self.inputs, self.outputs, self.task, self.periodic or {}, self.families or {})
        table = reader.read(df)
        tasks = training_tasks(table, self.task)
        held_out = hold_out([y for _, y in tasks], self.seed)
        x, y_all = (np.concatenate(parts) for parts in zip(*tasks, strict=True))
        numbers = np.repeat(np.arange(len(tasks)), [len(rows) for rows, _ in tasks])
        shown = np.where(np.concatenate(held_out), np.nan, y_all)
        additive = [column.is_additive for column in reader.outputs.columns]
        effects = PlaceEffects.fit(x, shown, numbers, additive, self.seed)
        num_different = len(np.unique(x.round(9), axis=0))  # a period's remainders differ in the last digits
        longest = max(len(rows) for rows, _ in tasks)
        num_inducing = min(self.num_inducing or (100 if longest <= 2000 else 200), num_different)
        num_latents = self.num_latents or min(8, len(self.outputs) // 2 + 1)
        batch_size = self.batch_size or max(1, min(1000 * len(tasks) // len(x), len(tasks) // 10))
        with seeded(derive_seed("table", self.seed)):
            centers = self._as_tensor(find_centers(x, num_inducing, self.seed))
            periodic = [column.period is not None for column in reader.inputs]
            model = make_model(reader.outputs, periodic, self.network, num_latents, centers)
            fit_units(model, reader.outputs, y_all)
            logger.info("%s", reader.outputs.description)
            tensors = [(self._as_tensor(x), self._as_tensor(y - effects.at(x)[0])) for x, y in tasks]
            masks = [torch.tensor(mask, device=tensors[0][0].device) for mask in held_out]
            history = train(model, tensors, masks, batch_size, self.max_epochs, self.seed, self.progress)
        return self._take(FittedTable(reader, effects, model.eval(), pd.DataFrame(history)))

    @property
    def families_(self) -> dict[str, str]:
        return {column.name: column.family for column in self.outputs_.columns}

    @property
    def outputs_(self) -> Outputs:
        return self._fitted.reader.outputs

    def transform(self, df: pd.DataFrame, intervals: bool = False) -> pd.DataFrame:
        """
        The table with the holes of its outputs filled: everything else, the order of the rows and the index are as they
        were.

        :param df: With the columns of the table that was fitted; its tasks may be others.
        :param intervals: Whether to add, for each output NAME, `NAME_std`, `NAME_lower` and `NAME_upper` (a 95 %
            interval), empty where a value was known, and `NAME_filled`, whether it was not.
        """
        table = self._fitted.reader.read(df)
        holes = np.isnan(table.y)
        if not holes.any():
            warnings.warn("The outputs have no holes: the table is returned as it came.", TableWarning, stacklevel=2)
        added = (f"{name}_{suffix}" for name in self.outputs_.names for suffix in ("std", "lower", "upper", "filled"))
        taken = [name for name in added if intervals and name in df.columns]
        if taken:
            raise TableError(f"The table already has columns {listed(taken)}, which are to be added: rename them.")
        rows = np.flatnonzero(holes.any(1))
        summary = summarize(self.outputs_, self._predictions(table, table, rows), rows, intervals)
        result = df.copy()
        for j, name in enumerate(self.outputs_.names):
            where = np.flatnonzero(holes[:, j])
            chosen = summary.loc[holes[rows, j]]
            if len(where):
                result[name] = put(df[name], where, chosen[name].to_numpy())
            if intervals:
                for suffix in ("std", "lower", "upper"):
                    values = chosen[f"{name}_{suffix}"]
                    spread = pd.Series(np.nan, index=range(len(df)), dtype=values.dtype if len(values) else float)
                    if len(where):  # pandas refuses to put no labels among numbers
                        spread.iloc[where] = values.to_numpy()
                    result[f"{name}_{suffix}"] = spread.array
                result[f"{name}_filled"] = holes[:, j]
        return result

    def predict(self, df: pd.DataFrame, context: pd.DataFrame) -> pd.DataFrame:
        """
        Predict the outputs at new inputs, with the index of these: for each output NAME the columns `NAME` (the mean;
        of a count rounded; of flags and categories the most probable label), `NAME_std`, `NAME_lower` and `NAME_upper`
        (a 95 % interval). Of flags and categories `NAME_probability` is that of the label, and `NAME_std` is the
        standard deviation of being right; categories have no order and so no interval.

        :param df: With the input columns, and that of the task.
        :param context: What is known of the tasks, as for :meth:`transform`.
        """
        table, places = self._read_places(df, context)
        unknown = places.keys[len(table.keys) :]
        if unknown:
            warnings.warn(
                f"The context has no rows of the task{'s' if len(unknown) > 1 else ''} {listed(unknown[:5])}: nothing "
                "is known of it but what tasks are like in general.",
                TableWarning,
                stacklevel=2,
            )
        rows = np.arange(len(df))
        predictions = self._predictions(table, places, rows)
        return summarize(self.outputs_, predictions, rows, intervals=True).set_index(df.index)

    @torch.no_grad()
    def predictive(self, df: pd.DataFrame, context: pd.DataFrame) -> Prediction:
        """
        The whole distributions that :meth:`predict` summarizes: of all outputs in all rows, in the outputs' own units
        (`N x P`); values of flags and categories are numbers of labels, in the order of `outputs_.columns[p].levels`.

        :param df: With the input columns, and that of the task.
        :param context: What is known of the tasks, as for :meth:`transform`.

        Example:
            >>> import numpy as np, pandas as pd
            >>> from gpytorch_sgpvae.table import SGPVAEImputer
            >>> table = pd.DataFrame({"site": np.repeat(list("abcdef"), 9), "day": np.tile(np.arange(9.0), 6)})
            >>> table["warmth"] = np.sin(table["day"])
            >>> imputer = SGPVAEImputer(["day"], ["warmth"], task="site", max_epochs=1, progress=False).fit(table)
            >>> imputer.predictive(table, context=table).quantile([0.1, 0.9]).shape
            torch.Size([2, 54, 1])
        """
        parts = list(self._predictions(*self._read_places(df, context), np.arange(len(df)), one_by_one=True))
        order = np.argsort(np.concatenate([rows for rows, _ in parts]))
        with seeded(derive_seed("predictive", self.seed)):
            return Prediction.concatenate([prediction for _, prediction in parts], torch.tensor(order))

    def score(self, df: pd.DataFrame, fraction: float = 0.1, seed: int = 0) -> pd.DataFrame:
        """
        How well known entries are predicted when they are hidden, a row for each output: their number `n`; `rmse` and
        `mae` of the mean (of flags, of the probability; of categories nothing); `nll`, minus the mean log density, in
        nats; `crps`, the continuous ranked probability score; `coverage` of the 95 % interval; `accuracy` of the labels
        of flags and categories. All are in the column's units.

        :param df: As for :meth:`transform`.
        :param fraction: Of the known entries, to be hidden.
        :param seed: Of their choice.
        """
        fitted = self._fitted
        masked, mask = self.hide(df, fraction, seed)
        hidden = mask.to_numpy()
        truth = fitted.reader.read(df).y
        truth[~hidden] = np.nan
        table = fitted.reader.read(masked)
        predictions = self._predictions(table, table, np.flatnonzero(hidden.any(1)))
        return score(self.outputs_, predictions, self.outputs_.values_of(fitted.as_tensor(truth)))

    def sample(self, df: pd.DataFrame, n: int) -> list[pd.DataFrame]:
        """
        Draw n filled tables: each is one of the ways the missing values may have been, jointly over the rows of a task
        (from their marginals, in tasks with more than 3000 rows with holes).

        :param df: As for :meth:`transform`.
        :param n: How many.
        """
        if n < 1:
            raise TableError(f"The number of samples must be at least 1, got {n}.")
        table = self._fitted.reader.read(df)
        holes = np.isnan(table.y)
        rows = np.flatnonzero(holes.any(1))
        draws = np.full((n, *table.y.shape), np.nan)
        for numbers, prediction in self._predictions(table, table, rows, one_by_one=True):
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", NumericalWarning)  # of jitter, which nearby rows need
                values = prediction.sample(n, joint=len(numbers) <= MOST_ROWS_JOINTLY)
            draws[:, numbers] = values.cpu().numpy()
        result = []
        for draw in draws:
            filled = df.copy()
            for j, column in enumerate(self.outputs_.columns):
                where = np.flatnonzero(holes[:, j])
                if len(where):
                    filled[column.name] = put(df[column.name], where, column.decode(draw[where, j]))
            result.append(filled)
        return result

    def latents(self, df: pd.DataFrame) -> pd.DataFrame:
        """
        The latent functions at each row, given all that is known: `latent_0`, `latent_0_std`, `latent_1`, ....

        :param df: As for :meth:`transform`.
        """
        prediction = self.predictive(df, context=df)
        moments = torch.stack([prediction.function_mean, prediction.function_stddev], -1).cpu()  # (N, K, 2)
        names = [name for k in range(moments.shape[1]) for name in (f"latent_{k}", f"latent_{k}_std")]
        return pd.DataFrame(moments.flatten(1).numpy(), index=df.index, columns=names)

    def read_outputs(self, df: pd.DataFrame) -> Tensor:
        """
        What is known of the outputs, as numbers in their own units, NaN where it is missing (`N x P`). Flags and
        categories are numbers of labels.

        :param df: As for :meth:`transform`.
        """
        return self.outputs_.values_of(torch.tensor(self._fitted.reader.read(df).y))

    def hide(self, df: pd.DataFrame, fraction: float = 0.1, seed: int = 0) -> tuple[pd.DataFrame, pd.DataFrame]:
        """
        Hide known entries of the outputs, to ask for them: the table with more holes, and where they are (True), with
        a column for each output.

        :param df: As for :meth:`transform`.
        :param fraction: Of the known entries.
        :param seed: Of their choice.
        """
        if not 0 < fraction < 1:
            raise TableError(f"The fraction to hide must be between 0 and 1, got {fraction}.")
        names = list(self.outputs)
        check_columns(df, names)
        known = df[names].notna().to_numpy()
        chosen = known & (np.random.default_rng(seed).random(known.shape) < fraction)
        for j in np.flatnonzero(~chosen.any(0) & known.any(0)):  # at least one entry of each output
            chosen[np.flatnonzero(known[:, j])[seed % known[:, j].sum()], j] = True
        mask = pd.DataFrame(chosen, index=df.index, columns=names)
        masked = df.copy()
        for name in names:
            masked[name] = df[name].mask(mask[name])
        return masked, mask

    def save(self, path: str | Path) -> None:
        """
        Write the fitted model to a folder, JSON and tensors without any code: whole, or not at all.

        :param path: Of the folder; a model that is there is replaced.
        """
        save_table(Path(path), self._fitted, self.get_params(deep=False))

    @classmethod
    def load(
        cls, path: str | Path, device: str | torch.device | None = None, dtype: str | torch.dtype | None = None
    ) -> SGPVAEImputer:
        """
        A model that was saved, here or on another machine.

        :param path: Of the folder.
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

    @property
    def _fitted(self) -> FittedTable:
        if not hasattr(self, "_table"):
            raise TableError("This SGPVAEImputer has not been fitted yet: call fit(table) first.")
        return self._table

    def _take(self, fitted: FittedTable) -> SGPVAEImputer:
        self._table = fitted
        self.model_, self.history_ = fitted.model, fitted.history
        return self

    def _read_places(self, df: pd.DataFrame, context: pd.DataFrame) -> tuple[TaskTable, TaskTable]:
        reader = self._fitted.reader
        table = reader.read(context)
        return table, reader.read_places(df, context, table)

    def _predictions(
        self, context: TaskTable, places: TaskTable, rows: np.ndarray, one_by_one: bool = False
    ) -> Iterator[tuple[np.ndarray, Prediction]]:
        return self._fitted.predictions(context, places, rows, self.seed, one_by_one)

    def _as_tensor(self, values: np.ndarray) -> Tensor:
        return torch.as_tensor(values, dtype=as_dtype(self.dtype), device=self.device or "cpu")
