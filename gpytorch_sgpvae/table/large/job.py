"""One partition, filled: what a process does on its own, and what it writes."""

from __future__ import annotations

import hashlib
import time
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow
import pyarrow.parquet

from ...utils.files import replacing
from ..arrow_table import ArrowTable
from ..errors import TableError, TableWarning, listed
from ..families import OutputColumn
from ..filling import SPREAD, fill
from ..fitted import FittedTable
from ..judgment import unlike_the_fit
from ..summaries import summarize
from .layout import hashes_of, nearest, task_columns, tasks_of
from .source import Partition, Source, partition_columns

# Where a written partition says what it was made of.
FINGERPRINT = b"sgpvae"
# Rows of each series that are read from neighboring partitions, on either side, by kind of model.
MARGIN = {"markov": 1000, "dense": 10_000}
# Fewer rows do not tell whether a partition is unlike the table that was fitted.
FEWEST_ROWS_JUDGED = 1000


@dataclass(frozen=True)
class Job:
    """
    A partition to be filled.

    :param partition: Its rows.
    :param before: Partitions with rows that it needs; by time those before it, the nearest first.
    :param after: By time, those after it, the nearest first.
    :param by_time: Whether rows near the border are enough; otherwise all rows of its tasks are needed.
    :param target: The file that is to be written.
    :param fingerprint: What the output is made of.
    :param intervals: Whether columns for the spread of what is filled are added.
    :param seed: The seed of all that is drawn at random.
    """

    partition: Partition
    before: list[Partition]
    after: list[Partition]
    by_time: bool
    target: Path
    fingerprint: str
    intervals: bool
    seed: int


@dataclass(frozen=True)
class Outcome:
    """
    What became of a job.

    :param name: The name of the output.
    :param rows: Rows of the partition.
    :param filled: How many holes of each output were filled.
    :param seconds: How long it took.
    :param notes: Warnings.
    """

    name: str
    rows: int
    filled: dict[str, int]
    seconds: float
    notes: tuple[str, ...] = ()


def fill_partition(job: Job, source: Source, fitted: FittedTable) -> Outcome:
    """
    Fill a partition, and write it, whole or not at all.

    :param job: What is to be done.
    :param source: The table that it is of.
    :param fitted: The model.
    """
    began = time.perf_counter()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("ignore")
        warnings.simplefilter("always", TableWarning)
        try:
            filled = _fill(job, source, fitted)
        except TableError as error:
            raise TableError(f"{job.partition.name}: {error}") from error
    notes = tuple(dict.fromkeys(str(note.message) for note in caught))
    return Outcome(job.partition.name, job.partition.num_rows, filled, time.perf_counter() - began, notes)


def is_done(job: Job) -> bool:
    """Whether the output is there, of the same rows and the same model."""
    if not job.target.exists():
        return False
    try:
        metadata = pyarrow.parquet.read_schema(job.target).metadata or {}
    except (pyarrow.ArrowException, OSError):
        metadata = {}
    if FINGERPRINT not in metadata:
        raise TableError(f"{job.target} is there and was not written by impute: choose another folder.")
    return metadata[FINGERPRINT].decode() == job.fingerprint


def fingerprint(*parts: Any) -> str:
    """What tells one set of inputs from another."""
    return hashlib.blake2b(repr(parts).encode(), digest_size=16).hexdigest()


