"""What a step costs in terms of T, N, M, K and P, and what that predicts for machines and data that are not here."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
from matplotlib.figure import Figure
from scipy.optimize import nnls

from ..contestants import NUM_PRODUCTS, ours, products
from ..measure import Spread, interleave
from ..shapes import Shape
from ..study import COLOURS, Goal, Options, Report, duration, number, spread, table

TERMS = ("T K N M²", "T K M³", "T K N M", "T N W", "T N U", "constant")
TASKS_TO_PREDICT = 1_000_000
TASKS_PER_STEP = (1, 8, 64)


def run(options: Options) -> Report:
    base = options.weather
    grid = make_grid(base, options.quick)
    contestants = {name: ours(shape, tasks) for name, (shape, tasks) in grid.items()}
    contestants["products"] = products(base)
    times = interleave(contestants, options.repeats, description="coefficients")
    product_time = times.pop("products")
    rate = NUM_PRODUCTS * multiply_adds_of_a_product(base) / product_time.median
    work = np.array([terms(*case) for case in grid.values()])
    medians = np.array([measured.median for measured in times.values()])
    coefficients = fit(work, medians)
    errors = work @ coefficients / medians - 1

    def predict(shape: Shape, tasks: int) -> float:
        return float(terms(shape, tasks) @ coefficients)

    shares = terms(base, 1) * coefficients / predict(base, 1)
    costs = [
        [term, f"{coefficient:.2e} s", "" if term == "constant" else number(coefficient * rate), f"{share:.0%}"]
        for term, coefficient, share in zip(TERMS, coefficients, shares, strict=True)
    ]
    doubled = {
        "T": (base, 2),
        "N": (base.replace(num_points=2 * base.num_points), 1),
        "M": (base.replace(num_inducing=2 * (base.num_inducing or 1)), 1),
        "K": (base.replace(num_latents=2 * base.num_latents), 1),
        "P": (base.replace(num_outputs=2 * base.num_outputs), 1),
    }
    factors = {letter: predict(*case) / predict(base, 1) for letter, case in doubled.items()}
    predictions = [
        {
            "tasks_per_step": tasks,
            "this_machine": TASKS_TO_PREDICT / tasks * predict(base, tasks),
            "gpu": TASKS_TO_PREDICT / tasks * predict_at_rate(base, tasks, coefficients, rate, options.gpu_tflops),
        }
        for tasks in TASKS_PER_STEP
    ]
    return Report(
        title="What a step costs, and past this machine",
        text=f"""The time of a step in float64 on {len(grid)} shapes around the weather shape, as a sum of terms with
non-negative coefficients, by least squares on relative errors. W and U are the numbers of weights and of hidden units
that a point meets, in the P perceptrons of the inference network and in the decoder. Products of (M x M)(M x N) ran at
{number(2e-9 * rate)} GFLOP/s in the same run; the third column has the coefficients in multiply-adds at that rate.""",
        tables=[
            table(["term", "coefficient", "multiply-adds", "share of a weather step"], costs),
            "Doubling one size of the weather shape multiplies the time of a step by:",
            table(list(factors), [[f"{factor:.2f}" for factor in factors.values()]]),
            f"""**A prediction, not a measurement**: one epoch over {TASKS_TO_PREDICT:,} tasks of the weather shape, on
