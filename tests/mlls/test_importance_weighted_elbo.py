from __future__ import annotations

import math

import gpytorch
import helpers
import oracles
import pytest
import torch

from gpytorch_sgpvae import GPVAE, SGPVAE, VAE, Context, GaussianObservations, ImportanceWeightedELBO, TaskELBO


def make(cls, **kwargs):
    model = cls(3, 2, **kwargs).double()
    if cls is GPVAE:
        model.strategy.jitter_val = 1e-3
    context = Context(*helpers.make_data(num_points=6))
    return model, context


@pytest.mark.parametrize("cls", [GPVAE, VAE])
@pytest.mark.parametrize("num_samples", [1, 7])
def test_it_is_its_definition(cls, num_samples):
    """The definition is log 1/S Σ p(y | f_s) p(f_s) / q(f_s), with densities of N dimensions evaluated one by one."""
    model, context = make(cls)
    with torch.no_grad():
        q_f = model.model(context.x, context=context)
        prior = model.strategy.prior_distribution
        torch.manual_seed(1)
        f = q_f.rsample(torch.Size([num_samples]))  # (S, N, K)
        log_weights = model.likelihood.row_log_probs(context.y, model.likelihood(f)).sum(-1)
        for k in range(2):
            covariance = q_f.covariance_matrix[k::2, k::2]
            for s in range(num_samples):
                log_weights[s] += oracles.log_normal_density(f[s, :, k], prior.mean[k], prior.covariance_matrix[k])
                log_weights[s] -= oracles.log_normal_density(f[s, :, k], q_f.mean[:, k], covariance)
        torch.manual_seed(1)
        bound = ImportanceWeightedELBO(model.likelihood, model.model, num_samples)(q_f, context.y)
    torch.testing.assert_close(bound, log_weights.exp().mean().log(), rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("cls", [GPVAE, VAE])
def test_one_sample_gives_the_elbo_and_more_come_closer_to_the_evidence(cls):
    decoder, observations = torch.nn.Linear(2, 3).double(), GaussianObservations(3)
    observations.noise = 0.3
    model, context = make(cls, decoder=decoder, observation_model=observations)
    context = Context(context.x, torch.randn(6, 3).double())
    W, b, noise = decoder.weight.detach(), decoder.bias.detach(), observations.noise.detach()
    with torch.no_grad():
        q_f = model.model(context.x, context=context)
        K = model.strategy.prior_distribution.covariance_matrix
        evidence = oracles.log_normal_density(context.y.reshape(-1), *oracles.gp_factor_analysis(K, W, b, noise))

        def estimate(num_samples, repeats):
            objective = ImportanceWeightedELBO(model.likelihood, model.model, num_samples)
            return torch.stack([objective(q_f, context.y) for _ in range(repeats)])

        with gpytorch.settings.num_likelihood_samples(50_000):
            elbo = TaskELBO(model.likelihood, model.model)(q_f, context.y)
        single = estimate(1, 4000)
        assert (single.mean() - elbo).abs() < 5 * single.std() / 4000**0.5
        few, many = estimate(5, 500).mean(), estimate(2000, 5).mean()
    assert elbo < few < many
    assert many < evidence + 0.5


@pytest.mark.parametrize("cls", [GPVAE, VAE])
def test_it_trains_batches_with_holes(cls):
    model, _ = make(cls)
    context = Context(*helpers.make_data(4))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    objective = ImportanceWeightedELBO(model.likelihood, model.model)
    losses = []
    for _ in range(30):
        optimizer.zero_grad()
        bound = objective(model.model(context.x, context=context), context.y)
        assert bound.shape == (4,)
        (-bound.mean()).backward()
        optimizer.step()
        losses.append(bound.mean().item())
    assert sum(losses[-5:]) > sum(losses[:5])


def test_a_single_function_without_a_latent_dimension():
    model = helpers.DenseModel(helpers.make_model(3, None), jitter_val=1e-3)
    likelihood = helpers.make_likelihood(3, 1)
    context = Context(*helpers.make_data(4))
    bound = ImportanceWeightedELBO(likelihood, model, 5)(
        model.strategy(context.x, context=context, diag=False), context.y
    )
    assert bound.shape == (4,)
    assert bound.isfinite().all()
    with pytest.raises(ValueError, match="diag=False"):
        ImportanceWeightedELBO(likelihood, model, 5)(model.strategy(context.x, context=context, diag=True), context.y)


def test_inducing_points_are_an_error():
    model = SGPVAE(3, 2, torch.rand(5, 2)).double()
    context = Context(*helpers.make_data())
    objective = ImportanceWeightedELBO(model.likelihood, model.model)
    with pytest.raises(ValueError, match="GPVAE or VAE"):
        objective(model.model(context.x, context=context), context.y)


def test_q_f_elsewhere_is_an_error():
    model, context = make(GPVAE)
    objective = ImportanceWeightedELBO(model.likelihood, model.model)
    with pytest.raises(ValueError, match="not at the points of the context"):
        objective(model.model(context.x[:3], context=context), context.y[:3])


def test_other_likelihoods_are_an_error():
    model, _ = make(VAE)
    with pytest.raises(TypeError, match="DecoderLikelihood"):
        ImportanceWeightedELBO(gpytorch.likelihoods.GaussianLikelihood(), model.model)


class TestJoint:
    """Latent functions that were inferred together."""

    def make(self, **kwargs):
        model = GPVAE(3, 2, "jointfactornet", **kwargs).double()
        model.strategy.jitter_val = 1e-3
        context = Context(*helpers.make_data(4, num_points=6))
        return model, context, model.model(context.x, context=context, diag=False)

    def test_every_weight_of_an_exact_posterior_is_the_evidence(self):
        model, context, q_f = self.make(decoder=torch.nn.Linear(2, 3))
        bound = ImportanceWeightedELBO(model.likelihood, model.model, 1)(q_f, context.y)
        torch.testing.assert_close(bound, model.elbo(context), rtol=0, atol=1e-8)

    def test_it_is_its_definition(self):
        """Densities of N K dimensions, evaluated one by one."""
        model, context, _ = self.make()
        helpers.perturb(model.likelihood.decoder, model.strategy._variational_distribution.network)
        with torch.no_grad():
            q_f = model.model(context.x, context=context, diag=False)
            prior = model.strategy.prior_distribution
            torch.manual_seed(1)
            f = q_f.rsample(torch.Size([5]))  # (S, T, N, K)
            log_weights = model.likelihood.row_log_probs(context.y, model.likelihood(f)).sum(-1)
            for s in range(5):
                for t in range(4):
                    values = f[s, t].flatten()
                    p, q = (prior.mean[t], prior.covariance_matrix[t]), (q_f.loc[t], q_f.covariance_matrix[t])
                    log_weights[s, t] += oracles.log_normal_density(values, *p)
                    log_weights[s, t] -= oracles.log_normal_density(values, *q)
            torch.manual_seed(1)
            bound = ImportanceWeightedELBO(model.likelihood, model.model, 5)(q_f, context.y)
        torch.testing.assert_close(bound, log_weights.logsumexp(0) - math.log(5), rtol=1e-6, atol=1e-6)

    def test_the_covariance_of_each_point_alone_is_not_enough(self):
        model, context, _ = self.make()
        with pytest.raises(ValueError, match="diag=False"):
            ImportanceWeightedELBO(model.likelihood, model.model)(model.model(context.x, context=context), context.y)
