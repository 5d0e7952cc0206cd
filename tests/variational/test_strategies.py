"""Each strategy by its name: what all of them promise is in `strategy_case.py`."""

from __future__ import annotations

import gpytorch
import torch
from strategy_case import StrategyCase, upstream_cases

from gpytorch_sgpvae import (
    AmortizedVariationalStrategy,
    DenseAmortizedVariationalStrategy,
    DenseJointAmortizedVariationalStrategy,
    InducingSitesVariationalStrategy,
    JointAmortizedVariationalStrategy,
    JointFactorNet,
    PairNet,
)
from gpytorch_sgpvae.variational.amortized_strategy import AmortizedStrategy
from gpytorch_sgpvae.variational.joint_strategy import JointStrategy
from gpytorch_sgpvae.variational.pointwise_strategy import PointwiseStrategy


class TestSparse(StrategyCase):
    def create_strategy(self, model, variational_distribution, **kwargs):
        return AmortizedVariationalStrategy(model, torch.rand(5, 2) * 3, variational_distribution, **kwargs)


class TestDense(StrategyCase):
    refuses = frozenset({"chunks", "update", "state_dict"})
    num_choleskies = 1

    def create_strategy(self, model, variational_distribution, **kwargs):
        return DenseAmortizedVariationalStrategy(model, variational_distribution, **kwargs)


class TestInducingSites(StrategyCase):
    refuses = frozenset({"refine"})
    lacks = frozenset({"other networks"})

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

    def create_strategy(self, model, variational_distribution, **kwargs):
        return DenseJointAmortizedVariationalStrategy(model, variational_distribution, **kwargs)


class TestDenseJointWithoutLoadings(TestDenseJoint):
    create_network = StrategyCase.create_network


def perturbed(network):
    """The network with corrections that are not zero."""
    with torch.no_grad():
        for parameter in (network.corrections.weights[-1], network.corrections.biases[-1]):
            parameter.normal_(0.0, 0.3)
    return network


CASES = (TestSparse, TestDense, TestInducingSites, TestPointwise, TestJoint, TestDenseJoint)
globals().update(upstream_cases(*CASES))


def test_every_strategy_is_tested():
    def subclasses(cls):
        return {cls}.union(*map(subclasses, cls.__subclasses__()))

    tested = {type(case().make().strategy) for case in CASES}
    package = {cls for cls in subclasses(AmortizedStrategy) if cls.__module__.startswith("gpytorch_sgpvae")}
    assert package - {AmortizedStrategy, JointStrategy} == tested
