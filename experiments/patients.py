"""Patients, generated: irregular times, 80 % missing, unequal lengths, and entries hidden in patients never seen."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable
from functools import partial
from itertools import count
from typing import NamedTuple

import numpy as np
import pandas as pd
import torch
from torch import Tensor
from torch.distributions import Normal

from gpytorch_sgpvae import (
    BernoulliObservations,
    Context,
    GaussianObservations,
    LogNormalObservations,
    MarkovGPVAE,
    MixedObservations,
    NegativeBinomialObservations,
    Prediction,
    PrivateLinear,
    metrics,
)
from gpytorch_sgpvae.datasets import Normalizer, patients
from gpytorch_sgpvae.datasets.patients import OUTPUTS
from gpytorch_sgpvae.likelihoods.observation_models.distributions import ColumnwiseDistribution, LogNormal
from gpytorch_sgpvae.linalg.kernels import add_private_groups, default_grouped_kernel
from gpytorch_sgpvae.models import AmortizedModel
from gpytorch_sgpvae.table import SGPVAEImputer, TableWarning
from gpytorch_sgpvae.table.baselines import fill_by_interpolation, fill_by_last_value, fill_by_mean
from gpytorch_sgpvae.table.boosting import fill_by_boosting
from gpytorch_sgpvae.training import TaskDataset, TaskLoader

from .experiment import Experiment, Outcome
from .patient_figure import draw
from .runs import Run
from .texts import text_of
from .training import PREDICTION_SAMPLES, Task, optimize

# The share of the entries of a test patient that are hidden.
HIDDEN = 0.25
# Methods without a distribution have the errors of hidden entries of this share of the training patients.
SPARE = 0.2
POSITIVE = ("glucose", "lactate", "creatinine", "crp", "white_cells")
COUNT, FLAG = "extrasystoles", "confusion"
IS_POSITIVE = torch.tensor([name in POSITIVE for name in OUTPUTS])
IS_NUMBER = torch.tensor([name not in (COUNT, FLAG) for name in OUTPUTS])

NUM_SHARED, NUM_PRIVATE = 6, 1
# Hours over which shared functions change, at the start.
SHORTEST, LONGEST = 2.0, 50.0
LEARNING_RATE = 2e-2
# The harmonics of the hour of the day.
NUM_HARMONICS = 3
# The variance of noise before any training.
FIRST_NOISE = 0.05
# The imputer takes all its steps, also on a machine that is shared: by default the clock may end them.
MAX_MINUTES = 240.0
# The least standard deviation of a filling: few spare entries may all be right.
LEAST_ERROR = 1e-6


class Size(NamedTuple):
    """
    :param train: Patients to learn from.
    :param test: Patients to be judged on.
    :param steps: Steps of training, of a batch of patients each.
    :param batch: Patients in a batch.
    :param epochs: Rounds that the imputer may take at most.
    """

    train: int = 150
    test: int = 60
    steps: int = 300
    batch: int = 8
    epochs: int | None = None


SMOKE = Size(train=16, test=8, steps=1, batch=2, epochs=1)


class Ward(NamedTuple):
    """
    Patients, those to learn from first.

    :param table: What is known of all of them.
    :param truth: The entries that are hidden of test patients, NaN elsewhere (`N x P`).
    :param spare: Entries of some training patients that may be hidden to learn how large errors are (`N x P`).
    :param is_test: True for the rows of test patients (`N`).
    """

    table: pd.DataFrame
    truth: np.ndarray
    spare: np.ndarray
    is_test: np.ndarray

    @property
    def train(self) -> pd.DataFrame:
        return self.table[~self.is_test]

    @property
    def test(self) -> pd.DataFrame:
        return self.table[self.is_test]

    @property
    def is_asked(self) -> np.ndarray:
        """True for the rows of test patients with hidden entries (`N`)."""
        return ~np.isnan(self.truth).all(1)

    @property
    def asked_by_patient(self) -> list[np.ndarray]:
        """The same for the rows of each test patient."""
        numbers = self.test.groupby("patient", sort=False).ngroup().to_numpy()
        return np.split(self.is_asked[self.is_test], np.flatnonzero(np.diff(numbers)) + 1)


def make_ward(num_train: int, num_test: int, seed: int) -> Ward:
    """Other patients for each seed."""
    random = np.random.default_rng([seed, 1])
    table = patients(num_train + num_test, seed).table
    # patients come in the order of time, and are shuffled
    place = random.permutation(num_train + num_test)[table["patient"].to_numpy() - 1]
    order = np.argsort(place, kind="stable")
    table, place = table.iloc[order].reset_index(drop=True), place[order]
    values = table[OUTPUTS].to_numpy()
    drawn = random.random(values.shape) < HIDDEN
    is_test, is_spare = place >= num_train, place < SPARE * num_train
    truth = np.where(drawn & is_test[:, None], values, np.nan)
    spare = np.where(drawn & is_spare[:, None], values, np.nan)
    table[OUTPUTS] = np.where(np.isnan(truth), values, np.nan)
    return Ward(table, truth, spare, is_test)


def run(run: Run, smoke: bool) -> Outcome:
    size = SMOKE if smoke else Size()
    return Outcome(judge(run.model, make_ward(size.train, size.test, run.seed), size, run.seed))


def judge(model: str, ward: Ward, size: Size, seed: int) -> dict[str, float]:
    """Scores of the hidden entries of test patients, in standard deviations of what training patients have."""
    start = time.process_time()
    if model in MODELS:
        prediction = MODELS[model](ward, size, seed)
    else:
        prediction = with_errors(ward, partial(FILLINGS[model], seed=seed))
    seconds = time.process_time() - start
    truth = torch.tensor(ward.truth[ward.is_asked])
    scale = torch.tensor(ward.train[OUTPUTS].std().to_numpy())  # (P,)
    errors = {
        "srmse": metrics.rmse(prediction, truth) / scale,
        "smae": metrics.mae(prediction.quantile(0.5), truth) / scale,
        "scrps": metrics.crps(prediction, truth) / scale,
    }
    covered = metrics.coverage(prediction, truth)
    return {
        **{name: values.nanmean().item() for name, values in errors.items()},
        "coverage": covered[IS_NUMBER].nanmean().item(),
        "processor_seconds": seconds,
        **{f"srmse_{name}": value for name, value in zip(OUTPUTS, errors["srmse"].tolist(), strict=True)},
    }


def with_markov(ward: Ward, size: Size, seed: int) -> Prediction:
    """The ready-made model for time series, with families for all outputs, once the hour of the day is taken off."""
    units = Units.fit(ward.train)
    train, test = ([(x, units.normalize(x, y)) for x, y in tasks_of(table)] for table in (ward.train, ward.test))
    model = make_model()
    model.initialize_from(Context.pad(train))
    loader = TaskLoader(TaskDataset(train), size.batch, group_by_length=True, seed=seed)
    batches = (batch for _ in count() for batch in loader)
    optimize(model, lambda: model.loss(next(batches).context), size.steps, LEARNING_RATE, "cosine")
    asked = [x[rows] for (x, _), rows in zip(test, ward.asked_by_patient, strict=True)]
    predictions = [model.predict(x, task, PREDICTION_SAMPLES) for x, task in zip(asked, test, strict=True) if len(x)]
    x = torch.cat(asked)
    return units.denormalize(x, Prediction.concatenate(predictions, torch.arange(len(x))))


def make_model() -> AmortizedModel:
    """Shared latent functions, rough and smooth ones, and a rough one for each output, inferred together."""
    kinds = {COUNT: NegativeBinomialObservations, FLAG: BernoulliObservations}
    kinds |= dict.fromkeys(POSITIVE, LogNormalObservations)
    kernel = default_grouped_kernel(NUM_SHARED, 1, shortest=SHORTEST, longest=LONGEST)
    model = MarkovGPVAE(
        len(OUTPUTS),
        NUM_SHARED,
        kernel=add_private_groups(kernel, len(OUTPUTS), NUM_PRIVATE, 1),
        decoder=PrivateLinear(NUM_SHARED, len(OUTPUTS), NUM_PRIVATE),
        observation_model=MixedObservations([kinds.get(name, GaussianObservations)(1) for name in OUTPUTS]),
        num_private=NUM_PRIVATE,
    )
    for part in model.likelihood.observation_model.modules():
        if hasattr(part, "raw_noise"):
            part.noise = FIRST_NOISE
    return model.double()


def tasks_of(table: pd.DataFrame) -> list[Task]:
    """Hours since the midnight before the first row of each patient (`N x 1`), and the outputs (`N x P`)."""
    tasks = []
    for _, rows in table.groupby("patient", sort=False):
        hours = (rows["time"] - rows["time"].iloc[0].normalize()).dt.total_seconds().to_numpy() / 3600
        tasks.append((torch.tensor(hours).unsqueeze(-1), torch.tensor(rows[OUTPUTS].to_numpy())))
    return tasks


class Units(NamedTuple):
    """
    Numbers without units and without what the hour of the day says of them: real ones are standardized, positive ones
    divided by their median, and the first harmonics of a day taken off them or off their logarithms. Counts and flags
    stay as they are.

    :param normalizer: The units.
    :param weights: The cosine and the sine of each harmonic in each output (`H x P`).
    """

    normalizer: Normalizer
    weights: Tensor

    @classmethod
    def fit(cls, table: pd.DataFrame) -> Units:
        mean, stddev = table[OUTPUTS].mean(), table[OUTPUTS].std()
        for name in (*POSITIVE, COUNT, FLAG):
            mean[name], stddev[name] = 0.0, table[name].median() if name in POSITIVE else 1.0
        normalizer = Normalizer(torch.tensor(mean.to_numpy()), torch.tensor(stddev.to_numpy()))
        x, y = (torch.cat(parts) for parts in zip(*tasks_of(table), strict=True))
        z = normalizer.normalize(y)
        z = torch.where(IS_POSITIVE, z.log(), z)
        design = torch.cat([torch.ones_like(x), harmonics(x)], -1)
        weights = torch.zeros(design.shape[1], len(OUTPUTS), dtype=x.dtype)
        for p in IS_NUMBER.nonzero().flatten().tolist():
            known = ~z[:, p].isnan()
            weights[:, p] = torch.linalg.lstsq(design[known], z[known, p].unsqueeze(-1), driver="gelsd").solution[:, 0]
        return cls(normalizer, weights[1:])

    def normalize(self, x: Tensor, y: Tensor) -> Tensor:
        """
        :param x: Hours (`N x 1`).
        :param y: The outputs (`N x P`).
        """
        cycle, y = harmonics(x) @ self.weights, self.normalizer.normalize(y)
        return torch.where(IS_POSITIVE, y / cycle.exp(), y - cycle)

    def denormalize(self, x: Tensor, prediction: Prediction) -> Prediction:
        """Undo :meth:`normalize`: first the hour of the day, then the units."""
        return prediction.transform(shifted, harmonics(x) @ self.weights).rescale(*self.normalizer)


def harmonics(x: Tensor) -> Tensor:
    """Cosines and sines of the hour of the day and its multiples (`N x H`)."""
    angles = 2 * torch.pi * x / 24 * torch.arange(1, NUM_HARMONICS + 1, dtype=x.dtype)
    return torch.cat([angles.cos(), angles.sin()], -1)


def shifted(values: ColumnwiseDistribution, shift: Tensor) -> ColumnwiseDistribution:
    """Distributions of numbers, or of positive ones' logarithms, moved by so much."""
    return ColumnwiseDistribution(
        [
            type(part)(part.loc + columns, part.scale, validate_args=False)
            if isinstance(part, (Normal, LogNormal))
            else part
            for part, columns in values.split(shift)
        ]
    )


