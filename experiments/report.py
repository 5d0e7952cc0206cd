"""Tables of what the runs have left behind."""

from __future__ import annotations

import statistics
from pathlib import Path
from typing import Any

from .registry import EXPERIMENTS
from .runs import RESULTS, ResultFile, Run, by_row, kept

PAGE = Path(__file__).parent / "RESULTS.md"
NAMES = {
    "gpvae": "GP-VAE",
    "sgpvae": "SGP-VAE",
    "vae": "VAE",
    "igp": "independent GPs",
    "mean": "mean imputation",
    "gpar": "GPAR",
    "factornet": "FactorNet",
    "indexnet": "IndexNet",
    "pointnet": "PointNet",
    "zeroimputation": "zero imputation",
}
CALIBRATION = ("crps", "coverage")


def write(folder: Path = RESULTS, page: Path = PAGE) -> Path:
    """The page with all tables."""
    parts = [INTRODUCTION]
    for name, experiment in EXPERIMENTS.items():
        outcomes = ResultFile(name, folder).read()
        if outcomes:
            text = [f"## {experiment.title}", experiment.text, table(name, outcomes), _targets(name, outcomes)]
            parts.append("\n\n".join(part for part in text if part))
    page.write_text("\n\n".join(parts) + "\n")
    return page


INTRODUCTION = """# Results

Made by `python -m experiments report` from the lines in [results/](results); each experiment is
`python -m experiments NAME` (see `--help`). Scores are of held-out entries, in original units: mean (standard
deviation) over the two thirds of the runs with the highest training ELBO, as in the paper. NLL is that of a Gaussian
with matched moments, coverage that of the 95 % interval. *Published* is what the paper says. The preset `paper` has the
paper's settings; `tuned` was chosen by the training ELBO and by observed entries held out of the training data, never
by the test entries."""


def table(name: str, outcomes: dict[Run, dict[str, Any]]) -> str:
    """The rows of an experiment: ours, and what the paper says beside it."""
    experiment = EXPERIMENTS[name]
    rows = by_row(outcomes)
    calibration = sorted(
        {
            score
            for row in rows.values()
            for score in row[0]["scores"]
            if score.endswith(CALIBRATION) and "ff_" not in score
        }
    )
    columns = [*experiment.columns, *calibration]
    header = ["", "preset", "runs", *columns, *(f"{column}, published" for column in experiment.columns), "seconds"]
    lines = []
    for row, results in rows.items():
        chosen = kept(results)
        for prefix, label in (("", ""), ("ff_", ", FF")):
            if f"{prefix}{columns[0]}" not in results[0]["scores"]:
                continue
            published = experiment.published.get(" ".join(filter(None, [row.model, row.network])) + label, {})
            cells = [_spread([result["scores"][f"{prefix}{column}"] for result in chosen]) for column in columns]
            beside = [published.get(column, "") for column in experiment.columns]
            seconds = f"{statistics.median(result['seconds'] for result in results):.0f}"
            runs = f"{len(chosen)} of {len(results)}"
            lines.append([_label(row) + label, row.preset, runs, *cells, *beside, seconds])
    return "\n".join("| " + " | ".join(line) + " |" for line in [header, ["---"] * len(header), *lines])


def _targets(name: str, outcomes: dict[Run, dict[str, Any]]) -> str:
    """What was to be reached, beside the best row of the tuned preset."""
    experiment, lines = EXPERIMENTS[name], []
    tuned = {row: kept(results) for row, results in by_row(outcomes).items() if row.preset == "tuned"}
    for column, limit in experiment.targets.items():
        if not tuned:
            continue
        means = {
            row: statistics.fmean(result["scores"][column] for result in results) for row, results in tuned.items()
        }
        best = min(means, key=lambda row: means[row])
        verdict = "reached" if means[best] <= limit else "**short**"
        lines.append(f"- {column} at most {limit}: {means[best]:.3f} by {_label(best)}, {verdict}")
    return "\n".join(lines)


def _label(row: Run) -> str:
    parts = [NAMES[row.model], NAMES.get(row.network, ""), f"M = {row.inducing}" if row.inducing else "", row.variant]
    return " ".join(part for part in parts if part)


def _spread(values: list[float]) -> str:
    mean = statistics.fmean(values)
    return f"{mean:.3f} ({statistics.stdev(values):.3f})" if len(values) > 1 else f"{mean:.3f}"
