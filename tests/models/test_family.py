"""Every row of the table in docs/concepts/family.md, constructed and trained for a step, and what its members share."""

from __future__ import annotations

import copy
import pickle
from pathlib import Path

import gpytorch
import helpers
import pytest
import torch

from gpytorch_sgpvae import (
    GPVAE,
    SGPVAE,
    VAE,
    BernoulliObservations,
    CategoricalObservations,
    Context,
    FactorNet,
    GaussianObservations,
    MixedObservations,
    PoissonObservations,
)


def linear(num_latents=2, num_outputs=3):
    return torch.nn.Linear(num_latents, num_outputs)


FAMILY = {
    "SGP-VAE": lambda: SGPVAE(3, 2, torch.rand(5, 2)),
    "GP-VAE": lambda: GPVAE(3, 2),
    "VAE": lambda: VAE(3, 2),
    "GP factor analysis": lambda: GPVAE(3, 2, decoder=linear()),
    "semiparametric latent factor model": lambda: SGPVAE(3, 2, torch.rand(5, 2), decoder=linear()),
    "factor analysis": lambda: VAE(3, 2, decoder=linear()),
    "probabilistic PCA": lambda: VAE(
        3, 2, decoder=linear(), observation_model=GaussianObservations(3, shared_noise=True)
    ),
}


@pytest.fixture(params=FAMILY.values(), ids=FAMILY.keys())
def member(request):
    return request.param().double()


@pytest.mark.parametrize("tasks", [(), (4,), (2,)])
def test_every_member_trains_and_predicts_tasks_with_holes(member, tasks):
    x, y = helpers.make_data(*tasks)
    elbo = member.elbo((x, y))
    assert elbo.shape == tasks
    member.loss((x, y)).backward()
    assert all(parameter.grad.isfinite().all() for parameter in member.parameters())
    prediction = member.eval().predict(x, (x, y), num_samples=5)
    assert prediction.mean.shape == (*tasks, 12, 3)
    assert prediction.variance.isfinite().all()
    assert prediction.sample(3, joint=True).shape == (3, *tasks, 12, 3)


def test_every_member_has_a_row_on_its_page():
    page = (Path(__file__).parents[2] / "docs" / "concepts" / "family.md").read_text(encoding="utf-8")
    rows = [line for line in page.splitlines() if line.startswith("|")]
    for name in (*FAMILY, "InducingSitesVariationalStrategy"):
        assert any(name in row for row in rows), name


@pytest.mark.parametrize("chunk_size", [1, 5, 100])
def test_chunked_prediction_equals_unchunked(member, chunk_size):
    x, y = helpers.make_data(4)
    member.eval()
    torch.manual_seed(1)
    whole = member.predict(x, (x, y), num_samples=5)
    torch.manual_seed(1)
    chunked = member.predict(x, (x, y), num_samples=5, chunk_size=chunk_size)
    torch.testing.assert_close(chunked.mean, whole.mean, rtol=0, atol=1e-10)


def test_predictions_can_be_pickled(member):
    x, y = helpers.make_data()
    prediction = member.eval().predict(x, (x, y), num_samples=5)
    assert torch.equal(pickle.loads(pickle.dumps(prediction)).mean, prediction.mean)


def test_points_with_equal_inputs_are_different_points_to_a_vae():
    vae = VAE(3, 2).double().eval()
    x, y = torch.zeros(12, 1).double(), torch.randn(12, 3).double()
    expected = vae(x, context=(x, y)).mean
    for chunk_size in (None, 5):
        assert torch.equal(vae.predict(x, (x, y), chunk_size=chunk_size).function_mean, expected)
    assert torch.equal(vae.predict(x.clone(), (x, y)).function_mean, expected)


def test_copies_are_faithful(member):
    x, y = helpers.make_data(4)
    member.loss((x, y)).backward()
    member.eval()
    expected = member.condition((x, y))(x).mean
    for twin in (copy.deepcopy(member), pickle.loads(pickle.dumps(member))):
        assert torch.equal(twin.condition((x, y))(x).mean, expected)


