"""Partitions that are filled by the workers of a Dask cluster, on this machine or on many."""

from __future__ import annotations

import logging
import pickle
import pkgutil
import platform
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

import distributed
import torch

from ... import __version__
from ..errors import TableError
from ..fitted import FittedTable
from .job import Job, Outcome, fill_partition
from .source import Source

# How long to wait for a scheduler, and for its first worker, in seconds.
SECONDS_TO_CONNECT, SECONDS_FOR_WORKERS = 10, 30
# Jobs that wait at the cluster, for each of its threads: enough that none is idle, few for any number of partitions.
JOBS_AHEAD = 3
# How many workers may die over a partition before it is an error.
MOST_DEATHS = 3
# What has to be the same on all workers, besides Python.
VERSIONS = {"gpytorch_sgpvae": __version__, "torch": torch.__version__}


class DaskRunner:
    """
    Runs jobs on a Dask cluster. Partitions do not depend on each other, and a worker does what this process would do:
    the numbers are the same. A partition whose worker has died is filled by another worker.

    :param workers: Processes on this machine, each with one thread.
    :param scheduler: Address of a scheduler to be used instead.
    """

    def __init__(self, workers: int, scheduler: str | None):
        self.workers, self.scheduler = workers, scheduler

    def __call__(self, jobs: Sequence[Job], source: Source, fitted: FittedTable) -> Iterator[Outcome]:
        if not jobs:
            return
        with ExitStack() as stack:
            client = self._connect(stack, len(jobs))
            _check_workers(client, self.scheduler)
            # a task, not scattered data, so that it is there again after the workers that had it have died
            shared = client.submit(pickle.loads, pickle.dumps((Source([], source.schema), fitted)), pure=False)
            most = JOBS_AHEAD * max(1, sum(client.nthreads().values()))
            waiting = iter(jobs)
            running = distributed.as_completed(loop=client.loop)
            for _, job in zip(range(most), waiting, strict=False):
                running.add(_submit(client, job, shared))
            for future in running:
                yield _result(future)
                following = next(waiting, None)
                if following is not None:
                    running.add(_submit(client, following, shared))

    def _connect(self, stack: ExitStack, num_jobs: int) -> distributed.Client:
        address: Any = self.scheduler
        if address is None:
            stack.enter_context(_silent())
            cluster = distributed.LocalCluster(
                n_workers=min(self.workers, num_jobs),
                threads_per_worker=1,
                processes=True,
                host="127.0.0.1",
                silence_logs=logging.CRITICAL,
                # no pages to look at, and any port: with the usual one a second cluster would be warned of the first
                scheduler_kwargs={"dashboard": False, "dashboard_address": "127.0.0.1:0"},
            )
            address = stack.enter_context(cluster)
        try:
            return stack.enter_context(distributed.Client(address, timeout=SECONDS_TO_CONNECT, set_as_default=False))
        except (OSError, ValueError, TypeError) as error:
            raise TableError(
                f"No Dask scheduler answers at {self.scheduler} within {SECONDS_TO_CONNECT} seconds. Start one there "
                "(dask scheduler), look at the address, or leave it out for workers on this machine."
            ) from error


@contextmanager
def _silent() -> Iterator[None]:
    """Keep Dask's messages to itself: by default it tells of each connection, through the handlers of the program."""
    dask = logging.getLogger("distributed")
    before = dask.level
    dask.setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        dask.setLevel(before)


def run_job(job: Job, shared: tuple[Source, FittedTable]) -> Outcome:
    """Fill a partition on a worker, with one thread of torch."""
    torch.set_num_threads(1)
    return fill_partition(job, *shared)


def _submit(client: distributed.Client, job: Job, shared: Any) -> distributed.Future:
    return client.submit(run_job, job, shared, pure=False, key=f"impute {job.partition.name}")


def _result(future: distributed.Future) -> Outcome:
    try:
        return future.result()
    except distributed.KilledWorker as error:
        raise TableError(
            f"{future.key.removeprefix('impute ')}: {MOST_DEATHS + 1} workers have died over this partition. They may "
            "be short of memory: give them more, or write smaller partitions."
        ) from error


def _check_workers(client: distributed.Client, scheduler: str | None) -> None:
    """Raise unless there are workers, with the same Python and the same packages as here."""
    try:
        client.wait_for_workers(1, timeout=SECONDS_FOR_WORKERS)
    except TimeoutError as error:
        raise TableError(
            f"The scheduler at {scheduler} has had no workers for {SECONDS_FOR_WORKERS} seconds: start some "
            f"(dask worker {scheduler})."
        ) from error
    # of the standard library, which workers without this package have too
    there = {name: client.run(pkgutil.resolve_name, f"{name}:__version__", on_error="return") for name in VERSIONS}
    there["Python"] = client.run(platform.python_version)
    for name, expected in {**VERSIONS, "Python": platform.python_version()}.items():
        for worker, found in there[name].items():
            if isinstance(found, BaseException):
                raise TableError(f"The worker {worker} has no package {name} ({found}): install it there.") from found
            if found != expected:
                raise TableError(
                    f"The worker {worker} has {name} {found}, and here it is {expected}: install the same on all "
                    "machines."
                )
