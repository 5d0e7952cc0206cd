"""Errors about tables, in words for their owners."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
from sklearn.exceptions import NotFittedError


class TableError(ValueError):
    """A table, or what was asked of it, cannot be used as it is: the message says what came and what to do."""


class NotFittedTableError(TableError, NotFittedError):
    """What was asked for needs a fitted imputer; scikit-learn knows it as its own error of that kind."""


class TableWarning(UserWarning):
    """Something about a table that its owner may not have meant, and that does no harm."""


def name_row(frame: pd.DataFrame | pd.Series, position: int) -> str:
    """A row as its owner finds it: counted from 1 without the header, and by its label if it has one."""
    label = frame.index[position]
    label = label.item() if isinstance(label, np.integer) else label
    own = not isinstance(frame.index, pd.RangeIndex) or frame.index.start != 0
    return f"row {position + 1}" + (f" (index {label!r})" if own else "")


def name_rows(frame: pd.DataFrame | pd.Series, positions: np.ndarray) -> str:
    """Several rows, of which the first is named."""
    more = len(positions) - 1
    return name_row(frame, int(positions[0])) + (f" and {more} more" if more else "")


def listed(names: Any) -> str:
    return ", ".join(str(name) for name in names)
