"""Axes to draw on, and what several of them share."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from matplotlib.axes import Axes


def new_axes(number: int, rows: bool = False) -> np.ndarray:
    """Make the given number of panels, below each other or side by side."""
    import matplotlib.pyplot as plt

    shape = (number, 1) if rows else (1, number)
    size = (8, 2.3 + 1.6 * (number - 1)) if rows else (4.5 * number + 1.5 * (number == 1), 3.5)
    return plt.subplots(*shape, figsize=size, sharex=rows, squeeze=False, layout="constrained")[1].reshape(-1)


def as_panels(axes: Axes | Sequence[Axes] | np.ndarray, number: int, things: str) -> np.ndarray:
    panels = np.asarray(axes, dtype=object).reshape(-1)
    if len(panels) != number:
        raise ValueError(f"{len(panels)} axes for {number} {things}: give one for each.")
    return panels


def legend_entries(panels: Sequence[Axes] | np.ndarray) -> dict[str, list[Any]]:
    """
    Gather the labels of several panels, each of them once: the arguments of one legend for all.

    :param panels: The axes.

    Example:
        >>> import torch
        >>> from gpytorch_sgpvae import Prediction, plotting
        >>> x, y = torch.linspace(0, 1, 5), torch.randn(5, 2)
        >>> y[:2, 1] = torch.nan
        >>> prediction = Prediction.gaussian(torch.zeros(5, 2), torch.ones(5, 2))
        >>> panels = plotting.plot_outputs(x, prediction, context=(x, y))
        >>> plotting.legend_entries(panels)["labels"]
        ['95% band', 'predicted', 'observed', 'missing']
        >>> legend = panels[0].figure.legend(**plotting.legend_entries(panels))
    """
    pairs = (zip(*panel.get_legend_handles_labels(), strict=True) for panel in np.asarray(panels, dtype=object).flat)
    entries = {label: handle for panel in pairs for handle, label in panel}
    return {"handles": list(entries.values()), "labels": list(entries)}
