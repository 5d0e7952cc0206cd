"""Small models and measuring devices that many tests share."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from itertools import combinations, product
from unittest.mock import MagicMock, patch

import gpytorch
import numpy as np
import pytest
import torch
from gpytorch.distributions import MultivariateNormal
from gpytorch.kernels import Kernel, MaternKernel, PeriodicKernel, RBFKernel, ScaleKernel
from gpytorch.means import ConstantMean, Mean
from gpytorch.variational import IndependentMultitaskVariationalStrategy
from packaging.version import Version
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from gpytorch_sgpvae import (
    MLP,
    AmortizedVariationalDistribution,
    AmortizedVariationalStrategy,
    Context,
    DecoderLikelihood,
    DenseAmortizedVariationalStrategy,
    DenseJointAmortizedVariationalStrategy,
    FactorNet,
    GaussianObservations,
    GaussianSites,
    InferenceNetwork,
    JointAmortizedVariationalStrategy,
    JointFactorNet,
    TaskELBO,
    models,
)

# those whose sites do not couple the latent functions
NETWORKS: list[type[InferenceNetwork]] = [n for n in models.NETWORKS.values() if not n.couples_latents]
DTYPES = [torch.float64, torch.float32]
# Older ones cannot compile a training step: 2.6 fails, 2.9 does it.
needs_compile = pytest.mark.skipif(
    Version(torch.__version__) < Version("2.9"), reason="torch.compile needs torch 2.9 or newer here"
)


def pairwise_cases(names: str, *values: Collection) -> pytest.MarkDecorator:
    """
    Parametrize a test by a few of all combinations: any two values of any two parameters meet in one of them.

    Where a case is free to choose, it takes the first value of a parameter: put the most ordinary one there, and not,
    say, zero points, which would leave the others little to do.

    :param names: separated by commas, as for `pytest.mark.parametrize`.
    :param values: of each parameter; a dictionary has the names of its values as keys.
    """
    options = [list(v.items()) if isinstance(v, Mapping) else [(_label(x), x) for x in v] for v in values]
    combined = [set(combinations(enumerate(case), 2)) for case in product(*(range(len(o)) for o in options))]
    missing = set().union(*combined)
    cases = []
    while missing:
        best = max(combined, key=lambda pairs: len(pairs & missing))
        missing -= best
        chosen = [options[i][j] for i, j in sorted({choice for pair in best for choice in pair})]
        cases.append(pytest.param(*(x for _, x in chosen), id="-".join(label for label, _ in chosen)))
    return pytest.mark.parametrize(names, cases)


def _label(value: object) -> str:
    return getattr(value, "__name__", str(value)).removeprefix("torch.")


def rbf(batch_shape: torch.Size) -> Kernel:
    return ScaleKernel(RBFKernel(batch_shape=batch_shape), batch_shape=batch_shape)


# input dimension 2 throughout
KERNELS: dict[str, Callable[[torch.Size], Kernel]] = {
    "rbf": rbf,
    "rbf_ard": lambda batch: ScaleKernel(RBFKernel(ard_num_dims=2, batch_shape=batch), batch_shape=batch),
    "matern12": lambda batch: MaternKernel(nu=0.5, batch_shape=batch),
    "matern32_ard": lambda batch: MaternKernel(nu=1.5, ard_num_dims=2, batch_shape=batch),
    "matern52": lambda batch: MaternKernel(nu=2.5, batch_shape=batch),
    "periodic": lambda batch: ScaleKernel(PeriodicKernel(batch_shape=batch), batch_shape=batch),
    "additive": lambda batch: rbf(batch) + MaternKernel(nu=2.5, batch_shape=batch),
    "product": lambda batch: RBFKernel(batch_shape=batch) * PeriodicKernel(batch_shape=batch),
}


class Model(gpytorch.models.ApproximateGP):
    """GPyTorch's own idiom, with everything that the tests vary as an argument."""

    def __init__(
        self,
        inducing_points: Tensor,
        network: torch.nn.Module,
        kernel: Callable[[torch.Size], Kernel] = rbf,
        mean: Mean | None = None,
        wrapped: bool = True,
        jitter_val: float | None = None,
        learn_inducing_locations: bool = True,
    ):
        num_latents = network.num_latents
        batch_shape = torch.Size([]) if num_latents is None else torch.Size([num_latents])
        strategy = AmortizedVariationalStrategy(
            self,
            inducing_points,
            AmortizedVariationalDistribution(network),
            learn_inducing_locations=learn_inducing_locations,
            jitter_val=jitter_val,
        )
        if wrapped and num_latents is not None:
            strategy = IndependentMultitaskVariationalStrategy(strategy, num_tasks=num_latents)
        super().__init__(strategy)
        self.mean_module = ConstantMean(batch_shape=batch_shape) if mean is None else mean
        self.covar_module = kernel(batch_shape)

    def forward(self, x: Tensor) -> MultivariateNormal:
        return MultivariateNormal(self.mean_module(x), self.covar_module(x))

    @property
    def strategy(self) -> AmortizedVariationalStrategy:
        return getattr(self.variational_strategy, "base_variational_strategy", self.variational_strategy)


