"""
Kills and races of the command `sgpvae`: `soak.py` runs them for long, the tests briefly. Real commands in processes of
their own write a model's folder or a filled table again and again, one of two versions of it in turn, until they are
killed. Whatever stands there afterwards must be one of the two.
"""

from __future__ import annotations

import functools
import multiprocessing
import os
import random
import shutil
import time
from dataclasses import dataclass
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from pathlib import Path

import numpy as np
import pandas as pd
import torch

from gpytorch_sgpvae.table import SGPVAEImputer, TableError
from gpytorch_sgpvae.table.cli import main
from gpytorch_sgpvae.table.files import write_bytes
from gpytorch_sgpvae.utils.locks import LOCK_NAME

# Two commands, and the last step of each alone, which then takes up most of a process' time.
KINDS = ("fit", "impute", "save", "write")
FOLDERS = ("fit", "save")
# The most seconds after the start at which a kill without aim comes.
SECONDS = {"fit": 1.0, "impute": 0.6, "save": 0.05, "write": 0.03}
# More turns than anybody waits for, and an end for processes whose parent was killed.
ENDLESS = 1000
WAIT = 60.0
# A filled table is as large as to be torn if it could be.
NOTE = 20_000
# One clean process has loaded the package, and the others are forks of it; Windows has none.
METHOD = "forkserver" if "forkserver" in multiprocessing.get_all_start_methods() else "spawn"


@dataclass(frozen=True)
class Kills:
    """
    What came of a number of kills.

    :param number: How many processes were killed.
    :param amid: How many of them left a lock or a temporary file, so that they were writing.
    :param failures: A sentence for each promise that was broken.
    """

    number: int
    amid: int
    failures: list[str]


class Workshop:
    """
    A folder with a table, two models of it, and the table filled by each: what all commands here write is one of them.

    :param folder: An empty folder.
    """

    def __init__(self, folder: Path) -> None:
        self.folder, self.table = folder, folder / "table.csv"
        _make_table().to_csv(self.table, index=False)
        self.frame = pd.read_csv(self.table)
        for version in range(2):
            self.run("fit", version, self.model(version))
            self.run("impute", version, self.filled(version))
        self.answers = [self.answer(_loaded(self.model(version))) for version in range(2)]
        self.contents = [self.filled(version).read_bytes() for version in range(2)]
        if self.answers[0].equals(self.answers[1]) or self.contents[0] == self.contents[1]:
            raise RuntimeError("The two versions cannot be told apart.")

    def model(self, version: int) -> Path:
        return self.folder / f"model{version}"

    def filled(self, version: int) -> Path:
        return self.folder / f"filled{version}.csv"

    def run(self, kind: str, version: int, target: Path) -> None:
        """
        Write one thing by a command, or by its last step alone.

        :param kind: One of :data:`KINDS`.
        :param version: Which of the two.
        :param target: Where to.
        """
        if kind == "save":
            _loaded(self.model(version)).save(target)
        elif kind == "write":
            write_bytes(self.contents[version], str(target))
        else:
            columns = ["--inputs", "day", "--outputs", "temp", "--task", "site"]
            training = ["--max-epochs", "1", "--no-comparison", "--seed", str(version)]
            options = {"fit": [self.table, *columns, *training], "impute": [self.model(version), self.table]}[kind]
            if main([kind, *map(str, options), "--quiet", "-o", str(target)]):
                raise RuntimeError(f"sgpvae {kind} failed.")

    def answer(self, imputer: SGPVAEImputer) -> pd.DataFrame:
        """What a model fills the table with."""
        return imputer.transform(self.frame)

    def wrong(self, kind: str, target: Path, briefly: bool = False) -> str | None:
        """
        What is wrong with what stands at a place, or None if it is one of the two versions.

        :param kind: What wrote it, one of :data:`KINDS`.
        :param target: Where.
        :param briefly: Compare a model's parameters alone, and do not let it fill a table.
        """
        try:
            if kind in FOLDERS:
                imputer = SGPVAEImputer.load(target)
                good = any(_equal(imputer, _loaded(self.model(version))) for version in range(2))
                if not briefly:
                    answer = self.answer(imputer)
                    good = good and any(answer.equals(other) for other in self.answers)
            else:
                good = target.read_bytes() in self.contents
        except (OSError, TableError) as error:
            return f"{type(error).__name__}: {error}"
        return None if good else f"{target.name} is neither the old one nor the new one"

    def is_there(self, kind: str, target: Path) -> bool:
        """Whether anything is found there; a folder without a description is no model."""
        return (target / "imputer.json" if kind in FOLDERS else target).exists()


def kill_commands(folder: Path, kills: int, seed: int = 0) -> Kills:
    """
    Kill commands, most of them while they write, and run each of them to its end afterwards. A third of them write
    where nothing was before.

    :param folder: An empty folder.
    :param kills: How many.
    :param seed: The seed of the times.
    """
    shop, generator = Workshop(_new(folder / "shop")), random.Random(seed)
    targets = {kind: _new(folder / kind) / ("model" if kind in FOLDERS else "filled.csv") for kind in KINDS}
    amid, failures = 0, []
    for kill in range(kills):
        kind = KINDS[kill % len(KINDS)]
        target, version = targets[kind], generator.randrange(2)
        was_there = kill >= len(KINDS) and generator.random() < 2 / 3
        if not was_there:
            _remove(target)
        own = _put_files_of_the_user(target, inside=was_there and kind in FOLDERS)
        _kill_one(shop, kind, version, target, generator)
        amid += any(_leftovers(target))
        where = f"kill {kill + 1}, of {kind}"
        if was_there or shop.is_there(kind, target):
            wrong = shop.wrong(kind, target)
            if wrong:
                failures.append(f"{where}: {wrong}.")
        shop.run(kind, version, target)  # what is left blocks nobody
        wrong = shop.wrong(kind, target)
        if wrong:
            failures.append(f"{where}, in the next run: {wrong}.")
        left = [path.name for path in _leftovers(target)]
        if left and os.name == "posix":  # elsewhere a leftover is only known by its age
            failures.append(f"{where}: {', '.join(left)} left after the next run.")
        failures += [f"{where}: {path.name} of the user is lost." for path, data in own.items() if _lost(path, data)]
    return Kills(kills, amid, failures)


