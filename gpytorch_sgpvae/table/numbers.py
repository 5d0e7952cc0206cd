"""Columns of a table as arrays of numbers."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pandas as pd
from pandas.api import types

from .dates import is_day_first, is_in_numbers, parse_dates
from .errors import TableError, name_row, name_rows

# Dates are counted in days from here, a Monday: periods of a day, a week or a year start where one expects them to.
ORIGIN = pd.Timestamp("2001-01-01")
DAY = pd.Timedelta(days=1)
# The number of values that are looked at to tell what kind a column is of.
SAMPLE = 1000


def read_numbers(column: pd.Series, hint: str = "") -> np.ndarray:
    """
    The values as floating-point numbers, NaN where there is none; text that is no number is an error.

    :param column: A column of numbers.
    :param hint: An addition to the message of that error.
    """
    if types.is_timedelta64_dtype(column.dtype):
        return (column / DAY).to_numpy(float, na_value=np.nan)
    if _is_dated(column) or types.is_complex_dtype(column.dtype):
        kind = "dates" if _is_dated(column) else "complex numbers"
        raise TableError(
            f"Column {column.name!r} holds {kind} where real numbers are expected. Convert or leave it out."
        )
    values = _coerce(column)
    text = np.flatnonzero(np.isnan(values) & column.notna().to_numpy())
    if len(text):
        raise TableError(
            f"Column {column.name!r} has text where a number is expected: {column.iloc[text[0]]!r} in "
            f"{name_rows(column, text)}. Correct it, or leave the cell empty if the value is missing.{hint}"
        )
    infinite = np.flatnonzero(np.isinf(values))
    if len(infinite):
        raise TableError(
            f"Column {column.name!r} has an infinite value in {name_rows(column, infinite)}. Correct it, or leave the "
            "cell empty if the value is missing."
        )
    return values


def is_mostly_text(column: pd.Series) -> bool:
    """Return whether fewer than half of the values that are there are numbers."""
    if not _may_hold_text(column):
        return False
    present = column.notna().to_numpy()
    return (~np.isnan(_coerce(column)))[present].mean() < 0.5 if present.any() else False


def is_date(column: pd.Series) -> bool:
    """Return whether these are points in time: pandas' own, or text most of which can be read as such."""
    if _is_dated(column):
        return True
    if not _may_hold_text(column):
        return False
    some = _sample(column)
    if not is_mostly_text(some):
        return False
    return bool(parse_dates(some, bool(is_day_first(some, tell=False))).notna().mean() >= 0.5)


def is_category(column: pd.Series) -> bool:
    """
    Return whether these are labels: booleans, pandas' own categories, numbers as well, or text most of which is neither
    numbers nor dates.
    """
    if types.is_bool_dtype(column.dtype):
        return True
    if not _may_hold_text(column):
        return False
    some = _sample(column)
    if isinstance(column.dtype, pd.CategoricalDtype) and len(some):
        return not is_date(some)
    if len(some) and some.map(lambda value: isinstance(value, (bool, np.bool_))).all():
        return True
    return is_mostly_text(some) and not is_date(some)


def read_dates(column: pd.Series, day_first: bool | None = None, local: bool = False) -> pd.Series:
    """
    Points in time without a time zone, NaT where there is none; text that is no date is an error.

    :param column: A column of dates.
    :param day_first: Whether 1/2/2024 is in February, in all rows alike; by default what the column looks like.
    :param local: Whether those with a time zone are told as the clocks there show them, and not in UTC.
    """
    if day_first is None:
        day_first = bool(is_day_first(column, tell=False))
    dates = parse_dates(column, day_first, local)
    bad = np.flatnonzero(dates.isna().to_numpy() & column.notna().to_numpy())
    if len(bad):
        cell = column.iloc[bad[0]]
        order = f" with the {'day' if day_first else 'month'} first" if is_in_numbers(cell) else ""
        raise TableError(
            f"Column {column.name!r} holds dates, but {cell!r} in {name_rows(column, bad)} cannot be read as one{order}"
            ". Write dates as 2024-12-31, times as 2024-12-31 18:30."
        )
    return dates


