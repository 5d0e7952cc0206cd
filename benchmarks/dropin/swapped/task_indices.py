"""SVGP_Multitask_GP_Regression: four outputs that mix three functions; each point has measured one of them."""

import torch
from gpytorch.distributions import MultivariateNormal
from gpytorch.kernels import RBFKernel, ScaleKernel
from gpytorch.likelihoods import GaussianLikelihood
from gpytorch.means import ConstantMean
from gpytorch.mlls import VariationalELBO
from gpytorch.models import ApproximateGP
from gpytorch.variational import LMCVariationalStrategy

from gpytorch_sgpvae import AmortizedVariationalDistribution, AmortizedVariationalStrategy, FactorNet

from ..data import Data
from ..outcome import Outcome, score_numbers


class Model(ApproximateGP):
    def __init__(self):
        functions = torch.Size([3])
        inducing_points = torch.rand(3, 16, 1)
        q_u = AmortizedVariationalDistribution(FactorNet(num_outputs=4, num_latents=3))
        strategy = AmortizedVariationalStrategy(self, inducing_points, q_u)
        super().__init__(LMCVariationalStrategy(strategy, num_tasks=4, num_latents=3))
        self.mean_module = ConstantMean(batch_shape=functions)
        self.covar_module = ScaleKernel(RBFKernel(batch_shape=functions), batch_shape=functions)

    def forward(self, x):
        return MultivariateNormal(self.mean_module(x), self.covar_module(x))


def run(data: Data, steps: int, learning_rate: float = 0.1) -> Outcome:
    model, likelihood, losses = Model(), GaussianLikelihood(), []
    mll = VariationalELBO(likelihood, model, num_data=len(data.x))
    optimizer = torch.optim.Adam([*model.parameters(), *likelihood.parameters()], lr=learning_rate)
    columns = torch.nn.functional.one_hot(data.output, 4).bool()
    context = data.x, torch.where(columns, data.y.unsqueeze(-1), torch.nan)
    for _ in range(steps):
        optimizer.zero_grad()
        loss = -mll(model(data.x, context=context, task_indices=data.output), data.y)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    model.eval()
    likelihood.eval()
    with torch.no_grad():
        q_f = model(data.x_test, context=context, task_indices=data.output_test)
        return score_numbers(losses, likelihood(q_f), data.y_test)
