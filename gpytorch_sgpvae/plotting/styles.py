"""Colors and bands."""

from __future__ import annotations

from statistics import NormalDist
from typing import TYPE_CHECKING, Any

from torch import Tensor

if TYPE_CHECKING:
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

LEVEL = 0.95
# Half the width of a Gaussian's central interval of that probability.
STDDEVS = NormalDist().inv_cdf(0.5 + 0.5 * LEVEL)


def color(i: int) -> str:
    return STYLES[i % len(STYLES)]["color"]


def draw_band(axes: Axes, x: Tensor, lower: Tensor, upper: Tensor, color: str, label: str | None = None) -> None:
    axes.fill_between(x.numpy(), lower.numpy(), upper.numpy(), color=color, alpha=0.25, linewidth=0, label=label)
