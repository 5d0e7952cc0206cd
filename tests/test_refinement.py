from __future__ import annotations

from itertools import pairwise

import gpytorch
import helpers
import pytest
import torch
from gpytorch.likelihoods import MultitaskGaussianLikelihood
from gpytorch.variational import LMCVariationalStrategy

from gpytorch_sgpvae import (
    GPVAE,
    MLP,
    SGPVAE,
    VAE,
    LinearPlus,
    MarkovGPVAE,
    PoissonObservations,
    Posterior,
    TaskELBO,
    refine,
)


def make(cls):
    return SGPVAE(3, 2, torch.rand(5, 2).double()) if cls is SGPVAE else cls(3, 2).double()


@pytest.mark.parametrize("cls", [SGPVAE, GPVAE, VAE])
@pytest.mark.parametrize("tasks", [(), (4,)])
def test_the_gap_is_positive_and_the_refined_posterior_has_the_larger_bound(cls, tasks):
    model = make(cls)
    x, y = helpers.make_data(*tasks)
    torch.manual_seed(1)
    posterior, gap = refine(model, (x, y), steps=20)
    assert isinstance(posterior, Posterior)
    assert gap.shape == tasks
    assert (gap > 0).all()
    objective = TaskELBO(model.likelihood, model.model)
    samples = torch.randn(2000, *tasks, 12, 2).double()
    with torch.no_grad():
        before = model.elbo((x, y), base_samples=samples)
        after = objective(posterior(x), y, base_samples=samples)
    # samples of their own, so up to their noise
    torch.testing.assert_close(after - before, gap, rtol=0.2, atol=1.0)


def test_more_steps_make_it_no_smaller_and_it_converges():
    model = make(SGPVAE)
    data = helpers.make_data(4)
    gaps = []
    for steps in (0, 1, 5, 50, 60):
        torch.manual_seed(1)
        gaps.append(refine(model, data, steps=steps).gap)
    assert (gaps[0] == 0).all()
    assert all((later >= earlier).all() for earlier, later in pairwise(gaps))
    torch.testing.assert_close(gaps[-1], gaps[-2], rtol=1e-3, atol=1e-3)


def test_the_model_is_left_as_it_was():
    model = make(SGPVAE)
    state = {name: value.clone() for name, value in model.state_dict().items()}
    refine(model, helpers.make_data(), steps=3)
    assert all(
        torch.equal(state[name], value) for name, value in model.state_dict().items() if "initialized" not in name
    )
    assert all(parameter.requires_grad and parameter.grad is None for parameter in model.parameters())


def test_nothing_observed_has_no_gap():
    gap = refine(make(SGPVAE), helpers.make_data(4, missing=1.1), steps=3).gap
    assert (gap == 0).all()


@pytest.mark.parametrize("cls", [SGPVAE, GPVAE, VAE])
def test_likelihoods_that_are_not_log_concave_have_divergences_that_are_not_negative(cls):
    model = make(cls)
    model.likelihood.observation_model.noise = 0.01
    for layer in model.likelihood.decoder.modules():
        if isinstance(layer, torch.nn.Linear):
            layer.weight.data *= 2
    posterior, gap = refine(model, helpers.make_data(2, num_points=15), steps=60)
    posterior(helpers.make_data()[0])
    assert (gap >= 0).all()
    assert (model.strategy.kl_divergence() >= 0).all()


def test_gpytorchs_likelihood_with_missing_targets():
    model, likelihood = helpers.make_model(1, None), gpytorch.likelihoods.GaussianLikelihood().double()
    x, y = helpers.make_data(num_outputs=1)
    y = y.squeeze(-1)
    kept = ~y.isnan()
    gap = refine(model, (x, y), steps=2, likelihood=likelihood).gap
    assert gap > 0
    torch.testing.assert_close(gap, refine(model, (x[kept], y[kept]), steps=2, likelihood=likelihood).gap)


def test_mixed_latent_functions_are_an_error():
    model = helpers.make_model()
    model.variational_strategy = LMCVariationalStrategy(model.strategy, num_tasks=3, num_latents=2).double()
    with pytest.raises(NotImplementedError, match="LMCVariationalStrategy"):
        refine(model, helpers.make_data(), likelihood=MultitaskGaussianLikelihood(num_tasks=3).double())


def test_a_model_without_a_likelihood_is_an_error():
    with pytest.raises(ValueError, match="likelihood="):
        refine(make(SGPVAE).model, helpers.make_data())


@pytest.mark.parametrize("cls", [SGPVAE, GPVAE])
@pytest.mark.parametrize("linear", [True, False], ids=["Linear", "LinearPlus"])
@pytest.mark.parametrize("steps", [0, 1, 15])
def test_the_gap_of_latent_functions_inferred_together_is_never_negative_for_counts(cls, linear, steps):
    arguments = (torch.rand(5, 2).double() * 3,) if cls is SGPVAE else ()
    decoder = torch.nn.Linear(2, 3) if linear else LinearPlus(MLP(2, 3, (8,)), start=1.0)
    model = cls(3, 2, *arguments, "jointfactornet", decoder=decoder, observation_model=PoissonObservations(3)).double()
    helpers.perturb(model.strategy._variational_distribution.network, scale=0.5)
    x, y = helpers.make_data(3)
    y = torch.where(y.isnan(), y, y.nan_to_num().exp().round())
    y[0, 2], y[1] = torch.nan, torch.nan
    posterior, gap = refine(model, (x, y), steps=steps)
    assert gap.shape == (3,)
    assert (gap >= 0).all()
    assert gap[1] == 0
    assert (gap[[0, 2]] > 0).all() == (steps > 0)
    assert posterior(torch.rand(4, 2).double()).mean.isfinite().all()
    assert (model.strategy.kl_divergence() >= 0).all()


@pytest.mark.parametrize("cls", [GPVAE, MarkovGPVAE])
def test_a_refined_joint_posterior_takes_in_further_rows(cls):
    """Refined sites have loadings of each point's own, those of further rows the network's."""
    model = cls(3, 2, network="jointfactornet", decoder=torch.nn.Linear(2, 3)).double().eval()
    x, y = torch.rand(12, 1).double().sort(0).values, torch.randn(12, 3).double()
    posterior = refine(model, (x[:7], y[:7]), steps=1).posterior.update((x[7:], y[7:]))
    new = torch.tensor([[0.5], [2.0]]).double()
    # with a linear decoder and Gaussian noise the network's sites are the best ones already
    expected = model.condition((x, y))(new)
    torch.testing.assert_close(posterior(new).mean, expected.mean, rtol=0, atol=1e-6)
    torch.testing.assert_close(posterior(new).variance, expected.variance, rtol=0, atol=1e-6)
