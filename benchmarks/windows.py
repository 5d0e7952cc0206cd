"""Windows of time series with hidden entries, as TSI-Bench (Du et al., 2024) has them, and imputers of them."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from gpytorch_sgpvae import GPVAE
from gpytorch_sgpvae.datasets.files import data_folder
from gpytorch_sgpvae.linalg.kernels import GroupedKernel, add_private_groups, default_grouped_kernel
from gpytorch_sgpvae.mlp import PrivateLinear

FOLDER = "tsibench"
GENERATED = "generated"
SEED = 2024
BATCH_SIZE = 16
# Windows that initialize_from reads, and that are predicted at a time.
NUM_FIRST, CHUNK_SIZE = 200, 32
NUM_PRIVATE = 2
LEVEL = 1.959964  # of a standard normal: 95 %


class Windows(NamedTuple):
    """
    Standardized windows (`T x N x P`).

    :param truth: With everything that is known.
    :param seen: With holes (NaN).
    """

    truth: Tensor
    seen: Tensor

    @property
    def hidden(self) -> Tensor:
        return self.seen.isnan() & ~self.truth.isnan()


class Problem(NamedTuple):
    train: Windows
    validation: Windows
    test: Windows


class Gaussians(NamedTuple):
    """What an imputer says of all entries (`T x N x P`); NaN where it knows no standard deviation."""

    mean: Tensor
    stddev: Tensor


@dataclass(frozen=True)
class Imputed:
    """
    :param seconds: Seconds of the processor, for learning and for predicting the validation and the test windows.
    :param num_parameters: That were learnt.
    """

    validation: Gaussians
    test: Gaussians
    seconds: float
    num_parameters: int


def folder() -> Path | None:
    """The folder of the files, or None."""
    root = data_folder()
    return root / FOLDER if root is not None and (root / FOLDER).is_dir() else None


def load(name: str) -> list[np.ndarray]:
    """Standardized windows to train on, to validate with and to test (`T x N x P` each), without overlap."""
    if name == GENERATED:
        parts, length = _generated(), 12
    elif name == "ETTh1":
        parts, length = _etth1(_path("ETTh1.csv")), 48
    else:
        parts, length = _italy_air(_path("AirQualityUCI.csv")), 12
    mean, stddev = np.nanmean(parts[0], 0), np.nanstd(parts[0], 0)
    return [((part - mean) / stddev)[: len(part) // length * length].reshape(-1, length, len(mean)) for part in parts]


def make_problem(name: str, rate: float, seed: int = SEED) -> Problem:
    """Each entry is hidden with probability `rate`, in all three sets."""
    random = np.random.default_rng(seed)
    sets = []
    for truth in load(name):
        seen = np.where(random.random(truth.shape) < rate, np.nan, truth)
        sets.append(Windows(torch.tensor(truth), torch.tensor(seen)))
    return Problem(*sets)


def _path(file: str) -> Path:
    where = folder()
    assert where is not None
    return where / file


def _etth1(path: Path) -> list[np.ndarray]:
    """14 months, five, and the rest."""
    frame = pd.read_csv(path, parse_dates=["date"])
    month, values = frame.date.dt.to_period("M"), frame.drop(columns="date").to_numpy(float)
    months = month.unique()
    return [values[month.isin(some).to_numpy()] for some in (months[:14], months[14:19], months[19:])]


def _italy_air(path: Path) -> list[np.ndarray]:
    """The last fifth tests, the one before validates; -200, which stands for a hole, is kept as a value, as there."""
    frame = pd.read_csv(path, sep=";", decimal=",").dropna(subset=["Date"])
    frame = frame.drop(columns=[column for column in frame if column in ("Date", "Time") or "Unnamed" in column])
    values = frame.to_numpy(float)
    fifth = round(0.2 * len(values))
    return [values[: -2 * fifth], values[-2 * fifth : -fifth], values[-fifth:]]


def _generated() -> list[np.ndarray]:
    random = np.random.default_rng(0)
    walks = random.standard_normal((360, 2)).cumsum(0) @ random.standard_normal((2, 3))
    return np.split(walks + 0.1 * random.standard_normal(walks.shape), 3)


def interpolate(problem: Problem, steps: int) -> Imputed:
    """Linearly, from one known value of an output to the next, and constant before the first and after the last."""
    start = time.process_time()
    means = [_interpolate(windows.seen) for windows in (problem.validation, problem.test)]
    validation, test = (Gaussians(mean, torch.full_like(mean, torch.nan)) for mean in means)
    return Imputed(validation, test, time.process_time() - start, 0)


def _interpolate(seen: Tensor) -> Tensor:
    filled = [
        pd.DataFrame(window).interpolate(limit_direction="both").fillna(0.0).to_numpy() for window in seen.numpy()
    ]
    return torch.tensor(np.stack(filled))


def factornet(problem: Problem, steps: int) -> Imputed:
    """Sites of single latent functions and a perceptron as decoder; five times as many steps, as they are cheaper."""
    num_points, num_outputs = problem.train.seen.shape[1:]
    model = GPVAE(num_outputs, 2 * num_outputs, network="factornet", kernel=_kernel(2 * num_outputs, num_points))
    return learn(model, problem, 5 * steps, 0.01)


def exact(problem: Problem, steps: int) -> Imputed:
    """The linear model of coregionalization with its exact posterior: the network's corrections stay zero."""
    return _joint(problem, steps, with_corrections=False)


