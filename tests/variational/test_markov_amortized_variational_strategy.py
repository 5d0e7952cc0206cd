"""What only the Markov strategy does: streams, forecasts, paths, and kernels that it reads off the model."""

from __future__ import annotations

import gpytorch
import helpers
import pytest
import torch
from gpytorch.distributions import MultivariateNormal
from gpytorch.kernels import MaternKernel, PeriodicKernel, RBFKernel, ScaleKernel

from gpytorch_sgpvae import (
    AmortizedVariationalDistribution,
    Context,
    FactorNet,
    GroupedKernel,
    MarkovAmortizedVariationalStrategy,
    MarkovGPVAE,
    Posterior,
    condition,
    point_covariances,
    register_state_space,
    to_state_space,
)
from gpytorch_sgpvae.linalg import markov_gradient

TOLERANCE = {"rtol": 0, "atol": 1e-8}
networks = pytest.mark.parametrize("network", ["factornet", "jointfactornet"])


def make(network="jointfactornet", num_outputs=3, num_latents=2, **kwargs):
    model = MarkovGPVAE(num_outputs, num_latents, network, hidden_sizes=(8,), **kwargs).double()
    helpers.perturb(model.model.covar_module)
    return model.eval()


def make_series(*batch, num_points=40, missing=0.3):
    x = torch.rand(*batch, num_points, 1, dtype=torch.float64).sort(-2).values * 12
    y = torch.randn(*batch, num_points, 3, dtype=torch.float64)
    y[torch.rand(y.shape) < missing] = torch.nan
    return x, y


def assert_same(actual, expected, **tolerance):
    tolerance = tolerance or TOLERANCE
    torch.testing.assert_close(actual.mean, expected.mean, **tolerance)
    torch.testing.assert_close(point_covariances(actual), point_covariances(expected), **tolerance)


@networks
class TestStreams:
    @pytest.mark.parametrize("tasks", [(), (4,)])
    def test_an_update_equals_conditioning_on_everything_before_and_after_the_last_row(self, network, tasks):
        model = make(network)
        x, y = make_series(*tasks)
        everything = model.condition((x, y))
        posterior = model.condition((x[..., :20, :], y[..., :20, :]))
        for first in (20, 21, 35):
            last = {20: 21, 21: 35, 35: 40}[first]
            posterior.update((x[..., first:last, :], y[..., first:last, :]))
        for times in ([13.0, 12.5, 100.0], [-1.0, 3.0, 6.0, 13.0]):
            new = torch.tensor(times).double().unsqueeze(-1)
            assert_same(posterior(new), everything(new))
            covariance = posterior(new).covariance_matrix
            torch.testing.assert_close(covariance, everything(new).covariance_matrix, **TOLERANCE)

    def test_a_thousand_updates_lose_nothing(self, network):
        model = make(network)
        x, y = make_series(num_points=1010)
        posterior = model.condition((x[:10], y[:10]))
        for n in range(10, 1010):
            posterior.update((x[n : n + 1], y[n : n + 1]))
        everything = model.condition((x, y))
        for new in (torch.tensor([[12.5], [20.0]]).double(), x[::50]):
            assert_same(posterior(new), everything(new), rtol=0, atol=1e-6)
        assert len(posterior.encoding.pieces) <= 11

    def test_updates_with_little_noise_stay_symmetric(self, network):
        """What rounding makes of a covariance and its transpose must not grow from row to row."""
        decoder = torch.nn.Linear(3, 4)
        model = MarkovGPVAE(4, 3, network, decoder=decoder).double().eval()
        model.likelihood.observation_model.noise = 1e-2
        x = torch.arange(400.0, dtype=torch.float64).unsqueeze(-1) / 24
        y = torch.randn(400, 4, dtype=torch.float64)
        posterior = model.condition((x[:100], y[:100]))
        for n in range(100, 400):
            posterior.update((x[n : n + 1], y[n : n + 1]))
        later = x[-1:] + 0.1
        assert_same(posterior(later), model.condition((x, y))(later))

    def test_rows_that_tie_with_the_last_one_and_rows_of_padding(self, network):
        model = make(network)
        x, y = make_series(2)
        x[:, 20:22] = x[:, 19:20]
        y[1, 35:] = torch.nan
        early = x.clone()
        early[1, 35:] = 0.0  # rows that say nothing may stand anywhere
        posterior = model.condition((x[:, :20], y[:, :20])).update((early[:, 20:], y[:, 20:]))
        assert type(posterior.encoding).__name__ == "MarkovStream"
        new = torch.tensor([[13.0], [5.0]]).double()
        assert_same(posterior(new), model.condition((x, y))(new))

    def test_rows_of_the_past_are_taken_in_the_slower_way(self, network):
        model = make(network)
        x, y = make_series()
        order = torch.randperm(40)
        posterior = model.condition((x[order[:20]], y[order[:20]]))
        posterior.update((x[order[20:]], y[order[20:]])).update((x[:0], y[:0]))
        new = torch.tensor([[13.0], [5.0], [-1.0]]).double()
        assert_same(posterior(new), model.condition((x, y))(new))

    def test_start_from_nothing(self, network):
        model = make(network)
        x, y = make_series()
        posterior = model.condition((x[:0], y[:0]))
        new = torch.tensor([[13.0], [5.0]]).double()
        assert_same(posterior(new), model(new, prior=True))
        assert_same(posterior.update((x, y))(new), model.condition((x, y))(new))

    def test_an_update_and_a_forecast_cost_the_new_rows_alone(self, network):
        model = make(network)
        x, y = make_series(num_points=3000)
        posterior = model.condition((x[:2990], y[:2990]))
        new = torch.tensor([[13.0]]).double()
        one, two, rest = ((x[rows].clone(), y[rows].clone()) for rows in (slice(2990, 2991), [2991], slice(2992, 3000)))
        posterior.update(one)
        with helpers.largest_allocation() as largest:
            posterior.update(two).update(rest)(new)
        assert largest.numel < 1000

    def test_are_saved_and_loaded(self, network):
        model = make(network)
        x, y = make_series(2)
        posterior = model.condition((x[:, :20], y[:, :20])).update((x[:, 20:], y[:, 20:]))
        loaded = Posterior.from_state_dict(model.model, posterior.state_dict())
        new = torch.tensor([[13.0], [5.0]]).double()
        assert_same(loaded(new), posterior(new))
        more = (x[:, :3] + 20, y[:, :3])
        assert_same(loaded.update(more)(new + 20), posterior.update(more)(new + 20))

    def test_of_other_tasks_are_an_error(self, network):
        model = make(network)
        x, y = make_series(2)
        with pytest.raises(ValueError, match=r"tasks \(3,\).*\(2,\).*the same tasks"):
            model.condition((x, y)).update(make_series(3))

    def test_in_training_mode_keep_their_gradients(self, network):
        model = make(network).train()
        x, y = make_series()
        posterior = condition(model.model, (x[:20], y[:20])).update((x[20:], y[20:]))
        new = torch.tensor([[13.0], [15.0]]).double()
        gradients = []
        for q_f in (posterior(new), model.model(new, context=(x, y))):
            parameters = [*model.model.covar_module.parameters(), *model.strategy.parameters()]
            objective = q_f.mean.sum() + point_covariances(q_f).sum()
            gradients.append(torch.autograd.grad(objective, parameters, allow_unused=True))
        for actual, expected in zip(*gradients, strict=True):
            if expected is not None:
                torch.testing.assert_close(actual, expected, **TOLERANCE)


