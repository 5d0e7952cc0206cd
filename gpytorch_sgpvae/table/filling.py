"""Tables with their holes filled, and tables with more holes."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pandas as pd

from .errors import TableError
from .outputs import Outputs
from .reading import check_columns
from .summaries import put

# What is added for each output, with intervals.
SPREAD, ADDED = ("std", "lower", "upper"), ("std", "lower", "upper", "filled")


def fill(
    frame: pd.DataFrame, outputs: Outputs, holes: np.ndarray, summary: pd.DataFrame, intervals: bool
) -> pd.DataFrame:
    """
    A copy of a table with its holes filled.

    :param frame: The table.
    :param outputs: The output columns.
    :param holes: True for their missing entries (`N x P`).
    :param summary: The result of :func:`~gpytorch_sgpvae.table.summaries.summarize` for the rows with holes.
    :param intervals: Whether columns for the spread of what is filled are added.
    """
    result, added = frame.copy(), {}
    rows = np.flatnonzero(holes.any(1))
    for j, name in enumerate(outputs.names):
        where = np.flatnonzero(holes[:, j])
        chosen = summary.loc[holes[rows, j]]
        if len(where):
            result[name] = put(frame[name], where, chosen[name].to_numpy())
        if intervals:
            for suffix in SPREAD:
                values = chosen[f"{name}_{suffix}"]
                spread = pd.Series(np.nan, index=range(len(frame)), dtype=values.dtype if len(values) else float)
                if len(where):  # pandas refuses to put no labels among numbers
                    spread.iloc[where] = values.to_numpy()
                added[f"{name}_{suffix}"] = spread.array
            added[f"{name}_filled"] = holes[:, j]
    # all at once: frames that hundreds of columns are put into one by one are slow, and pandas says so
    return pd.concat([result, pd.DataFrame(added, index=frame.index)], axis=1) if added else result


def fill_with(frame: pd.DataFrame, outputs: Outputs, holes: np.ndarray, values: np.ndarray) -> pd.DataFrame:
    """
    A copy of a table with given values in its holes.

    :param frame: The table.
    :param outputs: The output columns.
    :param holes: True for their missing entries (`N x P`).
    :param values: The values, in the outputs' units, or numbers of labels (`N x P`).
    """
    result = frame.copy()
    for j, column in enumerate(outputs.columns):
        where = np.flatnonzero(holes[:, j])
        if len(where):
            result[column.name] = put(frame[column.name], where, column.decode(values[where, j]))
    return result


def hide(frame: pd.DataFrame, names: Sequence[str], fraction: float, seed: int) -> tuple[pd.DataFrame, pd.DataFrame]:
    """
    The table with more holes, and where they are, a column for each output.

    :param frame: The table.
    :param names: The output columns.
    :param fraction: Fraction of their known entries.
    :param seed: Seed of their choice.
    """
    if not 0 < fraction < 1:
        raise TableError(f"The fraction to hide must be between 0 and 1, got {fraction}.")
    names = list(names)
    check_columns(frame, names)
    known = frame[names].notna().to_numpy()
    chosen = known & (np.random.default_rng(seed).random(known.shape) < fraction)
    for j in np.flatnonzero(~chosen.any(0) & known.any(0)):  # at least one entry of each output
        chosen[np.flatnonzero(known[:, j])[seed % known[:, j].sum()], j] = True
    mask = pd.DataFrame(chosen, index=frame.index, columns=names)
    masked = frame.copy()
    for name in names:
        masked[name] = frame[name].mask(mask[name])
    return masked, mask
