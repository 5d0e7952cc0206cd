"""
What GPyTorch's own tests of variational strategies check (`test/variational/` of its repository, which its wheel
lacks), as a case of ours: the shipped :class:`VariationalTestCase`, in the situations and wrappers of those files.
"""

from __future__ import annotations

import gpytorch
import torch
from gpytorch.distributions import MultivariateNormal
from gpytorch.likelihoods import GaussianLikelihood, MultitaskGaussianLikelihood
from gpytorch.mlls import GammaRobustVariationalELBO, PredictiveLogLikelihood, VariationalELBO
from gpytorch.test.variational_test_case import VariationalTestCase
from gpytorch.variational import IndependentMultitaskVariationalStrategy, LMCVariationalStrategy
from strategy_case import StrategyCase

from gpytorch_sgpvae import AmortizedVariationalDistribution, condition, persist_context

OBJECTIVES = (VariationalELBO, PredictiveLogLikelihood, GammaRobustVariationalELBO)
SITUATIONS = sorted(
    {name for name in dir(VariationalTestCase) if name.startswith("test_")} | {"test_forward_train_eval"}
)
# Those that a training objective has no part in are tried with one of them.
WITHOUT_OBJECTIVE = ("test_fantasy", "test_forward")
# The latent functions and the outputs of a model, and what makes the ones into the others.
WRAPPERS = {
    "none": (None, 1, lambda strategy: strategy),
    "IndependentMultitask": (2, 2, lambda strategy: IndependentMultitaskVariationalStrategy(strategy, num_tasks=2)),
    "LMC": (3, 4, lambda strategy: LMCVariationalStrategy(strategy, num_tasks=4, num_latents=3, latent_dim=-1)),
    "joint": (3, 3, lambda strategy: strategy),
}


class UpstreamModel(gpytorch.models.ApproximateGP):
    """Upstream's own model, around any of our strategies."""

    def __init__(self, case: StrategyCase, wrapper: str, inducing_points: torch.Tensor, constant_mean: bool):
        num_latents, num_outputs, wrap = WRAPPERS[wrapper]
        q_u = AmortizedVariationalDistribution(case.create_network(num_outputs, num_latents))
        kwargs = {} if num_latents is None or "x_has_latents" in case.lacks else {"x_has_latents": True}
        strategy = case.create_strategy(self, q_u, **kwargs)
        if case.has_inducing_points:
            is_shared = case.shares_inducing_points and inducing_points.dim() == 2 + (num_latents is not None)
            strategy.set_inducing_points(inducing_points.reshape(-1, 2)[:16] if is_shared else inducing_points)
        super().__init__(wrap(strategy))
        self.mean_module, self.covar_module = case.create_prior(torch.Size([]))
        if not constant_mean:
            self.mean_module = gpytorch.means.ZeroMean()
        elif any(True for _ in self.mean_module.parameters()):
            self.mean_module.initialize(constant=1.0)

    def forward(self, x):
        return MultivariateNormal(self.mean_module(x), self.covar_module(x))


