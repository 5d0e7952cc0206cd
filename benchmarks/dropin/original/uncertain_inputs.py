"""GP_Regression_with_Uncertain_Inputs: each step draws the inputs anew."""

import torch
from gpytorch.distributions import MultivariateNormal
from gpytorch.kernels import RBFKernel, ScaleKernel
from gpytorch.likelihoods import GaussianLikelihood
from gpytorch.means import ConstantMean
from gpytorch.mlls import VariationalELBO
from gpytorch.models import ApproximateGP
from gpytorch.variational import CholeskyVariationalDistribution, VariationalStrategy

from ..data import Data
from ..outcome import Outcome, score_numbers


class Model(ApproximateGP):
    def __init__(self, inducing_points):
        q_u = CholeskyVariationalDistribution(len(inducing_points))
        super().__init__(VariationalStrategy(self, inducing_points, q_u))
        self.mean_module = ConstantMean()
        self.covar_module = ScaleKernel(RBFKernel())

    def forward(self, x):
        return MultivariateNormal(self.mean_module(x), self.covar_module(x))


def run(data: Data, steps: int, learning_rate: float = 0.01) -> Outcome:
    model, likelihood, losses = Model(torch.linspace(0, 1, 10)), GaussianLikelihood(), []
    mll = VariationalELBO(likelihood, model, num_data=len(data.x))
    optimizer = torch.optim.Adam([*model.parameters(), *likelihood.parameters()], lr=learning_rate)
    for _ in range(steps):
        x = torch.normal(data.x, data.x_stddev)
        optimizer.zero_grad()
        loss = -mll(model(x), data.y)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    model.eval()
    likelihood.eval()
    with torch.no_grad():
        return score_numbers(losses, likelihood(model(data.x_test)), data.y_test)
