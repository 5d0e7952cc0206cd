"""PolyaGamma_Binary_Classification: a bound in closed form, and natural gradients."""

import torch
from gpytorch.distributions import MultivariateNormal
from gpytorch.kernels import RBFKernel, ScaleKernel
from gpytorch.likelihoods.likelihood import _OneDimensionalLikelihood
from gpytorch.means import ConstantMean
from gpytorch.mlls import VariationalELBO
from gpytorch.models import ApproximateGP

from gpytorch_sgpvae import AmortizedVariationalDistribution, AmortizedVariationalStrategy, FactorNet

from ..data import Data
from ..outcome import Outcome, score_labels


class PolyaGammaLikelihood(_OneDimensionalLikelihood):
    def expected_log_prob(self, target, function_dist, *args, **kwargs):
        mean, second_moment = function_dist.mean, function_dist.variance + function_dist.mean.square()
        c = second_moment.detach().sqrt()  # the best parameter of the auxiliary variables, known in closed form
        log_constant = -torch.nn.functional.softplus(c) + c / 2 + c * torch.tanh(c / 2) / 4
        return (target - 0.5) * mean - torch.tanh(c / 2) / (4 * c) * second_moment + log_constant

    def forward(self, function_samples):
        return torch.distributions.Bernoulli(logits=function_samples)

    def marginal(self, function_dist):
        return torch.distributions.Bernoulli(probs=self.quadrature(torch.sigmoid, function_dist))


class Model(ApproximateGP):
    def __init__(self, inducing_points):
        q_u = AmortizedVariationalDistribution(FactorNet(num_outputs=1, num_latents=None))
        super().__init__(AmortizedVariationalStrategy(self, inducing_points, q_u))
        self.mean_module = ConstantMean()
        self.covar_module = ScaleKernel(RBFKernel())

    def forward(self, x):
        return MultivariateNormal(self.mean_module(x), self.covar_module(x))


def run(data: Data, steps: int, learning_rate: float = 0.01) -> Outcome:
    model, likelihood, losses = Model(torch.linspace(-2, 1, 30)), PolyaGammaLikelihood(), []
    mll = VariationalELBO(likelihood, model, num_data=len(data.x))
    optimizer = torch.optim.Adam([*model.parameters(), *likelihood.parameters()], lr=learning_rate)
    for _ in range(steps):
        optimizer.zero_grad()
        loss = -mll(model(data.x, context=(data.x, data.y)), data.y)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    model.eval()
    likelihood.eval()
    with torch.no_grad():
        return score_labels(losses, likelihood(model(data.x_test, context=(data.x, data.y))).probs, data.y_test)
