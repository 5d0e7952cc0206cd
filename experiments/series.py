"""A long series at irregular times, generated: exact inference over the whole of it beside inducing points."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import count

import numpy as np
import torch
from torch import Tensor

from gpytorch_sgpvae import SGPVAE, Context, MarkovGPVAE, Prediction, metrics
from gpytorch_sgpvae.datasets import TaskData
from gpytorch_sgpvae.datasets.missingness import blackouts, hold_out
from gpytorch_sgpvae.linalg.kernels import add_private_groups, default_grouped_kernel
from gpytorch_sgpvae.models import AmortizedModel
from gpytorch_sgpvae.training import TaskDataset, TaskLoader

from . import baselines
from .experiment import Experiment, Outcome
from .runs import Run
from .scores import score
from .texts import text_of
from .training import BUDGET, PREDICTION_SAMPLES, optimize_for

# The series is the same for all seeds, as that of a file would be.
DATA_SEED = 1
POINTS_PER_DAY = 25
OUTPUTS = {"temperature": "°C", "pressure": "hPa", "wind": "m/s", "humidity": "%"}
# The weights of the trend, the cycle and the fronts in each output.
LOADINGS = np.array([[0.6, 0.7, 0.4], [0.5, 0.1, -0.8], [0.2, 0.5, 0.6], [-0.4, -0.7, 0.4]])
NOISE = np.array([0.5, 0.8, 0.2, 2.0])  # standard deviations, in the outputs' units
# Days over which the parts change.
TREND, AMPLITUDE, FRONTS, PRIVATE = 30.0, 20.0, 0.5, 0.25
NUM_WAVES = 100

NUM_LATENTS = 4
# Kernels start between these lengthscales, in days, and one of them has a period of a day.
SHORTEST, LONGEST, PERIOD = 0.1, 10.0, 1.0
# Harmonics of the cycle in the state space; more would hardly change a kernel of lengthscale 1.
NUM_HARMONICS = 3
LEARNING_RATE = 1e-2


@dataclass(frozen=True)
class Size:
    """
    :param num_points: The number of points of the series.
    :param window: Rows of a window for training; a step has one window.
    :param inducing: Inducing points of the model that has them in each window.
    :param seconds: Seconds of the processor for training.
    """

    num_points: int = 10_000
    window: int = 500
    inducing: int = 100
    seconds: float = BUDGET


SMOKE = Size(num_points=200, window=50, inducing=8, seconds=1e-3)


def long_series(num_points: int, seed: int = DATA_SEED) -> TaskData:
    r"""
    Four outputs at irregular times, with gaps of an hour on average that are exponentially distributed. A slow trend
    and a cycle of a day, whose amplitude changes slowly, are smooth; fronts that pass and a part of each output's own
    are rough (Ornstein-Uhlenbeck processes). With :math:`u_p = \mathbf w_p^\top (\text{trend}, \text{cycle},
    \text{fronts}) + 0.4 \, \text{private}_p`, two outputs are linear mixtures of these and two are not:

    .. math::

        \text{temperature} = 10 + 5 u_1, \quad \text{pressure} = 1000 + 8 u_2, \quad
        \text{wind} = 3 e^{u_3 / 2}, \quad \text{humidity} = 100 / (1 + e^{-0.8 u_4}),

    all with Gaussian noise. Sixty percent of the entries are held out: sensors fail one by one for 50 rows, all of them
    together for 20, and the rest is gone entry by entry.
    """
    random = np.random.RandomState(seed)
    times = random.exponential(1 / POINTS_PER_DAY, num_points).cumsum()
    amplitude = 1 + 0.3 * _smooth(times, AMPLITUDE, random)
    cycle = 1.3 * amplitude * (np.cos(2 * np.pi * times) + 0.4 * np.cos(4 * np.pi * times + 1))
    shared = np.stack([_smooth(times, TREND, random), cycle, _rough(times, FRONTS, random)], axis=-1)  # (N, 3)
    private = np.stack([_rough(times, PRIVATE, random) for _ in OUTPUTS], axis=-1)  # (N, P)
    u = (shared @ LOADINGS.T + 0.4 * private).T
    y = np.stack([10 + 5 * u[0], 1000 + 8 * u[1], 3 * np.exp(u[2] / 2), 100 / (1 + np.exp(-0.8 * u[3]))], axis=-1)
    y = torch.tensor(y + NOISE * random.standard_normal(y.shape))
    hidden = blackouts(y, 50, 0.25, random) | blackouts(y, 20, 0.1, random, simultaneous=True)
    # 1 - (1 - 0.25) (1 - 0.1) (1 - 0.407) = 0.6
    hidden = hidden | blackouts(y, 1, 0.407, random)
    x, (y, truth) = torch.tensor(times).unsqueeze(-1), hold_out(y, hidden)
    return TaskData([(x, y)], [truth], [(x, y)], [truth], seen=[True], inputs={"time": "d"}, outputs=OUTPUTS)


def run(run: Run, smoke: bool) -> Outcome:
    size = SMOKE if smoke else Size()
    data = long_series(size.num_points)
    (x, y), truth = data.train[0], data.test_truth[0]
    y, took = data.normalizer.normalize(y), {}
    if run.model == "interpolation":
        prediction = baselines.interpolation(x, y)
    else:
        in_windows = run.model == "sgpvae-windows"
        points = size.inducing if in_windows or smoke else run.inducing
        end = size.window / POINTS_PER_DAY if in_windows else x.max().item()
        model = make_model(run.model, torch.linspace(0, end, points, dtype=x.dtype))
        model.initialize_from((x, y))
        shift = from_start if in_windows else None
        took = optimize_for(size.seconds, model, window_loss(model, x, y, size.window, run.seed, shift), LEARNING_RATE)
        if in_windows:
            prediction = predict_in_windows(model, x, y, size.window)
        else:
            prediction = model.predict(x, (x, y), PREDICTION_SAMPLES, chunk_size=size.window)
    prediction = prediction.rescale(*data.normalizer)
    matched = Prediction.gaussian(prediction.mean, prediction.stddev)
    errors = metrics.smse(matched, truth).sqrt()  # (P,)
    scores = {
        "srmse": errors.mean().item(),
        **{f"srmse_{name}": error for name, error in zip(OUTPUTS, errors.tolist(), strict=True)},
        **score(prediction, truth, ("nll", "nll_mixture", "coverage")),
        **score(matched, truth, ["crps"]),
    }
    return Outcome(scores, extra=took)


def make_model(name: str, inducing_points: Tensor) -> AmortizedModel:
    """Shared latent functions, rough, smooth and periodic, and a rough one for each output, inferred together."""
    num_outputs = len(OUTPUTS)
    kernel = default_grouped_kernel(NUM_LATENTS, 1, shortest=SHORTEST, longest=LONGEST, periods=[PERIOD])
    options = {"network": "jointfactornet", "num_private": 1, "kernel": add_private_groups(kernel, num_outputs, 1, 1)}
    if name == "markov":
        model: AmortizedModel = MarkovGPVAE(num_outputs, NUM_LATENTS, **options)
        model.strategy.num_harmonics = NUM_HARMONICS
    else:
        model = SGPVAE(num_outputs, NUM_LATENTS, inducing_points, **options)
    return model.double()


def window_loss(
    model: AmortizedModel,
    x: Tensor,
    y: Tensor,
    length: int,
    seed: int,
    shift: Callable[[Tensor], Tensor] | None = None,
) -> Callable[[], Tensor]:
    """
    Minus the bound of a window of the series, another one at each call, divided by its rows.

    :param length: Rows of a window.
    :param seed: The seed of the order of the windows, and of where they start.
    :param shift: What is done to the times of a window (`... x N x 1`); by default nothing.
    """
    loader = TaskLoader(TaskDataset([(x, y)]).windows(length), batch_size=1, seed=seed)
    batches = (batch for _ in count() for batch in loader)

    def loss() -> Tensor:
        batch = next(batches)
        times = batch.x if shift is None else shift(batch.x)
        return model.loss(Context(times, batch.y)) / length

    return loss


def from_start(x: Tensor) -> Tensor:
    """Times since the first of them (`... x N x 1`)."""
    return x - x[..., :1, :]


def predict_in_windows(model: AmortizedModel, x: Tensor, y: Tensor, length: int) -> Prediction:
    """
    Every row given a window around it, with times since the window's start. Windows overlap by half: each predicts the
    rows in the middle of it, the first and the last also those at the ends of the series.
    """
    last = max(len(x) - length, 0)
    starts = [*range(0, last, length // 2), last]
    ends = [*(start + length // 4 for start in starts[1:]), len(x)]
    predictions, first = [], 0
    for start, end in zip(starts, ends, strict=True):
        rows = slice(start, start + length)
        times = from_start(x[rows])
        asked = times[first - start : end - start]
        predictions.append(model.predict(asked, (times, y[rows]), PREDICTION_SAMPLES, chunk_size=length))
        first = end
    return Prediction.concatenate(predictions, torch.arange(len(x)))


def _smooth(times: np.ndarray, lengthscale: float, random: np.random.RandomState) -> np.ndarray:
    """A function with the RBF kernel of variance 1, by random Fourier features (`N`)."""
    waves = random.standard_normal(NUM_WAVES) / lengthscale
    features = np.cos(times[:, None] * waves + random.uniform(0, 2 * np.pi, NUM_WAVES))
    return features @ random.standard_normal(NUM_WAVES) * np.sqrt(2 / NUM_WAVES)


def _rough(times: np.ndarray, lengthscale: float, random: np.random.RandomState) -> np.ndarray:
    """An Ornstein-Uhlenbeck process of variance 1 (`N`)."""
    decay = np.exp(-np.diff(times) / lengthscale)
    values = random.standard_normal(len(times))
    values[1:] *= np.sqrt(1 - decay**2)
    for n, factor in enumerate(decay, start=1):
        values[n] += factor * values[n - 1]
    return values


SERIES = Experiment(
    title="A long irregular series",
    run=run,
    trained=(),
    baselines=("markov", "sgpvae", "sgpvae-windows", "interpolation"),
    deterministic=("interpolation",),
    columns=("srmse", "nll"),
    published={},
    seeds=2,
    inducing=(200,),
    text=text_of("series"),
)
