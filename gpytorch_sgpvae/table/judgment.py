"""The judgment of a fit about itself, and about the tables that it is asked to fill."""

from __future__ import annotations

import warnings
from collections.abc import Sequence

import gpytorch
import numpy as np
import pandas as pd
import torch

from ..context import Context
from ..likelihoods import Prediction
from .blocks import window
from .calibration import Calibration
from .comparison import compare
from .errors import TableError, TableWarning, listed
from .fitted import Evidence, FittedTable, in_order
from .model import for_windows
from .outputs import Outputs
from .reading import TaskTable

# Windows whose evidence is looked at, their known entries, and how far below the usual it may be: in nats for each
# entry, and in deviations of the windows of the table that was fitted.
NUM_WINDOWS, WINDOW_ENTRIES = 16, 300
LEAST_LOSS, FARTHEST = 1.0, 6.0
# A sparse model follows its functions if they change over this part of the distance of inducing points.
LEAST_RATIO = 0.5


def check_tasks(table: TaskTable, task: str | None) -> None:
    """
    Raise if there is nothing to learn from, and warn of tasks of one row.

    :param table: The table as it was read.
    :param task: The column or the dates by which tasks are told apart.
    """
    known = ~np.isnan(table.y).all(1)
    short = [key for key, rows in zip(table.keys, table.rows, strict=True) if len(rows) == 1]
    if len(short) == len(table.keys) and len(table.keys) > 1:
        raise TableError(
            f"Every task has one row only: the column {task!r} tells all rows apart, and there is nothing to "
            "learn from row to row. Choose a task column that rows share, such as the week or the patient, or none."
        )
    if not any(known[rows].sum() > 1 for rows in table.rows):
        raise TableError("No task has two rows with known outputs: there is nothing to learn from.")
    if short:
        warnings.warn(
            f"{len(short)} task{'s have' if len(short) > 1 else ' has'} one row only and little to learn from: "
            f"{listed(short[:5])}.",
            TableWarning,
            stacklevel=4,
        )


@torch.no_grad()
def calibrated(fitted: FittedTable, table: TaskTable, shown: TaskTable, hidden: np.ndarray) -> FittedTable:
    """
    The same, with intervals that hold as many held-out entries as they promise.

    :param fitted: The model and what belongs to it.
    :param table: All that is known.
    :param shown: The same without held-out entries.
    :param hidden: True for these entries (`N x P`).
    """
    outputs = fitted.reader.outputs
    parts = list(fitted.value_moments(shown, shown, np.flatnonzero(hidden.any(1))))
    rows = np.concatenate([asked for asked, _, _ in parts])
    moments = torch.cat([mean for _, mean, _ in parts]), torch.cat([variance for _, _, variance in parts])
    trend, spread = fitted.trend.at(table, rows)
    targets = fitted.as_tensor(np.where(hidden, table.y, np.nan)[rows] - trend * fitted.is_gaussian)
    known = [column[~np.isnan(column)] for column in (shown.y - fitted.trend.at(shown)[0]).T]
    marginal = np.array([column.std() if len(column) else np.nan for column in known])

    def predict(calibration: Calibration) -> Prediction:
        return fitted.with_(calibration=calibration).prediction_of(table, rows, *moments, as_targets=True)

    calibration = Calibration.fit(
        outputs,
        fitted.model,
        moments,
        fitted.as_tensor(spread),
        targets,
        marginal,
        predict,
        fitted.reader.num_filled,
        (~np.isnan(table.y)).sum(0),
    )
    return fitted.with_(calibration=calibration)


@torch.no_grad()
def compared(
    fitted: FittedTable,
    frame: pd.DataFrame,
    table: TaskTable,
    shown: TaskTable,
    hidden: np.ndarray,
    inputs: Sequence[str],
    task: str | None,
    seed: int,
) -> pd.DataFrame:
    """
    The errors of held-out entries beside those of simpler ways, see :func:`~gpytorch_sgpvae.table.comparison.compare`.

    :param fitted: The model and what belongs to it.
    :param frame: The table as it came.
    :param table: All that is known.
    :param shown: The same without held-out entries.
    :param hidden: True for these entries (`N x P`).
    :param inputs: The input columns.
    :param task: The column or the dates by which tasks are told apart, or None.
    :param seed: Seed of what is drawn.
    """
    outputs, number = fitted.reader.outputs.filled, fitted.reader.num_filled
    rows = np.flatnonzero(hidden[:, :number].any(1))
    truth = np.where(hidden[:, :number], known_values(outputs, table), np.nan)[rows]
    columns = dict(zip(outputs.names, known_values(outputs, shown).T, strict=True))
    seen = fitted.reader.complete(frame).assign(**columns)
    prediction = in_order(list(fitted.predictions(shown, shown, rows, seed)))
    return compare(outputs, prediction, seen, rows, truth, inputs, task, seed)


