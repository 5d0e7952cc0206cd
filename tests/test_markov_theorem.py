"""
Theorem 12: the Markov strategy is the dense strategies, for every kernel that it accepts, wherever the times are.

Errors are at most 1e-8 in float64, and 1e-3 in float32 data, for means, variances, covariances, divergences and every
gradient, unless a test says why not.
"""

from __future__ import annotations

import gpytorch
import helpers
import oracles
import pytest
import torch
from gpytorch.distributions import MultivariateNormal
from gpytorch.kernels import ConstantKernel, CosineKernel, MaternKernel, PeriodicKernel, ScaleKernel
from gpytorch.means import ConstantMean
from gpytorch.variational import IndependentMultitaskVariationalStrategy

from gpytorch_sgpvae import (
    AmortizedVariationalDistribution,
    Context,
    DenseAmortizedVariationalStrategy,
    DenseJointAmortizedVariationalStrategy,
    FactorNet,
    GroupedKernel,
    JointFactorNet,
    MarkovAmortizedVariationalStrategy,
    MarkovGPVAE,
    TaskELBO,
    point_covariances,
    to_state_space,
)

K = 3
LATENTS = torch.Size([K])
TOLERANCE = {"rtol": 0, "atol": 1e-8}


def matern(nu, batch=LATENTS):
    return MaternKernel(nu=nu, batch_shape=batch)


KERNELS = {
    "matern12": lambda: matern(0.5),
    "matern32": lambda: matern(1.5),
    "matern52": lambda: matern(2.5),
    "shared": lambda: ScaleKernel(matern(1.5, torch.Size([]))),
    "scaled": lambda: ScaleKernel(matern(2.5), batch_shape=LATENTS),
    "sum": lambda: matern(0.5) + ScaleKernel(matern(1.5), batch_shape=LATENTS),
    "sum with a constant": lambda: matern(1.5) + ConstantKernel(batch_shape=LATENTS),
    "product with a cosine": lambda: matern(0.5) * CosineKernel(batch_shape=LATENTS),
    "product of two": lambda: ScaleKernel(matern(0.5) * matern(1.5), batch_shape=LATENTS),
    "groups": lambda: GroupedKernel([matern(0.5, torch.Size([1])), matern(2.5, torch.Size([2]))], [1, 2]),
    "groups with a sum": lambda: GroupedKernel(
        [matern(1.5, torch.Size([])), matern(0.5, torch.Size([1])) + matern(2.5, torch.Size([1]))], [2, 1]
    ),
}


class TimeModel(gpytorch.models.ApproximateGP):
    """A model over time with a given strategy, network, mean and kernel."""

    def __init__(self, strategy_cls, network, mean, kernel):
        strategy = strategy_cls(self, AmortizedVariationalDistribution(network))
        if strategy_cls is DenseAmortizedVariationalStrategy:
            strategy = IndependentMultitaskVariationalStrategy(strategy, num_tasks=K)
        super().__init__(strategy)
        self.mean_module, self.covar_module = mean, kernel
        self.to(next(network.parameters()).dtype)

    def forward(self, x):
        return MultivariateNormal(self.mean_module(x), self.covar_module(x))


def twins(kernel, joint, dtype=torch.float64):
    """Two models with the same parameters, Markov and dense, and a likelihood."""
    network = (JointFactorNet if joint else FactorNet)(2, K, (4,), torch.nn.Tanh)
    mean = ConstantMean(batch_shape=LATENTS)
    for module in (network, mean, kernel):
        module.to(dtype)
        helpers.perturb(module)
    dense = DenseJointAmortizedVariationalStrategy if joint else DenseAmortizedVariationalStrategy
    likelihood = helpers.make_likelihood(2, K, dtype, torch.nn.Tanh)
    models = [TimeModel(cls, network, mean, kernel) for cls in (MarkovAmortizedVariationalStrategy, dense)]
    return *models, likelihood


def make_data(times, missing=0.3):
    y = torch.randn(*times.shape, 2, dtype=times.dtype)
    y[torch.rand(y.shape) < missing] = torch.nan
    return times.unsqueeze(-1), y


