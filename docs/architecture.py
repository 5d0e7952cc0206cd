"""
Draws the architecture: data on their way through the parts of the package, with shapes.

    python docs/architecture.py
"""

from __future__ import annotations

import math
from io import StringIO
from itertools import pairwise, product
from pathlib import Path

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import FancyArrowPatch, FancyBboxPatch, Rectangle

from gpytorch_sgpvae.plotting import STYLES

PICTURE = Path(__file__).with_name("architecture.svg")
# Text as paths looks the same on every machine; a fixed salt and no date make the same file of the same drawing.
SETTINGS = {"svg.fonttype": "path", "svg.hashsalt": "architecture", "font.family": "DejaVu Sans"}

BLUE, ORANGE, GREEN = (STYLES[i]["color"] for i in range(3))
LATENTS = (BLUE, ORANGE)
INK, GRAY, FAINT, PAPER = "#222222", "#777777", "#BBBBBB", "#F6F7F9"
EMPTY = {"facecolor": "white", "edgecolor": FAINT, "linewidth": 0.8}

WIDTH, HEIGHT = 12.0, 7.0
BOX_WIDTH, BOX_HEIGHT, GAP = 2.55, 2.55, 0.5
LEFT, UPPER, LOWER = 0.15, 3.85, 0.75
PICTURE_HEIGHT = 1.05

# The example in the drawing: 8 points, 5 outputs, 2 latent functions, 4 inducing points.
POINTS = (0.04, 0.15, 0.3, 0.38, 0.52, 0.66, 0.83, 0.95)
INDUCING = (0.08, 0.36, 0.64, 0.92)
HOLES = {(0, 3), (1, 1), (1, 2), (2, 0), (2, 1), (2, 2), (2, 3), (2, 4), (4, 4), (5, 0), (5, 2), (7, 1), (7, 4)}


def main() -> None:
    PICTURE.write_text(draw())
    print(f"The picture is in {PICTURE}.")


def draw() -> str:
    """The text of the SVG file."""
    with mpl.rc_context(SETTINGS):
        figure = Figure(figsize=(WIDTH, HEIGHT), facecolor="white")
        canvas = figure.add_axes((0, 0, 1, 1))
        canvas.set(xlim=(0, WIDTH), ylim=(0, HEIGHT))
        canvas.axis("off")
        draw_parts(figure, canvas)
        draw_ways(canvas)
        file = StringIO()
        figure.savefig(file, format="svg", metadata={"Date": None, "Creator": None})
    # matplotlib leaves spaces at the ends of some lines
    return "\n".join(line.rstrip() for line in file.getvalue().splitlines()) + "\n"


def draw_parts(figure: Figure, canvas: Axes) -> None:
    put = Parts(figure, canvas)
    table(put(0, UPPER, "Data with holes", "Context", "x  (T, N, D)\ny  (T, N, P), NaN = missing"), filled=False)
    text = "reads what is observed of\neach row: P → 2 K numbers"
    networks(put(1, UPPER, "Inference network", "FactorNet, IndexNet, …", text))
    sites(put(2, UPPER, "Sites", "GaussianSites", "λ, λg  (T, K, N)\nmissing = precision 0"))
    inducing(put(3, UPPER, "q(u)", "AmortizedVariationalStrategy", "mean (T, K, M)\ncovariance (T, K, M, M)"))
    functions(put(3, LOWER, "q(f)", "Posterior", "(T, N*, K)\nat any inputs x*"))
    decoder(put(2, LOWER, "Decoder", "DecoderLikelihood(MLP, …)", "(S, T, N*, K → P)\nof S samples of f"))
    text = "p(y | f)  (S, T, N*, P)\nreals, counts, flags, classes"
    densities(put(1, LOWER, "Observation model", "GaussianObservations, …", text))
    text = "(T, N*, P): mean, variance,\nquantiles, samples, densities"
    table(put(0, LOWER, "Prediction", "likelihood.predict(q_f)", text), filled=True)