def corrected(problem: Problem, steps: int) -> Imputed:
    """The same, and the corrections of the network are learnt too."""
    return _joint(problem, steps, with_corrections=True)


def _joint(problem: Problem, steps: int, with_corrections: bool) -> Imputed:
    num_points, num_outputs = problem.train.seen.shape[1:]
    num_latents = 4 * num_outputs
    model = GPVAE(
        num_outputs,
        num_latents,
        network="jointfactornet",
        kernel=add_private_groups(_kernel(num_latents, num_points), num_outputs, NUM_PRIVATE, 1),
        decoder=PrivateLinear(num_latents, num_outputs, NUM_PRIVATE),
        num_private=NUM_PRIVATE,
    )
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(parameter.requires_grad and (with_corrections or "corrections" not in name))
    return learn(model, problem, steps, 0.03, from_data=True)


# Functions of the problem and a number of steps.
Imputer = Callable[[Problem, int], Imputed]
OURS = "joint, exact"
IMPUTERS: dict[str, Imputer] = {
    "linear interpolation": interpolate,
    "FactorNet": factornet,
    OURS: exact,
    "joint, with corrections": corrected,
}


def _kernel(num_latents: int, num_points: int) -> GroupedKernel:
    periods = [24.0] if num_points >= 24 else []
    return default_grouped_kernel(num_latents, 1, shortest=1.0, longest=60.0, periods=periods)


def learn(model: GPVAE, problem: Problem, steps: int, learning_rate: float, from_data: bool = False) -> Imputed:
    """Adam with a cosine, in float64."""
    start = time.process_time()
    model, windows = model.double(), problem.train.seen
    x = torch.arange(windows.shape[1], dtype=windows.dtype).unsqueeze(-1)
    if from_data:
        model.initialize_from((x, windows[:NUM_FIRST]))
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    optimizer = torch.optim.Adam(parameters, learning_rate)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
    for _ in range(steps):
        optimizer.zero_grad()
        model.loss((x, windows[torch.randint(len(windows), (BATCH_SIZE,))])).backward()
        optimizer.step()
        schedule.step()
    model.eval()
    validation, test = (predict(model, x, windows.seen) for windows in (problem.validation, problem.test))
    return Imputed(validation, test, time.process_time() - start, sum(parameter.numel() for parameter in parameters))


@torch.no_grad()
def predict(model: GPVAE, x: Tensor, seen: Tensor) -> Gaussians:
    """Mean and standard deviation of the outputs: exact ones where the decoder is linear, of samples elsewhere."""
    parts = []
    for windows in seen.split(CHUNK_SIZE):
        if isinstance(model.likelihood.decoder, (torch.nn.Linear, PrivateLinear)):
            outputs = model.likelihood.gaussian_marginals(model(x, context=(x, windows)))
        else:
            outputs = model.predict(x, (x, windows))
        parts.append((outputs.mean, outputs.stddev))
    means, stddevs = zip(*parts, strict=True)
    return Gaussians(torch.cat(means), torch.cat(stddevs))


def variance_factors(predicted: Gaussians, windows: Windows) -> Tensor:
    """
    The factors of the variances of each output with which the hidden entries of these windows are as likely as can be:
    their mean squared standardized residuals (`P`).
    """
    residuals = ((windows.truth - predicted.mean) / predicted.stddev).square()
    return torch.where(windows.hidden, residuals, torch.nan).nanmean((0, 1))


def score(imputed: Imputed, problem: Problem) -> dict[str, float | None]:
    """Scores of the hidden entries of the test windows."""
    (mean, stddev), windows = imputed.test, problem.test
    errors = (mean - windows.truth).abs()
    factors = variance_factors(imputed.validation, problem.validation)

    def coverage(stddev: Tensor) -> float | None:
        return None if stddev.isnan().any() else (errors <= LEVEL * stddev)[windows.hidden].double().mean().item()

    return {
        "mae": errors[windows.hidden].mean().item(),
        "mse": errors[windows.hidden].square().mean().item(),
        "coverage": coverage(stddev),
        "coverage_after": coverage(stddev * factors.sqrt()),
        "seconds": imputed.seconds,
        "parameters": imputed.num_parameters,
    }
