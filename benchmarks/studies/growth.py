"""How time and memory of a step grow with the number of points and of tasks."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from matplotlib.figure import Figure
from tqdm import tqdm

from ..contestants import ours
from ..measure import Memory, Spread, interleave, peak_memory
from ..shapes import Shape
from ..study import COLOURS, GIB, Goal, Options, Report, duration, size, spread, table

# The exponents, at most.
LIMITS = {"N": 1.1, "T": 1.05}


def run(options: Options) -> Report:
    shape = options.weather
    sizes = {"N": [4000 * 2**i for i in range(5)], "T": [4 * 2**i for i in range(5)]}
    if options.quick:
        sizes = {"N": [2000, 4000], "T": [40, 80]}
    cases = {
        "N": [(shape.replace(num_points=count), None) for count in sizes["N"]],
        "T": [(shape, count) for count in sizes["T"]],
    }
    times, memories, goals, rows = {}, {}, [], []
    for letter, arguments in cases.items():
        steps = {str(count): ours(*case) for count, case in zip(sizes[letter], arguments, strict=True)}
        times[letter] = list(interleave(steps, options.repeats, description=letter).values())
        memories[letter] = [
            peak_memory(two_steps, case, (shape.shrunk(), None), options.threads)[1]
            for case in tqdm(arguments, desc=f"memory, {letter}", leave=False)
        ]
        added = [memory.added for memory in memories[letter]]
        medians = [measured.median for measured in times[letter]]
        for what, values in (("time", medians), ("memory", added)):
            exponent = Spread((slope(sizes[letter], values),))
            goals.append(Goal(f"exponent of {what} in {letter}", exponent, LIMITS[letter]))
        for count, measured, memory in zip(sizes[letter], times[letter], added, strict=True):
            rows.append([f"{letter} = {count:,}", spread(measured, duration), size(memory)])
    return Report(
        title="Growth of a training step",
        text=f"""The step of this package in float64, with the sizes of the weather shape (N = {shape.num_points:,}
where T varies, T = 1 where N does), without chunks. Memory is the peak of a fresh process above what it had after a
small step; exponents are slopes of least squares on logarithms.""",
        tables=[table(["", "time", "memory"], rows)],
        goals=goals,
        figures={"sizes": sizes, "seconds": times, "bytes": memories},
        figure=draw(sizes, times, memories),
    )


def two_steps(shape: Shape, tasks: int | None) -> None:
    """The second has Adam's moments in memory."""
    step = ours(shape, tasks)
    step()
    step()


def slope(sizes: Sequence[int], values: Sequence[float]) -> float:
    return float(np.polyfit(np.log(sizes), np.log(values), 1)[0])


def draw(sizes: dict[str, list[int]], times: dict[str, list[Spread]], memories: dict[str, list[Memory]]) -> Figure:
    figure = Figure(figsize=(9, 6.5), layout="constrained")
    for column, (letter, name) in enumerate((("N", "points of one task"), ("T", "tasks in a batch"))):
        panels = (
            ("seconds per step", [measured.median for measured in times[letter]]),
            ("peak memory (GiB)", [memory.added / GIB for memory in memories[letter]]),
        )
        for row, (label, values) in enumerate(panels):
            axes = figure.add_subplot(2, 2, 1 + column + 2 * row)
            exponent = slope(sizes[letter], values)
            middle = np.exp(np.log(values).mean() - exponent * np.log(sizes[letter]).mean())
            axes.plot(sizes[letter], values, "o", color=COLOURS[0])
            fit = middle * np.array(sizes[letter], dtype=float) ** exponent
            axes.plot(sizes[letter], fit, "-", color=COLOURS[1], label=f"${letter}^{{{exponent:.2f}}}$")
            axes.set(xlabel=f"{letter}, {name}", ylabel=label)
            axes.set_xscale("log", base=2)
            axes.set_yscale("log", base=2)
            axes.xaxis.set_major_formatter("{x:,g}")
            axes.yaxis.set_major_formatter("{x:.3g}")
            axes.set_xticks(sizes[letter])
            axes.grid(alpha=0.3)
            axes.legend()
    return figure