def race(folder: Path, kind: str, writers: int, times: int) -> tuple[int, int]:
    """
    Several processes write one model's folder or one filled table, all of both versions in turn, while this one reads.

    :param folder: An empty folder.
    :param kind: What they do, one of :data:`KINDS`.
    :param writers: How many.
    :param times: How often each of them writes.
    :return: How often it was read, and how often it was torn or missing.
    """
    shop, target = Workshop(_new(folder / "shop")), _new(folder / "raced") / "target"
    shop.run(kind, 0, target)
    processes = [_start(shop, kind, version % 2, target, times) for version in range(writers)]
    reads, torn = 0, 0
    while any(process.is_alive() for process in processes):
        reads += 1
        torn += shop.wrong(kind, target, briefly=True) is not None
        time.sleep(0.0005)  # leave the others some of the processor
    for process in processes:
        process.join()
        if process.exitcode:
            raise RuntimeError(f"A writer failed with exit code {process.exitcode}.")
    left = [path.name for path in _leftovers(target)]
    if left:
        raise RuntimeError(f"The writers left {', '.join(left)} behind.")
    return reads, torn


def _make_table() -> pd.DataFrame:
    """Two sites with a wave each, a hole in every fifth day, and a long note at each row."""
    site, day = np.repeat([0, 1], 10), np.tile(np.arange(10), 2)
    temp = (20 + 5 * np.sin(day / 3 + site)).round(2)
    notes = [str(row % 10) * NOTE for row in range(20)]
    return pd.DataFrame({"site": site, "day": day, "temp": np.where(day % 5 == 2, np.nan, temp), "note": notes})


@functools.cache
def _loaded(model: Path) -> SGPVAEImputer:
    return SGPVAEImputer.load(model)


def _equal(one: SGPVAEImputer, other: SGPVAEImputer) -> bool:
    """Whether the parameters of two models are equal, bit for bit."""
    first, second = one.model_.state_dict(), other.model_.state_dict()
    return first.keys() == second.keys() and all(torch.equal(value, second[name]) for name, value in first.items())


def _work(shop: Workshop, kind: str, version: int, target: Path, times: int, started: Connection) -> None:
    """Write both versions in turn, in a process of its own."""
    started.send(True)
    for turn in range(times):
        shop.run(kind, (version + turn) % 2, target)


def _start(shop: Workshop, kind: str, version: int, target: Path, times: int) -> BaseProcess:
    """A process that writes, and has begun to."""
    context = multiprocessing.get_context(METHOD)
    if METHOD == "forkserver":
        multiprocessing.set_forkserver_preload([main.__module__])
    ours, its = context.Pipe(duplex=False)
    process = context.Process(target=_work, args=(shop, kind, version, target, times, its), daemon=True)
    process.start()
    its.close()
    with ours:
        if not ours.poll(WAIT):
            process.kill()
            raise RuntimeError(f"A process that was to {kind} did not begin within {WAIT:g} s.")
        ours.recv()
    return process


def _kill_one(shop: Workshop, kind: str, version: int, target: Path, generator: random.Random) -> None:
    """Kill a process at a random time, which is three times out of four one at which it writes."""
    process = _start(shop, kind, version, target, ENDLESS)
    if generator.random() < 3 / 4:
        had = set(_leftovers(target))
        deadline = time.monotonic() + WAIT
        while process.is_alive() and time.monotonic() < deadline and set(_leftovers(target)) <= had:
            time.sleep(0.0002)
        time.sleep(generator.choice((0.0, 0.001, 0.005)) * generator.random())
    else:
        time.sleep(SECONDS[kind] * generator.random())
    process.kill()
    process.join()
    if process.exitcode in (0, 1):
        raise RuntimeError(f"A process that was to {kind} ended before it was killed.")


def _leftovers(target: Path) -> list[Path]:
    """Locks and temporary files, in the folder of a model or beside a file."""
    folder = target if target.is_dir() else target.parent
    try:
        names = os.listdir(folder)
    except FileNotFoundError:
        return []
    return [folder / name for name in names if name == LOCK_NAME or name.startswith(".sgpvae-")]


def _put_files_of_the_user(target: Path, inside: bool) -> dict[Path, bytes]:
    """Files of somebody's own beside a place, some with names of temporary files, and in it where they may be."""
    paths = [target.with_name(f"{target.name}.part"), target.with_name("notes.txt")]
    paths += [target / "notes.txt", target / "imputer.json.part"] if inside else []
    own = {path: f"mine: {path.name}".encode() for path in paths}
    for path, data in own.items():
        path.write_bytes(data)
    return own


def _lost(path: Path, data: bytes) -> bool:
    return not path.exists() or path.read_bytes() != data


def _remove(target: Path) -> None:
    if target.is_dir():
        shutil.rmtree(target)
    else:
        target.unlink(missing_ok=True)


def _new(folder: Path) -> Path:
    folder.mkdir(parents=True)
    return folder
