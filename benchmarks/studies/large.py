"""A table that is larger than memory: fitted to samples of its files, filled file by file, by one worker and by two."""

from __future__ import annotations

import json
import shutil
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from experiments.runs import ResultFile, Run

from ..measure import Spread
from ..process_tree import run_and_watch
from ..readings import INPUT, OUTPUTS, TASK, Readings
from ..study import COLOURS, GIB, Goal, Options, Report, duration, number, size, table

STUDY = "large"


class Sizes(NamedTuple):
    """
    :param readings: The table.
    :param sample: Rows of an epoch of training.
    :param shared: Files that one process and two workers fill in turns.
    :param rounds: How often; where these are all files, the two workers fill them once.
    :param judged: Files whose filled entries are compared with what was there.
    """

    readings: Readings
    sample: int
    shared: int
    rounds: int
    judged: int


FULL = Sizes(Readings(files=80, sensors=25, rows=10_000), sample=100_000, shared=8, rounds=2, judged=2)
QUICK = Sizes(Readings(files=3, sensors=4, rows=100), sample=800, shared=2, rounds=1, judged=1)
# Workers that fill the whole table.
WORKERS = 2
# The targets.
MOST_GIB, LEAST_GAIN = 4.0, 1.7
# What is predicted: how long this many workers take for this many rows.
PREDICTED_ROWS, PREDICTED_WORKERS = 10**9, 100
FIT, IMPUTE, TURN, START, QUALITY, SURVEY = "fit", "impute", "turn", "start", "quality", "survey"
# Minutes of the fit at the most: so many that the clock does not end it, whatever else runs.
FIT_MINUTES = 600
# Less than the processor's clock can tell.
LEAST_SECONDS = 0.01
# A table so small that what it takes is starting.
TINY = Readings(files=2, sensors=1, rows=50)


def run(options: Options) -> Report:
    """What has been measured is in `large.jsonl` until all has: a run that is stopped and started again goes on."""
    sizes, results = (QUICK if options.quick else FULL), ResultFile(STUDY, options.folder)
    if options.files is not None and not options.quick:
        files = max(options.files, sizes.judged)
        shared = min(files, sizes.shared)
        rounds = sizes.rounds if shared < files else 1
        sizes = sizes._replace(readings=replace(sizes.readings, files=files), shared=shared, rounds=rounds)
    folder = Path(tempfile.gettempdir()) / f"sgpvae-readings-{sizes.readings.num_rows}"
    study = Study(sizes, folder, options, results)
    found = study.measure()
    finished = report(sizes, found)
    results.path.unlink(missing_ok=True)
    shutil.rmtree(folder)
    return finished


