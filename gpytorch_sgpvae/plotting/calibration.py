"""A picture that shows whether intervals hold what they promise."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from ..likelihoods import Prediction
from ..likelihoods.missing import fill_missing
from ..likelihoods.targets import as_rows
from ..metrics import coverage
from .panels import new_axes
from .styles import STYLES
from .tensors import output_names, plain

if TYPE_CHECKING:
    from matplotlib.axes import Axes

LEVELS = [level / 20 for level in range(1, 20)]


def plot_calibration(
    prediction: Prediction,
    y: Tensor,
    names: Sequence[str] | None = None,
    axes: Axes | None = None,
    outputs: Sequence[int] | None = None,
) -> Axes:
    r"""
    Draw how many of the values lie in the central interval of a given probability, over that probability: on the
    diagonal if the prediction is calibrated, below it if its intervals are too narrow. The black line is of all values
    together; up to seven outputs have a color each, and more of them are gray.

    :param prediction: The prediction.
    :param y: The values (`*T x N x P`, or `*T x N` for one output); NaN is not counted.
    :param names: The names of all the P outputs.
    :param axes: The axes to draw on.
    :param outputs: The outputs to draw and to count; by default all.

    Example:
        >>> import torch
        >>> from gpytorch_sgpvae import Prediction, plotting
        >>> y = torch.randn(1000, 2)
        >>> prediction = Prediction.gaussian(torch.zeros(1000, 2), torch.full((1000, 2), 0.5))  # too sure of itself
        >>> axes = plotting.plot_calibration(prediction, y)
        >>> diagonal, *outputs, together = axes.get_lines()
        >>> bool((together.get_ydata() < together.get_xdata()).all())
        True
    """
    axes = new_axes(1)[0] if axes is None else axes
    mean = prediction.mean
    columns = list(range(mean.shape[-1])) if outputs is None else list(outputs)
    num_outputs = len(columns)
    labels = [output_names(names, mean.shape[-1])[column] for column in columns]
    fractions = torch.stack([coverage(prediction, y, level) for level in LEVELS])[
        :, columns
    ]  # (L, P), NaN without values
    observed = fill_missing(as_rows(y, torch.Size([1, *mean.shape])))[1].expand_as(mean)
    counts = observed.flatten(0, -2).sum(0)[columns]  # (P,)
    axes.plot([0, 1], [0, 1], color="gray", linewidth=1, linestyle="--", label="calibrated")
    if num_outputs > len(STYLES):
        for p in range(num_outputs):
            line: dict[str, Any] = {"color": "silver", "linewidth": 0.8, "label": "each output" if p == 0 else None}
            axes.plot(LEVELS, plain(fractions[:, p]).numpy(), **line)
    elif num_outputs > 1:
        for p, (style, label) in enumerate(zip(STYLES, labels, strict=False)):
            axes.plot(LEVELS, plain(fractions[:, p]).numpy(), **style, markersize=3, linewidth=1, label=label)
    together = (fractions * counts)[:, counts > 0].sum(-1) / counts.sum()
    label = "all values" if num_outputs > 1 else labels[0]
    axes.plot(LEVELS, plain(together).numpy(), color="black", linewidth=2, label=label)
    axes.set(xlabel="probability of the interval", ylabel="values inside it", xlim=(0, 1), ylim=(0, 1), aspect="equal")
    axes.legend()
    return axes
