r"""
The pictures that every user wants. Each function draws on the axes that it is given, or makes some, and returns them;
tensors may be of any dtype, on any device, with gradients or without. Needs the extra `plot`.

Bands are central 95 % intervals. The colors are Okabe and Ito's, which color-blind people can tell apart.

Example:
    >>> import torch
    >>> from gpytorch_sgpvae import SGPVAE, plotting
    >>> x, y = torch.linspace(0, 1, 30), torch.randn(30, 2)
    >>> y[:10, 1] = torch.nan
    >>> model = SGPVAE(num_outputs=2, num_latents=1, inducing_points=torch.linspace(0, 1, 8)).eval()
    >>> grid = torch.linspace(0, 1, 100)
    >>> prediction = model.predict(grid, context=(x, y))
    >>> latents = plotting.plot_latents(grid, model.condition((x, y)))
    >>> latents.get_xlabel(), latents.get_ylabel()
    ('x', 'f')
    >>> for axes in plotting.plot_outputs(grid, prediction, context=(x, y), names=["wind", "rain"]):
    ...     print(axes.get_ylabel())
    wind
    rain
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from itertools import accumulate
from statistics import NormalDist
from typing import TYPE_CHECKING, Any

import torch
from gpytorch.distributions import MultivariateNormal
from torch import Tensor

from .context import Context, as_context
from .likelihoods import Prediction
from .likelihoods.targets import as_rows, fill_missing
from .metrics import coverage
from .variational import Posterior
from .variational.amortized_variational_strategy import SparseEncoding

if find_spec("matplotlib") is None:
    raise ImportError("Plotting needs matplotlib: pip install 'gpytorch-sgpvae[plot]'")

if TYPE_CHECKING:  # who only wants the styles does not wait for matplotlib
    import numpy as np
    from matplotlib.axes import Axes

# Okabe and Ito's colors; markers and dashes say it once more.
STYLES: list[dict[str, Any]] = [
    {"color": "#0072B2", "marker": "o", "linestyle": "-"},
    {"color": "#D55E00", "marker": "s", "linestyle": "--"},
    {"color": "#009E73", "marker": "^", "linestyle": "-."},
    {"color": "#CC79A7", "marker": "D", "linestyle": ":"},
    {"color": "#E69F00", "marker": "v", "linestyle": "-"},
    {"color": "#56B4E9", "marker": "x", "linestyle": "--"},
    {"color": "#000000", "marker": "+", "linestyle": "-."},
]

# What a run logs (see gpytorch_sgpvae.training), and which of it belongs together.
TRAINING_PANELS = {
    "ELBO per observed value (nats)": ("train_elbo", "val_elbo"),
    "held-out error": ("val_mae", "val_nll"),
    "coverage of the 95 % interval": ("val_coverage",),
    "hyperparameters": ("noise", "lengthscale_min", "lengthscale_max"),
}

# What is logged of single batches is shown as a mean over so many of them.
SMOOTHED = 20

LEVEL = 0.95
# Half the width of a Gaussian's central interval of that probability.
STDDEVS = NormalDist().inv_cdf(0.5 + 0.5 * LEVEL)
LEVELS = [level / 20 for level in range(1, 20)]

# What a picture of many rows, tasks or outputs can still show.
MAX_PIXELS, MAX_BORDERS, MAX_LABELS = 400, 60, 24


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
    :param inducing_points: That coordinate of the inducing points (`M`, `M x 1` or `K x M x 1`).
    :param task: Which task of a batch.
    :param axes: Where to draw.

    Example:
        >>> import torch
        >>> from gpytorch_sgpvae import SGPVAE, plotting
        >>> x = torch.linspace(0, 1, 50)
        >>> model = SGPVAE(num_outputs=5, num_latents=3, inducing_points=torch.linspace(0, 1, 8)).eval()
        >>> axes = plotting.plot_latents(x, model.condition((x, torch.randn(50, 5))))
        >>> axes.get_legend_handles_labels()[1]
        ['latent 1', 'latent 2', 'latent 3', 'inducing points']
    """
    axes = _new_axes(1)[0] if axes is None else axes
    if isinstance(latents, Posterior) and isinstance(latents.encoding, SparseEncoding) and inducing_points is None:
        inducing_points = latents.encoding.inducing_points
    where = _horizontal(x, task)
    order = where.argsort()
    means, stddevs = (_of_task(part, task, "q(f)")[order] for part in _latent_marginals(x, latents))
    for k in range(means.shape[-1]):
        mean, margin = means[:, k], STDDEVS * stddevs[:, k]
        _draw_band(axes, where[order], mean - margin, mean + margin, _color(k))
        axes.plot(where[order].numpy(), mean.numpy(), color=_color(k), label=f"latent {k + 1}")
    if inducing_points is not None:
        _draw_inducing_points(axes, inducing_points)
    axes.set(xlabel="x", ylabel="f")
    _put_legend_above_curves(axes)
    return axes


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
    :param context: What was observed, in the units of the prediction, with inputs of that one coordinate; NaN is a
        missing value.
    :param held_out: What should have been predicted, in the same way; NaN is a value that nobody knows.
    :param names: What all the P outputs are called.
    :param outputs: Which outputs to draw; by default all.
    :param task: Which task of a batch.
    :param axes: Where to draw, one for each output.
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
    labels = _output_names(names, num_outputs)
    columns = list(range(num_outputs)) if outputs is None else list(outputs)
    panels = _new_axes(len(columns), rows=True) if axes is None else _as_panels(axes, len(columns), "outputs")
    bounds = prediction.quantile([0.5 - 0.5 * LEVEL, 0.5 + 0.5 * LEVEL])
    where = _horizontal(x, task)
    order = where.argsort()
    mean, lower, upper = (_of_task(part, task, "The prediction")[order] for part in (means, *bounds))
    for panel, column in zip(panels, columns, strict=True):
        _draw_band(panel, where[order], lower[:, column], upper[:, column], _color(0), label=f"{LEVEL:.0%} band")
        panel.plot(where[order].numpy(), mean[:, column].numpy(), color=_color(0), label="predicted")
        if context is not None:
            at, y, observed = _values(context, column, task)
            _draw_dots(panel, at[observed], y[observed], label="observed", color="black")
            gone = ~observed & ~torch.isin(at, at[observed])  # padding repeats the last input
            _draw_ticks(panel, at[gone].unique(), label="missing")
        if held_out is not None:
            at, y, known = _values(held_out, column, task)
            _draw_dots(panel, at[known], y[known], label="held out", markeredgecolor=_color(1), markerfacecolor="none")
        panel.set_ylabel(labels[column])
    panels[-1].set_xlabel("x")
    drawn = {
        label: handle for panel in panels for handle, label in zip(*panel.get_legend_handles_labels(), strict=True)
    }
    entries = list(drawn.values()), list(drawn)
    if axes is None:
        panels[0].figure.legend(*entries, loc="outside upper center", ncols=len(drawn), frameon=False)
    else:
        panels[0].legend(*entries)
    return panels


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

    :param x: The places (`N x 2`): to the right, upwards. Of latitude and longitude give `x[:, [1, 0]]`. Or the centers
        of the cells of a grid (`H x W x 2`).
    :param values: (`N`, or `H x W`); NaN is a missing value.
    :param label: Of the color bar.
    :param axes: Where to draw.
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
    axes = _new_axes(1)[0] if axes is None else axes
    points = Context(_plain(x).reshape(-1, 2), _plain(values).reshape(-1))
    known = points.observed.squeeze(-1)
    if x.dim() == 3:
        cells = points.y.view(values.shape).numpy()
        right, up = _plain(x).movedim(-1, 0).numpy()
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
    What is predicted at places, and how surely: the mean of one output, and beside it the standard deviation. Observed
    values are dots in the colors of the mean, and black ones on the standard deviation.

    :param x: The places (`N x 2`), or a grid of them (`H x W x 2`), see :func:`plot_map`.
    :param prediction: The prediction there, with a row for each place; those of a grid are the rows of
        `x.reshape(-1, 2)`.
    :param output: Which output.
    :param label: What it is called, with its unit.
    :param context: What was observed, in the units of the prediction, with inputs of the same two coordinates.
    :param where: Which of the places to draw (`N` or `H x W`), such as those that are not in the sea; by default all.
    :param axes: Where to draw, two of them.
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
    panels = _new_axes(2) if axes is None else _as_panels(axes, 2, "maps")
    drawn = torch.ones(x.shape[:-1], dtype=torch.bool) if where is None else _plain(where)
    mean, stddev = (
        _of_task(part, None, "The prediction")[:, output].reshape(drawn.shape).where(drawn, torch.nan)
        for part in (prediction.mean, prediction.stddev)
    )
    shown = [mean[drawn]]
    if context is not None:
        context = as_context(context)
        observed = context.observed[..., output]
        at, y = _plain(context.x[observed]), _plain(context.filled[observed][:, output])
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


