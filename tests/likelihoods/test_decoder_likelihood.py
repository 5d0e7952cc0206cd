from __future__ import annotations

from itertools import product

import gpytorch
import helpers
import numpy as np
import pytest
import torch
from gpytorch.distributions import MultitaskMultivariateNormal, MultivariateNormal
from linear_operator import to_linear_operator
from linear_operator.operators import BlockDiagLinearOperator, DenseLinearOperator
from torch.distributions import Normal

from gpytorch_sgpvae import MLP, DecoderLikelihood, GaussianObservations, LinearPlus, point_covariances
from gpytorch_sgpvae.mlp import linear_part
from gpytorch_sgpvae.variational.point_marginals import PointMarginals
from gpytorch_sgpvae.variational.posterior_covariance import JointPosteriorCovariance

N, K, P, S = 6, 2, 3, 5


def make_q_f(*batch_shape, dtype=torch.float64):
    root = torch.randn(*batch_shape, K, N, N, dtype=dtype)
    return MultitaskMultivariateNormal.from_batch_mvn(
        MultivariateNormal(torch.randn(*batch_shape, K, N, dtype=dtype), root @ root.mT + torch.eye(N, dtype=dtype))
    )


def brute_force_log_probs(likelihood, q_f, y, samples):
    """Sum over the observed outputs of each sample and row, entry by entry."""
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


def gauss_hermite(num_latents, size=20):
    """Points (S x K) and weights (S) of a standard normal, exact for polynomials of degree 2 size - 1."""
    nodes, weights = (torch.as_tensor(a) for a in np.polynomial.hermite_e.hermegauss(size))
    points = torch.cartesian_prod(*[nodes] * num_latents).view(-1, num_latents)
    products = torch.cartesian_prod(*[weights / weights.sum()] * num_latents).view(-1, num_latents)
    return points, products.prod(-1)


def joint_q_f(num_latents, kind):
    """Two tasks of four points, with K x K covariances in whatever form models return them."""
    mean = torch.randn(2, 4, num_latents).double()
    root = torch.randn(2, 4, num_latents, num_latents).double()
    if kind == "event_of_n":
        return MultivariateNormal(mean.squeeze(-1), torch.diag_embed(root.flatten(-3).square()))
    if kind == "independent":
        variance = root.square().sum(-1)
        latents = MultivariateNormal(mean.mT, torch.diag_embed(variance.mT))
        return MultitaskMultivariateNormal.from_batch_mvn(latents)
    blocks = root @ root.mT
    if kind == "joint_train":
        return MultitaskMultivariateNormal(mean, BlockDiagLinearOperator(DenseLinearOperator(blocks)))
    # a prior that nothing but the blocks is asked of
    eye = torch.eye(4).double().expand(2, num_latents, 4, 4)
    C, F = torch.zeros(2, num_latents, 1, 4).double(), torch.zeros(2, 1, 1).double()
    return MultitaskMultivariateNormal(mean, JointPosteriorCovariance(to_linear_operator(eye), C, F, blocks))


every_q_f = pytest.mark.parametrize(
    ("num_latents", "kind"),
    [(1, "event_of_n"), *product([1, 2], ["independent", "joint_train", "joint_eval"])],
)