def assert_equal_twins(markov, dense, likelihood, context, x_new, **tolerance):
    tolerance = tolerance or TOLERANCE
    samples = torch.randn(2, *context.batch_shape, context.num_points, K, dtype=context.dtype)
    parameters = [p for p in (*markov.parameters(), *likelihood.parameters()) if p.requires_grad]
    results, gradients = [], []
    weight = torch.rand(context.batch_shape, dtype=context.dtype)
    for model in (markov, dense):
        model.train()
        training = model(context.x, context=context)
        kl = model.variational_strategy.kl_divergence()
        elbo = TaskELBO(likelihood, model)(training, context.y, base_samples=samples)
        new = model(x_new, context=context)
        covariances = point_covariances(new)
        objective = (weight * elbo).sum() + new.mean.sin().sum() + (covariances * covariances.cos()).sum()
        gradients.append(torch.autograd.grad(objective, parameters, allow_unused=True))
        model.eval()
        later = model(x_new, context=context)
        results.append(
            [
                training.mean,
                training.variance,
                point_covariances(training),
                kl,
                elbo,
                new.mean,
                covariances,
                later.mean,
                later.variance,
                point_covariances(later),
                later.covariance_matrix,
            ]
        )
    for actual, expected in zip(*results, strict=True):
        assert actual.isfinite().all()
        torch.testing.assert_close(actual, expected, **tolerance)
    for actual, expected in zip(*gradients, strict=True):
        assert (actual is None) == (expected is None)
        if actual is not None:
            assert actual.isfinite().all()
            scale = expected.abs().max().clamp_min(1.0)
            torch.testing.assert_close(actual / scale, expected / scale, **tolerance)


