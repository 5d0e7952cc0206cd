"""Values at places."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from ..context import Context, as_context
from ..likelihoods import Prediction
from .panels import as_panels, new_axes
from .tensors import of_task, plain

if TYPE_CHECKING:
    import numpy as np
    from matplotlib.axes import Axes


def plot_map(
    x: Tensor,
    values: Tensor,
    label: str | None = None,
    axes: Axes | None = None,
    colorbar: bool = True,
    **kwargs: Any,
) -> Axes:
    r"""
    Values at places, as colors with a color bar: dots, or the cells of a grid. Places without a value are small gray
    circles, and cells without one are empty. The values are observations, or what a prediction says of one output:
    `prediction.mean[:, p]`, `prediction.stddev[:, p]`.

    :param x: The places (`N x 2`), to the right and upwards: `x[:, [1, 0]]` of latitudes and longitudes. Or the centers
        of the cells of a grid (`H x W x 2`).
    :param values: The values there (`N`, or `H x W`); NaN is a missing value.
    :param label: The label of the color bar.
    :param axes: The axes to draw on.
    :param colorbar: Whether there is one; a second layer on the same axes shares that of the first, with its `vmin` and
        `vmax`.
    :param kwargs: Passed to :meth:`matplotlib.axes.Axes.scatter`, or of a grid to
        :meth:`~matplotlib.axes.Axes.pcolormesh`: `vmin`, `vmax`, `s`, `cmap`, ....

    Example:
        >>> import torch
        >>> from gpytorch_sgpvae import plotting
        >>> axes = plotting.plot_map(torch.rand(20, 2), torch.randn(20), label="cadmium (ppm)", vmin=-2, vmax=2)
        >>> axes.collections[0].colorbar.ax.get_ylabel()
        'cadmium (ppm)'
        >>> grid = torch.cartesian_prod(torch.linspace(0, 2, 30), torch.linspace(0, 1, 15)).view(30, 15, 2)
        >>> axes = plotting.plot_map(grid, grid.prod(-1), label="area (km²)")
    """
    if x.dim() not in (2, 3) or x.shape[-1] != 2 or values.shape != x.shape[:-1]:
        raise ValueError(
            f"Places of shape {tuple(x.shape)} with values of shape {tuple(values.shape)}: expected (N, 2) and (N,), "
            "or of a grid (H, W, 2) and (H, W). Choose two coordinates, as in x[:, [1, 0]], and one output, as in "
            "prediction.mean[:, 0]."
        )
    axes = new_axes(1)[0] if axes is None else axes
    points = Context(plain(x).reshape(-1, 2), plain(values).reshape(-1))
    known = points.observed.squeeze(-1)
    if x.dim() == 3:
        cells = points.y.view(values.shape).numpy()
        right, up = plain(x).movedim(-1, 0).numpy()
        colors: Any = axes.pcolormesh(right, up, cells, **{"shading": "nearest", **kwargs})
    else:
        places, gone = points.x[known], points.x[~known]
        options = {"c": points.filled[known, 0].numpy(), "s": 30, **kwargs}
        colors = axes.scatter(places[:, 0].numpy(), places[:, 1].numpy(), **options)
        if len(gone):
            empty: dict[str, Any] = {"facecolors": "none", "edgecolors": "gray", "linewidths": 0.7}
            axes.scatter(gone[:, 0].numpy(), gone[:, 1].numpy(), s=8, label="missing", **empty)
            axes.legend()
    if colorbar:
        # as high as the map, whatever its aspect
        axes.figure.colorbar(colors, cax=axes.inset_axes((1.03, 0.0, 0.04, 1.0)), label=label or "")
    axes.set(xlabel="x₁", ylabel="x₂", aspect="equal")
    return axes


def plot_predicted_map(
    x: Tensor,
    prediction: Prediction,
    output: int = 0,
    label: str = "",
    context: Context | tuple[Tensor, Tensor] | None = None,
    where: Tensor | None = None,
    axes: Sequence[Axes] | np.ndarray | None = None,
) -> np.ndarray:
    r"""
    Draw what is predicted at places, and how surely: the mean of one output, and beside it the standard deviation.
    Observed values are dots in the colors of the mean, and black dots on the standard deviation.

    :param x: The places (`N x 2`), or a grid of them (`H x W x 2`), see :func:`plot_map`.
    :param prediction: The prediction there, with a row for each place; those of a grid are the rows of
        `x.reshape(-1, 2)`.
    :param output: The index of the output.
    :param label: The name of the output, with its unit.
    :param context: The observed data, in the units of the prediction, with inputs of the same two coordinates.
    :param where: The places to draw (`N` or `H x W`, boolean), such as those that are not in the sea; by default all.
    :param axes: The two axes to draw on.
    :return: The axes of the mean and of the standard deviation.

    Example:
        >>> import torch
        >>> from gpytorch_sgpvae import GPVAE, plotting
        >>> x, y = torch.rand(20, 2), torch.randn(20, 3)
        >>> grid = torch.cartesian_prod(torch.linspace(0, 1, 10), torch.linspace(0, 1, 10))
        >>> prediction = GPVAE(num_outputs=3, num_latents=2).eval().predict(grid, (x, y))
        >>> maps = plotting.plot_predicted_map(grid.view(10, 10, 2), prediction, 2, "zinc (mg/kg)", context=(x, y))
        >>> [each.get_title() for each in maps]
        ['predicted', 'standard deviation']
    """
    panels = new_axes(2) if axes is None else as_panels(axes, 2, "maps")
    drawn = torch.ones(x.shape[:-1], dtype=torch.bool) if where is None else plain(where)
    mean, stddev = (
        of_task(part, None, "The prediction")[:, output].reshape(drawn.shape).where(drawn, torch.nan)
        for part in (prediction.mean, prediction.stddev)
    )
    shown = [mean[drawn]]
    if context is not None:
        context = as_context(context)
        observed = context.observed[..., output]
        at, y = plain(context.x[observed]), plain(context.filled[observed][:, output])
        shown.append(y)
    low, high = torch.aminmax(torch.cat(shown))
    limits: dict[str, Any] = {"vmin": low.item(), "vmax": high.item()}
    plot_map(x, mean, label, panels[0], **limits)
    plot_map(x, stddev, label, panels[1], cmap="cividis")
    if context is not None:
        plot_map(at, y, axes=panels[0], colorbar=False, s=14, edgecolors="black", linewidths=0.5, **limits)
        panels[1].scatter(*at.mT.numpy(), s=4, color="black")
    for panel, title in zip(panels, ("predicted", "standard deviation"), strict=True):
        panel.set_title(title)
    return panels
