"""Columns of a table as arrays of numbers."""

from __future__ import annotations

import warnings
from collections.abc import Sequence

import numpy as np
import pandas as pd
from pandas.api import types

from .errors import TableError, name_row, name_rows

# Dates are counted in days from here, a Monday: periods of a day, a week or a year start where one expects them to.
ORIGIN = pd.Timestamp("2001-01-01")
DAY = pd.Timedelta(days=1)


def read_numbers(column: pd.Series) -> np.ndarray:
    """The values as floating-point numbers, NaN where there is none; text that is no number is an error."""
    if types.is_timedelta64_dtype(column.dtype):
        return (column / DAY).to_numpy(float, na_value=np.nan)
    values = _coerce(column)
    text = np.flatnonzero(np.isnan(values) & column.notna().to_numpy())
    if len(text):
        raise TableError(
            f"Column {column.name!r} has text where a number is expected: {column.iloc[text[0]]!r} in "
            f"{name_rows(column, text)}. Correct it, or leave the cell empty if the value is missing."
        )
    infinite = np.flatnonzero(np.isinf(values))
    if len(infinite):
        raise TableError(
            f"Column {column.name!r} has an infinite value in {name_rows(column, infinite)}. Correct it, or leave the "
            "cell empty if the value is missing."
        )
    return values


def is_mostly_text(column: pd.Series) -> bool:
    """Whether fewer than half of the values that are there are numbers."""
    if not _may_hold_text(column):
        return False
    present = column.notna().to_numpy()
    return (~np.isnan(_coerce(column)))[present].mean() < 0.5 if present.any() else False


def is_date(column: pd.Series) -> bool:
    """Whether these are points in time: pandas' own, or text most of which can be read as such."""
    if types.is_datetime64_any_dtype(column.dtype) or isinstance(column.dtype, pd.PeriodDtype):
        return True
    return is_mostly_text(column) and bool(_parse_dates(column)[column.notna()].notna().mean() >= 0.5)


def read_days(column: pd.Series) -> np.ndarray:
    """Points in time as days from :data:`ORIGIN`, in UTC where they have a time zone; NaN where there is none."""
    dates = _parse_dates(column)
    bad = np.flatnonzero(dates.isna().to_numpy() & column.notna().to_numpy())
    if len(bad):
        raise TableError(
            f"Column {column.name!r} holds dates, but {column.iloc[bad[0]]!r} in {name_rows(column, bad)} cannot be "
            "read as one. Write dates as 2024-12-31, times as 2024-12-31 18:30."
        )
    return ((dates - ORIGIN) / DAY).to_numpy(float, na_value=np.nan)


def read_anything(column: pd.Series) -> np.ndarray:
    """
    Numbers for whatever a column holds: days of dates, numbers, or else a number for each different value. NaN where
    there is none, or none that is finite; nothing is an error.
    """
    if is_date(column):
        return ((_parse_dates(column) - ORIGIN) / DAY).to_numpy(float, na_value=np.nan)
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


def _may_hold_text(column: pd.Series) -> bool:
    dtype = column.dtype
    return isinstance(dtype, pd.CategoricalDtype) or types.is_object_dtype(dtype) or types.is_string_dtype(dtype)


def _coerce(column: pd.Series) -> np.ndarray:
    if isinstance(column.dtype, pd.CategoricalDtype):
        column = column.astype(object)
    return pd.to_numeric(column, errors="coerce").to_numpy(float, na_value=np.nan)


def _parse_dates(column: pd.Series) -> pd.Series:
    if isinstance(column.dtype, pd.PeriodDtype):
        return column.dt.to_timestamp()
    if types.is_datetime64_any_dtype(column.dtype):
        dates = column
    else:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of formats that it has to guess
            dates = pd.to_datetime(column.astype(object), errors="coerce", format="ISO8601", utc=True)
            if dates[column.notna()].isna().any():
                dates = pd.to_datetime(column.astype(object), errors="coerce", format="mixed", utc=True)
    return dates if dates.dt.tz is None else dates.dt.tz_convert(None)
