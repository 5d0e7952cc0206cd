"""Training on windows of a table, for some minutes at most, until held-out entries are predicted no better."""

from __future__ import annotations

import logging
import math
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

import gpytorch
import numpy as np
import torch
import torch.distributed
from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.utilities import rank_zero_only
from torch import Tensor
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LambdaLR
from tqdm import tqdm

from .. import metrics
from ..training import FinishStepOnInterrupt, SGPVAEModule, TaskDataset, TaskLoader, make_trainer
from ..training.quiet import quiet_lightning
from .blocks import Question, window
from .epochs import EpochLoader, EpochWindows
from .errors import TableWarning
from .fitted import FittedTable
from .model import for_windows, network_of
from .plan import Plan
from .reading import TaskTable

logger = logging.getLogger(__name__)

# The learning rate of Adam, which falls to zero by a cosine.
LEARNING_RATE = 3e-2
# Steps of a whole training; of a sparse model, whose inducing points move too, more.
NUM_STEPS = {"markov": 200, "dense": 160, "sparse": 400}
# The share of these steps of a training that goes on from where another ended.
CONTINUED_STEPS = 0.25
# Known entries of a window: over time, where a step has many short ones, in space, and with inducing points.
WINDOW_ENTRIES = {"markov": 480, "dense": 900, "sparse": 4000}
# Rows of a window over time, and windows in a step.
FEWEST_ROWS, MOST_ROWS, WINDOWS_IN_STEP = 16, 480, 8
# Small tasks share a step, up to this many.
MOST_TASKS_IN_STEP = 16
# How often held-out entries are predicted, and how often in a row without getting better before it stops.
NUM_VALIDATIONS, PATIENCE = 8, 3
# A score that is lower by less than this share is not better.
LEAST_GAIN = 1e-3
# Rows over time, and questions of other models, that validation looks at.
VALIDATION_ROWS, VALIDATION_STRETCHES, VALIDATION_QUESTIONS = 600, 5, 4
# The usual budget, in minutes: for a small table, for this many rows more, and at the most.
FEWEST_MINUTES, ROWS_PER_MINUTE, MOST_MINUTES = 1.0, 20_000, 10.0
# The part of the budget in which the clock decides nothing: the first steps are slower than the others.
FREE_TIME = 0.25


def usual_minutes(num_rows: int) -> float:
    """How long the training of a table may take, if nobody says."""
    return min(MOST_MINUTES, FEWEST_MINUTES + num_rows / ROWS_PER_MINUTE)


@dataclass
class Budget:
    """
    How far a training has got, by its steps or by the clock, whichever is further. The clock counts from a part of the
    time on: with a machine that is fast enough it decides nothing, and the same seed gives the same model.

    :param num_steps: Steps of the whole training.
    :param minutes: Minutes of it, at the most.
    :param told: Minutes since it began by the clock of the first of several processes, which must agree.
    """

    num_steps: int
    minutes: float
    step: int = 0
    began: float | None = None
    told: float | None = None

    @property
    def elapsed(self) -> float:
        """Minutes since it began, 0 before."""
        return self.measured if self.told is None else self.told

    @property
    def measured(self) -> float:
        """The same by the clock of this process."""
        return 0.0 if self.began is None else (time.monotonic() - self.began) / 60

    @property
    def progress(self) -> float:
        """The part of the training that is done, from 0 to 1."""
        by_clock = (self.elapsed / self.minutes - FREE_TIME) / (1 - FREE_TIME)
        return min(1.0, max(self.step / self.num_steps, by_clock))

    @property
    def is_late(self) -> bool:
        """Whether the time is up."""
        return self.elapsed >= self.minutes


