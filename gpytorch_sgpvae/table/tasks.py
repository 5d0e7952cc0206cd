"""The task that each row belongs to, by a column or by the weeks, months, ... of its dates."""

from __future__ import annotations

import difflib
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pandas as pd

from .columns import find_column, get_column
from .dates import UNITS, calendar_keys, is_day_first
from .errors import TableError, listed, name_row
from .numbers import check_cells, is_date, read_dates

# A unit and a column, as in week(date).
DERIVED = re.compile(r"\s*(\w+)\s*\(\s*(.*\S)\s*\)\s*")


@dataclass(frozen=True)
class TaskColumn:
    """
    The column that tells tasks apart. Its name is that of a column or of a level of the index; or, where there is none
    of that name, a unit and a column of dates, `"week(date)"`: then rows whose dates are in the same week are a task.
    The unit is hour, day, week (from Monday to Sunday), month, quarter or year, and dates with a time zone are told as
    the clocks there show them.

    :param name: Name of the column, or of the unit and the column.
    :param day_first: Whether 1/2/2024 is a day of February; None if the fitted table had no such dates.
    """

    name: str
    day_first: bool | None = None

    @classmethod
    def fit(cls, frame: pd.DataFrame, name: str, inputs: Sequence[str]) -> TaskColumn:
        """
        :param frame: The table to learn from.
        :param name: The column, or the dates and a unit of time, by which tasks are told apart.
        :param inputs: Names of columns whose odd dates are told anyway.
        """
        derived = _split(frame, name)
        if derived is None:
            return cls(name)
        return cls(name, is_day_first(_dates_of(frame, name, *derived), tell=derived[1] not in inputs))

    def with_context(self, context: pd.DataFrame) -> TaskColumn:
        """
        Return the column with which places are to be read: dates have the order of their context, if the fitted table
        left it open.
        """
        derived = _split(context, self.name)
        if derived is None or self.day_first is not None:
            return self
        return replace(self, day_first=is_day_first(_dates_of(context, self.name, *derived), tell=False))

    def read(self, frame: pd.DataFrame) -> pd.Series:
        """The key of each row's task, none of them missing."""
        derived = _split(frame, self.name)
        if derived is None:
            column = get_column(frame, self.name)
            check_cells(column)
            self._check_present(column)
            return column
        column = _dates_of(frame, self.name, *derived)
        self._check_present(column)
        day_first = is_day_first(column) if self.day_first is None else self.day_first
        return calendar_keys(read_dates(column, day_first, local=True), derived[0]).rename(self.name)

    def _check_present(self, column: pd.Series) -> None:
        missing = np.flatnonzero(column.isna().to_numpy())
        if len(missing):
            source = f", column {column.name!r}," if column.name != self.name else ""
            raise TableError(
                f"The task {self.name!r}{source} is missing in {len(missing)} row{'s' if len(missing) > 1 else ''}, "
                f"first in {name_row(column, int(missing[0]))}: every row belongs to a task. Fill these cells or drop "
                "the rows."
            )


def source_of(task: str) -> str:
    """The column that a task is made of, which may be the task itself."""
    match = DERIVED.fullmatch(task)
    return match.group(2) if match else task


def _split(frame: pd.DataFrame, name: Any) -> tuple[str, str] | None:
    """The unit and the column of a derived task; None where the name is that of a column, or nothing like it."""
    match = DERIVED.fullmatch(name) if isinstance(name, str) else None
    if match is None or find_column(frame, name) is not None:
        return None
    unit, source = match.groups()
    return unit, source


def _dates_of(frame: pd.DataFrame, name: str, unit: str, source: str) -> pd.Series:
    """The column of dates that tasks are derived from."""
    if unit not in UNITS:
        close = difflib.get_close_matches(unit, UNITS, n=1)
        hint = f" Did you mean '{close[0]}({source})'?" if close else ""
        raise TableError(
            f"There is no column {name!r} in the table, and tasks made of dates are {listed(UNITS)} with a column, "
            f"such as week(date), not {unit!r}.{hint}"
        )
    column = get_column(frame, source, f", of whose dates the task {name!r} is to be made,")
    check_cells(column)
    present = column.dropna()
    if len(present) and not is_date(column):
        raise TableError(
            f"The task {name!r} is to be made of dates, but column {source!r} holds none: its first value is "
            f"{present.iloc[0]!r}. Write dates as 2024-12-31, or name a column that says which rows belong together."
        )
    return column
