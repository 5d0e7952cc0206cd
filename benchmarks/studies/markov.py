"""Exact inference over time: its cost over the number of points, and beside celerite2, smolgp and dense matrices."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import NullLocator

from experiments.runs import ResultFile, Run
from gpytorch_sgpvae import GPVAE, Context
from gpytorch_sgpvae.models import AmortizedModel

from ..contestants import Step, training_step
from ..measure import Memory, Spread, in_fresh_process, interleave, peak_memory
from ..series import (
    CONTESTANTS,
    HOW_TO_GET_THEM,
    LENGTHSCALE,
    MISSING,
    NUM_OUTPUTS,
    SPACING,
    available,
    make_context,
    make_kernel,
    make_series,
    recursion,
)
from ..study import COLOURS, GIB, Goal, Options, Report, duration, size, spread, table
from .growth import slope

STUDY = "markov"
# Seconds of the processor, not of the clock on the wall: on one core they are the same unless others use it too.
CLOCK = time.process_time
HIDDEN_SIZES = (20, 20)


class Kind(NamedTuple):
    """How latent functions are inferred, and how many."""

    network: str
    num_latents: int

    def __str__(self) -> str:
        return f"{'joint' if self.network == 'jointfactornet' else 'independent'}, K = {self.num_latents}"


INDEPENDENT, JOINT, JOINT_MANY = Kind("factornet", 3), Kind("jointfactornet", 3), Kind("jointfactornet", 10)
STEP, PREDICTION, RECURSION = "training step", "prediction", "recursion"
OURS, MARKOV, DENSE = "this package", "Markov", "dense"
BATCH, ONE_BY_ONE = "in a batch", "one by one"


class Sizes(NamedTuple):
    """
    :param growth: N of the first table, for each kind; the exponent is that of the last two.
    :param peers: N of the series that all packages have.
    :param batch: T and N of many short series.
    :param crossing: N at which Markov and dense are compared.
    """

    growth: dict[Kind, list[int]]
    peers: int
    batch: tuple[int, int]
    crossing: list[int]


FULL = Sizes(
    growth={
        kind: [10**i for i in range(3, 7 if kind is INDEPENDENT else 6)] for kind in (INDEPENDENT, JOINT, JOINT_MANY)
    },
    peers=100_000,
    batch=(64, 256),
    crossing=[2**i for i in range(4, 11)],
)
QUICK = Sizes(growth={INDEPENDENT: [2000, 8000]}, peers=60, batch=(3, 20), crossing=[16, 32])

# The targets.
EXPONENT, RECURSION_SECONDS, STEP_SECONDS, STEP_GIB = 1.1, 10.0, 20.0, 4.0
OVER_PEERS = {"celerite2": 10.0, "smolgp": 2.0}
BATCH_RATIO = 0.1
# In a fresh process, no further call is made after this many seconds.
BUDGET = 20.0
# How far the log likelihoods of all packages may be apart, relative: celerite2's kernel is an approximation.
AGREEMENT = 1e-4

Cost = tuple[Spread, Memory]
Costs = dict[Kind, dict[str, dict[int, Cost]]]
Crossing = dict[int, dict[str, Spread]]


def run(options: Options) -> Report:
    """What has been measured is in `markov.jsonl` until all has: a run that is stopped and started again goes on."""
    sizes, kept = (QUICK if options.quick else FULL), Kept(options)
    costs = {kind: growth(kind, sizes.growth[kind], kept) for kind in sizes.growth}
    beside = kept.spreads(Run("peers", RECURSION), partial(in_fresh_process, peers, (sizes.peers, options), __name__))
    batches = {
        kind: kept.spreads(Run("batch", str(kind)), partial(time_batches, kind, *sizes.batch, options))
        for kind in (INDEPENDENT, JOINT)
    }
    crossings = {
        kind: {
            N: kept.spreads(Run("crossing", str(kind), variant=f"N = {N}"), partial(cross, kind, N, options))
            for N in sizes.crossing
        }
        for kind in (INDEPENDENT, JOINT)
    }
    finished = report(sizes, costs, beside, batches, crossings)
    kept.forget()
    return finished


class Kept:
    """The measurements of a run that is not finished."""

    def __init__(self, options: Options):
        self.options = options
        self.results = ResultFile(STUDY, options.folder)

    def cost(self, run: Run, function: Callable[..., Any], arguments: tuple[Any, ...], small: tuple[Any, ...]) -> Cost:
        """The seconds that a function returns, and the memory of the fresh process that it ran in."""

        def measure() -> dict[str, Any]:
            seconds, memory = peak_memory(function, arguments, small, self.options.threads)
            return {"seconds": seconds, "before": memory.before, "peak": memory.peak}

        outcome = self._outcome(run, measure)
        return Spread(tuple(outcome["seconds"])), Memory(outcome["before"], outcome["peak"])

    def spreads(self, run: Run, measure: Callable[[], dict[str, Spread]]) -> dict[str, Spread]:
        """The seconds of each contestant."""
        outcome = self._outcome(run, lambda: {"seconds": {name: part.values for name, part in measure().items()}})
        return {name: Spread(tuple(values)) for name, values in outcome["seconds"].items()}

    def forget(self) -> None:
        self.results.path.unlink(missing_ok=True)

    def _outcome(self, run: Run, measure: Callable[[], dict[str, Any]]) -> dict[str, Any]:
        if run not in self.results.read():
            print(run, file=sys.stderr, flush=True)
            self.results.append(run, measure())
        return self.results.read()[run]


def growth(kind: Kind, sizes: Sequence[int], kept: Kept) -> dict[str, dict[int, Cost]]:
    """Time and memory for each N."""
    works: dict[str, Callable[..., list[float]]] = {STEP: train, PREDICTION: predict}
    if kind is INDEPENDENT:
        works[RECURSION] = recur
    small, repeats = 20, kept.options.repeats
    return {
        work: {
            N: kept.cost(
                Run("growth", str(kind), variant=f"{work}, N = {N}"), function, (kind, N, repeats), (kind, small, 1)
            )
            for N in sizes
        }
        for work, function in works.items()
    }


def make_model(kind: Kind, dense: bool = False) -> AmortizedModel:
    from gpytorch_sgpvae import MarkovGPVAE

    torch.manual_seed(0)
    model = GPVAE if dense else MarkovGPVAE
    kernel = make_kernel(kind.num_latents)
    return model(NUM_OUTPUTS, kind.num_latents, kind.network, kernel=kernel, hidden_sizes=HIDDEN_SIZES)


def make_step(kind: Kind, contexts: Sequence[Context], dense: bool = False) -> Step:
    """A training step, with the gradients of all contexts."""
    model = make_model(kind, dense)
    *others, last = contexts

    def loss() -> torch.Tensor:
        for context in others:
            model.loss(context).backward()
        return model.loss(last)

    return training_step(model.parameters(), loss)


def train(kind: Kind, num_points: int, repeats: int) -> list[float]:
    return timed(make_step(kind, [make_context(num_points)]), repeats)


def predict(kind: Kind, num_points: int, repeats: int) -> list[float]:
    """Means and variances of the outputs at all points, given all points."""
    context, model = make_context(num_points), make_model(kind).eval()

    def mean_and_variance() -> object:
        prediction = model.predict(context.x, context, num_samples=1)
        return prediction.mean, prediction.variance

    return timed(mean_and_variance, repeats)


def recur(kind: Kind, num_points: int, repeats: int) -> list[float]:
    return timed(recursion(make_series(num_points, kind.num_latents)), repeats)


def timed(function: Callable[[], object], repeats: int) -> list[float]:
    """Seconds of each call but the first, at least one."""
    seconds: list[float] = []
    while len(seconds) < 2 or (len(seconds) <= repeats and sum(seconds) < BUDGET):
        start = CLOCK()
        function()
        seconds.append(CLOCK() - start)
    return seconds[1:]


def peers(num_points: int, options: Options) -> dict[str, Spread]:
    """
    Seconds of the log likelihood of K series and its gradient. Runs in a process of its own: jax has threads, and takes
    as many as there are cores.
    """
    torch.set_num_threads(options.threads)
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[: options.threads])
    series = make_series(num_points, INDEPENDENT.num_latents)
    contestants = {OURS: recursion(series)} | {name: CONTESTANTS[name](series) for name in available()}
    results = {name: contestant() for name, contestant in contestants.items()}
    for name, (value, gradient) in results.items():
        for theirs, own in zip((value, gradient), results[OURS], strict=True):
            difference = np.abs(np.asarray(theirs) - np.asarray(own)).max() / np.abs(np.asarray(own)).max()
            if difference > AGREEMENT:
                raise RuntimeError(f"{name} is at a relative distance of {difference:.1g} from {OURS}.")
    return interleave(contestants, options.repeats, clock=CLOCK, description="peers")


def time_batches(kind: Kind, num_tasks: int, num_points: int, options: Options) -> dict[str, Spread]:
    """Seconds of a training step with all tasks."""
    together = make_context(num_points, num_tasks)
    alone = [Context(x, y) for x, y in zip(together.x, together.y, strict=True)]
    contestants = {BATCH: make_step(kind, [together]), ONE_BY_ONE: make_step(kind, alone)}
    return interleave(contestants, options.repeats, clock=CLOCK, description=f"batches, {kind}")


def cross(kind: Kind, num_points: int, options: Options) -> dict[str, Spread]:
    """Seconds of a training step."""
    contexts = [make_context(num_points)]
    contestants = {MARKOV: make_step(kind, contexts), DENSE: make_step(kind, contexts, dense=True)}
    return interleave(contestants, options.repeats, clock=CLOCK, description=f"N = {num_points}, {kind}")


def first_faster(crossing: Mapping[int, Mapping[str, Spread]]) -> int | None:
    """The least N from which on Markov takes less time than dense, or None."""
    first = None
    for num_points in sorted(crossing, reverse=True):
        times = crossing[num_points]
        if (times[MARKOV] / times[DENSE]).median >= 1:
            break
        first = num_points
    return first


def report(
    sizes: Sizes,
    costs: Costs,
    beside: dict[str, Spread],
    batches: dict[Kind, dict[str, Spread]],
    crossings: dict[Kind, Crossing],
) -> Report:
    left_out = [] if len(beside) == 1 + len(CONTESTANTS) else [HOW_TO_GET_THEM]
    return Report(
        title="Exact inference over time",
        text="\n\n".join([text(sizes), *left_out]),
        tables=[growth_table(costs), peers_table(beside), batch_table(batches, sizes), crossing_table(crossings)],
        goals=[
            *growth_goals(costs[INDEPENDENT]),
            *(
                Goal(f"{RECURSION} over {name}'s", beside[OURS] / seconds, OVER_PEERS[name], unit="x")
                for name, seconds in beside.items()
                if name != OURS
            ),
            *(
                Goal(
                    f"{kind}: {sizes.batch[0]} tasks {BATCH} over {ONE_BY_ONE}",
                    times[BATCH] / times[ONE_BY_ONE],
                    BATCH_RATIO,
                )
                for kind, times in batches.items()
            ),
            *(
                Goal(f"{kind}: {MARKOV} is faster than {DENSE} from N =", Spread((float(first),)))
                for kind, crossing in crossings.items()
                if (first := first_faster(crossing)) is not None
            ),
        ],
        notes=NOTES,
        figures={
            "growth": [
                {"kind": str(kind), "work": work, "num_points": N, "seconds": seconds, "bytes": memory}
                for kind, works in costs.items()
                for work, cells in works.items()
                for N, (seconds, memory) in cells.items()
            ],
            "peers": {"num_points": sizes.peers, "seconds": beside},
            "batch": {
                "tasks_and_points": sizes.batch,
                "seconds": {str(kind): times for kind, times in batches.items()},
            },
            "crossing": {str(kind): crossing for kind, crossing in crossings.items()},
        },
        figure=draw(costs, crossings),
    )


def text(sizes: Sizes) -> str:
    tasks, points = sizes.batch
    return f"""`python -m benchmarks markov` measures `MarkovGPVAE(P, K, network)`: P = {NUM_OUTPUTS} outputs of which
{100 * MISSING:.0f} % are missing, Matérn 3/2 kernels, one sample, networks and a decoder with {HIDDEN_SIZES} hidden
units, float32. Times are irregular, {SPACING} apart on average, and lengthscales around {LENGTHSCALE:g}. Where latent
functions are inferred *independently*, the network is `"factornet"`, where they are inferred *jointly* it is
`"jointfactornet"`. All seconds are of the processor.