def plot_calibration(
    prediction: Prediction,
    y: Tensor,
    names: Sequence[str] | None = None,
    axes: Axes | None = None,
    outputs: Sequence[int] | None = None,
) -> Axes:
    r"""
    How many of the values lie in the central interval of a given probability, over that probability: on the diagonal
    if the prediction is calibrated, below it if its intervals are too narrow. The black line is of all values
    together; beyond seven outputs each of them is a gray one.

    :param prediction: The prediction.
    :param y: The values (`*T x N x P`, or `*T x N` for one output); NaN is not counted.
    :param names: What all the P outputs are called.
    :param axes: Where to draw.
    :param outputs: Which outputs to draw and to count; by default all.

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
    axes = _new_axes(1)[0] if axes is None else axes
    mean = prediction.mean
    columns = list(range(mean.shape[-1])) if outputs is None else list(outputs)
    num_outputs = len(columns)
    labels = [_output_names(names, mean.shape[-1])[column] for column in columns]
    fractions = torch.stack([coverage(prediction, y, level) for level in LEVELS])[
        :, columns
    ]  # (L, P), NaN without values
    observed = fill_missing(as_rows(y, torch.Size([1, *mean.shape])))[1].expand_as(mean)
    counts = observed.flatten(0, -2).sum(0)[columns]  # (P,)
    axes.plot([0, 1], [0, 1], color="gray", linewidth=1, linestyle="--", label="calibrated")
    if num_outputs > len(STYLES):
        for p in range(num_outputs):
            line: dict[str, Any] = {"color": "silver", "linewidth": 0.8, "label": "each output" if p == 0 else None}
            axes.plot(LEVELS, _plain(fractions[:, p]).numpy(), **line)
    elif num_outputs > 1:
        for p, (style, label) in enumerate(zip(STYLES, labels, strict=False)):
            axes.plot(LEVELS, _plain(fractions[:, p]).numpy(), **style, markersize=3, linewidth=1, label=label)
    together = (fractions * counts)[:, counts > 0].sum(-1) / counts.sum()
    label = "all values" if num_outputs > 1 else labels[0]
    axes.plot(LEVELS, _plain(together).numpy(), color="black", linewidth=2, label=label)
    axes.set(xlabel="probability of the interval", ylabel="values inside it", xlim=(0, 1), ylim=(0, 1), aspect="equal")
    axes.legend()
    return axes


def plot_missingness(
    y: Tensor,
    names: Sequence[str] | None = None,
    task_sizes: Sequence[int] | None = None,
    axes: Axes | None = None,
) -> Axes:
    r"""
    Where a table has holes: its rows from left to right, its outputs below each other, black where an entry is missing
    (of many rows the fraction of those that share a pixel), and beside each output's name how much of it is missing.

    :param y: (`N x P`); NaN is a missing entry.
    :param names: What the P outputs are called.
    :param task_sizes: Numbers of rows of the tasks, where these follow each other: of up to 60, borders are drawn.
    :param axes: Where to draw.

    Example:
        >>> import torch
        >>> from gpytorch_sgpvae import plotting
        >>> y = torch.randn(50, 2)
        >>> y[:10, 1] = torch.nan
        >>> axes = plotting.plot_missingness(y, names=["wind", "rain"], task_sizes=[30, 20])
        >>> [label.get_text() for label in axes.get_yticklabels()]
        ['wind', 'rain 20 %']
    """
    axes = _new_axes(1)[0] if axes is None else axes
    labels = _output_names(names, y.shape[-1])
    gone = _plain(~fill_missing(y)[1]).double()  # (N, P)
    num_rows, num_outputs = gone.shape
    bins = gone.T.unsqueeze(0)  # (1, P, N)
    pixels = torch.nn.functional.adaptive_avg_pool1d(bins, min(num_rows, MAX_PIXELS)).squeeze(0)  # (P, pixels)
    corners = (0, num_rows, num_outputs - 0.5, -0.5)
    style: dict[str, Any] = {"cmap": "Greys", "vmin": 0, "vmax": 1, "aspect": "auto", "interpolation": "nearest"}
    axes.imshow(pixels.numpy(), extent=corners, **style)
    for border in list(accumulate(task_sizes or []))[:-1] if len(task_sizes or []) <= MAX_BORDERS else []:
        axes.axvline(border, color=_color(1), linewidth=0.6)
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


def plot_training_curves(
    history: Mapping[str, tuple[Sequence[int], Sequence[float]]],
    axes: Axes | Sequence[Axes] | np.ndarray | None = None,
) -> np.ndarray:
    r"""
    How a run went: a panel for the bound, for the scores of held-out entries, for coverage and for hyperparameters, of
    those that there are, and one for each name of your own. The curve `train_elbo` is that of single batches, and shown
    with its running mean.

    :param history: Of each name the steps and the values there, as a
        :class:`~gpytorch_sgpvae.training.TrainingCurves` has it in its `history`.
    :param axes: Where to draw, one for each panel (see :func:`training_panels`).
    :return: The axes, one for each panel.

    Example:
        >>> from gpytorch_sgpvae import plotting
        >>> history = {"train_elbo": ([1, 2, 3], [-1.9, -1.6, -1.5]), "seconds": ([1, 2, 3], [0.2, 0.1, 0.1])}
        >>> [each.get_title() for each in plotting.plot_training_curves(history)]
        ['ELBO per observed value (nats)', 'seconds']
    """
    panels = training_panels(history)
    drawn = _new_axes(len(panels)) if axes is None else _as_panels(axes, len(panels), "panels")
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

    :param history: As there.
    """
    panels = {title: [name for name in names if name in history] for title, names in TRAINING_PANELS.items()}
    known = {name for names in panels.values() for name in names}
    return {title: names for title, names in panels.items() if names} | {
        name: [name] for name in history if name not in known
    }


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


