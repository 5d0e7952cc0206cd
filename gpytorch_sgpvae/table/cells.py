"""
Conversion of cells of text to columns, as a person reads them: marks of missing values, decimal commas, the order of
dates.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd
from pandas.api import types

from .dates import is_in_numbers, open_date, year_first
from .errors import TableError, TableWarning, listed, name_row
from .numbers import is_date

# What cells say where a value is missing, besides nothing. `None` is not among them: it is a label, as of a garage.
USUAL_MARKS = ("NA", "N/A", "#N/A", "n/a", "NaN", "nan", "-nan", "NULL", "null", "<NA>")
BOOLEANS = {"True": True, "TRUE": True, "true": True, "False": False, "FALSE": False, "false": False}
# A number with another decimal sign than a point, and one with a comma that nobody has announced.
_DECIMAL = r"\s*[+-]?(?:\d+{0}?\d*|{0}\d+)(?:[eE][+-]?\d+)?\s*"
_WITH_COMMA = re.compile(r"\s*[+-]?\d*,\d+\s*")
# A whole number that was written as another one.
_WHOLE = re.compile(r"([+-]?\d+)\.0+")
# A value stands for a missing one if it is repeated, and as far from all others as this many of their own spreads.
FEWEST_REPEATS, FARTHEST = 2, 3.0
# Such values in one column, at most.
MOST_SENTINELS = 3


@dataclass(frozen=True)
class Reading:
    """
    The way cells are read.

    :param marks: The texts that stand for a missing value, besides an empty cell; None is :data:`USUAL_MARKS`.
    :param decimal: The decimal mark: a point or a comma.
    :param day_first: Whether 1/2/2024 is in February; None is what the column itself says.
    """

    marks: tuple[str, ...] | None = None
    decimal: str = "."
    day_first: bool | None = None

    def read_text(self, cells: Sequence[str], name: str) -> pd.Series:
        """Labels and names of tasks: text, None where there is nothing; 1 and 1.0 are one and the same."""
        values = [None if not cell.strip() else _WHOLE.sub(r"\1", cell) if "." in cell else cell for cell in cells]
        return pd.Series(values, dtype=object, name=name)

    def read_values(self, cells: Sequence[str], name: str, has_holes: bool, is_text: bool = False) -> pd.Series:
        """
        Numbers if all cells have one, else truth values if all are that, else text; None or NaN where there is nothing.

        :param cells: Cells of a column.
        :param name: Name of the column.
        :param has_holes: Whether marks stand for missing values; in columns without holes only empty cells do.
        :param is_text: Whether cells are labels, also where these are numbers.
        """
        numbers = self._read_numbers(cells, has_holes) if not is_text else None
        if numbers is not None:
            return pd.Series(numbers, name=name)
        found = {cell: self._read_cell(cell, has_holes) for cell in dict.fromkeys(cells)}
        present = {cell: value for cell, value in found.items() if value is not None}
        if has_holes and self.marks is None:
            self._warn_of_marks(cells, found, name, is_text)
        column = pd.Series([found[cell] for cell in cells], dtype=object, name=name)
        if is_text:
            return column
        if present and all(cell in BOOLEANS for cell in present):
            return column.map(BOOLEANS, na_action="ignore").astype(object)
        numbers = _to_numbers(list(present.values()))
        if not np.isnan(numbers).any():
            values = dict(zip(present, numbers.tolist(), strict=True))
            return pd.Series([values.get(cell, np.nan) for cell in cells], dtype=float, name=name)
        commas = [cell for cell in present if _WITH_COMMA.fullmatch(cell)]
        if self.decimal == "." and len(commas) > int(np.isnan(numbers).sum()) / 2:
            raise TableError(
                f"Column {name!r} has numbers with a comma, such as {commas[0]!r}: if it stands before decimals, say "
                "--decimal=, (with the comma); if not, take it out."
            )
        return column

    def check(self, frame: pd.DataFrame, names: Sequence[str], settled: Sequence[str] = ()) -> pd.DataFrame:
        """
        The table with dates in one order. What may have the day or the month first is refused where nothing settles it.

        :param frame: The table.
        :param names: Columns that may hold dates.
        :param settled: The columns whose order of dates is known from the table that was fitted.
        """
        for name in dict.fromkeys(names):
            if list(frame.columns).count(name) != 1 or not _is_text(frame[name]):
                continue
            column = frame[name]
            if self.day_first is not None:
                frame[name] = _in_order(column, self.day_first)
            elif name not in settled and is_date(column) and (example := open_date(column)) is not None:
                raise TableError(
                    f"Nothing in column {name!r} tells days from months: {example!r} may be either. Say --day-first or "
                    "--month-first, or write dates as 2024-12-31."
                )
        return frame

    def without_marks(self, frame: pd.DataFrame, names: Sequence[str]) -> pd.DataFrame:
        """A table that has types of its own, with the marks that were asked for taken for missing values."""
        for name in names:
            if list(frame.columns).count(name) == 1 and self.marks:
                column = frame[name]
                marks = [_number(mark) for mark in self.marks] if types.is_numeric_dtype(column.dtype) else self.marks
                frame[name] = column.mask(column.isin([mark for mark in marks if mark is not None]))
        return frame

    def _read_numbers(self, cells: Sequence[str], has_holes: bool) -> np.ndarray | None:
        """The numbers of a column that has nothing else but marks, NaN for these; None if there is anything else."""
        numbers = _to_numbers(cells)
        missing = np.isnan(numbers)
        others = {cells[i] for i in np.flatnonzero(missing).tolist()}
        if missing.all() or any(self._read_cell(cell, has_holes) is not None for cell in others):
            return None
        marks = [_number(mark) for mark in self.marks or ()] if has_holes else []
        numbers[np.isin(numbers, [mark for mark in marks if mark is not None])] = np.nan
        return numbers

    def _read_cell(self, cell: str, has_holes: bool) -> str | None:
        """The cell with a decimal point, or None."""
        plain = cell.strip()
        if not plain:
            return None
        if self.decimal != "." and re.fullmatch(_DECIMAL.format(re.escape(self.decimal)), plain):
            cell = plain = plain.replace(self.decimal, ".")
        if not has_holes:
            return cell
        marks = USUAL_MARKS if self.marks is None else self.marks
        if plain in marks:
            return None
        number = _number(plain) if self.marks else None
        return None if number is not None and any(number == _number(mark) for mark in marks) else cell

    def _warn_of_marks(self, cells: Sequence[str], found: dict[str, str | None], name: str, is_text: bool) -> None:
        """Tell that a word is taken for a missing value where it may be a label."""
        words = [cell for cell, value in found.items() if value is None and cell.strip()]
        present = [value for value in found.values() if value is not None]
        if words and present and (is_text or all(_number(value) is None for value in present)):
            number = sum(cell in words for cell in cells)
            warnings.warn(
                f"Column {name!r} has {listed(map(repr, words))} in {number} cell{'s' if number > 1 else ''}, which is "
                "taken for a missing value. If it is a label, say --na= (then only empty cells are missing).",
                TableWarning,
                stacklevel=4,
            )


def warn_of_sentinels(frame: pd.DataFrame, names: Sequence[str], marks: Sequence[str] = ()) -> None:
    """
    Tell of values such as -999, -200 or 9999 that may stand for missing ones: whole numbers at the end of a column that
    are repeated, and far from all others; and the same values where other columns have them at their ends.

    :param frame: The table.
    :param names: Columns of numbers.
    :param marks: The texts that are taken for a missing value already, and occur: they are to be kept.
    """
    values = {}
    for name in names:
        if list(frame.columns).count(name) == 1 and types.is_float_dtype(frame[name].dtype):
            column = frame[name].to_numpy(float, na_value=np.nan)
            values[name] = column[np.isfinite(column)]
        elif list(frame.columns).count(name) == 1 and types.is_integer_dtype(frame[name].dtype):
            values[name] = frame[name].dropna().to_numpy(float)
    suspects = {value for column in values.values() for value in _sentinels(column)}
    found: dict[str, list[str]] = {}
    for name, column in values.items():
        ends = {float(end) for end in (column.min(), column.max())} if len(column) else set()
        for value in sorted(suspects & (ends | set(_sentinels(column)))):
            number = int((column == value).sum())
            if number >= FEWEST_REPEATS:
                found.setdefault(f"{value:.0f}", []).append(f"{name} ({number:,} cells)")
    if found:
        texts = "; ".join(f"{value} in {listed(columns)}" for value, columns in found.items())
        warnings.warn(
            f"Some values come again and are far from all others: {texts}. If they stand for missing values, say "
            f"--na={','.join([*marks, *found])}",
            TableWarning,
            stacklevel=3,
        )


def _sentinels(values: np.ndarray) -> list[float]:
    found = []
    for _ in range(MOST_SENTINELS):
        if not len(values):
            break
        for end in (float(values.min()), float(values.max())):
            rest = values[values != end]
            is_repeated = len(values) - len(rest) >= FEWEST_REPEATS and end.is_integer() and abs(end) > 1
            if not is_repeated or len(np.unique(rest)) < 2:
                continue
            low, high = np.quantile(rest, [0.05, 0.95])
            gap = np.abs(rest - end).min()
            if gap > FARTHEST * (high - low) / 2 and gap > np.ptp(rest) / 2:
                found.append(end)
                values = rest
                break
        else:
            break
    return found


def _in_order(column: pd.Series, day_first: bool) -> pd.Series:
    """The column with dates in numbers written as 2024-12-31."""
    order = {cell: year_first(cell, day_first) for cell in column.dropna().unique() if is_in_numbers(cell)}
    wrong = [cell for cell, text in order.items() if text is None]
    if wrong:
        row = int(np.flatnonzero((column == wrong[0]).to_numpy())[0])
        raise TableError(
            f"Column {column.name!r} is to be read with the {'day' if day_first else 'month'} first, but {wrong[0]!r} "
            f"in {name_row(column, row)} is no such date. Correct it, or say "
            f"{'--month-first' if day_first else '--day-first'}."
        )
    return column.map(lambda cell: order.get(cell, cell), na_action="ignore") if order else column


def _to_numbers(cells: Sequence[str]) -> np.ndarray:
    """NaN for those that are none."""
    return pd.to_numeric(pd.Series(cells, dtype=object), errors="coerce").to_numpy(float, na_value=np.nan).copy()


def _number(text: str) -> float | None:
    try:
        value = float(text)
    except ValueError:
        return None
    return None if np.isnan(value) else value


def _is_text(column: pd.Series) -> bool:
    return types.is_object_dtype(column.dtype) or types.is_string_dtype(column.dtype)
