"""The alternative sparse approximation, with a network on pairs of an inducing point and a point."""

from __future__ import annotations

import helpers
import pytest
import torch
from gpytorch.variational import IndependentMultitaskVariationalStrategy

from gpytorch_sgpvae import (
    AmortizedVariationalDistribution,
    Context,
    InducingSitesVariationalStrategy,
    PairNet,
    TaskELBO,
    condition,
    refine,
)


class PairModel(helpers.Model):
    def __init__(self, num_latents=2, num_outputs=3, dtype=torch.float64):
        base = helpers.make_model(num_outputs, num_latents)
        super(helpers.Model, self).__init__(None)
        q_u = AmortizedVariationalDistribution(PairNet(num_outputs, num_latents, (8,), input_dim=2))
        strategy = InducingSitesVariationalStrategy(self, torch.rand(5, 2) * 3, q_u)
        if num_latents is not None:
            strategy = IndependentMultitaskVariationalStrategy(strategy, num_tasks=num_latents)
        self.variational_strategy = strategy
        self.mean_module, self.covar_module = base.mean_module, base.covar_module
        self.to(dtype)


@pytest.mark.parametrize("num_latents", [None, 1, 2])
@pytest.mark.parametrize("tasks", [(), (4,), (2,)])
def test_shapes(num_latents, tasks, dtype):
    model = PairModel(num_latents, dtype=dtype).eval()
    x, y = helpers.make_data(*tasks, dtype=dtype)
    latents = () if num_latents is None else (num_latents,)
    assert model.strategy.sites((x, y)).shape == (*tasks, *latents, 5)
    q_f = model(torch.rand(7, 2, dtype=dtype), context=(x, y))
    assert q_f.batch_shape == tasks
    assert q_f.event_shape == (7, *latents)
    assert model.variational_strategy.kl_divergence().shape == tasks


@pytest.mark.parametrize("garbage", [1e30, torch.nan, torch.inf])
def test_missing_entries_have_no_influence(garbage):
    network = PairNet(3, 2, input_dim=2)
    x, Z = torch.rand(12, 2), torch.rand(5, 2)
    y, observed = torch.randn(12, 3), torch.rand(12, 3) < 0.5
    observed[0] = False
    y = y.requires_grad_()

    def sites_of(y, rows=slice(None)):
        return network(Context(x[rows], torch.where(observed[rows], y[rows], torch.nan)).seen_from(Z))

    sites, other = sites_of(y), sites_of(torch.where(observed, y, garbage))
    assert torch.equal(sites.precision, other.precision)
    (gradient,) = torch.autograd.grad(sites.precision_mean.sum() + sites.precision.sum(), y)
    assert (gradient[~observed] == 0).all()
    deleted = sites_of(y, slice(1, None))
    torch.testing.assert_close(sites.precision, deleted.precision)


def test_a_network_of_pairs_asks_for_inducing_points():
    with pytest.raises(ValueError, match=r"InducingSitesVariationalStrategy.*seen_from"):
        PairNet(3, 2, input_dim=2)(Context(*helpers.make_data(dtype=torch.float32)))


def test_nothing_observed_gives_the_prior():
    model = PairModel()
    x, y = helpers.make_data(4, missing=1.1)
    q_f, prior = model(x, context=(x, y)), model(x, prior=True)
    torch.testing.assert_close(q_f.mean, prior.mean)
    torch.testing.assert_close(q_f.variance, prior.variance)
    assert (model.variational_strategy.kl_divergence() == 0).all()


def test_all_gradients_are_there_and_it_trains(dtype):
    model, likelihood = PairModel(dtype=dtype), helpers.make_likelihood(dtype=dtype)
    x, y = helpers.make_data(4, dtype=dtype)
    optimizer = torch.optim.Adam([*model.parameters(), *likelihood.parameters()], lr=1e-2)
    losses = []
    for _ in range(30):
        optimizer.zero_grad()
        loss = -TaskELBO(likelihood, model)(model(x, context=(x, y)), y).mean()
        loss.backward()
        optimizer.step()
        losses.append(loss.detach())
    assert losses[-1] < losses[0]
    assert all(parameter.grad is not None and parameter.grad.isfinite().all() for parameter in model.parameters())


def test_evidence_of_further_points_adds_here_too():
    model = PairModel().eval()
    x, y = helpers.make_data()
    posterior = condition(model, (x[:5], y[:5])).update((x[5:], y[5:]))
    x_new = torch.rand(7, 2).double()
    torch.testing.assert_close(posterior(x_new).mean, condition(model, (x, y))(x_new).mean, rtol=0, atol=1e-8)


def test_a_posterior_made_earlier_goes_on_with_the_old_inducing_points():
    model = PairModel().eval()
    x, y = helpers.make_data()
    posterior = condition(model, (x[:5], y[:5]))
    expected = condition(model, (x, y))(x).mean
    model.strategy.set_inducing_points(torch.rand(9, 2))
    torch.testing.assert_close(posterior.update((x[5:], y[5:]))(x).mean, expected)


def test_there_is_nothing_to_refine():
    x, y = helpers.make_data(num_points=5)
    with pytest.raises(NotImplementedError, match="InducingSitesVariationalStrategy"):
        refine(PairModel(), (x, y), likelihood=helpers.make_likelihood())


def test_inducing_points_of_each_latent_functions_own_are_an_error():
    with pytest.raises(ValueError, match=r"\(M, D\), got \(2, 5, 2\)"):
        PairModel().strategy.set_inducing_points(torch.rand(2, 5, 2))
