"""A guess of the family that a column belongs to, by its values."""

from __future__ import annotations

import numpy as np
import pandas as pd

from ..numbers import is_mostly_text, read_numbers
from .base import skewness

# Counts are small: at least half of those above zero are below SMALL.
SMALL = 10
# Counts have no gaps: of the whole numbers from 1 to their median, at least this many occur.
LEAST_PRESENT = 2 / 3
# The least variance of counts, in units of their mean, however few there are: Poisson's is 1.
LEAST_DISPERSION = 0.5
# From this many zeros on, a column has a mass there, if no other value is more than half as frequent.
MANY_ZEROS = 0.05
# Where values have a longer tail than that, their logarithms and square roots are looked at. The skewness of an
# exponential distribution is 2.
LONG_TAIL = 0.75
# How many times the 5 % quantile the 95 % quantile is at least, where those describe values better.
WIDE_RANGE = 5.0


def guess_family(column: pd.Series) -> str:
    """
    Guess the family of a column, by these rules in this order:

    * Two different values that are text, booleans, or 0 and 1 are a flag; other text is a category.
    * Numbers of which one is negative are real.
    * Whole numbers are counts if they are small and look like counts (visitors, accidents): the smallest is 0 or 1; at
      least half of those above 0 are below 10; two thirds of the whole numbers from 1 to the median of those above 0
      occur, so that 0, 5, 10, ... are none; they vary as much as Poisson's, up to what chance does to this many values;
      and their skewness is at least half that of a negative binomial distribution of their mean and variance, up to
      chance again. So months, ratings, whole degrees, years, percentages and hectopascals are no counts.
    * Numbers from 0 are amounts if one in twenty or more is exactly 0, at least twice as many as have any other value.
    * Numbers have a wide range and a long tail if the 95 % quantile of those above 0 is at least 5 times the 5 %
      quantile, and the skewness is above 0.75. Then they are positive: concentrations are.
    * All others are real, which takes any number in the tables to come: temperatures of a summer may be below 0 later.
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
    if _are_counts(values):
        return "count"
    if _has_mass_at_zero(values):
        return "amount"
    return "positive" if _has_long_tail(values) else "real"


def _are_counts(values: np.ndarray) -> bool:
    """Return whether numbers from 0 are small whole numbers, spread as counts are."""
    above = values[values > 0]
    if (values != np.floor(values)).any() or values.min() > 1 or not len(above) or np.mean(above < SMALL) < 0.5:
        return False
    possible = np.arange(1, np.median(above) + 1)
    mean, variance = values.mean(), values.var()
    # The standard error of N values' variance is sqrt(2 / N) of it, and that of their skewness sqrt(6 / N).
    least = max(LEAST_DISPERSION, 1 - 3 * np.sqrt(2 / len(values)))
    if np.isin(possible, above).mean() < LEAST_PRESENT or variance == 0 or variance < least * mean:
        return False
    # that of a binomial, Poisson and negative binomial distribution alike
    expected = (2 * variance / mean - 1) / np.sqrt(variance)
    return skewness(values) >= 0.5 * (expected - np.sqrt(6 / len(values)))


def _has_mass_at_zero(values: np.ndarray) -> bool:
    zeros = np.sum(values == 0)
    others = np.unique(values[values > 0], return_counts=True)[1]
    return zeros >= MANY_ZEROS * len(values) and zeros >= 2 * others.max(initial=0)


def _has_long_tail(values: np.ndarray) -> bool:
    above = values[values > 0]
    low, high = np.quantile(above, [0.05, 0.95]) if len(above) else (1.0, 1.0)
    return high >= WIDE_RANGE * low and skewness(values) > LONG_TAIL
