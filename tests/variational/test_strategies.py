"""Each strategy by its name: what all of them promise is in `strategy_case.py`."""

from __future__ import annotations

import gpytorch
import torch
from strategy_case import StrategyCase, upstream_cases

from gpytorch_sgpvae import (
    AmortizedVariationalStrategy,
    DenseAmortizedVariationalStrategy,
    InducingSitesVariationalStrategy,
    PairNet,
)
from gpytorch_sgpvae.variational.amortized_strategy import AmortizedStrategy
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


CASES = (TestSparse, TestDense, TestInducingSites, TestPointwise)
globals().update(upstream_cases(*CASES))


def test_every_strategy_is_tested():
    def subclasses(cls):
        return {cls}.union(*map(subclasses, cls.__subclasses__()))

    tested = {type(case().make().strategy) for case in CASES}
    package = {cls for cls in subclasses(AmortizedStrategy) if cls.__module__.startswith("gpytorch_sgpvae")}
    assert package - {AmortizedStrategy} == tested
