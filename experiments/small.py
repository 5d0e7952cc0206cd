"""Jura and the small EEG: one task each, and a GP-VAE without inducing points."""

from __future__ import annotations

import dataclasses
import math
import statistics
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import gpytorch
import torch
from torch import Tensor

from gpytorch_sgpvae import GPVAE, MLP, VAE, Context, FreeFormSites, LinearPlus, Prediction, TaskELBO, refine
from gpytorch_sgpvae.datasets import Normalizer, TaskData, load_eeg, load_jura
from gpytorch_sgpvae.models import NETWORKS, AmortizedModel

from . import baselines, joint
from .experiment import Experiment, Outcome
from .runs import Run
from .scores import pool, score
from .texts import text_of
from .training import PREDICTION_SAMPLES, initialize, optimize, training_elbo

# Free-form sites that are learnt along with a model: draws in a step, and their learning rate as a multiple of the
# model's.
FREE_SAMPLES = 3
SITES_FACTOR = 5.0


@dataclass(frozen=True)
class Settings:
    """
    How to make a model and to train it.

    :param num_steps: Steps of Adam, with the network.
    :param lr: Its learning rate.
    :param schedule: The learning rate's schedule, see :func:`~experiments.training.optimize`.
    :param batch_size: Points in a step; by default all.
    :param initial_stddev: The standard deviation that the network's sites start with.
    :param noise: Variance that the observations start with, of normalized ones.
    :param lengthscales: The lengthscales that the latent functions start from, one for each function, in the units of
        the inputs, of the authors' kernel exp(-d² / l²).
    :param rough: Whether the kernels are Matérn 1/2 ones, with lengthscales of that kernel, instead of RBF ones.
    :param hidden_sizes: Hidden units of the network and the decoder; without any the decoder is linear, and so is the
        network but for its standard deviations, which are positive.
    :param linear: Whether the decoder is linear, and a perceptron in addition.
    :param kernel_factor: The learning rate of the kernels' parameters, as a multiple of `lr`.
    :param hide: Whether the network is shown holes like those of the test in training, see :func:`hide_like_the_test`.
    :param free_steps: Further steps, of all points, in which the sites are free, and learnt along with the model's
        parameters, before they are refined; without them the sites alone are refined, as in the paper.
    """

    num_steps: int
    lengthscales: tuple[float, ...]
    lr: float = 1e-3
    schedule: str | None = None
    batch_size: int | None = 100
    initial_stddev: float = 0.1
    noise: float = 0.01
    rough: bool = False
    hidden_sizes: tuple[int, ...] = (20, 20)
    linear: bool = False
    kernel_factor: float = 1.0
    hide: bool = False
    free_steps: int = 0

    @property
    def num_latents(self) -> int:
        return len(self.lengthscales)


@dataclass(frozen=True)
class Preset:
    """
    :param members: Models that are trained from different starts, and predict together.
    :param log: Whether they are of the outputs' logarithms.
    """

    members: tuple[Settings, ...]
    log: bool = False

    def shortened(self) -> Preset:
        ends = dict.fromkeys([self.members[0], self.members[-1]])
        return Preset(
            tuple(dataclasses.replace(s, num_steps=3, free_steps=min(s.free_steps, 2)) for s in ends), self.log
        )


@dataclass(frozen=True)
class Study:
    """
    A small experiment: its data, and the models of each preset.

    :param load: Reads the data.
    :param presets: Models and how to train them.
    :param rows_to_hide: Chooses, from the inputs, the rows whose outputs a step may hide from the network.
    :param gpar: Settings of GPAR, as in its own paper's experiments.
    """

    load: Callable[[], TaskData]
    presets: dict[str, Preset]
    rows_to_hide: Callable[[Tensor], Tensor]
    gpar: dict[str, Any]


