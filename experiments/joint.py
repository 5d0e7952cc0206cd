"""One joint model for all experiments: latent functions that are inferred together, by one preset that nobody tuned."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from gpytorch_sgpvae import GPVAE, SGPVAE, Context, MarkovGPVAE, Prediction, PrivateLinear
from gpytorch_sgpvae.linalg.kernels import add_private_groups, default_grouped_kernel
from gpytorch_sgpvae.models import AmortizedModel

from .training import BUDGET, PREDICTION_SAMPLES, Task, centers, optimize, optimize_for

# Two shared latent functions for each output, at most, and private ones where outputs are few.
MOST_SHARED = 16
MOST_OUTPUTS_WITH_PRIVATE = 16
# Tasks with more entries than that have inducing points.
MOST_ENTRIES = 2000
NUM_INDUCING = 64
NUM_STEPS = 300
LEARNING_RATE = 3e-2
# Entries in a step, about, and tasks that the start is found from.
ENTRIES_PER_STEP = 4000
TASKS_TO_START_FROM = 20


def fit(tasks: list[Task], seed: int, smoke: bool = False) -> AmortizedModel:
    """
    A linear model, exact without inducing points, which starts from the data: its network's corrections stay zero.

    :param tasks: Normalized.
    """
    num_outputs, num_shared, options = _parts(tasks, smoke)
    if _num_entries(tasks) > MOST_ENTRIES:
        points = centers(torch.cat([x for x, _ in tasks]), 8 if smoke else NUM_INDUCING, seed)
        model: AmortizedModel = SGPVAE(num_outputs, num_shared, points, **options)
    else:
        model = GPVAE(num_outputs, num_shared, **options)
    _start(model, tasks)
    optimize(model, _loss(model, tasks, seed), 3 if smoke else NUM_STEPS, LEARNING_RATE, "cosine")
    return model


def fit_over_time(
    name: str, task: Task, num_inducing: int, seed: int, smoke: bool = False
) -> tuple[AmortizedModel, dict[str, float]]:
    """
    The same model of one series, trained for :data:`~experiments.training.BUDGET` seconds instead of a number of steps.

    :param name: `markov` for exact inference over time, `sgpvae` for inducing points at equal distances.
    :param task: Normalized; the input is time.
    :param num_inducing: How many, for `sgpvae`.
    :return: The model, and what its training took.
    """
    num_outputs, num_shared, options = _parts([task], smoke)
    # the usual kernel of the other models; the start has lengthscales of its own
    kernel = default_grouped_kernel(num_shared, 1, shortest=0.3, longest=3.0)
    if options["num_private"]:
        kernel = add_private_groups(kernel, num_outputs, options["num_private"], 1)
    if name == "markov":
        model: AmortizedModel = MarkovGPVAE(num_outputs, num_shared, kernel=kernel, **options)
    else:
        points = torch.linspace(task[0].min(), task[0].max(), 8 if smoke else num_inducing, dtype=task[0].dtype)
        model = SGPVAE(num_outputs, num_shared, points, kernel=kernel, **options)
    _start(model, [task])
    took = optimize_for(1e-3 if smoke else BUDGET, model, _loss(model, [task], seed), LEARNING_RATE)
    return model, took


def _parts(tasks: list[Task], smoke: bool) -> tuple[int, int, dict[str, Any]]:
    """The numbers of outputs and of shared latent functions, and what else the models are made of."""
    num_outputs = tasks[0][1].shape[-1]
    num_shared = 2 if smoke else min(2 * num_outputs, MOST_SHARED)
    num_private = int(num_outputs <= MOST_OUTPUTS_WITH_PRIVATE and not smoke)
    decoder: torch.nn.Module = torch.nn.Linear(num_shared, num_outputs)
    if num_private:
        decoder = PrivateLinear(num_shared, num_outputs, num_private)
    return num_outputs, num_shared, {"network": "jointfactornet", "decoder": decoder, "num_private": num_private}


def _start(model: AmortizedModel, tasks: list[Task]) -> None:
    model.double()
    model.initialize_from(Context.pad(tasks[:TASKS_TO_START_FROM]))
    model.strategy._variational_distribution.network.requires_grad_(False)


def _loss(model: AmortizedModel, tasks: list[Task], seed: int) -> Callable[[], Tensor]:
    """The objective of some tasks, which are drawn anew for each step."""
    num_entries = _num_entries(tasks)
    batch_size = max(1, min(len(tasks), ENTRIES_PER_STEP // num_entries))
    generator = torch.Generator().manual_seed(seed)

    def loss() -> Tensor:
        chosen = torch.randperm(len(tasks), generator=generator)[:batch_size].tolist()
        return model.loss(Context.pad([tasks[i] for i in chosen])) / num_entries

    return loss


def _num_entries(tasks: list[Task]) -> int:
    """The observed entries of the task with the most of them."""
    return max(int((~y.isnan()).sum()) for _, y in tasks)


def predict(model: AmortizedModel, context: Context) -> Prediction:
    return model.predict(context.x, context, PREDICTION_SAMPLES, chunk_size=64)
