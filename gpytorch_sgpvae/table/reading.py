"""The way from a table to tasks, with the checks on it."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import pandas as pd
from pandas.api import types

from .columns import ROW_NUMBER, get_column
from .errors import TableError, TableWarning, listed, name_row, name_rows
from .families import OutputColumn, fit_column, make_column
from .families.label_columns import CategoryColumn
from .inputs import InputColumn
from .numbers import check_cells
from .outputs import Outputs
from .tasks import TaskColumn

# Rows at the place of another one: up to this share they are measurements that were repeated, as in the hour that comes
# twice when clocks go back; above it a column that tells rows apart has probably been forgotten.
MOST_REPEATED = 0.01


@dataclass
class TaskTable:
    """
    The numbers of a table.

    :param x: Inputs as the kernel sees them (`N x D`).
    :param y: Targets, NaN is missing (`N x P`).
    :param rows: The rows of each task.
    :param keys: The names of the tasks in the table.
    :param raw: Inputs as they were read: numbers, days, numbers of labels (`N x D`).
    """

    x: np.ndarray
    y: np.ndarray
    rows: list[np.ndarray]
    keys: list[Any]
    raw: np.ndarray


class TableReader:
    """
    The reader of tables: it learns of a table's columns, and turns any such table into numbers. Inputs and the task may
    be levels of the table's index, see :func:`~gpytorch_sgpvae.table.columns.find_column`, and the task may be made of
    dates, see
    :class:`~gpytorch_sgpvae.table.tasks.TaskColumn`.

    :param inputs: The input columns.
    :param outputs: The output columns, and after them the covariates: columns without holes, which tell of the outputs.
    :param task: The column or the dates by which tasks are told apart, or None for a table that is one task.
    :param known: All columns of the table that was fitted.
    :param num_filled: The number of outputs that are no covariates, by default all.
    """

    def __init__(
        self,
        inputs: list[InputColumn],
        outputs: list[OutputColumn],
        task: TaskColumn | None,
        known: list[str],
        num_filled: int | None = None,
    ):
        self.inputs = inputs
        self.num_filled = len(outputs) if num_filled is None else num_filled
        self.outputs = Outputs(outputs, self.num_filled)
        self.task = task
        self.known = known

    @classmethod
    def fit(
        cls,
        frame: pd.DataFrame,
        inputs: Sequence[str],
        outputs: Sequence[str],
        task: str | None,
        periodic: Mapping[str, float],
        families: Mapping[str, str],
        covariates: Sequence[str] = (),
    ) -> TableReader:
        """
        :param frame: The table to learn from.
        :param inputs: Names of the inputs.
        :param outputs: Names of the outputs.
        :param task: Name of the task, if there is one.
        :param periodic: Periods of inputs.
        :param families: Families of outputs and covariates, where a guess is not wanted; category for inputs whose
            numbers are labels.
        :param covariates: Names of the covariates.
        """
        _check_names(inputs, outputs, task, covariates)
        targets = [*outputs, *covariates]
        for what, given, among in (("periodic", periodic, inputs), ("families", families, [*inputs, *targets])):
            unknown = [name for name in given if name not in among]
            if unknown:
                raise TableError(f"{what} names {listed(unknown)}, which is not among {listed(among)}.")
        labels = [name for name in inputs if name in families]
        other = [name for name in labels if families[name] != CategoryColumn.family]
        if other:
            raise TableError(
                f"The input {other[0]!r} cannot be of the family {families[other[0]]!r}: families are for outputs, and "
                f"inputs have only {CategoryColumn.family!r}, for numbers that are labels."
            )
        check_columns(frame, targets, places=inputs)
        for name in inputs:
            check_cells(get_column(frame, name))
        for name in covariates:
            _check_covariate(frame[name], varies=True)
        task_column = None if task is None else TaskColumn.fit(frame, task, list(inputs))
        codes = _factorize(frame, task_column)[0]
        columns = [
            InputColumn.fit(get_column(frame, name), codes, periodic.get(name), name in labels) for name in inputs
        ]
        kinds = [fit_column(frame[name], families.get(name)) for name in targets]
        return cls(columns, kinds, task_column, [str(name) for name in frame.columns], len(outputs))

    @classmethod
    def from_dict(cls, description: Mapping[str, Any]) -> TableReader:
        """A reader from what :meth:`to_dict` returned, also after it has been JSON."""
        task = description["task"]
        return cls(
            [InputColumn(**column) for column in description["inputs"]],
            [make_column(column) for column in description["outputs"]],
            None if task is None else TaskColumn(**task),
            description["columns"],
            description["num_filled"],
        )

    def to_dict(self) -> dict[str, Any]:
        """All that the reader knows, as JSON can hold it."""
        return {
            "inputs": [asdict(column) for column in self.inputs],
            "outputs": [column.to_dict() for column in self.outputs.columns],
            "task": None if self.task is None else asdict(self.task),
            "columns": self.known,
            "num_filled": self.num_filled,
        }

    @property
    def place_names(self) -> list[str]:
        """The names of what says where a row is, the task first."""
        return [*([] if self.task is None else [self.task.name]), *(column.name for column in self.inputs)]

    def read(self, frame: pd.DataFrame) -> TaskTable:
        """A table to learn from, or to be conditioned on."""
        self.check(frame)
        codes, keys = _factorize(frame, self.task)
        values = [column.read(get_column(frame, column.name)) for column in self.inputs]
        self._check_duplicates(frame, codes, keys, values)
        starts = [column.starts(days, codes) for column, days in zip(self.inputs, values, strict=True)]
        y = np.stack([column.encode(frame[column.name]) for column in self.outputs.columns], axis=1)
        x, raw = self._encode_inputs(values, codes, starts), np.stack(values, axis=1)
        return TaskTable(x, y, _rows_of(codes, len(keys)), keys, raw)

    def read_places(self, frame: pd.DataFrame, context: pd.DataFrame, table: TaskTable) -> TaskTable:
        """
        New inputs of the tasks of a context, in the order of its tasks; those that it has not come last. Only
        covariates are read beside them.

        :param frame: A table with the input columns, that of the task and the covariates.
        :param context: The table that `table` was read from.
        """
        covariates = self.outputs.columns[self.num_filled :]
        if any(column.name == ROW_NUMBER for column in self.inputs) and ROW_NUMBER not in frame.columns:
            raise TableError(
                "The number of the row is the input, as the table was fitted without inputs: rows to be predicted need "
                f"theirs, counted from 0 in the context, in a column {ROW_NUMBER!r}. Or name inputs, and fit again."
            )
        self._check_places(frame)
        check_columns(frame, [column.name for column in covariates])
        codes, keys = _factorize(frame, self.task and self.task.with_context(context), table.keys)
        context_codes = np.empty(len(context), dtype=int)
        for code, rows in enumerate(table.rows):
            context_codes[rows] = code
        values, starts = [], []
        for column in self.inputs:
            known = get_column(context, column.name)
            values.append(column.with_context(known).read(get_column(frame, column.name)))
            starts.append(column.starts(values[-1], codes))
            if column.from_task_start:  # tasks start where their context does
                starts[-1] |= column.starts(column.read(known), context_codes)
        y = np.full((len(frame), len(self.outputs.columns)), np.nan)
        for p, covariate in enumerate(covariates, start=self.num_filled):
            _check_covariate(frame[covariate.name])
            y[:, p] = covariate.encode(frame[covariate.name])
        x, raw = self._encode_inputs(values, codes, starts), np.stack(values, axis=1)
        return TaskTable(x, y, _rows_of(codes, len(keys)), keys, raw)

    def complete(self, frame: pd.DataFrame) -> pd.DataFrame:
        """
        A copy of a table in which all inputs and the task are columns, also those that are levels of its index or made
        of dates, and inputs that are dates are pandas' own. The index loses its names, which would be those of columns
        too. The copy is read as the table itself is.

        :param frame: Any table that can be read.
        """
        self._check_places(frame)
        result = frame.copy()
        if self.task is not None and self.task.name not in frame.columns:
            result[self.task.name] = self.task.read(frame)
        for column in self.inputs:
            cells = get_column(frame, column.name)
            result[column.name] = column.as_dates(cells) if column.is_date else cells
        result.index = result.index.set_names([None] * result.index.nlevels)
        return result

    def check(self, frame: pd.DataFrame) -> None:
        """Raise unless a table has all columns, and complete covariates; warn of columns that are new."""
        self._check_places(frame)
        check_columns(frame, self.outputs.names)
        for name in self.outputs.names[self.num_filled :]:
            _check_covariate(frame[name])
        known = {*self.known, *self.place_names}
        new = [name for name in frame.columns if str(name) not in known]
        if new:
            warnings.warn(
                f"The table has columns that it was not fitted with, and that are left as they are: {listed(new)}.",
                TableWarning,
                stacklevel=4,
            )

    def _check_places(self, frame: pd.DataFrame) -> None:
        check_columns(frame, [], places=[column.name for column in self.inputs])
        for column in self.inputs:
            check_cells(get_column(frame, column.name))

    def _encode_inputs(self, values: list[np.ndarray], codes: np.ndarray, starts: list[dict[int, float]]) -> np.ndarray:
        """Inputs as the kernel sees them, from what was read of each and the starts of the tasks (`N x D`)."""
        parts = zip(self.inputs, values, starts, strict=True)
        return np.stack([column.encode(column.offset(read, codes, first)) for column, read, first in parts], axis=1)

    def _check_duplicates(
        self, frame: pd.DataFrame, codes: np.ndarray, keys: Sequence[Any], values: list[np.ndarray]
    ) -> None:
        columns = [get_column(frame, column.name) for column in self.inputs]
        cells = [codes]
        for column, read in zip(columns, values, strict=True):
            # days are rounded to about a tenth of a microsecond
            cells.append(pd.factorize(column if types.is_datetime64_any_dtype(column.dtype) else read)[0])
        places = pd.DataFrame(np.stack(cells, axis=1))  # (N, 1 + D)
        again = np.flatnonzero(places.duplicated().to_numpy())
        if len(again):
            second = int(again[0])
            first = int((places == places.iloc[second]).all(axis=1).to_numpy().argmax())
            place = [] if self.task is None else [f"{self.task.name} = {keys[codes[second]]}"]
            place += [f"{column.name} = {column.iloc[second]}" for column in columns]
            text = (
                f"{name_row(frame, second).capitalize()} is at the place of {name_row(frame, first)} too: "
                f"{', '.join(place)} ({len(again)} such row{'s' if len(again) > 1 else ''})."
            )
            advice = "rop or average them, or name a column that tells them apart as an input or as the task."
            if len(again) > MOST_REPEATED * len(frame):
                raise TableError(f"{text} D{advice}")
            warnings.warn(
                f"{text} They are taken for repeated measurements; if they are none, d{advice}",
                TableWarning,
                stacklevel=4,
            )


def _check_names(
    inputs: Sequence[str], outputs: Sequence[str], task: str | None, covariates: Sequence[str] = ()
) -> None:
    for what, names in (("inputs", inputs), ("outputs", outputs), ("covariates", covariates)):
        if isinstance(names, str) or (len(names) == 0 and what != "covariates"):
            least = "" if what == "covariates" else " with at least one"
            raise TableError(f"{what} must be a list of column names{least}, got {names!r}.")
    every = [*inputs, *outputs, *covariates]
    other = [name for name in every if not isinstance(name, str)]
    if other:
        raise TableError(
            f"Columns are named by text, got {other[0]!r}. Rename them, such as by table.columns.astype(str)."
        )
    twice = sorted({name for name in every if every.count(name) > 1})
    if twice:
        among = "inputs, outputs and covariates" if len(covariates) else "inputs and outputs"
        raise TableError(f"{listed(twice)} is named more than once among the {among}.")
    if task is not None and not isinstance(task, str):
        raise TableError(f"The task must be the name of one column, got {task!r}.")
    if task in outputs or task in covariates:
        raise TableError(f"The task column {task!r} cannot be {'an output' if task in outputs else 'a covariate'}.")


def _check_covariate(column: pd.Series, varies: bool = False) -> None:
    """Raise if a covariate has holes, or if it is to vary and does not."""
    holes = np.flatnonzero(column.isna().to_numpy())
    if len(holes):
        raise TableError(
            f"The covariate {column.name!r} is missing in {name_rows(column, holes)}: a covariate is known in every "
            "row and never filled. Fill these cells, drop the rows, or name it among the outputs."
        )
    check_cells(column)
    if varies and column.nunique() == 1:
        raise TableError(
            f"The covariate {column.name!r} has the same value, {column.tolist()[0]!r}, in all its rows: leave it out."
        )


def check_columns(frame: pd.DataFrame, names: Sequence[str], places: Sequence[str] = ()) -> None:
    """
    Raise unless a table has rows, and each column once.

    :param frame: The object that should be a table.
    :param names: Names of columns.
    :param places: Names of columns, or of levels of the index.
    """
    if not isinstance(frame, pd.DataFrame):
        raise TableError(f"Expected a pandas DataFrame, got a {type(frame).__name__}.")
    for name in places:
        get_column(frame, name)
    for name in names:
        get_column(frame if name in frame.columns else frame.reset_index(drop=True), name)
    if len(frame) == 0:
        raise TableError("The table has no rows.")


def _factorize(frame: pd.DataFrame, task: TaskColumn | None, known: Sequence[Any] = ()) -> tuple[np.ndarray, list[Any]]:
    """The number of each row's task, and their names, those that are known first."""
    if task is None:
        return np.zeros(len(frame), dtype=int), ["the table"]
    numbers = {key: number for number, key in enumerate(known)}
    values = task.read(frame).astype(object).tolist()
    codes = np.array([numbers.setdefault(value, len(numbers)) for value in values])
    return codes, list(numbers)


def _rows_of(codes: np.ndarray, num_tasks: int) -> list[np.ndarray]:
    order = np.argsort(codes, kind="stable")
    return np.split(order, np.searchsorted(codes[order], np.arange(1, num_tasks)))
