"""Training of a model of windows, and what it says of them."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

from ..models import AmortizedModel

LEARNING_RATE = 0.03
# Steps of training where the number of epochs is not given.
USUAL_STEPS = 400
# Windows in a step, at most, and entries, holes included: large windows tell more each.
USUAL_BATCH_SIZE, ENTRIES_PER_STEP = 16, 16_000


def usual_batch_size(num_points: int, num_outputs: int) -> int:
    """
    The number of windows in a step of training by default: 16, or fewer if they have more than 1000 entries.

    :param num_points: Number of steps N of a window.
    :param num_outputs: Number of outputs P.
    """
    return max(1, min(USUAL_BATCH_SIZE, ENTRIES_PER_STEP // (num_points * num_outputs)))


def train(
    model: AmortizedModel,
    x: Tensor,
    windows: Tensor,
    batch_size: int,
    epochs: int | None = None,
    patience: int | None = None,
    learning_rate: float = LEARNING_RATE,
    verbose: bool = False,
    score: Callable[[], float] | None = None,
) -> list[dict[str, float]]:
    """
    Train by Adam, with a learning rate that falls to zero along a cosine, and go back to the parameters with the best
    score, if there is one. Returns the loss of each epoch, an entry's, and the score, by the name of `mse`.

    :param model: A model that has started from data.
    :param x: The steps of a window (`N x 1`).
    :param windows: Standardized windows (`T x N x P`), NaN where something is missing.
    :param batch_size: Windows in a step.
    :param epochs: Rounds over the windows; by default as many as make about 400 steps.
    :param patience: The number of epochs without a better score after which training stops.
    :param learning_rate: The learning rate at the start.
    :param verbose: Whether to print a line for each epoch.
    :param score: Scores the model as it is, lower is better.

    Example:
        >>> import torch
        >>> from gpytorch_sgpvae.models import window_model
        >>> from gpytorch_sgpvae.windows.learning import train
        >>> model, x = window_model(num_points=6, num_outputs=2), torch.arange(6.0).unsqueeze(-1)
        >>> history = train(model, x, torch.randn(20, 6, 2), batch_size=10, epochs=3)
        >>> len(history), sorted(history[0])
        (3, ['loss'])
    """
    windows = windows[~windows.isnan().all(-1).all(-1)]  # of those without a known entry nothing is learnt
    steps_per_epoch = math.ceil(len(windows) / batch_size)
    epochs = epochs or math.ceil(USUAL_STEPS / steps_per_epoch)
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    optimizer = torch.optim.Adam(parameters, learning_rate)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, epochs * steps_per_epoch)
    num_entries = int((~windows.isnan()).sum())
    history: list[dict[str, float]] = []
    best, best_epoch, kept = math.inf, 0, None
    for epoch in range(1, epochs + 1):
        model.train()
        total = 0.0
        for batch in torch.randperm(len(windows), device=windows.device).split(batch_size):
            optimizer.zero_grad()
            bounds = model.elbo((x, windows[batch]))  # (T,)
            (-bounds.mean()).backward()
            optimizer.step()
            schedule.step()
            total -= bounds.detach().sum().item()
        model.eval()
        scores = {"loss": total / num_entries}
        if score is not None:
            scores["mse"] = score()
            if scores["mse"] < best:
                best, best_epoch = scores["mse"], epoch
                kept = {name: value.clone() for name, value in model.state_dict().items()}
        history.append(scores)
        if verbose:
            print(f"Epoch {epoch} of {epochs}: {', '.join(f'{name} {value:.4f}' for name, value in scores.items())}")
        if score is not None and patience is not None and epoch - best_epoch >= patience:
            break
    if kept is not None:
        model.load_state_dict(kept)
    return history


@torch.no_grad()
def moments(model: AmortizedModel, x: Tensor, windows: Tensor, batch_size: int) -> tuple[Tensor, Tensor]:
    """
    Means and standard deviations of all entries in standardized units (`T x N x P`): exact ones, unless the model has
    perceptrons.

    :param model: A model with Gaussian outputs, such as that of :func:`~gpytorch_sgpvae.models.window_model`.
    :param x: The steps of a window (`N x 1`).
    :param windows: Standardized windows (`T x N x P`), NaN where something is missing.
    :param batch_size: Windows at a time.
    """
    means, stddevs = [], []
    for some in windows.split(batch_size):
        said = model.predict(x, context=(x, some))  # which remembers matrices as large as all entries of its windows
        means.append(said.mean)
        stddevs.append(said.stddev)
    return torch.cat(means), torch.cat(stddevs)
