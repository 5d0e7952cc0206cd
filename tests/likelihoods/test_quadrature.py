"""Expectations without samples, where each output depends on one value of a linear decoder."""

from __future__ import annotations

import gpytorch
import helpers
import pytest
import torch
from gpytorch.distributions import MultitaskMultivariateNormal, MultivariateNormal

from gpytorch_sgpvae import (
    GPVAE,
    BernoulliObservations,
    CategoricalObservations,
    CensoredGaussianObservations,
    DecoderLikelihood,
    GaussianObservations,
    MixedObservations,
    NegativeBinomialObservations,
    PoissonObservations,
    StudentTObservations,
)
from gpytorch_sgpvae.likelihoods.quadrature import NUM_NODES, gauss_hermite
from gpytorch_sgpvae.mlp import PrivateLinear
from gpytorch_sgpvae.variational.point_marginals import point_covariances

N, K = 6, 2
MODELS = {
    "poisson": (lambda: PoissonObservations(3), lambda: torch.poisson(torch.full((N, 3), 3.0))),
    "bernoulli": (lambda: BernoulliObservations(3), lambda: (torch.rand(N, 3) < 0.5).float()),
    "negative binomial": (lambda: NegativeBinomialObservations(3), lambda: torch.poisson(torch.full((N, 3), 3.0))),
    "censored": (lambda: CensoredGaussianObservations(3), lambda: torch.randn(N, 3).clamp_min(0.0)),
    "student": (lambda: StudentTObservations(3), lambda: torch.randn(N, 3)),
    "mixed": (
        lambda: MixedObservations([PoissonObservations(1), GaussianObservations(1), BernoulliObservations(1)]),
        lambda: torch.stack([torch.arange(float(N)), torch.randn(N), (torch.rand(N) < 0.5).float()], -1),
    ),
}
every_model = pytest.mark.parametrize("name", MODELS)


def make(name, private=False):
    """A likelihood, targets with holes, and q(f) with latent functions that depend on each other."""
    torch.manual_seed(0)
    model, targets = MODELS[name]
    decoder = PrivateLinear(K, 3, 0) if private else torch.nn.Linear(K, 3)
    likelihood = DecoderLikelihood(decoder, model()).double()
    for parameter in likelihood.decoder.parameters():
        torch.nn.init.normal_(parameter, std=0.5)
    y = targets().double()
    y[0, 1] = y[3] = torch.nan
    root = 0.3 * torch.randn(N * K, N * K, dtype=torch.float64)
    return (
        likelihood,
        y,
        MultitaskMultivariateNormal(torch.randn(N, K).double(), root @ root.T + 0.1 * torch.eye(N * K)),
    )


def values_of(likelihood, q_f):
    mean, variance = likelihood.value_marginals(q_f)
    return mean.detach(), variance.detach()


class TestNodes:
    def test_weights_are_those_of_a_standard_normal(self, dtype):
        nodes, weights = gauss_hermite(torch.zeros((), dtype=dtype))
        assert nodes.dtype == weights.dtype == dtype
        for degree, moment in [(0, 1.0), (1, 0.0), (2, 1.0), (4, 3.0), (6, 15.0), (8, 105.0)]:
            assert float((weights * nodes**degree).sum()) == pytest.approx(moment, rel=1e-4, abs=1e-4)

    def test_polynomials_are_exact_up_to_the_degree_that_is_promised(self):
        nodes, weights = gauss_hermite(torch.zeros((), dtype=torch.float64))
        double_factorial = torch.arange(1.0, 2 * NUM_NODES - 2, 2, dtype=torch.float64).prod()
        torch.testing.assert_close((weights * nodes ** (2 * NUM_NODES - 2)).sum(), double_factorial)


