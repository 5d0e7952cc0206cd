"""Parquet tables with the types that they came with."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pandas as pd
import pyarrow
import pyarrow.compute
import pyarrow.parquet

from .errors import TableError


@dataclass(frozen=True)
class ArrowTable:
    """
    A table whose columns have types.

    :param source: The file's name in error messages.
    :param table: The table's columns.
    """

    source: str
    table: pyarrow.Table

    @property
    def names(self) -> list[str]:
        """The names of the columns."""
        return list(self.table.column_names)

    def frame(self) -> pd.DataFrame:
        """The table as pandas has it."""
        try:
            return self.table.to_pandas()
        except (pyarrow.ArrowException, ValueError, TypeError) as error:
            raise TableError(f"{self.source} has columns that pandas cannot hold: {_first_line(error)}") from error

    def changed(
        self, filled: Mapping[str, tuple[np.ndarray, Sequence[Any]]], added: Mapping[str, pd.Series]
    ) -> ArrowTable:
        """
        The table with some cells replaced, of the type of their column, and columns added at its end.

        :param filled: The numbers of the filled rows and their values, by the name of a column.
        :param added: New columns, by name.
        """
        table = self.table
        for name, (numbers, values) in filled.items():
            if not len(numbers):
                continue
            place = table.column_names.index(name)
            column, kind = table.column(place), table.schema.field(place).type
            plain = kind.value_type if pyarrow.types.is_dictionary(kind) else kind
            if pyarrow.types.is_null(plain):
                plain = kind = pyarrow.array(list(values)).type
            if pyarrow.types.is_integer(plain):
                values = np.round(np.asarray(values, dtype=float)).astype(int).tolist()
            try:
                is_new = np.zeros(len(column), dtype=bool)
                is_new[numbers] = True
                is_decimal = pyarrow.types.is_decimal(plain)
                if pyarrow.types.is_floating(plain) or pyarrow.types.is_integer(plain):
                    new = np.zeros(len(column), dtype=int if pyarrow.types.is_integer(plain) else float)
                    new[numbers] = values
                    cells = pyarrow.array(new, mask=~is_new)
                else:
                    objects = np.full(len(column), None, dtype=object)
                    objects[numbers] = list(values)
                    cells = pyarrow.array(objects.tolist(), type=None if is_decimal else plain)
                cells = cells.cast(plain, safe=not is_decimal)
                known = column.cast(plain).combine_chunks()
                result = pyarrow.compute.if_else(pyarrow.array(is_new), cells, known)
                result = result.dictionary_encode().cast(kind) if plain is not kind else result
            except pyarrow.ArrowException as error:
                raise TableError(
                    f"Column {name!r} of {self.source} is of type {kind}, which cannot hold what is filled in: "
                    f"{_first_line(error)}"
                ) from error
            table = table.set_column(place, table.schema.field(place).with_type(kind).with_nullable(True), result)
        for name, values in added.items():
            table = table.append_column(name, pyarrow.array(values.to_numpy(), from_pandas=True))
        return replace(self, table=table)

    def emptied(self, cells: Mapping[str, np.ndarray]) -> ArrowTable:
        """
        The table with some cells emptied.

        :param cells: The numbers of their rows, by the name of a column.
        """
        table = self.table
        for name, numbers in cells.items():
            place = table.column_names.index(name)
            is_empty = np.zeros(table.num_rows, dtype=bool)
            is_empty[numbers] = True
            column = table.column(place)
            known = column.combine_chunks().filter(pyarrow.array(~is_empty))
            rows = pyarrow.array(np.cumsum(~is_empty) - 1, mask=is_empty)
            table = table.set_column(place, table.schema.field(place).with_nullable(True), known.take(rows))
        return replace(self, table=table)

    def typed_as(self, schema: pyarrow.Schema) -> ArrowTable:
        """
        The table with the types of another one, for columns of its names that can be held without a loss.

        :param schema: The columns of the other table.
        """
        table = self.table
        for place, name in enumerate(table.column_names):
            if name not in schema.names or table.schema.field(place).type == schema.field(name).type:
                continue
            kind, column = schema.field(name).type, table.column(place)
            with suppress(pyarrow.ArrowException):
                column = column.dictionary_encode() if pyarrow.types.is_dictionary(kind) else column
                table = table.set_column(place, name, column.cast(kind))
        return replace(self, table=table)

    def to_bytes(self) -> bytes:
        """The file."""
        buffer = io.BytesIO()
        pyarrow.parquet.write_table(self.table, buffer)
        return buffer.getvalue()


def parse(data: bytes, source: str) -> ArrowTable:
    """
    Read a Parquet file.

    :param data: The file.
    :param source: The file's name in error messages.
    """
    try:
        return ArrowTable(source, pyarrow.parquet.ParquetFile(io.BytesIO(data)).read())
    except Exception as error:  # pyarrow has many kinds for what is damaged
        raise TableError(f"{source} cannot be read as a Parquet table: {_first_line(error)}") from error


def from_frame(frame: pd.DataFrame, source: str) -> ArrowTable:
    """A table of pandas."""
    index = isinstance(frame.index, (pd.DatetimeIndex, pd.PeriodIndex)) or any(name for name in frame.index.names)
    try:
        return ArrowTable(source, pyarrow.Table.from_pandas(frame, preserve_index=index))
    except (pyarrow.ArrowException, ValueError, TypeError) as error:
        raise TableError(f"{source} cannot be written as a Parquet table: {_first_line(error)} Use CSV.") from error


def _first_line(error: Exception) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0].rstrip(".") + "."