class Study:
    """
    The measurements, each of a process of its own that runs the command `sgpvae`.

    :param sizes: How much.
    :param folder: Where the table, the model and the filled tables are.
    :param options: Threads, and whether it is a quick run.
    :param results: What has been measured.
    """

    def __init__(self, sizes: Sizes, folder: Path, options: Options, results: ResultFile):
        self.sizes, self.options, self.results = sizes, options, results
        self.source, self.model, self.target = folder / "readings", folder / "model", folder / "readings-filled"

    def measure(self) -> dict[str, Any]:
        """All that is measured, by its name."""
        if not self.model.exists():
            self.results.drop(lambda run: True)  # of a table that is no longer there
        self.sizes.readings.write(self.source)
        found = {FIT: self._once(FIT, self.fit), SURVEY: self._once(SURVEY, self.survey)}
        found[IMPUTE] = self._once(IMPUTE, self.impute)
        found[QUALITY] = self._once(QUALITY, self.judge)
        found[START] = {w: self._once(f"{START} {w}", partial(self.start, w)) for w in (1, WORKERS)}
        turns: dict[int, list[dict[str, Any]]] = {1: [], WORKERS: []}
        for turn in range(self.sizes.rounds):
            for workers in (1, WORKERS) if turn % 2 == 0 else (WORKERS, 1):
                turns[workers].append(self._once(f"{TURN} {turn}, {workers}", partial(self.take_turn, workers, found)))
        return found | {TURN: turns}

    def fit(self) -> dict[str, Any]:
        extra = ["--max-epochs", 1] if self.options.quick else ["--max-minutes", FIT_MINUTES]
        extra = [*extra, "--no-comparison"]
        columns = ["--inputs", INPUT, "--outputs", ",".join(OUTPUTS), "--task", TASK]
        return self._command("fit", self.source, *columns, "--sample-rows", self.sizes.sample, *extra, "-o", self.model)

    def impute(self) -> dict[str, Any]:
        return self._fill(self.source, WORKERS)

    def take_turn(self, workers: int, found: dict[str, Any]) -> dict[str, Any]:
        """Fill some of the files; where these are all, that has been measured for the workers."""
        if workers == WORKERS and self.sizes.shared == self.sizes.readings.files:
            return found[IMPUTE]
        some = self.source.with_name("some")
        shutil.rmtree(some, ignore_errors=True)
        some.mkdir()
        for path in sorted(self.source.iterdir())[: self.sizes.shared]:
            (some / path.name).hardlink_to(path)
        return self._fill(some, workers)

    def start(self, workers: int) -> dict[str, Any]:
        """Fill a few rows."""
        tiny = self.source.with_name("tiny")
        TINY.write(tiny)
        return self._fill(tiny, workers)

    def survey(self) -> dict[str, Any]:
        """Seconds of the processor in which the columns of the task and the time are read, of the whole table."""
        from gpytorch_sgpvae.table import SGPVAEImputer
        from gpytorch_sgpvae.table.large.layout import survey
        from gpytorch_sgpvae.table.large.source import open_source

        reader = SGPVAEImputer.load(self.model).fitted_.reader
        began = time.process_time()
        survey(open_source(self.source), reader.task, reader.inputs[0], False)
        return {"seconds": time.process_time() - began}

    def judge(self) -> dict[str, Any]:
        """Errors of what was filled in some files, beside those of linear interpolation, and that all else stayed."""
        errors: dict[str, list[np.ndarray]] = {name: [] for name in OUTPUTS}
        rivals, inside = {name: [] for name in OUTPUTS}, {name: [] for name in OUTPUTS}
        for file, path in enumerate(sorted(self.source.iterdir())[: self.sizes.judged]):
            before, after = pd.read_parquet(path), pd.read_parquet(self.target / path.name)
            sensors = range(file * self.sizes.readings.sensors, (file + 1) * self.sizes.readings.sensors)
            truth = pd.concat([self.sizes.readings.truth(sensor) for sensor in sensors], ignore_index=True)
            straight = before.groupby(TASK, sort=False)[OUTPUTS].transform(
                lambda column: column.interpolate(limit_direction="both")
            )
            for name in OUTPUTS:
                holes = before[name].isna()
                if not after[name][~holes].equals(before[name][~holes]) or after[name].isna().any():
                    raise RuntimeError(f"{path.name} is not filled as it should be: {name}")
                spread = truth[name].std()
                errors[name].append((after[name] - truth[name])[holes].to_numpy() / spread)
                rivals[name].append((straight[name] - truth[name])[holes].to_numpy() / spread)
                within = truth[name].between(after[f"{name}_lower"], after[f"{name}_upper"])
                inside[name].append(within[holes].to_numpy())
        return {
            name: {
                "filled": _root_mean_square(errors[name]),
                "interpolated": _root_mean_square(rivals[name]),
                "coverage": float(np.concatenate(inside[name]).mean()),
            }
            for name in OUTPUTS
        }

    def _fill(self, source: Path, workers: int) -> dict[str, Any]:
        target = source.with_name(f"{source.name}-filled")
        shutil.rmtree(target, ignore_errors=True)
        return self._command("impute", self.model, source, "-o", f"{target}/", "--workers", workers)

    def _command(self, *arguments: Any) -> dict[str, Any]:
        """The cost of a run of the command `sgpvae`, and what it says of itself."""
        threads = str(self.options.threads)
        module = [sys.executable, "-m", "gpytorch_sgpvae.table.cli"]
        command = [*module, *map(str, arguments), "--threads", threads, "--json", "--quiet"]
        usage = run_and_watch(command, {"OMP_NUM_THREADS": threads})
        return {**asdict(usage), "output": json.loads(usage.output)}

    def _once(self, name: str, measure: Callable[[], dict[str, Any]]) -> dict[str, Any]:
        wanted = Run(STUDY, name)
        if wanted not in self.results.read():
            print(wanted, file=sys.stderr, flush=True)
            self.results.append(wanted, measure())
        return self.results.read()[wanted]


