"""Tables of what the runs have left behind."""

from __future__ import annotations

import dataclasses
import statistics
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from .experiment import Experiment, Row, table_rows
from .registry import EXPERIMENTS
from .runs import NAMES, RESULTS, ResultFile, Run
from .score_figure import draw_scores
from .texts import text_of

PAGE = Path(__file__).parent / "RESULTS.md"
# Endings of the scores that stand beside those of the paper.
BESIDE = ("nll_mixture", "crps", "coverage")


def write(folder: Path = RESULTS, page: Path = PAGE) -> Path:
    """The page with all tables, and the figures in a folder beside it."""
    parts = ["# Results", text_of("introduction")]
    for name, experiment in EXPERIMENTS.items():
        outcomes = ResultFile(name, folder).read()
        if outcomes:
            text = [
                f"## {experiment.title}",
                experiment.text,
                _provenance(name, outcomes),
                # what other pages include
                f"<!-- {name} -->\n\n{table(name, outcomes)}\n\n<!-- end of {name} -->",
                _targets(name, outcomes),
            ]
            text.append(_draw(name, outcomes, page.parent / "figures"))
            parts.append("\n\n".join(part for part in text if part))
    page.write_text("\n\n".join(parts) + "\n", encoding="utf-8")
    return page


def _draw(name: str, outcomes: dict[Run, dict[str, Any]], folder: Path) -> str:
    """The figure of an experiment, and the link to it."""
    experiment = EXPERIMENTS[name]
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure = draw_scores(experiment, outcomes) if experiment.figure is None else experiment.figure(outcomes)
    if figure is None:
        return ""
    folder.mkdir(parents=True, exist_ok=True)
    # without the version of matplotlib in it: the same results are the same file
    figure.savefig(folder / f"{name}.png", dpi=100, metadata={"Software": None})
    plt.close(figure)
    return f"![{experiment.title}](figures/{name}.png)"


def table(name: str, outcomes: dict[Run, dict[str, Any]]) -> str:
    """The rows of an experiment: ours, and what the paper says beside it."""
    experiment = EXPERIMENTS[name]
    if experiment.table is not None:
        return experiment.table(outcomes)
    rows = table_rows(experiment, outcomes)
    beside = {score for row in rows for score in row.scores[0] if score.endswith(BESIDE)}
    columns = [*experiment.columns, *sorted(beside)]
    of_the_paper = [column for column in columns if any(column in row for row in experiment.published.values())]
    header = ["", "preset", "runs", *columns, *(f"{column}, published" for column in of_the_paper), "seconds"]
    lines = []
    for row in rows:
        cells = [_spread(row.values(column)) for column in columns]
        cells += [row.published.get(column, "") for column in of_the_paper]
        seconds = f"{statistics.median(result['seconds'] for result in row.results):.0f}"
        lines.append([row.label, row.run.preset, f"{len(row.scores)} of {len(row.results)}", *cells, seconds])
    return "\n".join("| " + " | ".join(line) + " |" for line in [header, ["---"] * len(header), *lines])


def _provenance(name: str, outcomes: dict[Run, dict[str, Any]]) -> str:
    """The commands, the days and the versions that the figures are of."""
    days = sorted({outcome["date"] for outcome in outcomes.values()})
    versions = sorted({", ".join(f"{k} {v}" for k, v in outcome["versions"].items()) for outcome in outcomes.values()})
    period = " to ".join(dict.fromkeys([days[0], days[-1]]))
    return "\n".join(["```sh", *commands(name, outcomes), "```", "", f"{period}; {'; '.join(versions)}."])


