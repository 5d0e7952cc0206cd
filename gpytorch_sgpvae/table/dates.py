"""Points in time: how a column writes them, and the weeks or months that they are in."""

from __future__ import annotations

import re
import warnings
from collections.abc import Sequence
from datetime import date
from typing import Any

import numpy as np
import pandas as pd
from pandas.api import types

from .errors import TableError, TableWarning

# What can be made of dates, with the name that pandas has for a period of that length.
UNITS = {"hour": "h", "day": "D", "week": "W", "month": "M", "quarter": "Q", "year": "Y"}
# Day, month and year in numbers, the day or the month first, and a time maybe.
IN_NUMBERS = re.compile(r"\s*(\d{1,2})([/.-])(\d{1,2})\2(\d{4}|\d{2})((?:[T, ].*)?)")
# Two numbers for a year mean one from 1969 to 2068, as in POSIX.
FIRST_SHORT_YEAR = 69
# A time of day, and a time of day with its distance from UTC at the end.
CLOCK = re.compile(r"\s*\d{1,2}:\d{2}(?::\d{2}(?:\.\d+)?)?(?:\s*[AP]M)?\s*", re.IGNORECASE)
ZONE = re.compile(r"([:T]\d{2}[\d:.]*(?:\s*[AP]M)?)\s*(?:Z|UTC|GMT|[+-]\d{2}(?::?\d{2})?)\s*$", re.IGNORECASE)
# Text such as "10 A" is in the year 1 to pandas, or in none; before this year only ISO dates are believed.
EARLIEST_YEAR = 1678


def parse_dates(column: pd.Series, day_first: bool, local: bool = False) -> pd.Series:
    """
    Points in time without a time zone, NaT where there is none or where it cannot be read.

    :param column: Dates, pandas' own or written in any way.
    :param day_first: Whether 1/2/2024 is in February, in all rows alike.
    :param local: Whether those with a time zone are told as the clocks there show them, and not in UTC.
    """
    if isinstance(column.dtype, pd.PeriodDtype):
        return column.dt.to_timestamp()
    if types.is_datetime64_any_dtype(column.dtype):
        if column.dt.tz is None:
            return column
        return column.dt.tz_localize(None) if local else column.dt.tz_convert(None)
    codes, cells = pd.factorize(column)
    dates = _parse([_without_zone(cell) if local else cell for cell in cells.astype(object)], day_first)
    return pd.Series(np.append(dates, np.datetime64("NaT"))[codes], index=column.index, name=column.name)


def is_in_numbers(cell: Any) -> bool:
    """Return whether this is a date such as 1/2/2024, whose order of day and month has to be known."""
    return isinstance(cell, str) and IN_NUMBERS.fullmatch(cell) is not None


def year_first(cell: str, day_first: bool) -> str | None:
    """A date such as 1/2/2024 with the year first, as 2024-02-01; None if there is no such month or day."""
    match = IN_NUMBERS.fullmatch(cell)
    return cell if match is None else _in_iso_order(match, day_first)


def open_date(column: pd.Series) -> str | None:
    """A date of a column of which nothing tells whether the day or the month comes first, or None."""
    found = _matches(column)
    if any(int(match[part]) > 12 for match in found for part in (1, 3)):
        return None
    return next((match[0] for match in found if int(match[1]) != int(match[3])), None)


def is_day_first(column: pd.Series, tell: bool = True) -> bool | None:
    """
    Tell whether dates in numbers have the day before the month, by those with a number above 12. If there are none,
    1/2/2024 and 1-2-2024 have the month first, as pandas reads them, and 1.2.2024 has the day first. None if no date is
    in numbers.

    :param column: A column of dates.
    :param tell: Whether to issue a warning where it is a guess.
    """
    found = _matches(column)
    if not found:
        return None
    first, second = (sum(int(match[part]) > 12 for match in found) for part in (1, 3))
    if first != second:
        return first > second
    open_to_guess = [match for match in found if int(match[1]) != int(match[3])]
    day_first = sum(match[2] == "." for match in open_to_guess) > len(open_to_guess) / 2
    if tell and open_to_guess and first == 0:
        example = open_to_guess[0]
        warnings.warn(
            f"Nothing in column {column.name!r} tells days from months: {example[0]!r} and all others are read with "
            f"the {'day' if day_first else 'month'} first, as {_in_iso_order(example, day_first)}. Write dates as "
            "2024-12-31 if that is wrong.",
            TableWarning,
            stacklevel=4,
        )
    return day_first


def has_zones(column: pd.Series) -> bool | None:
    """Tell whether dates have a time zone; None if only some have."""
    if isinstance(column.dtype, pd.PeriodDtype):
        return False
    if types.is_datetime64_any_dtype(column.dtype):
        return column.dt.tz is not None
    found = {_has_zone(cell) for cell in _cells(column)}
    return None if len(found) > 1 else found == {True}


def warn_of_zones(column: pd.Series, found: bool | None, expected: bool | None) -> None:
    """
    Tell that dates without a time zone are taken for UTC, where some have one and others have none.

    :param column: A column of dates.
    :param found: The answer of :func:`has_zones` for these dates.
    :param expected: Its answer for the table that was fitted.
    """
    fix = "Write all with their zone, as 2024-12-31T18:30+01:00, if that is wrong."
    message = None
    if found is None:
        without = [cell for cell in _cells(column) if not _has_zone(cell)]
        message = f"has dates with a time zone and {len(without)} without, such as {str(without[0])!r}: these"
    elif expected is not None and found != expected:
        message = f"has {'a' if found else 'no'} time zone, unlike in the table that was fitted: dates without one"
    if message:
        warnings.warn(f"Column {column.name!r} {message} are taken for UTC. {fix}", TableWarning, stacklevel=4)