this machine, and on a GPU that is assumed to multiply matrices at {number(options.gpu_tflops)} TFLOP/s in float64 and
to do all else faster in proportion, while the constant, the interpreter's, stays. Small products and traffic of memory
will make a real GPU slower than that; larger batches help it.""",
            table(
                ["tasks per step", "this machine", f"GPU at {number(options.gpu_tflops)} TFLOP/s"],
                [
                    [str(row["tasks_per_step"]), duration(row["this_machine"]), duration(row["gpu"])]
                    for row in predictions
                ],
            ),
            "The shapes of the fit:",
            table(
                ["shape", "measured", "fitted"],
                [[name, spread(times[name], duration), duration(predict(*case))] for name, case in grid.items()],
            ),
        ],
        goals=[Goal("relative error of the fit", Spread(tuple(np.abs(errors).tolist())))],
        figures={
            "seconds": times,
            "seconds_of_products": product_time,
            "multiply_adds_per_second": rate,
            "coefficients": dict(zip(TERMS, coefficients.tolist(), strict=True)),
            "factors_of_doubling": factors,
            "gpu_tflops_assumed": options.gpu_tflops,
            "predicted_seconds_per_epoch": predictions,
        },
        figure=draw(list(grid), work * coefficients, medians),
    )


def make_grid(base: Shape, quick: bool) -> dict[str, tuple[Shape, int]]:
    """Shapes and numbers of tasks in which each term has its say."""
    if quick:
        sizes = [{"num_points": n, "num_inducing": m} for n in (50, 200) for m in (5, 20)]
        return {f"N = {s['num_points']}, M = {s['num_inducing']}": (base.replace(**s), 1) for s in sizes}
    wide = (128, 128)
    return {
        "weather": (base, 1),
        "T = 4": (base, 4),
        "T = 8": (base, 8),
        "N = 300": (base.replace(num_points=300), 1),
        "N = 4000": (base.replace(num_points=4000), 1),
        "M = 20": (base.replace(num_inducing=20), 1),
        "M = 50": (base.replace(num_inducing=50), 1),
        "M = 200": (base.replace(num_inducing=200), 1),
        "M = 400": (base.replace(num_inducing=400), 1),
        "M = 400, N = 300": (base.replace(num_inducing=400, num_points=300), 1),
        "K = 1": (base.replace(num_latents=1), 1),
        "K = 8": (base.replace(num_latents=8), 1),
        "P = 20": (base.replace(num_outputs=20), 1),
        "P = 40, M = 20": (base.replace(num_outputs=40, num_inducing=20), 1),
        "two layers of 128": (base.replace(hidden_sizes=wide), 1),
        "two layers of 128, P = 20, M = 20": (base.replace(hidden_sizes=wide, num_outputs=20, num_inducing=20), 1),
        "N = 50, M = 10, P = 1, K = 1": (
            base.replace(num_points=50, num_inducing=10, num_outputs=1, num_latents=1),
            1,
        ),
    }


def terms(shape: Shape, tasks: int) -> np.ndarray:
    """The terms of the cost, in the order of :data:`TERMS`."""
    N, M, K, P = shape.num_points, shape.num_inducing or 0, shape.num_latents, shape.num_outputs
    T = tasks
    network = sum(i * o for i, o in pairwise([1, *shape.hidden_sizes, 2 * K]))
    decoder = sum(i * o for i, o in pairwise([K, *shape.hidden_sizes, P]))
    W = P * network + decoder
    U = (P + 1) * sum(shape.hidden_sizes)
    return np.array([T * K * N * M**2, T * K * M**3, T * K * N * M, T * N * W, T * N * U, 1], dtype=float)


def multiply_adds_of_a_product(shape: Shape) -> int:
    assert shape.num_inducing is not None
    return shape.num_latents * shape.num_inducing**2 * shape.num_points


def fit(work: np.ndarray, seconds: np.ndarray) -> np.ndarray:
    """Non-negative coefficients c that minimize the relative errors of work @ c."""
    scale = work.max(0)
    return nnls(work / scale / seconds[:, None], np.ones(len(seconds)))[0] / scale


def predict_at_rate(shape: Shape, tasks: int, coefficients: np.ndarray, rate: float, tflops: float) -> float:
    """Seconds of a step where all but the constant is faster by the ratio of the product rates."""
    costs = terms(shape, tasks) * coefficients
    return float(costs[:-1].sum() * 2e-12 * rate / tflops + costs[-1])


def draw(names: list[str], costs: np.ndarray, medians: np.ndarray) -> Figure:
    figure = Figure(figsize=(10, 1.5 + 0.25 * len(names)), layout="constrained")
    left, right = figure.subplots(1, 2)
    left.plot(medians, medians, color=COLOURS[-1], linewidth=1)
    left.plot(medians, costs.sum(1), "o", color=COLOURS[0])
    left.set(xscale="log", yscale="log", xlabel="measured (s)", ylabel="fitted (s)", title="Time of a step")
    left.grid(alpha=0.3)
    shares = costs / costs.sum(1, keepdims=True)
    start = np.zeros(len(names))
    for term, share, colour in zip(TERMS, shares.T, COLOURS, strict=False):
        right.barh(names, share, left=start, color=colour, label=term)
        start += share
    right.set(xlabel="share of the fitted time", xlim=(0, 1))
    right.invert_yaxis()
    figure.legend(loc="outside right upper")
    return figure