def train(
    fitted: FittedTable,
    table: TaskTable,
    hidden: np.ndarray,
    batch_size: int | None,
    max_epochs: int | None,
    max_minutes: float,
    seed: int,
    progress: bool,
    further: Callable[[int], TaskTable | None] | None = None,
    devices: int = 1,
    num_nodes: int = 1,
    continued: bool = False,
) -> list[dict[str, float]]:
    """
    Train until the held-out entries are predicted no better, or until the time is up, and leave the model as it was
    when they were predicted best.

    :param fitted: The model and what belongs to it.
    :param table: All that is known.
    :param hidden: Which entries training does not see (`N x P`).
    :param batch_size: Windows in a step, if not the usual number.
    :param max_epochs: Rounds over the windows at the most, instead of the usual number of steps.
    :param max_minutes: Minutes at the most.
    :param further: What later epochs are trained on, by their numbers from 1; by default the same table.
    :param devices: Processes of each node that share the windows of a step.
    :param num_nodes: Machines with that many processes.
    :param continued: Whether the model was trained before.
    :return: The scores of each validation.
    """
    model, plan = fitted.model, fitted.plan
    shown = replace(table, y=np.where(hidden, np.nan, table.y))
    dataset, usual_size = training_windows(fitted, shown)
    processes = devices * num_nodes
    batch_size = -(-(batch_size or usual_size) // processes)  # of each process
    if further is not None:
        dataset = EpochWindows(dataset, lambda epoch: _windows_of(fitted, further(epoch)))
    steps_per_epoch = -(-len(dataset) // (batch_size * processes))
    usual_steps = round(NUM_STEPS[plan.kind] * (CONTINUED_STEPS if continued else 1.0))
    num_steps = usual_steps if max_epochs is None else max_epochs * steps_per_epoch
    budget = Budget(num_steps, max_minutes)
    scorer = Scorer(fitted, shown, table, hidden, seed)
    monitor = Monitor(budget, scorer, max(1, num_steps // NUM_VALIDATIONS), steps_per_epoch, progress)
    network = network_of(model)
    rates = {"hyperparameters": LEARNING_RATE, "inducing_points": LEARNING_RATE / 3, "networks": LEARNING_RATE}
    module = SGPVAEModule(
        for_windows(model, plan),
        learning_rate=rates,
        schedule=partial(_schedule, budget=budget),
        num_samples=4 if any(parameter.requires_grad for parameter in network.parameters()) else 1,
        max_skipped_steps=20,
    )
    device = next(model.parameters()).device
    with quiet_lightning(), gpytorch.settings.debug(False):
        trainer = make_trainer(
            None,
            max_steps=num_steps,
            max_epochs=-1,
            limit_val_batches=0,
            num_sanity_val_steps=0,
            enable_progress_bar=False,
            gradient_clip_val=1e3,
            log_every_n_steps=max(1, num_steps),
            accelerator="gpu" if device.type == "cuda" else device.type,
            devices=[device.index or 0] if device.type == "cuda" and processes == 1 else devices,
            num_nodes=num_nodes,
            strategy="ddp_find_unused_parameters_true" if processes > 1 else "auto",
            callbacks=[monitor],
        )
        make_loader = TaskLoader if further is None else EpochLoader
        trainer.fit(module, make_loader(dataset, batch_size, group_by_length=True, seed=seed))
    monitor.finish(module)
    if processes > 1:  # what is computed after this, by one process or by all, is no common work
        torch.distributed.destroy_process_group()
    if any(isinstance(callback, FinishStepOnInterrupt) and callback.interrupted for callback in trainer.callbacks):
        warnings.warn(
            f"The training was interrupted after {budget.step} of {num_steps} steps: the model is the best so far. Fit "
            "again for a better one.",
            TableWarning,
            stacklevel=3,
        )
    return monitor.history


def _windows_of(fitted: FittedTable, shown: TaskTable | None) -> TaskDataset | None:
    """The windows of a sample, or None if nothing is known in it."""
    if shown is None or np.isnan(shown.y).all():
        return None
    return training_windows(fitted, shown)[0]


def training_windows(fitted: FittedTable, shown: TaskTable) -> tuple[TaskDataset, int]:
    """
    The tasks that a model learns from: stretches of the series over time, or sets of rows that are near each other.

    :param fitted: The model and what belongs to it.
    :param shown: What is known of the table, but for held-out entries.
    :return: The windows, and how many of them belong in a step.
    """
    plan = fitted.plan
    targets = shown.y - fitted.trend.at(shown)[0]
    known = ~np.isnan(shown.y)
    tasks = []
    for rows in shown.rows:
        rows = rows[known[rows].any(1)]
        if len(rows):
            tasks.append((shown.x[rows], targets[rows]))
    if plan.kind == "markov":
        pairs = [(fitted.as_tensor(x), fitted.as_tensor(y)) for x, y in tasks]
        known_in_row = known.sum() / max(known.any(1).sum(), 1)
        length = int(np.clip(WINDOW_ENTRIES[plan.kind] / known_in_row, FEWEST_ROWS, MOST_ROWS))
        windows = TaskDataset(pairs).windows(length, time_column=plan.time or 0)
        return windows, min(WINDOWS_IN_STEP * length // max(windows.lengths), MOST_TASKS_IN_STEP)
    most = WINDOW_ENTRIES[plan.kind]
    functions, lengths = [], []
    for x, y in tasks:
        counts = (~np.isnan(y)).sum(1)
        number = max(1, round(counts.sum() / most))
        functions += [partial(_draw_window, fitted, x, y, counts, most)] * number
        lengths += [max(1, len(x) // number)] * number
    dataset = TaskDataset(functions, lengths=lengths)
    typical = min(most, float(np.median([(~np.isnan(y)).sum() for _, y in tasks])))
    # the cost of a task is cubic in its entries, and never below that of the calls
    return dataset, int(np.clip((most / max(typical, 1.0)) ** 1.5, 1, MOST_TASKS_IN_STEP))


def _draw_window(
    fitted: FittedTable, x: np.ndarray, y: np.ndarray, counts: np.ndarray, most: float
) -> tuple[Tensor, Tensor]:
    random = np.random.default_rng(int(torch.randint(2**62, (), device="cpu")))
    rows = window(x, counts, fitted.lengthscales, most, random)
    return fitted.as_tensor(x[rows]), fitted.as_tensor(y[rows])


def _schedule(optimizer: Optimizer, num_steps: int, budget: Budget) -> LambdaLR:
    def factor(step: int) -> float:
        warmup = min(1.0, (step + 1) / (0.05 * budget.num_steps + 1))
        return warmup * 0.5 * (1 + math.cos(math.pi * budget.progress))

    return LambdaLR(optimizer, factor)


class Scorer:
    """
    How well held-out entries are predicted: the mean over the outputs of the continuous ranked probability score of
    their targets, where these are Gaussian, and of minus the log probability of others.

    :param fitted: The model and what belongs to it.
    :param shown: What is known of the table, but for held-out entries.
    :param table: All that is known.
    :param hidden: Which entries are held out (`N x P`).
    :param seed: Seed of which of them are looked at.
    """

    def __init__(self, fitted: FittedTable, shown: TaskTable, table: TaskTable, hidden: np.ndarray, seed: int):
        self.fitted, self.table = fitted, table
        self.truth = np.where(hidden, table.y, np.nan)
        random = np.random.default_rng(seed)
        self.questions = self._choose(shown, np.flatnonzero(hidden.any(1)), random)

    def _choose(self, shown: TaskTable, rows: np.ndarray, random: np.random.Generator) -> list[Question]:
        """Some of the questions that all held-out entries would be, or of stretches of the series."""
        plan = self.fitted.plan
        if plan.kind == "markov":
            shown = replace(shown, rows=_some_stretches(shown, rows, plan, random))
            inside = np.concatenate(shown.rows)
            rows = rows[np.isin(rows, inside)]
        questions = list(self.fitted.questions(shown, shown, rows))
        if plan.kind == "dense" and len(questions) > VALIDATION_QUESTIONS:
            questions = [questions[i] for i in random.permutation(len(questions))[:VALIDATION_QUESTIONS]]
        return questions

    @torch.no_grad()
    def __call__(self) -> dict[str, float]:
        """The scores: `val_score`, and the mean absolute error and coverage of targets."""
        fitted, table = self.fitted, self.table
        columns = fitted.reader.outputs.columns
        scores, errors, inside = [], [], []
        for x, y, numbers, asked in self.questions:
            mean, variance = fitted.moments_of(x, y, numbers)
            prediction, truth = fitted.prediction_of(table, asked, mean, variance, as_targets=True), self.truth[asked]
            targets = fitted.as_tensor(truth - fitted.trend.at(table, asked)[0] * fitted.is_gaussian)
            moments = prediction.mean, prediction.stddev
            gaussian = metrics.gaussian_crps(*moments, targets)
            others = -prediction.log_prob(targets)
            is_gaussian = torch.as_tensor(fitted.is_gaussian, device=mean.device)
            scores.append(torch.where(is_gaussian, gaussian, others))
            errors.append((targets - moments[0]).abs())
            inside.append(torch.where(targets.isnan(), torch.nan, (errors[-1] < 1.96 * moments[1]).to(targets.dtype)))
        if not scores:
            return {}
        by_output = torch.cat(scores).nanmean(0)  # (P,)
        numbers_only = torch.tensor([column.is_number for column in columns], device=by_output.device)
        return {
            "val_score": float(by_output.nanmean()),
            "val_mae": float(torch.cat(errors)[:, numbers_only].nanmean()) if bool(numbers_only.any()) else math.nan,
            "val_coverage": float(torch.cat(inside)[:, numbers_only].nanmean())
            if bool(numbers_only.any())
            else math.nan,
        }


def _some_stretches(shown: TaskTable, rows: np.ndarray, plan: Plan, random: np.random.Generator) -> list[np.ndarray]:
    """Rows of some tasks, or of some stretches of time, around held-out entries; in the order of the tasks."""
    assert plan.time is not None
    is_hidden = np.zeros(len(shown.x), dtype=bool)
    is_hidden[rows] = True
    pieces: list[tuple[int, np.ndarray]] = []
    for number, task_rows in enumerate(shown.rows):
        order = task_rows[np.argsort(shown.x[task_rows, plan.time], kind="stable")]
        number_of_pieces = max(1, round(len(order) / VALIDATION_ROWS))
        pieces += [(number, piece) for piece in np.array_split(order, number_of_pieces) if is_hidden[piece].any()]
    chosen = [pieces[i] for i in random.permutation(len(pieces))]
    total, found = 0, []
    for _, piece in chosen:
        found.append(piece)
        total += len(piece)
        if total >= VALIDATION_ROWS * VALIDATION_STRETCHES:
            break
    return found


class Monitor(Callback):
    """
    Keeps the parameters with which held-out entries were predicted best, and the scores; ends the training when they
    get no better or the time is up; shows how far it is.

    :param budget: Steps and minutes.
    :param scorer: What predicts held-out entries.
    :param interval: Steps from one validation to the next.
    :param steps_per_epoch: Steps of a round over the windows.
    :param progress: Whether to show a bar.
    """

    def __init__(self, budget: Budget, scorer: Scorer, interval: int, steps_per_epoch: int, progress: bool):
        self.budget, self.scorer, self.interval, self.steps_per_epoch = budget, scorer, interval, steps_per_epoch
        self.history: list[dict[str, float]] = []
        self.best, self.waited = math.inf, 0
        self.state: dict[str, Tensor] | None = None
        self.bar = tqdm(
            total=100,
            desc="fit",
            disable=not progress or rank_zero_only.rank > 0,
            bar_format="{desc}: {n:.0f} % |{bar}| {elapsed}{postfix}",
        )

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self.budget.began = time.monotonic()
        self._validate(trainer, pl_module)

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: object, batch: object, batch_idx: int
    ) -> None:
        self.budget.step = trainer.global_step
        if trainer.world_size > 1:
            self.budget.told = trainer.strategy.broadcast(self.budget.measured)
        is_last = self.budget.progress >= 1
        if trainer.global_step % self.interval == 0 or is_last:
            self._validate(trainer, pl_module)
            if self.waited >= PATIENCE:
                trainer.should_stop = True
        self.bar.update(100 * self.budget.progress - self.bar.n)
        if self.budget.is_late and trainer.global_step < self.budget.num_steps:
            logger.info(
                "The training stops after %d of %d steps: %.1f minutes are over. A larger max_minutes may fit better.",
                trainer.global_step,
                self.budget.num_steps,
                self.budget.minutes,
            )
            trainer.should_stop = True

    def _validate(self, trainer: Trainer, module: LightningModule) -> None:
        module.eval()
        scores = self.scorer()
        if trainer.world_size > 1:  # all of them stop at the same step, and keep the same parameters
            scores = trainer.strategy.broadcast(scores)
        module.train()
        elbo = trainer.callback_metrics.get("train_elbo")
        self.history.append(
            {
                "epoch": trainer.global_step / self.steps_per_epoch,
                "step": float(trainer.global_step),
                "minutes": self.budget.elapsed,
                "train_elbo": math.nan if elbo is None else float(elbo),
                **scores,
            }
        )
        score = scores.get("val_score", -float(trainer.global_step))
        shown = {"score": f"{score:.4f}", "step": f"{trainer.global_step}/{self.budget.num_steps}"}
        self.bar.set_postfix(shown | {"at most": f"{self.budget.minutes:.1f} min"})
        score = score if math.isfinite(score) else math.inf  # what is not finite is no score to be better than
        self.waited += 1
        if self.state is None or score < self.best - (LEAST_GAIN * abs(self.best) if math.isfinite(self.best) else 0.0):
            self.waited = 0
        if self.state is None or score < self.best:
            self.best = score
            self.state = {name: value.detach().clone() for name, value in module.state_dict().items()}

    def finish(self, module: LightningModule) -> None:
        """Go back to the best parameters."""
        self.bar.update(100 - self.bar.n)
        self.bar.close()
        if self.state is not None:
            module.load_state_dict(self.state)
        module.eval()
