"""Which partitions belong together: tasks that lie in several, and series that go on from one to the next."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import pandas as pd
from tqdm import tqdm

from ..errors import TableError
from ..inputs import InputColumn
from ..tasks import DERIVED, TaskColumn
from .source import Partition, Source

# Rows of a partition and of those that it needs, at most.
MOST_ROWS_TOGETHER = 4_000_000
# Rows of other partitions that are read for whole tasks, at most, as a share of the partition's own.
MOST_SHARE_OF_OTHERS = 1.0
# How many rows of neighboring partitions are looked through for the rows near the border, in units of these.
SEARCHED = 4


@dataclass(frozen=True)
class Layout:
    """
    :param by_time: Whether series go on from one partition to the next, so that rows near the border are enough;
        otherwise tasks are read whole.
    :param needed: The partitions that each needs beside itself: with tasks in any order; by time the earlier ones and
        the later ones, the nearest first.
    """

    by_time: bool
    needed: list[tuple[list[int], list[int]]]


@dataclass(frozen=True)
class Survey:
    """
    What is looked up in all partitions before any is filled, from the columns of the task and the time alone.

    :param num_rows: The number of rows of each partition.
    :param tasks: Hashes of the tasks in each partition.
    :param counts: The number of rows of each of these tasks, for each partition.
    :param spans: The first and the last time of each partition, or None where rows do not run along time.
    """

    num_rows: list[int]
    tasks: list[np.ndarray]
    counts: list[np.ndarray]
    spans: list[tuple[float, float]] | None

    @property
    def crossing(self) -> np.ndarray:
        """Hashes of the tasks that lie in several partitions, sorted."""
        every, counts = np.unique(np.concatenate(self.tasks), return_counts=True)
        return every[counts > 1]


def task_columns(task: str | None, names: Sequence[str]) -> list[str]:
    """
    The columns that tasks are told by: `date` for `week(date)`.

    :param task: What tells tasks apart, or None.
    :param names: The columns that there are.
    """
    if task is None:
        return []
    derived = None if task in names else DERIVED.fullmatch(task)
    return [derived.group(2)] if derived else [task]


def tasks_of(frame: pd.DataFrame, task: TaskColumn | None) -> pd.Series:
    """The key of each row's task, in plain numbers of rows."""
    if task is None:
        return pd.Series(np.zeros(len(frame), dtype=int))
    return task.read(frame).reset_index(drop=True) if len(frame) else pd.Series([], dtype=object)


def hashes_of(keys: pd.Series) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The hashes of tasks, the rows of each, and the number of each row's task among these."""
    codes, uniques = pd.factorize(keys)
    hashes = pd.util.hash_array(np.asarray(uniques), categorize=False) if len(uniques) else np.zeros(0, np.uint64)
    return hashes, np.bincount(codes, minlength=len(hashes)), codes


def survey(source: Source, task: TaskColumn | None, time: InputColumn | None, progress: bool) -> Survey:
    """
    Look through all partitions.

    :param source: The partitions.
    :param task: What tells tasks apart.
    :param time: The input along which rows run.
    :param progress: Whether to show a bar.
    """
    columns = list(
        dict.fromkeys(
            [*task_columns(None if task is None else task.name, source.schema.names), *([time.name] if time else [])]
        )
    )
    tasks, counts, spans = [], [], []
    bar = tqdm(source.partitions, desc="survey", unit="partition", disable=not progress or len(source.partitions) < 2)
    for partition in bar:
        if not columns:
            tasks.append(np.zeros(1, np.uint64))
            counts.append(np.array([partition.num_rows]))
            continue
        frame = source.frame(partition, columns)
        hashes, numbers, _ = hashes_of(tasks_of(frame, task))
        tasks.append(hashes)
        counts.append(numbers)
        if time is not None:
            days = time.read(frame[time.name]) if len(frame) else np.array([np.inf, -np.inf])
            spans.append((float(days.min()), float(days.max())))
    return Survey([partition.num_rows for partition in source.partitions], tasks, counts, spans if time else None)