@every_q_f
class TestAnalyticExpectation:
    """Gaussian noise, and a decoder that is linear, or linear and a perceptron."""

    def by_quadrature(self, likelihood, q_f, y):
        """The expectation at the judge's points, from K x K covariances, entry by entry."""
        num_latents = linear_part(likelihood.decoder).in_features
        points, weights = gauss_hermite(num_latents)
        covariance = point_covariances(q_f)
        root = torch.linalg.cholesky(covariance)  # (T, N, K, K)
        mean = q_f.mean.view(2, 4, num_latents)
        f = mean + torch.einsum("tnkl,sl->stnk", root, points)
        log_probs = Normal(likelihood.decoder(f), likelihood.observation_model.noise.sqrt()).log_prob(y.nan_to_num())
        return torch.einsum("stn,s->tn", (log_probs * ~y.isnan()).sum(-1), weights)

    def make(self, num_latents, decoder):
        likelihood = DecoderLikelihood(decoder, GaussianObservations(P)).double()
        helpers.perturb(likelihood.observation_model)
        y = helpers.make_data(2, num_points=4, num_outputs=P)[1]
        y[0, 1], y[1, :, 2] = torch.nan, torch.nan
        return likelihood, y

    @pytest.mark.parametrize("bias", [True, False])
    def test_of_a_linear_decoder_is_exact(self, num_latents, kind, bias):
        likelihood, y = self.make(num_latents, torch.nn.Linear(num_latents, P, bias=bias))
        q_f = joint_q_f(num_latents, kind)
        with gpytorch.settings.num_likelihood_samples(1):
            actual = likelihood.expected_log_prob(y, q_f)
        torch.testing.assert_close(actual, self.by_quadrature(likelihood, q_f, y), rtol=0, atol=1e-8)
        assert actual[0, 1] == 0

    def test_of_a_perceptron_that_is_zero_has_no_variance_over_seeds(self, num_latents, kind):
        likelihood, y = self.make(num_latents, LinearPlus(MLP(num_latents, P, (5,), torch.nn.Tanh), start=0.0))
        q_f = joint_q_f(num_latents, kind)
        expected = self.by_quadrature(likelihood, q_f, y)
        with gpytorch.settings.num_likelihood_samples(2):
            for _ in range(3):
                torch.testing.assert_close(likelihood.expected_log_prob(y, q_f), expected, rtol=0, atol=1e-8)

    def test_of_a_perceptron_that_is_not_is_without_bias_and_of_smaller_variance_than_samples_alone(
        self, num_latents, kind
    ):
        likelihood, y = self.make(num_latents, LinearPlus(MLP(num_latents, P, (5,), torch.nn.Tanh), start=0.3))
        q_f = joint_q_f(num_latents, kind)
        expected = self.by_quadrature(likelihood, q_f, y)
        samples = torch.randn(20_000, 2, 4, num_latents).double()
        actual = likelihood.expected_log_prob(y, q_f, base_samples=samples)
        f = PointMarginals.of(q_f).draw(samples)
        plain, linear = (
            likelihood.row_log_probs(y, likelihood.observation_model(decoded))
            for decoded in (likelihood.decoder(f), likelihood.decoder.linear(f))
        )
        # six standard errors of the estimate, for sixteen numbers
        error = 6 * (plain - linear).std(0) / 20_000**0.5
        assert ((actual - expected).abs() <= error + 1e-8).all()
        assert (plain - linear).var(0).sum() < plain.var(0).sum()

    def test_has_the_gradients_of_the_quadrature(self, num_latents, kind):
        likelihood, y = self.make(num_latents, torch.nn.Linear(num_latents, P))
        q_f = joint_q_f(num_latents, kind)
        parameters = list(likelihood.parameters())
        actual = torch.autograd.grad(likelihood.expected_log_prob(y, q_f).sum(), parameters)
        expected = torch.autograd.grad(self.by_quadrature(likelihood, q_f, y).sum(), parameters)
        for ours, theirs in zip(actual, expected, strict=True):
            torch.testing.assert_close(ours, theirs, rtol=1e-8, atol=1e-8)


def test_the_expectation_of_a_training_step_needs_no_covariance_of_the_latent_functions():
    """The dense joint strategy knows the marginals of the sums that its sites are of, and they are those of W f."""
    network, likelihood = helpers.make_tied()
    model = helpers.JointModel(network)
    x, y = helpers.make_data(2)
    q_f = model(x, context=(x, y))
    mean, variance = q_f.projected(likelihood.decoder.weight)
    W = likelihood.decoder.weight
    torch.testing.assert_close(mean, q_f.mean @ W.mT, rtol=0, atol=1e-8)
    # GPyTorch's distance of a point to itself is not quite 0 while gradients are recorded
    expected = torch.einsum("pk,tnkl,pl->tnp", W, point_covariances(q_f), W)
    torch.testing.assert_close(variance, expected, rtol=0, atol=1e-7)
    assert q_f.projected(W + 1) is None


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
