"""Deep_Gaussian_Processes: two layers."""

import gpytorch
import torch
from gpytorch.distributions import MultivariateNormal
from gpytorch.kernels import RBFKernel, ScaleKernel
from gpytorch.likelihoods import GaussianLikelihood
from gpytorch.means import ConstantMean, LinearMean
from gpytorch.mlls import DeepApproximateMLL, VariationalELBO
from gpytorch.models.deep_gps import DeepGP, DeepGPLayer
from gpytorch.variational import CholeskyVariationalDistribution, VariationalStrategy

from ..data import Data
from ..outcome import Outcome, score_numbers


class Layer(DeepGPLayer):
    def forward(self, x):
        return MultivariateNormal(self.mean_module(x), self.covar_module(x))


class HiddenLayer(Layer):
    def __init__(self, input_dims, output_dims, num_inducing=64):
        functions = torch.Size([output_dims])
        inducing_points = torch.randn(output_dims, num_inducing, input_dims)
        q_u = CholeskyVariationalDistribution(num_inducing, batch_shape=functions)
        super().__init__(VariationalStrategy(self, inducing_points, q_u), input_dims, output_dims)
        self.mean_module = LinearMean(input_dims)
        self.covar_module = ScaleKernel(
            RBFKernel(batch_shape=functions, ard_num_dims=input_dims), batch_shape=functions
        )


class LastLayer(Layer):
    def __init__(self, input_dims, num_inducing=64):
        q_u = CholeskyVariationalDistribution(num_inducing)
        super().__init__(VariationalStrategy(self, torch.randn(num_inducing, input_dims), q_u), input_dims, None)
        self.mean_module = ConstantMean()
        self.covar_module = ScaleKernel(RBFKernel(ard_num_dims=input_dims))


class Deep(DeepGP):
    def __init__(self, input_dims, hidden_dims=3):
        super().__init__()
        self.hidden = HiddenLayer(input_dims, hidden_dims)
        self.last = LastLayer(hidden_dims)

    def forward(self, x):
        return self.last(self.hidden(x))


def run(data: Data, steps: int, learning_rate: float = 0.01) -> Outcome:
    model, likelihood, losses = Deep(data.x.shape[-1]), GaussianLikelihood(), []
    mll = DeepApproximateMLL(VariationalELBO(likelihood, model, num_data=len(data.x)))
    optimizer = torch.optim.Adam([*model.parameters(), *likelihood.parameters()], lr=learning_rate)
    with gpytorch.settings.num_likelihood_samples(10):
        for _ in range(steps):
            batch = torch.randint(len(data.x), (250,))
            optimizer.zero_grad()
            loss = -mll(model(data.x[batch]), data.y[batch])
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
        model.eval()
        likelihood.eval()
        with torch.no_grad():
            return score_numbers(losses, likelihood(model(data.x_test)), data.y_test)
