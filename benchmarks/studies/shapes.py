"""One step at the paper's sizes: this package, the authors', GPyTorch's SVGP, and the products alone."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from matplotlib.figure import Figure

from ..authors import AVAILABLE, HOW_TO_GET_IT, authors
from ..contestants import NUM_PRODUCTS, Step, ours, products, svgp
from ..measure import Spread, interleave
from ..shapes import Shape
from ..study import COLOURS, Goal, Options, Report, duration, spread, table

TASKS = 8

OURS, FLOAT32, BATCH, SHARED = "this package", "float32", f"T = {TASKS}", f"T = {TASKS}, x shared"
AUTHORS, SVGP, PRODUCTS = "authors", "SVGP", f"{NUM_PRODUCTS} products"


@dataclass(frozen=True)
class Targets:
    """
    :param speedup: Over the authors' package, at least.
    :param batch: A step of a batch over as many single steps, at most.
    :param float32: Speedup over float64, at least.
    :param over_svgp: A step over one of GPyTorch's SVGP, at most.
    :param over_products: A step over its products, at most.
    """

    speedup: float
    batch: float = 1.05
    float32: float | None = None
    over_svgp: float | None = None
    over_products: float | None = None


TARGETS = {
    "weather": Targets(50.0, batch=0.8, float32=1.6, over_svgp=1.6, over_products=2.5),
    "eeg-large": Targets(5.0, float32=1.6, over_svgp=1.6, over_products=2.5),
    "balls": Targets(1.2),
    "eeg": Targets(4.0, float32=1.6),
    "jura": Targets(4.0),
}


def run(options: Options) -> Report:
    times = {
        key: interleave(make_contestants(shape), options.repeats, description=shape.name)
        for key, shape in options.shapes.items()
    }
    goals = [goal for key, shape in options.shapes.items() for goal in make_goals(shape.name, times[key], TARGETS[key])]
    notes = (
        "SVGP and the products have no inference network: for large EEG half of a step is the network's, for two balls "
        "nearly all of it, which therefore has no targets beside them."
    )
    return Report(
        title="One training step",
        text=f"""An ELBO with one sample, backward, and Adam, of one task in float64 unless it says otherwise. Medians
and quartiles of rounds in which everybody runs once; ratios are taken round by round. "{SVGP}" is GPyTorch's own
`VariationalStrategy` with the same decoder, "{PRODUCTS}" are those of (M x M)(M x N) that automatic
differentiation takes for a step, per latent function; this package needs seven.""",
        tables=[make_table(options.shapes, times)],
        goals=goals,
        notes=notes if AVAILABLE else f"{notes}\n\n{HOW_TO_GET_IT}",
        figures={"seconds": times},
        figure=draw(options.shapes, times),
    )


def make_contestants(shape: Shape) -> dict[str, Step]:
    contestants = {
        OURS: ours(shape),
        FLOAT32: ours(shape, dtype=torch.float32),
        BATCH: ours(shape, TASKS),
        SHARED: ours(shape, TASKS, shared_inputs=True),
    }
    if AVAILABLE:
        contestants[AUTHORS] = authors(shape)
    if shape.num_inducing is not None:
        contestants[SVGP] = svgp(shape)
        contestants[PRODUCTS] = products(shape)
    return contestants


def make_goals(name: str, times: dict[str, Spread], targets: Targets) -> list[Goal]:
    single = times[OURS]
    goals = []
    if AUTHORS in times:
        goals.append(Goal(f"{name}: faster than the authors", times[AUTHORS] / single, targets.speedup, True, "x"))
    over_singles = f"{name}: {BATCH} over {TASKS} single steps"
    goals += [
        Goal(over_singles, times[BATCH] / single / TASKS, targets.batch),
        Goal(f"{over_singles}, x shared", times[SHARED] / single / TASKS),
        Goal(f"{name}: float32 faster than float64", single / times[FLOAT32], targets.float32, True, "x"),
    ]
    if SVGP in times:
        goals += [
            Goal(f"{name}: over GPyTorch's SVGP", single / times[SVGP], targets.over_svgp, unit="x"),
            Goal(f"{name}: over {PRODUCTS}", single / times[PRODUCTS], targets.over_products, unit="x"),
        ]
    return goals


def make_table(shapes: dict[str, Shape], times: dict[str, dict[str, Spread]]) -> str:
    columns = [OURS, AUTHORS, SVGP, PRODUCTS, FLOAT32, BATCH, SHARED]
    columns = [column for column in columns if any(column in row for row in times.values())]
    rows = []
    for key, shape in shapes.items():
        sizes = [shape.num_points, shape.num_outputs, shape.num_latents, shape.num_inducing or "-"]
        cells = [spread(times[key][column], duration) if column in times[key] else "" for column in columns]
        rows.append([shape.name, *map(str, sizes), *cells])
    return table(["", "N", "P", "K", "M", *columns], rows)


def draw(shapes: dict[str, Shape], times: dict[str, dict[str, Spread]]) -> Figure:
    figure = Figure(figsize=(9, 1.2 + 0.9 * len(shapes)), layout="constrained")
    axes = figure.subplots()
    columns = [AUTHORS, OURS, FLOAT32, BATCH, SHARED, SVGP, PRODUCTS]
    for i, (column, colour) in enumerate(zip(columns, COLOURS, strict=True)):
        tasks = TASKS if column in (BATCH, SHARED) else 1
        per_task = {row: times[key][column] / tasks for row, key in enumerate(shapes) if column in times[key]}
        axes.errorbar(
            [measured.median for measured in per_task.values()],
            [row + 0.1 * (i - 3) for row in per_task],
            xerr=_error_bars(list(per_task.values())),
            fmt="osDv^<>"[i],
            color=colour,
            label=f"{column}, per task" if tasks > 1 else column,
        )
    axes.set(xscale="log", xlabel="seconds per step", title="One training step")
    axes.set_yticks(range(len(shapes)), [shape.name for shape in shapes.values()])
    axes.invert_yaxis()
    axes.grid(axis="x", alpha=0.3)
    figure.legend(loc="outside right upper")
    return figure


def _error_bars(measured: list[Spread]) -> list[list[float]]:
    return [[s.median - s.quartiles[0] for s in measured], [s.quartiles[1] - s.median for s in measured]]
