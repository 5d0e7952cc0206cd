"""How well held-out entries are predicted, beside the simpler ways that one would try first."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd
import torch

from .. import metrics
from ..likelihoods import Prediction
from .baselines import fill_by_interpolation, fill_by_mean
from .boosting import fill_by_boosting
from .errors import listed
from .outputs import Outputs

MODEL = "model"
MEAN, INTERPOLATION, BOOSTING = "mean", "interpolation", "boosting"
# Entries of an output that trees learn from, at most.
MOST_ROWS = 10_000
# A rival that is better by less than this share is as good.
LEAST_DIFFERENCE = 0.02
# The held-out entries that it takes to tell one way from another.
FEWEST_ENTRIES = 20


def compare(
    outputs: Outputs,
    prediction: Prediction,
    frame: pd.DataFrame,
    rows: np.ndarray,
    truth: np.ndarray,
    inputs: Sequence[str],
    task: str | None,
    seed: int,
) -> pd.DataFrame:
    """
    The errors of held-out entries, in standard deviations of their output (its known values), for each output that has
    numbers: `n`, their number; `rmse` and `crps` of the model and of each rival, with a level for the score and one
    for the method. The CRPS of a method without a distribution is its mean absolute error.

    :param outputs: The output columns.
    :param prediction: Prediction of the rows with held-out entries, in the outputs' units (`n x P`).
    :param frame: The table, with outputs that are numbers, NaN where something is missing or held out.
    :param rows: The rows that the prediction is of (`n`).
    :param truth: The held-out values, NaN for all others (`n x P`).
    :param inputs: The input columns.
    :param task: The column of the tasks, or None.
    :param seed: Seed of the trees.
    """
    asked = (~np.isnan(truth)).any(0)  # an output without a held-out entry has no errors
    numbers = [p for p, column in enumerate(outputs.columns) if column.is_number and asked[p]]
    names = [outputs.names[p] for p in numbers]
    if not names:
        return pd.DataFrame()
    values = frame[names].to_numpy(float)
    scale = np.array([_deviation(np.append(values[:, i], truth[:, p])) for i, p in enumerate(numbers)])
    as_tensor = torch.tensor(truth, dtype=prediction.mean.dtype, device=prediction.mean.device)
    result: dict[tuple[str, str], Any] = {("n", ""): (~np.isnan(truth[:, numbers])).sum(0)}
    result["rmse", MODEL] = metrics.rmse(prediction, as_tensor).cpu().numpy()[numbers] / scale
    result["crps", MODEL] = metrics.crps(prediction, as_tensor).cpu().numpy()[numbers] / scale
    result["coverage", MODEL] = metrics.coverage(prediction, as_tensor).cpu().numpy()[numbers]
    wanted = np.zeros((len(frame), len(names)), dtype=bool)
    wanted[rows] = ~np.isnan(truth[:, numbers])
    for name, filled in _fill(frame, inputs, names, task, wanted, seed).items():
        error = filled[names].to_numpy(float)[rows] - truth[:, numbers]
        with np.errstate(invalid="ignore"):
            result["rmse", name] = np.sqrt(np.nanmean(np.square(error), 0)) / scale
            result["crps", name] = np.nanmean(np.abs(error), 0) / scale
    table = pd.DataFrame(result, index=pd.Index(names, name="output"))
    table.columns = pd.MultiIndex.from_tuples(table.columns, names=["score", "method"])
    order = [MODEL, MEAN, INTERPOLATION, BOOSTING]
    columns = [("n", ""), *((score, name) for score in ("rmse", "crps") for name in order), ("coverage", MODEL)]
    return table[[column for column in columns if column in table.columns]]


def rivals_ahead(comparison: pd.DataFrame) -> str | None:
    """
    A sentence about rivals whose errors are smaller than the model's, or None if there are none. It leaves out outputs
    with few held-out entries.
    """
    if comparison.empty:
        return None
    rmse = comparison.loc[comparison["n", ""] >= FEWEST_ENTRIES, "rmse"]
    better = {}
    for name in rmse.columns:
        if name != MODEL:
            outputs = rmse.index[rmse[name] < (1 - LEAST_DIFFERENCE) * rmse[MODEL]].tolist()
            if outputs:
                better[name] = outputs
    if not better:
        return None
    text = "; ".join(f"{name} for {listed(outputs)}" for name, outputs in better.items())
    return (
        f"Held-out entries are predicted better by simpler ways than by this model: {text}. The errors are in "
        "comparison_. More known entries, another family or other inputs may help; if not, use the simpler way there."
    )


def mark_best(comparison: pd.DataFrame) -> pd.DataFrame:
    """
    Whether a method's error is the lowest of its output, for each score that compares methods (booleans).

    :param comparison: What :func:`compare` returned.
    """
    scores = {score: comparison[score] for score in ("rmse", "crps")}
    best = {score: errors.eq(errors.min(axis=1), axis=0) for score, errors in scores.items()}
    return pd.concat(best, axis=1)


def describe(comparison: pd.DataFrame) -> str:
    """The table in lines of text."""
    if comparison.empty:
        return "There are no outputs with numbers to compare."
    shown = pd.concat([comparison, comparison.mean().to_frame("mean").T])
    shown["n", ""] = [*comparison["n", ""].astype(int), int(comparison["n", ""].sum())]
    shown.columns = [" ".join(part for part in column if part) for column in shown.columns]
    return shown.to_string(float_format=lambda value: f"{value:.3f}")


def _fill(
    frame: pd.DataFrame, inputs: Sequence[str], names: Sequence[str], task: str | None, wanted: np.ndarray, seed: int
) -> dict[str, pd.DataFrame]:
    return {
        MEAN: fill_by_mean(frame, names),
        INTERPOLATION: fill_by_interpolation(frame, inputs, names, task),
        BOOSTING: fill_by_boosting(frame, inputs, names, task, seed=seed, max_rows=MOST_ROWS, wanted=wanted),
    }


def _deviation(values: np.ndarray) -> float:
    stddev = float(np.nanstd(values))
    return stddev if stddev > 0 else 1.0
