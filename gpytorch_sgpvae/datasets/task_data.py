from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from torch import Tensor

from ..utils.normalizer import Normalizer

Task = tuple[Tensor, Tensor]


@dataclass(frozen=True, eq=False, repr=False)
class TaskData:
    r"""
    Tasks to train on and tasks to be judged on, with what was held out of them. Every known entry of a task is either
    observed or held out:

    .. math::

        \{ (n, p) : y_{np} \text{ is a number} \} \cap \{ (n, p) : \text{truth}_{np} \text{ is a number} \} = \emptyset

    Everything is in original units. What a model should see is normalized, by means and standard deviations of the
    training tasks, in which what is held out has no part.

    :param train: Tasks for training: pairs of x (`N_t x D`) and y (`N_t x P`); NaN is a missing entry.
    :param train_truth: The held-out values of each training task (`N_t x P`); NaN where nothing is held out.
    :param test: Tasks to condition on, for predictions at the same inputs.
    :param test_truth: The values to predict in each test task (`N_t x P`); NaN where there is nothing to predict.
    :param seen: For each test task whether training has seen it, with these holes or with others.
    :param inputs: Names of the columns of x, in order, with their units.
    :param outputs: Names of the columns of y, in order, with their units.

    Example:
        >>> import torch
        >>> from gpytorch_sgpvae import SGPVAE, Context, metrics
        >>> from gpytorch_sgpvae.datasets import TaskData
        >>> x, y = torch.rand(20, 1), 100 + 5 * torch.randn(20, 2)
        >>> hidden = torch.zeros(20, 2, dtype=torch.bool)
        >>> hidden[15:, 1] = True
        >>> observed, truth = y.masked_fill(hidden, torch.nan), y.masked_fill(~hidden, torch.nan)
        >>> tasks = {"train": [(x, observed)], "train_truth": [truth], "test": [(x, observed)], "test_truth": [truth]}
        >>> data = TaskData(**tasks, seen=[True], inputs={"time": "s"}, outputs={"A": "V", "B": "V"})
        >>> data
        TaskData(1 + 1 tasks, time [s] -> A [V], B [V])
        >>> context = Context.pad([data.normalize(task) for task in data.train])
        >>> model = SGPVAE(num_outputs=2, num_latents=1, inducing_points=context.x[0, ::4])
        >>> prediction = model.predict(context.x, context).rescale(*data.normalizer)
        >>> metrics.mae(prediction, torch.stack(data.test_truth)).shape
        torch.Size([2])
    """

    train: list[Task]
    train_truth: list[Tensor]
    test: list[Task]
    test_truth: list[Tensor]
    seen: list[bool]
    inputs: dict[str, str]
    outputs: dict[str, str]

    @cached_property
    def normalizer(self) -> Normalizer:
        """The units of the outputs, from what is observed in the training tasks."""
        return Normalizer.fit(y for _, y in self.train)

    @cached_property
    def input_normalizer(self) -> Normalizer:
        """The units of the inputs, from the training tasks."""
        return Normalizer.fit(x for x, _ in self.train)

    def normalize(self, task: Task) -> Task:
        """The same task with normalized inputs and outputs."""
        x, y = task
        return self.input_normalizer.normalize(x), self.normalizer.normalize(y)

    def __repr__(self) -> str:
        tasks = f"{len(self.train)} + {len(self.test)} tasks"
        return f"TaskData({tasks}, {_labels(self.inputs)} -> {_labels(self.outputs)})"


def _labels(columns: dict[str, str]) -> str:
    labels = [f"{name} [{unit}]" for name, unit in columns.items()]
    # all 64 electrodes would fill the screen
    return ", ".join(labels if len(labels) <= 8 else [*labels[:3], "...", labels[-1]])