def _plain(tensor: Tensor) -> Tensor:
    return tensor.detach().cpu()


def _of_task(tensor: Tensor, task: int | None, name: str) -> Tensor:
    """The rows of one task (`N x ...`), ready for numpy. What has no batch dimension is shared by all tasks."""
    tensor = _plain(tensor)
    if task is not None and tensor.dim() > 2:
        tensor = tensor[task]
    if tensor.dim() > 2:
        raise ValueError(f"{name} of shape {tuple(tensor.shape)} has several tasks: choose one with task=.")
    return tensor


def _horizontal(x: Tensor, task: int | None) -> Tensor:
    """One coordinate of the inputs of a task (`N`)."""
    x = _of_task(x.unsqueeze(-1) if x.dim() == 1 else x, task, "x")
    if x.shape[-1] != 1:
        raise ValueError(
            f"The inputs of shape {tuple(x.shape)} have {x.shape[-1]} coordinates, and a plot one axis for them: "
            "choose one, as in x[:, 0], also of the context and of inducing points. A posterior's q(f) is posterior(x)."
        )
    return x.squeeze(-1)


def _values(context: Context | tuple[Tensor, Tensor], column: int, task: int | None) -> tuple[Tensor, Tensor, Tensor]:
    """Inputs, outputs and what is there of them, of one output of a task (`N` each)."""
    context = as_context(context)
    y, observed = (_of_task(part, task, "The context") for part in (context.filled, context.observed))
    return _horizontal(context.x, task), y[:, column], observed[:, column]