class DenseModel(Model):
    """A model with the same mean, kernel and network, and the dense strategy."""

    def __init__(self, model: Model, jitter_val: float | None = None):
        gpytorch.models.ApproximateGP.__init__(self, None)
        strategy = DenseAmortizedVariationalStrategy(self, model.strategy._variational_distribution, jitter_val)
        if model.strategy.num_latents is not None:
            strategy = IndependentMultitaskVariationalStrategy(strategy, num_tasks=model.strategy.num_latents)
        self.variational_strategy = strategy
        self.mean_module, self.covar_module = model.mean_module, model.covar_module
        self.to(model.strategy.inducing_points.dtype)


class JointModel(gpytorch.models.ApproximateGP):
    """A model whose latent functions are inferred together, with inducing points or without."""

    def __init__(
        self,
        network: torch.nn.Module,
        inducing_points: Tensor | None = None,
        kernel: Callable[[torch.Size], Kernel] = rbf,
        mean: Callable[[torch.Size], Mean] = lambda batch_shape: ConstantMean(batch_shape=batch_shape),
        **kwargs,
    ):
        q_u, batch_shape = AmortizedVariationalDistribution(network), torch.Size([network.num_latents])
        if inducing_points is None:
            strategy = DenseJointAmortizedVariationalStrategy(self, q_u, **kwargs)
        else:
            strategy = JointAmortizedVariationalStrategy(self, inducing_points, q_u, **kwargs)
        super().__init__(strategy)
        self.mean_module, self.covar_module = mean(batch_shape), kernel(batch_shape)
        self.double()
        perturb(self.mean_module, self.covar_module)

    def forward(self, x: Tensor) -> MultivariateNormal:
        return MultivariateNormal(self.mean_module(x), self.covar_module(x))

    @property
    def strategy(self):
        return self.variational_strategy


class FreeFormModel(Model):
    """A model with the same mean, kernel and inducing points, and GPyTorch's own free-form q(u)."""

    def __init__(self, model: Model):
        gpytorch.models.ApproximateGP.__init__(self, None)
        inducing_points = model.strategy.inducing_points.detach()
        q_u = gpytorch.variational.CholeskyVariationalDistribution(len(inducing_points))
        self.variational_strategy = gpytorch.variational.VariationalStrategy(self, inducing_points, q_u)
        self.mean_module, self.covar_module = model.mean_module, model.covar_module
        self.to(inducing_points.dtype)


class ExactSites(torch.nn.Module):
    """The sites of GP regression, g = y and v = σ², for one output and no latent dimension."""

    num_latents = None
    row_wise = True

    def __init__(self, noise: float):
        super().__init__()
        self.noise = noise

    def forward(self, context: Context) -> GaussianSites:
        precision = context.observed.squeeze(-1) / self.noise
        return GaussianSites(context.filled.squeeze(-1) * precision, precision.to(context.dtype))


def make_model(
    num_outputs: int = 3,
    num_latents: int | None = 2,
    num_inducing: int = 5,
    network: type[InferenceNetwork] = FactorNet,
    dtype: torch.dtype = torch.float64,
    activation: type[torch.nn.Module] = torch.nn.ReLU,
    **kwargs,
) -> Model:
    """A model with inputs in two dimensions, whose parameters are all different from their defaults."""
    inducing_points = torch.rand(num_inducing, 2, dtype=dtype) * 3
    model = Model(inducing_points, network(num_outputs, num_latents, (8,), activation), **kwargs).to(dtype)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name.startswith(("mean_module", "covar_module")):
                parameter.add_(0.3 * torch.randn_like(parameter))
    return model


def perturb(*modules: torch.nn.Module, scale: float = 0.3) -> None:
    """Move all parameters away from where they start."""
    with torch.no_grad():
        for module in modules:
            for parameter in module.parameters():
                parameter.add_(scale * torch.randn_like(parameter))


