from __future__ import annotations

import gpytorch
import helpers
import pytest
import torch
from gpytorch.distributions import MultitaskMultivariateNormal, MultivariateNormal
from torch.distributions import Normal

from gpytorch_sgpvae import MLP, DecoderLikelihood, GaussianObservations

N, K, P, S = 6, 2, 3, 5


def make_q_f(*batch_shape, dtype=torch.float64):
    root = torch.randn(*batch_shape, K, N, N, dtype=dtype)
    return MultitaskMultivariateNormal.from_batch_mvn(
        MultivariateNormal(torch.randn(*batch_shape, K, N, dtype=dtype), root @ root.mT + torch.eye(N, dtype=dtype))
    )


def brute_force_log_probs(likelihood, q_f, y, samples):
    """For each sample and row the sum over its observed outputs, entry by entry."""
    result = torch.zeros(samples.shape[:-1], dtype=y.dtype)
    f = q_f.mean + q_f.variance.sqrt() * samples
    for index in torch.cartesian_prod(*(torch.arange(size) for size in result.shape)).tolist():
        mean = likelihood.decoder(f[tuple(index)])
        for p in range(P):
            value = y[(*index[1:], p)]
            if not value.isnan():
                noise = likelihood.observation_model.noise[p]
                result[tuple(index)] += -0.5 * ((value - mean[p]) ** 2 / noise + torch.log(2 * torch.pi * noise))
    return result


@pytest.mark.parametrize("batch_shape", [(), (2,)])
@pytest.mark.parametrize("mode", ["train", "eval"])
class TestDensities:
    def setup(self, batch_shape, mode):
        likelihood, q_f = getattr(helpers.make_likelihood(P, K), mode)(), make_q_f(*batch_shape)
        _, y = helpers.make_data(*batch_shape, num_points=N, num_outputs=P)
        samples = torch.randn(S, *batch_shape, N, K, dtype=torch.float64)
        return likelihood, q_f, y, samples, brute_force_log_probs(likelihood, q_f, y, samples)

    def test_expected_log_prob_is_the_mean_over_samples_of_the_observed_entries(self, batch_shape, mode):
        likelihood, q_f, y, samples, log_probs = self.setup(batch_shape, mode)
        actual = likelihood.expected_log_prob(y, q_f, base_samples=samples)
        torch.testing.assert_close(actual, log_probs.mean(0))

    def test_log_marginal_sums_the_outputs_inside_the_log_mean_exp(self, batch_shape, mode):
        likelihood, q_f, y, samples, log_probs = self.setup(batch_shape, mode)
        actual = likelihood.log_marginal(y, q_f, base_samples=samples)
        torch.testing.assert_close(actual, log_probs.exp().mean(0).log())

    def test_the_number_of_samples_is_gpytorchs_setting(self, batch_shape, mode):
        likelihood, q_f, *_ = self.setup(batch_shape, mode)
        with gpytorch.settings.num_likelihood_samples(17):
            assert likelihood(q_f).batch_shape == (17, *batch_shape, N, P)


class TestMissingTargets:
    def test_have_no_part_in_values_or_gradients(self, dtype):
        likelihood, q_f = helpers.make_likelihood(P, K, dtype=dtype), make_q_f(dtype=dtype)
        _, y = helpers.make_data(num_points=N, num_outputs=P, dtype=dtype)
        y[0] = torch.nan
        y = y.requires_grad_()
        samples = torch.randn(S, N, K, dtype=dtype)
        for density in (likelihood.expected_log_prob, likelihood.log_marginal):
            value = density(y, q_f, base_samples=samples)
            assert value.isfinite().all()
            assert value[0] == 0
            likelihood.zero_grad()
            (gradient,) = torch.autograd.grad(value.sum(), y, retain_graph=True)
            assert (gradient[y.isnan()] == 0).all()
            value.sum().backward()
            assert all(parameter.grad.isfinite().all() for parameter in likelihood.parameters())

    def test_noise_of_an_output_that_is_never_observed_has_gradient_zero(self):
        likelihood, q_f = helpers.make_likelihood(P, K), make_q_f()
        y = torch.randn(N, P, dtype=torch.float64)
        y[:, 1] = torch.nan
        likelihood.expected_log_prob(y, q_f).sum().backward()
        gradient = likelihood.observation_model.raw_noise.grad
        assert gradient[1] == 0
        assert (gradient[[0, 2]] != 0).all()


class TestSamples:
    def test_are_drawn_from_the_marginals_in_eval_mode_too(self):
        likelihood = DecoderLikelihood(torch.nn.Identity(), GaussianObservations(K)).double().eval()
        q_f = make_q_f()
        with gpytorch.settings.num_likelihood_samples(40_000):
            f = likelihood(q_f).mean
        torch.testing.assert_close(f.mean(0), q_f.mean, rtol=0, atol=0.1)
        torch.testing.assert_close(f.var(0), q_f.variance, rtol=0.05, atol=0)
        correlations = torch.corrcoef(f[..., 0].T)
        assert (correlations - torch.eye(N)).abs().max() < 0.03

    def test_are_joint_when_asked_for(self):
        likelihood = DecoderLikelihood(torch.nn.Identity(), GaussianObservations(K)).double().eval()
        q_f = make_q_f()
        with gpytorch.settings.num_likelihood_samples(40_000):
            f = likelihood(q_f, joint=True).mean
        covariance = torch.cov(f[..., 0].T)
        torch.testing.assert_close(covariance, q_f.covariance_matrix[::K, ::K], rtol=0.1, atol=0.3)

    @pytest.mark.parametrize("batch_shape", [(), (2,)])
    def test_lead_and_one_latent_function_may_come_as_an_event_of_n(self, batch_shape):
        likelihood = helpers.make_likelihood(P, 1)
        q_f = MultivariateNormal(
            torch.zeros(*batch_shape, N).double(), torch.eye(N).double().expand(*batch_shape, N, N)
        )
        assert likelihood(q_f).batch_shape == (10, *batch_shape, N, P)
        assert likelihood(q_f, joint=True).batch_shape == (10, *batch_shape, N, P)
        assert likelihood.expected_log_prob(torch.randn(*batch_shape, N, P).double(), q_f).shape == (*batch_shape, N)
        assert likelihood.predict(q_f).mean.shape == (*batch_shape, N, P)

    def test_values_of_the_latent_functions_give_the_conditional_distribution(self):
        likelihood = helpers.make_likelihood(P, K)
        f = torch.randn(4, N, K).double()
        distribution = likelihood(f)
        assert isinstance(distribution, Normal)
        torch.testing.assert_close(distribution.mean, likelihood.decoder(f))


