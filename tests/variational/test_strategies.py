"""Each strategy by its name: what all of them promise is in `strategy_case.py`."""

from __future__ import annotations

import gpytorch
import helpers
import pytest
import torch
from gpytorch.kernels import ScaleKernel
from gpytorch.variational import IndependentMultitaskVariationalStrategy, LMCVariationalStrategy
from strategy_case import StrategyCase

from gpytorch_sgpvae import (
    AmortizedVariationalStrategy,
    DenseAmortizedVariationalStrategy,
    DenseJointAmortizedVariationalStrategy,
    GaussianSites,
    InducingSitesVariationalStrategy,
    JointAmortizedVariationalStrategy,
    JointFactorNet,
    MarkovAmortizedVariationalStrategy,
    PairNet,
    condition,
    refine,
)
from gpytorch_sgpvae.variational.amortized_strategy import AmortizedStrategy
from gpytorch_sgpvae.variational.joint_strategy import JointStrategy
from gpytorch_sgpvae.variational.pointwise_strategy import PointwiseStrategy


class TestSparse(StrategyCase):
    has_inducing_points = True

    def create_strategy(self, model, variational_distribution, **kwargs):
        return AmortizedVariationalStrategy(model, torch.rand(5, 2) * 3, variational_distribution, **kwargs)


class TestDense(StrategyCase):
    refuses = frozenset({"chunks", "state_dict"})
    num_choleskies = 1

    def create_strategy(self, model, variational_distribution, **kwargs):
        return DenseAmortizedVariationalStrategy(model, variational_distribution, **kwargs)


class TestInducingSites(StrategyCase):
    refuses = frozenset({"refine"})
    lacks = frozenset({"other networks"})
    has_inducing_points = True
    shares_inducing_points = True

    def create_strategy(self, model, variational_distribution, **kwargs):
        return InducingSitesVariationalStrategy(model, torch.rand(5, 2) * 3, variational_distribution, **kwargs)

    def create_network(self, num_outputs, num_latents, activation=torch.nn.Tanh):
        return PairNet(num_outputs, num_latents, (8,), activation, input_dim=2)


class Delta(gpytorch.kernels.Kernel):
    """The kernel that the pointwise strategy stands for: any two inputs that differ are independent."""

    def forward(self, x1, x2, diag=False, **params):
        same = x1 == x2 if diag else x1.unsqueeze(-2) == x2.unsqueeze(-3)
        return same.all(-1).to(x1.dtype)


class TestPointwise(StrategyCase):
    refuses = frozenset({"chunks", "update", "state_dict"})
    lacks = frozenset({"x_has_latents"})
    num_choleskies = 0

    def create_strategy(self, model, variational_distribution, **kwargs):
        return PointwiseStrategy(model, variational_distribution, **kwargs)

    def create_prior(self, latents):
        return gpytorch.means.ZeroMean(), Delta(batch_shape=latents)


class TestJoint(TestSparse):
    is_joint = True

    def create_strategy(self, model, variational_distribution, **kwargs):
        return JointAmortizedVariationalStrategy(model, torch.rand(5, 2) * 3, variational_distribution, **kwargs)

    def create_network(self, num_outputs, num_latents, activation=torch.nn.Tanh):
        if num_latents is None:
            return super().create_network(num_outputs, num_latents, activation)
        return perturbed(JointFactorNet(num_outputs, num_latents, (8,), activation))


class TestJointWithoutLoadings(TestJoint):
    create_network = StrategyCase.create_network


class TestDenseJoint(TestJoint):
    refuses = frozenset({"chunks"})
    num_choleskies = 1
    has_inducing_points = False

    def create_strategy(self, model, variational_distribution, **kwargs):
        return DenseJointAmortizedVariationalStrategy(model, variational_distribution, **kwargs)


class TestDenseJointWithoutLoadings(TestDenseJoint):
    create_network = StrategyCase.create_network


class OneOwnFunction(JointFactorNet):
    """A network whose last latent function is private to the first output."""

    def forward(self, context):
        sites = super().forward(context)
        mask = torch.ones_like(sites.loadings)
        mask[1:, -1] = 0
        owners = (*[-1] * (self.num_latents - 1), 0)
        return GaussianSites(sites.precision_mean, sites.precision, sites.loadings * mask, owners)


