"""Latent functions that are inferred together: speed beside GPyTorch's exact multitask GP, accuracy on windows."""

from __future__ import annotations

import sys
import time
from typing import Any

import gpytorch
import torch
from gpytorch.distributions import MultitaskMultivariateNormal
from gpytorch.kernels import Kernel, MaternKernel, MultitaskKernel
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from torch import Tensor

from experiments.runs import ResultFile, Run
from gpytorch_sgpvae import GPVAE, Context
from gpytorch_sgpvae.linalg.kernels import GroupedKernel

from ..contestants import Step, training_step
from ..measure import Spread, interleave
from ..study import COLOURS, Goal, Options, Report, duration, spread, table
from ..windows import BATCH_SIZE, GENERATED, IMPUTERS, OURS, SEED, folder, make_problem, score

STUDY = "joint"
NUM_OUTPUTS, RANK, NUM_TASKS = 7, 7, 32
# Smoothness and first lengthscale of the three kernels.
KERNELS = ((0.5, 1.0), (1.5, 8.0), (0.5, 60.0))
EXACT, ONE, MANY, OWN_INPUTS = "GPyTorch, one task", "one task", "32 tasks", "32 tasks, inputs of their own"
# Over GPyTorch's time for one task, for each task.
LIMITS = {48: {ONE: 1.0, MANY: 0.5}, 12: {ONE: 1.0, MANY: 0.25}}
# Rounds for each one that was asked for.
ROUNDS = 3
STEPS = 400
# The largest MAE and MSE, and seconds.
TARGETS = {("ETTh1", "10 %"): (0.110, 0.031), ("ETTh1", "50 %"): (0.174, 0.075), ("ItalyAir", "10 %"): (0.092, 0.048)}
SECONDS, COVERAGE = 180.0, (0.93, 0.97)
NO_DATA = "The accuracy on windows was not measured: `SGPVAE_DATA` names no folder with a `tsibench` in it."

Times = dict[int, dict[str, Spread]]


def run(options: Options) -> Report:
    """Runs on windows are not run again: their lines are in `joint.jsonl`. Speed is measured anew."""
    results = ResultFile(STUDY, options.folder)
    for run in planned(options.quick):
        if run not in results.read():
            print(run, file=sys.stderr, flush=True)
            results.append(run, outcome(run, options.quick))
    times = {num_points: time_steps(num_points, options) for num_points in ((3, 2) if options.quick else LIMITS)}
    return report(times, results.read(), options)


def planned(quick: bool) -> list[Run]:
    if not quick and folder() is None:
        print(NO_DATA, file=sys.stderr, flush=True)
        return []
    problems = [(GENERATED, "10 %")] if quick else list(TARGETS)
    return [Run(name, imputer, variant=rate, seed=SEED) for name, rate in problems for imputer in IMPUTERS]


def outcome(run: Run, quick: bool) -> dict[str, Any]:
    problem = make_problem(run.experiment, float(run.variant.removesuffix(" %")) / 100, run.seed)
    torch.manual_seed(run.seed)
    return score(IMPUTERS[run.model](problem, 2 if quick else STEPS), problem)


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


def report(times: Times, outcomes: dict[Run, dict[str, Any]], options: Options) -> Report:
    ratios = {n: {name: times[n][name] / times[n][EXACT] for name in times[n] if name != EXACT} for n in times}
    problems = list(dict.fromkeys((run.experiment, run.variant) for run in outcomes))
    by_problem = {
        problem: {run.model: result for run, result in outcomes.items() if (run.experiment, run.variant) == problem}
        for problem in problems
    }
    return Report(
        title="Latent functions that are inferred together",
        text=TEXT if outcomes else f"{TEXT}\n\n{NO_DATA}",
        tables=[speed_table(times, ratios), *([accuracy_table(by_problem)] if outcomes else [])],
        goals=[*speed_goals(ratios), *accuracy_goals(by_problem)],
        notes=NOTES,
        figures={
            "seconds": times,
            "windows": [
                {"problem": name, "hidden": rate, "model": model, **_scores(result)}
                for (name, rate), results in by_problem.items()
                for model, result in results.items()
            ],
        },
        figure=draw(ratios, by_problem),
    )


TEXT = f"""**Speed.** A training step of `GPVAE(P, K, network="jointfactornet", decoder=torch.nn.Linear(K, P))` beside
one of GPyTorch's exact multitask GP, a sum of three `MultitaskKernel`s: P = {NUM_OUTPUTS} outputs, three Matérn kernels
of rank {RANK} each (K = {RANK * len(KERNELS)}), nothing missing, float64. Both are the exact linear model of
coregionalization, and each matrix is N P x N P. GPyTorch takes one task; times and ratios are for each task, and
are seconds of the processor. The tasks are windows with the same inputs, unless the table says otherwise. The network's
corrections are learnt here, and cost their share.

**Accuracy.** Windows of TSI-Bench (Du et al., 2024), standardized by the training set; each entry of all sets is
hidden with the probability that the table says, one seed. Scores are of the hidden entries of the test windows.
*Coverage* is that of the central 95 % interval, before and after one factor for the variances of each output: the mean
squared standardized residual of the validation windows' hidden entries. *Seconds* are of one core, for learning and for
predicting the validation and the test windows."""