@pytest.mark.parametrize("tasks", [(), (3,)])
def test_a_stream_of_one_output_without_a_latent_dimension(tasks):
    model = TestKernels().model_with(MaternKernel(nu=2.5), num_latents=None, num_outputs=1).eval()
    x, y = make_series(*tasks)
    y = y[..., 0]
    posterior = condition(model, (x[..., :20, :], y[..., :20]))
    for n in range(20, 40):
        posterior.update((x[..., n : n + 1, :], y[..., n : n + 1]))
    everything = condition(model, (x, y))
    for new in (torch.tensor([[13.0], [20.0]]).double(), x):
        torch.testing.assert_close(posterior(new).mean, everything(new).mean, **TOLERANCE)
        torch.testing.assert_close(posterior(new).covariance_matrix, everything(new).covariance_matrix, **TOLERANCE)
    assert posterior.sample(new, 2).shape == (2, *tasks, 40)
    loaded = Posterior.from_state_dict(model, posterior.state_dict())
    torch.testing.assert_close(loaded(x).variance, everything(x).variance, **TOLERANCE)


def test_new_inputs_with_a_latent_dimension_leave_the_contexts_without_one():
    plain = TestKernels().model_with(MaternKernel(nu=1.5)).eval()
    model = TestKernels().model_with(MaternKernel(nu=1.5), x_has_latents=True).eval()
    model.load_state_dict(plain.state_dict())
    x, y = make_series(3)
    new = torch.tensor([[13.0], [5.0]]).double()
    expected = condition(plain, (x, y))(new)
    posterior = condition(model, (x[:, :20], y[:, :20])).update((x[:, 20:], y[:, 20:]))
    assert_same(posterior(new.expand(2, 2, 1)), expected)
    for twin, inputs in ((plain, x[0]), (model, x[0].expand(2, 40, 1))):
        twin(inputs, context=(x[0], y[0]))
    q_u, p_u = model.variational_strategy.variational_distribution, model.variational_strategy.prior_distribution
    torch.testing.assert_close(
        q_u.covariance_matrix, plain.variational_strategy.variational_distribution.covariance_matrix
    )
    torch.testing.assert_close(p_u.covariance_matrix, plain.variational_strategy.prior_distribution.covariance_matrix)


