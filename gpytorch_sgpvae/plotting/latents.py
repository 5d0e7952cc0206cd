"""The latent functions."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from gpytorch.distributions import MultivariateNormal
from torch import Tensor

from ..likelihoods import Prediction
from ..variational import Posterior
from .panels import new_axes
from .styles import STDDEVS, color, draw_band
from .tensors import horizontal, of_task

if TYPE_CHECKING:
    from matplotlib.axes import Axes


def plot_latents(
    x: Tensor,
    latents: Posterior | MultivariateNormal | Prediction,
    inducing_points: Tensor | None = None,
    task: int | None = None,
    axes: Axes | None = None,
) -> Axes:
    r"""
    The latent functions: the mean of q(f) and its band, for each of them, and the inducing points as crosses on the
    axis.

    :param x: One coordinate of the inputs (`N`, `N x 1` or `*T x N x 1`); of several choose one, as in `x[:, 0]`.
    :param latents: A posterior, which is asked at x and brings its inducing points; or q(f) at the inputs; or a
        prediction there.
    :param inducing_points: The same coordinate of the inducing points (`M`, `M x 1` or `K x M x 1`).
    :param task: The index of a task in a batch.
    :param axes: The axes to draw on.

    Example:
        >>> import torch
        >>> from gpytorch_sgpvae import SGPVAE, plotting
        >>> x = torch.linspace(0, 1, 50)
        >>> model = SGPVAE(num_outputs=5, num_latents=3, inducing_points=torch.linspace(0, 1, 8)).eval()
        >>> axes = plotting.plot_latents(x, model.condition((x, torch.randn(50, 5))))
        >>> axes.get_legend_handles_labels()[1]
        ['latent 1', 'latent 2', 'latent 3', 'inducing points']
    """
    axes = new_axes(1)[0] if axes is None else axes
    if isinstance(latents, Posterior) and inducing_points is None:
        inducing_points = latents.encoding.inducing_points
    where = horizontal(x, task)
    order = where.argsort()
    means, stddevs = (of_task(part, task, "q(f)")[order] for part in _latent_marginals(x, latents))
    for k in range(means.shape[-1]):
        mean, margin = means[:, k], STDDEVS * stddevs[:, k]
        draw_band(axes, where[order], mean - margin, mean + margin, color(k))
        axes.plot(where[order].numpy(), mean.numpy(), color=color(k), label=f"latent {k + 1}")
    if inducing_points is not None:
        _draw_inducing_points(axes, inducing_points)
    axes.set(xlabel="x", ylabel="f")
    _put_legend_above_curves(axes)
    return axes


def _latent_marginals(x: Tensor, latents: Posterior | MultivariateNormal | Prediction) -> tuple[Tensor, Tensor]:
    """Mean and standard deviation (`*T x N x K`)."""
    if isinstance(latents, Prediction):
        return latents.function_mean, latents.function_stddev
    if isinstance(latents, Posterior):
        with torch.no_grad():
            latents = latents(x)
    elif not isinstance(latents, MultivariateNormal):
        raise TypeError(f"Expected a Posterior, q(f) or a Prediction, got {type(latents).__name__}.")
    mean, stddev = latents.mean, latents.stddev
    if len(latents.event_shape) == 1:
        mean, stddev = mean.unsqueeze(-1), stddev.unsqueeze(-1)
    return mean, stddev


def _draw_inducing_points(axes: Axes, inducing_points: Tensor) -> None:
    points = inducing_points.unsqueeze(-1) if inducing_points.dim() == 1 else inducing_points
    line: dict[str, Any] = {"linestyle": "none", "marker": "x", "clip_on": False}
    line["transform"] = axes.get_xaxis_transform()  # on the axis, whatever the limits of f become
    if points.dim() == 2:
        at = horizontal(points, None)
        axes.plot(at.numpy(), [0.0] * len(at), color="black", label="inducing points", **line)
        return
    for k, own in enumerate(points):
        at, label = horizontal(own, None), f"inducing points {k + 1}"
        axes.plot(at.numpy(), [0.03 * k] * len(at), color=color(k), label=label, **line)


def _put_legend_above_curves(axes: Axes) -> None:
    entries_in_a_row, height_of_a_row = 4, 0.15
    rows = -(-len(axes.get_legend_handles_labels()[1]) // entries_in_a_row)
    floor, ceiling = axes.get_ylim()
    axes.set_ylim(floor, ceiling + rows * height_of_a_row * (ceiling - floor))
    axes.legend(loc="upper right", ncols=entries_in_a_row)
