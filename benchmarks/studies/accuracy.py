"""Whether float32 trains to where float64 does."""

from __future__ import annotations

from dataclasses import dataclass

import gpytorch
import torch
from matplotlib.figure import Figure
from torch import Tensor
from tqdm import trange

from gpytorch_sgpvae import Context

from ..contestants import make_model, training_step
from ..measure import Spread
from ..shapes import Shape, make_data
from ..study import COLOURS, Goal, Options, Report, number, table

# The largest difference, as a fraction of the ELBO in float64.
TOLERANCE = 0.01
SHAPES_OF_INTEREST = ("weather", "eeg-large", "eeg")


@dataclass(frozen=True)
class Run:
    """
    :param jitter: On the diagonal of K_uu: a part of the model, not of the arithmetic.
    :param perturbation: Relative, of the initial parameters.
    """

    dtype: torch.dtype = torch.float64
    jitter: float = 1e-4
    perturbation: float = 0.0


REFERENCE = "float64"
RUNS = {
    REFERENCE: Run(),
    "float32": Run(torch.float32),
    "float64, perturbed": Run(perturbation=1e-7),
    "float64, jitter 1e-6": Run(jitter=1e-6),
}
LIMITS = {"float32": TOLERANCE}


def run(options: Options) -> Report:
    num_steps, num_samples = (5, 10) if options.quick else (300, 100)
    shapes = {key: shape for key, shape in options.shapes.items() if key in SHAPES_OF_INTEREST}
    traces: dict[str, dict[str, list[float]]] = {key: {} for key in shapes}
    final: dict[str, dict[str, float]] = {key: {} for key in shapes}
    for key, shape in shapes.items():
        for name in RUNS:
            traces[key][name], final[key][name] = train(shape, name, num_steps, num_samples)
    goals = [
        Goal(f"{shape.name}: {name}, relative difference of the ELBO", Spread((difference(final[key], name),)), limit)
        for key, shape in shapes.items()
        for name, limit in ((name, LIMITS.get(name)) for name in RUNS if name != REFERENCE)
    ]
    return Report(
        title="Training in float32",
        text=f"""{num_steps} steps from the same parameters with the same data and samples, then the ELBO of the trained
models, in nats, in float64 with {num_samples} samples. The jitter of K_uu is 1e-4, GPyTorch's in float32; the last run
has GPyTorch's in float64, which makes another model. "Perturbed" starts from parameters that differ by 1e-7: so far
apart are two trainings in float64.""",
        tables=[
            table(["", *RUNS], [[shape.name, *map(number, final[key].values())] for key, shape in shapes.items()]),
        ],
        goals=goals,
        figures={"elbo": final, "trace": traces},
        figure=draw(shapes, traces),
    )


def difference(elbos: dict[str, float], name: str) -> float:
    return abs(elbos[name] - elbos[REFERENCE]) / abs(elbos[REFERENCE])


def train(shape: Shape, name: str, num_steps: int, num_samples: int) -> tuple[list[float], float]:
    """The ELBO of each step with its one sample, and the final one in float64."""
    run = RUNS[name]
    context, model = Context(*make_data(shape, dtype=run.dtype)), make_model(shape, run.dtype)
    # Small, so that the latent functions are needed at once: on a plateau where noise explains everything, Adam makes
    # whole steps of rounding errors, and no two runs leave it alike.
    model.likelihood.observation_model.noise = 0.1
    generator = torch.Generator().manual_seed(2)
    trace: list[float] = []

    def draw_samples(number: int) -> Tensor:
        size = (number, shape.num_points, shape.num_latents)
        return torch.randn(size, generator=generator, dtype=torch.float64)  # (S, N, K)

    def loss() -> Tensor:
        value = model.loss(context, base_samples=draw_samples(1).to(run.dtype))
        trace.append(-value.item())
        return value

    with torch.no_grad():
        for parameter in model.parameters():
            parameter *= 1 + run.perturbation * torch.randn_like(parameter)
    step = training_step(model.parameters(), loss, lr=3e-3)
    with gpytorch.settings.variational_cholesky_jitter(float_value=run.jitter, double_value=run.jitter):
        for _ in trange(num_steps, desc=f"{shape.name}, {name}", leave=False):
            step()
        model, context = model.double(), Context(*make_data(shape))
        with torch.no_grad(), gpytorch.settings.num_likelihood_samples(num_samples):
            return trace, model.elbo(context, base_samples=draw_samples(num_samples)).item()


def draw(shapes: dict[str, Shape], traces: dict[str, dict[str, list[float]]]) -> Figure:
    figure = Figure(figsize=(4.2 * max(len(shapes), 1), 3.5), layout="constrained")
    for i, (key, shape) in enumerate(shapes.items()):
        axes = figure.add_subplot(1, len(shapes), 1 + i)
        for (name, values), colour, style in zip(traces[key].items(), COLOURS, ("-", "--", ":", "-."), strict=False):
            axes.plot(values, style, color=colour, linewidth=1.5, label=name)
        axes.set(title=shape.name, xlabel="step", ylabel="ELBO (nats), one sample")
        axes.grid(alpha=0.3)
        axes.legend()
    return figure