@networks
@pytest.mark.parametrize("streamed", [False, True])
def test_a_look_without_gradients_does_not_cost_them_later(network, streamed):
    model = make(network).train()
    x, y = make_series()
    new, parameters = x[3:6] + 0.01, list(model.model.covar_module.parameters())
    gradients = []
    for look_first in (False, True):
        posterior = condition(model.model, (x[:20], y[:20]) if streamed else (x, y))
        if streamed:
            posterior.update((x[20:], y[20:]))
        if look_first:
            with torch.no_grad():
                posterior(new)
                posterior(x)
        q_f = posterior(new)
        gradients.append(torch.autograd.grad(q_f.mean.sum() + q_f.variance.sum(), parameters))
    for first, second in zip(*gradients, strict=True):
        torch.testing.assert_close(first, second, **TOLERANCE)


@networks
class TestForecasts:
    def test_grow_to_the_prior(self, network):
        model = make(network)
        x, y = make_series()
        far = torch.tensor([[12.0], [12.5], [14.0], [30.0], [1e4]]).double()
        q_f = model.condition((x, y))(far)
        assert (q_f.variance.diff(dim=0) >= 0).all()
        prior = model(far, prior=True)
        torch.testing.assert_close(q_f.mean[-1], prior.mean[-1], **TOLERANCE)
        torch.testing.assert_close(q_f.variance[-1], prior.variance[-1], **TOLERANCE)

    def test_of_a_cycle_go_on(self, network):
        kernel = GroupedKernel([PeriodicKernel(batch_shape=torch.Size([1])), MaternKernel(nu=0.5)], [1, 1])
        kernel.kernels[0].initialize(period_length=2.0, lengthscale=2.0)
        model = MarkovGPVAE(3, 2, network, kernel=kernel, hidden_sizes=(8,)).double().eval()
        x, y = make_series()
        posterior = model.condition((x, y))
        new = torch.linspace(13, 15, 5, dtype=torch.float64).unsqueeze(-1)
        mean, much_later = posterior(new).mean[:, 0], posterior(new + 200).mean[:, 0]
        torch.testing.assert_close(mean, much_later, rtol=0, atol=1e-4)
        assert mean.abs().max() > 1e-3


@networks
class TestPaths:
    @pytest.mark.parametrize("streamed", [False, True])
    def test_have_the_exact_joint_covariance(self, network, streamed):
        model = make(network)
        x, y = make_series(num_points=12)
        posterior = model.condition((x[:8], y[:8]) if streamed else (x, y))
        if streamed:
            posterior.update((x[8:], y[8:]))
        new = torch.tensor([[6.0], [13.0], [5.8], [-1.0], [6.0]]).double()
        draws = posterior.sample(new, 20_000)
        q_f = posterior(new)
        assert draws.shape == (20_000, 5, 2)
        torch.testing.assert_close(draws.mean(0), q_f.mean, rtol=0, atol=0.04)
        torch.testing.assert_close(torch.cov(draws.flatten(1).T), q_f.covariance_matrix, rtol=0, atol=0.05)
        # the same time is the same value; a covariance of zero is known up to rounding
        torch.testing.assert_close(draws[:, 0], draws[:, 4], rtol=0, atol=1e-6)

    @pytest.mark.parametrize("tasks", [(), (3,)])
    def test_the_joint_covariance_without_gradients_is_the_same(self, network, tasks):
        """Without gradients it is found for all columns at once, from covariances of states that are computed once."""
        model = make(network)
        posterior = model.condition(make_series(*tasks, num_points=60))
        new = torch.rand(7, 1).double() * 14
        with torch.no_grad():
            quick = posterior(new).covariance_matrix
        slow = posterior(new).covariance_matrix
        assert slow.requires_grad
        torch.testing.assert_close(quick, slow.detach(), rtol=0, atol=1e-12)

    def test_take_inputs_without_a_dimension(self, network):
        posterior = make(network).condition(make_series())
        assert posterior.sample(torch.rand(6).double(), 2).shape == (2, 6, 2)

    def test_of_many_tasks_and_points_need_no_matrix_of_all_points(self, network):
        posterior = make(network).condition(make_series(3, num_points=600))
        new = torch.linspace(0, 20, 500, dtype=torch.float64).unsqueeze(-1)
        with helpers.largest_allocation() as largest:
            draws = posterior.sample(new, 2)
        assert draws.shape == (2, 3, 500, 2)
        assert largest.numel <= 2 * 3 * 1100 * 40

    def test_large_covariance_matrices_are_refused_with_a_way_out(self, network):
        q_f = make(network).condition(make_series())(torch.rand(6000, 1).double())
        assert q_f.variance.shape == (6000, 2)
        with pytest.raises(ValueError, match=r"point_covariances.*Posterior.sample"):
            _ = q_f.covariance_matrix


