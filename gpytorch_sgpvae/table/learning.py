"""Training on a table: which entries are hidden from whom, and when to stop."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from functools import partial
from typing import Any

import gpytorch
import numpy as np
import torch
from lightning.pytorch import Callback, LightningModule, Trainer
from torch import Tensor
from tqdm import tqdm

from ..context import Context
from ..models import SGPVAE
from ..training import SGPVAEModule, TaskBatch, TaskDataset, TaskLoader, make_trainer
from ..training.quiet import quiet_lightning
from ..utils.seeds import TaskDraws
from .errors import TableError, TableWarning, listed
from .reading import TaskTable

LEARNING_RATE = 2e-2
# Factor of the KL divergence.
BETA = 0.3
# Steps of a whole training, and epochs that it is divided into, at least.
NUM_STEPS = 1500
FEWEST_EPOCHS = 20
# How often hidden entries are predicted, and how often in a row without getting better before it stops.
NUM_VALIDATIONS = 15
PATIENCE = 5
# Samples of the latent functions with which the noise is calibrated, and how many entries its trained value counts for.
CALIBRATION_SAMPLES = 20
CALIBRATION_WEIGHT = 5.0
# A longer task is shown in windows of so many rows: one that is near all others in it.
WINDOW = 2000
# Of the known entries, what fit holds out to see how well it does; in tasks of so many rows together, at most.
HELD_OUT = 0.1
MOST_ROWS_HELD_OUT = 10_000

Task = tuple[Tensor, Tensor]


def training_tasks(table: TaskTable, task: str | None) -> list[tuple[np.ndarray, np.ndarray]]:
    """
    The rows of each task of which anything is known, where there are at least two: x (`N x D`) and y (`N x P`).

    :param table: As it was read.
    :param task: Name of the column that tells the tasks apart.
    """
    known = ~np.isnan(table.y).all(1)
    tasks, short = [], []
    for key, rows in zip(table.keys, table.rows, strict=True):
        if len(rows) == 1:
            short.append(key)
        elif known[rows].sum() > 1:
            tasks.append((table.x[rows[known[rows]]], table.y[rows[known[rows]]]))
    if not tasks and len(short) == len(table.keys):
        raise TableError(
            f"Every task has one row only: the column {task!r} tells all rows apart, and there is nothing to "
            "learn from row to row. Choose a task column that rows share, such as the week or the patient, or none."
        )
    if not tasks:
        raise TableError("No task has two rows with known outputs: there is nothing to learn from.")
    if short:
        warnings.warn(
            f"{len(short)} task{'s have' if len(short) > 1 else ' has'} one row only and nothing to learn from: "
            f"{listed(short[:5])}. It is left out of the training.",
            TableWarning,
            stacklevel=3,
        )
    return tasks


def hold_out(targets: list[np.ndarray], seed: int) -> list[np.ndarray]:
    """
    Entries that training does not see, for each task (`N x P`): a tenth, of as many tasks as have 10,000 rows together.

    :param targets: The outputs of each task (`N x P`).
    :param seed: Of their choice.
    """
    random = np.random.default_rng(seed)
    masks = [np.zeros(y.shape, dtype=bool) for y in targets]
    order, rows = random.permutation(len(targets)), 0
    for i in order:
        masks[i] = ~np.isnan(targets[i]) & (random.random(targets[i].shape) < HELD_OUT)
        rows += len(masks[i])
        if rows >= MOST_ROWS_HELD_OUT:
            break
    if not any(mask.any() for mask in masks):
        first = int(order[0])
        masks[first].ravel()[np.flatnonzero(~np.isnan(targets[first]))[0]] = True
    return masks


class TableModule(SGPVAEModule):
    r"""
    Trains the network for the holes that tables have. In each step, of each task, it is not shown

    * single entries, of each output a fraction that is drawn from 0 to :attr:`MOST_HIDDEN`;
    * two times in three also runs: along one input, a stretch of a tenth to six tenths of its range, of some or all
      outputs, for some of the series along that input (rows that agree in all other inputs), for each of them
      elsewhere or for all in the same place: a station that is silent for three days, a day without any station.

    The likelihood sees all of them.

    :param model: The model.
    :param held_out: For each task, by its number, the entries that training knows nothing of (`N x P`).
    """

    MOST_HIDDEN = 0.6

    def __init__(self, model: SGPVAE, held_out: Sequence[Tensor], **kwargs: Any):
        super().__init__(model, hide=1.0, **kwargs)
        self.held_out = held_out

    def hide(self, context: Context, probability: float, draws: TaskDraws) -> Context:
        num_outputs, input_dim = context.num_outputs, context.x.shape[-1]
        x = context.x.expand(*context.batch_shape, *context.x.shape[-2:])  # (T, N, D)
        # the first row's numbers are the task's
        task = draws.uniform(2 * num_outputs + 7 + input_dim)[:, :1]  # (T, 1, ...)
        rates, chosen, numbers, direction = task.split([num_outputs, num_outputs, 7, input_dim], -1)
        kind, which, width, share, center, together, whole = numbers.split(1, -1)  # (T, 1, 1)
        hidden = draws.uniform(num_outputs) < self.MOST_HIDDEN * rates  # (T, N, P)

        along = torch.nn.functional.one_hot((which * input_dim).long().squeeze(-1), input_dim).bool()  # (T, 1, D)
        position = torch.where(along, x, 0.0).sum(-1, keepdim=True)  # (T, N, 1)
        first = position.amin(1, keepdim=True)
        length = position.amax(1, keepdim=True) - first
        # equal for rows that agree in all other inputs, and as good as random otherwise
        series = torch.where(along, 0.0, x * (0.5 + direction)).sum(-1, keepdim=True)
        in_run = _scatter(series, 12.9898) < share
        middle = torch.where(together < 0.5, center, _scatter(series, 78.233))
        near = (position - first - middle * length).abs() <= 0.5 * (0.1 + 0.5 * width) * length
        run = (kind < 2 / 3) & in_run & near & ((whole < 0.5) | (chosen < 0.5))  # (T, N, P)
        kept = context.observed & ~(hidden | run)
        return Context(context.x, torch.where(kept, context.filled, torch.nan))

    def hide_in_validation(self, batch: TaskBatch, draws: TaskDraws) -> Context:
        context = batch.context
        hidden = torch.zeros_like(context.observed)
        for rows, number in zip(hidden, batch.ids, strict=True):
            mask = self.held_out[number]
            rows[: len(mask)] = mask
        return Context(context.x, torch.where(context.observed & ~hidden, context.filled, torch.nan))


def train(
    model: SGPVAE,
    tasks: Sequence[Task],
    held_out: Sequence[Tensor],
    batch_size: int,
    max_epochs: int | None,
    seed: int,
    progress: bool,
) -> list[dict[str, float]]:
    """
    Train until the held-out entries are predicted no better, and leave the model as it was when they were predicted
    best.

    :param tasks: Pairs of x (`N x D`) and y (`N x P`) with everything that is known.
    :param held_out: Of each, the entries to validate with (`N x P`).
    :return: The scores of each validation.
    """
    numbers = list(range(len(tasks)))
    shown = [(x, torch.where(mask, torch.nan, y)) for (x, y), mask in zip(tasks, held_out, strict=True)]
    steps = -(-len(tasks) // batch_size)
    # an epoch of few steps is several rounds over the tasks
    rounds = max(1, -(-NUM_STEPS // (steps * 8 * NUM_VALIDATIONS)))
    epochs = max_epochs or max(FEWEST_EPOCHS, -(-NUM_STEPS // (steps * rounds)))
    dataset = TaskDataset(
        [_in_windows(*task) for task in shown] * rounds,
        numbers * rounds,
        [min(len(x), WINDOW) for x, _ in shown] * rounds,
    )
    validated = [number for number in numbers if bool(held_out[number].any())]
    validation = TaskDataset([tasks[number] for number in validated], validated)
    num_steps = epochs * -(-len(dataset) // batch_size)
    module = TableModule(
        model,
        held_out,
        learning_rate=LEARNING_RATE,
        schedule="cosine",
        lr_warmup_steps=num_steps // 20,
        beta=BETA,
        num_samples=1,
        chunk_size=WINDOW if max(len(x) for x, _ in tasks) > WINDOW else None,
        validation_samples=20,
    )
    device = next(model.parameters()).device
    best = KeepBest(epochs, progress)
    with quiet_lightning(), gpytorch.settings.debug(False):
        trainer = make_trainer(
            None,
            monitor="val_nll",
            patience=PATIENCE,
            max_epochs=epochs,
            check_val_every_n_epoch=max(1, epochs // NUM_VALIDATIONS),
            num_sanity_val_steps=0,
            enable_progress_bar=False,
            log_every_n_steps=max(1, num_steps),
            accelerator="gpu" if device.type == "cuda" else device.type,
            devices=[device.index or 0] if device.type == "cuda" else 1,
            callbacks=[best],
        )
        trainer.fit(
            module,
            TaskLoader(dataset, batch_size, group_by_length=True, seed=seed),
            TaskLoader(validation, batch_size, shuffle=False),
        )
    best.restore(module)
    calibrate(model.eval(), [(*tasks[number], held_out[number]) for number in validated])
    return best.history


@torch.no_grad()
def calibrate(model: SGPVAE, tasks: Sequence[tuple[Tensor, Tensor, Tensor]]) -> None:
    r"""
    Choose the noise of the outputs so that held-out entries are most probable. In training it is that of entries which
    the network has mostly seen, and intervals for holes would come out too narrow.

    :param tasks: x (`N x D`), y (`N x P`), and which entries were held out (`N x P`).
    """
    parameters = list(model.likelihood.observation_model.parameters())
    if not parameters:
        return
    decoded, truth = [], []
    for x, y, mask in tasks:
        rows = mask.any(-1)
        mean, variance = model.condition((x, torch.where(mask, torch.nan, y)), WINDOW).marginals(x[rows], WINDOW)
        samples = mean + variance.sqrt() * mean.new_empty(CALIBRATION_SAMPLES, *mean.shape).normal_()
        decoded.append(model.likelihood.decoder(samples))  # (S, n, ...)
        truth.append(torch.where(mask, y, torch.nan)[rows])
    values, targets = torch.cat(decoded, dim=1), torch.cat(truth)  # (S, n, ...), (n, P)
    known = ~targets.isnan()
    filled = torch.where(known, targets, 1.0)
    trained = [parameter.detach().clone() for parameter in parameters]
    optimizer = torch.optim.LBFGS(parameters, max_iter=50, line_search_fn="strong_wolfe")

    @torch.enable_grad()
    def loss() -> Tensor:
        optimizer.zero_grad()
        log_probs = model.likelihood.observation_model(values).log_prob(filled).logsumexp(0)  # (n, P)
        # a few entries do not overrule what was trained
        change = sum(
            ((now - before) / before.abs().clamp_min(1.0)).square().sum()
            for now, before in zip(parameters, trained, strict=True)
        )
        result = CALIBRATION_WEIGHT * change - torch.where(known, log_probs, 0.0).sum()
        result.backward()
        return result

    optimizer.step(loss)


class KeepBest(Callback):
    """
    Keeps the parameters with which held-out entries were predicted best, and the scores, and shows how far it is.

    :param epochs: How many there will be at the most.
    :param progress: Whether to show a bar.
    """

    def __init__(self, epochs: int, progress: bool):
        self.history: list[dict[str, float]] = []
        self.best = float("inf")
        self.state: dict[str, Tensor] | None = None
        self.bar = tqdm(total=epochs, desc="fit", unit="epoch", disable=not progress)

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self.bar.update()

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        names = ("train_elbo", "val_elbo", "val_nll", "val_mae", "val_coverage")
        scores = {name: float(trainer.callback_metrics[name]) for name in names if name in trainer.callback_metrics}
        self.history.append({"epoch": float(trainer.current_epoch + 1), **scores})
        self.bar.set_postfix({name: f"{scores[name]:.3f}" for name in ("val_nll", "val_coverage") if name in scores})
        if scores.get("val_nll", float("inf")) < self.best:
            self.best = scores["val_nll"]
            self.state = {name: value.detach().clone() for name, value in pl_module.state_dict().items()}

    def restore(self, module: LightningModule) -> None:
        self.bar.close()
        if self.state is not None:
            module.load_state_dict(self.state)


def _in_windows(x: Tensor, y: Tensor) -> Any:
    return (x, y) if len(x) <= WINDOW else partial(_window, x, y)


def _window(x: Tensor, y: Tensor) -> Task:
    """A random row and those nearest to it, as dense as they are in the whole task."""
    center = x[torch.randint(len(x), (), device="cpu")]
    rows = (x - center).square().sum(-1).topk(WINDOW, largest=False).indices
    return x[rows], y[rows]


def _scatter(values: Tensor, frequency: float) -> Tensor:
    """Numbers from [0, 1), equal for equal values, without any pattern to be seen."""
    return torch.frac((values * frequency).sin() * 43758.5453).abs()
