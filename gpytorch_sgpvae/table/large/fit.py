"""Learning from a data set that is larger than memory."""

from __future__ import annotations

import logging
import warnings
from typing import Any

import numpy as np
import pandas as pd

from ..errors import TableError, TableWarning
from ..families.label_columns import LabelColumn
from ..fitted import FittedTable
from ..fitting import fit_table
from ..form import TableForm
from ..reading import TableReader, TaskTable
from ..settings import Settings
from .layout import task_columns
from .samples import Samples
from .source import open_source

logger = logging.getLogger(__name__)


def fit_dataset(source: Any, settings: Settings, sample_rows: int) -> FittedTable:
    """
    Learn from samples of a data set, see :class:`~gpytorch_sgpvae.table.large.samples.Samples`: columns, trend, where
    the model starts, intervals and the comparison with simpler ways from the first, the model's parameters from all, a
    sample in each epoch. A data set that is no larger than a sample is fitted as the table that it is.

    :param source: What :func:`~gpytorch_sgpvae.table.large.source.open_source` opens.
    :param settings: How.
    :param sample_rows: Rows of a sample, about.
    """
    if isinstance(sample_rows, bool) or not isinstance(sample_rows, (int, np.integer)) or sample_rows < 1:
        raise TableError(f"sample_rows must be a whole number from 1, got {sample_rows!r}.")
    if settings.inputs is None or settings.outputs is None or settings.long is not None:
        raise TableError(
            "A data set that is larger than memory has a column for each output, and inputs and outputs are named: the "
            "choices that a table leaves open are made of a table that is read whole, and so is long format."
        )
    opened = open_source(source)
    tasks = task_columns(settings.task, opened.schema.names)
    columns = list(dict.fromkeys([*tasks, *settings.inputs, *settings.outputs, *settings.covariates]))
    opened.check_columns(columns)
    samples = Samples(
        opened, columns, settings.inputs, settings.task, int(sample_rows), settings.seed, settings.progress
    )
    frame = samples.draw(0)
    form = TableForm(tuple(map(str, frame.columns)), frame.shape[1])
    if samples.is_whole:
        return fit_table(frame, settings, form)
    logger.info(
        "Sample: %s of %s rows, from %d of %d partitions; later epochs have others.",
        f"{len(frame):,}",
        f"{opened.num_rows:,}",
        samples.number,
        len(samples.partitions),
    )

    def further(reader: TableReader, epoch: int) -> TaskTable | None:
        return _read(reader, samples.draw(epoch))

    return fit_table(frame, settings, form, further)


def _read(reader: TableReader, frame: pd.DataFrame) -> TaskTable | None:
    """A later sample, without the labels that the first did not have; None if it has no rows."""
    if not len(frame):
        return None
    for column in reader.outputs.columns:
        if isinstance(column, LabelColumn):
            frame[column.name] = frame[column.name].where(frame[column.name].isin(column.levels))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", TableWarning)  # of what the first sample has been told of
        return reader.read(frame)
