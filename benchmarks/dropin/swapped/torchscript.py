"""TorchScript_Variational_Models: a trained model as a script."""

import gpytorch
import torch
from gpytorch.distributions import MultivariateNormal
from gpytorch.kernels import RBFKernel, ScaleKernel
from gpytorch.likelihoods import GaussianLikelihood
from gpytorch.means import ConstantMean
from gpytorch.mlls import VariationalELBO
from gpytorch.models import ApproximateGP
from linear_operator.operators import DiagLinearOperator

from gpytorch_sgpvae import AmortizedVariationalDistribution, AmortizedVariationalStrategy, FactorNet, persist_context

from ..data import Data
from ..outcome import Outcome, score_numbers


class MeanAndVariance(torch.nn.Module):
    def __init__(self, model):
        super().__init__()
        self.model = model

    def forward(self, x):
        q_f = self.model(x)
        return q_f.mean, q_f.variance


class Model(ApproximateGP):
    def __init__(self, inducing_points):
        q_u = AmortizedVariationalDistribution(FactorNet(num_outputs=1, num_latents=None))
        super().__init__(AmortizedVariationalStrategy(self, inducing_points, q_u))
        self.mean_module = ConstantMean()
        self.covar_module = ScaleKernel(RBFKernel())

    def forward(self, x):
        return MultivariateNormal(self.mean_module(x), self.covar_module(x))


def run(data: Data, steps: int, learning_rate: float = 0.01) -> Outcome:
    model, likelihood, losses = Model(data.x[:64].clone()), GaussianLikelihood(), []
    mll = VariationalELBO(likelihood, model, num_data=len(data.x))
    optimizer = torch.optim.Adam([*model.parameters(), *likelihood.parameters()], lr=learning_rate)
    for _ in range(steps):
        batch = torch.randint(len(data.x), (250,))
        optimizer.zero_grad()
        loss = -mll(model(data.x[batch], context=(data.x, data.y)), data.y[batch])
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    model.eval()
    likelihood.eval()
    with torch.no_grad():
        persist_context(model, (data.x, data.y))
        wrapped = MeanAndVariance(model)
        with gpytorch.settings.trace_mode():
            wrapped(data.x_test[:10])  # which fills the caches
            traced = torch.jit.trace(wrapped, data.x_test[:10])
        mean, variance = traced(data.x_test)
        q_f = MultivariateNormal(mean, DiagLinearOperator(variance))
        return score_numbers(losses, likelihood(q_f), data.y_test)
