"""Latent functions that are inferred together: a step beside one of GPyTorch's exact multitask GP."""

from __future__ import annotations

import time

import gpytorch
import torch
from gpytorch.distributions import MultitaskMultivariateNormal
from gpytorch.kernels import Kernel, MaternKernel, MultitaskKernel
from matplotlib.figure import Figure
from torch import Tensor

from gpytorch_sgpvae import GPVAE, Context
from gpytorch_sgpvae.linalg.kernels import GroupedKernel

from ..contestants import Step, training_step
from ..measure import Spread, interleave
from ..study import COLOURS, Goal, Options, Report, duration, spread, table

NUM_OUTPUTS, RANK, NUM_TASKS = 7, 7, 32
# Smoothness and first lengthscale of the three kernels.
KERNELS = ((0.5, 1.0), (1.5, 8.0), (0.5, 60.0))
EXACT, ONE, MANY, OWN_INPUTS = "GPyTorch, one task", "one task", "32 tasks", "32 tasks, inputs of their own"
# Over GPyTorch's time for one task, for each task.
LIMITS = {48: {ONE: 1.0, MANY: 0.5}, 12: {ONE: 1.0, MANY: 0.25}}
# Rounds for each one that was asked for.
ROUNDS = 3

Times = dict[int, dict[str, Spread]]


def run(options: Options) -> Report:
    return report({num_points: time_steps(num_points, options) for num_points in ((3, 2) if options.quick else LIMITS)})


def time_steps(num_points: int, options: Options) -> dict[str, Spread]:
    """Seconds of a step, for each task."""
    contestants = {
        EXACT: exact(num_points),
        ONE: ours(num_points),
        MANY: ours(num_points, NUM_TASKS),
        OWN_INPUTS: ours(num_points, NUM_TASKS, shared_inputs=False),
    }
    # of the processor, not of the clock on the wall: a round is short beside what else a shared machine does
    times = interleave(contestants, ROUNDS * options.repeats, clock=time.process_time, description=f"N = {num_points}")
    return {name: measured / (NUM_TASKS if name in (MANY, OWN_INPUTS) else 1) for name, measured in times.items()}


def make_windows(num_points: int, tasks: int | None = None) -> tuple[Tensor, Tensor]:
    """Random walks without holes at the hours of a window."""
    x = torch.arange(num_points, dtype=torch.float64).unsqueeze(-1)
    batch = () if tasks is None else (tasks,)
    generator = torch.Generator().manual_seed(0)
    noise = torch.randn(*batch, num_points, NUM_OUTPUTS, generator=generator, dtype=torch.float64)
    return x, 0.3 * noise.cumsum(-2)


def make_kernels() -> list[Kernel]:
    kernels = [MaternKernel(nu=nu) for nu, _ in KERNELS]
    for kernel, (_, lengthscale) in zip(kernels, KERNELS, strict=True):
        kernel.lengthscale = lengthscale
    return kernels


def ours(num_points: int, tasks: int | None = None, shared_inputs: bool = True) -> Step:
    torch.manual_seed(0)
    x, y = make_windows(num_points, tasks)
    context = Context(x if shared_inputs else x.repeat(y.shape[0], 1, 1), y)
    model = make_model()
    return training_step(model.parameters(), lambda: model.loss(context))


def make_model() -> GPVAE:
    num_latents = RANK * len(KERNELS)
    kernel = GroupedKernel(make_kernels(), [RANK] * len(KERNELS))
    decoder = torch.nn.Linear(num_latents, NUM_OUTPUTS)
    return GPVAE(NUM_OUTPUTS, num_latents, network="jointfactornet", kernel=kernel, decoder=decoder).double()