@every_model
class TestExpectedLogProb:
    def test_it_is_the_integral_over_each_value(self, name):
        likelihood, y, q_f = make(name)
        mean, variance = values_of(likelihood, q_f)
        z = torch.linspace(-9, 9, 20_001, dtype=torch.float64)
        density = (-0.5 * z.square()).exp() / (2 * torch.pi) ** 0.5
        values = mean + variance.sqrt() * z[:, None, None]
        with torch.no_grad():
            log_probs = likelihood.row_log_probs(y, likelihood.observation_model(values))  # (S, N)
            expected = torch.trapezoid(density.unsqueeze(-1) * log_probs, z, dim=0)
            actual = likelihood.expected_log_prob(y, q_f)
        # of kinks (a logarithm of a probability far in its tail) twenty nodes know less than of polynomials
        torch.testing.assert_close(actual, expected, rtol=2e-3, atol=2e-3)

    def test_it_is_what_many_samples_say(self, name):
        likelihood, y, q_f = make(name)
        with torch.no_grad(), gpytorch.settings.num_likelihood_samples(20_000):
            log_probs = likelihood.row_log_probs(y, likelihood._draw_likelihood_samples(q_f))
            error = (likelihood.expected_log_prob(y, q_f) - log_probs.mean(0)).abs()
        assert (error <= 5 * log_probs.std(0) / 20_000**0.5 + 2e-3).all()

    def test_it_takes_no_samples(self, name):
        likelihood, y, q_f = make(name)
        first = likelihood.expected_log_prob(y, q_f)
        torch.manual_seed(5)
        assert torch.equal(first, likelihood.expected_log_prob(y, q_f))

    def test_missing_targets_say_nothing(self, name):
        likelihood, y, q_f = make(name)
        expected = likelihood.expected_log_prob(y, q_f)
        assert expected[3] == 0
        assert expected.isfinite().all()
        gradients = torch.autograd.grad(expected.sum(), list(likelihood.parameters()), allow_unused=True)
        assert all(gradient is None or gradient.isfinite().all() for gradient in gradients)
        only = y.clone()
        only[:, 1:] = torch.nan
        parts = [likelihood.expected_log_prob(part, q_f) for part in (only, torch.where(only.isnan(), y, torch.nan))]
        torch.testing.assert_close(parts[0] + parts[1], expected)

    def test_without_any_variance_it_is_the_log_probability_and_gradients_are_finite(self, name):
        likelihood, y, q_f = make(name)
        torch.nn.init.zeros_(likelihood.decoder.weight)  # of values that no latent function changes
        expected = likelihood.row_log_probs(y, likelihood(q_f.mean.unsqueeze(0))).squeeze(0)
        actual = likelihood.expected_log_prob(y, q_f)
        torch.testing.assert_close(actual, expected)
        gradients = torch.autograd.grad(actual.sum(), list(likelihood.parameters()), allow_unused=True)
        assert all(gradient is None or gradient.isfinite().all() for gradient in gradients)

    def test_tasks_keep_their_shape(self, name):
        likelihood, y, q_f = make(name)
        both = MultitaskMultivariateNormal(q_f.mean.expand(4, N, K), q_f.covariance_matrix.expand(4, N * K, N * K))
        actual = likelihood.expected_log_prob(y.expand(4, N, 3), both)
        torch.testing.assert_close(actual, likelihood.expected_log_prob(y, q_f).expand(4, N))


def test_categories_depend_on_several_values_and_take_samples():
    assert not CategoricalObservations(1, 3).is_elementwise
    assert not MixedObservations([PoissonObservations(1), CategoricalObservations(1, 3)]).is_elementwise
    assert MixedObservations([PoissonObservations(1), BernoulliObservations(1)]).is_elementwise


class TestValueMarginals:
    @pytest.mark.parametrize("private", [False, True])
    def test_they_are_those_of_the_point_covariances(self, private):
        likelihood, _, q_f = make("poisson", private)
        mean, variance = likelihood.value_marginals(q_f)
        weight, bias = likelihood.decoder.weight, likelihood.decoder.bias
        torch.testing.assert_close(mean, q_f.mean @ weight.mT + bias)
        expected = torch.einsum("jk,nkl,jl->nj", weight, point_covariances(q_f), weight)
        torch.testing.assert_close(variance, expected)

    def test_latent_functions_that_are_independent_add_their_variances(self):
        _, _, q_f = make("poisson")
        single = DecoderLikelihood(torch.nn.Linear(1, 3), PoissonObservations(3)).double()
        alone = MultivariateNormal(q_f.mean[:, 0], torch.eye(N).double() * 0.3)
        _, variance = single.value_marginals(alone)
        torch.testing.assert_close(variance, 0.3 * single.decoder.weight.square().mT.expand(N, 3))

    @pytest.mark.parametrize("at_context", [True, False])
    def test_those_of_the_contexts_own_rows_take_no_latent_functions(self, at_context):
        torch.manual_seed(0)
        model = GPVAE(3, K, network="jointfactornet", decoder=torch.nn.Linear(K, 3)).double().eval()
        helpers.perturb(model)
        x, y = torch.rand(5, 1).double(), torch.randn(5, 3).double()
        y[1, 0] = y[2] = torch.nan
        with torch.no_grad():
            q_f = model(x if at_context else x.clone(), context=(x, y), diag=True)
            mean, variance = model.likelihood.value_marginals(q_f)
            weight = model.likelihood.decoder.weight
            joint = model(x.clone(), context=(x, y), diag=False)
            expected = torch.einsum("jk,nkl,jl->nj", weight, point_covariances(joint), weight)
            torch.testing.assert_close(mean, joint.mean @ weight.mT + model.likelihood.decoder.bias)
            torch.testing.assert_close(variance, expected)

    def test_a_decoder_that_bends_has_none(self):
        _, _, q_f = make("poisson")
        decoder = torch.nn.Sequential(torch.nn.Linear(K, 3), torch.nn.Tanh())
        with pytest.raises(TypeError, match="got Sequential: use predict"):
            DecoderLikelihood(decoder, PoissonObservations(3)).value_marginals(q_f)
