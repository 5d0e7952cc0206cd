"""Pyro_GPyTorch_High_Level: Pyro trains the model that GPyTorch makes of a GP and a likelihood."""

import pyro
import torch
from gpytorch.distributions import MultivariateNormal
from gpytorch.kernels import RBFKernel, ScaleKernel
from gpytorch.likelihoods import GaussianLikelihood
from gpytorch.means import ConstantMean
from gpytorch.models import PyroGP

from gpytorch_sgpvae import AmortizedVariationalDistribution, AmortizedVariationalStrategy, FactorNet, persist_context

from ..data import Data
from ..outcome import Outcome, score_numbers


class Model(PyroGP):
    def __init__(self, num_data, num_inducing=16):
        q_u = AmortizedVariationalDistribution(FactorNet(num_outputs=1, num_latents=None))
        strategy = AmortizedVariationalStrategy(self, torch.linspace(0, 1, num_inducing), q_u)
        super().__init__(strategy, GaussianLikelihood(), num_data=num_data, name_prefix="sine")
        self.mean_module = ConstantMean()
        self.covar_module = ScaleKernel(RBFKernel())

    def forward(self, x):
        return MultivariateNormal(self.mean_module(x), self.covar_module(x))


def run(data: Data, steps: int, learning_rate: float = 0.1) -> Outcome:
    pyro.clear_param_store()
    model, losses = Model(num_data=len(data.x)), []
    persist_context(model, (data.x, data.y))
    elbo = pyro.infer.Trace_ELBO(num_particles=16, vectorize_particles=True, retain_graph=True)
    svi = pyro.infer.SVI(model.model, model.guide, pyro.optim.Adam({"lr": learning_rate}), elbo)
    for _ in range(steps):
        model.zero_grad()
        losses.append(svi.step(data.x, data.y) / len(data.x))
    model.eval()
    with torch.no_grad():
        return score_numbers(losses, model.likelihood(model(data.x_test)), data.y_test)
