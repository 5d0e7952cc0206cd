"""A picture of the holes of a table."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from ..likelihoods.missing import fill_missing
from .panels import new_axes
from .styles import color
from .tensors import output_names, plain

if TYPE_CHECKING:
    from matplotlib.axes import Axes

# What a picture of many rows, tasks or outputs can still show.
MAX_PIXELS, MAX_BORDERS, MAX_LABELS = 400, 60, 24


def plot_missingness(
    y: Tensor,
    names: Sequence[str] | None = None,
    task_sizes: Sequence[int] | None = None,
    axes: Axes | None = None,
) -> Axes:
    r"""
    Draw the holes of a table: its rows from left to right, its outputs below each other, black where an entry is
    missing. Where several rows share a pixel, its shade is the missing fraction of them. Beside each output's name
    stands how much of it is missing.

    :param y: (`N x P`); NaN is a missing entry.
    :param names: The names of the P outputs.
    :param task_sizes: Numbers of rows of the tasks, where these follow each other: of up to 60, borders are drawn.
    :param axes: The axes to draw on.

    Example:
        >>> import torch
        >>> from gpytorch_sgpvae import plotting
        >>> y = torch.randn(50, 2)
        >>> y[:10, 1] = torch.nan
        >>> axes = plotting.plot_missingness(y, names=["wind", "rain"], task_sizes=[30, 20])
        >>> [label.get_text() for label in axes.get_yticklabels()]
        ['wind', 'rain 20 %']
    """
    axes = new_axes(1)[0] if axes is None else axes
    labels = output_names(names, y.shape[-1])
    gone = plain(~fill_missing(y)[1]).double()  # (N, P)
    num_rows, num_outputs = gone.shape
    bins = gone.T.unsqueeze(0)  # (1, P, N)
    pixels = torch.nn.functional.adaptive_avg_pool1d(bins, min(num_rows, MAX_PIXELS)).squeeze(0)  # (P, pixels)
    corners = (0, num_rows, num_outputs - 0.5, -0.5)
    style: dict[str, Any] = {"cmap": "Greys", "vmin": 0, "vmax": 1, "aspect": "auto", "interpolation": "nearest"}
    axes.imshow(pixels.numpy(), extent=corners, **style)
    for border in list(accumulate(task_sizes or []))[:-1] if len(task_sizes or []) <= MAX_BORDERS else []:
        axes.axvline(border, color=color(1), linewidth=0.6)
    for p in range(1, num_outputs):
        axes.axhline(p - 0.5, color="white", linewidth=2)
    shares = gone.mean(0).tolist()
    every = -(-num_outputs // MAX_LABELS)
    texts = [
        f"{label} {share:.0%}".replace("%", " %") if share else label
        for label, share in zip(labels, shares, strict=True)
    ]
    axes.set_yticks(range(0, num_outputs, every), texts[::every])
    axes.set_xlabel("row")
    return axes