NOTES = f"""- *{OURS}* has four shared latent functions for each output (rough, smooth, and for the longer windows daily
  ones) and two private ones; it starts from the data, and takes {STEPS} Adam steps of {BATCH_SIZE} windows with
  learning rate 0.03 and a cosine. The network's corrections stay zero, so that the posterior is exact; *with
  corrections* they are learnt too. *FactorNet* has two latent functions for each output, the same kinds of kernels, a
  perceptron as decoder, and {5 * STEPS:,} steps with learning rate 0.01, which nobody tuned.
- *What had been seen before.* The steps and their number were chosen by ItalyAir's validation windows, at 10 %. But
  the test scores of ETTh1 had been seen with 200 steps before that choice, and all three test scores of the final
  settings with these masks before this study was written; the kinds of kernels and of private functions come from a
  prototype whose test scores on these data were known. So the figures are a little optimistic. No setting was changed
  by what this study showed.
- *One run each*, and learning the corrections is not quite stable: before a change of the package that only rounds
  differently, ItalyAir's MAE *with corrections* was 0.0907, and that of ETTh1 at 50 % 0.1640. *{OURS}* had the same
  scores to four digits. The rows of FactorNet and of linear interpolation are from before that change, with glibc's
  default allocator and on a machine with more to do: their seconds are pessimistic.
- *Coverage* after the factor was looked into for *{OURS}* on ETTh1 at 50 %: it is 94.6 % on the validation windows that
  the factors come from, but the test windows are of other months. Their own factors would be 1.6 instead of 0.7 for the
  fifth output and 1.7 instead of 1.2 for the first, and with them (which nobody can know) coverage would be 94.5 %.
- *GPyTorch's* `MultitaskKernel` also has a variance of its own for each output, which costs it nothing of order
  (N P)³. The target of 0.25 at N = 12 is taken to be one for each of 32 tasks; a single task takes as long as the
  interpreter needs for so many small operations, here and there.
- *Parameters* are those that are learnt."""


def _scores(result: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in result.items() if key != "run"}


def speed_table(times: Times, ratios: Times) -> str:
    rows = []
    for num_points, measured in times.items():
        for name, seconds in measured.items():
            ratio = ratios[num_points].get(name)
            size = f"{num_points} ({num_points * NUM_OUTPUTS})"
            rows.append([size, name, spread(seconds, duration), spread(ratio, "{:.3f}".format) if ratio else "1"])
    return table(["N (N P)", "", "a step, for each task", "over GPyTorch"], rows)


def accuracy_table(by_problem: dict[tuple[str, str], dict[str, dict[str, Any]]]) -> str:
    rows = []
    for (name, rate), results in by_problem.items():
        for model in IMPUTERS:
            if model not in results:
                continue
            result = results[model]
            before, after = (_percent(result[key]) for key in ("coverage", "coverage_after"))
            errors = [f"{result['mae']:.4f}", f"{result['mse']:.4f}"]
            rows.append([f"{name}, {rate}", model, *errors, before, after, *_cost(result)])
    return table(["", "", "MAE", "MSE", "coverage", "after the factor", "seconds", "parameters"], rows)


def _percent(share: float | None) -> str:
    return "-" if share is None else f"{100 * share:.1f} %"


def _cost(result: dict[str, Any]) -> list[str]:
    return [f"{result['seconds']:.1f}", f"{result['parameters']:,}" if result["parameters"] else "-"]


def speed_goals(ratios: Times) -> list[Goal]:
    return [
        Goal(f"N = {num_points}, {name}: a step over GPyTorch's, for each task", measured[name], limit, unit="x")
        for num_points, measured in ratios.items()
        for name, limit in LIMITS.get(num_points, {ONE: None, MANY: None}).items()
    ]


def accuracy_goals(by_problem: dict[tuple[str, str], dict[str, dict[str, Any]]]) -> list[Goal]:
    goals = []
    for problem, results in by_problem.items():
        if problem not in TARGETS or OURS not in results:
            continue
        values = {key: Spread((value,)) for key, value in _scores(results[OURS]).items()}
        what, (mae, mse) = f"{problem[0]}, {problem[1]}", TARGETS[problem]
        goals += [
            Goal(f"{what}: MAE", values["mae"], mae),
            Goal(f"{what}: MSE", values["mse"], mse),
            Goal(f"{what}: seconds", values["seconds"], SECONDS),
            Goal(f"{what}: coverage after the factor", values["coverage_after"], COVERAGE[0], at_least=True),
            Goal(f"{what}: coverage after the factor", values["coverage_after"], COVERAGE[1]),
        ]
    return goals


def draw(ratios: Times, by_problem: dict[tuple[str, str], dict[str, dict[str, Any]]]) -> Figure:
    figure = Figure(figsize=(10 if by_problem else 5, 3.8), layout="constrained")
    panels = figure.subplots(1, 2 if by_problem else 1, squeeze=False)[0]
    _draw_speed(panels[0], ratios)
    for i, model in enumerate(IMPUTERS if by_problem else ()):
        scores = [results[model]["mae"] if model in results else 0.0 for results in by_problem.values()]
        places = [place + 0.2 * (i - 1.5) for place in range(len(scores))]
        panels[1].bar(places, scores, width=0.18, color=COLOURS[i], label=model)
    if by_problem:
        panels[1].set_xticks(range(len(by_problem)), [f"{name}\n{rate} hidden" for name, rate in by_problem])
        panels[1].set(ylabel="MAE", title="Windows")
        panels[1].legend()
    return figure


def _draw_speed(axes: Axes, ratios: Times) -> None:
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
    axes.set(xlabel="a step for each task, over GPyTorch's", title="Speed")
