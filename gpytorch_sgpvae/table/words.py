"""Numbers, names and labels as a page has them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd

from .page import Cell

# Letters of a name in a picture.
MOST_LETTERS = 14
# Units of time, their days, and from how many of them on they are used.
UNITS = (("years", 365.25, 2), ("days", 1.0, 2), ("hours", 1 / 24, 1))


def cells_of(rows: Sequence[Sequence[str]]) -> list[list[Cell]]:
    """The cells of a table without marks."""
    return [[Cell(text) for text in row] for row in rows]


def names(several: Sequence[str]) -> str:
    """Names in a sentence, of many only some."""
    shown = [*several] if len(several) <= 8 else [*several[:3], "...", several[-1]]
    return shown[0] if len(shown) == 1 else f"{', '.join(shown[:-1])} and {shown[-1]}" if shown else ""


def label(name: str) -> str:
    """The name of a score."""
    return name.upper() if name in ("rmse", "mae", "nll", "crps") else name


def listed_values(column: pd.Series) -> str:
    """The most frequent labels of a column."""
    counts = column.value_counts()
    shown = [f"{text_of(label)} ({percent(count / counts.sum())})" for label, count in counts.iloc[:4].items()]
    return ", ".join([*shown, *(["..."] if len(counts) > 4 else [])])


def short(name: str) -> str:
    """A name in a picture."""
    return name if len(name) <= MOST_LETTERS else f"{name[: MOST_LETTERS - 1]}…"


def duration(days: float) -> str:
    """A number of days in a unit that suits it."""
    for unit, length, least in UNITS:
        if days >= least * length:
            return f"{number(days / length)} {unit}"
    return f"{number(days * 1440)} minutes"


def text_of(value: Any) -> str:
    """A cell of a table."""
    return f"{value:g}" if isinstance(value, float) else str(value)


def number(value: float) -> str:
    """Three digits; nothing for NaN."""
    return "" if np.isnan(value) else f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"


def percent(fraction: float) -> str:
    """Three digits; nothing for NaN."""
    return "" if np.isnan(fraction) else f"{100 * fraction:.3g} %"