def _root_mean_square(parts: list[np.ndarray]) -> float:
    return float(np.sqrt(np.square(np.concatenate(parts)).mean()))


def report(sizes: Sizes, found: dict[str, Any]) -> Report:
    """
    :param sizes: What was measured.
    :param found: The measurements.
    """
    rows, shared = sizes.readings.num_rows, sizes.readings.num_rows * sizes.shared // sizes.readings.files
    fit, impute, turns = found[FIT], found[IMPUTE], found[TURN]
    one, two = ([part["processor"] for part in turns[workers]] for workers in (1, WORKERS))
    started = _longest(found[START][1]["processor"]), _longest(found[START][WORKERS]["processor"])
    filling = [
        [max(_longest(part) - start, LEAST_SECONDS) for part in each]
        for each, start in zip((one, two), started, strict=True)
    ]
    gains = {
        "clock": [a["seconds"] / b["seconds"] for a, b in zip(turns[1], turns[WORKERS], strict=True)],
        "processor": [_longest(a) / _longest(b) for a, b in zip(one, two, strict=True)],
        "filling": [a / b for a, b in zip(*filling, strict=True)],
    }
    worker_start = max(found[START][WORKERS]["processor"][1:])
    of_worker = [max(max(part[1:]) - worker_start, LEAST_SECONDS) for part in two]
    rates = {
        "clock": rows / impute["seconds"],
        "processor": rows / sum(impute["processor"]),
        "worker": float(np.mean([shared / WORKERS / seconds for seconds in of_worker])),
        "survey": rows / found[SURVEY]["seconds"],
    }
    predicted = started[1] + PREDICTED_ROWS / rates["survey"] + PREDICTED_ROWS / PREDICTED_WORKERS / rates["worker"]
    costs = [("fit", fit, 1, None), ("fill", impute, WORKERS, rows)]
    costs += [(f"fill {TINY.num_rows} rows", cost, workers, None) for workers, cost in found[START].items()]
    costs += [("fill a part", turn, workers, shared) for workers, parts in turns.items() for turn in parts]
    return Report(
        title="A table larger than memory",
        text=text(sizes),
        tables=[costs_table(costs), quality_table(found[QUALITY])],
        goals=[
            Goal("peak memory of the fit", Spread((fit["peak"] / GIB,)), MOST_GIB, unit=" GiB"),
            Goal(f"peak memory of filling {rows:,} rows", Spread((impute["peak"] / GIB,)), MOST_GIB, unit=" GiB"),
            Goal("rows filled in a second of the processor", Spread((rates["processor"],))),
            Goal("rows filled in a second by the clock", Spread((rates["clock"],))),
            Goal("two workers over one, once started", Spread(tuple(gains["filling"])), LEAST_GAIN, True, "x"),
            Goal("two workers over one, their start included", Spread(tuple(gains["processor"])), unit="x"),
            Goal("two workers over one, by the clock here", Spread(tuple(gains["clock"])), unit="x"),
        ],
        notes=notes(rates, predicted),
        figures={
            **{name: value for name, value in found.items() if name not in (START, TURN)},
            START: {str(workers): cost for workers, cost in found[START].items()},
            TURN: {str(workers): parts for workers, parts in turns.items()},
            "rows": rows,
            "rates": rates,
            "predicted": {"rows": PREDICTED_ROWS, "workers": PREDICTED_WORKERS, "seconds": predicted},
        },
        figure=draw(turns, shared, rates),
    )


def _longest(processor: list[float]) -> float:
    """Seconds by the clock if nothing else ran: those of the first process, and then of the busiest worker, if any."""
    return processor[0] + max(processor[1:], default=0.0)


