"""Memory over tasks: appendix C of the paper, measured."""

from __future__ import annotations

from itertools import chain

import torch
from matplotlib.figure import Figure
from torch import Tensor
from torch.func import functional_call
from tqdm import tqdm

from gpytorch_sgpvae import Context, FactorNet, FreeFormSites, TaskELBO

from ..contestants import make_model, make_svgp, training_step
from ..measure import Memory, peak_memory
from ..shapes import Shape, make_data
from ..study import COLOURS, GIB, Options, Report, size, table

AMORTIZED, FREE_SITES, FREE_Q_U = "amortized sites", "free-form sites", "free-form q(u)"
# The paper's orders of magnitude. It counts K_ff too, N², which no method here ever makes.
REQUIREMENTS = {AMORTIZED: "KNM + KM² + weights", FREE_SITES: "KNM + KM² + TKN", FREE_Q_U: "KNM + TKM²"}


def run(options: Options) -> Report:
    shape = options.weather
    task_counts = [1000, 2000] if options.quick else [10, 100, 1000, 10_000]
    measured: dict[str, list[tuple[int, Memory]]] = {}
    with tqdm(total=len(REQUIREMENTS) * len(task_counts), desc="memory", leave=False) as progress:
        for method in REQUIREMENTS:
            measured[method] = []
            for tasks in task_counts:
                small = (method, shape.shrunk(), 2)
                measured[method].append(peak_memory(two_steps, (method, shape, tasks), small, options.threads))
                progress.update()
    parameters = {method: [count for count, _ in pairs] for method, pairs in measured.items()}
    memory = {method: [used for _, used in pairs] for method, pairs in measured.items()}
    header = ["q(u)", "the paper: of the order of", *(f"T = {tasks:,}" for tasks in task_counts)]
    rows = [
        [
            method,
            REQUIREMENTS[method],
            *(
                f"{count:,} / {size(used.added)}"
                for count, used in zip(parameters[method], memory[method], strict=True)
            ),
        ]
        for method in REQUIREMENTS
    ]
    return Report(
        title="Memory over tasks",
        text=f"""Variational parameters / peak memory of training on T tasks that share their inputs, one task per
step, with the sizes of the weather shape (N = {shape.num_points:,}, K = {shape.num_latents},
M = {shape.num_inducing}) in float32: parameters, gradients, Adam's moments and the step itself, above what a process
had after a small step. The tasks' data are left out. The paper's appendix C has the orders of magnitude.""",
        tables=[table(header, rows)],
        notes="GPyTorch's `CholeskyVariationalDistribution` stores the square around its triangular factor.",
        figures={"tasks": task_counts, "parameters": parameters, "bytes": memory},
        figure=draw(task_counts, parameters, memory),
    )


class Loss(torch.nn.Module):
    """Minus the ELBO, as a module for :func:`torch.func.functional_call`."""

    def __init__(self, elbo: TaskELBO):
        super().__init__()
        self.elbo = elbo

    def forward(self, x: Tensor, y: Tensor, **kwargs: Context) -> Tensor:
        return -self.elbo(self.elbo.model(x, **kwargs), y)


def two_steps(method: str, shape: Shape, tasks: int) -> int:
    """
    Train on the first of T tasks; the second step has Adam's moments in memory.

    :return: The number of variational parameters.
    """
    x, y = make_data(shape, dtype=torch.float32)
    context = Context(x, y)
    conditioning = {"context": context}
    if method == FREE_Q_U:
        elbo, variational = make_svgp(shape, torch.float32)
        conditioning = {}
    else:
        variational = FactorNet(shape.num_outputs, shape.num_latents, shape.hidden_sizes)
        if method == FREE_SITES:
            variational = FreeFormSites.from_sites(variational(context))
        model = make_model(shape, torch.float32, variational)
        elbo = TaskELBO(model.likelihood, model.model)
    loss = Loss(elbo)
    own: dict[str, Tensor] = {}
    if method != AMORTIZED:
        give_each_task_its_own(variational, tasks)
        stacked = {id(tensor) for tensor in chain(variational.parameters(), variational.buffers())}
        named = chain(loss.named_parameters(), loss.named_buffers())
        own = {name: tensor for name, tensor in named if id(tensor) in stacked}

    def loss_of_first_task() -> Tensor:
        return functional_call(loss, {name: tensor[0] for name, tensor in own.items()}, (x, y), conditioning)

    step = training_step(loss.parameters(), loss_of_first_task)
    step()
    step()
    return sum(parameter.numel() for parameter in variational.parameters())


def give_each_task_its_own(module: torch.nn.Module, tasks: int) -> None:
    """T copies of a module's parameters and buffers, stacked."""
    for name, parameter in list(module.named_parameters()):
        setattr(module, name, torch.nn.Parameter(parameter.detach().repeat(tasks, *[1] * parameter.dim())))
    for name, buffer in list(module.named_buffers()):
        setattr(module, name, buffer.repeat(tasks, *[1] * buffer.dim()))


def draw(task_counts: list[int], parameters: dict[str, list[int]], memory: dict[str, list[Memory]]) -> Figure:
    figure = Figure(figsize=(9, 3.8), layout="constrained")
    left, right = figure.subplots(1, 2)
    for method, colour, marker in zip(REQUIREMENTS, COLOURS, "osD", strict=False):
        style = {"color": colour, "marker": marker, "label": method}
        left.plot(task_counts, parameters[method], **style)
        right.plot(task_counts, [used.added / GIB for used in memory[method]], **style)
    left.set(ylabel="variational parameters")
    right.set(ylabel="peak memory of training (GiB)")
    for axes in (left, right):
        axes.set(xscale="log", yscale="log", xlabel="T, tasks to train on")
        axes.grid(alpha=0.3)
    left.legend()
    return figure
