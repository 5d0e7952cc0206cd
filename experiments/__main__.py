"""
The paper's experiments.

    python -m experiments amedas                                  # FactorNet, the tuned preset, five seeds
    python -m experiments eeg --model gpvae --network indexnet --seeds 3 --workers 2
    python -m experiments jura --model igp mean gpar              # baselines
    python -m experiments series --model markov sgpvae --workers 1  # at equal training time, one after the other
    python -m experiments amedas --smoke                          # does it run? takes seconds, leaves no results
    python -m experiments report                                  # RESULTS.md and the figures, from all results

A run leaves a line in experiments/results/; a run that has one is not run again. The data come from the folder that the
environment variable SGPVAE_DATA names, or by download.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Sequence
from itertools import product
from pathlib import Path

from tqdm import tqdm

from gpytorch_sgpvae.models import NETWORKS

from . import report
from .execution import execute
from .registry import EXPERIMENTS
from .runs import RESULTS, ResultFile, Run


def main(arguments: Sequence[str] | None = None) -> None:
    parser = make_parser()
    parsed = parser.parse_args(arguments)
    if parsed.name == "report":
        print(f"The tables are in {report.write(parsed.results or RESULTS)}.")
        return
    experiment = EXPERIMENTS[parsed.name]
    for kind, asked, known in (
        ("model", parsed.model, experiment.models),
        ("variant", parsed.variant, experiment.variants),
        ("preset", parsed.preset, experiment.presets),
    ):
        unknown = sorted(set(asked or ()) - set(known))
        if unknown:
            choice = f"choose from {', '.join(known)}" if any(known) else "leave it out"
            parser.error(f"{parsed.name} has no {kind} {', '.join(unknown)}: {choice}")
    # A smoke run leaves nothing behind.
    folder = parsed.results or (Path(tempfile.mkdtemp(prefix="experiments-")) if parsed.smoke else RESULTS)
    results = ResultFile(parsed.name, folder)
    finished = results.read()
    runs = [run for run in make_runs(parsed) if run not in finished]
    workers = min(parsed.workers, max(len(runs), 1))
    with tqdm(total=len(runs), desc=parsed.name) as progress:
        for run, outcome in execute(runs, parsed.smoke, workers):
            results.append(run, outcome)
            shown = ", ".join(f"{name} {value:.3f}" for name, value in list(outcome["scores"].items())[:4])
            progress.write(f"{run}: {shown} ({outcome['seconds']:.0f} s)")
            progress.update()
    print(report.table(parsed.name, results.read()))


def make_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m experiments", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("name", choices=[*EXPERIMENTS, "report"], help="the experiment, or report")
    parser.add_argument("--model", nargs="+", help="models and baselines (default: the experiment's first)")
    parser.add_argument("--network", nargs="+", choices=NETWORKS, help="default: the experiment's")
    parser.add_argument(
        "--inducing", nargs="+", type=int, help="numbers of inducing points (default: the experiment's)"
    )
    parser.add_argument("--variant", nargs="+", help="variants of an experiment that has several (default: all)")
    parser.add_argument("--preset", nargs="+", help="paper, tuned or timed (default: tuned, where there is one)")
    parser.add_argument("--seeds", type=int, help="how many runs (default: the experiment's)")
    parser.add_argument("--workers", type=int, default=2, help="runs at a time, of one thread each (default: 2)")
    parser.add_argument("--smoke", action="store_true", help="as short as possible, to see that it runs: no results")
    parser.add_argument("--results", type=Path, help=f"folder (default: {RESULTS}, or a temporary one with --smoke)")
    return parser


def make_runs(parsed: argparse.Namespace) -> list[Run]:
    experiment = EXPERIMENTS[parsed.name]
    runs = []
    for model in parsed.model or experiment.models[:1]:
        networks, presets = parsed.network or [experiment.network], parsed.preset or experiment.presets[-1:]
        inducing = parsed.inducing or experiment.inducing
        seeds = 1 if parsed.smoke else parsed.seeds or experiment.seeds
        if model not in experiment.trained:
            networks, presets, seeds = [""], [""], 1 if model in experiment.deterministic else seeds
        if model != "sgpvae":
            inducing = [0]
        variants = parsed.variant or experiment.variants
        for network, m, preset, variant in product(networks, inducing, presets, variants):
            runs += [Run(parsed.name, model, network, m, preset, variant, seed) for seed in range(seeds)]
    return runs


if __name__ == "__main__":
    main()