**Growth.** A training step, and a prediction of the means and variances of all outputs at the context's own inputs,
each in a fresh process. *Memory* is the peak of that process above what it had after a small step, and in brackets the
peak itself. The *recursion* is a step without network, decoder and optimizer: posterior means and variances of K = 3
latent functions at all points, the KL divergence, and the gradient of the bound that they give.

**Peers.** The recursion and its gradient beside celerite2 and smolgp, which compute the log likelihood of K = 3 series
of {sizes.peers:,} points and its gradient by lengthscales, variances, values and the noise of each value, all in
float64. The recursion's bound is that log likelihood here. The study stops if values or gradients differ.

**Batches.** A training step with {tasks} tasks of {points} points each, in one batch or one task after the other.

**Crossing.** A training step of `MarkovGPVAE` and of `GPVAE`, which has dense matrices, with the same kernels and data
and K = 3."""


NOTES = f"""- *Exponents* are those between the two largest N, for independent latent functions.
- *celerite2* has gradients in its jax and PyMC interfaces only; this is the jax one. Its Matérn kernel is an
  approximation, whose log likelihood and gradient are within {AGREEMENT:.0e} of ours, relative. *smolgp* runs its
  sequential solver for all series side by side (`jax.vmap`): for 100,000 points its parallel solver took three times
  as long on one core, and a loop over series 1.4 times. Compiling is not counted. All run on as many cores as torch has
  threads.