@pytest.mark.parametrize("joint", [False, True], ids=["independent", "joint"])
class TestTheorem12:
    @pytest.mark.parametrize("kernel", KERNELS)
    def test_for_every_kernel(self, kernel, joint):
        models = twins(KERNELS[kernel](), joint)
        x, y = make_data(torch.rand(2, 9, dtype=torch.float64) * 4)
        assert_equal_twins(*models, Context(x, y), torch.linspace(-1, 5, 7, dtype=torch.float64).unsqueeze(-1))

    @pytest.mark.parametrize(
        "times",
        {
            "tied": torch.tensor([0.0, 0.0, 0.0, 1.0, 1.0, 2.0, 2.5, 2.5]),
            "unsorted": torch.tensor([3.0, 1.0, 2.0, 0.5, 4.0, 0.0]),
            "negative": torch.tensor([-3.0, -1.0, -2.5, 0.5, -4.0]),
            "close": torch.tensor([0.0, 1e-9, 2e-9, 1e-5, 1.0]),
            "one": torch.tensor([0.7]),
            "regular": torch.arange(30.0) / 7,
        }.items(),
        ids=lambda item: item[0].replace(" ", "-"),
    )
    def test_wherever_the_times_are(self, times, joint):
        models = twins(matern(1.5), joint)
        own = times[1].double()
        x_new = torch.cat([own[:2], own.mean(0, keepdim=True), own.min()[None] - 2, own.max()[None] + 1]).unsqueeze(-1)
        assert_equal_twins(*models, Context(*make_data(own)), x_new)

    def test_a_million_lengthscales_apart_are_data_sets_of_their_own(self, joint):
        """The dense strategy sees each by itself: one kernel matrix of all has no digits left for the near ones."""
        markov, dense, _ = twins(matern(1.5), joint)
        clusters = [torch.tensor(times).double() for times in ([0.0, 0.5, 0.5], [0.0, 1.0], [0.25])]
        y = torch.randn(6, 2, dtype=torch.float64)
        far = torch.cat([times + 1e6 * i for i, times in enumerate(clusters)]).unsqueeze(-1)
        x_new = torch.tensor([[0.3]]).double()
        q_f = markov(far, context=(far, y))
        kl = markov.variational_strategy.kl_divergence()
        new = markov(torch.cat([x_new + 1e6 * i for i in range(3)]), context=(far, y))
        parts = [
            dense(part[:, None], context=(part[:, None], own))
            for part, own in zip(clusters, y.split([3, 2, 1]), strict=True)
        ]
        kls, news = [], []
        for part, own in zip(clusters, y.split([3, 2, 1]), strict=True):
            news.append(dense(x_new, context=(part[:, None], own)))
            kls.append(dense.variational_strategy.kl_divergence())
        torch.testing.assert_close(q_f.mean, torch.cat([part.mean for part in parts]), **TOLERANCE)
        torch.testing.assert_close(q_f.variance, torch.cat([part.variance for part in parts]), **TOLERANCE)
        torch.testing.assert_close(kl, sum(kls), **TOLERANCE)
        torch.testing.assert_close(new.mean, torch.cat([part.mean for part in news]), **TOLERANCE)
        torch.testing.assert_close(
            point_covariances(new), torch.cat([point_covariances(part) for part in news]), **TOLERANCE
        )

    def test_for_tasks_of_unequal_length(self, joint):
        models = twins(KERNELS["groups"](), joint)
        tasks = [make_data(torch.randn(n, dtype=torch.float64) * 2) for n in (9, 4, 1)]
        assert_equal_twins(*models, Context.pad(tasks), torch.randn(3, 5, 1, dtype=torch.float64))

    def test_for_inputs_that_all_tasks_share(self, joint):
        models = twins(matern(2.5), joint)
        x, _ = make_data(torch.rand(8, dtype=torch.float64))
        _, y = make_data(torch.rand(2, 3, 8, dtype=torch.float64))
        assert_equal_twins(*models, Context(x, y), torch.rand(4, 1, dtype=torch.float64))

    def test_where_nothing_is_observed_it_is_the_prior_to_the_bit(self, joint):
        models = twins(matern(1.5), joint)
        x, y = make_data(torch.rand(2, 6, dtype=torch.float64), missing=1.1)
        y[1, 2] = 1.0
        assert_equal_twins(*models, Context(x, y), torch.rand(4, 1, dtype=torch.float64))
        markov = models[0].train()
        q_f = markov(x[0], context=(x[0], y[0]))
        assert (markov.variational_strategy.kl_divergence() == 0).all()
        assert torch.equal(q_f.mean, markov(x[0], prior=True).mean)

    def test_float32_data_stay_within_a_thousandth(self, joint):
        torch.manual_seed(1)
        markov, dense, _ = twins(KERNELS["sum"](), joint, torch.float32)
        x, y = make_data(torch.rand(60) * 30)
        x_new = torch.linspace(-2, 35, 40).unsqueeze(-1)
        single = markov.eval()(x_new, context=(x, y))
        double = dense.double().eval()(x_new.double(), context=(x.double(), y.double()))
        markov.double()
        assert single.mean.dtype == torch.float32
        torch.testing.assert_close(single.mean.double(), double.mean, rtol=1e-3, atol=1e-3)
        torch.testing.assert_close(single.variance.double(), double.variance, rtol=1e-3, atol=1e-3)

    @pytest.mark.parametrize("scale", [1e-6, 1e3, 1e6])
    def test_a_whole_step_at_any_scale_of_the_outputs_is_finite(self, scale, joint, dtype):
        model = MarkovGPVAE(2, K, network="jointfactornet" if joint else "factornet").to(dtype)
        x, y = make_data(torch.rand(50, dtype=dtype) * 9)
        model.loss((x, scale * y)).backward()
        assert all(p.grad is None or p.grad.isfinite().all() for p in model.parameters())
        prediction = model.eval().predict(x, (x, scale * y))
        assert prediction.mean.isfinite().all()
        assert (prediction.variance >= 0).all()

    @pytest.mark.parametrize("quasi", [False, True], ids=["periodic", "quasi-periodic"])
    def test_periodic_kernels_to_what_is_neglected_of_them(self, quasi, joint):
        periodic = PeriodicKernel(batch_shape=LATENTS)
        periodic.initialize(lengthscale=1.5)
        kernel = periodic * matern(1.5) if quasi else periodic
        markov, dense, _ = twins(kernel, joint)
        x, y = make_data(torch.rand(8, dtype=torch.float64) * 4)
        x_new = torch.rand(5, 1, dtype=torch.float64) * 5
        expected = dense.eval()(x_new, context=(x, y))
        errors, bounds = [], []
        for num_harmonics in (2, 4, 14):
            markov.variational_strategy.num_harmonics = num_harmonics
            with gpytorch.settings.debug(False):  # which would warn about two harmonics
                q_f = markov.eval()(x_new, context=(x, y))
                bounds.append(to_state_space(kernel, num_harmonics)[0].neglected.max().item())
            errors.append((q_f.covariance_matrix - expected.covariance_matrix).abs().max().item())
        assert errors[0] > errors[1] > errors[2]
        assert errors[2] < 1e-8
        assert bounds[2] < 1e-8

    def test_gradients_by_times_and_by_all_parameters(self, joint):
        markov, _, likelihood = twins(KERNELS["groups"](), joint)
        x, y = make_data(torch.linspace(0, 3, 6, dtype=torch.float64) + 0.1 * torch.rand(6))
        context, samples = Context(x, y), torch.randn(1, 6, K, dtype=torch.float64)
        names, parameters = zip(*markov.named_parameters(), strict=True)

        class Objective(torch.nn.Module):
            def __init__(self):
                super().__init__()
                self.model = markov

            def forward(self, shift):
                moved = Context(context.x + shift, context.y)
                q_f = self.model(moved.x, context=moved)
                elbo = TaskELBO(likelihood, self.model)(q_f, moved.y, base_samples=samples)
                new = self.model(context.x[:3] + 0.05, context=moved)
                return torch.stack([elbo, new.mean.sum(), new.covariance_matrix.square().sum()])

        objective = Objective()

        def function(shift, *values):
            named = {f"model.{name}": value for name, value in zip(names, values, strict=True)}
            return torch.func.functional_call(objective, named, (shift,))

        arguments = (torch.zeros_like(x), *parameters)
        assert torch.autograd.gradcheck(function, [a.detach().requires_grad_() for a in arguments], fast_mode=True)


