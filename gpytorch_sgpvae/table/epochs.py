"""Windows to train on that are others in each epoch: samples of a table that is larger than memory."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from ..training import TaskDataset, TaskLoader
from ..training.task_dataset import Task, TaskBatch, TaskIndex


class EpochWindows(TaskDataset):
    """
    A dataset with as many windows in every epoch as in the first: the windows of the epoch's sample, repeated if there
    are fewer.

    :param first: The windows of the first epoch.
    :param draw: The windows of any later one, by its number; None where there are no others.
    """

    def __init__(self, first: TaskDataset, draw: Callable[[int], TaskDataset | None]):
        super().__init__(range(len(first)), lengths=first.lengths)
        self.draw, self.epoch = draw, 0
        self.first = self.windows_of_epoch = first

    def load(self, epoch: int) -> None:
        """
        Draw the windows of an epoch, and forget those of the one before.

        :param epoch: The number of the epoch.
        """
        if epoch == self.epoch:
            return
        found = self.draw(epoch) if epoch else None
        self.epoch, self.windows_of_epoch = epoch, self.first if found is None else found
        lengths = self.windows_of_epoch.lengths
        self.lengths = [lengths[i % len(lengths)] for i in range(len(self))]

    def __getitem__(self, index: int | TaskIndex) -> Task:
        number = (index.number if isinstance(index, TaskIndex) else index) % len(self.windows_of_epoch)
        inside = index._replace(number=number) if isinstance(index, TaskIndex) else number
        return self.windows_of_epoch[inside]


class EpochLoader(TaskLoader):
    """
    Batches of :class:`EpochWindows`, which are drawn when an epoch begins. With several processes each of them draws
    the same.
    """

    dataset: EpochWindows

    def __iter__(self) -> Iterator[TaskBatch]:
        is_over = self.sampler.position >= len(self.sampler)
        self.dataset.load(self.sampler.epoch + int(is_over))
        yield from super().__iter__()
