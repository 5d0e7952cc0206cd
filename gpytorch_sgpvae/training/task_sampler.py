from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
import torch.distributed
from torch.utils.data import Sampler

from ..utils.seeds import derive_seed
from .task_dataset import TaskDataset, TaskIndex

# Tasks are sorted by length among this many batches at a time: enough for batches with little padding, few enough
# for an epoch to mix the tasks in a new way each time.
BATCHES_SORTED_TOGETHER = 50


class TaskSampler(Sampler[list[TaskIndex]]):
    r"""
    Batches of tasks for one process or for several, a function of nothing but the seed and the epoch, so that an epoch
    can be taken up again in its middle. A batch sampler for a :class:`torch.utils.data.DataLoader` over a
    :class:`~gpytorch_sgpvae.training.TaskDataset`.

    In each epoch every task comes once. With R processes a step takes R batches of B tasks,

    .. math::

        \left\lceil \frac{T}{R B} \right\rceil \text{ steps on every process,}

    and where the last tasks do not suffice for all of them, batches are filled up by tasks of weight 0, so that no
    process waits for another.

    :param dataset: The tasks.
    :param batch_size: Tasks in a batch of one process, B.
    :param shuffle: Whether their order is drawn anew for each epoch, and where
        :meth:`~gpytorch_sgpvae.training.TaskDataset.windows` start.
    :param group_by_length: Whether tasks of similar length go into the same batches, for less padding.
    :param seed: The seed of the order, and of the tasks' own seeds.
    :param num_replicas: Number of processes R; by default those of :mod:`torch.distributed`, if it is in use.
    :param rank: The number of this process among them.

    :ivar int epoch: The epoch of the present iteration; the one after a complete iteration is of the next.
    :ivar int position: The number of batches of this epoch that have been given out.

    Example:
        >>> import torch
        >>> from gpytorch_sgpvae.training import TaskDataset, TaskSampler
        >>> dataset = TaskDataset([(torch.rand(n, 2), torch.randn(n, 5)) for n in (90, 10, 100, 20)])
        >>> [[task.number for task in batch] for batch in TaskSampler(dataset, batch_size=2, shuffle=False)]
        [[0, 1], [2, 3]]
        >>> mixed, grouped = (TaskSampler(dataset, 2, group_by_length=group) for group in (False, True))
        >>> f"{mixed.padding():.0%} of the rows are padding, {grouped.padding():.0%} where tasks are grouped"
        '42% of the rows are padding, 8% where tasks are grouped'
    """

    def __init__(
        self,
        dataset: TaskDataset,
        batch_size: int = 8,
        shuffle: bool = True,
        group_by_length: bool = False,
        seed: int = 0,
        num_replicas: int | None = None,
        rank: int | None = None,
    ):
        if batch_size < 1:
            raise ValueError(f"batch_size must be at least 1, got {batch_size}.")
        if (num_replicas is None) != (rank is None):
            raise ValueError(f"num_replicas and rank go together, got {num_replicas} and {rank}.")
        if num_replicas is not None and rank is not None and not 0 <= rank < num_replicas:
            raise ValueError(f"Expected a rank from 0 to {num_replicas - 1}, got {rank}.")
        self.dataset = dataset
        self.batch_size = batch_size
        self.shuffle = shuffle
        self.group_by_length = group_by_length
        self.seed = seed
        self.epoch = 0
        self.position = 0
        self._start = 0
        self._num_replicas, self._rank = num_replicas, rank

    @property
    def num_replicas(self) -> int:
        if self._num_replicas is not None:
            return self._num_replicas
        # asked for late: processes are often set up after their data
        return torch.distributed.get_world_size() if _is_distributed() else 1

    @property
    def rank(self) -> int:
        if self._rank is not None:
            return self._rank
        return torch.distributed.get_rank() if _is_distributed() else 0

    @property
    def tasks_per_step(self) -> int:
        """The number of tasks that all processes together take in a step."""
        return self.batch_size * self.num_replicas

    def __len__(self) -> int:
        return -(-len(self.dataset) // self.tasks_per_step)

    def __iter__(self) -> Iterator[list[TaskIndex]]:
        if self.position >= len(self):
            self.set_epoch(self.epoch + 1)
        epoch, self.position, self._start = self.epoch, self._start, 0
        for tasks in self._steps(epoch)[self.position :]:
            self.position += 1
            yield [self._task_index(i, weight, epoch) for i, weight in self._share(tasks)]

    @property
    def next_position(self) -> int:
        """The batch that the next iteration begins with: the first, unless an epoch is to be taken up again."""
        return 0 if self.position >= len(self) else self._start

    def set_epoch(self, epoch: int) -> None:
        """Start over with an epoch, unless it is the one that is under way."""
        if epoch != self.epoch:
            self.epoch, self.position, self._start = epoch, 0, 0

    def state_dict(self) -> dict[str, Any]:
        """Return the position in the present epoch, as numbers."""
        return {
            "epoch": self.epoch,
            "position": self.position,
            "seed": self.seed,
            "num_tasks": len(self.dataset),
            "tasks_per_step": self.tasks_per_step,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """The next iteration goes on where :meth:`state_dict` was called, with as many processes or another number."""
        here = self.state_dict()
        differing = [name for name in ("seed", "num_tasks", "tasks_per_step") if state[name] != here[name]]
        if differing:
            saved, now = ({name: values[name] for name in differing} for values in (state, here))
            raise ValueError(
                f"An epoch that was begun with {saved} cannot be taken up with {now}: give the sampler the same seed "
                "and tasks, and as many tasks per step (batch size times processes), or start a new run from the saved "
                "parameters."
            )
        self.epoch, self.position = state["epoch"], state["position"]
        self._start = self.position

    def padding(self, epoch: int = 0) -> float:
        """The fraction of an epoch's rows that are padding."""
        lengths, rows, padded = self.dataset.lengths, 0, 0
        for tasks in self._steps(epoch):
            for rank in range(self.num_replicas):
                batch = [lengths[i] for i in tasks[rank :: self.num_replicas]]
                rows += sum(batch)
                padded += len(batch) * max(batch, default=0)
        return 1 - rows / padded if padded else 0.0

    def _steps(self, epoch: int) -> list[list[int]]:
        """The tasks of each step, all processes together."""
        num_tasks, per_step = len(self.dataset), self.tasks_per_step
        generator = torch.Generator("cpu").manual_seed(derive_seed(self.seed, epoch, "order"))
        order = torch.arange(num_tasks, device="cpu")
        if self.shuffle:
            order = torch.randperm(num_tasks, generator=generator, device="cpu")
        if self.group_by_length:
            lengths = torch.tensor(self.dataset.lengths, device="cpu")
            groups = order.split(BATCHES_SORTED_TOGETHER * per_step)
            order = torch.cat([group[lengths[group].argsort(stable=True, descending=True)] for group in groups])
        steps = [step.tolist() for step in order.split(per_step)]
        if self.group_by_length and self.shuffle:
            steps = [steps[i] for i in torch.randperm(len(steps), generator=generator, device="cpu").tolist()]
        return steps

    def _share(self, tasks: list[int]) -> list[tuple[int, float]]:
        """This process' part of a step's tasks, and their weights."""
        share = [(i, 1.0) for i in tasks[self.rank :: self.num_replicas]]
        largest_share = -(-len(tasks) // self.num_replicas)
        return share + [(tasks[0], 0.0)] * (largest_share - len(share))

    def _task_index(self, i: int, weight: float, epoch: int) -> TaskIndex:
        epoch_seed = derive_seed(self.seed, epoch, "epoch") if self.shuffle else None
        return TaskIndex(i, weight, derive_seed(self.seed, epoch, "task", i), epoch_seed)


def _is_distributed() -> bool:
    return torch.distributed.is_available() and torch.distributed.is_initialized()
