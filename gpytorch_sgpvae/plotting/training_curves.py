"""A picture of a training run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import accumulate
from typing import TYPE_CHECKING, Any

from .panels import as_panels, new_axes
from .styles import STYLES

if TYPE_CHECKING:
    import numpy as np
    from matplotlib.axes import Axes

# What a run logs (see gpytorch_sgpvae.training), and which of it belongs together.
TRAINING_PANELS = {
    "ELBO per observed value (nats)": ("train_elbo", "val_elbo"),
    "held-out error": ("val_score", "val_mae", "val_nll"),
    "coverage of the 95 % interval": ("val_coverage",),
    "hyperparameters": ("noise", "lengthscale_min", "lengthscale_max"),
}

# What is logged of single batches is shown as a mean over this many of them.
SMOOTHED = 20


def plot_training_curves(
    history: Mapping[str, tuple[Sequence[int], Sequence[float]]],
    axes: Axes | Sequence[Axes] | np.ndarray | None = None,
) -> np.ndarray:
    r"""
    Draw how a training run went. There is a panel for the bound, for the scores of held-out entries, for coverage and
    for hyperparameters, where the history has them, and one for each name of your own. The curve `train_elbo` is that
    of single batches, and shown with its running mean.

    :param history: For each name the steps and the values there, as a
        :class:`~gpytorch_sgpvae.training.TrainingCurves` has it in its `history`.
    :param axes: The axes to draw on, one for each panel (see :func:`training_panels`).
    :return: The axes, one for each panel.

    Example:
        >>> from gpytorch_sgpvae import plotting
        >>> history = {"train_elbo": ([1, 2, 3], [-1.9, -1.6, -1.5]), "seconds": ([1, 2, 3], [0.2, 0.1, 0.1])}
        >>> [each.get_title() for each in plotting.plot_training_curves(history)]
        ['ELBO per observed value (nats)', 'seconds']
    """
    panels = training_panels(history)
    drawn = new_axes(len(panels)) if axes is None else as_panels(axes, len(panels), "panels")
    for panel, (title, names) in zip(drawn, panels.items(), strict=True):
        for name, style in zip(names, STYLES, strict=False):
            steps, values = history[name]
            line = {"color": style["color"], "linestyle": style["linestyle"], "label": name}
            if name == "train_elbo" and len(steps) >= 2 * SMOOTHED:
                # Batches differ more from each other than from the same batch an epoch later.
                panel.plot(steps, values, color=style["color"], alpha=0.25)
                steps, values = _running_mean(steps, values)
            panel.plot(steps, values, marker="." if len(steps) < 30 else None, **line)
        panel.set(title=title, xlabel="step")
        panel.grid(alpha=0.3)
        if names != [title]:
            panel.legend()
    return drawn


def training_panels(history: Mapping[str, Any]) -> dict[str, list[str]]:
    """
    The titles of the panels of :func:`plot_training_curves`, and the names in each.

    :param history: The history, as for :func:`plot_training_curves`.
    """
    panels = {title: [name for name in names if name in history] for title, names in TRAINING_PANELS.items()}
    known = {name for names in panels.values() for name in names}
    return {title: names for title, names in panels.items() if names} | {
        name: [name] for name in history if name not in known
    }


def _running_mean(steps: Sequence[int], values: Sequence[float]) -> tuple[Sequence[int], list[float]]:
    """Means over the last few values, at the steps that they end at."""
    sums = [0.0, *accumulate(values)]
    means = [(sums[i + SMOOTHED] - sums[i]) / SMOOTHED for i in range(len(values) - SMOOTHED + 1)]
    return steps[SMOOTHED - 1 :], means
