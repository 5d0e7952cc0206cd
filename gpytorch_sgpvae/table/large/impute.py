"""A data set, filled partition by partition."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from tqdm import tqdm

from ... import __version__
from ..errors import TableError, TableWarning, listed
from ..files import check_room
from ..filling import ADDED
from ..fitted import FittedTable
from ..storage import digest_of
from .job import MARGIN, Job, Outcome, columns_of, fill_partition, fingerprint, is_done
from .layout import Layout, find_layout, survey
from .source import Source, open_source

# Runs jobs, and yields what became of each, in any order.
Runner = Callable[[Sequence[Job], Source, FittedTable], Iterator[Outcome]]


def impute_dataset(
    fitted: FittedTable,
    source: Any,
    target: str | Path,
    intervals: bool,
    seed: int,
    progress: bool,
    workers: int = 1,
    scheduler: str | None = None,
) -> pd.DataFrame:
    """
    Fill a data set, a partition at a time: partitions that are finished are left as they are.

    :param fitted: The model.
    :param source: What :func:`~gpytorch_sgpvae.table.large.source.open_source` opens.
    :param target: Folder of the filled partitions.
    :param intervals: Whether columns for the spread of what is filled are added.
    :param seed: The seed of all that is drawn at random.
    :param progress: Whether to show bars.
    :param workers: Processes on this machine.
    :param scheduler: Address of a Dask scheduler whose workers are to be used instead.
    :return: A row for each partition.
    """
    runner = _runner(workers, scheduler)
    opened, folder = open_source(source), Path(target).absolute()
    _check(opened, fitted, folder, intervals)
    reader, time = fitted.reader, fitted.plan.time
    found = survey(opened, reader.task, None if time is None else reader.inputs[time], progress)
    starts_with_task = any(column.from_task_start for column in reader.inputs)
    margin = None if time is None or starts_with_task else MARGIN.get(fitted.plan.kind)
    layout = find_layout(found, opened.partitions, margin)
    jobs = _jobs(opened, layout, folder, intervals, seed, digest_of(fitted))
    done = [is_done(job) for job in jobs]
    left = [job for job, is_finished in zip(jobs, done, strict=True) if not is_finished]
    outcomes = {job.partition.name: Outcome(job.partition.name, job.partition.num_rows, {}, 0.0) for job in jobs}
    notes: dict[str, int] = {}
    with tqdm(total=len(jobs), desc="impute", unit="partition", disable=not progress) as bar:
        bar.update(len(jobs) - len(left))
        filled_rows = 0
        for outcome in runner(left, opened, fitted):
            outcomes[outcome.name] = outcome
            filled_rows += outcome.rows
            for note in outcome.notes:
                notes[note] = notes.get(note, 0) + 1
            bar.update()
            bar.set_postfix_str(f"{filled_rows / max(bar.format_dict['elapsed'], 1e-9):,.0f} rows/s")
    for note, number in notes.items():
        of_several = f" (in {number} partitions)" if number > 1 else ""
        warnings.warn(f"{note}{of_several}", TableWarning, stacklevel=3)
    return _summary(list(outcomes.values()), done, reader.outputs.filled.names)


def run_here(jobs: Sequence[Job], source: Source, fitted: FittedTable) -> Iterator[Outcome]:
    """Run jobs one after the other."""
    for job in jobs:
        yield fill_partition(job, source, fitted)


def _runner(workers: int, scheduler: str | None) -> Runner:
    if isinstance(workers, bool) or not isinstance(workers, (int, np.integer)) or workers < 1:
        raise TableError(f"workers must be a whole number from 1, got {workers!r}.")
    if workers == 1 and scheduler is None:
        return run_here
    if find_spec("distributed") is None:
        raise TableError("Several workers need Dask: pip install 'gpytorch-sgpvae[distributed]'.")
    from .cluster import DaskRunner

    return DaskRunner(workers, scheduler)


def _check(source: Source, fitted: FittedTable, folder: Path, intervals: bool) -> None:
    """Raise before any work for what would not end well."""
    if fitted.form.long is not None:
        raise TableError(
            "The model was fitted to a table in long format, of which partitions may hold parts of a row: fit and fill "
            "a data set with a column for each sensor, or read this one whole and use transform."
        )
    source.check_columns(columns_of(fitted, source))
    names = fitted.reader.outputs.filled.names
    taken = [f"{name}_{end}" for name in names for end in ADDED if f"{name}_{end}" in source.schema.names]
    if intervals and taken:
        raise TableError(f"The data set already has columns {listed(taken)}, which are to be added: rename them.")
    if folder.exists() and not folder.is_dir():
        raise TableError(f"{folder} is a file: filled partitions are written to a folder. Choose another name.")
    check_room(folder)
    if not folder.is_dir():
        return
    expected = {partition.name for partition in source.partitions}
    for path in sorted(folder.rglob("*")):
        inside = path.relative_to(folder).as_posix()
        if path.is_file() and not path.name.startswith((".", "_")) and inside not in expected:
            raise TableError(
                f"{folder} holds {inside}, which is no partition of this data set: choose another folder, or an empty "
                "one."
            )


def _jobs(source: Source, layout: Layout, folder: Path, intervals: bool, seed: int, digest: str) -> list[Job]:
    partitions = source.partitions
    jobs = []
    for partition, (before, after) in zip(partitions, layout.needed, strict=True):
        earlier, later = [partitions[p] for p in before], [partitions[p] for p in after]
        stamps = [part.stamp for part in (partition, *earlier, *later)]
        made_of = fingerprint(__version__, digest, layout.by_time, stamps, str(source.schema), intervals, seed)
        target = folder / partition.name
        jobs.append(Job(partition, earlier, later, layout.by_time, target, made_of, intervals, seed))
    return jobs


def _summary(outcomes: Sequence[Outcome], done: Sequence[bool], names: Sequence[str]) -> pd.DataFrame:
    return pd.DataFrame(
        {
            "partition": [outcome.name for outcome in outcomes],
            "rows": [outcome.rows for outcome in outcomes],
            "skipped": list(done),
            "seconds": [outcome.seconds for outcome in outcomes],
            **{f"{name}_filled": [outcome.filled.get(name, 0) for outcome in outcomes] for name in names},
        }
    )
