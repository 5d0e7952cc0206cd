"""Rows past the end of a table, to be predicted."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
from pandas.api import types

from .errors import TableError, listed
from .fitted import FittedTable
from .numbers import read_numbers

# Rows past the end of each series, at most.
MOST_ROWS = 1_000_000


def rows_past_the_end(fitted: FittedTable, frame: pd.DataFrame, horizon: int) -> pd.DataFrame:
    """
    The inputs and the task of further rows of each series, at its usual step. A series is the rows that agree in the
    task and in all inputs but the time.

    :param fitted: The result of fitting such tables.
    :param frame: The table.
    :param horizon: The number of rows for each series.
    """
    reader, plan = fitted.reader, fitted.plan
    if isinstance(horizon, bool) or not isinstance(horizon, (int, np.integer)) or not 1 <= horizon <= MOST_ROWS:
        raise TableError(f"The horizon must be a whole number of rows from 1 to {MOST_ROWS}, got {horizon!r}.")
    names = [column.name for column in reader.inputs]
    cycles = [names[d] for d in plan.cycles]
    covariates = reader.outputs.names[reader.num_filled :]
    unknown = f"covariate {covariates[0]!r}" if covariates else f"input {cycles[0]!r}" if cycles else None
    if unknown is not None:
        raise TableError(
            f"Nobody knows what the {unknown} will be past the end of the table: write the rows to come with their "
            "values into a table, and predict there (in Python predict, in the command --at)."
        )
    if plan.time is None:
        raise TableError(
            f"No series of rows runs along one of the inputs {listed(names)}, so that there is no end to forecast "
            "from: write the rows to come into a table, and predict there (in Python predict, in the command --at)."
        )
    reader.check(frame)
    time, whole = names[plan.time], reader.complete(frame)
    keys = [name for name in names if name != time]
    if reader.task is not None and reader.task.name in [*frame.columns, *frame.index.names]:
        keys.insert(0, reader.task.name)  # those that are made of dates follow from these
    whole = whole[[*dict.fromkeys([*keys, time])]]
    if not reader.inputs[plan.time].is_date:
        whole = whole.assign(**{time: _numbers(whole[time])})
    series = [group for _, group in whole.groupby(keys, sort=False)] if keys else [whole]
    usual = _usual_step([np.sort(group[time].unique()) for group in series])
    parts = []
    for group in series:
        rows = group.iloc[[0] * horizon].reset_index(drop=True)
        rows[time] = _after(group[time], horizon, usual)
        parts.append(rows)
    return pd.concat(parts, ignore_index=True)[[*dict.fromkeys([*keys[: len(keys) - len(names) + 1], *names])]]


def _numbers(column: pd.Series) -> pd.Series:
    return column if types.is_integer_dtype(column.dtype) else pd.Series(read_numbers(column), index=column.index)


def _usual_step(series: list[np.ndarray]) -> Any:
    """The median of all steps."""
    steps = [np.diff(times) for times in series if len(times) > 1]
    if not steps:
        raise TableError("Every series has one row only, so that there is no usual step to go on with.")
    return np.sort(np.concatenate(steps))[sum(map(len, steps)) // 2]


def _after(times: pd.Series, horizon: int, usual: Any) -> pd.Series | pd.DatetimeIndex:
    """Times past the last one: in months if all are on one day of theirs, else at the usual step."""
    different = times.drop_duplicates().sort_values()
    last, count = different.iloc[-1], np.arange(1, horizon + 1)
    if len(different) > 1:
        steps = np.sort(np.diff(different.to_numpy()))
        usual = steps[len(steps) // 2]
    if types.is_datetime64_any_dtype(times.dtype):
        months = np.diff(12 * different.dt.year + different.dt.month)
        of_day = different - different.dt.normalize()
        if len(months) and months.min() > 0 and different.dt.day.nunique() == 1 and of_day.nunique() == 1:
            step = int(np.sort(months)[len(months) // 2])
            return pd.DatetimeIndex([last + pd.DateOffset(months=step * int(k)) for k in count])
        return pd.DatetimeIndex([last + pd.Timedelta(usual) * int(k) for k in count])
    return pd.Series(last + count * usual)
