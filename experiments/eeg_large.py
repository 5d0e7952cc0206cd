"""The large EEG: recordings as tasks, electrodes that fail, and a curve over the number of inducing points."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from gpytorch_sgpvae import GPVAE, MLP, SGPVAE, VAE, Context, LinearPlus, Prediction
from gpytorch_sgpvae.datasets import load_eeg_recordings
from gpytorch_sgpvae.linalg.kernels import ScaledRBFKernel
from gpytorch_sgpvae.models import NETWORKS, AmortizedModel
from gpytorch_sgpvae.plotting import STYLES, legend_entries

from . import baselines, joint
from .experiment import Experiment, Outcome
from .runs import NAMES, Run, by_row, kept
from .scores import SCORES, score
from .texts import text_of
from .training import PREDICTION_SAMPLES, Task, TaskSettings, train_on_tasks, training_elbo

if TYPE_CHECKING:
    from matplotlib.figure import Figure

NUM_LATENTS = 10
NUM_SAMPLES = 256  # of a recording: M of the GP-VAE without inducing points
# The paper's initial lengthscale, and so the unit of time here, in seconds.
TIME_UNIT = 0.1
# Samples of all recordings that are decoded at a time, as there are a hundred draws of each.
CHUNK_SIZE = 32
INDUCING = (32, 64, 128)
VARIANTS = ("1", "2")


@dataclass(frozen=True)
class Settings:
    """
    :param training: See there.
    :param lengthscale: The lengthscale that all kernels start from, in units of :data:`TIME_UNIT`.
    :param initial_stddev: The standard deviation that the network's sites start with.
    :param noise: Variance that the observations start with, of normalized ones.
    :param linear: Whether the decoder is linear, and a perceptron in addition.
    """

    training: TaskSettings
    lengthscale: float
    initial_stddev: float
    noise: float
    linear: bool = False


PRESETS = {
    "paper": Settings(TaskSettings(num_epochs=100, learning_rate=1e-3), 1.0, 0.1, 0.1),
    "tuned": Settings(
        TaskSettings(num_epochs=100, learning_rate=5e-3, schedule="cosine", batch_size=5, hide=0.25),
        lengthscale=0.3,
        initial_stddev=3.0,
        noise=0.3,
        linear=True,
    ),
}


def run(run: Run, smoke: bool) -> Outcome:
    data = load_eeg_recordings(experiment=int(run.variant), seed=run.seed)
    num_points, num_tasks = (40, 2) if smoke else (None, None)
    # One tensor for all recordings: its kernel matrices are then computed once for a whole batch.
    x = data.train[0][0][:num_points] / TIME_UNIT  # (N, 1)
    train, test = (
        [(x, data.normalizer.normalize(y[:num_points])) for _, y in tasks[:num_tasks]]
        for tasks in (data.train, data.test)
    )
    train_truth, truth = (
        torch.stack([y[:num_points] for y in tables[:num_tasks]])  # (T, N, P)
        for tables in (data.train_truth, data.test_truth)
    )
    if run.model in ("mean", "igp"):
        prediction = baseline(run.model, train, test, smoke)
        return Outcome(score(prediction.rescale(*data.normalizer), truth))
    if run.model == "joint":
        model = joint.fit(train, run.seed, smoke)
    else:
        settings = PRESETS[run.preset]
        model = make_model(run, settings, x, num_outputs=truth.shape[-1], smoke=smoke)
        train_on_tasks(model, train, settings.training.shortened() if smoke else settings.training, run.seed)
    prediction = _predict(model, test).rescale(*data.normalizer)
    scores = score(prediction, truth, [name for name in SCORES if name != "crps"])
    # that of the mixture would take as long as the training
    scores |= score(Prediction.gaussian(prediction.mean, prediction.stddev), truth, ["crps"])
    # What is gone from the recordings for training: settings may be chosen by it.
    of_training = score(_predict(model, train).rescale(*data.normalizer), train_truth, ("smse", "nll"))
    scores |= {f"train_{name}": value for name, value in of_training.items()}
    return Outcome(scores, None if run.model == "joint" else training_elbo(model, train))


def make_model(run: Run, settings: Settings, x: Tensor, num_outputs: int, smoke: bool = False) -> AmortizedModel:
    # Networks of two parts have half the layers in each, and as wide a representation between them.
    two_parts = {"hidden_sizes": (50, 50), "representation_size": 50}
    sizes = two_parts if run.network in ("indexnet", "pointnet") else {"hidden_sizes": (50, 50, 50, 50)}
    network = NETWORKS[run.network](
        num_outputs, NUM_LATENTS, **sizes, activation=torch.nn.ReLU, initial_stddev=settings.initial_stddev
    )
    mlp = MLP(NUM_LATENTS, num_outputs, hidden_sizes=(50, 50, 50, 50))
    decoder = LinearPlus(mlp) if settings.linear else mlp
    if run.model == "vae":
        model: AmortizedModel = VAE(num_outputs, NUM_LATENTS, network, decoder)
    else:
        kernel = ScaledRBFKernel(ard_num_dims=1, batch_shape=torch.Size([NUM_LATENTS]))
        kernel.base_kernel.lengthscale, kernel.outputscale = settings.lengthscale, 1.0
        if run.model == "gpvae":
            model = GPVAE(num_outputs, NUM_LATENTS, network, kernel, decoder)
        else:
            num_inducing = 8 if smoke else run.inducing
            inducing_points = torch.linspace(x.min(), x.max(), num_inducing, dtype=x.dtype).unsqueeze(-1)  # (M, 1)
            model = SGPVAE(num_outputs, NUM_LATENTS, inducing_points, network, kernel, decoder)
    model.double()
    model.likelihood.observation_model.noise = settings.noise
    return model


def baseline(name: str, train: list[Task], test: list[Task], smoke: bool) -> Prediction:
    """Predict normalized outputs, as the models see them."""
    shape = test[0][1].shape
    if name == "mean":
        return baselines.mean_imputation(train, torch.Size([len(test), *shape]))
    gps = baselines.IndependentGPs(shape[-1], 1, lengthscale=0.3)
    # All recordings at each step would take an hour and a half.
    gps.fit(train, num_steps=2 if smoke else 150, tasks_per_step=2)
    predictions = [gps.predict(*task) for task in test]
    mean, stddev = (torch.stack([getattr(part, name) for part in predictions]) for name in ("mean", "stddev"))
    return Prediction.gaussian(mean, stddev)


def _predict(model: AmortizedModel, tasks: list[Task]) -> Prediction:
    x = tasks[0][0]
    context = Context(x, torch.stack([y for _, y in tasks]))
    return model.predict(x, context, PREDICTION_SAMPLES, chunk_size=CHUNK_SIZE)


def draw(outcomes: dict[Run, dict[str, Any]]) -> Figure:
    """Each score over M, for each network and preset; a bar is a standard deviation over seeds."""
    import matplotlib.pyplot as plt

    rows = {row: kept(results) for row, results in by_row(outcomes).items()}
    figure, panels = plt.subplots(2, 2, figsize=(10, 7), sharex=True, layout="constrained")
    for axes, (column, variant) in zip(panels.flat, product(("smse", "nll"), VARIANTS), strict=True):
        for (network, style), preset in product(zip(NETWORKS, STYLES, strict=False), PRESETS):
            points = []
            for row, results in rows.items():
                chosen = (row.network, row.preset, row.variant) == (network, preset, variant)
                if chosen and row.model in ("sgpvae", "gpvae"):
                    values = torch.tensor([result["scores"][column] for result in results])
                    spread = values.std().item() if len(values) > 1 else 0.0
                    points.append((row.inducing or NUM_SAMPLES, values.mean().item(), spread))
            if points:
                x, mean, spreads = zip(*sorted(points), strict=True)
                line = {**style, "linestyle": "-" if preset == "tuned" else ":"}
                axes.errorbar(x, mean, spreads, **line, capsize=2, label=f"{NAMES[network]}, {preset}")
        for row, results in rows.items():
            # those without inducing points, whatever M is
            if row.model in ("igp", "vae") and row.variant == variant:
                values = torch.tensor([result["scores"][column] for result in results])
                label = " ".join(filter(None, [NAMES[row.model], NAMES.get(row.network)]))
                line = "-" if row.model == "igp" else "--"
                axes.axhline(values.mean().item(), color="black", linewidth=1, linestyle=line, label=label)
        axes.set(title=f"Experiment {variant}", ylabel=column.upper())
    ticks = [*INDUCING, NUM_SAMPLES]
    for axes in panels[-1]:
        axes.set(xlabel="inducing points M (256: GP-VAE)", xscale="log", xlim=(24, 340))
        axes.set(xticks=ticks, xticklabels=ticks)
        axes.minorticks_off()
    figure.legend(**legend_entries(panels), loc="outside lower center", ncols=3)
    return figure


EEG_LARGE = Experiment(
    title="EEG, 55 recordings",
    run=run,
    trained=("sgpvae", "gpvae", "vae"),
    baselines=("joint", "igp", "mean"),
    deterministic=(),
    columns=("smse", "nll"),
    published={
        "gpvae pointnet 1": {"smse": "1.30", "nll": "4.05"},
        "vae factornet 1": {"smse": "1.62", "nll": "3.48"},
    },
    seeds=5,
    inducing=INDUCING,
    variants=VARIANTS,
    ahead=("smse", "nll"),
    figure=draw,
    text=text_of("eeg-large"),
)
