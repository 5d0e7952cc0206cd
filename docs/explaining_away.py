"""
Draws explaining away: what is known about two latent functions at one point before and after two outputs are observed,
with sites for each function and with sites for each output.

    python docs/explaining_away.py
"""

from __future__ import annotations

from io import StringIO
from pathlib import Path

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Ellipse

from gpytorch_sgpvae.plotting import STYLES

PICTURE = Path(__file__).with_name("explaining_away.svg")
# Text as paths looks the same on every machine; a fixed salt and no date make the same file of the same drawing.
SETTINGS = {"svg.fonttype": "path", "svg.hashsalt": "explaining_away", "font.family": "DejaVu Sans", "font.size": 11}

JOINT, INDEPENDENT = (STYLES[i]["color"] for i in range(2))
INK, GRAY = "#222222", "#777777"

# Two outputs, y1 = f1 + f2 and y2 = f1, of functions with prior variances of 1 at this point.
LOADINGS = np.array([[1.0, 1.0], [1.0, 0.0]])
OBSERVED = np.array([1.4, 1.5])
PRECISION = 1 / 0.25**2
# A Gaussian in two dimensions has 95 % of its mass within this many standard deviations.
RADIUS = np.sqrt(-2 * np.log(0.05))


def main() -> None:
    PICTURE.write_text(draw())
    print(f"The picture is in {PICTURE}.")


def draw() -> str:
    """The text of the SVG file."""
    with mpl.rc_context(SETTINGS):
        figure = Figure(figsize=(12, 4.9), facecolor="white")
        figure.subplots_adjust(left=0.06, right=0.99, bottom=0.2, top=0.92, wspace=0.06)
        titles = ("Nothing observed", r"$y_1 = f_1 + f_2$ observed", r"$y_1$ and $y_2 = f_1$ observed")
        for num_observed, axes in enumerate(figure.subplots(1, 3, sharex=True, sharey=True)):
            draw_panel(axes, num_observed)
            axes.set_title(titles[num_observed], color=INK)
        figure.axes[0].set_ylabel("$f_2$")
        handles, labels = figure.axes[2].get_legend_handles_labels()
        figure.legend(handles, labels, loc="lower center", ncols=4, frameon=False)
        file = StringIO()
        figure.savefig(file, format="svg", metadata={"Date": None, "Creator": None})
    # matplotlib leaves spaces at the ends of some lines
    return "\n".join(line.rstrip() for line in file.getvalue().splitlines()) + "\n"


def draw_panel(axes: Axes, num_observed: int) -> None:
    if num_observed >= 1:
        axes.axline((0, OBSERVED[0]), slope=-1, color=GRAY, linewidth=1, label="$f_1 + f_2 = y_1$")
    if num_observed >= 2:
        axes.axvline(OBSERVED[1], color=GRAY, linewidth=1, linestyle=":", label="$f_1 = y_2$")
    label = "sites for each output: exact"
    draw_gaussian(axes, *joint_posterior(num_observed), JOINT, STYLES[0]["linestyle"], label)
    label = "sites for each function"
    draw_gaussian(axes, *independent_posterior(num_observed), INDEPENDENT, STYLES[1]["linestyle"], label)
    axes.set(
        xlim=(-2.7, 2.7), ylim=(-2.7, 2.7), aspect="equal", xlabel="$f_1$", xticks=range(-2, 3), yticks=range(-2, 3)
    )
    axes.tick_params(colors=GRAY)
    axes.spines[:].set_color(GRAY)


def joint_posterior(num_observed: int) -> tuple[np.ndarray, np.ndarray]:
    """Mean and covariance given pseudo-observations of the sums."""
    W = LOADINGS[:num_observed]
    # S = (I + Wᵀ Λ W)⁻¹,  m = S Wᵀ Λ y
    S = np.linalg.inv(np.eye(2) + PRECISION * W.T @ W)
    return S @ W.T @ OBSERVED[:num_observed] * PRECISION, S


def independent_posterior(num_observed: int) -> tuple[np.ndarray, np.ndarray]:
    """
    Mean and covariance given pseudo-observations of each function, to which each output adds its own: the sites that
    are best if it is the only one.
    """
    precision, precision_mean = np.ones(2), np.zeros(2)
    for w, y in zip(LOADINGS[:num_observed], OBSERVED[:num_observed], strict=True):
        # of all Gaussians without correlation, the one closest in KL[q || p] has the mean and the precisions of p
        P = np.eye(2) + PRECISION * np.outer(w, w)
        mean = np.linalg.solve(P, PRECISION * w * y)
        precision += P.diagonal() - 1
        precision_mean += P.diagonal() * mean
    return precision_mean / precision, np.diag(1 / precision)


def draw_gaussian(axes: Axes, mean: np.ndarray, covariance: np.ndarray, color: str, linestyle: str, label: str) -> None:
    """The ellipse that holds 95 %."""
    values, vectors = np.linalg.eigh(covariance)
    width, height = 2 * RADIUS * np.sqrt(values)
    angle = np.degrees(np.arctan2(vectors[1, 0], vectors[0, 0]))
    style = {"edgecolor": color, "linestyle": linestyle, "linewidth": 2}
    axes.add_patch(Ellipse(mean, width, height, angle=angle, facecolor=(color, 0.2), label=label, **style))
    axes.plot(*mean, marker="o", markersize=4, color=color)


if __name__ == "__main__":
    main()
