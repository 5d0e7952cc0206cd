"""A table of a file beside the data frame that is made of it: what is filled goes back, and nothing else changes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pandas as pd

from .cells import USUAL_MARKS, Reading, warn_of_sentinels
from .errors import TableError
from .families import OutputColumn
from .files import PIPE, frame_to_bytes, is_parquet, read_table, write_bytes
from .imputer import SGPVAEImputer
from .tasks import source_of
from .text_table import TextTable


@dataclass(frozen=True)
class Roles:
    """
    The roles of a table's columns.

    :param inputs: The columns that say where a row is.
    :param outputs: The columns with holes.
    :param covariates: The columns without holes.
    :param task: The column or the dates by which tasks are told apart, or None.
    :param labels: The inputs and outputs whose numbers are labels.
    :param settled: The columns whose order of day and month is known.
    :param sensor: The column that names the sensor, in long format.
    """

    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    covariates: tuple[str, ...] = ()
    task: str | None = None
    labels: tuple[str, ...] = ()
    settled: tuple[str, ...] = ()
    sensor: str | None = None

    @classmethod
    def of(cls, imputer: SGPVAEImputer) -> Roles:
        """The roles in a table that an imputer was fitted to."""
        reader = imputer.fitted_.reader
        texts = [column.name for column in reader.inputs if column.is_category]
        for column in reader.outputs.columns:
            if column.levels and all(isinstance(level, str) for level in column.levels):
                texts.append(column.name)
        dated = [column.name for column in reader.inputs if column.day_first is not None]
        if reader.task is not None and reader.task.day_first is not None:
            dated.append(source_of(reader.task.name))
        long = imputer.fitted_.form.long
        return cls(
            tuple(column.name for column in reader.inputs),
            tuple(column.name for column in filled_columns(imputer)),
            tuple(reader.outputs.names[reader.num_filled :]),
            None if reader.task is None else reader.task.name,
            tuple(texts),
            tuple(dated),
            None if long is None else long.sensor,
        )

    @property
    def named(self) -> list[str]:
        """All columns that have a role."""
        return [*self.dates, *self.outputs, *self.covariates, *([] if self.sensor is None else [self.sensor])]

    @property
    def dates(self) -> list[str]:
        """Columns that may hold dates."""
        return [*self.inputs, *([] if self.task is None else [self.task, source_of(self.task)])]


@dataclass(frozen=True)
class FileTable:
    """
    A table of a file, and what is made of it.

    :param table: The table as it is in the file.
    :param frame: The frame that is computed with, with the rows of the table.
    :param reading: The way cells were read.
    """

    table: Any
    frame: pd.DataFrame
    reading: Reading

    def write_filled(self, result: pd.DataFrame, columns: Sequence[OutputColumn], target: str) -> None:
        """
        Write the table with its holes filled, and columns added.

        :param result: The frame that `transform` returned, with intervals.
        :param columns: The output columns.
        :param target: The name of a file, or - for the standard output.
        """
        filled = {}
        for column in columns:
            rows = np.flatnonzero(result[f"{column.name}_filled"].to_numpy())
            filled[column.name] = rows, result[column.name].iloc[rows]
        added = {str(name): result[name] for name in result.columns[len(self.frame.columns) :]}
        self._write(filled, added, columns, result, target)

    def write_predicted(self, predicted: pd.DataFrame, columns: Sequence[OutputColumn], target: str) -> None:
        """
        Write a table of places with predictions beside them; columns of theirs that are there already and empty are
        filled.

        :param predicted: The frame that `predict` returned.
        :param columns: The output columns.
        :param target: The name of a file, or - for the standard output.
        """
        names = [str(name) for name in predicted.columns]
        there = [name for name in names if name in self.table.names]
        for name in there:
            if self.table.names.count(name) > 1 or self.frame[name].notna().any():
                raise TableError(
                    f"The table of places has a column {name!r} with values, where predictions are to be written: "
                    "rename it or drop it. To fill the holes of a table use impute."
                )
        rows = np.arange(len(predicted))
        filled = {name: (rows, predicted[name]) for name in there}
        added = {name: predicted[name] for name in names if name not in there}
        result = pd.concat([self.frame.drop(columns=there), predicted], axis=1)
        self._write(filled, added, columns, result, target)

    def _write(
        self,
        filled: dict[str, tuple[np.ndarray, pd.Series]],
        added: dict[str, pd.Series],
        columns: Sequence[OutputColumn],
        result: pd.DataFrame,
        target: str,
    ) -> None:
        to_parquet = target != PIPE and is_parquet(target)
        is_text = isinstance(self.table, TextTable)
        if is_text and not to_parquet:
            whole = {column.name for column in columns if not column.is_continuous}
            ends = {f"{name}_{end}" for name in whole for end in ("lower", "upper")}
            texts = {name: (rows, self._texts(name, values, name in whole)) for name, (rows, values) in filled.items()}
            more = {name: self._texts(name, values, name in whole | ends) for name, values in added.items()}
            write_bytes(self.table.changed(texts, more).to_bytes(), target)
        elif to_parquet and not is_text:
            write_bytes(self.table.changed(filled, added).to_bytes(), target)
        else:
            write_bytes(frame_to_bytes(with_whole_numbers(result, columns), target), target)

    def _texts(self, name: str, values: pd.Series, is_whole: bool) -> list[str]:
        """Write cells: a label as the column writes it, a number in as few digits as tell it."""
        spelled = self._spellings(name) if is_whole else {}
        texts, cells = [""] * len(values), values.tolist()
        for number in np.flatnonzero(values.notna().to_numpy()):
            texts[number] = self._text(cells[number], spelled, is_whole)
        return texts

    def _text(self, value: Any, spelled: dict[Any, str], is_whole: bool) -> str:
        if value in spelled:
            return spelled[value]
        if isinstance(value, float):
            text = str(int(value)) if is_whole and value.is_integer() else repr(value)
            return text.replace(".", self.reading.decimal)
        return str(value)

    def _spellings(self, name: str) -> dict[Any, str]:
        """Find out how a column writes each of its values."""
        if name not in self.table.names:
            return {}
        cells = self.table.column(self.table.names.index(name))
        pairs = zip(self.frame[name].tolist(), cells, strict=True)
        return {value: cell for value, cell in dict(pairs).items() if value is not None and value == value}


def read_file(
    source: str,
    roles: Roles,
    reading: Reading,
    separator: str | None = None,
    encoding: str | None = None,
    is_places: bool = False,
) -> FileTable:
    """
    Read a table: cells of columns without a role stay text.

    :param source: The name of a file, or - for the standard input.
    :param roles: The roles of the columns.
    :param reading: The way cells are read.
    :param separator: The character between cells, if the file is a text.
    :param encoding: Encoding of a text.
    :param is_places: Whether these are rows to predict, without outputs.
    """
    table = read_table(source, separator, encoding)
    if not isinstance(table, TextTable):
        frame = reading.without_marks(table.frame(), roles.outputs)
    else:
        frame = _frame_of(table, roles, reading)
    frame = reading.check(frame, roles.dates, roles.settled)
    if not is_places:
        warn_of_sentinels(frame, [*roles.outputs, *roles.covariates], _marks_in(table, roles, reading))
    return FileTable(table, frame, reading)


def filled_columns(imputer: SGPVAEImputer) -> list[OutputColumn]:
    """
    The output columns of the tables that an imputer takes. That of long format is one, of real numbers if any sensor
    has these.

    :param imputer: Fitted.
    """
    long, columns = imputer.fitted_.form.long, imputer.outputs_.columns
    if long is None:
        return columns
    shown = next((column for column in columns if column.is_continuous), columns[0])
    return [replace(shown, name=long.value)]


def with_whole_numbers(frame: pd.DataFrame, columns: Sequence[OutputColumn]) -> pd.DataFrame:
    """Counts, and labels that are numbers, as whole ones: a hole has made them floating-point numbers."""
    whole = [column.name for column in columns if not column.is_continuous and is_whole(frame, column.name)]
    return frame.astype(dict.fromkeys(whole, "Int64"))


def is_whole(frame: pd.DataFrame, name: str) -> bool:
    """Return whether a table has a column of floating-point numbers that are all whole."""
    if name not in frame.columns or not pd.api.types.is_float_dtype(frame[name].dtype):
        return False
    return bool((frame[name].dropna() % 1 == 0).all())


def _frame_of(table: TextTable, roles: Roles, reading: Reading) -> pd.DataFrame:
    columns = []
    for number, name in enumerate(table.names):
        cells = table.column(number)
        is_task = roles.task is not None and name in (roles.task, source_of(roles.task)) and name not in roles.inputs
        if is_task or name == roles.sensor or (name in roles.inputs and name in roles.labels):
            columns.append(reading.read_text(cells, name))
        elif name in (*roles.inputs, *roles.outputs, *roles.covariates):
            has_holes = name in (*roles.outputs, *roles.covariates)
            columns.append(reading.read_values(cells, name, has_holes, name in roles.labels))
        else:
            columns.append(pd.Series(cells, dtype=object, name=name))
    return pd.concat(columns, axis=1) if table.rows else pd.DataFrame(columns=table.names)


def _marks_in(table: Any, roles: Roles, reading: Reading) -> list[str]:
    """Find the marks that are taken for a missing value, and occur."""
    if reading.marks is not None:
        return list(reading.marks)
    if not isinstance(table, TextTable):
        return []
    places = [number for number, name in enumerate(table.names) if name in (*roles.outputs, *roles.covariates)]
    found = {cell.strip() for number in places for cell in table.column(number)}
    return [mark for mark in USUAL_MARKS if mark in found]
