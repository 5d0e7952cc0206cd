"""Times of interleaved contestants, and the peak memory of fresh processes."""

from __future__ import annotations

import gc
import multiprocessing
import random
import statistics
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from tqdm import trange


@dataclass(frozen=True)
class Spread:
    """A figure as it came out in each round."""

    values: tuple[float, ...]

    @property
    def median(self) -> float:
        return statistics.median(self.values)

    @property
    def quartiles(self) -> tuple[float, float]:
        if len(self.values) == 1:
            return self.median, self.median
        lower, _, upper = statistics.quantiles(self.values, n=4, method="inclusive")
        return lower, upper

    def __truediv__(self, other: Spread | float) -> Spread:
        """Round by round: what slowed a round down, slowed both."""
        others = other.values if isinstance(other, Spread) else [other] * len(self.values)
        return Spread(tuple(a / b for a, b in zip(self.values, others, strict=True)))


def interleave(
    contestants: Mapping[str, Callable[[], object]],
    repeats: int,
    warmup: int = 2,
    clock: Callable[[], float] = time.perf_counter,
    description: str = "",
) -> dict[str, Spread]:
    """
    The seconds that each contestant takes, in rounds in which all of them run once.

    :param repeats: Rounds that count.
    :param warmup: Rounds before them that do not.
    """
    order = random.Random(0)
    seconds: dict[str, list[float]] = {name: [] for name in contestants}
    gc.collect()
    gc.freeze()
    try:
        for i in trange(warmup + repeats, desc=description, leave=False):
            # Drawn anew: in a cyclic order everyone would always run after the same other.
            for name in order.sample(list(contestants), len(contestants)):
                gc.collect()  # nobody pays for another's garbage
                start = clock()
                contestants[name]()
                elapsed = clock() - start
                if i >= warmup:
                    seconds[name].append(elapsed)
    finally:
        gc.unfreeze()
    return {name: Spread(tuple(values)) for name, values in seconds.items()}


@dataclass(frozen=True)
class Memory:
    """
    Resident memory of a process in bytes.

    :param before: With everything imported and used once.
    :param peak: The most there ever was, `before` included.
    """

    before: int
    peak: int

    @property
    def added(self) -> int:
        return self.peak - self.before


def peak_memory(
    function: Callable[..., Any], arguments: tuple[Any, ...], small: tuple[Any, ...], threads: int
) -> tuple[Any, Memory]:
    """
    Run a function in a fresh process, and return its result and the memory that it needed. Linux only.

    :param function: An importable function.
    :param arguments: Its arguments.
    :param small: Arguments for a first call that does not count, for what is loaded or allocated on first use.
    :param threads: Threads of torch.
    """
    return in_fresh_process(_measure, (function, arguments, small, threads), function.__module__)


def in_fresh_process(function: Callable[..., Any], arguments: tuple[Any, ...], module: str = __name__) -> Any:
    """
    Run a function in a process of its own, and return its result.

    :param function: An importable function.
    :param arguments: Its arguments.
    :param module: What to import before.
    """
    # Each process is a copy of one that has done nothing but import; the last of these is what an optimizer imports.
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["gpytorch_sgpvae", module, "torch._dynamo"])
    with ProcessPoolExecutor(max_workers=1, mp_context=context) as pool:
        return pool.submit(function, *arguments).result()


def _measure(
    function: Callable[..., Any], arguments: tuple[Any, ...], small: tuple[Any, ...], threads: int
) -> tuple[Any, Memory]:
    torch.set_num_threads(threads)
    function(*small)
    gc.collect()
    before = _resident("VmRSS")
    # Not ru_maxrss, which a process inherits from the one that started it.
    Path("/proc/self/clear_refs").write_text("5")  # the peak starts from here
    result = function(*arguments)
    return result, Memory(before, _resident("VmHWM"))


def _resident(field: str) -> int:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(f"{field}:"):
            return 1024 * int(line.split()[1])
    raise RuntimeError(f"/proc/self/status has no {field}: memory is measured on Linux only.")
