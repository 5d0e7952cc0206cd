"""A picture of the outputs: observed, held out and predicted."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from ..context import Context, as_context
from ..likelihoods import Prediction
from .panels import as_panels, legend_entries, new_axes
from .styles import LEVEL, color, draw_band
from .tensors import horizontal, of_task, output_names

if TYPE_CHECKING:
    import numpy as np
    from matplotlib.axes import Axes


def plot_outputs(
    x: Tensor,
    prediction: Prediction,
    context: Context | tuple[Tensor, Tensor] | None = None,
    held_out: Context | tuple[Tensor, Tensor] | None = None,
    names: Sequence[str] | None = None,
    outputs: Sequence[int] | None = None,
    task: int | None = None,
    axes: Axes | Sequence[Axes] | np.ndarray | None = None,
) -> np.ndarray:
    r"""
    Each output on its own axes: the predictive mean and its band, the observed values as dots, those that were held
    out as circles, and where a value was missing as ticks on the axis.

    :param x: One coordinate of the predicted inputs (`N`, `N x 1` or `*T x N x 1`); of several choose one, as in
        `x[:, 0]`.
    :param prediction: The prediction there.
    :param context: The observed data, in the units of the prediction, with inputs of that one coordinate; NaN is a
        missing value.
    :param held_out: The values that should have been predicted, in the same form; NaN is a value that nobody knows.
    :param names: The names of all the P outputs.
    :param outputs: The outputs to draw; by default all.
    :param task: The index of a task in a batch.
    :param axes: The axes to draw on, one for each output.
    :return: The axes, one for each output.

    Example:
        >>> import torch
        >>> from gpytorch_sgpvae import SGPVAE, plotting
        >>> x, y = torch.linspace(0, 1, 50), torch.randn(50, 3)
        >>> hidden = torch.rand(50, 3) < 0.3
        >>> observed, held_out = y.masked_fill(hidden, torch.nan), y.masked_fill(~hidden, torch.nan)
        >>> model = SGPVAE(num_outputs=3, num_latents=2, inducing_points=torch.linspace(0, 1, 8)).eval()
        >>> prediction = model.predict(x, context=(x, observed))
        >>> axes = plotting.plot_outputs(x, prediction, (x, observed), (x, held_out), outputs=[0, 2])
        >>> [each.get_ylabel() for each in axes]
        ['output 1', 'output 3']
    """
    means = prediction.mean
    num_outputs = means.shape[-1]
    labels = output_names(names, num_outputs)
    columns = list(range(num_outputs)) if outputs is None else list(outputs)
    panels = new_axes(len(columns), rows=True) if axes is None else as_panels(axes, len(columns), "outputs")
    bounds = prediction.quantile([0.5 - 0.5 * LEVEL, 0.5 + 0.5 * LEVEL])
    where = horizontal(x, task)
    order = where.argsort()
    mean, lower, upper = (of_task(part, task, "The prediction")[order] for part in (means, *bounds))
    for panel, column in zip(panels, columns, strict=True):
        draw_band(panel, where[order], lower[:, column], upper[:, column], color(0), label=f"{LEVEL:.0%} band")
        panel.plot(where[order].numpy(), mean[:, column].numpy(), color=color(0), label="predicted")
        if context is not None:
            at, y, observed = _values(context, column, task)
            _draw_dots(panel, at[observed], y[observed], label="observed", color="black")
            gone = ~observed & ~torch.isin(at, at[observed])  # padding repeats the last input
            _draw_ticks(panel, at[gone].unique(), label="missing")
        if held_out is not None:
            at, y, known = _values(held_out, column, task)
            _draw_dots(panel, at[known], y[known], label="held out", markeredgecolor=color(1), markerfacecolor="none")
        panel.set_ylabel(labels[column])
    panels[-1].set_xlabel("x")
    entries = legend_entries(panels)
    if axes is None:
        number = len(entries["labels"])
        panels[0].figure.legend(**entries, loc="outside upper center", ncols=number, frameon=False)
    else:
        panels[0].legend(**entries)
    return panels


def _values(context: Context | tuple[Tensor, Tensor], column: int, task: int | None) -> tuple[Tensor, Tensor, Tensor]:
    """Inputs, outputs and what is there of them, of one output of a task (`N` each)."""
    context = as_context(context)
    y, observed = (of_task(part, task, "The context") for part in (context.filled, context.observed))
    return horizontal(context.x, task), y[:, column], observed[:, column]


def _draw_dots(axes: Axes, x: Tensor, y: Tensor, **kwargs: Any) -> None:
    if not len(x):
        return  # nor an entry in the legend
    axes.plot(x.numpy(), y.numpy(), linestyle="none", marker="o", markersize=3.5, **kwargs)


def _draw_ticks(axes: Axes, x: Tensor, label: str) -> None:
    if not len(x):
        return
    line: dict[str, Any] = {"linestyle": "none", "marker": "|", "color": "gray", "markersize": 7}
    axes.plot(x.numpy(), [0.02] * len(x), transform=axes.get_xaxis_transform(), label=label, **line)
