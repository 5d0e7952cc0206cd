"""Tables in long format, with a row for each reading of a sensor, and the same with a column for each sensor."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from .columns import get_column
from .errors import TableError, TableWarning, listed, name_row, name_rows
from .filling import SPREAD
from .numbers import check_cells, check_present
from .reading import MOST_REPEATED, check_columns
from .summaries import put

# What predictions have for each output, after its name.
PREDICTED = ("", "_std", "_lower", "_upper", "_probability")


@dataclass(frozen=True)
class WideTable:
    """
    A table with a column for each sensor, and where each reading of the long one is in it.

    :param frame: The table, with a row for each place and time.
    :param rows: The row of each reading (`n`).
    :param columns: The number of its sensor (`n`).
    """

    frame: pd.DataFrame
    rows: np.ndarray
    columns: np.ndarray


@dataclass(frozen=True)
class LongFormat:
    """
    The way between a table in long format and one with a column for each sensor. Readings belong to the same row of
    that if they agree in all columns that tell where a row is.

    :param sensor: The column that names the sensor.
    :param value: The column of what it has read; readings that are missing have none.
    :param places: The columns, or levels of the index, that say where a reading is: inputs, task and covariates.
    :param sensors: The sensors, in the order of their columns.

    Example:
        >>> import pandas as pd
        >>> from gpytorch_sgpvae.table.long_format import LongFormat
        >>> long = pd.DataFrame({"hour": [0, 0, 1], "sensor": ["CO", "NOx", "CO"], "value": [0.3, 5.0, 0.4]})
        >>> LongFormat("sensor", "value", ("hour",), ("CO", "NOx")).widen(long).frame
           hour   CO  NOx
        0     0  0.3  5.0
        1     1  0.4  NaN
    """

    sensor: str
    value: str
    places: tuple[str, ...]
    sensors: tuple[str, ...]

    @classmethod
    def fit(cls, frame: pd.DataFrame, long: Any, places: Sequence[str], outputs: Sequence[str] | None) -> LongFormat:
        """
        :param frame: The long table to learn from.
        :param long: The names of two columns: that of the sensor, and that of the value.
        :param places: The columns that say where a reading is.
        :param outputs: The sensors, or None for those that the table has, in the order in which they come.
        """
        names = list(long) if isinstance(long, (list, tuple)) else []
        if len(names) != 2 or not all(isinstance(name, str) for name in names):
            raise TableError(
                "long must be the names of two columns, that of the sensor and that of the value, such as "
                f"('sensor', 'value'), got {long!r}."
            )
        twice = [name for name in names if name in places or names.count(name) > 1]
        if twice:
            raise TableError(
                f"{twice[0]!r} is named in long={tuple(names)}, and a second time. The column of the sensor and that "
                "of the value are no inputs, no task and no covariates."
            )
        if isinstance(outputs, str):
            raise TableError(f"outputs must be a list of the names of sensors, or None for all, got {outputs!r}.")
        check_columns(frame, names, places)
        found = list(dict.fromkeys(_names_in(frame[names[0]])))
        return cls(names[0], names[1], tuple(places), tuple(found if outputs is None else outputs))

    def widen(self, frame: pd.DataFrame, with_values: bool = True) -> WideTable:
        """
        The table with a column for each sensor. Readings that come twice are averaged.

        :param frame: A long table.
        :param with_values: Whether it has values; else it only says what is asked for.
        """
        check_columns(frame, [self.sensor, *([self.value] if with_values else [])], self.places)
        columns = self._number_sensors(frame)
        cells = {name: get_column(frame, name) for name in self.places}
        for column in cells.values():
            check_cells(column)
        keys = pd.DataFrame({name: column.array for name, column in cells.items()})
        rows = keys.groupby(list(self.places), sort=False, dropna=False, observed=True).ngroup().to_numpy()
        first = np.unique(rows, return_index=True)[1]
        wide = keys.iloc[first].reset_index(drop=True)
        if with_values:
            check_cells(frame[self.value])
            positions, values = self._readings(frame, rows, columns)
            number = np.full((len(first), len(self.sensors)), -1)  # of the reading in each cell
            number[rows[positions], columns[positions]] = np.arange(len(positions))
            taken = {
                name: pd.Series(pd.api.extensions.take(values.array, number[:, j], allow_fill=True)).infer_objects()
                for j, name in enumerate(self.sensors)
            }
            wide = pd.concat([wide, pd.DataFrame(taken)], axis=1)
        return WideTable(wide, rows, columns)

    def fill(self, frame: pd.DataFrame, wide: WideTable, result: pd.DataFrame, holes: np.ndarray) -> pd.DataFrame:
        """
        A copy of a long table with its holes filled.

        :param frame: The long table.
        :param wide: The same, widened.
        :param result: The wide table, filled, and with what intervals add.
        :param holes: The numbers of the readings that are filled.
        """
        filled, every = frame.copy(), np.arange(len(frame))
        if len(holes):
            filled[self.value] = put(frame[self.value], holes, self.pick(result, wide, holes, "").to_numpy())
        if f"{self.sensors[0]}_filled" not in result.columns:
            return filled
        is_hole = np.isin(every, holes)
        added = {f"{self.value}_{end}": self.pick(result, wide, every, f"_{end}").where(is_hole) for end in SPREAD}
        added[f"{self.value}_filled"] = pd.Series(is_hole)
        return pd.concat([filled, pd.DataFrame(added).set_axis(frame.index)], axis=1)

    def predicted(self, wide: WideTable, result: pd.DataFrame) -> pd.DataFrame:
        """
        What is predicted of each reading that a long table asks for.

        :param wide: The table, widened.
        :param result: The predictions of all sensors, for the rows of the wide table.
        """
        every = np.arange(len(wide.rows))
        ends = [end for end in PREDICTED if any(f"{name}{end}" in result.columns for name in self.sensors)]
        return pd.DataFrame({f"{self.value}{end}": self.pick(result, wide, every, end) for end in ends})

    def every_sensor(self, frame: pd.DataFrame, places: pd.DataFrame) -> tuple[pd.DataFrame, WideTable]:
        """
        A long table that asks for all sensors, and the same widened.

        :param frame: A long table, which says how sensors are written.
        :param places: The rows that are asked for.
        """
        written = dict(zip(_names_in(frame[self.sensor]), frame[self.sensor], strict=True))
        number = len(self.sensors)
        rows = np.repeat(np.arange(len(places)), number)
        labels = [written.get(name, name) for name in self.sensors] * len(places)
        long = places.iloc[rows].reset_index(drop=True).assign(**{self.sensor: labels})
        return long, WideTable(places, rows, np.tile(np.arange(number), len(places)))

    def pick(self, result: pd.DataFrame, wide: WideTable, numbers: np.ndarray, end: str) -> pd.Series:
        """
        The values of some readings in a wide table.

        :param result: The table.
        :param wide: The long table, widened.
        :param numbers: The numbers of the readings.
        :param end: What follows the name of the sensor in that of the column.
        """
        values = np.full(len(numbers), np.nan, dtype=object)
        for j in np.unique(wide.columns[numbers]):
            where, name = np.flatnonzero(wide.columns[numbers] == j), f"{self.sensors[j]}{end}"
            if name in result.columns:
                values[where] = result[name].astype(object).to_numpy()[wide.rows[numbers[where]]]
        return pd.Series(values).infer_objects()

    def _number_sensors(self, frame: pd.DataFrame) -> np.ndarray:
        """The number of the sensor of each row (`n`)."""
        known = {name: number for number, name in enumerate(self.sensors)}
        columns = np.array([known.get(name, -1) for name in _names_in(frame[self.sensor])])
        unknown = np.flatnonzero(columns < 0)
        if len(unknown):
            raise TableError(
                f"The sensor {frame[self.sensor].iloc[unknown[0]]!r} in {name_rows(frame, unknown)} is none of those "
                f"that are fitted: {listed(self.sensors[:10])}{', ...' if len(self.sensors) > 10 else ''}. Drop its "
                "rows, or fit a table that has it."
            )
        return columns

    def _readings(self, frame: pd.DataFrame, rows: np.ndarray, columns: np.ndarray) -> tuple[np.ndarray, pd.Series]:
        """The numbers of those readings that have a value, the first of several, and the values."""
        values = frame[self.value].reset_index(drop=True)
        cells = rows * len(self.sensors) + columns
        again = np.flatnonzero(pd.Series(cells).duplicated().to_numpy())
        if len(again):
            self._tell_again(frame, cells, again)
            is_number = pd.api.types.is_numeric_dtype(values.dtype) and not pd.api.types.is_bool_dtype(values.dtype)
            grouped = values.groupby(cells)
            if not is_number and (grouped.nunique() > 1).any():
                raise TableError(
                    f"Readings that come twice have different values in column {self.value!r}, which are no numbers to "
                    "average: drop all but one."
                )
            values = grouped.transform("mean") if is_number else grouped.transform("first")
        known = np.flatnonzero(values.notna().to_numpy() & ~pd.Series(cells).duplicated().to_numpy())
        return known, values.iloc[known]

    def _tell_again(self, frame: pd.DataFrame, cells: np.ndarray, again: np.ndarray) -> None:
        second = int(again[0])
        first = int((cells == cells[second]).argmax())
        place = [f"{name} = {get_column(frame, name).iloc[second]}" for name in (*self.places, self.sensor)]
        text = (
            f"{name_row(frame, second).capitalize()} is a reading of the same sensor at the same place as "
            f"{name_row(frame, first)}: {', '.join(place)} ({len(again)} such row{'s' if len(again) > 1 else ''})."
        )
        advice = "rop all but one, or name a column that tells them apart as an input or as the task."
        if len(again) > MOST_REPEATED * len(frame):
            raise TableError(f"{text} D{advice}")
        warnings.warn(
            f"{text} Their mean is taken; if they are no repeated measurements, d{advice}", TableWarning, stacklevel=4
        )


def _names_in(column: pd.Series) -> list[str]:
    """The names of sensors as text, none of them missing."""
    check_cells(column)
    codes, labels = pd.factorize(column)
    check_present(column, np.where(codes < 0, np.nan, 0.0), "sensor")
    whole = [
        int(label) if isinstance(label, (float, np.floating)) and label == int(label) else label for label in labels
    ]
    names = np.array([str(label) for label in whole], dtype=object)
    return names[codes].tolist()
