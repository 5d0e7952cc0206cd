"""
Time series, and the log likelihood of Gaussian processes with a Matérn 3/2 kernel over them in time linear in their
length: this package's recursion, celerite2 and smolgp.
"""

from __future__ import annotations

import importlib.util
import math
from collections.abc import Callable
from typing import Any, NamedTuple

import gpytorch
import torch
from torch import Tensor

from gpytorch_sgpvae import Context

HOW_TO_GET_THEM = "Peers that are not installed are left out: `make .venv-bench/bench.installed` installs all."
NUM_OUTPUTS, MISSING = 3, 0.3
# Mean time between points, and the lengthscale that signals and kernels have.
SPACING, LENGTHSCALE = 0.1, 1.0


def make_times(num_points: int, tasks: int | None = None) -> Tensor:
    """Irregular times in order (`*T x N`), in float64: the gaps between them are exponentially distributed."""
    generator = torch.Generator().manual_seed(0)
    shape = (num_points,) if tasks is None else (tasks, num_points)
    gaps = torch.empty(shape, dtype=torch.float64).exponential_(generator=generator)
    return SPACING * gaps.cumsum(-1)


def make_context(num_points: int, tasks: int | None = None) -> Context:
    """Smooth random functions of time with noise and holes, P outputs, in float32; tasks have times of their own."""
    times = make_times(num_points, tasks)
    generator = torch.Generator().manual_seed(1)
    like: dict[str, Any] = {"generator": generator, "dtype": torch.float64}
    num_features = 20
    # Random Fourier features of an RBF kernel.
    phases = 6.3 * torch.rand(num_features, **like)
    features = torch.cos(times.unsqueeze(-1) * torch.randn(num_features, **like) / LENGTHSCALE + phases)
    y = features @ torch.randn(num_features, NUM_OUTPUTS, **like) * (2 / num_features) ** 0.5  # (*T, N, P)
    y += 0.1 * torch.randn(y.shape, **like)
    y[torch.rand(y.shape, **like) < MISSING] = torch.nan
    return Context(times.unsqueeze(-1).float(), y.float())


def make_kernel(num_latents: int) -> gpytorch.kernels.Kernel:
    """A scaled Matérn 3/2 kernel for each latent function."""
    batch_shape = torch.Size([num_latents])
    kernel = gpytorch.kernels.MaternKernel(nu=1.5, batch_shape=batch_shape)
    kernel.lengthscale = LENGTHSCALE
    return gpytorch.kernels.ScaleKernel(kernel, batch_shape=batch_shape)


class Series(NamedTuple):
    r"""
    K noisy series at the same times, in float64, and the kernel of each.

    :param times: (`N`).
    :param values: g (`K x N`).
    :param precision: :math:`\lambda` of each value's noise (`K x N`).
    :param lengthscale: (`K`).
    :param variance: The variance of the signal (`K`).
    """

    times: Tensor
    values: Tensor
    precision: Tensor
    lengthscale: Tensor
    variance: Tensor


def make_series(num_points: int, num_series: int) -> Series:
    times = make_times(num_points)
    generator = torch.Generator().manual_seed(2)
    like: dict[str, Any] = {"generator": generator, "dtype": torch.float64}
    phases = 6.3 * torch.rand(num_series, 1, **like)
    values = torch.sin(times / LENGTHSCALE + phases) + torch.randn(num_series, num_points, **like)
    precision = 0.5 + torch.rand(num_series, num_points, **like)
    numbers = torch.arange(num_series, dtype=torch.float64)
    return Series(times, values, precision, LENGTHSCALE * 1.5**numbers, 1 + 0.1 * numbers)


# The sum of the log likelihoods of all series, and its gradient by their values (`K x N`). The gradients by
# lengthscales, variances and the noise of each value are computed too.
ValueAndGradient = Callable[[], tuple[Any, Any]]


