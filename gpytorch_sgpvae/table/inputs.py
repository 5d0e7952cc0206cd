"""Input columns: where each row is, in numbers that a kernel can compare between tasks."""

from __future__ import annotations

import itertools
import warnings
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pandas as pd
from pandas.api import types

from .dates import check_no_clock, has_zones, is_day_first, warn_of_zones
from .errors import TableError, TableWarning, listed
from .families.label_columns import CategoryColumn
from .numbers import check_present, is_category, is_date, read_dates, read_days, read_numbers

# More labels than that are names, or free text.
MOST_LEVELS = 2000
# The number of labels that a message names.
NAMED = 5


@dataclass(frozen=True)
class InputColumn:
    r"""
    The conversion of an input column to numbers. A number x is standardized, :math:`(x - \text{shift}) / \text{scale}`.
    A date is counted in days first, from the start of its task (its first date there) where no two tasks overlap in
    time, as with weeks, so that they share inducing points; otherwise from a fixed day. A periodic column is
    :math:`x / \text{period}` without its whole part, and never counted from a task's start. A label is the number of
    its level; labels that the fitted table did not have follow after these, in the order in which they come.

    :param name: Name of the column.
    :param is_date: Whether it holds points in time.
    :param from_task_start: Whether it is counted from each task's start.
    :param period: The period in the column's units, in days for dates.
    :param levels: The labels of a category, in the order of their numbers 0, 1, ...; nothing else has any.
    :param day_first: Whether 1/2/2024 is a day of February; None if the fitted table had no such dates.
    :param has_zone: Whether dates had a time zone; None if some had and others had not.
    """

    name: str
    is_date: bool = False
    from_task_start: bool = False
    period: float | None = None
    shift: float = 0.0
    scale: float = 1.0
    levels: tuple[Any, ...] = ()
    day_first: bool | None = None
    has_zone: bool | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "levels", tuple(self.levels))  # JSON has lists only

    @property
    def is_category(self) -> bool:
        """True if the column holds labels, which have no order and no distance."""
        return len(self.levels) > 0

    @classmethod
    def fit(cls, column: pd.Series, tasks: np.ndarray, period: float | None, labels: bool = False) -> InputColumn:
        """
        :param column: A column of the table to learn from.
        :param tasks: The task of each row, from 0 (`N`).
        :param period: The period in the column's units, in days for dates.
        :param labels: Whether its values are labels, also where they are numbers.
        """
        name = str(column.name)
        if period is not None and not (np.isfinite(period) and period > 0):
            raise TableError(f"The period of input {name!r} must be a positive number, got {period}.")
        if labels or is_category(column):
            return cls._fit_category(column, period)
        dated = is_date(column)
        draft = cls(name, dated, period=period)
        if dated:
            draft = replace(draft, day_first=is_day_first(column), has_zone=has_zones(column))
        values = draft.read(column)
        if dated and period is None:
            draft = replace(draft, from_task_start=_are_apart(values, tasks))
            values = draft.offset(values, tasks, draft.starts(values, tasks))
        _check_varies(draft, values)
        if period is not None:
            return draft
        unit = np.abs(values).max()  # squares of numbers as large as 1e300 are infinite
        return replace(draft, shift=float(unit * np.mean(values / unit)), scale=float(unit * np.std(values / unit)))

    @classmethod
    def _fit_category(cls, column: pd.Series, period: float | None) -> InputColumn:
        name = str(column.name)
        _, labels = _factorize(column)
        check_no_clock(name, labels)
        odd = next((label for label in labels if not isinstance(label, (str, bool, int, float))), None)
        if odd is not None:
            raise TableError(f"The input {name!r} has a label that is a {type(odd).__name__}: make it text.")
        fitted = cls(name, levels=tuple(sorted(labels, key=lambda label: (isinstance(label, str), label))))
        _check_varies(fitted, fitted.read(column))
        if period is not None:
            raise TableError(
                f"The input {name!r} has labels, such as {_some(labels)}, and labels have no period, got {period}: "
                "take it out of periodic."
            )
        if len(labels) <= MOST_LEVELS and len(labels) < len(column):
            return fitted
        raise TableError(
            f"The input {name!r} has {len(labels)} different labels in {len(column)} rows, such as {_some(labels)}. "
            f"Labels have no distance, so that rows must share them: a category has at most {MOST_LEVELS} labels, and "
            "fewer than there are rows. Leave it out of the inputs; if it holds dates, write them as 2024-12-31."
        )

    def with_context(self, column: pd.Series) -> InputColumn:
        """
        Return the column with which places are to be read: labels that are new in their context already have a number
        there, and dates have the order that they have there, if the fitted table left it open.

        :param column: The column in the context.
        """
        if self.is_category:
            known = _number(self.levels)
            new = [label for label in _factorize(column)[1] if label not in known and str(label) not in known]
            return replace(self, levels=(*self.levels, *new))
        if self.is_date and self.day_first is None:
            return replace(self, day_first=is_day_first(column, tell=False))
        return self

    def read(self, column: pd.Series) -> np.ndarray:
        """
        The column's numbers, days, or numbers of labels, none of them missing (`N`).

        :param column: A column of any table.
        """
        if self.is_category:
            values = self._number_labels(column)
        elif self.is_date:
            values = read_days(column, is_day_first(column) if self.day_first is None else self.day_first)
            warn_of_zones(column, has_zones(column), self.has_zone)
        else:
            hint = f" If these are labels, fit with families={{{self.name!r}: {CategoryColumn.family!r}}}."
            values = read_numbers(column, hint)
        check_present(column, values, "input")
        return values

    def as_dates(self, column: pd.Series) -> pd.Series:
        """The dates of a column as pandas' own, in UTC if they were written with a time zone."""
        if types.is_datetime64_any_dtype(column.dtype):
            return column
        dates = read_dates(column, self.day_first)
        return dates if has_zones(column) is False else dates.dt.tz_localize("UTC")

    def _number_labels(self, column: pd.Series) -> np.ndarray:
        """The numbers of labels, NaN where there is none (`N`)."""
        codes, labels = _factorize(column)
        numbers = _number(self.levels)
        found = [numbers.get(label, numbers.get(str(label))) for label in labels]
        unseen = [label for label, number in zip(labels, found, strict=True) if number is None]
        if unseen:
            warnings.warn(
                f"The input {self.name!r} has {len(unseen)} label{'s' if len(unseen) > 1 else ''} that it was not "
                f"fitted with: {_some(unseen)}. Nothing is known of what is special about a new label.",
                TableWarning,
                stacklevel=5,
            )
        after = itertools.count(len(self.levels))
        return np.array([*(next(after) if number is None else number for number in found), np.nan])[codes]

    def starts(self, values: np.ndarray, tasks: np.ndarray) -> dict[int, float]:
        """The first date of each task."""
        return pd.Series(values).groupby(tasks).min().to_dict()

    def offset(self, values: np.ndarray, tasks: np.ndarray, starts: dict[int, float]) -> np.ndarray:
        if not self.from_task_start:
            return values
        return values - pd.Series(tasks).map(starts).to_numpy(float)

    def encode(self, values: np.ndarray) -> np.ndarray:
        """Make what the model's kernel sees, of :meth:`read` and :meth:`offset` (`N`)."""
        if self.period is not None:
            return np.mod(values / self.period, 1.0)
        return (values - self.shift) / self.scale