def draw_ways(canvas: Axes) -> None:
    middle = [row + BOX_HEIGHT / 2 for row in (UPPER, LOWER)]
    for column in range(3):
        end, start = column_left(column) + BOX_WIDTH, column_left(column + 1)
        arrow(canvas, (end, middle[0]), (start, middle[0]))
        arrow(canvas, (start, middle[1]), (end, middle[1]))
    last = column_left(3) + BOX_WIDTH / 2
    arrow(canvas, (last, UPPER), (last, LOWER + BOX_HEIGHT))
    lane = (UPPER + LOWER + BOX_HEIGHT) / 2
    canvas.text(last - 0.15, lane, "kernels, inducing points Z", ha="right", va="center", fontsize=9.5, color=INK)
    canvas.text(LEFT + 0.02, 6.72, "Conditioning: one pass, no training", fontsize=12, color=INK, weight="bold")
    canvas.text(LEFT + 0.02, lane, "Asking, as often as you like", va="center", fontsize=12, color=INK, weight="bold")
    canvas.text(
        LEFT + 0.02,
        0.3,
        "Training, on many tasks:  maximize  TaskELBO = E[ log p(y | f) ] − KL[ q(u) ‖ p(u) ]  over networks, kernels, "
        "Z and decoder.",
        fontsize=10.5,
        color=INK,
    )


class Parts:
    """Puts boxes on the canvas, each with axes for a small picture."""

    def __init__(self, figure: Figure, canvas: Axes):
        self.figure = figure
        self.canvas = canvas

    def __call__(self, column: int, bottom: float, title: str, name: str, text: str) -> Axes:
        left = column_left(column)
        style = {"boxstyle": "round,pad=0,rounding_size=0.12", "facecolor": PAPER, "edgecolor": GRAY, "linewidth": 1}
        self.canvas.add_patch(FancyBboxPatch((left, bottom), BOX_WIDTH, BOX_HEIGHT, **style))
        center, top = left + BOX_WIDTH / 2, bottom + BOX_HEIGHT
        write = {"ha": "center", "color": INK}
        self.canvas.text(center, top - 0.31, title, fontsize=12.5, weight="bold", **write)
        self.canvas.text(center, top - 0.56, name, fontsize=8.6, family="DejaVu Sans Mono", **write)
        self.canvas.text(center, bottom + 0.32, text, fontsize=9.3, va="center", linespacing=1.35, **write)
        height, width = PICTURE_HEIGHT, BOX_WIDTH - 0.5
        axes = self.figure.add_axes(
            ((left + 0.25) / WIDTH, (bottom + 0.74) / HEIGHT, width / WIDTH, height / HEIGHT), facecolor="none"
        )
        axes.axis("off")
        return axes


def column_left(column: int) -> float:
    return LEFT + column * (BOX_WIDTH + GAP)


def arrow(canvas: Axes, start: tuple[float, float], end: tuple[float, float]) -> None:
    style = {"arrowstyle": "-|>", "mutation_scale": 16, "linewidth": 1.6, "color": INK, "shrinkA": 2, "shrinkB": 2}
    canvas.add_patch(FancyArrowPatch(start, end, **style))


def table(axes: Axes, filled: bool) -> None:
    """Points are columns here, so that time goes to the right."""
    for n, p in product(range(len(POINTS)), range(5)):
        shade = mix(BLUE, 0.25 + 0.3 * (1 + math.sin(0.8 * n + 1.1 * p)))
        style = {"facecolor": shade, "linewidth": 0}
        if (n, p) in HOLES:
            style = {"edgecolor": ORANGE, "linewidth": 1.3, "facecolor": shade} if filled else EMPTY
        axes.add_patch(Rectangle((n, p), 0.9, 0.86, **style))
    axes.set(xlim=(-0.1, len(POINTS)), ylim=(-0.1, 5))


def networks(axes: Axes) -> None:
    """A network for each output, whose sites are added up."""
    for p in range(5):
        height = 4 - p
        seen = p != 2
        color = INK if seen else FAINT
        axes.plot([0, 1.1, 2.2], [height] * 3, "o-", color=color, markersize=4.5, linewidth=1, markerfacecolor="white")
        axes.plot([2.35, 3.7], [height, 2], color=color, linewidth=1, linestyle="-" if seen else ":")
    axes.plot([4], [2], "o", markersize=17, markerfacecolor="white", markeredgecolor=INK)
    axes.text(4, 1.96, "+", ha="center", va="center", fontsize=13, color=INK)
    axes.set(xlim=(-0.3, 4.6), ylim=(-0.4, 4.4))


