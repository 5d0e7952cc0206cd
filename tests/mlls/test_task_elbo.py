from __future__ import annotations

import gpytorch
import helpers
import pytest
import torch

from gpytorch_sgpvae import Context, TaskELBO


def make(prior=None):
    model, likelihood = helpers.make_model(), helpers.make_likelihood()
    if prior is not None:
        kernel = model.covar_module.base_kernel
        kernel.register_prior("lengthscale_prior", prior, "lengthscale")
    x, y = helpers.make_data(4)
    q_f = model(x, context=(x, y))
    samples = torch.randn(3, 4, 12, 2, dtype=torch.float64)
    return model, likelihood, q_f, y, samples


def test_it_is_the_expected_log_likelihood_minus_the_kl_divergence_in_nats():
    model, likelihood, q_f, y, samples = make()
    expected = likelihood.expected_log_prob(y, q_f, base_samples=samples).sum(-1)
    kl = model.variational_strategy.kl_divergence()
    for beta in (1.0, 0.3, 0.0):
        elbo = TaskELBO(likelihood, model, beta=beta)(q_f, y, base_samples=samples)
        assert elbo.shape == (4,)
        torch.testing.assert_close(elbo, expected - beta * kl)


@pytest.mark.parametrize("num_tasks", [1, 4, 100])
def test_the_sum_over_all_tasks_holds_hyperpriors_and_added_losses_once(num_tasks):
    class Penalty(gpytorch.mlls.AddedLossTerm):
        def loss(self, *params):
            return torch.tensor(5.0, dtype=torch.float64)

    prior = gpytorch.priors.GammaPrior(2.0, 3.0)
    model, likelihood, q_f, y, samples = make(prior)
    plain = likelihood.expected_log_prob(y, q_f, base_samples=samples).sum(-1)
    plain = plain - model.variational_strategy.kl_divergence()
    model.register_added_loss_term("penalty")
    model.update_added_loss_term("penalty", Penalty())
    elbo = TaskELBO(likelihood, model, num_tasks=num_tasks)(q_f, y, base_samples=samples)
    once = prior.log_prob(model.covar_module.base_kernel.lengthscale).sum() - 5.0
    torch.testing.assert_close(elbo, plain + once / num_tasks)


def test_it_bounds_the_evidence_from_below():
    """The evidence is E p(y | f), by importance sampling, which is reliable for a task of one point."""
    model, likelihood = helpers.make_model(), helpers.make_likelihood()
    x, y = helpers.make_data(num_points=1, missing=0)
    with torch.no_grad(), gpytorch.settings.num_likelihood_samples(100_000):
        evidence = likelihood.log_marginal(y, model(x, prior=True)).sum()
        elbo = TaskELBO(likelihood, model)(model(x, context=(x, y)), y)
    assert elbo <= evidence + 0.01


def test_a_context_serves_as_input_and_target():
    model, likelihood = helpers.make_model(), helpers.make_likelihood()
    context = Context.pad([helpers.make_data(num_points=n) for n in (3, 9)])
    assert TaskELBO(likelihood, model)(model(context.x, context=context), context.y).isfinite().all()


@pytest.mark.parametrize("tasks", [(), (4,)])
def test_one_output_may_be_a_column_also_for_gpytorchs_likelihoods(tasks):
    model, likelihood = helpers.make_model(1, None), gpytorch.likelihoods.GaussianLikelihood().double()
    context = Context(*helpers.make_data(*tasks, num_outputs=1, missing=0))
    elbo = TaskELBO(likelihood, model)
    column = elbo(model(context.x, context=context), context.y)
    assert column.shape == tasks
    assert torch.equal(column, elbo(model(context.x, context=context), context.y.squeeze(-1)))


def test_a_likelihood_for_one_output_on_several_latent_functions_is_an_error():
    model = helpers.make_model(3, 2)
    x, y = helpers.make_data(4, missing=0)
    with pytest.raises(ValueError, match=r"BernoulliLikelihood.*one per point"):
        TaskELBO(gpytorch.likelihoods.BernoulliLikelihood(), model)(model(x, context=(x, y)), (y[..., :2] > 0).double())


def test_a_number_of_tasks_below_one_is_an_error():
    with pytest.raises(ValueError, match="at least 1"):
        TaskELBO(helpers.make_likelihood(), helpers.make_model(), num_tasks=0)