def find_layout(found: Survey, partitions: Sequence[Partition], margin: int | None) -> Layout:
    """
    Find what each partition needs of the others.

    :param found: Which tasks and times are where.
    :param partitions: The partitions.
    :param margin: How many rows of each task, on either side, are enough to predict a stretch of it; None if the model
        has to see whole tasks.
    """
    own, others = np.array(found.num_rows), _rows_elsewhere(found)
    fits = bool((own + others <= MOST_ROWS_TOGETHER).all())
    if fits and others.sum() <= MOST_SHARE_OF_OTHERS * own.sum():
        return Layout(False, _partners(found))
    overlap = _overlap(found, partitions)
    if margin is not None and overlap is None:
        order = _in_time(found)
        needed: list[tuple[list[int], list[int]]] = [([], []) for _ in own]
        for i, p in enumerate(order):
            most = SEARCHED * margin * len(found.tasks[p])
            needed[p] = _first(order[:i][::-1], own, most), _first(order[i + 1 :], own, most)
        return Layout(True, needed)
    if fits:
        return Layout(False, _partners(found))
    worst = int((own + others).argmax())
    raise TableError(
        f"{partitions[worst].name} has {own[worst]:,} rows of tasks that have {others[worst]:,} rows in other "
        f"partitions, and that are to be filled together: more than {MOST_ROWS_TOGETHER:,} rows do not go together. "
        f"Write the table sorted by the task; or, if it is one long series, sorted by time{overlap or ''}."
    )


def _first(order: list[int], sizes: np.ndarray, most: int) -> list[int]:
    """The first partitions that have this many rows together."""
    return order[: int(np.searchsorted(sizes[order].cumsum(), most)) + 1]


def _rows_elsewhere(found: Survey) -> np.ndarray:
    """Count, for each partition, the rows that its tasks have in others."""
    hashes, counts = np.concatenate(found.tasks), np.concatenate(found.counts)
    every, numbers = np.unique(hashes, return_inverse=True)
    elsewhere = np.bincount(numbers, counts, len(every))[numbers] - counts
    partitions = np.repeat(np.arange(len(found.tasks)), [len(tasks) for tasks in found.tasks])
    return np.bincount(partitions, elsewhere, len(found.tasks)).astype(int)


def _partners(found: Survey) -> list[tuple[list[int], list[int]]]:
    """Find, for each partition, those that hold rows of its tasks."""
    hashes = np.concatenate(found.tasks)
    partitions = np.repeat(np.arange(len(found.tasks)), [len(tasks) for tasks in found.tasks])
    crossing = np.flatnonzero(np.isin(hashes, found.crossing))
    order = crossing[np.argsort(hashes[crossing], kind="stable")]
    shared: list[set[int]] = [set() for _ in found.tasks]
    for group in np.split(order, np.flatnonzero(np.diff(hashes[order])) + 1):
        together = set(partitions[group].tolist())
        for p in together:
            shared[p] |= together - {p}
    return [(sorted(partners), []) for partners in shared]


def _in_time(found: Survey) -> list[int]:
    """The partitions that have rows, in the order of time."""
    assert found.spans is not None
    return sorted((p for p, rows in enumerate(found.num_rows) if rows), key=found.spans.__getitem__)


def _overlap(found: Survey, partitions: Sequence[Partition]) -> str | None:
    """Why partitions do not follow each other in time, or None if they do."""
    if found.spans is None:
        return ", which has one input that runs along time"
    order = _in_time(found)
    for p, q in pairwise(order):
        if found.spans[p][1] > found.spans[q][0]:
            return f" (now {partitions[p].name} and {partitions[q].name} overlap in time)"
    return None


def nearest(days: np.ndarray, codes: np.ndarray, margin: int, latest: bool) -> np.ndarray:
    """
    The rows of each task that are last in time, or first, this many of them.

    :param days: The time of each row (`N`).
    :param codes: The task of each row (`N`).
    :param margin: How many rows of each task.
    :param latest: Whether the last ones.
    """
    order = np.lexsort((-days if latest else days, codes))
    starts = np.flatnonzero(np.concatenate([[True], np.diff(codes[order]) != 0]))
    ranks = np.arange(len(order)) - np.repeat(starts, np.diff([*starts, len(order)]))
    return np.sort(order[ranks < margin])
