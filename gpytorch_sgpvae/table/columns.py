"""The column that a name stands for: one of the table's, or a level of its index."""

from __future__ import annotations

import difflib

import numpy as np
import pandas as pd

from .errors import TableError, listed

# What an index of dates is called if it has no name.
INDEX = "index"
# What the number of a row, from 0, is called: the input of tables of which nobody says where their rows are.
ROW_NUMBER = "row number"


def find_column(frame: pd.DataFrame, name: str) -> pd.Series | None:
    """
    The column of this name, else the level of the index of this name, with the name and the index of the table; an
    index of dates without a name is called `"index"`. Rows are numbered where no column is called `"row number"`. None
    where there is none.

    :param frame: The table.
    :param name: Name of a column or a level.
    """
    if name in frame.columns:
        column = frame[name]
        if isinstance(column, pd.DataFrame):
            raise TableError(f"The table has more than one column {name!r}: rename all but one.")
        return column
    levels = _levels(frame)
    if levels.count(name) > 1:
        raise TableError(f"The table's index has more than one level {name!r}: rename all but one.")
    if name not in levels:
        return pd.Series(np.arange(len(frame)), index=frame.index, name=name) if name == ROW_NUMBER else None
    values = frame.index.get_level_values(levels.index(name))
    return pd.Series(values, index=frame.index, name=name)


def get_column(frame: pd.DataFrame, name: str, need: str = "") -> pd.Series:
    """
    Find a column as :func:`find_column` does; it is an error if there is none.

    :param frame: The table.
    :param name: Name of a column or a level.
    :param need: The purpose of the column, to be said after its name.
    """
    column = find_column(frame, name)
    if column is not None:
        return column
    levels = [level for level in _levels(frame) if level is not None]
    names = [str(known) for known in [*frame.columns, *levels]]
    close = difflib.get_close_matches(str(name), names, n=1, cutoff=0.6)
    hint = f" Did you mean {close[0]!r}?" if close else ""
    index = f" and the index {listed(levels)}" if levels else ""
    raise TableError(f"There is no column {name!r}{need} in the table, which has {listed(frame.columns)}{index}.{hint}")


def _levels(frame: pd.DataFrame) -> list[str | None]:
    """The names of the levels of the index, None for those that have none."""
    names = list(frame.index.names)
    dated = isinstance(frame.index, (pd.DatetimeIndex, pd.PeriodIndex))
    return [INDEX] if names == [None] and dated else names
