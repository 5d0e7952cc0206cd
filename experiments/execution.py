"""Runs, several at a time."""

from __future__ import annotations

import datetime
import importlib.metadata
import multiprocessing
import os
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed
from typing import Any

import torch

from .registry import EXPERIMENTS
from .runs import Run


def execute(runs: list[Run], smoke: bool, workers: int) -> Iterator[tuple[Run, dict[str, Any]]]:
    """The outcome of each run, as they come."""
    # Processes that share nothing: a run is the same alone and among others.
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(max_workers=workers, mp_context=context, initializer=end_with_the_parent) as pool:
        futures = {pool.submit(execute_one, run, smoke): run for run in runs}
        for future in as_completed(futures):
            yield futures[future], future.result()


def end_with_the_parent() -> None:
    """Have this process end when the one that started it is killed, whose results nobody would write."""

    def wait() -> None:
        parent = multiprocessing.parent_process()
        if parent is not None:
            parent.join()
            os._exit(1)

    threading.Thread(target=wait, daemon=True).start()


def execute_one(run: Run, smoke: bool) -> dict[str, Any]:
    torch.set_num_threads(1)
    torch.manual_seed(run.seed)
    start = time.perf_counter()
    outcome = EXPERIMENTS[run.experiment].run(run, smoke)
    packages = ("gpytorch_sgpvae", "gpytorch", "torch")
    return {
        "elbo": outcome.elbo,
        "scores": outcome.scores,
        "seconds": time.perf_counter() - start,
        "date": datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%d"),
        "versions": {package: importlib.metadata.version(package) for package in packages},
        **outcome.extra,
    }
