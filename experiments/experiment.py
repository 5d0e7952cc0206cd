"""What an experiment offers to the command line and to the report, and the rows of its table."""

from __future__ import annotations

import statistics
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from .runs import Run, by_row, kept, row_label

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@dataclass(frozen=True)
class Outcome:
    """
    What a run has found.

    :param scores: Scores of what was held out.
    :param elbo: The ELBO of the training data, by which runs are kept; None for a baseline.
    :param extra: Whatever else a figure needs.
    """

    scores: dict[str, float]
    elbo: float | None = None
    extra: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Experiment:
    """
    An experiment of the paper: how it is run, and how it is reported.

    :param title: Its heading in the report.
    :param run: Does one run; the second argument asks for the shortest possible one.
    :param trained: Models with an inference network, the default first.
    :param baselines: Models without one.
    :param deterministic: Baselines that no seed changes.
    :param columns: The scores that the paper has, and that the report shows first.
    :param published: What the paper's table says in each column, by the label of the row.
    :param seeds: How many runs by default.
    :param inducing: Numbers of inducing points by default, for the SGP-VAE.
    :param variants: The variants of an experiment that has several.
    :param text: What the report says about it.
    :param targets: The highest value that counts as reached, by column.
    :param network: The network by default.
    :param presets: How its models can be trained, the default last.
    :param ahead: Scores in which that network, tuned, is to be ahead of every other, every VAE and every baseline.
    :param figure: Draws the outcomes of all runs, None where there is nothing to draw yet; by default their scores.
    :param table: Writes the outcomes of all runs in Markdown; by default a table with a row for each model.
    """

    title: str
    run: Callable[[Run, bool], Outcome]
    trained: tuple[str, ...]
    baselines: tuple[str, ...]
    deterministic: tuple[str, ...]
    columns: tuple[str, ...]
    published: dict[str, dict[str, str]]
    seeds: int = 15
    inducing: tuple[int, ...] = (0,)
    variants: tuple[str, ...] = ("",)
    text: str = ""
    targets: dict[str, float] = field(default_factory=dict)
    network: str = "factornet"
    presets: tuple[str, ...] = ("paper", "tuned")
    ahead: tuple[str, ...] = ()
    figure: Callable[[dict[Run, dict[str, Any]]], Figure | None] | None = None
    table: Callable[[dict[Run, dict[str, Any]]], str] | None = None

    @property
    def models(self) -> tuple[str, ...]:
        return self.trained + self.baselines


# Prefix of the scores, and label of the row: with the network's sites, and with refined ones.
FLAVORS = (("", ""), ("ff_", ", FF"))


@dataclass(frozen=True)
class Row:
    """
    A row of an experiment's table: all runs that differ in their seeds alone.

    :param run: What they share.
    :param label: What the report calls them.
    :param scores: The scores of each kept run.
    :param results: The results of all runs.
    :param published: What the paper says in each column, as in `0.40 (0.01)`.
    """

    run: Run
    label: str
    scores: list[dict[str, float]]
    results: list[dict[str, Any]]
    published: dict[str, str]

    def values(self, column: str) -> list[float]:
        return [scores[column] for scores in self.scores]

    def mean(self, column: str) -> float:
        return statistics.fmean(self.values(column))

    def of_the_paper(self, column: str) -> tuple[float, float]:
        """The published mean and its standard deviation, zero where there is none."""
        mean, _, spread = self.published[column].removesuffix(")").partition(" (")
        return float(mean), float(spread or 0)


def table_rows(experiment: Experiment, outcomes: dict[Run, dict[str, Any]]) -> list[Row]:
    """Rows with the network's sites and, where there are such scores, with refined ones, in the order of the runs."""
    rows = []
    for run, results in by_row(outcomes).items():
        for prefix, label in FLAVORS:
            if f"{prefix}{experiment.columns[0]}" in results[0]["scores"]:
                of_all = [result["scores"] for result in kept(results)]
                # those of the other flavor are another row's
                scores = [
                    {
                        name.removeprefix(prefix): value
                        for name, value in of.items()
                        if name.startswith("ff_") == bool(prefix)
                    }
                    for of in of_all
                ]
                name = " ".join(filter(None, [run.model, run.network, run.variant])) + label
                published = experiment.published.get(name, {})
                rows.append(Row(run, row_label(run) + label, scores, results, published))
    return rows