def commands(name: str, runs: Iterable[Run]) -> list[str]:
    """The command lines that do these runs."""
    variants: dict[Run, set[str]] = defaultdict(set)
    num_seeds: dict[Run, int] = defaultdict(int)
    for run in runs:
        row = dataclasses.replace(run, variant="", seed=0)
        variants[row].add(run.variant)
        num_seeds[row] = max(num_seeds[row], run.seed + 1)
    options = [
        {
            "model": [row.model],
            "network": [row.network] if row.network else [],
            "inducing": [row.inducing] if row.inducing else [],
            "preset": [row.preset] if row.preset else [],
            "variant": sorted(variants[row] - {""}),
            "seeds": [num_seeds[row]],
        }
        for row in sorted(variants)
    ]
    # one command for those that differ in one thing
    for varying in ("inducing", "network", "preset", "model"):
        merged: list[dict[str, list[Any]]] = []
        for option in options:
            for other in merged:
                if all(option[key] == other[key] for key in option if key != varying):
                    other[varying] = [*dict.fromkeys(other[varying] + option[varying])]
                    break
            else:
                merged.append(option)
        options = merged
    return [
        f"python -m experiments {name} "
        + " ".join(f"--{key} {' '.join(map(str, values))}" for key, values in option.items() if values)
        for option in options
    ]


def _targets(name: str, outcomes: dict[Run, dict[str, Any]]) -> str:
    """The targets beside the best row of the tuned preset, and how far the preset `paper` is behind the paper."""
    experiment, lines = EXPERIMENTS[name], []
    rows = table_rows(experiment, outcomes)
    tuned = [row for row in rows if row.run.preset == "tuned"]
    for column, limit in experiment.targets.items():
        if tuned:
            best = min(tuned, key=lambda row: row.mean(column))
            verdict = "reached" if best.mean(column) <= limit else "**short**"
            lines.append(f"- {column} at most {limit}: {best.mean(column):.3f} by {best.label}, {verdict}")
    lines.append(_reproduction(rows))
    for variant in experiment.variants if experiment.ahead else ():
        lines.append(_race(experiment, [row for row in rows if row.run.variant == variant], variant))
    return "\n".join(filter(None, lines))


def _reproduction(rows: list[Row]) -> str:
    """The figures of the preset `paper` that are more than a published standard deviation behind."""
    behind = {}
    for row in rows:
        for column in row.published if row.run.preset == "paper" else ():
            mean, stddev = row.of_the_paper(column)
            if stddev:
                behind[f"{row.label} in {column}"] = (row.mean(column) - mean) / stddev
    if not behind:
        return ""
    far = [f"{label} ({distance:.1f})" for label, distance in behind.items() if distance > 1]
    line = f"- preset paper: {len(behind) - len(far)} of {len(behind)} figures within one published standard deviation"
    return f"{line} or better; behind by more: {', '.join(far)}" if far else f"{line} or better"


def _race(experiment: Experiment, rows: list[Row], variant: str) -> str:
    """Whether the first network of the tuned preset is ahead of everything else, in each score that matters."""
    ours, others = [], []
    for row in rows:
        if row.run.model == "vae" or row.run.network != experiment.network:
            others.append(row)
        elif row.run.preset == "tuned":
            ours.append(row)
    if not ours or not others:
        return ""

    def beside(other: Row) -> list[Row]:
        """Rows with as many inducing points as another, or all where there are none."""
        alike = [row for row in ours if (row.run.model, row.run.inducing) == (other.run.model, other.run.inducing)]
        return alike or ours

    behind = [
        column
        for column in experiment.ahead
        if any(min(row.mean(column) for row in beside(other)) >= other.mean(column) for other in others)
    ]
    missing = [model for model in experiment.models if all(row.run.model != model for row in rows)]
    verdict = "reached" if not missing else f"so far; nobody has run {', '.join(missing)}"
    verdict = f"**short** in {', '.join(behind)}" if behind else verdict
    variant_label = f" ({variant})" if variant else ""
    name_of_ours = ours[0].label if len(ours) == 1 else f"{NAMES[experiment.network]}{variant_label}"
    race = f"{name_of_ours} ahead of {', '.join(row.label for row in others)}"
    race += ", each beside as many inducing points," if len(ours) > 1 else ""
    return f"- {race} in {', '.join(experiment.ahead)}: {verdict}"


def _spread(values: list[float]) -> str:
    mean = statistics.fmean(values)
    return f"{mean:.3f} ({statistics.stdev(values):.3f})" if len(values) > 1 else f"{mean:.3f}"