class ExactMultitaskGP(gpytorch.models.ExactGP):
    """GPyTorch's own linear model of coregionalization."""

    def __init__(self, x: Tensor, y: Tensor):
        super().__init__(x, y, gpytorch.likelihoods.MultitaskGaussianLikelihood(num_tasks=NUM_OUTPUTS))
        self.mean_module = gpytorch.means.MultitaskMean(gpytorch.means.ConstantMean(), num_tasks=NUM_OUTPUTS)
        first, second, third = (MultitaskKernel(k, num_tasks=NUM_OUTPUTS, rank=RANK) for k in make_kernels())
        self.covar_module = first + second + third

    def forward(self, x: Tensor) -> MultitaskMultivariateNormal:
        return MultitaskMultivariateNormal(self.mean_module(x), self.covar_module(x))


def exact(num_points: int) -> Step:
    torch.manual_seed(0)
    x, y = make_windows(num_points)
    model = ExactMultitaskGP(x, y).double().train()
    objective = gpytorch.mlls.ExactMarginalLogLikelihood(model.likelihood, model)
    return training_step(model.parameters(), lambda: -objective(model(x), y))


def report(times: Times) -> Report:
    ratios = {n: {name: times[n][name] / times[n][EXACT] for name in times[n] if name != EXACT} for n in times}
    return Report(
        title="Latent functions that are inferred together",
        text=TEXT,
        tables=[speed_table(times, ratios)],
        goals=speed_goals(ratios),
        notes=NOTES,
        figures={"seconds": times},
        figure=draw(ratios),
    )


TEXT = f"""A training step of `GPVAE(P, K, network="jointfactornet", decoder=torch.nn.Linear(K, P))` beside
one of GPyTorch's exact multitask GP, a sum of three `MultitaskKernel`s: P = {NUM_OUTPUTS} outputs, three Matérn kernels
of rank {RANK} each (K = {RANK * len(KERNELS)}), nothing missing, float64. Both are the exact linear model of
coregionalization, and each matrix is N P x N P. GPyTorch takes one task; times and ratios are for each task, and
are seconds of the processor. The tasks are windows with the same inputs, unless the table says otherwise. The network's
corrections are learnt here, and cost their share.

How well such models fill windows of time series is an experiment,
[TSI-Bench](../../experiments/RESULTS.md#tsi-bench)."""

NOTES = """- *GPyTorch's* `MultitaskKernel` also has a variance of its own for each output, which costs it nothing of
  order (N P)³. The target of 0.25 at N = 12 is taken to be one for each of 32 tasks; a single task takes as long as the
  interpreter needs for so many small operations, here and there."""


def speed_table(times: Times, ratios: Times) -> str:
    rows = []
    for num_points, measured in times.items():
        for name, seconds in measured.items():
            ratio = ratios[num_points].get(name)
            size = f"{num_points} ({num_points * NUM_OUTPUTS})"
            rows.append([size, name, spread(seconds, duration), spread(ratio, "{:.3f}".format) if ratio else "1"])
    return table(["N (N P)", "", "a step, for each task", "over GPyTorch"], rows)


def speed_goals(ratios: Times) -> list[Goal]:
    return [
        Goal(f"N = {num_points}, {name}: a step over GPyTorch's, for each task", measured[name], limit, unit="x")
        for num_points, measured in ratios.items()
        for name, limit in LIMITS.get(num_points, {ONE: None, MANY: None}).items()
    ]


def draw(ratios: Times) -> Figure:
    figure = Figure(figsize=(5, 3.8), layout="constrained")
    axes = figure.subplots()
    labels = []
    for num_points, measured in ratios.items():
        for (name, ratio), colour in zip(measured.items(), COLOURS, strict=False):
            lower, upper = ratio.quartiles
            error = [[ratio.median - lower], [upper - ratio.median]]
            axes.barh(len(labels), ratio.median, xerr=error, color=colour, height=0.7)
            labels.append(f"N = {num_points}, {name}")
    axes.axvline(1.0, color="black", linewidth=0.8)
    axes.set_yticks(range(len(labels)), labels)
    axes.invert_yaxis()
    axes.set(xlabel="a step for each task, over GPyTorch's")
    return figure