def with_imputer(ward: Ward, size: Size, seed: int) -> Prediction:
    """The imputer of tables by its defaults: it is told the names of the columns, and nothing else."""
    options = {"max_epochs": size.epochs, "max_minutes": MAX_MINUTES, "compare": False, "progress": False}
    imputer = SGPVAEImputer(["time"], OUTPUTS, task="patient", seed=seed, **options)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", TableWarning)
        return imputer.fit(ward.train).predictive(ward.table[ward.is_asked], context=ward.test)


def with_errors(ward: Ward, fill: Callable[[pd.DataFrame, np.ndarray], pd.DataFrame]) -> Prediction:
    """
    A filled table with error bars: the root mean squared error of the spare entries, which are hidden too.

    :param fill: Fills the wanted entries (`N x P`, boolean) of a table.
    """
    table = ward.table.copy()
    table[OUTPUTS] = table[OUTPUTS].mask(~np.isnan(ward.spare))
    filled = fill(table, ~np.isnan(ward.spare) | ~np.isnan(ward.truth))[OUTPUTS].to_numpy(float)
    errors = pd.DataFrame(filled - ward.spare, columns=OUTPUTS)
    # of an output without spare entries, as in the shortest runs, the standard deviation
    stddev = torch.tensor((errors**2).mean().pow(0.5).fillna(table[OUTPUTS].std()).to_numpy())  # (P,)
    mean = torch.tensor(filled[ward.is_asked])
    return Prediction.gaussian(mean, stddev.clamp_min(LEAST_ERROR).expand_as(mean))


MODELS: dict[str, Callable[[Ward, Size, int], Prediction]] = {"markov": with_markov, "imputer": with_imputer}
# Functions of a table, of what is wanted of it, and of a seed.
FILLINGS: dict[str, Callable[[pd.DataFrame, np.ndarray, int], pd.DataFrame]] = {
    "boosting": lambda table, wanted, seed: fill_by_boosting(
        table, ["time"], OUTPUTS, "patient", seed=seed, wanted=wanted
    ),
    "interpolation": lambda table, wanted, seed: fill_by_interpolation(table, ["time"], OUTPUTS, "patient"),
    "last": lambda table, wanted, seed: fill_by_last_value(table, ["time"], OUTPUTS, "patient"),
    "mean": lambda table, wanted, seed: fill_by_mean(table, OUTPUTS),
}


PATIENTS = Experiment(
    title="Patients",
    run=run,
    trained=(),
    baselines=(*MODELS, *FILLINGS),
    deterministic=(),
    columns=("srmse", "smae", "processor_seconds"),
    published={},
    seeds=3,
    figure=draw,
    text=text_of("patients"),
)
