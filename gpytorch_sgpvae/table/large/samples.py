"""Samples of a data set: one that everything but the model's parameters is learnt from, and one for each epoch."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pandas as pd
from pandas.api import types

from ...utils.seeds import derive_seed
from ..errors import TableError
from ..tasks import TaskColumn
from .layout import hashes_of, survey, task_columns, tasks_of
from .source import Source

# Partitions that a sample is of, at most.
MOST_PARTITIONS = 32
# Stretches that a partition's part of a sample is made of, where no whole tasks can be taken; more where tasks are
# shorter than such a stretch.
STRETCHES = 4
# Tasks that lie in several partitions are left out, unless they have more than this share of the rows.
MOST_CROSSING = 0.5
# Whole tasks are taken where they are so short that a sample is of at least this many.
FEWEST_TASKS = 8


class Samples:
    """
    Samples of a data set, of some rows of up to :data:`MOST_PARTITIONS` of its partitions, which are read one at a time
    and forgotten.

    The order of the partitions is drawn at random, and samples go through them in turns. A sample has whole tasks of a
    partition, drawn at random without replacement: no task comes again before all others of its partition have come.
    Tasks that lie in several partitions are left out. Where most do, as in one long series or in sensors whose
    partitions are days, and where tasks are long, it has stretches of time instead. What is in sample 0 is in no later
    one.

    :param source: The data set.
    :param columns: The columns to be read.
    :param inputs: The input columns.
    :param task: What tells tasks apart, or None.
    :param rows: Rows of a sample, about.
    :param seed: The seed of all that is drawn at random.
    :param progress: Whether to show a bar while tasks are looked up.
    """

    def __init__(
        self,
        source: Source,
        columns: Sequence[str],
        inputs: Sequence[str],
        task: str | None,
        rows: int,
        seed: int,
        progress: bool,
    ):
        self.source, self.columns, self.rows, self.seed = source, list(columns), rows, seed
        self.partitions = [partition for partition in source.partitions if partition.num_rows]
        if not self.partitions:
            raise TableError("The data set has no rows.")
        self.is_whole = source.num_rows <= rows
        self.inputs = list(inputs)
        self.task = None if task is None else self._fit_task(task)
        self.crossing = np.zeros(0, np.uint64)
        self.of_tasks, most = False, MOST_PARTITIONS
        if not self.is_whole and self.task is not None:
            found = survey(source, self.task, None, progress)
            self.crossing = found.crossing
            counts = np.concatenate(found.counts)[~np.isin(np.concatenate(found.tasks), self.crossing)].astype(float)
            if counts.sum() >= (1 - MOST_CROSSING) * source.num_rows:
                in_sample = int(rows * counts.sum() / np.square(counts).sum())  # tasks as long as that of a row is
                self.of_tasks = in_sample >= FEWEST_TASKS
                most = min(most, in_sample) if self.of_tasks else most
        random = np.random.default_rng(derive_seed("partitions", seed))
        self.order = random.permutation(len(self.partitions))
        self.number = min(len(self.partitions), most)
        self.share = min(1.0, rows * len(self.partitions) / (self.number * source.num_rows))
        self.first = set(self.order[: self.number].tolist())

    def draw(self, number: int) -> pd.DataFrame:
        """
        A sample.

        :param number: Which, from 0. Others come with other numbers, until all has been drawn.
        """
        if self.is_whole:
            parts = [self.source.frame(partition, self.columns) for partition in self.partitions]
            return pd.concat(parts, ignore_index=True)
        visits = [divmod(number * self.number + i, len(self.partitions)) for i in range(self.number)]
        return pd.concat([self._part(int(self.order[place]), visit) for visit, place in visits], ignore_index=True)

    def _part(self, p: int, visit: int) -> pd.DataFrame:
        """Some pieces of a partition, others at each visit."""
        partition = self.partitions[p]
        frame = self.source.frame(partition, self.columns)
        pieces = self._pieces(frame)  # (N,), -1 for rows that are in none
        sizes = np.bincount(pieces[pieces >= 0])
        if not len(sizes):
            return frame[:0]
        order = np.random.default_rng(derive_seed("pieces", self.seed, partition.name)).permutation(len(sizes))
        turns = (sizes[order].cumsum() - sizes[order]) // max(1, round(self.share * partition.num_rows))
        turns = np.unique(turns, return_inverse=True)[1]  # a long piece takes the turns of several short ones
        return frame[np.isin(pieces, order[turns == self._turn(p, visit, int(turns[-1]))])]

    def _turn(self, p: int, visit: int, last: int) -> int:
        """Which pieces of a partition are due: those of sample 0 only once."""
        if p not in self.first:
            return visit % (last + 1)
        if visit == 0:
            return 0
        return -1 if last == 0 else 1 + (visit - 1) % last

    def _pieces(self, frame: pd.DataFrame) -> np.ndarray:
        """What may be drawn together: the number of each row's task, or of its stretch of that (`N`)."""
        hashes, sizes, codes = hashes_of(tasks_of(frame, self.task))
        if self.of_tasks:
            return np.where(np.isin(hashes, self.crossing)[codes], -1, codes)
        time = self._time_in(frame)
        order = np.lexsort((np.arange(len(frame)) if time is None else frame[time].to_numpy(), codes))
        ends = sizes.cumsum()
        ranks = np.empty(len(frame), dtype=int)  # of each row in its task
        ranks[order] = np.arange(len(frame)) - np.repeat(ends - sizes, sizes)
        numbers = np.maximum(1, np.round(sizes * STRETCHES / (self.share * max(1, len(frame))))).astype(int)
        return (numbers.cumsum() - numbers)[codes] + ranks * numbers[codes] // sizes[codes]

    def _time_in(self, frame: pd.DataFrame) -> str | None:
        """The input along which rows probably run: the only date, or the only input; if not, they stay as they come."""
        dates = [name for name in self.inputs if types.is_datetime64_any_dtype(frame[name].dtype)]
        if len(dates) == 1:
            return dates[0]
        only = self.inputs[0]
        return only if len(self.inputs) == 1 and types.is_numeric_dtype(frame[only].dtype) else None

    def _fit_task(self, task: str) -> TaskColumn:
        columns = task_columns(task, self.source.schema.names)
        return TaskColumn.fit(self.source.frame(self.partitions[0], columns), task, self.inputs)
