"""Dates are read in one way per column, whoever wrote them, and tell weeks and months apart."""

from __future__ import annotations

import datetime as dt

import numpy as np
import pandas as pd
import pytest

from gpytorch_sgpvae.table import TableError, TableWarning
from gpytorch_sgpvae.table.dates import UNITS, calendar_keys, has_zones, is_day_first
from gpytorch_sgpvae.table.inputs import InputColumn
from gpytorch_sgpvae.table.numbers import ORIGIN, is_date, read_dates, read_days
from gpytorch_sgpvae.table.tasks import TaskColumn


def column(cells, **kwargs):
    return pd.Series(cells, name="when", **kwargs)


def fit(cells):
    series = cells if isinstance(cells, pd.Series) else column(cells)
    return InputColumn.fit(series, np.zeros(len(series), dtype=int), period=None)


def days(*dates):
    return [(pd.Timestamp(date) - ORIGIN) / pd.Timedelta(days=1) for date in dates]


THREE = days("2024-01-01", "2024-01-02", "2024-01-15")


@pytest.mark.parametrize(
    "cells",
    [
        column(["2024-01-01", "2024-01-02", "2024-01-15"]),
        column(["2024-01-01T00:00", "2024-01-02 00:00:00", "2024-01-15"]),
        column(["1 Jan 2024", "January 2, 2024", "2024-01-15"]),
        column(["1/1/2024", "1/2/2024", "1/15/2024"]),
        column(["01.01.2024", "02.01.2024", "15.01.2024"]),
        column(["1-1-24", "2-1-24", "15-1-24 00:00"]),
        column([dt.date(2024, 1, 1), dt.date(2024, 1, 2), dt.date(2024, 1, 15)], dtype=object),
        column([dt.datetime(2024, 1, 1), "2024-01-02", np.datetime64("2024-01-15")], dtype=object),
        column(pd.PeriodIndex(["2024-01-01", "2024-01-02", "2024-01-15"], freq="D")),
        column([pd.Period("2024-01-01"), pd.Period("2024-01-02"), pd.Timestamp("2024-01-15")], dtype=object),
        column(pd.Categorical(["2024-01-01", "2024-01-02", "2024-01-15"])),
        column(["2024-01-01", "2024-01-02", "2024-01-15"], dtype="string"),
        *(column(np.array(["2024-01-01", "2024-01-02", "2024-01-15"], dtype=f"M8[{u}]")) for u in ("s", "ms", "ns")),
        column(["2024-01-01T00:00Z", "2024-01-02T01:00+01:00", "2024-01-14T23:00-01:00"]),
        column(pd.DatetimeIndex(["2024-01-01", "2024-01-02", "2024-01-15"], tz="UTC").tz_convert("Asia/Tokyo")),
    ],
    ids=lambda cells: f"{cells.dtype} {cells.iloc[0]}",
)
def test_dates_of_any_writing_are_the_same_days(cells):
    assert is_date(cells)
    np.testing.assert_allclose(fit(cells).read(cells), THREE)


def test_one_date_with_a_number_above_12_decides_for_its_column():
    cells = column(["1/2/2024", "3/4/2024", "13/2/2024"])
    np.testing.assert_allclose(fit(cells).read(cells), days("2024-02-01", "2024-04-03", "2024-02-13"))


def test_what_was_decided_at_fit_holds_in_other_tables():
    fitted = fit(["1/2/2024", "3/4/2024", "13/2/2024"])
    np.testing.assert_allclose(fitted.read(column(["5/6/2024"])), days("2024-06-05"))
    with pytest.raises(TableError, match="'6/30/2024' in row 1 cannot be read as one with the day first"):
        fitted.read(column(["6/30/2024"]))


@pytest.mark.parametrize(
    ("cells", "day_first", "told"),
    [
        (["1/2/2024", "3/4/2024"], False, "'1/2/2024' and all others are read with the month first, as 2024-01-02"),
        (["1.2.2024", "3.4.2024"], True, "'1.2.2024' and all others are read with the day first, as 2024-02-01"),
    ],
)
def test_an_open_order_is_guessed_and_told(cells, day_first, told):
    with pytest.warns(TableWarning, match=told):
        fitted = fit(cells)
    assert fitted.day_first is day_first


