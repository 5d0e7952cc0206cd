"""TSI-Bench: imputers of time series on three public data sets, five patterns of holes each."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Mapping

import torch

from gpytorch_sgpvae.datasets import WindowData, load_tsibench

from .experiment import Experiment, Outcome
from .runs import Run
from .texts import text_of
from .tsibench_report import draw, draw_time, tables, time_table
from .window_networks import NETWORKS, filled_by, make_network, network_method, sets_of
from .windows import (
    Imputed,
    Method,
    boosting,
    exact,
    fitted,
    independent,
    interpolation,
    scores_of,
    timed,
    with_perceptrons,
    without_deviations,
)

DATA_SETS = ("ETTh1", "ItalyAir", "BeijingAir")
# What is hidden: a pattern, and the share of all entries.
HOLES = {
    "point10": ("point", 0.1),
    "point50": ("point", 0.5),
    "point90": ("point", 0.9),
    "subseq": ("subseq", 0.5),
    "block": ("block", 0.5),
}
VARIANTS = tuple(f"{name}-{holes}" for name in DATA_SETS for holes in HOLES)
# The seed of the first masks; each run has its own.
FIRST_SEED = 2024
METHODS: Mapping[str, Method] = {
    "windows": exact,
    "windows-perceptrons": with_perceptrons,
    "windows-independent": independent,
    "interpolation": interpolation,
    "boosting": boosting,
}
# Few windows of few outputs are as short as it gets.
SMOKE_WINDOWS, SMOKE_OUTPUTS = 8, 6

# The setting whose errors are followed over time, and rounds over its training windows.
TIME_SETTING, EPOCHS = "ETTh1-point50", ("1", "3", "10", "30", "100")


def run(run: Run, smoke: bool) -> Outcome:
    torch.manual_seed(run.seed)
    data = load(run.variant, run.seed, smoke)
    name = run.variant.partition("-")[0]
    method = METHODS[run.model] if run.model in METHODS else network_method(run.model, name)
    imputed, seconds = timed(method, data, run.seed, smoke)
    scores = scores_of(imputed, data)
    return Outcome({**scores, "processor_seconds": seconds, "parameters": imputed.num_parameters})


def load(variant: str, seed: int, smoke: bool) -> WindowData:
    """The windows of a setting, with the holes of a seed."""
    name, _, holes = variant.partition("-")
    data = load_tsibench(name, *HOLES[holes], seed=FIRST_SEED + seed)
    return shortened(data) if smoke else data


def shortened(data: WindowData) -> WindowData:
    """The first windows and outputs."""

    def cut(windows):
        return type(windows)(*(part[:SMOKE_WINDOWS, :, :SMOKE_OUTPUTS] for part in windows))

    parts = {name: cut(getattr(data, name)) for name in ("train", "validation", "test")}
    parts |= {name: getattr(data, name)[:SMOKE_OUTPUTS] for name in ("outputs", "mean", "stddev")}
    return dataclasses.replace(data, **parts)


def run_for_a_time(run: Run, smoke: bool) -> Outcome:
    """Errors after a number of rounds over the training windows, and the seconds that learning took."""
    torch.manual_seed(run.seed)
    data = load(TIME_SETTING, run.seed, smoke)
    epochs = 1 if smoke else int(run.variant)
    start = time.process_time()
    if run.model == "windows":
        imputer = fitted(data, run.seed, epochs)
        seconds = time.process_time() - start
        said = without_deviations(torch.tensor(imputer.impute({"X": data.test.seen}), dtype=torch.float64))
    else:
        model = make_network(run.model, "ETTh1", data, run.seed, epochs)
        model.patience = epochs  # nothing ends it before
        model.fit(*sets_of(data))
        seconds = time.process_time() - start
        said = filled_by(model, data)
    return Outcome({**scores_of(Imputed(None, said), data), "processor_seconds": seconds})


TSIBENCH = Experiment(
    title="TSI-Bench",
    run=run,
    trained=(),
    baselines=(*METHODS, *NETWORKS),
    deterministic=(),
    columns=("mae", "mse"),
    published={},
    seeds=3,
    variants=VARIANTS,
    figure=draw,
    table=tables,
    text=text_of("tsibench"),
)

TSIBENCH_TIME = Experiment(
    title="TSI-Bench, errors over time",
    run=run_for_a_time,
    trained=(),
    baselines=("windows", "saits", "brits"),
    deterministic=(),
    columns=("mae", "mse"),
    published={},
    seeds=1,
    variants=EPOCHS,
    figure=draw_time,
    table=time_table,
    text=text_of("tsibench-time"),
)