def _are_apart(days: np.ndarray, tasks: np.ndarray) -> bool:
    """Return whether there are several tasks, and each is a stretch of time of its own."""
    spans = pd.Series(days).groupby(tasks).agg(["min", "max"]).sort_values("min").to_numpy()
    return len(spans) > 1 and bool((spans[1:, 0] > spans[:-1, 1]).all())


def _check_varies(column: InputColumn, values: np.ndarray) -> None:
    if values.max() / 2 - values.min() / 2 < np.finfo(float).tiny:  # halves of numbers as large as 1e308 can be told
        where = "from the start of its task " if column.from_task_start else ""
        raise TableError(
            f"The input {column.name!r} {where}has the same value in all {len(values)} rows, so that it tells no two "
            "rows apart: leave it out of the inputs."
        )


def _factorize(column: pd.Series) -> tuple[np.ndarray, list[Any]]:
    """The place of each row's label in the list of all, -1 where it is missing or blank (`N`), and that list."""
    codes, cells = pd.factorize(column)
    numbers: dict[Any, int] = {}
    places = []
    for cell in cells.astype(object):
        label = cell.item() if isinstance(cell, np.generic) else cell  # a plain value, which JSON can hold
        if isinstance(label, float) and label.is_integer():
            label = int(label)
        blank = isinstance(label, str) and not label.strip()
        places.append(-1 if blank else numbers.setdefault(label, len(numbers)))
    return np.array([*places, -1])[codes], list(numbers)


def _number(labels: Sequence[Any]) -> dict[Any, int]:
    """The number of each label, and of what it is as text: a file without other labels may have 1 for "1"."""
    numbers = {label: number for number, label in enumerate(labels)}
    return {str(label): number for label, number in numbers.items()} | numbers


def _some(labels: Sequence[Any]) -> str:
    return listed(labels[:NAMED]) + (", ..." if len(labels) > NAMED else "")
