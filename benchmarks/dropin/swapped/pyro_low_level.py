"""Pyro_GPyTorch_Low_Level: a model and a guide of one's own, for waiting times."""

import pyro
import torch
from gpytorch.distributions import MultivariateNormal
from gpytorch.kernels import RBFKernel, ScaleKernel
from gpytorch.means import ConstantMean
from gpytorch.models import ApproximateGP

from gpytorch_sgpvae import AmortizedVariationalDistribution, AmortizedVariationalStrategy, FactorNet, persist_context

from ..data import Data
from ..outcome import Outcome


class Model(ApproximateGP):
    def __init__(self, num_inducing=16):
        q_u = AmortizedVariationalDistribution(FactorNet(num_outputs=1, num_latents=None))
        super().__init__(AmortizedVariationalStrategy(self, torch.linspace(0, 1, num_inducing), q_u))
        self.mean_module = ConstantMean()
        self.covar_module = ScaleKernel(RBFKernel())

    def forward(self, x):
        return MultivariateNormal(self.mean_module(x), self.covar_module(x))

    def guide(self, x, y):
        f = self.pyro_guide(x)
        with pyro.plate("points", dim=-1):
            pyro.sample("f", f)

    def model(self, x, y):
        pyro.module("gp", self)
        f = self.pyro_model(x)
        with pyro.plate("points", dim=-1):
            rate = (-pyro.sample("f", f)).exp()
            return pyro.sample("y", pyro.distributions.Exponential(rate), obs=y)


def run(data: Data, steps: int, learning_rate: float = 0.05) -> Outcome:
    pyro.clear_param_store()
    model, losses = Model(), []
    persist_context(model, (data.x, data.y))
    elbo = pyro.infer.Trace_ELBO(num_particles=16, vectorize_particles=True, retain_graph=True)
    svi = pyro.infer.SVI(model.model, model.guide, pyro.optim.Adam({"lr": learning_rate}), elbo)
    for _ in range(steps):
        model.zero_grad()
        losses.append(svi.step(data.x, data.y) / len(data.x))
    model.eval()
    with torch.no_grad():
        rate = (-model(data.x_test).sample(torch.Size([256]))).exp()
        log_prob = torch.distributions.Exponential(rate).log_prob(data.y_test)
        log_prob = log_prob.logsumexp(0) - torch.tensor(256.0).log()
        return Outcome(losses, {"NLL": -log_prob.mean().item()})
