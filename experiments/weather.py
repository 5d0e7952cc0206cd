"""Weeks of weather as tasks: AMeDAS 2023, and the paper's Japan 1980 and 1981."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import gpytorch
import pandas as pd
import torch
from torch import Tensor

from gpytorch_sgpvae import GPVAE, MLP, SGPVAE, VAE, Context, LinearPlus, Prediction, TaskELBO
from gpytorch_sgpvae.datasets import TaskData, load_amedas, load_japan_weather
from gpytorch_sgpvae.models import NETWORKS, AmortizedModel

from . import baselines, joint
from .experiment import Experiment, Outcome
from .runs import Run
from .scores import score
from .texts import text_of
from .training import (
    PREDICTION_SAMPLES,
    Task,
    TaskSettings,
    centers,
    initialize,
    optimize,
    train_on_tasks,
    training_elbo,
)

JUDGED, EXTREMES = "TAVG", ("TMAX", "TMIN")
# The paper's.
NUM_LATENTS = 3
PAPER = TaskSettings(num_epochs=50, learning_rate=1e-3)
HIDDEN_SIZES = {"paper": (20, 20, 20, 20), "tuned": (20, 20)}
# The standard deviation that the network's sites start with, and the variance of the observations. Those of the preset
# `paper` are from the authors' code.
INITIAL_STDDEV = {"paper": 0.1, "tuned": 0.3}
NOISE = 0.01


@dataclass(frozen=True)
class Tuned:
    """
    Settings that were chosen by leave-weeks-out scores of the training weeks.

    :param num_epochs: How often every week comes; a step has one week.
    :param lr: The learning rate of Adam, after a warm-up and before a cosine.
    :param noise_factor: The learning rate of the noise, as a multiple of `lr`.
    :param beta: Factor of the KL divergence.
    :param num_stations: Stations in a step, drawn anew; by default all.
    """

    num_epochs: int = 150
    lr: float = 2e-2
    noise_factor: float = 5.0
    beta: float = 0.3
    num_stations: int | None = None


TUNED = {
    "sgpvae": Tuned(),
    "vae": Tuned(),
    # without inducing points, and with exponential kernels, as tutorial 7 has it
    "gpvae": Tuned(num_epochs=80, lr=1e-2, noise_factor=2.0, beta=1.0, num_stations=40),
}

Predict = Callable[[Context], Prediction]


def run(load: Callable[[], TaskData], run: Run, smoke: bool) -> Outcome:
    data = load()
    train = [data.normalize(task) for task in data.train]
    test = [data.normalize(task) for task in data.test]
    if smoke:
        train = [(x[:70], y[:70]) for x, y in train[:2]]
    elbo = None
    if run.model == "mean":
        predict: Predict = partial(_predict_means, train)
    elif run.model == "igp":
        predict = partial(_predict_stations, _fit_stations(train, smoke))
    elif run.model == "joint":
        predict = partial(joint.predict, joint.fit(train, run.seed, smoke))
    elif run.model == "regression":
        predict = Regression(train, list(data.outputs)).predict
    else:
        model = make_model(run, train, smoke)
        if run.preset == "paper":
            train_on_tasks(model, train, PAPER.shortened() if smoke else PAPER, run.seed)
        else:
            settings = TUNED[run.model]
            settings = dataclasses.replace(settings, num_epochs=1, num_stations=5) if smoke else settings
            train_tuned(model, train, list(data.outputs), settings, run.seed)
        elbo = training_elbo(model, train)
        predict = partial(_predict, model)
    scores = {}
    column = list(data.outputs).index(JUDGED)
    for label, seen in (("seen", True), ("unseen", False)):
        chosen = [i for i, is_seen in enumerate(data.seen) if is_seen == seen][: 1 if smoke else None]
        context = Context.pad([test[i] for i in chosen])
        truth = Context.pad([(test[i][0], data.test_truth[i]) for i in chosen]).y  # (T, N, P)
        judged = torch.full_like(truth, torch.nan)
        judged[..., column] = truth[..., column]
        prediction = predict(context).rescale(*data.normalizer)
        scores |= {f"{label}_{name}": value for name, value in score(prediction, judged).items()}
    return Outcome(scores, elbo)


def make_model(run: Run, tasks: list[Task], smoke: bool) -> AmortizedModel:
    num_outputs, hidden_sizes = tasks[0][1].shape[-1], HIDDEN_SIZES[run.preset]
    mlp = MLP(NUM_LATENTS, num_outputs, hidden_sizes)
    decoder = LinearPlus(mlp) if run.preset == "tuned" else mlp
    network = NETWORKS[run.network](
        num_outputs, NUM_LATENTS, hidden_sizes, torch.nn.ReLU, initial_stddev=INITIAL_STDDEV[run.preset]
    )
    if run.preset == "paper":
        initialize(network, decoder)
    if run.model == "vae":
        model: AmortizedModel = VAE(num_outputs, NUM_LATENTS, network, decoder).double()
    elif run.model == "gpvae":
        shape = {"ard_num_dims": tasks[0][0].shape[-1], "batch_shape": torch.Size([NUM_LATENTS])}
        base = gpytorch.kernels.MaternKernel(nu=0.5, **shape)
        kernel = gpytorch.kernels.ScaleKernel(base, batch_shape=shape["batch_shape"])
        base.lengthscale = kernel.outputscale = 1.0
        model = GPVAE(num_outputs, NUM_LATENTS, network, kernel, decoder).double()
    else:
        inducing_points = centers(torch.cat([x for x, _ in tasks]), 8 if smoke else run.inducing, run.seed)
        model = SGPVAE(num_outputs, NUM_LATENTS, inducing_points, network, decoder=decoder)
        model.model.covar_module.base_kernel.lengthscale = model.model.covar_module.outputscale = 1.0
    model.likelihood.observation_model.noise = NOISE
    return model


def train_tuned(model: AmortizedModel, tasks: list[Task], outputs: list[str], settings: Tuned, seed: int) -> None:
    """The network is shown weeks with holes like those of the test, of which the likelihood sees everything."""
    generator = torch.Generator().manual_seed(seed)
    objective = TaskELBO(model.likelihood, model.model, beta=settings.beta)
    contexts = [Context(x, y) for x, y in tasks]
    rows_of = [_by_station(context)[2] for context in contexts]  # (S, n) each
    order: list[int] = []

    def loss() -> Tensor:
        if not order:
            order.extend(reversed(torch.randperm(len(tasks), generator=generator).tolist()))
        week = order.pop()
        context = contexts[week]
        if settings.num_stations is not None:
            stations = torch.randperm(len(rows_of[week]), generator=generator)[: settings.num_stations]
            rows = rows_of[week][stations].flatten()
            context = Context(context.x[rows], context.y[rows])
        return -objective.of_context(context, hide_like_the_test(context, outputs, generator))

    with gpytorch.settings.num_likelihood_samples(1), gpytorch.settings.debug(False):
        factors = {model.likelihood.observation_model: settings.noise_factor}
        optimize(model, loss, settings.num_epochs * len(tasks), settings.lr, "cosine", factors)


def hide_like_the_test(context: Context, outputs: list[str], generator: torch.Generator) -> Context:
    """The average temperature of five days of seven, drawn anew, and a quarter of the highest and the lowest ones."""
    kept = context.observed.clone()
    for name in EXTREMES:
        column = kept[..., outputs.index(name)]
        column &= torch.rand(column.shape, generator=generator) >= 0.25
    day = context.x[..., -1]
    days = day.unique()
    hidden_days = days[torch.rand(len(days), generator=generator) < 5 / 7]
    kept[..., outputs.index(JUDGED)] &= ~torch.isin(day, hidden_days)
    return Context(context.x, torch.where(kept, context.filled, torch.nan))


def _predict(model: AmortizedModel, context: Context) -> Prediction:
    return model.predict(context.x, context, PREDICTION_SAMPLES)


def _predict_means(train: list[Task], context: Context) -> Prediction:
    return baselines.mean_imputation(train, context.filled.shape)


def _fit_stations(tasks: list[Task], smoke: bool) -> baselines.IndependentGPs:
    """One GP for each station and variable over the days of a week; all of them share their hyperparameters."""
    stations = [_by_station(Context(*task))[:2] for task in tasks]
    gps = baselines.IndependentGPs(tasks[0][1].shape[-1], input_dim=1)
    return gps.fit(stations, num_steps=3 if smoke else 200)


def _predict_stations(gps: baselines.IndependentGPs, context: Context) -> Prediction:
    mean, stddev = (torch.zeros_like(context.filled) for _ in range(2))
    for task in range(len(context.x)):
        x, y, rows = _by_station(Context(context.x[task], context.y[task]))
        prediction = gps.predict(x, y)
        mean[task, rows], stddev[task, rows] = prediction.mean, prediction.stddev
    return Prediction.gaussian(mean, stddev.clamp_min(1e-6))  # rows of padding are nobody's


class Regression:
    """
    The average temperature by least squares of the highest and the lowest of the day, as meteorologists do it. Where
    one of these is missing it is taken from a straight line between the station's days around it.

    :param tasks: Normalized weeks.
    :param outputs: Names of their outputs.
    """

    def __init__(self, tasks: list[Task], outputs: list[str]):
        self.judged, self.extremes = outputs.index(JUDGED), [outputs.index(name) for name in EXTREMES]
        y = torch.cat([y for _, y in tasks])
        self.fit = baselines.LeastSquares(y[:, self.extremes], y[:, [self.judged]])

    def predict(self, context: Context) -> Prediction:
        """Predict the average temperature; the other outputs, which nobody asks for, have their mean."""
        mean, stddev = torch.zeros_like(context.filled), torch.ones_like(context.filled)
        for task in range(len(context.x)):
            _, y, rows = _by_station(Context(context.x[task], context.y[task]))
            extremes = torch.stack([_interpolate(y[..., column]) for column in self.extremes], dim=-1)  # (S, n, 2)
            mean[task, rows, self.judged] = self.fit(extremes).squeeze(-1)
        stddev[..., self.judged] = self.fit.stddev
        return Prediction.gaussian(mean, stddev)


def _interpolate(y: Tensor) -> Tensor:
    """Straight lines along the days of each station (`S x n`); of one without any value the mean, which is 0."""
    table = pd.DataFrame(y.T.numpy()).interpolate(limit_direction="both")
    return torch.tensor(table.fillna(0.0).to_numpy()).T


def _by_station(context: Context) -> tuple[Tensor, Tensor, Tensor]:
    """A week as a batch of stations: days (`S x n x 1`), outputs (`S x n x P`), and which rows they were (`S x n`)."""
    places, station = context.x[:, :-1].unique(dim=0, return_inverse=True)
    rows = [torch.nonzero(station == i).squeeze(-1) for i in range(len(places))]
    # A row of padding repeats the last one: every station has its days first.
    days = min(len(row) for row in rows)
    rows_of = torch.stack([row[:days] for row in rows])  # (S, n)
    return context.x[rows_of][..., -1:], context.y[rows_of], rows_of


def make_experiment(load: Callable[[], TaskData], **kwargs: object) -> Experiment:
    return Experiment(
        run=partial(run, load),
        trained=("sgpvae", "gpvae", "vae"),
        baselines=("joint", "igp", "regression", "mean"),
        deterministic=("igp", "regression", "mean"),
        inducing=(100,),
        seeds=5,
        columns=("seen_rmse", "seen_nll", "unseen_rmse", "unseen_nll"),
        ahead=("seen_rmse", "seen_nll", "unseen_rmse", "unseen_nll"),
        **kwargs,  # type: ignore[arg-type]
    )


AMEDAS = make_experiment(
    load_amedas,
    title="AMeDAS weeks",
    published={},
    targets={"unseen_rmse": 1.00, "unseen_nll": 1.40},
    text=text_of("amedas"),
)

JAPAN = make_experiment(
    load_japan_weather,
    title="Japan, 1980 and 1981",
    published={
        "mean": {"seen_rmse": "9.16", "unseen_rmse": "9.27"},
        "igp": {
            "seen_rmse": "2.49 (0.00)",
            "seen_nll": "2.84 (0.00)",
            "unseen_rmse": "2.41 (0.00)",
            "unseen_nll": "2.73 (0.00)",
        },
        "sgpvae factornet": {
            "seen_rmse": "1.60 (0.08)",
            "seen_nll": "2.18 (0.02)",
            "unseen_rmse": "1.68 (0.09)",
            "unseen_nll": "2.20 (0.02)",
        },
        "sgpvae indexnet": {
            "seen_rmse": "2.59 (0.11)",
            "seen_nll": "2.44 (0.04)",
            "unseen_rmse": "2.55 (0.11)",
            "unseen_nll": "2.43 (0.04)",
        },
        "sgpvae pointnet": {
            "seen_rmse": "3.53 (0.13)",
            "seen_nll": "2.80 (0.05)",
            "unseen_rmse": "3.61 (0.14)",
            "unseen_nll": "2.83 (0.06)",
        },
        "sgpvae zeroimputation": {
            "seen_rmse": "3.21 (0.35)",
            "seen_nll": "2.68 (0.15)",
            "unseen_rmse": "3.20 (0.37)",
            "unseen_nll": "2.67 (0.15)",
        },
    },
    text=text_of("japan"),
)
