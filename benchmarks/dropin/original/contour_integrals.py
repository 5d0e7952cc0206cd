"""SVGP_CIQ: no Cholesky factors, but contour integral quadrature, with natural gradients and heavy tails."""

import gpytorch
import torch
from gpytorch.distributions import MultivariateNormal
from gpytorch.kernels import RBFKernel, ScaleKernel
from gpytorch.likelihoods import StudentTLikelihood
from gpytorch.means import ConstantMean
from gpytorch.mlls import VariationalELBO
from gpytorch.models import ApproximateGP
from gpytorch.variational import CiqVariationalStrategy, NaturalVariationalDistribution

from ..data import Data
from ..outcome import Outcome, score_means


class Model(ApproximateGP):
    def __init__(self, inducing_points):
        q_u = NaturalVariationalDistribution(len(inducing_points))
        super().__init__(CiqVariationalStrategy(self, inducing_points, q_u))
        self.mean_module = ConstantMean()
        self.covar_module = ScaleKernel(RBFKernel())

    def forward(self, x):
        return MultivariateNormal(self.mean_module(x), self.covar_module(x))


def run(data: Data, steps: int, learning_rate: float = 0.01) -> Outcome:
    model, likelihood, losses = Model(data.x[:64].clone()), StudentTLikelihood(), []
    mll = VariationalELBO(likelihood, model, num_data=len(data.x))
    natural = gpytorch.optim.NGD(model.variational_parameters(), num_data=len(data.x), lr=0.1)
    optimizer = torch.optim.Adam([*model.hyperparameters(), *likelihood.parameters()], lr=learning_rate)
    for _ in range(steps):
        batch = torch.randint(len(data.x), (250,))
        natural.zero_grad()
        optimizer.zero_grad()
        loss = -mll(model(data.x[batch]), data.y[batch])
        loss.backward()
        natural.step()
        optimizer.step()
        losses.append(loss.item())
    model.eval()
    likelihood.eval()
    with torch.no_grad():
        q_f = model(data.x_test)
        return score_means(losses, q_f.mean, likelihood.log_marginal(data.y_test, q_f), data.y_test)