def _draw_band(axes: Axes, x: Tensor, lower: Tensor, upper: Tensor, color: str, label: str | None = None) -> None:
    axes.fill_between(x.numpy(), lower.numpy(), upper.numpy(), color=color, alpha=0.25, linewidth=0, label=label)


def _draw_dots(axes: Axes, x: Tensor, y: Tensor, **kwargs: Any) -> None:
    if not len(x):
        return  # nor an entry in the legend
    axes.plot(x.numpy(), y.numpy(), linestyle="none", marker="o", markersize=3.5, **kwargs)


def _draw_ticks(axes: Axes, x: Tensor, label: str) -> None:
    if not len(x):
        return
    line: dict[str, Any] = {"linestyle": "none", "marker": "|", "color": "gray", "markersize": 7}
    axes.plot(x.numpy(), [0.02] * len(x), transform=axes.get_xaxis_transform(), label=label, **line)


def _draw_inducing_points(axes: Axes, inducing_points: Tensor) -> None:
    points = inducing_points.unsqueeze(-1) if inducing_points.dim() == 1 else inducing_points
    line: dict[str, Any] = {"linestyle": "none", "marker": "x", "clip_on": False}
    line["transform"] = axes.get_xaxis_transform()  # on the axis, whatever the limits of f become
    if points.dim() == 2:
        at = _horizontal(points, None)
        axes.plot(at.numpy(), [0.0] * len(at), color="black", label="inducing points", **line)
        return
    for k, own in enumerate(points):
        at, label = _horizontal(own, None), f"inducing points {k + 1}"
        axes.plot(at.numpy(), [0.03 * k] * len(at), color=_color(k), label=label, **line)