def run(study: Study, run: Run, smoke: bool) -> Outcome:
    data = study.load()
    # Lengthscales are given in the units of the inputs: these stay as they are.
    (x, y), truth = data.train[0], data.test_truth[0]
    if run.model == "gpar":
        return Outcome(score(baselines.gpar(x, y, num_samples=5 if smoke else 200, **study.gpar), truth))
    if run.model in ("igp", "mean", "regression"):
        prediction = baseline(run.model, study, x, data.normalizer.normalize(y), smoke)
        return Outcome(score(prediction.rescale(*data.normalizer), truth))
    if run.model == "joint":
        context = Context(x, data.normalizer.normalize(y))
        model = joint.fit([(context.x, context.y)], run.seed, smoke)
        return Outcome(score(joint.predict(model, context).rescale(*data.normalizer), truth))
    if run.model in ("markov", "sgpvae"):
        context = Context(x, data.normalizer.normalize(y))
        model, took = joint.fit_over_time(run.model, (context.x, context.y), run.inducing, run.seed, smoke)
        return Outcome(score(joint.predict(model, context).rescale(*data.normalizer), truth), extra=took)
    preset = study.presets[run.preset].shortened() if smoke else study.presets[run.preset]
    table = y.log() if preset.log else y
    normalizer = Normalizer.fit([table])
    context = Context(x, normalizer.normalize(table))
    judged = (~truth.isnan()).any(0)  # (P,), the outputs that the test is about
    hide = partial(hide_like_the_test, study.rows_to_hide, judged)
    predictions, free_predictions, elbos, free_elbos = [], [], [], []
    for settings in preset.members:
        model = make_model(settings, run, num_outputs=y.shape[-1], input_dim=x.shape[-1])
        train(model, context, settings, hide if settings.hide else None)
        predictions.append(model.predict(x, context, PREDICTION_SAMPLES).rescale(*normalizer))
        elbos.append(training_elbo(model, [(x, context.y)]))
        if run.model == "gpvae":
            # what free-form sites (FF) make of it
            if settings.free_steps:
                learn_free_form(model, context, settings)
            posterior, gap = refine(model, context, steps=2 if smoke else 50)
            free_predictions.append(model.likelihood.predict(posterior(x), PREDICTION_SAMPLES).rescale(*normalizer))
            free_elbos.append(training_elbo(model, [(x, context.y)]) + gap.item())
    scores = score(pool(predictions, preset.log), truth, median=preset.log)
    if free_predictions:
        of_free = score(pool(free_predictions, preset.log), truth, median=preset.log)
        scores |= {f"ff_{name}": value for name, value in of_free.items()}
        scores["ff_elbo"] = statistics.fmean(free_elbos)
    return Outcome(scores, statistics.fmean(elbos))


def make_model(settings: Settings, run: Run, num_outputs: int, input_dim: int) -> AmortizedModel:
    # As the authors' code has it: FactorNet's standard deviations, least and first, are of all its factors together.
    factor = math.sqrt(num_outputs) if run.network == "factornet" else 1.0
    # Networks of two parts have half the layers in each.
    two_parts = run.network in ("indexnet", "pointnet")
    network = NETWORKS[run.network](
        num_outputs,
        settings.num_latents,
        settings.hidden_sizes[: 1 if two_parts else None],
        torch.nn.ReLU,
        initial_stddev=factor * settings.initial_stddev,
        min_stddev=factor * 1e-3,
    )
    decoder: torch.nn.Module = MLP(settings.num_latents, num_outputs, settings.hidden_sizes)
    initialize(network, decoder)
    if settings.linear:
        decoder = LinearPlus(decoder)
    if run.model == "vae":
        model: AmortizedModel = VAE(num_outputs, settings.num_latents, network, decoder)
    else:
        shape = {"ard_num_dims": input_dim, "batch_shape": torch.Size([settings.num_latents])}
        # GPyTorch's RBF kernel is exp(-d² / 2 l²).
        base, unit = (
            (gpytorch.kernels.MaternKernel(nu=0.5, **shape), 1.0)
            if settings.rough
            else (gpytorch.kernels.RBFKernel(**shape), math.sqrt(0.5))
        )
        base.lengthscale = unit * torch.tensor(settings.lengthscales).view(-1, 1, 1).expand(-1, 1, input_dim)
        kernel = gpytorch.kernels.ScaleKernel(base, batch_shape=shape["batch_shape"])
        kernel.outputscale = 1.0
        model = GPVAE(num_outputs, settings.num_latents, network, kernel, decoder)
    model.double()
    model.likelihood.observation_model.noise = settings.noise
    return model