def _fill(job: Job, source: Source, fitted: FittedTable) -> dict[str, int]:
    table = source.read(job.partition)
    outputs = fitted.reader.outputs.filled
    columns = columns_of(fitted, source)
    own = table.select(columns).to_pandas(ignore_metadata=True)
    table = table.drop_columns(partition_columns(job.partition))
    if not len(own):
        _write(job, _with_added(table, {}, outputs.columns, job.intervals))
        return dict.fromkeys(outputs.names, 0)
    others = dict(_others(job, source, fitted, own, columns))
    try:
        rows_read = fitted.reader.read(pd.concat([own, *others.values()], ignore_index=True) if others else own)
    except TableError as error:
        if not others:
            raise
        raise TableError(
            f"{error} (Its {len(own):,} rows are followed by those it needs of {listed(others)}.)"
        ) from error
    holes = np.isnan(rows_read.y[:, : len(outputs)])[: len(own)]
    rows = np.flatnonzero(holes.any(1))
    note = unlike_the_fit(fitted, rows_read, job.seed) if len(own) >= FEWEST_ROWS_JUDGED else None
    if note is not None:
        warnings.warn(note, TableWarning, stacklevel=2)
    predictions = fitted.predictions(rows_read, rows_read, rows, job.seed)
    summary = summarize(outputs, predictions, rows, job.intervals)
    result = fill(own, outputs, holes, summary, job.intervals)
    places = {name: np.flatnonzero(holes[:, p]) for p, name in enumerate(outputs.names)}
    values = {name: (where, result[name].to_numpy()[where]) for name, where in places.items()}
    changed = ArrowTable(job.partition.name, table).changed(values, {}).table
    added = {name: result[name] for name in result.columns[len(own.columns) :]}
    _write(job, _with_added(changed, added, outputs.columns, job.intervals))
    return {name: len(where) for name, where in places.items()}


def columns_of(fitted: FittedTable, source: Source) -> list[str]:
    """The columns that a model reads."""
    reader = fitted.reader
    task = None if reader.task is None else reader.task.name
    named = [*task_columns(task, source.schema.names), *(column.name for column in reader.inputs)]
    return list(dict.fromkeys([*named, *reader.outputs.names]))


def _others(
    job: Job, source: Source, fitted: FittedTable, own: pd.DataFrame, columns: Sequence[str]
) -> Iterator[tuple[str, pd.DataFrame]]:
    """Yield the rows of other partitions that belong to the tasks of this one, with the names of these partitions."""
    task = fitted.reader.task
    hashes, _, _ = hashes_of(tasks_of(own, task))
    for partitions, latest in ((job.before, True), (job.after, False)):
        missing = MARGIN.get(fitted.plan.kind, 0) * len(hashes)
        for partition in partitions:
            frame = source.frame(partition, columns)
            if not len(frame):
                continue
            found, _, codes = hashes_of(tasks_of(frame, task))
            rows = np.flatnonzero(np.isin(found, hashes)[codes])
            if job.by_time:
                time = fitted.reader.inputs[fitted.plan.time or 0]
                days = time.read(frame[time.name])
                rows = rows[nearest(days[rows], codes[rows], -(-missing // len(hashes)), latest)]
                missing -= len(rows)
            if len(rows):
                yield partition.name, frame.iloc[rows]
            if job.by_time and missing <= 0:
                break


def _with_added(
    table: pyarrow.Table, added: dict[str, pd.Series], columns: Sequence[OutputColumn], intervals: bool
) -> pyarrow.Table:
    """The table with columns for the spread, of the same types in all partitions."""
    for column in columns if intervals else ():
        of_labels = column.levels and column.family == "flag"
        own = table.schema.field(column.name).type
        own = own.value_type if pyarrow.types.is_dictionary(own) else own
        types = dict.fromkeys(SPREAD, pyarrow.float64()) | {"filled": pyarrow.bool_()}
        if of_labels:
            types |= {"lower": own, "upper": own}
        for end, kind in types.items():
            name = f"{column.name}_{end}"
            values = pyarrow.array(added[name].to_numpy(), from_pandas=True) if added else pyarrow.nulls(0)
            table = table.append_column(name, values.cast(kind))
    return table


def _write(job: Job, table: pyarrow.Table) -> None:
    metadata = {**(table.schema.metadata or {}), FINGERPRINT: job.fingerprint.encode()}
    with replacing(job.target) as file:
        pyarrow.parquet.write_table(table.replace_schema_metadata(metadata), file)
