"""Small runs for the tests of training: tasks of unequal length, a model, a trainer that says nothing."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch import Callback, Trainer
from torch import Tensor

from gpytorch_sgpvae import SGPVAE
from gpytorch_sgpvae.training import SGPVAEModule, TaskDataset, TaskLoader, make_trainer

LENGTHS = (7, 4, 9, 12, 5, 6, 8)


def make_tasks(lengths: Sequence[int] = LENGTHS, seed: int = 0, num_outputs: int = 3) -> list[tuple[Tensor, Tensor]]:
    generator = torch.Generator().manual_seed(seed)
    tasks = []
    for length in lengths:
        x = torch.rand(length, 2, dtype=torch.float64, generator=generator)
        y = torch.randn(length, num_outputs, dtype=torch.float64, generator=generator)
        tasks.append((x, y.masked_fill(torch.rand(y.shape, generator=generator) < 0.2, torch.nan)))
    return tasks


def make_sgpvae(seed: int = 1, **kwargs: Any) -> SGPVAE:
    torch.manual_seed(seed)
    return SGPVAE(3, 2, torch.rand(5, 2, dtype=torch.float64), hidden_sizes=(8,), **kwargs)


def make_module(**kwargs: Any) -> SGPVAEModule:
    return SGPVAEModule(make_sgpvae(), **{"learning_rate": 1e-2, "num_samples": 2, **kwargs})


def make_loader(tasks: Sequence[Any] | None = None, batch_size: int = 2, **kwargs: Any) -> TaskLoader:
    return TaskLoader(TaskDataset(make_tasks() if tasks is None else tasks), batch_size, **kwargs)


def make_quiet_trainer(folder: Path | None = None, **kwargs: Any) -> Trainer:
    defaults: dict[str, Any] = {"accelerator": "cpu", "devices": 1, "log_every_n_steps": 1}
    return make_trainer(folder, **{**defaults, "enable_progress_bar": False, "num_sanity_val_steps": 0, **kwargs})


class Recorder(Callback):
    """What a run has met: the ids of each batch, and the metrics after each step."""

    def __init__(self) -> None:
        self.batches: list[tuple[int, int, tuple[Any, ...]]] = []
        self.metrics: list[dict[str, float]] = []

    def on_train_batch_start(self, trainer, pl_module, batch, batch_idx):
        self.batches.append((trainer.current_epoch, batch_idx, tuple(batch.ids)))

    def on_train_batch_end(self, trainer, pl_module, outputs, batch, batch_idx):
        self.metrics.append({name: float(value) for name, value in trainer.callback_metrics.items()})


def assert_same_parameters(one: torch.nn.Module, other: torch.nn.Module, **tolerance: float) -> None:
    """Bit for bit, unless there is a tolerance."""
    for (name, parameter), twin in zip(one.named_parameters(), other.parameters(), strict=True):
        if tolerance:
            torch.testing.assert_close(parameter, twin, **tolerance)
        else:
            assert torch.equal(parameter, twin), name