def train(
    model: AmortizedModel, context: Context, settings: Settings, hide: Callable[[Context], Context] | None = None
) -> None:
    """
    Epochs over batches of points.

    :param hide: What the network is shown of a batch, of which the likelihood sees everything; by default everything.
    """
    objective = TaskELBO(model.likelihood, model.model)
    batches: list[Tensor] = []

    def loss() -> Tensor:
        if not batches:
            batches.extend(torch.randperm(context.num_points).split(settings.batch_size or context.num_points))
        points = batches.pop()
        batch = Context(context.x[points], context.y[points])
        return -objective.of_context(batch, batch if hide is None else hide(batch)) / len(points)

    kernels = [module for module in model.modules() if isinstance(module, gpytorch.kernels.ScaleKernel)]
    with gpytorch.settings.num_likelihood_samples(1):
        optimize(
            model,
            loss,
            settings.num_steps,
            settings.lr,
            settings.schedule,
            dict.fromkeys(kernels, settings.kernel_factor),
        )


def learn_free_form(model: AmortizedModel, context: Context, settings: Settings) -> None:
    """
    Replace the network by free-form sites, which start from what it says, and go on training with these instead: what
    a network cannot say about a point then no longer shapes the model.
    """
    sites = FreeFormSites.from_sites(model.strategy.sites(context))
    model.strategy._variational_distribution.network = sites

    def loss() -> Tensor:
        return model.loss(context) / context.num_points

    with gpytorch.settings.num_likelihood_samples(FREE_SAMPLES):
        optimize(model, loss, settings.free_steps, settings.lr, "late", {sites: SITES_FACTOR})


def hide_like_the_test(rows_to_hide: Callable[[Tensor], Tensor], judged: Tensor, context: Context) -> Context:
    """Hide the outputs that the test is about, at places drawn anew that lie as those of the test do."""
    hidden = rows_to_hide(context.x).unsqueeze(-1) & judged  # (N, P)
    return Context(context.x, context.y.masked_fill(hidden, torch.nan))


def rows_in_a_window(length: float, x: Tensor) -> Tensor:
    """Choose the rows of a window in time, which may begin before the first and end after the last of them (`N`)."""
    start = x.min() - length + (x.max() - x.min() + length) * torch.rand((), dtype=x.dtype)
    return ((x >= start) & (x < start + length)).squeeze(-1)


def rows_in_cells(size: float, share: float, x: Tensor) -> Tensor:
    """Choose the rows in a share of the cells of a square grid, which lies anew each time (`N`)."""
    cells = torch.floor(x / size + torch.rand(x.shape[-1], dtype=x.dtype))
    _, cell = cells.unique(dim=0, return_inverse=True)
    return (torch.rand(len(x)) < share)[cell]


def baseline(name: str, study: Study, x: Tensor, y: Tensor, smoke: bool) -> Prediction:
    """Predict normalized outputs, as the models see them."""
    if name == "mean":
        return baselines.mean_imputation([(x, y)], y.shape)
    if name == "regression":
        return baselines.regression(y)
    lengthscale = study.presets["paper"].members[0].lengthscales[0]
    gps = baselines.IndependentGPs(y.shape[-1], x.shape[-1], lengthscale)
    return gps.fit([(x, y)], num_steps=3 if smoke else 200).predict(x, y)


def make_experiment(study: Study, over_time: tuple[str, ...] = (), **kwargs: object) -> Experiment:
    return Experiment(
        run=partial(run, study),
        trained=("gpvae", "vae"),
        baselines=("joint", *over_time, "igp", "regression", "mean", "gpar"),
        deterministic=("igp", "regression", "mean"),
        **kwargs,  # type: ignore[arg-type]
    )


