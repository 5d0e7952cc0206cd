"""SVGP_Multitask_GP_Regression: four outputs that mix three functions."""

import torch
from gpytorch.distributions import MultivariateNormal
from gpytorch.kernels import RBFKernel, ScaleKernel
from gpytorch.likelihoods import MultitaskGaussianLikelihood
from gpytorch.means import ConstantMean
from gpytorch.mlls import VariationalELBO
from gpytorch.models import ApproximateGP
from gpytorch.variational import (
    CholeskyVariationalDistribution,
    LMCVariationalStrategy,
    VariationalStrategy,
)

from ..data import Data
from ..outcome import Outcome, score_numbers


class Model(ApproximateGP):
    def __init__(self):
        functions = torch.Size([3])
        inducing_points = torch.rand(3, 16, 1)
        q_u = CholeskyVariationalDistribution(16, batch_shape=functions)
        strategy = VariationalStrategy(self, inducing_points, q_u)
        super().__init__(LMCVariationalStrategy(strategy, num_tasks=4, num_latents=3))
        self.mean_module = ConstantMean(batch_shape=functions)
        self.covar_module = ScaleKernel(RBFKernel(batch_shape=functions), batch_shape=functions)

    def forward(self, x):
        return MultivariateNormal(self.mean_module(x), self.covar_module(x))


def run(data: Data, steps: int, learning_rate: float = 0.1) -> Outcome:
    model, likelihood, losses = Model(), MultitaskGaussianLikelihood(num_tasks=4), []
    mll = VariationalELBO(likelihood, model, num_data=len(data.x))
    optimizer = torch.optim.Adam([*model.parameters(), *likelihood.parameters()], lr=learning_rate)
    for _ in range(steps):
        optimizer.zero_grad()
        loss = -mll(model(data.x), data.y)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    model.eval()
    likelihood.eval()
    with torch.no_grad():
        return score_numbers(losses, likelihood(model(data.x_test)), data.y_test)
