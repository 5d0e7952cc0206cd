"""How well the holes of a table are filled, beside the imputers that people use."""

from __future__ import annotations

import sys
import time
from statistics import mean
from typing import Any

import numpy as np
import torch
from matplotlib.figure import Figure

from experiments.runs import ResultFile, Run, by_row
from gpytorch_sgpvae import Prediction, metrics

from ..beijing import DAY, NUM_OUTAGES, NUM_RUNS, POLLUTANTS
from ..imputers import AVAILABLE, IMPUTERS, OURS, WIDE, Imputed
from ..kriging import NUM_NEIGHBOURS
from ..study import COLOURS, Options, Report, duration, number, table
from ..tables import BLOCK, TABLES, Problem

STUDY = "tables"
HIDDEN = {
    "AMeDAS": ["10 %", "30 %", "50 %", "blocks"],
    "EEG": ["electrodes"],
    "Beijing station": ["20 %", "runs"],
    "twelve stations": ["30 %", "outages"],
    "generated": ["30 %"],
}
# Tables without places that come again: a wide one would be the long one, which IterativeImputer has.
NOT_WIDE = {"EEG", "Beijing station"}
LEVEL = 0.95
HOW_TO_GET_IT = "PyPOTS comes with benchmarks/peers.txt."


def run(options: Options) -> Report:
    """What has been run is not run again: its line is in `tables.jsonl`."""
    torch.set_num_threads(options.threads)
    results = ResultFile(STUDY, options.folder)
    if options.again:
        results.drop(lambda run: run.model in options.again)
    names = ["generated"] if options.quick else [name for name in TABLES if name != "generated"]
    for run in planned(names, range(min(options.seeds, 1) if options.quick else options.seeds)):
        if run not in results.read():
            print(run, file=sys.stderr, flush=True)
            results.append(run, outcome(run, options.quick))
    outcomes = {run: result for run, result in results.read().items() if run.experiment in names}
    return report(outcomes)


def planned(names: list[str], seeds: range) -> list[Run]:
    """List all runs, those with the same seed together, and the quick ones first, for a study that is stopped early."""
    return [
        Run(name, imputer, variant=hide, seed=seed)
        for seed in seeds
        for imputer in AVAILABLE
        for name in names
        for hide in HIDDEN[name]
        if makes_sense(imputer, name)
    ]


def makes_sense(imputer: str, name: str) -> bool:
    """
    :param imputer: Its name.
    :param name: That of a table.
    """
    return not (imputer == WIDE and name in NOT_WIDE)


def outcome(run: Run, quick: bool) -> dict[str, Any]:
    problem = TABLES[run.experiment](run.variant, run.seed)
    torch.manual_seed(run.seed)
    start = time.perf_counter()
    imputed = IMPUTERS[run.model](problem, run.seed, quick)
    return {"seconds": time.perf_counter() - start, **score(imputed, problem)}


def score(imputed: Imputed, problem: Problem) -> dict[str, Any]:
    """
    Scores of the hidden entries, for each output that has some in its own units. What is said of all outputs is in
    units of their standard deviations: `rmse_over_sd` is the mean of the outputs' RMSE, `all` the root of the mean of
    their squares, and the mean for CRPS and coverage. The CRPS of a value without a distribution is its absolute error.
    """
    truth = torch.tensor(problem.truth)
    hidden = ~truth.isnan().all(0)
    scale, names = torch.tensor(problem.scale)[hidden], np.array(problem.outputs)[hidden.numpy()].tolist()
    is_distribution = isinstance(imputed, Prediction)
    prediction = imputed if is_distribution else torch.tensor(imputed)
    rmse = metrics.rmse(prediction, truth)[hidden]
    crps = (metrics.crps if is_distribution else metrics.mae)(prediction, truth)[hidden]
    together = (rmse / scale).square().mean().sqrt()
    result: dict[str, Any] = {
        "rmse_over_sd": float((rmse / scale).mean()),
        "rmse": _by_output(together, rmse, names),
        "crps": _by_output((crps / scale).mean(), crps, names),
    }
    if is_distribution:
        inside = metrics.coverage(prediction, truth, LEVEL)[hidden]
        result["coverage"] = _by_output(inside.mean(), inside, names)
    return result


def _by_output(together: torch.Tensor, values: torch.Tensor, names: list[str]) -> dict[str, float]:
    return {"all": float(together), **dict(zip(names, values.tolist(), strict=True))}


def report(outcomes: dict[Run, dict[str, Any]]) -> Report:
    rows = by_row(outcomes)
    tables, problems = [], dict.fromkeys((row.experiment, row.variant) for row in rows)
    for name, hide in problems:
        cells = {row.model: rows[row] for row in rows if (row.experiment, row.variant) == (name, hide)}
        expected = [imputer for imputer in IMPUTERS if makes_sense(imputer, name)]
        tables += [f"## {name}, hidden: {describe(hide)}", problem_table(cells, expected)]
    has_all = {row.model for row in rows} >= set(IMPUTERS)
    return Report(
        title="Filling the holes of tables",
        text=f"""Hidden entries of tables, and what imputers say of them: means over as many seeds as the last column
says. *RMSE / sd* is the mean over outputs of the RMSE in units of the output's standard deviation, *root mean square*
the root of the mean of its square, which weighs hard outputs more; *CRPS* is a mean in these units too. Outputs of
which nothing is hidden do not count. The RMSE of single outputs is in their own units. The CRPS of a method without a
distribution is its mean absolute error. Coverage is the share of hidden values inside
the central 95 % interval. {"" if has_all else HOW_TO_GET_IT}""",
        tables=tables,
        notes=NOTES,
        figures={"runs": len(outcomes)},
        figure=draw(rows, list(problems)),
    )


