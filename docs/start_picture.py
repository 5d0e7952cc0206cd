"""Draws what the first model on start.md predicts, by the code that stands there."""

import doctest
import re
from pathlib import Path

import torch

from gpytorch_sgpvae import plotting

torch.set_num_threads(1)
first_model = Path("start.md").read_text(encoding="utf-8").partition("## A table of your own")[0]
names: dict = {}
for block in re.findall(r"```python\n(.*?)```", first_model, re.DOTALL):
    for example in doctest.DocTestParser().get_examples(block):
        exec(example.source, names)
x = names["x"]
plotting.plot_outputs(
    x, names["prediction"], (x, names["new_week"]), (x, names["hidden"]), names=[f"sensor {p}" for p in range(1, 5)]
)
