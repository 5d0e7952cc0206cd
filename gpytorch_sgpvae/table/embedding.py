"""Where places start in their embedding: by what all of them say at the same time."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..context import Context
from ..linalg.place_kernel import PlaceKernel
from ..models import AmortizedModel
from .plan import Plan, different_places, number_places
from .reading import TaskTable

# The deviation of the coordinates at first: where all are at one point, no gradient moves them apart.
APART = 0.3
# Outputs at places, at most: a step is cubic in them.
MOST_PAIRS = 400
# Steps, and the learning rate of Adam.
NUM_STEPS, LEARNING_RATE = 150, 2e-2
# Times that the covariance of the model counts as much as, and the least eigenvalue of the data's covariance.
TIMES_OF_MODEL, LEAST_EIGENVALUE = 30.0, 1e-3


def start_embedding(model: AmortizedModel, plan: Plan, table: TaskTable, seed: int) -> None:
    r"""
    Set the embedding of places so that the model has about the covariance :math:`\hat\Sigma` that outputs at places
    have at the same time. With :math:`\Sigma` the model's, this minimizes

    .. math::

        \log |\Sigma| + \mathrm{tr} (\Sigma^{-1} \hat\Sigma)

    All other parameters stay as they are: loadings that move along serve outputs with little noise, such as twins, and
    predict the others worse.

    :param model: The model, of which the embedding is set.
    :param plan: The shape of the model.
    :param table: The table, whose targets are less the trend.
    :param seed: Seed of the coordinates at first.
    """
    kernels: list[Any] = [kernel for kernel in model.modules() if isinstance(kernel, PlaceKernel)]
    if not kernels:
        return
    places = different_places(table.x[:, list(plan.place)])
    random = np.random.default_rng(seed)
    with torch.no_grad():
        for kernel in kernels:
            kernel.places.copy_(torch.as_tensor(places))
            kernel.embedding.copy_(torch.as_tensor(APART * random.normal(size=kernel.embedding.shape)))
    decoder: Any = model.likelihood.decoder
    if len(places) * decoder.out_features > MOST_PAIRS:
        return
    values, noise = _at_places(model, plan, table, places)
    x = values.new_zeros(len(places), table.x.shape[1])
    x[:, list(plan.place)] = torch.as_tensor(places).to(x)

    def covariance() -> Tensor:
        K = model.model.covar_module(x).to_dense()  # (K, S, S)
        return (
            torch.einsum("jk,ik,kst->sjti", decoder.weight, decoder.weight, K).flatten(2).flatten(0, 1) + noise.diag()
        )

    with torch.no_grad():
        target = _shrunken(values, covariance())
    chosen = [kernel.embedding for kernel in kernels]
    before = [parameter.detach().clone() for parameter in chosen]
    optimizer = torch.optim.Adam(chosen, lr=LEARNING_RATE)
    for _ in range(NUM_STEPS):
        root = torch.linalg.cholesky(covariance())
        loss = 2 * root.diagonal().log().sum() + torch.cholesky_solve(target, root).trace()
        for parameter, gradient in zip(chosen, torch.autograd.grad(loss, chosen), strict=True):
            parameter.grad = gradient
        optimizer.step()
    for parameter, value in zip(chosen, before, strict=True):
        parameter.grad = None
        if not bool(parameter.isfinite().all()):
            parameter.data.copy_(value)


@torch.no_grad()
def _at_places(model: AmortizedModel, plan: Plan, table: TaskTable, places: np.ndarray) -> tuple[Tensor, Tensor]:
    """
    The decoder's values at all places and times, as pseudo-observations have them, NaN where nothing is known
    (`M x (S J)`), and the variance of the noise (`S J`).
    """
    assert plan.time is not None  # along which places come again
    parameter = next(model.parameters())
    likelihood: Any = model.likelihood
    context = Context(torch.as_tensor(table.x).to(parameter), torch.as_tensor(table.y).to(parameter))
    means, precision = likelihood.observation_model.initial_sites(context.filled, context.observed)  # (N, J)
    known = precision > 0
    tasks = np.empty(len(table.x), dtype=int)
    for number, rows in enumerate(table.rows):
        tasks[rows] = number
    moment = number_places(np.column_stack([tasks, table.x[:, [plan.time]]]))
    place = number_places(np.concatenate([places, table.x[:, list(plan.place)]]))[len(places) :]
    values = means.new_full((moment.max() + 1, len(places), means.shape[-1]), torch.nan)
    values[torch.as_tensor(moment), torch.as_tensor(place)] = torch.where(known, means, torch.nan)
    noise = torch.where(known, 1 / precision.clamp_min(1e-12), 0.0).sum(0) / known.sum(0).clamp_min(1)
    return values.flatten(1), noise.clamp_min(LEAST_EIGENVALUE).repeat(len(places))


def _shrunken(values: Tensor, prior: Tensor) -> Tensor:
    """The covariance of values with holes, each entry of it by the times at which both are known."""
    known = ~values.isnan()
    filled = torch.where(known, values - values.nanmean(0), 0.0)
    counts = known.to(values).mT @ known.to(values)
    mixed = (filled.mT @ filled + TIMES_OF_MODEL * prior) / (counts + TIMES_OF_MODEL)
    eigenvalues, vectors = torch.linalg.eigh(mixed)
    return (vectors * eigenvalues.clamp_min(LEAST_EIGENVALUE)) @ vectors.mT