- *The peers do less*: a log likelihood needs a filter alone, a training step needs the smoother too.
- *A run that is stopped* goes on when it is started again. What it has measured is in `markov.jsonl`, which is deleted
  at the end."""


def growth_table(costs: Costs) -> str:
    rows = [
        [str(kind), work, f"{N:,}", spread(seconds, duration), f"{size(memory.added)} ({size(memory.peak)})"]
        for kind, works in costs.items()
        for work, cells in works.items()
        for N, (seconds, memory) in cells.items()
    ]
    return table(["latent functions", "", "N", "time", "memory"], rows)


def peers_table(beside: dict[str, Spread]) -> str:
    rows = [
        [name, spread(seconds, duration), spread(beside[OURS] / seconds, "{:.2f}".format) if name != OURS else "1"]
        for name, seconds in beside.items()
    ]
    return table(["value and gradient", "time", "ours over it"], rows)


def batch_table(batches: dict[Kind, dict[str, Spread]], sizes: Sizes) -> str:
    rows = [
        [
            str(kind),
            *(spread(times[name], duration) for name in (BATCH, ONE_BY_ONE)),
            spread(times[BATCH] / times[ONE_BY_ONE], "{:.3f}".format),
        ]
        for kind, times in batches.items()
    ]
    return table([f"{sizes.batch[0]} tasks of {sizes.batch[1]} points", BATCH, ONE_BY_ONE, "ratio"], rows)


def crossing_table(crossings: dict[Kind, Crossing]) -> str:
    rows = [
        [
            str(kind),
            f"{N:,}",
            *(spread(times[name], duration) for name in (MARKOV, DENSE)),
            spread(times[MARKOV] / times[DENSE], "{:.3g}".format),
        ]
        for kind, crossing in crossings.items()
        for N, times in crossing.items()
    ]
    return table(["latent functions", "N", MARKOV, DENSE, "ratio"], rows)


def growth_goals(works: dict[str, dict[int, Cost]]) -> list[Goal]:
    goals = []
    for work, cells in works.items():
        ends = sorted(cells)[-2:]
        for what, values in (
            ("time", [cells[N][0].median for N in ends]),
            ("memory", [cells[N][1].added for N in ends]),
        ):
            exponent = Spread((slope(ends, values),))
            goals.append(Goal(f"exponent of {what} from N = {ends[0]:,} to {ends[1]:,}, {work}", exponent, EXPONENT))
    largest = ends[-1]
    (step, memory), (alone, _) = works[STEP][largest], works[RECURSION][largest]
    peak = Spread((memory.peak / GIB,))
    return [
        *goals,
        Goal(f"N = {largest:,}: seconds of the {RECURSION} and its gradient", alone, RECURSION_SECONDS, unit=" s"),
        Goal(f"N = {largest:,}: seconds of a {STEP}", step, STEP_SECONDS, unit=" s"),
        Goal(f"N = {largest:,}: peak memory of the process of a {STEP}", peak, STEP_GIB, unit=" GiB"),
    ]


def draw(costs: Costs, crossings: dict[Kind, Crossing]) -> Figure:
    figure = Figure(figsize=(12, 4.6), layout="constrained")
    left, middle, right = figure.subplots(1, 3)
    for color, (kind, works) in zip(COLOURS, costs.items(), strict=False):
        for work, line, marker in ((STEP, "-", "o"), (PREDICTION, "--", "s"), (RECURSION, ":", "D")):
            if work not in works:
                continue
            cells = works[work]
            style = {"color": color, "linestyle": line, "marker": marker, "markersize": 4, "label": f"{kind}: {work}"}
            left.plot(list(cells), [seconds.median for seconds, _ in cells.values()], **style)
            middle.plot(list(cells), [memory.added / GIB for _, memory in cells.values()], **style)
    for axes, cost in ((left, 0), (middle, 1)):
        cells = costs[INDEPENDENT][STEP]
        largest = max(cells)
        top = cells[largest][0].median if cost == 0 else cells[largest][1].added / GIB
        _draw_slope(axes, sorted(cells), top)
    for color, (kind, crossing) in zip(COLOURS, crossings.items(), strict=False):
        for name, line, marker in ((MARKOV, "-", "o"), (DENSE, "--", "s")):
            medians = [times[name].median for times in crossing.values()]
            style = {"color": color, "linestyle": line, "marker": marker, "markersize": 4}
            right.plot(list(crossing), medians, label=f"{name}, {kind}", **style)
    left.set(ylabel="seconds", title="Time")
    middle.set(ylabel="peak memory (GiB)", title="Memory")
    right.set(ylabel="seconds of a training step", title="Markov and dense")
    for axes in (left, middle, right):
        axes.set(xscale="log", yscale="log", xlabel="N, points")
        axes.grid(alpha=0.3)
    right.set_xticks(list(next(iter(crossings.values()))))
    right.xaxis.set_major_formatter("{x:g}")
    right.xaxis.set_minor_locator(NullLocator())
    right.legend(fontsize="small")
    figure.legend(*left.get_legend_handles_labels(), loc="outside lower left", ncols=4, fontsize="small")
    return figure


def _draw_slope(axes: Axes, sizes: Sequence[int], top: float) -> None:
    """A line of slope 1 through the last point."""
    line = [top * N / sizes[-1] for N in sizes]
    axes.plot(sizes, line, color="black", linewidth=0.8, linestyle="-.", label="slope 1")