class TestDenseJointWithPrivateFunctions(TestDenseJoint):
    def create_network(self, num_outputs, num_latents, activation=torch.nn.Tanh):
        if num_latents is None:
            return super().create_network(num_outputs, num_latents, activation)
        return perturbed(OneOwnFunction(num_outputs, num_latents, (8,), activation))


class TestMarkov(TestJoint):
    refuses = frozenset({"chunks", "dense forward"})
    num_choleskies = 0
    has_inducing_points = False

    def create_strategy(self, model, variational_distribution, **kwargs):
        return MarkovAmortizedVariationalStrategy(model, variational_distribution, **kwargs)

    def create_prior(self, latents):
        # the first column of the inputs is time
        matern = gpytorch.kernels.MaternKernel(nu=1.5, batch_shape=latents, active_dims=(0,))
        return gpytorch.means.ConstantMean(batch_shape=latents), ScaleKernel(matern, batch_shape=latents)


class TestMarkovWithoutLoadings(TestMarkov):
    create_network = StrategyCase.create_network


def perturbed(network):
    """The network with corrections that are not zero."""
    with torch.no_grad():
        for parameter in (network.corrections.weights[-1], network.corrections.biases[-1]):
            parameter.normal_(0.0, 0.3)
    return network


@pytest.mark.parametrize("case", [TestJoint, TestDenseJoint, TestMarkov])
@pytest.mark.parametrize(
    "wrapper",
    [
        lambda strategy: IndependentMultitaskVariationalStrategy(strategy, num_tasks=2),
        lambda strategy: LMCVariationalStrategy(strategy, num_tasks=3, num_latents=2).double(),
    ],
    ids=["IndependentMultitask", "LMC"],
)
def test_a_joint_strategy_in_a_wrapper_is_an_error_that_says_that_none_is_needed(case, wrapper):
    model = case().make()
    model.variational_strategy = wrapper(model.variational_strategy)
    x, y = helpers.make_data()
    for arguments in ({"context": (x, y)}, {"prior": True}):
        with pytest.raises(TypeError, match=r"needs no wrapper.*MultitaskVariationalStrategy|needs no wrapper.*LMC"):
            model(x, **arguments)


class TestSitesWithLoadings:
    """Strategies of independent latent functions refuse them, also where their shapes would fit."""

    @pytest.mark.parametrize("case", [TestSparse, TestDense, TestPointwise])
    @pytest.mark.parametrize("num_outputs", [3, 2], ids=["J>K", "J=K"])
    def test_are_refused_by_an_error_that_names_the_joint_strategies(self, case, num_outputs):
        network = JointFactorNet(num_outputs, 2)
        model = case().make(num_outputs, network=network)
        x, y = helpers.make_data(num_outputs=num_outputs)
        message = r"JointFactorNet have loadings.*JointAmortizedVariationalStrategy.*DenseJoint"
        with pytest.raises(TypeError, match=message):
            model(x, context=(x, y))
        with pytest.raises(TypeError, match=message):
            condition(model, (x, y))
        with pytest.raises(TypeError, match=message):
            refine(model, (x, y), likelihood=helpers.make_likelihood(num_outputs))
        if "chunks" not in case.refuses:
            with pytest.raises(TypeError, match=message):
                condition(model, (x, y), chunk_size=5)

    @pytest.mark.parametrize("case", [TestSparse, TestDense])
    def test_are_refused_when_they_are_given_by_hand(self, case):
        model, data = case().make(), helpers.make_data()
        sites = GaussianSites(torch.zeros(2, 12).double(), torch.ones(2, 12).double(), torch.eye(2).double())
        with pytest.raises(TypeError, match="loadings"):
            model.strategy.encode(data, sites)


CASES = (TestSparse, TestDense, TestInducingSites, TestPointwise, TestJoint, TestDenseJoint, TestMarkov)


def test_every_strategy_is_tested():
    def subclasses(cls):
        return {cls}.union(*map(subclasses, cls.__subclasses__()))

    tested = {type(case().make().strategy) for case in CASES}
    package = {cls for cls in subclasses(AmortizedStrategy) if cls.__module__.startswith("gpytorch_sgpvae")}
    assert package - {AmortizedStrategy, JointStrategy} == tested
