"""Dates become numbers that tasks share."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from gpytorch_sgpvae.table import TableError
from gpytorch_sgpvae.table.inputs import InputColumn

DATES = pd.Series(pd.date_range("2024-01-01", periods=14), name="date")
WEEKS = np.repeat([0, 1], 7)


def offsets(column, values, tasks):
    numbers = column.read(values)
    return column.offset(numbers, tasks, column.starts(numbers, tasks))


@pytest.mark.parametrize(
    "dates",
    [
        DATES,
        DATES.dt.strftime("%Y-%m-%d"),
        DATES.dt.strftime("%d %B %Y"),
        DATES.dt.tz_localize("Asia/Tokyo"),
        DATES.dt.date,
    ],
    ids=["timestamps", "iso", "words", "time zone", "objects"],
)
def test_dates_of_any_writing_are_days_from_the_start_of_a_week(dates):
    column = InputColumn.fit(dates.rename("date"), WEEKS, period=None)
    assert column.is_date
    assert column.from_task_start
    np.testing.assert_allclose(offsets(column, dates, WEEKS), np.tile(np.arange(7), 2))


def test_dates_of_tasks_that_overlap_are_days_from_one_day():
    column = InputColumn.fit(DATES, np.tile([0, 1], 7), period=None)
    assert not column.from_task_start
    np.testing.assert_allclose(np.diff(column.encode(offsets(column, DATES, WEEKS))) * column.scale, 1.0)


def test_dates_of_one_task_are_days_from_one_day():
    assert not InputColumn.fit(DATES, np.zeros(14, dtype=int), period=None).from_task_start


def test_hours_are_fractions_of_days():
    hours = pd.Series(pd.date_range("2024-01-01", periods=48, freq="h"), name="time")
    column = InputColumn.fit(hours, np.zeros(48, dtype=int), period=None)
    np.testing.assert_allclose(np.diff(column.read(hours)), 1 / 24)


def test_a_periodic_date_keeps_its_place_in_the_period():
    column = InputColumn.fit(DATES, WEEKS, period=7)
    assert not column.from_task_start
    encoded = column.encode(offsets(column, DATES, WEEKS))
    np.testing.assert_allclose(
        encoded, np.tile(np.arange(7) / 7, 2), atol=1e-9
    )  # the first of January 2024 is a Monday


def test_numbers_as_text_are_numbers():
    column = InputColumn.fit(pd.Series(["1", "2", "3.5"], name="x"), np.zeros(3, dtype=int), period=None)
    assert not column.is_date
    np.testing.assert_allclose(column.read(pd.Series(["1", "2"], name="x")), [1, 2])


def test_a_date_that_cannot_be_read_is_named():
    dates = DATES.dt.strftime("%Y-%m-%d").copy()  # pandas < 3 takes what is made of dates for a view of them
    dates[3] = "yesterday"
    with pytest.raises(TableError, match="holds dates, but 'yesterday' in row 4"):
        InputColumn.fit(dates, WEEKS, period=None)


def test_inputs_are_standardized():
    values = pd.Series([3.0, 5.0, 9.0, 1.0], name="x")
    encoded = InputColumn.fit(values, np.zeros(4, dtype=int), period=None)
    numbers = encoded.encode(encoded.read(values))
    assert numbers.mean() == pytest.approx(0)
    assert numbers.std() == pytest.approx(1)