class UpstreamCase(VariationalTestCase):
    """
    GPyTorch's case with a context: the training data in training, new data afterwards. The batch shape of a model,
    upstream a property of the free-form q(u), is that of the context's outputs here. Inputs have a dimension of latent
    functions, as upstream's do, and contexts have none.
    """

    distribution_cls = None
    strategy_cls = None
    mll_cls = None
    batch_shape = event_shape = torch.Size([])

    def __init__(self, case: StrategyCase, wrapper: str, mll_cls: type):
        self.case, self.wrapper, self.mll_cls = case, wrapper, mll_cls
        self.num_latents, self.num_outputs, _ = WRAPPERS[wrapper]
        self.batch_shape = torch.Size([] if self.num_latents is None else [self.num_latents])
        self.event_shape = torch.Size([32] if self.num_latents is None else [32, self.num_outputs])

    def likelihood_cls(self):
        return GaussianLikelihood() if self.num_latents is None else MultitaskGaussianLikelihood(self.num_outputs)

    def setUp(self):
        torch.manual_seed(0)

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
        model = UpstreamModel(self.case, self.wrapper, inducing_points, constant_mean)
        model.tasks = self._tasks(batch_shape)
        return model, self.likelihood_cls()

    def _tasks(self, batch_shape):
        """The tasks of upstream's batch shape, whose last dimension may be that of the latent functions."""
        return batch_shape if self.num_latents is None else batch_shape[:-1]

    def _data(self, model, batch_shape, num_points=32):
        """Inputs, and a context at them."""
        x = torch.randn(*batch_shape, num_points, 2).clamp(-2.5, 2.5)
        if self.num_latents is not None:
            # upstream's differ between latent functions, which no context does
            x = x[..., :1, :, :].expand(*batch_shape, num_points, 2)
        x_context = x if self.num_latents is None else x[..., 0, :, :]
        y = torch.linspace(-1, 1, num_points).view(num_points, *[1] * (len(self.event_shape) - 1))
        return x, (x_context, y.expand(*model.tasks, num_points, *self.event_shape[1:]))

    def _new_inputs(self, x):
        return x[..., 0, :, :] if "x_has_latents" in self.case.lacks and self.num_latents is not None else x

    def _training_iter(self, model, likelihood, batch_shape=None, mll_cls=VariationalELBO, cuda=False):
        x, context = self._data(model, batch_shape)
        mll = mll_cls(likelihood, model, num_data=32)
        model.train()
        likelihood.train()
        output = model(self._new_inputs(x), context=context)
        loss = -mll(output, context[1])
        loss.sum().backward()
        for parameter in (*model.parameters(), *likelihood.parameters()):
            assert parameter.grad is not None
            assert parameter.grad.norm().item() > 0
        return output, loss

    def _eval_iter(self, model, batch_shape=None, cuda=False):
        x, context = self._data(model, batch_shape)
        model.eval()
        with torch.no_grad():
            return model(self._new_inputs(x), context=context)

    def test_eval_iteration(self, *args, expected_batch_shape=None, **kwargs):
        expected_batch_shape = self._tasks(self.batch_shape if expected_batch_shape is None else expected_batch_shape)
        cg, cholesky, ciq = super().test_eval_iteration(*args, expected_batch_shape=expected_batch_shape, **kwargs)
        self._check_calls(cg, cholesky, ciq)

    def test_training_iteration(self, *args, expected_batch_shape=None, **kwargs):
        expected_batch_shape = self._tasks(self.batch_shape if expected_batch_shape is None else expected_batch_shape)
        cg, cholesky, ciq = super().test_training_iteration(*args, expected_batch_shape=expected_batch_shape, **kwargs)
        self._check_calls(cg, cholesky, ciq)

    def _check_calls(self, cg, cholesky, ciq):
        """Check what two iterations factorize, and that nothing is solved by iterations."""
        assert not cg.called
        assert not ciq.called
        if self.wrapper == "joint" and self.case.num_choleskies == 0:
            # along time the outputs of each point are factorized together, and nothing larger
            assert {call.args[0].shape[-1] for call in cholesky.call_args_list} == {self.num_outputs}
        else:
            assert cholesky.call_count == 2 * self.case.num_choleskies

    def test_forward_train_eval(self):
        """The case of upstream's test file for large batches."""
        model, _ = self._make_model_and_likelihood(batch_shape=self.batch_shape, inducing_batch_shape=self.batch_shape)
        x, context = self._data(model, self.batch_shape)
        training = model.train()(self._new_inputs(x), context=context)
        predicting = model.eval()(self._new_inputs(x), context=context)
        torch.testing.assert_close(training.mean, predicting.mean, rtol=1e-4, atol=1e-4)
        torch.testing.assert_close(training.variance, predicting.variance, rtol=1e-4, atol=1e-4)

    def test_fantasy_call(
        self, data_batch_shape=None, inducing_batch_shape=None, model_batch_shape=None, expected_batch_shape=None
    ):
        """
        A fantasy model here is one of the same kind, for any likelihood, that was given a context before; upstream's is
        an exact GP for the Gaussian one.
        """
        shapes = (data_batch_shape, inducing_batch_shape, model_batch_shape, expected_batch_shape)
        data, inducing, model_batch, expected = (self.batch_shape if shape is None else shape for shape in shapes)
        model, _ = self._make_model_and_likelihood(batch_shape=model_batch, inducing_batch_shape=inducing)
        seen, more = (self._data(model, data, num_points)[1] for num_points in (32, 10))
        persist_context(model.eval(), seen)
        fantasy = model.get_fantasy_model(*more)
        assert type(fantasy) is type(model)
        x = self._new_inputs(self._data(model, data)[0])
        everything = torch.cat([seen[0], more[0]], -2), torch.cat([seen[1], more[1]], -len(self.event_shape))
        q_f = fantasy(x)
        assert (q_f.batch_shape, q_f.event_shape) == (self._tasks(expected), self.event_shape)
        torch.testing.assert_close(q_f.mean, condition(model, everything)(x).mean, rtol=1e-3, atol=1e-3)


def why_not(case: StrategyCase, wrapper: str, situation: str) -> str | None:
    """The reason why a strategy fails in a situation, or None if it does not."""
    of_tasks = ("smaller_pred_batch", "batch_inducing", "all_batch_zero_mean")
    if case.shares_inducing_points and situation.endswith(of_tasks):
        return "InducingSitesVariationalStrategy has inducing points that all tasks and latent functions share."
    if "update" in case.refuses and situation.startswith("test_fantasy"):
        return "The latent values of VAE say nothing about other points: there is no posterior to add points to."
    return None
