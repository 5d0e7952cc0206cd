"""The scores of all kept runs, as dots: the figure of experiments that have none of their own."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from gpytorch_sgpvae.plotting import STYLES, legend_entries

from .experiment import Experiment, table_rows
from .runs import Run

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def draw_scores(experiment: Experiment, outcomes: dict[Run, dict[str, Any]]) -> Figure:
    """A panel for each score that the paper has, and a line for each row of the table, the best in the last on top."""
    import matplotlib.pyplot as plt
    from matplotlib.ticker import LogLocator, MaxNLocator

    ours, papers = STYLES[0]["color"], STYLES[1]["color"]
    columns = experiment.columns
    rows = sorted(table_rows(experiment, outcomes), key=lambda row: row.mean(columns[-1]), reverse=True)
    size = (3 + 3 * len(columns), 1.5 + 0.3 * len(rows))
    figure, panels = plt.subplots(1, len(columns), figsize=size, sharey=True, layout="constrained")
    for axes, column in zip(panels, columns, strict=True):
        for height, row in enumerate(rows):
            values = row.values(column)
            axes.scatter(values, len(values) * [height], color=ours, alpha=0.5, label="a run")
            if column in row.published:
                mean, spread = row.of_the_paper(column)
                style = {"color": papers, "fmt": "D", "capsize": 3, "label": "published"}
                axes.errorbar(mean, height, xerr=spread, **style)
        if column in experiment.targets:
            axes.axvline(experiment.targets[column], color="black", linestyle="--", linewidth=1, label="target")
        axes.set(xlabel=column, xscale="log")  # some are far behind
        least, most = axes.get_xlim()
        axes.xaxis.set_major_locator(LogLocator(subs=(1, 1.5, 2, 3, 5, 7)) if most > 3 * least else MaxNLocator(5))
        axes.xaxis.set_major_formatter("{x:g}")
        axes.minorticks_off()
        axes.grid(axis="y", alpha=0.3)
    labels = [f"{row.label}, {row.run.preset}" if row.run.preset else row.label for row in rows]
    panels[0].set_yticks(range(len(rows)), labels)
    figure.legend(**legend_entries(panels), loc="outside lower center", ncols=3)
    return figure
