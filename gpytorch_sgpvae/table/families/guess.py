"""Which family a column belongs to, by its values."""

from __future__ import annotations

import numpy as np
import pandas as pd

from ..numbers import is_mostly_text, read_numbers

# From so many zeros on, a column of amounts has a mass there.
MANY_ZEROS = 0.05
# Where values have a longer tail than that, their logarithms are looked at (an exponential distribution has 2).
LONG_TAIL = 1.0


def guess_family(column: pd.Series) -> str:
    """
    Two different values that are text, booleans, or 0 and 1 are a flag; other text is a category. Whole numbers from 0
    are counts, if there are zeros or they vary at least as much as Poisson's. Numbers from 0 of which one in twenty is
    exactly 0 are amounts; numbers above 0 with a long tail, which their logarithms do not have, are positive. All
    others are real.
    """
    present = column.dropna()
    if isinstance(column.dtype, pd.CategoricalDtype) or is_mostly_text(column):
        return "flag" if present.nunique() == 2 else "category"
    if present.map(lambda value: isinstance(value, (bool, np.bool_))).all():
        return "flag"
    values = read_numbers(column)
    values = values[~np.isnan(values)]
    if set(np.unique(values)) == {0.0, 1.0}:
        return "flag"
    if values.min() < 0:
        return "real"
    if (values == np.floor(values)).all() and (values.min() == 0 or values.var() >= values.mean()):
        return "count"
    if np.mean(values == 0) >= MANY_ZEROS:
        return "amount"
    if values.min() > 0 and _skewness(values) > LONG_TAIL and abs(_skewness(np.log(values))) < _skewness(values):
        return "positive"
    return "real"


def _skewness(values: np.ndarray) -> float:
    centered = values - values.mean()
    stddev = values.std()
    return float(np.mean(centered**3) / stddev**3) if stddev > 0 else 0.0
