"""
The contestants that are timed. Each is a function of nothing that does one step of training: gradients to zero, an ELBO
with one sample, backward, Adam. All have the same optimizer, data and sizes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

import gpytorch
import torch
from gpytorch.distributions import MultivariateNormal
from gpytorch.variational import (
    CholeskyVariationalDistribution,
    IndependentMultitaskVariationalStrategy,
    VariationalStrategy,
)
from torch import Tensor

from gpytorch_sgpvae import GPVAE, MLP, SGPVAE, Context, DecoderLikelihood, FactorNet, GaussianObservations, TaskELBO

from .shapes import Shape, make_data

Step = Callable[[], None]

# Products (M x M)(M x N) that automatic differentiation takes for a step, per latent function and task: three forward,
# six backward. Gradients by hand need seven (tests/variational/test_cost.py).
NUM_PRODUCTS = 9


def training_step(parameters: Iterable[Tensor], loss: Callable[[], Tensor], lr: float = 1e-3) -> Step:
    optimizer = torch.optim.Adam(parameters, lr=lr, fused=True)

    def step() -> None:
        optimizer.zero_grad()
        with gpytorch.settings.num_likelihood_samples(1):
            loss().backward()
        optimizer.step()

    return step


def make_inducing_points(shape: Shape) -> Tensor:
    assert shape.num_inducing is not None
    generator = torch.Generator().manual_seed(1)
    return 3 * torch.rand(shape.num_inducing, shape.input_dim, generator=generator, dtype=torch.float64)


def make_model(
    shape: Shape, dtype: torch.dtype = torch.float64, network: torch.nn.Module | None = None
) -> SGPVAE | GPVAE:
    """The same initial parameters in every dtype; by default a FactorNet of ReLUs, as the authors' is."""
    torch.manual_seed(0)
    sizes = (shape.num_outputs, shape.num_latents)
    if network is None:
        network = FactorNet(*sizes, shape.hidden_sizes, torch.nn.ReLU)
    if shape.num_inducing is None:
        return GPVAE(*sizes, network, hidden_sizes=shape.hidden_sizes).to(dtype)
    return SGPVAE(*sizes, make_inducing_points(shape).to(dtype), network, hidden_sizes=shape.hidden_sizes)


def ours(
    shape: Shape, tasks: int | None = None, dtype: torch.dtype = torch.float64, shared_inputs: bool = False
) -> Step:
    """This package; see :func:`~benchmarks.shapes.make_data` for the parameters."""
    context = Context(*make_data(shape, tasks, dtype, shared_inputs))
    model = make_model(shape, dtype)
    return training_step(model.parameters(), lambda: model.loss(context))


class SVGP(gpytorch.models.ApproximateGP):
    """GPyTorch's own K latent functions, with a free-form q(u), and the kernel of an SGPVAE."""

    def __init__(self, shape: Shape, q_u: CholeskyVariationalDistribution):
        latents = torch.Size([shape.num_latents])
        strategy = VariationalStrategy(self, make_inducing_points(shape), q_u)
        super().__init__(IndependentMultitaskVariationalStrategy(strategy, num_tasks=shape.num_latents))
        self.mean_module = gpytorch.means.ZeroMean()
        base_kernel = gpytorch.kernels.RBFKernel(ard_num_dims=shape.input_dim, batch_shape=latents)
        self.covar_module = gpytorch.kernels.ScaleKernel(base_kernel, batch_shape=latents)

    def forward(self, x: Tensor) -> MultivariateNormal:
        return MultivariateNormal(self.mean_module(x), self.covar_module(x))


def make_svgp(shape: Shape, dtype: torch.dtype = torch.float64) -> tuple[TaskELBO, CholeskyVariationalDistribution]:
    """An SVGP with the likelihood of an SGPVAE: its objective, which holds everything else, and its q(u)."""
    torch.manual_seed(0)
    q_u = CholeskyVariationalDistribution(shape.num_inducing, batch_shape=torch.Size([shape.num_latents]))
    decoder = MLP(shape.num_latents, shape.num_outputs, shape.hidden_sizes)
    likelihood = DecoderLikelihood(decoder, GaussianObservations(shape.num_outputs))
    return TaskELBO(likelihood, SVGP(shape, q_u)).to(dtype), q_u


def svgp(shape: Shape, dtype: torch.dtype = torch.float64) -> Step:
    """What GPyTorch itself offers for one task."""
    x, y = make_data(shape, dtype=dtype)
    elbo, _ = make_svgp(shape, dtype)
    return training_step(elbo.parameters(), lambda: -elbo(elbo.model(x), y))


def products(shape: Shape, tasks: int = 1, dtype: torch.dtype = torch.float64) -> Step:
    """The matrix products of a step by automatic differentiation, and nothing else."""
    assert shape.num_inducing is not None
    batch = (tasks, shape.num_latents, shape.num_inducing)
    left = torch.randn(*batch, shape.num_inducing, dtype=dtype)
    right = torch.randn(*batch, shape.num_points, dtype=dtype)

    def multiply() -> None:
        for _ in range(NUM_PRODUCTS):
            left @ right

    return multiply
