"""What the training loop adds to a bare step, and what padding costs."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import cycle
from pathlib import Path
from typing import Any

import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from gpytorch_sgpvae import Context

from ..contestants import Step, make_model, training_step
from ..measure import Spread, interleave
from ..shapes import Shape, make_data
from ..study import COLOURS, Goal, Options, Report, duration, number, spread, table

# Lightning is imported where it is used: other studies measure the memory of processes that import this package.

BATCH_SIZE = 8
BATCHES_PER_EPOCH = 16
# Rounds for each one that was asked for: what is looked for is smaller than what a shared machine does to a step.
ROUNDS = 5
LEARNING_RATE = 1e-3
LIMIT = 1.10

BARE, LOOP, CHECKPOINT = "bare step", "training loop", "checkpoint"


@dataclass(frozen=True)
class Case:
    """
    :param workers: Workers of the loader.
    :param log_every: Steps between two rows of the log.
    """

    name: str
    dtype: torch.dtype = torch.float64
    workers: int = 0
    log_every: int = 1


CASES = (
    Case("float64"),
    Case("float64, 2 workers", workers=2),
    Case("float64, logs each 50th step", log_every=50),
    Case("float32", torch.float32),
)
UNGROUPED, GROUPED = "mixed", "grouped by length"


def run(options: Options) -> Report:
    shape = options.weather
    times = {case.name: time_loop(shape, case, ROUNDS * options.repeats) for case in CASES}
    ragged = time_epochs(shape, options)
    ratios = {name: measured[LOOP] / measured[BARE] for name, measured in times.items()}
    epoch_ratio = ragged.seconds[GROUPED] / ragged.seconds[UNGROUPED]
    rows_ratio = (1 - ragged.padding[UNGROUPED]) / (1 - ragged.padding[GROUPED])
    goals = [
        Goal(f"{name}: loop over bare step", ratios[name], LIMIT if name == "float64" else None) for name in ratios
    ]
    goals.append(Goal("epoch of tasks grouped by length over one of mixed tasks", epoch_ratio))
    return Report(
        title="What the training loop adds",
        text=f"""The weather shape (N = {shape.num_points:,}) in batches of {BATCH_SIZE}. A *bare step* is `model.loss`