def _put_legend_above_curves(axes: Axes) -> None:
    entries_in_a_row, height_of_a_row = 4, 0.15
    rows = -(-len(axes.get_legend_handles_labels()[1]) // entries_in_a_row)
    floor, ceiling = axes.get_ylim()
    axes.set_ylim(floor, ceiling + rows * height_of_a_row * (ceiling - floor))
    axes.legend(loc="upper right", ncols=entries_in_a_row)


def _color(i: int) -> str:
    return STYLES[i % len(STYLES)]["color"]


def _output_names(names: Sequence[str] | None, num_outputs: int) -> list[str]:
    if names is None:
        return [f"output {p + 1}" for p in range(num_outputs)]
    if len(names) != num_outputs:
        raise ValueError(f"{len(names)} names for {num_outputs} outputs: {', '.join(names)}.")
    return list(names)


def _new_axes(number: int, rows: bool = False) -> np.ndarray:
    """So many panels, below each other or side by side."""
    import matplotlib.pyplot as plt

    shape = (number, 1) if rows else (1, number)
    size = (8, 2.3 + 1.6 * (number - 1)) if rows else (4.5 * number + 1.5 * (number == 1), 3.5)
    return plt.subplots(*shape, figsize=size, sharex=rows, squeeze=False, layout="constrained")[1].reshape(-1)


def _as_panels(axes: Axes | Sequence[Axes] | np.ndarray, number: int, things: str) -> np.ndarray:
    import numpy as np

    panels = np.atleast_1d(np.asarray(axes, dtype=object)).reshape(-1)
    if len(panels) != number:
        raise ValueError(f"{len(panels)} axes for {number} {things}: give one for each.")
    return panels


def _running_mean(steps: Sequence[int], values: Sequence[float]) -> tuple[Sequence[int], list[float]]:
    """Means over the last few values, at the steps that they end at."""
    sums = [0.0, *accumulate(values)]
    means = [(sums[i + SMOOTHED] - sums[i]) / SMOOTHED for i in range(len(values) - SMOOTHED + 1)]
    return steps[SMOOTHED - 1 :], means
