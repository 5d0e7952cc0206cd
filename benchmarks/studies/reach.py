"""A task with a million points."""

from __future__ import annotations

import time
from collections.abc import Callable

from matplotlib.figure import Figure
from tqdm import tqdm

from gpytorch_sgpvae import Context

from ..contestants import make_model, training_step
from ..measure import Memory, Spread, peak_memory
from ..shapes import Shape, make_data
from ..study import COLOURS, GIB, Goal, Options, Report, duration, size, table

LIMIT = 4.0  # GiB, of the whole process
NUM_SAMPLES = 10


def run(options: Options) -> Report:
    num_points, chunk_size = (4_000, 1_000) if options.quick else (1_000_000, 10_000)
    shape = options.weather.replace(num_points=num_points)
    small = (shape.replace(num_points=100), 50)
    measured: dict[str, tuple[float, Memory]] = {
        name: peak_memory(function, (shape, chunk_size), small, options.threads)
        for name, function in tqdm({"training step": train, "prediction": predict}.items(), desc="reach", leave=False)
    }
    peaks = {name: memory.peak / GIB for name, (_, memory) in measured.items()}
    return Report(
        title=f"A task of {num_points:,} points",
        text=f"""M = {shape.num_inducing}, K = {shape.num_latents}, P = {shape.num_outputs}, float64, in chunks of
{chunk_size:,} points, which the backward pass computes again. The prediction is conditioned on all points and made at
all of them, with {NUM_SAMPLES} samples. Memory is that of the whole process: interpreter, libraries and data included.
""".strip(),
        tables=[
            table(
                ["", "time", "peak memory"],
                [[name, duration(measured[name][0]), size(GIB * peak)] for name, peak in peaks.items()],
            )
        ],
        goals=[Goal(f"peak memory, {name}", Spread((peak,)), LIMIT, unit=" GiB") for name, peak in peaks.items()],
        figures={"num_points": num_points, "chunk_size": chunk_size, "seconds_and_bytes": measured},
        figure=draw(peaks),
    )


def train(shape: Shape, chunk_size: int) -> float:
    """The seconds of a step, the second one: Adam's moments are in memory."""
    context, model = Context(*make_data(shape)), make_model(shape)
    step = training_step(model.parameters(), lambda: model.loss(context, chunk_size=chunk_size))
    step()
    return _seconds(step)


def predict(shape: Shape, chunk_size: int) -> float:
    """The seconds that a prediction takes, conditioning included."""
    context, model = Context(*make_data(shape)), make_model(shape).eval()

    def mean_and_variance() -> object:
        prediction = model.predict(context.x, context, num_samples=NUM_SAMPLES, chunk_size=chunk_size)
        return prediction.mean, prediction.variance

    return _seconds(mean_and_variance)


def _seconds(function: Callable[[], object]) -> float:
    start = time.perf_counter()
    function()
    return time.perf_counter() - start


def draw(peaks: dict[str, float]) -> Figure:
    figure = Figure(figsize=(6, 2.2), layout="constrained")
    axes = figure.subplots()
    axes.barh(list(peaks), list(peaks.values()), color=COLOURS[0], height=0.5)
    axes.axvline(LIMIT, color=COLOURS[1], linestyle="--", label="target")
    axes.set(xlabel="peak memory of the process (GiB)")
    axes.invert_yaxis()
    figure.legend(loc="outside right upper")
    return figure