def make_tied(num_outputs: int = 3, num_latents: int = 2) -> tuple[JointFactorNet, DecoderLikelihood]:
    """A linear decoder with Gaussian noise, all at random, and the network that is tied to it."""
    decoder, observations = torch.nn.Linear(num_latents, num_outputs), GaussianObservations(num_outputs)
    likelihood = DecoderLikelihood(decoder, observations).double()
    perturb(likelihood)
    network = JointFactorNet(num_outputs, num_latents, (4,), torch.nn.Tanh).double()
    network.tie(likelihood)
    return network, likelihood


class GivenSites(torch.nn.Module):
    """A network that returns given sites, of whatever it is asked about."""

    row_wise = False

    def __init__(self, sites: GaussianSites, num_latents: int | None):
        super().__init__()
        self.sites, self.num_latents = sites, num_latents

    def forward(self, context: Context) -> GaussianSites:
        return self.sites


def make_likelihood(
    num_outputs: int = 3,
    num_latents: int = 2,
    dtype: torch.dtype = torch.float64,
    activation: type[torch.nn.Module] = torch.nn.ReLU,
) -> DecoderLikelihood:
    decoder = MLP(num_latents, num_outputs, (8,), activation)
    return DecoderLikelihood(decoder, GaussianObservations(num_outputs)).to(dtype)


def make_data(
    *batch_shape: int,
    num_points: int = 12,
    num_outputs: int = 3,
    missing: float = 0.3,
    dtype: torch.dtype = torch.float64,
) -> tuple[Tensor, Tensor]:
    x = torch.rand(*batch_shape, num_points, 2, dtype=dtype) * 3
    y = torch.randn(*batch_shape, num_points, num_outputs, dtype=dtype)
    y[torch.rand(y.shape) < missing] = torch.nan
    return x, y


def rows(y: Tensor, observed: Tensor) -> Context:
    """Rows to be read by a network: their inputs do not matter, and nobody checks values, which may not be there."""
    x = torch.zeros(*y.shape[:-1], 1, dtype=y.dtype, device=y.device)
    with gpytorch.settings.debug(False):
        return Context(x, torch.where(observed, y, torch.nan))


class _ELBOOfTasks(torch.nn.Module):
    """Two small tasks with a row that is missing, as a function of nothing but the parameters."""

    def __init__(self, model: Model, likelihood: DecoderLikelihood):
        super().__init__()
        self.elbo = TaskELBO(likelihood, model)
        x, y = make_data(2, num_points=4, num_outputs=2)
        y[0, 1] = torch.nan
        self.context = Context(x, y)
        self.base_samples = torch.randn(2, 2, 4, 2, dtype=x.dtype)

    def forward(self) -> Tensor:
        q_f = self.elbo.model(self.context.x, context=self.context)
        return self.elbo(q_f, self.context.y, base_samples=self.base_samples)


def check_gradients_of_elbo(model: Model, likelihood: DecoderLikelihood) -> None:
    """Check gradients by all parameters against finite differences; activations are smooth, outputs and latents two."""
    objective = _ELBOOfTasks(model, likelihood)
    names, parameters = zip(*objective.named_parameters(), strict=True)

    def function(*values: Tensor) -> Tensor:
        return torch.func.functional_call(objective, dict(zip(names, values, strict=True)), ())

    assert torch.autograd.gradcheck(function, tuple(p.detach().requires_grad_() for p in parameters), fast_mode=True)


class _LargestAllocation(TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()
        self.numel = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        for output in result if isinstance(result, (tuple, list)) else (result,):
            if isinstance(output, Tensor):
                self.numel = max(self.numel, output.untyped_storage().nbytes() // output.element_size())
        return result


@contextmanager
def largest_allocation() -> Iterator[_LargestAllocation]:
    """The largest storage that any operation returns, in elements; views count as what they look into."""
    with _LargestAllocation() as mode:
        yield mode


@contextmanager
def cholesky_calls() -> Iterator[list[torch.Size]]:
    """The shapes of all matrices that are factorized."""
    shapes: list[torch.Size] = []

    def record(factorize):
        def wrapped(matrix, *args, **kwargs):
            shapes.append(matrix.shape)
            return factorize(matrix, *args, **kwargs)

        return MagicMock(side_effect=wrapped)

    with (
        patch("torch.linalg.cholesky_ex", record(torch.linalg.cholesky_ex)),
        patch("torch.linalg.cholesky", record(torch.linalg.cholesky)),
        patch("torch.cholesky", record(torch.cholesky)),
    ):
        yield shapes


def array(tensor: Tensor) -> np.ndarray:
    return tensor.detach().numpy()


def softplus(x):
    return np.logaddexp(0, x)


def assert_equal(actual: Tensor, expected: np.ndarray, **tolerance) -> None:
    torch.testing.assert_close(actual.detach(), torch.as_tensor(expected, dtype=torch.float64), **tolerance)
