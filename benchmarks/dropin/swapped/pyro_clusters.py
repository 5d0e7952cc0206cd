"""Clustered_Multitask_GP_Regression: each output follows one of two functions, and Pyro learns which."""

import pyro
import torch
from gpytorch.distributions import MultivariateNormal
from gpytorch.kernels import RBFKernel, ScaleKernel
from gpytorch.likelihoods import Likelihood
from gpytorch.means import ZeroMean
from gpytorch.models import PyroGP
from gpytorch.variational import IndependentMultitaskVariationalStrategy

from gpytorch_sgpvae import AmortizedVariationalDistribution, AmortizedVariationalStrategy, FactorNet, persist_context

from ..data import Data
from ..outcome import Outcome, score_numbers


class ClusterLikelihood(Likelihood):
    def __init__(self, num_outputs, num_clusters):
        super().__init__()
        self.register_buffer("prior_logits", torch.zeros(num_outputs, num_clusters))
        self.logits = torch.nn.Parameter(torch.randn(num_outputs, num_clusters))
        self.raw_noise = torch.nn.Parameter(torch.tensor(0.0))
        self.max_plate_nesting = 1

    def clusters(self, logits):
        return pyro.sample("clusters", pyro.distributions.OneHotCategorical(logits=logits).to_event(1))

    def pyro_guide(self, function_dist, target):
        self.clusters(self.logits)
        return super().pyro_guide(function_dist, target)

    def pyro_model(self, function_dist, target):
        return super().pyro_model(function_dist, target, clusters=self.clusters(self.prior_logits))

    def forward(self, function_samples, clusters):
        mean = (function_samples.unsqueeze(-2) * clusters).sum(-1)  # (..., N, P)
        return pyro.distributions.Normal(mean, torch.nn.functional.softplus(self.raw_noise).sqrt()).to_event(1)


class Model(PyroGP):
    def __init__(self, num_data, num_outputs, num_functions=2, num_inducing=16):
        q_u = AmortizedVariationalDistribution(FactorNet(num_outputs, num_functions))
        strategy = AmortizedVariationalStrategy(self, torch.linspace(0, 1, num_inducing).unsqueeze(-1), q_u)
        strategy = IndependentMultitaskVariationalStrategy(strategy, num_tasks=num_functions)
        likelihood = ClusterLikelihood(num_outputs, num_functions)
        super().__init__(strategy, likelihood, num_data=num_data, name_prefix="clustered")
        self.mean_module = ZeroMean()
        self.covar_module = ScaleKernel(RBFKernel())

    def forward(self, x):
        return MultivariateNormal(self.mean_module(x), self.covar_module(x))


def run(data: Data, steps: int, learning_rate: float = 0.05) -> Outcome:
    pyro.clear_param_store()
    model, losses = Model(len(data.x), data.y.shape[-1]), []
    persist_context(model, (data.x, data.y))
    elbo = pyro.infer.Trace_ELBO(num_particles=16, vectorize_particles=True, retain_graph=True)
    svi = pyro.infer.SVI(model.model, model.guide, pyro.optim.Adam({"lr": learning_rate}), elbo)
    for _ in range(steps):
        model.zero_grad()
        losses.append(svi.step(data.x, data.y) / len(data.x))
    model.eval()
    with torch.no_grad():
        f, noise = model(data.x_test), torch.nn.functional.softplus(model.likelihood.raw_noise)
        cluster = model.likelihood.logits.argmax(-1)  # (P,)
        variance = f.variance[:, cluster] + noise
        predicted = torch.distributions.Normal(f.mean[:, cluster], variance.sqrt())
        return score_numbers(losses, predicted, data.y_test)
