"""VNNGP: every point is an inducing point, and depends on its nearest neighbors alone."""

import torch
from gpytorch.distributions import MultivariateNormal
from gpytorch.kernels import RBFKernel, ScaleKernel
from gpytorch.likelihoods import GaussianLikelihood
from gpytorch.means import ConstantMean
from gpytorch.mlls import VariationalELBO
from gpytorch.models import ApproximateGP
from gpytorch.variational import MeanFieldVariationalDistribution, NNVariationalStrategy

from ..data import Data
from ..outcome import Outcome, score_numbers


class Model(ApproximateGP):
    def __init__(self, inducing_points):
        q_u = MeanFieldVariationalDistribution(len(inducing_points))
        super().__init__(NNVariationalStrategy(self, inducing_points, q_u, k=32, training_batch_size=64))
        self.mean_module = ConstantMean()
        self.covar_module = ScaleKernel(RBFKernel())

    def forward(self, x):
        return MultivariateNormal(self.mean_module(x), self.covar_module(x))

    def __call__(self, x, **kwargs):
        return self.variational_strategy(x=x, **kwargs)


def run(data: Data, steps: int, learning_rate: float = 0.01) -> Outcome:
    model, likelihood, losses = Model(data.x), GaussianLikelihood(), []
    mll = VariationalELBO(likelihood, model, num_data=len(data.x))
    optimizer = torch.optim.Adam([*model.parameters(), *likelihood.parameters()], lr=learning_rate)
    for _ in range(steps):
        optimizer.zero_grad()
        q_f = model(x=None)
        batch = model.variational_strategy.current_training_indices
        loss = -mll(q_f, data.y[batch])
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    model.eval()
    likelihood.eval()
    with torch.no_grad():
        return score_numbers(losses, likelihood(model(data.x_test)), data.y_test)