of a ready-made `Context` with one sample, backward, and Adam. An iteration of the *training loop* is all that
Lightning's `Trainer` does from one batch to the next: an `SGPVAEModule` with one sample too, a `TaskLoader` that reads,
pads and collates, the check for bad steps, the learning rates, the curves, and a row for a log in CSV format, here of
every step unless it says otherwise. There are no validation and no progress bar. The two run by turns in the same
thread of one process, with the trainer held where a batch has arrived: {ROUNDS * options.repeats} rounds in which each
has one turn, in an order drawn anew. Ratios are taken round by round. The ends of epochs, each {BATCHES_PER_EPOCH}
steps, fall into some rounds: "all rounds" has the ratio of the sums. A checkpoint, which is written each 100 steps by
default, has a turn of its own and is no part of the ratios.""",
        tables=[
            make_loop_table(times, ratios),
            f"""**Padding.** {ragged.num_tasks} tasks with lengths uniform from {ragged.lengths[0]} to
{ragged.lengths[1]:,}, in batches of {BATCH_SIZE} padded to their longest; an epoch of bare steps in float64, in
{options.repeats} rounds after one that does not count. With `group_by_length`
there are {number(100 * (1 - rows_ratio))} % fewer rows.""",
            table(
                ["batches", "rows that are padding", "an epoch of bare steps", "a step"],
                [
                    [
                        name,
                        f"{ragged.padding[name]:.1%}",
                        spread(seconds, duration),
                        duration(seconds.median / ragged.num_steps),
                    ]
                    for name, seconds in ragged.seconds.items()
                ],
            ),
        ],
        goals=goals,
        figures={
            "batch_size": BATCH_SIZE,
            "seconds": times,
            "padding": ragged.padding,
            "lengths": ragged.lengths,
            "steps_per_epoch": ragged.num_steps,
            "seconds_per_epoch": ragged.seconds,
        },
        figure=draw(ratios, ragged),
    )


def time_loop(shape: Shape, case: Case, rounds: int) -> dict[str, Spread]:
    """Seconds of a bare step, of an iteration of the training loop, and of a checkpoint."""
    from gpytorch_sgpvae.training import SGPVAEModule, TaskDataset, TaskLoader, make_trainer
    from gpytorch_sgpvae.training.quiet import quiet_lightning

    from ..turns import Turns, take_turns

    x, y = make_data(shape, BATCH_SIZE * BATCHES_PER_EPOCH, case.dtype)
    contexts = [Context(*batch) for batch in zip(x.split(BATCH_SIZE), y.split(BATCH_SIZE), strict=True)]
    loader = TaskLoader(
        TaskDataset(list(zip(x, y, strict=True))),
        BATCH_SIZE,
        num_workers=case.workers,
        persistent_workers=case.workers > 0,
    )
    module = SGPVAEModule(make_model(shape, case.dtype), learning_rate=LEARNING_RATE, num_samples=1)
    bare = bare_steps(shape, contexts, case.dtype)
    with tempfile.TemporaryDirectory() as folder, quiet_lightning():

        def fit(turns: Any) -> None:
            trainer = make_trainer(
                folder,
                log="csv",
                max_epochs=-1,
                accelerator="cpu",
                log_every_n_steps=case.log_every,
                enable_progress_bar=False,
                callbacks=[turns],
            )
            trainer.fit(module, loader)

        def drive(turns: Turns) -> dict[str, Spread]:
            contestants = {
                BARE: turns.other(bare),
                LOOP: turns.step,
                CHECKPOINT: turns.other(lambda: module.trainer.save_checkpoint(Path(folder) / "timed.ckpt")),
            }
            return interleave(contestants, rounds, description=case.name)

        return take_turns(fit, drive)


def bare_steps(shape: Shape, contexts: Sequence[Context], dtype: torch.dtype = torch.float64) -> Step:
    """Each call is a step with the next of the contexts."""
    model, batches = make_model(shape, dtype), cycle(contexts)
    return training_step(model.parameters(), lambda: model.loss(next(batches)), LEARNING_RATE)


@dataclass(frozen=True)
class Ragged:
    """
    Epochs of tasks of unequal length, with and without grouping.

    :param lengths: Shortest and longest.
    :param padding: Fraction of rows.
    :param seconds: Seconds of an epoch.
    """

    num_tasks: int
    num_steps: int
    lengths: tuple[int, int]
    padding: dict[str, float]
    seconds: dict[str, Spread]


def time_epochs(shape: Shape, options: Options) -> Ragged:
    from gpytorch_sgpvae.training import TaskDataset, TaskLoader

    num_tasks = (4 if options.quick else 25) * BATCH_SIZE
    shortest, longest = 5 if options.quick else 100, shape.num_points
    lengths = torch.randint(shortest, longest + 1, (num_tasks,), generator=torch.Generator().manual_seed(0)).tolist()
    x, y = make_data(shape, num_tasks)
    dataset = TaskDataset([(x[i, :length], y[i, :length]) for i, length in enumerate(lengths)])
    loaders = {
        name: TaskLoader(dataset, BATCH_SIZE, group_by_length=grouped)
        for name, grouped in ((UNGROUPED, False), (GROUPED, True))
    }
    epochs = {name: bare_epoch(shape, [batch.context for batch in loader]) for name, loader in loaders.items()}
    return Ragged(
        num_tasks,
        num_tasks // BATCH_SIZE,
        (shortest, longest),
        {name: loader.sampler.padding() for name, loader in loaders.items()},
        interleave(epochs, options.repeats, warmup=1, description="padding"),
    )


def bare_epoch(shape: Shape, contexts: Sequence[Context]) -> Step:
    step = bare_steps(shape, contexts)

    def epoch() -> None:
        for _ in contexts:
            step()

    return epoch


def make_loop_table(times: dict[str, dict[str, Spread]], ratios: dict[str, Spread]) -> str:
    rows = []
    for name, measured in times.items():
        loop, bare = measured[LOOP], measured[BARE]
        together = sum(loop.values) / sum(bare.values)
        cells = [spread(bare, duration), spread(loop, duration), spread(ratios[name], "{:.3f}".format)]
        rows.append([name, *cells, f"{together:.3f}", spread(measured[CHECKPOINT], duration)])
    return table(["", BARE, LOOP, "loop over bare", "all rounds", CHECKPOINT], rows)


def draw(ratios: dict[str, Spread], ragged: Ragged) -> Figure:
    figure = Figure(figsize=(9, 3.6), layout="constrained")
    left, right = figure.subplots(1, 2, width_ratios=(3, 2))
    _draw_ratios(left, ratios)
    for i, (name, seconds) in enumerate(ragged.seconds.items()):
        lower, upper = seconds.quartiles
        error = [[seconds.median - lower], [upper - seconds.median]]
        right.bar(i, seconds.median, yerr=error, width=0.6, color=COLOURS[i])
        label = f"{ragged.padding[name]:.0%}\npadding"
        right.text(i, 0.5 * seconds.median, label, ha="center", va="center", color="white")
    right.set_xticks(range(len(ragged.seconds)), list(ragged.seconds))
    right.set(ylabel="seconds per epoch of bare steps", title="Tasks of unequal length")
    right.grid(axis="y", alpha=0.3)
    right.set_axisbelow(True)
    return figure


def _draw_ratios(axes: Axes, ratios: dict[str, Spread]) -> None:
    for row, (ratio, colour) in enumerate(zip(ratios.values(), COLOURS, strict=False)):
        lower, upper = ratio.quartiles
        axes.plot(ratio.values, [row] * len(ratio.values), "|", color=colour, alpha=0.35)
        error = [[ratio.median - lower], [upper - ratio.median]]
        axes.errorbar(ratio.median, row, xerr=error, fmt="o", color=colour, capsize=3)
    axes.axvline(1.0, color="black", linewidth=0.8)
    axes.axvline(LIMIT, color="black", linestyle="--", linewidth=0.8, label=f"target: {LIMIT:.2f}")
    axes.set_yticks(range(len(ratios)), list(ratios))
    axes.invert_yaxis()
    axes.set(xlabel="loop over bare step, round by round", title="The training loop")
    axes.grid(axis="x", alpha=0.3)
    axes.legend()