def check_no_clock(name: str, cells: Sequence[Any]) -> None:
    """
    Raise if most of some cells are times of day.

    :param name: Name of the column.
    :param cells: The different values of the column.
    """
    clocks = [str(cell) for cell in cells if CLOCK.fullmatch(str(cell))]
    if len(clocks) > len(cells) / 2:
        raise TableError(
            f"The input {name!r} has times of day without a date, such as {clocks[0]!r}. Write them with their date, "
            "as 2024-12-31 18:30, or as numbers of hours."
        )


def calendar_keys(dates: pd.Series, unit: str) -> pd.Series:
    """
    The names of the weeks, or of other stretches of the calendar, that dates are in: 2024-W05 for a week as in ISO
    8601, from Monday to Sunday; 2024-03-01 05h, 2024-03-01, 2024-03, 2024Q1, 2024. None where there is no date.

    :param dates: Points in time, without a time zone.
    :param unit: One of :data:`UNITS`.
    """
    if unit == "week":
        iso = dates.dt.isocalendar()
        codes, found = pd.factorize(iso["year"].astype("Int64") * 100 + iso["week"].astype("Int64"))
        names = [f"{number // 100}-W{number % 100:02}" for number in found]
    else:
        codes, found = pd.factorize(dates.dt.to_period(UNITS[unit]))
        names = [f"{period.strftime('%Y-%m-%d %H')}h" if unit == "hour" else str(period) for period in found]
    return pd.Series(np.array([*names, None], dtype=object)[codes], index=dates.index, dtype=object)


def _matches(column: pd.Series) -> list[re.Match[str]]:
    """The different dates in numbers."""
    return [match for cell in _cells(column) if isinstance(cell, str) and (match := IN_NUMBERS.fullmatch(cell))]


def _cells(column: pd.Series) -> list[Any]:
    """The different values of a column that may hold text; of any other none."""
    if isinstance(column.dtype, pd.PeriodDtype) or types.is_datetime64_any_dtype(column.dtype):
        return []
    return column.dropna().astype(object).unique().tolist()


def _parse(cells: list[Any], day_first: bool) -> np.ndarray:
    """Points in time in UTC, first as ISO 8601 has them, then those that are left (`N`, datetime64)."""
    believed = [_plain(cell) if _may_be_date(cell) else None for cell in cells]
    dates = _to_datetime(believed, "ISO8601").to_numpy(copy=True)
    left = np.flatnonzero(np.isnat(dates))
    if len(left):
        guessed = _to_datetime([_spelled_out(believed[i], day_first) for i in left], "mixed")
        dates[left] = guessed.where(guessed.year >= EARLIEST_YEAR).to_numpy()
    return dates


def _to_datetime(cells: list[Any], style: str) -> pd.DatetimeIndex:
    zoned = np.array([_has_zone(cell) for cell in cells], dtype=bool)
    dates = np.empty(len(cells), dtype="M8[us]")
    for rows in (np.flatnonzero(zoned), np.flatnonzero(~zoned)):  # pandas < 3 takes a zone for that of the next cell
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of formats that it has to guess
            index = pd.Index([cells[i] for i in rows], dtype=object)
            read = pd.DatetimeIndex(pd.to_datetime(index, errors="coerce", format=style, utc=True, cache=False))
        dates[rows] = read.tz_convert(None).as_unit("us").to_numpy()
    return pd.DatetimeIndex(dates)


def _may_be_date(cell: Any) -> bool:
    """Return whether this is text, but not now or today, or a date already; pandas counts numbers in nanoseconds."""
    if isinstance(cell, str):
        return cell.strip().lower() not in ("now", "today")
    return isinstance(cell, (date, np.datetime64, pd.Period))


def _plain(cell: Any) -> Any:
    """Text without a class of its own, and the first moment of a period."""
    if isinstance(cell, str):
        return str(cell)
    return cell.to_timestamp() if isinstance(cell, pd.Period) else cell


def _spelled_out(cell: Any, day_first: bool) -> Any:
    """Text that pandas reads in one way only; None for a time of day, which it has for one of today."""
    if not isinstance(cell, str):
        return cell
    match = IN_NUMBERS.fullmatch(cell)
    if match is None:
        return None if CLOCK.fullmatch(cell) else cell
    return _in_iso_order(match, day_first)


def _in_iso_order(match: re.Match[str], day_first: bool) -> str | None:
    """A date in numbers with the year first, and the time that came with it; None if there is no such month or day."""
    day, month = (match[1], match[3]) if day_first else (match[3], match[1])
    if not (1 <= int(month) <= 12 and 1 <= int(day) <= 31):
        return None
    year = int(match[4])
    if len(match[4]) == 2:
        year += 1900 if year >= FIRST_SHORT_YEAR else 2000
    return f"{year:04}-{int(month):02}-{int(day):02}{match[5]}"


def _without_zone(cell: Any) -> Any:
    """A point in time as the clocks of its time zone show it."""
    if isinstance(cell, str):
        return ZONE.sub(r"\1", cell)
    return cell.replace(tzinfo=None) if _has_zone(cell) else cell


def _has_zone(cell: Any) -> bool:
    return ZONE.search(cell) is not None if isinstance(cell, str) else getattr(cell, "tzinfo", None) is not None
