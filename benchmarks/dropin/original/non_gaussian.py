"""Non_Gaussian_Likelihoods: the labels of ten points."""

import torch
from gpytorch.distributions import MultivariateNormal
from gpytorch.kernels import RBFKernel, ScaleKernel
from gpytorch.likelihoods import BernoulliLikelihood
from gpytorch.means import ConstantMean
from gpytorch.mlls import VariationalELBO
from gpytorch.models import ApproximateGP
from gpytorch.variational import CholeskyVariationalDistribution, UnwhitenedVariationalStrategy

from ..data import Data
from ..outcome import Outcome, score_labels


class Model(ApproximateGP):
    def __init__(self, inducing_points):
        q_u = CholeskyVariationalDistribution(len(inducing_points))
        strategy = UnwhitenedVariationalStrategy(self, inducing_points, q_u, learn_inducing_locations=False)
        super().__init__(strategy)
        self.mean_module = ConstantMean()
        self.covar_module = ScaleKernel(RBFKernel())

    def forward(self, x):
        return MultivariateNormal(self.mean_module(x), self.covar_module(x))


def run(data: Data, steps: int, learning_rate: float = 0.1) -> Outcome:
    return train(Model(data.x), data, steps, learning_rate)


def train(model: Model, data: Data, steps: int, learning_rate: float) -> Outcome:
    likelihood, losses = BernoulliLikelihood(), []
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
        return score_labels(losses, likelihood(model(data.x_test)).mean, data.y_test)