JURA_SETTINGS = Settings(
    num_steps=500,
    lengthscales=(0.5, 0.5),
    lr=1e-2,
    schedule="late",
    batch_size=None,
    initial_stddev=0.5,
    noise=0.25,
    rough=True,
    hidden_sizes=(20,),
    linear=True,
    hide=True,
)
JURA_FREE = {
    "num_steps": 200,
    "lengthscales": (0.5, 0.3, 0.1),
    "schedule": None,
    "initial_stddev": 0.3,
    "noise": 0.04,
    "hide": False,
    "free_steps": 400,
}
JURA = make_experiment(
    Study(
        load=load_jura,
        presets={
            "paper": Preset((Settings(4 * 3000, lengthscales=(1.0, 1.0)),)),
            "tuned": Preset(
                3 * (dataclasses.replace(JURA_SETTINGS, **JURA_FREE),) + 2 * (JURA_SETTINGS,),
                log=True,
            ),
        },
        # kilometers: samples lie in clusters, and few of the test are in one with others
        rows_to_hide=partial(rows_in_cells, 0.1, 0.4),
        gpar={"scale": 10.0, "noise": 0.1, "replace": True, "log": True, "fix": False},
    ),
    title="Jura",
    columns=("mae", "nll"),
    published={
        "igp": {"mae": "0.57"},
        "gpar": {"mae": "0.41"},
        "gpvae zeroimputation": {"mae": "0.42 (0.01)", "nll": "1.13 (0.09)"},
        "gpvae pointnet": {"mae": "0.45 (0.02)", "nll": "1.13 (0.08)"},
        "gpvae indexnet": {"mae": "0.44 (0.02)", "nll": "1.12 (0.08)"},
        "gpvae factornet": {"mae": "0.40 (0.01)", "nll": "1.00 (0.06)"},
        "gpvae factornet, FF": {"mae": "0.41 (0.01)", "nll": "1.04 (0.06)"},
    },
    targets={"mae": 0.39, "nll": 0.85},
    text=text_of("jura"),
)

EEG_SETTINGS = Settings(
    num_steps=1500,
    lengthscales=7 * (0.1,),
    lr=5e-3,
    schedule="late",
    initial_stddev=0.5,
    noise=0.1,
    rough=True,
    hidden_sizes=(20,),
    linear=True,
    hide=True,
)
EEG_LINEAR = {"hidden_sizes": (), "linear": False, "lr": 5e-2}
EEG = make_experiment(
    Study(
        load=load_eeg,
        presets={
            # As the authors' code has it: one hidden layer, and lengthscales in seconds, which
            # steps of 0.001 change by much more than where a softplus is between.
            "paper": Preset(
                (Settings(3 * 3000, lengthscales=(0.1, 0.1, 0.1), hidden_sizes=(20,), kernel_factor=10.0),)
            ),
            "tuned": Preset(5 * (EEG_SETTINGS, dataclasses.replace(EEG_SETTINGS, **EEG_LINEAR))),
        },
        rows_to_hide=partial(rows_in_a_window, 0.4),  # seconds, as the test's
        gpar={"scale": 0.02, "noise": 0.01, "replace": False},
    ),
    over_time=("markov", "sgpvae"),
    inducing=(joint.NUM_INDUCING,),
    title="EEG, one recording",
    columns=("smse", "nll"),
    published={
        "igp": {"smse": "1.75", "nll": "2.60"},
        "gpar": {"smse": "0.26", "nll": "1.63"},
        "gpvae zeroimputation": {"smse": "0.27 (0.03)", "nll": "2.24 (0.37)"},
        "gpvae pointnet": {"smse": "0.60 (0.09)", "nll": "3.03 (1.34)"},
        "gpvae indexnet": {"smse": "0.24 (0.02)", "nll": "2.01 (0.28)"},
        "gpvae factornet": {"smse": "0.28 (0.04)", "nll": "2.23 (0.21)"},
        "gpvae indexnet, FF": {"smse": "0.25 (0.02)", "nll": "2.13 (0.28)"},
    },
    targets={"smse": 0.20, "nll": 1.40},
    text=text_of("eeg"),
)