def test_an_order_that_the_fitted_table_leaves_open_is_decided_later():
    fitted = fit(["2024-01-01", "2024-01-02"])
    assert fitted.day_first is None
    np.testing.assert_allclose(fitted.read(column(["1/2/2024", "13/2/2024"])), days("2024-02-01", "2024-02-13"))
    with pytest.warns(TableWarning, match="month first"):
        fitted.read(column(["1/2/2024"]))


def test_days_equal_to_months_leave_nothing_open():
    assert is_day_first(column(["1/1/2024", "2/2/2024"])) is False  # and no warning


def test_two_orders_in_one_column_are_refused():
    with pytest.raises(TableError, match=r"'2/14/2024' in row 3 cannot be read as one with the day first\. Write"):
        fit(["13/1/2024", "14/1/2024", "2/14/2024"])


def test_mixed_offsets_are_the_same_time():
    cells = column(["2024-03-31T00:00+01:00", "2024-03-31T04:00+02:00", "2024-03-31T03:00Z"])
    np.testing.assert_allclose(np.diff(fit(cells).read(cells)), [3 / 24, 1 / 24])


@pytest.mark.parametrize(
    "cells",
    [
        ["2024-01-01T00:00+01:00", "2024-01-02T00:00", "2024-01-03T00:00Z"],
        [pd.Timestamp("2024-01-01 01:00", tz="Asia/Tokyo"), pd.Timestamp("2024-01-02"), pd.Timestamp("2024-01-03")],
    ],
    ids=["text", "objects"],
)
def test_times_without_a_zone_among_others_are_taken_for_utc_and_told(cells):
    cells = column(cells, dtype=object)
    with pytest.warns(TableWarning, match=r"with a time zone and \d without, such as '2024-01-02.*taken for UTC"):
        values = fit(cells).read(cells)
    assert values[1] == days("2024-01-02")[0]


def test_a_table_that_lost_its_zone_is_told():
    aware = column(pd.date_range("2024", periods=3, tz="Asia/Tokyo"))
    with pytest.warns(TableWarning, match="has no time zone, unlike in the table that was fitted"):
        fit(aware).read(aware.dt.tz_localize(None))
    with pytest.warns(TableWarning, match="has a time zone, unlike"):
        fit(aware.dt.tz_localize(None)).read(aware)
    assert has_zones(aware) is True


@pytest.mark.parametrize("cells", [["12:30", "13:45", "7:00 PM"] * 2, [dt.time(12, 30), dt.time(13, 45)] * 2])
def test_times_of_day_are_refused(cells):
    with pytest.raises(TableError, match=r"times of day without a date, such as '12:30.*Write them with their date"):
        fit(column(cells, dtype=object))


@pytest.mark.parametrize("dtype", ["M8[ns]", object, "str"])
def test_a_column_without_any_date_is_missing(dtype):
    with pytest.raises(TableError, match="'when' is missing in 3 rows, first in row 1"):
        fit(column([None] * 3, dtype=dtype))


@pytest.mark.parametrize("cells", [["now", "today", "now"], ["10 A", "10 B", "10 A"], ["May", "June", "May"]])
def test_words_are_no_dates(cells):
    assert not is_date(column(cells))


def test_clocks_that_go_back_have_an_hour_more():
    """Two hours are 2 o'clock in Berlin on 27 October 2024, and days are told in UTC."""
    cells = column(pd.date_range("2024-10-27", periods=25, freq="h", tz="Europe/Berlin"))
    np.testing.assert_allclose(np.diff(fit(cells).read(cells)), 1 / 24)


def test_dates_that_cannot_be_read_are_missing_nowhere():
    with pytest.raises(TableError, match="'2024-02-30' in row 2 cannot be read"):
        read_days(column(["2024-02-01", "2024-02-30", "2024-02-03"]))


@pytest.mark.parametrize(
    ("unit", "expected"),
    [
        ("hour", ["2024-12-29 23h", "2024-12-30 00h", "2026-01-01 12h"]),
        ("day", ["2024-12-29", "2024-12-30", "2026-01-01"]),
        ("week", ["2024-W52", "2025-W01", "2026-W01"]),
        ("month", ["2024-12", "2024-12", "2026-01"]),
        ("quarter", ["2024Q4", "2024Q4", "2026Q1"]),
        ("year", ["2024", "2024", "2026"]),
    ],
)
def test_units_of_the_calendar(unit, expected):
    dates = column(pd.to_datetime(["2024-12-29 23:59", "2024-12-30 00:00", "2026-01-01 12:00"]))
    assert unit in UNITS
    assert calendar_keys(dates, unit).tolist() == expected


