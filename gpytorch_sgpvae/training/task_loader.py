from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from torch.utils.data import DataLoader

from .task_dataset import TaskBatch, TaskDataset, collate_tasks
from .task_sampler import TaskSampler


class TaskLoader:
    r"""
    Batches of tasks to train on, :math:`\lceil T / (R B) \rceil` for T tasks, batches of B and R processes: a
    :class:`torch.utils.data.DataLoader` with a :class:`~gpytorch_sgpvae.training.TaskSampler`. It knows which batches
    have arrived, however many its workers have prepared, and takes up an epoch where it was left:

    .. math::

        \text{state} = (\text{seed}, \text{epoch}, \text{batches that have arrived})

    :param dataset: The tasks.
    :param batch_size: Tasks in a batch of one process.
    :param shuffle: Whether their order is drawn anew for each epoch, and where
        :meth:`~gpytorch_sgpvae.training.TaskDataset.windows` start.
    :param group_by_length: Whether tasks of similar length go into the same batches, for less padding.
    :param seed: The seed of the order, and of the tasks' own seeds.
    :param kwargs: Passed to the DataLoader: `num_workers`, `pin_memory`, `persistent_workers`, `prefetch_factor`, ....

    Example:
        >>> import torch
        >>> from gpytorch_sgpvae.training import TaskDataset, TaskLoader
        >>> dataset = TaskDataset([(torch.rand(n, 2), torch.randn(n, 5)) for n in (7, 4, 9)])
        >>> loader = TaskLoader(dataset, batch_size=2)
        >>> batches = iter(loader)
        >>> first, state = next(batches), loader.state_dict()
        >>> resumed = TaskLoader(dataset, batch_size=2)
        >>> resumed.load_state_dict(state)
        >>> [batch.ids for batch in resumed] == [batch.ids for batch in batches]
        True
    """

    def __init__(
        self,
        dataset: TaskDataset,
        batch_size: int = 8,
        shuffle: bool = True,
        group_by_length: bool = False,
        seed: int = 0,
        **kwargs: Any,
    ):
        self.dataset = dataset
        self.sampler = TaskSampler(dataset, batch_size, shuffle, group_by_length, seed)
        self._loader = DataLoader(dataset, batch_sampler=self.sampler, collate_fn=collate_tasks, **kwargs)
        self._arrived = 0

    @property
    def batch_sampler(self) -> TaskSampler:
        """
        The loader's sampler, by the name that a DataLoader uses. Lightning tells `sampler` of new epochs, and looks
        here whether it shuffles.
        """
        return self.sampler

    @property
    def batch_size(self) -> int:
        return self.sampler.batch_size

    def __len__(self) -> int:
        return len(self.sampler)

    def __iter__(self) -> Iterator[TaskBatch]:
        # A generator: the epoch that it is of is the sampler's when the first batch is asked for.
        self._arrived = self.sampler.next_position
        for batch in self._loader:
            self._arrived += 1
            yield batch

    def state_dict(self) -> dict[str, Any]:
        """Return the position in the present epoch, as numbers."""
        return {**self.sampler.state_dict(), "position": self._arrived}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """The next iteration goes on where :meth:`state_dict` was called."""
        self.sampler.load_state_dict(state)
        self._arrived = self.sampler.position
