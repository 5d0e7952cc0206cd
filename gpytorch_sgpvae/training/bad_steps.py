"""Steps that go wrong: which task was it, and when is it enough?"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Any

import torch
from linear_operator.utils.errors import NanError, NotPSDError
from torch import Tensor

from .._compat import OutOfMemoryError
from .task_dataset import TaskBatch

log = logging.getLogger("gpytorch_sgpvae.training")

# What bad data or bad numbers may raise on the way to a loss. Other errors are mistakes in a program, and end it.
NUMERICAL_ERRORS = (
    NotPSDError,
    NanError,
    torch.linalg.LinAlgError,
    OutOfMemoryError,
    ValueError,
    ArithmeticError,
)


class TrainingStoppedError(RuntimeError):
    """Too many training steps in a row had to be skipped."""


class BadSteps:
    """
    Counts the training steps that are skipped.

    :param limit: The number of bad steps in a row that ends the run.
    """

    def __init__(self, limit: int):
        if limit < 1:
            raise ValueError(f"max_skipped_steps must be at least 1, got {limit}.")
        self.limit = limit
        self.total = 0
        self.in_a_row = 0
        self._reason = ""
        self._error: Exception | None = None

    def note(self, ids: Sequence[Any], reason: str, error: Exception | None = None) -> None:
        """Remember why the step under way is bad."""
        self._reason = f"{_names(ids)}: {reason}"
        self._error = error

    def step(self, number: int, is_good: bool, advice: Callable[[], str]) -> None:
        """Take note of how a step went. Raises where it is one bad step too many."""
        reason, error = self._reason or "another process had to skip it", self._error
        self._reason, self._error = "", None
        if is_good:
            self.in_a_row = 0
            return
        self.total += 1
        self.in_a_row += 1
        log.warning("Step %d is skipped: %s", number, reason)
        if self.in_a_row >= self.limit:
            raise TrainingStoppedError(
                f"{self.in_a_row} training steps in a row had to be skipped, the last of them, step {number}, because "
                f"of {reason}\nThe parameters are finite, as after the last good step. {advice()}"
            ) from error

    def warn_of_validation(self, ids: Sequence[Any], error: Exception) -> None:
        """A batch without scores: validation goes on without it."""
        log.warning("A batch is left out of the validation: %s: %s: %s", _names(ids), type(error).__name__, error)

    def state_dict(self) -> dict[str, int]:
        return {"total": self.total, "in_a_row": self.in_a_row}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.total, self.in_a_row = state["total"], state["in_a_row"]


@torch.no_grad()
def find_culprits(batch: TaskBatch, bound: Callable[[TaskBatch], Tensor]) -> list[Any]:
    """The ids of those tasks of a batch whose bound cannot be computed; of all of them if each can on its own."""
    culprits = []
    for i, id_ in enumerate(batch.ids):
        try:
            is_good = bool(bound(batch.task(i)).isfinite().all())
        except NUMERICAL_ERRORS:
            is_good = False
        if not is_good and id_ not in culprits:
            culprits.append(id_)
    return culprits or batch.ids


def _names(ids: Sequence[Any]) -> str:
    names = ", ".join(repr(id_) for id_ in ids[:10]) + (", ..." if len(ids) > 10 else "")
    return f"task {names}" if len(ids) == 1 else f"tasks {names}"
