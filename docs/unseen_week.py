"""
Draws what the first example of the README predicts, by the code that stands there.

    python docs/unseen_week.py
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import torch
from matplotlib.figure import Figure

from gpytorch_sgpvae import plotting

README = Path(__file__).parent.parent / "README.md"
PICTURE = Path(__file__).with_name("unseen_week.png")


def run_example() -> dict[str, Any]:
    """The names that the code of the README's first example defines."""
    code = re.search(r"```python\n(.*?)```", README.read_text(encoding="utf-8"), re.DOTALL)
    assert code is not None
    names: dict[str, Any] = {}
    exec(compile(code[1], "README.md", "exec"), names)
    return names


def draw(names: dict[str, Any]) -> Figure:
    """
    The prediction for the week that was not in training, a panel for each sensor.

    :param names: What :func:`run_example` returned.
    """
    figure = Figure(figsize=(9, 4), layout="constrained")
    new_week, truth = names["new_week"], names["truth"][30]
    hidden = truth.masked_fill(~new_week.isnan(), torch.nan)
    sensors = [f"sensor {p}" for p in range(1, 5)]
    panels = figure.subplots(2, 2, sharex=True).ravel()
    x, prediction = names["x"], names["prediction"]
    plotting.plot_outputs(x, prediction, (x, new_week), (x, hidden), names=sensors, axes=panels)
    legends = [panel.get_legend() for panel in panels if panel.get_legend() is not None]
    figure.legend(
        legends[0].legend_handles, [t.get_text() for t in legends[0].get_texts()], loc="outside upper center", ncols=5
    )
    for legend in legends:
        legend.remove()
    return figure


if __name__ == "__main__":
    torch.set_num_threads(1)
    draw(run_example()).savefig(PICTURE, dpi=120)
