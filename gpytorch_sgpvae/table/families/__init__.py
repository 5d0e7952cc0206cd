"""
Output columns: what kind of values each has, and how these become targets of a model and come back.
Each family is a class that knows all about itself.

======== ================================== ===========================================================
family   values                             model
======== ================================== ===========================================================
real     any numbers                        Gaussian, standardized
positive numbers from 0 with a long tail    Gaussian logarithm of the number and an offset
amount   numbers from 0, often exactly 0    Gaussian square root, zero for all that is below it
count    0, 1, 2, ...                       negative binomial
flag     two values: yes or no, 0 or 1      Bernoulli
category labels, from 3 to 50 of them       a probability for each
======== ================================== ===========================================================
"""

from __future__ import annotations

from typing import Any

import pandas as pd

from ..errors import TableError, listed
from ..numbers import is_date
from .base import OutputColumn
from .guess import guess_family
from .label_columns import CategoryColumn, FlagColumn
from .number_columns import AmountColumn, CountColumn, PositiveColumn, RealColumn

FAMILIES: dict[str, type[OutputColumn]] = {
    kind.family: kind for kind in (RealColumn, PositiveColumn, AmountColumn, CountColumn, FlagColumn, CategoryColumn)
}

__all__ = ["FAMILIES", "OutputColumn", "fit_column", "guess_family", "make_column"]


def fit_column(column: pd.Series, family: str | None = None) -> OutputColumn:
    """
    Learn what there is to know of an output column.

    :param column: A column of the table to learn from.
    :param family: The name of its family, by default :func:`guess_family`.
    """
    if column.notna().sum() == 0:
        raise TableError(
            f"The output {column.name!r} has no values at all: there is nothing to learn it from. Leave it out of "
            "the outputs."
        )
    if family is None and is_date(column):
        raise TableError(
            f"Column {column.name!r} holds dates where real numbers are expected. Convert or leave it out, or name it "
            "among the inputs."
        )
    if family is not None and family not in FAMILIES:
        raise TableError(f"There is no family {family!r} for output {column.name!r}: choose of {listed(FAMILIES)}.")
    return FAMILIES[family or guess_family(column)].fit(column)


def make_column(description: dict[str, Any]) -> OutputColumn:
    """A column from what :meth:`OutputColumn.to_dict` returned, also after it has been JSON."""
    parameters = {**description, "levels": tuple(description["levels"])}
    return FAMILIES[parameters.pop("family")](**parameters)