@pytest.mark.parametrize("pattern", ["some", "none", "all but one"])
def test_theorem_10_the_elbo_is_the_exact_log_marginal_of_the_linear_model_of_coregionalization(pattern):
    network, likelihood = helpers.make_tied(3, 2)
    kernel, mean = MaternKernel(nu=1.5, batch_shape=torch.Size([2])), ConstantMean(batch_shape=torch.Size([2]))
    model = TimeModel(MarkovAmortizedVariationalStrategy, network, mean, kernel)
    helpers.perturb(mean, kernel)
    x, y = torch.rand(12, 1).double() * 5, torch.randn(12, 3).double()
    y[torch.rand(y.shape) < {"some": 0.4, "none": 0.0, "all but one": 2.0}[pattern]] = torch.nan
    y[4, 1] = 0.3
    x_new = torch.linspace(-1, 6, 5).double().unsqueeze(-1)
    with torch.no_grad():
        elbo = TaskELBO(likelihood, model)(model(x, context=(x, y)), y)
        W, b = likelihood.decoder.weight, likelihood.decoder.bias
        prior = MultivariateNormal(mean(both := torch.cat([x, x_new]).expand(2, 17, 1)), kernel(both))
        means, covariance = prior.mean, prior.covariance_matrix
        posterior, evidence = oracles.coregionalization(
            covariance[:, :12, :12],
            covariance[:, 12:, :12],
            covariance[:, 12:, 12:],
            means[:, :12],
            means[:, 12:],
            W,
            likelihood.observation_model.noise,
            y - b,
        )
        q_f = model.eval()(x_new, context=(x, y))
    torch.testing.assert_close(elbo, evidence, **TOLERANCE)
    torch.testing.assert_close(q_f.mean.flatten(), posterior.mean, **TOLERANCE)
    torch.testing.assert_close(q_f.covariance_matrix, posterior.covariance, **TOLERANCE)