def text(sizes: Sizes) -> str:
    """What was done."""
    readings = sizes.readings
    return f"""`python -m benchmarks large` writes {readings.num_rows:,} rows of
{readings.files * readings.sensors:,} sensors (`benchmarks/readings.py`) into {readings.files} Parquet files:
the sensor, the time, and {len(OUTPUTS)} outputs, of which a quarter is missing, mostly in outages.
The command `sgpvae fit` learns from samples of about {sizes.sample:,} rows, another one in each epoch,
and `sgpvae impute` fills all files, with intervals, by {WORKERS} workers. Each process has one thread.

*Memory* is the most that all processes of a command had at the same time: the sum of the highest resident memory of
each so far, in which pages that they share count for each.

**Workers.** One process and two workers fill {sizes.shared} of the files in turns. What they take is told in seconds
of the processor, those of the first process and then of the busier worker: the clock of a machine with two idle cores.
This one had other work to do, as the clock shows. *Once started*: less what {TINY.num_rows} rows take."""


def costs_table(costs: list[tuple[str, dict[str, Any], int, int | None]]) -> str:
    """The cost of each command: what it did, what it took, by how many workers, and for how many rows."""
    lines = [
        [
            what,
            str(workers),
            "" if rows is None else f"{rows:,}",
            duration(cost["seconds"]),
            " + ".join(duration(seconds) for seconds in cost["processor"] if seconds >= 1) or "less than 1 s",
            "" if rows is None else number(rows / sum(cost["processor"])),
            size(cost["peak"]),
        ]
        for what, cost, workers, rows in costs
    ]
    return table(["", "workers", "rows", "clock", "processor", "rows per processor second", "memory"], lines)


def quality_table(quality: dict[str, Any]) -> str:
    """The errors of each output."""
    header = ["filled entries", "RMSE / sd", "of linear interpolation", "in the 95 % interval"]
    lines = [
        [
            name,
            number(quality[name]["filled"]),
            number(quality[name]["interpolated"]),
            f"{quality[name]['coverage']:.1%}",
        ]
        for name in OUTPUTS
    ]
    return table(header, lines)


def notes(rates: dict[str, float], predicted: float) -> str:
    """
    :param rates: Rows in a second.
    :param predicted: Seconds of many workers for many rows.
    """
    return f"""A *prediction*, which nobody has measured: {PREDICTED_WORKERS} workers like these fill
{PREDICTED_ROWS:,} rows in {duration(predicted)}. Once started, a worker fills {number(rates["worker"])} rows in a
second of the processor; before that, one process looks up which tasks cross partitions, {number(rates["survey"])} rows
in a second. It is assumed that files are read and written as fast as here, and that the
scheduler has nothing to wait for: there are some thousand partitions."""


def draw(turns: dict[int, list[dict[str, Any]]], rows: int, rates: dict[str, float]) -> Figure:
    """
    :param turns: What filling a part cost, by the number of workers.
    :param rows: The rows of this part.
    :param rates: Rows in a second.
    """
    figure = Figure(figsize=(9, 3.8), layout="constrained")
    left, right = figure.subplots(1, 2)
    for number_of_workers, parts in turns.items():
        seconds = [_longest(part["processor"]) for part in parts]
        at = [number_of_workers] * len(parts)
        left.plot(at, [rows / one for one in seconds], "o", color=COLOURS[0], label=f"{number_of_workers}")
    left.set(xticks=[1, 2], xlim=(0.5, 2.5), xlabel="workers", ylabel=f"rows in a second, of {rows:,}", ylim=(0, None))
    workers = np.logspace(0, 3, 50)
    together = PREDICTED_ROWS / rates["survey"] + PREDICTED_ROWS / workers / rates["worker"]
    right.plot(workers, together / 3600, "--", color=COLOURS[1])
    right.set(xscale="log", yscale="log", xlabel="workers", ylabel=f"hours for {PREDICTED_ROWS:,} rows, predicted")
    for axes in (left, right):
        axes.grid(alpha=0.3)
    return figure
