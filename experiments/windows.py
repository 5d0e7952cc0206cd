"""Windows of time series with hidden entries: what is said of them, how it is scored, and methods of this package."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from gpytorch_sgpvae import GPVAE, metrics
from gpytorch_sgpvae.datasets import WindowData, Windows
from gpytorch_sgpvae.linalg.kernels import default_grouped_kernel
from gpytorch_sgpvae.models import AmortizedModel, window_model
from gpytorch_sgpvae.table.boosting import fill_by_boosting
from gpytorch_sgpvae.windows import WindowImputer
from gpytorch_sgpvae.windows.learning import moments, train, usual_batch_size

LEVEL = 1.959964  # of a standard normal: 95 %
NUM_FIRST = 200  # windows that initialize_from reads
# The independent model: a step is cheaper, and it needs more of them.
INDEPENDENT_STEPS, INDEPENDENT_RATE = 2000, 0.01
# Windows this long have days in them.
DAY = 24


class Gaussians(NamedTuple):
    """What a method says of all entries (`T x N x P`); NaN where it knows no standard deviation."""

    mean: Tensor
    stddev: Tensor


@dataclass(frozen=True)
class Imputed:
    """
    :param validation: What is said of the validation windows; None where they were of no use for variances.
    :param test: What is said of the test windows.
    :param num_parameters: That were learnt.
    """

    validation: Gaussians | None
    test: Gaussians
    num_parameters: int = 0


# Functions of the data, a seed, and whether it shall be as short as possible.
Method = Callable[[WindowData, int, bool], Imputed]


def exact(data: WindowData, seed: int, smoke: bool) -> Imputed:
    """The linear model with its exact posterior, as users have it: an imputer for windows with its defaults."""
    imputer = fitted(data, seed, 1 if smoke else None)
    validation, test = (
        Gaussians(torch.tensor(said["reconstruction"], dtype=torch.float64), _deviations(said["std"]))
        for said in (imputer.predict({"X": windows.seen}) for windows in (data.validation, data.test))
    )
    return Imputed(validation, test, num_learnt(imputer.model))


def fitted(data: WindowData, seed: int, epochs: int | None) -> WindowImputer:
    """The imputer, told the shape of the windows and the cycles that they are long enough to show."""
    num_points, num_outputs = data.train.seen.shape[1:]
    imputer = WindowImputer(num_points, num_outputs, periods=periods_of(num_points), epochs=epochs, seed=seed)
    imputer.fit({"X": data.train.seen})
    return imputer


def _deviations(std: np.ndarray) -> Tensor:
    """Standard deviations of holes; what is known has none, and is not judged."""
    stddev = torch.tensor(std, dtype=torch.float64)
    return stddev.where(stddev > 0, 1.0)


def with_perceptrons(data: WindowData, seed: int, smoke: bool) -> Imputed:
    """The same with perceptrons in the network and in the decoder."""
    num_points, num_outputs = data.train.seen.shape[1:]
    model = window_model(num_points, num_outputs, periods=periods_of(num_points), perceptrons=True)
    return _learn(model, data, 1 if smoke else None)


def independent(data: WindowData, seed: int, smoke: bool) -> Imputed:
    """FactorNet's posterior, which factorizes over the latent functions, and a perceptron as decoder."""
    num_points, num_outputs = data.train.seen.shape[1:]
    kernel = default_grouped_kernel(
        2 * num_outputs, 1, shortest=1.0, longest=60.0, periods=[float(period) for period in periods_of(num_points)]
    )
    model = GPVAE(num_outputs, 2 * num_outputs, network="factornet", kernel=kernel)
    steps = -(-len(data.train.seen) // usual_batch_size(num_points, num_outputs))
    return _learn(model, data, 1 if smoke else -(-INDEPENDENT_STEPS // steps), INDEPENDENT_RATE, from_data=False)


def interpolation(data: WindowData, seed: int, smoke: bool) -> Imputed:
    """Linear, from one known value of an output to the next, and constant before the first and after the last."""
    filled = [pd.DataFrame(window).interpolate(limit_direction="both").fillna(0.0) for window in data.test.seen.numpy()]
    return Imputed(None, without_deviations(torch.tensor(np.stack(filled))))


def boosting(data: WindowData, seed: int, smoke: bool) -> Imputed:
    """Boosted trees on what surrounds an entry, each window a task; trained and test windows are one table."""
    windows = torch.cat([data.train.seen, data.test.seen])  # (T, N, P)
    num_windows, num_points, num_outputs = windows.shape
    outputs = list(data.outputs)
    table = pd.DataFrame(windows.flatten(0, 1).numpy(), columns=outputs)
    table["step"], table["window"] = (
        np.tile(np.arange(num_points), num_windows),
        np.repeat(np.arange(num_windows), num_points),
    )
    wanted = table[outputs].isna().to_numpy() & (table["window"] >= len(data.train.seen)).to_numpy()[:, None]
    rows = 300 if smoke else 20_000
    filled = fill_by_boosting(table, ["step"], outputs, "window", seed=seed, max_rows=rows, wanted=wanted)
    said = filled[outputs].to_numpy(float)[-len(data.test.seen) * num_points :].reshape(-1, num_points, num_outputs)
    return Imputed(None, without_deviations(torch.tensor(said)))


def without_deviations(mean: Tensor) -> Gaussians:
    """What a method says that knows no standard deviations."""
    return Gaussians(mean, torch.full_like(mean, torch.nan))


def periods_of(num_points: int) -> list[int]:
    """The cycles, in hours, that windows are long enough to show."""
    return [DAY] if num_points >= DAY else []


def num_learnt(model: torch.nn.Module) -> int:
    return sum(parameter.numel() for parameter in model.parameters() if parameter.requires_grad)


def _learn(
    model: AmortizedModel, data: WindowData, epochs: int | None, learning_rate: float = 0.03, from_data: bool = True
) -> Imputed:
    windows = data.train.seen
    model, x = model.double(), torch.arange(windows.shape[1], dtype=windows.dtype).unsqueeze(-1)
    batch_size = usual_batch_size(*windows.shape[1:])
    if from_data:
        model.initialize_from((x, windows[:NUM_FIRST]), lengthscales=False)
    train(model, x, windows, batch_size, epochs, learning_rate=learning_rate)
    model.eval()
    validation, test = (Gaussians(*moments(model, x, part.seen, batch_size)) for part in (data.validation, data.test))
    return Imputed(validation, test, num_learnt(model))


def timed(method: Method, data: WindowData, seed: int, smoke: bool) -> tuple[Imputed, float]:
    """What a method says, and the seconds of the processor that it took for learning and saying it."""
    start = time.process_time()
    return method(data, seed, smoke), time.process_time() - start


def variance_factors(said: Gaussians, windows: Windows) -> Tensor:
    """
    What the variances of each output are to be multiplied by, so that the hidden entries of these windows are as likely
    as can be: their mean squared standardized residual (`P`). It is 1 where nothing is hidden.
    """
    residuals = ((windows.truth - said.mean) / said.stddev).square()
    factors = torch.where(windows.hidden, residuals, torch.nan).nanmean((0, 1))
    return torch.where(factors.isnan(), 1.0, factors)


def scores_of(imputed: Imputed, data: WindowData) -> dict[str, float]:
    """
    Scores of the hidden entries of the test windows, and the errors of those of the validation windows. CRPS is of
    Gaussians after one factor for the variances of each output; it and coverage are missing where nothing is said of
    variances.
    """
    (mean, stddev), windows = imputed.test, data.test
    hidden = windows.hidden
    errors = (mean - windows.truth)[hidden].abs()
    scores = {"mae": errors.mean().item(), "mse": errors.square().mean().item()}
    if imputed.validation is not None:
        of_validation = (imputed.validation.mean - data.validation.truth)[data.validation.hidden]
        scores["validation_mae"] = of_validation.abs().mean().item()
        scores["validation_mse"] = of_validation.square().mean().item()
        if not stddev.isnan().any():
            after = stddev * variance_factors(imputed.validation, data.validation).sqrt()
            scores["crps"] = metrics.gaussian_crps(mean[hidden], after[hidden], windows.truth[hidden]).mean().item()
            scores["coverage_before"] = (errors <= LEVEL * stddev[hidden]).double().mean().item()
            scores["coverage"] = (errors <= LEVEL * after[hidden]).double().mean().item()
    return scores
