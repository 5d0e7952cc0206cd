"""Input columns: where each row is, in numbers that a kernel can compare between tasks."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pandas as pd

from .errors import TableError
from .numbers import check_present, is_date, read_days, read_numbers


@dataclass(frozen=True)
class InputColumn:
    r"""
    How an input column becomes numbers. A number x is standardized, :math:`(x - \text{shift}) / \text{scale}`. A date
    is counted in days first, from the start of its task (its first date there) where no two tasks overlap in time, as
    with weeks, so that they share inducing points; otherwise from a fixed day. A periodic column is
    :math:`x / \text{period}` without its whole part, and never counted from a task's start.

    :param name: Of the column.
    :param is_date: Whether it holds points in time.
    :param from_task_start: Whether it is counted from each task's start.
    :param period: In the column's units, in days for dates.
    """

    name: str
    is_date: bool = False
    from_task_start: bool = False
    period: float | None = None
    shift: float = 0.0
    scale: float = 1.0

    @property
    def is_category(self) -> bool:
        return False

    @classmethod
    def fit(cls, column: pd.Series, tasks: np.ndarray, period: float | None) -> InputColumn:
        """
        :param column: A column of the table to learn from.
        :param tasks: The task of each row, from 0 (`N`).
        """
        name = str(column.name)
        if period is not None and not (np.isfinite(period) and period > 0):
            raise TableError(f"The period of input {name!r} must be a positive number, got {period}.")
        dated = is_date(column)
        draft = cls(name, dated, period=period)
        values = draft.read(column)
        if dated and period is None:
            draft = cls(name, dated, from_task_start=_are_apart(values, tasks))
            values = draft.offset(values, tasks, draft.starts(values, tasks))
        if np.ptp(values) == 0:
            where = "from the start of its task " if draft.from_task_start else ""
            raise TableError(
                f"The input {name!r} {where}has the same value in all {len(values)} rows, so that it tells no two rows "
                "apart: leave it out of the inputs."
            )
        if period is not None:
            return draft
        return cls(name, dated, draft.from_task_start, None, float(values.mean()), float(values.std()))

    def read(self, column: pd.Series) -> np.ndarray:
        """The column's numbers or days, none of them missing (`N`)."""
        values = read_days(column) if self.is_date else read_numbers(column)
        check_present(column, values, "input")
        return values

    def starts(self, values: np.ndarray, tasks: np.ndarray) -> dict[int, float]:
        """The first date of each task."""
        return pd.Series(values).groupby(tasks).min().to_dict()

    def offset(self, values: np.ndarray, tasks: np.ndarray, starts: dict[int, float]) -> np.ndarray:
        if not self.from_task_start:
            return values
        return values - pd.Series(tasks).map(starts).to_numpy(float)

    def encode(self, values: np.ndarray) -> np.ndarray:
        """What the model's kernel sees, of :meth:`read` and :meth:`offset` (`N`)."""
        if self.period is not None:
            return np.mod(values / self.period, 1.0)
        return (values - self.shift) / self.scale


def _are_apart(days: np.ndarray, tasks: np.ndarray) -> bool:
    """Whether there are several tasks, and each is a stretch of time of its own."""
    spans = pd.Series(days).groupby(tasks).agg(["min", "max"]).sort_values("min").to_numpy()
    return len(spans) > 1 and bool((spans[1:, 0] > spans[:-1, 1]).all())
