"""From a table to tasks, and the checks on the way."""

from __future__ import annotations

import difflib
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from .errors import TableError, TableWarning, listed, name_row
from .families import OutputColumn, fit_column
from .inputs import InputColumn
from .outputs import Outputs


@dataclass
class TaskTable:
    """
    The numbers of a table.

    :param x: Inputs as the kernel sees them (`N x D`).
    :param y: Targets, NaN is missing (`N x P`).
    :param rows: The rows of each task.
    :param keys: What the tasks are called in the table.
    :param raw: Inputs as they were read: numbers, days, numbers of labels (`N x D`).
    """

    x: np.ndarray
    y: np.ndarray
    rows: list[np.ndarray]
    keys: list[Any]
    raw: np.ndarray


class TableReader:
    """
    What was learnt of a table's columns, and the way from any such table to numbers.

    :param inputs: The input columns.
    :param outputs: The output columns.
    :param task: The column that tells tasks apart, or None for a table that is one task.
    :param known: All columns of the table that was fitted.
    """

    def __init__(self, inputs: list[InputColumn], outputs: list[OutputColumn], task: str | None, known: list[str]):
        self.inputs = inputs
        self.outputs = Outputs(outputs)
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
    ) -> TableReader:
        inputs, outputs = _check_names(inputs, outputs, task)
        for what, given, among in (("periodic", periodic, inputs), ("families", families, outputs)):
            unknown = [name for name in given if name not in among]
            if unknown:
                raise TableError(f"{what} names {listed(unknown)}, which is not among {listed(among)}.")
        check_columns(frame, [*inputs, *outputs, *([task] if task is not None else [])])
        tasks = _factorize(frame, task)[0]
        columns = [InputColumn.fit(frame[name], tasks, periodic.get(name)) for name in inputs]
        kinds = [fit_column(frame[name], families.get(name)) for name in outputs]
        return cls(columns, kinds, task, [str(name) for name in frame.columns])

    @property
    def _place(self) -> list[str]:
        """The columns that say where a row is."""
        return [*([] if self.task is None else [self.task]), *(column.name for column in self.inputs)]

    def read(self, frame: pd.DataFrame) -> TaskTable:
        """A table to learn from, or to be conditioned on."""
        self.check(frame)
        self._check_duplicates(frame)
        y = np.stack([column.encode(frame[column.name]) for column in self.outputs.columns], axis=1)
        codes, keys = _factorize(frame, self.task)
        x, raw = self._encode_inputs(frame, codes, None)
        return TaskTable(x, y, _rows_of(codes, len(keys)), keys, raw)

    def read_places(self, frame: pd.DataFrame, context: pd.DataFrame, table: TaskTable) -> TaskTable:
        """
        New inputs of the tasks of a context, in the order of its tasks; those that it has not come last.

        :param frame: With the input columns, and that of the task.
        :param context: What `table` was read from.
        """
        check_columns(frame, self._place)
        codes, keys = _factorize(frame, self.task, table.keys)
        context_codes = np.empty(len(context), dtype=int)
        for code, rows in enumerate(table.rows):
            context_codes[rows] = code
        x, raw = self._encode_inputs(frame, codes, (context, context_codes))
        y = np.full((len(frame), len(self.outputs.columns)), np.nan)
        return TaskTable(x, y, _rows_of(codes, len(keys)), keys, raw)

    def check(self, frame: pd.DataFrame) -> None:
        """Whether a table has all columns; any that it has beside are left alone."""
        check_columns(frame, [*self._place, *self.outputs.names])
        new = [name for name in frame.columns if str(name) not in self.known]
        if new:
            warnings.warn(
                f"The table has columns that it was not fitted with, and that are left as they are: {listed(new)}.",
                TableWarning,
                stacklevel=4,
            )

    def _encode_inputs(
        self, frame: pd.DataFrame, codes: np.ndarray, context: tuple[pd.DataFrame, np.ndarray] | None
    ) -> tuple[np.ndarray, np.ndarray]:
        encoded, raw = [], []
        for column in self.inputs:
            values = column.read(frame[column.name])
            starts = column.starts(values, codes)
            if context is not None and column.from_task_start:  # tasks start where their context does
                starts |= column.starts(column.read(context[0][column.name]), context[1])
            encoded.append(column.encode(column.offset(values, codes, starts)))
            raw.append(values)
        return np.stack(encoded, axis=1), np.stack(raw, axis=1)

    def _check_duplicates(self, frame: pd.DataFrame) -> None:
        places = frame[self._place]
        again = np.flatnonzero(places.duplicated().to_numpy())
        if len(again):
            second = int(again[0])
            same = (places == places.iloc[second]).all(axis=1).to_numpy()
            raise TableError(
                f"{name_row(frame, second).capitalize()} is at the place of {name_row(frame, int(same.argmax()))} too: "
                f"{', '.join(f'{name} = {places.iloc[second][name]}' for name in self._place)} "
                f"({len(again)} such row{'s' if len(again) > 1 else ''}). Drop or average them, or name a column that "
                "tells them apart as an input or as the task."
            )


def _check_names(inputs: Sequence[str], outputs: Sequence[str], task: str | None) -> tuple[list[str], list[str]]:
    for what, names in (("inputs", inputs), ("outputs", outputs)):
        if isinstance(names, str) or len(names) == 0:
            raise TableError(f"{what} must be a list of column names with at least one, got {names!r}.")
    every = [*inputs, *outputs]
    twice = sorted({name for name in every if every.count(name) > 1})
    if twice:
        raise TableError(f"{listed(twice)} is named more than once among the inputs and outputs.")
    if task in outputs:
        raise TableError(f"The task column {task!r} cannot be an output.")
    return list(inputs), list(outputs)


def check_columns(frame: pd.DataFrame, names: Sequence[str]) -> None:
    if not isinstance(frame, pd.DataFrame):
        raise TableError(f"Expected a pandas DataFrame, got a {type(frame).__name__}.")
    for name in names:
        if name not in frame.columns:
            close = difflib.get_close_matches(str(name), [str(column) for column in frame.columns], n=1, cutoff=0.6)
            hint = f" Did you mean {close[0]!r}?" if close else ""
            raise TableError(f"There is no column {name!r} in the table, which has {listed(frame.columns)}.{hint}")
        if isinstance(frame[name], pd.DataFrame):
            raise TableError(f"The table has more than one column {name!r}: rename all but one.")
    if len(frame) == 0:
        raise TableError("The table has no rows.")


def _factorize(frame: pd.DataFrame, task: str | None, known: Sequence[Any] = ()) -> tuple[np.ndarray, list[Any]]:
    """The number of each row's task, and their names, those that are known first."""
    if task is None:
        return np.zeros(len(frame), dtype=int), ["the table"]
    column = frame[task]
    missing = np.flatnonzero(column.isna().to_numpy())
    if len(missing):
        raise TableError(
            f"The task {task!r} is missing in {len(missing)} row{'s' if len(missing) > 1 else ''}, first in "
            f"{name_row(frame, int(missing[0]))}: every row belongs to a task. Fill these cells or drop the rows."
        )
    numbers = {key: number for number, key in enumerate(known)}
    values = column.astype(object).tolist()
    codes = np.array([numbers.setdefault(value, len(numbers)) for value in values])
    return codes, list(numbers)


def _rows_of(codes: np.ndarray, num_tasks: int) -> list[np.ndarray]:
    order = np.argsort(codes, kind="stable")
    return np.split(order, np.searchsorted(codes[order], np.arange(1, num_tasks)))
