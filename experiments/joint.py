"""One joint model for all experiments: latent functions that are inferred together, by one preset that nobody tuned."""

from __future__ import annotations

import torch
from torch import Tensor

from gpytorch_sgpvae import GPVAE, SGPVAE, Context, Prediction, PrivateLinear
from gpytorch_sgpvae.models import AmortizedModel

from .training import PREDICTION_SAMPLES, Task, centers, optimize

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
    num_outputs = tasks[0][1].shape[-1]
    num_shared = 2 if smoke else min(2 * num_outputs, MOST_SHARED)
    num_private = int(num_outputs <= MOST_OUTPUTS_WITH_PRIVATE and not smoke)
    decoder: torch.nn.Module = torch.nn.Linear(num_shared, num_outputs)
    if num_private:
        decoder = PrivateLinear(num_shared, num_outputs, num_private)
    options = {"network": "jointfactornet", "decoder": decoder, "num_private": num_private}
    num_entries = max(int((~y.isnan()).sum()) for _, y in tasks)
    if num_entries > MOST_ENTRIES:
        points = centers(torch.cat([x for x, _ in tasks]), 8 if smoke else NUM_INDUCING, seed)
        model: AmortizedModel = SGPVAE(num_outputs, num_shared, points, **options).double()
    else:
        model = GPVAE(num_outputs, num_shared, **options).double()
    model.initialize_from(Context.pad(tasks[:TASKS_TO_START_FROM]))
    model.strategy._variational_distribution.network.requires_grad_(False)
    batch_size = max(1, min(len(tasks), ENTRIES_PER_STEP // num_entries))
    generator = torch.Generator().manual_seed(seed)

    def loss() -> Tensor:
        chosen = torch.randperm(len(tasks), generator=generator)[:batch_size].tolist()
        return model.loss(Context.pad([tasks[i] for i in chosen])) / num_entries

    optimize(model, loss, 3 if smoke else NUM_STEPS, LEARNING_RATE, "cosine")
    return model.eval()


def predict(model: AmortizedModel, context: Context) -> Prediction:
    return model.predict(context.x, context, PREDICTION_SAMPLES, chunk_size=64)
