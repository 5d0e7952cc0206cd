"""Cox_Process_Example: events whose rate is exp(f); a guide reads the events, and a grid for the integral."""

import pyro
import torch
from gpytorch.distributions import MultivariateNormal
from gpytorch.kernels import RBFKernel, ScaleKernel
from gpytorch.means import ConstantMean
from gpytorch.models import ApproximateGP
from gpytorch.variational import CholeskyVariationalDistribution, VariationalStrategy

from ..data import Data
from ..outcome import Outcome


class Model(ApproximateGP):
    def __init__(self, num_events, duration, num_inducing=32):
        q_u = CholeskyVariationalDistribution(num_inducing)
        super().__init__(VariationalStrategy(self, torch.linspace(0, duration, num_inducing), q_u))
        self.mean_module = ConstantMean()
        self.covar_module = ScaleKernel(RBFKernel())
        self.duration, self.mean_rate = duration, num_events / duration

    def forward(self, x):
        return MultivariateNormal(self.mean_module(x), self.covar_module(x))

    def guide(self, events, grid):
        f = self.pyro_guide(torch.cat([events, grid]))
        with pyro.plate("times", dim=-1):
            pyro.sample("f", f)

    def model(self, events, grid):
        pyro.module("gp", self)
        f = self.pyro_model(torch.cat([events, grid]))
        with pyro.plate("times", dim=-1):
            rate = pyro.sample("f", f).exp() * self.mean_rate
        of_events, of_grid = rate.split([len(events), len(grid)], -1)
        log_likelihood = of_events.log().sum(-1, keepdim=True) - of_grid.mean(-1, keepdim=True) * self.duration
        pyro.factor("events", log_likelihood.squeeze(-1))


def run(data: Data, steps: int, learning_rate: float = 0.05) -> Outcome:
    pyro.clear_param_store()
    duration = data.x_test.max().item()
    model, grid, losses = Model(len(data.x), duration), torch.linspace(0, duration, 64), []
    elbo = pyro.infer.Trace_ELBO(num_particles=16, vectorize_particles=True, retain_graph=True)
    svi = pyro.infer.SVI(model.model, model.guide, pyro.optim.Adam({"lr": learning_rate}), elbo)
    for _ in range(steps):
        model.zero_grad()
        losses.append(svi.step(data.x, grid) / len(data.x))
    model.eval()
    with torch.no_grad():
        rate = model(data.x_test).sample(torch.Size([256])).exp().mean(0) * model.mean_rate
        return Outcome(losses, {"RMSE of the rate": (rate - data.y_test).square().mean().sqrt().item()})
