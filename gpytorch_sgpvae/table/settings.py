"""The settings of a fit."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from .description import MOST_INDUCING, MOST_LATENTS
from .errors import TableError
from .model import check_device


@dataclass(frozen=True)
class Settings:
    """The settings of a fit: the arguments of :class:`~gpytorch_sgpvae.table.SGPVAEImputer`, which explains them."""

    inputs: Any
    outputs: Any
    task: Any
    long: Sequence[str] | None
    covariates: Sequence[str]
    periodic: Mapping[str, float] | None
    families: Mapping[str, str] | None
    num_latents: int | None
    num_inducing: int | None
    batch_size: int | None
    max_epochs: int | None
    max_minutes: float | None
    compare: bool
    seed: int
    device: str | torch.device | None
    dtype: str | torch.dtype
    progress: bool
    devices: int
    num_nodes: int

    def __post_init__(self) -> None:
        for name in ("devices", "num_nodes"):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, (int, np.integer)) or value < 1:
                raise TableError(f"{name} must be a whole number from 1, got {value!r}.")
        for name in ("num_latents", "num_inducing", "batch_size", "max_epochs"):
            value = getattr(self, name)
            if value is not None and (isinstance(value, bool) or not isinstance(value, (int, np.integer)) or value < 1):
                raise TableError(
                    f"{name} must be a whole number from 1, or None for a choice by the table's shape, got {value!r}."
                )
        if self.max_minutes is not None and not self.max_minutes > 0:
            raise TableError(f"max_minutes must be positive, or None for the usual time, got {self.max_minutes!r}.")
        for name, most in (("num_latents", MOST_LATENTS), ("num_inducing", MOST_INDUCING)):
            if (getattr(self, name) or 0) > most:
                raise TableError(f"{name} must be at most {most}, got {getattr(self, name)!r}.")
        check_seed(self.seed)
        check_device(self.device)


def check_seed(seed: Any) -> None:
    """Raise unless a seed is a whole number that every generator takes."""
    if isinstance(seed, bool) or not isinstance(seed, (int, np.integer)) or not 0 <= seed < 2**32:
        raise TableError(f"seed must be a whole number from 0 to 2**32 - 1, got {seed!r}.")
