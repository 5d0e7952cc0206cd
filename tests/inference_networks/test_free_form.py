from __future__ import annotations

import helpers
import pytest
import torch

from gpytorch_sgpvae import AmortizedVariationalDistribution, FactorNet, FreeFormSites, TaskELBO


@helpers.pairwise_cases("num_latents, tasks, dtype", [2, 1, None], [(4,), ()], helpers.DTYPES)
def test_they_start_as_the_networks_sites_and_keep_points_without_information_so(num_latents, tasks, dtype):
    network = FactorNet(3, num_latents).to(dtype)
    y = torch.randn(*tasks, 12, 3, dtype=dtype)
    observed = torch.rand(y.shape) < 0.5
    observed[..., 0, :] = False
    sites = network(helpers.rows(y, observed))
    free = FreeFormSites.from_sites(sites, num_latents)
    assert free.num_latents == num_latents
    torch.testing.assert_close(free(helpers.rows(y, observed)).precision, sites.precision)
    torch.testing.assert_close(free(helpers.rows(y, observed)).precision_mean, sites.precision_mean)
    optimizer = torch.optim.SGD(free.parameters(), lr=0.1)
    (free.sites().precision.sum() + free.sites().precision_mean.sum()).backward()
    assert all(parameter.grad.isfinite().all() for parameter in free.parameters())
    optimizer.step()
    assert torch.equal(free.sites().precision > 0, sites.precision > 0)


def test_they_take_the_place_of_a_network_and_train():
    model, likelihood = helpers.make_model(), helpers.make_likelihood()
    x, y = helpers.make_data(4)
    free = FreeFormSites.from_sites(model.strategy.sites((x, y)))
    model.strategy._variational_distribution = AmortizedVariationalDistribution(free)
    optimizer = torch.optim.Adam(free.parameters(), lr=0.05)
    samples = torch.randn(10, 4, 12, 2, dtype=x.dtype)
    elbos = []
    for _ in range(50):
        optimizer.zero_grad()
        elbo = TaskELBO(likelihood, model)(model(x, context=(x, y)), y, base_samples=samples)
        (-elbo.sum()).backward()
        optimizer.step()
        elbos.append(elbo.detach())
    assert (elbos[-1] > elbos[0]).all()


def test_the_number_of_latent_functions_is_read_off_the_sites():
    for shape, num_latents in (((12,), None), ((2, 12), 2), ((4, 2, 12), 2)):
        sites = helpers.GaussianSites(torch.randn(shape), torch.rand(shape))
        assert FreeFormSites.from_sites(sites).num_latents == num_latents


def test_rows_in_which_nothing_is_observed_have_no_site():
    free = FreeFormSites(torch.randn(2, 12), torch.rand(2, 12))
    observed = torch.ones(12, 3, dtype=torch.bool)
    observed[4] = False
    assert (free(helpers.rows(torch.randn(12, 3), observed)).precision == 0).nonzero().tolist() == [[0, 4], [1, 4]]


def test_shapes_that_differ_are_an_error():
    with pytest.raises(ValueError, match=r"\(2, 3\).*\(2, 4\)"):
        FreeFormSites(torch.zeros(2, 3), torch.zeros(2, 4))
