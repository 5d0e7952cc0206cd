"""GPyTorch's own test case for variational strategies."""

from __future__ import annotations

import unittest

import gpytorch
import helpers
import torch
from gpytorch.mlls import GammaRobustVariationalELBO, PredictiveLogLikelihood, VariationalELBO
from gpytorch.test.variational_test_case import VariationalTestCase

from gpytorch_sgpvae import (
    AmortizedVariationalStrategy,
    FactorNet,
)


class _UpstreamCase(VariationalTestCase):
    """
    GPyTorch's own test case. What it lacks is a context: the training data in training, new data afterwards. The batch
    shape of the model, upstream a property of the free-form q(u), is that of the outputs here.
    """

    batch_shape = torch.Size([])
    distribution_cls = None
    strategy_cls = AmortizedVariationalStrategy

    def _make_model_and_likelihood(
        self,
        num_inducing=16,
        batch_shape=torch.Size([]),  # noqa: B008
        inducing_batch_shape=torch.Size([]),  # noqa: B008
        strategy_cls=None,
        distribution_cls=None,
        constant_mean=True,
    ):
        inducing_points = torch.randn(num_inducing, 2).repeat(*inducing_batch_shape, 1, 1)
        mean = gpytorch.means.ConstantMean() if constant_mean else gpytorch.means.ZeroMean()
        if constant_mean:
            mean.initialize(constant=1.0)
        model = helpers.Model(inducing_points, FactorNet(1, None), mean=mean)
        model.outputs_batch_shape = batch_shape
        return model, self.likelihood_cls()

    def _data(self, model, batch_shape):
        x = torch.randn(*batch_shape, 32, 2).clamp(-2.5, 2.5)
        return x, torch.linspace(-1, 1, 32).expand(*model.outputs_batch_shape, 32)

    def _training_iter(self, model, likelihood, batch_shape=None, mll_cls=VariationalELBO, cuda=False):
        x, y = self._data(model, batch_shape)
        mll = mll_cls(likelihood, model, num_data=32)
        model.train()
        likelihood.train()
        output = model(x, context=(x, y))
        loss = -mll(output, y)
        loss.sum().backward()
        for parameter in (*model.parameters(), *likelihood.parameters()):
            self.assertTrue(parameter.grad is not None)
            self.assertGreater(parameter.grad.norm().item(), 0)
        return output, loss

    def _eval_iter(self, model, batch_shape=None, cuda=False):
        x, y = self._data(model, batch_shape)
        model.eval()
        with torch.no_grad():
            return model(x, context=(x, y))

    def test_eval_iteration(self, *args, **kwargs):
        cg, cholesky, ciq = super().test_eval_iteration(*args, **kwargs)
        self.assertFalse(cg.called)
        self.assertEqual(cholesky.call_count, 4)  # K_uu and B, in each of the two calls
        self.assertFalse(ciq.called)

    def test_training_iteration(self, *args, **kwargs):
        cg, cholesky, ciq = super().test_training_iteration(*args, **kwargs)
        self.assertFalse(cg.called)
        self.assertEqual(cholesky.call_count, 4)
        self.assertFalse(ciq.called)

    def test_fantasy_call(self, *args, **kwargs):
        """The one thing left out, as conditioning on new data needs no second model here."""
        model, _ = self._make_model_and_likelihood()
        with self.assertRaisesRegex(NotImplementedError, r"condition\(model"):
            model.get_fantasy_model(torch.randn(10, 2), torch.randn(10))


class TestVariationalELBO(_UpstreamCase, unittest.TestCase):
    mll_cls = VariationalELBO


class TestPredictiveLogLikelihood(_UpstreamCase, unittest.TestCase):
    mll_cls = PredictiveLogLikelihood


class TestGammaRobustVariationalELBO(_UpstreamCase, unittest.TestCase):
    mll_cls = GammaRobustVariationalELBO


del _UpstreamCase
