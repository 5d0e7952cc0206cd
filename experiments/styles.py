"""How the figures look."""

from __future__ import annotations

from typing import Any

# Okabe and Ito's colours, which colour-blind people can tell apart; markers and dashes say it once more.
STYLES: list[dict[str, Any]] = [
    {"color": "#0072B2", "marker": "o", "linestyle": "-"},
    {"color": "#D55E00", "marker": "s", "linestyle": "--"},
    {"color": "#009E73", "marker": "^", "linestyle": "-."},
    {"color": "#CC79A7", "marker": "D", "linestyle": ":"},
    {"color": "#E69F00", "marker": "v", "linestyle": "-"},
    {"color": "#56B4E9", "marker": "x", "linestyle": "--"},
    {"color": "#000000", "marker": "+", "linestyle": "-."},
]