def test_weeks_begin_on_monday():
    dates = column(pd.date_range("2020-12-20", periods=50))
    keys = calendar_keys(dates, "week")
    assert dates[keys != keys.shift()].iloc[1:].dt.day_name().unique().tolist() == ["Monday"]


def test_the_last_week_that_there_is_has_a_name():
    assert calendar_keys(column(np.array(["9999-12-31"], dtype="M8[s]")), "week").tolist() == ["9999-W52"]


def test_local_dates_are_what_the_clocks_there_show():
    cells = column(pd.DatetimeIndex(["2024-01-01 00:30"], tz="Asia/Tokyo"))
    assert read_dates(cells, local=True)[0] == pd.Timestamp("2024-01-01 00:30")
    assert read_dates(cells)[0] == pd.Timestamp("2023-12-31 15:30")
    text = column(["2024-01-01T00:30+09:00", "2024-01-01 00:30 UTC"])
    assert (read_dates(text, local=True) == pd.Timestamp("2024-01-01 00:30")).all()


@pytest.fixture
def frame():
    dates = pd.date_range("2024-01-01", periods=21)
    return pd.DataFrame({"date": dates, "n": np.arange(21.0), "word": "word"})


def keys(frame, name):
    return TaskColumn.fit(frame, name, []).read(frame).unique().tolist()


def test_tasks_of_dates_are_weeks(frame):
    assert keys(frame, "week(date)") == ["2024-W01", "2024-W02", "2024-W03"]
    assert keys(frame, " month( date ) ") == ["2024-01"]


@pytest.mark.parametrize("write", [lambda d: d.dt.strftime("%d/%m/%Y"), lambda d: d.dt.tz_localize("Asia/Tokyo")])
def test_tasks_of_dates_do_not_depend_on_how_these_are_written(frame, write):
    assert keys(frame.assign(date=write(frame["date"])), "week(date)") == ["2024-W01", "2024-W02", "2024-W03"]


def test_tasks_remember_what_comes_first(frame):
    task = TaskColumn.fit(frame.assign(date=frame["date"].dt.strftime("%d/%m/%Y")), "day(date)", [])
    assert task.read(pd.DataFrame({"date": ["1/2/2024"]})).tolist() == ["2024-02-01"]


def test_tasks_are_told_once_of_an_open_order(frame):
    open_order = frame.assign(date=["1/2/2024", "3/4/2024", "5/6/2024"] * 7)
    assert TaskColumn.fit(open_order, "day(date)", ["date"]).day_first is False  # the input of that name tells it
    with pytest.warns(TableWarning, match="tells days from months"):
        TaskColumn.fit(open_order, "day(date)", [])


def test_a_column_of_that_very_name_wins(frame):
    assert keys(frame.assign(**{"week(date)": "mine"}), "week(date)") == ["mine"]


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("weeks(date)", r"made of dates are hour, day, week, .*, not 'weeks'\. Did you mean 'week\(date\)'\?"),
        ("week(dat)", r"no column 'dat', of whose dates the task 'week\(dat\)' is to be made, .* Did you mean 'date'"),
        ("week(n)", r"'week\(n\)' is to be made of dates, but column 'n' holds none: its first value is .*0\.0"),
        ("week(word)", "but column 'word' holds none: its first value is 'word'"),
        ("week", "no column 'week' in the table"),
        ("week()", r"no column 'week\(\)' in the table"),
    ],
)
def test_tasks_that_cannot_be_made_are_explained(frame, name, message):
    with pytest.raises(TableError, match=message):
        keys(frame, name)


def test_a_task_without_a_date_is_named_with_its_row(frame):
    frame.loc[4, "date"] = pd.NaT
    with pytest.raises(TableError, match=r"'week\(date\)', column 'date', is missing in 1 row, first in row 5"):
        keys(frame, "week(date)")
