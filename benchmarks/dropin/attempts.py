"""
The first thing that one would write, where it does not do: it raises an error, or hands back an outcome that nobody
would want.
"""

from __future__ import annotations

from collections.abc import Callable

import gpytorch
from gpytorch.kernels import RBFKernel, ScaleKernel
from gpytorch.variational import BatchDecoupledVariationalStrategy, CiqVariationalStrategy, NNVariationalStrategy

from gpytorch_sgpvae import AmortizedVariationalDistribution, FactorNet

from .data import Data
from .outcome import Outcome
from .swapped import cox_process, deep_gp, non_gaussian, orthogonally_decoupled, svgp_regression, task_indices

NUM_INDUCING = 20


def new_model(data: Data) -> svgp_regression.Model:
    return svgp_regression.Model(data.x[:NUM_INDUCING].clone())


def new_distribution() -> AmortizedVariationalDistribution:
    return AmortizedVariationalDistribution(FactorNet(num_outputs=1, num_latents=None))


def try_orthogonally_decoupled(data: Data, steps: int) -> None:
    """`context=` at each call, as everywhere else."""
    model = orthogonally_decoupled.Model(data.x[:NUM_INDUCING].clone(), data.x[-NUM_INDUCING:].clone())
    model(data.x, context=(data.x, data.y))


def try_batch_decoupled(data: Data, steps: int) -> None:
    """GPyTorch's strategy with our distribution."""
    model = new_model(data)
    model.variational_strategy = BatchDecoupledVariationalStrategy(
        model, data.x[:NUM_INDUCING].clone(), new_distribution()
    )
    model(data.x, context=(data.x, data.y))


def try_contour_integrals(data: Data, steps: int) -> None:
    """GPyTorch's strategy with our distribution."""
    model = new_model(data)
    model.variational_strategy = CiqVariationalStrategy(model, data.x[:NUM_INDUCING].clone(), new_distribution())
    model(data.x, context=(data.x, data.y))


def try_nearest_neighbors(data: Data, steps: int) -> None:
    """GPyTorch's strategy with our distribution."""
    NNVariationalStrategy(new_model(data), data.x, new_distribution(), k=8)


def try_natural_gradients(data: Data, steps: int) -> None:
    """GPyTorch's optimizer for q(u)."""
    gpytorch.optim.NGD(new_model(data).variational_parameters(), num_data=len(data.x), lr=0.1)


def try_non_gaussian(data: Data, steps: int) -> Outcome:
    """The kernel as GPyTorch makes it, and the notebook's learning rate."""
    model = non_gaussian.Model(data.x)
    model.covar_module = ScaleKernel(RBFKernel())
    return non_gaussian.train(model, data, steps, learning_rate=0.1)


def try_task_indices(data: Data, steps: int) -> None:
    """The outputs as they are in the context: one for each point."""
    task_indices.Model()(data.x, context=(data.x, data.y), task_indices=data.output)


def try_deep_gp(data: Data, steps: int) -> None:
    """The hidden layer without `x_has_latents=True`."""
    layer = deep_gp.HiddenLayer(data.x.shape[-1], 3, NUM_INDUCING)
    layer.variational_strategy.x_has_latents = False
    layer(data.x, context=(data.x, data.y))


def try_cox_process(data: Data, steps: int) -> None:
    """The events as they are for a context."""
    model = cox_process.Model(len(data.x), data.x_test.max().item())
    model(data.x, context=data.x)


ATTEMPTS: dict[str, Callable[[Data, int], Outcome | None]] = {
    "task_indices": try_task_indices,
    "non_gaussian": try_non_gaussian,
    "orthogonally_decoupled": try_orthogonally_decoupled,
    "batch_decoupled": try_batch_decoupled,
    "natural_gradients": try_natural_gradients,
    "polya_gamma": try_natural_gradients,
    "contour_integrals": try_contour_integrals,
    "nearest_neighbors": try_nearest_neighbors,
    "deep_gp": try_deep_gp,
    "cox_process": try_cox_process,
}
