"""Simple ways of filling holes, without a model, to compare with."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import pandas as pd

from .numbers import is_date, read_anything, read_outputs

# What an input that is a time is called, if it is no date.
TIMES = {"t", "time", "date", "datetime", "timestamp", "second", "minute", "hour", "day", "week", "month", "year"}


def time_column(frame: pd.DataFrame, inputs: Sequence[str]) -> str:
    """
    The input that series run along: the first date among them, else the first named after a time, else the last.

    :param frame: The table.
    :param inputs: Names of its inputs.
    """
    return [*_times(frame, inputs), *reversed(inputs)][0]


def has_time(frame: pd.DataFrame, inputs: Sequence[str]) -> bool:
    """
    Return whether an input is a date, or named after a time.

    :param frame: The table.
    :param inputs: Names of its inputs.
    """
    return bool(_times(frame, inputs))


def series_columns(frame: pd.DataFrame, inputs: Sequence[str], task: str | None) -> list[str]:
    """
    List the columns that the rows of a series have in common: the task, and all inputs but the time.

    :param frame: The table.
    :param inputs: Names of its inputs.
    :param task: Name of the column that tells tasks apart, if there is one.
    """
    time = time_column(frame, inputs)
    return [*([] if task is None else [task]), *(name for name in inputs if name != time)]


def groups_of_rows(frame: pd.DataFrame, together: Sequence[str]) -> list[np.ndarray]:
    """
    The rows that agree in some columns, for each of their values; all rows where there are none.

    :param frame: The table.
    :param together: Names of the columns.
    """
    if not together:
        return [np.arange(len(frame))]
    numbers = group_numbers(frame, together)
    order = np.argsort(numbers, kind="stable")
    return np.split(order, np.flatnonzero(np.diff(numbers[order])) + 1)


def group_numbers(frame: pd.DataFrame, together: Sequence[str]) -> np.ndarray:
    """
    A number for each row, which rows that agree in some columns share; 0 where there are no such columns.

    :param frame: The table.
    :param together: Names of the columns.
    """
    if not together:
        return np.zeros(len(frame), int)
    return frame.groupby(list(together), sort=False, dropna=False).ngroup().to_numpy(int)


def fill_by_mean(frame: pd.DataFrame, outputs: Sequence[str]) -> pd.DataFrame:
    """
    Each hole gets the mean of its column.

    :param frame: The table; NaN is a hole.
    :param outputs: The output columns with holes, numbers.

    Example:
        >>> import pandas as pd
        >>> from gpytorch_sgpvae.table.baselines import fill_by_mean
        >>> fill_by_mean(pd.DataFrame({"y": [1.0, None, 3.0]}), ["y"])["y"].tolist()
        [1.0, 2.0, 3.0]
    """
    return _with(frame, outputs, read_outputs(frame, outputs))


def fill_by_interpolation(
    frame: pd.DataFrame, inputs: Sequence[str], outputs: Sequence[str], task: str | None = None
) -> pd.DataFrame:
    """
    Linear interpolation in time between the values before and after a hole, in rows that share the task and all other
    inputs; the closest value where there is only one side, and the mean of the column where a series has no value.

    :param frame: The table; NaN is a hole.
    :param inputs: Names of its inputs; see :func:`time_column` for which is the time.
    :param outputs: The output columns with holes, numbers.
    :param task: Name of the column that tells tasks apart, if there is one.

    Example:
        >>> import pandas as pd
        >>> from gpytorch_sgpvae.table.baselines import fill_by_interpolation
        >>> frame = pd.DataFrame({"place": [1, 1, 1, 2], "day": [0, 1, 4, 1], "y": [1.0, None, 9.0, 5.0]})
        >>> fill_by_interpolation(frame, ["place", "day"], ["y"])["y"].tolist()
        [1.0, 3.0, 9.0, 5.0]
    """
    values = read_outputs(frame, outputs)  # (N, P)
    for rows, times in _series(frame, inputs, task):
        for column in values.T:
            known = ~np.isnan(column[rows])
            if known.any():
                column[rows[~known]] = np.interp(times[~known], times[known], column[rows[known]])
    return _with(frame, outputs, values)


def fill_by_last_value(
    frame: pd.DataFrame, inputs: Sequence[str], outputs: Sequence[str], task: str | None = None
) -> pd.DataFrame:
    """
    The last value before a hole, in rows that share the task and all other inputs; the next one at the beginning of a
    series, and the mean of the column where a series has no value.

    :param frame: The table; NaN is a hole.
    :param inputs: Names of its inputs; see :func:`time_column` for which is the time.
    :param outputs: The output columns with holes, numbers.
    :param task: Name of the column that tells tasks apart, if there is one.

    Example:
        >>> import pandas as pd
        >>> from gpytorch_sgpvae.table.baselines import fill_by_last_value
        >>> frame = pd.DataFrame({"day": [0, 1, 2, 3], "y": [None, 2.0, None, 4.0]})
        >>> fill_by_last_value(frame, ["day"], ["y"])["y"].tolist()
        [2.0, 2.0, 2.0, 4.0]
    """
    values = read_outputs(frame, outputs)  # (N, P)
    for rows, _ in _series(frame, inputs, task):
        values[rows] = pd.DataFrame(values[rows]).ffill().bfill().to_numpy()
    return _with(frame, outputs, values)


def _times(frame: pd.DataFrame, inputs: Sequence[str]) -> list[str]:
    dates = [name for name in inputs if is_date(frame[name])]
    return [*dates, *(name for name in inputs if str(name).lower() in TIMES)]


def _with(frame: pd.DataFrame, outputs: Sequence[str], values: np.ndarray) -> pd.DataFrame:
    """The table with these values, and what is still missing as the mean of what was known (`N x P`)."""
    means = pd.DataFrame(read_outputs(frame, outputs)).mean().to_numpy()
    filled = frame.copy()
    for name, column in zip(outputs, np.where(np.isnan(values), means, values).T, strict=True):
        filled[name] = column
    return filled


def _series(frame: pd.DataFrame, inputs: Sequence[str], task: str | None) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Rows and times of each series of more than one row, in the order of time."""
    times = read_anything(frame[time_column(frame, inputs)])
    for rows in groups_of_rows(frame, series_columns(frame, inputs, task)):
        if len(rows) > 1:
            ordered = rows[np.argsort(times[rows], kind="stable")]
            yield ordered, times[ordered]
