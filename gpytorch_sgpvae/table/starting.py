"""Starting values of a table's model: what the data say about it before any training."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from gpytorch.kernels import MaternKernel
from torch import Tensor

from ..context import Context
from ..linalg.autocorrelation import autocorrelation, private_split
from ..linalg.factor_analysis import FactorAnalysis, factor_analysis, factor_scores
from ..models import AmortizedModel
from .model import matern_of
from .outputs import Outputs
from .plan import Plan, number_places
from .reading import TaskTable

# Lengthscales of the shared groups, and of private functions, in units of that which the correlations show.
SHARED_SPREAD = (0.2, 1.0, 6.0)
PRIVATE_SPREAD = (0.4, 2.0)
# Where the correlation of a Matérn kernel with lengthscale 1 has fallen to 1 / e.
RANGES = {0.5: 1.0, 1.5: 1.24}
# The least noise variance to start from, above the bound of its constraint.
LEAST_NOISE = 1e-3
# Series, moments and stretches that are looked at, and rows of each, at most.
MOST_GROUPS, MOST_ROWS = 60, 1000
# Rows of a group that say something about the correlations within it.
FEWEST_ROWS = 3


@torch.no_grad()
def start(model: AmortizedModel, plan: Plan, outputs: Outputs, table: TaskTable, seed: int) -> None:
    """
    Set loadings by factor analysis of the rows with their holes, noise and the private functions' scales by what it
    leaves, and lengthscales by the correlations along each series, and among the places at the same time.

    :param model: The model, of which the parameters are set.
    :param plan: The shape of the model.
    :param outputs: The output columns.
    :param table: The table, whose targets are less the trend.
    :param seed: Seed of the choice of rows.
    """
    parameter = next(model.parameters())
    likelihood: Any = model.likelihood
    linear, observation_model = likelihood.decoder, likelihood.observation_model
    outputs.initialize(observation_model, table.y)
    random = np.random.default_rng(seed)
    time = () if plan.time is None else (plan.time,)
    series = _groups(table, plan, random, over_time=plan.time is not None)

    along = _as_context(table, series, time or plan.numbers, like=parameter)
    values, precision = observation_model.initial_sites(along.filled, along.observed)
    known = precision > 0  # (T, N, J)
    analysis = factor_analysis(values, known, plan.group_size)
    _set_loadings(linear, analysis, plan)
    if along.x.shape[-1]:
        scores = factor_scores(values, known, analysis)
        lengthscales = _typical(autocorrelation(along.x, scores.mean, 1 - scores.variance).lengthscale, analysis)
        split = private_split(along.x, values, known, analysis)
        _set_lengthscales(model, plan, time or plan.numbers, lengthscales, split.private_lengthscale)
        private, noise = split.private_variance, split.noise
    else:  # only labels and cycles: nothing has a distance
        private, noise = 0.5 * analysis.noise, 0.5 * analysis.noise
    if plan.num_private:
        linear.private.copy_((private / plan.num_private).sqrt().unsqueeze(-1).expand_as(linear.private))
    outputs.set_noise(observation_model, noise.clamp_min(LEAST_NOISE))

    if plan.time is not None and plan.space and plan.kind != "markov":
        moments = _groups(table, plan, random, over_time=False)
        across = _as_context(table, moments, plan.space, like=parameter)
        values, precision = observation_model.initial_sites(across.filled, across.observed)
        scores = factor_scores(values, precision > 0, analysis)
        lengthscales = _typical(autocorrelation(across.x, scores.mean, 1 - scores.variance).lengthscale, analysis)
        own = autocorrelation(across.x, values, (precision > 0).to(values)).lengthscale  # (J, d)
        _set_lengthscales(model, plan, plan.space, lengthscales, own, spread=False)


def _groups(table: TaskTable, plan: Plan, random: np.random.Generator, over_time: bool) -> list[np.ndarray]:
    """
    Some series of rows, in the order of time, or some sets of rows of the same time; of a table without a time some of
    its tasks.
    """
    tasks = np.empty(len(table.x), dtype=int)
    for number, rows in enumerate(table.rows):
        tasks[rows] = number
    if plan.time is None:
        keys = tasks
    else:
        shared = table.x[:, list(plan.place)] if over_time else table.x[:, [plan.time]]
        keys = number_places(np.column_stack([tasks, shared]))
    order = np.argsort(keys, kind="stable")
    groups = np.split(order, np.flatnonzero(np.diff(keys[order])) + 1)
    long_enough = [rows for rows in groups if len(rows) >= FEWEST_ROWS] or groups
    chosen = random.permutation(len(long_enough))[:MOST_GROUPS]
    return [_stretch(long_enough[i], table, plan, random) for i in chosen]


def _stretch(rows: np.ndarray, table: TaskTable, plan: Plan, random: np.random.Generator) -> np.ndarray:
    """Take at most the given number of rows, which follow each other in time."""
    if plan.time is None:
        return rows if len(rows) <= MOST_ROWS else random.choice(rows, MOST_ROWS, replace=False)
    rows = rows[np.argsort(table.x[rows, plan.time], kind="stable")]
    first = random.integers(max(1, len(rows) - MOST_ROWS + 1))
    return rows[first : first + MOST_ROWS]


def _as_context(table: TaskTable, groups: Sequence[np.ndarray], dims: Sequence[int], like: Tensor) -> Context:
    pairs = [(table.x[rows][:, list(dims)], table.y[rows]) for rows in groups]
    return Context.pad([(torch.as_tensor(x).to(like), torch.as_tensor(y).to(like)) for x, y in pairs])


def _typical(lengthscales: Tensor, analysis: FactorAnalysis) -> Tensor:
    """The geometric mean over the factors, which count by what they explain (`1 x d`)."""
    weight = analysis.loadings.square().sum(0)  # (F,)
    return ((weight.unsqueeze(-1) * lengthscales.log()).sum(0, keepdim=True) / weight.sum()).exp()


def _set_loadings(linear: Any, analysis: FactorAnalysis, plan: Plan) -> None:
    # each group explains its part of the factors' covariance
    linear.shared.copy_(torch.cat([analysis.loadings] * plan.num_groups, -1) / math.sqrt(plan.num_groups))
    linear.bias.copy_(analysis.mean)


def _set_lengthscales(
    model: AmortizedModel,
    plan: Plan,
    dims: tuple[int, ...],
    shared: Tensor,
    private: Tensor,
    spread: bool = True,
) -> None:
    """
    :param dims: The inputs.
    :param shared: Lengthscales of the shared latent functions (`1 x d`).
    :param private: Lengthscales of each of the decoder's values' own (`J x d`).
    :param spread: Whether groups start apart.
    """
    kernels = list(model.model.covar_module.kernels)
    for i, kernel in enumerate(kernels):
        is_private, number = i >= plan.num_groups, i - plan.num_groups
        matern = matern_of(kernel, dims)
        if matern is None:
            continue
        scales = private if is_private else shared
        factor = PRIVATE_SPREAD[number] if is_private else (SHARED_SPREAD[i] if plan.num_groups > 1 else 1.0)
        _set(matern, scales * (factor if spread else 1.0))


def _set(matern: MaternKernel, scales: Tensor) -> None:
    scales = (scales / RANGES[matern.nu]).clamp(1e-6, 1e6)
    matern.lengthscale = scales.unsqueeze(-2).expand_as(matern.lengthscale)