def test_the_decoder_has_the_size_that_the_observation_model_needs():
    observations = MixedObservations(
        [
            GaussianObservations(1),
            BernoulliObservations(1),
            CategoricalObservations(1, num_classes=4),
            PoissonObservations(1),
        ]
    )
    x, y = helpers.make_data(4, num_outputs=4, missing=0, dtype=torch.float32)
    y[..., 1], y[..., 2], y[..., 3] = (
        (y[..., 1] > 0).float(),
        torch.randint(4, (4, 12)).float(),
        y[..., 3].exp().floor(),
    )
    y[torch.rand(y.shape) < 0.3] = torch.nan
    for model in (
        SGPVAE(4, 2, torch.rand(5, 2), observation_model=observations),
        GPVAE(4, 2, observation_model=observations),
    ):
        assert model.elbo((x, y)).isfinite().all()


class TestHiding:
    def test_the_network_sees_less_than_the_likelihood(self):
        model = SGPVAE(3, 2, torch.rand(5, 2)).double()
        context = Context(*helpers.make_data(4))
        samples = torch.randn(3, 4, 12, 2).double()
        everything = model.elbo(context, hide=1.0, base_samples=samples)
        prior = model.likelihood.expected_log_prob(context.y, model(context.x, prior=True), base_samples=samples).sum(
            -1
        )
        torch.testing.assert_close(everything, prior)
        assert torch.equal(
            model.elbo(context, hide=0.0, base_samples=samples), model.elbo(context, base_samples=samples)
        )

    def test_it_is_the_bound_of_a_context_with_further_holes(self):
        model = SGPVAE(3, 2, torch.rand(5, 2)).double()
        context = Context(*helpers.make_data(4))
        samples = torch.randn(3, 4, 12, 2).double()
        torch.manual_seed(1)
        elbo = model.elbo(context, hide=0.5, base_samples=samples)
        torch.manual_seed(1)
        hidden = context.hide(0.5)
        q_f = model(context.x, context=hidden)
        expected = model.likelihood.expected_log_prob(context.y, q_f, base_samples=samples).sum(-1)
        torch.testing.assert_close(elbo, expected - model.model.variational_strategy.kl_divergence())


class TestSubsets:
    """The paper's estimate of the bound from some of the points."""

    def test_hold_log_hyperpriors_once(self):
        prior = gpytorch.priors.GammaPrior(2.0, 3.0)
        model = VAE(3, 2, observation_model=GaussianObservations(3, noise_prior=prior)).double()
        context = Context(*helpers.make_data(4, missing=1.1))
        expected = prior.log_prob(model.likelihood.observation_model.noise).sum().expand(4)
        torch.testing.assert_close(model.elbo(context), expected)
        torch.testing.assert_close(model.elbo(context, subset_size=3), expected)

    def test_do_not_depend_on_padding(self):
        model = VAE(3, 2).double()
        x, y = helpers.make_data(num_points=5, missing=0)
        padded = Context.pad([(x, y), helpers.make_data(num_points=40)])
        samples = torch.zeros(1, 2, 10, 2).double()
        alone = model.elbo((x, y), base_samples=samples[:, 0, :5])
        for _ in range(5):
            torch.testing.assert_close(model.elbo(padded, subset_size=10, base_samples=samples)[0], alone)

    def estimates(self, model, context, subset_size):
        with torch.no_grad(), gpytorch.settings.num_likelihood_samples(20):
            subsets = torch.stack([model.elbo(context, subset_size=subset_size) for _ in range(400)])
            whole = torch.stack([model.elbo(context) for _ in range(100)])
        error = (subsets.var() / 400 + whole.var() / 100).sqrt()
        return subsets.mean() - whole.mean(), error

    def test_are_unbiased_where_points_are_independent(self):
        bias, error = self.estimates(VAE(3, 2).double(), Context(*helpers.make_data(num_points=30)), 10)
        assert bias.abs() < 4 * error

    def test_are_biased_where_points_tell_of_each_other(self):
        # confident sites, so that the divergence from the prior, where the bias is, counts
        model = GPVAE(3, 2, network=FactorNet(3, 2, initial_stddev=0.1)).double()
        model.model.covar_module.base_kernel.lengthscale = 10.0
        bias, error = self.estimates(model, Context(*helpers.make_data(num_points=30)), 10)
        assert bias.abs() > 10 * error

    def test_of_all_points_are_the_bound_itself(self):
        model = GPVAE(3, 2).double()
        context = Context(*helpers.make_data())
        samples = torch.zeros(1, 12, 2).double()  # the points come in another order
        whole = model.elbo(context, base_samples=samples)
        torch.testing.assert_close(model.elbo(context, subset_size=12, base_samples=samples), whole)