def known_values(outputs: Outputs, table: TaskTable) -> np.ndarray:
    """Return the known values of the outputs, in their own units (`N x P`)."""
    return outputs.values_of(torch.tensor(table.y[:, : len(outputs)])).numpy()


@torch.no_grad()
def evidence_of(fitted: FittedTable, table: TaskTable, seed: int) -> Evidence | None:
    """
    Measure how well the model explains some windows of a table; None if nothing is known in it.

    :param fitted: The model and what belongs to it.
    :param table: Any table.
    :param seed: Seed of the choice of windows.
    """
    random = np.random.default_rng(seed)
    model = for_windows(fitted.model, fitted.plan).eval()
    targets = table.y - fitted.trend.at(table)[0]
    counts = (~np.isnan(targets)).sum(1)
    tasks = [rows for rows in table.rows if counts[rows].any()]
    found = []
    sizes = np.array([counts[rows].sum() for rows in tasks], dtype=float)
    model = for_windows(fitted.model, fitted.plan).eval()
    for _ in range(NUM_WINDOWS if tasks else 0):
        rows = tasks[random.choice(len(tasks), p=sizes / sizes.sum())]
        rows = rows[window(table.x[rows], counts[rows], fitted.lengthscales, WINDOW_ENTRIES, random)]
        context = Context(fitted.as_tensor(table.x[rows]), fitted.as_tensor(targets[rows]))
        with gpytorch.settings.debug(False):
            found.append(float(model.elbo(context)) / counts[rows].sum())
    values = np.array(found)
    return Evidence(float(values.mean()), float(values.std())) if np.isfinite(values).all() and len(values) else None


def unlike_the_fit(fitted: FittedTable, table: TaskTable, seed: int) -> str | None:
    """
    Word a warning if a table's known entries are explained much worse than those of the table that was fitted: a model
    of the winter, in July.

    :param fitted: The model and what belongs to it.
    :param table: The table that it is to fill.
    :param seed: Seed of the choice of windows.
    """
    usual, now = fitted.evidence, evidence_of(fitted, table, seed)
    if usual is None or now is None:
        return None
    loss = usual.mean - now.mean
    if loss < max(LEAST_LOSS, FARTHEST * usual.deviation / np.sqrt(NUM_WINDOWS)):
        return None
    return (
        f"The known entries of this table are explained much worse than those of the table that was fitted, by "
        f"{loss:.1f} nats each: what is filled may be far off, and the intervals too narrow. Fit a table that has "
        "such values too, such as both together."
    )


def distant_points(fitted: FittedTable, table: TaskTable) -> str | None:
    """
    Word a warning if inducing points are much farther apart than the distance over which their functions change.

    :param fitted: The model and what belongs to it.
    :param table: The table.
    """
    if fitted.plan.kind != "sparse":
        return None
    points = fitted.model.strategy.inducing_points.detach().cpu().double().numpy()
    finite = np.isfinite(fitted.lengthscales)
    if len(points) < 2 or not finite.any():
        return None
    scaled = points[:, finite] / fitted.lengthscales[finite]
    distances = np.sqrt(np.square(scaled[:, None] - scaled[None]).sum(-1))
    np.fill_diagonal(distances, np.inf)
    apart = float(np.median(distances.min(1)))
    if apart <= 1 / LEAST_RATIO:
        return None
    wanted = int(len(points) * (LEAST_RATIO * apart) ** finite.sum())
    return (
        f"The {len(points)} inducing points are {apart:.1f} lengthscales apart, so that the model cannot follow what "
        f"changes between them: take some {wanted} (num_inducing), or none, which is exact in blocks of the table."
    )
