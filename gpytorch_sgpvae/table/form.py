"""The form in which tables come and go: of some library, and wide or long."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from .columns import find_column
from .errors import TableError, listed
from .filling import ADDED
from .frames import GivenFrame, with_features
from .long_format import LongFormat
from .settings import Settings
from .tasks import source_of


@dataclass(frozen=True)
class TableForm:
    """
    The form of the tables that an imputer takes.

    :param features: The names of the columns of the table that was fitted; None if they had none, as in an array.
    :param number: The number of these columns.
    :param long: The way from long format, or None for tables with a column for each output.
    """

    features: tuple[str, ...] | None
    number: int
    long: LongFormat | None = None

    @classmethod
    def fit(cls, given: GivenFrame, settings: Settings) -> TableForm:
        """
        :param given: The table to learn from.
        :param settings: The settings of the fit, in which all columns have names.
        """
        features = None if given.features is None else tuple(given.features)
        long = None
        if settings.long is not None:
            task = settings.task
            source = [] if task is None else [task if find_column(given.frame, task) is not None else source_of(task)]
            places = dict.fromkeys([*source, *settings.inputs, *settings.covariates])
            long = LongFormat.fit(given.frame, settings.long, list(places), settings.outputs)
        return cls(features, given.frame.shape[1], long)

    def open(self, given: GivenFrame, is_places: bool = False) -> GivenTable:
        """
        A table in the form that an imputer computes with.

        :param given: The table as it came.
        :param is_places: Whether it only says what is to be predicted.
        """
        given = with_features(given, self.features, self.number)
        return GivenTable(given) if self.long is None else LongTable(given, self.long, is_places)


class GivenTable:
    """
    A table that a user has given, with a column for each output.

    :param given: The table as it came.

    :ivar frame: The table as pandas has it.
    """

    def __init__(self, given: GivenFrame):
        self.given, self.frame = given, given.frame

    def check_added(self, names: list[str]) -> None:
        """
        Raise if the table has columns of the names of those that are to be added with intervals.

        :param names: The outputs.
        """
        taken = [f"{name}_{end}" for name in names for end in ADDED if f"{name}_{end}" in self.given.frame.columns]
        if taken:
            raise TableError(f"The table already has columns {listed(taken)}, which are to be added: rename them.")

    def asked(self, holes: np.ndarray) -> np.ndarray:
        """
        The holes that are to be filled (`N x P`).

        :param holes: True for entries that are missing (`N x P`).
        """
        return holes

    def filled(self, result: pd.DataFrame, names: list[str], holes: np.ndarray, container: str = "default") -> Any:
        """
        The table with its holes filled, of the kind that came.

        :param result: The same, in the form that the imputer computes with.
        :param names: The outputs.
        :param holes: True for what was missing (`N x P`).
        :param container: The kind of table that is asked for instead.
        """
        cells = {name: np.flatnonzero(holes[:, j]) for j, name in enumerate(names)}
        return self.given.contained(self.given.filled(result, cells), result, container)

    def hidden(self, masked: pd.DataFrame, mask: pd.DataFrame) -> tuple[Any, Any]:
        """
        The table with some values hidden, and where they are, of the kind that came.

        :param masked: The table, in the form that the imputer computes with.
        :param mask: Where they are (`N x P`).
        """
        cells = {name: np.flatnonzero(mask[name]) for name in mask.columns}
        return self.given.emptied(masked, cells), self.given.made(mask, typed=False)

    def predicted(self, result: pd.DataFrame) -> Any:
        """
        What is predicted at the table's rows.

        :param result: The predictions, in the form that the imputer computes with.
        """
        return self.given.made(result.set_axis(self.frame.index))

    def ahead(self, places: pd.DataFrame, result: pd.DataFrame) -> Any:
        """
        What is predicted past the end of the table.

        :param places: The rows that the table does not have.
        :param result: The predictions there, in the form that the imputer computes with.
        """
        return self.given.made(pd.concat([places, result], axis=1))

    def of_rows(self, numbers: np.ndarray) -> np.ndarray:
        """
        The rows of the imputer's form that the table's own rows are in.

        :param numbers: All rows of that form.
        """
        return numbers


class LongTable(GivenTable):
    """
    A table that a user has given in long format.

    :param given: The table as it came.
    :param long: The way from long format.
    :param is_places: Whether it only says what is to be predicted.
    """

    def __init__(self, given: GivenFrame, long: LongFormat, is_places: bool):
        super().__init__(given)
        self.long = long
        self.wide = long.widen(given.frame, with_values=not is_places)
        self.frame = self.wide.frame

    def check_added(self, names: list[str]) -> None:
        super().check_added([self.long.value])

    def asked(self, holes: np.ndarray) -> np.ndarray:
        wanted = np.zeros_like(holes)
        wanted[self.wide.rows, self.wide.columns] = True
        return holes & wanted

    def filled(self, result: pd.DataFrame, names: list[str], holes: np.ndarray, container: str = "default") -> Any:
        frame = self.given.frame
        missing = holes[self.wide.rows, self.wide.columns] | frame[self.long.value].isna().to_numpy()
        numbers = np.flatnonzero(missing)
        narrow = self.long.fill(frame, self.wide, result, numbers)
        return self.given.contained(self.given.filled(narrow, {self.long.value: numbers}), narrow, container)

    def hidden(self, masked: pd.DataFrame, mask: pd.DataFrame) -> tuple[Any, Any]:
        frame, name = self.given.frame, self.long.value
        is_hidden = mask.to_numpy()[self.wide.rows, self.wide.columns] & frame[name].notna().to_numpy()
        where = pd.DataFrame({name: is_hidden}, index=frame.index)
        emptied = frame.assign(**{name: frame[name].mask(where[name])})
        return self.given.emptied(emptied, {name: np.flatnonzero(is_hidden)}), self.given.made(where, typed=False)

    def predicted(self, result: pd.DataFrame) -> Any:
        narrow = self.long.predicted(self.wide, result)
        return self.given.made(narrow.set_axis(self.given.frame.index))

    def ahead(self, places: pd.DataFrame, result: pd.DataFrame) -> Any:
        asked, wide = self.long.every_sensor(self.given.frame, places)
        return self.given.made(pd.concat([asked, self.long.predicted(wide, result)], axis=1))

    def of_rows(self, numbers: np.ndarray) -> np.ndarray:
        return self.wide.rows
