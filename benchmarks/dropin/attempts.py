"""The first thing that one would write, where that fails."""

from __future__ import annotations

import gpytorch
from gpytorch.variational import BatchDecoupledVariationalStrategy, CiqVariationalStrategy, NNVariationalStrategy

from gpytorch_sgpvae import AmortizedVariationalDistribution, FactorNet

from .data import Data
from .swapped import natural_gradients, orthogonally_decoupled, polya_gamma, svgp_regression

NUM_INDUCING = 20


def swapped_distribution() -> AmortizedVariationalDistribution:
    return AmortizedVariationalDistribution(FactorNet(num_outputs=1, num_latents=None))


def attempt_orthogonally_decoupled(data: Data) -> None:
    """With `context=` as everywhere else."""
    model = orthogonally_decoupled.Model(data.x[:NUM_INDUCING].clone(), data.x[NUM_INDUCING : 2 * NUM_INDUCING].clone())
    model(data.x, context=(data.x, data.y))


def attempt_batch_decoupled(data: Data) -> None:
    """With GPyTorch's strategy."""
    model = svgp_regression.Model(data.x[:NUM_INDUCING].clone())
    model.variational_strategy = BatchDecoupledVariationalStrategy(
        model, data.x[:NUM_INDUCING].clone(), swapped_distribution()
    )
    model(data.x, context=(data.x, data.y))


def attempt_contour_integrals(data: Data) -> None:
    """With GPyTorch's strategy."""
    model = svgp_regression.Model(data.x[:NUM_INDUCING].clone())
    model.variational_strategy = CiqVariationalStrategy(model, data.x[:NUM_INDUCING].clone(), swapped_distribution())
    model(data.x, context=(data.x, data.y))


def attempt_nearest_neighbors(data: Data) -> None:
    """With GPyTorch's strategy."""
    model = svgp_regression.Model(data.x[:NUM_INDUCING].clone())
    model.variational_strategy = NNVariationalStrategy(model, data.x, swapped_distribution(), k=8)


def attempt_natural_gradients(data: Data) -> None:
    """With GPyTorch's optimizer for q(u)."""
    model = natural_gradients.Model(data.x[:NUM_INDUCING].clone())
    gpytorch.optim.NGD(model.variational_parameters(), num_data=len(data.x), lr=0.1)


def attempt_polya_gamma(data: Data) -> None:
    """With GPyTorch's optimizer for q(u)."""
    model = polya_gamma.Model(data.x[:NUM_INDUCING].clone())
    gpytorch.optim.NGD(model.variational_parameters(), num_data=len(data.x), lr=0.1)
