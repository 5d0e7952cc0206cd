"""The steps of a fit: a table is read, a model is planned, started, trained and judged."""

from __future__ import annotations

import copy
import logging
import warnings
from collections.abc import Callable
from dataclasses import replace
from functools import partial

import numpy as np
import pandas as pd
import torch
from lightning.pytorch.utilities import rank_zero_only

from ..utils.seeds import derive_seed, seeded
from .calibration import Calibration
from .comparison import describe, rivals_ahead
from .embedding import start_embedding
from .errors import TableWarning
from .fitted import FittedTable
from .form import TableForm
from .hold_out import hold_out
from .judgment import calibrated, check_tasks, compared, distant_points, evidence_of
from .learning import train, usual_minutes
from .model import as_dtype, find_centers, make_model
from .plan import DIGITS, Plan, make_plan
from .reading import TableReader, TaskTable
from .settings import Settings
from .starting import start
from .trend import Trend

logger = logging.getLogger(__name__)

# A further sample, by its number, as a reader reads it; None where there is none.
FurtherSamples = Callable[[TableReader, int], "TaskTable | None"]


def fit_table(
    frame: pd.DataFrame, settings: Settings, form: TableForm, further: FurtherSamples | None = None
) -> FittedTable:
    """
    Learn from a table.

    :param frame: A table with all input and output columns, and that of the task.
    :param settings: The settings of the fit, in which all columns have names.
    :param form: The form in which the table came.
    :param further: The data that later epochs are trained on, by their numbers from 1, if the table is a sample of a
        larger one.
    """
    reader = TableReader.fit(
        frame,
        settings.inputs,
        settings.outputs,
        settings.task,
        settings.periodic or {},
        settings.families or {},
        settings.covariates,
    )
    table = reader.read(frame)
    check_tasks(table, settings.task)
    plan = make_plan(reader.inputs, table, sum(reader.outputs.num_values), settings.num_latents, settings.num_inducing)
    hidden = hold_out(table, plan, reader.num_filled, settings.seed)
    shown = replace(table, y=np.where(hidden, np.nan, table.y))
    logger.info("%s", reader.outputs.description)
    trend = Trend.fit(reader.inputs, reader.outputs, plan, shown, settings.seed)
    with seeded(derive_seed("table", settings.seed)):
        fitted = _started(reader, plan, trend, shown, settings, form)
        return _trained(fitted, frame, table, hidden, settings, further)


def update_table(fitted: FittedTable, frame: pd.DataFrame, settings: Settings) -> FittedTable:
    """
    Learn from further tasks: what was learnt of columns, their units and the trend stays, and the parameters of the
    model, a copy of it, are trained on from where they are.

    :param fitted: What was fitted before.
    :param frame: A table of the same columns, with other tasks or rows.
    :param settings: The settings of the fit.
    """
    reader = fitted.reader
    table = reader.read(frame)
    check_tasks(table, settings.task)
    hidden = hold_out(table, fitted.plan, reader.num_filled, settings.seed)
    before = fitted.with_(model=copy.deepcopy(fitted.model))
    with seeded(derive_seed("table", settings.seed)):
        return _trained(before, frame, table, hidden, settings, None, continued=True)


def _started(
    reader: TableReader, plan: Plan, trend: Trend, shown: TaskTable, settings: Settings, form: TableForm
) -> FittedTable:
    """A model before any training."""
    dtype, device = as_dtype(settings.dtype), settings.device or "cpu"
    points = None
    if plan.kind == "sparse":
        different = np.unique(shown.x.round(DIGITS), axis=0)
        plan = replace(plan, num_inducing=min(plan.num_inducing or 1, len(different)))
        centers = find_centers(shown.x, plan.num_inducing or 1, settings.seed)
        points = torch.as_tensor(centers, dtype=dtype, device=device)
    logger.info("%s.", plan.description)
    model = make_model(reader.outputs, plan, points).to(device=device, dtype=dtype)
    rest = replace(shown, y=shown.y - trend.at(shown)[0])
    start(model, plan, reader.outputs, rest, settings.seed)
    start_embedding(model, plan, rest, settings.seed)
    calibration, nothing = Calibration.none(len(reader.outputs)), pd.DataFrame()
    return FittedTable(form, reader, plan, trend, model.eval(), calibration, nothing, nothing)


def _trained(
    fitted: FittedTable,
    frame: pd.DataFrame,
    table: TaskTable,
    hidden: np.ndarray,
    settings: Settings,
    further: FurtherSamples | None,
    continued: bool = False,
) -> FittedTable:
    """The same after training, with intervals as wide as held-out entries demand, and compared with simpler ways."""
    minutes = usual_minutes(len(frame)) if settings.max_minutes is None else settings.max_minutes
    history = train(
        fitted,
        table,
        hidden,
        settings.batch_size,
        settings.max_epochs,
        minutes,
        settings.seed,
        settings.progress,
        None if further is None else partial(further, fitted.reader),
        settings.devices,
        settings.num_nodes,
        continued,
    )
    shown = replace(table, y=np.where(hidden, np.nan, table.y))
    earlier = fitted.calibration
    fitted = calibrated(fitted.with_(history=pd.DataFrame(history)), table, shown, hidden)
    if continued:
        fitted = fitted.with_(calibration=fitted.calibration.or_earlier(earlier, hidden.sum(0), fitted.reader.outputs))
    _warn(distant_points(fitted, table))
    _warn(fitted.calibration.warning)
    fitted = fitted.with_(evidence=evidence_of(fitted, shown, settings.seed))
    if not settings.compare or rank_zero_only.rank > 0:  # of several processes, the first is enough
        return fitted
    task = None if fitted.reader.task is None else fitted.reader.task.name
    inputs = [column.name for column in fitted.reader.inputs]
    try:
        comparison = compared(fitted, frame, table, shown, hidden, inputs, task, settings.seed)
    except KeyboardInterrupt:
        _warn("The comparison with simpler ways was interrupted: the model is kept, without it.")
        return fitted
    if not comparison.empty:
        logger.info("Held-out entries, in standard deviations:\n%s", describe(comparison))
    _warn(rivals_ahead(comparison))
    return fitted.with_(comparison=comparison)


def _warn(text: str | None) -> None:
    if text is not None:
        warnings.warn(text, TableWarning, stacklevel=5)  # where the user fits
