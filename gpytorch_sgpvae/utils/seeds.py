"""
Randomness that is a function of what it is for: a task in an epoch has a seed, and everything that is drawn for it
comes from there. So a task meets the same random numbers alone, in any batch and on any process, and a run that is
resumed has no states of generators to restore.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor


def derive_seed(*parts: Any) -> int:
    """A seed for a combination of numbers and names, the same on every machine."""
    digest = hashlib.blake2b(repr(parts).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little") >> 1  # torch's seeds have a sign


@contextmanager
def seeded(seed: int, device: torch.device | None = None) -> Iterator[None]:
    """Within it torch's own generators start from a seed; after it they go on as if nothing had been."""
    accelerators = [] if device is None or device.type == "cpu" else [device]
    with torch.random.fork_rng(accelerators, device_type=accelerators[0].type if accelerators else "cuda"):
        if accelerators:
            torch.manual_seed(seed)
        else:
            torch.default_generator.manual_seed(seed)
        yield


class TaskDraws:
    """
    Random numbers for the points of tasks, each drawn from its task's seed: zeros for rows of padding.

    :param seeds: One for each task.
    :param lengths: The number of points of each task.
    :param num_points: The number of points with padding, N.
    """

    def __init__(self, seeds: Sequence[int], lengths: Sequence[int], num_points: int, like: Tensor):
        self.generators = [torch.Generator(like.device).manual_seed(seed) for seed in seeds]
        self.lengths = lengths
        self.num_points = num_points
        self.like = like

    def uniform(self, num_columns: int) -> Tensor:
        """Draw numbers from [0, 1) (`T x N x columns`)."""
        draws = self._zeros(num_columns)
        for rows, generator, length in zip(draws, self.generators, self.lengths, strict=True):
            rows[:length].uniform_(generator=generator)
        return draws

    def normal(self, num_samples: int, num_columns: int) -> Tensor:
        """Standard normal (`S x T x N x columns`)."""
        draws = self._zeros(num_samples * num_columns)
        for rows, generator, length in zip(draws, self.generators, self.lengths, strict=True):
            rows[:length].normal_(generator=generator)
        return draws.unflatten(-1, (num_samples, num_columns)).movedim(-2, 0)

    def _zeros(self, num_columns: int) -> Tensor:
        return self.like.new_zeros(len(self.generators), self.num_points, num_columns)