def read_days(column: pd.Series, day_first: bool | None = None) -> np.ndarray:
    """Points in time as days from :data:`ORIGIN`, NaN where there is none; see :func:`read_dates` (`N`)."""
    return ((read_dates(column, day_first) - ORIGIN) / DAY).to_numpy(float, na_value=np.nan)


def check_cells(column: pd.Series) -> None:
    """Raise if a cell holds many values, as lists do."""
    if not types.is_object_dtype(column.dtype):
        return
    bad = np.flatnonzero([isinstance(cell, (list, dict, set, np.ndarray, pd.Series)) for cell in column])
    if len(bad):
        raise TableError(
            f"Column {column.name!r} has a {type(column.iloc[bad[0]]).__name__} in {name_rows(column, bad)}, where one "
            "number, date or label is expected. Make a column of each of its parts, or leave it out."
        )


def read_anything(column: pd.Series) -> np.ndarray:
    """
    Numbers for whatever a column holds: days of dates, numbers, or else a number for each different value. NaN where
    there is none, or none that is finite; nothing is an error.
    """
    if is_date(column):
        return ((parse_dates(column, bool(is_day_first(column, tell=False))) - ORIGIN) / DAY).to_numpy(
            float, na_value=np.nan
        )
    if types.is_timedelta64_dtype(column.dtype):
        return read_numbers(column)
    if is_mostly_text(column):
        codes = pd.factorize(column.astype(object))[0]
        return np.where(codes >= 0, codes, np.nan)
    values = _coerce(column)
    return np.where(np.isfinite(values), values, np.nan)


def read_outputs(frame: pd.DataFrame, outputs: Sequence[str]) -> np.ndarray:
    """Columns of numbers or flags as floating-point numbers, NaN where there is none that is finite (`N x P`)."""
    values = np.stack([_coerce(frame[name]) for name in outputs], 1) if len(outputs) else np.empty((len(frame), 0))
    return np.where(np.isfinite(values), values, np.nan)


def check_present(column: pd.Series, values: np.ndarray, role: str) -> None:
    missing = np.flatnonzero(np.isnan(values))
    if len(missing):
        raise TableError(
            f"The {role} {column.name!r} is missing in {len(missing)} row{'s' if len(missing) > 1 else ''}, first in "
            f"{name_row(column, int(missing[0]))}. Only outputs may have holes: fill these cells or drop the rows."
        )


def _is_dated(column: pd.Series) -> bool:
    """Return whether these are points in time of pandas' own."""
    return types.is_datetime64_any_dtype(column.dtype) or isinstance(column.dtype, pd.PeriodDtype)


def _may_hold_text(column: pd.Series) -> bool:
    dtype = column.dtype
    return isinstance(dtype, pd.CategoricalDtype) or types.is_object_dtype(dtype) or types.is_string_dtype(dtype)


def _coerce(column: pd.Series) -> np.ndarray:
    if isinstance(column.dtype, pd.CategoricalDtype):
        column = column.astype(object)
    elif isinstance(column.dtype, pd.ArrowDtype) and str(column.dtype).startswith("decimal"):
        column = column.astype("double[pyarrow]")  # where there are holes, pandas loses them
    values = pd.to_numeric(column, errors="coerce")
    if types.is_complex_dtype(values.dtype):
        return np.where(np.imag(values) == 0, np.real(values), np.nan)
    return values.to_numpy(float, na_value=np.nan)


def _sample(column: pd.Series) -> pd.Series:
    """Values that are there, at most :data:`SAMPLE` of them, from all parts of a column."""
    present = column.dropna()
    return present.iloc[np.linspace(0, len(present) - 1, min(len(present), SAMPLE)).astype(int)]
