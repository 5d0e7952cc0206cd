from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.utils.data import Dataset

from .._compat import add_note
from ..context import Context, as_pair, pad_tasks
from ..utils.seeds import seeded


class TaskIndex(NamedTuple):
    """
    What a :class:`TaskSampler` asks a :class:`TaskDataset` for.

    :param number: Which task.
    :param weight: 1, or 0 for a task that only fills up a batch.
    :param seed: Of everything random about the task in this epoch.
    """

    number: int
    weight: float
    seed: int


class Task(NamedTuple):
    """
    One task, as :func:`collate_tasks` takes it.

    :param x: (`N x D`).
    :param y: (`N x P`, or `N`), NaN is missing.
    """

    x: Tensor
    y: Tensor
    id: Any
    weight: float
    seed: int


class TaskBatch(NamedTuple):
    r"""
    Tasks of unequal length, padded to the longest among them: a padded row observes nothing, so that the bound of a
    task,

    .. math::

        \mathcal L^{(t)} = \sum_{n=1}^{N_t} \mathbb E_{q(\mathbf f_n)} \log p(\mathbf y_n^o \mid \mathbf f_n)
        - \mathrm{KL} \left[ q^{(t)}(\mathbf u) \Vert p(\mathbf u) \right],

    does not depend on the batch that it is in.

    :param x: (`T x N x D`, or `N x D` where all tasks have one and the same tensor of inputs).
    :param y: (`T x N x P`, or `T x N`), NaN is missing.
    :param weights: Factor of each task's bound in the loss, 0 for tasks that only fill up a batch (`T`).
    :param lengths: Number of points of each task, without padding.
    :param ids: What the tasks are called.
    :param seeds: Of the random numbers of each task.

    Example:
        >>> import torch
        >>> from gpytorch_sgpvae.training import TaskDataset, collate_tasks
        >>> dataset = TaskDataset([(torch.rand(n, 2), torch.randn(n, 5)) for n in (7, 4)])
        >>> batch = collate_tasks([dataset[0], dataset[1]])
        >>> batch.lengths, batch.context
        ([7, 4], Context(batch_shape=(2,), num_points=7, input_dim=2, num_outputs=5))
    """

    x: Tensor
    y: Tensor
    weights: Tensor
    lengths: list[int]
    ids: list[Any]
    seeds: list[int]

    @property
    def context(self) -> Context:
        return Context(self.x, self.y)

    def task(self, i: int) -> TaskBatch:
        """One of the tasks, as a batch of its own."""
        one = slice(i, i + 1)
        x = self.x if self.x.dim() == 2 else self.x[one]
        return TaskBatch(x, self.y[one], self.weights[one], self.lengths[one], self.ids[one], self.seeds[one])


class TaskDataset(Dataset):
    r"""
    Tasks :math:`\{(\mathbf x_n, \mathbf y_n)\}_{n=1}^{N_t}` of unequal length :math:`N_t` for
    :class:`torch.utils.data.DataLoader`, in memory or read when they are needed. Use it with :func:`collate_tasks`, or
    with a :class:`~gpytorch_sgpvae.training.TaskLoader`, which can also be resumed and shared among processes.

    :param tasks: A sequence of tasks: pairs of x (`N_t x D`) and y (`N_t x P`, or `N_t`), as tensors or arrays,
        memory-mapped ones too; contexts without a batch; or functions without arguments that return any of these,
        called whenever the task is needed (functions that a process can be sent, if there are workers). Torch's random
        numbers in such a function come from a seed of the task and the epoch.
    :param ids: What messages call the tasks; by default 0, 1, ....
    :param lengths: Their numbers of points, for :class:`~gpytorch_sgpvae.training.TaskSampler` to group them by. By
        default they are looked up, for which a function has to be called once.
    :param dtype: Convert to this dtype.

    Example:
        >>> import torch
        >>> from torch.utils.data import DataLoader
        >>> from gpytorch_sgpvae.training import TaskDataset, collate_tasks
        >>> dataset = TaskDataset([(torch.rand(n, 2), torch.randn(n, 5)) for n in (7, 4, 9)])
        >>> [batch.y.shape for batch in DataLoader(dataset, batch_size=2, collate_fn=collate_tasks)]
        [torch.Size([2, 7, 5]), torch.Size([1, 9, 5])]
    """

    def __init__(
        self,
        tasks: Sequence[Any],
        ids: Sequence[Any] | None = None,
        lengths: Sequence[int] | None = None,
        dtype: torch.dtype | None = None,
    ):
        if len(tasks) == 0:
            raise ValueError("A TaskDataset needs at least one task, got none.")
        for name, values in (("ids", ids), ("lengths", lengths)):
            if values is not None and len(values) != len(tasks):
                raise ValueError(f"There are {len(tasks)} tasks but {len(values)} {name}: give one for each task.")
        self.tasks = tasks
        self.ids = range(len(tasks)) if ids is None else ids
        self.dtype = dtype
        if lengths is not None:
            self.lengths = [int(length) for length in lengths]

    @cached_property
    def lengths(self) -> list[int]:
        """The number of points of each task."""
        return [self._num_points(i) for i in range(len(self))]

    def __len__(self) -> int:
        return len(self.tasks)

    def __getitem__(self, index: int | TaskIndex) -> Task:
        if not isinstance(index, TaskIndex):
            index = TaskIndex(index, 1.0, int(torch.randint(2**62, (), device="cpu")))
        i, weight, seed = index
        try:
            x, y = self._read(i, seed)
        except Exception as error:
            add_note(error, f"This happened while reading task {self.ids[i]!r}.")
            raise
        return Task(x, y, self.ids[i], weight, seed)

    def _read(self, i: int, seed: int) -> tuple[Tensor, Tensor]:
        task = self.tasks[i]
        if callable(task):
            with seeded(seed):
                task = task()
        if not isinstance(task, Context) and isinstance(task, (tuple, list)):
            task = tuple(self._as_tensor(values) for values in task)
        x, y = as_pair(task, self.ids[i])
        return x.to(self.dtype), y.to(self.dtype)

    def _as_tensor(self, values: Any) -> Tensor:
        # a copy of what is no tensor: arrays may be read-only, and files that they map may change
        return values if isinstance(values, Tensor) else torch.tensor(values, dtype=self.dtype, device="cpu")

    def _num_points(self, i: int) -> int:
        task = self.tasks[i]
        if isinstance(task, (tuple, list)) and hasattr(task[0], "shape"):
            return task[0].shape[0]
        return self[i].x.shape[0]


def collate_tasks(tasks: Sequence[Task]) -> TaskBatch:
    """
    A batch of tasks, padded to the longest of them: the `collate_fn` of a :class:`torch.utils.data.DataLoader`.

    :param tasks: Of a :class:`TaskDataset`.
    """
    ids = [task.id for task in tasks]
    x, y = pad_tasks(((task.x, task.y) for task in tasks), ids)
    if len(tasks) > 1 and all(task.x is tasks[0].x for task in tasks):
        x = tasks[0].x  # shared inputs: their kernel matrices are then computed once
    weights = torch.tensor([task.weight for task in tasks], dtype=y.dtype, device="cpu")
    return TaskBatch(x, y, weights, [task.y.shape[0] for task in tasks], ids, [task.seed for task in tasks])
