"""Jura and the small EEG: one task each, and a GP-VAE without inducing points."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import gpytorch
import torch
from torch import Tensor

from gpytorch_sgpvae import GPVAE, VAE, Context, Prediction, refine
from gpytorch_sgpvae.datasets import TaskData, load_eeg, load_jura
from gpytorch_sgpvae.models._amortized_model import NETWORKS, _AmortizedModel

from . import baselines
from .experiment import Experiment, Outcome
from .runs import Run
from .scores import score
from .training import PREDICTION_SAMPLES, optimize, training_elbo


@dataclass(frozen=True)
class Settings:
    """
    Of a training.

    :param num_steps: Of Adam.
    :param lr: Its learning rate.
    :param num_samples: Of the latent functions, in a step.
    :param subset_size: Points in a step; None for all.
    :param hide: Probability of an observed entry to be hidden from the network.
    :param initial_stddev: Of the network's sites.
    :param noise: Variance that the observations start with, of normalized ones.
    """

    num_steps: int
    lr: float
    num_samples: int
    subset_size: int | None
    hide: float
    initial_stddev: float
    noise: float


@dataclass(frozen=True)
class Study:
    """
    :param load: The data.
    :param num_latents: K.
    :param lengthscale: To start from, in the units of the inputs, of the authors' kernel exp(-d² / l²).
    :param hidden_sizes: Of the networks and the decoder.
    :param presets: How to train.
    :param gpar: Settings of GPAR, as in its own paper's experiments.
    """

    load: Callable[[], TaskData]
    num_latents: int
    lengthscale: float
    hidden_sizes: tuple[int, ...]
    presets: dict[str, Settings]
    gpar: dict[str, Any]


def run(study: Study, run: Run, smoke: bool) -> Outcome:
    data = study.load()
    # Lengthscales are given in the units of the inputs: these stay as they are.
    (x, y), truth = data.train[0], data.test_truth[0]
    y = data.normalizer.normalize(y)
    if run.model == "gpar":
        return Outcome(score(baselines.gpar(*data.train[0], num_samples=5 if smoke else 200, **study.gpar), truth))
    if run.model in ("igp", "mean"):
        prediction = baseline(run.model, study, x, y, smoke)
        return Outcome(score(prediction.rescale(*data.normalizer), truth))
    settings = study.presets[run.preset]
    model = make_model(study, settings, run, num_outputs=y.shape[-1], input_dim=x.shape[-1])
    train(model, Context(x, y), settings, num_steps=3 if smoke else settings.num_steps)
    prediction = model.predict(x, (x, y), PREDICTION_SAMPLES)
    scores = score(prediction.rescale(*data.normalizer), truth)
    if run.model == "gpvae":
        # what free-form sites (FF) would make of the same model
        posterior, gap = refine(model, (x, y), steps=2 if smoke else 50)
        refined = model.likelihood.predict(posterior(x), PREDICTION_SAMPLES)
        scores |= {f"ff_{name}": value for name, value in score(refined.rescale(*data.normalizer), truth).items()}
        scores["gap"] = gap.item()
    return Outcome(scores, training_elbo(model, [(x, y)]))


def make_model(study: Study, settings: Settings, run: Run, num_outputs: int, input_dim: int) -> _AmortizedModel:
    network = NETWORKS[run.network](
        num_outputs, study.num_latents, study.hidden_sizes, initial_stddev=settings.initial_stddev
    )
    if run.model == "vae":
        model: _AmortizedModel = VAE(num_outputs, study.num_latents, network, hidden_sizes=study.hidden_sizes)
    else:
        latents = torch.Size([study.num_latents])
        base = gpytorch.kernels.RBFKernel(ard_num_dims=input_dim, batch_shape=latents)
        base.lengthscale = study.lengthscale / math.sqrt(2)  # GPyTorch's is exp(-d² / 2 l²)
        kernel = gpytorch.kernels.ScaleKernel(base, batch_shape=latents)
        kernel.outputscale = 1.0
        model = GPVAE(num_outputs, study.num_latents, network, kernel, hidden_sizes=study.hidden_sizes)
    model.double()
    model.likelihood.observation_model.noise = settings.noise
    return model


def train(model: _AmortizedModel, context: Context, settings: Settings, num_steps: int) -> None:
    def loss() -> Tensor:
        return model.loss(context, hide=settings.hide, subset_size=settings.subset_size)

    with gpytorch.settings.num_likelihood_samples(settings.num_samples):
        optimize(model, loss, num_steps, settings.lr)


def baseline(name: str, study: Study, x: Tensor, y: Tensor, smoke: bool) -> Prediction:
    """Of normalized outputs, as the models see them."""
    if name == "mean":
        return baselines.mean_imputation([(x, y)], y.shape)
    gps = baselines.IndependentGPs(y.shape[-1], x.shape[-1], study.lengthscale)
    return gps.fit([(x, y)], num_steps=3 if smoke else 200).predict(x, y)


def make_experiment(study: Study, **kwargs: object) -> Experiment:
    return Experiment(
        run=partial(run, study),
        trained=("gpvae", "vae"),
        baselines=("igp", "mean", "gpar"),
        deterministic=("igp", "mean"),
        presets=("paper",),
        **kwargs,  # type: ignore[arg-type]
    )


# The paper's: epochs over batches of 100 points.
JURA = make_experiment(
    Study(
        load=load_jura,
        num_latents=2,
        lengthscale=1.0,
        hidden_sizes=(20, 20),
        presets={
            "paper": Settings(4 * 3000, 1e-3, 1, 100, 0.0, 0.1, 0.01),
        },
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
    text="Cadmium at 100 of 359 locations, given nickel and zinc at all of them and cadmium at the others. K = 2. "
    "There is no tuned preset yet.",
)

EEG = make_experiment(
    Study(
        load=load_eeg,
        num_latents=3,
        lengthscale=0.1,
        hidden_sizes=(20, 20),
        presets={
            "paper": Settings(3 * 3000, 1e-3, 1, 100, 0.0, 0.1, 0.01),
        },
        gpar={"scale": 0.02, "noise": 0.01, "replace": False},
    ),
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
    text="The last 100 of 256 samples of the electrodes FZ, F1 and F2, given four others. K = 3. There is no tuned "
    "preset yet.",
)