def sites(axes: Axes) -> None:
    for k, color in enumerate(LATENTS):
        for n, x in enumerate(POINTS):
            if n == 2:  # nothing was observed
                continue
            width = 0.16 + 0.07 * ((3 * n + 2 * k) % 5)
            axes.errorbar(x, curve(k, x), width, fmt="o", color=color, markersize=3.5, linewidth=1.2, capsize=2)
    axes.set(xlim=(-0.05, 1.05), ylim=(-1.75, 1.75))


def inducing(axes: Axes) -> None:
    levels = [i / 20 for i in range(-40, 41)]
    for k, color in enumerate(LATENTS):
        for m, z in enumerate(INDUCING):
            spread = 0.14 + 0.05 * ((m + k) % 3)
            bell = [z + (1 - 2 * k) * 0.09 * math.exp(-0.5 * ((u - curve(k, z)) / spread) ** 2) for u in levels]
            axes.fill_betweenx(levels, bell, z, color=color, alpha=0.45, linewidth=0)
    for z in INDUCING:
        axes.plot([z, z], [-1.75, 1.75], color=GRAY, linewidth=0.8)
    axes.plot(INDUCING, [-1.75] * len(INDUCING), "x", color=INK, markersize=6, clip_on=False)
    axes.set(xlim=(-0.05, 1.05), ylim=(-1.75, 1.75))


def functions(axes: Axes) -> None:
    grid = [i / 60 for i in range(61)]
    for k, color in enumerate(LATENTS):
        mean = [curve(k, x) for x in grid]
        width = [0.2 + 0.32 * math.exp(-(((x - 0.27) / 0.09) ** 2)) for x in grid]
        bounds = [[m + sign * w for m, w in zip(mean, width, strict=True)] for sign in (-1, 1)]
        axes.fill_between(grid, *bounds, color=color, alpha=0.25, linewidth=0)
        axes.plot(grid, mean, color=color, linewidth=1.8)
    axes.plot(INDUCING, [-1.75] * len(INDUCING), "x", color=INK, markersize=6, clip_on=False)
    axes.set(xlim=(-0.05, 1.05), ylim=(-1.75, 1.75))


def decoder(axes: Axes) -> None:
    """Draw layers from the right to the left, as the way goes."""
    layers = [[1.5, 2.5], [0.5, 1.5, 2.5, 3.5], [0, 1, 2, 3, 4]]
    for i, (inputs, outputs) in enumerate(pairwise(layers)):
        for heights in product(inputs, outputs):
            axes.plot([2 - i, 1 - i], heights, color=FAINT, linewidth=0.8, zorder=1)
    colors = [LATENTS[::-1], [INK] * 4, [GREEN] * 5]
    for i, (layer, shades) in enumerate(zip(layers, colors, strict=True)):
        for height, color in zip(layer, shades, strict=True):
            axes.plot([2 - i], [height], "o", color=color, markersize=6.5, zorder=2)
    axes.set(xlim=(-0.25, 2.25), ylim=(-0.4, 4.4))


def densities(axes: Axes) -> None:
    grid = [i / 40 for i in range(-40, 41)]
    bell = [math.exp(-0.5 * (4 * z) ** 2) for z in grid]
    axes.fill_between([z - 1.15 for z in grid], bell, color=GREEN, alpha=0.35, linewidth=0)
    axes.plot([z - 1.15 for z in grid], bell, color=GREEN, linewidth=1.6)
    counts = [2**n * math.exp(-2) / math.factorial(n) / 0.28 for n in range(7)]
    axes.bar([0.25 + 0.17 * n for n in range(7)], counts, width=0.11, color=GREEN)
    axes.bar([1.75, 2.05], [0.45, 0.8], width=0.2, color=GREEN)
    axes.plot([-2.1, 2.3], [0, 0], color=GRAY, linewidth=0.8)
    axes.set(xlim=(-2.2, 2.4), ylim=(-0.05, 1.1))


def curve(k: int, x: float) -> float:
    return round(math.sin(5.5 * x + 0.4) if k == 0 else math.cos(4.2 * x + 0.9) - 0.1, 3)


def mix(color: str, amount: float) -> tuple[float, ...]:
    """A color on white paper."""
    return tuple(round(1 - amount * (1 - part), 3) for part in mpl.colors.to_rgb(color))


if __name__ == "__main__":
    main()
