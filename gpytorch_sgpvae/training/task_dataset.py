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
from .windows import Windows


class TaskIndex(NamedTuple):
    """
    The key by which a :class:`TaskSampler` asks a :class:`TaskDataset` for a task.

    :param number: The index of the task.
    :param weight: 1, or 0 for a task that only fills up a batch.
    :param seed: The seed of everything random about the task in this epoch.
    :param epoch_seed: The seed of what tasks share in this epoch: where the windows of a series start. None where tasks
        are not shuffled, and windows start at fixed rows.
    """

    number: int
    weight: float
    seed: int
    epoch_seed: int | None = None


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
    :param ids: The names of the tasks.
    :param seeds: The seeds of each task's random numbers.

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
    :param ids: The tasks' names in messages; by default 0, 1, ....
    :param lengths: The tasks' numbers of points, for :class:`~gpytorch_sgpvae.training.TaskSampler` to group them by.
        By default they are looked up, for which a function has to be called once.
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
        try:
            x, y = self._read(index)
        except Exception as error:
            add_note(error, f"This happened while reading task {self.ids[index.number]!r}.")
            raise
        return Task(x, y, self.ids[index.number], index.weight, index.seed)

    def windows(self, length: int, stride: int | None = None, *, time_column: int = 0) -> TaskDataset:
        r"""
        Windows of long series, each of them a task: train on windows, then condition on the whole series. Each task of
        this dataset is a series, and a window has consecutive rows of one series, sorted by time. In every epoch a
        series of N rows has

        .. math::

            W = \left\lceil \frac{\max(N - L, 0)}{s} \right\rceil + 1

        windows of min(N, L) rows, with L = length and s = stride.

        Where they start depends on the loader:

        - Where it does not shuffle, as for validation, they start at :math:`0, s, 2 s, \dots`, and the last one ends
          with the series: every row is in a window. The same holds for an index that is a plain number.
        - Where it shuffles, as for training, they start s rows apart too, but all windows of a series are moved by a
          random number of rows, drawn anew in each epoch. The first and the last are moved back if they would leave
          the series. An epoch may leave out up to half a stride of rows at one end of a series; each row is in a
          window with a probability of at least one half.

        The series are not copied. A window of a tensor is a view, and of a memory-mapped array only the window's rows
        are read. For a series that is not sorted by time, the dataset keeps the order that sorts it, N integers, and a
        window is a copy of its own rows. A function is called again for each window, in an epoch with the same random
        numbers for all windows of its series: map long files into memory instead.

        Times are not shifted: inducing points have to cover the whole series. In the objective a window is a task, with
        a KL divergence of its own, and windows that overlap count a row about L / s times.

        :param length: Number of rows of a window. A shorter series is one window; one without rows has none.
        :param stride: Number of rows from the start of a window to the start of the next, at most length; by default
            length, for windows that do not overlap.
        :param time_column: The column of x by which rows are sorted. Rows of equal time keep their order, and rows
            whose time is NaN come last.
        :return: A dataset of windows, whose ids are each a :class:`~gpytorch_sgpvae.training.WindowId`.

        Example:
            >>> import torch
            >>> from gpytorch_sgpvae.training import TaskDataset, TaskLoader
            >>> days = torch.arange(1000.0).unsqueeze(-1)
            >>> series = [(days, torch.randn(1000, 5)), (days[:70], torch.randn(70, 5))]
            >>> windows = TaskDataset(series, ids=["river", "creek"]).windows(300)
            >>> windows.lengths
            [300, 300, 300, 300, 70]
            >>> [int(window.x[0]) for window in windows]
            [0, 300, 600, 700, 0]
            >>> windows[3].id
            WindowId(task='river', number=3)
            >>> loader = TaskLoader(windows, batch_size=5)
            >>> [sorted(batch.x[:, 0, 0].int().tolist()) for epoch in range(3) for batch in loader]
            [[0, 0, 275, 575, 700], [0, 0, 245, 545, 700], [0, 0, 207, 507, 700]]
        """
        return WindowDataset(self, length, length if stride is None else stride, time_column)

    def _fetch(self, i: int, seed: int) -> tuple[Any, Any]:
        """
        The x and y of a task as they are kept, tensors or arrays, or as its function returns them.

        :param i: The index of the task.
        :param seed: The seed of the function's random numbers.
        """
        task = self.tasks[i]
        if callable(task):
            with seeded(seed):
                task = task()
        if isinstance(task, Context):
            return task.x, task.y
        if not isinstance(task, (tuple, list)) or len(task) != 2:
            raise TypeError(f"Task {self.ids[i]} is a {type(task).__name__}: expected a pair (x, y) or a Context.")
        x, y = (values if hasattr(values, "shape") else self._as_tensor(values) for values in task)
        return x, y

    def _read(self, index: TaskIndex) -> tuple[Tensor, Tensor]:
        return self._as_tensors(index.number, *self._fetch(index.number, index.seed))

    def _as_tensors(self, i: int, x: Any, y: Any) -> tuple[Tensor, Tensor]:
        x, y = as_pair((self._as_tensor(x), self._as_tensor(y)), self.ids[i])
        return x.to(self.dtype), y.to(self.dtype)

    def _as_tensor(self, values: Any) -> Tensor:
        # a copy of what is no tensor: arrays may be read-only, and files that they map may change
        return values if isinstance(values, Tensor) else torch.tensor(values, dtype=self.dtype, device="cpu")

    def _num_points(self, i: int) -> int:
        task = self.tasks[i]
        if isinstance(task, (tuple, list)) and hasattr(task[0], "shape"):
            return task[0].shape[0]
        return self[i].x.shape[0]


class WindowDataset(TaskDataset):
    """
    The dataset that :meth:`TaskDataset.windows` returns.

    :param series: The dataset of whole series.
    """

    tasks: Windows

    def __init__(self, series: TaskDataset, length: int, stride: int, time_column: int):
        windows = Windows(series, length, stride, time_column)
        super().__init__(windows, windows.ids, windows.lengths, series.dtype)

    def windows(self, length: int, stride: int | None = None, *, time_column: int = 0) -> TaskDataset:
        """Refuse to cut windows from windows."""
        raise ValueError(
            f"This dataset is already made of windows of {self.tasks.length} rows: call windows() of the dataset that "
            "has the whole series."
        )

    def _read(self, index: TaskIndex) -> tuple[Tensor, Tensor]:
        return self._as_tensors(index.number, *self.tasks.cut(index.number, index.epoch_seed))


def collate_tasks(tasks: Sequence[Task]) -> TaskBatch:
    """
    A batch of tasks, padded to the longest of them: the `collate_fn` of a :class:`torch.utils.data.DataLoader`.

    :param tasks: Tasks of a :class:`TaskDataset`.
    """
    ids = [task.id for task in tasks]
    x, y = pad_tasks(((task.x, task.y) for task in tasks), ids)
    if len(tasks) > 1 and all(task.x is tasks[0].x for task in tasks):
        x = tasks[0].x  # shared inputs: their kernel matrices are then computed once
    weights = torch.tensor([task.weight for task in tasks], dtype=y.dtype, device="cpu")
    return TaskBatch(x, y, weights, [task.y.shape[0] for task in tasks], ids, [task.seed for task in tasks])