class TestTargets:
    @pytest.mark.parametrize("tasks", [(), (1,), (4,), (N,)])
    def test_of_one_output_may_lack_the_last_dimension(self, tasks):
        likelihood, q_f = helpers.make_likelihood(1, K), make_q_f(*tasks)
        y = torch.randn(*tasks, N).double()
        samples = torch.randn(S, *tasks, N, K).double()
        flat = likelihood.expected_log_prob(y, q_f, base_samples=samples)
        assert flat.shape == (*tasks, N)
        assert torch.equal(flat, likelihood.expected_log_prob(y.unsqueeze(-1), q_f, base_samples=samples))

    @pytest.mark.parametrize("shape", [(N, P + 1), (N + 1, P), (N,), (P, N), (3, N, P), (10, 2, N, P)])
    def test_of_another_shape_are_errors_that_name_both(self, shape):
        likelihood, q_f = helpers.make_likelihood(P, K), make_q_f(2)
        message = rf"{tuple(shape)} does not fit predictions of shape (2, 6, 3)".replace("(", r"\(").replace(")", r"\)")
        with pytest.raises(ValueError, match=message):
            likelihood.expected_log_prob(torch.randn(shape).double(), q_f)


class TestOtherObservationModels:
    def test_whose_support_is_positive_take_missing_targets(self):
        class LogNormalObservations(gpytorch.Module):
            def forward(self, decoded):
                return torch.distributions.LogNormal(decoded, 1.0)

        likelihood = DecoderLikelihood(MLP(K, P), LogNormalObservations()).double()
        y = torch.rand(N, P).double()
        y[0, 1] = torch.nan
        likelihood.expected_log_prob(y, make_q_f()).sum().backward()
        assert all(parameter.grad.isfinite().all() for parameter in likelihood.parameters())

    def test_with_an_event_shape_are_errors(self):
        class Joint(gpytorch.Module):
            def forward(self, decoded):
                return torch.distributions.Independent(Normal(decoded, 1.0), 1)

        with pytest.raises(ValueError, match=r"Joint.*event shape \(3,\)"):
            DecoderLikelihood(MLP(K, P), Joint()).double()(make_q_f())


class TestWidths:
    def test_a_decoder_of_somebody_elses_that_fails_tells_what_it_was_given(self):
        likelihood = DecoderLikelihood(torch.nn.Linear(K + 1, P), GaussianObservations(P)).double()
        with pytest.raises(RuntimeError) as caught:
            likelihood(make_q_f())
        assert "(10, 6, 2), (..., N, K)" in caught.value.__notes__[0]

    def test_a_decoder_with_another_input_size_than_the_latent_functions(self):
        likelihood = DecoderLikelihood(MLP(K + 1, P), GaussianObservations(P)).double()
        with pytest.raises(ValueError, match=r"takes 3 features.*MLP\(2, 3"):
            likelihood.predict(make_q_f())

    @pytest.mark.parametrize("width", [1, P + 1])
    def test_a_decoder_with_another_output_size_than_the_observation_model(self, width):
        likelihood = DecoderLikelihood(MLP(K, width), GaussianObservations(P)).double()
        with pytest.raises(ValueError, match=rf"takes 3 values.*\(10, 6, {width}\).*out_size=3"):
            likelihood(make_q_f())


class TestGaussianMarginals:
    @pytest.mark.parametrize("bias", [True, False])
    def test_they_are_what_samples_tend_to(self, bias):
        torch.manual_seed(0)
        likelihood = DecoderLikelihood(torch.nn.Linear(2, 3, bias=bias), GaussianObservations(3)).double()
        root = torch.randn(8, 8, dtype=torch.float64)
        q_f = MultitaskMultivariateNormal(torch.randn(4, 2, dtype=torch.float64), root @ root.mT)
        exact, drawn = likelihood.gaussian_marginals(q_f), likelihood.predict(q_f, num_samples=100_000)
        torch.testing.assert_close(exact.mean, drawn.mean, atol=0.05, rtol=0.0)
        torch.testing.assert_close(exact.stddev, drawn.stddev, atol=0.0, rtol=0.01)

    def test_a_perceptron_has_none(self):
        q_f = MultitaskMultivariateNormal(torch.zeros(4, 2), torch.eye(8))
        with pytest.raises(TypeError, match="got MLP with GaussianObservations: use predict"):
            DecoderLikelihood(MLP(2, 3), GaussianObservations(3)).gaussian_marginals(q_f)