NOTES = f"""- *AMeDAS* is the table of 155 observatories, 20 weeks of days and four outputs. Entries are hidden at
  random, or in blocks: {BLOCK} days of a station with all that it measures, 30 % of the time. Every imputer gets the
  same table and fills it. *EEG*: imputers learn from 30 recordings of 64 electrodes, half of which is gone in windows
  of 16 samples, and fill 25 others.
- Rows of *{OURS}* that say "not run yet" have not been measured with the model of today: `python -m benchmarks tables
  --seeds 1` runs them. Its other rows are from a busy machine, with a tenth of a core: compare scores, not times.
- *{OURS}* has its defaults: a task is a week, or a recording. Some of these defaults (the kernel, constants for
  places, the factor of the KL divergence) were chosen by entries hidden from the AMeDAS table, others than these but of
  the same weeks, so that its figures there are a little optimistic. Nothing of the others was chosen by this table.
- *Time* is that of one run, learning and filling, on a machine that had other things to do as well.
- *Beijing station* is Aotizhongxin's air and weather for four years, 35,064 hours, ten outputs, and no input but the
  date; *twelve stations* are those of Beijing in December 2014 and January 2015, a row for each station and hour, with
  latitude, longitude and date as inputs. Neither has a task. {len(POLLUTANTS)} of the outputs are pollutants.
- *Linear interpolation* runs along the whole series of a station, past the ends of weeks.
- *Boosting* is `gpytorch_sgpvae.table.boosting.fill_by_boosting`: trees for each output, which are told the values
  before and after, a day before and a day after, the other outputs of the row, other places at the same time, and the
  calendar. Its settings were chosen on other seeds of these tables and on generated ones.
- *Wide ridge* is scikit-learn's IterativeImputer with ridge regression where each output of each place is a column and
  each time a row. Its penalty was chosen on another seed of the twelve stations; BayesianRidge was worse there. It
  makes no sense where there is one place only, or none that comes again.
- *Kriging* gives each output a Gaussian process of its own over place and time, with an exponential covariance and a
  nugget, learnt from blocks of close entries; a hole is predicted from the {NUM_NEIGHBOURS} known entries closest to
  it, recordings one by one.
- *IterativeImputer* and *KNNImputer* (scikit-learn's, the latter weighted by distance) see a row for each station and
  day with standardized inputs, date and outputs. The former draws from its posterior.
- *PyPOTS* takes windows on a regular grid: 28 days of a station (a whole recording) are a sample, with the outputs and
  the station's place as features. Sizes are those of its introduction; it stops when a tenth of the windows, kept for
  validation, has not improved for ten epochs, of at most 100. Its GP-VAE offers samples that are all the same."""


def describe(hide: str) -> str:
    runs = {
        "blocks": f"blocks of {BLOCK} days",
        "electrodes": "failing electrodes",
        "runs": f"{NUM_RUNS} runs of {DAY} hours of all pollutants",
        "outages": f"{NUM_OUTAGES} outages of a station for {DAY} hours",
    }
    return runs.get(hide, f"{hide} at random")


def problem_table(cells: dict[str, list[dict[str, Any]]], expected: list[str]) -> str:
    """
    :param cells: Outcomes of all seeds of each imputer.
    :param expected: The imputers that there should be.
    """
    outputs = [name for name in next(iter(cells.values()))[0]["rmse"] if name != "all"]
    shown = outputs if len(outputs) <= 8 else []
    # nobody is the best of some
    missing = [name for name in expected if name not in cells]
    errors = {model: mean(result["rmse_over_sd"] for result in results) for model, results in cells.items()}
    lines = []
    for model, results in sorted(cells.items(), key=lambda item: errors[item[0]]):
        text = f"{errors[model]:.3f}"
        lines.append(
            [
                model,
                f"**{text}**" if errors[model] == min(errors.values()) and not missing else text,
                f"{mean(result['rmse']['all'] for result in results):.3f}",
                f"{mean(result['crps']['all'] for result in results):.3f}",
                f"{100 * mean(r['coverage']['all'] for r in results):.1f} %" if "coverage" in results[0] else "-",
                *(number(mean(result["rmse"][name] for result in results)) for name in shown),
                duration(mean(result["seconds"] for result in results)),
                str(len(results)),
            ]
        )
    header = [
        "",
        "RMSE / sd",
        "root mean square",
        "CRPS",
        "coverage of 95 %",
        *(f"RMSE {name}" for name in shown),
        "time",
        "seeds",
    ]
    return table(header, [*lines, *([name, "not run yet", *[""] * (len(header) - 2)] for name in missing)])


def draw(rows: dict[Run, list[dict[str, Any]]], problems: list[tuple[str, str]]) -> Figure:
    figure = Figure(figsize=(max(2.6 * len(problems), 6), 3.8), layout="constrained")
    models = [name for name in IMPUTERS if any(row.model == name for row in rows)]
    panels = figure.subplots(1, len(problems), sharey=True, squeeze=False)[0]
    for panel, (name, hide) in zip(panels, problems, strict=True):
        for i, model in enumerate(models):
            results = rows.get(Run(name, model, variant=hide), [])
            values = [result["rmse_over_sd"] for result in results]
            if values:
                panel.barh(i, np.mean(values), color=COLOURS[0] if model == OURS else "silver")
                panel.plot(values, [i] * len(values), "k|", markersize=9)
        panel.set(title=f"{name}\n{describe(hide)}", xlabel="RMSE / sd")
    panels[0].set_yticks(range(len(models)), models)
    panels[0].invert_yaxis()
    return figure
