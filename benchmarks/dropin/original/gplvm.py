"""Gaussian_Process_Latent_Variable_Models_with_Stochastic_Variational_Inference: inputs that are to be found."""

import torch
from gpytorch.distributions import MultivariateNormal
from gpytorch.kernels import RBFKernel, ScaleKernel
from gpytorch.likelihoods import GaussianLikelihood
from gpytorch.means import ZeroMean
from gpytorch.mlls import VariationalELBO
from gpytorch.models.gplvm import BayesianGPLVM, VariationalLatentVariable
from gpytorch.priors import NormalPrior
from gpytorch.variational import CholeskyVariationalDistribution, VariationalStrategy

from ..data import Data
from ..outcome import Outcome, score_kinds


class Model(BayesianGPLVM):
    def __init__(self, y, num_inducing=25, num_dims=2):
        outputs = torch.Size([y.shape[-1]])
        prior = NormalPrior(torch.zeros(len(y), num_dims), torch.ones(len(y), num_dims))
        start = torch.pca_lowrank(y, num_dims)[0] * len(y) ** 0.5
        latents = VariationalLatentVariable(
            len(y), y.shape[-1], num_dims, X_init=torch.nn.Parameter(start), prior_x=prior
        )
        inducing_points = torch.randn(*outputs, num_inducing, num_dims)
        q_u = CholeskyVariationalDistribution(num_inducing, batch_shape=outputs)
        super().__init__(latents, VariationalStrategy(self, inducing_points, q_u))
        self.mean_module = ZeroMean(batch_shape=outputs)
        self.covar_module = ScaleKernel(RBFKernel(ard_num_dims=num_dims))

    def forward(self, x):
        return MultivariateNormal(self.mean_module(x), self.covar_module(x))


def run(data: Data, steps: int, learning_rate: float = 0.01) -> Outcome:
    model, losses = Model(data.y), []
    likelihood = GaussianLikelihood(batch_shape=torch.Size([data.y.shape[-1]]))
    mll = VariationalELBO(likelihood, model, num_data=len(data.y))
    optimizer = torch.optim.Adam([*model.parameters(), *likelihood.parameters()], lr=learning_rate)
    for _ in range(steps):
        batch = torch.randint(len(data.y), (100,))
        optimizer.zero_grad()
        x = model.sample_latent_variable()
        loss = -mll(model(x[batch]), data.y[batch].T).sum()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return score_kinds(losses, model.X.q_mu.detach(), data.y_test)
