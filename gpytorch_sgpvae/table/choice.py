"""The choice of columns where the owner of a table leaves it open: inputs, outputs, and columns called by numbers."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd
from pandas.api import types

from .columns import INDEX, ROW_NUMBER
from .errors import TableError, TableWarning, listed
from .frames import GivenFrame
from .settings import Settings
from .tasks import source_of


def settled(settings: Settings, given: GivenFrame) -> Settings:
    """
    The settings of a fit in which all columns have names. Inputs that are not named are the index, if it has dates, and
    else the number of the row. Outputs that are not named are all other columns of numbers (or flags that are pandas'
    own) that have at least two different values. Columns of a table without names are called by their numbers from 0.

    :param settings: The arguments of the imputer.
    :param given: The table to learn from.
    """
    if given.features is None:
        settings = replace(
            settings,
            inputs=_named(settings.inputs),
            outputs=_named(settings.outputs),
            covariates=_named(settings.covariates),
            task=name_of(settings.task),
            periodic=_renamed(settings.periodic),
            families=_renamed(settings.families),
        )
    if settings.inputs is None:
        settings = replace(settings, inputs=[_index_of(given.frame, settings)])
    if settings.outputs is None and settings.long is None:
        taken = [*settings.inputs, *settings.covariates]
        taken += [] if settings.task is None else [settings.task, source_of(settings.task)]
        settings = replace(settings, outputs=_outputs_of(given.frame, taken))
    return settings


def name_of(column: Any) -> Any:
    """
    The name of a column that may be called by its number.

    :param column: Its name or number.
    """
    is_number = isinstance(column, (int, np.integer)) and not isinstance(column, bool)
    return f"x{column}" if is_number else column


def _named(columns: Any) -> Any:
    return columns if columns is None or isinstance(columns, str) else [name_of(column) for column in columns]


def _renamed(values: Mapping[Any, Any] | None) -> dict[Any, Any] | None:
    return None if values is None else {name_of(column): value for column, value in values.items()}


def _index_of(frame: pd.DataFrame, settings: Settings) -> str:
    """The input of a table of which nobody says where its rows are."""
    if isinstance(frame.index, (pd.DatetimeIndex, pd.PeriodIndex)):
        return INDEX if frame.index.name is None else str(frame.index.name)
    if settings.long is not None:
        raise TableError(
            "The inputs of a table in long format must be named, or be its index of dates: they tell which readings "
            f"belong together. It has {listed(frame.columns)}."
        )
    return ROW_NUMBER


def _outputs_of(frame: pd.DataFrame, taken: Sequence[str]) -> list[str]:
    columns = {name: column for name, column in frame.items() if name not in taken}
    measured = {name: column for name, column in columns.items() if types.is_numeric_dtype(column.dtype)}
    chosen = [str(name) for name, column in measured.items() if column.nunique() > 1]
    left = [name for name in measured if name not in chosen]
    if not chosen and len(frame) == 1:
        raise TableError("The table has one row (n_samples = 1): there is nothing to learn from row to row.")
    if not chosen:
        some = f": {listed(left[:5])} have no two different values" if left else ""
        raise TableError(f"The table has no column of numbers that could be an output{some}. Name the outputs.")
    if left:
        warnings.warn(
            f"Columns without two different values are no outputs, and are left as they are: {listed(left)}.",
            TableWarning,
            stacklevel=4,
        )
    return chosen
