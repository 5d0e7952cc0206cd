"""The errors in each output of patients, a mark for each method."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from gpytorch_sgpvae.datasets.patients import OUTPUTS
from gpytorch_sgpvae.plotting import STYLES

from .runs import NAMES, Run, by_row

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def draw(outcomes: dict[Run, dict[str, Any]]) -> Figure:
    """A line for each output, with the mean over runs of each method's `srmse`."""
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(figsize=(9, 5), layout="constrained")
    for style, (row, results) in zip(STYLES, by_row(outcomes).items(), strict=False):
        errors = [
            sum(result["scores"][f"srmse_{name}"] for result in results) / len(results) for name in reversed(OUTPUTS)
        ]
        marks = {"color": style["color"], "marker": style["marker"], "linestyle": ""}
        axes.plot(errors, range(len(OUTPUTS)), **marks, alpha=0.8, label=NAMES[row.model])
    axes.set_yticks(range(len(OUTPUTS)), [name.replace("_", " ") for name in reversed(OUTPUTS)])
    axes.set(xlabel="error of hidden entries (RMSE), in standard deviations of the output", xlim=(0, None))
    axes.axvline(1.0, color="black", linestyle=":", linewidth=1)
    axes.grid(axis="y", alpha=0.3)
    figure.legend(loc="outside right upper")
    return figure
