"""Summaries of predictions: a value or a label for each hole, with its spread, and whole columns."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import pandas as pd
import torch

from .. import metrics
from ..likelihoods import Prediction
from .outputs import Outputs

# The probability of intervals.
LEVEL = 0.95
SCORES = ("rmse", "mae", "nll", "crps", "coverage", "accuracy")


def summarize(
    outputs: Outputs, predictions: Iterable[tuple[np.ndarray, Prediction]], rows: np.ndarray, intervals: bool
) -> pd.DataFrame:
    """
    A table of predictions: for each output its best value, and with intervals what else its family says.

    :param predictions: Pairs of the numbers of some rows and their predictions (`n x P`).
    :param rows: The rows of the result, in its order.
    """
    position = pd.Series(np.arange(len(rows)), index=rows)
    names = ("point", "std", "lower", "upper", "probability")
    every = {name: np.full((len(rows), len(outputs.columns)), np.nan) for name in names}
    for part, prediction in predictions:
        found = {"point": outputs.points(prediction)}
        if intervals:
            found["probability"] = outputs.probabilities(prediction, found["point"])
            found["std"] = prediction.stddev
            found["lower"], found["upper"] = prediction.quantile([0.5 - 0.5 * LEVEL, 0.5 + 0.5 * LEVEL])
        for name, tensor in found.items():
            every[name][position.loc[part]] = tensor.cpu().numpy()
    result = {}
    for j, column in enumerate(outputs.columns):
        values = {name: every[name][:, j] for name in names}
        summary = column.summarize(values) if intervals else {"": column.decode(values["point"])}
        result.update({f"{column.name}{suffix}": summarized for suffix, summarized in summary.items()})
    return pd.DataFrame(result, index=rows)


def score(outputs: Outputs, predictions: Iterable[tuple[np.ndarray, Prediction]], truth: torch.Tensor) -> pd.DataFrame:
    """
    Scores of predictions, a row for each output, with NaN for those that its family does not have.

    :param predictions: Pairs of the numbers of some rows and their predictions (`n x P`).
    :param truth: Values in the columns' units, NaN where there is nothing to be scored (`N x P`).
    """
    totals = torch.zeros(len(SCORES), len(outputs.columns), dtype=torch.float64)
    for rows, prediction in predictions:
        y = truth[rows]
        counts = (~y.isnan()).sum(0).cpu()  # (P,)
        right = torch.where(y.isnan(), torch.nan, (outputs.points(prediction) == y).to(y.dtype))
        scores = torch.stack(
            [
                (prediction.mean - y).square().nanmean(0),
                metrics.mae(prediction, y),
                metrics.nll(prediction, y, mixture=True),
                metrics.crps(prediction, y),
                metrics.coverage(prediction, y, LEVEL),
                right.nanmean(0),
            ]
        )
        totals += torch.where(counts > 0, scores.cpu().double() * counts, 0.0)
    n = (~truth.isnan()).sum(0).cpu().numpy()
    with np.errstate(invalid="ignore"):
        result = pd.DataFrame((totals.numpy() / n).T, index=outputs.names, columns=SCORES)
    result["rmse"] **= 0.5
    for column in outputs.columns:
        result.loc[column.name, [name for name in SCORES if name not in column.scores]] = np.nan
    result.insert(0, "n", n)
    result.insert(0, "family", [column.family for column in outputs.columns])
    return result.rename_axis("output")


def overall(outputs: Outputs, scores: pd.DataFrame, values: torch.Tensor) -> float:
    """
    Minus the mean error of the outputs: the CRPS of numbers in standard deviations, and the share of wrong labels.

    :param outputs: The output columns.
    :param scores: The table that :func:`score` returned.
    :param values: The table's known values, NaN where they are missing (`N x P`).
    """
    errors = []
    for p, column in enumerate(outputs.columns):
        known = values[:, p][~values[:, p].isnan()]
        spread = float(known.std(correction=0)) if len(known) else 0.0
        error = 1 - scores["accuracy"].iloc[p] if column.levels else scores["crps"].iloc[p] / (spread or 1.0)
        errors.append(error)
    return -float(np.nanmean(errors)) if np.isfinite(errors).any() else float("nan")


def put(column: pd.Series, where: np.ndarray, values: np.ndarray) -> pd.Series:
    """The column with values at some positions, of the type that it had."""
    filled = column.copy()
    if pd.api.types.is_integer_dtype(column.dtype):
        values = np.round(values.astype(float)).astype(int)
    elif pd.api.types.is_float_dtype(column.dtype):
        values = values.astype(float)
    filled.iloc[where] = pd.array(list(values), dtype=column.dtype)
    return filled