class TestKernels:
    def model_with(self, kernel, forward=None, num_latents=2, num_outputs=3, **kwargs):
        class Model(gpytorch.models.ApproximateGP):
            def __init__(self):
                q_f = AmortizedVariationalDistribution(FactorNet(num_outputs, num_latents, (8,)))
                super().__init__(MarkovAmortizedVariationalStrategy(self, q_f, **kwargs))
                self.covar_module = kernel

            def forward(self, x):
                covar = self.covar_module(x) if forward is None else forward(self.covar_module, x)
                return MultivariateNormal(torch.zeros(x.shape[:-1], dtype=x.dtype), covar)

        return Model().double()

    @pytest.mark.parametrize(
        "kernel",
        [RBFKernel(), ScaleKernel(RBFKernel()), MaternKernel(nu=1.5) * RBFKernel()],
        ids=["rbf", "scaled", "product"],
    )
    def test_an_rbf_kernel_is_an_error_that_points_to_matern_52(self, kernel):
        with pytest.raises(TypeError, match=r"RBFKernel.*MaternKernel\(nu=2.5\)"):
            self.model_with(kernel)(make_series()[0], context=make_series())

    def test_other_kernels_are_an_error_that_names_the_choices(self):
        with pytest.raises(TypeError, match=r"(?s)RQKernel.*MaternKernel.*register_state_space"):
            self.model_with(gpytorch.kernels.RQKernel())(make_series()[0], context=make_series())

    def test_a_kernel_of_ones_own(self):
        class Exponential(gpytorch.kernels.Kernel):
            has_lengthscale = True

            def forward(self, x1, x2, diag=False, **params):
                return torch.exp(-self.covar_dist(x1 / self.lengthscale, x2 / self.lengthscale, diag=diag, **params))

        @register_state_space(Exponential)
        def exponential(kernel):
            same = MaternKernel(nu=0.5).double()
            same.lengthscale = kernel.lengthscale.detach()
            return to_state_space(same)[0]

        x, y = make_series()
        same = MaternKernel(nu=0.5)
        model, expected = self.model_with(Exponential()), self.model_with(same)
        expected.load_state_dict(model.state_dict())
        assert_same(model.eval()(x, context=(x, y)), expected.eval()(x, context=(x, y)))

    def test_an_extractor_of_time_and_inputs_with_other_columns(self):
        """`forward` may move times, as long as it is the same for all latent functions."""
        x, y = make_series()
        wide = torch.cat([torch.randn_like(x), x], dim=-1)
        kernel = MaternKernel(nu=1.5, active_dims=(1,))
        moved = self.model_with(kernel, lambda kernel, x: kernel(3 * x))
        plain = self.model_with(MaternKernel(nu=1.5))
        plain.load_state_dict(moved.state_dict(), strict=False)
        assert_same(moved.eval()(wide, context=(wide, y)), plain.eval()(3 * x, context=(3 * x, y)))
        with pytest.raises(ValueError, match=r"active_dims=\(0,\)"):
            plain(wide, context=(wide, y))

    def test_times_that_differ_between_latent_functions_are_an_error(self):
        x, y = make_series()
        factor = torch.tensor([1.0, 2.0]).double()[:, None, None]
        model = self.model_with(MaternKernel(nu=1.5), lambda kernel, x: kernel(factor * x))
        with pytest.raises(ValueError, match="times of its own"):
            model(x, context=(x, y))


class TestCosts:
    def test_a_batch_takes_as_many_operations_as_one_task(self, monkeypatch):
        """Tasks run side by side: the steps of the recursions do not grow with their number."""
        steps = []
        run = markov_gradient.filter_forward

        def counted(process, *args):
            steps.append(process.num_steps)
            return run(process, *args)

        monkeypatch.setattr(markov_gradient, "filter_forward", counted)
        model = make("factornet")
        for tasks in ((), (16,)):
            model.loss(make_series(*tasks, num_points=256)).backward()
        assert max(steps) < 256
        assert steps[1] <= 2 * steps[0]

    def test_a_training_step_without_perceptrons_makes_no_covariances_of_latent_functions(self):
        model = make(num_latents=8, decoder=torch.nn.Linear(8, 3)).train()
        context = Context(*make_series(num_points=500, missing=0))
        with helpers.largest_allocation() as largest:
            model.loss(context).backward()
        states = 500 * 16 * 16
        assert largest.numel <= 1.2 * states