def recursion(series: Series) -> ValueAndGradient:
    r"""
    The recursion of this package as a training step has it: posterior means :math:`\hat f` and variances v of all
    values, and the bound that they give. As the sites are the likelihood, that is the log likelihood:

    .. math::

        - \tfrac 1 2 \sum_n \left[ \log (2 \pi / \lambda_n) + \lambda_n (g_n - \hat f_n)^2 + \lambda_n v_n \right]
        - \tfrac 1 2 \Bigl[ \log |B| + \sum_n \lambda_n (g_n - \hat f_n) \hat f_n - \sum_n \lambda_n v_n \Bigr]
    """
    from gpytorch_sgpvae.linalg.chain import Chain
    from gpytorch_sgpvae.linalg.markov import markov_posterior
    from gpytorch_sgpvae.linalg.state_space import to_state_space

    g, precision = (tensor.clone().requires_grad_() for tensor in (series.values, series.precision))
    kernel = make_kernel(len(g)).double()
    kernel.base_kernel.lengthscale, kernel.outputscale = series.lengthscale[:, None, None], series.variance
    inputs = [g, precision, *kernel.parameters()]

    def value_and_gradient() -> tuple[Tensor, Tensor]:
        [space] = to_state_space(kernel)
        chain = Chain.separate(space)
        transitions = chain.between(series.times.unsqueeze(0))
        sites = (precision.unsqueeze(-1), (precision * g).unsqueeze(-1))  # (K, N, 1) each
        posterior = markov_posterior(transitions, chain.stationary_covariance, chain.observation, *sites)
        mean, variance = posterior.mean.squeeze(-1), posterior.variance.squeeze(-1)  # (K, N) each
        residual = g - mean
        expected = -0.5 * (math.log(2 * math.pi) - precision.log() + precision * (residual.square() + variance)).sum()
        kl = 0.5 * (posterior.log_det.sum() + (precision * (residual * mean - variance)).sum())
        value = expected - kl
        return value.detach(), torch.autograd.grad(value, inputs)[0]

    return value_and_gradient


def celerite2(series: Series) -> ValueAndGradient:
    """The jax interface: the numpy one has no gradients. The Matérn kernel there is a close approximation."""
    jax = _import_jax()
    from celerite2.jax import GaussianProcess, terms

    def log_likelihood(g: Any, noise: Any, lengthscale: Any, stddev: Any, times: Any) -> Any:
        total = 0.0
        for k in range(len(series.values)):  # its operations have no batch dimension
            gp = GaussianProcess(terms.Matern32Term(sigma=stddev[k], rho=lengthscale[k]))
            gp.compute(times, diag=noise[k], check_sorted=False)
            total += gp.log_likelihood(g[k])
        return total

    return _compiled(jax, log_likelihood, series)


def smolgp(series: Series) -> ValueAndGradient:
    """The sequential solver, which on one core is several times faster than the parallel one."""
    jax = _import_jax()
    from smolgp import GaussianProcess
    from smolgp.kernels import Matern32

    def log_likelihood(g: Any, noise: Any, lengthscale: Any, stddev: Any, times: Any) -> Any:
        gp = GaussianProcess(Matern32(scale=lengthscale, sigma=stddev), times, noise=noise)
        return gp.log_probability(g)

    def total(*arguments: Any) -> Any:
        return jax.vmap(log_likelihood, in_axes=(0, 0, 0, 0, None))(*arguments).sum()

    return _compiled(jax, total, series)


CONTESTANTS: dict[str, Callable[[Series], ValueAndGradient]] = {"celerite2": celerite2, "smolgp": smolgp}


def available() -> list[str]:
    """The contestants that are installed."""
    return [name for name in CONTESTANTS if importlib.util.find_spec(name) is not None]


def _import_jax() -> Any:
    import jax

    jax.config.update("jax_platforms", "cpu")
    jax.config.update("jax_enable_x64", True)
    return jax


def _compiled(jax: Any, log_likelihood: Callable[..., Any], series: Series) -> ValueAndGradient:
    """The first call compiles."""
    function = jax.jit(jax.value_and_grad(log_likelihood, argnums=(0, 1, 2, 3)))
    parts = (series.values, 1 / series.precision, series.lengthscale, series.variance.sqrt(), series.times)
    arguments = [jax.numpy.asarray(part.numpy()) for part in parts]

    def value_and_gradient() -> tuple[Any, Any]:
        value, gradients = jax.block_until_ready(function(*arguments))
        return value, gradients[0]

    return value_and_gradient
