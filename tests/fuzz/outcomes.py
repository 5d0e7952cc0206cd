"""What came of a computation: numbers, or a sentence that the package itself has to say."""

from __future__ import annotations

import traceback
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from torch import Tensor

import gpytorch_sgpvae

PACKAGE = Path(gpytorch_sgpvae.__file__).parent
# A sentence says what came, what was expected and what to do: it is not shorter than this.
SHORTEST_SENTENCE = 60


@dataclass(frozen=True)
class Sentence:
    """An error that tells a user what to do."""

    text: str


def outcome(compute: Callable[[], dict[str, Tensor]]) -> dict[str, Tensor] | Sentence:
    """What is computed, or the package's own sentence why it cannot be; any other error is raised."""
    try:
        return compute()
    except (ValueError, RuntimeError) as error:
        last = traceback.extract_tb(error.__traceback__)[-1]
        is_ours = PACKAGE in Path(last.filename).parents
        if not is_ours or len(str(error)) < SHORTEST_SENTENCE:
            raise
        return Sentence(str(error))


def not_finite(values: dict[str, Tensor]) -> list[str]:
    """The names of tensors with entries that are not finite."""
    return [name for name, value in values.items() if not value.isfinite().all()]
